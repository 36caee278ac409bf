//! The keys that are copied.
//!
//! Always the same for the same name and number. Values are pseudo-random bytes, which no server can
//! compress, so that what is measured is moving data and not packing it.

use anyhow::ensure;
use fastrand::Rng;
use redis::{Connection, Pipeline};

use crate::interrupt::Interrupt;

/// 2100-01-01: nothing expires while it is copied.
const FAR_EXPIRY_MS: u64 = 4_102_444_800_000;

/// What the delivery times and stream ids count from.
const PAST_MS: u64 = 1_700_000_000_000;

const BATCH_BYTES: usize = 512 * 1024;

/// Bound of the elements that one command brings.
const ELEMENTS_PER_COMMAND: u64 = 500;

/// A kind of data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataSet {
    /// Strings of 100 bytes.
    Strings,
    /// All types, some with thousands of elements, a tenth with an expiry time.
    Mixed,
    /// Strings of 16 KiB.
    Large,
    /// What the demo copies: four strings of 100 bytes for each key of another type.
    Demo,
}

impl DataSet {
    /// The sets that the benchmark measures.
    pub const MEASURED: [Self; 3] = [Self::Strings, Self::Mixed, Self::Large];

    /// What the command line calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strings => "strings",
            Self::Mixed => "mixed",
            Self::Large => "large",
            Self::Demo => "demo",
        }
    }

    /// The measured set with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::MEASURED.into_iter().find(|set| set.name() == name)
    }

    /// What is in it, in a few words.
    pub const fn content(self) -> &'static str {
        match self {
            Self::Strings => "strings of 100 bytes",
            Self::Mixed => {
                "45 % strings of 16 to 1000 bytes, 15 % hashes, 10 % each of lists, sets, sorted sets and \
                 streams with 10 to 50 elements, some of these with 2000 to 6000; 10 % expire"
            }
            Self::Large => "strings of 16 KiB",
            Self::Demo => {
                "80 % strings of 100 bytes, the rest hashes, lists, sets, sorted sets and streams; 10 % \
                    expire"
            }
        }
    }

    /// How many keys it has where the set of short strings has `short_strings`.
    pub const fn keys(self, short_strings: u64) -> u64 {
        let keys = match self {
            Self::Strings | Self::Demo => short_strings,
            Self::Mixed => short_strings / 5,
            Self::Large => short_strings / 40,
        };
        if keys == 0 { 1 } else { keys }
    }

    fn kind(self, index: u64) -> Kind {
        match self {
            Self::Strings | Self::Large => Kind::String,
            Self::Mixed => match index % 20 {
                0..=8 => Kind::String,
                9..=11 => Kind::Hash,
                12..=13 => Kind::List,
                14..=15 => Kind::Set,
                16..=17 => Kind::SortedSet,
                _ => Kind::Stream,
            },
            Self::Demo => match index % 50 {
                0..=39 => Kind::String,
                40..=42 => Kind::Hash,
                43..=44 => Kind::List,
                45..=46 => Kind::Set,
                47..=48 => Kind::SortedSet,
                _ => Kind::Stream,
            },
        }
    }

    fn string_bytes(self, random: &mut Rng) -> u64 {
        match self {
            Self::Strings | Self::Demo => 100,
            Self::Mixed => random.u64(16..=1000),
            Self::Large => 16 * 1024,
        }
    }

    fn elements(self, index: u64, random: &mut Rng) -> u64 {
        match self {
            Self::Mixed if index / 20 % 400 == 7 => random.u64(2000..=6000),
            Self::Mixed => random.u64(10..=50),
            Self::Strings | Self::Large | Self::Demo => random.u64(3..=12),
        }
    }

    const fn has_expiry_times(self) -> bool {
        matches!(self, Self::Mixed | Self::Demo)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    String,
    Hash,
    List,
    Set,
    SortedSet,
    Stream,
}

/// Fills an empty database with a set.
///
/// # Errors
/// When the server refuses something, ends up with another number of keys, or the user stops us.
pub fn fill(
    connection: &mut Connection,
    set: DataSet,
    keys: u64,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut random = Rng::with_seed(keys);
    let mut writer = Writer { connection, pipeline: redis::pipe(), bytes: 0 };
    for index in 0..keys {
        let key = format!("{}:{index:09}", set.name());
        match set.kind(index) {
            Kind::String => {
                let length = set.string_bytes(&mut random);
                let value = bytes(&mut random, length);
                writer.command(&[b"SET", key.as_bytes(), &value]);
            }
            Kind::Stream => {
                let elements = set.elements(index, &mut random);
                add_stream(&mut writer, &key, elements, &mut random)?;
            }
            kind => {
                let elements = set.elements(index, &mut random);
                add_collection(&mut writer, kind, &key, elements, &mut random)?;
            }
        }
        if set.has_expiry_times() && random.u64(..10) == 0 {
            let at_ms = FAR_EXPIRY_MS + random.u64(..86_400_000);
            writer.command(&[b"PEXPIREAT", key.as_bytes(), at_ms.to_string().as_bytes()]);
        }
        if writer.send_if_full()? {
            interrupt.check()?;
        }
    }
    writer.send()?;
    let found: u64 = redis::cmd("DBSIZE").query(connection)?;
    ensure!(found == keys, "the source should hold {keys} keys now, but holds {found}");
    Ok(())
}

