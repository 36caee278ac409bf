//! What is known of a client whose reads and writes go over a connection that others use as well.

use std::sync::Arc;

use super::due::{Due, Special};
use crate::command::rule::Trait;
use crate::upstream::identity::may_have_logged_in;
use crate::upstream::shared::{AT_ONCE_BYTES_MAX, SharedConnections};

pub(super) struct Sharing {
    pub(super) connections: Arc<SharedConnections>,
    /// The server has answered it with something but an error.
    pub(super) is_let_in: bool,
    /// It keeps to its own connection.
    pub(super) is_alone: bool,
    /// It has been at a shared connection since its own connection was marked.
    pub(super) is_unmarked: bool,
}

/// Where a request should go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// Over a shared connection.
    Shared,
    /// Over the client's own connection.
    Own,
    /// The same, and it matters what the connection did last.
    Marked,
}

impl Sharing {
    pub(super) fn new(connections: Arc<SharedConnections>) -> Sharing {
        Sharing { connections, is_let_in: false, is_alone: false, is_unmarked: false }
    }

    /// A reply has arrived, to something that is not special or to something that is.
    pub(super) fn note_reply(&mut self, due: Option<&Due>, kind: u8) {
        match due {
            Some(Due::Reply) => self.is_let_in |= kind != b'-' && kind != b'!',
            Some(Due::Special(special)) if matches!(**special, Special::Reset) => self.is_let_in = false,
            Some(Due::Special(special)) => {
                if let Special::Noted(Trait::Hello, hello) = &**special {
                    self.is_alone |= (kind == b'-' || kind == b'!') && may_have_logged_in(hello);
                }
            }
            _ => {}
        }
    }

    /// So much has arrived at once.
    pub(super) fn note_bytes(&mut self, bytes: usize) {
        self.is_alone |= bytes > AT_ONCE_BYTES_MAX;
    }
}
