//! What a cutover compares, under the pause and before, while clients write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use whimbrel_core::slot::Slot;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::probe::Info;
use whimbrel_engine::remedy::Remedy;
use whimbrel_wire::value::Value;

use super::conditions::refused;
use super::options::Compare;
use super::source::{Round, Source};
use super::syncer::{ROUNDS_MAX, Syncer};
use super::unseen::{Unseen, is_of_unseen_type};
use crate::copy;
use crate::keys::size::usage_of;
use crate::pipeline::Shared;
use crate::verify::{self, Comparer, Settle, VerifyOptions, VerifyProgress};

/// Keys of each database that are compared.
const SAMPLE_KEYS: usize = 64;

/// How often a difference is checked again while clients write, and how long after another.
const CHECKS_MAX: u32 = 10;
const CHECK_PAUSE: Duration = Duration::from_millis(50);

/// How long the feeds may take to reach the servers' offsets.
const REACH_MS: u64 = 2_000;

/// Keys to compare, by pairs of databases.
pub(super) type Sample = BTreeMap<(u32, u32), Vec<Bytes>>;

/// What a comparison found.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// How many keys were compared in full.
    pub(super) keys: u64,
    /// Databases of the target whose number of keys is another than it should be: which, found, expected.
    counts: Vec<(u32, u64, u64)>,
    /// Keys of the sample that differ, with their databases of the source.
    differing: Vec<(u32, Bytes)>,
    /// Of all keys: how many differ, are missing, and are on the target only.
    all: Option<(u64, u64, u64)>,
}

impl Compared {
    /// Why the target cannot take over, if it cannot.
    pub(super) fn refusal(&self) -> Option<Error> {
        let what = if let Some((db, found, expected)) = self.counts.first() {
            format!(
                "of the keys that do not expire, database {db} of the target holds {found} and should hold \
                    {expected}"
            )
        } else if let Some((differ, missing, extra)) = self.all {
            format!(
                "of all keys {differ} differ, {missing} are missing on the target and {extra} are only there"
            )
        } else if let Some((_, key)) = self.differing.first() {
            format!("key {} differs", copy::shown(key))
        } else {
            return None;
        };
        Some(refused(what).with_remedy(Remedy::VerifyOrMirror))
    }
}

/// How likely a sample of this many keys shows a difference in one key of a hundred.
pub(super) fn chance_of_one_percent(how: Compare, compared: u64, keys: u64) -> Option<f64> {
    let is_part = how == Compare::Sample && compared < keys;
    is_part.then(|| 1.0 - 0.99_f64.powi(i32::try_from(compared).unwrap_or(i32::MAX)))
}

/// Of the keys of a database: how many do not expire, and how many have fields that do.
#[derive(Debug, Clone, Copy, Default)]
struct Lasting {
    keys: u64,
    volatile: u64,
}

impl Lasting {
    /// Whether `found` on the target is what it should be. A paused source keeps a hash whose last field is
    /// due, and counts it; the target has removed it. So it may lack as many as it has fewer hashes with such
    /// fields.
    fn allows(self, found: Lasting) -> bool {
        let (lacking, fewer) =
            (self.keys.checked_sub(found.keys), self.volatile.saturating_sub(found.volatile));
        lacking.is_some_and(|lacking| lacking <= fewer)
    }
}

impl Syncer {
    /// Chooses keys to compare. Large ones are left out: they would take longer than writes can be paused.
    pub(super) async fn sample(&self, how: Compare) -> Result<Sample> {
        let mut sample = Sample::new();
        if how != Compare::Sample {
            return Ok(sample);
        }
        let topology = self.shared.source.topology();
        let each = SAMPLE_KEYS.div_ceil(topology.shards.len().max(1));
        for pair in &self.shared.options.dbs {
            let mut keys = Vec::new();
            for shard in &topology.shards {
                let mut link = self.shared.source.open(&shard.primary, pair.source).await?;
                for _ in 0..each {
                    link.push(&[b"RANDOMKEY"]);
                }
                link.flush().await?;
                let mut chosen = Vec::new();
                for reply in link.replies(each).await? {
                    // An empty database has none.
                    let key = link.check(reply, b"RANDOMKEY")?.into_bytes();
                    chosen.extend(key.filter(|key| self.shared.options.selection.admits(key)));
                }
                let large_bytes = self.shared.options.big_key_bytes;
                let sizes = usage_of(&mut link, &chosen, large_bytes, false).await?;
                // If the size may not be asked for, none is known to be large.
                let is_large = |size: &Value| size.as_int().is_some_and(|n| n.unsigned_abs() > large_bytes);
                let small = chosen.into_iter().zip(&sizes).filter(|(_, size)| !is_large(size));
                keys.extend(small.map(|(key, _)| key));
            }
            keys.sort_unstable();
            keys.dedup();
            sample.insert((pair.source, pair.target), keys);
        }
        Ok(sample)
    }

