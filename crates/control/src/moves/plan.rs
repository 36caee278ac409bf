//! What is about to move, how it is handed over, and about how long that takes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use whimbrel_core::node::NodeId;
use whimbrel_core::plan::Move;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;
use whimbrel_engine::handover::SlotFenceKind;

use super::situation::Situation;
use crate::pause::PauseNeed;
use crate::service::{self, HandoverPlan, Method, Settings};

/// How long a plan is taken to be true.
const FRESH: Duration = Duration::from_secs(2);

/// Keys a second that an estimate goes by, and bytes: what one source moves without load, or less.
const KEYS_PER_S: f64 = 60_000.0;
const BYTES_PER_S: f64 = 150e6;

/// What a slot and a batch cost besides their keys, in milliseconds.
const SLOT_MS: f64 = 0.1;
const BATCH_MS: f64 = 100.0;

/// What is about to happen.
#[derive(Debug)]
pub struct Plan {
    /// Which slots move to which node.
    pub moves: Vec<Move>,
    /// How each of them is handed over; none if the servers do that, or a daemon decides.
    handovers: Vec<HandoverPlan>,
    made: Instant,
    /// What is known of each of them.
    pub rows: Vec<Row>,
    /// How slots move.
    pub method: Method,
    /// Why.
    pub why: String,
    /// How long writes may be paused at once, in milliseconds; `None` if whimbrel does not pause them, or a
    /// daemon's options say.
    pub max_pause_ms: Option<u64>,
    /// How long the servers' own migration may not move before whimbrel's own method takes its place, in
    /// milliseconds; `None` if nothing does.
    pub native_stall_ms: Option<u64>,
    /// What a handover takes of that without writers.
    pub need: PauseNeed,
    rate_keys: Option<u64>,
    rate_bytes: Option<u64>,
    /// A node that the servers' own migration makes a replica.
    pub demoted: Option<String>,
    /// Primaries that have no slots, before and afterwards.
    pub empty: Vec<String>,
    /// Nodes that get slots of a primary with replicas, and have none themselves.
    pub without_replicas: Vec<String>,
}

/// What is known of a move.
#[derive(Debug)]
pub struct Row {
    /// The node that gives slots away, for people.
    pub source: String,
    /// The node that gets them.
    pub target: String,
    /// The slots.
    pub slots: SlotSet,
    /// How many keys they have.
    pub keys: u64,
    /// About how many bytes these take.
    pub bytes: u64,
    /// How many batches they are handed over in.
    pub batches: usize,
    /// How writes are fenced off, as far as whimbrel does that.
    pub fence: Option<SlotFenceKind>,
    /// While a child of the source saves, by another fence. See
    /// [`Handover::minds_children`](whimbrel_engine::handover::Handover::minds_children).
    pub minds_children: bool,
}

impl Plan {
    /// Puts together what is known.
    ///
    /// # Errors
    /// Whatever keeps us from connecting to the nodes, and as [`service::plan_handovers`].
    pub async fn new(
        deployment: &Deployment,
        situation: &Situation,
        moves: Vec<Move>,
        (method, why): (Method, String),
        settings: &Settings,
        by_daemon: bool,
    ) -> Result<Plan> {
        let mut rows = Vec::with_capacity(moves.len());
        let (mut max_pause_ms, mut need) = (None, PauseNeed::default());
        let native_stall_ms = settings.native_stall_ms.filter(|_| matches!(method, Method::Native(_)));
        let is_divided = !by_daemon && (method == Method::External || native_stall_ms.is_some());
        let mut handovers = match is_divided {
            true => {
                service::plan_handovers(deployment, &moves, settings, |node, slot| {
                    situation.keys_of(node, slot)
                })
                .await?
            }
            false => Vec::new(),
        };
        if method != Method::External {
            // The servers move the slots. We only had to know that our own method could take over.
            handovers.clear();
        }
        for (place, m) in moves.iter().enumerate() {
            let keys = situation.keys_in(&m.source, &m.slots);
            let (mut fence, mut minds_children, mut batches) = (None, false, 1);
            if let Some(handover) = handovers.get(place) {
                (fence, minds_children, batches) =
                    (Some(handover.fence), handover.minds_children, handover.parts.len());
                max_pause_ms = max_pause_ms.max(Some(handover.max_pause_ms));
                if handover.need.least_ms >= need.least_ms {
                    need = handover.need;
                }
            }
            if method == Method::Legacy && !by_daemon {
                service::check_legacy(deployment, m).await?;
            }
            rows.push(Row {
                source: situation.survey.name(&m.source).to_string(),
                target: situation.survey.name(&m.target).to_string(),
                slots: m.slots.clone(),
                keys,
                bytes: (keys as f64 * situation.key_bytes(&m.source)) as u64,
                batches,
                fence,
                minds_children,
            });
        }
        let demoted = match method {
            Method::Native(_) => {
                situation.emptied(&moves).map(|node| situation.survey.name(node).to_string())
            }
            Method::External | Method::Legacy => None,
        };
        Ok(Plan {
            demoted,
            empty: situation.left_empty(&moves),
            without_replicas: situation.without_replicas(&moves),
            rate_keys: settings.transfer.rate_keys.filter(|_| method == Method::External),
            rate_bytes: settings.transfer.rate_bytes.filter(|_| method == Method::External),
            moves,
            handovers,
            made: Instant::now(),
            rows,
            method,
            why,
            max_pause_ms,
            native_stall_ms,
            need,
        })
    }

