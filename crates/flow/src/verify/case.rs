//! One key under comparison: what was seen of it on both sides, and what follows.

use bytes::Bytes;
use whimbrel_core::units::format_duration_ms;
use whimbrel_engine::error::{Code, Error, ServerError};
use whimbrel_wire::value::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::peer::Peer;
use super::report::{DifferenceKind, Finding};

/// A key's type, as far as it decides how to compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyType {
    String,
    List,
    Set,
    Zset,
    Hash,
    Stream,
    /// The name of a module's type.
    Module(String),
}

impl KeyType {
    /// From the reply to `TYPE`; `None` for a key that does not exist.
    pub fn of(name: &str) -> Option<KeyType> {
        Some(match name {
            "none" => return None,
            "string" => KeyType::String,
            "list" => KeyType::List,
            "set" => KeyType::Set,
            "zset" => KeyType::Zset,
            "hash" => KeyType::Hash,
            "stream" => KeyType::Stream,
            other => KeyType::Module(other.to_owned()),
        })
    }

    /// As `TYPE` says it.
    pub fn name(&self) -> &str {
        match self {
            KeyType::String => "string",
            KeyType::List => "list",
            KeyType::Set => "set",
            KeyType::Zset => "zset",
            KeyType::Hash => "hash",
            KeyType::Stream => "stream",
            KeyType::Module(name) => name,
        }
    }
}

/// When a key expires: between `from_ms` and `to_ms`, Unix time. They are the same if the server reports it
/// exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expiry {
    pub from_ms: u64,
    pub to_ms: u64,
}

impl Expiry {
    /// By how many milliseconds the two are apart at least.
    fn apart_ms(self, other: Expiry) -> u64 {
        self.from_ms.saturating_sub(other.to_ms).max(other.from_ms.saturating_sub(self.to_ms))
    }
}

/// What a key is on one side, apart from its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meta {
    pub kind: KeyType,
    pub expiry: Option<Expiry>,
}

/// What comparing a key came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing differs.
    Equal,
    /// Nothing differs, but the content could not be compared.
    Opaque,
    /// There are findings.
    Differs,
    /// Not of a selected type.
    Skipped,
    /// Not on the source, and nothing on the target that would matter.
    Gone,
    /// It changed its type or vanished between two commands.
    Shifted,
}

/// Findings kept for one key.
const FINDINGS_MAX: usize = 8;

/// One key under comparison.
#[derive(Debug)]
pub(super) struct Case {
    pub key: Bytes,
    /// Its type, once both sides agree on it.
    pub kind: Option<KeyType>,
    pub verdict: Verdict,
    pub findings: Vec<Finding>,
    /// A digest of what was seen on the source.
    pub source_state: u64,
    /// A digest of what was seen on the target.
    pub target_state: u64,
    /// Bytes compared.
    pub bytes: u64,
}

impl Case {
    /// A key about which nothing is known.
    pub fn new(key: Bytes) -> Case {
        let bytes = key.len() as u64;
        Case {
            key,
            kind: None,
            verdict: Verdict::Equal,
            findings: Vec::new(),
            source_state: 0,
            target_state: 0,
            bytes,
        }
    }

    /// Adds a finding.
    pub fn find(&mut self, kind: DifferenceKind, detail: impl Into<String>) {
        self.verdict = Verdict::Differs;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { kind, detail: detail.into() });
        }
    }

    /// Adds what was read, in an order that the servers keep.
    pub fn saw(&mut self, source: &[u8], target: &[u8]) {
        self.source_state = xxh3_64_with_seed(source, self.source_state);
        self.target_state = xxh3_64_with_seed(target, self.target_state);
    }

    /// Adds digests of what was read.
    pub fn saw_digests(&mut self, source: u64, target: u64) {
        self.saw(&source.to_le_bytes(), &target.to_le_bytes());
    }

    /// Compares two expiry times.
    pub fn judge_expiry(&mut self, source: Option<Expiry>, target: Option<Expiry>, tolerance_ms: u64) {
        // If a server reports no exact time, an unchanged key looks a little different each time.
        let exact = |e: Option<Expiry>| e.map_or(0, |e| if e.from_ms == e.to_ms { e.to_ms } else { 1 });
        self.saw_digests(exact(source), exact(target));
        match (source, target) {
            (None, None) => {}
            (Some(s), Some(t)) if s.apart_ms(t) <= tolerance_ms => {}
            (Some(s), Some(t)) => {
                let (sign, by) =
                    if t.from_ms > s.from_ms { ("later", s.apart_ms(t)) } else { ("earlier", t.apart_ms(s)) };
                let detail = format!(
                    "expires {} {sign} on the target (source: {} ms Unix time)",
                    format_duration_ms(by),
                    s.to_ms
                );
                self.find(DifferenceKind::Ttl, detail);
            }
            (Some(s), None) => {
                self.find(
                    DifferenceKind::Ttl,
                    format!("expires at {} ms Unix time on the source, never on the target", s.to_ms),
                );
            }
            (None, Some(t)) => {
                self.find(
                    DifferenceKind::Ttl,
                    format!("never expires on the source, at {} ms Unix time on the target", t.to_ms),
                );
            }
        }
    }
}

