//! What is done with which command while keys move.
//!
//! A command is known by its name, or by the keys that the servers' own tables tell. What neither tells is refused: it could use
//! any key. The table here is that of the documentation as well.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::command::keys::{CommandTable, Facts, Keys};
use crate::command::{Note, Trait};

/// What is done with a command that is known by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum While {
    /// The target answers it. It has nothing to do with keys, or its keys are told by the servers' table and are moved first.
    Target,
    /// As above, and the front remembers something of it.
    Noted(Note),
    /// As above, and from then on the target alone serves the client.
    Subscribe,
    /// Only this database is served.
    Select,
    /// Goes through the source first, and then through the target.
    Scan,
    /// A read with a cursor that only one of the servers understands.
    Elements,
    /// Both servers are asked while nothing moves.
    Both(Whole),
    /// Both servers are emptied, to clients at one moment.
    Flush,
    /// Its words are searched for what reaches further than its keys.
    Sort,
    /// As above.
    Copy,
    /// Runs with the keys that it declares, where that is all of them; else refused.
    Script,
    /// About scripts and functions themselves: taken where they are run.
    Library,
    /// Refused.
    Refused(&'static str),
}

/// A question about the whole keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    /// `DBSIZE`.
    Count,
    /// `KEYS`.
    Names,
    /// `RANDOMKEY`.
    Any,
}

const SCRIPTS: &str = "a script may use keys that it does not declare: wait until all keys have moved; where all scripts declare all of \
                       their keys, run the front with --scripts-declare-keys";
const DATABASES: &str = "only database 0 is served while keys move";
const OTHER_SERVER: &str = "keys are on two servers: connect to the server that it is meant for";
const PATTERNS: &str = "BY and GET reach keys that are not declared: wait until all keys have moved";
const UNTOLD: &str =
    "its keys cannot be told, so it might use one that has not moved: wait until all keys have moved";
const UNKNOWN: &str = "the server that keys move to has no such command";

/// In the order of the documentation. A name may be followed by a second word; `*` stands for any other.
const TABLE: &[(&str, While)] = &[
    ("MULTI", While::Noted(Note::Multi)),
    ("EXEC", While::Noted(Note::Exec)),
    ("DISCARD", While::Noted(Note::Exec)),
    ("WATCH", While::Noted(Note::Watch)),
    ("UNWATCH", While::Noted(Note::Unwatch)),
    ("AUTH", While::Noted(Note::Trait(Trait::Login))),
    ("HELLO", While::Noted(Note::Trait(Trait::Hello))),
    ("CLIENT SETNAME", While::Noted(Note::Trait(Trait::Name))),
    ("RESET", While::Noted(Note::Reset)),
    ("SELECT", While::Select),
    ("SCAN", While::Scan),
    ("HSCAN", While::Elements),
    ("SSCAN", While::Elements),
    ("ZSCAN", While::Elements),
    ("DBSIZE", While::Both(Whole::Count)),
    ("KEYS", While::Both(Whole::Names)),
    ("RANDOMKEY", While::Both(Whole::Any)),
    ("SUBSCRIBE", While::Subscribe),
    ("PSUBSCRIBE", While::Subscribe),
    ("SSUBSCRIBE", While::Subscribe),
    ("UNSUBSCRIBE", While::Subscribe),
    ("PUNSUBSCRIBE", While::Subscribe),
    ("SUNSUBSCRIBE", While::Subscribe),
    ("PUBLISH", While::Target),
    ("SPUBLISH", While::Target),
    ("PUBSUB *", While::Target),
    ("SORT", While::Sort),
    ("SORT_RO", While::Sort),
    ("COPY", While::Copy),
    ("PING", While::Target),
    ("ECHO", While::Target),
    ("TIME", While::Target),
    ("LASTSAVE", While::Target),
    ("LOLWUT", While::Target),
    ("QUIT", While::Target),
    ("WAIT", While::Target),
    ("WAITAOF", While::Target),
    ("INFO", While::Target),
    ("ROLE", While::Target),
    ("READONLY", While::Target),
    ("READWRITE", While::Target),
    ("COMMAND", While::Target),
    ("COMMAND *", While::Target),
    ("OBJECT HELP", While::Target),
    ("MEMORY DOCTOR", While::Target),
    ("MEMORY STATS", While::Target),
    ("LATENCY *", While::Target),
    ("SLOWLOG *", While::Target),
    ("MODULE LIST", While::Target),
    ("CONFIG GET", While::Target),
    ("ACL WHOAMI", While::Target),
    ("ACL CAT", While::Target),
    ("ACL GENPASS", While::Target),
    ("ACL DRYRUN", While::Target),
    ("CLIENT ID", While::Target),
    ("CLIENT INFO", While::Target),
    ("CLIENT LIST", While::Target),
    ("CLIENT GETNAME", While::Target),
    ("CLIENT SETINFO", While::Target),
    ("CLIENT NO-EVICT", While::Target),
    ("CLIENT NO-TOUCH", While::Target),
    ("CLIENT UNBLOCK", While::Target),
    ("CLIENT TRACKINGINFO", While::Target),
    ("CLIENT GETREDIR", While::Target),
    ("FLUSHDB", While::Flush),
    ("FLUSHALL", While::Flush),
    ("MOVE", While::Refused(DATABASES)),
    ("SWAPDB", While::Refused(DATABASES)),
    ("EVAL", While::Script),
    ("EVALSHA", While::Script),
    ("EVAL_RO", While::Script),
    ("EVALSHA_RO", While::Script),
    ("FCALL", While::Script),
    ("FCALL_RO", While::Script),
    ("SCRIPT DEBUG", While::Refused(OTHER_SERVER)),
    ("SCRIPT *", While::Library),
    ("FUNCTION *", While::Library),
    ("MIGRATE", While::Refused(OTHER_SERVER)),
    ("CONFIG *", While::Refused(OTHER_SERVER)),
    ("ACL *", While::Refused(OTHER_SERVER)),
    ("CLIENT *", While::Refused(OTHER_SERVER)),
    ("DEBUG *", While::Refused(OTHER_SERVER)),
];

