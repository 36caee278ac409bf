//! Copies and syncs that have not ended, as their journals in the state folder tell of them, and what goes on
//! with each.

use std::path::Path;

use serde_json::{Value, json};
use whimbrel_flow::copy::Existing;
use whimbrel_flow::journal::Unfinished;

use crate::ui::display::format_time;

/// One line for each, or a few.
pub fn show(unfinished: &[Unfinished], folder: Option<&Path>, as_json: bool) {
    for job in unfinished {
        let again = command(job, folder);
        if as_json {
            say!(
                "{}",
                json!({
                    "name": job.name, "kind": kind(job), "running": job.running, "written_s": job.written_s,
                    "source": job.described["source"], "target": job.described["target"], "again": again,
                })
            );
            continue;
        }
        let text = |name: &str| job.described[name].as_str().unwrap_or("?");
        // The journal of one that runs cannot be read.
        match job.running {
            true => say!("{}  running", job.name),
            false => {
                let written = format_time(job.written_s);
                say!("{}  interrupted {written}: {} -> {}", job.name, text("source"), text("target"));
                match again {
                    Some(again) => say!("  go on with: {again}, and what it needs to connect"),
                    None => say!("  it cannot go on: start it again"),
                }
            }
        }
    }
}

fn kind(job: &Unfinished) -> &'static str {
    if job.name.starts_with("sync-") { "sync" } else { "copy" }
}

/// The command that goes on with it, but for users, passwords and TLS, which are in no journal. `None` for
/// one that cannot.
fn command(job: &Unfinished, folder: Option<&Path>) -> Option<String> {
    let described = &job.described;
    if !described["limit"].is_null() {
        return None;
    }
    let mut words = vec!["whimbrel".to_owned(), kind(job).to_owned()];
    for (place, side) in ["source", "target"].into_iter().enumerate() {
        let address = described[side].as_str()?;
        words.push(match described["databases"][place].as_u64() {
            Some(db) => format!("redis://{address}/{db}"),
            None => quoted(address),
        });
    }
    let mut option = |name: &str, values: &Value| {
        for value in values.as_array().into_iter().flatten() {
            let pair = || Some(format!("{}:{}", value["source"].as_u64()?, value["target"].as_u64()?));
            let text = value.as_str().map(str::to_owned).or_else(pair);
            words.extend(text.map(|text| format!("--{name} {}", quoted(&text))));
        }
    };
    option("db", &described["db"]);
    // A cluster has one database only, and need not be told.
    if described["dbs"] != json!([{"source": 0, "target": 0}]) {
        option("db", &described["dbs"]);
    }
    option("match", &described["match"]);
    option("exclude", &described["exclude"]);
    option("type", &described["types"]);
    option("slots", &json!([described["slots"]]));
    let existing = described["existing"].as_str();
    words.extend((existing == Some(Existing::Skip.described())).then(|| "--skip".to_owned()));
    words.extend((existing == Some(Existing::Fail.described())).then(|| "--fail".to_owned()));
    words.extend(folder.map(|folder| format!("--state-dir {}", quoted(&folder.to_string_lossy()))));
    words.push("--resume".to_owned());
    Some(words.join(" "))
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, described: Value) -> Unfinished {
        Unfinished { name: name.to_owned(), running: false, written_s: 0, described }
    }

    #[test]
    fn the_command_has_what_made_the_job_this_one() {
        let copy = json!({
            "source": "a:1", "target": "b:2", "dbs": [{"source": 0, "target": 0}, {"source": 1, "target": 3}],
            "match": ["u:*"], "exclude": [], "types": ["hash"], "slots": null,
            "existing": Existing::Skip.described(), "limit": null,
        });
        assert_eq!(
            command(&job("copy-1", copy.clone()), Some(Path::new("/x y"))).expect("it can go on"),
            "whimbrel copy a:1 b:2 --db 0:0 --db 1:3 --match 'u:*' --type hash --skip --state-dir '/x y' \
                --resume"
        );
        let limited = Value::Object(
            copy.as_object().cloned().into_iter().flatten().chain([("limit".to_owned(), json!(5))]).collect(),
        );
        assert_eq!(command(&job("copy-1", limited), None), None);
        let sync = json!({
            "kind": "sync", "source": "a:1", "target": "b:2", "databases": [1, null], "db": [], "match": [],
            "exclude": ["it's"], "slots": "0-5,9",
        });
        assert_eq!(
            command(&job("sync-1", sync), None).expect("it can go on"),
            "whimbrel sync redis://a:1/1 b:2 --exclude 'it'\\''s' --slots 0-5,9 --resume"
        );
    }
}