/// Why the comparison of a key ended early.
#[derive(Debug)]
pub(super) enum Fault {
    /// The key changed its type or vanished between two commands.
    Shifted,
    /// The run cannot go on.
    Fatal(Error),
}

impl From<Error> for Fault {
    fn from(e: Error) -> Fault {
        Fault::Fatal(e)
    }
}

/// The reply to `command`, or why it is none.
pub(super) fn sound(peer: &Peer, command: &'static str, reply: Value) -> Result<Value, Fault> {
    match ServerError::of(&reply) {
        None => Ok(reply),
        Some(e) if e.code == Code::WrongType => Err(Fault::Shifted),
        Some(e) if e.text.contains("no such key") || e.text.starts_with("NOGROUP") => Err(Fault::Shifted),
        Some(e) => Err(Fault::Fatal(peer.refusal(command, e))),
    }
}

/// A reply that is a whole number not below zero.
pub(super) fn number(peer: &Peer, command: &'static str, reply: Value) -> Result<u64, Fault> {
    let reply = sound(peer, command, reply)?;
    let n = reply.as_int().and_then(|n| u64::try_from(n).ok());
    n.ok_or_else(|| Fault::Fatal(peer.unexpected(command)))
}

/// A reply that is a list.
pub(super) fn items(peer: &Peer, command: &'static str, reply: Value) -> Result<Vec<Value>, Fault> {
    sound(peer, command, reply)?.into_items().ok_or_else(|| Fault::Fatal(peer.unexpected(command)))
}

/// A reply that is a list of strings.
pub(super) fn strings(peer: &Peer, command: &'static str, reply: Value) -> Result<Vec<Bytes>, Fault> {
    let items = items(peer, command, reply)?;
    let strings: Option<Vec<Bytes>> = items.into_iter().map(Value::into_bytes).collect();
    strings.ok_or_else(|| Fault::Fatal(peer.unexpected(command)))
}

/// A reply that is a string. Null, if the key is gone, is a shift.
pub(super) fn string(peer: &Peer, command: &'static str, reply: Value) -> Result<Bytes, Fault> {
    let reply = sound(peer, command, reply)?;
    if reply.is_null() {
        return Err(Fault::Shifted);
    }
    reply.into_bytes().ok_or_else(|| Fault::Fatal(peer.unexpected(command)))
}

/// A score. Servers send enough digits to give back every bit.
pub(super) fn score(value: &Value) -> Option<f64> {
    match value {
        Value::Double(score) => Some(*score),
        other => other.as_str()?.parse().ok(),
    }
}

/// Two scores are the same score. Negative zero is zero: the servers order and find members by comparing, not
/// by bits.
pub(super) fn same_score(a: f64, b: f64) -> bool {
    a == b || a.to_bits() == b.to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(ms: u64) -> Option<Expiry> {
        Some(Expiry { from_ms: ms, to_ms: ms })
    }

    fn findings(source: Option<Expiry>, target: Option<Expiry>, tolerance_ms: u64) -> usize {
        let mut case = Case::new(Bytes::new());
        case.judge_expiry(source, target, tolerance_ms);
        case.findings.len()
    }

    #[test]
    fn expiry_times_have_a_tolerance() {
        assert_eq!(findings(exact(1000), exact(1001), 1), 0);
        assert_eq!(findings(exact(1001), exact(1000), 1), 0);
        assert_eq!(findings(exact(1000), exact(1002), 1), 1);
        assert_eq!(findings(exact(1000), Some(Expiry { from_ms: 990, to_ms: 999 }), 1), 0);
        assert_eq!(findings(exact(1000), Some(Expiry { from_ms: 990, to_ms: 998 }), 1), 1);
        assert_eq!(findings(None, None, 0), 0);
        assert_eq!(findings(None, exact(1), 1000), 1);
        assert_eq!(findings(exact(1), None, 1000), 1);
    }

    #[test]
    fn scores_are_compared_exactly() {
        let parse = |s: &'static str| score(&Value::Bulk(Bytes::from_static(s.as_bytes()))).expect(s);
        assert!(same_score(parse("0.1"), parse("0.10000000000000001")));
        assert!(!same_score(parse("0.1"), f64::from_bits(0.1f64.to_bits() + 1)));
        assert!(same_score(parse("-0"), parse("0")));
        assert!(same_score(parse("-inf"), f64::NEG_INFINITY));
        assert!(score(&Value::Null).is_none());
    }
}
