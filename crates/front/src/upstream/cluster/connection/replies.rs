//! Replies of nodes on their way to the client.

use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::time::sleep;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Result, ServerError};
use whimbrel_wire::boundary::Passed;

use super::due::{At, Due, What};
use super::every::with_cursor;
use super::node::State;
use super::parts::COLLECTED_BYTES_MAX;
use super::request::{Listening, Multi};
use super::state::{Conn, PAUSE};
use crate::command::rule::Trait;
use crate::pipe::frame::{as_array, one_line};
use crate::pipe::io::{Ended, OUT_BYTES_MAX, READ_BYTES, read};
use crate::upstream::admission::Admission;
use crate::upstream::identity::may_have_logged_in;

/// The longest error of a server.
pub(super) const ERROR_BYTES_MAX: usize = 64 << 10;

/// So often a request is tried again: five seconds of pauses.
pub(super) const TRIES_MAX: u32 = 250;

pub(super) const MOVING: &[u8] =
    b"-TRYAGAIN whimbrel front: the slot is moving between nodes of the cluster\r\n";

impl<A: Admission> Conn<A> {
    // ---- Replies ----

    pub(super) fn take_replies(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = false;
        loop {
            if let Some(pause) = &mut self.pause {
                if pause.as_mut().poll(cx).is_pending() {
                    return Ok(moved);
                }
                self.pause = None;
                self.again();
                moved = true;
            }
            let Some(head) = self.due.front() else { return Ok(self.listen(cx)? || moved) };
            let at = head.at;
            if at == At::Here {
                if let Some(What::Own(reply)) = self.pop_due().map(|due| due.what) {
                    self.to_client.add_whole(&reply);
                }
                moved = true;
                continue;
            }
            match self.reply_of(cx, at)? {
                true => moved = true,
                false => return Ok(moved),
            }
        }
    }

    /// Takes what has arrived of the reply that is next; true if that was anything.
    pub(super) fn reply_of(&mut self, cx: &mut Context<'_>, at: At) -> Result<bool, Ended> {
        let is_full = self.to_client.len() >= OUT_BYTES_MAX;
        let Some(node) = self.node_at(at) else { return Err(Ended) };
        let io = match &mut node.state {
            State::Connecting(_) => return Ok(false),
            State::Failed { why, is_refused } => {
                let (why, is_refused) = (why.clone(), *is_refused);
                self.unreachable(why, is_refused);
                return Ok(true);
            }
            State::Up(_) | State::Shared(_) if is_full => return Ok(false),
            State::Shared(_) => return self.shared_reply_of(cx, at),
            State::Up(io) => io,
        };
        let (mut has_read, mut is_over) = (false, false);
        if node.from.len() < READ_BYTES {
            match read(&mut **io, cx, &mut node.from) {
                Poll::Pending => {}
                Poll::Ready(Ok(0) | Err(_)) => is_over = true,
                Poll::Ready(_) => has_read = true,
            }
        }
        self.heard += u64::from(has_read);
        let moved = self.take_frames(at)? || has_read;
        // What has been carried out is not known.
        if is_over && !moved { Err(Ended) } else { Ok(moved) }
    }

