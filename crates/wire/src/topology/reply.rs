//! A reply that is shared by all who ask for it.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};

/// Up to this length a reply is kept in one piece: writing it then takes one entry, and copying it together
/// after a change takes some microseconds.
const JOINED_BYTES_MAX: usize = 64 << 10;

/// An encoded reply. A clone costs one count of references and keeps what it had when it was made.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    parts: Arc<[Bytes]>,
    bytes: usize,
}

impl Reply {
    /// A reply in one piece.
    pub(super) fn of(whole: Bytes) -> Reply {
        Reply { bytes: whole.len(), parts: Arc::new([whole]) }
    }

    /// How long it is, in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True for one without content, which no command has.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// To write it from: [`Buf`] gives its parts in place.
    pub fn reader(&self) -> Reader {
        Reader { parts: self.parts.clone(), at: 0, from: 0, rest: self.bytes }
    }

    /// All of it in one piece: a copy if it has several.
    pub fn to_bytes(&self) -> Bytes {
        self.reader().copy_to_bytes(self.bytes)
    }

    /// Becomes head, pages and tail. `touched` are the pages that are not those of the last time.
    pub(super) fn renew(
        &mut self,
        head: Bytes,
        pages: &[Bytes],
        tail: &'static [u8],
        touched: &BTreeSet<usize>,
    ) {
        let bytes = head.len() + pages.iter().map(Bytes::len).sum::<usize>() + tail.len();
        let was_joined = self.parts.len() != pages.len() + 2;
        self.bytes = bytes;
        if bytes <= JOINED_BYTES_MAX {
            let mut whole = BytesMut::with_capacity(bytes);
            whole.extend_from_slice(&head);
            pages.iter().for_each(|page| whole.extend_from_slice(page));
            whole.extend_from_slice(tail);
            self.parts = Arc::new([whole.freeze()]);
            return;
        }
        // In place, unless a reader still has the former parts.
        if let Some(parts) = Arc::get_mut(&mut self.parts).filter(|_| !was_joined) {
            parts[0] = head;
            for &page in touched {
                parts[page + 1] = pages[page].clone();
            }
            return;
        }
        let tail = Bytes::from_static(tail);
        self.parts = std::iter::once(head).chain(pages.iter().cloned()).chain([tail]).collect();
    }
}

/// What is left to be written of a [`Reply`].
#[derive(Debug)]
pub struct Reader {
    parts: Arc<[Bytes]>,
    /// The first part that is not written whole, and how much of it is.
    at: usize,
    from: usize,
    rest: usize,
}

impl Buf for Reader {
    fn remaining(&self) -> usize {
        self.rest
    }

    fn chunk(&self) -> &[u8] {
        let first = self.parts.get(self.at).map_or(&[][..], |part| &part[self.from..]);
        let later = || self.parts.iter().skip(self.at + 1).find(|part| !part.is_empty());
        if first.is_empty() { later().map_or(&[], |part| &part[..]) } else { first }
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let first = self.parts.get(self.at).map(|part| &part[self.from..]);
        let later = self.parts.iter().skip(self.at + 1).map(|part| &part[..]);
        let parts = first.into_iter().chain(later).filter(|part| !part.is_empty());
        let mut count = 0;
        for (place, part) in into.iter_mut().zip(parts) {
            *place = IoSlice::new(part);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.rest, "advance past the end of a reply");
        self.rest -= count;
        while let Some(part) = self.parts.get(self.at) {
            let left = part.len() - self.from;
            if count < left {
                self.from += count;
                return;
            }
            count -= left;
            (self.at, self.from) = (self.at + 1, 0);
        }
    }
}
