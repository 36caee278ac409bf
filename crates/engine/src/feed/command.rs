//! From a replicated command to what it touched.
//!
//! Commands arrive as the servers replicate them, which is often not as they were sent: scripts as their
//! effects, expiries as `DEL`, `SPOP` as `SREM`, relative times as absolute ones. If a server of another
//! version replicates the original, the rule for it is here as well. A command that no rule knows comes from
//! a module, or from a server that is newer than this table: the server is asked for its key positions
//! beforehand ([`Rules::learn`]), and failing that every argument counts as a key. A key that does not exist
//! costs one look-up; a missed one would cost the data.

use std::collections::HashMap;

use whimbrel_core::slot::Slot;
use whimbrel_wire::replication::Sink;
use whimbrel_wire::value::Value;

use super::touched::{Collection, TouchedSet};

/// The longest key that is recorded by its name. A longer one touches every watched slot.
const KEY_BYTES_MAX: u64 = 1 << 20;

/// The longest element that is recorded by its name. A longer one touches its key as a whole.
const ELEMENT_BYTES_MAX: u64 = 8 << 10;

/// How many bytes of elements one command may name. Beyond it the key is touched as a whole.
const ELEMENTS_BYTES_MAX: usize = 1 << 20;

/// How many elements one command may name, likewise.
const ELEMENTS_MAX: usize = 16 << 10;

/// The longest name of a command, keyword or number.
const WORD_BYTES_MAX: u64 = 64;

/// Where a command names what it touches. Positions count from the command's name, which is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Touches no key.
    Nothing,
    /// Keys at `first`, `first + step`, … up to `last`, which counts from the end if it is negative.
    Keys { first: u64, last: i64, step: u64 },
    /// Pairs of a key and a value from 2 on, as many as the number at 1 says.
    Pairs,
    /// The time to live of the key at 1.
    Expiry,
    /// Elements, at `first`, `first + step`, … up to `last`, of the key at 1.
    Elements { collection: Collection, first: u64, last: u64, step: u64, removes: bool },
    /// Members of the sorted set at 1: after the options, the last of every `step` arguments.
    Scored { step: u64 },
    /// Fields of the hash at 1: after the word `FIELDS` and a number, the first of every `step` arguments.
    Fields { step: u64 },
    /// A member of the two sets at 1 and 2, at 3.
    MovedMember,
    /// The key after each `STORE` or `STOREDIST`.
    Stored,
    /// Every argument after `STREAMS`.
    Streams,
    /// The key at 2, in the database after `DB`.
    Copied,
    /// The key at 1, here and in the database at 2.
    MovedKey,
    /// Selects the database at 1.
    Select,
    /// Empties or exchanges databases.
    Flush,
    /// Changes functions.
    Functions,
    /// `CLUSTER`: the slot at 2, if the word at 1 is `FLUSHSLOT`.
    Cluster,
    /// Keys of slots that it does not name.
    Everything,
    /// Not known: any argument may be a key.
    Any,
}

/// One key at 1.
const KEY: Rule = Rule::Keys { first: 1, last: 1, step: 1 };

const fn elements(collection: Collection, first: u64, last: u64, step: u64) -> Rule {
    Rule::Elements { collection, first, last, step, removes: false }
}

const fn removed(collection: Collection) -> Rule {
    Rule::Elements { collection, first: 2, last: u64::MAX, step: 1, removes: true }
}

