//! What a session is: a state machine that takes bytes in and gives bytes out.
//!
//! It knows no sockets, timers or tasks; `driver` has those. What goes in:
//!
//! | input | by |
//! |---|---|
//! | bytes of the client, and that it will send no more | `inbox`, [`Session::client_closed`] |
//! | bytes of the server, and its end | `Wire::from`, [`Session::server_closed`] |
//! | a connection, or that there is none | [`Session::connected`], [`Session::unreachable`] |
//! | what came of something that a request waits for | [`Session::settled`] |
//! | that it is to come to rest | [`Session::called`] |
//! | that the front ends | [`Session::retire`] |
//! | the time | [`Session::tick`] |
//!
//! What comes out: bytes for the client in `to_client`, requests in `Wire::to`, what else is to be done in
//! `actions`, and when it is over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;
use whimbrel_wire::request::{RequestLimits, RequestScanner};

use super::due::{Due, Special};
use super::link::{INBOX_BYTES_MAX, Kind, Link, Wire};
use super::moving::{Moving, Settled};
use super::plain::Plain;
use super::sharing::Sharing;
use crate::command::rule::KeyspaceQuery;
use crate::face::{self, Face, Question};
use crate::migrate::direction::Side;
use crate::pipe::frame::REFUSED_COMMAND;
use crate::pipe::io::OUT_BYTES_MAX;
use crate::upstream::identity::Identity;

/// A client with this many requests under way is not read from.
pub(super) const DUE_MAX: usize = 8 << 10;

/// A request longer than this is passed on while it arrives.
pub(super) const WHOLE_BYTES_MAX: usize = 32 << 10;

/// How long nothing may move once the client will send no more, or has to leave.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

/// How long a front that ends waits for a request that may be on its way to it, and how long it takes those
/// of a client that sends them without a pause.
pub(crate) const ARRIVAL: Duration = Duration::from_millis(20);
pub(crate) const ARRIVALS: Duration = Duration::from_secs(1);

/// How long a front that ends waits for answers of the server.
pub(crate) const ANSWERS: Duration = Duration::from_secs(2);

/// How long for those that are not counted.
const UNCOUNTED_ANSWERS: Duration = Duration::from_millis(250);

/// Room for notes that an idle session keeps.
const DUE_KEPT_MAX: usize = 64;

/// How far the end of a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Open,
    /// The client will send no more. What it has sent is still taken.
    Closing,
    /// No more requests are taken. It ends when what is due has been sent, or nothing has moved until then.
    Leaving {
        until: Instant,
        client_closed: bool,
    },
}

/// What the front does, and what it has to know of a client for that.
pub(super) enum Mode {
    /// It stands before one server, and always will.
    Forwarding,
    /// It stands before one server, and keys may move later.
    Noting(Box<Plain>),
    /// As `Noting`, and reads and writes may go over connections that clients share.
    Sharing(Box<Plain>, Box<Sharing>),
    /// It stands between two servers, while keys move.
    Moving(Box<Moving>),
}

/// How far the first request in the inbox is.
pub(super) enum First {
    /// Nothing has been done about it.
    Fresh,
    /// It waits for something that was asked for by an [`Action::Wait`].
    Waiting,
    /// That has come.
    Settled(Settled),
    /// Its start has been passed on, and its rest follows.
    Passing,
    /// Its start was thrown away, and its rest follows.
    ThrowingAway,
}

/// What the driver is to do.
pub(super) enum Action {
    /// Connect to the other server, and keep the connection to this one if `parks`. With `keeps_end` a
    /// connection that was kept and has ended is good enough: its end is the client's.
    SwitchSide { side: Side, parks: bool, keeps_end: bool },
    /// Give up the connection that is kept: the other server has to learn what the client is by now.
    ForgetParked,
    /// Change over to a connection that clients share, and keep the client's own.
    Share,
    /// Change back to the client's own connection.
    Unshare,
    /// Find out what a request waits for.
    Wait(Task),
}

