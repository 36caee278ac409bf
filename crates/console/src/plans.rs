//! Moves of slots: a plan is made and shown, and somebody approves it as it is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use whimbrel_control::clock::{now_ms, now_s};
use whimbrel_control::daemon::Jobs as _;
use whimbrel_control::moves::{Load, Plan, Situation, Weighing};
use whimbrel_control::store::{Origin, on_behalf_of};
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::{self as planner, Balance, Move};
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::format_count_of;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::nodes::ClusterView;

use crate::failure::{Answer, Failure};
use crate::mover::Mover;
use crate::tokens::by_token;

/// How many plans are kept.
const PLANS_MAX: usize = 64;

/// How long a plan can be approved: sizes and loads change.
const VALID: Duration = Duration::from_secs(15 * 60);

/// What is to be planned.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Wanted {
    /// Every primary gets its part.
    Rebalance {
        /// What slots are weighed by.
        #[serde(default)]
        by: By,
        /// Whether primaries without slots get some.
        #[serde(default)]
        use_empty: bool,
        /// By how many percent of its part a primary may be off before anything moves.
        #[serde(default = "two")]
        threshold: f64,
    },
    /// A primary gives all of its slots away.
    Drain {
        /// Its id, the beginning of it, or its address.
        node: String,
    },
    /// Some slots go to a primary.
    Reshard {
        /// The slots, as ranges: `0-99,200`.
        slots: String,
        /// Its id, the beginning of it, or its address.
        to: String,
    },
}

fn two() -> f64 {
    2.0
}

/// What slots are weighed by.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// Their number.
    #[default]
    Slots,
    /// Their keys.
    Keys,
    /// The bytes that these take.
    Bytes,
    /// The operations of their node.
    Ops,
}

impl Wanted {
    fn word(&self) -> &'static str {
        match self {
            Wanted::Rebalance { .. } => "rebalance",
            Wanted::Drain { .. } => "drain",
            Wanted::Reshard { .. } => "reshard",
        }
    }

    fn moves(&self, situation: &Situation) -> Answer<Vec<Move>> {
        let shards = &situation.shards;
        let planned = match self {
            Wanted::Rebalance { by, use_empty, threshold } => {
                if !(0.0..=100.0).contains(threshold) {
                    return Err(
                        Failure::bad("threshold is from 0 to 100 percent").with_remedy("leave it out for 2")
                    );
                }
                let costs = situation.costs(match by {
                    By::Slots => Weighing::Slots,
                    By::Keys => Weighing::Keys,
                    By::Bytes => Weighing::Bytes,
                    By::Ops => Weighing::Operations,
                });
                let balance = Balance { use_empty: *use_empty, threshold: threshold / 100.0 };
                planner::rebalance(shards, &BTreeMap::new(), &costs, balance)
            }
            Wanted::Drain { node } => {
                let node = situation.resolve(node)?;
                planner::drain(shards, &node, &BTreeMap::new(), &situation.costs(Weighing::Slots), false)
            }
            Wanted::Reshard { slots, to } => {
                let slots: SlotSet = slots
                    .parse()
                    .map_err(|e| Failure::bad(format!("slots: {e}")).with_remedy("write ranges: 0-99,200"))?;
                if slots.is_empty() {
                    return Err(Failure::bad("no slots are named").with_remedy("write ranges: 0-99,200"));
                }
                planner::reshard(shards, &[(slots, situation.resolve(to)?)])
            }
        };
        planned.map_err(|e| {
            Failure::conflict(e.to_string())
                .with_remedy("see who owns which slots on the page of the cluster")
        })
    }
}

/// A plan that can be approved.
#[derive(Debug, Clone)]
struct Made {
    id: String,
    at: Instant,
    moves: Vec<Move>,
}

/// Those that were made lately.
#[derive(Debug, Default)]
pub struct Plans {
    made: Mutex<(u64, VecDeque<Made>)>,
    /// Those that were approved lately, with their jobs: the answer may have been lost.
    approved: Mutex<VecDeque<(String, Vec<String>)>>,
}

impl Plans {
    /// Plans moves, and shows them. Nothing is changed.
    pub(crate) async fn make(&self, mover: &Mover, wanted: &Wanted) -> Answer<Value> {
        let situation = Situation::find(&mover.deployment).await?;
        situation.refuse_silence()?;
        let moves = wanted.moves(&situation)?;
        let method = (mover.settings.method, mover.why.clone());
        let plan = Plan::new(&mover.deployment, &situation, moves, method, &mover.settings, false).await?;
        let id = self.keep(&plan.moves);
        Ok(describe(&id, mover, wanted, &situation, &plan))
    }

