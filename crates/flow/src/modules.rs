//! What modules of a source leave behind: keys of types that the target does not have; indexes for searches,
//! which lie outside the keys; and the compaction rules of time series, which a dump has but `RESTORE` drops.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use whimbrel_core::units::format_count_of;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Link;
use whimbrel_wire::value::Value;

use crate::pipeline::CopyOptions;
use crate::scan::{KeyScan, ScanOptions, Unit};

/// The type of vector sets, of Redis 8 and later.
pub(crate) const VECTOR_SET: &str = "vectorset";

/// Types that not every server has, as `TYPE` says them, and a command that whatever holds them has.
const TYPES: [(&str, &str); 9] = [
    ("ReJSON-RL", "JSON.SET"),
    ("TSDB-TYPE", "TS.ADD"),
    ("MBbloom--", "BF.ADD"),
    ("MBbloomCF", "CF.ADD"),
    ("CMSk-TYPE", "CMS.INCRBY"),
    ("TopK-TYPE", "TOPK.ADD"),
    ("TDIS-TYPE", "TDIGEST.ADD"),
    ("trietype0", "FT.SUGADD"),
    (VECTOR_SET, "VADD"),
];

/// How many rules are shown to people.
const RULES_SHOWN: usize = 20;

/// No more rules than this are remembered.
const RULES_MAX: usize = 1_000;

/// Keys that are asked about in one round trip.
const ASKED_AT_ONCE: usize = 512;

/// For how long keys of one type are looked for.
const WALK_MAX: Duration = Duration::from_secs(20);

/// What stays behind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LeftBehind {
    /// Types that the target does not have, if the source has keys of them.
    pub types: Vec<LeftType>,
    /// Commands that make the indexes for searches.
    pub indexes: Vec<String>,
    /// Commands that make the compaction rules of time series.
    pub rules: Vec<String>,
}

/// Keys of a type that the target does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftType {
    /// As `TYPE` says it.
    pub name: String,
    /// How many of the selected keys are of it.
    pub keys: u64,
    /// Whether all keys were looked at; otherwise there may be more.
    pub is_counted: bool,
    /// A command that the target would have to have.
    pub lacks: String,
}

impl LeftBehind {
    /// Whether the target cannot hold all keys.
    pub fn has_keys(&self) -> bool {
        self.types.iter().any(|of| of.keys > 0)
    }

    /// What is said about it before anything begins.
    pub fn lines(&self) -> Vec<String> {
        let keys = |of: &LeftType| match (of.keys, of.is_counted) {
            (0, _) => "perhaps keys".to_owned(),
            (keys, true) => format_count_of(keys, "key"),
            (keys, false) => format!("at least {}", format_count_of(keys, "key")),
        };
        let types = self
            .types
            .iter()
            .map(|of| format!("left     {} of type {}: the target has no {}", keys(of), of.name, of.lacks));
        let indexes = self.indexes.iter().map(|make| format!("left     search index: {make}"));
        let rules =
            self.rules.iter().take(RULES_SHOWN).map(|make| format!("left     compaction rule: {make}"));
        let more = self.rules.len().saturating_sub(RULES_SHOWN);
        let more = (more > 0)
            .then(|| format!("left     … and {more} more compaction rules, which the plan as JSON has"));
        types.chain(indexes).chain(rules).chain(more).collect()
    }
}

/// Looks for what stays behind. Nothing is known of a server that does not say which commands it has.
pub(crate) async fn left_behind(
    source: &Arc<Deployment>,
    target: &Deployment,
    options: &CopyOptions,
    stop: &CancellationToken,
) -> Result<LeftBehind> {
    let mut left = LeftBehind::default();
    let Some(ours) = commands(source).await? else { return Ok(left) };
    if let Some(theirs) = commands(target).await? {
        let lacks =
            |(_, command): &&(&str, &'static str)| ours.contains(command) && !theirs.contains(command);
        for (name, command) in TYPES.iter().filter(lacks) {
            let mut keys = 0;
            let is_counted = walk(source, options, name, stop, async |_, page| {
                keys += page.len() as u64;
                Ok(true)
            });
            let is_counted = is_counted.await?;
            if keys > 0 || !is_counted {
                let (name, lacks) = ((*name).to_owned(), (*command).to_owned());
                left.types.push(LeftType { name, keys, is_counted, lacks });
            }
        }
    }
    if ours.contains(LIST_INDEXES) {
        left.indexes = indexes(source).await?;
    }
    if ours.contains("TS.ADD") {
        rules(source, options, stop, &mut left.rules).await?;
    }
    Ok(left)
}

const LIST_INDEXES: &str = "FT._LIST";

/// Which of the commands that matter here a server has; `None` if it does not say.
async fn commands(deployment: &Deployment) -> Result<Option<BTreeSet<&'static str>>> {
    let asked: Vec<&'static str> = TYPES.iter().map(|(_, command)| *command).chain([LIST_INDEXES]).collect();
    let mut args: Vec<&[u8]> = vec![b"COMMAND", b"INFO"];
    args.extend(asked.iter().map(|command| command.as_bytes()));
    let mut link = deployment.open(&deployment.server(), 0).await?;
    let reply = link.ask(&args).await?;
    let has = |answer: &Value| answer.as_items().is_some_and(|items| !items.is_empty());
    Ok(reply.as_items().map(|answers| {
        asked.iter().zip(answers).filter(|(_, answer)| has(answer)).map(|(command, _)| *command).collect()
    }))
}

