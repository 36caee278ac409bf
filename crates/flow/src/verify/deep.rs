//! Comparing one key in chunks: bounded memory here, short commands there.
//!
//! One element is the smallest chunk: no server hands out a part of a field, a member or a list element.

use std::ops::AddAssign;

use bytes::Bytes;
use whimbrel_wire::value::Value;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::case::{Case, Fault, KeyType, Verdict, items, number, same_score, score, sound, string, strings};
use super::pair::{
    Pair, cardinality_command, due_fields, element_text, field_expiries, lengths_text, position_text,
    same_field_expiry,
};
use super::peer::{Peer, Request};
use super::report::DifferenceKind;

/// The first step through a collection whose element sizes are unknown, and the longest.
const STEP_FIRST: u64 = 32;
const STEP_MAX: u64 = 1_000;

/// Elements looked up in one command. A small encoding hands out all it has in one page, whatever was asked
/// for.
const LOOKUP_MAX: usize = 512;

/// The version and the checksum at the end of a `DUMP` payload: other versions write the same value with
/// others.
const FOOTER_BYTES: usize = 10;

/// How many elements to ask for next, by how large the last ones were.
#[derive(Debug)]
pub(super) struct Steps {
    pub count: u64,
    chunk_bytes: u64,
}

impl Steps {
    pub fn new(chunk_bytes: u64) -> Steps {
        Steps { count: STEP_FIRST, chunk_bytes }
    }

    /// After a page whose largest element had `item_bytes_max`.
    pub fn adapt(&mut self, item_bytes_max: u64) {
        let fitting = self.chunk_bytes / item_bytes_max.max(1);
        self.count = fitting.clamp(1, (self.count * 4).min(STEP_MAX));
    }
}

/// An iteration over the elements of one hash, set or sorted set.
#[derive(Debug)]
struct Walk {
    command: &'static str,
    cursor: Bytes,
    steps: Steps,
    done: bool,
}

impl Walk {
    fn new(kind: &KeyType, chunk_bytes: u64) -> Walk {
        let command = match kind {
            KeyType::Set => "SSCAN",
            KeyType::Zset => "ZSCAN",
            _ => "HSCAN",
        };
        Walk { command, cursor: Bytes::from_static(b"0"), steps: Steps::new(chunk_bytes), done: false }
    }

    /// The next elements: members, or members and scores in turns, or fields and values in turns.
    async fn next(&mut self, peer: &mut Peer, key: &Bytes, width: usize) -> Result<Vec<Bytes>, Fault> {
        let request =
            Request::on(self.command, key).arg(self.cursor.clone()).arg("COUNT").int(self.steps.count);
        let reply = peer.one(request).await?;
        let mut parts = items(peer, self.command, reply)?.into_iter();
        let (Some(cursor), Some(page)) = (parts.next().and_then(Value::into_bytes), parts.next()) else {
            return Err(Fault::Fatal(peer.unexpected(self.command)));
        };
        // A copy: the slice would keep the whole page alive.
        self.cursor = Bytes::copy_from_slice(&cursor);
        self.done = &cursor[..] == b"0";
        let page = strings(peer, self.command, page)?;
        let largest = page.chunks(width).map(|c| c.iter().map(Bytes::len).sum::<usize>()).max();
        if let Some(largest) = largest {
            self.steps.adapt(largest as u64);
        }
        Ok(page)
    }
}

/// One kind of finding about elements: the first example and how many there are.
#[derive(Debug, Default)]
struct Found {
    first: Option<(Bytes, String)>,
    count: u64,
}

impl Found {
    fn add(&mut self, name: &Bytes, how: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.is_none() {
            self.first = Some((Bytes::copy_from_slice(name), how()));
        }
    }

    fn report(self, case: &mut Case, kind: DifferenceKind, what: &str) {
        if let Some((name, how)) = self.first {
            case.find(kind, element_text(what, &name, &how, self.count - 1));
        }
    }
}

