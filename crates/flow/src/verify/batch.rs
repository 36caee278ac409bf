//! Comparing many keys at once: a few round trips for a whole batch, whatever the number of keys.

use bytes::Bytes;
use whimbrel_engine::error::{Error, Result};
use whimbrel_wire::value::Value;

use super::case::{
    Case, Expiry, Fault, KeyType, Meta, Verdict, number, same_score, score, sound, string, strings,
};
use super::options::Depth;
use super::pair::{
    Pair, cardinality_command, due_fields, field_expiries, lengths_text, position_text, same_field_expiry,
    time_ms,
};
use super::peer::{Peer, Request};
use super::report::DifferenceKind;

/// Keys that begin so are not data: a copy builds large values under such names before it puts them in place.
const STAGING_PREFIX: &[u8] = b"whimbrel:staging:";

/// So much of every string is read at once, before its length is known: one command for short strings, and a
/// bound for a batch of long ones.
const HEAD_BYTES: u64 = 2 << 10;

/// Collections up to this number of elements and this size are read whole, many of them at once.
const SMALL_ELEMENTS: u64 = 128;
const SMALL_BYTES: u64 = 16 << 10;

/// A hash with more fields is not looked into for whether all of them are due.
const DUE_FIELDS_MAX: u64 = 1_000;

/// How often a key that changes while it is compared is read.
const TRIES_MAX: u32 = 5;

impl Pair {
    /// Compares `keys`. The cases come in the same order.
    ///
    /// # Errors
    /// As [`Peer::run`], and error replies that no key explains.
    pub async fn compare(&mut self, keys: &[Bytes]) -> Result<Vec<Case>> {
        let (source, target) =
            tokio::try_join!(metas(&mut self.source, keys), metas(&mut self.target, keys))?;
        let mut cases: Vec<Case> = keys.iter().cloned().map(Case::new).collect();
        for (case, (source, target)) in cases.iter_mut().zip(source.iter().zip(&target)) {
            self.judge_meta(case, source.as_ref(), target.as_ref());
        }
        self.forgive_expiring(&mut cases, &source, &target).await?;
        self.forgive_emptied(&mut cases, &source, &target).await?;
        if self.rules.depth == Depth::Full {
            self.contents(&mut cases).await?;
        }
        for case in &mut cases {
            if case.verdict == Verdict::Opaque && !case.findings.is_empty() {
                case.verdict = Verdict::Differs;
            }
        }
        Ok(cases)
    }

    /// As [`Pair::compare`]. A key that changes while it is compared is compared again, a few times.
    ///
    /// # Errors
    /// As [`Pair::compare`].
    pub async fn compare_at_rest(&mut self, keys: &[Bytes]) -> Result<Vec<Case>> {
        let mut cases = self.compare(keys).await?;
        for _ in 1..TRIES_MAX {
            let shifted: Vec<usize> =
                (0..cases.len()).filter(|&i| cases[i].verdict == Verdict::Shifted).collect();
            if shifted.is_empty() {
                break;
            }
            let again: Vec<Bytes> = shifted.iter().map(|&i| cases[i].key.clone()).collect();
            for (i, case) in shifted.into_iter().zip(self.compare(&again).await?) {
                cases[i] = case;
            }
        }
        Ok(cases)
    }

    /// Which of `keys` of the target the source does not have, by type as selected.
    ///
    /// # Errors
    /// As [`Peer::run`].
    pub async fn absent_from_source(&mut self, keys: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let requests: Vec<Request> = keys.iter().map(|key| Request::on("EXISTS", key)).collect();
        let mut absent = Vec::new();
        for (key, reply) in keys.into_iter().zip(self.source.run(&requests).await?) {
            match number(&self.source, "EXISTS", reply) {
                Ok(0) => absent.push(key),
                Ok(_) | Err(Fault::Shifted) => {}
                Err(Fault::Fatal(e)) => return Err(e),
            }
        }
        Ok(absent)
    }

