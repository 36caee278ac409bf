//! To which nodes of a cluster a command goes.

use whimbrel_core::slot::Slot;

use crate::command::keys::{CommandTable, Keys};
use crate::command::rule::{ClusterRule, Rule};
use crate::command::table::Row;

/// Where a command goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Destination {
    /// To the owner of the slot that all of its keys are in.
    Slot(Slot),
    /// To any node: it has no keys.
    Anyone,
    /// As the table says of its name.
    Rule(ClusterRule),
    /// A node has to be asked which of its words are keys.
    Asked,
    /// Not enough of its words are known.
    More,
    /// Its keys are in several slots.
    CrossSlot,
}

/// Where a command of `count` words goes, which is treated as `row` says. `words` are known so far: at least
/// the first.
pub(super) fn destination(table: &CommandTable, row: &Row, words: &[&[u8]], count: usize) -> Destination {
    if words.len() < count.min(2) {
        return Destination::More;
    }
    match row.clustered {
        Some(ClusterRule::PublishAtSlot) => {
            return words.get(1).map_or(Destination::Anyone, |word| slot(word));
        }
        Some(rule) => return Destination::Rule(rule),
        None => {}
    }
    let Some(facts) = table.facts(words).filter(|facts| facts.takes(count)) else {
        return Destination::Anyone;
    };
    match facts.keys(count) {
        Keys::None => Destination::Anyone,
        // The node sees to the rest of its words.
        Keys::Unknown if row.migrating == Some(Rule::Sort) => slot(words[1]),
        Keys::Asked | Keys::Unknown if words.len() < count => Destination::More,
        Keys::Asked | Keys::Unknown => Destination::Asked,
        Keys::At(at) if at.iter().any(|at| *at >= words.len()) => Destination::More,
        Keys::At(at) => of_keys(at.iter().map(|at| words[*at])),
    }
}

/// Where a command with these keys goes.
pub(super) fn of_keys<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Destination {
    let mut slots = keys.into_iter().map(|key| Slot::of_key(key.as_ref()));
    match slots.next() {
        None => Destination::Anyone,
        Some(first) if slots.all(|slot| slot == first) => Destination::Slot(first),
        Some(_) => Destination::CrossSlot,
    }
}

fn slot(key: &[u8]) -> Destination {
    Destination::Slot(Slot::of_key(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_slot_go_to_its_owner() {
        assert_eq!(of_keys(["{a}1", "{a}2"]), Destination::Slot(Slot::of_key(b"a")));
        assert_eq!(of_keys(["a", "b"]), Destination::CrossSlot);
        assert_eq!(of_keys(Vec::<&[u8]>::new()), Destination::Anyone);
    }
}
