//! Clients that could still take or leave something behind a fence.
//!
//! Redis 7.0 does not look at ACLs again when it serves a client that was waiting before its rights changed:
//! the first item that arrives goes to that client. So connections that wait are ended, and with them those
//! in a transaction and those that watch keys for one: what they began belongs to the other side now. They
//! connect again, and find the fence.

use crate::deployment::Deployment;
use crate::endpoint::Address;
use crate::error::Result;
use crate::link::Link;

/// Commands that wait. While writers are paused, the servers count those as waiting too, whatever their
/// command is: they are left alone, and find the fence when the pause is over.
const WAITING_COMMANDS: [&str; 12] = [
    "blpop",
    "brpop",
    "blmove",
    "brpoplpush",
    "blmpop",
    "bzpopmin",
    "bzpopmax",
    "bzmpop",
    "xread",
    "xreadgroup",
    "wait",
    "waitaof",
];

/// How many are ended with one round trip.
const BATCH: usize = 256;

/// Ends them on all primaries; returns how many. To be called while new ones are kept out. Clients of
/// replicas only read. A primary that fails does not keep the clients of the others from being ended; the
/// first failure is returned.
pub(super) async fn end(deployment: &Deployment) -> Result<u64> {
    let (mut ended, mut failure) = (0, None);
    for address in deployment.topology().shards.iter().map(|shard| &shard.primary) {
        match end_at(deployment, address).await {
            Ok(number) => ended += number,
            Err(e) => failure = failure.or(Some(e)),
        }
    }
    failure.map_or(Ok(ended), Err)
}

async fn end_at(deployment: &Deployment, address: &Address) -> Result<u64> {
    let mut link = deployment.open(address, 0).await?;
    let clients = link.call(&[b"CLIENT", b"LIST"]).await?;
    // Names of clients may be any bytes.
    let Some(text) = clients.as_bytes() else { return Err(link.unexpected("CLIENT LIST", &clients)) };
    let ids = waiting(&String::from_utf8_lossy(text));
    let mut ended = 0;
    for batch in ids.chunks(BATCH) {
        ended += end_these(&mut link, batch).await?;
    }
    Ok(ended)
}

async fn end_these(link: &mut Link, ids: &[String]) -> Result<u64> {
    for id in ids {
        link.push(&[b"CLIENT", b"KILL", b"ID", id.as_bytes()]);
    }
    link.flush().await?;
    let mut ended = 0;
    for reply in link.replies(ids.len()).await? {
        // Zero for a client that has gone by itself.
        ended += link.check(reply, b"CLIENT KILL")?.as_int().map_or(0, i64::unsigned_abs);
    }
    Ok(ended)
}

/// The ids of those that wait, are in a transaction, or watch keys. Redis before 7.4 does not report which
/// clients watch: their writes are refused when they try.
fn waiting(clients: &str) -> Vec<String> {
    let is_waiting = |line: &&str| {
        let field = |name: &str| {
            line.split(' ')
                .filter_map(|field| field.split_once('='))
                .find(|(n, _)| *n == name)
                .map(|(_, v)| v)
        };
        let flags = field("flags").unwrap_or_default();
        // Links of replicas and of the primary are no clients.
        let is_client = !flags.contains(['S', 'M']);
        let blocked = flags.contains('b')
            && field("cmd").is_some_and(|cmd| WAITING_COMMANDS.contains(&cmd.to_ascii_lowercase().as_str()));
        let watches = field("watch").is_some_and(|keys| keys != "0");
        is_client && (blocked || flags.contains('x') || watches)
    };
    let id = |line: &str| line.strip_prefix("id=")?.split(' ').next().map(str::to_owned);
    clients.lines().filter(is_waiting).filter_map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_distinguished_from_who_is_paused_or_only_connected() {
        let clients = "id=3 addr=1 name= flags=b db=0 multi=-1 cmd=blpop user=app\n\
                       id=4 addr=1 name= flags=b db=0 multi=-1 watch=0 cmd=set user=app\n\
                       id=5 addr=1 name=id=9 flags=x db=0 multi=1 watch=0 cmd=get user=app\n\
                       id=6 addr=1 name= flags=N db=0 multi=-1 watch=2 cmd=watch user=app\n\
                       id=7 addr=1 name= flags=S db=0 multi=-1 watch=0 cmd=psync user=mover\n\
                       id=8 addr=1 name= flags=N db=0 multi=-1 watch=0 cmd=get user=app\n";
        assert_eq!(waiting(clients), ["3", "5", "6"]);
        assert_eq!(waiting(""), Vec::<String>::new());
    }
}
