//! A request goes to a node, or is answered here.

use std::task::Context;

use super::due::{At, Due, What};
use super::request::{First, Listening, Multi, Step};
use super::state::Conn;
use crate::pipe::frame::{REFUSED_COMMAND, as_array};
use crate::pipe::io::Ended;
use crate::pipe::memory::REQUEST_BYTES_MAX;
use crate::upstream::admission::Admission;
use bytes::Bytes;
use whimbrel_core::slot::Slot;
use whimbrel_fleet::Guard;

impl<A: Admission> Conn<A> {
    /// Takes what is there of the first request out of the inbox. Its rest, if there is any, goes to a node
    /// or nowhere.
    pub(super) fn advance(&mut self, whole: bool, rest_to: Option<u16>) -> Bytes {
        self.passing = (!whole).then_some(rest_to);
        self.memory.clear();
        self.asking = None;
        self.inbox.take_first()
    }

    /// Keeps a guard until the reply to what was sent last has come.
    pub(super) fn keep_guard(&mut self, guard: Option<Guard>) {
        if let Some(due) = self.due.back_mut() {
            due.guard = guard;
        }
    }

    /// Sends a request to a node, which is not sent again.
    pub(super) fn send(
        &mut self,
        cx: &mut Context<'_>,
        number: u16,
        request: &[u8],
        what: What,
        slot: Option<Slot>,
    ) -> Result<(), Ended> {
        let node = self.node(cx, number)?;
        node.to.extend_from_slice(request);
        node.due += 1;
        self.due.push_back(Due { slot, ..Due::new(At::Node(number), what) });
        Ok(())
    }

    /// Where commands without keys go: one node for all of them, as long as it is a primary.
    pub(super) fn main(&mut self) -> Result<u16, Ended> {
        let is_primary = |number: &u16| self.map.first_primaries().contains(number);
        if let Some(main) = self.main.filter(is_primary) {
            return Ok(main);
        }
        let open = (0..).zip(&self.nodes).filter(|(_, node)| node.is_some()).map(|(number, _)| number);
        let main = open.chain(self.map.first_primaries().iter().copied()).find(is_primary).ok_or(Ended)?;
        self.main = Some(main);
        Ok(main)
    }

    pub(super) fn push_reply(&mut self, reply: Vec<u8>) {
        self.due.push_back(Due::new(At::Here, What::Own(reply)));
    }

    /// A whole request is answered here.
    pub(super) fn answer(&mut self, first: First, reply: Vec<u8>) -> Result<Step, Ended> {
        self.advance(first.whole, None);
        self.push_reply(reply);
        Ok(Step::Taken)
    }

    /// Answers with an error what is perhaps not whole.
    pub(super) fn refuse(
        &mut self,
        cx: &mut Context<'_>,
        len: usize,
        whole: bool,
        error: Vec<u8>,
    ) -> Result<Step, Ended> {
        if let Listening::Alone(listening) = self.listening {
            self.advance(whole, None);
            let why = error.strip_prefix(b"-").unwrap_or(&error).trim_ascii_end().to_vec();
            self.node(cx, listening)?.to.extend_from_slice(&as_array(&[REFUSED_COMMAND.to_vec(), why]));
            return Ok(Step::Taken);
        }
        if let Multi::At(node) = self.multi {
            self.advance(whole, None);
            let refused = as_array(&[REFUSED_COMMAND.to_vec()]);
            self.send(cx, node, &refused, What::Replaced(error), None)?;
            return Ok(Step::Taken);
        }
        if let Multi::Open { failed, .. } = &mut self.multi {
            *failed = true;
        }
        let (words, blocks, shares, is_channel) = (Vec::new(), false, false, false);
        self.answer(First { len, whole, words, blocks, shares, is_channel }, error)
    }

    /// More of a request has to arrive before it is known where it goes, as far as there is room.
    pub(super) fn await_more(&mut self, cx: &mut Context<'_>, len: usize) -> Result<Step, Ended> {
        if self.inbox.has_room() {
            return Ok(Step::Waits);
        }
        let max = self.inbox.bytes_max();
        let permit = (max < REQUEST_BYTES_MAX).then(|| self.cluster.budget.take(max as u64)).flatten();
        if let Some(permit) = permit {
            self.memory.push(permit);
            self.inbox.double();
            // The client adds to it again.
            return Ok(Step::Taken);
        }
        let error = b"-ERR whimbrel front: in front of a cluster, a command so long has to have its keys at \
            its beginning\r\n";
        self.refuse(cx, len, false, error.to_vec())
    }
}
