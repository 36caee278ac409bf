//! What a server's words about a failure mean for what to do next.

use crate::error::Side;

use super::state::{NativePhase, NativeState};
use super::support::NativeKind;

/// Why a native migration failed, and whether to try it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeFailure {
    /// What the server said.
    pub reason: String,
    /// Which of the two nodes it is about.
    pub side: Side,
    /// True if the same command may succeed without any change by the user.
    pub retriable: bool,
    /// What the user can do, if it is not.
    pub remedy: Option<&'static str>,
}

impl NativeState {
    /// The failure, if there is one: of a migration that has ended, or of the server's own last try.
    pub fn failure(&self) -> Option<NativeFailure> {
        match self.phase {
            NativePhase::Failed => Some(judge(&self.message)),
            // Of Redis, between two tries of its own.
            NativePhase::Queued if self.raw == "failed" => Some(judge(&self.message)),
            NativePhase::Cancelled => Some(NativeFailure {
                reason: "somebody else cancelled it".to_owned(),
                side: Side::Source,
                retriable: false,
                remedy: Some("find out who did and why, then start again"),
            }),
            NativePhase::Lost => Some(NativeFailure {
                reason: "the server does not list it any more; was it restarted?".to_owned(),
                side: Side::Source,
                retriable: true,
                remedy: Some("see the server's log"),
            }),
            _ => None,
        }
    }
}

/// Words in a message, the side that it concerns, whether trying again makes sense, and what to do if it does
/// not.
type Rule = (&'static str, Side, bool, &'static str);

const OPEN_SLOTS: &str = "finish or close the slots that are marked IMPORTING or MIGRATING on that node \
    first, or use another method";

/// Read in the messages of Valkey 9.1.2 and in the source of Redis 8.4. The first that fits counts: what a
/// node's peer answered comes before what it was answered to. Lower case: both servers change case between
/// versions.
const RULES: &[Rule] = &[
    ("out of memory", Side::Target, false, "raise maxmemory on that node or make room, then start again"),
    ("manually imported", Side::Target, false, OPEN_SLOTS),
    ("manually migrated", Side::Source, false, OPEN_SLOTS),
    ("slot states must be stable", Side::Target, false, OPEN_SLOTS),
    ("auth to target", Side::Target, false, "make the nodes' primaryauth and passwords agree"),
    ("reply to auth from", Side::Source, false, "make the nodes' secrets agree"),
    // Data on one of the nodes is gone now, by the user's own command: what is left moves quickly.
    ("data was flushed", Side::Source, true, "see who runs FLUSHALL"),
    (
        "lost writes",
        Side::Source,
        false,
        "the source resumed writes before it knew the outcome: compare the keys of these slots before going \
            on",
    ),
    (
        "failover occurred",
        Side::Target,
        false,
        "see that the target's shard is healthy, then run the command again",
    ),
    ("demoted", Side::Target, false, "see that both shards are healthy, then run the command again"),
    (
        "full resynchronization",
        Side::Target,
        false,
        "see that the target's shard is healthy, then run the command again",
    ),
    (
        "no longer owned",
        Side::Source,
        false,
        "somebody else moves these slots: look at the cluster, then run the command again",
    ),
    (
        "unexpectedly assigned",
        Side::Target,
        false,
        "somebody else moves these slots: look at the cluster, then run the command again",
    ),
    ("different migration", Side::Target, false, "wait until the other migration has ended"),
    ("failed to process command", Side::Target, false, "see the target's log"),
    ("cross-slot", Side::Source, false, "a module writes to several slots at once: use another method"),
    ("module", Side::Source, false, "a loaded module does not support it: use another method"),
    // The nodes learn about each other and about slots by gossip, within a second or two.
    ("does not agree about current slot ownership", Side::Target, true, "wait until all nodes agree"),
    ("does not know the source", Side::Target, true, "wait until all nodes know each other"),
    ("connect to target", Side::Target, true, "see that the source can reach the target"),
    ("connection lost to target", Side::Target, true, "see the target's log"),
    ("connection lost to source", Side::Source, true, "see the source's log"),
    ("connection", Side::Source, true, "see that the two nodes can reach each other"),
    ("disconnected", Side::Source, true, "see that the two nodes can reach each other"),
    ("did not respond", Side::Target, true, "see that the two nodes can reach each other"),
    ("failed to sync with", Side::Source, true, "see that the two nodes can reach each other"),
    (
        "output buffer",
        Side::Source,
        true,
        "raise client-output-buffer-limit for replicas on the source, or write less to these slots",
    ),
    (
        "timed out",
        Side::Source,
        true,
        "the target did not keep up with the writers: slow them down, move fewer slots at once, or use \
            another method",
    ),
    ("timeout", Side::Source, true, "slow the writers down, move fewer slots at once, or use another method"),
    (
        "unpaused before",
        Side::Source,
        true,
        "slow the writers down, or raise cluster-manual-failover-timeout",
    ),
    ("snapshot", Side::Source, true, "see the source's log: it may lack the memory for a fork"),
    ("rdb channel", Side::Source, true, "see the source's log"),
    ("process restarted", Side::Target, true, "see why the node was restarted"),
    ("loading", Side::Target, true, "wait until the node has loaded its data"),
];

