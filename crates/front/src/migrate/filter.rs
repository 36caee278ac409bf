//! Which keys have arrived: a Bloom filter in blocks of one cache line, which grows without a stop.
//!
//! A key that was put in is always found; a key that was not is found by mistake now and then. Keys are given
//! as 64-bit hashes.
//!
//! Each key touches one block of 512 bits, so a look-up costs one cache miss for each layer. The first layer
//! is sized for the keys that are expected. When it is full another one is added, of a quarter of the size of
//! all before it: what is in the others stays where it is, and nothing has to wait for a copy.
//!
//! **Size.** A layer holds its keys at [`BITS_PER_KEY`], which is 1.25 bytes a key. When it is full about 1 %
//! of other keys are found in it by mistake, when it is half full 0.02 %. As a migration fills it while fewer
//! and fewer keys are left that could be mistaken, the share over a whole one is far lower than at its end; a
//! test measures it.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

/// Room for each key that a layer is made for.
pub const BITS_PER_KEY: u64 = 10;

/// Bits that a key sets in its block.
const PROBES: u32 = 7;

const WORDS_PER_BLOCK: u64 = 8;
const BITS_PER_BLOCK: u64 = WORDS_PER_BLOCK * 64;

/// No layer is smaller.
const LAYER_KEYS_MIN: u64 = 4_096;

/// The filter. All methods may be called from many threads at once.
#[derive(Debug)]
pub struct Filter {
    /// Oldest first; keys go into the last one.
    layers: RwLock<Vec<Layer>>,
}

#[derive(Debug)]
struct Layer {
    words: Box<[AtomicU64]>,
    blocks: u64,
    keys_max: u64,
    keys: AtomicU64,
}

impl Filter {
    /// With room for this many keys before it has to grow.
    pub fn new(keys: u64) -> Filter {
        Filter { layers: RwLock::new(vec![Layer::new(keys)]) }
    }

    /// Puts a key in. It is found from here on. A key that was found before is not counted again.
    pub fn insert(&self, hash: u64) {
        let is_full = {
            let layers = self.layers.read();
            if layers.iter().any(|layer| layer.contains(hash)) {
                return;
            }
            layers.last().is_none_or(|last| !last.insert(hash))
        };
        if is_full {
            let mut layers = self.layers.write();
            // Another task may have added one meanwhile.
            if layers.last().is_none_or(|last| !last.insert(hash)) {
                let keys: u64 = layers.iter().map(|layer| layer.keys_max).sum();
                let layer = Layer::new(keys / 4);
                layer.insert(hash);
                layers.push(layer);
            }
        }
    }

    /// False if the key was certainly not put in.
    pub fn contains(&self, hash: u64) -> bool {
        let layers = self.layers.read();
        layers.iter().any(|layer| layer.contains(hash))
    }

    /// How many keys were put in, except those that were mistaken for another.
    pub fn keys(&self) -> u64 {
        let layers = self.layers.read();
        layers.iter().map(|layer| layer.keys.load(Ordering::Relaxed)).sum()
    }

    /// The memory it takes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let layers = self.layers.read();
        layers.iter().map(|layer| layer.blocks * BITS_PER_BLOCK / 8).sum()
    }
}

impl Layer {
    fn new(keys: u64) -> Layer {
        let keys_max = keys.max(LAYER_KEYS_MIN);
        let blocks = (keys_max * BITS_PER_KEY).div_ceil(BITS_PER_BLOCK);
        let words = (0..blocks * WORDS_PER_BLOCK).map(|_| AtomicU64::new(0)).collect();
        Layer { words, blocks, keys_max, keys: AtomicU64::new(0) }
    }

    /// Puts a key in; false if the layer is full.
    fn insert(&self, hash: u64) -> bool {
        if self.keys.fetch_add(1, Ordering::Relaxed) >= self.keys_max {
            self.keys.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        let block = self.block(hash);
        for bit in probes(hash) {
            // Release, as `contains` acquires: a reader that finds the key sees what was done before it was
            // put in.
            block[(bit / 64) as usize].fetch_or(1 << (bit % 64), Ordering::Release);
        }
        true
    }

    fn contains(&self, hash: u64) -> bool {
        let block = self.block(hash);
        probes(hash).all(|bit| block[(bit / 64) as usize].load(Ordering::Acquire) & (1 << (bit % 64)) != 0)
    }

    /// The block of a key: its high bits, scaled to their number.
    fn block(&self, hash: u64) -> &[AtomicU64] {
        let scaled = (u128::from(hash) * u128::from(self.blocks)) >> 64;
        let at = scaled as usize * WORDS_PER_BLOCK as usize;
        &self.words[at..at + WORDS_PER_BLOCK as usize]
    }
}

/// The bits of a key in its block. They come from a mixture of the hash, since its high bits have chosen the
/// block already.
fn probes(hash: u64) -> impl Iterator<Item = u64> {
    // The finalizer of MurmurHash3: each bit of the input changes about half of the output.
    let mut mixed = hash ^ (hash >> 33);
    mixed = mixed.wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^= mixed >> 33;
    mixed = mixed.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^= mixed >> 33;
    // Nine bits for each of seven.
    (0..PROBES).map(move |i| (mixed >> (9 * i)) % BITS_PER_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash for each number, all different.
    fn hash(n: u64) -> u64 {
        let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[test]
    fn what_was_put_in_is_found_also_after_it_has_grown() {
        let filter = Filter::new(10_000);
        for n in 0..100_000 {
            filter.insert(hash(n));
        }
        assert!((0..100_000).all(|n| filter.contains(hash(n))));
        // Taken for another when they came, and found all the same.
        assert!((90_000..=100_000).contains(&filter.keys()), "{}", filter.keys());
    }

    #[test]
    fn all_of_what_many_threads_put_in_is_found() {
        let filter = Filter::new(1_000);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let filter = &filter;
                scope.spawn(move || {
                    for n in 0..20_000 {
                        filter.insert(hash(thread * 20_000 + n));
                        assert!(filter.contains(hash(thread * 20_000 + n)));
                    }
                });
            }
        });
        assert!((0..160_000).all(|n| filter.contains(hash(n))));
    }

    #[test]
    fn a_key_takes_a_byte_and_a_third_at_most() {
        for keys in [100_000, 1_000_000, 3_333_333] {
            let bytes = Filter::new(keys).memory_bytes();
            assert!(bytes * 10 <= keys * 13, "{bytes} bytes for {keys} keys");
        }
    }

    /// Moves all keys while as many random ones are looked up, as reads of keys all over the keyspace would.
    #[test]
    fn over_a_whole_migration_few_keys_are_mistaken() {
        const KEYS: u64 = 1_000_000;
        let filter = Filter::new(KEYS);
        let (mut asked, mut mistaken) = (0_u64, 0_u64);
        for n in 0..KEYS {
            filter.insert(hash(n));
            let looked_up = hash(KEYS * 2 + n) % KEYS;
            if looked_up > n {
                asked += 1;
                mistaken += u64::from(filter.contains(hash(looked_up)));
            }
        }
        // Of those that had not arrived, and so of all look-ups even less.
        assert!(mistaken * 1_000 < asked, "{mistaken} of {asked} mistaken");
        let full = (KEYS..KEYS * 2).filter(|n| filter.contains(hash(*n))).count() as u64;
        assert!(full * 100 < KEYS * 2, "{full} of {KEYS} mistaken when it is full");
    }
}
