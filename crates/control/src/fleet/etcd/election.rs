//! Who leads, and until when.
//!
//! The candidate that makes the key `PREFIX/leader` is elected, until that key is gone: etcd deletes it when
//! the lease runs out that it hangs on. The leader hangs it on a new lease again and again, and each time the
//! reign is as long as the lease, counted from before etcd was asked, by this machine's clock, and less what
//! clocks may differ by. So it is over here before etcd can elect another one.
//!
//! etcd's own way to keep a lease alive asks only one server. A server that led the others and then stood
//! still may say yes although they have let the lease run out meanwhile. Granting a lease and moving a key
//! are agreed on by a majority.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use whimbrel_engine::clock;
use whimbrel_engine::error::{Error, Result, Side};

use super::address::EtcdOptions;
use super::client::{Client, GRANT, PATIENCE, RANGE, TXN, int};
use super::encoding::{base64, created, delete, entries, entries_of, modified, range};

/// What became of an attempt to be elected.
pub(super) enum Outcome {
    Elected(Office),
    /// Another coordinator leads. It says its address, if it is still there.
    Other(Option<String>),
}

/// A reign.
pub(super) struct Office {
    /// The revision in which the key of the election was made.
    pub(super) elected_at: i64,
    /// Until when no other coordinator can be elected, in milliseconds of this machine's clock; 0 once that
    /// is not so any more.
    pub(super) until_ms: watch::Receiver<u64>,
    options: Arc<EtcdOptions>,
    /// Ends with this.
    _keeper: JoinSet<()>,
}

/// How an election is held.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    /// The address of this coordinator, as it is announced to others.
    pub(super) address: String,
    /// How long etcd waits for a coordinator that says nothing, in seconds.
    pub(super) reign_s: u64,
    /// By how much clocks may run faster or slower than each other, in thousandths.
    pub(super) drift_per_mille: u64,
}

/// Finds the leader, and stands for election if there is none.
///
/// # Errors
/// As [`Client::call`].
pub(super) async fn stand(client: &mut Client, terms: &Terms) -> Result<Outcome> {
    let options = client.options().clone();
    let key = format!("{}/leader", options.prefix);
    let deadline = Instant::now() + client.patience * u32::try_from(options.endpoints.len()).unwrap_or(1);
    let answer = client.call(RANGE, &json!({"key": base64(&key)}), deadline).await?;
    if let Some(leader) = entries(&answer).first() {
        return Ok(Outcome::Other(Some(leader.text().to_owned())));
    }
    let asked_ms = clock::now_ms();
    let lease = Lease::granted(client, terms, deadline).await?;
    let answer = client.call(TXN, &lease.hang(&key, &terms.address, created(&key, 0)), deadline).await?;
    // An earlier attempt whose answer was lost may have made it.
    let found = entries_of(&answer, 0).into_iter().next();
    let elected_at = match (answer["succeeded"] == true, &found) {
        (true, _) => int(&answer["header"]["revision"]),
        (false, Some(found)) if found.lease == lease.id => Some(found.create_revision),
        _ => None,
    };
    let Some(elected_at) = elected_at else {
        return Ok(Outcome::Other(found.map(|leader| leader.text().to_owned())));
    };
    let (until, until_ms) = watch::channel(asked_ms + lease.reign_ms(terms));
    let mut keeper = JoinSet::new();
    let terms = terms.clone();
    // So that a server that does not answer leaves time for two others.
    let client = Client::new(options.clone(), PATIENCE.min(Duration::from_secs(terms.reign_s) / 6));
    let keeping = Keeper { client, key, terms, elected_at, until };
    keeper.spawn(keeping.keep());
    Ok(Outcome::Elected(Office { elected_at, until_ms, options, _keeper: keeper }))
}

/// A lease of etcd.
struct Lease {
    id: i64,
    ttl_s: i64,
}

impl Lease {
    async fn granted(client: &mut Client, terms: &Terms, deadline: Instant) -> Result<Lease> {
        let granted = client.call(GRANT, &json!({"TTL": terms.reign_s.to_string()}), deadline).await?;
        match (int(&granted["ID"]), int(&granted["TTL"])) {
            (Some(id), Some(ttl_s)) => Ok(Lease { id, ttl_s }),
            _ => {
                let store = client.options().to_string();
                Err(Error::unfit(Side::Store, store, "ask for a lease", "etcd grants none"))
            }
        }
    }

    /// Hangs the key of the election on this lease, if that is as it should be; otherwise reads it.
    fn hang(&self, key: &str, address: &str, condition: Value) -> Value {
        let put = json!({"key": base64(key), "value": base64(address), "lease": self.id.to_string()});
        json!({"compare": [condition], "success": [{"request_put": put}], "failure": [range(key)]})
    }

    fn reign_ms(&self, terms: &Terms) -> u64 {
        reign_ms(self.ttl_s, terms.drift_per_mille)
    }
}

/// How long a reign is that hangs on a lease of this many seconds.
fn reign_ms(ttl_s: i64, drift_per_mille: u64) -> u64 {
    let ms = u64::try_from(ttl_s).unwrap_or(0).saturating_mul(1_000);
    ms.saturating_sub(ms.saturating_mul(drift_per_mille).div_ceil(1_000) + 1)
}