    /// Hands on the frames of a node for as long as they are next in turn; true if there were any.
    pub(super) fn take_frames(&mut self, at: At) -> Result<bool, Ended> {
        let mut moved = false;
        loop {
            let is_mine = self
                .due
                .front()
                .map_or(self.listening.node().map(At::Node) == Some(at), |head| head.at == at);
            let is_collected = self.due.front().is_some_and(|head| head.what.is_collected());
            if !is_mine || self.pause.is_some() {
                return Ok(moved);
            }
            // What has come by now was carried out while the slot was this front's; of what comes later that
            // is not known.
            let guard = self.due.front().and_then(|head| head.guard.as_ref());
            if guard.is_some_and(|guard| guard.lease_left().is_zero()) {
                return Err(Ended);
            }
            let Some(node) = self.node_at(at).filter(|node| !node.from.is_empty()) else { return Ok(moved) };
            if node.boundary.is_between() && node.from[0] == b'-' {
                let Some(end) = node.from.iter().position(|byte| *byte == b'\n') else {
                    return if node.from.len() > ERROR_BYTES_MAX { Err(Ended) } else { Ok(moved) };
                };
                let line = node.from.split_to(end + 1).freeze();
                self.refused(line);
                moved = true;
                continue;
            }
            let (bytes, kind) = match node.boundary.pass(&node.from) {
                Ok(Passed::Part(bytes)) => (bytes, None),
                Ok(Passed::Frame { bytes, kind }) => (bytes, Some(kind)),
                Err(error) => {
                    tracing::warn!(%error, "a node of the cluster does not speak RESP");
                    return Err(Ended);
                }
            };
            let part = node.from.split_to(bytes);
            match kind {
                _ if is_collected => self.collected.extend_from_slice(&part),
                None => self.to_client.add_part(&part),
                Some(kind) => self.to_client.add(&part, kind),
            }
            if self.collected.len() > COLLECTED_BYTES_MAX {
                tracing::warn!("the replies of a cluster's nodes to one request are too long");
                return Err(Ended);
            }
            moved |= bytes > 0;
            match kind {
                None => return Ok(moved),
                // Messages come at any time. A message that came within a reply that is looked at is lost to
                // that reply, not to the client.
                Some(b'>') => {
                    let pushed = std::mem::take(&mut self.collected);
                    self.to_client.add_whole(&pushed);
                }
                Some(_) => self.arrived(true),
            }
        }
    }

    /// Hears of messages, and of the end of a connection on which something is open.
    pub(super) fn listen(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = false;
        let bound = match self.multi {
            Multi::At(number) => Some(number),
            _ => None,
        };
        for number in [self.listening.node(), self.watching, bound].into_iter().flatten() {
            let is_full = self.to_client.len() >= OUT_BYTES_MAX;
            let is_alone = self.listening == Listening::Alone(number);
            let Some(node) = self.node_at(At::Node(number)) else { return Err(Ended) };
            let io = match &mut node.state {
                State::Up(io) => io,
                // Nothing would ever come, and no reply that is due notifies the client.
                State::Failed { why, .. } if is_alone => {
                    let line = format!("-CLUSTERDOWN whimbrel front: {}\r\n", one_line(why));
                    self.to_client.add_whole(line.as_bytes());
                    return Err(Ended);
                }
                _ => continue,
            };
            if is_full || node.from.len() >= READ_BYTES {
                continue;
            }
            match read(&mut **io, cx, &mut node.from) {
                Poll::Pending => {}
                Poll::Ready(Ok(0) | Err(_)) => return Err(Ended),
                Poll::Ready(Ok(_)) => moved = true,
            }
            if self.listening.node() == Some(number) {
                moved |= self.take_frames(At::Node(number))?;
            }
        }
        Ok(moved)
    }

    /// The whole reply of the first has come.
    pub(super) fn arrived(&mut self, is_agreed: bool) {
        if let Some(What::Transaction(held)) = self.due.front_mut().map(|due| &mut due.what)
            && held.left > 0
        {
            held.left -= 1;
            self.collected.clear();
            return;
        }
        let Some(due) = self.pop_due() else { return };
        self.kept_bytes -= due.request.as_ref().map_or(0, Bytes::len);
        if let Some(node) = self.node_at(due.at) {
            node.due = node.due.saturating_sub(1);
            node.is_let_in |= is_agreed && matches!(due.what, What::Reply);
        }
        let reply = std::mem::take(&mut self.collected);
        match due.what {
            What::Reply
            | What::Own(_)
            | What::Swallowed
            | What::Marker
            | What::Transaction(_)
            | What::Watched => {}
            What::Replaced(own) => self.to_client.add_whole(&own),
            What::Noted(what, request) if is_agreed => {
                self.identity.note(what, request.as_ref().into());
                self.forget_all_but(due.at);
            }
            What::Reset if is_agreed => {
                self.identity.forget();
                self.forget_all_but(due.at);
            }
            What::Noted(Trait::Hello, hello) if may_have_logged_in(&hello) => self.keep_to_own(),
            What::Noted(..) | What::Reset => {}
            What::Part => {
                let reply = match self.parts.are_keys() {
                    true => self.own_keys(reply.to_vec(), false, due.at).into(),
                    false => reply.freeze(),
                };
                if let Some(whole) = self.parts.add(reply) {
                    self.to_client.add_whole(&whole);
                }
            }
            What::Scanned(node) => {
                let reply = with_cursor(&self.map, self.cursor_shift(), node, &reply);
                let reply = self.own_keys(reply, true, At::Node(node));
                self.to_client.add_whole(&reply);
            }
        }
    }

