//! A node that says nothing may have been replaced: it is suspended, say, or cut off, and another one has its
//! slots.
//!
//! A node that is at work says nothing either, and clients wait in `BLPOP` for hours. So nothing is given up
//! for silence alone: other nodes are asked who has the slots. Of a node that has none any more nothing will
//! be heard, and what became of the client's requests there is not known.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::sleep;

use super::due::At;
use super::state::{Conn, SilenceCheck};
use crate::pipe::io::Ended;
use crate::upstream::admission::Admission;
use crate::upstream::cluster::nodes::Role;

/// So long without a whole reply is silence.
pub(super) const SILENCE: Duration = Duration::from_secs(2);

impl<A: Admission> Conn<A> {
    /// Has the topology asked for where the first reply that is due does not come. True where it is.
    pub(super) fn hear_silence(&mut self, cx: &mut Context<'_>) -> bool {
        // Members tell who has which slot without being asked.
        if self.due.is_empty() || matches!(self.cluster.role, Role::Members(_)) {
            return false;
        }
        let arrived = self.arrived;
        let begin = || SilenceCheck { until: Box::pin(sleep(SILENCE)), arrived };
        let check = self.check.get_or_insert_with(begin);
        let Poll::Ready(()) = check.until.as_mut().poll(cx) else { return false };
        let is_silent = check.arrived == arrived;
        self.check = None;
        if is_silent && self.refreshing.is_none() && self.pause.is_none() {
            let (cluster, seen) = (self.cluster.clone(), self.map.generation);
            self.refreshing = Some(Box::pin(async move { cluster.refresh_at_times(seen).await }));
            (self.settling, self.is_silent) = (true, true);
        }
        // Polled once more: for what was begun, or for the next check.
        true
    }

    /// Gives the connection up where the node whose reply is due has no slots any more.
    pub(super) fn leave_the_replaced(&mut self) -> Result<(), Ended> {
        if !std::mem::take(&mut self.is_silent) {
            return Ok(());
        }
        let Some(at) = self.due.front().map(|head| head.at).filter(|at| *at != At::Here) else {
            return Ok(());
        };
        let Some(address) = self.node_at(at).map(|node| node.address.clone()) else { return Ok(()) };
        let primaries = self.map.primaries();
        match primaries.is_empty() || primaries.iter().any(|number| *self.map.address(*number) == address) {
            true => Ok(()),
            false => Err(Ended),
        }
    }
}
