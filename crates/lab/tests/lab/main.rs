//! The servers that tests run on, themselves under test.

mod cluster;
mod proxy;
mod standalone;
