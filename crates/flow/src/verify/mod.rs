//! Proves that two deployments hold equal keys.
//!
//! Keys are compared as values, never as serialised bytes: equal values in different encodings, on different
//! versions, or in another order inside a hash or a set are equal. Reading two servers is not atomic, so
//! whatever looks different is looked at again: it settles as equal, stands as a difference once both sides
//! have held still, or is reported as unstable.
//!
//! Memory is bounded whatever the sizes of keys: batches of keys, windows of values. Nothing is written to
//! either side.
//!
//! - `run` feeds batches of keys to workers and looks at suspects again;
//! - `batch` compares many keys in a few round trips, `deep`, `stream` and `vectors` one key in chunks;
//! - `peer` gets a batch of commands answered by one side, whatever its topology does meanwhile;
//! - `report` is what comes out;
//! - `resume` writes down how far it is.
//!
//! **Architecture invariant:** nothing here shares code with the transfer of keys. A mistake there cannot
//! hide here.

mod batch;
mod case;
mod counts;
mod deep;
mod groups;
mod peer;
mod report;
mod resume;
mod run;
mod stream;
mod suspects;
mod vectors;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use whimbrel_core::select::Selection;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result};

use self::batch::{Pair, Rules};
use self::case::Verdict;
use self::peer::Peer;
use crate::journal::DiskFull;
use crate::journal::Journal;
use crate::retry::RetryPolicy;

pub use report::{DbReport, Difference, DifferenceKind, Tally, VerifyReport};
pub use resume::VerifyState;

/// Keys that begin so are not data: a copy builds large values under such names before it puts them in place.
const STAGING_PREFIX: &[u8] = b"whimbrel:staging:";

/// How closely keys are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Only the numbers of selected keys in each database, whatever the scope. Servers count keys that have
    /// expired but are not removed yet.
    Counts,
    /// Existence, type and expiry.
    Meta,
    /// Everything: contents as well.
    Full,
}

/// Which of the selected keys are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scope {
    /// All.
    All,
    /// About so many, spread over the whole keyspace, and never more.
    SampleKeys(u64),
    /// About this percentage, chosen by a hash of the name: every run takes the same keys, and so do both
    /// sides.
    SamplePercent(f64),
}

/// How long a key that looks different gets to settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settle {
    /// How often it is looked at again at most. With 0, the first look decides, which suits sides that nobody
    /// writes to.
    pub rounds: u32,
    /// The pause before the first time. Each further one is longer by as much.
    pub pause_ms: u64,
    /// In how many rounds in a row both sides must look as before for the difference to stand early. After
    /// the last round it stands if the source has not changed since the round before.
    pub unchanged: u32,
}

impl Settle {
    /// The first look decides.
    pub fn none() -> Settle {
        Settle { rounds: 0, ..Settle::default() }
    }
}

impl Default for Settle {
    fn default() -> Self {
        Settle { rounds: 5, pause_ms: 200, unchanged: 2 }
    }
}

/// What to verify, and how.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    /// How closely.
    pub depth: Depth,
    /// All keys or a sample.
    pub scope: Scope,
    /// The keys in question, by name and slot. Applied on both sides.
    pub selection: Selection,
    /// The types in question, as `TYPE` names them; all where it is empty. The source's type counts.
    pub types: Vec<String>,
    /// Pairs of a source database and a target database.
    pub dbs: Vec<(u32, u32)>,
    /// By how much expiry times may differ, of keys and of hash fields.
    pub ttl_tolerance_ms: u64,
    /// What happens to keys that look different.
    pub settle: Settle,
    /// How many batches are compared at the same time.
    pub concurrency: usize,
    /// Keys in a batch; 512 at most.
    pub batch_keys: usize,
    /// So much of values is read at once from each side for each batch; a single element that is larger than
    /// this is read whole. At least 4 KiB.
    pub chunk_bytes: u64,
    /// How often to try again.
    pub retry: RetryPolicy,
    /// How many differences the report holds. All are counted.
    pub differences_max: usize,
    /// Read from a replica of each shard of the source that has one.
    pub from_replica: bool,
    /// Look for keys of the target that the source does not have. With a sample, those of the sample are
    /// looked for.
    pub check_extra: bool,
    /// How many keys are looked at per second, at most.
    pub read_rate_keys: Option<u64>,
    /// How often a journal is written, in milliseconds.
    pub journal_period_ms: u64,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions {
            depth: Depth::Full,
            scope: Scope::All,
            selection: Selection::default(),
            types: Vec::new(),
            dbs: vec![(0, 0)],
            ttl_tolerance_ms: 1,
            settle: Settle::default(),
            concurrency: 4,
            batch_keys: 512,
            chunk_bytes: 256 << 10,
            retry: RetryPolicy::default(),
            differences_max: 1_000,
            from_replica: false,
            check_extra: true,
            read_rate_keys: None,
            journal_period_ms: 10_000,
        }
    }
}

/// What a running verification has done so far.
#[derive(Debug, Default)]
pub struct VerifyProgress {
    /// Keys of the source that were looked at.
    pub compared: AtomicU64,
    /// Keys found to differ, to be missing or to be extra, for good.
    pub differing: AtomicU64,
    /// Bytes compared.
    pub bytes: AtomicU64,
    /// Keys that looked different and wait to be looked at again.
    pub rechecking: AtomicU64,
    /// Keys of the target that were looked for on the source.
    pub extra_checked: AtomicU64,
    /// How many keys the source has in the databases in question; 0 until it is known.
    pub total_estimate: AtomicU64,
    /// Whether the journal's disk has room.
    pub disk: DiskFull,
}

