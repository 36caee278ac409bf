//! What was found, and what comes of it.

use serde::Serialize;

use super::estimate::Estimates;
use super::facts::Facts;
use super::findings::Finding;

/// Whether a migration may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing stands in the way.
    Ready,
    /// It can begin; there is something to think of first.
    WithCare,
    /// Something has to be changed first.
    Blocked,
}

/// What was found, and what comes of it.
#[derive(Debug, Clone, Serialize)]
pub struct Assessment {
    /// What was found out.
    pub facts: Facts,
    /// How long things would take.
    pub estimates: Estimates,
    /// What to know, the worst first.
    pub findings: Vec<Finding>,
    /// What comes of it.
    pub verdict: Verdict,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
}
