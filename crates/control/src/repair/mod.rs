//! Repairs a cluster: asks the nodes, and does what [`whimbrel_core::repair`] decides by what they say.
//!
//! - [`run`]: carries out one action of a plan;
//! - [`round`]: what is looked at before, between and after actions;
//! - [`instruction`]: plans in words;
//! - [`notes`]: what the next repair has to know if this one dies;
//! - [`keys`]: moves or removes the keys of single slots, whether their slots are owned or not.

pub mod instruction;
pub mod keys;
mod notes;
pub mod round;
pub mod run;
