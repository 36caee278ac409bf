//! Moves of slots before they are made: what there is, and what would happen.

mod plan;
mod situation;

pub use self::plan::{Plan, Row};
pub use self::situation::{Load, MethodRule, Situation, Weighing};
