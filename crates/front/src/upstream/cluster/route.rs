//! To which nodes of a cluster a command goes.

use std::collections::HashMap;
use std::sync::LazyLock;

use whimbrel_core::slot::Slot;

use crate::command::Trait;
use crate::command::keys::{CommandTable, Keys};

/// Where a command goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Aim {
    /// To the owner of the slot that all of its keys are in.
    Slot(Slot),
    /// To any node: it has no keys.
    Anyone,
    /// As the name says.
    Named(Named),
    /// A node has to be asked which of its words are keys.
    Asked,
    /// Not enough of its words are known.
    More,
    /// Its keys are in several slots.
    CrossSlot,
}

/// What a command does that is known by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    Multi,
    /// `EXEC`.
    Exec,
    Discard,
    Watch,
    Unwatch,
    Noted(Trait),
    Reset,
    Select,
    Quit,
    /// Begins or ends to listen to channels that all nodes know.
    Listen,
    /// The same, of channels that belong to slots.
    ListenAtSlot,
    /// Its second word is a channel that belongs to a slot.
    PublishAtSlot,
    Scan,
    /// Sent to all primaries, whose replies become one.
    Every(Merge),
    /// Answered as by a server that is no cluster.
    NoCluster,
    /// Not answered: it would change one node of many.
    Refused,
}

/// How the replies of all primaries become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Merge {
    /// Numbers are added; of anything else the first.
    Sum,
    /// The least number.
    Least,
    /// All elements.
    Union,
    /// One that is not null.
    Any,
    /// For each element the least of all.
    Each,
}

/// A name may be followed by a second word; `*` stands for any other.
const TABLE: &[(&str, Named)] = &[
    ("MULTI", Named::Multi),
    ("EXEC", Named::Exec),
    ("DISCARD", Named::Discard),
    ("WATCH", Named::Watch),
    ("UNWATCH", Named::Unwatch),
    ("AUTH", Named::Noted(Trait::Login)),
    ("HELLO", Named::Noted(Trait::Hello)),
    ("CLIENT SETNAME", Named::Noted(Trait::Name)),
    ("RESET", Named::Reset),
    ("SELECT", Named::Select),
    ("QUIT", Named::Quit),
    ("SUBSCRIBE", Named::Listen),
    ("PSUBSCRIBE", Named::Listen),
    ("UNSUBSCRIBE", Named::Listen),
    ("PUNSUBSCRIBE", Named::Listen),
    ("SSUBSCRIBE", Named::ListenAtSlot),
    ("SUNSUBSCRIBE", Named::ListenAtSlot),
    ("SPUBLISH", Named::PublishAtSlot),
    ("SCAN", Named::Scan),
    ("DBSIZE", Named::Every(Merge::Sum)),
    ("KEYS", Named::Every(Merge::Union)),
    ("RANDOMKEY", Named::Every(Merge::Any)),
    ("WAIT", Named::Every(Merge::Least)),
    ("FLUSHDB", Named::Every(Merge::Sum)),
    ("FLUSHALL", Named::Every(Merge::Sum)),
    ("SCRIPT LOAD", Named::Every(Merge::Sum)),
    ("SCRIPT FLUSH", Named::Every(Merge::Sum)),
    ("SCRIPT EXISTS", Named::Every(Merge::Each)),
    ("FUNCTION LOAD", Named::Every(Merge::Sum)),
    ("FUNCTION DELETE", Named::Every(Merge::Sum)),
    ("FUNCTION FLUSH", Named::Every(Merge::Sum)),
    ("FUNCTION RESTORE", Named::Every(Merge::Sum)),
    ("CLIENT KILL", Named::Every(Merge::Sum)),
    ("CLIENT PAUSE", Named::Every(Merge::Sum)),
    ("CLIENT UNPAUSE", Named::Every(Merge::Sum)),
    ("CLUSTER *", Named::NoCluster),
    ("READONLY", Named::NoCluster),
    ("READWRITE", Named::NoCluster),
    ("ASKING", Named::NoCluster),
    ("CONFIG SET", Named::Refused),
    ("CONFIG REWRITE", Named::Refused),
    ("CONFIG RESETSTAT", Named::Refused),
    ("ACL SETUSER", Named::Refused),
    ("ACL DELUSER", Named::Refused),
    ("ACL LOAD", Named::Refused),
    ("ACL SAVE", Named::Refused),
    ("MODULE LOAD", Named::Refused),
    ("MODULE LOADEX", Named::Refused),
    ("MODULE UNLOAD", Named::Refused),
    ("SCRIPT KILL", Named::Refused),
    ("FUNCTION KILL", Named::Refused),
    ("DEBUG *", Named::Refused),
    ("SHUTDOWN", Named::Refused),
    ("REPLICAOF", Named::Refused),
    ("SLAVEOF", Named::Refused),
    ("FAILOVER", Named::Refused),
    ("SAVE", Named::Refused),
    ("BGSAVE", Named::Refused),
    ("BGREWRITEAOF", Named::Refused),
];

static BY_NAME: LazyLock<HashMap<&'static [u8], Named>> =
    LazyLock::new(|| TABLE.iter().map(|(name, what)| (name.as_bytes(), *what)).collect());

/// No name in the table, and no second word, is longer.
const WORD_BYTES_MAX: usize = 16;

