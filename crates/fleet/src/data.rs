//! What has to happen to the data of a partition when it moves.

use std::fmt;

use whimbrel_core::fleet::{Move, Partition};

/// Why data could not be given away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What has to happen to the data of a partition when it moves.
pub trait Data: Send + Sync + 'static {
    /// Gives the data to the destination, while requests go on here.
    ///
    /// # Errors
    /// If that cannot be done: the move is given up.
    fn transfer(&self, moving: &Move) -> impl Future<Output = std::result::Result<(), Failure>> + Send;

    /// Gives the destination what has changed meanwhile. No request of the partition is under way, and none
    /// begins.
    ///
    /// # Errors
    /// If that cannot be done: the move is given up.
    fn settle(&self, moving: &Move) -> impl Future<Output = std::result::Result<(), Failure>> + Send;

    /// The data of this partition is not needed here any more.
    fn discard(&self, partition: Partition);

    /// By this move the data of its partition has another backend: what is left at the backend of this number
    /// is not needed any more. If that cannot be removed now, it may stay: nothing looks for it there, and
    /// the next move there begins with removing it.
    fn leave(&self, moving: &Move, backend: u32);
}

/// The data lies at servers that all members use: nothing of it moves with a partition.
#[derive(Debug, Clone, Copy, Default)]
pub struct AtBackends;

impl Data for AtBackends {
    async fn transfer(&self, moving: &Move) -> std::result::Result<(), Failure> {
        match moving.backend {
            Some(_) => Err(Failure("this member cannot carry data from one backend to another".to_owned())),
            None => Ok(()),
        }
    }

    async fn settle(&self, _: &Move) -> std::result::Result<(), Failure> {
        Ok(())
    }

    fn discard(&self, _: Partition) {}

    fn leave(&self, _: &Move, _: u32) {}
}
