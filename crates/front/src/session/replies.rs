//! Replies on their way to the client.

use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use whimbrel_wire::boundary::Passed;

use super::due::{Change, Due, Special, is_own, next_own};
use super::link::{Link, Way};
use super::moving::Moving;
use super::plain::Plain;
use super::state::{FAREWELL, Session};
use crate::face::Face;
use crate::migrate::keyspace::with_cursor;
use crate::migrate::staging::without_hidden;
use crate::pipe::io::{Ended, OUT_BYTES_MAX, write};
use crate::upstream::identity::Identity;

/// A reply that is changed is held whole, and cannot be longer.
const COLLECTED_BYTES_MAX: usize = 64 << 20;

impl<C: AsyncRead + AsyncWrite + Unpin> Session<C> {
    pub(super) fn read_server(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Link::Up(server) = &mut self.link else { return Ok(false) };
        let is_full = self.to_client.len() >= OUT_BYTES_MAX;
        let read = match &mut server.way {
            Way::Cluster(cluster) => match cluster.poll(cx, &mut server.to, &mut server.from) {
                Ok(moved) => return Ok(moved),
                // What came before the end is still to be taken.
                Err(Ended) if is_full || !server.from.is_empty() => return Ok(false),
                Err(Ended) => Poll::Ready(Ok(0)),
            },
            Way::Own(_) | Way::Shared(_) if is_full => return Ok(false),
            Way::Own(_) | Way::Shared(_) => server.read(cx),
        };
        if let (Some(sharing), Poll::Ready(Ok(bytes))) = (&mut self.sharing, &read) {
            sharing.note_bytes(*bytes);
        }
        if matches!(read, Poll::Ready(Ok(0) | Err(_))) && self.turn_to_target(cx) {
            return Ok(true);
        }
        match read {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => {
                // What came before the end is still the client's.
                self.take_replies()?;
                self.due.retain(
                    |due| matches!(due, Due::Special(special) if matches!(**special, Special::Own(_))),
                );
                self.link = Link::Lost;
                self.leave();
                Ok(true)
            }
            Poll::Ready(read) => {
                read?;
                Ok(true)
            }
        }
    }

    /// Hands replies to the client, those of our own in their turn.
    pub(super) fn take_replies(&mut self) -> Result<bool, Ended> {
        // Only a cluster gives more than is asked for.
        if self.to_client.len() >= OUT_BYTES_MAX {
            return Ok(false);
        }
        let mut moved = self.push_own();
        let Link::Up(server) = &mut self.link else { return Ok(moved) };
        let mut passed = 0;
        while passed < server.from.len() {
            let (bytes, kind) = match server.from.pass(passed) {
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
                    self.to_client.extend_from_slice(&server.from.as_slice()[..passed]);
                    collected.extend_from_slice(&server.from.as_slice()[passed..passed + bytes]);
                    server.from.advance(passed + bytes);
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
                    if let Some(sharing) = &mut self.sharing {
                        sharing.note_reply(first.as_ref(), kind);
                    }
                    let said = match first {
                        None | Some(Due::Reply) => None,
                        Some(Due::Special(special)) => {
                            let face = self.shared.face.as_deref();
                            arrived(
                                *special,
                                kind,
                                face,
                                &mut self.identity,
                                &mut self.plain,
                                &mut self.moving,
                            )
                        }
                    };
                    if said.is_some() || is_own(self.due.front()) {
                        self.to_client.extend_from_slice(&server.from.as_slice()[..passed]);
                        server.from.advance(passed);
                        passed = 0;
                        self.to_client.extend_from_slice(&said.unwrap_or_default());
                        while let Some(reply) = next_own(&mut self.due) {
                            self.to_client.extend_from_slice(&reply);
                        }
                    }
                }
            }
        }
        self.to_client.extend_from_slice(&server.from.as_slice()[..passed]);
        server.from.advance(passed);
        moved |= passed > 0;
        Ok(moved)
    }

    /// Says what of our own is first in turn.
    pub(super) fn push_own(&mut self) -> bool {
        let is_between = match &self.link {
            Link::Up(server) => server.from.is_between(),
            // With two servers a client may be between both.
            Link::Connecting(_) => self.moving.is_some(),
            Link::Lost => true,
        };
        let mut said = false;
        while is_between && let Some(reply) = next_own(&mut self.due) {
            self.to_client.extend_from_slice(&reply);
            said = true;
        }
        said
    }

    pub(super) fn write_client(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let written = write(&mut self.client, cx, &mut self.to_client)?;
        if written {
            self.is_reading();
        }
        if let (true, Some(farewell)) = (written, &mut self.farewell) {
            // A client that still takes something in may take all of it.
            farewell.as_mut().reset(Instant::now() + FAREWELL);
        }
        Ok(written)
    }
}

/// What the arrival of a reply means; returns what the client gets in its place.
fn arrived(
    special: Special,
    kind: u8,
    face: Option<&Face>,
    identity: &mut Identity,
    plain: &mut Option<Box<Plain>>,
    moving: &mut Option<Box<Moving>>,
) -> Option<Vec<u8>> {
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
            let answer = face.and_then(|face| face.answer(asked, &reply, identity.protocol()));
            return Some(answer.map_or_else(|| reply.to_vec(), |answer| answer.to_vec()));
        }
        Special::Noted(what, request) if is_agreed => match plain {
            Some(plain) if plain.is_in_transaction() => plain.agreed(Change::Unkept),
            _ => identity.note(what, request),
        },
        Special::Reset if is_agreed => {
            identity.forget();
            if let Some(plain) = plain {
                plain.agreed(Change::Reset);
            }
            if let Some(moving) = moving {
                moving.agreed(Change::Reset);
            }
        }
        Special::Changed(change) if is_agreed => {
            if let Some(plain) = plain {
                plain.agreed(change);
            }
            if let Some(moving) = moving {
                moving.agreed(change);
            }
            return None;
        }
        // What was held is let go.
        _ => return None,
    }
    if let Some(moving) = moving {
        // The other server has to be told.
        moving.forget_parked();
    }
    None
}
