//! A session in front of the source alone, of a front that may move keys later: what has to be known of it when that begins.

use tokio::io::{AsyncRead, AsyncWrite};
use whimbrel_wire::request::{RequestLimits, RequestScanner};

use super::call::Call;
use super::{Due, Link, Session, Special, Stage};
use crate::command::Note;
use crate::migrate::direction::Home;
use crate::migrate::stages::{Entrance, Ticket};
use crate::session::moving::Moving;
use crate::upstream::identity::SAYING_BYTES_MAX;

/// What becomes of a session at the source once the server has agreed. It counts from the arrival of the reply, as a server may
/// refuse anything: until then something is due, and a session to which something is due is not at rest.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Multi,
    /// `EXEC` or `DISCARD`.
    TransactionEnds,
    Watch,
    Unwatch,
    /// To database 0, or another.
    Select(bool),
    Reset,
    /// It said something of itself that is not kept.
    Unkept,
}

pub(super) struct Plain {
    pub(super) call: Call,
    multi: bool,
    watch: bool,
    other_database: bool,
    /// It said something of itself that was not kept.
    is_unknown: bool,
}

impl Plain {
    pub(super) fn new(ticket: Ticket) -> Plain {
        Plain {
            call: Call::new(ticket),
            multi: false,
            watch: false,
            other_database: false,
            is_unknown: false,
        }
    }

    /// Whether requests are taken. When keys are to move, only those by which a client comes to rest: the end of what it has begun.
    pub(super) fn takes_requests(&self) -> bool {
        !self.call.is_called() || self.multi || self.watch
    }

    /// The server has agreed. Replies come in the order of requests, so this is what the session is there.
    pub(super) fn agreed(&mut self, change: Change) {
        match change {
            Change::Multi => self.multi = true,
            Change::Watch => self.watch = true,
            Change::TransactionEnds => {
                // Without a transaction the watches stay.
                self.watch &= !self.multi;
                self.multi = false;
            }
            // What a transaction has queued is carried out when it ends, or not at all.
            Change::Unwatch => self.watch &= self.multi,
            Change::Select(is_first) if !self.multi => self.other_database = !is_first,
            Change::Reset => (self.multi, self.watch, self.other_database) = (false, false, false),
            Change::Select(_) | Change::Unkept => self.is_unknown = true,
        }
    }

    /// Whether what it says now is only queued.
    pub(super) fn is_in_transaction(&self) -> bool {
        self.multi
    }

    /// Nothing of it is open that another connection would not have.
    pub(super) fn is_portable(&self) -> bool {
        !(self.multi || self.watch || self.other_database || self.is_unknown)
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> Session<C> {
    /// Remembers what has to be known of a command when keys begin to move. `request` is the whole of it, where it has arrived.
    pub(super) fn note(&mut self, note: Note, request: Option<Box<[u8]>>, is_first: bool) {
        let is_plain = self.plain.is_some();
        let special = match (note, request) {
            (Note::Trait(what), Some(request)) if request.len() <= SAYING_BYTES_MAX => {
                Special::Noted(what, request)
            }
            (Note::Reset, _) => Special::Reset,
            // Only what it said of itself matters: its protocol is part of it.
            _ if !is_plain => return self.owe(Due::Reply),
            (Note::Trait(_), _) => Special::Changed(Change::Unkept),
            (Note::Select, _) => Special::Changed(Change::Select(is_first)),
            (Note::Multi, _) => Special::Changed(Change::Multi),
            (Note::Watch, _) => Special::Changed(Change::Watch),
            (Note::Exec, _) => Special::Changed(Change::TransactionEnds),
            (Note::Unwatch, _) => Special::Changed(Change::Unwatch),
        };
        self.owe(Due::Special(Box::new(special)));
    }

    /// Whether it is called to rest, and nothing of this client is under way or open at a server.
    pub(super) fn is_at_rest(&self) -> bool {
        let is_portable = match (&self.plain, &self.moving) {
            (Some(plain), _) => plain.call.is_called() && plain.is_portable(),
            (None, Some(moving)) => moving.call.is_called() && moving.is_portable(),
            (None, None) => false,
        };
        if !is_portable {
            return false;
        }
        let is_idle = match &self.link {
            Link::Up(server) => server.is_idle(),
            Link::Connecting(_) => true,
            Link::Lost => false,
        };
        let is_between = self.due.is_empty() && self.counted && self.passing.is_none();
        self.stage == Stage::Open && is_idle && is_between
    }

    /// Lets go of the servers, and goes on between both, as keys move from now on. A request that waits for its keys has not been sent anywhere:
    /// it is looked at again.
    pub(super) fn go_over(&mut self) {
        let moving = match self.shared.stages.as_ref().map(|stages| stages.enter()) {
            Some(Entrance::Moving(hub, ticket)) => Moving::new(hub, ticket),
            Some(Entrance::Forwarding(ticket)) => {
                // It could not begin after all.
                self.plain = Some(Box::new(Plain::new(ticket)));
                return;
            }
            None => return,
        };
        self.link = Link::Connecting(moving.connect(Home::Target, &self.identity));
        // What has arrived of a request is looked at again, for all of its words.
        self.requests = RequestScanner::new(RequestLimits::default());
        self.asking = None;
        self.moving = Some(Box::new(moving));
        (self.plain, self.sharing) = (None, None);
    }
}
