//! Repairs a cluster: asks the nodes, and does what [`whimbrel_core::repair`] decides by what they say.
//!
//! - [`run`]: carries out one action of a plan;
//! - [`round`]: what is checked before, between and after actions;
//! - [`instruction`]: plans in words;
//! - [`notes`]: what the next repair has to know if this one dies;
//! - [`finish`]: moves the keys of a slot that is half moved, while clients use both nodes;
//! - [`keys`]: moves or removes the keys of single slots, whether their slots are owned or not.

pub mod finish;
pub mod instruction;
pub mod keys;
mod notes;
pub mod round;
pub mod run;