/// Compares `source` with `target`. Stopped by `stop`, it reports what it knows by then.
///
/// # Errors
/// `Unfit` options; whatever keeps it from reading either side and does not pass by itself. Differences are
/// no error.
pub async fn verify(
    source: Arc<Deployment>,
    target: Arc<Deployment>,
    options: VerifyOptions,
    progress: Arc<VerifyProgress>,
    stop: CancellationToken,
) -> Result<VerifyReport> {
    verify_with_journal(source, target, options, progress, None, stop).await
}

/// As [`verify`]. With a journal that was opened to go on, it goes on from there; the journal is removed once
/// everything is compared.
///
/// # Errors
/// As [`verify`]; `Own` where the journal cannot be written; `Unfit` where slots have moved since a
/// verification that is to go on began, and of a sample of a number of keys, which is not journaled.
pub async fn verify_with_journal(
    source: Arc<Deployment>,
    target: Arc<Deployment>,
    options: VerifyOptions,
    progress: Arc<VerifyProgress>,
    journal: Option<Journal<VerifyState>>,
    stop: CancellationToken,
) -> Result<VerifyReport> {
    check(&source, &target, &options)?;
    if journal.is_some() && matches!(options.scope, Scope::SampleKeys(_)) {
        return Err(Error::own("verify", "a sample of a number of keys is not journaled"));
    }
    let options = VerifyOptions {
        concurrency: options.concurrency.max(1),
        batch_keys: options.batch_keys.clamp(1, BATCH_KEYS_MAX),
        chunk_bytes: options.chunk_bytes.max(CHUNK_BYTES_MIN),
        ..options
    };
    run::Run::new(source, target, options, progress, journal)?.verify(stop).await
}

/// Whether `key` has the same type, value and expiry in `source_db` of the source and in `target_db` of the
/// target, however the servers encode it. True as well where the source does not have it any more.
///
/// # Errors
/// What keeps it from reading either side and does not pass by itself.
pub(crate) async fn is_same(
    source: (&Arc<Deployment>, u32),
    target: (&Arc<Deployment>, u32),
    key: &Bytes,
    retry: RetryPolicy,
) -> Result<bool> {
    Ok(Comparer::new(source, target, retry).differing(vec![key.clone()]).await?.is_empty())
}

/// Tells which keys are not the same on both sides. Its connections are kept.
#[derive(Debug)]
pub(crate) struct Comparer {
    pair: Pair,
}

impl Comparer {
    /// Of a database of the source and one of the target.
    pub(crate) fn new(
        source: (&Arc<Deployment>, u32),
        target: (&Arc<Deployment>, u32),
        retry: RetryPolicy,
    ) -> Comparer {
        let peer =
            |(deployment, db): (&Arc<Deployment>, u32)| Peer::new(deployment.clone(), db, false, retry);
        let options = VerifyOptions::default();
        let rules = Rules {
            depth: Depth::Full,
            types: Vec::new(),
            ttl_tolerance_ms: options.ttl_tolerance_ms,
            chunk_bytes: options.chunk_bytes,
            check_extra: true,
        };
        Comparer { pair: Pair { source: peer(source), target: peer(target), rules } }
    }

    /// Those of `keys`, [`BATCH_KEYS_MAX`] at most, that are not the [same](is_same) on both sides, or change
    /// all the time.
    ///
    /// # Errors
    /// As [`is_same`].
    pub(crate) async fn differing(&mut self, keys: Vec<Bytes>) -> Result<Vec<Bytes>> {
        /// A key that changes while it is compared is looked at again.
        const TRIES_MAX: u32 = 5;
        let (mut open, mut differing) = (keys, Vec::new());
        for _ in 0..TRIES_MAX {
            if open.is_empty() {
                break;
            }
            let verdicts = self.pair.compare(&open).await?;
            let mut again = Vec::new();
            for case in verdicts {
                match case.verdict {
                    Verdict::Equal | Verdict::Gone => {}
                    Verdict::Shifted => again.push(case.key),
                    _ => differing.push(case.key),
                }
            }
            open = again;
        }
        differing.append(&mut open);
        Ok(differing)
    }

    /// Those of `keys` of the source that are streams with consumer groups.
    ///
    /// # Errors
    /// As [`is_same`].
    pub(crate) async fn with_groups(&mut self, keys: &[Bytes]) -> Result<Vec<Bytes>> {
        groups::with_groups(&mut self.pair.source, keys).await
    }

    /// Those of `keys`, streams of the source, whose groups or numbers of consumers are others on the target.
    ///
    /// # Errors
    /// As [`is_same`].
    pub(crate) async fn with_other_groups(&mut self, keys: &[Bytes]) -> Result<Vec<Bytes>> {
        groups::with_other_groups(&mut self.pair, keys).await
    }
}

/// The servers' own input buffers and our own memory set the limit.
pub(crate) const BATCH_KEYS_MAX: usize = 512;
const CHUNK_BYTES_MIN: u64 = 4 << 10;

fn check(source: &Deployment, target: &Deployment, options: &VerifyOptions) -> Result<()> {
    let unfit = |side: &Deployment, what: &str| {
        Err(Error::unfit(side.side(), side.endpoint.address.to_string(), "verify", what))
    };
    if options.dbs.is_empty() {
        return Err(Error::own("verify", "no database was named"));
    }
    if let Scope::SamplePercent(percent) = options.scope
        && !(percent > 0.0 && percent <= 100.0)
    {
        return Err(Error::own("verify", "a sample is more than 0 and at most 100 percent"));
    }
    if source.is_cluster() && options.dbs.iter().any(|(db, _)| *db != 0) {
        return unfit(source, "a cluster is read through database 0");
    }
    if target.is_cluster() && options.dbs.iter().any(|(_, db)| *db != 0) {
        return unfit(target, "a cluster is read through database 0");
    }
    Ok(())
}
