//! An attempt to carry a slot: whose it is, between what, and why it may fail.

use std::fmt;

use bytes::Bytes;
use whimbrel_engine::error::Error;
use whimbrel_engine::probe::Capabilities;
use whimbrel_wire::payload::Dialect;

/// A slot with more keys is not moved: no client is served while it is.
pub const LOAD_KEYS_MAX: u64 = 50_000;

/// A slot with more keys is not carried. It is more than [`LOAD_KEYS_MAX`], since clients may write between
/// the look and the move.
pub const CARRY_KEYS_MAX: u64 = 2 * LOAD_KEYS_MAX;

/// Says which attempt of which owner this is. Later attempts have a greater one: by the version of the
/// partition's row first, then by the coordinator's term.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Token {
    /// The version of the row that the attempt starts from. Each attempt raises it, whether it succeeds or
    /// fails.
    pub version: u64,
    /// The term of the coordinator that ordered it.
    pub term: u64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} in term {}", self.version, self.term)
    }
}

/// What both sides are and can do.
#[derive(Debug, Clone, Copy)]
pub struct Route<'a> {
    /// What the server can do that has the keys.
    pub from: &'a Capabilities,
    /// What the server can do that gets them, the payloads that it accepts among it.
    pub to: &'a Capabilities,
    /// The families of both.
    pub dialects: (Dialect, Dialect),
}

/// Why keys were not carried, or not removed.
#[derive(Debug)]
pub enum Refusal {
    /// The fence was taken by a later attempt, or by a later call of the same one.
    Superseded {
        /// Whose it is now.
        by: Token,
    },
    /// The destination has other keys in this slot that no attempt has left: it was never fenced. They may be
    /// a user's.
    Occupied {
        /// How many.
        keys: u64,
    },
    /// The slot has more keys than [`CARRY_KEYS_MAX`].
    TooMany {
        /// How many.
        keys: u64,
    },
    /// The other side cannot take this key.
    Unholdable {
        /// Its name.
        key: Bytes,
        /// Why not.
        why: String,
    },
    /// Something went wrong that may go right the next time.
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Failed(error)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Superseded { by } => write!(f, "the slot is carried by another attempt ({by})"),
            Refusal::Occupied { keys } => write!(
                f,
                "the backend has {keys} keys in this slot that no move has left; remove them, or name a \
                    backend without keys"
            ),
            Refusal::TooMany { keys } => {
                write!(f, "the slot has {keys} keys, and at most {CARRY_KEYS_MAX} are carried at once")
            }
            Refusal::Unholdable { key, why } => {
                write!(f, "the key {:?} cannot be carried: {why}", String::from_utf8_lossy(key))
            }
            Refusal::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {}