    /// Existence, type and expiry.
    fn judge_meta(&self, case: &mut Case, source: Option<&Meta>, target: Option<&Meta>) {
        let selected =
            |m: &Meta| self.rules.types.is_empty() || self.rules.types.iter().any(|t| t == m.kind.name());
        let name = |m: Option<&Meta>| m.map_or("none", |m| m.kind.name()).to_owned();
        case.saw(name(source).as_bytes(), name(target).as_bytes());
        match (source, target) {
            (None, None) => case.verdict = Verdict::Gone,
            (Some(m), _) | (None, Some(m)) if !selected(m) => case.verdict = Verdict::Skipped,
            (None, Some(_)) if !self.rules.check_extra => case.verdict = Verdict::Gone,
            (None, Some(target)) => {
                case.saw_digests(0, target.expiry.map_or(0, |_| 1));
                let mut detail = format!("on the target only ({})", target.kind.name());
                if case.key.starts_with(STAGING_PREFIX) {
                    detail.push_str("; a staging key of a copy that is still running or was interrupted");
                }
                case.find(DifferenceKind::Extra, detail);
            }
            (Some(source), None) => {
                case.find(DifferenceKind::Missing, format!("on the source only ({})", source.kind.name()));
            }
            (Some(source), Some(target)) => {
                case.judge_expiry(source.expiry, target.expiry, self.rules.ttl_tolerance_ms);
                if source.kind == target.kind {
                    case.kind = Some(source.kind.clone());
                } else {
                    let detail =
                        format!("{} on the source, {} on the target", source.kind.name(), target.kind.name());
                    case.find(DifferenceKind::Type, detail);
                }
            }
        }
    }

    /// A key that one side has already expired, and that the other is about to, is equal.
    async fn forgive_expiring(
        &mut self,
        cases: &mut [Case],
        source: &[Option<Meta>],
        target: &[Option<Meta>],
    ) -> Result<()> {
        let tolerance_ms = self.rules.ttl_tolerance_ms;
        let sides = [
            (DifferenceKind::Missing, &mut self.source, source),
            (DifferenceKind::Extra, &mut self.target, target),
        ];
        for (kind, peer, metas) in sides {
            let expiring: Vec<(usize, Expiry)> = cases
                .iter()
                .zip(metas)
                .enumerate()
                .filter(|(_, (case, _))| case.findings.first().is_some_and(|f| f.kind == kind))
                .filter_map(|(i, (_, meta))| Some((i, meta.as_ref()?.expiry?)))
                .collect();
            let requests: Vec<Request> =
                expiring.iter().map(|(i, _)| Request::near("TIME", &cases[*i].key)).collect();
            let replies = peer.run(&requests).await?;
            for ((index, expiry), reply) in expiring.into_iter().zip(replies) {
                let now_ms = time_ms(&reply).ok_or_else(|| peer.unexpected("TIME"))?;
                if expiry.from_ms <= now_ms.saturating_add(tolerance_ms) {
                    cases[index].findings.clear();
                    cases[index].verdict = Verdict::Gone;
                }
            }
        }
        Ok(())
    }

    /// A hash whose fields are all due to expire equals a missing one: a server that is paused keeps it, and
    /// one server shows a field in the millisecond in which another has removed it.
    async fn forgive_emptied(
        &mut self,
        cases: &mut [Case],
        source: &[Option<Meta>],
        target: &[Option<Meta>],
    ) -> Result<()> {
        let sides = [
            (DifferenceKind::Missing, &mut self.source, source),
            (DifferenceKind::Extra, &mut self.target, target),
        ];
        for (kind, peer, metas) in sides {
            if !peer.capabilities().hash_field_ttl {
                continue;
            }
            let is_hash = |meta: &Option<Meta>| meta.as_ref().is_some_and(|meta| meta.kind == KeyType::Hash);
            let hashes: Vec<usize> = cases
                .iter()
                .zip(metas)
                .enumerate()
                .filter(|(_, (case, meta))| {
                    is_hash(meta) && case.findings.first().is_some_and(|f| f.kind == kind)
                })
                .map(|(index, _)| index)
                .collect();
            let request =
                |i: &usize| Request::on("HSCAN", &cases[*i].key).int(0).arg("COUNT").int(DUE_FIELDS_MAX);
            let requests: Vec<Request> = hashes.iter().map(request).collect();
            let replies = peer.run(&requests).await?;
            let mut shown = Vec::new();
            for (index, reply) in hashes.into_iter().zip(replies) {
                let Some([cursor, page]) = reply.as_items() else { continue };
                if cursor.as_str() == Some("0") {
                    let names = page.as_items().unwrap_or_default().iter().step_by(2);
                    let names: Vec<Bytes> = names.filter_map(|name| name.clone().into_bytes()).collect();
                    shown.push((index, names));
                }
            }
            let fields: Vec<(Bytes, &[Bytes])> =
                shown.iter().map(|(i, names)| (cases[*i].key.clone(), &names[..])).collect();
            let due = due_fields(peer, &fields, self.rules.ttl_tolerance_ms).await?;
            for ((index, _), due) in shown.iter().zip(due) {
                let case = &mut cases[*index];
                match due {
                    Ok(due) if due.iter().all(|is_due| *is_due) => {
                        case.findings.clear();
                        case.verdict = Verdict::Gone;
                    }
                    Ok(_) => {}
                    Err(fault) => closed(case, Err(fault))?,
                }
            }
        }
        Ok(())
    }

