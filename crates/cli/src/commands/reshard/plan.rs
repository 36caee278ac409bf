//! What is about to move, shown before anything does.

use std::collections::BTreeMap;

use serde_json::json;
use whimbrel_control::pause::PauseNeed;
use whimbrel_control::service::{self, Method, Native};
use whimbrel_control::strangers::{self, Own};
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::{Move, Shard, SlotCosts};
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_core::units::{format_bytes, format_count_of, format_duration_ms};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::handover::FenceKind;
use whimbrel_engine::native::NativeSupport;
use whimbrel_engine::nodes::{Counted, NodeState, Survey, SurveyOptions, Surveyed};

use super::settings::settings;
use crate::settings::args::{Balanced, MethodChoice, MovingArgs, VerifyChoice};

/// Keys a second that an estimate goes by, and bytes: what one source moves without load, or less.
const KEYS_PER_S: f64 = 60_000.0;
const BYTES_PER_S: f64 = 150e6;

/// What a slot and a batch cost besides their keys, in milliseconds.
const SLOT_MS: f64 = 0.1;
const BATCH_MS: f64 = 100.0;

/// Why the method is whimbrel's own unless something else is asked for.
const PROMISES: &str = "it compares before each handover and bounds each pause";

/// Why it is the servers' own where no other leaves a node clean.
const HIDDEN: &str =
    "these servers hide keys of slots that a node gave away, and remove them only after a move of their own";

/// How many ranges of slots are shown for each move.
const RANGES_SHOWN: usize = 6;

/// An error about options that make no sense, or not for this cluster.
pub fn usage(what: &str) -> Error {
    Error::options(Side::Own, "understand the options", what)
}

/// The cluster as it was found.
pub struct Situation {
    survey: Survey,
    /// The primaries and what they own.
    pub shards: Vec<Shard>,
    /// Who owns each slot.
    owners: BTreeMap<NodeId, usize>,
}

impl Situation {
    /// Asks every node.
    ///
    /// # Errors
    /// Where no node answers, or a primary with slots does not.
    pub async fn find(deployment: &Deployment) -> Result<Situation> {
        let what = SurveyOptions { counts: Counted::Owned, activity: true };
        let survey = Survey::take_with(deployment, what).await?;
        let mut shards = Vec::new();
        let mut owners = BTreeMap::new();
        for (node, state) in survey.answering_primaries() {
            owners.insert(node.id.clone(), shards.len());
            shards.push(Shard { id: node.id.clone(), slots: state.slots.clone() });
        }
        Ok(Situation { survey, shards, owners })
    }

    /// The node that a person means: by id, by the unique beginning of one, or by address.
    pub fn resolve(&self, text: &str) -> Result<NodeId> {
        let lower = text.to_ascii_lowercase();
        let primaries: Vec<&Surveyed> = self.survey.primaries().collect();
        let found: Vec<&&Surveyed> = primaries
            .iter()
            .filter(|n| {
                n.address.to_string() == text || n.id.to_string().starts_with(&lower) && !text.is_empty()
            })
            .collect();
        let list =
            |nodes: &[&Surveyed]| nodes.iter().map(|n| n.name().to_string()).collect::<Vec<_>>().join(", ");
        let what = match &found[..] {
            [one] if self.owners.contains_key(&one.id) => return Ok(one.id.clone()),
            [one] => {
                let at = one.name().to_string();
                return Err(Error::unfit(Side::Source, at, "find a node", "it does not answer")
                    .with_remedy("see `whimbrel status`"));
            }
            [] => match self
                .survey
                .nodes
                .iter()
                .find(|n| n.address.to_string() == text || n.id.to_string().starts_with(&lower))
            {
                Some(replica) => format!("node {} is a replica; name its primary", replica.name()),
                None => format!("no primary is called {text}; there are {}", list(&primaries)),
            },
            several => {
                let several: Vec<&Surveyed> = several.iter().map(|n| **n).collect();
                format!("{text} could be any of {}", list(&several))
            }
        };
        Err(Error::options(Side::Own, "find a node", what).with_remedy("see `whimbrel status`"))
    }

