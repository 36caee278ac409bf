//! Keys on their way from one server to another, while clients use them: what is known of each, what waits
//! for it, and what moves it.
//!
//! `docs/design/front.md` shows why no answer is wrong meanwhile.

pub(crate) mod alarms;
pub mod arrived;
pub mod carry;
pub mod direction;
pub mod filter;
pub(crate) mod flush;
pub(crate) mod hold;
pub(crate) mod keyspace;
pub mod locks;
pub(crate) mod mover;
pub mod phase;
pub(crate) mod stages;
pub(crate) mod staging;
pub(crate) mod state;
