//! A node that does not answer.

use std::fmt;

use serde::{Deserialize, Serialize};
use whimbrel_core::units::format_time;

/// A node that does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// The node, for people.
    pub node: String,
    /// Since when, in seconds since the epoch.
    pub since_s: u64,
    /// What was in the way the last time, for people.
    #[serde(default)]
    pub cause: Option<String>,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has not answered since {}", self.node, format_time(self.since_s))?;
        match &self.cause {
            Some(cause) => write!(f, " ({cause})"),
            None => Ok(()),
        }
    }
}
