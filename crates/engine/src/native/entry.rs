//! What the servers list, as one kind of entry.

use whimbrel_core::slot::{SlotRange, SlotSet};
use whimbrel_wire::value::Value;

use super::state::{NativePhase, NativeState};
use super::support::NativeKind;

/// Servers quote peers and arguments in messages; that much of one is kept.
const MESSAGE_BYTES_MAX: usize = 300;

/// One migration in a node's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    kind: NativeKind,
    pub(super) name: String,
    /// True if the listing node gives the slots away.
    pub(super) is_export: bool,
    pub(super) slots: SlotSet,
    pub(super) source: String,
    pub(super) target: String,
    raw: String,
    pub(super) message: String,
    retries: u32,
    created_ms: Option<u64>,
    updated_ms: Option<u64>,
    acked_ms: Option<u64>,
    cow_bytes: Option<u64>,
    remaining_bytes: Option<u64>,
    pub(super) pause_ms: Option<u64>,
}

impl Entry {
    /// Reads the reply of `CLUSTER GETSLOTMIGRATIONS` or `CLUSTER MIGRATION STATUS`; `None` if it has another
    /// form. Fields that we do not know are passed over; `remaining_repl_size` came with Valkey 9.1.
    pub(super) fn read_all(kind: NativeKind, reply: &Value) -> Option<Vec<Entry>> {
        reply.as_items()?.iter().map(|item| Entry::read(kind, item)).collect()
    }

    fn read(kind: NativeKind, item: &Value) -> Option<Entry> {
        let text = |name: &str| item.field(name).and_then(Value::as_str).map(str::to_owned);
        let number =
            |name: &str| item.field(name).and_then(Value::as_int).and_then(|n| u64::try_from(n).ok());
        let seconds = |name: &str| number(name).map(|s| s * 1_000);
        let operation = text("operation")?;
        Some(match kind {
            NativeKind::Valkey9 => Entry {
                kind,
                name: text("name")?,
                is_export: operation.eq_ignore_ascii_case("export"),
                slots: parse_ranges(&text("slot_ranges")?)?,
                source: text("source_node")?,
                target: text("target_node")?,
                raw: text("state")?,
                message: shortened(&text("message").unwrap_or_default()),
                retries: 0,
                created_ms: seconds("create_time"),
                updated_ms: seconds("last_update_time"),
                acked_ms: seconds("last_ack_time"),
                cow_bytes: number("cow_size"),
                remaining_bytes: number("remaining_repl_size"),
                pause_ms: None,
            },
            NativeKind::Redis84 => Entry {
                kind,
                name: text("id")?,
                is_export: operation.eq_ignore_ascii_case("migrate"),
                slots: parse_ranges(&text("slots")?)?,
                source: text("source")?,
                target: text("dest")?,
                raw: text("state")?,
                message: shortened(&text("last_error").unwrap_or_default()),
                retries: number("retries").and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
                created_ms: number("create_time"),
                updated_ms: None,
                acked_ms: None,
                cow_bytes: None,
                remaining_bytes: None,
                pause_ms: number("write_pause_ms").filter(|_| text("state").as_deref() == Some("completed")),
            },
        })
    }

    /// Whether the node still works on it. A failed import of Redis counts as active: the server will try it
    /// again. A failed export does not: it is over until the target asks again.
    pub(super) fn is_active(&self) -> bool {
        match (self.kind, self.raw.as_str()) {
            (NativeKind::Redis84, "failed") => !self.is_export,
            _ => !self.phase().is_final(),
        }
    }

    fn phase(&self) -> NativePhase {
        match self.kind {
            NativeKind::Valkey9 => valkey_phase(&self.raw),
            NativeKind::Redis84 => redis_phase(&self.raw),
        }
    }

    /// The entry in our words.
    pub(super) fn state(&self) -> NativeState {
        NativeState {
            phase: self.phase(),
            raw: self.raw.clone(),
            message: self.message.clone(),
            name: self.name.clone(),
            attempt: 0,
            server_retries: self.retries,
            remaining_bytes: self.remaining_bytes,
            cow_bytes: self.cow_bytes,
            created_ms: self.created_ms,
            updated_ms: self.updated_ms,
            acked_ms: self.acked_ms,
            pause_ms: self.pause_ms,
        }
    }

    /// For messages: `slots 0-99 from 07c37dfe to 67ed2db8 (snapshotting)`.
    pub(super) fn describe(&self) -> String {
        let short = |id: &str| id.chars().take(8).collect::<String>();
        let raw = &self.raw;
        format!("slots {} from {} to {} ({raw})", self.slots, short(&self.source), short(&self.target))
    }
}