    /// The contents of all keys that both sides have with the same type.
    async fn contents(&mut self, cases: &mut [Case]) -> Result<()> {
        let mut texts = Vec::new();
        let mut collections = Vec::new();
        let mut others = Vec::new();
        for (index, case) in cases.iter().enumerate() {
            match &case.kind {
                None => {}
                Some(KeyType::String) => texts.push(index),
                Some(KeyType::List | KeyType::Set | KeyType::Zset | KeyType::Hash) => collections.push(index),
                Some(KeyType::Stream | KeyType::Module(_)) => others.push(index),
            }
        }
        let long = self.heads(cases, &texts).await?;
        self.long_strings(cases, &long).await?;
        others.extend(self.small_collections(cases, &collections).await?);
        for index in others {
            self.settle_one(&mut cases[index]).await?;
        }
        self.recheck_gone(cases, &texts).await
    }

    /// A string that expired, or was deleted, since it was seen reads as an empty one: that is no difference
    /// of values.
    async fn recheck_gone(&mut self, cases: &mut [Case], texts: &[usize]) -> Result<()> {
        let differ: Vec<usize> =
            texts.iter().copied().filter(|&i| cases[i].verdict == Verdict::Differs).collect();
        let requests: Vec<Request> = differ.iter().map(|&i| Request::on("EXISTS", &cases[i].key)).collect();
        let (source, target) = self.both(&requests).await?;
        for ((index, source), target) in differ.into_iter().zip(source).zip(target) {
            if [&source, &target].into_iter().any(|is_there| is_there.as_int() == Some(0)) {
                cases[index].findings.clear();
                cases[index].verdict = Verdict::Shifted;
            }
        }
        Ok(())
    }

    /// Compares one key by itself, in chunks.
    async fn settle_one(&mut self, case: &mut Case) -> Result<()> {
        let outcome = match case.kind.clone() {
            Some(KeyType::String) => self.windows(case).await,
            Some(KeyType::List) => self.list(case).await,
            Some(KeyType::Set | KeyType::Zset | KeyType::Hash) => self.unordered(case).await,
            Some(KeyType::Stream) => self.stream(case).await,
            Some(KeyType::Module(name)) => self.module(case, &name).await,
            None => Ok(()),
        };
        closed(case, outcome)
    }

    /// The first bytes of all strings: all there is to most of them. Returns those that are longer.
    async fn heads(&mut self, cases: &mut [Case], indices: &[usize]) -> Result<Vec<usize>> {
        let mut long = Vec::new();
        let at_once = usize::try_from(self.rules.chunk_bytes / HEAD_BYTES).unwrap_or(usize::MAX).max(1);
        for part in indices.chunks(at_once) {
            let request = |i: &usize| Request::on("GETRANGE", &cases[*i].key).int(0).int(HEAD_BYTES - 1);
            let requests: Vec<Request> = part.iter().map(request).collect();
            let (source, target) = self.both(&requests).await?;
            for ((&index, source), target) in part.iter().zip(source).zip(target) {
                let case = &mut cases[index];
                let read = string(&self.source, "GETRANGE", source)
                    .and_then(|s| Ok((s, string(&self.target, "GETRANGE", target)?)));
                let (source, target) = match read {
                    Ok(read) => read,
                    Err(fault) => {
                        closed(case, Err(fault))?;
                        continue;
                    }
                };
                if source.len() as u64 == HEAD_BYTES || target.len() as u64 == HEAD_BYTES {
                    long.push(index);
                } else {
                    judge_strings(case, &source, &target);
                }
            }
        }
        Ok(long)
    }