/// What is known of the commands of Redis 6.2 to 8.x and Valkey 7.2 to 9.x that can stand in a replication
/// stream.
const BUILTIN: &[(&[&str], Rule)] = &[
    (&["PING", "REPLCONF", "MULTI", "EXEC", "PUBLISH", "SPUBLISH", "SCRIPT"], Rule::Nothing),
    (&["SELECT"], Rule::Select),
    (&["FLUSHALL", "FLUSHDB", "SWAPDB"], Rule::Flush),
    (&["FUNCTION"], Rule::Functions),
    (&["CLUSTER"], Rule::Cluster),
    // Redis 8.4: a server deletes the keys of slots that it gave away.
    (&["TRIMSLOTS"], Rule::Everything),
    // Strings.
    (
        &[
            "SET",
            "SETNX",
            "SETEX",
            "PSETEX",
            "GETSET",
            "GETDEL",
            "GETEX",
            "APPEND",
            "SETRANGE",
            "SETBIT",
            "BITFIELD",
            "INCR",
            "DECR",
            "INCRBY",
            "DECRBY",
            "INCRBYFLOAT",
            "DELIFEQ",
            "DELEX",
        ],
        KEY,
    ),
    (&["MSET", "MSETNX"], Rule::Keys { first: 1, last: -1, step: 2 }),
    (&["MSETEX"], Rule::Pairs),
    (&["BITOP"], Rule::Keys { first: 2, last: 2, step: 1 }),
    // Keys.
    (&["DEL", "UNLINK"], Rule::Keys { first: 1, last: -1, step: 1 }),
    (&["RENAME", "RENAMENX"], Rule::Keys { first: 1, last: 2, step: 1 }),
    (&["RESTORE", "RESTORE-ASKING"], KEY),
    (&["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "PERSIST"], Rule::Expiry),
    (&["COPY"], Rule::Copied),
    (&["MOVE"], Rule::MovedKey),
    (&["SORT"], Rule::Stored),
    // Lists.
    (&["LPUSH", "LPUSHX", "RPUSH", "RPUSHX", "LPOP", "RPOP", "LSET", "LREM", "LTRIM", "LINSERT"], KEY),
    (&["RPOPLPUSH", "LMOVE", "BRPOPLPUSH", "BLMOVE"], Rule::Keys { first: 1, last: 2, step: 1 }),
    (&["BLPOP", "BRPOP", "BZPOPMIN", "BZPOPMAX"], Rule::Keys { first: 1, last: -2, step: 1 }),
    // Sets.
    (&["SADD"], elements(Collection::Set, 2, u64::MAX, 1)),
    (&["SREM"], removed(Collection::Set)),
    (&["SPOP"], KEY),
    (&["SMOVE"], Rule::MovedMember),
    (&["SINTERSTORE", "SUNIONSTORE", "SDIFFSTORE"], KEY),
    // Sorted sets.
    (&["ZADD"], Rule::Scored { step: 2 }),
    (&["GEOADD"], Rule::Scored { step: 3 }),
    (&["ZINCRBY"], elements(Collection::SortedSet, 3, 3, 1)),
    (&["ZREM"], removed(Collection::SortedSet)),
    (
        &[
            "ZPOPMIN",
            "ZPOPMAX",
            "ZREMRANGEBYRANK",
            "ZREMRANGEBYSCORE",
            "ZREMRANGEBYLEX",
            "ZUNIONSTORE",
            "ZINTERSTORE",
            "ZDIFFSTORE",
            "ZRANGESTORE",
            "GEOSEARCHSTORE",
        ],
        KEY,
    ),
    (&["GEORADIUS", "GEORADIUSBYMEMBER"], Rule::Stored),
    // Hashes.
    (&["HSET", "HMSET"], elements(Collection::Hash, 2, u64::MAX, 2)),
    (&["HSETNX", "HINCRBY", "HINCRBYFLOAT"], elements(Collection::Hash, 2, 2, 1)),
    (&["HDEL"], removed(Collection::Hash)),
    (
        &["HEXPIRE", "HPEXPIRE", "HEXPIREAT", "HPEXPIREAT", "HPERSIST", "HGETEX", "HGETDEL"],
        Rule::Fields { step: 1 },
    ),
    (&["HSETEX"], Rule::Fields { step: 2 }),
    // Streams.
    (
        &["XADD", "XDEL", "XTRIM", "XSETID", "XACK", "XCLAIM", "XAUTOCLAIM", "XDELEX", "XACKDEL", "XCFGSET"],
        KEY,
    ),
    (&["XGROUP"], Rule::Keys { first: 2, last: 2, step: 1 }),
    (&["XREADGROUP"], Rule::Streams),
    // HyperLogLogs. Counting rewrites the cached count.
    (&["PFADD", "PFMERGE"], KEY),
    (&["PFCOUNT"], Rule::Keys { first: 1, last: -1, step: 1 }),
    // Vector sets.
    (&["VADD", "VREM", "VSETATTR"], KEY),
    // Replicated as their effects, except by a Redis 6.2 that is set otherwise.
    (&["EVAL", "EVALSHA", "FCALL", "LMPOP", "BLMPOP", "ZMPOP", "BZMPOP", "MIGRATE", "PFDEBUG"], Rule::Any),
];

/// Whether a command of this name, in capitals, can touch a key, by what is known without modules.
pub(super) fn writes(name: &[u8]) -> bool {
    let of_name = |(names, _): &&(&[&str], Rule)| names.iter().any(|known| known.as_bytes() == name);
    BUILTIN.iter().find(of_name).is_some_and(|(_, rule)| !matches!(rule, Rule::Nothing | Rule::Select))
}

/// What each command touches.
#[derive(Debug)]
pub(super) struct Rules(HashMap<Box<[u8]>, Rule>);

impl Rules {
    /// The rules for the commands that servers have without modules.
    pub(super) fn builtin() -> Rules {
        let rules = BUILTIN
            .iter()
            .flat_map(|(names, rule)| names.iter().map(|name| (Box::from(name.as_bytes()), *rule)))
            .collect();
        Rules(rules)
    }

    /// Whether there is a rule for a command of this name, in capitals.
    pub(super) fn knows(&self, name: &[u8]) -> bool {
        self.0.contains_key(name)
    }

    /// Learns the key positions of a command from an entry of the reply to `COMMAND`. An entry that does not
    /// name them for certain teaches nothing.
    pub(super) fn add_rule(&mut self, entry: &Value) {
        let Some([name, _arity, flags, first, last, step, ..]) = entry.as_items() else { return };
        let (Some(name), Some(flags)) = (name.as_bytes(), flags.as_items()) else { return };
        let name = name.to_ascii_uppercase();
        let movable = flags.iter().any(|flag| flag.as_str() == Some("movablekeys"));
        if let (Some(first @ 1..), Some(last), Some(step @ 1..)) =
            (first.as_int(), last.as_int(), step.as_int())
            && !movable
            && !self.knows(&name)
        {
            let rule = Rule::Keys { first: first.unsigned_abs(), last, step: step.unsigned_abs() };
            self.0.insert(name.into(), rule);
        }
    }

    fn rule_of(&self, name: &[u8]) -> Rule {
        // Servers replicate the name as the client wrote it.
        let mut capitals = [0u8; WORD_BYTES_MAX as usize];
        let Some(capitals) = capitals.get_mut(..name.len()) else { return Rule::Any };
        capitals.copy_from_slice(name);
        capitals.make_ascii_uppercase();
        self.0.get(&*capitals).copied().unwrap_or(Rule::Any)
    }
}

/// What an argument is, by the current rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Of no interest.
    Other,
    /// The command's name.
    Name,
    /// A key that is touched as a whole.
    WholeKey,
    /// The key whose elements, time to live or database come later.
    Key,
    /// The second key of [`Rule::MovedMember`].
    SecondKey,
    /// An element of the key.
    Element,
    /// A word that decides what comes after it.
    Word,
}

/// Reads a command stream: follows the current database and the position in the current command.
#[derive(Debug)]
pub(super) struct Decoder {
    rules: Rules,
    /// The stream's database; `None` until a `SELECT` names it.
    db: Option<u32>,
    rule: Rule,
    args: u64,
    /// The position of the first score of [`Rule::Scored`], or of the last of the words `FIELDS`, `STREAMS`,
    /// `STORE`, `DB` and `FLUSHSLOT` that the rule looks for; the number of [`Rule::Pairs`].
    marked_at: Option<u64>,
    /// The key whose elements come, if its slot is watched.
    key: Option<Vec<u8>>,
    second_key: Option<Vec<u8>>,
    /// The database of a copied or moved key.
    to_db: Option<u32>,
    /// The elements, one after the other, with the end of each.
    elements: Vec<u8>,
    ends: Vec<usize>,
    /// True if more elements came than are kept.
    too_many: bool,
}

impl Decoder {
    /// A decoder for a stream whose current database is `db`, if that is known.
    pub(super) fn new(rules: Rules, db: Option<u32>) -> Decoder {
        Decoder {
            rules,
            db,
            rule: Rule::Nothing,
            args: 0,
            marked_at: None,
            key: None,
            second_key: None,
            to_db: None,
            elements: Vec::new(),
            ends: Vec::new(),
            too_many: false,
        }
    }

    /// The database of what comes next, if that is known.
    pub(super) fn db(&self) -> Option<u32> {
        self.db
    }

    /// The stream continues one that ended with database `db`.
    pub(super) fn goes_on_in(&mut self, db: Option<u32>) {
        self.db = self.db.or(db);
    }

    /// A sink that records into `set`.
    pub(super) fn recorder<'a>(&'a mut self, set: &'a mut TouchedSet) -> Recorder<'a> {
        Recorder { decoder: self, set }
    }

    fn role(&self, index: u64) -> Role {
        if index == 0 {
            return Role::Name;
        }
        let role = |is: bool, role: Role| if is { role } else { Role::Other };
        match self.rule {
            Rule::Nothing | Rule::Flush | Rule::Functions | Rule::Everything => Role::Other,
            Rule::Any => Role::WholeKey,
            Rule::Keys { first, last, step } => {
                let last = match u64::try_from(last) {
                    Ok(last) => last,
                    Err(_) => self.args.saturating_sub(last.unsigned_abs()),
                };
                role(index >= first && index <= last && (index - first).is_multiple_of(step), Role::WholeKey)
            }
            Rule::Pairs => match (index, self.marked_at) {
                (1, _) => Role::Word,
                (_, Some(pairs)) => role(index.is_multiple_of(2) && index / 2 <= pairs, Role::WholeKey),
                (_, None) => Role::WholeKey,
            },
            Rule::Expiry => role(index == 1, Role::Key),
            Rule::Elements { first, last, step, .. } => match index {
                1 => Role::Key,
                _ => role(
                    index >= first && index <= last && (index - first).is_multiple_of(step),
                    Role::Element,
                ),
            },
            Rule::Scored { step } => match (index, self.marked_at) {
                (1, _) => Role::Key,
                (_, None) => Role::Word,
                (_, Some(first)) => role((index - first) % step == step - 1, Role::Element),
            },
            Rule::Fields { step } => match (index, self.marked_at) {
                (1, _) => Role::Key,
                (_, None) => Role::Word,
                (_, Some(at)) => {
                    role(index >= at + 2 && (index - at - 2).is_multiple_of(step), Role::Element)
                }
            },
            Rule::MovedMember => match index {
                1 => Role::Key,
                2 => Role::SecondKey,
                _ => role(index == 3, Role::Element),
            },
            Rule::Stored => match index {
                1 => Role::Other,
                _ if self.marked_at == Some(index - 1) => Role::WholeKey,
                _ => Role::Word,
            },
            Rule::Streams => match self.marked_at {
                Some(_) => Role::WholeKey,
                None => Role::Word,
            },
            Rule::Copied => match index {
                1 => Role::Other,
                2 => Role::Key,
                _ => Role::Word,
            },
            Rule::MovedKey => match index {
                1 => Role::Key,
                _ => role(index == 2, Role::Word),
            },
            Rule::Select | Rule::Cluster => role(index <= 2, Role::Word),
        }
    }

    /// What a word changes. `bytes` is `None` for one that is too long to be a keyword.
    fn word(&mut self, index: u64, bytes: Option<&[u8]>, set: &mut TouchedSet) {
        let bytes = bytes.unwrap_or_default();
        let is = |words: &[&str]| words.iter().any(|word| bytes.eq_ignore_ascii_case(word.as_bytes()));
        let number = || std::str::from_utf8(bytes).ok()?.parse::<u32>().ok();
        match self.rule {
            Rule::Scored { .. } if !is(&["NX", "XX", "GT", "LT", "CH", "INCR"]) => {
                self.marked_at = Some(index)
            }
            Rule::Fields { .. } if is(&["FIELDS"]) => self.marked_at = Some(index),
            // Anything may be called STORE, the key that follows it included.
            Rule::Stored if is(&["STORE", "STOREDIST"]) => self.marked_at = Some(index),
            Rule::Streams if is(&["STREAMS"]) => self.marked_at = Some(index),
            Rule::Pairs => self.marked_at = number().map(u64::from),
            Rule::Copied if self.marked_at.is_some_and(|at| at + 1 == index) => self.to_db = number(),
            Rule::Copied if is(&["DB"]) => self.marked_at = Some(index),
            Rule::MovedKey => self.to_db = number(),
            Rule::Select if index == 1 => self.db = number(),
            Rule::Cluster if index == 1 && is(&["FLUSHSLOT"]) => self.marked_at = Some(index),
            Rule::Cluster if index == 2 && self.marked_at.is_some() => {
                match number().and_then(|n| u16::try_from(n).ok()).and_then(Slot::new) {
                    Some(slot) => set.slot(slot),
                    None => set.everything(),
                }
            }
            _ => {}
        }
    }

    fn record_elements(&mut self, set: &mut TouchedSet) {
        let (collection, removes) = match self.rule {
            Rule::Elements { collection, removes, .. } => (collection, removes),
            Rule::Scored { .. } => (Collection::SortedSet, false),
            // A time to live in the past removes a field.
            Rule::Fields { .. } => (Collection::Hash, true),
            Rule::MovedMember => (Collection::Set, true),
            _ => return,
        };
        for key in [&self.key, &self.second_key].into_iter().flatten() {
            if self.too_many {
                set.whole(self.db, key);
            } else if !self.ends.is_empty() {
                let names = self.ends.iter().scan(0, |start, end| {
                    let name = &self.elements[*start..*end];
                    *start = *end;
                    Some(name)
                });
                set.elements(self.db, key, collection, removes, names);
            } else {
                // The elements are not where they were expected.
                set.whole(self.db, key);
            }
        }
    }
}

/// Records what the commands of a stream touch.
pub(super) struct Recorder<'a> {
    decoder: &'a mut Decoder,
    set: &'a mut TouchedSet,
}

