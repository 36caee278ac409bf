//! The front in front of real servers.

mod common;
mod garbage;
mod limits;
mod transparent;
