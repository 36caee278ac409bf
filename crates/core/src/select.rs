//! Which keys a job is about.

use crate::glob::Pattern;
use crate::slot::{Slot, SlotSet};

/// A selection of keys by name. The default one admits every key.
///
/// Selection by type is not here: a type is known to the server only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// A key must match one of these; with none given, any name will do.
    pub include: Vec<Pattern>,
    /// A key that matches one of these is left out, even if it is included as well.
    pub exclude: Vec<Pattern>,
    /// The slots a key must be in, if the selection is limited to some.
    pub slots: Option<SlotSet>,
}

impl Selection {
    /// Whether `key` is selected.
    pub fn admits(&self, key: &[u8]) -> bool {
        (self.include.is_empty() || self.include.iter().any(|pattern| pattern.matches(key)))
            && !self.exclude.iter().any(|pattern| pattern.matches(key))
            && self.slots.as_ref().is_none_or(|slots| slots.contains(Slot::of_key(key)))
    }

    /// Whether every key is selected, so that [`Selection::admits`] need not be asked.
    pub fn is_everything(&self) -> bool {
        (self.include.is_empty() || self.include.iter().any(Pattern::is_match_all))
            && self.exclude.is_empty()
            && self.slots.as_ref().is_none_or(SlotSet::is_full)
    }

    /// The pattern that a server can be given with `SCAN … MATCH` to send fewer keys: the only one to
    /// include, unless it matches everything or is [not portable](Pattern::is_portable).
    ///
    /// What the server then sends still has to pass [`Selection::admits`], as exclusions and slots are not in
    /// the pattern.
    pub fn server_side_match(&self) -> Option<&[u8]> {
        match self.include.as_slice() {
            [only] if !only.is_match_all() && only.is_portable() => Some(only.as_bytes()),
            _ => None,
        }
    }
}

/// Types that every server has.
const BUILT_IN: [&str; 6] = ["string", "list", "set", "zset", "hash", "stream"];

/// No key can have a type of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no such type: {}, or a module's, of nine characters", BUILT_IN.join(", "))]
pub struct NoSuchType;

/// Reads the name of a type. Those of the server itself are written as it writes them; a module's name is
/// kept as it is. Servers find no keys of a type that does not exist, which would look like success.
///
/// # Errors
/// For a name that no type can have.
pub fn parse_type(text: &str) -> Result<String, NoSuchType> {
    if let Some(name) = BUILT_IN.into_iter().find(|name| name.eq_ignore_ascii_case(text)) {
        return Ok(name.to_owned());
    }
    // As `RedisModule_CreateDataType` wants it; `vectorset` of Redis 8 is made like this too.
    let is_of_module =
        text.len() == 9 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    is_of_module.then(|| text.to_owned()).ok_or(NoSuchType)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(sources: &[&str]) -> Vec<Pattern> {
        sources.iter().map(|source| Pattern::new(source.as_bytes())).collect()
    }

    #[test]
    fn the_default_admits_everything() {
        let selection = Selection::default();
        assert!(selection.admits(b"") && selection.admits(b"\xff"));
        assert!(selection.is_everything());
        assert_eq!(selection.server_side_match(), None);
    }

    #[test]
    fn any_inclusion_suffices_and_any_exclusion_decides() {
        let selection = Selection {
            include: patterns(&["user:*", "session:*"]),
            exclude: patterns(&["*:tmp", "user:0"]),
            slots: None,
        };
        assert!(selection.admits(b"user:1"));
        assert!(selection.admits(b"session:1"));
        assert!(!selection.admits(b"order:1"));
        assert!(!selection.admits(b"user:tmp"));
        assert!(!selection.admits(b"user:0"));
        assert!(!selection.is_everything());
    }

    #[test]
    fn exclusion_alone() {
        let selection = Selection { exclude: patterns(&["tmp:*"]), ..Selection::default() };
        assert!(selection.admits(b"a") && selection.admits(b""));
        assert!(!selection.admits(b"tmp:a"));
        assert!(!selection.is_everything());
    }

    #[test]
    fn slots_limit_the_selection() {
        let selection = Selection {
            include: patterns(&["*"]),
            exclude: Vec::new(),
            slots: Some([Slot::of_key(b"a")].into_iter().collect()),
        };
        assert!(selection.admits(b"a") && selection.admits(b"{a}b"));
        assert!(!selection.admits(b"b"));
        assert!(!selection.is_everything());
        let all_slots = Selection { slots: Some(SlotSet::full()), ..Selection::default() };
        assert!(all_slots.is_everything() && all_slots.admits(b"b"));
        let no_slots = Selection { slots: Some(SlotSet::new()), ..Selection::default() };
        assert!(!no_slots.admits(b"a"));
    }

    #[test]
    fn what_a_server_can_filter() {
        let pushed = |include: &[&str]| {
            let selection = Selection { include: patterns(include), ..Selection::default() };
            selection.server_side_match().map(<[u8]>::to_vec)
        };
        assert_eq!(pushed(&["user:*"]), Some(b"user:*".to_vec()));
        assert_eq!(pushed(&["*"]), None);
        assert_eq!(pushed(&["a*", "b*"]), None);
        let mixed = Selection { include: vec![Pattern::new(b"[a-\xff]*")], ..Selection::default() };
        assert_eq!(mixed.server_side_match(), None);
        assert!(mixed.admits(b"\xc0"));
    }
}
