//! Compares a batch of slots, source against target, while the slots are still the source's.
//!
//! What it asks of keys and how it judges the answers is its own, on purpose: a mistake in how the lanes read
//! or write a key cannot hide from it. It shares with them how the keys of slots are counted and listed
//! ([`slot_keys`], [`all_names`] most of all). A mistake in that would be theirs and its own; `verify` has
//! none of it and goes by `SCAN`.
//!
//! Payloads of `DUMP` are compared first. They are equal if both servers keep a value in the same way; if
//! they are not, the elements are compared.

use std::collections::HashSet;

use bytes::Bytes;
use tokio::time::Instant;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::error::{Result, ServerError};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Info;
use whimbrel_engine::slot_keys::{self, all_names};
use whimbrel_wire::payload::Footer;
use whimbrel_wire::value::Value;

use crate::modules::VECTOR_SET;

/// Keys compared in one pipeline.
const KEYS_AT_ONCE: usize = 64;

/// Keys whose elements are counted in one pipeline.
const COUNTED_AT_ONCE: usize = 1_024;

/// How many differences are shown.
const SHOWN_MAX: usize = 10;

/// Values with more elements than this are compared by their number of elements only.
const ELEMENTS_MAX: i64 = 10_000;

/// How many vectors of one are compared at most: writers wait meanwhile.
const VECTORS_MAX: i64 = 200;

/// A slot with more keys than this is not looked into if the numbers differ: listing them stalls a server and
/// takes memory, both by the number of keys. A snapshot lists slots of any size; here writers wait meanwhile,
/// and a pause that becomes too long is given up by the fence.
const SEARCHED_KEYS_MAX: u64 = 1_000_000;

/// How far the remaining times of one key may lie apart, in milliseconds: servers report them relative to
/// now.
const TTL_TOLERANCE_MS: u64 = 1_000;

/// How far apart the clocks of both sides may be, in milliseconds, if a key is gone on one side only.
const DUE_MS: i64 = 100;

/// What a comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Keys whose values were compared.
    pub compared: u64,
    /// Slots whose number of keys was compared.
    pub counted: u64,
    /// How many keys or slots differ.
    pub differences: u64,
    /// The first of them, for people.
    pub shown: Vec<String>,
}

impl Comparison {
    fn differs(&mut self, what: String) {
        self.differences += 1;
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(what);
        }
    }

    /// Counts keys whose elements differ, except keys that expired while they were read, on one side before
    /// the other. A key that is there still was there all the time.
    async fn differs_unless_gone(
        &mut self,
        source: &mut Link,
        target: &mut Link,
        keys: &[Bytes],
        asked: Asked,
    ) -> Result<()> {
        let what = match asked {
            Asked::Values => "has different values",
            Asked::Times => "has different numbers of elements",
        };
        for (key, pair) in keys.iter().zip(read_pairs(source, target, keys, asked).await?) {
            let how = match pair.judge() {
                Judgement::Same if pair.is_gone() => continue,
                Judgement::Differs(how) => how,
                _ => what,
            };
            self.differs(format!("{} {how}", crate::keys::shown(key)));
        }
        Ok(())
    }

    /// Adds what another one found.
    pub(super) fn add(&mut self, other: Comparison) {
        self.compared += other.compared;
        self.counted += other.counted;
        self.differences += other.differences;
        self.shown.extend(other.shown);
        self.shown.truncate(SHOWN_MAX);
    }
}

/// How many keys `link`'s node has in each slot, in the order of the set.
///
/// # Errors
/// Whatever the link or the server reports.
pub async fn count_keys(link: &mut Link, slots: &SlotSet) -> Result<Vec<(Slot, u64)>> {
    let slots: Vec<Slot> = slots.iter().collect();
    let counts = slot_keys::counts(link, &slots).await?;
    Ok(slots.into_iter().zip(counts).collect())
}