/// What a message means. Unknown words are taken as final: what a second try would do is not known.
pub(super) fn judge(message: &str) -> NativeFailure {
    let lower = message.to_ascii_lowercase();
    let reason = match message {
        "" => "the server gave no reason".to_owned(),
        _ => message.to_owned(),
    };
    match RULES.iter().find(|(words, ..)| lower.contains(words)) {
        Some(&(_, side, retriable, remedy)) => {
            NativeFailure { reason, side, retriable, remedy: Some(remedy) }
        }
        None => NativeFailure {
            reason,
            side: Side::Source,
            retriable: false,
            remedy: Some("see the nodes' logs"),
        },
    }
}

/// True if the node that reports the failure only says that its peer went away: the peer knows why.
pub(super) fn is_known_to_peer(kind: NativeKind, message: &str) -> bool {
    kind == NativeKind::Valkey9 && message.starts_with("Connection lost to target")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_distinguished() {
        // As Valkey 9.1.2 sent them.
        for (message, side, retriable) in [
            ("Ran out of memory (OOM) during slot import", Side::Target, false),
            (
                "Received error during handshake to target: -ERR Slots are being manually imported",
                Side::Target,
                false,
            ),
            (
                "Connection lost to target. Check CLUSTER GETSLOTMIGRATIONS on the target node for more \
                    information.",
                Side::Target,
                true,
            ),
            ("Data was flushed", Side::Source, true),
            ("A failover occurred during slot import", Side::Target, false),
            ("Slots are no longer owned by myself", Side::Source, false),
            ("Unpaused before failover completed", Side::Source, true),
            (
                "Unpaused before migration completed (migration may have succeeded with lost writes)",
                Side::Source,
                false,
            ),
            ("Failed to start snapshot", Side::Source, true),
            ("Timed out before streaming completed", Side::Source, true),
            // Redis.
            (
                "Main channel - Connection is closed (state: streaming-buffer, rdb_channel_state: done)",
                Side::Source,
                true,
            ),
            ("words nobody has heard before", Side::Source, false),
        ] {
            let failure = judge(message);
            assert_eq!((failure.side, failure.retriable), (side, retriable), "{message}");
            assert_eq!(failure.reason, message);
        }
    }

    #[test]
    fn success_is_no_failure() {
        let state = NativeState { phase: NativePhase::Confirming, ..NativeState::default() };
        assert_eq!(state.failure(), None);
        assert_eq!(NativeState::default().failure(), None, "a queued one has not failed yet");
    }
}
