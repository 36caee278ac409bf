//! Removing keys from slots that are not the node's own, and waiting for replicas.
//!
//! Keys are deleted with `ASKING` and `UNLINK`, some of one slot at a time, in slots that are marked as
//! importing: so the deletions are replicated, and the server is never blocked for longer than a small batch
//! takes. Redis 8.4 and later show the keys of slots that are not the node's own only then.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};
use whimbrel_core::slot::{Slot, SlotSet, tag_for_slot};
use whimbrel_wire::value::Value;

use super::peer::{Connector, Mark, Peer, origins};
use super::state::Handover;
use crate::endpoint::Address;
use crate::error::{Code, Error, Result, ServerError};
use crate::feed::NO_PORT;
use crate::link::Link;
use crate::nodes::{ClusterView, key_counts};
use crate::probe::Info;
use crate::slot_keys;

/// Slots that are marked, emptied and unmarked together. Few, so that marks are short-lived: a node that
/// imports a slot takes it over by itself, since Valkey 8, when the node that it imports from gives it to
/// another node.
const GROUP_SLOTS: usize = 128;

/// Keys asked for of each slot at once.
const KEYS_PER_SLOT: u64 = 64;

/// Keys deleted at once.
const BATCH_KEYS: usize = 256;

/// The shortest rest that is taken.
const REST_MIN: Duration = Duration::from_millis(4);

/// Rounds without a key less, after which we give up.
const FRUITLESS_MAX: u32 = 3;

/// How long replicas may take to delete what their primary has deleted.
const REPLICA_LAG_MAX: Duration = Duration::from_secs(10);

/// How often they are asked.
const REPLICA_POLL: Duration = Duration::from_millis(5);

/// How long the target may take to hear of new owners, once nothing keeps it from that: others notify it
/// every second.
const SERVED_MAX: Duration = Duration::from_secs(5);

/// How often it is asked.
const SERVED_POLL: Duration = Duration::from_millis(50);

/// Longest time a server may answer `WAIT` or a `SETSLOT` after its own limit.
const WAIT_GRACE: Duration = Duration::from_secs(1);

/// How long the key lives that is written in order to wait for replicas.
const WAIT_KEY_TTL_MS: &[u8] = b"1000";

impl Handover {
    /// Deletes the keys that the source still holds in `slots`, which it must have handed over, at most
    /// `keys_per_s` of them in a second, or as many as leave the server a fifth of its time. Safe to repeat.
    /// The number of keys deleted.
    ///
    /// A source that has turned into a replica has thrown its keys away already.
    ///
    /// # Errors
    /// `Unfit` if the source still owns some of the slots, if keys do not go away, or if a replica of the
    /// source keeps some. As [`Link::call`].
    pub async fn clean_up(&mut self, slots: &SlotSet, keys_per_s: Option<u64>) -> Result<u64> {
        let view = self.source.view().await?;
        if !view.me().is_primary() {
            return Ok(0);
        }
        let own = view.me().slots.intersection(slots);
        if !own.is_empty() {
            let what = format!("the source still owns slots {own}");
            return Err(self.source.unfit("clean up", what));
        }
        let deleted = sweep(&mut self.source, &view, slots, keys_per_s).await?;
        // Also those of a clean-up that was killed: its slots may hold no key any more.
        let view = self.source.view().await?;
        let marked: SlotSet = view.me().importing.iter().map(|(slot, _)| *slot).collect();
        self.source.set_slots(&marked.intersection(slots), &Mark::Stable).await?;
        emptied_on_replicas(&self.source, &view, slots).await?;
        Ok(deleted)
    }

    /// Clears the marks of `slots` on the target, then deletes every staged key in them from it, paced as
    /// [`Handover::clean_up`]. Safe to repeat. The number of keys deleted.
    ///
    /// The marks go first, and are set again for a few slots at a time only. A node takes in no new owner of
    /// a slot that it imports (Redis 7.0, 8.0). If the source's shard has failed over, the marks would make
    /// the target believe in the dead owner permanently, and its whole shard answer `CLUSTERDOWN`, to us as
    /// well.
    ///
    /// # Errors
    /// `Unfit` if the target owns some of the slots: then these are no staged keys; or if it has not heard of
    /// living owners of all slots in time. Otherwise as [`Handover::clean_up`].
    pub async fn wipe(&mut self, slots: &SlotSet, keys_per_s: Option<u64>) -> Result<u64> {
        let view = self.target.view().await?;
        if !view.me().is_primary() {
            return Err(self.target.unfit("remove staged keys", "the target has become a replica"));
        }
        let own = view.me().slots.intersection(slots);
        if !own.is_empty() {
            let what = format!("the target owns slots {own}: their keys are no copies");
            return Err(self.target.unfit("remove staged keys", what));
        }
        self.unmark(slots).await?;
        let view = self.wait_until_served().await?;
        let deleted = sweep(&mut self.target, &view, slots, keys_per_s).await?;
        emptied_on_replicas(&self.target, &view, slots).await?;
        Ok(deleted)
    }