/// Hands the selected keys of a type on, page by page with a connection to the server that has them, until
/// `visit` has enough; true if it has seen all of them.
async fn walk(
    source: &Arc<Deployment>,
    options: &CopyOptions,
    type_name: &str,
    stop: &CancellationToken,
    mut visit: impl AsyncFnMut(&mut Link, &[Bytes]) -> Result<bool>,
) -> Result<bool> {
    if !options.types.is_empty() && !options.types.iter().any(|wanted| wanted.eq_ignore_ascii_case(type_name))
    {
        return Ok(true);
    }
    let deadline = Instant::now() + WALK_MAX;
    let scan_options = ScanOptions { type_name: Some(type_name.to_owned()), ..options.scan_options() };
    for db in &options.dbs {
        for unit in Unit::of_all(source, db.source, options.from_replicas) {
            let mut link = unit.open(source).await?;
            let mut scan = KeyScan::new(source.clone(), unit, scan_options.clone(), options.retry, None);
            while let Some(page) = scan.next().await? {
                let mut keys = page.keys;
                keys.retain(|key| options.selection.admits(key));
                if !visit(&mut link, &keys).await? || stop.is_cancelled() || Instant::now() > deadline {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

/// The commands that make all indexes; none if they may not be asked for.
async fn indexes(source: &Deployment) -> Result<Vec<String>> {
    let mut link = source.open(&source.server(), 0).await?;
    let names = link.ask(&[LIST_INDEXES.as_bytes()]).await?;
    let mut names: Vec<String> = names.as_items().unwrap_or_default().iter().filter_map(word).collect();
    names.sort();
    let mut commands = Vec::new();
    for name in names {
        let info = link.ask(&[b"FT.INFO", name.as_bytes()]).await?;
        let words = index_of(&name, &info).unwrap_or_else(|| vec!["FT.CREATE".to_owned(), name]);
        commands.push(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
    }
    Ok(commands)
}

/// The command that makes an index, by the reply to `FT.INFO`.
fn index_of(name: &str, info: &Value) -> Option<Vec<String>> {
    let definition = info.field("index_definition")?;
    let mut words = vec!["FT.CREATE".to_owned(), name.to_owned()];
    words.extend(["ON".to_owned(), word(definition.field("key_type")?)?]);
    let prefixes: Vec<String> = definition.field("prefixes")?.as_items()?.iter().filter_map(word).collect();
    words.extend(["PREFIX".to_owned(), prefixes.len().to_string()]);
    words.extend(prefixes);
    for (field, option, usual) in [
        ("filter", "FILTER", ""),
        ("default_language", "LANGUAGE", ""),
        ("language_field", "LANGUAGE_FIELD", ""),
        ("default_score", "SCORE", "1"),
        ("score_field", "SCORE_FIELD", ""),
        ("payload_field", "PAYLOAD_FIELD", ""),
    ] {
        let value =
            definition.field(field).and_then(word).filter(|value| value != usual && !value.is_empty());
        words.extend(value.into_iter().flat_map(|value| [option.to_owned(), value]));
    }
    words.extend(info.field("index_options")?.as_items()?.iter().filter_map(word));
    if let Some(stopwords) = info.field("stopwords_list").and_then(Value::as_items) {
        words.extend(["STOPWORDS".to_owned(), stopwords.len().to_string()]);
        words.extend(stopwords.iter().filter_map(word));
    }
    words.push("SCHEMA".to_owned());
    for attribute in info.field("attributes")?.as_items()? {
        let parts: Vec<String> = attribute.as_items()?.iter().filter_map(word).collect();
        let [_, identifier, _, called, _, kind, rest @ ..] = &parts[..] else { return None };
        words.push(identifier.clone());
        if called != identifier {
            words.extend(["AS".to_owned(), called.clone()]);
        }
        words.push(kind.clone());
        match kind.as_str() {
            "VECTOR" => vector_options(rest, &mut words),
            _ => attribute_options(rest, &mut words),
        }
    }
    Some(words)
}

/// Names and values of a vector's options, which `FT.CREATE` calls otherwise.
fn vector_options(given: &[String], words: &mut Vec<String>) {
    let mut options = Vec::new();
    for option in given.chunks_exact(2) {
        let name = match option[0].as_str() {
            "algorithm" => {
                words.push(option[1].clone());
                continue;
            }
            "data_type" => "TYPE",
            "dim" => "DIM",
            "distance_metric" => "DISTANCE_METRIC",
            "M" => "M",
            "ef_construction" => "EF_CONSTRUCTION",
            "ef_runtime" => "EF_RUNTIME",
            "epsilon" => "EPSILON",
            _ => continue,
        };
        options.extend([name.to_owned(), option[1].clone()]);
    }
    words.push(options.len().to_string());
    words.extend(options);
}

/// The options of other attributes. What holds for all types comes last.
fn attribute_options(given: &[String], words: &mut Vec<String>) {
    let mut last = Vec::new();
    let mut given = given.iter();
    while let Some(option) = given.next() {
        match option.as_str() {
            "SORTABLE" | "UNF" | "NOINDEX" => last.push(option.clone()),
            "coord_system" => {}
            "SEPARATOR" => {
                let separator = given.next().filter(|separator| !separator.is_empty());
                words.extend(separator.into_iter().flat_map(|value| [option.clone(), value.clone()]));
            }
            _ => words.push(option.clone()),
        }
    }
    words.extend(last);
}

/// Looks for the compaction rules of the selected series; of very many not all are looked at.
async fn rules(
    source: &Arc<Deployment>,
    options: &CopyOptions,
    stop: &CancellationToken,
    found: &mut Vec<String>,
) -> Result<()> {
    let visit = async |link: &mut Link, keys: &[Bytes]| {
        for key in keys {
            link.push(&[b"TS.INFO", key]);
        }
        link.flush().await?;
        for (key, info) in keys.iter().zip(link.replies(keys.len()).await?) {
            let rules = info.field("rules").and_then(Value::as_items).unwrap_or_default();
            found.extend(rules.iter().filter_map(|rule| rule_of(key, rule)));
        }
        Ok(found.len() < RULES_MAX)
    };
    walk(source, options, "TSDB-TYPE", stop, visit).await.map(|_| ())
}

/// The series that are filled, by compaction rules, with what is written to these keys. No stream of changes
/// names them.
///
/// # Errors
/// Whatever the link reports.
pub(crate) async fn filled_by(link: &mut Link, keys: &[Bytes]) -> Result<Vec<Bytes>> {
    let mut filled = Vec::new();
    for keys in keys.chunks(ASKED_AT_ONCE) {
        for key in keys {
            link.push(&[b"TS.INFO", key]);
        }
        link.flush().await?;
        // Of a key that is no series it says so.
        for info in link.replies(keys.len()).await? {
            let rules = info.field("rules").and_then(Value::as_items).unwrap_or_default();
            let to = rules.iter().filter_map(|rule| rule.as_items()?.first()?.as_bytes().cloned());
            filled.extend(to);
        }
    }
    Ok(filled)
}

/// The command that makes a rule, given as its series, a time in milliseconds, how it aggregates, and what it
/// is aligned to.
fn rule_of(key: &[u8], rule: &Value) -> Option<String> {
    let parts: Vec<String> = rule.as_items()?.iter().filter_map(word).collect();
    let [to, bucket_ms, how, aligned @ ..] = &parts[..] else { return None };
    let key = quoted(&String::from_utf8_lossy(key));
    let mut command = format!("TS.CREATERULE {key} {} AGGREGATION {how} {bucket_ms}", quoted(to));
    if let Some(aligned) = aligned.first().filter(|aligned| *aligned != "0") {
        command.push_str(&format!(" {aligned}"));
    }
    Some(command)
}

/// A word or a number.
fn word(value: &Value) -> Option<String> {
    match value {
        Value::Int(number) => Some(number.to_string()),
        other => other.as_str().map(str::to_owned),
    }
}

/// A word as the servers' command-line clients take it.
fn quoted(word: &str) -> String {
    let is_plain = !word.is_empty()
        && !word.contains(|c: char| c.is_whitespace() || c.is_control() || "\"'\\".contains(c));
    if is_plain { word.to_owned() } else { format!("\"{}\"", word.escape_debug()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &'static str) -> Value {
        Value::parse(&Bytes::from_static(text.as_bytes())).expect("a reply")
    }

    #[test]
    fn a_rule_is_shown_as_the_command_that_makes_it() {
        let rule = value("*4\r\n$3\r\ntsd\r\n:1000\r\n+AVG\r\n:0\r\n");
        let made = rule_of(b"a b", &rule).expect("a rule");
        assert_eq!(made, "TS.CREATERULE \"a b\" tsd AGGREGATION AVG 1000");
    }

    #[test]
    fn what_holds_for_all_types_comes_last() {
        let given = ["WEIGHT", "2", "SORTABLE", "NOSTEM"].map(str::to_owned);
        let mut words = Vec::new();
        attribute_options(&given, &mut words);
        assert_eq!(words, ["WEIGHT", "2", "NOSTEM", "SORTABLE"]);
        let given = ["algorithm", "FLAT", "data_type", "FLOAT32", "dim", "4"].map(str::to_owned);
        let mut words = Vec::new();
        vector_options(&given, &mut words);
        assert_eq!(words, ["FLAT", "4", "TYPE", "FLOAT32", "DIM", "4"]);
    }
}
