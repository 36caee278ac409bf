//! What a job came to.

use serde::{Serialize, Serializer};
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::SlotSet;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// All slots were handed over.
    Done,
    /// It was cancelled. What was handed over before stays.
    Cancelled,
    /// It was given up and rolled back. What was handed over before stays.
    Failed,
    /// It cannot go on now; its journal is kept, and it can be resumed.
    Suspended,
    /// Its turn did not come, because another job failed or was cancelled.
    NotStarted,
}

/// How often and how long writes were paused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pauses {
    /// How many times.
    pub count: u64,
    /// All together, in milliseconds.
    pub total_ms: u64,
    /// The longest, in milliseconds.
    pub longest_ms: u64,
}

/// What one job did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobReport {
    /// Its name.
    pub id: String,
    /// The node that gave slots away.
    pub source: NodeId,
    /// The node that got them.
    pub target: NodeId,
    /// The slots of the job.
    #[serde(serialize_with = "as_text")]
    pub slots: SlotSet,
    /// Those that the target owns now.
    #[serde(serialize_with = "as_text")]
    pub slots_handed_over: SlotSet,
    /// Those that were neither handed over nor rolled back, because their owner or keys are not what they
    /// should be.
    #[serde(serialize_with = "as_text")]
    pub slots_left_as_is: SlotSet,
    /// `external`, `native` or `legacy`.
    pub method: &'static str,
    /// Why the servers' own migration was left for this method, if the job was begun by that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
    /// How it ended.
    pub ending: Ending,
    /// Why it did not end well.
    pub reason: Option<String>,
    /// How long it took.
    pub duration_ms: u64,
    /// Keys that were transferred, repetitions included.
    pub keys: u64,
    /// Bytes that were transferred, repetitions included.
    pub bytes: u64,
    /// How many of the keys were transferred again because they had been touched.
    pub touched: u64,
    /// Keys whose values were compared.
    pub compared: u64,
    /// Write pauses on the source.
    pub pauses: Pauses,
    /// How long writes were paused to let the catch-up converge, in milliseconds.
    pub braked_ms: u64,
    /// Whether source and target were compared before each handover.
    pub verified: bool,
    /// What the user should know.
    pub notices: Vec<String>,
}

impl JobReport {
    /// Of a job whose turn did not come.
    pub fn not_started(
        id: String,
        source: NodeId,
        target: NodeId,
        slots: SlotSet,
        method: &'static str,
    ) -> JobReport {
        JobReport {
            id,
            source,
            target,
            slots,
            slots_handed_over: SlotSet::new(),
            slots_left_as_is: SlotSet::new(),
            method,
            fell_back: None,
            ending: Ending::NotStarted,
            reason: None,
            duration_ms: 0,
            keys: 0,
            bytes: 0,
            touched: 0,
            compared: 0,
            pauses: Pauses::default(),
            braked_ms: 0,
            verified: false,
            notices: Vec::new(),
        }
    }
}

fn as_text<S: Serializer>(slots: &SlotSet, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(slots)
}