fn add_collection(
    writer: &mut Writer<'_>,
    kind: Kind,
    key: &str,
    elements: u64,
    random: &mut Rng,
) -> anyhow::Result<()> {
    // Both encodings of sets: of whole numbers, and of anything.
    let is_numeric = random.u64(..2) == 0;
    let mut left = elements;
    while left > 0 {
        let count = left.min(ELEMENTS_PER_COMMAND);
        left -= count;
        let name: &[u8] = match kind {
            Kind::Hash => b"HSET",
            Kind::List => b"RPUSH",
            Kind::Set => b"SADD",
            Kind::SortedSet => b"ZADD",
            Kind::String | Kind::Stream => unreachable!("these are no plain collections"),
        };
        let mut words: Vec<Vec<u8>> = vec![name.to_vec(), key.as_bytes().to_vec()];
        for _ in 0..count {
            match kind {
                Kind::Hash => {
                    words.push(format!("field:{:016x}", random.u64(..)).into_bytes());
                    words.push(bytes_between(random, 8, 40));
                }
                Kind::Set if is_numeric => words.push((random.u64(..) >> 16).to_string().into_bytes()),
                Kind::SortedSet => {
                    words.push(format!("{}", random.u64(..1_000_000_000) as f64 / 1000.0).into_bytes());
                    words.push(bytes_between(random, 8, 24));
                }
                _ => words.push(bytes_between(random, 8, 40)),
            }
        }
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        writer.command(&words);
        writer.send_if_full()?;
    }
    Ok(())
}

/// Every fourth stream has a consumer group with an entry that is not acknowledged yet.
fn add_stream(writer: &mut Writer<'_>, key: &str, entries: u64, random: &mut Rng) -> anyhow::Result<()> {
    let key = key.as_bytes();
    let id = |entry: u64| format!("{}-0", PAST_MS + entry * 10);
    for entry in 0..entries {
        let (sensor, reading) = (bytes_between(random, 4, 8), bytes_between(random, 8, 40));
        writer.command(&[b"XADD", key, id(entry).as_bytes(), b"sensor", &sensor, b"reading", &reading]);
        writer.send_if_full()?;
    }
    if random.u64(..4) == 0 {
        let first = id(0);
        writer.command(&[b"XGROUP", b"CREATE", key, b"readers", first.as_bytes()]);
        let delivered_ms = PAST_MS.to_string();
        writer.command(&[
            b"XCLAIM",
            key,
            b"readers",
            b"reader",
            b"0",
            first.as_bytes(),
            b"TIME",
            delivered_ms.as_bytes(),
            b"RETRYCOUNT",
            b"1",
            b"FORCE",
            b"JUSTID",
        ]);
    }
    Ok(())
}

/// Sends commands in batches.
struct Writer<'a> {
    connection: &'a mut Connection,
    pipeline: Pipeline,
    bytes: usize,
}

impl Writer<'_> {
    fn command(&mut self, words: &[&[u8]]) {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
            self.bytes += word.len() + 16;
        }
        self.pipeline.add_command(command).ignore();
    }

    /// Whether something was sent.
    fn send_if_full(&mut self) -> anyhow::Result<bool> {
        let is_full = self.bytes >= BATCH_BYTES;
        if is_full {
            self.send()?;
        }
        Ok(is_full)
    }

    fn send(&mut self) -> anyhow::Result<()> {
        if !self.pipeline.is_empty() {
            self.pipeline.exec(self.connection)?;
            self.pipeline.clear();
            self.bytes = 0;
        }
        Ok(())
    }
}

/// This many bytes of any value.
fn bytes(random: &mut Rng, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(length).expect("no value here is longer than memory")];
    random.fill(&mut bytes);
    bytes
}

fn bytes_between(random: &mut Rng, least: u64, most: u64) -> Vec<u8> {
    let length = random.u64(least..=most);
    bytes(random, length)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let of = |seed| bytes(&mut Rng::with_seed(seed), 100);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        assert_eq!(of(7).len(), 100);
    }

    #[test]
    fn sets_hold_the_types_they_promise() {
        for set in [DataSet::Mixed, DataSet::Demo] {
            let kinds: HashSet<Kind> = (0..100).map(|index| set.kind(index)).collect();
            assert_eq!(kinds.len(), 6, "{}", set.name());
        }
        assert!((0..100).all(|index| DataSet::Large.kind(index) == Kind::String));
        assert_eq!(DataSet::from_name("demo"), None);
        assert_eq!(DataSet::Large.keys(1), 1);
    }
}