    /// Strings that are longer than the head that was read: by length first, then whole if they are short
    /// enough, several at a time; longer ones in windows.
    async fn long_strings(&mut self, cases: &mut [Case], indices: &[usize]) -> Result<()> {
        let requests: Vec<Request> = indices.iter().map(|&i| Request::on("STRLEN", &cases[i].key)).collect();
        let (source, target) = self.both(&requests).await?;
        let mut whole = Vec::new();
        for ((&index, source), target) in indices.iter().zip(source).zip(target) {
            let case = &mut cases[index];
            let lengths = number(&self.source, "STRLEN", source)
                .and_then(|s| Ok((s, number(&self.target, "STRLEN", target)?)));
            match lengths {
                Err(fault) => closed(case, Err(fault))?,
                Ok((source, target)) if source != target => {
                    case.saw_digests(source, target);
                    case.find(DifferenceKind::Length, lengths_text("bytes", source, target));
                }
                Ok((length, _)) if length <= self.rules.chunk_bytes => whole.push((index, length)),
                Ok(_) => self.settle_one(case).await?,
            }
        }
        for part in parts_of(&whole, self.rules.chunk_bytes) {
            let requests: Vec<Request> =
                part.iter().map(|(i, _)| Request::on("GET", &cases[*i].key)).collect();
            let (source, target) = self.both(&requests).await?;
            for ((&(index, _), source), target) in part.iter().zip(source).zip(target) {
                let case = &mut cases[index];
                let read = string(&self.source, "GET", source)
                    .and_then(|s| Ok((s, string(&self.target, "GET", target)?)));
                match read {
                    Ok((source, target)) => judge_strings(case, &source, &target),
                    Err(fault) => closed(case, Err(fault))?,
                }
            }
        }
        Ok(())
    }

    /// Collections that are small on both sides, read whole and compared as values, so that the order in
    /// which a server keeps them does not matter. Returns those that need a closer look.
    async fn small_collections(&mut self, cases: &mut [Case], indices: &[usize]) -> Result<Vec<usize>> {
        let mut deep = Vec::new();
        let mut small = Vec::new();
        let can_size = self.source.capabilities().memory_usage && self.target.capabilities().memory_usage;
        if !can_size {
            return Ok(indices.to_vec());
        }
        let requests: Vec<Request> = indices
            .iter()
            .map(|&i| Request::on(cardinality_command(cases[i].kind.as_ref()), &cases[i].key))
            .collect();
        let (source, target) = self.both(&requests).await?;
        for (((&index, request), source), target) in indices.iter().zip(&requests).zip(source).zip(target) {
            let counts = number(&self.source, request.command(), source)
                .and_then(|s| Ok((s, number(&self.target, request.command(), target)?)));
            match counts {
                Ok((source, target)) if source == target && source <= SMALL_ELEMENTS => small.push(index),
                Ok(_) => deep.push(index),
                Err(fault) => closed(&mut cases[index], Err(fault))?,
            }
        }
        // All elements are looked at: few enough, and an estimate could miss the large one.
        let requests: Vec<Request> =
            small.iter().map(|&i| Request::on("MEMORY USAGE", &cases[i].key).arg("SAMPLES").int(0)).collect();
        let (source, target) = self.both(&requests).await?;
        let mut sized = Vec::new();
        for ((index, source), target) in small.into_iter().zip(source).zip(target) {
            let size = |reply: &Value| reply.as_int().and_then(|n| u64::try_from(n).ok());
            match size(&source).max(size(&target)) {
                // A user who may not ask for the size gets the same result in smaller steps.
                Some(bytes) if bytes <= SMALL_BYTES && size(&source).is_some() && size(&target).is_some() => {
                    sized.push((index, bytes));
                }
                _ => deep.push(index),
            }
        }
        for part in parts_of(&sized, self.rules.chunk_bytes) {
            deep.extend(self.whole_collections(cases, part).await?);
        }
        Ok(deep)
    }

