//! Which streams have consumer groups, and with how many consumers: a few round trips for many streams.

use bytes::Bytes;
use whimbrel_engine::error::Result;
use whimbrel_wire::value::Value;

use super::pair::Pair;
use super::peer::{Peer, Request};

fn requests(keys: &[Bytes]) -> Vec<Request> {
    keys.iter().map(|key| Request::on("XINFO GROUPS", key)).collect()
}

/// Each group's name and how many consumers it has, by name; none if the key is no stream any more.
fn groups_of(reply: &Value) -> Vec<(Option<&Bytes>, Option<i64>)> {
    let mut groups: Vec<_> = reply
        .as_items()
        .unwrap_or_default()
        .iter()
        .map(|group| {
            let consumers = group.field("consumers").and_then(Value::as_int);
            (group.field("name").and_then(Value::as_bytes), consumers)
        })
        .collect();
    groups.sort_unstable();
    groups
}

/// Those of `keys` that have groups.
pub(super) async fn with_groups(peer: &mut Peer, keys: &[Bytes]) -> Result<Vec<Bytes>> {
    let replies = peer.run(&requests(keys)).await?;
    let found = keys.iter().zip(&replies).filter(|(_, reply)| !groups_of(reply).is_empty());
    Ok(found.map(|(key, _)| key.clone()).collect())
}

/// Those of `keys` for which the target has other groups, or groups with more or fewer consumers.
pub(super) async fn with_other_groups(pair: &mut Pair, keys: &[Bytes]) -> Result<Vec<Bytes>> {
    let (ours, theirs) = pair.both(&requests(keys)).await?;
    let sides = keys.iter().zip(ours.iter().zip(&theirs));
    let other = sides.filter(|(_, (ours, theirs))| groups_of(ours) != groups_of(theirs));
    Ok(other.map(|(key, _)| key.clone()).collect())
}
