//! Iterations over the elements of one key: `HSCAN`, `SSCAN` and `ZSCAN`.
//!
//! A cursor means something only to the server that gave it: to another one, with another hash seed, it is a
//! place in the middle of nowhere, and elements are missed. Those of the target carry a bit and the number of
//! the turn, as with `SCAN`. One without it came from the source, or from another turn, so an iteration that
//! comes to the target with it begins there anew: elements may be given twice, none is missed.

use crate::command::rule::Rule;
use crate::command::table::find;
use crate::migrate::direction::Side;
use crate::migrate::keyspace::{ScanPhase, resume};

/// Why an iteration cannot go on if replies cannot be changed, and cursors go out without their bit.
pub(super) const NOT_BOUND: &str =
    "while keys move, an iteration cannot go on in a transaction, nor after a subscription";

/// Whether a command of this name has such cursors.
pub(super) fn iterates(name: &[u8]) -> bool {
    find(name, None).migrating == Some(Rule::Elements)
}

/// What a client comes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cursor {
    Start,
    OfTarget(u64),
    /// Of the source, or of an unknown server.
    Unmarked(u64),
}

impl Cursor {
    fn of(word: &[u8], reversals: u32) -> Option<Cursor> {
        let cursor: u64 = std::str::from_utf8(word).ok()?.parse().ok()?;
        Some(match (cursor, resume(word, reversals, false)?) {
            (0, _) => Cursor::Start,
            (_, (ScanPhase { side: Side::Target, .. }, cursor)) => Cursor::OfTarget(cursor),
            (cursor, _) => Cursor::Unmarked(cursor),
        })
    }
}

/// Whether a request goes on with a cursor that may be the source's.
pub(super) fn is_unmarked(words: &[&[u8]], reversals: u32) -> bool {
    matches!(words, [name, _, cursor, ..] if iterates(name) && matches!(Cursor::of(cursor, reversals),
        Some(Cursor::Unmarked(_))))
}

/// The words of a request as the target has to get it; `None` if that is as it is.
pub(super) fn at_target(words: &[&[u8]], reversals: u32, keeps_unmarked: bool) -> Option<Vec<Vec<u8>>> {
    let [name, _, cursor, ..] = words else { return None };
    if !iterates(name) {
        return None;
    }
    let cursor = match Cursor::of(cursor, reversals)? {
        Cursor::OfTarget(cursor) => cursor,
        Cursor::Unmarked(cursor) if keeps_unmarked => cursor,
        Cursor::Start | Cursor::Unmarked(_) => 0,
    };
    let mut words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
    words[2] = cursor.to_string().into_bytes();
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cursors_of_the_target_go_on_there() {
        let sent = |line: &str, keeps| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let sent = at_target(&words, 0, keeps)?;
            Some(sent.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" "))
        };
        let of_target = (1_u64 << 52 | 17).to_string();
        assert_eq!(
            sent(&format!("hscan k {of_target} COUNT 5"), false).as_deref(),
            Some("hscan k 17 COUNT 5")
        );
        assert_eq!(sent("ZSCAN k 17", false).as_deref(), Some("ZSCAN k 0"));
        assert_eq!(sent("ZSCAN k 17", true).as_deref(), Some("ZSCAN k 17"));
        assert_eq!(sent("SSCAN k 0", true).as_deref(), Some("SSCAN k 0"));
        assert_eq!(sent("SSCAN k x", false), None);
        assert_eq!(sent("SSCAN k", false), None);
        assert_eq!(sent("HGETX k 17", false), None);
        assert!(is_unmarked(&[b"hscan", b"k", b"17"], 0));
        assert!(
            !is_unmarked(&[b"hscan", b"k", b"0"], 0)
                && !is_unmarked(&[b"hscan", b"k", of_target.as_bytes()], 0)
        );
        assert!(!is_unmarked(&[b"hget", b"k", b"17"], 0));
        // That of another turn says nothing of the target of this one.
        assert!(is_unmarked(&[b"hscan", b"k", of_target.as_bytes()], 1));
    }
}
