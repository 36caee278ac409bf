//! What a client is owed, in the order of its requests.

use std::collections::VecDeque;

use bytes::BytesMut;

use crate::command::rule::Trait;
use crate::face::Question;
use crate::migrate::keyspace::ScanPhase;
use crate::migrate::locks;

/// What a client is owed, in the order of its requests.
#[derive(Debug)]
pub(super) enum Due {
    /// A reply of the server.
    Reply,
    /// Something else, or a reply that something hangs on.
    Special(Box<Special>),
}

#[derive(Debug)]
pub(super) enum Special {
    /// A reply of our own.
    Own(Vec<u8>),
    /// A reply to what the client said of itself.
    Noted(Trait, Box<[u8]>),
    /// A reply to what changes the session at the source.
    Changed(Change),
    /// A reply to `RESET`.
    Reset,
    /// A reply of the source about keys that may not move before it has arrived.
    Moving(Box<[locks::Shared]>),
    /// A reply that the client does not get; it gets this instead.
    Replaced(BytesMut, Vec<u8>),
    /// A reply to `SCAN`, which is changed. Until that of the source has arrived, its read is under way.
    Scanned(BytesMut, ScanPhase, Option<locks::Visit>),
    /// A reply of the target to what iterates over the elements of a key, likewise.
    Iterated(BytesMut, ScanPhase),
    /// A reply to something that only a cluster knows.
    Faced(BytesMut, Question),
}

impl Special {
    /// The buffer that collects the reply, if it is not passed on as it comes.
    pub(super) fn collected(&mut self) -> Option<&mut BytesMut> {
        match self {
            Special::Replaced(collected, _)
            | Special::Scanned(collected, _, _)
            | Special::Iterated(collected, _)
            | Special::Faced(collected, _) => Some(collected),
            _ => None,
        }
    }
}

/// What becomes of a session at the source once the server has agreed. It counts from the arrival of the
/// reply, as a server may refuse anything: until then something is due, and a session to which something is
/// due is not at rest.
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

pub(super) fn is_own(due: Option<&Due>) -> bool {
    matches!(due, Some(Due::Special(special)) if matches!(**special, Special::Own(_)))
}

pub(super) fn next_own(due: &mut VecDeque<Due>) -> Option<Vec<u8>> {
    if !is_own(due.front()) {
        return None;
    }
    match due.pop_front() {
        Some(Due::Special(special)) => match *special {
            Special::Own(reply) => Some(reply),
            _ => None,
        },
        _ => None,
    }
}
