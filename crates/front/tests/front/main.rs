//! The front in front of real servers.

mod carrying;
mod common;
mod garbage;
mod limits;
mod tables;
mod transparent;
