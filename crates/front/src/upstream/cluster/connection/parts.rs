//! Replies of all primaries that become one.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use bytes::Bytes;
use whimbrel_wire::value::Value;

use crate::command::rule::Merge;
use crate::pipe::frame::as_array;

/// Replies that are looked at are held whole, those of all nodes to one request together.
pub(super) const COLLECTED_BYTES_MAX: usize = 64 << 20;

/// The replies of the nodes that have come so far.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) merge: Option<Merge>,
    pub(super) expected: usize,
    pub(super) replies: Vec<Bytes>,
    pub(super) bytes: usize,
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
