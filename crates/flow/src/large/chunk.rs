//! What moves at once, and how much that is.

use bytes::Bytes;
use whimbrel_engine::link::Link;
use whimbrel_wire::value::Value;

use super::task::{Halt, checked};

/// The most elements that one command reads or writes: it then takes about a millisecond.
pub(super) const ELEMENTS_MAX: usize = 1_000;

/// How many elements the first command asks for, while nothing is known about their size: each may be larger
/// than all that is to be held at once.
const ELEMENTS_FIRST: usize = 1;

/// How much more a command may ask for than the one before.
const GROWTH_MAX: usize = 4;

/// Reads a key chunk by chunk, as the commands that write it.
pub(super) trait Reader {
    /// The next chunk, or `None` after the last one.
    async fn next(&mut self, source: &mut Link) -> Result<Option<Chunk>, Halt>;

    /// True if the source's cardinality at the end is what the chunks held. It is not if elements may expire:
    /// servers count them for a while longer.
    fn counts_exactly(&self) -> bool {
        true
    }

    /// What else to ask the source for in the transaction that closes the read, which follows at once.
    fn closing(&mut self) -> Vec<Vec<Bytes>> {
        Vec::new()
    }

    /// Judges the replies to [`Reader::closing`]: false if something changed that `WATCH` does not notice.
    fn is_same(&self, _replies: &[Value]) -> bool {
        true
    }
}

/// What the target must answer to a command, besides not refusing it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Expect {
    /// Anything.
    NoError,
    /// Anything; it adds this much to the cardinality.
    Counts(u64),
    /// The whole cardinality, to which it adds this much.
    Total(u64),
    /// How much it added to the cardinality.
    Added,
    /// An array of this length.
    Items(usize),
}

/// One command for the target.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) args: Vec<Bytes>,
    pub(super) expect: Expect,
}

impl Command {
    /// The command as it is sent.
    pub(super) fn words(&self) -> Vec<&[u8]> {
        self.args.iter().map(|arg| &arg[..]).collect()
    }

    pub(super) fn name(&self) -> &[u8] {
        self.args.first().map_or(b"", |name| &name[..])
    }
}

/// Commands that write a part of a value.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) commands: Vec<Command>,
    /// Elements, for the report.
    pub(super) elements: u64,
    /// Bytes of elements, for the report.
    pub(super) bytes: u64,
    /// The elements that have a time to live of their own.
    pub(super) mortal: Mortal,
}

/// Elements that vanish by themselves: how many, and when the first and the last of them do, in milliseconds
/// since the epoch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mortal {
    count: u64,
    first_ms: i64,
    last_ms: i64,
}

impl Mortal {
    /// Adds elements that expire at the same time.
    pub(super) fn add(&mut self, count: u64, at_ms: i64) {
        self.join(Mortal { count, first_ms: at_ms, last_ms: at_ms });
    }

    /// Adds those of `other`.
    pub(super) fn join(&mut self, other: Mortal) {
        *self = match (self.count, other.count) {
            (_, 0) => *self,
            (0, _) => other,
            _ => Mortal {
                count: self.count + other.count,
                first_ms: self.first_ms.min(other.first_ms),
                last_ms: self.last_ms.max(other.last_ms),
            },
        };
    }

    /// Whether none of them has vanished at this time, so that whatever is missing was lost.
    pub(super) fn are_all_there(&self, now_ms: i64) -> bool {
        self.count == 0 || now_ms < self.first_ms
    }

    /// Whether this many elements may be missing at this time.
    pub(super) fn may_lack(&self, missing: u64, now_ms: i64) -> bool {
        missing == 0 || missing <= self.count && !self.are_all_there(now_ms)
    }

    /// Whether all of `cardinality` elements are among them and have vanished at this time.
    pub(super) fn are_all_gone(&self, cardinality: u64, now_ms: i64) -> bool {
        self.count >= cardinality && now_ms >= self.last_ms
    }
}

impl Chunk {
    /// Adds one command.
    pub(super) fn push(&mut self, args: Vec<Bytes>, expect: Expect) {
        self.commands.push(Command { args, expect });
    }

