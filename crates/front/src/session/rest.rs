//! How a session comes to rest, and goes on between two servers.

use tokio::io::{AsyncRead, AsyncWrite};
use whimbrel_wire::request::{RequestLimits, RequestScanner};

use super::due::{Change, Due, Special};
use super::link::Link;
use super::moving::Moving;
use super::plain::Plain;
use super::state::{Session, Stage};
use crate::command::rule::Note;
use crate::migrate::direction::Side;
use crate::migrate::stages::Entrance;
use crate::upstream::identity::INTRODUCTION_BYTES_MAX;

impl<C: AsyncRead + AsyncWrite + Unpin> Session<C> {
    /// Remembers what has to be known of a command when keys begin to move. `request` is the whole of it,
    /// where it has arrived.
    pub(super) fn note(&mut self, note: Note, request: Option<Box<[u8]>>, is_first: bool) {
        let is_plain = self.plain.is_some();
        let special = match (note, request) {
            (Note::Trait(what), Some(request)) if request.len() <= INTRODUCTION_BYTES_MAX => {
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

    /// Lets go of the servers, and goes on between both, as keys move from now on. A request that waits for
    /// its keys has not been sent anywhere: it is looked at again.
    pub(super) fn go_over(&mut self) {
        let moving = match self.shared.stages.as_ref().map(|stages| stages.enter()) {
            Some(Entrance::Moving(migration, ticket)) => Moving::new(migration, ticket),
            Some(Entrance::Forwarding(ticket)) => {
                // It could not begin after all.
                self.plain = Some(Box::new(Plain::new(ticket)));
                return;
            }
            None => return,
        };
        self.link = Link::Connecting(moving.connect(Side::Target, &self.identity));
        // What has arrived of a request is looked at again, for all of its words.
        self.requests = RequestScanner::new(RequestLimits::default());
        self.asking = None;
        self.moving = Some(Box::new(moving));
        (self.plain, self.sharing) = (None, None);
    }
}