    async fn whole_collections(&mut self, cases: &mut [Case], part: &[(usize, u64)]) -> Result<Vec<usize>> {
        let mut deep = Vec::new();
        let mut hashes = Vec::new();
        let requests: Vec<Request> = part.iter().map(|(i, _)| whole_request(&cases[*i])).collect();
        let (source, target) = self.both(&requests).await?;
        let field_ttl =
            self.source.capabilities().hash_field_ttl || self.target.capabilities().hash_field_ttl;
        for (((&(index, _), request), source), target) in part.iter().zip(&requests).zip(source).zip(target) {
            let case = &mut cases[index];
            let command = request.command();
            let read = strings(&self.source, command, source)
                .and_then(|s| Ok((s, strings(&self.target, command, target)?)));
            let (source, target) = match read {
                Ok(read) => read,
                Err(fault) => {
                    closed(case, Err(fault))?;
                    continue;
                }
            };
            let bytes: usize = source.iter().map(Bytes::len).sum();
            if !same_collection(case.kind.as_ref(), &source, &target) {
                deep.push(index);
            } else if case.kind == Some(KeyType::Hash) && field_ttl && !source.is_empty() {
                hashes.push((index, source.into_iter().step_by(2).collect::<Vec<_>>(), bytes));
            } else {
                case.bytes += bytes as u64;
            }
        }
        let fields: Vec<(Bytes, &[Bytes])> =
            hashes.iter().map(|(i, fields, _)| (cases[*i].key.clone(), &fields[..])).collect();
        let (source, target) = tokio::try_join!(
            field_expiries(&mut self.source, &fields),
            field_expiries(&mut self.target, &fields)
        )?;
        for (((index, _, bytes), source), target) in hashes.iter().zip(source).zip(target) {
            let near = |(s, t): (&i64, &i64)| same_field_expiry(*s, *t, self.rules.ttl_tolerance_ms);
            match (source, target) {
                (Ok(source), Ok(target)) if source.iter().zip(&target).all(near) => {
                    cases[*index].bytes += *bytes as u64;
                }
                (Ok(_), Ok(_)) => deep.push(*index),
                (Err(fault), _) | (_, Err(fault)) => closed(&mut cases[*index], Err(fault))?,
            }
        }
        Ok(deep)
    }
}

/// Ends a case that could not be read to the end.
fn closed(case: &mut Case, outcome: Result<(), Fault>) -> Result<()> {
    match outcome {
        Ok(()) => Ok(()),
        Err(Fault::Shifted) => {
            case.verdict = Verdict::Shifted;
            Ok(())
        }
        Err(Fault::Fatal(e)) => Err(e),
    }
}

/// Consecutive items whose sizes add up to `bytes_max` at most, or are one item.
fn parts_of(sized: &[(usize, u64)], bytes_max: u64) -> Vec<&[(usize, u64)]> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut bytes = 0;
    for (at, (_, size)) in sized.iter().enumerate() {
        if at > start && bytes + size > bytes_max {
            parts.push(&sized[start..at]);
            start = at;
            bytes = 0;
        }
        bytes += size;
    }
    if start < sized.len() {
        parts.push(&sized[start..]);
    }
    parts
}

fn judge_strings(case: &mut Case, source: &[u8], target: &[u8]) {
    case.bytes += source.len() as u64;
    if source == target || same_registers(source, target) {
        return;
    }
    case.saw(source, target);
    if source.len() == target.len() {
        case.find(DifferenceKind::Value, position_text(source, target, 0, source.len() as u64));
    } else {
        case.find(DifferenceKind::Length, lengths_text("bytes", source.len() as u64, target.len() as u64));
    }
}

