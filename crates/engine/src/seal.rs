//! Holding all writers of a deployment at one moment, and keeping them out afterwards.
//!
//! A [`Seal`] pauses writes on every primary (`CLIENT PAUSE … WRITE`); readers go on. The servers let writers
//! go by themselves when its time is up, so that nobody is held for ever by a whimbrel that died.
//!
//! A [`Fence`] is what keeps writers out once the other side is the one that counts. See [`FenceKind`] for
//! the ways.

mod fence;
mod pause;
mod rights;
mod waiting;
mod writing;

pub use self::fence::{Fence, FenceKind};
pub use self::pause::{Reached, Seal};
pub use self::rights::check_rights;
pub use self::writing::{WritingClient, other_clients, writing_clients};
