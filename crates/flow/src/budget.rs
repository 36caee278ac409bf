//! What may be in flight at once, and how fast.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout_at};
use whimbrel_core::units::{
    ParseUnitError, format_bytes, format_count_of, parse_bytes, parse_count, parse_duration,
};

/// Granularity of the memory budget.
const UNIT_BYTES: u64 = 1 << 10;

/// Bounds the bytes of values that have been read (or are being read) and not yet written. A reader waits
/// until the writers have freed enough: a slow target slows the reading and never grows memory.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    units: Arc<Semaphore>,
    units_max: u32,
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub struct MemoryPermit {
    permit: Option<OwnedSemaphorePermit>,
}

impl MemoryPermit {
    /// Gives back what is above `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let units = usize::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(usize::MAX).max(1);
        if let Some(permit) = &mut self.permit {
            drop(permit.split(permit.num_permits().saturating_sub(units)));
        }
    }
}

impl MemoryBudget {
    /// A budget of this many bytes.
    pub fn new(bytes: u64) -> Self {
        let units_max = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX >> 4).max(1);
        // tokio bounds a semaphore at usize::MAX >> 3, far above u32::MAX >> 4.
        MemoryBudget { units: Arc::new(Semaphore::new(units_max as usize)), units_max }
    }

    /// Waits for `bytes` of room. More than the whole budget is granted when everything else has drained, so
    /// that a single large value can pass.
    pub async fn take(&self, bytes: u64) -> MemoryPermit {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, self.units_max);
        // The semaphore is never closed; a permit is missing only if that changes, and then nothing is
        // bounded less than before.
        MemoryPermit { permit: self.units.clone().acquire_many_owned(units).await.ok() }
    }
}

/// Bounds how many values are moved in chunks at once: a chunk is in memory on its way, up to several times
/// over, and takes nothing from the [`MemoryBudget`].
#[derive(Debug, Clone)]
pub struct BigTransfers {
    places: Arc<Semaphore>,
}

/// One transfer's place, given back when dropped.
#[derive(Debug)]
pub struct BigTransferPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

/// How many chunks one transfer may hold: the one being read with the buffer it arrives in, its copy as
/// commands, and those commands on their way out, each with room to grow.
const CHUNKS_PER_TRANSFER: u64 = 8;

/// Most transfers at once; more only take turns on the servers.
const TRANSFERS_MAX: u64 = 1 << 10;

impl BigTransfers {
    /// As many as fit in `memory_bytes` with chunks of `chunk_bytes`, and one at least.
    pub fn new(memory_bytes: u64, chunk_bytes: u64) -> Self {
        let one = chunk_bytes.max(1).saturating_mul(CHUNKS_PER_TRANSFER);
        let places = (memory_bytes / one).clamp(1, TRANSFERS_MAX);
        BigTransfers { places: Arc::new(Semaphore::new(places as usize)) }
    }

    /// Waits for a place. A transfer must not wait for a second one while it holds its own.
    pub async fn start(&self) -> BigTransferPermit {
        // As in `MemoryBudget::take`, the semaphore is never closed.
        BigTransferPermit { _permit: self.places.clone().acquire_owned().await.ok() }
    }
}

/// A token bucket shared by all lanes: this many per second, with bursts of a tenth of a second.
#[derive(Debug)]
struct Bucket {
    per_second: Option<f64>,
    /// When the amount taken so far is paid off.
    free_at: Instant,
}

/// How far a bucket may fill up while nobody takes from it.
const BURST: Duration = Duration::from_millis(100);

impl Bucket {
    fn new(per_second: Option<u64>) -> Mutex<Bucket> {
        // None a second would never end: that is what a pause is for.
        let per_second = per_second.filter(|rate| *rate > 0).map(|rate| rate as f64);
        Mutex::new(Bucket { per_second, free_at: Instant::now() })
    }

    /// Takes so much, and says from when on it may pass. An amount above the rate passes at once and makes
    /// the next ones wait longer.
    fn take(&mut self, amount: u64, now: Instant) -> Option<Instant> {
        let per_second = self.per_second?;
        let start = self.free_at.max(now.checked_sub(BURST).unwrap_or(now));
        self.free_at = start + Duration::from_secs_f64(amount as f64 / per_second);
        Some(start)
    }
}

