//! What a display reads of a sync.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use serde::{Serialize, Serializer};
use tokio::time::Instant;
use whimbrel_core::slot::Slot;
use whimbrel_engine::error::{Error, ErrorKind, Side};
use whimbrel_engine::feed::Feed;
use whimbrel_engine::seal::WritingClient;

use super::asked::NOTHING_CHANGED;
use super::heard::{self, Heard};
use crate::journal::KeyFailure;
use crate::progress::{CopyCounts, CopyProgress};

/// What a sync is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncPhase {
    /// Feeds are being attached to the primaries of the source.
    #[default]
    Attaching,
    /// Every key is transferred once.
    Snapshotting,
    /// What changes is transferred.
    Following,
    /// Slots that moved, or whose changes may have been missed, are gone through again.
    Reconciling,
    /// It is tried what a cutover would do; nothing is paused.
    Rehearsing,
    /// Writes to the source are paused for the change to the target.
    CuttingOver,
    /// The target is authoritative.
    CutOver,
    /// Stopped by the user, or by an error.
    Stopped,
}

impl SyncPhase {
    /// Of a cutover, or of what only tries it.
    pub(super) fn of_cutover(dry_run: bool) -> SyncPhase {
        if dry_run { SyncPhase::Rehearsing } else { SyncPhase::CuttingOver }
    }

    /// All of them.
    pub const ALL: [SyncPhase; 8] = [
        SyncPhase::Attaching,
        SyncPhase::Snapshotting,
        SyncPhase::Following,
        SyncPhase::Reconciling,
        SyncPhase::Rehearsing,
        SyncPhase::CuttingOver,
        SyncPhase::CutOver,
        SyncPhase::Stopped,
    ];
}

impl fmt::Display for SyncPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SyncPhase::Attaching => "attaching",
            SyncPhase::Snapshotting => "snapshotting",
            SyncPhase::Following => "following",
            SyncPhase::Reconciling => "reconciling",
            SyncPhase::Rehearsing => "rehearsing",
            SyncPhase::CuttingOver => "cutting-over",
            SyncPhase::CutOver => "cut-over",
            SyncPhase::Stopped => "stopped",
        })
    }
}

impl Serialize for SyncPhase {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One primary of the source, as a display sees it.
#[derive(Debug)]
pub(super) struct SourceView {
    pub(super) feed: Arc<Feed>,
    /// Since when there is something to transfer; `None` if there is nothing.
    pub(super) behind_since: Mutex<Option<Instant>>,
    /// The primary's own offset, when it was last asked.
    pub(super) server_offset: AtomicU64,
    /// What the last round took that had something to transfer, in microseconds.
    pub(super) round_us: AtomicU64,
}

impl SourceView {
    /// Notes that something is to be transferred.
    pub(super) fn is_behind(&self, now: Instant) {
        self.behind_since.lock().get_or_insert(now);
    }

    /// Notes that everything has been transferred.
    pub(super) fn is_level(&self) {
        *self.behind_since.lock() = None;
    }

    fn shown(&self, heard: &Heard) -> SourceShown {
        let touched = self.feed.touched();
        let offset = self.feed.offset();
        let address = self.feed.address().to_string();
        let silent_ms = heard.silent_ms(&address);
        let (silent, trouble) = (heard::is_silent(silent_ms), self.feed.broken());
        // What it has done meanwhile is unknown.
        let is_known = !silent && trouble.is_none();
        let behind_since = *self.behind_since.lock();
        SourceShown {
            address,
            feed: self.feed.kind().to_string(),
            offset,
            lag_bytes: (is_known && self.feed.kind().is_replication())
                .then(|| self.server_offset.load(Ordering::Relaxed).saturating_sub(offset)),
            lag_ms: is_known.then(|| {
                behind_since.map_or(0, |since| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX))
            }),
            silent_ms,
            silent,
            touched: touched.len() as u64,
            round_ms: self.round_us.load(Ordering::Relaxed).div_ceil(1_000),
            resumed: self.feed.resumed(),
            trouble,
        }
    }
}

