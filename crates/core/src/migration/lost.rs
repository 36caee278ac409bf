//! Keys that one of two nodes has lost while no node owns their slots.

use super::phase::Reached;

/// Whether a target may have owned the slots, and been written to, before it was as it is now.
pub(super) fn goes_forward(reached: &Reached, target_promoted: bool) -> bool {
    *reached == Reached::MaybeTaken || *reached == Reached::Sent && target_promoted
}

/// Why neither side may be trusted with slots that no node owns, if one of them has lost `keys`.
///
/// A source that came back without keys must not cost the target its copies, which may be the last: a server
/// without persistence starts empty, and Redis 8.4 and later delete keys of slots that they do not own. Nor
/// may a target that came back without keys, or a successor that had not got all of them, cost the source its
/// own.
pub(super) fn lost_keys(
    reached: &Reached,
    (source_same, target_same): (bool, bool),
    target_promoted: bool,
    (at_source, at_target): (u64, u64),
) -> Option<String> {
    let is_behind_fence = !matches!(reached, Reached::Nothing | Reached::Staging | Reached::Taken);
    let end = "nothing was deleted, and nobody owns the slots";
    if is_behind_fence && !source_same && at_source < at_target {
        return Some(format!(
            "the source restarted behind the fence with {at_source} keys where the target has {at_target}; \
             {end}"
        ));
    }
    let is_short = goes_forward(reached, target_promoted) && !target_same && at_target < at_source;
    is_short.then(|| {
        format!(
            "the target was replaced or restarted while it took over, and has {at_target} keys where the \
             source still has {at_source}; {end}"
        )
    })
}
