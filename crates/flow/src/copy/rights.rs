//! What a copy cannot promise where the source's user may do little.
//!
//! `SCAN`, `DUMP` and `PTTL` are enough to copy keys. Each of the other commands that a copy sends, if it
//! may, is there for something that is missing without it.

use whimbrel_core::units::format_bytes;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;
use whimbrel_engine::expiry::Clock;

use crate::functions::check_listed;
use crate::pipeline::CopyOptions;
use crate::verify::check_comparable;

/// Refuses what takes more rights than copying keys does, if it is asked for: to compare them afterwards, and
/// to copy function libraries too.
///
/// # Errors
/// As [`check_comparable`] and [`check_listed`].
pub async fn check_rights(source: &Deployment, compares: bool, functions: bool) -> Result<()> {
    if compares {
        check_comparable(source)?;
    }
    if functions { check_listed(source).await } else { Ok(()) }
}

/// A line for each.
pub(super) fn unpromised(source: &Deployment, options: &CopyOptions) -> Vec<String> {
    let can = &source.capabilities;
    let mut lines = Vec::new();
    if !source.facts.are_known {
        lines.push(
            "without INFO it goes unnoticed if the source is emptied (FLUSHALL, FLUSHDB, SWAPDB) or \
                replaced by another process meanwhile; a scan that is cut off begins anew"
                .to_owned(),
        );
        lines.push(
            "without INFO and COMMAND nothing is known of other databases, of how many keys there are and \
                how many of the target they replace, of function libraries and of search indexes: these are \
                not copied"
                .to_owned(),
        );
    }
    if matches!(can.clock(), Clock::Own { .. }) {
        lines.push(
            "without PEXPIRETIME or TIME expiries are what PTTL says is left: keys expire later on the \
                target, by the time that it takes to read and to write a batch of them"
                .to_owned(),
        );
    }
    if !can.get || !can.reads_pieces() {
        lines.push(
            "without GET, TYPE and TIME values move as dumps: those of types that the target does not \
                restore are reported, and left out"
                .to_owned(),
        );
    }
    if !can.reads_pieces() {
        lines.push(format!(
            "without TYPE and TIME values are not read in pieces: one whose dump is above {}, the memory of \
                this copy, is reported, and left out",
            format_bytes(options.memory_bytes)
        ));
    }
    lines
}
