//! What a handover knows, and its connections.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::SlotSet;

use super::options::{HandoverOptions, SlotFenceKind};
use super::peer::{Mark, Peer};
use crate::endpoint::Address;
use crate::error::Result;
use crate::link::Link;
use crate::nodes::ClusterView;
use crate::probe::Info;

/// A write pause on the source that is in effect.
#[derive(Debug, Clone)]
pub struct Paused {
    /// The source's replication offset under the pause; `None` if it keeps none.
    ///
    /// A caller whose feed has read on, and found nothing to move, may raise it to the feed's: what the fence
    /// verifies is that nothing was written after this offset.
    pub offset: Option<u64>,
    /// Until when no write is accepted, counted from before the command was sent. For plans: this clock
    /// stands still while the machine is suspended.
    pub until: Instant,
    /// The same by [`clock::now_ms`](crate::clock::now_ms), for what must not be believed later.
    pub(super) until_ms: u64,
    /// The source's replication history: another one means another process or a failover.
    pub(super) history: String,
}

/// What a fence that relies on a longer pause has found, and for how long it holds.
#[derive(Debug, Clone)]
pub(super) struct LongPause {
    /// Until when no write is accepted, counted from before the command was sent, by
    /// [`clock::now_ms`](crate::clock::now_ms).
    pub(super) until_ms: u64,
    /// The source's replication offset, if it keeps one.
    pub(super) offset: Option<u64>,
    /// The source's replication history.
    pub(super) history: String,
}

/// How a fence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fenced {
    /// True if nothing was written since the offset given, and the source accepts no write to the slots any
    /// more. If not, the fence was undone: the source owns the slots and is not paused, and they are marked
    /// as before.
    pub held: bool,
    /// The source's offset at the fence, if it keeps one.
    pub offset: Option<u64>,
    /// True if there is no moment in which a client can be sent back and forth between the two nodes, or be
    /// answered that the slots have no owner.
    pub seamless: bool,
}

/// How a fence ended that takes over as well.
#[derive(Debug)]
pub struct Sealed {
    /// The fence.
    pub fenced: Fenced,
    /// What came of the take-over, if the fence held: after an error it is not known what is true of the
    /// target.
    pub taken: Result<()>,
}

/// The connections and the knowledge for handing slots of one primary over to another.
///
/// Holds one connection to each node, at most 64 more to each if marks wait for replicas, and one to every
/// other node while [`Handover::confirm`] asks them. All are visible in `CLIENT LIST` as `whimbrel:job`.
/// Dropping it closes them and changes nothing on the servers.
///
/// **Errors.** Those of [`fence`](Handover::fence), [`take_over`](Handover::take_over) and
/// [`give_back`](Handover::give_back) that carry a [`ServerError`](crate::error::ServerError) mean that
/// nothing was changed; after any other it is not known, and [`Handover::observe`] finds out.
#[derive(Debug)]
pub struct Handover {
    pub(super) source: Peer,
    pub(super) target: Peer,
    pub(super) options: HandoverOptions,
    /// How long the source is paused by a fence that relies on gossip.
    pub(super) long_pause_ms: u64,
    /// Slots that the target is known to have marked.
    pub(super) marked: SlotSet,
    /// The slots of the last take-over.
    pub(super) taken: SlotSet,
    /// After this, by [`crate::clock::now_ms`], slots are not claimed: a replica of the source may have been
    /// promoted.
    pub(super) claim_until_ms: u64,
    /// The fence at hand, if it is one that relies on the pause.
    pub(super) long_pause: Option<LongPause>,
    /// A child of the source saved when it was fenced, and the source would crash when it removes keys
    /// itself.
    pub(super) beside_child: bool,
    /// Nodes on which replicas were kept from following the slots, and that want it switched on again.
    pub(super) sheltered: Vec<(NodeId, Address)>,
    pub(super) members: Members,
    /// How the target waits for the source, if it can; found out before each pause.
    pub(super) gate: Option<Gate>,
    /// Connections to other nodes.
    pub(super) watchers: Watchers,
}

/// A `PING` in a replication stream: `*1\r\n$4\r\nPING\r\n`. No other command that is replicated is as short.
pub(super) const PING_BYTES: u64 = 14;

/// How long a handover waits for children of the source.
const CHILDREN_PATIENCE: Duration = Duration::from_millis(100);

/// Between two questions whether there are any.
const CHILDREN_POLL: Duration = Duration::from_millis(10);

/// Whether replicas follow the last slot of their primary.
pub(super) const MIGRATION_OPTION: &[u8] = b"cluster-allow-replica-migration";

/// Connections to other nodes, kept from batch to batch, and when they were used last.
pub(super) type Watchers = BTreeMap<NodeId, (Link, Instant)>;

