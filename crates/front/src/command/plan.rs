//! What is done with which command while keys move.
//!
//! A command is known by its name, or by the keys that the servers' own tables list. What neither shows is
//! refused: it could use any key.

use super::keys::{CommandTable, Facts, Keys};
use super::rule::{DATABASES, KEYS_UNKNOWN, Note, PATTERNS, Rule, SCRIPTS, UNKNOWN};
use super::table::find_by_words;

/// Where the keys of a command are, and what may be done with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// The target answers; no keys.
    Target,
    /// A read of the keys at these positions.
    Read(Vec<usize>),
    /// Anything else with the keys at these positions.
    Write(Vec<usize>),
    /// The target has to be asked which of its words are keys.
    Asked,
    /// By name.
    ByName(Rule),
    /// Refused, for this reason.
    Refused(&'static str),
}

/// The tables of both servers.
#[derive(Debug)]
pub struct Tables {
    /// What the source has.
    pub source: CommandTable,
    /// What the target has.
    pub target: CommandTable,
    /// Whether it has been promised that scripts and functions use no other keys than those they declare.
    pub scripts_declare_keys: bool,
}

impl Tables {
    /// What is to be done with a command of `count` words. `words` are known so far: all of them, or at least
    /// the first two.
    pub fn plan(&self, words: &[&[u8]], count: usize) -> Plan {
        match find_by_words(words).migrating {
            Some(Rule::Refused(why)) => return Plan::Refused(why),
            Some(Rule::Script | Rule::Library) if !self.scripts_declare_keys => {
                return Plan::Refused(SCRIPTS);
            }
            Some(Rule::Script) => return script(words, count),
            Some(Rule::Library) => return Plan::Target,
            // Their last words may name another key, or what is refused.
            Some(named @ (Rule::Sort | Rule::Copy)) if words.len() < count => return Plan::ByName(named),
            Some(Rule::Sort) => return sort(words),
            Some(Rule::Copy) if words.iter().skip(3).any(|word| word.eq_ignore_ascii_case(b"DB")) => {
                return Plan::Refused(DATABASES);
            }
            Some(Rule::Noted(Note::Watch) | Rule::Copy | Rule::Elements) | None => {}
            // Whatever keys the servers' table lists for these are channels, or nothing that moves.
            Some(Rule::Target) => return Plan::Target,
            Some(named) => return Plan::ByName(named),
        }
        let Some(facts) = self.target.facts(words) else { return Plan::Refused(UNKNOWN) };
        if !facts.takes(count) {
            // The target says so.
            return Plan::Target;
        }
        match facts.keys(count) {
            Keys::At(keys) if keys.is_empty() => Plan::Refused(KEYS_UNKNOWN),
            Keys::At(keys) if self.is_read(facts, words) => Plan::Read(keys),
            Keys::At(keys) => Plan::Write(keys),
            Keys::Asked => Plan::Asked,
            Keys::None | Keys::Unknown => Plan::Refused(KEYS_UNKNOWN),
        }
    }

    /// Only what both servers call a read may be sent to the source.
    fn is_read(&self, facts: &Facts, words: &[&[u8]]) -> bool {
        let reads = |facts: &Facts| facts.readonly && !facts.blocking;
        reads(facts) && self.source.facts(words).is_some_and(reads)
    }
}

/// `SORT key [LIMIT a b] [ASC|DESC] [ALPHA] [STORE key]`, anything but `BY` and `GET`.
fn sort(words: &[&[u8]]) -> Plan {
    if words.len() < 2 {
        return Plan::Target;
    }
    let mut keys = vec![1];
    for (at, word) in words.iter().enumerate().skip(2) {
        if word.eq_ignore_ascii_case(b"BY") || word.eq_ignore_ascii_case(b"GET") {
            return Plan::Refused(PATTERNS);
        }
        if word.eq_ignore_ascii_case(b"STORE") && at + 1 < words.len() {
            keys.push(at + 1);
        }
    }
    Plan::Write(keys)
}

/// `EVAL script numkeys key … arg …`, and all others of this form.
fn script(words: &[&[u8]], count: usize) -> Plan {
    let number = match words.get(2) {
        None if words.len() < count => return Plan::ByName(Rule::Script),
        None => return Plan::Target,
        Some(number) => std::str::from_utf8(number).ok().and_then(|number| number.parse::<usize>().ok()),
    };
    match number {
        // Without keys, or refused by the target.
        None | Some(0) => Plan::Target,
        Some(keys) if keys > count.saturating_sub(3) => Plan::Target,
        Some(keys) => Plan::Write((3..3 + keys).collect()),
    }
}

/// What becomes of `SELECT`, by its second word.
pub(crate) fn select(database: Option<&[u8]>) -> std::result::Result<(), &'static str> {
    match database {
        // A wrong number of words is the server's to complain about.
        None | Some(b"0") => Ok(()),
        Some(_) => Err(DATABASES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<&[u8]> {
        line.split(' ').map(str::as_bytes).collect()
    }

    #[test]
    fn sort_is_searched_for_other_keys() {
        assert_eq!(sort(&words("SORT k LIMIT 0 1 store d")), Plan::Write(vec![1, 6]));
        assert_eq!(sort(&words("SORT k by w_*")), Plan::Refused(PATTERNS));
        assert_eq!(sort(&words("SORT k GET #")), Plan::Refused(PATTERNS));
        assert_eq!(sort(&words("SORT")), Plan::Target);
    }

    #[test]
    fn the_keys_of_scripts_are_those_they_declare() {
        let plan = |line: &str| {
            let words = words(line);
            script(&words, words.len())
        };
        assert_eq!(plan("EVAL s 2 a b c"), Plan::Write(vec![3, 4]));
        assert_eq!(plan("FCALL f 0 a"), Plan::Target);
        // The target says what is wrong with these, and runs nothing.
        for wrong in
            ["EVAL", "EVAL s", "EVAL s x a", "EVAL s -1 a", "EVAL s 2 a", "EVAL s 99999999999999999999 a"]
        {
            assert_eq!(plan(wrong), Plan::Target, "{wrong}");
        }
        assert_eq!(script(&words("EVAL s"), 5), Plan::ByName(Rule::Script));
        assert_eq!(script(&words("EVAL s 2"), 5), Plan::Write(vec![3, 4]));
        for (promised, expected) in [(true, Plan::Target), (false, Plan::Refused(SCRIPTS))] {
            let tables = Tables {
                source: CommandTable::default(),
                target: CommandTable::default(),
                scripts_declare_keys: promised,
            };
            for line in ["EVAL s 0", "SCRIPT LOAD s", "FUNCTION LIST", "function load replace x"] {
                let words = words(line);
                assert_eq!(tables.plan(&words, words.len()), expected, "{line}");
            }
        }
    }
}
