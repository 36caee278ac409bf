//! A node that says nothing may have been replaced: it is suspended, say, or cut off, and another one has its
//! slots.
//!
//! A node that is at work says nothing either, and clients wait in `BLPOP` for hours. So nothing is given up
//! for silence alone: other nodes are asked which node has the slots. A node that has none by what they say
//! is asked itself, on a connection of its own: it may be a node to which slots are on their way, or have
//! another name there. If it does not answer either, nothing will be heard from it, and what became of the
//! client's requests is not known. What was never sent goes to the node that has the slot now.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use whimbrel_engine::endpoint::Address;

use super::due::At;
use super::node::State;
use super::state::{Conn, Probe, SilenceCheck};
use crate::pipe::io::{Ended, OUT_BYTES_MAX};
use crate::upstream::admission::Admission;
use crate::upstream::cluster::nodes::{Cluster, Role};

/// So long without a byte is silence.
const SILENCE: Duration = Duration::from_secs(2);

impl<A: Admission> Conn<A> {
    /// Has the topology asked for if the first reply that is due does not come. True if anything was begun.
    pub(super) fn hear_silence(&mut self, cx: &mut Context<'_>) -> bool {
        // Members report without being asked which member has which slot. A check that goes on while nothing
        // is due spares a timer for each request.
        if self.due.is_empty() || matches!(self.cluster.role, Role::Members(_)) {
            return false;
        }
        // It may be the client that is waited for.
        if self.to_client.len() >= OUT_BYTES_MAX || self.passing.is_some() {
            self.check = None;
            return false;
        }
        let heard = self.heard;
        let begin = || SilenceCheck { until: Box::pin(sleep(SILENCE)), heard };
        let check = self.check.get_or_insert_with(begin);
        let Poll::Ready(()) = check.until.as_mut().poll(cx) else { return false };
        let is_silent = check.heard == heard;
        self.check = None;
        let is_busy = self.refreshing.is_some() || self.pause.is_some() || self.probing.is_some();
        if is_silent && !is_busy {
            let (cluster, seen) = (self.cluster.clone(), self.map.generation);
            self.refreshing = Some(Box::pin(async move { cluster.refresh_at_times(seen).await }));
            (self.settling, self.is_silent) = (true, true);
        }
        // Polled once more: for what was begun, or for the next check.
        true
    }

    /// Checks whether the node whose reply is due has slots by what is known now, and asks it if not.
    pub(super) fn check_silent_node(&mut self) {
        if !std::mem::take(&mut self.is_silent) {
            return;
        }
        let Some(at) = self.due.front().map(|head| head.at).filter(|at| *at != At::Here) else { return };
        let map = self.map.clone();
        let Some(node) = self.node_at(at) else { return };
        let primaries = map.primaries();
        if primaries.is_empty() || primaries.iter().any(|number| *map.address(*number) == node.address) {
            return;
        }
        match &node.state {
            // Nothing was sent there.
            State::Connecting(_) => {
                node.to.clear();
                node.state = State::Failed { why: "another one has its slots".to_owned(), is_refused: false };
            }
            State::Failed { .. } => {}
            // Nothing was sent either. It is given up when it cannot be opened.
            State::Shared(_) if node.due == node.asked => {}
            State::Up(_) | State::Shared(_) => {
                let (address, heard, cluster) = (node.address.clone(), self.heard, self.cluster.clone());
                let is_alive = Box::pin(async move { is_alive(&cluster, &address).await });
                self.probing = Some(Probe { is_alive, heard });
            }
        }
    }

    /// Gives the connection up if a node that was asked does not answer.
    pub(super) fn leave_the_dead(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Some(probe) = &mut self.probing else { return Ok(false) };
        let Poll::Ready(is_alive) = probe.is_alive.as_mut().poll(cx) else { return Ok(false) };
        let is_silent = probe.heard == self.heard;
        self.probing = None;
        if is_alive || !is_silent { Ok(true) } else { Err(Ended) }
    }
}

/// Whether a node answers on a new connection, whatever that is.
async fn is_alive<A: Admission>(cluster: &Cluster<A>, address: &Address) -> bool {
    let asked = async { cluster.open_at(address).await?.ask(&[b"PING"]).await };
    timeout(cluster.limit(), asked).await.is_ok_and(|answer| answer.map_or_else(|e| !e.is_link(), |_| true))
}