/// What a request waits for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// These keys have to move first.
    Pull(Vec<Bytes>),
    /// So do those that the server finds among these words.
    PullKeysOf(Vec<Bytes>),
    /// Both servers have to be asked.
    AskBoth(KeyspaceQuery, Vec<Bytes>),
    /// Both servers have to be emptied.
    Flush(Vec<Bytes>),
}

pub(super) struct Session {
    /// If the front presents itself as a cluster.
    pub(super) face: Option<Arc<Face>>,
    pub(super) mode: Mode,
    pub(super) life: Life,
    pub(super) link: Link,
    pub(super) requests: RequestScanner,
    pub(super) inbox: BytesMut,
    pub(super) first: First,
    /// What the first request asks that only a cluster knows.
    pub(super) asking: Option<Question>,
    pub(super) to_client: BytesMut,
    pub(super) due: VecDeque<Due>,
    pub(super) identity: Identity,
    /// The client has subscribed to something: then more or fewer replies come than requests, so they are not
    /// counted. While keys move the target alone serves it from then on.
    pub(super) is_subscribed: bool,
    /// It is to come to rest.
    pub(super) is_called: bool,
    /// The front ends, and this session takes no more requests from then on.
    retires_at: Option<Instant>,
    /// When something was last written to the client.
    written_at: Option<Instant>,
    pub(super) now: Instant,
    pub(super) actions: VecDeque<Action>,
}

impl Mode {
    /// What has to be known of a client when keys begin to move.
    pub(super) fn plain(&self) -> Option<&Plain> {
        match self {
            Mode::Noting(plain) | Mode::Sharing(plain, _) => Some(plain),
            Mode::Forwarding | Mode::Moving(_) => None,
        }
    }

    pub(super) fn plain_mut(&mut self) -> Option<&mut Plain> {
        match self {
            Mode::Noting(plain) | Mode::Sharing(plain, _) => Some(plain),
            Mode::Forwarding | Mode::Moving(_) => None,
        }
    }

    pub(super) fn sharing_mut(&mut self) -> Option<&mut Sharing> {
        match self {
            Mode::Sharing(_, sharing) => Some(sharing),
            _ => None,
        }
    }
}

impl Session {
    /// With `keeps_words` all words of requests are looked at: a cluster wants to know them.
    pub(super) fn new(mode: Mode, face: Option<Arc<Face>>, keeps_words: bool) -> Session {
        let mut requests = RequestScanner::new(RequestLimits::default());
        if !keeps_words && !matches!(mode, Mode::Moving(_)) {
            // A name, and the words that may matter.
            requests.keep(if face.is_some() { face::WORDS } else { 2 });
        }
        Session {
            face,
            mode,
            life: Life::Open,
            link: Link::Connecting,
            requests,
            inbox: BytesMut::new(),
            first: First::Fresh,
            asking: None,
            to_client: BytesMut::new(),
            due: VecDeque::new(),
            identity: Identity::default(),
            is_subscribed: false,
            is_called: false,
            retires_at: None,
            written_at: None,
            now: Instant::now(),
            actions: VecDeque::new(),
        }
    }

    // ---- What goes in ----

    /// It is so late.
    pub(super) fn tick(&mut self, now: Instant) {
        self.now = now;
    }

    /// It is to come to rest: keys are to move, or to move the other way.
    pub(super) fn called(&mut self) {
        self.is_called = true;
    }

    /// The client will send no more. It may have closed one half only, and still want to know.
    pub(super) fn client_closed(&mut self) {
        if self.life == Life::Open {
            self.life = Life::Closing;
        }
    }

    /// There is a connection, on which nothing is due.
    pub(super) fn connected(&mut self, kind: Kind) {
        self.link = Link::Up(Box::new(Wire::new(kind)));
    }