/// One primary of the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceShown {
    /// Which.
    pub address: String,
    /// How changes are learnt of.
    pub feed: String,
    /// The replication offset up to which changes are known; 0 if it is no replication link.
    pub offset: u64,
    /// How far the server was ahead of that when it was last asked, about once a second. `None` if that is
    /// not known, since it is silent or there is no link; and with a tracking feed, which has no offsets.
    pub lag_bytes: Option<u64>,
    /// For how long something has been waiting to be transferred. `None` if the server is silent, or there is
    /// no link.
    pub lag_ms: Option<u64>,
    /// For how long the server has given no sign of life; it is asked for one every second.
    pub silent_ms: u64,
    /// True if that is longer than a server that is well takes.
    pub silent: bool,
    /// Touched keys that wait to be transferred.
    pub touched: u64,
    /// What the last transfer of touched keys took.
    pub round_ms: u64,
    /// How often a dropped link was resumed without a gap.
    pub resumed: u64,
    /// Why nothing is heard from it at the moment; `None` while there is a link.
    pub trouble: Option<String>,
}

/// One primary of the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TargetShown {
    /// Which.
    pub address: String,
    /// For how long the server has given no sign of life; it is asked for one every second.
    pub silent_ms: u64,
    /// True if that is longer than a server that is well takes.
    pub silent: bool,
}

/// How a sync stands.
#[derive(Debug, Default)]
pub struct SyncStatus {
    /// Counters of keys and bytes.
    pub copy: Arc<CopyProgress>,
    /// When the primaries of the source were last heard from.
    pub(super) source_heard: Arc<Heard>,
    /// And those of the target.
    pub(super) target_heard: Arc<Heard>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    phase: SyncPhase,
    sources: Vec<Arc<SourceView>>,
    suspect_slots: usize,
    failures: Vec<KeyFailure>,
    external: Option<ExternalShown>,
    compare_ms: Option<u64>,
}

/// Failed keys that are shown while a sync runs.
const FAILURES_SHOWN: usize = 20;

/// How a sync stands at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct SyncShown {
    /// What it is doing.
    pub phase: SyncPhase,
    /// The primaries of the source.
    pub sources: Vec<SourceShown>,
    /// The primaries of the target.
    pub targets: Vec<TargetShown>,
    /// Slots that have to be gone through again: it is not known what changed there, or more was touched than
    /// could be remembered.
    pub suspect_slots: usize,
    /// How long a cutover would pause writes now: the longest last round, and the comparison as it was
    /// rehearsed when it began to follow. `cutover --dry-run` measures both. `None` until it follows, and
    /// while a server is silent or slots have to be gone through.
    pub pause_estimate_ms: Option<u64>,
    /// Which clients still write, while a cutover waits for another party to stop the writers.
    pub external: Option<ExternalShown>,
    /// Why something was tried again in the last few seconds.
    pub trouble: Option<String>,
    /// For how long the journal's disk has been full; `None` while it has room. Then what is transferred is
    /// not written down.
    pub disk_full_ms: Option<u64>,
    /// The first keys that are not on the target; their number is in `counts`.
    pub failures: Vec<KeyFailure>,
    /// Keys and bytes. Keys that were removed from the target count as `gone`.
    pub counts: CopyCounts,
}

impl SyncShown {
    /// The servers that are silent: `source` or `target`, the address, and for how long.
    pub fn silences(&self) -> impl Iterator<Item = (&'static str, &str, u64)> {
        let sources = self.sources.iter().filter(|source| source.silent);
        let targets = self.targets.iter().filter(|target| target.silent);
        sources
            .map(|source| ("source", source.address.as_str(), source.silent_ms))
            .chain(targets.map(|target| ("target", target.address.as_str(), target.silent_ms)))
    }
}

