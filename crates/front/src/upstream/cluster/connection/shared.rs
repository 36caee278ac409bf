//! What is known of a client whose reads and writes go over connections that others use as well.

use std::sync::Arc;

use super::node::Node;
use crate::command::table::Row;
use crate::upstream::shared::SharedConnections;

/// What is known of a client that may share connections.
pub(super) struct Sharing {
    pub(super) connections: Arc<SharedConnections>,
    /// Ways over shared connections, by the numbers of nodes.
    pub(super) nodes: Vec<Option<Box<Node>>>,
    /// The client keeps to its own connections.
    pub(super) is_alone: bool,
    /// Something went over a shared connection since its own were marked.
    pub(super) is_unmarked: bool,
}

impl Sharing {
    pub(super) fn new(connections: Arc<SharedConnections>) -> Sharing {
        Sharing { connections, nodes: Vec::new(), is_alone: false, is_unmarked: false }
    }

    /// Whether a request with these words, which are treated as `row` says, goes over a shared connection if
    /// it may.
    pub(super) fn takes(&mut self, words: &[&[u8]], row: &Row, may_share: bool) -> bool {
        let [name, ..] = words else { return false };
        self.is_alone |= row.binds();
        may_share && !self.is_alone && self.connections.takes(name)
    }

    /// Whether anything is to come on them.
    pub(super) fn is_due(&self) -> bool {
        self.nodes.iter().flatten().any(|node| node.due > 0)
    }
}
