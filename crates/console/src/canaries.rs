//! How long clients wait for answers: each primary is measured by a client of its own, so that one that is
//! silent hides none of the others.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use whimbrel_control::canary::{Answered, Canary, Node};
use whimbrel_control::clock::now_ms;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::endpoint::Address;

use crate::mover::Mover;

/// How often all of them together ask: nothing that servers feel.
const PERIOD: Duration = Duration::from_millis(20);

/// How often each asks, at least and at most.
const EACH: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// How long an answer may take.
const WITHIN: Duration = Duration::from_secs(2);

/// The client of one primary.
#[derive(Debug)]
struct Measured {
    address: String,
    slots: String,
    canary: Canary,
}

/// The clients, by the ids of their nodes.
#[derive(Debug, Default)]
pub struct Canaries(BTreeMap<String, Measured>);

impl Canaries {
    /// Measures the primaries that have slots now, and no others.
    pub fn follow(&mut self, mover: &Mover, cluster: &Value) {
        let shards: Vec<&Value> = cluster["shards"].as_array().into_iter().flatten().collect();
        let period = (PERIOD * u32::try_from(shards.len()).unwrap_or(u32::MAX)).clamp(EACH[0], EACH[1]);
        let mut there = BTreeMap::new();
        for shard in shards {
            let text = |name: &str| shard[name].as_str().unwrap_or_default().to_owned();
            let (id, address, slots) = (text("id"), text("address"), text("slots"));
            let (Some(at), Ok(set)) = (Address::parse_tcp(&address), slots.parse::<SlotSet>()) else {
                continue;
            };
            if set.is_empty() {
                continue;
            }
            let measured = match self.0.remove(&id).filter(|known| known.address == address) {
                Some(known) => {
                    if known.slots != slots {
                        known.canary.set_slots(&set);
                    }
                    Measured { slots, ..known }
                }
                None => {
                    let node = Node { address: at, within: WITHIN };
                    let canary = Canary::of_node(mover.deployment.clone(), node, &set, period);
                    Measured { address, slots, canary }
                }
            };
            there.insert(id, measured);
        }
        self.0 = there;
    }

    /// What they met since this was asked last: all of them together, and each. `None` without any.
    pub fn take_lately(&self) -> Option<Value> {
        let each: Vec<(&String, &Measured, Answered)> =
            self.0.iter().map(|(id, measured)| (id, measured, measured.canary.take_lately())).collect();
        if each.is_empty() {
            return None;
        }
        let all = each.iter().fold(Answered::default(), |all, (_, _, one)| Answered {
            requests: all.requests + one.requests,
            errors: all.errors + one.errors,
            redirects: all.redirects + one.redirects,
            total_us: all.total_us.saturating_add(one.total_us),
            longest_us: all.longest_us.max(one.longest_us),
        });
        let mut value = describe(all);
        value["at_ms"] = json!(now_ms());
        value["nodes"] = each
            .into_iter()
            .map(|(id, measured, lately)| {
                let silent = measured.canary.silent_for();
                let silent_ms =
                    (silent >= WITHIN).then(|| u64::try_from(silent.as_millis()).unwrap_or(u64::MAX));
                let mut value = describe(lately);
                value["id"] = json!(id);
                value["address"] = json!(measured.address);
                value["silent_ms"] = json!(silent_ms);
                value
            })
            .collect();
        Some(value)
    }
}

fn describe(lately: Answered) -> Value {
    let ms = |us: u64| us as f64 / 1_000.0;
    json!({
        "requests": lately.requests, "errors": lately.errors, "redirects": lately.redirects,
        "longest_ms": (lately.requests > 0).then(|| ms(lately.longest_us)),
        "mean_ms": (lately.requests > 0).then(|| ms(lately.total_us) / lately.requests as f64),
    })
}
