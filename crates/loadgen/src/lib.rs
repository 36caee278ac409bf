//! Loads for real servers and what checks them: for the benchmarks, the demo and the end-to-end tests.
//!
//! Nothing of the product is used here, so that a mistake in it cannot hide behind the same mistake in its
//! check.

pub mod check;
pub mod child;
pub mod content;
pub mod data;
pub mod interrupt;
pub mod load;
pub mod program;
pub mod rebalance;
pub mod slots;
pub mod wire;
pub mod zipf;