    /// Other nodes have to be told again what the client is.
    pub(super) fn forget_all_but(&mut self, kept: At) {
        for (number, node) in (0..).zip(&mut self.nodes) {
            if At::Node(number) != kept && node.as_ref().is_some_and(|node| node.due == 0) {
                *node = None;
            }
        }
        self.detour = None;
        if let Some(node) = self.node_at(kept) {
            node.is_let_in = false;
        }
        if let Some(sharing) = &mut self.sharing {
            sharing.nodes.clear();
        }
    }

    /// A node has answered with an error: `line`, as it came.
    pub(super) fn refused(&mut self, line: Bytes) {
        match self.due.front_mut().map(|due| &mut due.what) {
            Some(What::Transaction(held)) if held.left > 0 => {
                if held.refused.is_none() && is_about_slots(&line) {
                    held.refused = Some(line);
                }
                self.arrived(false);
            }
            Some(What::Transaction(held)) => {
                let why = if is_about_slots(&line) { Some(line.clone()) } else { held.refused.take() };
                match why {
                    // What was watched there is not known elsewhere: as if it had been changed.
                    Some(_) if self.due.front().is_some_and(|due| due.request.is_none()) => {
                        let aborted = self.aborted();
                        self.refresh();
                        self.pass_error(aborted);
                    }
                    why => self.refused_by_one(why.unwrap_or(line)),
                }
            }
            Some(What::Watched) if is_about_slots(&line) => {
                self.watch_lost = true;
                self.refresh();
                self.pass_error(b"+OK\r\n");
            }
            _ => self.refused_by_one(line),
        }
    }

    pub(super) fn refused_by_one(&mut self, line: Bytes) {
        if let Some(answer) = self.sent_on(&line) {
            return self.pass_error(&answer);
        }
        let text = line[1..].trim_ascii_end();
        let code = ServerError::classify(text).code;
        if !is_about_slots(&line) {
            return self.pass_error(&line);
        }
        let Some(head) = self.due.front_mut() else {
            return self.pass_error(if code == Code::ClusterDown { &line } else { MOVING });
        };
        let is_kept = head.request.is_some();
        head.tries += 1;
        let is_last = head.tries > TRIES_MAX;
        if matches!(code, Code::Moved(..) | Code::ClusterDown) {
            self.refresh();
        }
        // Those behind it may have been carried out: it would be after them.
        let waits = matches!(code, Code::TryAgain | Code::ClusterDown);
        let is_kept = is_kept && !(waits && self.is_followed());
        match code {
            Code::ClusterDown if !is_kept || is_last => self.pass_error(&line),
            // What was said would lead the client past the front.
            _ if !is_kept || is_last => self.pass_error(MOVING),
            Code::Moved(_, to) => self.redirect(&to, false),
            Code::Ask(_, to) => self.redirect(&to, true),
            _ => self.wait(),
        }
    }

    /// Whether a request for the slot of the first one has been sent behind it.
    fn is_followed(&self) -> bool {
        let Some((slot, mut rest)) = self.due.front().map(|head| (head.slot, self.due.iter().skip(1))) else {
            return false;
        };
        slot.is_some() && rest.any(|due| due.slot == slot && due.at != At::Here)
    }

    /// An error is the reply.
    pub(super) fn pass_error(&mut self, line: &[u8]) {
        if let Some(What::Transaction(held)) = self.due.front_mut().map(|due| &mut due.what) {
            held.left = 0;
        }
        match self.due.front().map(|head| &head.what) {
            // The reply to the question itself is still to come, unless it is that which was refused.
            Some(What::Marker) if !line.windows(6).any(|word| word == b"'ping'") => {
                return self.to_client.add_whole(line);
            }
            Some(What::Swallowed | What::Replaced(_) | What::Marker) => {}
            Some(What::Part | What::Scanned(_)) => self.collected.extend_from_slice(line),
            _ => self.to_client.add_whole(line),
        }
        if !matches!(self.listening, Listening::Alone(_)) {
            self.arrived(false);
        }
    }