/// What comparing the elements of a hash, set or sorted set found. Digests are sums, since two iterations
/// over an unchanged collection need not have the same order.
#[derive(Debug, Default)]
struct Elements {
    missing: Found,
    extra: Found,
    values: Found,
    scores: Found,
    ttls: Found,
    /// Some field of the source has a time to live.
    ttl_seen: bool,
    source_digest: Digest,
    target_digest: Digest,
}

#[derive(Debug, Default)]
struct Digest(u64);

impl AddAssign<u64> for Digest {
    fn add_assign(&mut self, n: u64) {
        self.0 = self.0.wrapping_add(n);
    }
}

fn digest(name: &[u8], value: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&(name.len() as u64).to_le_bytes());
    hasher.update(name);
    hasher.update(value);
    hasher.digest()
}

impl Pair {
    /// A hash, a set or a sorted set: every element of the source is looked up on the target. With equal
    /// cardinalities that is enough; else the other way round as well.
    pub(super) async fn unordered(&mut self, case: &mut Case) -> Result<(), Fault> {
        let Some(kind) = case.kind.clone() else { return Ok(()) };
        let (source_count, target_count) = self.counts(case, cardinality_command(Some(&kind))).await?;
        let mut found = Elements::default();
        let width = if kind == KeyType::Set { 1 } else { 2 };
        let mut walk = Walk::new(&kind, self.rules.chunk_bytes);
        while !walk.done {
            let page = walk.next(&mut self.source, &case.key, width).await?;
            case.bytes += page.iter().map(|b| b.len() as u64).sum::<u64>();
            for part in page.chunks(LOOKUP_MAX * width) {
                self.compare_elements(case, &kind, part, &mut found).await?;
            }
        }
        // Fields that have expired but are not removed yet count on one side and are invisible: then
        // cardinalities say nothing.
        let may_hide = kind == KeyType::Hash
            && (self.source.capabilities().hash_field_ttl || self.target.capabilities().hash_field_ttl);
        if target_count + found.missing.count > source_count || (may_hide && found.ttl_seen) {
            let mut walk = Walk::new(&kind, self.rules.chunk_bytes);
            while !walk.done {
                let page = walk.next(&mut self.target, &case.key, width).await?;
                let names: Vec<Bytes> = page.into_iter().step_by(width).collect();
                for part in names.chunks(LOOKUP_MAX) {
                    self.find_extra(case, &kind, part, &mut found).await?;
                }
            }
        }
        case.saw_digests(source_count, target_count);
        case.saw_digests(found.source_digest.0, found.target_digest.0);
        let what = if kind == KeyType::Hash { "field" } else { "member" };
        let counts = lengths_text(&format!("{what}s"), source_count, target_count);
        let nothing = [&found.missing, &found.extra, &found.values, &found.scores, &found.ttls]
            .iter()
            .all(|f| f.count == 0);
        found.missing.report(case, DifferenceKind::Element, what);
        found.extra.report(case, DifferenceKind::Element, what);
        found.values.report(case, DifferenceKind::Value, what);
        found.scores.report(case, DifferenceKind::Score, what);
        found.ttls.report(case, DifferenceKind::FieldTtl, what);
        if nothing && source_count != target_count && !may_hide {
            case.find(DifferenceKind::Length, counts);
        }
        Ok(())
    }