impl Sink for Recorder<'_> {
    fn command(&mut self, args: u64) {
        let decoder = &mut *self.decoder;
        decoder.args = args;
        decoder.rule = Rule::Any;
        decoder.marked_at = None;
        decoder.key = None;
        decoder.second_key = None;
        decoder.to_db = None;
        decoder.elements.clear();
        decoder.ends.clear();
        decoder.too_many = false;
    }

    fn wants(&mut self, index: u64, len_bytes: u64) -> bool {
        let decoder = &mut *self.decoder;
        match decoder.role(index) {
            Role::Other => false,
            Role::Name => len_bytes <= WORD_BYTES_MAX,
            Role::WholeKey | Role::Key | Role::SecondKey if len_bytes > KEY_BYTES_MAX => {
                self.set.everything();
                false
            }
            Role::WholeKey | Role::Key | Role::SecondKey => true,
            Role::Element if decoder.key.is_none() && decoder.second_key.is_none() => false,
            Role::Element => {
                decoder.too_many |= len_bytes > ELEMENT_BYTES_MAX
                    || decoder.ends.len() >= ELEMENTS_MAX
                    || decoder.elements.len() >= ELEMENTS_BYTES_MAX;
                !decoder.too_many
            }
            Role::Word if len_bytes <= WORD_BYTES_MAX => true,
            Role::Word => {
                decoder.word(index, None, self.set);
                false
            }
        }
    }

    fn argument(&mut self, index: u64, bytes: &[u8]) {
        let decoder = &mut *self.decoder;
        // Hashed before anything is kept of it: most keys of a busy server are in slots that are not watched.
        let watched = |set: &TouchedSet| set.is_watched(Slot::of_key(bytes));
        match decoder.role(index) {
            Role::Other => {}
            Role::Name => {
                decoder.rule = decoder.rules.rule_of(bytes);
                match decoder.rule {
                    Rule::Flush => self.set.flush(),
                    Rule::Functions => self.set.functions(),
                    Rule::Everything => self.set.everything(),
                    _ => {}
                }
            }
            Role::WholeKey => {
                self.set.whole(decoder.db, bytes);
                if decoder.rule == Rule::Stored {
                    decoder.word(index, Some(bytes), self.set);
                }
            }
            Role::Key if decoder.rule == Rule::Expiry => self.set.expiry(decoder.db, bytes),
            Role::Key => decoder.key = watched(self.set).then(|| bytes.to_vec()),
            Role::SecondKey => decoder.second_key = watched(self.set).then(|| bytes.to_vec()),
            Role::Element => {
                decoder.elements.extend_from_slice(bytes);
                decoder.ends.push(decoder.elements.len());
            }
            Role::Word => decoder.word(index, Some(bytes), self.set),
        }
    }

    fn command_done(&mut self) {
        let decoder = &mut *self.decoder;
        match decoder.rule {
            Rule::Elements { .. } | Rule::Scored { .. } | Rule::Fields { .. } | Rule::MovedMember => {
                decoder.record_elements(self.set);
            }
            Rule::Copied => {
                if let Some(key) = &decoder.key {
                    self.set.whole(decoder.to_db.or(decoder.db), key);
                }
            }
            Rule::MovedKey => {
                if let Some(key) = &decoder.key {
                    self.set.whole(decoder.db, key);
                    self.set.whole(decoder.to_db, key);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use whimbrel_core::slot::SlotSet;
    use whimbrel_wire::replication::Parser;

    use super::super::touched::{Touch, Touched, TouchedLimits, What};
    use super::*;

    /// Follows commands of words from database 0.
    fn follow(rules: Rules, watched: SlotSet, commands: &[&str]) -> Touched {
        let touched = Touched::new(watched, TouchedLimits::default());
        let mut parser = Parser::new(0);
        let mut decoder = Decoder::new(rules, Some(0));
        let mut stream = b"+CONTINUE\r\n".to_vec();
        for command in commands {
            let words: Vec<&str> = command.split(' ').collect();
            stream.extend(format!("*{}\r\n", words.len()).into_bytes());
            words
                .iter()
                .for_each(|word| stream.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes()));
        }
        touched.record(|set| parser.feed(&stream, &mut decoder.recorder(set))).expect("well-formed");
        touched
    }

    fn keys(touched: &Touched) -> Vec<String> {
        let mut keys: Vec<String> = touched
            .take(usize::MAX)
            .iter()
            .map(|touch| {
                format!("{}:{}", touch.db.map_or(-1, i64::from), String::from_utf8_lossy(&touch.key))
            })
            .collect();
        keys.sort();
        keys
    }

    /// An entry of the reply to `COMMAND`.
    fn entry(name: &str, flags: &[&str], positions: [i64; 3]) -> Value {
        let text = |text: &str| Value::Bulk(Bytes::copy_from_slice(text.as_bytes()));
        let [first, last, step] = positions.map(Value::Int);
        Value::Array(vec![
            text(name),
            Value::Int(-2),
            Value::Array(flags.iter().map(|flag| text(flag)).collect()),
            first,
            last,
            step,
        ])
    }

    #[test]
    fn unknown_commands_touch_all_that_they_name() {
        let touched = follow(Rules::builtin(), SlotSet::full(), &["mod.set k path v", "SET x 1"]);
        assert_eq!(keys(&touched), ["0:k", "0:path", "0:v", "0:x"]);
        // A document is no key, but the feed cannot know that.
        let long = format!("mod.set k {}", "x".repeat(2 << 20));
        let touched = follow(Rules::builtin(), "0-9".parse().expect("slots"), &[&long]);
        assert_eq!(touched.take_slots().to_string(), "0-9");
        // Nor is a name without end a name.
        let touched = follow(Rules::builtin(), SlotSet::full(), &[&format!("{} k", "n".repeat(5_000))]);
        assert_eq!(keys(&touched), ["0:k"]);
    }

    #[test]
    fn rules_are_learned_from_the_server() {
        let mut rules = Rules::builtin();
        rules.add_rule(&entry("mod.set", &["write", "denyoom"], [1, 1, 1]));
        rules.add_rule(&entry("mod.mset", &["write"], [1, -1, 2]));
        rules.add_rule(&entry("mod.eval", &["write", "movablekeys"], [1, 1, 1]));
        rules.add_rule(&entry("mod.none", &["write"], [0, 0, 0]));
        rules.add_rule(&entry("set", &["write"], [2, 2, 1]));
        rules.add_rule(&Value::Null);
        let touched = follow(
            rules,
            SlotSet::full(),
            &["MOD.SET a v", "Mod.MSet b 1 c 2", "mod.eval d e", "mod.none f", "SET g h"],
        );
        assert_eq!(keys(&touched), ["0:a", "0:b", "0:c", "0:d", "0:e", "0:f", "0:g"]);
    }

    /// Commands that the servers at hand do not replicate as they stand.
    #[test]
    fn commands_of_other_versions() {
        for (command, expected) in [
            ("EVAL script 1 k v", vec!["0:1", "0:k", "0:script", "0:v"]),
            ("XREADGROUP GROUP g c STREAMS a b > >", vec!["0:>", "0:a", "0:b"]),
            ("SORT k BY STORE STORE d", vec!["0:STORE", "0:d"]),
            ("BLPOP a b 0", vec!["0:a", "0:b"]),
            ("XDELEX x KEEPREF IDS 1 1-1", vec!["0:x"]),
            ("MSETEX 2 a 1 b 2 KEEPTTL", vec!["0:a", "0:b"]),
            ("MSETEX many a 1", vec!["0:1", "0:a"]),
            ("COPY a b DB 3 REPLACE", vec!["3:b"]),
            ("COPY a b REPLACE", vec!["0:b"]),
            ("MOVE a 7", vec!["0:a", "7:a"]),
            ("HSETEX h", vec!["0:h"]),
            ("SPUBLISH c m", vec![]),
            ("CLUSTER SETSLOT 5 NODE abc", vec![]),
            ("CLUSTER SYNCSLOTS ESTABLISH x", vec![]),
        ] {
            assert_eq!(keys(&follow(Rules::builtin(), SlotSet::full(), &[command])), expected, "{command}");
        }
        let watched = || "0-99".parse().expect("slots");
        let slots =
            |commands: &[&str]| follow(Rules::builtin(), watched(), commands).take_slots().to_string();
        assert_eq!(slots(&["CLUSTER FLUSHSLOT 42 SYNC", "CLUSTER FLUSHSLOT 500"]), "42");
        assert_eq!(slots(&["TRIMSLOTS RANGES 1 5 6"]), "0-99");
    }

    #[test]
    fn the_database_is_followed() {
        let touched =
            follow(Rules::builtin(), SlotSet::full(), &["SET a 1", "select 4", "SET a 1", "SET b 1"]);
        assert_eq!(keys(&touched), ["0:a", "4:a", "4:b"]);
    }

    #[test]
    fn touches_of_one_key_are_merged() {
        let what = |commands: &[&str]| {
            let touched = follow(Rules::builtin(), SlotSet::full(), commands);
            let taken = touched.take(usize::MAX);
            let [Touch { what, .. }] = &taken[..] else { panic!("{taken:?}") };
            match what {
                What::Elements(elements) => (elements.names.len(), elements.expiry),
                What::Anything => (usize::MAX, false),
                What::Expiry => (0, true),
            }
        };
        assert_eq!(what(&["HSET k f 1 g 2", "HSET k f 2 h 3"]), (3, false));
        assert_eq!(what(&["HSET k f 1", "HDEL k g"]), (2, true));
        assert_eq!(what(&["PERSIST k", "PERSIST k"]), (0, true));
        assert_eq!(what(&["PERSIST k", "SADD k m"]), (1, true));
        assert_eq!(what(&["SADD k m", "PERSIST k"]), (1, true));
        // It was deleted in between.
        assert_eq!(what(&["SADD k m", "ZADD k 1 m"]), (usize::MAX, false));
        assert_eq!(what(&["SADD k m", "DEL k", "SADD k m"]), (usize::MAX, false));
        assert_eq!(what(&["DEL k", "PERSIST k"]), (usize::MAX, false));
    }
}
