//! Words about a job that several commands use.

use whimbrel_control::store::{Kind, Status};

/// From where to where: nodes of a cluster by the beginning of their ids.
pub(super) fn between(status: &Status) -> String {
    let short = |id: &str| match status.kind {
        Kind::Move => id.get(..8).unwrap_or(id).to_owned(),
        _ => id.to_owned(),
    };
    format!("{} -> {}", short(&status.source), short(&status.target))
}