/// How fast keys of a job move, and whether they do at all. Clones share it: a request to the job changes
/// it while its lanes take from it.
#[derive(Debug, Clone)]
pub struct Rates(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    keys: Mutex<Bucket>,
    bytes: Mutex<Bucket>,
    /// What slow servers leave of the keys; see [`crate::latency`].
    slowed: Mutex<Slowed>,
    /// Keys that were let pass.
    taken: AtomicU64,
    /// How many [`Lifted`] there are.
    lifted: AtomicUsize,
    /// Changes with everything that is steered, so that who waits looks again.
    is_paused: watch::Sender<bool>,
}

/// How far a job is slowed down for the sake of its servers' clients.
#[derive(Debug)]
struct Slowed {
    /// How long a server may take for an answer, in milliseconds.
    max_latency_ms: Option<u64>,
    /// Keys a second that slow servers allow.
    per_second: Option<f64>,
    /// Keys that may pass at once; below 0 while a batch is paid off. It grows with the rate of the moment,
    /// so a change of the rate counts for those that wait already.
    allowed: f64,
    /// When it grew last.
    grown_at: Instant,
    /// Somebody had to wait since that was last asked.
    has_waited: bool,
    /// What the slowest server took just now, in milliseconds.
    latency_ms: f64,
}

impl Slowed {
    /// Takes so many keys, or says how long to wait before it is tried again.
    fn take(&mut self, keys: u64, now: Instant) -> Result<(), Duration> {
        let Some(per_second) = self.per_second else { return Ok(()) };
        let grown = now.saturating_duration_since(self.grown_at).as_secs_f64() * per_second;
        self.allowed = (self.allowed + grown).min(per_second * BURST.as_secs_f64());
        self.grown_at = now;
        if self.allowed < 0.0 {
            self.has_waited = true;
            return Err(Duration::from_secs_f64(-self.allowed / per_second).min(SLOWED_POLL));
        }
        self.allowed -= keys as f64;
        Ok(())
    }
}

/// How long those that wait for slow servers wait before they look again: the rate changes meanwhile.
const SLOWED_POLL: Duration = Duration::from_millis(100);

/// What is changed of the rates; what is `None` stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RateChange {
    /// Keys per second, at most; 0 for as many as there are.
    pub keys: Option<u64>,
    /// Bytes of values per second, at most; 0 for as many as there are.
    pub bytes: Option<u64>,
    /// How long a server may take for an answer before keys are moved slower, in milliseconds; 0 for as long
    /// as it likes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_latency_ms: Option<u64>,
}

impl RateChange {
    /// This one, and what `later` names.
    pub fn and(self, later: RateChange) -> RateChange {
        RateChange {
            keys: later.keys.or(self.keys),
            bytes: later.bytes.or(self.bytes),
            max_latency_ms: later.max_latency_ms.or(self.max_latency_ms),
        }
    }
}

/// As people write one of them: `rate-keys=1000`, `rate-bytes=10MiB`, `max-latency=5ms`, each with `none` for
/// no bound.
impl FromStr for RateChange {
    type Err = String;

    fn from_str(text: &str) -> Result<RateChange, String> {
        const FORMS: &str = "write rate-keys=N, rate-bytes=BYTES or max-latency=TIME, or none for no bound";
        let (name, value) = text.split_once('=').ok_or(FORMS)?;
        let number = |parsed: Result<u64, ParseUnitError>| match value {
            "none" => Ok(Some(0)),
            _ => parsed.map(Some).map_err(|e| e.to_string()),
        };
        let millis = |value: &str| parse_duration(value).map(|time| time.as_millis() as u64);
        let none = RateChange::default();
        match name {
            "rate-keys" => Ok(RateChange { keys: number(parse_count(value))?, ..none }),
            "rate-bytes" => Ok(RateChange { bytes: number(parse_bytes(value))?, ..none }),
            "max-latency" => Ok(RateChange { max_latency_ms: number(millis(value))?, ..none }),
            other => Err(format!("{other} cannot be changed while a job runs; {FORMS}")),
        }
    }
}

/// How rates are at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RatesNow {
    /// Keys per second, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_keys: Option<u64>,
    /// Bytes of values per second, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes: Option<u64>,
    /// How long a server may take for an answer before keys are moved slower, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_latency_ms: Option<u64>,
    /// Whether no keys move until somebody says so.
    #[serde(default)]
    pub paused: bool,
}

