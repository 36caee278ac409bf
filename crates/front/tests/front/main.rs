//! The front in front of real servers.

mod batches;
mod carrying;
mod certificates;
mod clusters;
mod common;
mod elements;
mod fleets;
mod flush;
mod forwarded;
mod garbage;
mod holding;
mod large;
mod limits;
mod misuse;
mod moving;
mod reversing;
mod scanned;
mod scripts;
mod sealing;
mod shared_nodes;
mod sharing;
mod tables;
mod transparent;