/// The states of an export. Those of an import, which are looked at only for whether they are final, count as
/// streaming.
fn valkey_phase(raw: &str) -> NativePhase {
    match raw {
        "connecting"
        | "sending-auth-command"
        | "reading-auth-response"
        | "sending-establish-command"
        | "reading-establish-response"
        | "waiting-to-snapshot" => NativePhase::Attaching,
        "snapshotting" => NativePhase::Snapshotting,
        "failover-paused" => NativePhase::Draining,
        "failover-granted" => NativePhase::TakingOver,
        "success" => NativePhase::Confirming,
        "failed" => NativePhase::Failed,
        "cancelled" => NativePhase::Cancelled,
        // `replicating`, and `waiting-to-pause`, where writes go on: it only means that a pause is wanted.
        _ => NativePhase::Streaming,
    }
}

/// The states of an import and of an export. `failed` waits for the server's next try.
fn redis_phase(raw: &str) -> NativePhase {
    match raw {
        "none" | "failed" => NativePhase::Queued,
        "connecting" | "auth-reply" | "send-handshake" | "handshake-reply" | "send-syncslots"
        | "syncslots-reply" | "init-rdbchannel" | "wait-rdbchannel" | "wait-bgsave-start" => {
            NativePhase::Attaching
        }
        "accumulate-buffer" | "ready-to-stream" | "send-bulk-and-stream" => NativePhase::Snapshotting,
        "wait-stream-eof" | "handoff-prep" | "handoff" | "stream-done" => NativePhase::Draining,
        "takeover" => NativePhase::TakingOver,
        "completed" => NativePhase::Confirming,
        "canceled" | "cancelled" => NativePhase::Cancelled,
        _ => NativePhase::Streaming,
    }
}

/// `0-9 20-29`; commas are taken as well, and single slots without a dash.
fn parse_ranges(text: &str) -> Option<SlotSet> {
    let words = text.split([' ', ',']).filter(|w| !w.is_empty());
    let ranges = words.map(|w| w.parse().ok()).collect::<Option<Vec<SlotRange>>>()?;
    Some(SlotSet::from_ranges(ranges))
}

/// One line, without what is beyond the limit.
fn shortened(text: &str) -> String {
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.len() > MESSAGE_BYTES_MAX {
        let cut = (0..=MESSAGE_BYTES_MAX - '…'.len_utf8()).rev().find(|&i| text.is_char_boundary(i));
        text.truncate(cut.unwrap_or(0));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// As Valkey 9.1.2 sent it.
    const VALKEY: &[u8] = b"*1\r\n*24\r\n$4\r\nname\r\n$40\r\n3fee508e2fb0c0c4d6c5a3dc69d2611d1bd995d9\r\n\
        $9\r\noperation\r\n$6\r\nEXPORT\r\n$11\r\nslot_ranges\r\n$9\r\n0-9 \
        20-29\r\n$11\r\ntarget_node\r\n$40\r\n\
        ed8a1e9ba4a662a2c66d0c553bb9439d41ed0190\r\n$11\r\nsource_node\r\n$40\r\n\
        dd08920e5b73a4754dfd2f338d509cb54a183574\r\n$11\r\ncreate_time\r\n:1795310207\r\n\
        $16\r\nlast_update_time\r\n\
        :1795310208\r\n$13\r\nlast_ack_time\r\n:1795310209\r\n\
        $5\r\nstate\r\n$7\r\nsuccess\r\n$7\r\nmessage\r\n$0\r\n\r\n\
        $8\r\ncow_size\r\n:4096\r\n$19\r\nremaining_repl_size\r\n:17\r\n";

    #[test]
    fn an_entry_of_valkey_is_read() {
        let reply = Value::parse(&Bytes::from_static(VALKEY)).expect("one frame");
        let entries = Entry::read_all(NativeKind::Valkey9, &reply).expect("a list");
        let [entry] = &entries[..] else { panic!("{entries:?}") };
        assert!(entry.is_export && !entry.is_active());
        assert_eq!(entry.slots.to_string(), "0-9,20-29");
        let state = entry.state();
        assert_eq!((state.phase, state.raw.as_str()), (NativePhase::Confirming, "success"));
        assert_eq!((state.cow_bytes, state.remaining_bytes), (Some(4096), Some(17)));
        assert_eq!((state.created_ms, state.acked_ms), (Some(1_795_310_207_000), Some(1_795_310_209_000)));
    }

    #[test]
    fn writes_go_on_while_a_pause_is_waited_for() {
        assert_eq!(valkey_phase("waiting-to-pause"), NativePhase::Streaming);
        assert_eq!(valkey_phase("replicating"), NativePhase::Streaming);
        assert_eq!(valkey_phase("failover-paused"), NativePhase::Draining);
    }

    #[test]
    fn messages_are_one_short_line() {
        assert_eq!(shortened("-ERR Slots are being\r\n"), "-ERR Slots are being");
        let long = shortened(&"é".repeat(400));
        assert!(long.len() <= MESSAGE_BYTES_MAX && long.ends_with('…'), "{}", long.len());
    }
}