    fn state(&self, node: &NodeId) -> Option<&NodeState> {
        self.survey.node(node).and_then(Surveyed::state)
    }

    /// How many keys a node holds in a slot.
    pub fn keys_of(&self, node: &NodeId, slot: Slot) -> u64 {
        let counts = self.state(node).and_then(|state| state.counts.as_ref());
        counts.map_or(0, |counts| u64::from(counts.of(slot)))
    }

    fn keys_in(&self, node: &NodeId, slots: &SlotSet) -> u64 {
        let counts = self.state(node).and_then(|state| state.counts.as_ref());
        counts.map_or(0, |counts| counts.sum(slots))
    }

    /// Bytes of a key on the mean of its node.
    fn key_bytes(&self, node: &NodeId) -> f64 {
        self.state(node).map_or(0.0, |s| s.facts.dataset_bytes as f64 / s.facts.keys.max(1) as f64)
    }

    /// What each slot weighs.
    pub fn costs(&self, by: Balanced) -> SlotCosts {
        if by == Balanced::Slots {
            return SlotCosts::uniform();
        }
        let mut cost = vec![0_u64; usize::from(Slot::COUNT)];
        for shard in &self.shards {
            let Some(state) = self.state(&shard.id) else { continue };
            let per_key = match by {
                Balanced::Slots | Balanced::Keys => 1.0,
                Balanced::Bytes => self.key_bytes(&shard.id),
                // Thousandths of an operation, so that a quiet cluster is told apart as well.
                Balanced::Ops => state.facts.ops_per_second as f64 * 1_000.0 / state.facts.keys.max(1) as f64,
            };
            for slot in &shard.slots {
                cost[usize::from(slot.number())] = (self.keys_of(&shard.id, slot) as f64 * per_key) as u64;
            }
        }
        SlotCosts::new(|slot| cost[usize::from(slot.number())])
    }

    /// Nothing may move while something else does, or while something was left half-done.
    pub fn refuse_trouble(&self, involved: &[NodeId]) -> Result<()> {
        for node in &self.survey.nodes {
            let is_involved = involved.contains(&node.id);
            if let Some(what) = strangers::trouble_at(node, is_involved, &Own::default()) {
                return Err(strangers::refusal(node, what));
            }
        }
        Ok(())
    }

    /// A node that is left without slots.
    fn emptied(&self, moves: &[Move]) -> Option<&NodeId> {
        let shard = self.shards.iter().find(|shard| {
            let given = moves.iter().filter(|m| m.source == shard.id);
            let given = given.fold(SlotSet::new(), |all, m| all.union(&m.slots));
            !given.is_empty() && shard.slots.difference(&given).is_empty()
        });
        shard.map(|shard| &shard.id)
    }

    /// Primaries without slots that get none by `moves` either.
    fn left_empty(&self, moves: &[Move]) -> Vec<String> {
        let gets_none = |shard: &&Shard| shard.slots.is_empty() && moves.iter().all(|m| m.target != shard.id);
        self.shards.iter().filter(gets_none).map(|shard| self.survey.name(&shard.id).to_string()).collect()
    }

