//! Requests that may wait for something to happen, before a fleet: `BLPOP`, `XREAD` with `BLOCK`, and others.
//!
//! Where all slots have one backend, they go on waiting there when their slot changes its owner, and keep it
//! from nothing: it does not matter who serves it. Where data moves between backends, nobody may wait at the
//! one that a slot leaves, or take something out of it late. So there they keep their slot as all requests
//! do, and are ended when it is to move: the server is told to let them go, and the client is sent here
//! again.

use std::task::{Context, Poll};

use tokio::time::sleep;
use whimbrel_fleet::Guard;

use super::due::{At, Wait};
use super::news::{SealNotice, next};
use super::node::State;
use super::state::{Conn, PAUSE};
use crate::pipe::io::Ended;
use crate::upstream::admission::Admission;

impl<A: Admission> Conn<A> {
    /// What was sent last may wait for something to happen.
    pub(super) fn hold_waiting(&mut self, guard: Option<Guard>) {
        let Some(gate) = self.gate().cloned() else { return };
        let Some(due) = self.due.back_mut() else { return };
        match gate.waits().unpinned() {
            Some(wait) => due.wait = Some(Wait::Unpinned(wait)),
            None => (due.guard, due.wait) = (guard, Some(Wait::Pinned(false))),
        }
        if self.seal_notice.is_none() {
            // What has happened before is looked at once.
            let again = Some(Box::pin(sleep(PAUSE)));
            self.seal_notice = Some(SealNotice { told: next(gate.seals()), again });
        }
    }

    /// Lets go of what waits in a slot that is to move; true where something was looked at.
    pub(super) fn end_sealed_waits(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Some(seal_notice) = &mut self.seal_notice else { return Ok(false) };
        let mut looks = false;
        if let Poll::Ready(told) = seal_notice.told.as_mut().poll(cx) {
            seal_notice.told = next(told);
            looks = true;
        }
        if let Some(again) = &mut seal_notice.again
            && again.as_mut().poll(cx).is_ready()
        {
            seal_notice.again = None;
            looks = true;
        }
        if !looks {
            return Ok(false);
        }
        if !self.due.iter().any(|due| due.wait.is_some()) {
            self.seal_notice = None;
            return Ok(true);
        }
        let is_told = self.let_go()?;
        if let Some(seal_notice) = self.seal_notice.as_mut().filter(|_| is_told) {
            seal_notice.again = Some(Box::pin(sleep(PAUSE)));
        }
        Ok(true)
    }

    /// True where a server was told to let something go.
    fn let_go(&mut self) -> Result<bool, Ended> {
        let Some(gate) = self.gate().cloned() else { return Ok(false) };
        let mut nodes: Vec<At> = Vec::new();
        for due in &self.due {
            match &due.wait {
                // It may be anywhere by now, and nobody can say whether it has been carried out.
                Some(Wait::Unpinned(wait)) if wait.has_to_end() => return Err(Ended),
                Some(Wait::Pinned(_)) if due.guard.as_ref().is_some_and(Guard::is_sealed) => {
                    nodes.push(due.at)
                }
                _ => {}
            }
        }
        nodes.dedup();
        for at in &nodes {
            let Some(node) = self.node_at(*at) else { continue };
            match (&node.state, node.id) {
                (State::Up(_), Some(id)) => gate.let_go(node.address.clone(), id),
                // The user may not ask for it. Closing the connection ends what waits on it.
                (State::Up(_), None) => return Err(Ended),
                _ => {}
            }
        }
        // Whichever of them the server lets go, it is sent here again.
        for due in self.due.iter_mut().filter(|due| nodes.contains(&due.at)) {
            if let Some(Wait::Pinned(is_told)) = &mut due.wait {
                *is_told = true;
            }
        }
        Ok(!nodes.is_empty())
    }

    /// What the client gets in place of an error by which the server says that it has let a request go.
    /// `None`: it is another error, or was not our doing.
    pub(super) fn sent_on(&self, line: &[u8]) -> Option<Vec<u8>> {
        let head = self.due.front()?;
        let is_ours = matches!(head.wait, Some(Wait::Pinned(true))) && line.starts_with(b"-UNBLOCKED");
        Some(self.moved_here(head.slot.filter(|_| is_ours)?))
    }
}
