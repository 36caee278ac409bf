//! What a connection to a cluster is.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::time::Sleep;
use whimbrel_core::slot::Slot;
use whimbrel_wire::encode::Protocol;

use super::due::Due;
use super::news::{FleetNews, SealNotice};
use super::node::Node;
use super::parts::Parts;
use super::request::{Asking, Listening, Multi, Waiting};
use super::shared::Sharing;
use crate::pipe::memory::MemoryPermit;
use crate::pipe::replies::Replies;
use crate::pipe::requests::Requests;
use crate::upstream::admission::{Admission, UnpinnedWait};
use crate::upstream::cluster::map::Map;
use crate::upstream::cluster::nodes::{Cluster, Ids, Role};
use crate::upstream::identity::Identity;

/// While this much is kept to be sent again, no more requests are taken.
pub(super) const KEPT_BYTES_MAX: usize = 1 << 20;

/// This many requests may be under way.
pub(super) const DUE_MAX: usize = 4 << 10;

/// Between two tries of a request that a node cannot carry out now.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// How far the end of a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Open,
    /// The client will send no more than what is there.
    Closed,
    /// The client has said that it leaves: nothing that follows is heard.
    Quit,
    /// Nothing is sent any more, and nothing will come.
    Ended,
}

/// A check whether anything arrives.
pub(super) struct SilenceCheck {
    pub(super) until: Pin<Box<Sleep>>,
    /// How often anything had come when it began.
    pub(super) heard: u64,
}

/// The question whether a node is alive.
pub(super) struct Probe {
    pub(super) is_alive: Pin<Box<dyn Future<Output = bool> + Send>>,
    /// How often anything had come when it was asked.
    pub(super) heard: u64,
}

pub(in crate::upstream::cluster) struct Conn<A> {
    pub(super) cluster: Arc<Cluster<A>>,
    pub(super) map: Arc<Map>,
    pub(super) ids: Option<Ids>,
    /// Nodes are not to take our certificate for the client's login.
    pub(super) is_for_client: bool,
    /// Lent by the client while this is polled, as is `to_client`.
    pub(super) inbox: Requests,
    pub(super) memory: Vec<MemoryPermit>,
    pub(super) to_client: Replies,
    /// By their numbers.
    pub(super) nodes: Vec<Option<Box<Node>>>,
    pub(super) detour: Option<Box<Node>>,
    /// If reads and writes may go over connections that others use as well.
    pub(super) sharing: Option<Sharing>,
    /// Where commands without keys go.
    pub(super) main: Option<u16>,
    pub(super) due: VecDeque<Due>,
    pub(super) kept_bytes: usize,
    /// Of the first that is due.
    pub(super) collected: BytesMut,
    pub(super) parts: Parts,
    pub(super) identity: Identity,
    pub(super) multi: Multi,
    pub(super) watching: Option<u16>,
    /// Something that should be watched is not: the transaction that follows must not be carried out.
    pub(super) watch_lost: bool,
    /// The slot of the transaction's keys, or of what is watched, if this front serves slots of a fleet.
    pub(super) bound_slot: Option<Slot>,
    /// The first request waits for a member that serves its slot.
    pub(super) waiting: Option<Waiting>,
    pub(super) fleet_news: FleetNews,
    /// While requests are under way that may wait for something to happen, that the client holds up, or that
    /// keep no slot.
    pub(super) seal_notice: Option<SealNotice>,
    pub(super) listening: Listening,
    /// Requests were sent that keep no slot, and it is not known whether they are done.
    pub(super) alone_wait: Option<UnpinnedWait>,
    /// No more requests are taken until nothing is due.
    pub(super) settling: bool,
    pub(super) refreshing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pub(super) pause: Option<Pin<Box<Sleep>>>,
    /// How often anything has come from a node.
    pub(super) heard: u64,
    pub(super) check: Option<SilenceCheck>,
    /// The topology is asked for since nothing arrives.
    pub(super) is_silent: bool,
    pub(super) probing: Option<Probe>,
    pub(super) asking: Option<Asking>,
    /// Where the rest of a long request goes; `None` inside: nowhere.
    pub(super) passing: Option<Option<u16>>,
    pub(super) life: Life,
}

impl<A: Admission> Conn<A> {
    pub(super) fn refresh(&mut self) {
        if self.refreshing.is_none() {
            let (cluster, seen) = (self.cluster.clone(), self.map.generation);
            self.refreshing = Some(Box::pin(async move { cluster.refresh(seen).await }));
        }
        self.settling = true;
    }

    /// Takes out the request that is answered next.
    pub(super) fn pop_due(&mut self) -> Option<Due> {
        let due = self.due.pop_front()?;
        if let Some(seal_notice) = &mut self.seal_notice {
            seal_notice.answered += 1;
        }
        Some(due)
    }

    /// The reply to a transaction that is not carried out since something that was watched has changed.
    pub(super) fn aborted(&self) -> &'static [u8] {
        match self.identity.protocol() {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        }
    }

    pub(super) fn gate(&self) -> Option<&Arc<A>> {
        match &self.cluster.role {
            Role::Backend(gate) => Some(gate),
            Role::None | Role::Members(_) => None,
        }
    }

    /// Whether this front serves slots of a fleet, and no others.
    pub(super) fn is_gated(&self) -> bool {
        self.gate().is_some()
    }

    /// Members report without being asked which member has which slot.
    pub(super) fn follow_members(&mut self) {
        if self.holds_back() {
            self.map = self.cluster.map();
        }
    }

    /// Whether transactions are held back.
    pub(super) fn holds_back(&self) -> bool {
        matches!(self.cluster.role, Role::Members(_))
    }
}