/// Makes the reign longer, until that fails for too long.
struct Keeper {
    client: Client,
    key: String,
    terms: Terms,
    elected_at: i64,
    until: watch::Sender<u64>,
}

/// What became of an attempt to make a reign longer.
enum Kept {
    /// In this revision.
    At(i64),
    /// Something else was done in this revision, by an earlier attempt whose answer was lost.
    Since(i64),
    Lost,
}

impl Keeper {
    async fn keep(mut self) {
        let mut changed_at = self.elected_at;
        let ttl = Duration::from_secs(self.terms.reign_s);
        loop {
            let asked_ms = clock::now_ms();
            if asked_ms >= *self.until.borrow() {
                return;
            }
            match self.renew(changed_at).await {
                Ok((Kept::At(revision), lease)) => {
                    changed_at = revision;
                    let longer_ms = asked_ms + lease.reign_ms(&self.terms);
                    self.until.send_modify(|until_ms| *until_ms = longer_ms.max(*until_ms));
                    sleep(ttl / 4).await;
                }
                Ok((Kept::Since(revision), _)) => changed_at = revision,
                Ok((Kept::Lost, _)) => {
                    tracing::warn!("the lease at etcd has run out: another coordinator may be elected");
                    self.until.send_replace(0);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "the reign is not made longer");
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Hangs the key on a new lease, if nothing was done with it since `changed_at`. Otherwise what was sent
    /// before and arrives late could hang it on an older lease again.
    async fn renew(&mut self, changed_at: i64) -> Result<(Kept, Lease)> {
        let deadline = Instant::now() + self.client.patience;
        let lease = Lease::granted(&mut self.client, &self.terms, deadline).await?;
        let body = lease.hang(&self.key, &self.terms.address, modified(&self.key, changed_at));
        let answer = self.client.call(TXN, &body, deadline).await?;
        if answer["succeeded"] == true {
            let revision = int(&answer["header"]["revision"]).unwrap_or(changed_at);
            return Ok((Kept::At(revision), lease));
        }
        let kept =
            match entries_of(&answer, 0).first().filter(|found| found.create_revision == self.elected_at) {
                Some(found) if found.lease == lease.id => Kept::At(found.mod_revision),
                Some(found) => Kept::Since(found.mod_revision),
                None => Kept::Lost,
            };
        Ok((kept, lease))
    }
}

/// How long to wait before it is tried again.
const RETRY: Duration = Duration::from_millis(50);

impl Office {
    /// Has another one be elected at once. What was to be written has been by now.
    pub(super) async fn resign(self) {
        let key = format!("{}/leader", self.options.prefix);
        let body = json!({"compare": [created(&key, self.elected_at)], "success": [delete(&key)]});
        let mut client = Client::new(self.options.clone(), PATIENCE);
        // If it cannot be said, the lease runs out by itself.
        if let Err(error) = client.call(TXN, &body, Instant::now() + PATIENCE).await {
            tracing::debug!(%error, "the lease at etcd is left to run out");
        }
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_lab::Etcd;

    use super::*;

    #[tokio::test]
    async fn what_would_have_made_a_reign_longer_and_comes_late_does_not_make_it_shorter() {
        let etcd = Etcd::start(1).expect("etcd");
        let options = Arc::new(EtcdOptions::parse(&format!("etcd://{}", etcd.addrs())).expect("an address"));
        let terms = Terms { address: "a:1".to_owned(), reign_s: 60, drift_per_mille: 20 };
        // A busy machine takes its time.
        let mut client = Client::new(options.clone(), Duration::from_secs(30));
        let elected = stand(&mut client, &terms).await.expect("it stands");
        let Outcome::Elected(Office { elected_at, _keeper: mut other, .. }) = elected else {
            panic!("who else?")
        };
        other.shutdown().await;
        let key = format!("{}/leader", options.prefix);
        let (until, _) = watch::channel(0);
        let mut keeper = Keeper { client, key: key.clone(), terms, elected_at, until };
        let answer = keeper.client.call(RANGE, &json!({"key": base64(&key)}), Instant::now()).await;
        let at = entries(&answer.expect("an answer"))[0].mod_revision;
        let Ok((Kept::At(revision), lease)) = keeper.renew(at).await else { panic!("it is kept") };
        // It was sent before that, and comes now.
        let Ok((Kept::Since(since), _)) = keeper.renew(at).await else {
            panic!("it is moved to another lease")
        };
        assert_eq!(since, revision);
        let answer = keeper.client.call(RANGE, &json!({"key": base64(&key)}), Instant::now()).await;
        assert_eq!(entries(&answer.expect("an answer"))[0].lease, lease.id);
        let gone = json!({"compare": [], "success": [delete(&key)]});
        keeper.client.call(TXN, &gone, Instant::now()).await.expect("an answer");
        let Ok((Kept::Lost, _)) = keeper.renew(revision).await else { panic!("there is nothing to keep") };
    }

    #[test]
    fn a_reign_is_shorter_than_its_lease() {
        assert_eq!(reign_ms(3, 20), 2_939);
        assert_eq!(reign_ms(1, 0), 999);
        assert_eq!((reign_ms(0, 20), reign_ms(-1, 20)), (0, 0));
    }
}