    /// By which means the moves are made, and why.
    pub async fn method(
        &self,
        deployment: &Deployment,
        moves: &[Move],
        moving: &MovingArgs,
    ) -> Result<(Method, String)> {
        let choice = moving.method;
        let chosen = |method| Ok((method, format!("--method {}", choice.word())));
        match choice {
            MethodChoice::External => return chosen(Method::External),
            MethodChoice::Legacy if moving.atomic => {
                return Err(usage("the legacy method moves slot by slot: it cannot be --atomic")
                    .with_remedy("leave out --method, or --atomic"));
            }
            MethodChoice::Legacy => return chosen(Method::Legacy),
            MethodChoice::Native => {
                if let Some(option) = moving.external_only() {
                    let what = format!("the servers' own migration knows nothing like {option}");
                    return Err(usage(&what).with_remedy("leave it out, or leave out --method"));
                }
            }
            // What is not possible from outside is refused with its reason as soon as the nodes are looked
            // at.
            MethodChoice::Auto if moving.external_only().is_some() || self.emptied(moves).is_some() => {
                return Ok((Method::External, PROMISES.to_owned()));
            }
            MethodChoice::Auto => {}
        }
        let mut kinds = Vec::new();
        let mut nodes: Vec<&NodeId> = moves.iter().flat_map(|m| [&m.source, &m.target]).collect();
        nodes.sort();
        nodes.dedup();
        for node in nodes {
            let Some(node) = self.survey.node(node) else { continue };
            let mut link = deployment.open(&node.address, 0).await?;
            match NativeSupport::find(&mut link).await? {
                NativeSupport::Present(kind) => kinds.push(kind),
                NativeSupport::Absent { reason } if choice == MethodChoice::Native => {
                    return Err(Error::unfit(
                        Side::Source,
                        node.name().to_string(),
                        "use the native method",
                        reason,
                    )
                    .with_remedy("leave out --method"));
                }
                NativeSupport::Absent { .. } => return Ok((Method::External, PROMISES.to_owned())),
            }
        }
        if choice == MethodChoice::Auto {
            return Ok(match kinds.first() {
                Some(&kind) if kinds.iter().all(|kind| kind.hides_keys()) => {
                    (Method::Native(Native::from(kind)), HIDDEN.to_owned())
                }
                _ => (Method::External, PROMISES.to_owned()),
            });
        }
        match kinds.first() {
            Some(&kind) if kinds.iter().all(|&k| k == kind) => {
                Ok((Method::Native(Native::from(kind)), format!("all nodes have {kind}")))
            }
            _ => Err(usage("the nodes have different native migrations")),
        }
    }
}

/// What is about to happen.
pub struct Plan {
    /// What moves where.
    pub moves: Vec<Move>,
    rows: Vec<Row>,
    method: Method,
    why: String,
    /// How long writes may be paused at once, in milliseconds; `None` where whimbrel does not pause them, or
    /// a daemon's options say.
    max_pause_ms: Option<u64>,
    /// What a handover takes of that were there no writers.
    need: PauseNeed,
    verify: &'static str,
    rate_keys: Option<u64>,
    rate_bytes: Option<u64>,
    /// A node that the servers' own migration makes a replica.
    demoted: Option<String>,
    /// Primaries that have no slots, before and afterwards.
    empty: Vec<String>,
}

struct Row {
    source: String,
    target: String,
    slots: SlotSet,
    keys: u64,
    bytes: u64,
    /// How many batches they are handed over in, and how writes are fenced off.
    batches: usize,
    fence: Option<FenceKind>,
}

