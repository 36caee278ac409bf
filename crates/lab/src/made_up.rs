//! Clusters that only one server believes in.

use std::fmt::Write as _;

use crate::cluster::SLOTS;
use crate::engine::Engine;

/// A `nodes.conf` for [`ServerBuilder::nodes_conf`](crate::ServerBuilder::nodes_conf): some primaries on
/// loopback, the first being the server itself, and for each slot the number of its owner. Start it with a
/// long `cluster-node-timeout`, so that the others are not found to be missing.
///
/// Panics for an owner that is not there.
pub fn made_up_nodes(engine: Engine, primaries: usize, owner_of: impl Fn(usize) -> Option<usize>) -> String {
    let mut lines: Vec<String> = (0..primaries)
        .map(|node| {
            let flags = if node == 0 { "myself,master" } else { "master" };
            // If shards have names, a node without one is in no shard.
            let has_shards = engine != Engine::Redis70;
            let shard = if has_shards { format!(",,shard-id={node:040x}") } else { String::new() };
            let (id, port) = (made_up_id(node), made_up_port(node));
            format!("{id} 127.0.0.1:{port}@{}{shard} {flags} - 0 0 {} connected", port + 10_000, node + 1)
        })
        .collect();
    for slot in 0..usize::from(SLOTS) {
        if let Some(owner) = owner_of(slot) {
            let _ = write!(lines[owner], " {slot}");
        }
    }
    lines.push(format!("vars currentEpoch {primaries} lastVoteEpoch 0\n"));
    lines.join("\n")
}

/// The name of a made-up node.
pub fn made_up_id(node: usize) -> String {
    format!("{:040x}", node + 1)
}

/// The port of a made-up node. No process must listen on its bus port: a server of another test that does
/// would be mistaken for it. So that is beyond the ports of this crate, and those of outgoing connections.
pub fn made_up_port(node: usize) -> usize {
    51_000 + node
}
