//! The front in front of real servers.

mod carrying;
mod clusters;
mod common;
mod garbage;
mod limits;
mod misuse;
mod moving;
mod tables;
mod transparent;
mod turning;
