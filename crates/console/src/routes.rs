//! What is answered where. The document of [`crate::interface`] describes each of these.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use whimbrel_control::clock::now_ms;
use whimbrel_control::http::in_numbers;
use whimbrel_control::jobs::Ask;
use whimbrel_control::steering::Request as Asked;
use whimbrel_control::store::Kind;

use crate::audit::Entry;
use crate::checks::{Caller, guard};
use crate::failure::{Answer, Failure};
use crate::inner::Inner;
use crate::mover::Mover;
use crate::orders::{self, CutoverWanted, PlanCancelWanted, RatesWanted};
use crate::plans::Wanted;
use crate::remembered::About;
use crate::runs::{GoOnWanted, JobWanted, Sides};
use crate::shown::needed;
use crate::tokens::Role;
use crate::{cluster, interface, page, reading, stream};

/// The longest request, in bytes.
const BODY_BYTES_MAX: usize = 64 << 10;

/// How long one may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// The cluster is asked again where it was for longer than this ago.
const CLUSTER_FRESH: Duration = Duration::from_secs(1);

/// What to do about a request that cannot be understood.
const SEE_FIELDS: &str = "GET /api/v1/openapi.json describes what can be asked, with its fields";

/// How many events of a job are sent: the newest.
const EVENTS_MAX: usize = 500;

type Console = State<Arc<Inner>>;

/// JSON of one form, in bounded size and time.
struct Body<T>(T);

impl<T: DeserializeOwned> FromRequest<Arc<Inner>> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, inner: &Arc<Inner>) -> Answer<Body<T>> {
        let late = |_| {
            Failure::new(StatusCode::REQUEST_TIMEOUT, "the request has not arrived in time")
                .with_remedy("send it again")
        };
        let bytes = timeout(BODY_WITHIN, Bytes::from_request(request, inner)).await.map_err(late)?;
        let bytes = bytes.map_err(|e| {
            Failure::new(e.status(), "the request cannot be read")
                .with_remedy(format!("send JSON of at most {} KiB", BODY_BYTES_MAX >> 10))
        })?;
        // Nothing at all is as good as nothing in braces.
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        let bad = |e: serde_json::Error| Failure::bad(format!("the request: {e}")).with_remedy(SEE_FIELDS);
        // A list would be taken for the fields in their order.
        match serde_json::from_slice(&bytes).map_err(bad)? {
            object @ Value::Object(_) => serde_json::from_value(object).map(Body).map_err(bad),
            _ => Err(Failure::bad("the request is no JSON object").with_remedy(SEE_FIELDS)),
        }
    }
}

/// A value as a body.
struct Json(Value);

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], self.0.to_string()).into_response()
    }
}

/// Everything that is answered.
pub(crate) fn router(inner: Arc<Inner>) -> Router {
    let v1 = Router::new()
        .route("/openapi.json", get(async || Json(interface::document())))
        .route("/me", get(me))
        .route("/stream", get(watch))
        .route("/jobs", get(jobs).post(begin))
        .route("/jobs/{name}", get(job))
        .route("/jobs/{name}/pause", post(pause))
        .route("/jobs/{name}/resume", post(resume))
        .route("/jobs/{name}/set", post(set))
        .route("/jobs/{name}/cancel", post(cancel))
        .route("/jobs/{name}/cutover", post(cut_over))
        .route("/jobs/{name}/cutover/withdraw", post(withdraw))
        .route("/jobs/{name}/go-on", post(go_on))
        .route("/cluster", get(read_cluster))
        .route("/cluster/repair", get(repair))
        .route("/plans", post(plan))
        .route("/plans/{id}/approve", post(approve))
        .route("/plans/{id}/cancel", post(cancel_plan))
        .route("/fleet", get(fleet))
        .route("/assessments", post(assess))
        .route("/assessments/{id}", get(assessment))
        .route("/audit", get(audit));
    Router::new()
        .nest("/api/v1", v1)
        .route("/", get(async || page::find("").ok_or_else(nothing_here)))
        .route("/metrics", get(metrics))
        .route("/{file}", get(file))
        .fallback(async || nothing_here())
        .method_not_allowed_fallback(async || {
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, "this cannot be done here").with_remedy(SEE_FIELDS)
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(inner.clone(), guard))
        .with_state(inner)
}

impl Inner {
    fn mover(&self) -> Answer<&Mover> {
        let missing =
            || Failure::missing("this console has no cluster").with_remedy("serve it with --cluster");
        self.mover.as_ref().ok_or_else(missing)
    }

