//! A server's own table of its commands: which words of a command are keys, and what else matters for where
//! it goes.
//!
//! The table is read with `COMMAND`, so commands of modules are in it as well. Protocol:
//! <https://redis.io/docs/latest/commands/command/>. Positions count the words of a command from 0, its name.

use whimbrel_engine::error::Result;
use whimbrel_engine::link::Link;
use whimbrel_wire::value::Value;

use super::by_name::ByName;

/// Where the keys of a command are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    /// It has none.
    None,
    /// At these positions.
    At(Vec<usize>),
    /// Where its words decide, or the table does not list all: the server is asked with `COMMAND GETKEYS`.
    Asked,
    /// It may use keys that no word of it names.
    Unknown,
}

/// What the server says of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// It changes no key, not even what the server keeps beside it: `PFCOUNT` is called a read, and stores
    /// the count.
    pub readonly: bool,
    /// It may wait for something to happen.
    pub blocking: bool,
    /// It reads or writes data, and is nothing to the connection that it comes on.
    pub is_plain: bool,
    /// The fewest words that the server takes, the name included; exactly this many if `arity_exact`.
    pub arity: usize,
    /// Whether more words than `arity` are refused.
    pub arity_exact: bool,
    positions: Positions,
    subcommands: ByName<Facts>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Positions {
    None,
    /// From the first to the last (from the end, if negative), each `step`th.
    Range {
        first: usize,
        last: i64,
        step: usize,
    },
    Asked,
    Unknown,
}

/// All commands of a server.
#[derive(Debug, Clone, Default)]
pub struct CommandTable(ByName<Facts>);

impl CommandTable {
    /// Asks the server.
    ///
    /// # Errors
    /// As [`Link::call`], and `Unexpected` for a table that cannot be understood.
    pub async fn ask(link: &mut Link) -> Result<CommandTable> {
        let reply = link.call(&[b"COMMAND"]).await?;
        CommandTable::of(&reply).ok_or_else(|| link.unexpected("COMMAND", &reply))
    }

    /// By the reply of a server to `COMMAND`; `None` if that cannot be understood.
    pub(crate) fn of(reply: &Value) -> Option<CommandTable> {
        let commands = named_facts(reply.as_items()?);
        (!commands.is_empty()).then_some(CommandTable(commands))
    }

    /// What is known of a command, by its words; of its subcommand if it has such. `None` if the server has
    /// none of this name.
    pub fn facts(&self, words: &[&[u8]]) -> Option<&Facts> {
        let facts = self.0.get(words.first()?)?;
        if facts.subcommands.is_empty() {
            return Some(facts);
        }
        facts.subcommands.get(words.get(1)?)
    }

    /// Commands that read or write data and are nothing to the connection that they come on, in lower case.
    pub fn plain_names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(|(_, facts)| facts.is_plain).map(|(name, _)| name)
    }
}

impl Facts {
    /// Whether the server takes a command of this many words.
    pub fn takes(&self, words: usize) -> bool {
        words == self.arity || words > self.arity && !self.arity_exact
    }

    /// Where the keys are of a command of this many words. A command that the server would refuse for their
    /// number has none.
    pub fn keys(&self, words: usize) -> Keys {
        if !self.takes(words) {
            return Keys::None;
        }
        match self.positions {
            Positions::None => Keys::None,
            Positions::Asked => Keys::Asked,
            Positions::Unknown => Keys::Unknown,
            Positions::Range { first, last, step } => {
                let last = match usize::try_from(last) {
                    Ok(last) => last.min(words - 1),
                    Err(_) => words.saturating_sub(usize::try_from(last.unsigned_abs()).unwrap_or(words)),
                };
                Keys::At((first..=last).step_by(step).collect())
            }
        }
    }

    fn of(entry: &[Value]) -> Option<(Vec<u8>, Facts)> {
        let [name, arity, flags, first, last, step, rest @ ..] = entry else { return None };
        let flags: Vec<&[u8]> =
            flags.as_items()?.iter().filter_map(Value::as_bytes).map(|flag| &flag[..]).collect();
        let has = |flag: &[u8]| flags.contains(&flag);
        let arity = arity.as_int()?;
        let (first, last, step) = (first.as_int()?, last.as_int()?, step.as_int()?);
        // Access categories, hints, key specifications, subcommands.
        let specs = rest.get(2).and_then(Value::as_items).unwrap_or_default();
        let subcommands = rest.get(3).and_then(Value::as_items).unwrap_or_default();
        let positions = if specs.iter().any(is_beyond_words) {
            Positions::Unknown
        } else if specs.iter().any(|spec| has_flag(spec, b"incomplete")) {
            // A specification that does not list all keys: if it is so, servers find them by code of the
            // command's own.
            Positions::Asked
        } else if !specs.is_empty() && specs.iter().all(|spec| has_flag(spec, b"not_key")) {
            Positions::None
        } else if has(b"movablekeys") {
            Positions::Asked
        } else {
            match (usize::try_from(first), usize::try_from(step)) {
                (Ok(first @ 1..), Ok(step @ 1..)) => Positions::Range { first, last, step },
                _ => Positions::None,
            }
        };
        let full_name = name.as_bytes()?.to_ascii_lowercase();
        // A subcommand is called `xgroup|create`.
        let own_name = full_name.rsplit(|byte| *byte == b'|').next()?.to_vec();
        let facts = Facts {
            readonly: has(b"readonly") && !specs.iter().any(is_written),
            blocking: has(b"blocking"),
            is_plain: (has(b"readonly") || has(b"write"))
                && ![&b"blocking"[..], b"noscript", b"pubsub", b"admin", b"module"].into_iter().any(has),
            arity: usize::try_from(arity.unsigned_abs()).ok()?,
            arity_exact: arity > 0,
            positions,
            subcommands: named_facts(subcommands),
        };
        Some((own_name, facts))
    }
}

fn named_facts(entries: &[Value]) -> ByName<Facts> {
    entries.iter().filter_map(|entry| Facts::of(entry.as_items()?)).collect()
}

/// Whether a key specification says that there are keys that the words do not name, as with the patterns of
/// `SORT`.
fn is_beyond_words(spec: &Value) -> bool {
    ["begin_search", "find_keys"].iter().any(|part| {
        let kind = spec.field(part).and_then(|part| part.field("type"));
        kind.and_then(Value::as_bytes).is_some_and(|kind| &kind[..] == b"unknown")
    })
}

/// Whether a key specification says that the key is changed: read and written, overwritten, or removed.
fn is_written(spec: &Value) -> bool {
    [&b"RW"[..], b"OW", b"RM"].iter().any(|flag| has_flag(spec, flag))
}

fn has_flag(spec: &Value, flag: &[u8]) -> bool {
    let flags = spec.field("flags").and_then(Value::as_items).unwrap_or_default();
    flags.iter().filter_map(Value::as_bytes).any(|found| found.eq_ignore_ascii_case(flag))
}
