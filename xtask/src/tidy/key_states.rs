//! Which code may read and write the states of keys, and list and count the keys of slots.

use super::source::line_of;

/// Commands that read or write the state of a key, or list and count the keys of a slot.
const COMMANDS: [&str; 12] = [
    "DUMP",
    "RESTORE",
    "RESTORE-ASKING",
    "PTTL",
    "PEXPIRETIME",
    "PXAT",
    "MGET",
    "MSET",
    "PEXPIRE",
    "PEXPIREAT",
    "GETKEYSINSLOT",
    "COUNTKEYSINSLOT",
];

/// Where they may be named: where states are read and written, where servers are asked what they can do, and
/// what compares keys and shares nothing with that.
const PLACES: [&str; 16] = [
    "crates/flow/src/keys/",
    // Values in chunks: a part of the same mechanism.
    "crates/flow/src/large/",
    "crates/flow/src/verify/",
    // Reads a sample to measure how long that takes; writes nothing.
    "crates/flow/src/assess/",
    "crates/flow/src/slots/compare.rs",
    // When keys expire, and which keys a slot has: below `flow`, as handovers need both.
    "crates/engine/src/expiry.rs",
    "crates/engine/src/slot_keys.rs",
    // What servers can do, what users may do, what commands do to keys.
    "crates/engine/src/probe.rs",
    "crates/engine/src/handover/permissions.rs",
    "crates/engine/src/behind.rs",
    "crates/engine/src/feed/",
    // Passes on what clients ask.
    "crates/control/src/daemon/",
    // Counts in the same turn of the server in which it takes the fence.
    "crates/front/src/fleet/carrier/claim.lua",
    "crates/lab/",
    "crates/loadgen/",
    "crates/bench/",
];

/// Where a file that has no business with them names such commands, in quotes: line and message. In `text` of
/// Rust there are neither comments nor tests.
pub(super) fn named(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    if PLACES.iter().any(|place| path.starts_with(place)) {
        return found;
    }
    for command in COMMANDS {
        for (at, _) in text.match_indices(&format!("\"{command}\"")) {
            found.push((
                line_of(text, at),
                format!(
                    "{command}: keys are read and written in flow::keys, slots listed in engine::slot_keys"
                ),
            ));
        }
    }
    found
}
