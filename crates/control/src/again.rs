//! What goes on with a copy, a verification or a sync that was interrupted, as arguments for whimbrel, but
//! for passwords and the files of TLS, which are written down nowhere.

use serde_json::{Value, json};
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_flow::copy::Existing;

use crate::naming::written;
use crate::store::Kind;

/// The arguments for whimbrel that continue a copy, a verification or a sync. `None` if it cannot continue.
pub fn arguments(kind: Kind, described: &Value) -> Option<Vec<String>> {
    if !described["limit"].is_null() {
        return None;
    }
    let mut words = vec![kind.word().to_owned()];
    for (place, side) in ["source", "target"].into_iter().enumerate() {
        let address = described[side].as_str()?;
        words.push(match described["databases"][place].as_u64() {
            Some(db) => format!("redis://{address}/{db}"),
            None => address.to_owned(),
        });
    }
    let mut option = |name: &str, values: &Value| {
        for value in values.as_array().into_iter().flatten() {
            let pair = |from: &Value, to: &Value| Some(format!("{}:{}", from.as_u64()?, to.as_u64()?));
            let text = value.as_str().map(str::to_owned);
            let text = text.or_else(|| pair(&value["source"], &value["target"]));
            let text = text.or_else(|| pair(&value[0], &value[1]));
            words.extend(text.into_iter().flat_map(|text| [written(name), text]));
        }
    };
    option("db", &described["db"]);
    // A cluster has one database only, which need not be named.
    if ![json!([{"source": 0, "target": 0}]), json!([[0, 0]])].contains(&described["dbs"]) {
        option("db", &described["dbs"]);
    }
    option("match", &described["match"]);
    option("exclude", &described["exclude"]);
    option("type", &described["types"]);
    option("slots", &json!([described["slots"]]));
    let existing = described["existing"].as_str();
    words.extend((existing == Some(Existing::Skip.described())).then(|| written("skip")));
    words.extend((existing == Some(Existing::Fail.described())).then(|| written("fail")));
    if kind == Kind::Verify {
        let depth = described["depth"].as_str().map(str::to_lowercase);
        let tolerance = described["ttl_tolerance_ms"].as_u64().map(|ms| format!("{ms}ms"));
        let sample = described["sample"].as_str().map(str::to_owned);
        for (name, text) in [("depth", depth), ("sample", sample), ("ttl-tolerance", tolerance)] {
            words.extend(text.into_iter().flat_map(|text| [written(name), text]));
        }
        words.extend((described["check_extra"] == false).then(|| written("ignore-extra")));
    }
    words.push(written("resume"));
    Some(words)
}

/// The same, with the users of both sides, and with TLS: neither is in the journal.
pub fn by_url(mut words: Vec<String>, sides: [&Endpoint; 2]) -> Vec<String> {
    for (word, side) in words.iter_mut().skip(1).zip(sides) {
        let db = word.strip_prefix("redis://").and_then(|rest| rest.rsplit_once('/')?.1.parse().ok());
        if let Some(url) = side.url(db) {
            *word = url;
        }
    }
    words
}

/// As [`arguments`], of what is written in the journal.
pub fn of_description(kind: Kind, description: &str) -> Option<Vec<String>> {
    arguments(kind, &serde_json::from_str(description).ok()?)
}

#[cfg(test)]
mod tests {
    use whimbrel_engine::error::Side;

    use super::*;

    fn words(kind: Kind, described: &Value) -> Option<String> {
        arguments(kind, described).map(|words| words.join(" "))
    }

    #[test]
    fn they_have_users_and_never_a_password() {
        let endpoint = |text: &str| Endpoint::parse(Side::Source, text).expect("an address");
        let by = |words: &[&str], source: &str, target: &str| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            by_url(words, [&endpoint(source), &endpoint(target)]).join(" ")
        };
        assert_eq!(
            by(&["sync", "redis://a:1/3", "b:2", "--resume"], "redis://u:secret@a:1/3", "rediss://b:2"),
            "sync redis://u@a:1/3 rediss://b:2 --resume"
        );
        assert_eq!(by(&["copy", "a:1", "b:2"], "redis://:secret@a:1", "b:2"), "copy a:1 b:2");
        for odd in ["redis://a%3Ab@a:1", "redis://a%40b@a:1"] {
            assert_eq!(by(&["copy", "a:1", "b:2"], odd, "b:2"), "copy a:1 b:2", "{odd}");
        }
    }

    #[test]
    fn they_have_what_made_the_job_this_one() {
        let mut copy = json!({
            "source": "a:1", "target": "b:2", "dbs": [{"source": 0, "target": 0}, {"source": 1, "target": 3}],
            "match": ["u:*"], "exclude": [], "types": ["hash"], "slots": null,
            "existing": Existing::Skip.described(), "limit": null,
        });
        let expected = "copy a:1 b:2 --db 0:0 --db 1:3 --match u:* --type hash --skip --resume";
        assert_eq!(words(Kind::Copy, &copy).as_deref(), Some(expected));
        copy["limit"] = json!(5);
        assert_eq!(words(Kind::Copy, &copy), None);
        let sync = json!({
            "kind": "sync", "source": "a:1", "target": "b:2", "databases": [1, null], "db": [], "match": [],
            "exclude": ["it's"], "slots": "0-5,9",
        });
        let expected = "sync redis://a:1/1 b:2 --exclude it's --slots 0-5,9 --resume";
        assert_eq!(words(Kind::Sync, &sync).as_deref(), Some(expected));
        let verify = json!({
            "source": "a:1", "target": "b:2", "dbs": [[0, 0]], "match": [], "exclude": [], "types": [],
            "slots": null, "depth": "Full", "sample": "10%", "ttl_tolerance_ms": 250, "check_extra": false,
        });
        let expected =
            "verify a:1 b:2 --depth full --sample 10% --ttl-tolerance 250ms --ignore-extra --resume";
        assert_eq!(words(Kind::Verify, &verify).as_deref(), Some(expected));
    }
}