impl SyncStatus {
    /// Why nothing can be handed over: a server of either side that nothing was heard from for longer than
    /// this many milliseconds.
    pub fn unheard(&self, ms: u64) -> Option<Error> {
        let sides = [(Side::Source, &self.source_heard), (Side::Target, &self.target_heard)];
        let silences = sides.into_iter().flat_map(|(side, heard)| {
            heard.silences().into_iter().map(move |(address, silent_ms)| (side, address, silent_ms))
        });
        let (side, address, silent_ms) = silences.max_by_key(|(.., ms)| *ms).filter(|(.., it)| *it > ms)?;
        let error = Error::new(side, address, "cut over", ErrorKind::Timeout(silent_ms));
        let remedy = "see that the server is up and reachable, then ask again";
        Some(error.with_left(NOTHING_CHANGED).with_remedy(remedy))
    }

    /// How it stands now.
    pub fn shown(&self) -> SyncShown {
        let inner = self.lock();
        let sources: Vec<SourceShown> = inner.sources.iter().map(|s| s.shown(&self.source_heard)).collect();
        let targets = self.target_heard.silences().into_iter().map(|(address, silent_ms)| TargetShown {
            address,
            silent_ms,
            silent: heard::is_silent(silent_ms),
        });
        let targets: Vec<TargetShown> = targets.collect();
        let all_answer = !sources.iter().any(|s| s.silent) && !targets.iter().any(|t| t.silent);
        // What could not be remembered by key is gone through by slot, which takes longer than milliseconds.
        let whole_slots: usize = inner.sources.iter().map(|s| s.feed.touched().whole_slots()).sum();
        let round_ms = sources.iter().map(|source| source.round_ms).max().unwrap_or(0);
        SyncShown {
            phase: inner.phase,
            sources,
            targets,
            // Some may be both.
            suspect_slots: (inner.suspect_slots + whole_slots).min(usize::from(Slot::COUNT)),
            pause_estimate_ms: inner
                .compare_ms
                .filter(|_| all_answer && whole_slots == 0)
                .map(|compare_ms| round_ms + compare_ms),
            external: inner.external.clone(),
            trouble: self.copy.trouble(),
            disk_full_ms: self.copy.disk.full_ms(),
            failures: inner.failures.clone(),
            counts: self.copy.snapshot(),
        }
    }

    pub(super) fn phase(&self, phase: SyncPhase) {
        let before = std::mem::replace(&mut self.lock().phase, phase);
        if before != phase {
            tracing::info!(%phase, "the sync enters a phase");
        }
    }

    pub(super) fn sources(&self, sources: Vec<Arc<SourceView>>) {
        self.lock().sources = sources;
    }

    pub(super) fn views(&self) -> Vec<Arc<SourceView>> {
        self.lock().sources.clone()
    }

    pub(super) fn external(&self, external: Option<ExternalShown>) {
        self.lock().external = external;
    }

    pub(super) fn suspect_slots(&self, slots: usize) {
        self.lock().suspect_slots = slots;
    }

    pub(super) fn compared_within(&self, ms: u64) {
        self.lock().compare_ms = Some(ms);
    }

    pub(super) fn failures(&self, mut failures: Vec<KeyFailure>) {
        failures.truncate(FAILURES_SHOWN);
        self.lock().failures = failures;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

/// What is being done while another party stops the writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExternalStage {
    /// Waiting until no client writes any more.
    Waiting,
    /// Both sides are compared.
    Comparing,
}

/// The state of a cutover whose writers another party stops.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExternalShown {
    /// What is being done.
    pub stage: ExternalStage,
    /// How long no client has written, in milliseconds.
    pub quiet_ms: u64,
    /// How long no client may have written, in milliseconds.
    pub wanted_ms: u64,
    /// The clients that wrote last; empty if the server does not report them.
    pub clients: Vec<WritingClient>,
    /// Some of the keys that were touched last.
    pub keys: Vec<String>,
}