    /// How the moves are handed over: as shown, or found out again if the question was open for a while.
    ///
    /// # Errors
    /// As [`service::plan_handovers`].
    pub async fn handovers(
        &self,
        deployment: &Deployment,
        situation: &Situation,
        settings: &Settings,
    ) -> Result<Vec<HandoverPlan>> {
        if self.made.elapsed() < FRESH || self.handovers.is_empty() {
            return Ok(self.handovers.clone());
        }
        let keys_of = |node: &NodeId, slot| situation.keys_of(node, slot);
        service::plan_handovers(deployment, &self.moves, settings, keys_of).await
    }

    /// When clients may see `CLUSTERDOWN`, for people.
    pub fn clusterdown(&self) -> Option<&'static str> {
        if self.rows.iter().any(|row| row.fence == Some(SlotFenceKind::Bare)) {
            return Some("with these servers clients may see CLUSTERDOWN for some milliseconds each time");
        }
        let minds_children = self.rows.iter().any(|row| row.minds_children);
        minds_children
            .then_some("clients may see CLUSTERDOWN while a source saves (not from Valkey 8.1.5 on)")
    }

    /// How long it takes without load, in milliseconds. Jobs of one source follow one another, those of
    /// different sources run at the same time.
    pub fn estimate_ms(&self) -> u64 {
        let mut by_source: BTreeMap<&str, f64> = BTreeMap::new();
        for row in &self.rows {
            let slower = |own: f64, rate: Option<u64>| rate.map_or(own, |rate| own.min(rate as f64));
            let keys_ms = row.keys as f64 / slower(KEYS_PER_S, self.rate_keys) * 1_000.0;
            let bytes_ms = row.bytes as f64 / slower(BYTES_PER_S, self.rate_bytes) * 1_000.0;
            *by_source.entry(&row.source).or_default() +=
                keys_ms.max(bytes_ms) + row.slots.len() as f64 * SLOT_MS + row.batches as f64 * BATCH_MS;
        }
        by_source.values().fold(0.0_f64, |most, &ms| most.max(ms)) as u64
    }

    /// How many slots move, how many keys they have, and about how many bytes these take.
    pub fn sums(&self) -> (usize, u64, u64) {
        self.rows.iter().fold((0, 0, 0), |(slots, keys, bytes), row| {
            (slots + row.slots.len(), keys + row.keys, bytes + row.bytes)
        })
    }

    /// How often the writes of one source are paused, at most.
    pub fn pauses_max(&self) -> usize {
        let mut of_source: BTreeMap<&str, usize> = BTreeMap::new();
        for row in &self.rows {
            *of_source.entry(&row.source).or_default() += row.batches;
        }
        of_source.values().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(source: &str, keys: u64, bytes: u64, batches: usize) -> Row {
        let slots = "0-99".parse().expect("slots");
        let target = "t".to_owned();
        Row {
            source: source.to_owned(),
            target,
            slots,
            keys,
            bytes,
            batches,
            fence: None,
            minds_children: false,
        }
    }

    fn plan(rows: Vec<Row>) -> Plan {
        Plan {
            moves: Vec::new(),
            handovers: Vec::new(),
            made: Instant::now(),
            rows,
            method: Method::External,
            why: String::new(),
            max_pause_ms: None,
            native_stall_ms: None,
            need: PauseNeed::default(),
            rate_keys: None,
            rate_bytes: None,
            demoted: None,
            empty: Vec::new(),
            without_replicas: Vec::new(),
        }
    }

    #[test]
    fn moves_of_one_source_follow_one_another_and_those_of_two_do_not() {
        let one = plan(vec![row("a", 60_000, 0, 1)]).estimate_ms();
        assert_eq!(one, 1_000 + 10 + 100);
        assert_eq!(plan(vec![row("a", 60_000, 0, 1), row("a", 60_000, 0, 1)]).estimate_ms(), 2 * one);
        assert_eq!(plan(vec![row("a", 60_000, 0, 1), row("b", 6_000, 0, 1)]).estimate_ms(), one);
        let both = plan(vec![row("a", 1, 2, 3), row("b", 10, 20, 2), row("a", 0, 0, 1)]);
        assert_eq!((both.sums(), both.pauses_max()), ((300, 11, 22), 4));
        assert_eq!((plan(vec![]).estimate_ms(), plan(vec![]).pauses_max()), (0, 0));
    }

    #[test]
    fn rates_and_large_values_make_it_longer() {
        let of = |rate_keys, rate_bytes| {
            Plan { rate_keys, rate_bytes, ..plan(vec![row("a", 60_000, 300_000_000, 0)]) }.estimate_ms()
        };
        assert_eq!(of(None, None), 2_000 + 10, "its bytes take longer than its keys");
        assert_eq!(of(Some(1_000), None), 60_000 + 10);
        assert_eq!(of(None, Some(1_000_000)), 300_000 + 10);
        assert_eq!(of(Some(1 << 40), Some(1 << 40)), of(None, None), "no rate makes it faster");
    }
}
