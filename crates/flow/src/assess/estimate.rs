//! How long a migration would take, by what reading a sample took. Pure.

use serde::Serialize;

use super::facts::Facts;
use super::ways::{Way, WayKind};

/// Reading and writing go on at the same time; of a target nothing is known but how far away it is. So a copy
/// takes between what reading takes with all lanes and this much of what it takes with one.
const SLOW_FACTOR: f64 = 1.5;

/// Questions that are asked one after another while writes are paused.
const PAUSE_QUESTIONS: u64 = 8;

/// How many seconds of writes are left to transfer when writes are paused: about as long as a round takes.
const LEFT_SECONDS: f64 = 0.1;

/// How fast values travel that are much longer than those that were read, in bytes each microsecond.
const LONG_BYTES_PER_US: f64 = 100.0;

/// From least to most, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Span {
    /// If all goes well.
    pub least_ms: u64,
    /// If it does not.
    pub most_ms: u64,
}

/// How long a migration would take. If no key could be read for it, nothing is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Estimates {
    /// Bytes to carry over, as `DUMP` has them.
    pub payload_bytes: Option<u64>,
    /// Until all keys are copied.
    pub copy: Option<Span>,
    /// Until a sync has caught up; `None` also if it never would.
    pub sync: Option<Span>,
    /// For how long writes would be paused.
    pub pause: Option<Span>,
    /// Keys that can be carried over each second, at least.
    pub carried_per_second: Option<u64>,
}

impl Estimates {
    /// Without the times of ways that are not open. If no way was tried, any may be open.
    pub fn of_open(self, ways: &[Way]) -> Estimates {
        if ways.is_empty() {
            return self;
        }
        let is_open = |is: &dyn Fn(WayKind) -> bool| ways.iter().any(|way| way.is_open() && is(way.kind));
        let copy = self.copy.filter(|_| is_open(&|kind| kind == WayKind::Copy));
        let sync = self.sync.filter(|_| copy.is_some() && is_open(&WayKind::follows));
        let pause = self.pause.filter(|_| sync.is_some() && is_open(&WayKind::pauses));
        Estimates { copy, sync, pause, ..self }
    }
}

/// Estimates.
pub fn estimate(facts: &Facts) -> Estimates {
    let dumped = facts.sample.dumped;
    let keys = facts.source.keys();
    if dumped.keys == 0 {
        return Estimates::default();
    }
    let bytes_per_key = match facts.sample.keys {
        // Large values are in the sample, and were not read: their part is that of their memory.
        n if n > 0 && facts.sample.bytes > 0 => facts.sample.bytes.min(u64::MAX / 2) as f64 / n as f64,
        _ => dumped.bytes as f64 / dumped.keys as f64,
    };
    let longer = (bytes_per_key - dumped.bytes as f64 / dumped.keys as f64).max(0.0);
    let key_us = dumped.took_us as f64 / dumped.keys as f64
        + per_key(facts.target_rtt_us)
        + if facts.sample.large > 0 { longer / LONG_BYTES_PER_US } else { 0.0 };
    let shards = facts.source.primaries().count().max(1);
    let largest_shard = facts.source.primaries().map(|node| node.keys).max().unwrap_or(keys);
    let turns = shards.div_ceil(facts.plan.shards_at_once.max(1)) as f64;
    let one_lane_us = largest_shard as f64 * turns * key_us;
    // Four lanes of one server are seldom four times as fast: half of it is what can be had.
    let lanes = (facts.plan.lanes as f64 / 2.0).max(1.0);
    let bound_ms =
        |rate: Option<u64>, amount: f64| rate.map_or(0.0, |rate| amount / rate.max(1) as f64 * 1e3);
    let payload = keys as f64 * bytes_per_key;
    let floor = bound_ms(facts.plan.rate_keys, keys as f64).max(bound_ms(facts.plan.rate_bytes, payload));
    let copy = span((one_lane_us / lanes / 1e3).max(floor), (one_lane_us * SLOW_FACTOR / 1e3).max(floor));
    let writes = facts.rate.writes_per_second;
    let most = 1e6 / key_us * shards.min(facts.plan.shards_at_once.max(1)) as f64;
    // What is written while keys are copied has to be copied again, and so on.
    let share = writes / most;
    let sync = (share < 1.0).then(|| {
        let again = 1.0 / (1.0 - share);
        span(copy.least_ms as f64, copy.most_ms as f64 * again)
    });
    let questions = (PAUSE_QUESTIONS * (facts.sample.rtt_us + facts.target_rtt_us)) as f64 / 1e3;
    let left_ms = writes * LEFT_SECONDS * key_us / 1e3;
    let pause = sync.map(|_| span(questions, questions * SLOW_FACTOR + left_ms));
    Estimates {
        payload_bytes: Some(payload as u64),
        copy: Some(copy),
        sync,
        pause,
        carried_per_second: Some(most as u64),
    }
}