    fn keep(&self, moves: &[Move]) -> String {
        let mut kept = self.made.lock();
        let (number, made) = &mut *kept;
        *number += 1;
        // A name of another run is none of this one's.
        let id = format!("p{:x}-{number}", now_ms());
        made.push_back(Made { id: id.clone(), at: Instant::now(), moves: moves.to_vec() });
        if made.len() > PLANS_MAX {
            made.pop_front();
        }
        id
    }

    /// Has a plan carried out, as it was shown. Returns the names of the jobs.
    pub(crate) async fn approve(&self, mover: Arc<Mover>, id: &str, who: &str) -> Answer<Value> {
        // Taken out while it is carried out: nobody approves it twice.
        let Some(made) = self.take(id) else {
            return Err(self.not_there(id));
        };
        match carry_out(&mover, &made, who).await {
            Ok(jobs) => {
                self.note_approved(id, &jobs);
                Ok(json!({"jobs": jobs}))
            }
            Err(e) => {
                self.put_back(made);
                Err(e)
            }
        }
    }

    fn note_approved(&self, id: &str, jobs: &[String]) {
        let mut approved = self.approved.lock();
        approved.push_front((id.to_owned(), jobs.to_vec()));
        approved.truncate(PLANS_MAX);
    }

    /// Why a plan cannot be approved.
    fn not_there(&self, id: &str) -> Failure {
        let approved = self.approved.lock();
        match approved.iter().find(|(approved, _)| approved == id) {
            Some((_, jobs)) => Failure::conflict("this plan was approved already")
                .with_remedy(format!("see its jobs: {}", jobs.join(", "))),
            None => outdated("there is no such plan, or it is too old"),
        }
    }

    /// Takes a plan out, unless it is too old.
    fn take(&self, id: &str) -> Option<Made> {
        let plans = &mut self.made.lock().1;
        let place = plans.iter().position(|made| made.id == id)?;
        plans.remove(place).filter(|made| made.at.elapsed() <= VALID)
    }

    /// Nothing came of it: it can be approved again.
    fn put_back(&self, made: Made) {
        let plans = &mut self.made.lock().1;
        plans.push_front(made);
        plans.truncate(PLANS_MAX);
    }
}

fn outdated(what: &str) -> Failure {
    Failure::conflict(what).with_remedy("plan anew")
}

/// Has the moves of a plan made. Returns the names of the jobs.
async fn carry_out(mover: &Mover, made: &Made, who: &str) -> Answer<Vec<String>> {
    if made.moves.is_empty() {
        return Err(Failure::conflict("this plan moves nothing")
            .with_remedy("nothing has to be approved: every slot is where it should be"));
    }
    still_fits(&mover.queue.view().await?, &made.moves).map_err(|e| outdated(&e.to_string()))?;
    let origin = Origin { begun_by: Some(on_behalf_of(&by_token(who))), plan: Some(made.id.clone()) };
    Ok(mover.queue.submit_for(made.moves.clone(), &origin).await?)
}

/// Refuses moves whose sources do not own their slots any more, or whose targets are not there.
fn still_fits(view: &ClusterView, moves: &[Move]) -> Result<()> {
    let gone = |what: String| Err(Error::own("carry out the plan", what));
    for planned in moves {
        let source = view.node(&planned.source).filter(|node| node.is_primary());
        let owned = source.map(|node| planned.slots.difference(&node.slots).is_empty());
        if owned != Some(true) {
            return gone(format!("{} does not own these slots any more", planned.source.short()));
        }
        if !view.node(&planned.target).is_some_and(|node| node.is_primary() && node.is_usable()) {
            return gone(format!("{} is not a usable primary any more", planned.target.short()));
        }
    }
    Ok(())
}

