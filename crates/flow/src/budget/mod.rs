//! How fast keys of a job move, when, and what else is changed of it while it runs.

mod change;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use whimbrel_core::schedule::Window;
use whimbrel_core::units::format_count_of;

pub use self::change::{RateChange, RatesNow, Times, parse_pause};
use crate::lag::{Lag, MaxLag};
use crate::lane_counts::LaneCounts;
use crate::load::MaxLoad;
use crate::memory::MemoryBudget;

/// A token bucket shared by all lanes: this many per second, with bursts of a tenth of a second. A lane that
/// waits takes nothing before its turn. So a change of the rate also counts for lanes that wait already, and
/// lets no lane through that would wait without it.
#[derive(Debug)]
struct Bucket {
    per_second: Option<f64>,
    /// What may pass at once; below 0 while what has passed is paid off.
    allowed: f64,
    /// When it grew last.
    grown_at: Instant,
}

/// How far a bucket may fill up while no lane takes from it.
const BURST: Duration = Duration::from_millis(100);

/// How long a lane waits at most before it looks again. A computed wait may be infinite.
const WAIT_MAX: Duration = Duration::from_secs(60);

impl Bucket {
    fn new(per_second: Option<u64>) -> Bucket {
        Bucket { per_second: rate(per_second), allowed: 0.0, grown_at: Instant::now() }
    }

    /// Changes the rate. What has passed is still paid off.
    fn set(&mut self, per_second: Option<f64>, now: Instant) {
        self.grow(now);
        if self.per_second.is_none() {
            self.allowed = 0.0;
        }
        self.per_second = per_second;
    }

    fn grow(&mut self, now: Instant) {
        let since = now.saturating_duration_since(std::mem::replace(&mut self.grown_at, now));
        if let Some(per_second) = self.per_second {
            let full = per_second * BURST.as_secs_f64();
            self.allowed = (self.allowed + since.as_secs_f64() * per_second).min(full);
        }
    }

    /// Takes so much, or says how long to wait before it is tried again. An amount above the rate passes at
    /// once and makes the next ones wait longer.
    fn take(&mut self, amount: u64, now: Instant) -> Result<(), Duration> {
        let Some(per_second) = self.per_second else { return Ok(()) };
        self.grow(now);
        if self.allowed < 0.0 {
            let wait_s = (-self.allowed / per_second).min(WAIT_MAX.as_secs_f64());
            return Err(Duration::from_secs_f64(wait_s));
        }
        self.allowed -= amount as f64;
        Ok(())
    }

    /// Takes so much whether it may pass or not.
    fn take_anyway(&mut self, amount: u64, now: Instant) {
        self.grow(now);
        self.allowed -= amount as f64;
    }
}

/// Those that wait: its lock is given in the order in which it is asked for.
type Queue = tokio::sync::Mutex<()>;

/// None a second would never end: that is what a pause is for.
fn rate(per_second: Option<u64>) -> Option<f64> {
    per_second.filter(|rate| *rate > 0).map(|rate| rate as f64)
}

/// How fast keys of a job move, and whether they do at all. Clones share it: a request to the job changes
/// it while its lanes take from it.
#[derive(Debug, Clone)]
pub struct Rates(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    keys: Mutex<Bucket>,
    bytes: Mutex<Bucket>,
    /// The lanes that wait for keys, and for bytes, in the order in which they came: a lane that others
    /// overtake again and again would keep its pages unfinished.
    queues: [Queue; 2],
    /// What slow servers leave of the keys; see [`crate::latency`].
    slowed: Mutex<Slowed>,
    /// Keys that were let pass.
    taken: AtomicU64,
    /// How many [`Lifted`] there are.
    lifted: AtomicUsize,
    /// Keys move at these times of the day alone.
    window: Mutex<Option<Window>>,
    /// What bounds the values in flight, of a job that has such a bound, and how large the user has made it.
    memory: Mutex<(Option<MemoryBudget>, Option<u64>)>,
    /// How many lanes a job has that can have others.
    lanes: Mutex<Steered<LaneCounts>>,
    /// How long writes may be paused at once, in milliseconds, of a job for which that can be changed.
    max_pause_ms: Mutex<Steered<u64>>,
    /// The shortest pause that suffices, in milliseconds, as it was measured last.
    least_pause_ms: AtomicU64,
    /// Changes with everything that is steered, so that waiting lanes look again.
    pause: watch::Sender<Pause>,
}