    async fn compare_elements(
        &mut self,
        case: &Case,
        kind: &KeyType,
        part: &[Bytes],
        found: &mut Elements,
    ) -> Result<(), Fault> {
        if *kind == KeyType::Set {
            let theirs = look_up(&mut self.target, kind, &case.key, part).await?;
            for (member, is) in part.iter().zip(theirs) {
                found.source_digest += digest(member, b"");
                if is.as_int() == Some(1) {
                    found.target_digest += digest(member, b"");
                } else {
                    found.missing.add(member, || "is on the source only".to_owned());
                }
            }
            return Ok(());
        }
        let names: Vec<Bytes> = part.iter().step_by(2).cloned().collect();
        let theirs = look_up(&mut self.target, kind, &case.key, &names).await?;
        if *kind == KeyType::Zset {
            for (pair, theirs) in part.chunks_exact(2).zip(&theirs) {
                self.compare_score(pair, theirs, found)?;
            }
            return Ok(());
        }
        let expiries = self.field_expiries_of(&case.key, &names).await?;
        let ends_apart = |at: usize, theirs: &Value| {
            let Some((ours_end, theirs_end)) = &expiries else { return false };
            ours_end[at] >= 0 && (theirs.is_null() || theirs_end[at] == -2)
        };
        // If the target has removed a field, the source may show it until the next millisecond.
        let due = if theirs.iter().enumerate().any(|(at, theirs)| ends_apart(at, theirs)) {
            self.due(true, &case.key, &names).await?
        } else {
            vec![false; names.len()]
        };
        for (at, (pair, theirs)) in part.chunks_exact(2).zip(theirs).enumerate() {
            let (field, ours) = (&pair[0], &pair[1]);
            let (our_end, their_end) =
                expiries.as_ref().map_or((-1, -1), |(ours, theirs)| (ours[at], theirs[at]));
            if our_end == -2 || due[at] {
                // It expired or was deleted since the page was read.
                continue;
            }
            found.ttl_seen |= our_end >= 0;
            found.source_digest += digest(field, ours).wrapping_add(our_end.cast_unsigned());
            let Some(theirs) = theirs.into_bytes() else {
                found.missing.add(field, || "is on the source only".to_owned());
                continue;
            };
            found.target_digest += digest(field, &theirs).wrapping_add(their_end.cast_unsigned());
            if *ours != theirs {
                found.values.add(field, || {
                    if ours.len() == theirs.len() {
                        format!("has another value ({})", position_text(ours, &theirs, 0, ours.len() as u64))
                    } else {
                        format!(
                            "has another value ({})",
                            lengths_text("bytes", ours.len() as u64, theirs.len() as u64)
                        )
                    }
                });
            } else if !same_field_expiry(our_end, their_end, self.rules.ttl_tolerance_ms) {
                found.ttls.add(field, || match (our_end, their_end) {
                    (-1, _) => "expires on the target only".to_owned(),
                    (_, -1) => "expires on the source only".to_owned(),
                    (ours, theirs) => format!("expires {} ms apart", ours.abs_diff(theirs)),
                });
            }
        }
        Ok(())
    }

    fn compare_score(&self, pair: &[Bytes], theirs: &Value, found: &mut Elements) -> Result<(), Fault> {
        let (member, ours) = (&pair[0], &pair[1]);
        let ours = score(&Value::Bulk(ours.clone())).ok_or_else(|| self.source.unexpected("ZSCAN"))?;
        found.source_digest += digest(member, &ours.to_le_bytes());
        if theirs.is_null() {
            found.missing.add(member, || "is on the source only".to_owned());
            return Ok(());
        }
        let theirs = score(theirs).ok_or_else(|| self.target.unexpected("ZMSCORE"))?;
        found.target_digest += digest(member, &theirs.to_le_bytes());
        if !same_score(ours, theirs) {
            found.scores.add(member, || {
                let direction = if theirs > ours { "higher" } else { "lower" };
                format!("has a {direction} score on the target")
            });
        }
        Ok(())
    }

    /// The expiry times of fields on both sides; `None` if neither side knows any.
    async fn field_expiries_of(
        &mut self,
        key: &Bytes,
        fields: &[Bytes],
    ) -> Result<Option<(Vec<i64>, Vec<i64>)>, Fault> {
        if !self.source.capabilities().hash_field_ttl && !self.target.capabilities().hash_field_ttl {
            return Ok(None);
        }
        let hash = [(key.clone(), fields)];
        let (source, target) = tokio::try_join!(
            field_expiries(&mut self.source, &hash),
            field_expiries(&mut self.target, &hash)
        )?;
        let only =
            |times: Vec<Result<Vec<i64>, Fault>>| times.into_iter().next().unwrap_or(Err(Fault::Shifted));
        Ok(Some((only(source)?, only(target)?)))
    }

