//! What to verify and how, and how far a verification is.

use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use whimbrel_core::select::Selection;

use crate::budget::Rates;
use crate::journal::DiskFull;
use crate::retry::RetryPolicy;
use crate::scan::ScanOptions;

/// `COUNT` for `SCAN`: about this many keys in a page.
const SCAN_COUNT: u32 = 1_000;

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
    /// About this many, spread over the whole keyspace, and never more.
    SampleKeys(u64),
    /// About this percentage, chosen by a hash of the name: every run takes the same keys, and so do both
    /// sides.
    SamplePercent(f64),
}

impl Scope {
    /// A sample as people write it: a number of keys, or a percentage such as `10%`. `None` for anything
    /// else, and for a sample without keys.
    pub fn sample(text: &str) -> Option<Scope> {
        match text.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.parse().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0)?;
                Some(Scope::SamplePercent(percent))
            }
            None => Some(Scope::SampleKeys(text.parse().ok().filter(|keys| *keys > 0)?)),
        }
    }
}

/// How long a key that looks different gets to settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settle {
    /// How often a difference is checked again at most. With 0, the first look decides, which suits sides
    /// that no client writes to.
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
    /// The types in question, as `TYPE` names them; all if it is empty. The source's type counts.
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
    /// Compare keys of slots once more that move meanwhile. Not for callers that look after moves themselves.
    pub follow_moves: bool,
    /// How many keys are looked at per second, at most.
    pub rates: Rates,
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
            follow_moves: true,
            rates: Rates::default(),
            journal_period_ms: 10_000,
        }
    }
}

impl VerifyOptions {
    pub(super) fn scan_options(&self) -> ScanOptions {
        ScanOptions {
            count: SCAN_COUNT,
            pattern: self.selection.server_side_match().map(Bytes::copy_from_slice),
            // Several types are distinguished when they are asked for anyway.
            type_name: match self.types.as_slice() {
                [only] => Some(only.clone()),
                _ => None,
            },
        }
    }
}

/// What a running verification has done so far.
#[derive(Debug, Default)]
pub struct VerifyProgress {
    /// Keys of the source that were looked at.
    pub compared: AtomicU64,
    /// Keys finally found to differ, to be missing or to be extra.
    pub differing: AtomicU64,
    /// Bytes compared.
    pub bytes: AtomicU64,
    /// Keys that looked different and wait to be looked at again.
    pub rechecking: AtomicU64,
    /// Keys of the target that were looked for on the source.
    pub extra_checked: AtomicU64,
    /// How many keys the source has in the databases in question; 0 until it is known. Once all are compared,
    /// how many that were.
    pub total_estimate: AtomicU64,
    /// The same of the target, if its keys are looked for on the source; else 0.
    pub extra_estimate: AtomicU64,
    /// Whether the journal's disk has room.
    pub disk: DiskFull,
}
