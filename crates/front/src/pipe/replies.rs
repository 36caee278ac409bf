//! Replies that have arrived for a client and were not taken yet.

use std::collections::VecDeque;

use bytes::{Buf, BytesMut};
use whimbrel_wire::boundary::{Boundary, Passed};
use whimbrel_wire::scan::Malformed;

/// Replies that have arrived and were not taken yet.
#[derive(Debug)]
pub(crate) struct Replies {
    bytes: BytesMut,
    ends: Ends,
}

/// How the end of replies is known.
#[derive(Debug)]
enum Ends {
    /// By looking for that in what a server sends.
    Sought(Boundary),
    /// The caller that adds replies says so.
    Reported {
        /// Of all that is here.
        frames: VecDeque<Passed>,
        /// What was looked at last is a part of a reply that goes on.
        is_inside: bool,
    },
}

impl Replies {
    /// Bytes of a server.
    pub(crate) fn bytes() -> Replies {
        Replies { bytes: BytesMut::new(), ends: Ends::Sought(Boundary::default()) }
    }

    /// Replies whose ends are reported.
    pub(crate) fn parsed() -> Replies {
        Replies { bytes: BytesMut::new(), ends: Ends::Reported { frames: VecDeque::new(), is_inside: false } }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What has been looked at ends with a reply, not within one.
    pub(crate) fn is_between(&self) -> bool {
        match &self.ends {
            Ends::Sought(boundary) => boundary.is_between(),
            Ends::Reported { is_inside, .. } => !is_inside,
        }
    }

    /// The buffer that a server's bytes are added to.
    pub(crate) fn bytes_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    /// Looks at what follows the first `passed` bytes, up to the end of a reply.
    ///
    /// # Errors
    /// [`Malformed`] if a server does not send RESP.
    pub(crate) fn pass(&mut self, passed: usize) -> Result<Passed, Malformed> {
        match &mut self.ends {
            Ends::Sought(boundary) => boundary.pass(&self.bytes[passed..]),
            Ends::Reported { frames, is_inside } => {
                let Some(passed) = frames.pop_front() else { return Ok(Passed::Part(0)) };
                *is_inside = matches!(passed, Passed::Part(_));
                Ok(passed)
            }
        }
    }

    /// The bytes that are here.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes bytes that have been [looked at](Replies::pass).
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
    }

    /// Adds the rest of a reply that begins with `kind`, or the whole of one.
    pub(crate) fn add(&mut self, rest: &[u8], kind: u8) {
        self.put(rest, Some(kind));
    }

    /// Adds a whole reply.
    pub(crate) fn add_whole(&mut self, reply: &[u8]) {
        if let Some(kind) = reply.first() {
            self.put(reply, Some(*kind));
        }
    }

    /// Adds a part of a reply that goes on.
    pub(crate) fn add_part(&mut self, part: &[u8]) {
        if !part.is_empty() {
            self.put(part, None);
        }
    }

    fn put(&mut self, added: &[u8], kind: Option<u8>) {
        self.bytes.extend_from_slice(added);
        let Ends::Reported { frames, .. } = &mut self.ends else { return };
        // A part that has not been looked at becomes one with what follows.
        let before = match frames.back() {
            Some(Passed::Part(bytes)) => *bytes,
            _ => 0,
        };
        if before > 0 {
            frames.pop_back();
        }
        let bytes = before + added.len();
        frames.push_back(kind.map_or(Passed::Part(bytes), |kind| Passed::Frame { bytes, kind }));
    }

    /// Gives back memory if nothing is held.
    pub(crate) fn release(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
            if let Ends::Reported { frames, .. } = &mut self.ends {
                *frames = VecDeque::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_end_where_that_was_announced() {
        let mut replies = Replies::parsed();
        replies.add_part(b"$5\r\nhe");
        assert_eq!(replies.pass(0), Ok(Passed::Part(6)));
        assert!(!replies.is_between());
        replies.add_part(b"l");
        replies.add(b"lo\r\n", b'$');
        replies.add_whole(b"+OK\r\n");
        assert_eq!(replies.pass(6), Ok(Passed::Frame { bytes: 5, kind: b'$' }));
        assert!(replies.is_between());
        assert_eq!(replies.pass(11), Ok(Passed::Frame { bytes: 5, kind: b'+' }));
        assert_eq!((replies.pass(16), replies.len()), (Ok(Passed::Part(0)), 16));
    }
}
