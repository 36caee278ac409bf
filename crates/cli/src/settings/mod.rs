//! What the user typed, and what it resolves to.

pub mod args;
pub mod endpoints;
mod selection;
