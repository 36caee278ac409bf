//! Some keys of the source, read slowly.
//!
//! `SCAN` goes through a hash table, so that its first pages are keys of no particular kind. How long the
//! server is busy with us is at most the time from a question to its answer, less the way there and back;
//! after each batch we rest for as long as it takes to keep that below a share of the server's time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::Slot;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;
use whimbrel_engine::inventory::Inventory;
use whimbrel_engine::link::Link;
use whimbrel_wire::value::Value;

use crate::copy::{DbPair, shown};
use crate::keys::dumps;
use crate::retry::RetryPolicy;
use crate::scan::{KeyScan, ScanOptions, Unit};

/// The longest rest after a batch. What would ask for a longer one is not our load: a batch of small values
/// takes a server a few milliseconds, so other commands held it up, or the machine stood still.
const REST_MAX: Duration = Duration::from_secs(10);

/// Keys asked for in one batch.
const BATCH_KEYS: usize = 100;

/// How many keys are read as a copy would, to see how long that takes.
const DUMPED_KEYS: u64 = 1_000;

/// Larger values are not read for that.
const DUMPED_BYTES_MAX: u64 = 64 << 10;

/// How many of the largest keys, and of the fullest slots, are named.
const NAMED: usize = 10;

/// `SAMPLES` of `MEMORY USAGE`: the size of this many elements of a collection is measured.
const ELEMENTS: &[u8] = b"5";

/// How keys are looked at.
#[derive(Debug, Clone, Copy)]
pub struct SampleOptions {
    /// How many keys; all if it is `None`.
    pub keys: Option<u64>,
    /// Which share of a server's time may be used, from 0 to 1.
    pub share: f64,
    /// How long it may take; `None` for as long as it takes.
    pub time_max: Option<Duration>,
}

/// What was found in a sample of keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Sample {
    /// How many keys were looked at.
    pub keys: u64,
    /// Whether these are all there are.
    pub complete: bool,
    /// Bytes of memory that they take; 0 if the server does not report it.
    pub bytes: u64,
    /// Those that expire.
    pub expiring: u64,
    /// By type.
    pub types: BTreeMap<String, TypeCount>,
    /// Keys that a copy would move in chunks.
    pub large: u64,
    /// The largest of them, the largest first.
    pub largest: Vec<LargeKey>,
    /// The slots with most bytes in them, those first.
    pub slots: Vec<SlotShare>,
    /// Keys that were read as a copy reads them.
    pub dumped: Dumped,
    /// How far away the source is, in microseconds.
    pub rtt_us: u64,
    /// How long the servers were busy with it at most, in microseconds.
    pub busy_us: u64,
    /// How long it took, in microseconds, with its pauses.
    pub took_us: u64,
}

/// Keys of one type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TypeCount {
    /// How many.
    pub keys: u64,
    /// Bytes of memory that they take.
    pub bytes: u64,
}

/// One key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LargeKey {
    /// Its database.
    pub db: u32,
    /// Its name, as it is shown to people.
    pub key: String,
    /// Its type.
    pub type_name: String,
    /// Bytes of memory that it takes.
    pub bytes: u64,
    /// Its slot.
    pub slot: u16,
}

/// What of the sample is in one slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlotShare {
    /// Its number.
    pub slot: u16,
    /// Keys.
    pub keys: u64,
    /// Bytes of memory that they take.
    pub bytes: u64,
}

/// How long reading takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Dumped {
    /// How many keys.
    pub keys: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Microseconds, from question to answer.
    pub took_us: u64,
}

/// What has been collected, before the rest of it is dropped.
#[derive(Default)]
struct Collected {
    sample: Sample,
    slots: BTreeMap<u16, (u64, u64)>,
}

/// How far away a server is: the shortest of a few answers, in microseconds.
///
/// # Errors
/// As [`Link::ask`].
pub(super) async fn round_trip_us(link: &mut Link) -> Result<u64> {
    let mut least = u64::MAX;
    for _ in 0..5 {
        let asked = Instant::now();
        link.ask(&[b"PING"]).await?;
        least = least.min(micros(asked.elapsed()));
    }
    Ok(least)
}

