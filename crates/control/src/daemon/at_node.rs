//! What is answered at the port of one node: its own part of the jobs, what the node itself says, and the
//! cluster as [`Topology`](crate::topology::Topology) shows it there.

use std::net::IpAddr;

use bytes::Bytes;
use whimbrel_core::node::NodeId;
use whimbrel_wire::value::Value;

use super::migrations::integer;
use super::reply::{error, shown, text};
use super::seed;
use super::services::Jobs;

/// Keys that are listed at once. A node lists as many as it is asked for, in one piece.
const KEYS_MAX: i64 = 10_000;

/// The node whose port a client has connected to, and by which of our addresses.
#[derive(Debug, Clone)]
pub(super) struct AtNode {
    pub(super) id: NodeId,
    pub(super) ip: IpAddr,
}

/// The answer to a command about the node itself: the node's own, or a refusal. `None` for the others.
pub(super) async fn answer<J: Jobs>(node: &AtNode, words: &[Bytes], jobs: &J) -> Option<Value> {
    let upper: Vec<Vec<u8>> = words.iter().take(2).map(|word| word.to_ascii_uppercase()).collect();
    let upper: Vec<&[u8]> = upper.iter().map(Vec::as_slice).collect();
    let args = words.get(2..).unwrap_or_default();
    match (&upper[..], args) {
        ([b"DBSIZE"], []) | ([b"INFO", ..], _) => Some(pass_on(node, words, jobs).await),
        ([b"CLUSTER", b"MYID"], []) => Some(text(node.id.as_str())),
        ([b"CLUSTER", b"GETKEYSINSLOT"], [_, count]) if integer(count).is_some_and(|n| n > KEYS_MAX) => {
            Some(error(format!("no more than {KEYS_MAX} keys are listed here at once")))
        }
        ([b"CLUSTER", b"INFO" | b"LINKS" | b"MYSHARDID"], [])
        | ([b"CLUSTER", b"COUNTKEYSINSLOT" | b"REPLICAS" | b"SLAVES" | b"COUNT-FAILURE-REPORTS"], [_])
        | ([b"CLUSTER", b"GETKEYSINSLOT"], [_, _])
        | ([b"CLUSTER", b"SLOT-STATS"], [_, ..]) => Some(pass_on(node, words, jobs).await),
        ([b"CLUSTER", b"SETSLOT"], _) => Some(error(
            "CLUSTER SETSLOT is refused: slots move in jobs here, not key by key. Use CLUSTER MIGRATESLOTS, \
             as valkey-cli does for atomic slot migrations, or whimbrel rebalance",
        )),
        ([b"CLUSTER", sub], _) if changes_the_cluster(sub) => Some(error(format!(
            "CLUSTER {} is refused: only slots are moved here. Send it to the node itself",
            shown(sub)
        ))),
        _ => None,
    }
}

/// Commands that change the cluster in another way than by moving slots.
fn changes_the_cluster(sub: &[u8]) -> bool {
    matches!(
        sub,
        b"ADDSLOTS"
            | b"ADDSLOTSRANGE"
            | b"BUMPEPOCH"
            | b"DELSLOTS"
            | b"DELSLOTSRANGE"
            | b"FAILOVER"
            | b"FLUSHSLOTS"
            | b"FORGET"
            | b"MEET"
            | b"MIGRATION"
            | b"REPLICATE"
            | b"RESET"
            | b"SAVECONFIG"
            | b"SET-CONFIG-EPOCH"
            | b"SYNCSLOTS"
    )
}

async fn pass_on<J: Jobs>(node: &AtNode, words: &[Bytes], jobs: &J) -> Value {
    seed::pass_on(Some(&node.id), words, jobs).await
}