    /// Waits until the target serves: it refuses deletions too for as long as it knows no living owner of
    /// some slot and needs all. Returns its view.
    async fn wait_until_served(&mut self) -> Result<ClusterView> {
        let deadline = Instant::now() + SERVED_MAX;
        loop {
            let state = self.target.run(async |link| link.call(&[b"CLUSTER", b"INFO"]).await).await?;
            let is_ok = state.as_bytes().is_some_and(|b| Info::parse(b).field("cluster_state") == Some("ok"));
            if is_ok {
                return self.target.view().await;
            }
            if Instant::now() >= deadline {
                let what = "the target answers CLUSTERDOWN: it knows no living owner of some slots";
                return Err(self.target.unfit("remove staged keys", what).with_remedy(
                    "see whimbrel status; once every slot has a primary, whimbrel jobs resume goes on",
                ));
            }
            sleep(SERVED_POLL).await;
        }
    }

    /// The address of a replica of the target that is getting all keys anew, or waits for that.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub async fn replica_in_full_sync(&mut self) -> Result<Option<String>> {
        let info = self.target.replication().await?;
        let syncs = |line: &&str| field(line, "state").is_some_and(|state| state != "online");
        let address = |line: &str| Some(format!("{}:{}", field(line, "ip")?, field(line, "port")?));
        Ok(replicas(&info).iter().find(|line| syncs(line)).and_then(|line| address(line)))
    }

    /// Waits until all replicas of the target that are online have what was written to the target before this
    /// call. False if that takes longer than `timeout_ms`; true at once if there are none.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub async fn wait_replicas(&mut self, timeout_ms: u64) -> Result<bool> {
        let deadline = Instant::now() + Duration::from_millis(timeout_ms);
        let info = self.target.replication().await?;
        let wanted = info.number("master_repl_offset").unwrap_or(0);
        let online = acknowledged(&info);
        if online.iter().all(|offset| *offset >= wanted) {
            return Ok(true);
        }
        // Replicas acknowledge every second only, unless they are asked to.
        self.ask_for_acknowledgements(online.len(), timeout_ms).await?;
        loop {
            let online = acknowledged(&self.target.replication().await?);
            if online.iter().all(|offset| *offset >= wanted) {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Has the target ask its replicas how far they are, and waits for the answers. What they answered is
    /// read elsewhere.
    async fn ask_for_acknowledgements(&mut self, replicas: usize, timeout_ms: u64) -> Result<()> {
        let traits = self.target.traits;
        let marked = self.marked.iter().next();
        let importing = Mark::Importing(self.source.id.clone());
        let (replicas, limit) = (replicas.to_string(), timeout_ms.max(1).to_string());
        let asking = self.target.run(async |link| {
            let expected = match marked {
                // `WAIT` waits for this connection's own writes, and there are none. Marking a slot once more
                // waits for the replicas as well, and changes nothing.
                Some(slot) if traits.setslot_waits => {
                    importing.push(link, slot);
                    1
                }
                // Redis 8 as well: so a key is written and removed. It would expire, should we die in
                // between.
                Some(slot) => {
                    let key = format!("whimbrel:wait:{{{}}}", tag_for_slot(slot));
                    link.push(&[b"ASKING"]);
                    link.push(&[b"SET", key.as_bytes(), b"", b"PX", WAIT_KEY_TTL_MS]);
                    link.push(&[b"ASKING"]);
                    link.push(&[b"UNLINK", key.as_bytes()]);
                    link.push(&[b"WAIT", replicas.as_bytes(), limit.as_bytes()]);
                    5
                }
                // Redis 7 counts what was written before any command on this connection as its own.
                None => {
                    link.push(&[b"PING"]);
                    link.push(&[b"WAIT", replicas.as_bytes(), limit.as_bytes()]);
                    2
                }
            };
            link.flush().await?;
            link.replies(expected).await.map(drop)
        });
        // If the time is up, the connection is given up with the future, since an answer is still to come.
        match timeout(Duration::from_millis(timeout_ms) + WAIT_GRACE, asking).await {
            Ok(asked) => asked,
            Err(_) => Ok(()),
        }
    }
}

/// How far each replica that is online has acknowledged.
fn acknowledged(info: &Info) -> Vec<u64> {
    let online = |line: &&&str| field(line, "state") == Some("online");
    replicas(info).iter().filter(online).filter_map(|line| field(line, "offset")?.parse().ok()).collect()
}

/// What the primary says of each replica. It counts a change feed as one. A feed names a port at which it
/// cannot be reached, and never acknowledges anything.
fn replicas(info: &Info) -> Vec<&str> {
    let is_feed = |line: &str| field(line, "port").is_some_and(|port| port == "0" || port == NO_PORT);
    let lines =
        (0..info.number("connected_slaves").unwrap_or(0)).filter_map(|i| info.field(&format!("slave{i}")));
    lines.filter(|line| !is_feed(line)).collect()
}

/// One field of such a line.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// Deletes the keys of `slots`. The node owns none of these slots.
async fn sweep(peer: &mut Peer, view: &ClusterView, slots: &SlotSet, keys_per_s: Option<u64>) -> Result<u64> {
    let occupied = match peer.traits.hides_keys {
        // Whether they hold keys shows once they are marked.
        true => slots.clone(),
        false => peer.run(async |link| key_counts(link, slots).await).await?.occupied(),
    };
    // A mark names the node to import from: the owner.
    if let Some(slot) = occupied.iter().find(|slot| view.primary_of(*slot).is_none()) {
        let what = format!("slot {} may hold keys and has no owner", slot.number());
        return Err(peer.unfit("remove keys", what).with_remedy("run whimbrel repair"));
    }
    let of_owner = origins(view, &occupied);
    let mut deleted = 0;
    for (owner, slots) in of_owner {
        for group in slots.chunks(GROUP_SLOTS) {
            let set: SlotSet = group.iter().copied().collect();
            peer.set_slots(&set, &Mark::Importing(owner.clone())).await?;
            let emptied = peer.run(async |link| empty(link, group, keys_per_s).await).await;
            // Also after a failure: a mark left behind would make the node refuse other migrations, and keep
            // it from hearing of a new owner.
            let unmarked = peer.set_slots(&set, &Mark::Stable).await;
            deleted += emptied?;
            unmarked?;
        }
    }
    Ok(deleted)
}

/// Deletes all keys of a group of marked slots.
async fn empty(link: &mut Link, group: &[Slot], keys_per_s: Option<u64>) -> Result<u64> {
    let mut deleted = 0;
    let mut fruitless = 0;
    let mut owed = Duration::ZERO;
    let mut left: Vec<Slot> = group.to_vec();
    while !left.is_empty() {
        // Of one slot each.
        let mut groups: Vec<Vec<Bytes>> = Vec::new();
        let mut holding = Vec::new();
        let listed = slot_keys::first_names(link, &left, KEYS_PER_SLOT).await?;
        for (slot, names) in left.iter().zip(listed).filter(|(_, names)| !names.is_empty()) {
            holding.push(*slot);
            groups.push(names);
        }
        let found = !groups.is_empty();
        let mut gone = 0;
        // In an importing slot several keys are refused together if one of them has just expired.
        while let Some(mut batch) = groups.pop().map(|group| vec![group]) {
            let mut keys = batch[0].len();
            while let Some(next) = groups.pop_if(|next| keys + next.len() <= BATCH_KEYS) {
                keys += next.len();
                batch.push(next);
            }
            let begun = Instant::now();
            let (unlinked, refused) = unlink(link, batch).await?;
            gone += unlinked;
            groups.extend(refused.into_iter().flatten().map(|key| vec![key]));
            owed += rest(keys, begun.elapsed(), keys_per_s);
            // Timers are no finer than a millisecond: shorter rests are saved up.
            if owed >= REST_MIN {
                sleep(std::mem::take(&mut owed)).await;
            }
        }
        fruitless = if gone > 0 || !found { 0 } else { fruitless + 1 };
        if fruitless >= FRUITLESS_MAX {
            let (side, at) = (link.endpoint().side, link.address().to_string());
            return Err(Error::unfit(side, at, "remove keys", "keys in the slots cannot be deleted"));
        }
        deleted += gone;
        left = holding;
    }
    Ok(deleted)
}

/// Deletes groups of keys, each of one slot. How many are gone, and the groups of several that were refused.
async fn unlink(link: &mut Link, groups: Vec<Vec<Bytes>>) -> Result<(u64, Vec<Vec<Bytes>>)> {
    for group in &groups {
        link.push(&[b"ASKING"]);
        let outbox = link.outbox();
        outbox.command(1 + group.len());
        outbox.arg(b"UNLINK");
        group.iter().for_each(|key| outbox.arg_bytes(key));
    }
    link.flush().await?;
    let mut replies = link.replies(2 * groups.len()).await?.into_iter().skip(1).step_by(2);
    let (mut gone, mut refused) = (0, Vec::new());
    for group in groups {
        let reply = replies.next().unwrap_or(Value::Null);
        match ServerError::of(&reply) {
            Some(e) if group.len() > 1 && e.code == Code::TryAgain => refused.push(group),
            _ => {
                let reply = link.check(reply, b"UNLINK")?;
                gone += reply.as_int().and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
            }
        }
    }
    Ok((gone, refused))
}

/// How long to leave the server alone after a batch.
fn rest(keys: usize, took: Duration, keys_per_s: Option<u64>) -> Duration {
    match keys_per_s {
        Some(limit) => Duration::from_secs_f64(keys as f64 / limit.max(1) as f64).saturating_sub(took),
        None => took / 4,
    }
}

/// Waits until the replicas of `peer` hold no key in `slots`. Those that cannot be reached are left out:
/// they will follow the stream of deletions, or copy everything anew.
///
/// Replicas have no marks that would make them show hidden keys. They follow the stream of deletions.
async fn emptied_on_replicas(peer: &Peer, view: &ClusterView, slots: &SlotSet) -> Result<()> {
    if peer.traits.hides_keys {
        return Ok(());
    }
    for replica in view.replicas_of(&peer.id).filter(|n| n.is_usable()) {
        let left = match left_on(&peer.connector, &replica.address, slots).await {
            Ok(left) => left,
            Err(e) if e.is_transient() => {
                tracing::warn!(error = %e, "a replica could not be asked for leftover keys");
                continue;
            }
            Err(e) => return Err(e),
        };
        if left > 0 {
            let what =
                format!("its replica at {} still holds {left} keys that were deleted", replica.address);
            return Err(peer.unfit("remove keys", what).with_remedy(
                "see that the replica follows its primary; a full resynchronisation removes them",
            ));
        }
    }
    Ok(())
}

async fn left_on(connector: &Connector, address: &Address, slots: &SlotSet) -> Result<u64> {
    let deadline = Instant::now() + REPLICA_LAG_MAX;
    let (mut link, _) = connector.open(address).await?;
    loop {
        let left = key_counts(&mut link, slots).await?.sum(slots);
        if left == 0 || Instant::now() >= deadline {
            return Ok(left);
        }
        sleep(REPLICA_POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_replicas_that_are_online_count() {
        let info = Info::parse(
            b"role:master\r\nconnected_slaves:5\r\n\
              slave0:ip=127.0.0.1,port=1,state=online,offset=120,lag=0\r\n\
              slave1:ip=127.0.0.1,port=2,state=wait_bgsave,offset=0,lag=0\r\n\
              slave2:ip=127.0.0.1,port=3,state=online,offset=98,lag=1,type=replica\r\n\
              slave3:ip=127.0.0.1,port=65536,state=online,offset=0,lag=1\r\n\
              slave4:ip=127.0.0.1,port=0,state=online,offset=0,lag=1\r\n\
              master_repl_offset:120\r\n",
        );
        assert_eq!(acknowledged(&info), [120, 98], "feeds acknowledge nothing");
    }

    #[test]
    fn a_pace_leaves_time() {
        let ms = Duration::from_millis;
        assert_eq!(rest(100, ms(20), Some(1_000)), ms(80));
        assert_eq!(rest(100, ms(200), Some(1_000)), ms(0));
        assert_eq!(rest(100, ms(8), None), ms(2));
    }
}
