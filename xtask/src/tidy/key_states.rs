//! Which code may read, write and remove the states of keys, and list and count the keys of slots.

use super::source::line_of;

/// Commands that read, write or remove the state of a key or ask for its size, or list and count the keys of
/// a slot. Not `GET` and `SET`, as `CONFIG` has words of these names; nor what gives no state, as `EXISTS`.
const COMMANDS: [&str; 24] = [
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
    "MSETNX",
    "UNLINK",
    "DEL",
    "STRLEN",
    // The second word of `MEMORY USAGE`.
    "USAGE",
    "GETRANGE",
    "HGETALL",
    "SMEMBERS",
    "LRANGE",
    "ZRANGE",
    "XRANGE",
    "MIGRATE",
    "GETKEYSINSLOT",
    "COUNTKEYSINSLOT",
];

/// Where they may be named: where states are read, written and removed, where servers are asked what they can
/// do, what compares keys by itself, and what has keys of its own.
const PLACES: [&str; 22] = [
    "crates/flow/src/keys/",
    // Values in chunks: a part of the same mechanism.
    "crates/flow/src/large/",
    "crates/flow/src/verify/",
    // Reads a sample to measure how long that takes; writes nothing.
    "crates/flow/src/assess/",
    // Reads values on its own, so that a mistake in how they were moved shows.
    "crates/flow/src/slots/compare.rs",
    // Has the servers move keys themselves.
    "crates/flow/src/legacy.rs",
    // When keys expire, and which keys a slot has: below `flow`, as handovers need both.
    "crates/engine/src/expiry.rs",
    "crates/engine/src/slot_keys.rs",
    // Removes keys from a node that does not own their slots, and a key of its own that it waits for replicas
    // with: below `flow` as well.
    "crates/engine/src/handover/sweep.rs",
    // One server sends another a key of the gate's own, by commands or by a script.
    "crates/engine/src/handover/gate.rs",
    "crates/engine/src/handover/gate.lua",
    // What servers can do, what users may do, what commands do to keys.
    "crates/engine/src/probe.rs",
    "crates/engine/src/handover/permissions.rs",
    "crates/engine/src/behind.rs",
    "crates/engine/src/feed/",
    "crates/front/src/command/",
    // Passes on what clients ask.
    "crates/control/src/daemon/",
    // Removes its mark that both servers are being emptied. No client has a key of that name.
    "crates/front/src/migrate/flush.rs",
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
                    "{command}: keys are read, written and removed in flow::keys, \
                     slots listed in engine::slot_keys"
                ),
            ));
        }
    }
    found
}
