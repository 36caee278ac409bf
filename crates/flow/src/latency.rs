//! Slows a job down for as long as its servers are slow to answer or busy, or replicas of its target are
//! behind; and keeps it to its times of the day.
//!
//! A connection to each primary of both sides sends `PING` every [`PERIOD`]. What the slowest of them takes
//! is compared with the limit of the job's [`Rates`]. It is what a client at the same place would wait: the
//! way to the server and back, and all that the server does before. Those that are written to are also asked
//! how far their replicas are, every [`INFO_PERIOD`]: see [`crate::lag`]; and all are asked how much of a
//! core they use: see [`crate::load`]. What is worst, by its limit, counts.
//! Above the limit the job reads fewer keys a second, below it more again, step by step ([`next_rate`]).

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use whimbrel_engine::deployment::{Deployment, Shard};
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Info;

use crate::budget::{Rates, Strain, now_s};
use crate::lag::{Lag, Offsets};
use crate::load::Used;

/// Between two questions to one primary, if there are no more than [`NODES_OFTEN`].
const PERIOD: Duration = Duration::from_millis(20);

/// With more primaries each of them is asked less often, so that the questions themselves cost nothing.
const NODES_OFTEN: usize = 16;

/// Between two questions to one primary for its replicas, or its load: replicas report more once a second.
const INFO_PERIOD: Duration = Duration::from_millis(250);

/// How far back answers count.
const WINDOW: Duration = Duration::from_secs(1);

/// Between two steps of the rate.
const STEP: Duration = Duration::from_millis(250);

/// A primary that has not answered for this long counts as taking this long.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Between two looks at the clock, of a job that moves keys at certain times alone.
const CLOCK_PERIOD: Duration = Duration::from_secs(1);

/// Keys a second that are read at least: a job that stands still ends never.
const FLOOR_PER_S: f64 = 50.0;

/// A deployment whose primaries are watched.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Which.
    pub deployment: Arc<Deployment>,
    /// Which of its primaries are written to.
    pub written: Written,
}

/// Which primaries are written to: how far the replicas of others are behind is not the job's doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// None.
    None,
    /// All.
    All,
    /// The one with this node id, which may have no slots yet: it was at this address.
    Node(String, Option<Address>),
}

impl Written {
    fn has(&self, shard: &Shard) -> bool {
        match self {
            Written::None => false,
            Written::All => true,
            Written::Node(id, _) => shard.id == *id,
        }
    }
}

/// Watches the primaries of a job until dropped.
#[derive(Debug)]
pub struct Watching {
    /// Its tasks, which end with it.
    _tasks: JoinSet<Infallible>,
}

/// Begins to watch the primaries of these deployments for a job, and the time of the day. Without a limit
/// nothing is asked.
pub fn watch(rates: &Rates, deployments: Vec<Watched>) -> Watching {
    let mut tasks = JoinSet::new();
    tasks.spawn(review(rates.clone(), deployments));
    tasks.spawn(keep_windows(rates.clone()));
    Watching { _tasks: tasks }
}

async fn keep_windows(rates: Rates) -> Infallible {
    loop {
        rates.until_windowed().await;
        while rates.keep_window(now_s()) {
            sleep(CLOCK_PERIOD).await;
        }
    }
}

/// Watches while there is a limit.
async fn review(rates: Rates, deployments: Vec<Watched>) -> Infallible {
    loop {
        rates.until_limited().await;
        let primaries = primaries_of(&deployments);
        let mut answers = Vec::new();
        let mut asking = JoinSet::new();
        let period = PERIOD * u32::try_from(primaries.len().div_ceil(NODES_OFTEN)).unwrap_or(1).max(1);
        for Primary { at, address, is_written } in &primaries {
            let of_one = Arc::<Mutex<Answers>>::default();
            let deployment = deployments[*at].deployment.clone();
            let asked = Asked { rates: rates.clone(), is_written: *is_written, answers: of_one.clone() };
            asking.spawn(ask(deployment, address.clone(), period, asked));
            answers.push(of_one);
        }
        // A primary that comes or goes has everything begin again; that costs a connection each.
        let (mut before, mut usual_per_s) = (rates.keys_taken(), 0.0_f64);
        while rates.is_limited() && primaries == primaries_of(&deployments) {
            sleep(STEP).await;
            let taken = rates.keys_taken();
            let per_s = taken.saturating_sub(before) as f64 / STEP.as_secs_f64();
            before = taken;
            // Keys pass in batches: many in one step, and none in the next ones.
            usual_per_s = usual_per_s * 0.8 + per_s * 0.2;
            if let Some((strain, share)) = worst(&rates, &answers) {
                let step = Step { per_s: usual_per_s.max(per_s), has_waited: rates.has_waited(), share };
                rates.slow_to(next_rate(rates.slowed_to(), step), strain);
            }
        }
        rates.slow_to(None, Strain::Latency(0.0));
    }
}

