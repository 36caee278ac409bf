//! Slows a job down for as long as its servers are slow to answer.
//!
//! A connection to each primary of both sides sends `PING` every [`PERIOD`]. What the slowest of them takes
//! is compared with the limit of the job's [`Rates`]. It is what a client at the same place would wait: the
//! way to the server and back, and all that the server does before. Above the limit the job reads fewer keys
//! a second, below it more again, step by step ([`next_rate`]).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::link::Link;

use crate::budget::Rates;

/// Between two questions to one primary, where there are no more than [`NODES_OFTEN`].
const PERIOD: Duration = Duration::from_millis(20);

/// With more primaries each of them is asked less often, so that the questions themselves cost nothing.
const NODES_OFTEN: usize = 16;

/// How far back answers count.
const WINDOW: Duration = Duration::from_secs(1);

/// Between two steps of the rate.
const STEP: Duration = Duration::from_millis(250);

/// A primary that has not answered for this long counts as one that takes this long.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Keys a second that are read at least: a job that stands still ends never.
const FLOOR_PER_S: f64 = 50.0;

/// Watches the primaries of a job until dropped.
#[derive(Debug)]
pub struct Watching {
    /// Of one task, which ends with it.
    _task: JoinSet<()>,
}

/// Begins to watch the primaries of these deployments for a job. Without a limit nothing is asked.
pub fn watch(rates: &Rates, deployments: Vec<Arc<Deployment>>) -> Watching {
    let mut task = JoinSet::new();
    task.spawn(review(rates.clone(), deployments));
    Watching { _task: task }
}

/// Watches while there is a limit.
async fn review(rates: Rates, deployments: Vec<Arc<Deployment>>) {
    loop {
        rates.until_limited().await;
        let primaries = primaries_of(&deployments);
        let mut answers = Vec::new();
        let mut asking = JoinSet::new();
        let period = PERIOD * u32::try_from(primaries.len().div_ceil(NODES_OFTEN)).unwrap_or(1).max(1);
        for (at, address) in &primaries {
            let of_one = Arc::<Mutex<Answers>>::default();
            asking.spawn(ask(deployments[*at].clone(), address.clone(), period, of_one.clone()));
            answers.push(of_one);
        }
        // A primary that comes or goes has everything begin again; that costs a connection each.
        let (mut before, mut usual_per_s) = (rates.keys_taken(), 0.0_f64);
        while let Some(limit_ms) = rates.max_latency_ms()
            && primaries == primaries_of(&deployments)
        {
            sleep(STEP).await;
            let taken = rates.keys_taken();
            let per_s = taken.saturating_sub(before) as f64 / STEP.as_secs_f64();
            before = taken;
            // Keys pass in batches: many in one step, and none in the next ones.
            usual_per_s = usual_per_s * 0.8 + per_s * 0.2;
            let now = Instant::now();
            // The slowest one: others that are quick make nobody's wait shorter.
            let slow_ms = answers.iter().filter_map(|one| one.lock().slow_ms(now)).reduce(f64::max);
            if let Some(slow_ms) = slow_ms {
                let step = Step { per_s: usual_per_s.max(per_s), has_waited: rates.has_waited(), slow_ms };
                rates.slow_to(next_rate(rates.slowed_to(), step, limit_ms as f64), slow_ms);
            }
        }
        rates.slow_to(None, 0.0);
    }
}

fn primaries_of(deployments: &[Arc<Deployment>]) -> BTreeSet<(usize, Address)> {
    let of = |(at, deployment): (usize, &Arc<Deployment>)| {
        let primaries: Vec<Address> =
            deployment.topology().shards.iter().map(|shard| shard.primary.clone()).collect();
        primaries.into_iter().map(move |address| (at, address))
    };
    deployments.iter().enumerate().flat_map(of).collect()
}

/// Asks one primary, for ever. One that cannot be reached is for others to report: its job waits for it.
async fn ask(deployment: Arc<Deployment>, address: Address, period: Duration, answers: Arc<Mutex<Answers>>) {
    let mut link: Option<Link> = None;
    loop {
        let Some(open) = &mut link else {
            link = deployment.open(&address, 0).await.ok();
            sleep(period).await;
            continue;
        };
        let asked = Instant::now();
        let answered = timeout(ANSWER_MAX, open.ask(&[b"PING"])).await;
        answers.lock().add(asked, asked.elapsed());
        if !matches!(answered, Ok(Ok(_))) {
            // A reply that comes late must not be taken for that of the next question.
            link = None;
        }
        sleep(period.saturating_sub(asked.elapsed())).await;
    }
}

/// What was answered lately.
#[derive(Debug, Default)]
struct Answers(VecDeque<(Instant, Duration)>);

impl Answers {
    fn add(&mut self, asked: Instant, took: Duration) {
        self.0.push_back((asked + took, took));
    }

    /// The slowest answers but one in fifty, in milliseconds: one that is slow by chance slows nobody down.
    /// `None` where nobody has answered.
    fn slow_ms(&mut self, now: Instant) -> Option<f64> {
        while self.0.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > WINDOW) {
            self.0.pop_front();
        }
        let mut took: Vec<Duration> = self.0.iter().map(|(_, took)| *took).collect();
        took.sort_unstable();
        let at = took.len().checked_sub(1 + took.len() / 50)?;
        Some(took[at].as_secs_f64() * 1000.0)
    }
}

/// What happened since the last step.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Keys a second that were read.
    per_s: f64,
    /// Whether the job would have read more.
    has_waited: bool,
    /// What the slowest primary took for an answer, in milliseconds.
    slow_ms: f64,
}

/// Keys a second from now on; `None` for as many as there are.
fn next_rate(slowed_to: Option<f64>, step: Step, limit_ms: f64) -> Option<f64> {
    if step.slow_ms > limit_ms {
        // By as much as it is too slow, but not by more than half: what is measured is a second old.
        let factor = (limit_ms / step.slow_ms).clamp(0.5, 0.9);
        return Some((slowed_to.unwrap_or(step.per_s) * factor).max(FLOOR_PER_S));
    }
    let rate = slowed_to?;
    // What the job does not use is no reason to allow more: that would all come at once.
    Some(if step.slow_ms > limit_ms * 0.8 || !step.has_waited { rate } else { rate * 1.1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(per_s: f64, slow_ms: f64) -> Step {
        Step { per_s, has_waited: true, slow_ms }
    }

    #[test]
    fn too_slow_servers_are_read_less() {
        assert_eq!(next_rate(None, step(10_000.0, 4.0), 5.0), None);
        assert_eq!(next_rate(None, step(10_000.0, 10.0), 5.0), Some(5_000.0));
        assert_eq!(next_rate(Some(5_000.0), step(0.0, 500.0), 5.0), Some(2_500.0));
        assert_eq!(next_rate(Some(5_000.0), step(5_000.0, 4.5), 5.0), Some(5_000.0));
        assert_eq!(next_rate(Some(60.0), step(60.0, 500.0), 5.0), Some(FLOOR_PER_S));
    }

    #[test]
    fn servers_that_answer_again_are_read_more_step_by_step() {
        let mut rate = Some(1_000.0);
        for _ in 0..8 {
            rate = next_rate(rate, step(0.0, 1.0), 5.0);
        }
        assert!(rate.is_some_and(|rate| (2_100.0..2_200.0).contains(&rate)), "{rate:?}");
        let unused = Step { has_waited: false, ..step(10.0, 1.0) };
        assert_eq!(next_rate(Some(1_000.0), unused, 5.0), Some(1_000.0));
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
}