fn describe(id: &str, mover: &Mover, wanted: &Wanted, situation: &Situation, plan: &Plan) -> Value {
    let loads: BTreeMap<&NodeId, Load> =
        situation.shards.iter().map(|shard| (&shard.id, situation.load_of(shard))).collect();
    let node = |id: &NodeId| json!({"id": id, "address": loads.get(id).map(|load| &load.address)});
    let rows = plan.moves.iter().zip(&plan.rows);
    let moves: Vec<Value> = rows
        .clone()
        .map(|(planned, row)| {
            json!({
                "source": node(&planned.source), "target": node(&planned.target),
                "slots": row.slots.to_string(), "slot_count": row.slots.len(), "keys": row.keys,
                "estimated_bytes": row.bytes, "batches": row.batches,
            })
        })
        .collect();
    let mut after = loads.clone();
    for (planned, row) in rows {
        let moved = [row.slots.len() as u64, row.keys, row.bytes];
        if let Some(load) = after.get_mut(&planned.source) {
            for (has, gives) in [&mut load.slots, &mut load.keys, &mut load.bytes].into_iter().zip(moved) {
                *has = has.saturating_sub(gives);
            }
        }
        if let Some(load) = after.get_mut(&planned.target) {
            for (has, gets) in [&mut load.slots, &mut load.keys, &mut load.bytes].into_iter().zip(moved) {
                *has = has.saturating_add(gets);
            }
        }
    }
    let shown = |load: &Load| json!({"slots": load.slots, "keys": load.keys, "bytes": load.bytes});
    let nodes: Vec<Value> = situation
        .shards
        .iter()
        .map(|shard| {
            let (before, after) = (&loads[&shard.id], &after[&shard.id]);
            let (id, address) = (&shard.id, &before.address);
            json!({"id": id, "address": address, "before": shown(before), "after": shown(after)})
        })
        .collect();
    let (slots, keys, bytes) = plan.sums();
    json!({
        "id": id, "kind": wanted.word(), "cluster": mover.cluster(), "made_ms": now_ms(),
        "valid_ms": u64::try_from(VALID.as_millis()).unwrap_or(u64::MAX),
        "method": plan.method.name(), "why": plan.why, "moves": moves, "slots": slots, "keys": keys,
        "estimated_bytes": bytes, "estimated_ms": plan.estimate_ms(), "max_pause_ms": plan.max_pause_ms,
        "pause_ms": plan.max_pause_ms.map(|_| plan.need.least_ms), "pauses_max": plan.pauses_max(),
        "notes": notes(plan, mover), "nodes": nodes,
    })
}

/// What somebody has to know before they approve.
fn notes(plan: &Plan, mover: &Mover) -> Vec<String> {
    let mut notes = Vec::new();
    if let (Some(window), false) = (mover.settings.transfer.between, plan.moves.is_empty()) {
        notes.push(format!("Its {}.", window.in_words(now_s())));
    }
    if plan.moves.is_empty() {
        notes.push("Nothing moves: everything is where it should be.".to_owned());
    }
    for node in &plan.empty {
        notes.push(format!("{node} has no slots. It gets some where empty primaries are used."));
    }
    if let Some(clusterdown) = plan.clusterdown() {
        notes.push(format!("Note: {clusterdown}."));
    }
    if let Some(node) = &plan.demoted {
        notes.push(format!("{node} is left without slots: its servers make it a replica of the new owner."));
    }
    for node in &plan.without_replicas {
        notes.push(format!("{node} has no replica: what moves there is lost when it fails."));
    }
    if let Some(ms) = plan.max_pause_ms {
        notes.push(format!(
            "Writes of a source are paused {}, for at most {ms} ms each time; reads go on.",
            format_count_of(plan.pauses_max() as u64, "time")
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_read_strictly() {
        let read = |text: &str| serde_json::from_str::<Wanted>(text).map(|wanted| wanted.word());
        assert_eq!(read(r#"{"kind": "rebalance"}"#).expect("a plan"), "rebalance");
        assert_eq!(
            read(r#"{"kind": "rebalance", "by": "ops", "use_empty": true}"#).expect("a plan"),
            "rebalance"
        );
        assert_eq!(read(r#"{"kind": "drain", "node": "a:1"}"#).expect("a plan"), "drain");
        for wrong in [
            r#"{"kind": "rebalance", "by": "colour"}"#,
            r#"{"kind": "drain"}"#,
            r#"{"kind": "reshard", "slots": "0-9"}"#,
            r#"{"kind": "drain", "node": "a", "force": true}"#,
            r#"{"kind": "repair"}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_plan_of_which_nothing_came_can_be_approved_again() {
        let plans = Plans::default();
        let id = plans.keep(&[]);
        let made = plans.take(&id).expect("there");
        assert!(plans.take(&id).is_none(), "it is approved once at a time");
        plans.note_approved(&id, &["m1-1".to_owned()]);
        assert!(
            format!("{:?}", plans.not_there(&id)).contains("approved already"),
            "{:?}",
            plans.not_there(&id)
        );
        assert!(format!("{:?}", plans.not_there("p0-0")).contains("no such plan"));
        plans.put_back(made);
        assert!(plans.take(&id).is_some());
    }

    #[test]
    fn few_plans_are_kept() {
        let plans = Plans::default();
        let first = plans.keep(&[]);
        let others: Vec<String> = (0..PLANS_MAX).map(|_| plans.keep(&[])).collect();
        let kept = plans.made.lock();
        assert_eq!(kept.1.len(), PLANS_MAX);
        assert!(kept.1.iter().all(|made| made.id != first) && others.iter().all(|id| *id != first));
    }
}
