//! What a session is.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::time::{Sleep, sleep};
use whimbrel_wire::request::RequestScanner;

use super::context::SessionContext;
use super::due::{Due, Special};
use super::link::Link;
use super::moving::Moving;
use super::plain::Plain;
use super::sharing::Sharing;
use crate::face::Question;
use crate::pipe::frame::REFUSED_COMMAND;
use crate::pipe::io::OUT_BYTES_MAX;
use crate::upstream::identity::Identity;

/// A client with so many requests under way is not read from.
pub(super) const DUE_MAX: usize = 8 << 10;

/// A request longer than this is passed on while it arrives.
pub(super) const WHOLE_BYTES_MAX: usize = 32 << 10;

/// How long nothing may move once the client will send no more, or is told to leave.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

/// How far the end of a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    /// No more requests are taken. It ends when what is due has been sent, or time is up.
    Leaving,
}

pub(crate) struct Session<C> {
    pub(super) shared: Arc<SessionContext>,
    pub(super) client: C,
    pub(super) link: Link,
    pub(super) requests: RequestScanner,
    pub(super) inbox: BytesMut,
    pub(super) to_client: BytesMut,
    pub(super) due: VecDeque<Due>,
    pub(super) identity: Identity,
    /// Where keys may move later.
    pub(super) plain: Option<Box<Plain>>,
    /// While keys move.
    pub(super) moving: Option<Box<Moving>>,
    /// Where connections are shared.
    pub(super) sharing: Option<Box<Sharing>>,
    /// False once the client has subscribed to something: then more or fewer replies come than requests.
    pub(super) counted: bool,
    /// What the present request asks that only a cluster knows.
    pub(super) asking: Option<Question>,
    /// The start of the present request has been passed on (or, with `true`, thrown away).
    pub(super) passing: Option<bool>,
    pub(super) stage: Stage,
    /// The client will send no more.
    pub(super) client_closed: bool,
    pub(super) farewell: Option<Pin<Box<Sleep>>>,
}

impl<C> Session<C> {
    pub(super) fn wants_requests(&self) -> bool {
        self.stage == Stage::Open
            && self.due.len() < DUE_MAX
            && (self.passing.is_some() || self.plain.as_ref().is_none_or(|plain| plain.takes_requests()))
            && self.to_client.len() < OUT_BYTES_MAX
            && matches!(&self.link, Link::Up(server) if server.to.has_room())
    }

    pub(super) fn owe_reply(&mut self) {
        self.owe(Due::Reply);
    }

    pub(super) fn owe(&mut self, due: Due) {
        let due = match (self.asking.take(), due) {
            (Some(asked), Due::Reply) => Due::Special(Box::new(Special::Faced(BytesMut::new(), asked))),
            (_, due) => due,
        };
        if self.counted {
            self.due.push_back(due);
            if let Link::Up(server) = &mut self.link {
                server.asked += 1;
            }
        }
    }

    /// A reply of our own, after all that are due before it.
    pub(super) fn push_reply(&mut self, reply: Vec<u8>) {
        self.due.push_back(Due::Special(Box::new(Special::Own(reply))));
    }

    /// An error of our own in its turn. Where replies are not counted only the server knows when that is: it
    /// is sent something that it refuses, with the reason among its words, as which it comes back.
    pub(super) fn push_error(&mut self, error: Vec<u8>) {
        if self.counted {
            return self.push_reply(error);
        }
        let why = error.strip_prefix(b"-ERR ").unwrap_or(&error).trim_ascii().to_vec();
        if let Link::Up(server) = &mut self.link {
            server.to.add_words(&[REFUSED_COMMAND, &why]);
        }
    }

    pub(super) fn pass_on(&mut self, from: usize, to: usize) {
        if let Link::Up(server) = &mut self.link
            && from < to
        {
            server.to.add(&self.inbox[from..to]);
        }
    }

    /// Tells of `len` bytes that are passed on next: the present request, a part of it, or its rest.
    pub(super) fn mark(&mut self, len: usize, whole: bool) {
        if let Link::Up(server) = &mut self.link {
            server.to.mark(len, self.requests.args(), self.requests.args_left(), whole);
        }
    }

    /// Takes no more requests; true where it has just come to that.
    pub(super) fn leave(&mut self) -> bool {
        if self.stage == Stage::Leaving {
            return false;
        }
        self.stage = Stage::Leaving;
        self.farewell = Some(Box::pin(sleep(FAREWELL)));
        true
    }
}