/// Whether these are HyperLogLogs that count the same, if one side has not worked out its count: `PFCOUNT`
/// only reads, and keeps in the value what it has worked out.
fn same_registers(source: &[u8], target: &[u8]) -> bool {
    /// A magic with the encoding and three unused bytes; whether the count is unknown, which the highest bit
    /// of eight bytes says; and the registers.
    fn parts(value: &[u8]) -> Option<(&[u8], bool, &[u8])> {
        let (head, rest) = value.split_at_checked(8)?;
        let (count, registers) = rest.split_at_checked(8)?;
        let is_one = head.starts_with(b"HYLL") && head[4] <= 1;
        is_one.then_some((head, count[7] & 0x80 != 0, registers))
    }
    match (parts(source), parts(target)) {
        (Some((head, is_unknown, registers)), Some(other)) => {
            (is_unknown || other.1) && head == other.0 && registers == other.2
        }
        _ => false,
    }
}

fn whole_request(case: &Case) -> Request {
    match case.kind {
        Some(KeyType::List) => Request::on("LRANGE", &case.key).int(0).arg("-1"),
        Some(KeyType::Set) => Request::on("SMEMBERS", &case.key),
        Some(KeyType::Zset) => Request::on("ZRANGE", &case.key).int(0).arg("-1").arg("WITHSCORES"),
        _ => Request::on("HGETALL", &case.key),
    }
}

/// Whether two collections, read whole, hold the same.
fn same_collection(kind: Option<&KeyType>, source: &[Bytes], target: &[Bytes]) -> bool {
    if source.len() != target.len() {
        return false;
    }
    let pairs = |flat: &[Bytes]| {
        let mut pairs: Vec<(Bytes, Bytes)> =
            flat.chunks_exact(2).map(|p| (p[0].clone(), p[1].clone())).collect();
        pairs.sort_unstable();
        pairs
    };
    match kind {
        Some(KeyType::Set) => {
            let sorted = |flat: &[Bytes]| {
                let mut members = flat.to_vec();
                members.sort_unstable();
                members
            };
            source == target || sorted(source) == sorted(target)
        }
        Some(KeyType::Zset) => source.chunks_exact(2).zip(target.chunks_exact(2)).all(|(s, t)| {
            let score = |b: &Bytes| score(&Value::Bulk(b.clone()));
            s[0] == t[0] && matches!((score(&s[1]), score(&t[1])), (Some(s), Some(t)) if same_score(s, t))
        }),
        Some(KeyType::Hash) => source == target || pairs(source) == pairs(target),
        _ => source == target,
    }
}

/// What `PEXPIRETIME` and `PTTL` say of a key that does not exist.
const NO_KEY: i64 = -2;

/// How often a server without `PEXPIRETIME` is asked when a key expires, if its clock goes on meanwhile.
const READS_MAX: usize = 8;

/// Asks for type and expiry of `keys`.
async fn metas(peer: &mut Peer, keys: &[Bytes]) -> Result<Vec<Option<Meta>>> {
    let mut metas = metas_once(peer, keys).await?;
    for _ in 1..READS_MAX {
        let is_unclear =
            |meta: &Option<Meta>| meta.as_ref().and_then(|m| m.expiry).is_some_and(|e| e.from_ms != e.to_ms);
        let unclear: Vec<usize> = (0..keys.len()).filter(|&i| is_unclear(&metas[i])).collect();
        if unclear.is_empty() {
            break;
        }
        let some: Vec<Bytes> = unclear.iter().map(|&i| keys[i].clone()).collect();
        for (i, meta) in unclear.into_iter().zip(metas_once(peer, &some).await?) {
            metas[i] = meta;
        }
    }
    Ok(metas)
}

