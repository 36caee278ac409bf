//! How thoroughly source and target are compared.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How thoroughly source and target are compared before each fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// Not at all.
    None,
    /// The number of keys of each slot.
    Counts,
    /// The number of keys of each slot, and the values of some keys.
    #[default]
    Sample,
    /// The values of all keys: before the pause as far as possible, the touched ones under it.
    Full,
}

impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verify::None => "none",
            Verify::Counts => "counts",
            Verify::Sample => "sample",
            Verify::Full => "full",
        })
    }
}