    /// Keys are counted and looked at for one plan at a time: servers have something else to do.
    fn lock_planning(&self) -> Answer<tokio::sync::MutexGuard<'_, ()>> {
        let busy = |_| Failure::conflict("another plan is being made").with_remedy("wait until it is there");
        self.planning.try_lock().map_err(busy)
    }

    /// Has an order carried out that was written down before. It comes to its end although the client has
    /// gone: half of it would be worse than all of it.
    async fn ordered<F>(
        self: &Arc<Self>,
        caller: &Caller,
        (order, of): (&str, String),
        work: F,
    ) -> Answer<Json>
    where
        F: Future<Output = Answer<Value>> + Send + 'static,
    {
        let entry = Entry {
            at_ms: now_ms(),
            who: caller.name.clone(),
            role: caller.role,
            from: caller.from.clone(),
            order: order.to_owned(),
            target: of,
            outcome: None,
        };
        let (answer, answered) = tokio::sync::oneshot::channel();
        let inner = self.clone();
        let carried_out = async move {
            let unwritten = |e: std::io::Error| {
                let what = format!("the audit log cannot be written: {e}");
                Failure::new(StatusCode::INSUFFICIENT_STORAGE, what)
                    .with_remedy("nothing was done. See whether the disk of the state folder is full")
            };
            // The disk may take its time: others are served meanwhile.
            let (log, noted) = (inner.clone(), entry.clone());
            let noted = spawn_blocking(move || log.audit.note(&noted)).await;
            if let Err(e) = noted.map_err(std::io::Error::other).and_then(|noted| noted) {
                let _ = answer.send(Err(unwritten(e)));
                return;
            }
            let outcome = work.await;
            let text = match &outcome {
                Ok(value) => format!("done: {value}"),
                Err(failure) => format!("refused: {}", failure.error),
            };
            inner.counted.ordered(&entry.order, outcome.is_ok());
            // A panic in there is shown by itself.
            let _ = spawn_blocking(move || inner.audit.note_outcome(&entry, &text)).await;
            // The client may have gone.
            let _ = answer.send(outcome);
        };
        {
            let mut orders = self.orders.lock();
            while orders.try_join_next().is_some() {}
            orders.spawn(carried_out);
        }
        let stopped = |_| {
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the console was stopped meanwhile")
                .with_remedy("see in the audit log, once it runs again, whether this was done")
        };
        answered.await.map_err(stopped)?.map(Json)
    }
}

/// Refuses what was not confirmed by typing `name`.
fn confirmed(given: Option<&str>, name: &str) -> Answer<()> {
    if given == Some(name) {
        return Ok(());
    }
    Err(Failure::bad("this was not confirmed").with_remedy(format!("set confirm to {name}")))
}

fn nothing_here() -> Failure {
    Failure::missing("there is nothing here").with_remedy(SEE_FIELDS)
}

/// A part of the path, in text.
struct PathText(String);

impl FromRequestParts<Arc<Inner>> for PathText {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, inner: &Arc<Inner>) -> Answer<PathText> {
        let Path(name) = Path::<String>::from_request_parts(parts, inner).await.map_err(|_| {
            Failure::bad("the path is no text").with_remedy("names are UTF-8, percent-encoded")
        })?;
        Ok(PathText(name))
    }
}

async fn file(PathText(path): PathText) -> Answer<&'static page::File> {
    page::find(&path).ok_or_else(nothing_here)
}

async fn me(State(inner): Console, caller: Caller) -> Json {
    Json(json!({
        "name": caller.name, "role": caller.role, "version": inner.options.version,
        "cluster": inner.mover.as_ref().map(Mover::cluster), "fleet": inner.fleet.is_some(),
        "now_ms": now_ms(),
    }))
}

/// The console in numbers, for Prometheus: with a token like all else.
async fn metrics(State(inner): Console, _: Caller) -> Response {
    in_numbers(inner.counted.metrics())
}

async fn watch(State(inner): Console, caller: Caller) -> Response {
    stream::answer(inner, caller)
}

/// Why jobs could not be read.
fn unread(why: String) -> Failure {
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, why)
        .with_remedy("see whether the state folder of the console can be read")
}

async fn jobs(State(inner): Console, caller: Caller) -> Answer<Json> {
    let seen = reading::read_jobs(&inner).await.map_err(unread)?;
    let jobs: Vec<Value> =
        seen.iter().map(|seen| reading::show(&inner, seen, None).for_role(caller.role)).collect();
    Ok(Json(json!({"now_ms": now_ms(), "jobs": jobs})))
}