    /// Which fields of a hash of one side have ended, or are about to.
    async fn due(&mut self, on_source: bool, key: &Bytes, fields: &[Bytes]) -> Result<Vec<bool>, Fault> {
        let peer = if on_source { &mut self.source } else { &mut self.target };
        let found = due_fields(peer, &[(key.clone(), fields)], self.rules.ttl_tolerance_ms).await?;
        found.into_iter().next().unwrap_or(Err(Fault::Shifted))
    }

    /// Looks elements of the target up on the source.
    async fn find_extra(
        &mut self,
        case: &Case,
        kind: &KeyType,
        names: &[Bytes],
        found: &mut Elements,
    ) -> Result<(), Fault> {
        let present: Vec<bool> = if *kind == KeyType::Hash {
            // Not HMGET: the values are of no interest here and may be large.
            let requests: Vec<Request> =
                names.iter().map(|name| Request::on("HEXISTS", &case.key).arg(name.clone())).collect();
            let replies = self.source.run(&requests).await?;
            let present = replies.into_iter().map(|reply| Ok(number(&self.source, "HEXISTS", reply)? == 1));
            present.collect::<Result<_, Fault>>()?
        } else {
            let ours = look_up(&mut self.source, kind, &case.key, names).await?;
            ours.iter().map(|v| !v.is_null() && *v != Value::Int(0)).collect()
        };
        // As above, the other way round.
        let due = if *kind == KeyType::Hash && present.contains(&false) {
            self.due(false, &case.key, names).await?
        } else {
            vec![false; names.len()]
        };
        for ((name, present), due) in names.iter().zip(present).zip(due) {
            if !present && !due {
                found.target_digest += digest(name, b"");
                found.extra.add(name, || "is on the target only".to_owned());
            }
        }
        Ok(())
    }

    /// A list, window by window.
    pub(super) async fn list(&mut self, case: &mut Case) -> Result<(), Fault> {
        let (source_len, target_len) = self.counts(case, "LLEN").await?;
        case.saw_digests(source_len, target_len);
        if source_len != target_len {
            case.find(DifferenceKind::Length, lengths_text("elements", source_len, target_len));
            return Ok(());
        }
        let mut steps = Steps::new(self.rules.chunk_bytes);
        let mut at = 0;
        let (mut source_sum, mut target_sum) = (0u128, 0u128);
        let mut first = None;
        let mut different = 0u64;
        while at < source_len {
            let request = Request::on("LRANGE", &case.key).int(at).int(at + steps.count - 1);
            let (source, target) = self.both_once(request).await?;
            let source = strings(&self.source, "LRANGE", source)?;
            let target = strings(&self.target, "LRANGE", target)?;
            if source.len() != target.len() || source.is_empty() {
                return Err(Fault::Shifted);
            }
            for (ours, theirs) in source.iter().zip(&target) {
                let (our_digest, their_digest) = (xxh3_128(ours), xxh3_128(theirs));
                source_sum = source_sum.wrapping_add(our_digest);
                target_sum = target_sum.wrapping_add(their_digest);
                case.saw(&our_digest.to_le_bytes(), &their_digest.to_le_bytes());
                case.bytes += ours.len() as u64;
                if ours != theirs {
                    different += 1;
                    first.get_or_insert(at);
                }
                at += 1;
            }
            steps.adapt(source.iter().chain(&target).map(|b| b.len() as u64).max().unwrap_or(0));
        }
        if let Some(first) = first {
            let detail = format!("{different} of {source_len} elements differ, the first at index {first}");
            if source_sum == target_sum {
                case.find(DifferenceKind::Order, format!("same elements in another order: {detail}"));
            } else {
                case.find(DifferenceKind::Element, detail);
            }
        }
        Ok(())
    }

