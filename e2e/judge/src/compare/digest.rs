//! What is remembered of a value: enough to distinguish it from another without holding it.

use std::fmt;

use xxhash_rust::xxh3::xxh3_128;

/// Values up to this size are kept, so that a difference can be shown.
const SAMPLE_BYTES: usize = 4 * 1024;
/// An odd constant: multiplying by it loses nothing.
const ORDER: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;

/// Number, size and digest of the elements of a value, and the elements themselves if they are small.
#[derive(Clone, PartialEq, Eq)]
pub struct Digest {
    elements: u64,
    bytes: u64,
    hash: u128,
    sample: Option<Vec<Vec<u8>>>,
}

impl Digest {
    /// Of elements whose order counts.
    pub fn ordered<E: AsRef<[u8]>>(elements: impl IntoIterator<Item = E>) -> Self {
        let mut digest = Self::empty();
        for element in elements {
            digest.push(element.as_ref());
        }
        digest
    }

    /// Of elements that come in any order.
    pub fn unordered<E: AsRef<[u8]>>(elements: impl IntoIterator<Item = E>) -> Self {
        let mut digest = Self::empty();
        for element in elements {
            let element = element.as_ref();
            digest.hash = digest.hash.wrapping_add(xxh3_128(element));
            digest.count(element);
        }
        if let Some(sample) = &mut digest.sample {
            sample.sort();
        }
        digest
    }

    pub(super) fn empty() -> Self {
        Self { elements: 0, bytes: 0, hash: 0, sample: Some(Vec::new()) }
    }

    /// Adds the next element of an ordered value.
    pub(super) fn push(&mut self, element: &[u8]) {
        self.hash = self.hash.wrapping_add(1).wrapping_mul(ORDER).wrapping_add(xxh3_128(element));
        self.count(element);
    }

    fn count(&mut self, element: &[u8]) {
        self.elements += 1;
        self.bytes += element.len() as u64;
        if self.bytes > SAMPLE_BYTES as u64 {
            self.sample = None;
        }
        if let Some(sample) = &mut self.sample {
            sample.push(element.to_vec());
        }
    }

    /// How two digests differ, in words; none if they do not.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        if self == other {
            return None;
        }
        if let (Some(own), Some(others)) = (&self.sample, &other.sample)
            && let Some(at) =
                (0..own.len().max(others.len())).find(|&position| own.get(position) != others.get(position))
        {
            let shown = |element: Option<&Vec<u8>>| element.map_or("nothing".into(), |bytes| quoted(bytes));
            let (left, right) = (shown(own.get(at)), shown(others.get(at)));
            let sizes = if own.len() == others.len() {
                String::new()
            } else {
                format!(" ({} against {} elements)", own.len(), others.len())
            };
            return Some(format!("element {at} is {left} against {right}{sizes}"));
        }
        Some(format!("{self:?} against {other:?}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} elements, {} bytes, digest {:032x}", self.elements, self.bytes, self.hash)
    }
}

/// Several byte strings as one, such that different lists of them never look the same.
pub(super) fn framed(parts: &[&[u8]]) -> Vec<u8> {
    let mut framed = Vec::with_capacity(parts.iter().map(|part| part.len() + 8).sum());
    for part in parts {
        framed.extend_from_slice(&(part.len() as u64).to_be_bytes());
        framed.extend_from_slice(part);
    }
    framed
}

/// Bytes for a message: escaped and cut to a readable length.
pub(super) fn quoted(bytes: &[u8]) -> String {
    const LONGEST: usize = 60;
    if bytes.len() <= LONGEST {
        format!("\"{}\"", bytes.escape_ascii())
    } else {
        format!("\"{}\"... ({} bytes)", bytes[..LONGEST].escape_ascii(), bytes.len())
    }
}
