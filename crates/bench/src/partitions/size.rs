//! The fleet that is measured: how large it is, and how its members learn of moves.

use clap::ValueEnum;
use serde::Serialize;

/// How others learn of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Who takes part learns it in the move, others in batches
    Changes,
    /// Everybody gets the whole table after each move
    WholeTable,
}

/// How large the measured fleet is.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Size {
    pub(super) members: u32,
    pub(super) partitions: u32,
    pub(super) entries: u32,
    pub(super) entry_bytes: u32,
}

pub(super) fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Changes => "changes",
        Mode::WholeTable => "whole table",
    }
}