static BY_NAME: LazyLock<HashMap<&'static [u8], While>> =
    LazyLock::new(|| TABLE.iter().map(|(name, what)| (name.as_bytes(), *what)).collect());

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
    Named(While),
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
    /// What is to be done with a command of `count` words, of which `words` are known so far: all of them, or the first two at
    /// least.
    pub fn plan(&self, words: &[&[u8]], count: usize) -> Plan {
        let named = by_name(words);
        match named {
            Some(While::Refused(why)) => return Plan::Refused(why),
            Some(While::Script | While::Library) if !self.scripts_declare_keys => {
                return Plan::Refused(SCRIPTS);
            }
            Some(While::Script) => return script(words, count),
            Some(While::Library) => return Plan::Target,
            // Their last words may tell of another key, or of what is refused.
            Some(named @ (While::Sort | While::Copy)) if words.len() < count => return Plan::Named(named),
            Some(While::Sort) => return sort(words),
            Some(While::Copy) if words.iter().skip(3).any(|word| word.eq_ignore_ascii_case(b"DB")) => {
                return Plan::Refused(DATABASES);
            }
            Some(While::Noted(Note::Watch) | While::Copy | While::Elements) | None => {}
            // Whatever keys the servers' table tells of these are channels, or nothing that moves.
            Some(While::Target) => return Plan::Target,
            Some(named) => return Plan::Named(named),
        }
        let Some(facts) = self.target.facts(words) else { return Plan::Refused(UNKNOWN) };
        if !facts.takes(count) {
            // The target says so.
            return Plan::Target;
        }
        match facts.keys(count) {
            Keys::At(keys) if keys.is_empty() => Plan::Refused(UNTOLD),
            Keys::At(keys) if self.is_read(facts, words) => Plan::Read(keys),
            Keys::At(keys) => Plan::Write(keys),
            Keys::Asked => Plan::Asked,
            Keys::None | Keys::Unknown => Plan::Refused(UNTOLD),
        }
    }

    /// Only what both servers call a read may be sent to the source.
    fn is_read(&self, facts: &Facts, words: &[&[u8]]) -> bool {
        let reads = |facts: &Facts| facts.readonly && !facts.blocking;
        reads(facts) && self.source.facts(words).is_some_and(reads)
    }
}