    /// Sends the first that is due to another node, which its own has named.
    pub(super) fn redirect(&mut self, announced: &str, asking: bool) {
        self.settling = true;
        let Some(head) = self.due.front() else { return };
        let (at, is_first) = (head.at, head.tries < 3);
        let sender = self.node_at(at).map(|node| node.address.clone());
        let to = sender.and_then(|sender| self.cluster.deployment_at(&sender).reach(announced, &sender));
        match to {
            // It may be the same one over and over again while the nodes disagree.
            Some(to) if is_first || asking => self.detour(to, asking),
            _ => self.wait(),
        }
    }

    pub(super) fn wait(&mut self) {
        self.settling = true;
        self.pause = Some(Box::pin(sleep(PAUSE)));
    }

    /// After a pause: the first that is due is sent to the node that has its slot by now.
    pub(super) fn again(&mut self) {
        self.map = self.cluster.map();
        let Some(head) = self.due.front() else { return };
        let owner = match head.slot {
            Some(slot) => self.place_of(head.guard.as_ref(), slot),
            None => {
                let primaries = self.map.primaries();
                primaries.get(head.tries as usize % primaries.len().max(1)).copied()
            }
        };
        match owner {
            Some(owner) => self.detour(self.map.address(owner).clone(), false),
            None => self.unreachable("the slot has no owner".to_owned(), false),
        }
    }

    /// The node of the first request that is due cannot be reached, or refuses the client's login, which it
    /// will do again; and nothing was sent there.
    pub(super) fn unreachable(&mut self, why: String, is_refused: bool) {
        self.refresh();
        let Some(head) = self.due.front_mut() else { return };
        head.tries += 1;
        let is_kept = head.request.is_some() && !matches!(head.what, What::Part | What::Scanned(_));
        let can_retry = is_kept && !is_refused;
        if can_retry && head.tries <= TRIES_MAX {
            return self.wait();
        }
        let is_marker = matches!(head.what, What::Marker);
        let line = format!("-CLUSTERDOWN whimbrel front: {}\r\n", one_line(&why));
        if is_marker {
            // What is before it is no request here, and has no other answer. The client listens to nothing
            // there.
            self.listening = Listening::No;
            self.to_client.add_whole(line.as_bytes());
            return self.arrived(false);
        }
        self.pass_error(line.as_bytes());
    }

    pub(super) fn detour(&mut self, to: Address, asking: bool) {
        let is_there = self.detour.as_ref().is_some_and(|node| {
            node.address == to && matches!(node.state, State::Up(_) | State::Connecting(_))
        });
        let Some(head) = self.due.front_mut() else { return };
        let Some(request) = head.request.clone() else { return };
        if let What::Transaction(held) = &mut head.what {
            (held.left, held.refused) = (held.count, None);
        }
        let before = std::mem::replace(&mut head.at, At::Detour);
        if let Some(node) = self.node_at(before) {
            node.due = node.due.saturating_sub(1);
        }
        if !is_there {
            self.detour = Some(self.new_node(to));
        }
        let Some(node) = self.detour.as_deref_mut() else { return };
        if asking {
            node.to.extend_from_slice(&as_array(&[b"ASKING".to_vec()]));
            node.due += 1;
            let what = What::Swallowed;
            self.due.push_front(Due::new(At::Detour, what));
        }
        node.due += 1;
        node.to.extend_from_slice(&request);
    }
}

/// Whether an error says that a node does not carry something out which another one may, or the same one
/// later.
pub(super) fn is_about_slots(line: &[u8]) -> bool {
    let code = ServerError::classify(line.get(1..).unwrap_or_default().trim_ascii_end()).code;
    matches!(code, Code::Moved(..) | Code::Ask(..) | Code::TryAgain | Code::ClusterDown)
}
