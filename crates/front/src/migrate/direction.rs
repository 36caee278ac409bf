//! Which way keys move: from the source to the target, and after a turn the other way.
//!
//! The code that moves keys and serves clients meanwhile does not know about it: there, *source* is the
//! server that keys move from, and *target* the one that they move to. Only what people read has to use the
//! name that they know a server by.

use serde::Serialize;

/// Room for the number of reversals in a cursor of `SCAN`.
pub(crate) const REVERSALS_BITS: u32 = 4;

/// How often the direction can be reversed. The number of a turn must not come round again, or a cursor that
/// a client still holds would be mistaken for one of the present turn, and its iteration miss keys.
pub const REVERSALS_MAX: u32 = (1 << REVERSALS_BITS) - 1;

/// Which of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Target,
}

/// Which way keys move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the source to the target, as it begins.
    ToTarget,
    /// Back.
    ToSource,
}

impl Direction {
    /// That after this many reversals.
    pub fn after(reversals: u32) -> Direction {
        if reversals.is_multiple_of(2) { Direction::ToTarget } else { Direction::ToSource }
    }

    /// What people call the server that keys move from.
    pub fn from(self) -> &'static str {
        match self {
            Direction::ToTarget => "source",
            Direction::ToSource => "target",
        }
    }

    /// What people call the server that keys move to.
    pub fn to(self) -> &'static str {
        match self {
            Direction::ToTarget => "target",
            Direction::ToSource => "source",
        }
    }

    /// Which of the two keys move from, and which they move to.
    pub fn ordered<T>(self, source: T, target: T) -> (T, T) {
        match self {
            Direction::ToTarget => (source, target),
            Direction::ToSource => (target, source),
        }
    }
}
