//! What all copying has in common: lanes that read key states here and write them there.
//!
//! ```text
//!            keys                states               acknowledgements
//!     ──┬──────────▶ reader ───────────▶ writer ──┐
//!       ├──────────▶ reader ───────────▶ writer ──┼──▶ tracker
//!       └──────────▶ reader ───────────▶ writer ──┘
//!         one lane for each hash of a key; every queue bounded; values bounded by the memory budget
//! ```
//!
//! Which keys go in, and what follows from what is found, is for [`copy`](crate::copy) and
//! [`sync`](crate::sync) to say.
//!
//! - `options`: what moves, and how;
//! - `lanes`, `reader`, `writer`: the work; `writers`: from one to the other; `tracker`: how far it is;
//! - `leftovers`: what a killed run has left at the target;
//! - `shared`: what the lanes of one job share, and the connections that they open; its parts:
//! - `limits`: how many keys, how much memory, how fast;
//! - `failures`: keys that could not be copied;
//! - `suspects`: slots that may have been missed;
//! - `unstable`: keys that changed each time they were read;
//! - `followed`: large keys that are followed by their elements.

mod failures;
mod followed;
mod lanes;
mod leftovers;
mod limits;
mod options;
mod reader;
mod shared;
mod suspects;
mod tracker;
mod unstable;
mod writer;
mod writers;

pub(crate) use self::lanes::Lanes;
pub(crate) use self::leftovers::remove_leftovers;
pub use self::options::{CopyOptions, DbPair};
pub(crate) use self::shared::{Shared, average_bytes};
pub(crate) use self::tracker::Tracker;
pub use crate::lane_counts::LaneCounts;
