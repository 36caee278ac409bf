//! Comparing values of modules: documents, time series and filters by what they hold, others by their dumps.
//!
//! A module may serialise the same value in several ways, and does so differently from version to version.

use bytes::Bytes;
use serde_json::Value as Json;
use whimbrel_engine::error::{Code, ServerError};
use whimbrel_wire::value::Value;

use super::case::{Case, Fault, score};
use super::pair::{Pair, lengths_text, position_text};
use super::peer::{Peer, Request};
use super::report::DifferenceKind;
use super::vectors::VECTOR_SET;

/// Larger documents are not read whole, as there is no other way to read them.
const DOCUMENT_BYTES_MAX: u64 = 64 << 20;

/// Samples of a series that are read at once.
const SAMPLES: u64 = 1_000;

/// What is compared of a series besides its samples. Its compaction rules are not: no copy has them before
/// somebody creates them again.
const SERIES_FIELDS: [(&str, &str); 3] =
    [("retentionTime", "retention"), ("duplicatePolicy", "policy for duplicates"), ("labels", "labels")];

impl Pair {
    /// A value of a type that not every server has.
    pub(super) async fn module(&mut self, case: &mut Case, type_name: &str) -> Result<(), Fault> {
        let is_compared = match type_name {
            VECTOR_SET => return self.vector_set(case).await,
            "ReJSON-RL" => self.document(case).await?,
            "TSDB-TYPE" => self.series(case).await?,
            "MBbloom--" => self.filter(case, "BF.SCANDUMP").await?,
            "MBbloomCF" => self.filter(case, "CF.SCANDUMP").await?,
            "TopK-TYPE" => self.list_of_most_frequent(case).await?,
            _ => false,
        };
        if is_compared { Ok(()) } else { self.payload(case).await }
    }

    /// Asks both sides; `None` if one of them does not let us.
    async fn ask_modules(&mut self, request: Request) -> Result<Option<(Value, Value)>, Fault> {
        let command = request.command();
        let requests = [request];
        let (mut source, mut target) = self.both(&requests).await?;
        let (Some(source), Some(target)) = (source.pop(), target.pop()) else { return Err(Fault::Shifted) };
        for (peer, reply) in [(&self.source, &source), (&self.target, &target)] {
            match ServerError::of(reply) {
                None => {}
                Some(e) if matches!(e.code, Code::NoPermission | Code::UnknownCommand) => return Ok(None),
                Some(e) if e.code == Code::WrongType || is_about_no_key(&e.text) => {
                    return Err(Fault::Shifted);
                }
                Some(e) => return Err(Fault::Fatal(peer.refusal(command, e))),
            }
        }
        Ok(Some((source, target)))
    }

    async fn document(&mut self, case: &mut Case) -> Result<bool, Fault> {
        let request = Request::on("MEMORY USAGE", &case.key).arg("SAMPLES").int(0);
        let small = |v: &Value| v.as_int().is_some_and(|n| n.unsigned_abs() <= DOCUMENT_BYTES_MAX);
        match self.ask_modules(request).await? {
            Some((source, target)) if small(&source) && small(&target) => {}
            _ => return Ok(false),
        }
        let command = "JSON.GET";
        let Some((source, target)) = self.ask_modules(Request::on(command, &case.key)).await? else {
            return Ok(false);
        };
        let (source, target) = (text(&self.source, command, source)?, text(&self.target, command, target)?);
        case.bytes += source.len() as u64;
        case.saw(&source, &target);
        if source == target {
            return Ok(true);
        }
        match (serde_json::from_slice::<Json>(&source), serde_json::from_slice::<Json>(&target)) {
            (Ok(ours), Ok(theirs)) => {
                if let Some(at) = first_difference(&ours, &theirs, "$") {
                    case.find(DifferenceKind::Value, format!("the documents differ at {at}"));
                }
            }
            _ => {
                let length = source.len() as u64;
                case.find(DifferenceKind::Value, position_text(&source, &target, 0, length));
            }
        }
        Ok(true)
    }

    async fn series(&mut self, case: &mut Case) -> Result<bool, Fault> {
        let Some((source, target)) = self.ask_modules(Request::on("TS.INFO", &case.key)).await? else {
            return Ok(false);
        };
        for (field, called) in SERIES_FIELDS {
            let (ours, theirs) = (source.field(field), target.field(field));
            if ours != theirs {
                case.saw_digests(0, 1);
                case.find(DifferenceKind::Value, format!("the {called} of the series differ"));
            }
        }
        let mut from = "-".to_owned();
        loop {
            let request = Request::on("TS.RANGE", &case.key).arg(from).arg("+").arg("COUNT").int(SAMPLES);
            let Some((source, target)) = self.ask_modules(request).await? else { return Ok(false) };
            let (ours, theirs) = (samples(&self.source, source)?, samples(&self.target, target)?);
            case.bytes += 16 * ours.len() as u64;
            for (at_ms, value) in &ours {
                case.saw(&[at_ms.to_le_bytes(), value.to_le_bytes()].concat(), &[]);
            }
            for (at_ms, value) in &theirs {
                case.saw(&[], &[at_ms.to_le_bytes(), value.to_le_bytes()].concat());
            }
            let differs = ours.iter().zip(&theirs).find(|(a, b)| a != b).map(|(ours, _)| ours.0);
            if let Some(at_ms) = differs {
                case.find(DifferenceKind::Value, format!("the series differ at or after {at_ms} ms"));
                return Ok(true);
            }
            if ours.len() != theirs.len() {
                let detail = lengths_text("samples in one part", ours.len() as u64, theirs.len() as u64);
                case.find(DifferenceKind::Length, detail);
                return Ok(true);
            }
            match ours.last() {
                Some((last, _)) if ours.len() as u64 == SAMPLES => from = (last + 1).to_string(),
                _ => return Ok(true),
            }
        }
    }

