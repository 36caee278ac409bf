//! What the user typed, and what it resolves to.

pub mod args;
pub mod endpoints;
pub mod files;
mod selection;