/// Compares the number of keys of each slot. If it differs, the keys that only one side lists are looked at:
/// a key that is due to expire may have been removed on one side only.
///
/// # Errors
/// Whatever a link or a server reports.
pub(super) async fn counts(source: &mut Link, target: &mut Link, slots: &SlotSet) -> Result<Comparison> {
    let (ours, theirs) = tokio::join!(count_keys(source, slots), count_keys(target, slots));
    let (ours, theirs) = (ours?, theirs?);
    let mut found = Comparison { counted: ours.len() as u64, ..Comparison::default() };
    for ((slot, ours), (_, theirs)) in ours.into_iter().zip(theirs) {
        if ours == theirs {
            continue;
        }
        if ours.max(theirs) > SEARCHED_KEYS_MAX {
            found.differs(format!(
                "slot {} has {ours} keys on the source and {theirs} on the target",
                slot.number()
            ));
            continue;
        }
        let (ours, theirs) = ([(slot, ours)], [(slot, theirs)]);
        let (here, there) = tokio::join!(all_names(source, &ours), all_names(target, &theirs));
        // One set only, since slots may be large: what is left in it is the source's alone.
        let mut here: HashSet<Bytes> = here?.into_iter().collect();
        let mut one_sided: Vec<Bytes> = there?.into_iter().filter(|key| !here.remove(key)).collect();
        one_sided.extend(here);
        let different = self::keys(source, target, &one_sided).await?;
        // All of them equal: what made the difference has expired. Under a pause the source keeps such keys.
        found.add(different);
    }
    Ok(found)
}

/// Compares keys by value and expiry.
///
/// # Errors
/// Whatever a link or a server reports.
pub(super) async fn keys(source: &mut Link, target: &mut Link, keys: &[Bytes]) -> Result<Comparison> {
    let mut found = Comparison::default();
    for part in keys.chunks(KEYS_AT_ONCE) {
        let mut unlike = Vec::new();
        let pairs = read_pairs(source, target, part, Asked::Values).await?;
        for (key, pair) in part.iter().zip(pairs) {
            found.compared += 1;
            match pair.judge() {
                Judgement::Same => {}
                Judgement::Differs(how) => found.differs(format!("{} {how}", crate::keys::shown(key))),
                Judgement::OtherPayload => unlike.push(key.clone()),
            }
        }
        let same = same_elements(source, target, &unlike).await?;
        let unlike: Vec<Bytes> =
            unlike.into_iter().zip(same).filter(|(_, is_same)| !is_same).map(|(key, _)| key).collect();
        found.differs_unless_gone(source, target, &unlike, Asked::Values).await?;
    }
    Ok(found)
}

