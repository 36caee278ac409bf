//! Comparing streams: entries, ids, groups, consumers and pending entries.

use std::collections::BTreeMap;

use bytes::Bytes;
use whimbrel_wire::value::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::case::{Case, Fault, items, sound};
use super::deep::Steps;
use super::pair::{Pair, lengths_text};
use super::peer::{Peer, Request};
use super::report::{DifferenceKind, quoted};

/// The numbers of a stream that outlive its entries. Servers before 7.0 know the first only.
const STREAM_FIELDS: [&str; 3] = ["last-generated-id", "entries-added", "max-deleted-entry-id"];

/// The last id there can be: nothing comes after it, and the servers refuse to look.
const ID_MAX: (u64, u64) = (u64::MAX, u64::MAX);

/// What a group is, apart from its consumers and pending entries.
#[derive(Debug, PartialEq)]
struct Group {
    last_delivered_id: Option<Value>,
    /// `None` if the server does not report it; null if it does not know.
    entries_read: Option<Value>,
}

impl Pair {
    /// A stream.
    pub(super) async fn stream(&mut self, case: &mut Case) -> Result<(), Fault> {
        let source_len;
        let target_len;
        {
            let command = "XINFO STREAM";
            let (source, target) = self.both_once(Request::on(command, &case.key)).await?;
            source_len = length(&self.source, &source)?;
            target_len = length(&self.target, &target)?;
            for field in STREAM_FIELDS {
                if let (Some(ours), Some(theirs)) = (source.field(field), target.field(field)) {
                    case.saw(&text(ours), &text(theirs));
                    if text(ours) != text(theirs) {
                        let show = |v: &Value| String::from_utf8_lossy(&text(v)).into_owned();
                        let detail = format!(
                            "{field} is {} on the source, {} on the target",
                            show(ours),
                            show(theirs)
                        );
                        case.find(DifferenceKind::StreamMeta, detail);
                    }
                }
            }
        }
        case.saw_digests(source_len, target_len);
        if !self.entries(case).await? && source_len != target_len {
            case.find(DifferenceKind::Length, lengths_text("entries", source_len, target_len));
        }
        for name in self.groups(case).await? {
            self.consumers(case, &name).await?;
            self.pending(case, &name).await?;
        }
        Ok(())
    }

    /// All entries, up to the first that differs. True if one does.
    async fn entries(&mut self, case: &mut Case) -> Result<bool, Fault> {
        let command = "XRANGE";
        let mut steps = Steps::new(self.rules.chunk_bytes);
        let mut start = Bytes::from_static(b"-");
        loop {
            let request =
                Request::on(command, &case.key).arg(start.clone()).arg("+").arg("COUNT").int(steps.count);
            let (source, target) = self.both_once(request).await?;
            let source = items(&self.source, command, source)?;
            let target = items(&self.target, command, target)?;
            case.bytes += source.iter().map(weight).sum::<u64>();
            let sums = |entries: &[Value]| entries.iter().fold(0, mixed);
            case.saw_digests(sums(&source), sums(&target));
            if let Some(detail) =
                first_difference(&source, &target, "entry", |_| "has other fields".to_owned())
            {
                case.find(DifferenceKind::StreamEntry, detail);
                return Ok(true);
            }
            let Some(last) = source.last().filter(|last| id_of(last) != Some(ID_MAX)) else {
                return Ok(false);
            };
            start = after(last).ok_or_else(|| self.source.unexpected(command))?;
            steps.adapt(source.iter().map(weight).max().unwrap_or(0));
        }
    }

    /// The groups by name. Returns those that both sides have.
    async fn groups(&mut self, case: &mut Case) -> Result<Vec<Bytes>, Fault> {
        let command = "XINFO GROUPS";
        let (source, target) = self.both_once(Request::on(command, &case.key)).await?;
        let ours = by_name(&self.source, command, source)?;
        let mut theirs = by_name(&self.target, command, target)?;
        let mut common = Vec::new();
        for (name, ours) in ours {
            let ours = group(&ours);
            case.source_state = mix_text(case.source_state, &name, &format!("{ours:?}"));
            let Some(theirs) = theirs.remove(&name) else {
                case.find(DifferenceKind::Group, format!("group {} is on the source only", quoted(&name)));
                continue;
            };
            let theirs = group(&theirs);
            case.target_state = mix_text(case.target_state, &name, &format!("{theirs:?}"));
            if ours.last_delivered_id != theirs.last_delivered_id {
                let detail = format!("group {} has another last-delivered-id", quoted(&name));
                case.find(DifferenceKind::Group, detail);
            }
            if let (Some(ours), Some(theirs)) = (&ours.entries_read, &theirs.entries_read)
                && ours != theirs
            {
                let show = |v: &Value| v.as_int().map_or("unknown".to_owned(), |n| n.to_string());
                let detail = format!(
                    "group {} has entries-read {} on the source, {} on the target",
                    quoted(&name),
                    show(ours),
                    show(theirs)
                );
                case.find(DifferenceKind::Group, detail);
            }
            common.push(Bytes::copy_from_slice(&name));
        }
        for (name, theirs) in theirs {
            case.target_state = mix_text(case.target_state, &name, &format!("{:?}", group(&theirs)));
            case.find(DifferenceKind::Group, format!("group {} is on the target only", quoted(&name)));
        }
        Ok(common)
    }

