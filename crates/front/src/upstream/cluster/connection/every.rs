//! Requests that go to all primaries, and to one after the other.

use std::task::Context;

use bytes::{Bytes, BytesMut};

use super::due::{At, Due, What};
use super::parts::Parts;
use super::state::Conn;
use crate::command::rule::Merge;
use crate::pipe::frame::{as_array, change_cursor};
use crate::pipe::io::Ended;
use crate::upstream::admission::Admission;
use crate::upstream::cluster::map::{Map, NODES_MAX};

/// In a cursor: the node, above what the node itself gave.
const NODE_SHIFT: u32 = 39;

/// If the nodes are members of a fleet: each may give cursors of a cluster's nodes. Clients that count with
/// floating-point numbers get along with 32 members.
const MEMBER_SHIFT: u32 = 48;

/// What a node has replied to `SCAN`, with the cursor with which the client comes back: to it, or to the
/// next.
pub(super) fn with_cursor(map: &Map, shift: u32, node: u16, reply: &[u8]) -> Vec<u8> {
    let cursor_at = |node: u16, cursor: u64| u64::from(node) << shift | cursor;
    let cursor_for = |cursor: u64| match cursor {
        0 => map
            .primaries()
            .iter()
            .find(|next| **next > node)
            .map_or(Some(0), |next| Some(cursor_at(*next, 0))),
        cursor => (cursor >> shift == 0).then(|| cursor_at(node, cursor)),
    };
    change_cursor(reply, cursor_for).unwrap_or_else(|| {
        b"-ERR whimbrel front: a node of the cluster gave a cursor that is too large\r\n".to_vec()
    })
}

impl<A: Admission> Conn<A> {
    /// The position of the node in a cursor.
    pub(super) fn cursor_shift(&self) -> u32 {
        if self.holds_back() { MEMBER_SHIFT } else { NODE_SHIFT }
    }

    /// Sends a request to all primaries. Nothing else is due.
    pub(super) fn send_to_every(
        &mut self,
        cx: &mut Context<'_>,
        merge: Merge,
        request: &[u8],
    ) -> Result<(), Ended> {
        let primaries = self.map.primaries().to_vec();
        if primaries.is_empty() {
            self.refresh();
            self.push_reply(b"-CLUSTERDOWN Hash slot not served\r\n".to_vec());
            return Ok(());
        }
        self.parts = Parts { merge: Some(merge), expected: primaries.len(), ..Parts::default() };
        for number in primaries {
            let node = self.node(cx, number)?;
            node.to.extend_from_slice(request);
            node.due += 1;
            self.due.push_back(Due::new(At::Node(number), What::Part));
        }
        self.settling = true;
        Ok(())
    }

    /// Sends `SCAN` to the node that its cursor names, or to the first.
    pub(super) fn scan(&mut self, cx: &mut Context<'_>, words: &[Bytes]) -> Result<(), Ended> {
        let cursor: Option<u64> =
            words.get(1).and_then(|word| std::str::from_utf8(word).ok()).and_then(|word| word.parse().ok());
        let Some(cursor) = cursor else {
            return self.send_anywhere(cx, words);
        };
        let shift = self.cursor_shift();
        let mask = (NODES_MAX as u64 - 1) << shift;
        let number = u16::try_from((cursor & mask) >> shift).unwrap_or(u16::MAX);
        let Some(node) = self.map.primaries().iter().copied().find(|node| *node >= number) else {
            self.push_reply(b"*2\r\n$1\r\n0\r\n*0\r\n".to_vec());
            return Ok(());
        };
        // A node that is no primary any more has no keys of its own: the next ones follow.
        let inner = if node == number { cursor & !mask } else { 0 };
        let mut words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        words[1] = inner.to_string().into_bytes();
        let request = BytesMut::from(&as_array(&words)[..]).freeze();
        self.send(cx, node, &request, What::Scanned(node), None)
    }

    fn send_anywhere(&mut self, cx: &mut Context<'_>, words: &[Bytes]) -> Result<(), Ended> {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        let request = Bytes::from(as_array(&words));
        let main = self.main()?;
        self.send(cx, main, &request, What::Reply, None)
    }
}