    /// There is none.
    pub(super) fn unreachable(&mut self, why: &str) {
        self.link = Link::Lost;
        self.push_reply(format!("-ERR whimbrel front: {why}\r\n").into_bytes());
        self.leave();
    }

    /// The client has taken something in.
    pub(super) fn written(&mut self) {
        self.is_reading();
        self.written_at = Some(self.now);
        if self.retires_at.is_none()
            && let Life::Leaving { until, .. } = &mut self.life
        {
            // A client that still takes something in may take all of it.
            *until = self.now + FAREWELL;
        }
    }

    // ---- What comes out ----

    /// Whether the client is read from.
    pub(super) fn wants_bytes(&self) -> bool {
        let max = match &self.mode {
            Mode::Moving(moving) => moving.inbox_bytes_max,
            _ => INBOX_BYTES_MAX,
        };
        self.life == Life::Open && self.inbox.len() < max
    }

    /// The server is notified that nothing more will be sent.
    pub(super) fn is_shut(&self) -> bool {
        matches!(self.life, Life::Leaving { client_closed: true, .. })
    }

    pub(super) fn is_over(&self) -> bool {
        let Life::Leaving { until, .. } = self.life else { return false };
        // Replies to a client that has subscribed are not counted, so its answers may still come.
        let is_counted = !(self.is_subscribed && self.retires_at.is_some());
        is_counted && self.due.is_empty() && self.to_client.is_empty() || self.now >= until
    }

    /// Whether the client may get something yet, or is about to take in what it got.
    pub(super) fn is_owed(&self) -> bool {
        let was_written = self.written_at.is_some_and(|at| self.now < at + FAREWELL);
        !self.due.is_empty() || !self.to_client.is_empty() || self.is_subscribed || was_written
    }