/// What is worst of all, by what is allowed: 1 is all of it. `None` if nothing is known.
fn worst(rates: &Rates, answers: &[Arc<Mutex<Answers>>]) -> Option<(Strain, f64)> {
    let now = Instant::now();
    // The slowest one: others that are quick make no wait shorter.
    let latency = rates.max_latency_ms().and_then(|limit_ms| {
        let slow_ms = answers.iter().filter_map(|one| one.lock().slow_ms(now)).reduce(f64::max)?;
        Some((Strain::Latency(slow_ms), slow_ms / limit_ms as f64))
    });
    let lags = rates.max_lag().into_iter().flat_map(|allowed| {
        let of = move |one: &Arc<Mutex<Answers>>| {
            let lag = one.lock().lag_at(now)?;
            Some((Strain::Lag(lag), lag.share_of(allowed)))
        };
        answers.iter().filter_map(of)
    });
    let loads = rates.max_load_percent().into_iter().flat_map(|allowed| {
        let of = move |one: &Arc<Mutex<Answers>>| {
            let load = one.lock().load_at(now)?;
            Some((Strain::Load(load), load / allowed as f64))
        };
        answers.iter().filter_map(of)
    });
    latency.into_iter().chain(lags).chain(loads).max_by(|(_, a), (_, b)| a.total_cmp(b))
}

/// A primary that is asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Primary {
    /// The place of its deployment.
    at: usize,
    address: Address,
    is_written: bool,
}

fn primaries_of(deployments: &[Watched]) -> BTreeSet<Primary> {
    let of = |(at, watched): (usize, &Watched)| {
        let topology = watched.deployment.topology();
        let primary = |shard: &Shard| {
            let (address, is_written) = (shard.primary.clone(), watched.written.has(shard));
            Primary { at, address, is_written }
        };
        let mut primaries: Vec<Primary> = topology.shards.iter().map(primary).collect();
        if let Written::Node(_, Some(address)) = &watched.written
            && !primaries.iter().any(|primary| primary.is_written)
        {
            primaries.push(Primary { at, address: address.clone(), is_written: true });
        }
        primaries
    };
    deployments.iter().enumerate().flat_map(of).collect()
}

/// What one primary is asked for, and what it has answered.
struct Asked {
    rates: Rates,
    is_written: bool,
    answers: Arc<Mutex<Answers>>,
}

/// Asks one primary, for ever. Other code reports a primary that cannot be reached: its job waits for it.
async fn ask(deployment: Arc<Deployment>, address: Address, period: Duration, asked: Asked) -> Infallible {
    let mut link = None::<Link>;
    let (mut offsets, mut used, mut info_asked) = (Offsets::default(), Used::default(), None::<Instant>);
    loop {
        let began = Instant::now();
        let Some(open) = &mut link else {
            link = open_slowly(&deployment, &address, &asked).await;
            sleep(period).await;
            continue;
        };
        let mut answers = true;
        if asked.rates.max_latency_ms().is_some() {
            answers = matches!(timeout(ANSWER_MAX, open.ask(&[b"PING"])).await, Ok(Ok(_)));
            asked.answers.lock().add(began, began.elapsed());
        }
        if answers && info_asked.is_none_or(|at| at.elapsed() >= INFO_PERIOD) {
            info_asked = Some(began);
            answers = ask_for_info(open, &asked, &mut offsets, &mut used).await;
        }
        if !answers {
            // A late reply must not be mistaken for that of the next question.
            link = None;
        }
        sleep(period.saturating_sub(began.elapsed())).await;
    }
}