    /// The names of a group's consumers. Their idle times are another matter on each server.
    async fn consumers(&mut self, case: &mut Case, group: &Bytes) -> Result<(), Fault> {
        let command = "XINFO CONSUMERS";
        let (source, target) = self.both_once(Request::on(command, &case.key).arg(group.clone())).await?;
        let ours = by_name(&self.source, command, source)?;
        let theirs = by_name(&self.target, command, target)?;
        for name in ours.keys() {
            case.source_state = mix_text(case.source_state, name, "");
        }
        for name in theirs.keys() {
            case.target_state = mix_text(case.target_state, name, "");
        }
        let sides = [("source", &ours, &theirs), ("target", &theirs, &ours)];
        for (side, here, there) in sides {
            let mut only = here.keys().filter(|name| !there.contains_key(*name));
            if let Some(first) = only.next() {
                let more = only.count();
                let more = if more == 0 { String::new() } else { format!(", and {more} more") };
                let detail = format!(
                    "consumer {} of group {} is on the {side} only{more}",
                    quoted(first),
                    quoted(group)
                );
                case.find(DifferenceKind::Consumer, detail);
            }
        }
        Ok(())
    }

    /// A group's pending entries, up to the first that differs: id, owner, delivery count.
    async fn pending(&mut self, case: &mut Case, group: &Bytes) -> Result<(), Fault> {
        let command = "XPENDING";
        let mut steps = Steps::new(self.rules.chunk_bytes);
        let mut start = Bytes::from_static(b"-");
        loop {
            let request = Request::on(command, &case.key).arg(group.clone()).arg(start.clone());
            let (source, target) = self.both_once(request.arg("+").int(steps.count)).await?;
            let source = without_idle(items(&self.source, command, source)?);
            let target = without_idle(items(&self.target, command, target)?);
            case.bytes += source.iter().map(weight).sum::<u64>();
            let sums = |entries: &[Value]| entries.iter().fold(0, mixed);
            case.saw_digests(sums(&source), sums(&target));
            let what = format!("pending entry of group {}:", quoted(group));
            let how = |(ours, theirs): (&Value, &Value)| {
                let part = |v: &Value, i: usize| v.as_items().and_then(|v| v.get(i)).cloned();
                if part(ours, 1) == part(theirs, 1) {
                    "has another delivery count".to_owned()
                } else {
                    "has another owner".to_owned()
                }
            };
            if let Some(detail) = first_difference(&source, &target, &what, how) {
                case.find(DifferenceKind::Pending, detail);
                return Ok(());
            }
            let Some(last) = source.last().filter(|last| id_of(last) != Some(ID_MAX)) else { return Ok(()) };
            start = after(last).ok_or_else(|| self.source.unexpected(command))?;
            steps.adapt(source.iter().map(weight).max().unwrap_or(0));
        }
    }
}

fn length(peer: &Peer, info: &Value) -> Result<u64, Fault> {
    let length = info.field("length").and_then(Value::as_int).and_then(|n| u64::try_from(n).ok());
    length.ok_or_else(|| Fault::Fatal(peer.unexpected("XINFO STREAM")))
}

fn group(info: &Value) -> Group {
    Group {
        last_delivered_id: info.field("last-delivered-id").cloned(),
        entries_read: info.field("entries-read").cloned(),
    }
}

/// A list of descriptions, each with its name.
fn by_name(peer: &Peer, command: &'static str, reply: Value) -> Result<BTreeMap<Bytes, Value>, Fault> {
    let mut named = BTreeMap::new();
    for description in items(peer, command, sound(peer, command, reply)?)? {
        let name = description.field("name").and_then(Value::as_bytes).cloned();
        named.insert(name.ok_or_else(|| peer.unexpected(command))?, description);
    }
    Ok(named)
}

/// The id of an entry, or of a pending entry: its first part.
fn id_of(entry: &Value) -> Option<(u64, u64)> {
    let id = entry.as_items()?.first()?.as_str()?;
    let (ms, seq) = id.split_once('-')?;
    Some((ms.parse().ok()?, seq.parse().ok()?))
}

