//! What to do about a cluster in which something is wrong: half-done moves, slots without an owner or with
//! several, keys in slots of another node, replicas that cannot be elected.
//!
//! - [`decide`]: from what the nodes [say](crate::cluster) to a plan;
//! - [`plan`]: the plan, an ordered list of changes.
//!
//! What carries out a plan may stop after any part of it. Then the nodes are asked again, and a new plan is
//! made of what they say; nothing is remembered from one to the next. The model checker stops everywhere.

pub mod decide;
pub mod plan;