/// Makes a connection, for as long as that may take. A primary that hangs accepts connections, and says
/// nothing on them either: it counts as slow meanwhile. A primary that refuses them does not.
async fn open_slowly(deployment: &Deployment, address: &Address, asked: &Asked) -> Option<Link> {
    let mut opening = std::pin::pin!(deployment.open(address, 0));
    loop {
        let began = Instant::now();
        match timeout(ANSWER_MAX, opening.as_mut()).await {
            Ok(opened) => return opened.ok(),
            Err(_) if asked.rates.max_latency_ms().is_some() => {
                asked.answers.lock().add(began, began.elapsed());
            }
            Err(_) => {}
        }
    }
}

/// Asks one primary for its replicas and its load, if these are limited; false if it does not answer.
async fn ask_for_info(link: &mut Link, asked: &Asked, offsets: &mut Offsets, used: &mut Used) -> bool {
    if let Some(allowed) = asked.rates.max_lag().filter(|_| asked.is_written) {
        let Some(info) = info_of(link, b"replication").await else { return false };
        let lag = info.and_then(|info| offsets.behind(&info, allowed, Instant::now()));
        asked.answers.lock().lag = lag.map(|lag| (Instant::now(), lag));
    }
    if asked.rates.max_load_percent().is_some() {
        let Some(info) = info_of(link, b"cpu").await else { return false };
        let load = info.and_then(|info| used.percent(&info, Instant::now()));
        asked.answers.lock().load = load.map(|load| (Instant::now(), load));
    }
    true
}

/// What a server says about itself; the inner value is `None` if the user may not ask: that is an error, and
/// no limit. `None` if it does not answer.
async fn info_of(link: &mut Link, section: &[u8]) -> Option<Option<Info>> {
    match timeout(ANSWER_MAX, link.ask(&[b"INFO", section])).await {
        Ok(Ok(reply)) => Some(reply.as_bytes().map(|text| Info::parse(text))),
        _ => None,
    }
}

/// What was answered lately.
#[derive(Debug, Default)]
struct Answers {
    took: VecDeque<(Instant, Duration)>,
    /// How far the last of its replicas is behind, and when that was said.
    lag: Option<(Instant, Lag)>,
    /// How much of a core it uses, in percent, and when that was said.
    load: Option<(Instant, f64)>,
}

impl Answers {
    fn add(&mut self, asked: Instant, took: Duration) {
        self.took.push_back((asked + took, took));
    }

    /// How far replicas are behind, if that was reported lately.
    fn lag_at(&self, now: Instant) -> Option<Lag> {
        self.lag.filter(|(at, _)| is_new(*at, now)).map(|(_, lag)| lag)
    }

    /// How much of a core it uses, if that was reported lately.
    fn load_at(&self, now: Instant) -> Option<f64> {
        self.load.filter(|(at, _)| is_new(*at, now)).map(|(_, load)| load)
    }

    /// The slowest answer after leaving out one in fifty, in milliseconds: an answer that is slow by chance
    /// slows nothing down. `None` if there was no answer.
    fn slow_ms(&mut self, now: Instant) -> Option<f64> {
        while self.took.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > WINDOW) {
            self.took.pop_front();
        }
        let mut took: Vec<Duration> = self.took.iter().map(|(_, took)| *took).collect();
        took.sort_unstable();
        let at = took.len().checked_sub(1 + took.len() / 50)?;
        Some(took[at].as_secs_f64() * 1000.0)
    }
}

/// Whether what was said `at` that moment still counts.
fn is_new(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) <= ANSWER_MAX + WINDOW
}

/// What happened since the last step.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Keys a second that were read.
    per_s: f64,
    /// Whether the job would have read more.
    has_waited: bool,
    /// What is worst, as a share of what is allowed: 1 is all of it.
    share: f64,
}