impl Plan {
    /// Puts together what is known.
    ///
    /// # Errors
    /// Whatever keeps us from connecting to the nodes.
    pub async fn new(
        deployment: &Deployment,
        situation: &Situation,
        moves: Vec<Move>,
        (method, why): (Method, String),
        moving: &MovingArgs,
        by_daemon: bool,
    ) -> Result<Plan> {
        let mut rows = Vec::with_capacity(moves.len());
        let (settings, mut max_pause_ms, mut need) = (settings(moving, method), None, PauseNeed::default());
        for m in &moves {
            let keys = situation.keys_in(&m.source, &m.slots);
            let (mut fence, mut batches) = (None, 1);
            if method == Method::External && !by_daemon {
                let keys_of = |slot| situation.keys_of(&m.source, slot);
                let cut = service::cut(deployment, m, &settings, keys_of).await?;
                (fence, batches) = (Some(cut.fence), cut.parts.len());
                max_pause_ms = max_pause_ms.max(Some(cut.max_pause_ms));
                if cut.need.least_ms >= need.least_ms {
                    need = cut.need;
                }
            }
            rows.push(Row {
                source: situation.survey.name(&m.source).to_string(),
                target: situation.survey.name(&m.target).to_string(),
                slots: m.slots.clone(),
                keys,
                bytes: (keys as f64 * situation.key_bytes(&m.source)) as u64,
                batches,
                fence,
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
            rate_keys: moving.rate_keys.filter(|_| method == Method::External),
            rate_bytes: moving.rate_bytes.filter(|_| method == Method::External),
            moves,
            rows,
            method,
            why,
            max_pause_ms,
            need,
            verify: match moving.verify() {
                VerifyChoice::None => "nothing is compared",
                VerifyChoice::Counts => "the number of keys of each slot is compared",
                VerifyChoice::Sample => "the number of keys of each slot and a sample of keys are compared",
                VerifyChoice::Full => "every key is compared",
            },
        })
    }

    /// Jobs of one source follow one another, those of different sources run at the same time.
    fn estimate_ms(&self) -> u64 {
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

    /// Shows it.
    pub fn show(&self, moving: &MovingArgs) {
        let (slots, keys, bytes) = self.rows.iter().fold((0, 0, 0), |(slots, keys, bytes), row| {
            (slots + row.slots.len(), keys + row.keys, bytes + row.bytes)
        });
        if moving.show.json {
            let moves: Vec<_> = self
                .rows
                .iter()
                .zip(&self.moves)
                .map(|(row, m)| {
                    json!({
                        "source": m.source, "target": m.target, "slots": row.slots.to_string(),
                        "slot_count": row.slots.len(), "keys": row.keys, "estimated_bytes": row.bytes,
                    })
                })
                .collect();
            say!(
                "{}",
                json!({
                    "event": "plan", "dry_run": moving.dry_run, "moves": moves, "method": self.method.name(),
                    "why": self.why,
                    "slots": slots, "keys": keys, "estimated_bytes": bytes,
                    "estimated_ms": self.estimate_ms(),
                    "max_pause_ms": self.max_pause_ms, "pause_ms": self.need.least_ms,
                    "round_trip_us": u64::try_from(self.need.round_trip.as_micros()).unwrap_or(u64::MAX),
                    "batches": self.rows.iter().map(|row| row.batches).sum::<usize>(),
                    "empty_primaries": self.empty,
                })
            );
            return;
        }
        if moving.show.quiet {
            return;
        }
        if self.rows.is_empty() {
            match self.empty.is_empty() {
                true => eprintln!("nothing to move: everything is where it should be"),
                false => eprintln!("nothing to move among the primaries that have slots"),
            }
            for node in &self.empty {
                eprintln!("note     {node} has no slots: whimbrel rebalance --use-empty gives it a share");
            }
            return;
        }
        for row in &self.rows {
            eprintln!(
                "move     {} from {} to {}: {}",
                format_count_of(row.slots.len() as u64, "slot"),
                row.source,
                row.target,
                whimbrel_engine::nodes::shortened(&row.slots, RANGES_SHOWN)
            );
            eprintln!("         {}, about {}", format_count_of(row.keys, "key"), format_bytes(row.bytes));
        }
        eprintln!("method   {}: {}", self.method.name(), self.why);
        if self.method == Method::External {
            let mut of_source: BTreeMap<&str, usize> = BTreeMap::new();
            for row in &self.rows {
                *of_source.entry(&row.source).or_default() += row.batches;
            }
            let batches = of_source.values().copied().max().unwrap_or(0);
            match self.max_pause_ms {
                Some(max_pause_ms) => eprintln!(
                    "writes   of a source are paused {}, for {} at most, about {} without load; reads go on",
                    if batches == 1 { "once".to_owned() } else { format!("up to {batches} times") },
                    format_duration_ms(max_pause_ms),
                    format_duration_ms(self.need.least_ms),
                ),
                None => eprintln!("writes   of a source are paused as the daemon was told; reads go on"),
            }
            if self.rows.iter().any(|row| row.fence == Some(FenceKind::Bare)) {
                eprintln!(
                    "         with these servers clients may see CLUSTERDOWN for some milliseconds each time"
                );
            }
            eprintln!("verify   {} before each handover", self.verify);
        }
        if let Method::Native(_) = self.method {
            eprintln!("verify   nothing is compared, and no rate is kept: the servers do it");
        }
        if let Some(node) = &self.demoted {
            eprintln!(
                "note     {node} is left without slots: its servers make it a replica of the new owner"
            );
        }
        eprintln!("time     about {} without load", format_duration_ms(self.estimate_ms()));
        if moving.dry_run {
            eprintln!("dry run: nothing was changed");
        }
    }
}
