//! Model checking of [`whimbrel_core::repair`]: the real decision in small clusters in which everything is
//! wrong that can be, and everything done about it is interrupted everywhere.
//!
//! The cluster ([`world`]) has up to four nodes, two slots and two keys in each. The explorer
//! ([`mod@explore`]) begins with every state of it: each node takes any node for the owner or nobody, has
//! any mark or none, and holds some of the keys. It carries plans out ([`mod@carry`]) as `control::repair`
//! does, and after each single command it supposes that the repair dies, so that another one begins from
//! there. It checks that
//!
//! - no key is lost, save copies that the rules discard, and an interruption makes no key such a copy, where
//!   the slot has an owner and two nodes have keys of it;
//! - what the owner of a slot has under a name stays what clients find there;
//! - a slot without an owner goes to a node that has keys of it, where any has;
//! - everything that a plan asks for can be done;
//! - from each state few rounds lead to one in which all nodes agree, no mark is left and no key lies with a
//!   stranger, and there and only there nothing is left to do. Where a node does not answer, they lead to
//!   an end at least.
//!
//! Nodes do by themselves what servers are known to do: they believe newer claims, and delete the keys of
//! slots that they lose so; and since Valkey 8 a node that imports a slot may take it as soon as the other
//! end of its mark does not claim it. Elections are not modelled.
//!
//! [`Bug`] plants known mistakes, to show that they would be found.

mod carry;
mod explore;
mod world;

pub use carry::Bug;
pub use explore::{Report, explore};
pub use world::Shape;