/// A value that may be changed, of a job that goes by it.
#[derive(Debug)]
struct Steered<T> {
    /// Whether the job does.
    is_followed: bool,
    /// What the user has made it.
    changed: Option<T>,
}

impl<T> Default for Steered<T> {
    fn default() -> Self {
        Steered { is_followed: false, changed: None }
    }
}

/// Why no keys move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Pause {
    /// The user has paused the job.
    by_user: bool,
    /// Its window is closed, until this moment, in seconds since the epoch.
    until_s: Option<u64>,
}

impl Pause {
    fn is_on(self) -> bool {
        self.by_user || self.until_s.is_some()
    }
}

/// How far a job is slowed down for the sake of its servers' clients.
#[derive(Debug)]
struct Slowed {
    /// How long a server may take for an answer, in milliseconds.
    max_latency_ms: Option<u64>,
    /// How far replicas of the target may be behind.
    max_lag: Option<MaxLag>,
    /// How much of a core a server may use, in percent.
    max_load: MaxLoad,
    /// Keys a second that slow servers allow.
    bucket: Bucket,
    /// A lane had to wait since that was last asked.
    has_waited: bool,
    /// What slows it down.
    strain: Strain,
}

/// What a job is slowed down for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Strain {
    /// What the slowest server took for an answer, in milliseconds.
    Latency(f64),
    /// How far a replica of the target is behind.
    Lag(Lag),
    /// How much of a core the busiest server used, in percent.
    Load(f64),
}

impl Slowed {
    /// Takes this many keys, or says how long to wait before it is tried again. The rate changes meanwhile.
    fn take(&mut self, keys: u64, now: Instant) -> Result<(), Duration> {
        self.bucket.take(keys, now).map_err(|wait| {
            self.has_waited = true;
            wait.min(SLOWED_POLL)
        })
    }
}