/// Looks at keys of all shards and databases, of each as many as it has in proportion.
///
/// # Errors
/// As [`KeyScan::next`] and [`Link::ask`].
pub(super) async fn take(
    source: &Arc<Deployment>,
    (dbs, inventory): (&[DbPair], &Inventory),
    big_key_bytes: u64,
    options: &SampleOptions,
    stop: &CancellationToken,
) -> Result<Sample> {
    let started = Instant::now();
    let mut collected =
        Collected { sample: Sample { complete: true, ..Sample::default() }, ..Collected::default() };
    let units: Vec<(Unit, u64)> = dbs
        .iter()
        .flat_map(|pair| {
            let units = Unit::of_all(source, pair.source, false);
            let keys = inventory.databases.get(&pair.source).map_or(0, |db| db.keys);
            let each = keys / units.len().max(1) as u64;
            units.into_iter().map(move |unit| (unit, each))
        })
        .collect();
    let all: u64 = units.iter().map(|(_, keys)| keys).sum();
    for (at, (unit, keys)) in units.iter().enumerate() {
        let quota = options.keys.map(|wanted| match all {
            0 => wanted,
            all => (u128::from(wanted) * u128::from(*keys)).div_ceil(u128::from(all)) as u64,
        });
        // Each gets its part of the time that is left.
        let left = |max: Duration| max.saturating_sub(started.elapsed()) / (units.len() - at) as u32;
        let until = options.time_max.map(|max| Instant::now() + left(max));
        let mut reader = Reader::open(source, unit, options.share).await?;
        reader.read(source, &mut collected, (quota, until), big_key_bytes, stop).await?;
        let sample = &mut collected.sample;
        sample.busy_us += micros(reader.busy);
        sample.rtt_us = sample.rtt_us.max(micros(reader.rtt));
    }
    let Collected { mut sample, slots } = collected;
    let share = |(slot, (keys, bytes))| SlotShare { slot, keys, bytes };
    sample.slots = slots.into_iter().map(share).collect();
    sample.slots.sort_by_key(|slot| std::cmp::Reverse((slot.bytes, slot.keys)));
    sample.slots.truncate(NAMED);
    sample.took_us = micros(started.elapsed());
    Ok(sample)
}

/// Reads keys of one shard and database.
struct Reader {
    unit: Unit,
    link: Link,
    can_size: bool,
    can_dump: bool,
    share: f64,
    rtt: Duration,
    busy: Duration,
}

impl Reader {
    async fn open(source: &Deployment, unit: &Unit, share: f64) -> Result<Reader> {
        let mut link = unit.open(source).await?;
        let rtt = Duration::from_micros(round_trip_us(&mut link).await?);
        let capabilities = source.capabilities;
        let (can_size, can_dump) = (capabilities.memory_usage, capabilities.dump);
        Ok(Reader { unit: unit.clone(), link, can_size, can_dump, share, rtt, busy: Duration::ZERO })
    }