/// Where a command of `count` words goes, of which `words` are known so far: the first at least.
pub(super) fn aim(table: &CommandTable, words: &[&[u8]], count: usize) -> Aim {
    if words.len() < count.min(2) {
        return Aim::More;
    }
    match by_name(words) {
        Some(Named::PublishAtSlot) => return words.get(1).map_or(Aim::Anyone, |word| slot(word)),
        Some(named) => return Aim::Named(named),
        None => {}
    }
    let Some(facts) = table.facts(words).filter(|facts| facts.takes(count)) else { return Aim::Anyone };
    match facts.keys(count) {
        Keys::None => Aim::Anyone,
        // The node sees to the rest of its words.
        Keys::Unknown if is_sort(words[0]) => slot(words[1]),
        Keys::Asked | Keys::Unknown if words.len() < count => Aim::More,
        Keys::Asked | Keys::Unknown => Aim::Asked,
        Keys::At(at) => {
            let Some(keys) = at.iter().map(|at| words.get(*at).copied()).collect::<Option<Vec<_>>>() else {
                return Aim::More;
            };
            of_keys(keys)
        }
    }
}

/// Where a command with these keys goes.
pub(super) fn of_keys<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Aim {
    let mut slots = keys.into_iter().map(|key| Slot::of_key(key.as_ref()));
    match slots.next() {
        None => Aim::Anyone,
        Some(first) if slots.all(|slot| slot == first) => Aim::Slot(first),
        Some(_) => Aim::CrossSlot,
    }
}

fn slot(key: &[u8]) -> Aim {
    Aim::Slot(Slot::of_key(key))
}

fn is_sort(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"SORT") || name.eq_ignore_ascii_case(b"SORT_RO")
}

fn by_name(words: &[&[u8]]) -> Option<Named> {
    let mut name = [0; 2 * WORD_BYTES_MAX + 1];
    let first = words.first().filter(|word| word.len() <= WORD_BYTES_MAX)?;
    name[..first.len()].copy_from_slice(first);
    name[..first.len()].make_ascii_uppercase();
    if let Some(named) = BY_NAME.get(&name[..first.len()]) {
        return Some(*named);
    }
    let after = first.len() + 1;
    name[after - 1] = b' ';
    if let Some(second) = words.get(1).filter(|word| word.len() <= WORD_BYTES_MAX) {
        let end = after + second.len();
        name[after..end].copy_from_slice(second);
        name[after..end].make_ascii_uppercase();
        if let Some(named) = BY_NAME.get(&name[..end]) {
            return Some(*named);
        }
    }
    name[after] = b'*';
    BY_NAME.get(&name[..=after]).copied()
}

/// The rows of the documentation.
pub(super) fn rows() -> String {
    let mut text = String::from("| command | in front of a cluster |\n|---|---|\n");
    for (name, named) in TABLE {
        let what = match named {
            Named::Multi => "its node is known by the first command with keys",
            Named::Exec | Named::Discard => {
                "to the node of the transaction, all of whose keys have to be in one slot"
            }
            Named::Watch => {
                "to the owner of the slot that its keys are in; a transaction after it goes there as well"
            }
            Named::Unwatch => "to the node that watches",
            Named::Noted(_) => "each node that is needed is told the same",
            Named::Reset => "as on a new connection",
            Named::Select => "database 0 only",
            Named::Quit => "ends the connection, when all replies have come",
            Named::Listen => "one node tells of messages, of whichever node they were published at",
            Named::ListenAtSlot => {
                "the owner of the slot; channels of several nodes take several connections"
            }
            Named::PublishAtSlot => "to the owner of the slot",
            Named::Scan => "one primary after the other",
            Named::Every(Merge::Sum) => "to all primaries; numbers are added, an error of one is the answer",
            Named::Every(Merge::Least) => "to all primaries; the least number",
            Named::Every(Merge::Union) => "to all primaries; all that they give",
            Named::Every(Merge::Any) => "to all primaries; one that is found, by chance",
            Named::Every(Merge::Each) => "to all primaries; what all of them have",
            Named::NoCluster => {
                "answered as by a server that is no cluster; with `--cluster-face` by the front"
            }
            Named::Refused => "refused: it would change one node of many",
        };
        text.push_str(&format!("| `{}` | {what} |\n", name.strip_suffix(" *").unwrap_or(name)));
    }
    text.push_str(
        "| any other with keys | to the owner of the slot that they are in; where there are several slots `CROSSSLOT` |\n\
         | any other | to one of the primaries, the same for all of them |\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(line: &str) -> Option<Named> {
        by_name(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn names_are_found_in_any_case_and_with_their_second_word() {
        assert_eq!(named("dbsize"), Some(Named::Every(Merge::Sum)));
        assert_eq!(named("Script Load x"), Some(Named::Every(Merge::Sum)));
        assert_eq!(named("cluster anything"), Some(Named::NoCluster));
        assert_eq!(named("CLIENT SETNAME x"), Some(Named::Noted(Trait::Name)));
        assert_eq!(named("CLIENT ID"), None);
        assert_eq!(named("GET dbsize"), None);
        assert_eq!(named(&format!("GET {}", "x".repeat(100))), None);
        assert!(TABLE.iter().all(|(name, _)| name.split(' ').all(|word| word.len() <= WORD_BYTES_MAX)));
        assert_eq!(BY_NAME.len(), TABLE.len());
    }

    #[test]
    fn keys_of_one_slot_go_to_its_owner() {
        assert_eq!(of_keys(["{a}1", "{a}2"]), Aim::Slot(Slot::of_key(b"a")));
        assert_eq!(of_keys(["a", "b"]), Aim::CrossSlot);
        assert_eq!(of_keys(Vec::<&[u8]>::new()), Aim::Anyone);
    }
}