/// Compares how many elements keys have that are followed by their elements.
///
/// # Errors
/// Whatever a link or a server reports.
pub(super) async fn cardinalities(
    source: &mut Link,
    target: &mut Link,
    keys: &[(Bytes, &'static [u8])],
) -> Result<Comparison> {
    let mut found = Comparison::default();
    for part in keys.chunks(COUNTED_AT_ONCE) {
        for (key, command) in part {
            source.push(&[command, key]);
            target.push(&[b"ASKING"]);
            target.push(&[command, key]);
        }
        source.flush().await?;
        target.flush().await?;
        let mut unlike = Vec::new();
        for (key, command) in part {
            let ours = reply(source, false, command).await?.as_int();
            let theirs = reply(target, true, command).await?.as_int();
            found.compared += 1;
            if ours != theirs {
                unlike.push(key.clone());
            }
        }
        found.differs_unless_gone(source, target, &unlike, Asked::Times).await?;
    }
    Ok(found)
}

/// Whether `link`'s node holds keys in another database than the first.
///
/// # Errors
/// Whatever the link or the server reports.
pub async fn has_other_databases(link: &mut Link) -> Result<bool> {
    let info = Info::ask(link, "keyspace").await?;
    Ok(info.keyspace().iter().any(|(db, counts)| *db != 0 && counts.keys > 0))
}

/// What is compared first.
struct FirstAnswer {
    payload: Bytes,
    /// What `PTTL` says.
    ttl_ms: i64,
}

impl FirstAnswer {
    /// Both sides are asked within a moment; a difference beyond that matters.
    fn same_expiry(&self, other: &FirstAnswer) -> bool {
        match (self.ttl_ms, other.ttl_ms) {
            (-1, ttl) | (ttl, -1) => ttl == -1,
            (a, b) => a.abs_diff(b) <= TTL_TOLERANCE_MS,
        }
    }
}

/// What both sides say of one key.
struct Pair {
    ours: Option<FirstAnswer>,
    theirs: Option<FirstAnswer>,
    /// How far apart they may have been asked, in milliseconds.
    apart_ms: i64,
}

/// What follows from a [`Pair`].
enum Judgement {
    Same,
    /// How, in words that follow the key's name.
    Differs(&'static str),
    /// What does not show in what was asked so far.
    OtherPayload,
}

impl Pair {
    fn judge(&self) -> Judgement {
        // A key that is there on one side, with an expiry that may have passed when the other was asked, is
        // gone for every client.
        let is_due = |one: &FirstAnswer| (0..self.apart_ms.saturating_add(DUE_MS)).contains(&one.ttl_ms);
        match (&self.ours, &self.theirs) {
            (None, None) => Judgement::Same,
            (Some(one), None) | (None, Some(one)) if is_due(one) => Judgement::Same,
            (Some(_), None) => Judgement::Differs("is missing on the target"),
            (None, Some(_)) => Judgement::Differs("is on the target only"),
            (Some(ours), Some(theirs)) if !ours.same_expiry(theirs) => {
                Judgement::Differs("expires at different times")
            }
            (Some(ours), Some(theirs)) if ours.payload != theirs.payload => Judgement::OtherPayload,
            _ => Judgement::Same,
        }
    }

    /// Whether it is gone, on one side at least.
    fn is_gone(&self) -> bool {
        self.ours.is_none() || self.theirs.is_none()
    }
}

/// What is asked about each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// How long it has left.
    Times,
    /// That, and its payload.
    Values,
}

/// Asks both sides about each key.
async fn read_pairs(source: &mut Link, target: &mut Link, keys: &[Bytes], asked: Asked) -> Result<Vec<Pair>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let begun = Instant::now();
    let (ours, theirs) = tokio::join!(read(source, keys, asked, false), read(target, keys, asked, true));
    let apart_ms = i64::try_from(begun.elapsed().as_millis()).unwrap_or(i64::MAX);
    Ok(ours?.into_iter().zip(theirs?).map(|(ours, theirs)| Pair { ours, theirs, apart_ms }).collect())
}

async fn read(
    link: &mut Link,
    keys: &[Bytes],
    asked: Asked,
    asking: bool,
) -> Result<Vec<Option<FirstAnswer>>> {
    let commands: &[&[u8]] = match asked {
        Asked::Times => &[b"PTTL"],
        Asked::Values => &[b"PTTL", b"DUMP"],
    };
    for key in keys {
        for command in commands {
            if asking {
                link.push(&[b"ASKING"]);
            }
            link.push(&[command, key]);
        }
    }
    link.flush().await?;
    let mut answers = Vec::with_capacity(keys.len());
    for _ in keys {
        let ttl_ms = reply(link, asking, b"PTTL").await?.as_int().unwrap_or(-2);
        let dump = match asked {
            Asked::Times => Some(Bytes::new()),
            Asked::Values => reply(link, asking, b"DUMP").await?.into_bytes(),
        };
        answers.push(dump.filter(|_| ttl_ms != -2).map(|dump| {
            let len = dump.len().saturating_sub(Footer::LEN);
            FirstAnswer { payload: dump.slice(..len), ttl_ms }
        }));
    }
    Ok(answers)
}

async fn reply(link: &mut Link, asking: bool, command: &[u8]) -> Result<Value> {
    if asking {
        link.reply().await?;
    }
    let reply = link.reply().await?;
    link.check(reply, command)
}

/// What a value consists of: its type, how many elements it has, and which. `None` if the server does not
/// say.
type Elements = Option<(String, i64, Vec<Vec<Value>>)>;

/// The elements of each key, in three round trips.
async fn elements_of(link: &mut Link, asking: bool, keys: &[Bytes]) -> Result<Vec<Elements>> {
    let types: Vec<Vec<&[u8]>> = keys.iter().map(|key| vec![&b"TYPE"[..], key]).collect();
    let kinds: Vec<String> = link
        .ask_each(asking, &types)
        .await?
        .into_iter()
        .map(|kind| kind.as_str().unwrap_or_default().to_owned())
        .collect();
    let mut known = Vec::new();
    for (at, (key, kind)) in keys.iter().zip(&kinds).enumerate() {
        let (length, all): (&[u8], Vec<&[u8]>) = match kind.as_str() {
            "hash" => (b"HLEN", vec![b"HGETALL", key]),
            "set" => (b"SCARD", vec![b"SMEMBERS", key]),
            "zset" => (b"ZCARD", vec![b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]),
            "list" => (b"LLEN", vec![b"LRANGE", key, b"0", b"-1"]),
            "stream" => (b"XLEN", vec![b"XRANGE", key, b"-", b"+"]),
            "string" => (b"STRLEN", vec![b"GET", key]),
            VECTOR_SET => (b"VCARD", vec![b"VDIM", key]),
            // Its payload has bytes that mean nothing. It does not report the number of items as a number.
            "TopK-TYPE" => (b"TOPK.INFO", vec![b"TOPK.LIST", key, b"WITHCOUNT"]),
            _ => continue,
        };
        known.push((at, vec![length, &key[..]], all));
    }
    let questions: Vec<Vec<&[u8]>> = known.iter().map(|(_, length, _)| length.clone()).collect();
    let lengths = link.ask_each(asking, &questions).await?;
    let mut found: Vec<Elements> = vec![None; keys.len()];
    let (mut read, mut questions) = (Vec::new(), Vec::new());
    for ((at, _, all), length) in known.into_iter().zip(lengths) {
        let (kind, length) = (kinds[at].clone(), length.as_int().unwrap_or(-1));
        if length <= ELEMENTS_MAX || kind == "string" {
            read.push((at, kind, length));
            questions.push(all);
        } else {
            found[at] = Some((kind, length, Vec::new()));
        }
    }
    for ((at, kind, length), reply) in read.into_iter().zip(link.ask_each(asking, &questions).await?) {
        if ServerError::of(&reply).is_none() {
            let elements = ordered(&kind, reply);
            found[at] = Some((kind, length, elements));
        }
    }
    Ok(found)
}

/// The elements in an order that is theirs: sets and hashes have none.
fn ordered(kind: &str, reply: Value) -> Vec<Vec<Value>> {
    let mut elements: Vec<Vec<Value>> = match reply {
        Value::Map(pairs) => pairs.into_iter().map(|(k, v)| vec![k, v]).collect(),
        other if kind == "hash" => {
            let items = other.into_items().unwrap_or_default();
            items.chunks(2).map(<[Value]>::to_vec).collect()
        }
        Value::Array(items) | Value::Set(items) => items.into_iter().map(|v| vec![v]).collect(),
        single => vec![vec![single]],
    };
    if matches!(kind, "hash" | "set") {
        elements.sort_by_cached_key(|e| e.first().and_then(|v| v.as_bytes().cloned()));
    }
    elements
}

/// Whether values whose payloads differ hold the same elements.
async fn same_elements(source: &mut Link, target: &mut Link, keys: &[Bytes]) -> Result<Vec<bool>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let (ours, theirs) = tokio::join!(elements_of(source, false, keys), elements_of(target, true, keys));
    let mut same = Vec::with_capacity(keys.len());
    for (key, (ours, theirs)) in keys.iter().zip(ours?.into_iter().zip(theirs?)) {
        let is_same = ours.is_some() && ours == theirs;
        same.push(match ours {
            Some((kind, count, _)) if is_same && kind == VECTOR_SET => {
                same_vectors(source, target, key, count).await?
            }
            _ => is_same,
        });
    }
    Ok(same)
}