/// The start of the window after `entry`.
fn after(entry: &Value) -> Option<Bytes> {
    // Not `(` and the id of the entry, which servers before Redis 6.2 do not know.
    let (ms, seq) = id_of(entry)?;
    let (ms, seq) = match seq.checked_add(1) {
        Some(seq) => (ms, seq),
        None => (ms.checked_add(1)?, 0),
    };
    Some(Bytes::from(format!("{ms}-{seq}")))
}

/// The first difference between two windows that start at the same id and are as long as each other, or as
/// what is left.
fn first_difference(
    source: &[Value],
    target: &[Value],
    what: &str,
    how: impl FnOnce((&Value, &Value)) -> String,
) -> Option<String> {
    let at = source.iter().zip(target).position(|(s, t)| s != t).unwrap_or(source.len().min(target.len()));
    let show = |entry: &Value| id_of(entry).map_or("?".to_owned(), |(ms, seq)| format!("{ms}-{seq}"));
    match (source.get(at), target.get(at)) {
        (None, None) => None,
        (Some(ours), Some(theirs)) if id_of(ours) == id_of(theirs) => {
            Some(format!("{what} {} {}", show(ours), how((ours, theirs))))
        }
        (Some(ours), theirs) if theirs.is_none_or(|theirs| id_of(ours) < id_of(theirs)) => {
            Some(format!("{what} {} is on the source only", show(ours)))
        }
        (_, Some(theirs)) => Some(format!("{what} {} is on the target only", show(theirs))),
        (Some(_), None) => None,
    }
}

/// Pending entries without the time since their delivery.
fn without_idle(entries: Vec<Value>) -> Vec<Value> {
    let strip = |entry: Value| match entry {
        Value::Array(mut parts) if parts.len() > 2 => {
            parts.remove(2);
            Value::Array(parts)
        }
        other => other,
    };
    entries.into_iter().map(strip).collect()
}

/// The bytes in a value.
pub(super) fn weight(value: &Value) -> u64 {
    match value {
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Int(_) => 8,
        other => other.as_bytes().map_or(0, |b| b.len() as u64),
    }
}

/// A string or a number as text.
fn text(value: &Value) -> Bytes {
    match value {
        Value::Int(n) => Bytes::from(n.to_string()),
        other => other.as_bytes().cloned().unwrap_or_default(),
    }
}

/// A digest of `value`, on top of `state`.
pub(super) fn mixed(state: u64, value: &Value) -> u64 {
    match value {
        Value::Array(items) => items.iter().fold(state.wrapping_add(items.len() as u64), mixed),
        other => mix_text(state, &text(other), ""),
    }
}

fn mix_text(state: u64, name: &[u8], rest: &str) -> u64 {
    let state = xxh3_64_with_seed(name, state);
    xxh3_64_with_seed(rest.as_bytes(), state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &'static str, field: &'static str) -> Value {
        let bulk = |s: &'static str| Value::Bulk(Bytes::from_static(s.as_bytes()));
        Value::Array(vec![bulk(id), Value::Array(vec![bulk(field), bulk("v")])])
    }

    fn difference(source: &[Value], target: &[Value]) -> Option<String> {
        first_difference(source, target, "entry", |_| "has other fields".to_owned())
    }

    #[test]
    fn the_first_difference_names_the_side() {
        let (a, b, c) = (entry("1-1", "f"), entry("1-2", "f"), entry("9-1", "f"));
        assert_eq!(difference(&[a.clone(), b.clone()], &[a.clone(), b.clone()]), None);
        assert_eq!(
            difference(&[a.clone(), b.clone()], &[a.clone(), c.clone()]).as_deref(),
            Some("entry 1-2 is on the source only")
        );
        assert_eq!(
            difference(&[a.clone(), c.clone()], &[a.clone(), b.clone()]).as_deref(),
            Some("entry 1-2 is on the target only")
        );
        assert_eq!(
            difference(&[a.clone(), c.clone()], std::slice::from_ref(&a)).as_deref(),
            Some("entry 9-1 is on the source only")
        );
        assert_eq!(
            difference(std::slice::from_ref(&a), &[a.clone(), c]).as_deref(),
            Some("entry 9-1 is on the target only")
        );
        assert_eq!(difference(&[a], &[entry("1-1", "g")]).as_deref(), Some("entry 1-1 has other fields"));
        assert_eq!(difference(&[b], &[]).as_deref(), Some("entry 1-2 is on the source only"));
    }

    #[test]
    fn idle_times_are_left_out() {
        let pending = Value::Array(vec![Value::Int(1), Value::Int(2), Value::Int(3), Value::Int(4)]);
        assert_eq!(
            without_idle(vec![pending]),
            [Value::Array(vec![Value::Int(1), Value::Int(2), Value::Int(4)])]
        );
    }
}
