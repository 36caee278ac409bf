//! Requests that go to all primaries, and to one after the other.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::task::Context;

use bytes::{Bytes, BytesMut};
use whimbrel_wire::value::Value;

use super::{At, Conn, Due, What};
use crate::pipe::frame::as_array;
use crate::pipe::frame::change_cursor;
use crate::pipe::io::Ended;
use crate::upstream::cluster::map::{Map, NODES_MAX};
use crate::upstream::cluster::route::Merge;

/// Replies that are looked at are held whole, those of all nodes to one request together.
pub(super) const COLLECTED_BYTES_MAX: usize = 64 << 20;

/// In a cursor: the node, above what the node itself gave.
const NODE_SHIFT: u32 = 39;

/// Where the nodes are members of a fleet, each of which may give cursors of a cluster's nodes. Clients that count with floating-point numbers get
/// along with 32 members.
const MEMBER_SHIFT: u32 = 48;

/// The replies of the nodes that have come so far.
#[derive(Debug, Default)]
pub(super) struct Parts {
    merge: Option<Merge>,
    expected: usize,
    replies: Vec<Bytes>,
    bytes: usize,
}

impl Parts {
    /// Whether what becomes of them is a list of keys.
    pub(super) fn are_keys(&self) -> bool {
        self.merge == Some(Merge::Union)
    }

    /// Another reply; once all are there, what becomes of them.
    pub(super) fn add(&mut self, reply: Bytes) -> Option<Vec<u8>> {
        self.bytes += reply.len();
        if self.bytes <= COLLECTED_BYTES_MAX {
            self.replies.push(reply);
        }
        self.expected -= 1;
        if self.expected > 0 {
            return None;
        }
        let (replies, merge) = (std::mem::take(&mut self.replies), self.merge.take()?);
        if std::mem::take(&mut self.bytes) > COLLECTED_BYTES_MAX {
            return Some(
                b"-ERR whimbrel front: the replies of the cluster's nodes are too long together\r\n".to_vec(),
            );
        }
        Some(merged(merge, &replies))
    }
}

fn merged(merge: Merge, replies: &[Bytes]) -> Vec<u8> {
    if let Some(error) = replies.iter().find(|reply| reply.starts_with(b"-")) {
        return error.to_vec();
    }
    let values: Vec<Value> = replies.iter().filter_map(|reply| Value::parse(reply).ok()).collect();
    let numbers = || values.iter().map(Value::as_int).collect::<Option<Vec<i64>>>();
    let first = || replies.first().map(|reply| reply.to_vec()).unwrap_or_default();
    match merge {
        Merge::Sum => numbers().map_or_else(first, |numbers| integer(numbers.iter().sum())),
        Merge::Least => {
            let least = numbers().and_then(|numbers| numbers.into_iter().min());
            least.map_or_else(first, integer)
        }
        Merge::Any => {
            // As likely as any other node: how many keys each has is not asked.
            let chance = RandomState::new().hash_one(0) as usize % replies.len().max(1);
            let is_some = |at: &usize| values.get(*at).is_some_and(|value| !value.is_null());
            let found = (0..replies.len()).map(|at| (at + chance) % replies.len()).find(is_some);
            found.map_or_else(first, |at| replies[at].to_vec())
        }
        Merge::Union => {
            let items: Vec<Vec<u8>> = values
                .into_iter()
                .flat_map(|value| value.into_items().unwrap_or_default())
                .filter_map(|item| item.as_bytes().map(|bytes| bytes.to_vec()))
                .collect();
            as_array(&items)
        }
        Merge::Each => {
            let mut each: Option<Vec<i64>> = None;
            for value in &values {
                let items = value.as_items().unwrap_or_default().iter();
                let numbers: Vec<i64> = items.filter_map(Value::as_int).collect();
                each = Some(match each {
                    None => numbers,
                    Some(least) => least.into_iter().zip(numbers).map(|(a, b)| a.min(b)).collect(),
                });
            }
            let each = each.unwrap_or_default();
            let mut text = format!("*{}\r\n", each.len()).into_bytes();
            text.extend(each.into_iter().flat_map(integer));
            text
        }
    }
}

fn integer(n: i64) -> Vec<u8> {
    format!(":{n}\r\n").into_bytes()
}

/// What a node has replied to `SCAN`, with the cursor by which the client comes back: to it, or to the next.
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

impl Conn {
    /// Where the node is in a cursor.
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
            self.say(b"-CLUSTERDOWN Hash slot not served\r\n".to_vec());
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

    /// Sends `SCAN` to the node that its cursor tells of, or to the first.
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
            self.say(b"*2\r\n$1\r\n0\r\n*0\r\n".to_vec());
            return Ok(());
        };
        // One that is no primary any more has no keys of its own: the next ones follow.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn merged_of(merge: Merge, replies: &[&str]) -> String {
        let mut parts = Parts { merge: Some(merge), expected: replies.len(), ..Parts::default() };
        let mut whole = None;
        for reply in replies {
            assert!(whole.is_none(), "it did not wait for all");
            whole = parts.add(Bytes::copy_from_slice(reply.as_bytes()));
        }
        String::from_utf8(whole.expect("all are there")).expect("text")
    }

    #[test]
    fn replies_become_one() {
        assert_eq!(merged_of(Merge::Sum, &[":1\r\n", ":20\r\n"]), ":21\r\n");
        assert_eq!(merged_of(Merge::Sum, &["+OK\r\n", "+OK\r\n"]), "+OK\r\n");
        assert_eq!(merged_of(Merge::Sum, &[":1\r\n", "-NOPERM no\r\n"]), "-NOPERM no\r\n");
        assert_eq!(merged_of(Merge::Least, &[":3\r\n", ":1\r\n", ":2\r\n"]), ":1\r\n");
        assert_eq!(
            merged_of(Merge::Union, &["*1\r\n$1\r\na\r\n", "*0\r\n", "*1\r\n$1\r\nb\r\n"]),
            "*2\r\n$1\r\na\r\n$1\r\nb\r\n"
        );
        assert_eq!(
            merged_of(Merge::Each, &["*2\r\n:1\r\n:1\r\n", "*2\r\n:0\r\n:1\r\n"]),
            "*2\r\n:0\r\n:1\r\n"
        );
        for _ in 0..20 {
            assert_eq!(merged_of(Merge::Any, &["$-1\r\n", "$1\r\nk\r\n", "$-1\r\n"]), "$1\r\nk\r\n");
        }
        assert_eq!(merged_of(Merge::Any, &["$-1\r\n", "$-1\r\n"]), "$-1\r\n");
    }
}