/// The nodes of the two shards at one time, each list with the primary first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// The shard that gives slots away.
    pub source: Vec<NodeId>,
    /// The shard that gets them.
    pub target: Vec<NodeId>,
}

impl Members {
    /// The shards of two primaries, in one view.
    pub(super) fn of(view: &ClusterView, source: &NodeId, target: &NodeId) -> Members {
        let shard = |primary: &NodeId| {
            [primary.clone()].into_iter().chain(view.replicas_of(primary).map(|n| n.id.clone())).collect()
        };
        Members { source: shard(source), target: shard(target) }
    }
}

/// How the target reaches the source, and how the source names the target.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    pub(super) host: String,
    pub(super) port: String,
    /// The ends of a redirection to the target: by its IP address, and by its host name, or nothing.
    pub(super) named: [String; 2],
    /// The source's numbers for connections over which keys are sent to it; the target's is one of them.
    pub(super) messengers: Vec<String>,
}

/// Whether a server has a child, or will have one at once, by its `INFO persistence` and `replication`.
fn saves(info: &Info) -> bool {
    let running = [
        "rdb_bgsave_in_progress",
        "aof_rewrite_in_progress",
        "aof_rewrite_scheduled",
        "module_fork_in_progress",
    ];
    let is_set = |name: &&str| info.field(name).is_some_and(|value| value != "0");
    let replicas = info.fields().filter(|(name, _)| name.starts_with("slave"));
    let mut states = replicas.flat_map(|(_, value)| value.split(','));
    running.iter().any(is_set)
        || states.any(|field| ["state=wait_bgsave", "state=send_bulk"].contains(&field))
}

impl Handover {
    /// How the source is fenced. A fence may find that it has to be another one, which then holds until the
    /// next.
    pub fn fence_kind(&self) -> SlotFenceKind {
        match self.options.fence {
            Some(kind) => kind,
            None if self.beside_child => SlotFenceKind::Bare,
            None => self.source.traits.fence,
        }
    }

    /// How the source is fenced if no child of it saves.
    pub(super) fn usual_fence(&self) -> SlotFenceKind {
        self.options.fence.unwrap_or(self.source.traits.fence)
    }

    /// Whether the source is fenced by a script, which looks first and gives slots up only if nothing was
    /// written since `paused.offset`. Then nothing was that the target lacks, if the source does not own them
    /// any more, whatever became of the answer.
    pub fn fences_by_script(&self, paused: &Paused) -> bool {
        self.fence_kind() == SlotFenceKind::Redirecting
            && self.source.traits.scripts
            && paused.offset.is_some()
    }

    /// Whether the fence depends on what children of the source do. See [`Handover::fence`].
    pub fn minds_children(&self) -> bool {
        self.options.fence.is_none() && self.source.traits.dies_beside_child
    }

    /// Waits for children of the source, if the fence depends on them: call it before a pause. Children that
    /// attach feeds live for some milliseconds. What is written meanwhile has to move under the pause, so the
    /// wait is short. False if there still is one: it need not be waited for again.
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call).
    pub async fn await_children(&mut self) -> Result<bool> {
        let deadline = Instant::now() + CHILDREN_PATIENCE;
        while self.minds_children() && self.source_has_child().await? {
            if Instant::now() > deadline {
                return Ok(false);
            }
            sleep(CHILDREN_POLL).await;
        }
        Ok(true)
    }

    /// Whether a child of the source saves, or is about to: for a file, or for a replica.
    pub(super) async fn source_has_child(&mut self) -> Result<bool> {
        Ok(saves(&self.source_info().await?))
    }

    async fn source_info(&mut self) -> Result<Info> {
        let info =
            self.source.run(async |link| link.call(&[b"INFO", b"persistence", b"replication"]).await).await?;
        Ok(Info::parse(info.as_bytes().map_or(&[], |bytes| bytes)))
    }

    /// Asks the source once more, right before a take-over that relies on its pause. Otherwise only our own
    /// clock shows that the pause is still on. That may have stood still with the host of this machine, and
    /// any client can lift a pause.
    ///
    /// # Errors
    /// `Server` if something was written since, or if a child of the source has begun to save, which the
    /// source may not survive: with the take-over the source begins to remove keys.
    pub(super) async fn check_untouched(&mut self, fence: &LongPause) -> Result<()> {
        let info = self.source_info().await?;
        if info.field("role") != Some("master")
            || history(&info) != fence.history
            || is_untouched(fence.offset, offset(&info)) == Some(false)
        {
            return Err(self.source.for_now("take over", "something was written behind the fence"));
        }
        if self.minds_children() && saves(&info) {
            let text = "a child of the source has just begun to save, which it may not survive";
            return Err(self.source.for_now("take over", text));
        }
        Ok(())
    }

    /// Clears the marks of `slots` on the target and its replicas.
    pub(super) async fn unmark(&mut self, slots: &SlotSet) -> Result<()> {
        let view = self.target.view().await?;
        self.marked = self.marked.difference(slots);
        let marks = marked_on_replicas(&self.target, &view, slots).await?;
        let own: SlotSet = view.me().importing.iter().map(|(slot, _)| *slot).collect();
        // Servers that repeat marks on replicas do so with each SETSLOT, even if the primary has none any
        // more.
        self.target.set_slots(&own.intersection(slots).union(&marks), &Mark::Stable).await
    }

    /// Switches `cluster-allow-replica-migration` on again. What cannot be reached is left: a node that is
    /// down has forgotten it anyway.
    pub async fn unshelter(&mut self) {
        for (_, address) in std::mem::take(&mut self.sheltered) {
            let open = async { self.source.connector.open(&address).await.map(|(link, _)| link) };
            let_follow(open.await).await;
        }
    }

    /// The nodes of both shards, as they were when this was opened.
    pub fn members(&self) -> &Members {
        &self.members
    }
}