    /// Adds as many commands as it takes to keep each within `chunk_bytes` and [`ELEMENTS_MAX`]. `items` are
    /// the arguments of all elements, `width` for each. `expect` is given the number of elements.
    pub(super) fn push_split(
        &mut self,
        prefix: impl Fn(usize) -> Vec<Bytes>,
        items: &[Bytes],
        width: usize,
        chunk_bytes: usize,
        expect: impl Fn(usize) -> Expect,
    ) {
        let mut start = 0;
        while start < items.len() {
            let mut end = start;
            let mut bytes = 0;
            for element in items[start..].chunks(width) {
                bytes += bytes_of(element);
                if end > start && (bytes > chunk_bytes || end - start >= ELEMENTS_MAX * width) {
                    break;
                }
                end += element.len();
            }
            let count = (end - start) / width;
            let mut args = prefix(count);
            args.extend_from_slice(&items[start..end]);
            self.push(args, expect(count));
            start = end;
        }
    }
}

/// How many elements to ask for at once, by the size of those seen so far.
#[derive(Debug)]
pub(super) struct Pace {
    chunk_bytes: usize,
    count: usize,
}

impl Pace {
    pub(super) fn new(chunk_bytes: usize) -> Self {
        Pace { chunk_bytes: chunk_bytes.max(1), count: ELEMENTS_FIRST }
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Learns from a reply. It grows step by step only: what comes next may be larger than what was seen.
    pub(super) fn adapt(&mut self, elements: usize, bytes: usize) {
        let Some(element_bytes) = bytes.checked_div(elements) else { return };
        let fitting = (self.chunk_bytes / element_bytes.max(1)).clamp(1, ELEMENTS_MAX);
        self.count = fitting.min(self.count * GROWTH_MAX);
    }
}

/// The bytes of all of `items`.
pub(super) fn bytes_of(items: &[Bytes]) -> usize {
    items.iter().map(Bytes::len).sum()
}

/// An argument that is known beforehand.
pub(super) fn word(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// A number as an argument.
pub(super) fn number(n: impl ToString) -> Bytes {
    Bytes::from(n.to_string())
}

/// One command to the source; the wrong type means that the key was replaced meanwhile.
pub(super) async fn ask(source: &mut Link, args: &[&[u8]]) -> Result<Value, Halt> {
    let reply = source.ask(args).await?;
    checked(source, reply, args.first().copied().unwrap_or_default())
}

/// The strings of an array reply; `None` if it is anything else.
pub(super) fn strings(reply: Value) -> Option<Vec<Bytes>> {
    reply.into_items()?.into_iter().map(Value::into_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_judged_by_when_it_vanishes() {
        let mut mortal = Mortal::default();
        assert!(mortal.may_lack(0, 1_000) && !mortal.may_lack(1, 1_000));
        mortal.add(2, 500);
        mortal.add(3, 900);
        assert!(!mortal.may_lack(1, 499), "none has expired");
        assert!(mortal.may_lack(5, 500) && !mortal.may_lack(6, 1_000));
        assert!(!mortal.are_all_gone(5, 899) && mortal.are_all_gone(5, 900) && !mortal.are_all_gone(6, 900));
    }

    fn split(sizes: &[usize], width: usize, chunk_bytes: usize) -> Vec<usize> {
        let items: Vec<Bytes> = sizes.iter().map(|&n| Bytes::from(vec![0; n])).collect();
        let mut chunk = Chunk::default();
        chunk.push_split(|_| vec![word("X")], &items, width, chunk_bytes, |_| Expect::NoError);
        chunk.commands.iter().map(|c| c.args.len() - 1).collect()
    }

    #[test]
    fn commands_are_split_by_bytes_and_by_elements() {
        assert_eq!(split(&[], 1, 10), [0usize; 0]);
        assert_eq!(split(&[5, 5, 5], 1, 10), [2, 1]);
        assert_eq!(split(&[50, 1, 50], 1, 10), [1, 1, 1], "a large element goes alone");
        assert_eq!(split(&[1, 4, 1, 4, 1, 4], 2, 10), [4, 2], "pairs stay together");
        assert_eq!(split(&[0; 2_500], 1, 10), [1_000, 1_000, 500]);
    }

    #[test]
    fn the_pace_grows_slowly_and_falls_at_once() {
        let mut pace = Pace::new(1_000);
        assert_eq!(pace.count(), 1);
        for expected in [4, 16, 64, 100, 100] {
            let asked = pace.count();
            pace.adapt(asked, asked * 10);
            assert_eq!(pace.count(), expected);
        }
        pace.adapt(2, 10_000);
        assert_eq!(pace.count(), 1);
        pace.adapt(0, 0);
        assert_eq!(pace.count(), 1);
        for _ in 0..9 {
            pace.adapt(1, 0);
        }
        assert_eq!(pace.count(), ELEMENTS_MAX);
    }
}