/// Now, in seconds since the epoch.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// How long those that wait for slow servers wait before they look again: the rate changes meanwhile.
const SLOWED_POLL: Duration = Duration::from_millis(100);

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
        let (keys, bytes) = (Mutex::new(Bucket::new(keys)), Mutex::new(Bucket::new(bytes)));
        let slowed = Mutex::new(Slowed {
            max_latency_ms: None,
            max_lag: None,
            max_load: MaxLoad::NONE,
            bucket: Bucket::new(None),
            has_waited: false,
            strain: Strain::Latency(0.0),
        });
        Rates(Arc::new(Shared {
            keys,
            bytes,
            queues: Default::default(),
            slowed,
            taken: AtomicU64::new(0),
            lifted: AtomicUsize::new(0),
            window: Mutex::default(),
            memory: Mutex::default(),
            lanes: Mutex::default(),
            max_pause_ms: Mutex::default(),
            least_pause_ms: AtomicU64::new(0),
            pause: watch::Sender::default(),
        }))
    }

    /// Those that are named; all others are no bound.
    pub fn of(named: RateChange) -> Rates {
        let rates = Rates::default();
        rates.change(named);
        rates
    }

    /// Waits until this many keys may be read.
    pub async fn take_keys(&self, n: u64) {
        let [queue, _] = &self.0.queues;
        let _first = queue.lock().await;
        self.take(&self.0.keys, n).await;
        while !self.is_lifted() {
            let taken = self.0.slowed.lock().take(n, Instant::now());
            let Err(wait) = taken else { break };
            sleep(wait).await;
        }
        self.0.taken.fetch_add(n, Ordering::Relaxed);
    }

    /// How many keys are read together at most, so that none of them is read long before its time: those of a
    /// tenth of a second. At least one; all there are if there is no rate.
    pub(crate) fn keys_at_once(&self) -> usize {
        let per_second = self.0.keys.lock().per_second;
        per_second.map_or(usize::MAX, |rate| (rate * BURST.as_secs_f64()).max(1.0) as usize)
    }

    /// Nothing waits for rates until it is dropped: clients wait for what is to be moved.
    #[must_use]
    pub fn lift(&self) -> Lifted {
        self.0.lifted.fetch_add(1, Ordering::Relaxed);
        self.0.pause.send_modify(|_| {});
        Lifted(self.clone())
    }

    fn is_lifted(&self) -> bool {
        self.0.lifted.load(Ordering::Relaxed) > 0
    }

    /// How long a server may take for an answer, in milliseconds; `None` for as long as it likes.
    pub(crate) fn max_latency_ms(&self) -> Option<u64> {
        self.0.slowed.lock().max_latency_ms
    }

    /// How far replicas of the target may be behind; `None` for as far as they like.
    pub(crate) fn max_lag(&self) -> Option<MaxLag> {
        self.0.slowed.lock().max_lag
    }

    /// How much of a core a server may use, in percent; `None` for as much as it likes.
    pub(crate) fn max_load_percent(&self) -> Option<u64> {
        self.0.slowed.lock().max_load.percent()
    }

    /// Whether there is a bound for one of these.
    pub(crate) fn is_limited(&self) -> bool {
        self.max_latency_ms().is_some() || self.max_lag().is_some() || self.max_load_percent().is_some()
    }

    /// Waits until there is.
    pub(crate) async fn until_limited(&self) {
        let mut changes = self.0.pause.subscribe();
        // Fails only once the sender is gone, which `self` keeps.
        let _ = changes.wait_for(|_| self.is_limited()).await;
    }

    /// Waits until keys move at certain times alone.
    pub(crate) async fn until_windowed(&self) {
        let mut changes = self.0.pause.subscribe();
        let _ = changes.wait_for(|_| self.0.window.lock().is_some()).await;
    }

    /// Pauses or goes on by the time of the day, which is `now_s` seconds since the epoch. False if keys move
    /// at any time.
    pub(crate) fn keep_window(&self, now_s: u64) -> bool {
        let window = *self.0.window.lock();
        let closed = window.filter(|window| !window.contains(now_s));
        let until_s = closed.map(|window| window.begins_after(now_s));
        // Only changes wake a lane that waits for a rate.
        self.0.pause.send_if_modified(|pause| std::mem::replace(&mut pause.until_s, until_s) != until_s);
        window.is_some()
    }

    /// From now on it is changed with the rates how much memory values in flight may take.
    pub(crate) fn steer_memory(&self, budget: &MemoryBudget) {
        self.0.memory.lock().0 = Some(budget.clone());
    }

    /// Whether that can be changed.
    pub fn steers_memory(&self) -> bool {
        self.0.memory.lock().0.is_some()
    }

    /// From now on the job goes by how many [`Rates::lanes`] there are.
    pub(crate) fn steer_lanes(&self) {
        self.0.lanes.lock().is_followed = true;
    }

    /// Whether that can be changed.
    pub fn steers_lanes(&self) -> bool {
        self.0.lanes.lock().is_followed
    }

    /// How many lanes there are to be, of a job that started with `began`.
    pub(crate) fn lanes(&self, began: LaneCounts) -> LaneCounts {
        self.0.lanes.lock().changed.unwrap_or(began)
    }

    /// From now on the job goes by [`Rates::max_pause_ms`].
    pub fn steer_pause(&self) {
        self.0.max_pause_ms.lock().is_followed = true;
    }

    /// Whether that can be changed.
    pub fn steers_pause(&self) -> bool {
        self.0.max_pause_ms.lock().is_followed
    }

    /// How long writes may be paused at once, in milliseconds; `None` if the user has not changed that.
    pub fn max_pause_ms(&self) -> Option<u64> {
        self.0.max_pause_ms.lock().changed
    }

    /// Waits until the user has changed that to another value than `now_ms`, and returns it.
    pub async fn until_pause_changes(&self, now_ms: u64) -> u64 {
        let mut changes = self.0.pause.subscribe();
        loop {
            if let Some(ms) = self.max_pause_ms().filter(|ms| *ms != now_ms) {
                return ms;
            }
            // Fails only once the sender is gone, which `self` keeps.
            let _ = changes.changed().await;
        }
    }

    /// A shorter pause than this, in milliseconds, does not suffice.
    pub fn needs_pause(&self, least_ms: u64) {
        self.0.least_pause_ms.store(least_ms, Ordering::Relaxed);
    }

    /// The shortest pause that suffices, in milliseconds; 0 if that is not known.
    pub fn least_pause_ms(&self) -> u64 {
        self.0.least_pause_ms.load(Ordering::Relaxed)
    }

    /// Waits until the job is not paused.
    pub async fn until_open(&self) {
        let mut changes = self.0.pause.subscribe();
        let _ = changes.wait_for(|pause| !pause.is_on()).await;
    }

    /// Whether a lane had to wait for slow servers since this was last asked.
    pub(crate) fn has_waited(&self) -> bool {
        std::mem::take(&mut self.0.slowed.lock().has_waited)
    }

    /// How many keys were let pass so far.
    pub(crate) fn keys_taken(&self) -> u64 {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// How many keys a second slow servers allow; `None` for as many as there are.
    pub(crate) fn slowed_to(&self) -> Option<f64> {
        self.0.slowed.lock().bucket.per_second
    }

    /// Allows this many keys a second from now on, because of this.
    pub(crate) fn slow_to(&self, per_second: Option<f64>, strain: Strain) {
        let mut slowed = self.0.slowed.lock();
        slowed.bucket.set(per_second, Instant::now());
        slowed.strain = strain;
    }

    /// How long a job takes that would take `left_ms`; unknown while no keys move.
    pub fn left_ms(&self, left_ms: Option<u64>) -> Option<u64> {
        left_ms.filter(|_| !self.now().is_paused())
    }

    /// How far slow servers hold the job back, in words; `None` if they do not.
    pub fn slowed_in_words(&self) -> Option<String> {
        let slowed = self.0.slowed.lock();
        let rate = slowed.bucket.per_second?;
        let why = match slowed.strain {
            Strain::Latency(ms) => format!("a server took {ms:.1} of {} ms", slowed.max_latency_ms?),
            Strain::Lag(lag) => format!("a replica of the target {}", lag.in_words(slowed.max_lag?)),
            Strain::Load(percent) => {
                format!("a server uses {percent:.0}% of a core, of {}", slowed.max_load)
            }
        };
        Some(format!("slowed to {} a second: {why}", format_count_of(rate as u64, "key")))
    }

    /// Waits until this many bytes may pass.
    pub async fn take_bytes(&self, n: u64) {
        let [_, queue] = &self.0.queues;
        let _first = queue.lock().await;
        self.take(&self.0.bytes, n).await;
    }

    async fn take(&self, bucket: &Mutex<Bucket>, amount: u64) {
        let mut changes = self.0.pause.subscribe();
        loop {
            // Before the bucket is read: a change after that is not missed. Fails only once the sender is
            // gone, which `self` keeps.
            let _ = changes.wait_for(|pause| !pause.is_on()).await;
            if self.is_lifted() {
                return bucket.lock().take_anyway(amount, Instant::now());
            }
            let taken = bucket.lock().take(amount, Instant::now());
            let Err(wait) = taken else { return };
            // A change ends the wait, and the bucket is read again.
            let _ = timeout(wait, changes.changed()).await;
        }
    }

    /// Changes rates. Lanes that wait notice at once.
    pub fn change(&self, change: RateChange) {
        for (bucket, rate) in [(&self.0.keys, change.keys), (&self.0.bytes, change.bytes)] {
            if let Some(rate) = rate {
                bucket.lock().set(self::rate(Some(rate)), Instant::now());
            }
        }
        if let Some(limit_ms) = change.max_latency_ms {
            self.0.slowed.lock().max_latency_ms = Some(limit_ms).filter(|ms| *ms > 0);
        }
        if let Some(lag) = change.max_lag {
            self.0.slowed.lock().max_lag = Some(lag).filter(|lag| *lag != MaxLag::NONE);
        }
        if let Some(load) = change.max_load {
            self.0.slowed.lock().max_load = load;
        }
        if let Some(times) = change.times {
            *self.0.window.lock() = match times {
                Times::Any => None,
                Times::Between(window) => Some(window),
            };
            self.keep_window(now_s());
        }
        if let Some(bytes) = change.memory_bytes
            && let (Some(budget), changed) = &mut *self.0.memory.lock()
        {
            budget.resize(bytes);
            *changed = Some(bytes);
        }
        if let Some(lanes) = change.lanes {
            self.0.lanes.lock().changed = Some(lanes);
        }
        if let Some(ms) = change.max_pause_ms {
            self.0.max_pause_ms.lock().changed = Some(ms);
        }
        self.0.pause.send_modify(|_| {});
    }

    /// Has no more keys read until it is called with false. What has been read is still written.
    pub fn pause(&self, pause: bool) {
        self.0.pause.send_modify(|now| now.by_user = pause);
    }

    /// How they are.
    pub fn now(&self) -> RatesNow {
        let of = |bucket: &Mutex<Bucket>| bucket.lock().per_second.map(|rate| rate as u64);
        let (rate_keys, rate_bytes) = (of(&self.0.keys), of(&self.0.bytes));
        let (max_latency_ms, max_lag) = (self.max_latency_ms(), self.max_lag());
        let max_load = Some(self.0.slowed.lock().max_load).filter(|load| *load != MaxLoad::NONE);
        let (between, pause) = (*self.0.window.lock(), *self.0.pause.borrow());
        let Pause { by_user: paused, until_s: paused_until_s } = pause;
        let memory_bytes = self.0.memory.lock().1;
        let (lanes, max_pause_ms) = (self.0.lanes.lock().changed, self.max_pause_ms());
        RatesNow {
            rate_keys,
            rate_bytes,
            max_latency_ms,
            max_lag,
            max_load,
            between,
            paused_until_s,
            memory_bytes,
            lanes,
            max_pause_ms,
            paused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_pass_in_a_second() {
        let mut bucket = Bucket::new(Some(10));
        let began = bucket.grown_at;
        let mut passes = |after_ms: u64| {
            let taken = bucket.take(10, began + Duration::from_millis(after_ms));
            taken.map_err(|wait| wait.as_millis())
        };
        // The first ones pass at once, and are paid for by the next.
        assert_eq!(
            [0, 0, 500, 1_000, 1_001].map(&mut passes),
            [Ok(()), Err(1_000), Err(500), Ok(()), Err(999)]
        );
        // What no lane took is lost, up to a burst.
        assert_eq!([60_000, 60_000].map(&mut passes), [Ok(()), Err(900)]);
        let mut unbounded = Bucket::new(Some(0));
        assert_eq!(unbounded.take(u64::MAX, began), Ok(()));
    }

    /// The first to come is let through first.
    #[tokio::test]
    async fn nobody_is_overtaken() {
        let rates = Rates::new(Some(1_000), None);
        rates.take_keys(50).await;
        let order = Arc::<Mutex<Vec<usize>>>::default();
        let waiting: Vec<_> = (0..8)
            .map(|number| {
                let (rates, order) = (rates.clone(), order.clone());
                tokio::spawn(async move {
                    rates.take_keys(10).await;
                    order.lock().push(number);
                })
            })
            .collect();
        for one in waiting {
            one.await.expect("it ends");
        }
        assert_eq!(*order.lock(), (0..8).collect::<Vec<_>>());
    }

    /// Settings, and those of no rate, let no waiting lane through.
    #[tokio::test]
    async fn a_change_of_something_else_lets_nobody_through() {
        let rates = Rates::new(Some(1_000), None);
        rates.take_keys(100_000).await;
        let waiting: Vec<_> = (0..8)
            .map(|_| {
                let rates = rates.clone();
                tokio::spawn(async move { rates.take_keys(100).await })
            })
            .collect();
        for lanes in 1..5 {
            rates.change(RateChange { lanes: Some(LaneCounts::of(lanes)), ..RateChange::default() });
            rates.change(RateChange { keys: Some(1_000), ..RateChange::default() });
            rates.pause(true);
            rates.pause(false);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
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
        rates.change(RateChange {
            keys: Some(0),
            bytes: Some(7),
            max_latency_ms: Some(5),
            ..RateChange::default()
        });
        let (rate_bytes, max_latency_ms) = (Some(7), Some(5));
        assert_eq!(rates.now(), RatesNow { rate_bytes, max_latency_ms, ..RatesNow::default() });
    }

    #[tokio::test]
    async fn slow_servers_leave_fewer_keys() {
        let rates = Rates::of(RateChange { max_latency_ms: Some(5), ..RateChange::default() });
        rates.slow_to(Some(1.0), Strain::Latency(9.0));
        rates.take_keys(1_000_000).await;
        assert!(waits(rates.take_keys(1)).await);
        let words = rates.slowed_in_words().expect("it is slowed down");
        assert_eq!(words, "slowed to 1 key a second: a server took 9.0 of 5 ms");
        let lifted = rates.lift();
        rates.take_keys(1).await;
        drop(lifted);
        assert!(waits(rates.take_keys(1)).await, "they are in force again");
        rates.change(RateChange { max_lag: Some(MaxLag::Bytes(1 << 20)), ..RateChange::default() });
        rates.slow_to(Some(1.0), Strain::Lag(Lag::Bytes(3 << 20)));
        let words = rates.slowed_in_words().expect("it is slowed down");
        assert_eq!(words, "slowed to 1 key a second: a replica of the target is 3.0 MiB behind, of 1.0 MiB");
        rates.slow_to(None, Strain::Latency(0.0));
        rates.take_keys(1).await;
        assert_eq!(rates.slowed_in_words(), None);
    }

    #[test]
    fn slow_servers_are_kept_to_the_rate_of_the_moment() {
        let rates = Rates::default();
        rates.slow_to(Some(50.0), Strain::Latency(9.0));
        let mut slowed = rates.0.slowed.lock();
        let began = slowed.bucket.grown_at;
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
        slowed.bucket.per_second = Some(1_000.0);
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

    /// A window is closed when it is set, and opens and closes with the time of the day.
    #[tokio::test]
    async fn outside_of_its_window_nothing_passes() {
        // Both of a day's halves: now it is in one of them.
        let window = |text: &str| text.parse::<Window>().expect("a window");
        let halves = [window("00:00-12:00"), window("12:00-00:00")];
        let closed = halves.into_iter().find(|window| !window.contains(now_s())).expect("one of them");
        let rates = Rates::of(RateChange { times: Some(Times::Between(closed)), ..RateChange::default() });
        assert!(waits(rates.take_keys(1)).await);
        rates.pause(false);
        assert!(waits(rates.take_bytes(1)).await, "to resume it does not open the window");
        let noon_s = 1_000_000 * 86_400 + 12 * 3_600;
        let night =
            RateChange { times: Some(Times::Between(window("22:00-02:30"))), ..RateChange::default() };
        rates.change(night);
        assert!(rates.keep_window(noon_s));
        assert_eq!(rates.now().pause_in_words().as_deref(), Some("paused until 22:00Z"));
        assert_eq!(rates.now().to_string(), "between 22:00-02:30Z; paused until 22:00Z");
        assert!(waits(rates.until_open()).await);
        let waiting = tokio::spawn({
            let rates = rates.clone();
            async move { rates.take_keys(1).await }
        });
        rates.keep_window(noon_s + 10 * 3_600);
        waiting.await.expect("it opens");
        rates.keep_window(noon_s + 14 * 3_600 + 1_800);
        assert_eq!(rates.now().pause_in_words().as_deref(), Some("paused until 22:00Z"), "it closes again");
        rates.change(RateChange { times: Some(Times::Any), ..RateChange::default() });
        assert!(!rates.keep_window(noon_s));
        rates.take_keys(1).await;
    }

    /// Looking at the clock must not let those through that wait for a rate.
    #[tokio::test]
    async fn a_window_that_stays_open_changes_no_rate() {
        let rates = Rates::new(Some(1), None);
        rates.take_keys(1_000_000).await;
        let always = "00:00-23:59".parse().expect("a window");
        rates.change(RateChange { times: Some(Times::Between(always)), ..RateChange::default() });
        let ticking = async {
            loop {
                rates.keep_window(3_600);
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = ticking => {}
            waited = waits(rates.take_keys(1)) => assert!(waited, "it passed"),
        }
    }
}
