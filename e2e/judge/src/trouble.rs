//! Kinds of what contradicts an acknowledged command.

/// Kinds of trouble that writers find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TroubleKind {
    /// A key is gone though it must be there.
    Lost,
    /// A key holds something else than was last acknowledged.
    Stale,
    /// A key is there though its deletion was acknowledged, or it has expired.
    Resurrected,
    /// During the writing a server answered as if an acknowledged write had not been.
    WrongReply,
}