/// Keys a second from now on; `None` for as many as there are.
fn next_rate(slowed_to: Option<f64>, step: Step) -> Option<f64> {
    if step.share > 1.0 {
        // By as much as it is too much, but not by more than half: what is measured is a second old.
        let factor = (1.0 / step.share).clamp(0.5, 0.9);
        return Some((slowed_to.unwrap_or(step.per_s) * factor).max(FLOOR_PER_S));
    }
    let rate = slowed_to?;
    // What the job does not use is no reason to allow more: that would all come at once.
    Some(if step.share > 0.8 || !step.has_waited { rate } else { rate * 1.1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lag::MaxLag;

    /// A step of a job whose slowest server took this long of 5 ms.
    fn step(per_s: f64, slow_ms: f64) -> Step {
        Step { per_s, has_waited: true, share: slow_ms / 5.0 }
    }

    #[test]
    fn too_slow_servers_are_read_less() {
        assert_eq!(next_rate(None, step(10_000.0, 4.0)), None);
        assert_eq!(next_rate(None, step(10_000.0, 10.0)), Some(5_000.0));
        assert_eq!(next_rate(Some(5_000.0), step(0.0, 500.0)), Some(2_500.0));
        assert_eq!(next_rate(Some(5_000.0), step(5_000.0, 4.5)), Some(5_000.0));
        assert_eq!(next_rate(Some(60.0), step(60.0, 500.0)), Some(FLOOR_PER_S));
    }

    #[test]
    fn servers_that_answer_again_are_read_more_step_by_step() {
        let mut rate = Some(1_000.0);
        for _ in 0..8 {
            rate = next_rate(rate, step(0.0, 1.0));
        }
        assert!(rate.is_some_and(|rate| (2_100.0..2_200.0).contains(&rate)), "{rate:?}");
        let unused = Step { has_waited: false, ..step(10.0, 1.0) };
        assert_eq!(next_rate(Some(1_000.0), unused), Some(1_000.0));
    }

    #[test]
    fn one_slow_answer_of_fifty_is_chance() {
        let (now, mut answers) = (Instant::now(), Answers::default());
        assert_eq!(answers.slow_ms(now), None);
        for _ in 0..49 {
            answers.add(now, Duration::from_millis(1));
        }
        answers.add(now, Duration::from_millis(80));
        assert_eq!(answers.slow_ms(now), Some(1.0));
        answers.add(now, Duration::from_millis(70));
        answers.add(now, Duration::from_millis(70));
        assert_eq!(answers.slow_ms(now), Some(70.0));
        assert_eq!(answers.slow_ms(now + Duration::from_secs(5)), None, "what was long ago says nothing");
    }

    /// What is worse by its limit counts, and what is long known does not.
    #[test]
    fn replicas_that_are_behind_slow_a_job_down() {
        use crate::budget::RateChange;
        let (now, mut one) = (Instant::now(), Answers::default());
        one.add(now, Duration::from_millis(4));
        one.lag = Some((now, Lag::Bytes(300)));
        let answers = [Arc::new(Mutex::new(one)), Arc::<Mutex<Answers>>::default()];
        let limits = |max_latency_ms: Option<u64>, max_lag: Option<MaxLag>| {
            Rates::of(RateChange { max_latency_ms, max_lag, ..RateChange::default() })
        };
        let bytes = |bytes: u64| Some(MaxLag::Bytes(bytes));
        assert_eq!(worst(&limits(Some(2), bytes(200)), &answers), Some((Strain::Latency(4.0), 2.0)));
        assert_eq!(worst(&limits(Some(8), bytes(200)), &answers), Some((Strain::Lag(Lag::Bytes(300)), 1.5)));
        assert_eq!(worst(&limits(None, bytes(200)), &answers), Some((Strain::Lag(Lag::Bytes(300)), 1.5)));
        assert_eq!(worst(&limits(None, None), &answers), None);
        assert_eq!(answers[0].lock().lag_at(now + Duration::from_secs(5)), None);
    }

    #[test]
    fn busy_servers_slow_a_job_down() {
        use crate::budget::RateChange;
        let now = Instant::now();
        let of = |load: f64| Arc::new(Mutex::new(Answers { load: Some((now, load)), ..Answers::default() }));
        let answers = [of(30.0), of(90.0)];
        let limits = |percent: &str| {
            Rates::of(RateChange {
                max_load: Some(percent.parse().expect("a load")),
                ..RateChange::default()
            })
        };
        assert_eq!(worst(&limits("60%"), &answers), Some((Strain::Load(90.0), 1.5)));
        assert_eq!(worst(&limits("100%"), &answers), Some((Strain::Load(90.0), 0.9)));
        assert_eq!(worst(&Rates::default(), &answers), None);
        assert_eq!(answers[0].lock().load_at(now + Duration::from_secs(5)), None);
    }
}