    /// Keys of the source in the databases that are followed.
    pub(super) async fn keys_of_source(&self) -> Result<u64> {
        let dbs = &self.shared.options.dbs;
        let found = copy::databases(&self.shared.source).await?;
        let followed = found.into_iter().filter(|(db, _)| dbs.iter().any(|pair| pair.source == *db));
        Ok(followed.map(|(_, keys)| keys).sum())
    }

    /// Compares both sides. If all keys are compared, `settle` says how differences are checked again.
    pub(super) async fn compare(&self, how: Compare, sample: &Sample, settle: Settle) -> Result<Compared> {
        let shared = &self.shared;
        let is_whole = shared.options.selection.is_everything() && self.status.copy.snapshot().failed == 0;
        let mut compared = Compared::default();
        if how != Compare::None && is_whole {
            let (ours, theirs) = tokio::join!(lasting(&shared.source), lasting(&shared.target));
            let (ours, theirs) = (ours?, theirs?);
            let mut expected: BTreeMap<u32, Lasting> = BTreeMap::new();
            for pair in &shared.options.dbs {
                let (sum, own) = (expected.entry(pair.target).or_default(), ours.get(&pair.source));
                sum.keys += own.map_or(0, |own| own.keys);
                sum.volatile += own.map_or(0, |own| own.volatile);
            }
            for (db, expected) in expected {
                let found = theirs.get(&db).copied().unwrap_or_default();
                if !expected.allows(found) {
                    compared.counts.push((db, found.keys, expected.keys));
                }
            }
        }
        if how == Compare::Full {
            self.compare_all(&mut compared, settle).await?;
        }
        for ((source, target), keys) in sample {
            compared.keys += keys.len() as u64;
            let (ours, theirs) = ((&shared.source, *source), (&shared.target, *target));
            let mut comparer = Comparer::new(ours, theirs, shared.options.retry);
            let differing = comparer.differing(keys.clone()).await?;
            compared.differing.extend(differing.into_iter().map(|key| (*source, key)));
        }
        Ok(compared)
    }

    /// Compares all keys, both ways.
    async fn compare_all(&self, compared: &mut Compared, settle: Settle) -> Result<()> {
        let Shared { source, target, options, stop, .. } = &*self.shared;
        let how = VerifyOptions {
            selection: options.selection.clone(),
            dbs: options.dbs.iter().map(|pair| (pair.source, pair.target)).collect(),
            retry: options.retry,
            settle,
            // Whether slots have moved is checked before the handover, and is a refusal of its own.
            follow_moves: false,
            ..VerifyOptions::default()
        };
        let progress = Arc::new(VerifyProgress::default());
        let report = verify::verify(source.clone(), target.clone(), how, progress, stop.clone()).await?;
        let t = &report.tally;
        compared.keys += t.equal;
        compared.all = (!report.is_equal()).then_some((t.differing + t.unstable, t.missing, t.extra));
        Ok(())
    }

    /// Finds out whether what a comparison found while clients write is a difference, or what they wrote
    /// meanwhile. If that is not known, the reason is returned beside the last comparison. Keys that may
    /// change unseen are `unseen`, and as many more as were carried for their type.
    ///
    /// # Errors
    /// `Unfit` if the target could not take over.
    pub(super) async fn settle(
        &mut self,
        how: Compare,
        sample: &Sample,
        mut compared: Compared,
        unseen: (&Unseen, u64),
    ) -> Result<(Compared, Option<String>)> {
        for check in 1.. {
            let Some(refusal) = compared.refusal() else { return Ok((compared, None)) };
            if self.is_certain(&compared, unseen).await? {
                return Err(refusal);
            }
            // All keys are compared once: what differs among them is shown by the pause alone.
            if check == CHECKS_MAX || how == Compare::Full || self.shared.stop.is_cancelled() {
                break;
            }
            sleep(CHECK_PAUSE).await;
            for _ in 0..ROUNDS_MAX {
                if self.rounds().await? != Round::Part {
                    break;
                }
            }
            compared = self.compare(how, sample, Settle::none()).await?;
        }
        let unsure = "clients wrote during the comparison, so it proves nothing yet: the cutover compares \
            again once writes have stopped, and whimbrel verify can find out before";
        Ok((compared, Some(unsure.to_owned())))
    }

