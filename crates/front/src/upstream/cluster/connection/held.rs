//! Transactions before a fleet: they are held back until `EXEC`, and sent as one.
//!
//! Slots change their owners all the time there, and a command that is queued at one member cannot be carried
//! out at another. What was refused as a whole was not carried out, so it is sent again as a whole. Something
//! that is watched is at one member: if its slot leaves that, the transaction is answered as if what is
//! watched had been changed, and the client begins again.

use std::task::Context;

use bytes::{Bytes, BytesMut};
use whimbrel_core::slot::Slot;

use super::due::{At, Due, Transaction, What};
use super::request::{Admitted, CROSS_SLOT, EXEC_ABORT, First, Multi, QUEUED_BYTES_MAX, Step};
use super::state::Conn;
use crate::command::rule::ClusterRule;
use crate::pipe::frame::as_array;
use crate::pipe::io::Ended;
use crate::upstream::admission::Admission;
use crate::upstream::cluster::destination::Destination;

const TOO_LONG: &[u8] =
    b"-ERR whimbrel front: in front of a fleet, a transaction after WATCH may not be so long\r\n";

impl<A: Admission> Conn<A> {
    /// What becomes of a request in a transaction that is held back. `None`: what becomes of it in any.
    pub(super) fn hold_back(
        &mut self,
        cx: &mut Context<'_>,
        first: &First,
        destination: &Destination,
    ) -> Result<Option<Step>, Ended> {
        if !self.holds_back() {
            return Ok(None);
        }
        let Multi::Open { queued, bytes, failed } = &mut self.multi else { return Ok(None) };
        match destination {
            Destination::Slot(slot) if self.bound_slot.is_none_or(|bound| bound == *slot) => {
                // What is too long to be held goes to its node, with all that came before it, and is not sent
                // again.
                if !first.whole || *bytes + first.len > QUEUED_BYTES_MAX {
                    // There it cannot be known whether what was watched has changed.
                    return match self.watching.is_some() || self.watch_lost {
                        true => self.refuse(cx, first.len, first.whole, TOO_LONG.to_vec()).map(Some),
                        false => Ok(None),
                    };
                }
                *bytes += first.len;
                queued.push(Bytes::copy_from_slice(self.inbox.first_bytes()));
                self.bound_slot = Some(*slot);
                self.advance(first.whole, None);
                self.push_reply(b"+QUEUED\r\n".to_vec());
                Ok(Some(Step::Taken))
            }
            Destination::Slot(_) => {
                *failed = true;
                self.advance(first.whole, None);
                self.push_reply(CROSS_SLOT.to_vec());
                Ok(Some(Step::Taken))
            }
            Destination::Rule(ClusterRule::Exec) if first.words.len() == 1 => {
                self.send_held(cx, first).map(Some)
            }
            Destination::Rule(ClusterRule::Discard) if first.words.len() == 1 => {
                self.advance(first.whole, None);
                self.end_transaction(cx)?;
                self.push_reply(b"+OK\r\n".to_vec());
                Ok(Some(Step::Taken))
            }
            Destination::Rule(rule @ (ClusterRule::Exec | ClusterRule::Discard)) => {
                *failed = true;
                self.advance(first.whole, None);
                let name = if *rule == ClusterRule::Exec { "exec" } else { "discard" };
                self.push_reply(
                    format!("-ERR wrong number of arguments for '{name}' command\r\n").into_bytes(),
                );
                Ok(Some(Step::Taken))
            }
            _ => Ok(None),
        }
    }

    /// `EXEC`.
    fn send_held(&mut self, cx: &mut Context<'_>, first: &First) -> Result<Step, Ended> {
        let Multi::Open { failed, .. } = &self.multi else { return Err(Ended) };
        let answer = match (*failed, self.watch_lost) {
            (true, _) => Some(EXEC_ABORT),
            (false, true) => Some(self.aborted()),
            (false, false) => None,
        };
        if let Some(answer) = answer {
            self.advance(first.whole, None);
            self.end_transaction(cx)?;
            self.push_reply(answer.to_vec());
            return Ok(Step::Taken);
        }
        // Whether it is watched at all has to be known first.
        if self.due.iter().any(|due| matches!(due.what, What::Watched)) {
            return Ok(Step::Waits);
        }
        let node = match (self.watching, self.bound_slot) {
            (Some(node), _) => node,
            (None, None) => self.main()?,
            (None, Some(slot)) => match self.owner_for(cx, slot) {
                Ok(node) => node,
                Err(Admitted::Answer(answer)) => {
                    self.advance(first.whole, None);
                    self.end_transaction(cx)?;
                    self.push_reply(answer);
                    return Ok(Step::Taken);
                }
                Err(_) => return Ok(Step::Waits),
            },
        };
        let Multi::Open { queued, .. } = std::mem::replace(&mut self.multi, Multi::No) else {
            return Err(Ended);
        };
        let mut request = BytesMut::from(&as_array(&[b"MULTI".to_vec()])[..]);
        queued.iter().for_each(|one| request.extend_from_slice(one));
        request.extend_from_slice(&as_array(&[b"EXEC".to_vec()]));
        let (request, count) = (request.freeze(), queued.len() + 1);
        self.advance(first.whole, None);
        let slot = self.bound_slot.take();
        self.send(
            cx,
            node,
            &request,
            What::Transaction(Transaction { count, left: count, refused: None }),
            slot,
        )?;
        // If something is watched, the request belongs to that node.
        if self.watching.take().is_none()
            && let Some(due) = self.due.back_mut()
        {
            self.kept_bytes += request.len();
            due.request = Some(request);
        }
        Ok(Step::Taken)
    }

    fn owner_for(&mut self, cx: &mut Context<'_>, slot: Slot) -> Result<u16, Admitted> {
        match self.admit(cx, slot) {
            Admitted::Open(_) => self.map.owner(slot).ok_or(Admitted::Waits),
            other => Err(other),
        }
    }

    /// Nothing is queued or watched any more.
    fn end_transaction(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        (self.multi, self.bound_slot, self.watch_lost) = (Multi::No, None, false);
        if let Some(node) = self.watching.take() {
            self.unwatch(cx, node)?;
        }
        Ok(())
    }

    fn unwatch(&mut self, cx: &mut Context<'_>, number: u16) -> Result<(), Ended> {
        let request = as_array(&[b"UNWATCH".to_vec()]);
        let node = self.node(cx, number)?;
        node.to.extend_from_slice(&request);
        node.due += 1;
        self.due.push_back(Due::new(At::Node(number), What::Swallowed));
        Ok(())
    }
}
