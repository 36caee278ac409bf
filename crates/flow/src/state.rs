//! What is known of a key's state on its way, and how its size and expiry are found out.

use bytes::{Bytes, BytesMut};
use whimbrel_wire::payload::{self, Dialect, Footer, Verdict};
use whimbrel_wire::value::Value;

/// How the value travels.
#[derive(Debug)]
pub(crate) enum Body {
    /// The bytes of a string.
    String(Bytes),
    /// A `DUMP` payload.
    Dump(Bytes),
    /// Not at all yet: the writing half moves it with commands of its type.
    Typed,
    /// There is none: the key is gone, and is to be removed.
    Gone,
}

impl Body {
    /// Bytes that are in memory.
    pub(crate) fn len(&self) -> usize {
        match self {
            Body::String(b) | Body::Dump(b) => b.len(),
            Body::Typed | Body::Gone => 0,
        }
    }

    /// Makes a payload fit for a target that accepts payloads up to `version_max`, or decides that it cannot
    /// travel as one. `dialects` are the source's and the target's.
    pub(crate) fn fit(self, dialects: (Dialect, Dialect), version_max: Option<u16>) -> Body {
        let Body::Dump(dump) = self else { return self };
        let Some(max) = version_max else { return Body::Typed };
        let verdict = match payload::peek(&dump) {
            Ok(p) => payload::verdict(p.object_type, p.rdb_version, dialects.0, dialects.1, max),
            Err(_) => Verdict::TypedCopy,
        };
        match verdict {
            Verdict::AsIs => Body::Dump(dump),
            Verdict::RewriteFooter(version) => match payload::new_footer(&dump, version) {
                Ok(footer) => Body::Dump(with_footer(dump, footer)),
                Err(_) => Body::Typed,
            },
            _ => Body::Typed,
        }
    }
}

/// Most keys in one group.
pub(crate) const GROUP_KEYS_MAX: usize = 512;

/// Groups are sized to this many bytes of values.
pub(crate) const GROUP_BYTES: u64 = 512 << 10;

/// How many elements `MEMORY USAGE` looks at first, and from which answer on it is asked to look at all of
/// them. Where there are more elements than samples the answer is above that, even if each takes ten bytes
/// only, so none that was left out goes unnoticed; and one that is already too large never costs the server a
/// walk through all of it.
pub(crate) const SAMPLES_FIRST: &[u8] = b"400";
pub(crate) const SAMPLED_BYTES_MAX: u64 = 4 << 10;

/// From this size of a value on, or on average, sizes are asked before values: a group of unexpectedly large
/// values would fill the server's output buffer.
pub(crate) const CAREFUL_VALUE_BYTES: u64 = 64 << 10;
pub(crate) const CAREFUL_AVERAGE_BYTES: u64 = 2 << 10;

/// How often a key is read again whose expiry changes, or is unclear, while it is read.
pub(crate) const UNSTABLE_ROUNDS_MAX: usize = 8;

/// True for an answer of `MEMORY USAGE` that may leave out large elements.
pub(crate) fn was_sampled(reply: &Value, big_key_bytes: u64) -> bool {
    matches!(reply, Value::Int(n) if (SAMPLED_BYTES_MAX + 1..=big_key_bytes).contains(&n.unsigned_abs()))
}

/// Packs keys of known size into groups.
pub(crate) fn pack(sized: Vec<(Bytes, u64)>) -> Vec<(Vec<Bytes>, u64)> {
    let mut groups: Vec<(Vec<Bytes>, u64)> = Vec::new();
    for (key, bytes) in sized {
        match groups.last_mut() {
            Some((group, total)) if *total + bytes <= GROUP_BYTES && group.len() < GROUP_KEYS_MAX => {
                group.push(key);
                *total += bytes;
            }
            _ => groups.push((vec![key], bytes)),
        }
    }
    groups
}

/// The payload with another footer, without copying it where nobody else holds it.
fn with_footer(dump: Bytes, footer: Footer) -> Bytes {
    let body = dump.len() - Footer::LEN;
    let mut bytes = match dump.try_into_mut() {
        Ok(bytes) => bytes,
        Err(shared) => BytesMut::from(&shared[..]),
    };
    bytes[body..].copy_from_slice(&footer.to_bytes());
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_hide_large_elements_is_measured_again() {
        let again = |n| was_sampled(&Value::Int(n), 8 << 20);
        assert!(!again(4 << 10) && again((4 << 10) + 1));
        assert!(again(8 << 20) && !again((8 << 20) + 1));
        assert!(!was_sampled(&Value::Null, 8 << 20));
    }
}