    async fn filter(&mut self, case: &mut Case, command: &'static str) -> Result<bool, Fault> {
        let mut at = 0;
        loop {
            let Some((source, target)) = self.ask_modules(Request::on(command, &case.key).int(at)).await?
            else {
                return Ok(false);
            };
            let ((next, ours), (_, theirs)) =
                (part(&self.source, command, source)?, part(&self.target, command, target)?);
            case.bytes += ours.len() as u64;
            case.saw(&ours, &theirs);
            if ours != theirs {
                case.find(DifferenceKind::Value, format!("part {at} of the filter differs"));
                return Ok(true);
            }
            if next == 0 {
                return Ok(true);
            }
            at = next;
        }
    }

    async fn list_of_most_frequent(&mut self, case: &mut Case) -> Result<bool, Fault> {
        for words in [["TOPK.INFO", ""], ["TOPK.LIST", "WITHCOUNT"]] {
            let request = Request::on(words[0], &case.key);
            let request = if words[1].is_empty() { request } else { request.arg(words[1]) };
            let Some((source, target)) = self.ask_modules(request).await? else { return Ok(false) };
            if source != target {
                case.saw_digests(0, 1);
                case.find(DifferenceKind::Value, "the most frequent items differ");
                return Ok(true);
            }
        }
        Ok(true)
    }
}

/// What modules say of a key that is not there.
fn is_about_no_key(text: &str) -> bool {
    ["does not exist", "doesn't exist", "not found", "no such key"].iter().any(|words| text.contains(words))
}

/// A string; null, if the key is gone, is a shift.
fn text(peer: &Peer, command: &'static str, reply: Value) -> Result<Bytes, Fault> {
    if reply.is_null() {
        return Err(Fault::Shifted);
    }
    reply.into_bytes().ok_or_else(|| Fault::Fatal(peer.unexpected(command)))
}

/// Times in milliseconds and the bits of values.
fn samples(peer: &Peer, reply: Value) -> Result<Vec<(i64, u64)>, Fault> {
    let sample = |sample: &Value| {
        let [at_ms, value] = sample.as_items()? else { return None };
        Some((at_ms.as_int()?, score(value)?.to_bits()))
    };
    let samples = reply.as_items().and_then(|all| all.iter().map(sample).collect::<Option<Vec<_>>>());
    samples.ok_or_else(|| Fault::Fatal(peer.unexpected("TS.RANGE")))
}

/// A part of a filter, and the position where the next one begins.
fn part(peer: &Peer, command: &'static str, reply: Value) -> Result<(u64, Bytes), Fault> {
    let read = |reply: Value| {
        let mut items = reply.into_items()?.into_iter();
        let next = items.next()?.as_int()?.unsigned_abs();
        // The end has none.
        Some((next, items.next()?.into_bytes().unwrap_or_default()))
    };
    read(reply).ok_or_else(|| Fault::Fatal(peer.unexpected(command)))
}

/// The path of the first place where two documents differ. The order of members does not count.
fn first_difference(ours: &Json, theirs: &Json, path: &str) -> Option<String> {
    match (ours, theirs) {
        (Json::Object(a), Json::Object(b)) => {
            let names = a.keys().chain(b.keys().filter(|name| !a.contains_key(*name)));
            names
                .map(|name| (a.get(name), b.get(name), format!("{path}.{name}")))
                .find_map(|(a, b, path)| part_difference(a, b, path))
        }
        (Json::Array(a), Json::Array(b)) => (0..a.len().max(b.len()))
            .find_map(|at| part_difference(a.get(at), b.get(at), format!("{path}[{at}]"))),
        (ours, theirs) => (ours != theirs).then(|| path.to_owned()),
    }
}

fn part_difference(ours: Option<&Json>, theirs: Option<&Json>, path: String) -> Option<String> {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => first_difference(ours, theirs, &path),
        _ => Some(path),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_compared_as_values() {
        let a = json!({"a": 1, "b": [1, {"c": "x"}]});
        assert_eq!(first_difference(&a, &json!({"b": [1, {"c": "x"}], "a": 1}), "$"), None);
        let other = json!({"a": 1, "b": [1, {"c": "y"}]});
        assert_eq!(first_difference(&a, &other, "$").as_deref(), Some("$.b[1].c"));
        assert_eq!(first_difference(&a, &json!({"a": 1, "b": [1]}), "$").as_deref(), Some("$.b[1]"));
        assert_eq!(first_difference(&a, &json!({"a": 1}), "$").as_deref(), Some("$.b"));
    }
}