async fn job(State(inner): Console, caller: Caller, PathText(name): PathText) -> Answer<Json> {
    let seen = reading::read_job(&inner, &name).await.map_err(unread)?;
    let seen = seen.ok_or_else(|| orders::no_job(&name))?;
    let name = seen.entry.status.id.clone();
    let store = inner.jobs().store;
    let details = match seen.entry.running && seen.answers && !seen.is_elsewhere {
        true => whimbrel_control::steering::standing(&store.socket(&name)).await.map(|s| s.details),
        false => None,
    };
    let events = store.events(&name);
    let newest = events.iter().skip(events.len().saturating_sub(EVENTS_MAX));
    let events: Vec<Value> = newest
        .map(|event| {
            let mut value = json!(event);
            value["text"] = json!(event.what.to_string());
            value
        })
        .collect();
    let mut remembered = match seen.entry.status.kind {
        Kind::Sync => inner.remembered.find(&seen.entry.status),
        _ => Value::Null,
    };
    // An assessment is for those who may make one.
    if caller.role < Role::Administer && remembered.is_object() {
        remembered["assessment"] = Value::Null;
    }
    Ok(Json(json!({
        "now_ms": now_ms(), "job": reading::show(&inner, &seen, None).for_role(caller.role),
        "details": details, "events": events, "report": store.report(&name), "remembered": remembered,
    })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Confirmed {
    confirm: Option<String>,
}

/// Has a job pause, go on, or be faster or slower.
async fn steer(inner: &Arc<Inner>, caller: &Caller, ask: Ask, name: String, request: Asked) -> Answer<Json> {
    caller.must_be(needed(ask))?;
    let work = orders::steer(inner.clone(), name.clone(), caller.name.clone(), request);
    inner.ordered(caller, (ask.word(), name), work).await
}

async fn pause(
    State(inner): Console,
    caller: Caller,
    PathText(name): PathText,
    Body(Nothing {}): Body<Nothing>,
) -> Answer<Json> {
    steer(&inner, &caller, Ask::Pause, name, Asked::Pause).await
}

async fn resume(
    State(inner): Console,
    caller: Caller,
    PathText(name): PathText,
    Body(Nothing {}): Body<Nothing>,
) -> Answer<Json> {
    steer(&inner, &caller, Ask::Resume, name, Asked::Resume).await
}

async fn set(
    State(inner): Console,
    caller: Caller,
    PathText(name): PathText,
    Body(wanted): Body<RatesWanted>,
) -> Answer<Json> {
    steer(&inner, &caller, Ask::Set, name, Asked::Set(wanted.change()?)).await
}

async fn cancel(
    State(inner): Console,
    caller: Caller,
    PathText(name): PathText,
    Body(wanted): Body<Confirmed>,
) -> Answer<Json> {
    caller.must_be(needed(Ask::Cancel))?;
    confirmed(wanted.confirm.as_deref(), &name)?;
    let work = orders::cancel(inner.clone(), name.clone());
    inner.ordered(&caller, (Ask::Cancel.word(), name), work).await
}

async fn cut_over(
    State(inner): Console,
    caller: Caller,
    PathText(name): PathText,
    Body(wanted): Body<CutoverWanted>,
) -> Answer<Json> {
    caller.must_be(needed(Ask::Cutover))?;
    let order = match wanted.dry_run {
        true => "cutover, as a dry run",
        false => {
            confirmed(wanted.confirm.as_deref(), &name)?;
            Ask::Cutover.word()
        }
    };
    let (console, of, who) = (inner.clone(), name.clone(), caller.name.clone());
    let work = async move {
        let (chosen, is_dry_run) = (wanted.chosen(), wanted.dry_run);
        let sides = orders::find(&console, &of).await.map(|entry| (entry.status.source, entry.status.target));
        let outcome = orders::cut_over(console.clone(), of, wanted).await;
        if let (true, Ok((source, target))) = (is_dry_run, sides) {
            let (text, error) = match &outcome {
                Ok(value) => (value["text"].clone(), Value::Null),
                Err(failure) => (Value::Null, json!(failure.error)),
            };
            let what = json!({"who": who, "chosen": chosen, "text": text, "error": error});
            console.remembered.note((&source, &target), About::Rehearsal, what);
        }
        outcome
    };
    inner.ordered(&caller, (order, name), work).await
}

async fn withdraw(
    State(inner): Console,
    caller: Caller,
    PathText(name): PathText,
    Body(Nothing {}): Body<Nothing>,
) -> Answer<Json> {
    caller.must_be(needed(Ask::Cutover))?;
    let work = orders::withdraw(inner.clone(), name.clone());
    inner.ordered(&caller, ("withdraw cutover", name), work).await
}

async fn go_on(
    State(inner): Console,
    caller: Caller,
    PathText(name): PathText,
    Body(wanted): Body<GoOnWanted>,
) -> Answer<Json> {
    caller.must_be(needed(Ask::GoOn))?;
    confirmed(wanted.confirm.as_deref(), &name)?;
    let work = orders::go_on(inner.clone(), name.clone(), wanted, caller.name.clone());
    inner.ordered(&caller, (Ask::GoOn.word(), name), work).await
}

async fn begin(State(inner): Console, caller: Caller, Body(wanted): Body<JobWanted>) -> Answer<Json> {
    caller.must_be(Role::Administer)?;
    if wanted.writes() {
        confirmed(wanted.confirm.as_deref(), wanted.target())?;
    }
    wanted.sides().check()?;
    let of = wanted.in_words();
    let (console, who) = (inner.clone(), caller.name.clone());
    let work = async move {
        let (source, target) = (wanted.source().to_owned(), wanted.target().to_owned());
        let (is_sync, is_mirror) = (wanted.is_sync(), wanted.is_mirror());
        let status = console.runs.clone().begin(wanted, who).await?.status;
        if is_sync {
            let begun = json!({"job": status.id, "created_s": status.created_s, "mirror": is_mirror});
            console.remembered.note((&source, &target), About::Begun, begun);
        }
        Ok(json!({"name": status.id}))
    };
    inner.ordered(&caller, ("begin", of), work).await
}

async fn read_cluster(State(inner): Console, _: Caller) -> Answer<Json> {
    let mover = inner.mover()?;
    let mut value = Value::clone(&*reading::read_cluster(&inner, mover, CLUSTER_FRESH).await);
    value["now_ms"] = json!(now_ms());
    Ok(Json(value))
}

async fn repair(State(inner): Console, _: Caller) -> Answer<Json> {
    let mover = inner.mover()?;
    let _planning = inner.lock_planning()?;
    Ok(Json(cluster::repair(mover).await?))
}

async fn plan(State(inner): Console, caller: Caller, Body(wanted): Body<Wanted>) -> Answer<Json> {
    caller.must_be(Role::Operate)?;
    let mover = inner.mover()?;
    let _planning = inner.lock_planning()?;
    inner.plans.make(mover, &wanted).await.map(Json)
}

async fn approve(
    State(inner): Console,
    caller: Caller,
    PathText(id): PathText,
    Body(wanted): Body<Confirmed>,
) -> Answer<Json> {
    caller.must_be(Role::Operate)?;
    let mover = Arc::new(inner.mover()?.clone());
    confirmed(wanted.confirm.as_deref(), &mover.cluster())?;
    let of = format!("{id} in {}", mover.cluster());
    let plans = inner.clone();
    let who = caller.name.clone();
    let work = async move { plans.plans.approve(mover, &id, &who).await };
    inner.ordered(&caller, ("approve plan", of), work).await
}

async fn cancel_plan(
    State(inner): Console,
    caller: Caller,
    PathText(id): PathText,
    Body(wanted): Body<PlanCancelWanted>,
) -> Answer<Json> {
    caller.must_be(needed(Ask::Cancel))?;
    let cluster = match &inner.mover {
        Some(mover) => mover.cluster(),
        None => orders::cluster_of_plan(&inner, &id).await?,
    };
    confirmed(wanted.confirm.as_deref(), &cluster)?;
    let work = orders::cancel_plan(inner.clone(), id.clone(), wanted.jobs);
    inner.ordered(&caller, ("cancel plan", format!("{id} in {cluster}")), work).await
}

async fn fleet(State(inner): Console, _: Caller) -> Answer<Json> {
    let missing = || Failure::missing("this console has no fleet").with_remedy("serve it with --fleet");
    let fleet = inner.fleet.as_ref().ok_or_else(missing)?;
    let status = fleet
        .status()
        .await
        .map_err(|e| Failure::conflict(e.to_string()).with_remedy("ask the member that leads the fleet"))?;
    Ok(Json(json!(status)))
}

async fn assess(State(inner): Console, caller: Caller, Body(sides): Body<Sides>) -> Answer<Json> {
    caller.must_be(Role::Administer)?;
    sides.check()?;
    let of = sides.in_words();
    let (console, who) = (inner.clone(), caller.name.clone());
    let work = async move {
        let (runs, stop) = (console.runs.clone(), console.stop.clone());
        let noted = move |sides: &Sides, found: Value| {
            if let (source, Some(target)) = sides.addresses() {
                console.remembered.note((source, target), About::Assessment, found);
            }
        };
        runs.assess(sides, who, stop, noted).map(|id| json!({"id": id}))
    };
    inner.ordered(&caller, ("assess", of), work).await
}

async fn assessment(State(inner): Console, caller: Caller, PathText(id): PathText) -> Answer<Json> {
    caller.must_be(Role::Administer)?;
    inner.runs.assessment(&id).map(Json)
}

async fn audit(State(inner): Console, caller: Caller) -> Answer<Json> {
    caller.must_be(Role::Administer)?;
    let latest = spawn_blocking(move || inner.audit.latest()).await;
    let entries = latest.map_err(std::io::Error::other).and_then(|latest| latest).map_err(|e| {
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, format!("the audit log cannot be read: {e}"))
            .with_remedy("see whether the state folder of the console can be read")
    })?;
    Ok(Json(json!({"entries": entries})))
}
