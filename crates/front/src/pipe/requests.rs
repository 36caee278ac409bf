//! Requests on their way to a server or a cluster.
//!
//! A server gets bytes. A cluster gets requests: where each ends and where its words are is handed on with
//! it, so nothing behind looks for that again.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::frame::push_array;
use super::io::OUT_BYTES_MAX;

/// Requests that have not been taken yet.
#[derive(Debug)]
pub(crate) struct Requests {
    bytes: BytesMut,
    /// What is known of them, if that is wanted: for all requests whose bytes are here.
    heads: Option<VecDeque<Head>>,
    /// Where the words are, of all of them, one request after the other; each from the start of its request.
    words: VecDeque<Range<usize>>,
    /// No more is to be added once there is so much.
    bytes_max: usize,
}

/// What is known of a request, or of what is left of it when a part has been taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Its bytes so far.
    pub(crate) len: usize,
    /// Words whose beginning is known. The last one may reach beyond what has arrived.
    pub(crate) words: usize,
    /// Words that are still to come.
    pub(crate) words_left: u64,
    /// All of it is here.
    pub(crate) whole: bool,
}

impl Requests {
    /// Bytes for a server.
    pub(crate) fn bytes() -> Requests {
        Requests { bytes: BytesMut::new(), heads: None, words: VecDeque::new(), bytes_max: OUT_BYTES_MAX }
    }

    /// Requests whose words are known, for a cluster.
    pub(crate) fn parsed() -> Requests {
        Requests { heads: Some(VecDeque::new()), ..Requests::bytes() }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether more may be added.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes.len() < self.bytes_max
    }

    /// Notes `len` bytes that are [added](Requests::add) next: a request, a part of one, or its rest.
    /// `words` are those whose beginning is among them, from the start of these bytes.
    pub(crate) fn mark(&mut self, len: usize, words: &[Range<usize>], words_left: u64, whole: bool) {
        let Some(heads) = &mut self.heads else { return };
        let at = match heads.back_mut().filter(|head| !head.whole) {
            Some(head) => {
                let at = head.len;
                head.len += len;
                head.words += words.len();
                (head.words_left, head.whole) = (words_left, whole);
                at
            }
            None => {
                heads.push_back(Head { len, words: words.len(), words_left, whole });
                0
            }
        };
        self.words.extend(words.iter().map(|word| word.start + at..word.end + at));
    }

    /// Adds bytes that have been [marked](Requests::mark).
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds a request of these words.
    pub(crate) fn add_words<W: AsRef<[u8]>>(&mut self, words: &[W]) {
        let before = self.bytes.len();
        let mut found = Vec::with_capacity(words.len());
        push_array(&mut self.bytes, words, |word| found.push(word.start - before..word.end - before));
        self.mark(self.bytes.len() - before, &found, 0, true);
    }

    /// If requests are bytes: all of them, for the sender.
    pub(crate) fn bytes_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    /// Gives back memory if nothing is held.
    pub(crate) fn release(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
            self.words = VecDeque::new();
            if let Some(heads) = self.heads.as_mut().filter(|heads| heads.is_empty()) {
                *heads = VecDeque::new();
            }
        }
    }

    // ---- For a cluster ----

    /// What is known of the first request.
    pub(crate) fn first(&self) -> Option<Head> {
        // A request that was partly taken may have nothing here.
        self.heads.as_ref()?.front().copied().filter(|head| head.len > 0)
    }

    /// Those words of the first request that are here as a whole, up to the first word that is not.
    pub(crate) fn first_words(&self) -> impl Iterator<Item = &[u8]> {
        let head = self.first().unwrap_or(Head { len: 0, words: 0, words_left: 0, whole: false });
        let bytes = &self.bytes[..head.len];
        self.words.iter().take(head.words).map_while(move |word| bytes.get(word.clone()))
    }

    /// All of the first request that is here.
    pub(crate) fn first_bytes(&self) -> &[u8] {
        &self.bytes[..self.first().map_or(0, |head| head.len)]
    }

    /// Takes what is here of the first request. If that is not the whole of it, its rest follows.
    pub(crate) fn take_first(&mut self) -> Bytes {
        let Some(head) = self.heads.as_mut().and_then(|heads| heads.front_mut()) else { return Bytes::new() };
        let Head { len, words, whole, .. } = *head;
        (head.len, head.words) = (0, 0);
        if whole && let Some(heads) = &mut self.heads {
            heads.pop_front();
        }
        self.words.drain(..words);
        self.bytes_max = OUT_BYTES_MAX;
        self.bytes.split_to(len).freeze()
    }

    /// How much there may be before nothing is added any more.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Has room for twice as much, until the first request has been taken.
    pub(crate) fn double(&mut self) {
        self.bytes_max *= 2;
    }

    /// Throws away all of them.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.words.clear();
        if let Some(heads) = &mut self.heads {
            heads.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use whimbrel_wire::request::{Request, RequestLimits, RequestScanner};

    fn words(requests: &Requests) -> Vec<Vec<u8>> {
        requests.first_words().map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn requests_come_out_as_they_went_in() {
        let mut requests = Requests::parsed();
        requests.add_words(&[&b"GET"[..], b"k"]);
        requests.add_words(&[&b"PING"[..]]);
        assert_eq!(requests.first().map(|head| (head.words, head.whole)), Some((2, true)));
        assert_eq!(words(&requests), [b"GET".to_vec(), b"k".to_vec()]);
        assert_eq!(&requests.take_first()[..], b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        assert_eq!(words(&requests), [b"PING".to_vec()]);
        assert_eq!(&requests.take_first()[..], b"*1\r\n$4\r\nPING\r\n");
        assert!(requests.is_empty() && requests.first().is_none());
    }

    /// However a request comes in parts, and whichever of them are taken early, its words are where they are.
    #[test]
    fn parts_of_a_request_become_one() {
        let text = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$12\r\nhello\r\nworld\r\n";
        for step in 1..text.len() {
            for taken_at in [usize::MAX, 20] {
                let mut scanner = RequestScanner::new(RequestLimits::default());
                let (mut requests, mut buf, mut out) = (Requests::parsed(), Vec::new(), Vec::new());
                for chunk in text.chunks(step) {
                    buf.extend_from_slice(chunk);
                    let (len, whole) = match scanner.scan(&buf).expect("valid") {
                        Request::Array(len) => (len, true),
                        _ => (scanner.forgettable(&buf), false),
                    };
                    requests.mark(len, scanner.args(), scanner.args_left(), whole);
                    requests.add(&buf[..len]);
                    buf.drain(..len);
                    if whole {
                        scanner.next()
                    } else {
                        scanner.forget(len)
                    }
                    if !whole && requests.len() >= taken_at {
                        out.extend_from_slice(&requests.take_first());
                    }
                }
                if out.is_empty() {
                    let all = [b"SET".to_vec(), b"k".to_vec(), b"hello\r\nworld".to_vec()];
                    assert_eq!(words(&requests), all, "in steps of {step}");
                }
                assert!(requests.first().is_some_and(|head| head.whole && head.words_left == 0));
                out.extend_from_slice(&requests.take_first());
                assert_eq!((out.as_slice(), requests.first()), (&text[..], None));
            }
        }
    }
}
