//! Requests that go over connections which other clients use as well, see [`crate::upstream::shared`].
//!
//! A client begins at each node on a connection of its own, and keeps that. Once the node has answered it
//! there with anything but an error, it has been let in, and what needs nothing of the connection goes over
//! a shared one.
//!
//! **Order.** Requests to a node change over to its shared connection while nothing is due on the client's
//! own. Before any other request is sent, all that is due on shared connections has to come.

use std::task::{Context, Poll};

use whimbrel_core::slot::Slot;

use super::due::{At, Due, What};
use super::node::{Node, State};
use super::request::{First, Listening, Multi, Step};
use super::state::Conn;
use crate::pipe::io::{Ended, READ_BYTES};
use crate::upstream::admission::Admission;
use crate::upstream::shared::{AT_ONCE_BYTES_MAX, MARK};

impl<A: Admission> Conn<A> {
    /// Whether nothing of the client is open at a node that another connection would not have.
    pub(super) fn is_unbound(&self) -> bool {
        self.multi == Multi::No && self.watching.is_none() && self.listening == Listening::No
    }

    /// Whether a request that goes over the client's own connections has to wait: for what is due on shared
    /// ones, or until its own have been marked.
    pub(super) fn has_to_settle(&mut self, cx: &mut Context<'_>, looks_back: bool) -> Result<bool, Ended> {
        let Some(sharing) = &mut self.sharing else { return Ok(false) };
        let marks = looks_back && sharing.is_unmarked && self.multi == Multi::No;
        if !marks && !sharing.is_due() {
            return Ok(false);
        }
        self.settling = true;
        if marks && self.due.is_empty() {
            sharing.is_unmarked = false;
            for number in self.map.primaries().to_vec() {
                self.send(cx, number, MARK, What::Swallowed, None)?;
            }
        }
        // If there is no node to mark, there is nothing to wait for.
        Ok(!self.due.is_empty())
    }

    /// By which shared connection a request to this node goes; `None` if it is to go by the client's own.
    pub(super) fn shared_at(&mut self, cx: &mut Context<'_>, number: u16) -> Result<Option<At>, Ended> {
        let at = At::Shared(number);
        // Those before it are still under way there.
        if self.node_at(at).is_some_and(|node| node.due > 0) {
            return Ok(Some(at));
        }
        let own = self.node(cx, number)?;
        if own.due > 0 || !own.is_let_in || !matches!(own.state, State::Up(_)) {
            return Ok(None);
        }
        let address = own.address.clone();
        let Some(sharing) = &mut self.sharing else { return Ok(None) };
        sharing.is_unmarked = true;
        let index = usize::from(number);
        if sharing.nodes.len() <= index {
            sharing.nodes.resize_with(index + 1, || None);
        }
        let is_usable = sharing.nodes[index].as_ref().is_some_and(|node| {
            let State::Shared(handle) = &node.state else { return false };
            node.address == address && handle.is_open_for(&self.identity)
        });
        if !is_usable {
            let Some(handle) = sharing.connections.handle_at(&address, &self.identity) else {
                sharing.is_alone = true;
                return Ok(None);
            };
            sharing.nodes[index] = Some(Box::new(Node::new(address, State::Shared(handle))));
        }
        Ok(Some(at))
    }

    /// Sends a whole request over a shared connection.
    pub(super) fn pass_shared(&mut self, first: First, at: At, slot: Slot) -> Result<Step, Ended> {
        let request = self.advance(first.whole, None);
        let node = self.node_at(at).ok_or(Ended)?;
        node.to.extend_from_slice(&request);
        (node.due, node.asked) = (node.due + 1, node.asked + 1);
        self.kept_bytes += request.len();
        self.due.push_back(Due { slot: Some(slot), request: Some(request), ..Due::new(at, What::Reply) });
        Ok(Step::Taken)
    }

    /// Hands over what shared connections are to send; true if there was anything.
    pub(super) fn drive_shared(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = self.give_up_unopened(cx)?;
        let Some(sharing) = &mut self.sharing else { return Ok(moved) };
        for node in sharing.nodes.iter_mut().flatten().filter(|node| !node.to.is_empty()) {
            let State::Shared(handle) = &mut node.state else { continue };
            // Another handle if that one has ended and nothing was under way on it.
            if node.due == node.asked && !handle.is_open_for(&self.identity) {
                *handle = sharing.connections.handle_at(&node.address, &self.identity).ok_or(Ended)?;
            }
            if handle.send(cx, &mut node.to, node.asked)? {
                (node.asked, moved) = (0, true);
            }
        }
        Ok(moved)
    }

    /// The client keeps to its own connections from now on.
    pub(super) fn keep_to_own(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            sharing.is_alone = true;
        }
    }

    /// Sends by the client's own connections what shared ones were to take which could not be opened. Nothing
    /// is due on its own to such a node.
    fn give_up_unopened(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Some(sharing) = &mut self.sharing else { return Ok(false) };
        let is_unopened = |node: &Node| {
            let State::Shared(handle) = &node.state else { return false };
            node.due > 0 && node.due == node.asked && handle.was_never_open()
        };
        let found = (0..).zip(&mut sharing.nodes).find_map(|(number, node)| {
            let is_it = node.as_deref().is_some_and(is_unopened);
            is_it.then(|| node.take()).flatten().map(|node| (number, node))
        });
        let Some((number, unopened)) = found else { return Ok(false) };
        self.keep_to_own();
        let own = self.node(cx, number)?;
        own.to.extend_from_slice(&unopened.to);
        own.due += unopened.due;
        for due in self.due.iter_mut().filter(|due| due.at == At::Shared(number)) {
            due.at = At::Node(number);
        }
        Ok(true)
    }

    /// Takes what has arrived of the reply that is next; true if that was anything.
    pub(super) fn shared_reply_of(&mut self, cx: &mut Context<'_>, at: At) -> Result<bool, Ended> {
        let Some(node) = self.node_at(at) else { return Err(Ended) };
        let State::Shared(handle) = &node.state else { return Err(Ended) };
        let (mut has_read, mut is_large, mut is_over) = (false, false, false);
        if node.from.len() < READ_BYTES {
            match handle.take(cx, &mut node.from) {
                Poll::Pending => {}
                Poll::Ready(0) => is_over = true,
                Poll::Ready(bytes) => (has_read, is_large) = (true, bytes > AT_ONCE_BYTES_MAX),
            }
        }
        if let Some(sharing) = &mut self.sharing {
            sharing.is_alone |= is_large;
        }
        self.heard += u64::from(has_read);
        let moved = self.take_frames(at)? || has_read;
        // What has been carried out is not known.
        if is_over && !moved { Err(Ended) } else { Ok(moved) }
    }
}