/// The replication offset, if the server keeps one. Without a backlog it does not move.
pub(super) fn offset(info: &Info) -> Option<u64> {
    info.number("master_repl_offset").filter(|_| info.number("repl_backlog_active") == Some(1))
}

/// The replication history. A server without a backlog may take a new one at any time.
pub(super) fn history(info: &Info) -> String {
    match offset(info) {
        Some(_) => info.field("master_replid").unwrap_or_default().to_owned(),
        None => String::new(),
    }
}

/// Whether nothing was written between two offsets of one history; `None` if that cannot be known, since the
/// server keeps none, or began to keep one meanwhile.
pub(super) fn is_untouched(before: Option<u64>, now: Option<u64>) -> Option<bool> {
    let (before, now) = (before?, now?);
    Some(now == before || now == before + PING_BYTES)
}

/// Lets replicas follow the last slot of their primary again.
pub(super) async fn let_follow(opened: Result<Link>) {
    let restored = async { opened?.call(&[b"CONFIG", b"SET", MIGRATION_OPTION, b"yes"]).await };
    if let Err(e) = restored.await {
        tracing::warn!(error = %e, "cluster-allow-replica-migration stays off there");
    }
}

/// Which of `slots` the replicas of `peer` have marked. Those that do not answer are left out: it is not
/// known what they will have marked when they come back, which `whimbrel status` shows then.
async fn marked_on_replicas(peer: &Peer, view: &ClusterView, slots: &SlotSet) -> Result<SlotSet> {
    let mut marked = SlotSet::new();
    for replica in view.replicas_of(&peer.id).filter(|node| node.is_usable()) {
        let asked = async {
            let (mut link, _) = peer.connector.open(&replica.address).await?;
            ClusterView::ask(&mut link).await
        };
        match asked.await {
            Ok(view) => marked.extend(view.me().importing.iter().map(|(slot, _)| *slot)),
            Err(e) if e.is_transient() => {
                tracing::warn!(error = %e, "a replica could not be asked for marked slots");
            }
            Err(e) => return Err(e),
        }
    }
    Ok(marked.intersection(slots))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_seen() {
        let saves = |text: &str| saves(&Info::parse(text.as_bytes()));
        let idle = "rdb_bgsave_in_progress:0\r\naof_rewrite_in_progress:0\r\naof_rewrite_scheduled:0\r\n";
        assert!(!saves(idle));
        assert!(!saves(&format!("{idle}slave0:ip=::1,port=1,state=online,offset=5,lag=0\r\n")));
        assert!(saves("rdb_bgsave_in_progress:1\r\n"));
        assert!(saves("aof_rewrite_scheduled:1\r\n"));
        assert!(saves("module_fork_in_progress:1\r\n"));
        assert!(saves(&format!("{idle}slave0:ip=::1,port=1,state=wait_bgsave,offset=0,lag=0\r\n")));
    }

    #[test]
    fn a_ping_is_no_write_and_without_an_offset_there_is_no_telling() {
        let is_untouched = |before: &str, now: &str| {
            let offset =
                |text: &str| offset(&Info::parse(format!("repl_backlog_active:1\r\n{text}").as_bytes()));
            super::is_untouched(offset(before), offset(now))
        };
        let at = |n: u64| format!("master_repl_offset:{n}\r\n");
        assert_eq!(is_untouched(&at(100), &at(100)), Some(true));
        assert_eq!(is_untouched(&at(100), &at(114)), Some(true));
        assert_eq!(is_untouched(&at(100), &at(128)), Some(false));
        assert_eq!(is_untouched(&at(100), &at(99)), Some(false));
        assert_eq!(is_untouched("", &at(100)), None);
        assert_eq!(is_untouched(&at(100), ""), None);
    }
}
