//! What is left of a job for people who were not there: what it was, what happened when, what came of it.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest as hash};
use serde_json::{Value, json};

use crate::store::{Status, Store};

/// Format of the document.
const FORMAT: &str = "1";

/// The document of a job, with a digest over all else in it. `version` is of the whimbrel that makes it.
pub fn document(store: &Store, job: &Status, version: &str) -> Value {
    let mut document = json!({
        "format": FORMAT, "whimbrel": version, "job": job,
        "events": store.events(&job.id), "report": store.report(&job.id),
    });
    document["digest"] = json!(digest(&document));
    document
}

/// Whether a document is as it was made. The digest has no key: it detects damage and edits, but not a newly
/// made document.
pub fn is_intact(document: &Value) -> bool {
    document["digest"] == json!(digest(document))
}

/// SHA-256 over the document without its digest: fields in the order of their names, no space between them.
fn digest(document: &Value) -> String {
    let mut rest = document.clone();
    if let Some(fields) = rest.as_object_mut() {
        fields.remove("digest");
    }
    let mut text = "sha256:".to_owned();
    for byte in hash(&SHA256, rest.to_string().as_bytes()).as_ref() {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Kind;

    #[test]
    fn a_document_has_what_happened_and_any_change_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        let job = Status { id: "copy-1".to_owned(), kind: Kind::Copy, created_s: 17, ..Status::default() };
        // Those that ended long ago are not kept.
        let job = Status { updated_s: crate::clock::now_s(), ..job };
        store.publish(&job);
        store.keep_report("copy-1", &json!({"written": 7}));
        store.end(&Status { ended: true, phase: "done".to_owned(), ..job });
        let ended = store.find("copy-1-11").expect("kept");
        let made = document(&store, &ended, "1.2.3");
        let happened: Vec<&str> =
            made["events"].as_array().expect("a list").iter().filter_map(|e| e["event"].as_str()).collect();
        assert_eq!(happened, ["begun", "ended"]);
        assert_eq!((&made["report"]["written"], &made["job"]["phase"]), (&json!(7), &json!("done")));
        let text = made.to_string();
        assert!(is_intact(&serde_json::from_str(&text).expect("JSON")));
        let changed = text.replace("\"written\":7", "\"written\":8");
        assert!(!is_intact(&serde_json::from_str(&changed).expect("JSON")));
        assert!(!is_intact(&json!({})));
        store.remove("copy-1-11").expect("removed");
        let files = std::fs::read_dir(folder.path().join("jobs")).expect("a folder");
        assert_eq!(files.count(), 0, "a file is left of it");
    }
}
