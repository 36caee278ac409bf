//! Pseudo-random numbers that are the same on every machine and in every version.

/// SplitMix64. Not for anything but test data.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers that follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below((high - low + 1) as u64) as usize
    }

    /// `count` bytes of any value.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }

    /// `count` bytes of lower-case text with repetitions, which compresses well.
    pub fn text(&mut self, count: usize) -> Vec<u8> {
        const WORDS: [&str; 8] = ["moor", "curlew", "heath", "tide", "estuary", "wader", "whimbrel", "north"];
        let mut text = Vec::with_capacity(count + 16);
        while text.len() < count {
            text.extend_from_slice(WORDS[self.below(8) as usize].as_bytes());
            text.push(b' ');
        }
        text.truncate(count);
        text
    }

    /// Bytes of a length up to `longest`, sometimes text and sometimes not.
    pub fn value(&mut self, longest: usize) -> Vec<u8> {
        let count = self.between(0, longest);
        match self.below(3) {
            0 => self.bytes(count),
            1 => self.text(count),
            _ => (self.next() as i64 >> self.below(60)).to_string().into_bytes(),
        }
    }
}