/// What the table says, by the first word and the second.
pub(crate) fn by_name(words: &[&[u8]]) -> Option<While> {
    let first = words.first()?.to_ascii_uppercase();
    if let Some(second) = words.get(1).filter(|second| second.len() < 32) {
        let both = [&first, &b" "[..], &second.to_ascii_uppercase()].concat();
        if let Some(what) = BY_NAME.get(&both[..]) {
            return Some(*what);
        }
    }
    let other = [&first, &b" *"[..]].concat();
    BY_NAME.get(&first[..]).or_else(|| BY_NAME.get(&other[..])).copied()
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
        None if words.len() < count => return Plan::Named(While::Script),
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

/// The rows of the documentation.
pub(crate) fn rows() -> String {
    let mut text = String::from("| command | while keys move |\n|---|---|\n");
    for (name, what) in TABLE {
        let what = match what {
            While::Target => "the target answers".to_owned(),
            While::Noted(note) => note.described().to_owned(),
            While::Subscribe => {
                "the target; from here on it alone serves the client, and reads move their keys first too"
                    .to_owned()
            }
            While::Select => format!("database 0: the target answers; any other is refused: {DATABASES}"),
            While::Scan => {
                "through the source first, then through the target; a key may be given twice".to_owned()
            }
            While::Elements => "as any read; an iteration whose key has moved since begins anew at the target, so elements may be given twice. In a \
                                transaction, and after a subscription, only one that begins, or that goes on at the target"
                .to_owned(),
            While::Both(Whole::Count) => "the sum of both, while nothing moves".to_owned(),
            While::Both(Whole::Names) => "of both, while nothing moves".to_owned(),
            While::Both(Whole::Any) => {
                "one of both, by their numbers of keys, while nothing moves".to_owned()
            }
            While::Flush => "both are emptied while nothing moves, to clients at one moment; not in a transaction, nor after a subscription"
                .to_owned(),
            While::Sort => {
                format!("keys move first, then the target; with `BY` or `GET` refused: {PATTERNS}")
            }
            While::Copy => format!("keys move first, then the target; with `DB` refused: {DATABASES}"),
            While::Script => {
                format!("with `--scripts-declare-keys` the declared keys move first, then the target; else refused: {SCRIPTS}")
            }
            While::Library => format!("with `--scripts-declare-keys` the target answers; else refused: {SCRIPTS}"),
            While::Refused(why) => format!("refused: {why}"),
        };
        let first = name.strip_suffix(" *").unwrap_or(name);
        let has_others =
            TABLE.iter().any(|(other, _)| other != name && other.starts_with(&format!("{first} ")));
        let name =
            if first != *name && has_others { format!("{first}, anything else") } else { first.to_owned() };
        text.push_str(&format!("| `{name}` | {what} |\n"));
    }
    text.push_str(
        "| any other that both servers call a read, with keys | the source, where none of them has moved; else keys that have not \
         moved do so first, then the target |\n\
         | any other with keys | keys that have not moved do so first, then the target |\n",
    );
    text.push_str(&format!(
        "| any other without keys, or whose keys the servers do not tell | refused: {UNTOLD} |\n"
    ));
    text.push_str(&format!("| what the target does not have | refused: {UNKNOWN} |\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<&[u8]> {
        line.split(' ').map(str::as_bytes).collect()
    }

    #[test]
    fn names_are_found_in_any_case_and_with_their_second_word() {
        assert_eq!(by_name(&words("flushdb")), Some(While::Flush));
        assert_eq!(by_name(&words("Config Get x")), Some(While::Target));
        assert_eq!(by_name(&words("config set x y")), Some(While::Refused(OTHER_SERVER)));
        assert_eq!(by_name(&words("GET config")), None);
        assert_eq!(by_name(&words("PING CLIENT")), Some(While::Target));
        assert_eq!(by_name(&words("object encoding k")), None);
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
        assert_eq!(script(&words("EVAL s"), 5), Plan::Named(While::Script));
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

    #[test]
    fn no_command_stands_twice() {
        assert_eq!(BY_NAME.len(), TABLE.len());
    }
}
