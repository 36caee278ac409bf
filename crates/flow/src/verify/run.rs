//! Feeds batches of keys to workers, and looks at suspects again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::case::{Case, Verdict};
use super::counts::{dbsize, settled_counts};
use super::options::{Depth, Scope, VerifyOptions, VerifyProgress};
use super::pair::{Pair, Rules};
use super::peer::Peer;
use super::report::{DifferenceKind, Finding, Ledger, VerifyReport};
use super::resume::{Checkpoints, VerifyState};
use super::suspects::{Suspect, Suspects};
use crate::journal::{Journal, UnitMark};
use crate::latency::{self, Watched, Written};
use crate::scan::{KeyScan, Unit};

/// A batch of keys of one database.
#[derive(Debug)]
enum Job {
    /// Keys of the source, to be compared.
    Compare(Vec<Bytes>),
    /// Keys of the target, to be looked for on the source.
    FindExtra(Vec<Bytes>),
}

/// Which keys belong to the sample.
#[derive(Debug)]
pub(super) struct Sample {
    /// Keys whose hash is above it are left out.
    threshold: u64,
    /// How many more keys of the source are taken.
    room: AtomicU64,
    /// How many more keys of the target.
    room_extra: AtomicU64,
    /// Keys of other slots are left out: they were compared before.
    only: Option<SlotSet>,
}

impl Sample {
    /// Of these slots alone; they are this percentage of the keys.
    pub(super) fn of_slots(percent: f64, slots: SlotSet) -> Sample {
        Sample { only: Some(slots), ..Sample::percent(percent, u64::MAX) }
    }

    fn percent(percent: f64, keys_max: u64) -> Sample {
        // Saturates at 100 %.
        let threshold = (percent / 100.0 * 2f64.powi(64)) as u64;
        let (room, room_extra) = (AtomicU64::new(keys_max), AtomicU64::new(keys_max));
        Sample { threshold, room, room_extra, only: None }
    }

    fn everything() -> Sample {
        Sample::percent(100.0, u64::MAX)
    }

    fn is_everything(&self) -> bool {
        self.threshold == u64::MAX && self.only.is_none()
    }

    fn admits(&self, key: &[u8]) -> bool {
        (self.threshold == u64::MAX || xxh3_64(key) <= self.threshold)
            && self.only.as_ref().is_none_or(|slots| slots.contains(Slot::of_key(key)))
    }

    /// Takes up to `wanted` keys out of what room is left.
    fn take(room: &AtomicU64, wanted: usize) -> usize {
        let wanted = wanted as u64;
        let left = room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            // No limit never runs out.
            (left != u64::MAX).then(|| left.saturating_sub(wanted))
        });
        usize::try_from(left.map_or(wanted, |left| left.min(wanted))).unwrap_or(usize::MAX)
    }
}

/// One verification.
#[derive(Debug)]
pub(super) struct Run {
    pub source: Arc<Deployment>,
    pub target: Arc<Deployment>,
    pub options: VerifyOptions,
    pub(super) progress: Arc<VerifyProgress>,
    ledger: Mutex<Ledger>,
    pub(super) checkpoints: Option<Checkpoints>,
    /// Whether keys are compared that were before: only differences count then.
    pub(super) again: AtomicBool,
    /// Slots of the source, and of the target, that were seen elsewhere since it was last asked for them.
    pub(super) moved: Mutex<[SlotSet; 2]>,
}

impl Run {
    pub fn new(
        source: Arc<Deployment>,
        target: Arc<Deployment>,
        options: VerifyOptions,
        progress: Arc<VerifyProgress>,
        journal: Option<Journal<VerifyState>>,
    ) -> Result<Run> {
        let begun = journal.map(|journal| Checkpoints::new(journal, &source, &target)).transpose()?;
        let (checkpoints, found) =
            begun.map_or((None, None), |(checkpoints, found)| (Some(checkpoints), found));
        let ledger = found.unwrap_or_else(|| Ledger::new(&options.dbs, options.differences_max));
        let (compared, extra_checked, differing) = ledger.done();
        progress.compared.store(compared, Ordering::Relaxed);
        progress.extra_checked.store(extra_checked, Ordering::Relaxed);
        progress.differing.store(differing, Ordering::Relaxed);
        let ledger = Mutex::new(ledger);
        let again = AtomicBool::new(false);
        let moved = Mutex::default();
        Ok(Run { source, target, options, progress, ledger, checkpoints, again, moved })
    }

