//! The entries of the partitions that move.

use std::collections::HashMap;

use whimbrel_core::fleet::Partition;
use xxhash_rust::xxh3::xxh3_64;

/// The entries, which are the same in every process.
#[derive(Debug, Clone, Copy)]
pub struct Entries {
    pub(super) count: u32,
    pub(super) bytes: u32,
    pub(super) partitions: u32,
}

impl Entries {
    /// All of them, by their partition.
    pub(super) fn by_partition(self) -> HashMap<Partition, Vec<Vec<u8>>> {
        let mut all: HashMap<Partition, Vec<Vec<u8>>> = HashMap::new();
        for number in 0..self.count {
            let mut word = u64::from(number) + 1;
            let mut next = || {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (word >> 32) as u8
            };
            let entry = (0..self.bytes).map(|_| next()).collect();
            all.entry(number % self.partitions).or_default().push(entry);
        }
        all
    }

    /// How many there are in each partition, and their digest.
    pub(super) fn digests(self) -> HashMap<Partition, (u64, u64)> {
        let digest = |entries: Vec<Vec<u8>>| (entries.len() as u64, self::digest(&entries));
        self.by_partition().into_iter().map(|(partition, entries)| (partition, digest(entries))).collect()
    }
}

/// Equal for the same entries, in whatever order.
pub fn digest(entries: &[Vec<u8>]) -> u64 {
    entries.iter().fold(0, |sum, entry| sum.wrapping_add(xxh3_64(entry)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_spread_over_the_partitions() {
        let entries = Entries { count: 25, bytes: 8, partitions: 10 };
        let digests = entries.digests();
        assert_eq!((digests.len(), digests[&4].0, digests[&5].0), (10, 3, 2));
        assert_ne!(digests[&4].1, digests[&5].1);
    }
}
