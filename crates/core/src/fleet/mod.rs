//! A fleet of members on one partition table that is never sent whole.
//!
//! One [`Coordinator`] is the only writer of the [`Table`]. It writes each change down before any member
//! hears of it, and moves partitions: the owner gives the data to the destination, the coordinator writes the
//! [`Change`] down, the destination learns it in the commit and the source right after it. All others hear
//! later, with the next message that concerns them or in batches. What a member misses shows as a
//! [gap](Applied::Gap) or as another [stamp](Table::stamp), and it gets what it lacks, not the table.
//!
//! A [`Member`] serves what it owns as long as its lease lasts, by its own clock. The coordinator waits
//! longer than that, by its own, before it gives the partitions away: [`Options::expire_ms`].
//!
//! Both are state machines without I/O, clock and randomness: time comes in as a value, in milliseconds of a
//! monotonic clock of their own. The same code runs in production and in the model checker.
//! `docs/design/fleet.md` has the protocol and why it is safe.

mod codec;
mod coordinator;
mod member;
mod message;
mod plan;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;

pub use codec::{MESSAGE_BYTES_MAX, Malformed};
pub use coordinator::{Coordinator, Input, Options, Output, Recipient};
pub use member::{Action, Member, MemberInput};
pub use message::{Enrolled, ITEMS_MAX, Move, Order, Record, Report, ToCoordinator, ToMember};
pub use plan::{Step, Target, next_step, plan, plan_backends, transfers};
pub use snapshot::Snapshot;
pub use table::{
    Applied, Change, HOLDERS_MAX, Holders, MemberId, PARTITIONS_DEFAULT, PARTITIONS_MAX, Partition, Row,
    SEGMENT, Table,
};