async fn metas_once(peer: &mut Peer, keys: &[Bytes]) -> Result<Vec<Option<Meta>>> {
    let exact = peer.capabilities().pexpiretime;
    let mut requests = Vec::with_capacity(keys.len() * if exact { 2 } else { 4 });
    for key in keys {
        requests.push(Request::on("TYPE", key));
        if exact {
            requests.push(Request::on("PEXPIRETIME", key));
        } else {
            // The remaining time was counted at some moment between the two times.
            requests.extend([
                Request::near("TIME", key),
                Request::on("PTTL", key),
                Request::near("TIME", key),
            ]);
        }
    }
    let mut replies = peer.run(&requests).await?.into_iter();
    let mut metas = Vec::with_capacity(keys.len());
    for _ in keys {
        let mut next = || replies.next().ok_or_else(|| Error::own("compare", "a reply is missing"));
        let kind = fatal(sound(peer, "TYPE", next()?), peer, "TYPE")?;
        let kind = KeyType::of(kind.as_str().ok_or_else(|| peer.unexpected("TYPE"))?);
        // It may go between the two questions: then it is not there.
        let (is_there, expiry) = if exact {
            let at = fatal(sound(peer, "PEXPIRETIME", next()?), peer, "PEXPIRETIME")?;
            let at = at.as_int().ok_or_else(|| peer.unexpected("PEXPIRETIME"))?;
            (at != NO_KEY, u64::try_from(at).ok().map(|at| Expiry { from_ms: at, to_ms: at }))
        } else {
            let (before, left, after) = (next()?, next()?, next()?);
            let left = fatal(sound(peer, "PTTL", left), peer, "PTTL")?;
            let left = left.as_int().ok_or_else(|| peer.unexpected("PTTL"))?;
            let time = |reply: &Value| time_ms(reply).ok_or_else(|| peer.unexpected("TIME"));
            let (before, after) = (time(&before)?, time(&after)?);
            let expiry = u64::try_from(left)
                .ok()
                .map(|left| Expiry { from_ms: before.min(after) + left, to_ms: before.max(after) + left });
            (left != NO_KEY, expiry)
        };
        metas.push(kind.filter(|_| is_there).map(|kind| Meta { kind, expiry }));
    }
    Ok(metas)
}

/// For commands that take keys of any type, and that cannot shift.
fn fatal<T>(outcome: Result<T, Fault>, peer: &Peer, command: &'static str) -> Result<T> {
    outcome.map_err(|fault| match fault {
        Fault::Fatal(e) => e,
        Fault::Shifted => peer.unexpected(command),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(items: &[&'static str]) -> Vec<Bytes> {
        items.iter().map(|s| Bytes::from_static(s.as_bytes())).collect()
    }

    #[test]
    fn a_count_that_is_not_known_is_no_difference() {
        let value = |count: &[u8; 8], registers: &[u8]| [b"HYLL\0\0\0\0", &count[..], registers].concat();
        let (unknown, five, six) =
            ([0, 0, 0, 0, 0, 0, 0, 0x80], [5, 0, 0, 0, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0, 0, 0]);
        assert!(same_registers(&value(&unknown, b"r"), &value(&five, b"r")));
        assert!(same_registers(&value(&six, b"r"), &value(&unknown, b"r")));
        assert!(!same_registers(&value(&five, b"r"), &value(&six, b"r")));
        assert!(!same_registers(&value(&unknown, b"r"), &value(&five, b"q")));
        assert!(!same_registers(&value(&unknown, b"r"), b"HYLL"));
        assert!(!same_registers(b"a string as long", b"another, as long"));
    }

    #[test]
    fn collections_are_compared_as_values() {
        let same = |kind: KeyType, a: &[&'static str], b: &[&'static str]| {
            same_collection(Some(&kind), &list(a), &list(b))
        };
        assert!(same(KeyType::Set, &["a", "b"], &["b", "a"]));
        assert!(!same(KeyType::Set, &["a", "b"], &["b", "c"]));
        assert!(same(KeyType::Hash, &["a", "1", "b", "2"], &["b", "2", "a", "1"]));
        assert!(!same(KeyType::Hash, &["a", "1", "b", "2"], &["b", "1", "a", "2"]));
        assert!(!same(KeyType::List, &["a", "b"], &["b", "a"]));
        assert!(same(KeyType::Zset, &["a", "1", "b", "0.1"], &["a", "1.0", "b", "1e-1"]));
        assert!(!same(KeyType::Zset, &["a", "1"], &["a", "1.0000000000000002"]));
        assert!(!same(KeyType::List, &["a"], &["a", "b"]));
    }

    #[test]
    fn parts_stay_within_the_bound() {
        let sized = [(0, 5), (1, 5), (2, 1), (3, 100), (4, 1)];
        let parts: Vec<Vec<usize>> =
            parts_of(&sized, 10).iter().map(|p| p.iter().map(|(i, _)| *i).collect()).collect();
        assert_eq!(parts, [vec![0, 1], vec![2], vec![3], vec![4]]);
        assert!(parts_of(&[], 10).is_empty());
    }
}
