//! What is sent to those who watch: everything at first, and then what changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::channel::{Channel, Sender};
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use whimbrel_control::clock::now_ms;

use crate::checks::Caller;
use crate::inner::Inner;
use crate::snapshot::Snapshot;

/// At least this often something is sent: silence says that the connection is lost.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Messages that may wait to be sent.
const WAITING: usize = 4;

/// How long a client may take nothing in.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);

/// How often it is looked whether the token still holds.
const TOKEN_PERIOD: Duration = Duration::from_secs(5);

/// Answers with what happens from now on.
pub(crate) fn answer(inner: Arc<Inner>, caller: Caller) -> Response {
    let (sender, body) = Channel::<Bytes>::new(WAITING);
    tokio::spawn(async move {
        let sent = async {
            let _ = inner.stop.run_until_cancelled(send(&inner, &caller, sender)).await;
        };
        inner.counted.streaming(sent).await;
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::new(body)).into_response()
}

/// Sends until the client is gone, takes nothing in, or its token does not hold any more.
async fn send(inner: &Inner, caller: &Caller, mut to: Sender<Bytes>) {
    let mut snapshots = inner.watched.subscribe();
    // What is known by now is complete once jobs were read.
    let mut sent: Option<Arc<Snapshot>> = None;
    let mut checked = Instant::now();
    loop {
        // Not at once: several parts change within a moment, and are sent together.
        let _ = timeout(HEARTBEAT, snapshots.changed()).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = snapshots.borrow_and_update().clone();
        let message = match &sent {
            None if now.read_ms == 0 => Bytes::from_static(b": wait\n\n"),
            before => {
                let (event, data) = changes(before.as_deref(), &now, caller);
                sent = Some(now);
                format!("event: {event}\ndata: {data}\n\n").into()
            }
        };
        let taken = timeout(TAKEN_WITHIN, to.send_data(message)).await;
        if !matches!(taken, Ok(Ok(()))) {
            return;
        }
        if checked.elapsed() >= TOKEN_PERIOD {
            checked = Instant::now();
            let holds = inner
                .tokens
                .list()
                .is_ok_and(|all| all.iter().any(|t| t.sha256 == caller.sha256 && t.role == caller.role));
            if !holds {
                return;
            }
        }
    }
}

/// What is different from what was sent `before`.
fn changes(before: Option<&Snapshot>, now: &Snapshot, caller: &Caller) -> (&'static str, Value) {
    let mut data =
        Map::from_iter([("now_ms".to_owned(), json!(now_ms())), ("read_ms".to_owned(), json!(now.read_ms))]);
    if let Some(trouble) = &now.trouble {
        data.insert("trouble".to_owned(), json!(**trouble));
    }
    let known = |name: &str| before.and_then(|before| before.jobs.get(name));
    let changed = now.jobs.iter().filter(|(name, job)| known(name).is_none_or(|k| !Arc::ptr_eq(k, job)));
    let jobs: Vec<Value> = changed.map(|(_, job)| job.for_role(caller.role)).collect();
    let gone: Vec<&String> = before
        .iter()
        .flat_map(|before| before.jobs.keys())
        .filter(|name| !now.jobs.contains_key(*name))
        .collect();
    if before.is_none() || !jobs.is_empty() {
        data.insert("jobs".to_owned(), json!(jobs));
    }
    if !gone.is_empty() {
        data.insert("gone".to_owned(), json!(gone));
    }
    let parts = [
        ("cluster", &now.cluster, before.map(|b| &b.cluster)),
        ("fleet", &now.fleet, before.map(|b| &b.fleet)),
        ("canary", &now.canary, before.map(|b| &b.canary)),
    ];
    for (name, part, before) in parts {
        let is_same = match (part, before) {
            (Some(part), Some(Some(before))) => Arc::ptr_eq(part, before),
            (None, Some(None)) => true,
            _ => false,
        };
        if !is_same {
            data.insert(name.to_owned(), json!(part.as_deref()));
        }
    }
    (if before.is_none() { "state" } else { "change" }, Value::Object(data))
}

#[cfg(test)]
mod tests {
    use whimbrel_control::jobs::Seen;
    use whimbrel_control::store::{Entry, Status};

    use super::*;
    use crate::shown::Shown;
    use crate::tokens::Role;

    fn job(name: &str) -> Arc<Shown> {
        let status = Status { id: name.to_owned(), ..Status::default() };
        let seen = Seen { entry: Entry { status, running: true }, answers: true, is_elsewhere: false };
        Arc::new(Shown::new(&seen, None, None))
    }

    fn names(data: &Value) -> Vec<&str> {
        data["jobs"].as_array().into_iter().flatten().filter_map(|job| job["name"].as_str()).collect()
    }

    #[test]
    fn only_what_changes_is_sent_after_the_first_time() {
        let text = String::new;
        let caller = Caller { name: text(), role: Role::View, from: text(), sha256: text() };
        let mut first =
            Snapshot { read_ms: 1, cluster: Some(Arc::new(json!({"a": 1}))), ..Snapshot::default() };
        first.jobs = [("a".to_owned(), job("a")), ("b".to_owned(), job("b"))].into();
        let (event, data) = changes(None, &first, &caller);
        assert_eq!((event, names(&data), &data["cluster"]["a"]), ("state", vec!["a", "b"], &json!(1)));
        assert!(data["fleet"].is_null() && data.as_object().expect("an object").contains_key("fleet"));
        let (event, data) = changes(Some(&first), &first.clone(), &caller);
        assert_eq!(event, "change");
        assert_eq!(data.as_object().expect("an object").len(), 2, "{data}");
        let mut second = Snapshot { fleet: Some(Arc::new(json!(7))), ..first.clone() };
        second.jobs.remove("a");
        second.jobs.insert("b".to_owned(), job("b"));
        let (_, data) = changes(Some(&first), &second, &caller);
        assert_eq!((names(&data), &data["gone"], &data["fleet"]), (vec!["b"], &json!(["a"]), &json!(7)));
        assert!(data.get("cluster").is_none());
    }
}