    async fn read(
        &mut self,
        source: &Arc<Deployment>,
        into: &mut Collected,
        (quota, until): (Option<u64>, Option<Instant>),
        large_bytes: u64,
        stop: &CancellationToken,
    ) -> Result<()> {
        let options = ScanOptions { count: BATCH_KEYS as u32, ..ScanOptions::default() };
        let mut scan = KeyScan::new(source.clone(), self.unit.clone(), options, RetryPolicy::default(), None);
        let mut left = quota.unwrap_or(u64::MAX);
        while let Some(page) = scan.next().await? {
            // A page of a table that is being made smaller may have any number of keys.
            for keys in page.keys.chunks(BATCH_KEYS) {
                let keys = &keys[..keys.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
                let asked = Instant::now();
                let small = self.describe(keys, into, large_bytes).await?;
                self.dump(&small, &mut into.sample).await?;
                left -= keys.len() as u64;
                let is_late = until.is_some_and(|until| Instant::now() >= until);
                if left == 0 || is_late || stop.is_cancelled() {
                    into.sample.complete &= left > 0 && !is_late && !stop.is_cancelled();
                    return Ok(());
                }
                let pause = self.pause_after(asked.elapsed());
                stop.run_until_cancelled(sleep(pause)).await;
            }
        }
        Ok(())
    }

    /// How long to rest. What `SCAN` takes, which runs while we rest, is less than what the rest takes: it
    /// counts as much.
    fn pause_after(&mut self, took: Duration) -> Duration {
        let busy = took.saturating_sub(2 * self.rtt) * 2;
        self.busy += busy;
        busy.mul_f64((1.0 / self.share - 1.0).max(0.0)).min(REST_MAX)
    }

    /// Asks for type, size and expiry; returns those that are small.
    async fn describe<'a>(
        &mut self,
        keys: &'a [Bytes],
        into: &mut Collected,
        large_bytes: u64,
    ) -> Result<Vec<&'a Bytes>> {
        for key in keys {
            self.link.push(&[b"TYPE", key]);
            self.link.push(&[b"PTTL", key]);
            if self.can_size {
                self.link.push(&[b"MEMORY", b"USAGE", key, b"SAMPLES", ELEMENTS]);
            }
        }
        self.link.flush().await?;
        let mut small = Vec::new();
        for key in keys {
            let kind = self.link.reply().await?;
            let expiry = self.link.reply().await?;
            let size = if self.can_size { self.link.reply().await? } else { Value::Null };
            // Gone since it was scanned.
            let Some(kind) = kind.as_str().filter(|kind| *kind != "none") else { continue };
            let bytes = size.as_int().and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
            into.add(
                self.unit.db,
                key,
                kind,
                (bytes, expiry.as_int().is_some_and(|ms| ms >= 0)),
                large_bytes,
            );
            if bytes <= DUMPED_BYTES_MAX {
                small.push(key);
            }
        }
        Ok(small)
    }

    async fn dump(&mut self, keys: &[&Bytes], sample: &mut Sample) -> Result<()> {
        if !self.can_dump || !self.can_size || keys.is_empty() || sample.dumped.keys >= DUMPED_KEYS {
            return Ok(());
        }
        let asked = Instant::now();
        for reply in dumps(&mut self.link, keys, false).await? {
            if let Some(payload) = reply.as_bytes() {
                sample.dumped.keys += 1;
                sample.dumped.bytes += payload.len() as u64;
            }
        }
        sample.dumped.took_us += micros(asked.elapsed());
        Ok(())
    }
}

impl Collected {
    fn add(&mut self, db: u32, key: &Bytes, kind: &str, (bytes, expires): (u64, bool), large_bytes: u64) {
        let sample = &mut self.sample;
        sample.keys += 1;
        sample.bytes += bytes;
        sample.expiring += u64::from(expires);
        sample.large += u64::from(bytes >= large_bytes);
        let of_type = sample.types.entry(kind.to_owned()).or_default();
        of_type.keys += 1;
        of_type.bytes += bytes;
        let slot = Slot::of_key(key).number();
        let of_slot = self.slots.entry(slot).or_default();
        of_slot.0 += 1;
        of_slot.1 += bytes;
        let is_larger = sample.largest.last().is_none_or(|least| bytes > least.bytes);
        if bytes > 0 && (sample.largest.len() < NAMED || is_larger) {
            let at = sample.largest.partition_point(|other| other.bytes >= bytes);
            let large = LargeKey { db, key: shown(key), type_name: kind.to_owned(), bytes, slot };
            sample.largest.insert(at, large);
            sample.largest.truncate(NAMED);
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_keys_are_kept_in_order() {
        let mut collected = Collected::default();
        for n in 0..100u64 {
            let key = Bytes::from(format!("k{n}"));
            collected.add(0, &key, "string", ((n * 37) % 100 + 1, n % 2 == 0), 90);
        }
        let largest: Vec<u64> = collected.sample.largest.iter().map(|key| key.bytes).collect();
        assert_eq!(largest, (91..=100).rev().collect::<Vec<_>>());
        assert_eq!((collected.sample.keys, collected.sample.expiring, collected.sample.large), (100, 50, 11));
        assert_eq!(collected.sample.types["string"].keys, 100);
    }
}
