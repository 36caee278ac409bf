//! Which server is the primary, by what sentinels say.
//!
//! All named sentinels are asked at once, and what most of them say counts: a sentinel that was cut off may
//! know of an older primary.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use whimbrel_wire::value::Value;

use crate::endpoint::{Address, Endpoint, Watched};
use crate::error::{Error, ErrorKind, Result};
use crate::link::{Link, LinkOptions};

/// How long a sentinel may take to answer. They are asked while something waits for the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the sentinels know under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The primary.
    pub primary: Address,
    /// Its replicas, those without that are down.
    pub replicas: Vec<Address>,
}

/// What most of the sentinels say. The server that they name is not asked: during a failover it may not
/// answer, or be a replica.
///
/// # Errors
/// `Unfit` if they do not know the name; as [`Link::open`] if none answers.
pub async fn group(endpoint: &Arc<Endpoint>, watched: &Arc<Watched>, options: LinkOptions) -> Result<Group> {
    let login = &endpoint.sentinel;
    let as_sentinel = Arc::new(Endpoint {
        user: login.user.clone(),
        password: login.password.clone(),
        password_command: None,
        ..(**endpoint).clone()
    });
    let mut asked = JoinSet::new();
    for (host, port) in &watched.sentinels {
        let (endpoint, watched) = (as_sentinel.clone(), watched.clone());
        let at = Address::Tcp(host.clone(), *port);
        asked.spawn(async move {
            let timed_out = || {
                let kind = ErrorKind::Timeout(PATIENCE.as_millis() as u64);
                Error::new(endpoint.side, at.to_string(), "ask a sentinel", kind)
            };
            timeout(PATIENCE, ask(&endpoint, &at, &watched, options))
                .await
                .unwrap_or_else(|_| Err(timed_out()))
        });
    }
    let mut votes: BTreeMap<Address, (usize, Group)> = BTreeMap::new();
    let (mut failure, mut strangers) = (None, 0);
    while let Some(answer) = asked.join_next().await {
        match answer.map_err(|e| Error::own("ask a sentinel", e))? {
            Ok(Some(group)) => {
                let vote = votes.entry(group.primary.clone()).or_insert((0, group));
                vote.0 += 1;
                if vote.0 * 2 > watched.sentinels.len() {
                    return Ok(vote.1.clone());
                }
            }
            Ok(None) => strangers += 1,
            Err(e) => failure = Some(e),
        }
    }
    let best = votes.into_values().max_by_key(|(votes, _)| *votes);
    match (best, failure) {
        (Some((_, group)), _) => Ok(group),
        (None, Some(e)) if e.is_link() => Err(e.with_remedy("see that the sentinels are up and reachable")),
        (None, Some(e)) if strangers == 0 => Err(e),
        (None, _) => {
            let what = format!("the sentinels know no primary of the name {}", watched.name);
            let at = Address::Sentinel(watched.clone()).to_string();
            Err(Error::unfit(endpoint.side, at, "find the primary", what)
                .with_remedy("SENTINEL MASTERS on one of them lists the names"))
        }
    }
}

/// What one sentinel says; `None` if it does not know the name.
async fn ask(
    endpoint: &Arc<Endpoint>,
    at: &Address,
    watched: &Watched,
    options: LinkOptions,
) -> Result<Option<Group>> {
    let name = watched.name.as_bytes();
    let mut link = Link::open(endpoint, at, LinkOptions { db: 0, readonly: false, ..options }).await?;
    let reply = link.call(&[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name]).await?;
    if reply.is_null() {
        return Ok(None);
    }
    let Some(primary) = reply.as_items().and_then(address_of) else {
        return Err(link.unexpected("SENTINEL GET-MASTER-ADDR-BY-NAME", &reply));
    };
    // The older name is known to all of them.
    let reply = link.call(&[b"SENTINEL", b"SLAVES", name]).await?;
    let replica = |entry: &Value| {
        let field = |name| entry.field(name).and_then(Value::as_str);
        let is_down =
            field("flags").is_some_and(|flags| flags.contains("down") || flags.contains("disconnected"));
        let port = field("port")?.parse().ok().filter(|port| *port > 0 && !is_down)?;
        Some(endpoint.reach(&Address::Tcp(field("ip")?.to_owned(), port), at))
    };
    let replicas = reply.as_items().unwrap_or_default().iter().filter_map(replica).collect();
    Ok(Some(Group { primary: endpoint.reach(&primary, at), replicas }))
}

fn address_of(items: &[Value]) -> Option<Address> {
    let [host, port] = items else { return None };
    Some(Address::Tcp(host.as_str()?.to_owned(), port.as_str()?.parse().ok().filter(|port| *port > 0)?))
}
