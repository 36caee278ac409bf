//! Commands that clients use, and what becomes of them elsewhere.

use std::collections::BTreeMap;

use serde::Serialize;
use whimbrel_wire::value::Value;

use crate::error::Result;
use crate::link::Link;
use crate::probe::Info;

/// How a command was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CommandUse {
    /// How often.
    pub calls: u64,
    /// For how many microseconds in all.
    pub micros: u64,
    /// How many keys it can name.
    pub reach: Reach,
}

/// How many keys a command can name, by its kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// None, or the server does not say.
    #[default]
    None,
    /// One.
    One,
    /// Several, which have to be in one slot of a cluster.
    Several,
    /// All keys of the server: in a cluster each primary has some of them only.
    Server,
    /// Other databases, which a cluster does not have.
    Databases,
}

/// What is known without asking.
const KNOWN: [(&str, Reach); 10] = [
    ("keys", Reach::Server),
    ("scan", Reach::Server),
    ("randomkey", Reach::Server),
    ("dbsize", Reach::Server),
    ("flushdb", Reach::Server),
    ("flushall", Reach::Server),
    ("move", Reach::Databases),
    ("swapdb", Reach::Databases),
    // Their keys are in one slot by necessity, or there is one of them.
    ("object", Reach::One),
    ("memory", Reach::One),
];

/// Adds what `commandstats` reports.
pub(super) fn add_used(info: &Info, used: &mut BTreeMap<String, CommandUse>) {
    for (name, value) in info.fields() {
        let Some(name) = name.strip_prefix("cmdstat_") else { continue };
        let number = |wanted: &str| {
            let parts = value.split(',').filter_map(|part| part.split_once('='));
            parts.into_iter().find(|(n, _)| *n == wanted).and_then(|(_, n)| n.parse::<u64>().ok())
        };
        let sum = used.entry(name.to_ascii_lowercase()).or_default();
        sum.calls += number("calls").unwrap_or(0);
        sum.micros += number("usec").unwrap_or(0);
    }
}

/// Asks how many keys each of them can name.
pub(super) async fn ask_reach(link: &mut Link, used: &mut BTreeMap<String, CommandUse>) -> Result<()> {
    let names: Vec<String> = used.keys().cloned().collect();
    let entries = describe(link, &names).await?;
    for (name, entry) in names.iter().zip(&entries) {
        let first = name.split('|').next().unwrap_or_default();
        let known = KNOWN.iter().find(|(known, _)| *known == first).map(|(_, reach)| *reach);
        if let Some(used) = used.get_mut(name) {
            used.reach = known.unwrap_or_else(|| reach_of(entry));
        }
    }
    Ok(())
}

fn reach_of(entry: &Value) -> Reach {
    let Some(items) = entry.as_items() else { return Reach::None };
    let number = |at: usize| items.get(at).and_then(Value::as_int).unwrap_or(0);
    let flags = items.get(2).and_then(Value::as_items).unwrap_or_default();
    let is_movable = flags.iter().any(|flag| flag.as_str() == Some("movablekeys"));
    match (is_movable, number(3), number(4)) {
        (true, ..) => Reach::Several,
        (_, 0, _) => Reach::None,
        (_, first, last) if first == last => Reach::One,
        _ => Reach::Several,
    }
}

/// What the server reports of these commands, in their order; null for those that it does not have.
async fn describe(link: &mut Link, names: &[String]) -> Result<Vec<Value>> {
    let mut args: Vec<&[u8]> = vec![b"COMMAND", b"INFO"];
    args.extend(names.iter().map(|name| name.as_bytes()));
    // Without names it would describe all.
    if names.is_empty() {
        return Ok(Vec::new());
    }
    Ok(link.ask(&args).await?.into_items().unwrap_or_default())
}

/// Those of `names` that a server lacks; `None` if it does not report that.
///
/// # Errors
/// As [`Link::ask`].
pub async fn lacking(link: &mut Link, names: &[String]) -> Result<Option<Vec<String>>> {
    let first = |name: &String| name.split('|').next().unwrap_or_default().to_owned();
    let mut asked = names.to_vec();
    asked.extend(names.iter().map(first));
    // Whether it describes subcommands: all have this one.
    asked.push("config|get".to_owned());
    let entries = describe(link, &asked).await?;
    if entries.len() != asked.len() {
        return Ok(None);
    }
    let has = |at: usize| entries[at].as_items().is_some_and(|items| !items.is_empty());
    let tells_of_parts = has(asked.len() - 1);
    let is_there = |(at, name): (usize, &String)| match name.contains('|') && tells_of_parts {
        true => has(at),
        false => has(names.len() + at),
    };
    let missing = names.iter().enumerate().filter(|named| !is_there(*named));
    Ok(Some(missing.map(|(_, name)| name.clone()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_all_nodes_are_added_up() {
        let info = Info::parse(
            b"# Commandstats\r\ncmdstat_get:calls=3,usec=7,usec_per_call=2.3,rejected_calls=0\r\n\
              cmdstat_client|list:calls=1,usec=20,usec_per_call=20.0\r\nuptime_in_seconds:3\r\n",
        );
        let mut used = BTreeMap::new();
        add_used(&info, &mut used);
        add_used(&info, &mut used);
        assert_eq!(used.len(), 2);
        assert_eq!((used["get"].calls, used["get"].micros, used["client|list"].calls), (6, 14, 2));
    }
}