    /// Runs to the end, or until `stop`.
    pub async fn verify(self, stop: CancellationToken) -> Result<VerifyReport> {
        let started = Instant::now();
        let run = Arc::new(self);
        // Nothing asks for the topology in between, unless a request is redirected.
        let topologies = (run.source.refresh().await?, run.target.refresh().await?);
        let watched = |deployment: &Arc<Deployment>| {
            let (deployment, written) = (deployment.clone(), Written::None);
            Watched { deployment, written }
        };
        let both = vec![watched(&run.source), watched(&run.target)];
        let _watching = latency::watch(&run.options.rates, both);
        // Dropping the future aborts all tasks it has started.
        let stopped_early = tokio::select! {
            biased;
            () = stop.cancelled() => true,
            outcome = run.all_and_what_moves(topologies.clone()) => outcome.map(|()| false)?,
        };
        if stopped_early {
            run.note_moves_at_stop(&topologies).await?;
        } else {
            let progress = &run.progress;
            for (all, done) in [
                (&progress.total_estimate, &progress.compared),
                (&progress.extra_estimate, &progress.extra_checked),
            ] {
                all.store(done.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        let unsettled = if stopped_early { run.progress.rechecking.load(Ordering::Relaxed) } else { 0 };
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let report = run.ledger().report(unsettled, stopped_early, duration_ms);
        // All tasks have ended: nothing else has it.
        if let (false, Some(Run { checkpoints: Some(checkpoints), .. })) =
            (stopped_early, Arc::into_inner(run))
        {
            checkpoints.finish()?;
        }
        Ok(report)
    }

    pub(super) async fn all(self: &Arc<Self>) -> Result<()> {
        let (mut total, mut extra) = (0, 0);
        for &(db, target_db) in &self.options.dbs {
            total += dbsize(&self.source, db, self.options.from_replica, self.options.retry).await?;
            if self.options.check_extra {
                // Nothing depends on it but what is shown.
                extra += dbsize(&self.target, target_db, false, self.options.retry).await.unwrap_or(0);
            }
        }
        self.progress.total_estimate.store(total, Ordering::Relaxed);
        self.progress.extra_estimate.store(extra, Ordering::Relaxed);
        if self.options.depth == Depth::Counts {
            for index in 0..self.options.dbs.len() {
                self.compare_counts(index).await?;
            }
            return Ok(());
        }
        self.compare_dbs(&Arc::new(self.sample(total))).await
    }

    /// Compares the keys of all databases that belong to the sample.
    pub(super) async fn compare_dbs(self: &Arc<Self>, sample: &Arc<Sample>) -> Result<()> {
        for index in 0..self.options.dbs.len() {
            self.compare_db(index, sample).await?;
        }
        Ok(())
    }

    async fn compare_counts(&self, index: usize) -> Result<()> {
        let (source, target) = settled_counts(&self.source, &self.target, &self.options, index).await?;
        let mut ledger = self.ledger();
        ledger.dbs[index].source_keys = Some(source);
        ledger.dbs[index].target_keys = Some(target);
        if source != target {
            let detail = format!("{source} keys on the source, {target} on the target");
            ledger.count_differs(index, Finding { kind: DifferenceKind::Count, detail });
        }
        Ok(())
    }

    fn sample(&self, total: u64) -> Sample {
        match self.options.scope {
            Scope::All => Sample::everything(),
            Scope::SamplePercent(percent) => Sample::percent(percent, u64::MAX),
            Scope::SampleKeys(keys) => {
                let whole = self.options.selection.is_everything() && self.options.types.is_empty();
                // The size of a selection is unknown: the first keys are taken, and since servers hand keys
                // out in the order of a keyed hash, they are as good a sample as any.
                let percent = if whole && total > 0 { keys as f64 / total as f64 * 100.0 } else { 100.0 };
                Sample::percent(percent, keys)
            }
        }
    }

    /// Compares one pair of databases.
    async fn compare_db(self: &Arc<Self>, index: usize, sample: &Arc<Sample>) -> Result<()> {
        let workers = self.options.concurrency;
        let (jobs, inbox) = mpsc::channel(workers * 2);
        let inbox = Arc::new(tokio::sync::Mutex::new(inbox));
        let suspects = Arc::new(Suspects::new(workers));
        let mut tasks = JoinSet::new();
        for _ in 0..workers {
            let (run, inbox, found) = (self.clone(), inbox.clone(), suspects.clone());
            tasks.spawn(async move {
                let outcome = run.work(index, &inbox, &found).await;
                found.producer_done();
                outcome
            });
            let (run, suspects) = (self.clone(), suspects.clone());
            tasks.spawn(async move { run.recheck(index, &suspects).await });
        }
        // Only the workers keep it: when they are gone, nothing waits for room in the channel.
        drop(inbox);
        let (run, sample) = (self.clone(), sample.clone());
        tasks.spawn(async move { run.feed(index, &sample, jobs).await });
        tokio::select! {
            outcome = joined(&mut tasks) => outcome,
            failure = self.write_down() => Err(failure),
        }
    }

    /// Writes the journal every now and then. Ends with an error only.
    async fn write_down(&self) -> Error {
        let Some(checkpoints) = &self.checkpoints else { return std::future::pending().await };
        loop {
            tokio::time::sleep(Duration::from_millis(self.options.journal_period_ms)).await;
            let progress = &self.progress;
            let saved = checkpoints.save(&progress.rechecking, &self.ledger, &progress.disk).await;
            if let Err(failure) = saved {
                return failure;
            }
        }
    }

    /// Reads the names of all keys in question.
    async fn feed(
        self: &Arc<Self>,
        index: usize,
        sample: &Arc<Sample>,
        jobs: mpsc::Sender<Job>,
    ) -> Result<()> {
        let (source_db, target_db) = self.options.dbs[index];
        let units = Unit::of_all(&self.source, source_db, self.options.from_replica);
        self.feed_side(&self.source, units, sample, &jobs, Job::Compare).await?;
        if self.options.check_extra {
            let units = Unit::of_all(&self.target, target_db, false);
            self.feed_side(&self.target, units, sample, &jobs, Job::FindExtra).await?;
        }
        Ok(())
    }

    async fn feed_side(
        self: &Arc<Self>,
        deployment: &Arc<Deployment>,
        units: Vec<Unit>,
        sample: &Arc<Sample>,
        jobs: &mpsc::Sender<Job>,
        job: fn(Vec<Bytes>) -> Job,
    ) -> Result<()> {
        let mut tasks = JoinSet::new();
        for unit in units {
            if tasks.len() >= self.options.concurrency
                && let Some(ended) = tasks.join_next().await
            {
                flat(ended)?;
            }
            let (run, deployment, sample, jobs) =
                (self.clone(), deployment.clone(), sample.clone(), jobs.clone());
            tasks.spawn(async move { run.feed_unit(deployment, unit, &sample, &jobs, job).await });
        }
        joined(&mut tasks).await
    }

    async fn feed_unit(
        &self,
        deployment: Arc<Deployment>,
        unit: Unit,
        sample: &Sample,
        jobs: &mpsc::Sender<Job>,
        job: fn(Vec<Bytes>) -> Job,
    ) -> Result<()> {
        let batch_keys = self.options.batch_keys;
        let room = if matches!(job(Vec::new()), Job::Compare(_)) { &sample.room } else { &sample.room_extra };
        let all = self.options.selection.is_everything() && sample.is_everything();
        let name = format!("{}/{}/{}", deployment.side(), unit.shard_id, unit.db);
        // What is interrupted after slots have moved cannot go on: marks are of no use.
        let checkpoints = self.checkpoints.as_ref().filter(|_| sample.only.is_none());
        let from = match checkpoints.and_then(|checkpoints| checkpoints.mark(&name)) {
            Some(UnitMark::Done) => return Ok(()),
            Some(UnitMark::At(mark)) => Some(mark.into()),
            None => None,
        };
        let mut scan = KeyScan::new(deployment, unit, self.options.scan_options(), self.options.retry, from);
        let mut batch: Vec<Bytes> = Vec::with_capacity(batch_keys);
        while let Some(page) = scan.next().await? {
            let _passing = match checkpoints {
                Some(checkpoints) => Some(checkpoints.passing().await),
                None => None,
            };
            for key in page.keys {
                if !all {
                    if !self.options.selection.admits(&key) || !sample.admits(&key) {
                        continue;
                    }
                    // A copy: the slice would keep a page alive although most of it was left out.
                    batch.push(Bytes::copy_from_slice(&key));
                } else {
                    batch.push(key);
                }
                if batch.len() == batch_keys && !self.send(&mut batch, room, jobs, job).await {
                    return Ok(());
                }
            }
            if let Some(checkpoints) = checkpoints {
                // What is marked has been handed on.
                self.send(&mut batch, room, jobs, job).await;
                let mark =
                    page.next.as_ref().map_or(UnitMark::Done, |position| UnitMark::At(position.into()));
                checkpoints.set_mark(&name, mark);
            }
        }
        self.send(&mut batch, room, jobs, job).await;
        Ok(())
    }

    /// Hands a batch to the workers. False if no more are wanted.
    async fn send(
        &self,
        batch: &mut Vec<Bytes>,
        room: &AtomicU64,
        jobs: &mpsc::Sender<Job>,
        job: fn(Vec<Bytes>) -> Job,
    ) -> bool {
        let wanted = batch.len();
        batch.truncate(Sample::take(room, wanted));
        let complete = batch.len() == wanted;
        if batch.is_empty() {
            return complete;
        }
        self.options.rates.take_keys(batch.len() as u64).await;
        let batch = std::mem::replace(batch, Vec::with_capacity(self.options.batch_keys));
        self.checkpoints.iter().for_each(Checkpoints::opened);
        jobs.send(job(batch)).await.is_ok() && complete
    }

    fn pair(&self, index: usize) -> Pair {
        let (source_db, target_db) = self.options.dbs[index];
        let options = &self.options;
        Pair {
            source: Peer::new(self.source.clone(), source_db, options.from_replica, options.retry),
            target: Peer::new(self.target.clone(), target_db, false, options.retry),
            rules: Rules {
                depth: options.depth,
                types: options.types.clone(),
                ttl_tolerance_ms: options.ttl_tolerance_ms,
                chunk_bytes: options.chunk_bytes,
                check_extra: options.check_extra,
            },
        }
    }

    /// Compares batches until there are no more.
    async fn work(
        &self,
        index: usize,
        inbox: &tokio::sync::Mutex<mpsc::Receiver<Job>>,
        suspects: &Suspects,
    ) -> Result<()> {
        let mut pair = self.pair(index);
        loop {
            let job = inbox.lock().await.recv().await;
            match job {
                None => return Ok(()),
                Some(Job::Compare(keys)) => {
                    let cases = if self.options.settle.rounds == 0 {
                        pair.compare_at_rest(&keys).await?
                    } else {
                        pair.compare(&keys).await?
                    };
                    self.count(cases.len(), &self.progress.compared, |count| {
                        self.ledger().tally(index).compared += count;
                    });
                    for suspect in self.note(index, cases) {
                        self.suspect(suspect, suspects).await;
                    }
                }
                Some(Job::FindExtra(keys)) => {
                    let count = keys.len();
                    let absent = pair.absent_from_source(keys).await?;
                    self.count(count, &self.progress.extra_checked, |count| {
                        self.ledger().tally(index).extra_checked += count;
                    });
                    if self.options.settle.rounds == 0 {
                        let cases = pair.compare_at_rest(&absent).await?;
                        self.note(index, cases);
                    } else {
                        for key in absent {
                            let suspect =
                                Suspect { key, source_state: 0, target_state: 0, round: 0, unchanged: 0 };
                            self.suspect(suspect, suspects).await;
                        }
                    }
                }
            }
            self.checkpoints.iter().for_each(Checkpoints::closed);
        }
    }

    /// Counts keys that are compared for the first time.
    fn count(&self, keys: usize, shown: &AtomicU64, in_ledger: impl FnOnce(u64)) {
        if !self.again.load(Ordering::Relaxed) {
            in_ledger(keys as u64);
            shown.fetch_add(keys as u64, Ordering::Relaxed);
        }
    }

    async fn suspect(&self, suspect: Suspect, suspects: &Suspects) {
        self.progress.rechecking.fetch_add(1, Ordering::Relaxed);
        suspects.add(suspect, self.due(0)).await;
    }

    fn due(&self, round: u32) -> Instant {
        Instant::now()
            + Duration::from_millis(self.options.settle.pause_ms.saturating_mul(u64::from(round) + 1))
    }

    /// Counts what is decided. Returns the rest.
    fn note(&self, index: usize, cases: Vec<Case>) -> Vec<Suspect> {
        let at_once = self.options.settle.rounds == 0;
        let mut suspects = Vec::new();
        let mut ledger = self.ledger();
        let mut bytes = 0;
        for case in cases {
            bytes += case.bytes;
            match case.verdict {
                Verdict::Differs if at_once => self.stands(&mut ledger, index, case),
                Verdict::Shifted if at_once => ledger.unstable(index, &case.key),
                Verdict::Differs | Verdict::Shifted => suspects.push(Suspect {
                    key: case.key,
                    source_state: case.source_state,
                    target_state: case.target_state,
                    round: 0,
                    unchanged: 0,
                }),
                _ => self.settled(&mut ledger, index, &case),
            }
        }
        ledger.bytes_compared += bytes;
        self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
        suspects
    }

    fn stands(&self, ledger: &mut Ledger, index: usize, case: Case) {
        if ledger.differs(index, &case.key, case.findings) {
            self.progress.differing.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Looks at suspects again until none are left.
    async fn recheck(&self, index: usize, suspects: &Suspects) -> Result<()> {
        let settle = self.options.settle;
        let mut pair = self.pair(index);
        while let Some(taken) = suspects.take(self.options.batch_keys).await {
            let keys: Vec<Bytes> = taken.iter().map(|s| s.key.clone()).collect();
            let cases = pair.compare(&keys).await?;
            let mut ledger = self.ledger();
            for (mut suspect, case) in taken.into_iter().zip(cases) {
                ledger.bytes_compared += case.bytes;
                self.progress.bytes.fetch_add(case.bytes, Ordering::Relaxed);
                suspect.round += 1;
                let source_same =
                    suspect.source_state == case.source_state && case.verdict == Verdict::Differs;
                let both_same = source_same && suspect.target_state == case.target_state;
                suspect.unchanged = if both_same { suspect.unchanged + 1 } else { 0 };
                let last = suspect.round >= settle.rounds;
                match case.verdict {
                    Verdict::Differs if suspect.unchanged >= settle.unchanged || (last && source_same) => {
                        self.stands(&mut ledger, index, case);
                    }
                    Verdict::Differs | Verdict::Shifted if last => ledger.unstable(index, &case.key),
                    Verdict::Differs | Verdict::Shifted => {
                        suspect.source_state = case.source_state;
                        suspect.target_state = case.target_state;
                        let due = self.due(suspect.round);
                        suspects.again(suspect, due);
                        continue;
                    }
                    _ => self.settled(&mut ledger, index, &case),
                }
                self.progress.rechecking.fetch_sub(1, Ordering::Relaxed);
                suspects.settled();
            }
        }
        Ok(())
    }

    /// Counts a key that is not a difference.
    fn settled(&self, ledger: &mut Ledger, index: usize, case: &Case) {
        if self.again.load(Ordering::Relaxed) {
            return;
        }
        let tally = ledger.tally(index);
        match case.verdict {
            Verdict::Equal => tally.equal += 1,
            Verdict::Opaque => {
                tally.equal += 1;
                tally.opaque += 1;
            }
            Verdict::Skipped => tally.skipped += 1,
            Verdict::Gone => tally.gone += 1,
            Verdict::Differs | Verdict::Shifted => {}
        }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }
}

/// Waits for all tasks, or for the first that fails; the others are aborted when `tasks` is dropped.
async fn joined(tasks: &mut JoinSet<Result<()>>) -> Result<()> {
    while let Some(ended) = tasks.join_next().await {
        flat(ended)?;
    }
    Ok(())
}

fn flat(ended: std::result::Result<Result<()>, tokio::task::JoinError>) -> Result<()> {
    ended.unwrap_or_else(|e| Err(Error::own("verify", format!("a task ended early: {e}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_by_percent_take_about_as_many() {
        let taken = |percent: f64| {
            let sample = Sample::percent(percent, u64::MAX);
            (0..10_000).filter(|i: &u32| sample.admits(format!("key:{i}").as_bytes())).count()
        };
        assert_eq!(taken(100.0), 10_000);
        let tenth = taken(10.0);
        assert!((800..1_200).contains(&tenth), "{tenth}");
        assert!(taken(0.000_001) < 10);
    }

    #[test]
    fn a_sample_of_keys_ends() {
        let sample = Sample::percent(100.0, 10);
        assert_eq!(Sample::take(&sample.room, 7), 7);
        assert_eq!(Sample::take(&sample.room, 7), 3);
        assert_eq!(Sample::take(&sample.room, 7), 0);
        assert_eq!(Sample::take(&sample.room_extra, 7), 7);
        assert_eq!(Sample::take(&Sample::everything().room, 7), 7);
    }
}
