//! Repairs a cluster: what a survey shows, what to do about it, and doing it.
//!
//! - [`plan`]: what is to be done;
//! - [`decide`]: the plan, a pure function of the survey;
//! - [`run`]: carries out one action of a plan;
//! - [`round`]: what is looked at before, between and after actions;
//! - [`keys`]: moves or removes the keys of single slots, whether their slots are owned or not.

pub mod decide;
pub mod keys;
pub mod plan;
pub mod round;
pub mod run;
