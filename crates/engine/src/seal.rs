//! Pauses all writes to a deployment at one moment, and keeps writers out afterwards.
//!
//! A [`Seal`] pauses writes on every primary (`CLIENT PAUSE … WRITE`); readers go on. When its time is up the
//! servers resume by themselves, so a whimbrel that died pauses no writer for ever.
//!
//! A [`WriterFence`] keeps writers out once the other side is authoritative. See [`WriterFenceKind`] for the
//! ways.

mod fence;
mod pause;
mod rights;
mod waiting;
mod writing;

pub use self::fence::{WriterFence, WriterFenceKind};
pub use self::pause::{Reached, Seal};
pub use self::rights::check_rights;
pub use self::writing::{WritingClient, is_whimbrels, other_clients, writing_clients};