/// In words: `1,000 keys a second, 1.0 MiB a second; paused`.
impl fmt::Display for RatesNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.rate_keys.map(|rate| format!("{} a second", format_count_of(rate, "key")));
        let bytes = self.rate_bytes.map(|rate| format!("{} a second", format_bytes(rate)));
        let latency = self.max_latency_ms.map(|ms| format!("slower where a server takes over {ms} ms"));
        let bounds: Vec<String> = keys.into_iter().chain(bytes).chain(latency).collect();
        let bounds = if bounds.is_empty() { "no rate is set".to_owned() } else { bounds.join(", ") };
        write!(f, "{bounds}{}", if self.paused { "; paused" } else { "" })
    }
}

/// Rates that nothing waits for; see [`Rates::lift`].
#[derive(Debug)]
pub struct Lifted(Rates);

impl Drop for Lifted {
    fn drop(&mut self) {
        self.0.0.lifted.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Rates {
    fn default() -> Self {
        Rates::new(None, None)
    }
}

impl Rates {
    /// This many keys and bytes of values a second, at most; 0 is no bound.
    pub fn new(keys: Option<u64>, bytes: Option<u64>) -> Rates {
        let (keys, bytes) = (Bucket::new(keys), Bucket::new(bytes));
        let slowed = Mutex::new(Slowed {
            max_latency_ms: None,
            per_second: None,
            allowed: 0.0,
            grown_at: Instant::now(),
            has_waited: false,
            latency_ms: 0.0,
        });
        let (taken, lifted) = (AtomicU64::new(0), AtomicUsize::new(0));
        Rates(Arc::new(Shared { keys, bytes, slowed, taken, lifted, is_paused: watch::Sender::new(false) }))
    }

    /// Moves fewer keys a second while a server takes longer than this for an answer, in milliseconds.
    pub fn with_max_latency(self, max_latency_ms: Option<u64>) -> Rates {
        self.0.slowed.lock().max_latency_ms = max_latency_ms.filter(|ms| *ms > 0);
        self
    }

    /// Waits until this many keys may be read.
    pub async fn take_keys(&self, n: u64) {
        self.take(&self.0.keys, n).await;
        while !self.is_lifted() {
            let taken = self.0.slowed.lock().take(n, Instant::now());
            let Err(wait) = taken else { break };
            sleep(wait).await;
        }
        self.0.taken.fetch_add(n, Ordering::Relaxed);
    }

    /// Nothing waits for rates until it is dropped: clients wait for what is to be moved.
    #[must_use]
    pub fn lift(&self) -> Lifted {
        self.0.lifted.fetch_add(1, Ordering::Relaxed);
        self.0.is_paused.send_modify(|_| {});
        Lifted(self.clone())
    }

    fn is_lifted(&self) -> bool {
        self.0.lifted.load(Ordering::Relaxed) > 0
    }

    /// How long a server may take for an answer, in milliseconds; `None` for as long as it likes.
    pub(crate) fn max_latency_ms(&self) -> Option<u64> {
        self.0.slowed.lock().max_latency_ms
    }

    /// Waits until there is a bound for that.
    pub(crate) async fn until_limited(&self) {
        let mut changes = self.0.is_paused.subscribe();
        // Fails only once the sender is gone, which `self` keeps.
        let _ = changes.wait_for(|_| self.max_latency_ms().is_some()).await;
    }

    /// Whether somebody had to wait for slow servers since this was last asked.
    pub(crate) fn has_waited(&self) -> bool {
        std::mem::take(&mut self.0.slowed.lock().has_waited)
    }

    /// How many keys were let pass so far.
    pub(crate) fn keys_taken(&self) -> u64 {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// How many keys a second slow servers allow; `None` for as many as there are.
    pub(crate) fn slowed_to(&self) -> Option<f64> {
        self.0.slowed.lock().per_second
    }

    /// Allows so many keys a second from now on, because a server took `latency_ms` for an answer.
    pub(crate) fn slow_to(&self, per_second: Option<f64>, latency_ms: f64) {
        let mut slowed = self.0.slowed.lock();
        if slowed.per_second.is_none() {
            (slowed.allowed, slowed.grown_at) = (0.0, Instant::now());
        }
        (slowed.per_second, slowed.latency_ms) = (per_second, latency_ms);
    }

    /// How far slow servers hold the job back, in words; `None` where they do not.
    pub fn slowed_in_words(&self) -> Option<String> {
        let slowed = self.0.slowed.lock();
        let (rate, limit_ms) = (slowed.per_second?, slowed.max_latency_ms?);
        let keys = format_count_of(rate as u64, "key");
        Some(format!("slowed to {keys} a second: a server took {:.1} of {limit_ms} ms", slowed.latency_ms))
    }

    /// Waits until this many bytes may pass.
    pub async fn take_bytes(&self, n: u64) {
        self.take(&self.0.bytes, n).await;
    }

    async fn take(&self, bucket: &Mutex<Bucket>, amount: u64) {
        // Before the bucket is looked at: a change after that is not missed.
        let mut changes = self.0.is_paused.subscribe();
        let start = bucket.lock().take(amount, Instant::now());
        if let Some(start) = start.filter(|_| !self.is_lifted()) {
            // A change ends the wait: what was due at the rate of before says nothing any more.
            let _ = timeout_at(start, changes.changed()).await;
        }
        // Fails only once the sender is gone, which `self` keeps.
        let _ = changes.wait_for(|is_paused| !is_paused).await;
    }

    /// Changes rates. Lanes that wait notice at once.
    pub fn change(&self, change: RateChange) {
        for (bucket, rate) in [(&self.0.keys, change.keys), (&self.0.bytes, change.bytes)] {
            if let Some(rate) = rate {
                *bucket.lock() = Bucket::new(Some(rate)).into_inner();
            }
        }
        if let Some(limit_ms) = change.max_latency_ms {
            self.0.slowed.lock().max_latency_ms = Some(limit_ms).filter(|ms| *ms > 0);
        }
        self.0.is_paused.send_modify(|_| {});
    }

    /// Has no more keys read until it is called with false. What has been read is still written.
    pub fn pause(&self, pause: bool) {
        self.0.is_paused.send_replace(pause);
    }

    /// How they are.
    pub fn now(&self) -> RatesNow {
        let of = |bucket: &Mutex<Bucket>| bucket.lock().per_second.map(|rate| rate as u64);
        let (rate_keys, rate_bytes) = (of(&self.0.keys), of(&self.0.bytes));
        let max_latency_ms = self.max_latency_ms();
        RatesNow { rate_keys, rate_bytes, max_latency_ms, paused: *self.0.is_paused.borrow() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_transfers_fit_the_budget_and_one_always_runs() {
        let places = |memory, chunk| BigTransfers::new(memory, chunk).places.available_permits();
        assert_eq!(places(64 << 20, 1 << 20), 8);
        assert_eq!(places(1, 1 << 20), 1);
        assert_eq!(places(0, 0), 1);
        assert_eq!(places(u64::MAX, 1), 1 << 10);
    }

    #[tokio::test]
    async fn a_place_is_given_back() {
        let transfers = BigTransfers::new(1, 1);
        let first = transfers.start().await;
        assert_eq!(transfers.places.available_permits(), 0);
        drop(first);
        drop(transfers.start().await);
        assert_eq!(transfers.places.available_permits(), 1);
    }

    #[test]
    fn so_many_pass_in_a_second() {
        let mut bucket = Bucket::new(Some(10)).into_inner();
        let began = bucket.free_at;
        let passes = |bucket: &mut Bucket, after_ms: u64| {
            let now = began + Duration::from_millis(after_ms);
            bucket.take(10, now).map(|start| (start - began).as_millis())
        };
        // The first ones pass at once, and are paid for by the next.
        assert_eq!(
            [0, 0, 500].map(|after_ms| passes(&mut bucket, after_ms)),
            [Some(0), Some(1_000), Some(2_000)]
        );
        // What nobody took is lost, up to a burst.
        assert_eq!(passes(&mut bucket, 60_000), Some(59_900));
        let mut unbounded = Bucket::new(Some(0)).into_inner();
        assert_eq!(unbounded.take(u64::MAX, began), None);
    }

    /// Whether it has not come to its end after a while. What is tested would wait for days.
    async fn waits(taking: impl Future<Output = ()>) -> bool {
        tokio::time::timeout(Duration::from_millis(50), taking).await.is_err()
    }

    #[tokio::test]
    async fn a_change_reaches_who_waits_already() {
        let rates = Rates::new(Some(1), None);
        rates.take_keys(1_000_000).await;
        let mut waiting = tokio::spawn({
            let rates = rates.clone();
            async move { rates.take_keys(1).await }
        });
        assert!(
            waits(async { (&mut waiting).await.expect("it ends") }).await,
            "the rate of before bounds nothing"
        );
        rates.change(RateChange { keys: Some(1_000_000), ..RateChange::default() });
        waiting.await.expect("it ends");
        rates.change(RateChange { keys: Some(0), bytes: Some(7), max_latency_ms: Some(5) });
        let (rate_bytes, max_latency_ms) = (Some(7), Some(5));
        assert_eq!(rates.now(), RatesNow { rate_bytes, max_latency_ms, ..RatesNow::default() });
    }

    #[test]
    fn changes_are_written_as_people_do() {
        let parsed = |texts: &[&str]| {
            let each = texts.iter().map(|text| text.parse::<RateChange>());
            each.collect::<Result<Vec<_>, _>>()
                .map(|all| all.into_iter().fold(RateChange::default(), RateChange::and))
        };
        let change = RateChange { keys: Some(1_000), bytes: Some(0), max_latency_ms: Some(5) };
        assert_eq!(
            parsed(&["rate-keys=7", "rate-keys=1k", "rate-bytes=none", "max-latency=5ms"]),
            Ok(change)
        );
        assert!(parsed(&["lanes=4"]).is_err_and(|why| why.starts_with("lanes cannot be changed")));
        assert!(parsed(&["max-latency"]).is_err());
    }

    #[tokio::test]
    async fn slow_servers_leave_fewer_keys() {
        let rates = Rates::default().with_max_latency(Some(5));
        rates.slow_to(Some(1.0), 9.0);
        rates.take_keys(1_000_000).await;
        assert!(waits(rates.take_keys(1)).await);
        let words = rates.slowed_in_words().expect("it is slowed down");
        assert_eq!(words, "slowed to 1 key a second: a server took 9.0 of 5 ms");
        let lifted = rates.lift();
        rates.take_keys(1).await;
        drop(lifted);
        assert!(waits(rates.take_keys(1)).await, "they are in force again");
        rates.slow_to(None, 0.0);
        rates.take_keys(1).await;
        assert_eq!(rates.slowed_in_words(), None);
    }

    #[test]
    fn slow_servers_are_kept_to_the_rate_of_the_moment() {
        let rates = Rates::default();
        rates.slow_to(Some(50.0), 9.0);
        let mut slowed = rates.0.slowed.lock();
        let began = slowed.grown_at;
        let mut passed_within = |from_ms: u64, to_ms: u64| {
            let mut at = from_ms;
            let passes = std::iter::from_fn(|| {
                (at < to_ms).then(|| {
                    at += 10;
                    slowed.take(100, began + Duration::from_millis(at)).is_ok()
                })
            });
            passes.filter(|passed| *passed).count()
        };
        // A hundred keys at 50 a second: one batch at once, then one every two seconds, however many wait.
        let passed = passed_within(0, 9_900);
        assert_eq!(passed, 5);
        slowed.per_second = Some(1_000.0);
        let mut later = 0;
        for at in (9_910..10_910).step_by(10) {
            later += usize::from(slowed.take(100, began + Duration::from_millis(at)).is_ok());
        }
        assert!((9..=11).contains(&later), "{later}");
    }

    #[tokio::test]
    async fn lifted_rates_let_those_pass_that_wait_already() {
        let rates = Rates::new(Some(1), None);
        rates.take_keys(1_000_000).await;
        let waiting = tokio::spawn({
            let rates = rates.clone();
            async move { rates.take_keys(1).await }
        });
        tokio::task::yield_now().await;
        let _lifted = rates.lift();
        waiting.await.expect("it ends");
    }

    #[tokio::test]
    async fn nothing_passes_while_it_is_paused_whatever_the_rates() {
        let rates = Rates::default();
        rates.pause(true);
        assert!(waits(rates.take_keys(1)).await);
        rates.change(RateChange { keys: Some(5), ..RateChange::default() });
        assert!(waits(rates.take_bytes(1)).await, "a change of rates ends no pause");
        rates.pause(false);
        rates.take_keys(1).await;
        rates.take_bytes(1).await;
    }
}