/// Whether two vector sets with as many elements hold the same: links between vectors are chosen at random,
/// so payloads differ. Nothing goes through one in pieces, so of a large one a random part is compared.
async fn same_vectors(source: &mut Link, target: &mut Link, key: &Bytes, count: i64) -> Result<bool> {
    let most = count.min(VECTORS_MAX).to_string();
    let names = source.ask_each(false, &[[&b"VRANDMEMBER"[..], key, most.as_bytes()]]).await?;
    let names = names.into_iter().next().and_then(Value::into_items).unwrap_or_default();
    let names: Vec<Bytes> = names.into_iter().filter_map(Value::into_bytes).collect();
    for part in names.chunks(KEYS_AT_ONCE) {
        let questions: Vec<Vec<&[u8]>> = part
            .iter()
            .flat_map(|name| [vec![b"VEMB", &key[..], name, b"RAW"], vec![b"VGETATTR", &key[..], name]])
            .collect();
        let (ours, theirs) =
            tokio::join!(source.ask_each(false, &questions), target.ask_each(true, &questions));
        let ours = ours?;
        // If it may not be asked, it is not known to be the same.
        if ours.iter().any(|reply| ServerError::of(reply).is_some()) || ours != theirs? {
            return Ok(false);
        }
    }
    Ok(!names.is_empty())
}