    /// A long string, window by window.
    pub(super) async fn windows(&mut self, case: &mut Case) -> Result<(), Fault> {
        let (source_len, target_len) = self.counts(case, "STRLEN").await?;
        case.saw_digests(source_len, target_len);
        if source_len != target_len {
            case.find(DifferenceKind::Length, lengths_text("bytes", source_len, target_len));
            return Ok(());
        }
        let mut at = 0;
        while at < source_len {
            let end = (at + self.rules.chunk_bytes).min(source_len);
            let (source, target) =
                self.both_once(Request::on("GETRANGE", &case.key).int(at).int(end - 1)).await?;
            let source = string(&self.source, "GETRANGE", source)?;
            let target = string(&self.target, "GETRANGE", target)?;
            if source.len() != target.len() || source.is_empty() {
                return Err(Fault::Shifted);
            }
            case.saw(&source, &target);
            case.bytes += source.len() as u64;
            if source != target {
                case.find(DifferenceKind::Value, position_text(&source, &target, at, source_len));
                return Ok(());
            }
            at = end;
        }
        Ok(())
    }

    /// A value that only a module understands: equal if it serialises to the same bytes. If it does not,
    /// nothing is known: a module may serialise the same value in several ways.
    pub(super) async fn payload(&mut self, case: &mut Case) -> Result<(), Fault> {
        if case.verdict == Verdict::Equal {
            case.verdict = Verdict::Opaque;
        }
        let (ours, theirs) = (self.source.capabilities(), self.target.capabilities());
        let comparable = self.source.deployment().facts.dialect == self.target.deployment().facts.dialect;
        if !(comparable && ours.dump && theirs.dump && ours.memory_usage && theirs.memory_usage) {
            return Ok(());
        }
        let request = Request::on("MEMORY USAGE", &case.key).arg("SAMPLES").int(0);
        let (source, target) = self.both_once(request).await?;
        let small = |v: &Value| v.as_int().is_some_and(|n| n.unsigned_abs() <= self.rules.chunk_bytes);
        if !small(&source) || !small(&target) {
            return Ok(());
        }
        let (source, target) = self.both_once(Request::on("DUMP", &case.key)).await?;
        let source = string(&self.source, "DUMP", source)?;
        let target = string(&self.target, "DUMP", target)?;
        case.bytes += source.len() as u64;
        if case.verdict == Verdict::Opaque && body(&source) == body(&target) {
            case.verdict = Verdict::Equal;
        }
        Ok(())
    }

    async fn counts(&mut self, case: &Case, command: &'static str) -> Result<(u64, u64), Fault> {
        let (source, target) = self.both_once(Request::on(command, &case.key)).await?;
        Ok((number(&self.source, command, source)?, number(&self.target, command, target)?))
    }
}

/// A `DUMP` payload without its footer.
fn body(payload: &[u8]) -> &[u8] {
    &payload[..payload.len().saturating_sub(FOOTER_BYTES)]
}

/// What a server has by these names in a hash, set or sorted set: values, 1 or 0, scores.
async fn look_up(peer: &mut Peer, kind: &KeyType, key: &Bytes, names: &[Bytes]) -> Result<Vec<Value>, Fault> {
    let (many, one) = match kind {
        KeyType::Hash => ("HMGET", "HGET"),
        KeyType::Zset => ("ZMSCORE", "ZSCORE"),
        _ => ("SMISMEMBER", "SISMEMBER"),
    };
    if *kind == KeyType::Hash || peer.capabilities().many_elements {
        let reply = peer.one(Request::on(many, key).args(names)).await?;
        return items(peer, many, reply);
    }
    let requests: Vec<Request> = names.iter().map(|name| Request::on(one, key).arg(name.clone())).collect();
    let replies = peer.run(&requests).await?;
    replies.into_iter().map(|reply| sound(peer, one, reply)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_the_size_of_elements() {
        let mut steps = Steps::new(1 << 20);
        steps.adapt(10);
        assert_eq!(steps.count, STEP_FIRST * 4);
        steps.adapt(1 << 19);
        assert_eq!(steps.count, 2);
        steps.adapt(1 << 30);
        assert_eq!(steps.count, 1);
        for _ in 0..20 {
            steps.adapt(0);
        }
        assert_eq!(steps.count, STEP_MAX);
    }
}
