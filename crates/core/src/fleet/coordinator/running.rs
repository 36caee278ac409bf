//! A change of a partition that is under way.

use crate::fleet::message::Move;
use crate::fleet::table::{Change, Holders, Row};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// The source gives its data to the destination.
    Transferring,
    /// A change is not on disk yet. `commits`: it is the move's own, else nothing moves by it.
    Writing { commits: bool },
    /// The change is decided. The destination has not said yet that it knows; until then the source keeps its
    /// data, sealed, and is sent nothing: if the destination is lost, the partition goes back to it.
    Committing(Change),
}

/// A partition that is being changed. Nothing else happens to it meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Running {
    /// None if nothing moves: a new owner without data, or fewer holders.
    pub(super) moving: Option<Move>,
    /// The row that all but the destination know until it is over.
    pub(super) base: Row,
    pub(super) after: Holders,
    /// The backend then.
    pub(super) backend: u32,
    pub(super) stage: Stage,
    pub(super) again_ms: u64,
    pub(super) until_ms: u64,
}
