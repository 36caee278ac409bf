//! Replies on their way to the client.

use std::collections::VecDeque;

use whimbrel_wire::boundary::Passed;

use super::due::{Change, Due, Special, is_own, next_own};
use super::link::Link;
use super::state::{Action, Mode, Session};
use crate::command::rule::Trait;
use crate::face::Face;
use crate::migrate::keyspace::with_cursor;
use crate::migrate::staging::without_hidden;
use crate::pipe::io::{Ended, OUT_BYTES_MAX};
use crate::upstream::identity::{Identity, may_have_logged_in};

/// A reply that is changed is held whole, and cannot be longer.
const COLLECTED_BYTES_MAX: usize = 64 << 20;

impl Session {
    /// So much has arrived of the server.
    pub(super) fn arrived(&mut self, bytes: usize) {
        if let Some(sharing) = self.mode.sharing_mut() {
            sharing.note_bytes(bytes);
        }
    }

    /// The server has closed the connection.
    ///
    /// # Errors
    /// [`Ended`] if what came before was no RESP.
    pub(super) fn server_closed(&mut self) -> Result<(), Ended> {
        if self.switch_to_target() {
            return Ok(());
        }
        // What came before the end is still the client's.
        self.take_replies()?;
        self.due.retain(|due| matches!(due, Due::Special(special) if matches!(**special, Special::Own(_))));
        self.link = Link::Lost;
        self.leave();
        Ok(())
    }

    /// Hands replies to the client, those of our own in their turn.
    pub(super) fn take_replies(&mut self) -> Result<bool, Ended> {
        // Only a cluster gives more than is asked for.
        if self.to_client.len() >= OUT_BYTES_MAX {
            return Ok(false);
        }
        let mut moved = self.push_own();
        let Link::Up(wire) = &mut self.link else { return Ok(moved) };
        let mut passed = 0;
        while passed < wire.from.len() {
            let (bytes, kind) = match wire.from.pass(passed) {
                Ok(Passed::Part(bytes)) => (bytes, None),
                Ok(Passed::Frame { bytes, kind }) => (bytes, Some(kind)),
                Err(error) => {
                    tracing::warn!(%error, "the server does not speak RESP");
                    return Err(Ended);
                }
            };
            let collected = match self.due.front_mut() {
                Some(Due::Special(special)) => special.collected(),
                _ => None,
            };
            match collected {
                Some(collected) => {
                    self.to_client.extend_from_slice(&wire.from.as_slice()[..passed]);
                    collected.extend_from_slice(&wire.from.as_slice()[passed..passed + bytes]);
                    wire.from.advance(passed + bytes);
                    passed = 0;
                    moved = true;
                    if collected.len() > COLLECTED_BYTES_MAX {
                        tracing::warn!("a reply that has to be changed is too long");
                        return Err(Ended);
                    }
                }
                None => passed += bytes,
            }
            match kind {
                None => break,
                // Pushes come when they come.
                Some(b'>') => {}
                Some(kind) => {
                    let first = if is_own(self.due.front()) { None } else { self.due.pop_front() };
                    if let Some(sharing) = self.mode.sharing_mut() {
                        sharing.note_reply(first.as_ref(), kind);
                    }
                    let own = match first {
                        None | Some(Due::Reply) => None,
                        Some(Due::Special(special)) => {
                            let face = self.face.as_deref();
                            let noted = Noted {
                                identity: &mut self.identity,
                                mode: &mut self.mode,
                                actions: &mut self.actions,
                            };
                            noted.reply(*special, kind, face)
                        }
                    };
                    if own.is_some() || is_own(self.due.front()) {
                        self.to_client.extend_from_slice(&wire.from.as_slice()[..passed]);
                        wire.from.advance(passed);
                        passed = 0;
                        self.to_client.extend_from_slice(&own.unwrap_or_default());
                        while let Some(reply) = next_own(&mut self.due) {
                            self.to_client.extend_from_slice(&reply);
                        }
                    }
                }
            }
        }
        self.to_client.extend_from_slice(&wire.from.as_slice()[..passed]);
        wire.from.advance(passed);
        moved |= passed > 0;
        Ok(moved)
    }

    /// Says what of our own is first in turn.
    pub(super) fn push_own(&mut self) -> bool {
        let is_between = match &self.link {
            Link::Up(wire) => wire.from.is_between(),
            // With two servers a client may be between both.
            Link::Connecting => matches!(self.mode, Mode::Moving(_)),
            Link::Lost => true,
        };
        let mut moved = false;
        while is_between && let Some(reply) = next_own(&mut self.due) {
            self.to_client.extend_from_slice(&reply);
            moved = true;
        }
        moved
    }
}

/// What replies say of a client.
struct Noted<'a> {
    identity: &'a mut Identity,
    mode: &'a mut Mode,
    actions: &'a mut VecDeque<Action>,
}

impl Noted<'_> {
    /// What the arrival of a reply means; returns what the client gets in its place.
    fn reply(mut self, special: Special, kind: u8, face: Option<&Face>) -> Option<Vec<u8>> {
        let is_agreed = kind != b'-' && kind != b'!';
        match special {
            Special::Replaced(_, own) => return Some(own),
            Special::Scanned(reply, phase, visit) => {
                // It has been carried out.
                drop(visit);
                return Some(without_hidden(with_cursor(phase, &reply)));
            }
            Special::Iterated(reply, phase) => return Some(with_cursor(phase, &reply)),
            Special::Faced(reply, asked) => {
                let answer = face.and_then(|face| face.answer(asked, &reply, self.identity.protocol()));
                return Some(answer.map_or_else(|| reply.to_vec(), |answer| answer.to_vec()));
            }
            Special::Noted(what, request) if is_agreed => match self.mode.plain_mut() {
                Some(plain) if plain.is_in_transaction() => plain.agreed(Change::Unkept),
                _ => self.identity.note(what, request),
            },
            Special::Noted(Trait::Hello, hello) if may_have_logged_in(&hello) => {
                if let Some(plain) = self.mode.plain_mut() {
                    plain.agreed(Change::Unkept);
                }
                return None;
            }
            Special::Reset if is_agreed => {
                self.identity.forget();
                self.agreed(Change::Reset);
            }
            Special::Changed(change) if is_agreed => {
                self.agreed(change);
                return None;
            }
            // What was held is let go.
            _ => return None,
        }
        if matches!(self.mode, Mode::Moving(_)) {
            // The other server has to be notified.
            self.actions.push_back(Action::ForgetParked);
        }
        None
    }

    fn agreed(&mut self, change: Change) {
        match self.mode {
            Mode::Noting(plain) | Mode::Sharing(plain, _) => plain.agreed(change),
            Mode::Moving(moving) => moving.agreed(change),
            Mode::Forwarding => {}
        }
    }
}