    /// When it wants to know the time.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let farewell = match self.life {
            Life::Leaving { until, .. } => Some(until),
            // It is asked again then whether a request has arrived, and once more when none is waited for.
            Life::Open | Life::Closing => self
                .retires_at
                .into_iter()
                .flat_map(|at| [at, at + ARRIVALS, at + ARRIVALS + ANSWERS])
                .find(|moment| *moment > self.now),
        };
        let stall = match &self.mode {
            Mode::Moving(moving) => moving.stall,
            _ => None,
        };
        [farewell, stall].into_iter().flatten().min()
    }

    /// An idle session holds no buffers: there may be thousands. What has been taken out of one from its
    /// start does not count as its capacity, so each that is empty is given up.
    pub(super) fn release_memory(&mut self) {
        if let Link::Up(wire) = &mut self.link {
            wire.release_memory();
        }
        for buffer in [&mut self.inbox, &mut self.to_client].into_iter().filter(|buffer| buffer.is_empty()) {
            *buffer = BytesMut::new();
        }
        if self.due.is_empty() && self.due.capacity() > DUE_KEPT_MAX {
            self.due = VecDeque::new();
        }
    }

    // ---- In between ----

    /// Takes requests out of the inbox for as long as there is room for what they lead to; true if anything
    /// was taken, or the client leaves.
    pub(super) fn take(&mut self) -> bool {
        let (taken, is_held_up) = match self.mode {
            Mode::Moving(_) => self.take_while_moving(),
            _ => (self.take_requests(), false),
        };
        // There was room, so no whole request is left.
        let is_done = self.life == Life::Closing && !taken && !is_held_up && self.wants_requests();
        taken || is_done && self.leave()
    }

    pub(super) fn wants_requests(&self) -> bool {
        matches!(self.life, Life::Open | Life::Closing)
            && self.due.len() < DUE_MAX
            && (self.is_inside()
                || self.mode.plain().is_none_or(|plain| plain.takes_requests(self.is_called)))
            && self.to_client.len() < OUT_BYTES_MAX
            && matches!(&self.link, Link::Up(wire) if wire.to.has_room())
    }

    /// The start of the first request has been taken, and not its end.
    pub(super) fn is_inside(&self) -> bool {
        matches!(self.first, First::Passing | First::ThrowingAway)
    }

    pub(super) fn owe_reply(&mut self) {
        self.owe(Due::Reply);
    }

    pub(super) fn owe(&mut self, due: Due) {
        let due = match (self.asking.take(), due) {
            (Some(asked), Due::Reply) => Due::Special(Box::new(Special::Faced(BytesMut::new(), asked))),
            (_, due) => due,
        };
        if !self.is_subscribed {
            self.due.push_back(due);
            if let Link::Up(wire) = &mut self.link {
                wire.asked += 1;
            }
        }
    }

    /// A reply of our own, after all that are due before it.
    pub(super) fn push_reply(&mut self, reply: Vec<u8>) {
        self.due.push_back(Due::Special(Box::new(Special::Own(reply))));
    }

    /// An error of our own in its turn. If replies are not counted, only the server knows when that is: it is
    /// sent something that it refuses, with the reason among its words, so its refusal brings the reason
    /// back.
    pub(super) fn push_error(&mut self, error: Vec<u8>) {
        if !self.is_subscribed {
            return self.push_reply(error);
        }
        let why = error.strip_prefix(b"-ERR ").unwrap_or(&error).trim_ascii().to_vec();
        self.send_words(&[REFUSED_COMMAND, &why]);
    }

    /// Sends a request of these words.
    pub(super) fn send_words<W: AsRef<[u8]>>(&mut self, words: &[W]) {
        if let Link::Up(wire) = &mut self.link {
            wire.to.add_words(words);
        }
    }

    pub(super) fn pass_on(&mut self, from: usize, to: usize) {
        if let Link::Up(wire) = &mut self.link
            && from < to
        {
            wire.to.add(&self.inbox[from..to]);
        }
    }

    /// Notes `len` bytes that are passed on next: the present request, a part of it, or its rest.
    pub(super) fn mark(&mut self, len: usize, whole: bool) {
        if let Link::Up(wire) = &mut self.link {
            wire.to.mark(len, self.requests.args(), self.requests.args_left(), whole);
        }
    }

    /// The front ends: takes no more requests once none has arrived for a moment, in whole or in part. What
    /// has is answered. True if it has just come to that.
    pub(super) fn retire(&mut self) -> bool {
        // What is in the buffers of the system is seen by the next look at the socket, and not by this one.
        let at = *self.retires_at.get_or_insert(self.now + ARRIVAL);
        if let Life::Leaving { until, .. } = &mut self.life {
            // Once, since nothing prolongs it from now on.
            *until = (*until).max(at + ANSWERS);
            return false;
        }
        let is_between = self.inbox.is_empty() && !self.is_inside();
        // A request that waits for something here has arrived. Others may be those of a client that sends on.
        let waits =
            matches!(self.first, First::Waiting) || self.is_called || matches!(self.link, Link::Connecting);
        let patience = if waits { ARRIVALS + ANSWERS } else { ARRIVALS };
        if self.now < at || !is_between && self.now < at + patience || !self.leave() {
            return false;
        }
        let answers = if self.is_subscribed { UNCOUNTED_ANSWERS } else { ANSWERS };
        if let Life::Leaving { until, .. } = &mut self.life {
            *until = self.now + answers;
        }
        true
    }

    /// Whether the client has not closed its connection, as far as is known, and may be sending still.
    pub(super) fn may_send(&self) -> bool {
        matches!(self.life, Life::Open | Life::Leaving { client_closed: false, .. })
    }

    /// Takes no more requests; true if it has just come to that.
    pub(super) fn leave(&mut self) -> bool {
        let client_closed = match self.life {
            Life::Open => false,
            Life::Closing => true,
            Life::Leaving { .. } => return false,
        };
        self.life = Life::Leaving { until: self.now + FAREWELL, client_closed };
        true
    }
}
