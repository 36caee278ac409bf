//! How a session comes to rest, and goes on between two servers.

use std::sync::Arc;

use whimbrel_wire::request::{RequestLimits, RequestScanner};

use super::due::{Change, Due, Special};
use super::link::Link;
use super::moving::Moving;
use super::state::{First, Life, Mode, Session};
use crate::command::rule::Note;
use crate::migrate::state::MigrationState;
use crate::upstream::identity::INTRODUCTION_BYTES_MAX;

impl Session {
    /// Remembers what has to be known of a command when keys begin to move. `request` is the whole of it, if
    /// it has arrived.
    pub(super) fn note(&mut self, note: Note, request: Option<Box<[u8]>>, is_first: bool) {
        let is_plain = self.mode.plain().is_some();
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
            (Note::Exec | Note::Discard, _) => Special::Changed(Change::TransactionEnds),
            (Note::Unwatch, _) => Special::Changed(Change::Unwatch),
        };
        self.owe(Due::Special(Box::new(special)));
    }

    /// Whether it is called to rest, and nothing of this client is under way at a server, nor begun there.
    /// Then it takes no requests either.
    pub(super) fn is_quiet(&self) -> bool {
        let has_begun = match &self.mode {
            Mode::Noting(plain) | Mode::Sharing(plain, _) => plain.has_begun(),
            Mode::Moving(moving) => !moving.transaction.is_none(),
            Mode::Forwarding => true,
        };
        if !self.is_called || has_begun || self.is_subscribed || self.is_inside() {
            return false;
        }
        let is_idle = match &self.link {
            Link::Up(wire) => wire.is_idle(),
            Link::Connecting => true,
            Link::Lost => false,
        };
        matches!(self.life, Life::Open | Life::Closing) && is_idle && self.due.is_empty()
    }

    /// Whether another connection would have all that this client has at its server.
    pub(super) fn is_portable(&self) -> bool {
        match &self.mode {
            Mode::Noting(plain) | Mode::Sharing(plain, _) => plain.is_portable(),
            Mode::Moving(moving) => moving.is_portable(),
            Mode::Forwarding => false,
        }
    }

    /// Whether it is already where this migration has its clients.
    pub(super) fn is_of(&self, migration: &Arc<MigrationState>) -> bool {
        matches!(&self.mode, Mode::Moving(moving) if Arc::ptr_eq(&moving.migration, migration))
    }

    /// Goes on between two servers, as keys move from now on. The driver has let go of the earlier
    /// connections, and connects again.
    pub(super) fn go_over(&mut self, moving: Moving) {
        self.is_called = false;
        self.link = Link::Connecting;
        // What has arrived of a request is looked at again, for all of its words. A request that waits for
        // its keys has not been sent anywhere.
        self.requests = RequestScanner::new(RequestLimits::default());
        (self.first, self.asking) = (First::Fresh, None);
        self.actions.clear();
        self.mode = Mode::Moving(Box::new(moving));
    }

    /// Goes on as it is: keys could not begin to move after all, or clients are no longer held.
    pub(super) fn stay(&mut self) {
        self.is_called = false;
    }
}
