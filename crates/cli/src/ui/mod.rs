//! What the user sees and is asked.

pub mod confirm;
pub mod display;
pub mod errors;
pub mod json;
pub mod table;
