//! How a handover behaves.

use std::fmt;
use std::sync::Arc;

use whimbrel_core::node::NodeId;
use whimbrel_core::slot::SlotSet;

use crate::nodes::{CANDIDATE_CLIENT_NAME, JOB_CLIENT_NAME};

/// How the source is kept from accepting writes to slots that it is about to lose. See the [module](super).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotFenceKind {
    /// It assigns them to the target in its own view.
    Redirecting,
    /// It stays paused until it has learned of the new owner.
    Gossip,
    /// It just gives them up. Clients may see `CLUSTERDOWN` for some milliseconds.
    Bare,
}

impl SlotFenceKind {
    /// How many keys a batch should have at most, so that the source does not block for more than about 20
    /// ms.
    pub fn batch_keys_max(self) -> u64 {
        match self {
            // The source deletes them in one go, 0.5 to 2 µs each.
            SlotFenceKind::Gossip => 8_192,
            SlotFenceKind::Redirecting | SlotFenceKind::Bare => 65_536,
        }
    }
}

impl fmt::Display for SlotFenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlotFenceKind::Redirecting => "redirecting",
            SlotFenceKind::Gossip => "gossip",
            SlotFenceKind::Bare => "bare",
        })
    }
}

/// How a handover behaves.
#[derive(Debug, Clone)]
pub struct HandoverOptions {
    /// Distinguished from other jobs by this, in `CLIENT LIST`; nothing if it is empty.
    pub label: String,
    /// What all jobs of this process have in common: they themselves make sure that two of them do not
    /// interfere, and are not reported as [other jobs](super::Handover::other_jobs). Nothing if it is empty.
    pub process: String,
    /// The slots of the job, so that others see which job has them; none if they are not known.
    pub slots: SlotSet,
    /// Whether the job has begun. Until it has, its connections say so, and jobs that have begun do not mind
    /// it; one with a label begins with [`Handover::begin`](super::Handover::begin).
    pub begun: bool,
    /// Another fence than the server's own choice. Only one that the server survives: see the
    /// [module](super).
    pub fence: Option<SlotFenceKind>,
    /// Use `ADDSLOTSRANGE` and `DELSLOTSRANGE` if the server has them.
    pub ranges: bool,
    /// Fence with a script if the server and the user's permissions allow it: it looks before it acts, and is
    /// faster.
    pub scripts: bool,
    /// Have the target wait for the source if that is possible, so that no client is sent back and forth.
    pub gate: bool,
    /// How long [`Handover::confirm`](super::Handover::confirm) waits for all nodes.
    pub confirm_ms: u64,
    /// How long [`Handover::settle`](super::Handover::settle) waits for the source.
    pub settle_ms: u64,
    /// Nodes on which an earlier process, or a handover that was dropped, may have left replicas kept from
    /// following the slots: what [`Handover::sheltered`](super::Handover::sheltered) said then.
    pub sheltered: Vec<NodeId>,
}

impl Default for HandoverOptions {
    fn default() -> Self {
        HandoverOptions {
            label: String::new(),
            process: String::new(),
            slots: SlotSet::new(),
            begun: true,
            fence: None,
            ranges: true,
            scripts: true,
            gate: true,
            confirm_ms: 10_000,
            settle_ms: 10_000,
            sheltered: Vec::new(),
        }
    }
}

impl HandoverOptions {
    /// What connections of the job are called.
    pub fn client_name(&self) -> Arc<str> {
        let kind = if self.begun { JOB_CLIENT_NAME } else { CANDIDATE_CLIENT_NAME };
        let slots = if self.process.is_empty() { String::new() } else { shown(&self.slots) };
        let parts = [kind, &self.process, &slots, &self.label];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(":").into()
    }

    /// Whether a connection of that name is of this process.
    pub(super) fn is_of_process(&self, name: &str) -> bool {
        let process = |kind| name.strip_prefix(kind)?.strip_prefix(':')?.split(':').next();
        let process = process(JOB_CLIENT_NAME).or_else(|| process(CANDIDATE_CLIENT_NAME));
        !self.process.is_empty() && process == Some(&self.process)
    }

    /// Whether a connection of that name is of this job, in whatever process.
    pub(super) fn is_of_job(&self, name: &str) -> bool {
        self.label.is_empty() || name.rsplit(':').next() == Some(&self.label)
    }
}

/// Ranges that a name of a connection lists; of the others, how many slots they are.
const RANGES_NAMED: usize = 8;

/// Slots as part of a name, in which servers allow no spaces: `0-99,150+3`.
fn shown(slots: &SlotSet) -> String {
    let ranges = slots.ranges();
    let (named, rest) = ranges.split_at(ranges.len().min(RANGES_NAMED));
    let text = SlotSet::from_ranges(named.iter().copied()).to_string().replace(' ', "");
    let rest: usize = rest.iter().map(|range| range.slots().count()).sum();
    if rest > 0 { format!("{text}+{rest}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_names_the_slots_of_its_job() {
        let options = |slots: &str| HandoverOptions {
            label: "m1".to_owned(),
            process: "7af3-18eb".to_owned(),
            slots: slots.parse().expect("slots"),
            ..HandoverOptions::default()
        };
        let name = options("0-99,150").client_name();
        assert_eq!(&*name, "whimbrel:job:7af3-18eb:0-99,150:m1");
        assert!(options("7").is_of_process(&name) && options("7").is_of_job(&name));
        let many: Vec<String> = (0..12).map(|n| (n * 10).to_string()).collect();
        let name = options(&many.join(",")).client_name();
        assert_eq!(&*name, "whimbrel:job:7af3-18eb:0,10,20,30,40,50,60,70+4:m1");
        assert_eq!(&*HandoverOptions::default().client_name(), "whimbrel:job");
    }
}
