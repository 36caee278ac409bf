//! What clients of the cluster are sent besides its topology: where to go with a command, and what only nodes
//! know.

use bytes::Bytes;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::Slot;
use whimbrel_wire::value::Value;

use super::migrations::integer;
use super::reply::{error, shown};
use super::services::Jobs;

/// Sends the client of a command with keys to the owner of their slot, as a node does that does not own it.
/// The cluster is asked where the keys are, so commands of modules are understood as well.
pub(super) async fn redirect<J: Jobs>(words: &[Bytes], jobs: &J) -> Value {
    let question = [&b"COMMAND"[..], b"GETKEYS"].into_iter().chain(words.iter().map(|word| &word[..]));
    let keys = match jobs.ask(None, &question.collect::<Vec<_>>()).await {
        Ok(reply) => reply.into_items().unwrap_or_default(),
        Err(e) => return error(e.to_string()),
    };
    let mut slots = keys.iter().filter_map(Value::as_bytes).map(|key| Slot::of_key(key));
    let Some(slot) = slots.next() else {
        // Without its arguments, which may be confidential.
        return error(format!(
            "unknown command '{}', or it has no keys: it is for the nodes",
            shown(&words[0])
        ));
    };
    if slots.any(|other| other != slot) {
        return Value::Error(Bytes::from_static(b"CROSSSLOT Keys in request don't hash to the same slot"));
    }
    match jobs.topology().owner(slot) {
        Some(owner) => Value::Error(Bytes::from(format!("MOVED {slot} {}:{}", owner.host, owner.port))),
        None => Value::Error(Bytes::from_static(b"CLUSTERDOWN Hash slot not served")),
    }
}

/// Passes our question on to a node: to any if none is named.
pub(super) async fn pass_on<J: Jobs>(node: Option<&NodeId>, words: &[Bytes], jobs: &J) -> Value {
    let words: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
    jobs.ask(node, &words).await.unwrap_or_else(|e| error(e.to_string()))
}

/// How many keys the owner of a slot has in it: only the owner knows.
pub(super) async fn count_keys<J: Jobs>(word: &[u8], jobs: &J) -> Value {
    let Some(number) = integer(word) else {
        return error("value is not an integer or out of range");
    };
    let Some(slot) = u16::try_from(number).ok().and_then(Slot::new) else {
        return error("Invalid slot");
    };
    let Some(owner) = jobs.topology().owner(slot) else {
        return Value::Error(Bytes::from_static(b"CLUSTERDOWN Hash slot not served"));
    };
    let number = slot.to_string();
    let question: [&[u8]; 3] = [b"CLUSTER", b"COUNTKEYSINSLOT", number.as_bytes()];
    jobs.ask(Some(&owner.id), &question).await.unwrap_or_else(|e| error(e.to_string()))
}