    /// Whether something differs that no client has written to since the last round: then it will differ
    /// under the pause. What may have changed unseen is transferred once more there.
    async fn is_certain(&self, compared: &Compared, (unseen, carried): (&Unseen, u64)) -> Result<bool> {
        let mut waiting = 0;
        for source in &self.sources {
            let mut link = self.shared.source.open(source.feed.address(), 0).await?;
            let info = Info::ask(&mut link, "replication").await?;
            let replid = info.field("master_replid").unwrap_or_default();
            let offset = info.number("master_repl_offset").unwrap_or(0);
            if !source.feed.reach_in(replid, offset, REACH_MS).await? {
                return Ok(false);
            }
            let Some(keys) = source.feed.touched().count() else { return Ok(false) };
            waiting += keys as u64;
        }
        if !self.is_calm() || self.sources.iter().any(Source::is_broken) {
            return Ok(false);
        }
        // Of a key whose database is not known there may be one in each.
        let touched = waiting * self.shared.options.dbs.len() as u64;
        let changed = touched + unseen.keys() + carried;
        let is_more = |(_, found, expected): &(u32, u64, u64)| found.abs_diff(*expected) > touched;
        // Streams come and go seen, whatever happens in them. Keys of other such types may come unseen.
        let unseen_types = self.sources.iter().flat_map(|source| source.feed.unseen_types());
        let come_unseen = unseen_types.into_iter().any(|name| *name != "stream");
        if !come_unseen
            && (compared.counts.iter().any(is_more)
                || compared.all.is_some_and(|found| is_more_than_touched(found, touched, changed)))
        {
            return Ok(true);
        }
        for (db, key) in &compared.differing {
            let is_touched = self.sources.iter().any(|source| source.feed.touched().may_hold(*db, key));
            if !is_touched && !unseen.has(*db, key) && !self.may_change_unseen(*db, key).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the feed of this key may not have seen changes of it.
    async fn may_change_unseen(&self, db: u32, key: &Bytes) -> Result<bool> {
        let slot = Slot::of_key(key);
        match self.sources.iter().find(|source| source.unit.slots.contains(slot)) {
            Some(source) => is_of_unseen_type(source, db, key).await,
            None => Ok(true),
        }
    }
}

/// Whether more keys are missing or only on the target than have been touched, or more differ besides than
/// may have changed. A key is looked at once from each side, at two times: a key that differs and is then
/// deleted is found twice.
fn is_more_than_touched((differ, missing, extra): (u64, u64, u64), touched: u64, changed: u64) -> bool {
    missing > touched || extra > touched || differ + missing > changed
}

/// The keys of each database that do not expire. Those that do are counted by either server until it removes
/// them.
async fn lasting(deployment: &Deployment) -> Result<BTreeMap<u32, Lasting>> {
    let mut sums: BTreeMap<u32, Lasting> = BTreeMap::new();
    for shard in &deployment.topology().shards {
        let mut link = deployment.open(&shard.primary, 0).await?;
        for (db, counts) in Info::ask(&mut link, "keyspace").await?.keyspace() {
            let sum = sums.entry(db).or_default();
            sum.keys += counts.keys.saturating_sub(counts.expires);
            sum.volatile += counts.volatile;
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_that_a_paused_source_keeps_are_allowed_for_and_no_other_keys() {
        let lasting = |keys, volatile| Lasting { keys, volatile };
        let source = lasting(100, 10);
        for (keys, volatile, allowed) in [
            (100, 10, true),
            (97, 7, true),
            (97, 8, false),
            (99, 10, false),
            (101, 10, false),
            (101, 5, false),
        ] {
            assert_eq!(source.allows(lasting(keys, volatile)), allowed, "{keys} {volatile}");
        }
    }

    #[test]
    fn a_key_that_is_found_from_both_sides_counts_as_touched_once() {
        assert!(!is_more_than_touched((39, 3, 1), 42, 42));
        assert!(!is_more_than_touched((30, 12, 42), 42, 42));
        assert!(is_more_than_touched((40, 3, 0), 42, 42));
        assert!(is_more_than_touched((0, 0, 43), 42, 42));
    }

    #[test]
    fn keys_that_may_change_unseen_hide_none_that_are_missing() {
        assert!(!is_more_than_touched((90, 10, 0), 10, 100));
        assert!(is_more_than_touched((91, 10, 0), 10, 100));
        assert!(is_more_than_touched((0, 11, 0), 10, 100));
        assert!(is_more_than_touched((0, 0, 11), 10, 100));
    }

    #[test]
    fn a_sample_is_as_good_as_it_is_large() {
        let chance = |compared| chance_of_one_percent(Compare::Sample, compared, 1_000_000);
        assert!(chance(64).is_some_and(|p| (0.47..0.48).contains(&p)));
        assert!(chance(0) == Some(0.0));
        assert_eq!(chance_of_one_percent(Compare::Sample, 10, 10), None);
        assert_eq!(chance_of_one_percent(Compare::Full, 10, 20), None);
    }
}
