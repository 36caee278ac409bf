//! The atomic slot migration that some servers have built in, driven and watched from outside.
//!
//! Two servers have one, and they are driven from opposite ends (each command is one of `CLUSTER`):
//!
//! | | [`NativeKind::Valkey9`] | [`NativeKind::Redis84`] |
//! |---|---|---|
//! | starts on | the source: `MIGRATESLOTS SLOTSRANGE s e … NODE id` | the target: `MIGRATION IMPORT s e …` |
//! | is reported by | `GETSLOTMIGRATIONS` on both nodes | `MIGRATION STATUS ALL` on both nodes |
//! | is cancelled by | `CANCELSLOTMIGRATIONS`: *all* exports of the node | `MIGRATION CANCEL ID id` |
//! | several at once | yes | one a node |
//! | after a failure | gives up for good | tries again every second until it is cancelled |
//!
//! [`NativeMigration`] speaks both in the same words; [`run`] queues one, watches it, repeats what is worth
//! repeating, cancels on request or if nothing moves, and checks at the end that both nodes name the same
//! owner. [`end`] makes sure that nothing is left of one, so that another method can take over. Whatever the
//! outcome, the server either moved all slots or none: nothing has to be rolled back here.
//!
//! Neither moves functions, compares what it moved, or slows writers down; both refuse while any slot of
//! either node is marked IMPORTING or MIGRATING by hand.

mod entry;
mod failure;
mod migration;
mod pace;
mod run;
mod state;
mod support;

pub use self::failure::NativeFailure;
pub use self::migration::{NativeCancel, NativeFound, NativeMigration, NativeOwner, Peer};
pub use self::run::{NativeOptions, NativeReport, end, run};
pub use self::state::{NativePhase, NativeState};
pub use self::support::{NativeKind, NativeSupport};
