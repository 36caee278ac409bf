//! Requests that may wait for something to happen, before a fleet: `BLPOP`, `XREAD` with `BLOCK`, and others.
//!
//! If all slots have one backend, they go on waiting there when their slot changes its owner, and keep it
//! from nothing: it does not matter which member serves it. If data moves between backends, no request may
//! wait at the backend that a slot leaves, or take something out of it late. So there they keep their slot as
//! all requests do, and are ended when it is to move: the server is asked to let them go, and the client is
//! sent here again.

use std::task::{Context, Poll};

use tokio::time::sleep;
use whimbrel_fleet::Guard;

use super::due::{At, Wait};
use super::news::next;
use super::node::State;
use super::state::{Conn, PAUSE};
use crate::pipe::io::Ended;
use crate::upstream::admission::{Admission, UnpinnedWait};

impl<A: Admission> Conn<A> {
    /// What was sent last may wait for something to happen.
    pub(super) fn hold_waiting(&mut self, guard: Option<Guard>) {
        let Some(gate) = self.gate().cloned() else { return };
        let Some(due) = self.due.back_mut() else { return };
        match gate.waits().unpinned() {
            Some(wait) => due.wait = Some(Wait::Unpinned(wait)),
            None => (due.guard, due.wait) = (guard, Some(Wait::Pinned(false))),
        }
        self.notice_seals();
    }

    /// If a client of the older protocol listens, it is not known when its requests are done, so they keep no
    /// slot. False if they have to, as data moves between backends.
    pub(super) fn hold_alone(&mut self) -> bool {
        if self.alone_wait.is_none() {
            self.alone_wait = self.gate().and_then(|gate| gate.waits().unpinned());
        }
        let may_go_on = self.alone_wait.as_ref().is_some_and(|wait| !wait.has_to_end());
        if may_go_on {
            self.notice_seals();
        }
        may_go_on
    }

    /// Lets go of what waits in a slot that is to move, and ends a connection whose client keeps one from
    /// that; true if something was looked at.
    pub(super) fn observe_seals(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Some(seal_notice) = &mut self.seal_notice else { return Ok(false) };
        let mut is_due = false;
        if let Poll::Ready(changed) = seal_notice.seals.as_mut().poll(cx) {
            seal_notice.seals = next(changed);
            is_due = true;
        }
        if let Some(again) = &mut seal_notice.again
            && again.as_mut().poll(cx).is_ready()
        {
            seal_notice.again = None;
            is_due = true;
        }
        if !is_due {
            return Ok(false);
        }
        self.let_go()?;
        let last = self.last_sealed();
        if let Some(last) = last {
            self.end_stall(last)?;
        }
        let waits = self.alone_wait.is_some() || self.due.iter().any(|due| due.wait.is_some());
        let is_over = !waits && !self.waits_for_client();
        match (&mut self.seal_notice, last) {
            (Some(seal_notice), Some(_)) => seal_notice.again = Some(Box::pin(sleep(PAUSE))),
            (seal_notice, None) if is_over => *seal_notice = None,
            (Some(seal_notice), None) => seal_notice.stall = None,
            (None, _) => {}
        }
        Ok(true)
    }

    /// Has servers let go of what waits in a slot that is to move, or before a request of one.
    fn let_go(&mut self) -> Result<(), Ended> {
        let Some(gate) = self.gate().cloned() else { return Ok(()) };
        // Something of it may be anywhere by now.
        if self.alone_wait.as_ref().is_some_and(UnpinnedWait::has_to_end) {
            return Err(Ended);
        }
        let last = self.last_sealed();
        let mut nodes: Vec<At> = Vec::new();
        for (number, due) in self.due.iter().enumerate() {
            match &due.wait {
                // It may be anywhere by now, and whether it has been carried out is unknown.
                Some(Wait::Unpinned(wait)) if wait.has_to_end() => return Err(Ended),
                // What is behind it is not done before it.
                Some(Wait::Pinned(_)) if last.is_some_and(|last| number <= last) => nodes.push(due.at),
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
            if let Some(Wait::Pinned(was_asked)) = &mut due.wait {
                *was_asked = true;
            }
        }
        Ok(())
    }

    /// What the client gets in place of the server's error for a request that it has let go. `None`: it is
    /// another error, or was not our doing.
    pub(super) fn sent_on(&self, line: &[u8]) -> Option<Vec<u8>> {
        let head = self.due.front()?;
        let is_ours = matches!(head.wait, Some(Wait::Pinned(true))) && line.starts_with(b"-UNBLOCKED");
        Some(self.moved_here(head.slot.filter(|_| is_ours)?))
    }
}