/// What the way to the target adds to each key of a batch, in microseconds.
fn per_key(rtt_us: u64) -> f64 {
    rtt_us as f64 / 100.0
}

fn span(least_ms: f64, most_ms: f64) -> Span {
    let whole = |ms: f64| (ms.ceil() as u64).max(1);
    Span { least_ms: whole(least_ms), most_ms: whole(most_ms.max(least_ms)) }
}

#[cfg(test)]
mod tests {
    use whimbrel_engine::inventory::{Inventory, NodeFacts, Rate};
    use whimbrel_engine::probe::DbCounts;

    use super::*;
    use crate::assess::facts::Planned;
    use crate::assess::sample::{Dumped, Sample};

    fn facts(keys: u64) -> Facts {
        let node = NodeFacts { primary: true, keys, ..NodeFacts::default() };
        let databases = [(0, DbCounts { keys, ..DbCounts::default() })].into();
        Facts {
            source: Inventory { nodes: vec![node], databases, ..Inventory::default() },
            sample: Sample {
                keys: 1_000,
                bytes: 100_000,
                dumped: Dumped { keys: 1_000, bytes: 50_000, took_us: 10_000 },
                rtt_us: 100,
                ..Sample::default()
            },
            plan: Planned { lanes: 4, shards_at_once: 8, ..Planned::default() },
            ..Facts::default()
        }
    }

    #[test]
    fn time_grows_with_keys_and_not_with_shards() {
        let one = estimate(&facts(1_000_000)).copy.expect("known");
        assert_eq!(one, Span { least_ms: 5_000, most_ms: 15_000 });
        let two = estimate(&facts(2_000_000)).copy.expect("known");
        assert_eq!(two, Span { least_ms: 10_000, most_ms: 30_000 });
        let mut shared = facts(2_000_000);
        let half = NodeFacts { primary: true, keys: 1_000_000, ..NodeFacts::default() };
        shared.source.nodes = vec![half.clone(), half];
        assert_eq!(estimate(&shared).copy, Some(one));
    }

    #[test]
    fn large_keys_take_their_time() {
        let mut large = facts(1_000_000);
        (large.sample.large, large.sample.bytes) = (1, 10_050_000);
        assert_eq!(estimate(&large).copy.expect("known").least_ms, 55_000);
    }

    #[test]
    fn limits_are_kept() {
        let mut slow = facts(1_000_000);
        slow.plan.rate_keys = Some(1_000);
        assert_eq!(estimate(&slow).copy.expect("known").least_ms, 1_000_000);
        slow.plan.rate_bytes = Some(50_000);
        assert_eq!(estimate(&slow).copy.expect("known").least_ms, 2_000_000);
    }

    #[test]
    fn nothing_is_estimated_of_ways_that_are_closed() {
        let all = estimate(&facts(1_000));
        let of = |open: &[WayKind]| {
            let problem = |kind| (!open.contains(&kind)).then(|| "it is forbidden".to_owned());
            let way = |kind| Way { kind, problem: problem(kind), remedy: None };
            all.of_open(&WayKind::ALL.map(way))
        };
        let tracked = of(&[WayKind::Copy, WayKind::FollowTracking, WayKind::CutoverExternal]);
        assert_eq!((tracked.copy, tracked.sync, tracked.pause), (all.copy, all.sync, None));
        assert_eq!(of(&[WayKind::Copy, WayKind::FollowTracking, WayKind::CutoverFront]).pause, all.pause);
        assert_eq!(of(&[WayKind::Copy, WayKind::CutoverAcl]).sync, None);
        assert_eq!(of(&[WayKind::FollowReplication]).copy, None);
        assert_eq!(all.of_open(&[]), all);
    }

    #[test]
    fn a_sync_that_is_outrun_never_catches_up() {
        let mut busy = facts(1_000);
        assert!(estimate(&busy).sync.is_some());
        busy.rate = Rate { writes_per_second: 200_000.0, ..Rate::default() };
        let outrun = estimate(&busy);
        assert_eq!((outrun.sync, outrun.pause), (None, None));
        assert_eq!(outrun.carried_per_second, Some(100_000));
        assert_eq!(estimate(&Facts::default()), Estimates::default(), "nothing was read");
    }
}
