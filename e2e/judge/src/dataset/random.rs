//! Pseudo-random numbers and bytes that follow from a seed.

/// Not for anything but test data.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// Numbers that follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.u64(..limit)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below((high - low + 1) as u64) as usize
    }

    /// `count` bytes of any value.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.fill(&mut bytes);
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
