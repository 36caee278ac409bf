//! What connects the members of a fleet with their coordinator.
//!
//! - [`Membership`]: one member. It reaches the coordinator through the RESP port of `whimbrel serve`, keeps
//!   its lease, and knows which member serves which partition;
//! - [`protocol`]: what goes over the connection besides the messages of `core::fleet`;
//! - [`login`]: how each side proves to the other that it knows the password;
//! - [`frame`], [`outbox`]: bytes in pieces of bounded length, and queues of bounded length.
//!
//! What is to be done is decided in `whimbrel_core::fleet` alone. The coordinator's side is
//! `whimbrel_control::fleet`.

mod cell;
mod data;
pub mod frame;
mod guard;
pub mod login;
mod membership;
pub mod outbox;
pub mod protocol;
mod session;
mod shared;
mod standing;

pub use data::{AtBackends, Data, Failure};
pub use guard::Guard;
pub use membership::{Membership, MembershipOptions, View};
pub use shared::Seen;
pub use standing::Standing;
