//! Measurements, and what the demo shares with them: data, comparison, children, signals.

mod bars;
pub mod check;
pub mod child;
pub mod contender;
pub mod copy;
pub mod data;
pub mod front;
pub mod interrupt;
pub mod machine;
pub mod partitions;
pub mod report;
pub mod reshard;
pub mod svg;
pub mod sync;
pub mod topology;
