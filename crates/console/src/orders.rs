//! What is asked of jobs: pause, resume, set, cancel, cut over.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use whimbrel_control::cutovers::{compared, rehearsal};
use whimbrel_control::daemon::Jobs as _;
use whimbrel_control::fronts;
use whimbrel_control::jobs::CancelAnswer;
use whimbrel_control::service;
use whimbrel_control::steering::{Call, Request, Scheduled};
use whimbrel_control::store::{Entry, Kind, Status, Store};
use whimbrel_core::schedule::{TimeError, When, parse_time};
use whimbrel_core::units::{format_count_of, format_duration_ms};
use whimbrel_engine::seal::WriterFenceKind;
use whimbrel_flow::budget::RateChange;
use whimbrel_flow::sync::{Compare, CutoverOptions};

use crate::failure::{Answer, Failure};
use crate::inner::Inner;
use crate::runs::GoOnWanted;
use crate::tokens::by_token;

/// How long a cutover may take besides its pause: slots are gone through again before, and hooks are run. A
/// process that hangs is noticed long before.
const CUTOVER_WITHIN: Duration = Duration::from_secs(2 * 3600);

/// The largest number that all readers of JSON understand.
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// How limits are written that are no numbers.
const LIMITS: &str = "write max_lag as 64MiB or 5s, max_load as 60%, between as 01:00-05:00, lanes as 8 or \
     \"2:8\", max_pause_ms as a number from 1 to 60000; null for no bound of the others";

/// How the time of a cutover is written.
const LATER: &str = "write at as 2026-11-26T02:00Z, between as 01:00-05:00";

/// The longest pause that can be asked for, in milliseconds.
const PAUSE_MAX_MS: u64 = 60_000;

/// How fast keys are to move: what is absent stays, `null` is no bound.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RatesWanted {
    /// Keys per second.
    #[serde(deserialize_with = "present")]
    rate_keys: Option<Option<u64>>,
    /// Bytes per second.
    #[serde(deserialize_with = "present")]
    rate_bytes: Option<Option<u64>>,
    /// How long a server may take for an answer, in milliseconds.
    #[serde(deserialize_with = "present")]
    max_latency_ms: Option<Option<u64>>,
    /// How far replicas of the target may be behind: `64MiB`, or `5s`.
    #[serde(deserialize_with = "named")]
    max_lag: Option<Option<String>>,
    /// How much of a core a server may use: `60%`.
    #[serde(deserialize_with = "named")]
    max_load: Option<Option<String>>,
    /// At which time of the day keys move: `01:00-05:00`.
    #[serde(deserialize_with = "named")]
    between: Option<Option<String>>,
    /// Bytes of values in flight.
    #[serde(deserialize_with = "bounded")]
    memory_bytes: Option<u64>,
    /// How many lanes there are: 8, or `"2:8"`.
    #[serde(deserialize_with = "number_or_text")]
    lanes: Option<String>,
    /// How long writes may be paused at once, in milliseconds.
    #[serde(deserialize_with = "bounded")]
    max_pause_ms: Option<u64>,
}

/// A number, or what is written in another way.
fn number_or_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    match Value::deserialize(from)? {
        Value::Number(number) => Ok(Some(number.to_string())),
        Value::String(text) => Ok(Some(text)),
        _ => Err(D::Error::custom("write 8, or \"2:8\"")),
    }
}

/// A number that has no other.
fn bounded<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let given = u64::deserialize(from)?;
    if given > NUMBER_MAX {
        return Err(D::Error::custom(format!("{NUMBER_MAX} is the most")));
    }
    Ok(Some(given))
}

/// What is there is `Some`, also where it is `null`.
fn named<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// What is there is `Some`, also where it is `null`. Who writes 0 means to stop the job, and not to take its
/// bound away.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<u64>>, D::Error> {
    match Option::deserialize(from)? {
        Some(0) => Err(D::Error::custom("0 is no rate: null takes a bound away, and a pause stops the job")),
        Some(large) if large > NUMBER_MAX => Err(D::Error::custom(format!("{NUMBER_MAX} is the most"))),
        given => Ok(Some(given)),
    }
}

impl RatesWanted {
    /// As a job is asked for it: 0 is no bound.
    ///
    /// # Errors
    /// For what is written in another way than on the command line.
    pub fn change(&self) -> Answer<RateChange> {
        let asked = |wanted: Option<Option<u64>>| wanted.map(Option::unwrap_or_default);
        let change = RateChange {
            keys: asked(self.rate_keys),
            bytes: asked(self.rate_bytes),
            max_latency_ms: asked(self.max_latency_ms),
            ..RateChange::default()
        };
        let lanes = self.lanes.clone().map(Some);
        let pause = self.max_pause_ms.map(|ms| Some(format!("{ms}ms")));
        let memory = self.memory_bytes.map(|bytes| Some(bytes.to_string()));
        let written = [
            ("max-lag", &self.max_lag),
            ("max-load", &self.max_load),
            ("between", &self.between),
            ("memory", &memory),
            ("lanes", &lanes),
            ("max-pause", &pause),
        ];
        written.iter().try_fold(change, |change, (name, wanted)| match wanted {
            None => Ok(change),
            Some(value) => {
                let value = value.as_deref().unwrap_or("none");
                let later = format!("{name}={value}").parse::<RateChange>();
                let wrong = |e: String| Failure::bad(format!("{name}: {e}")).with_remedy(LIMITS);
                later.map(|later| change.and(later)).map_err(wrong)
            }
        })
    }
}

/// A cutover.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CutoverWanted {
    /// The job's name once more, where it is no dry run.
    pub confirm: Option<String>,
    /// Only find out whether it could be done.
    pub dry_run: bool,
    fence: FenceChoice,
    max_pause_ms: u64,
    compare: Compared,
    reverse: bool,
    back: bool,
    fence_for_ms: u64,
    quiet_for_ms: u64,
    wait_for_quiet_ms: u64,
    /// Not before this time.
    at: Option<String>,
    /// Only at this time of the day.
    between: Option<String>,
    /// Only once writes would be paused for at most `max_pause_ms`.
    when_ready: bool,
}

impl Default for CutoverWanted {
    fn default() -> CutoverWanted {
        CutoverWanted {
            confirm: None,
            dry_run: false,
            fence: FenceChoice::None,
            max_pause_ms: 100,
            compare: Compared::Sample,
            reverse: false,
            back: false,
            fence_for_ms: 60_000,
            quiet_for_ms: 5_000,
            wait_for_quiet_ms: 600_000,
            at: None,
            between: None,
            when_ready: false,
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum FenceChoice {
    None,
    Pause,
    Acl,
    ReadonlyReplica,
    External,
    Front,
}

#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Compared {
    None,
    Counts,
    Sample,
    Full,
}

impl CutoverWanted {
    /// How long it may take until it is answered.
    fn within(&self) -> Duration {
        CUTOVER_WITHIN + Duration::from_millis(self.max_pause_ms.saturating_add(self.wait_for_quiet_ms))
    }

    /// What was chosen, for who looks at it later.
    pub fn chosen(&self) -> Value {
        json!({
            "fence": self.fence, "max_pause_ms": self.max_pause_ms, "compare": self.compare,
            "reverse": self.reverse, "back": self.back,
        })
    }

    /// When it is due, where that is not now.
    fn when(&self) -> Answer<When> {
        let wrong = |name: &str, e: TimeError| Failure::bad(format!("{name}: {e}")).with_remedy(LATER);
        let at = self.at.as_deref().map(parse_time).transpose().map_err(|e| wrong("at", e))?;
        let window = self.between.as_deref().map(str::parse).transpose();
        let window = window.map_err(|e| wrong("between", e))?;
        Ok(When { not_before_s: at, window, when_ready: self.when_ready })
    }

    fn options(&self, folder: &Path, sync: &Status) -> Answer<CutoverOptions> {
        if self.max_pause_ms == 0 || self.max_pause_ms > PAUSE_MAX_MS {
            return Err(Failure::bad(format!("max_pause_ms is from 1 to {PAUSE_MAX_MS}"))
                .with_remedy("leave it out for 100"));
        }
        if self.reverse && self.back {
            return Err(
                Failure::bad("a way back has no other way back").with_remedy("leave out reverse or back")
            );
        }
        let front = match self.fence {
            FenceChoice::Front => Some(fronts::of_cutover(folder, &[], (&sync.source, &sync.target))?),
            _ => None,
        };
        Ok(CutoverOptions {
            max_pause_ms: self.max_pause_ms,
            fence: match self.fence {
                FenceChoice::None => WriterFenceKind::None,
                FenceChoice::Pause => WriterFenceKind::Pause { limit_ms: self.fence_for_ms },
                FenceChoice::Acl => WriterFenceKind::Acl,
                FenceChoice::ReadonlyReplica => WriterFenceKind::ReadonlyReplica,
                FenceChoice::External => {
                    WriterFenceKind::External { quiet_ms: self.quiet_for_ms, wait_ms: self.wait_for_quiet_ms }
                }
                FenceChoice::Front => WriterFenceKind::Front,
            },
            front,
            compare: match self.compare {
                Compared::None => Compare::None,
                Compared::Counts => Compare::Counts,
                Compared::Sample => Compare::Sample,
                Compared::Full => Compare::Full,
            },
            accept_failures: false,
            reverse: self.reverse,
            back: self.back,
            dry_run: self.dry_run,
        })
    }
}

/// The job of this name, also where it has ended meanwhile: all of it has to be given, since a beginning
/// could be another one's tomorrow.
pub(crate) async fn find(inner: &Inner, name: &str) -> Answer<Entry> {
    let (jobs, wanted) = (inner.jobs(), name.to_owned());
    let found = tokio::task::spawn_blocking(move || {
        let all = jobs.all()?;
        Ok::<_, whimbrel_engine::error::Error>(Store::of_name(all, |entry| &entry.status, &wanted))
    });
    let found = found.await.map_err(unread)??;
    found.ok_or_else(|| no_job(name))
}

/// There is none of this name.
pub(crate) fn no_job(name: &str) -> Failure {
    Failure::missing(format!("there is no job {name}"))
        .with_remedy("see the list of jobs; the whole name is needed, not the beginning of it")
}

/// What has ended cannot be asked for anything.
fn has_ended(name: &str, phase: &str) -> Failure {
    Failure::conflict(format!("job {name} has ended already: {phase}"))
        .with_remedy("nothing is left to do; its page has the report")
}

/// Only a sync has a cutover.
fn no_sync(name: &str) -> Failure {
    Failure::conflict(format!("job {name} is no sync: only a sync can be cut over"))
        .with_remedy("name the sync")
}

/// The folder cannot be read.
fn unread(e: impl std::fmt::Display) -> Failure {
    Failure::conflict(e.to_string()).with_remedy("ask again")
}

/// Pauses, resumes, or sets.
pub(crate) async fn steer(inner: Arc<Inner>, name: String, who: String, request: Request) -> Answer<Value> {
    let entry = running(&inner, &name).await?;
    let by = by_token(&who);
    let rates = service::steered(&inner.jobs().store, &entry.status.id, request, Some(&by)).await?;
    Ok(json!({"job": name, "rates": rates}))
}

async fn running(inner: &Inner, name: &str) -> Answer<Entry> {
    let entry = find(inner, name).await?;
    match (entry.running, entry.status.ended) {
        (true, _) => Ok(entry),
        (false, true) => Err(has_ended(name, &entry.status.phase)),
        (false, false) => Err(Failure::conflict(format!("job {name} does not run: it was interrupted"))
            .with_remedy("continue it first, by go-on or by the command on its page")),
    }
}

/// Ends a job, and undoes what can be undone.
pub(crate) async fn cancel(inner: Arc<Inner>, name: String) -> Answer<Value> {
    let entry = find(&inner, &name).await?;
    let status = &entry.status;
    if let (Some(mover), Kind::Move, false) = (&inner.mover, status.kind, status.ended)
        && status.cluster == mover.cluster()
    {
        mover.queue.cancel(&name).await?;
        return Ok(asked_to_end(&name));
    }
    match inner.jobs().cancel(&entry).await? {
        CancelAnswer::Discarded { leaves_fence } => {
            Ok(json!({"job": name, "state": "cancelled", "leaves_fence": leaves_fence}))
        }
        CancelAnswer::Asked => Ok(asked_to_end(&name)),
        CancelAnswer::HasEnded => Err(has_ended(&name, &status.phase)),
        CancelAnswer::NeedsCluster => {
            let what = format!("job {name} was interrupted, and is of another cluster: {}", status.cluster);
            Err(Failure::conflict(what).with_remedy(format!("on a terminal: whimbrel jobs cancel {name}")))
        }
    }
}

/// It was asked to end. Whether it could still be cancelled, its phase says once it has ended.
fn asked_to_end(name: &str) -> Value {
    json!({"job": name, "state": "asked"})
}

/// Jobs of a plan that are to be ended.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlanCancelWanted {
    /// The cluster's address.
    pub confirm: Option<String>,
    /// The jobs that were shown when that was confirmed; `None` for all that have not ended.
    pub jobs: Option<Vec<String>>,
}

/// The cluster of a plan's jobs that have not ended.
pub(crate) async fn cluster_of_plan(inner: &Inner, plan: &str) -> Answer<String> {
    Ok(left_of_plan(inner, plan).await?.swap_remove(0).status.cluster)
}

/// Jobs of a plan that have not ended: one at least.
async fn left_of_plan(inner: &Inner, plan: &str) -> Answer<Vec<Entry>> {
    let (jobs, of) = (inner.jobs(), plan.to_owned());
    let listing = tokio::task::spawn_blocking(move || jobs.of_plan(&of));
    let left = listing.await.map_err(unread)??;
    if left.is_empty() {
        return Err(Failure::conflict(format!("no job of the plan {plan} is left that could be cancelled"))
            .with_remedy("see the list of jobs for how they ended"));
    }
    Ok(left)
}

/// Ends jobs of a plan that have not ended: all of them, or those that were `named` as all of them. Those
/// that wait for their turn come first: none of them is to begin when another one ends.
pub(crate) async fn cancel_plan(
    inner: Arc<Inner>,
    plan: String,
    named: Option<Vec<String>>,
) -> Answer<Value> {
    let left = left_of_plan(&inner, &plan).await?;
    refuse_unseen(&left, named.as_deref())?;
    let (mut cancelled, mut refused) = (Vec::new(), Vec::new());
    for Entry { status, .. } in left {
        match cancel(inner.clone(), status.id.clone()).await {
            Ok(_) => cancelled.push(status.id),
            Err(Failure { error, remedy, .. }) => {
                refused.push(json!({"job": status.id, "error": error, "remedy": remedy}));
            }
        }
    }
    Ok(json!({"jobs": cancelled, "refused": refused}))
}

/// Nobody ends jobs that they were not shown.
fn refuse_unseen(left: &[Entry], named: Option<&[String]>) -> Answer<()> {
    let Some(named) = named else { return Ok(()) };
    let ids = left.iter().map(|entry| &entry.status.id);
    let unseen: Vec<&str> = ids.filter(|id| !named.contains(id)).map(String::as_str).collect();
    if unseen.is_empty() {
        return Ok(());
    }
    let what = format!("this plan has other jobs that have not ended: {}", unseen.join(", "));
    Err(Failure::conflict(what).with_remedy("nothing was cancelled: look at the list again, and confirm it"))
}

/// Has the target of a sync take over, or finds out whether it could.
pub(crate) async fn cut_over(inner: Arc<Inner>, name: String, wanted: CutoverWanted) -> Answer<Value> {
    let entry = running(&inner, &name).await?;
    if entry.status.kind != Kind::Sync {
        return Err(no_sync(&name));
    }
    let options = wanted.options(&inner.options.state_dir, &entry.status)?;
    let when = wanted.when()?;
    let store = inner.jobs().store;
    let socket = store.socket(&name);
    // A console that stops withdraws what it can: nothing is begun that nobody would hear of.
    let cut_over = async |options| {
        let call = Call { socket: &socket, request: Request::Cutover(options), within: wanted.within() };
        Answer::Ok(call.make(&inner.stop, |_| {}).await?.outcome?)
    };
    if !when.is_later() || wanted.dry_run {
        let report = cut_over(options).await?;
        return Ok(json!({"outcome": report, "text": in_words(&report, wanted.dry_run)}));
    }
    // The sync would refuse it as well, but only after it was rehearsed.
    if options.fence == WriterFenceKind::None {
        return Err(Failure::bad("without a fence nothing is handed over, so there is nothing to schedule")
            .with_remedy("name a fence"));
    }
    if let Some(rehearsal) = rehearsal(&entry.status, &options) {
        cut_over(rehearsal).await?;
    }
    let scheduled = Scheduled { when, options };
    let words = scheduled.in_words();
    let request = Request::Schedule(Some(scheduled));
    service::ask(&store, &name, request, "schedule the cutover of").await?;
    Ok(json!({"scheduled": words, "text": [format!("scheduled: it cuts over {words}")]}))
}

/// Takes a cutover back that was scheduled.
pub(crate) async fn withdraw(inner: Arc<Inner>, name: String) -> Answer<Value> {
    if find(&inner, &name).await?.status.kind != Kind::Sync {
        return Err(no_sync(&name));
    }
    let (_, stood) = service::withdraw_cutover(&inner.jobs().store, &name).await?;
    if !stood {
        return Err(Failure::conflict(format!("no cutover of {name} is scheduled"))
            .with_remedy("nothing is left to take back"));
    }
    Ok(json!({"job": name}))
}

/// Goes on with a copy, a sync or a verification that was interrupted.
pub(crate) async fn go_on(inner: Arc<Inner>, name: String, wanted: GoOnWanted, who: String) -> Answer<Value> {
    let Entry { status, running } = find(&inner, &name).await?;
    if status.ended {
        return Err(has_ended(&name, &status.phase));
    }
    if running {
        return Err(Failure::conflict(format!("job {name} runs")).with_remedy("nothing has to go on"));
    }
    if status.again.is_empty() {
        return Err(Failure::conflict(format!("job {name} cannot go on from here"))
            .with_remedy("its page says what goes on with it, if anything does"));
    }
    let entry = inner.runs.clone().go_on(&status, wanted, who).await?;
    let (store, id) = (inner.jobs().store, entry.status.id);
    // As it was steered last, which its command does not know. It may have ended by now.
    let last = status.rates.as_change();
    let mut failed = Vec::new();
    if last != RateChange::default() {
        failed.extend(service::ask(&store, &id, Request::Set(last), "set the rates of").await.err());
    }
    if status.rates.paused {
        failed.extend(service::ask(&store, &id, Request::Pause, "pause").await.err());
    }
    let warning = failed.first().filter(|_| store.is_served(&id)).map(|error| {
        format!("{id} goes on, but without the limits or the pause that it had: {error}. Set them again")
    });
    Ok(json!({"name": id, "warning": warning}))
}

/// What came of a cutover.
fn in_words(report: &Value, dry_run: bool) -> Vec<String> {
    let number = |name: &str| report[name].as_u64().unwrap_or(0);
    let notices = report["notices"].as_array().into_iter().flatten();
    let mut lines: Vec<String> = notices.filter_map(|notice| notice.as_str().map(str::to_owned)).collect();
    lines.push(match dry_run {
        true => format!("writes would be paused for about {}", format_duration_ms(number("estimate_ms"))),
        false => format!(
            "writes were paused for {}, and {} drained meanwhile",
            format_duration_ms(number("pause_ms")),
            format_count_of(number("drained"), "key")
        ),
    });
    lines.push(compared(report));
    if dry_run {
        lines.push("nothing was changed, and no write was paused".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_rates_stay_and_null_takes_a_bound_away() {
        let change = |text: &str| {
            let wanted = serde_json::from_str::<RatesWanted>(text).map_err(|e| e.to_string())?;
            wanted.change().map_err(|e| e.error)
        };
        let set = change(r#"{"rate_keys": 100, "rate_bytes": null}"#).expect("rates");
        assert_eq!((set.keys, set.bytes, set.max_latency_ms), (Some(100), Some(0), None));
        assert_eq!(change("{}").expect("rates"), RateChange::default());
        let others = r#"{"max_lag": "64MiB", "max_load": null, "between": "01:00-05:00", "memory_bytes": 9}"#;
        let others = change(others).expect("limits");
        let typed = ["max-lag=64MiB", "max-load=none", "between=01:00-05:00", "memory=9"];
        let typed = typed.iter().map(|one| one.parse().expect("a limit"));
        assert_eq!(others, typed.fold(RateChange::default(), RateChange::and));
        for wrong in [
            r#"{"rate": 1}"#,
            r#"{"rate_keys": -1}"#,
            r#"{"rate_keys": 0}"#,
            r#"{"rate_keys": "many"}"#,
            r#"{"max_lag": "far"}"#,
            r#"{"max_load": 60}"#,
            r#"{"between": "25:00-26:00"}"#,
            r#"{"memory_bytes": 0}"#,
            "7",
        ] {
            assert!(change(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_jobs_that_were_shown_are_cancelled() {
        let left = ["a", "b"].map(|id| {
            let status = Status { id: id.to_owned(), ..Status::default() };
            Entry { status, running: true }
        });
        let with = |named: &[&str]| {
            let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
            refuse_unseen(&left, Some(&named))
        };
        assert!(refuse_unseen(&left, None).is_ok() && with(&["a", "b", "has-ended"]).is_ok());
        let refused = with(&["a"]).expect_err("b was not shown");
        assert!(refused.error.ends_with(": b") && refused.remedy.is_some(), "{refused:?}");
    }

    #[test]
    fn a_cutover_is_bounded_and_has_one_direction() {
        let of = |text: &str| {
            let wanted: CutoverWanted = serde_json::from_str(text).expect("a cutover");
            wanted.options(Path::new("/nowhere"), &Status::default()).map_err(|e| e.error)
        };
        let usual = of("{}").expect("possible");
        assert_eq!((usual.max_pause_ms, usual.fence, usual.dry_run), (100, WriterFenceKind::None, false));
        assert!(of(r#"{"max_pause_ms": 0}"#).is_err() && of(r#"{"max_pause_ms": 60001}"#).is_err());
        assert!(of(r#"{"reverse": true, "back": true}"#).is_err());
        assert!(of(r#"{"fence": "front"}"#).is_err(), "there is no front");
        assert!(serde_json::from_str::<CutoverWanted>(r#"{"fence": "wall"}"#).is_err());
        let when = |text: &str| serde_json::from_str::<CutoverWanted>(text).expect("a cutover").when();
        assert!(!when("{}").expect("now").is_later());
        let at = when(r#"{"at": "2026-11-26T02:00Z", "between": "01:00-05:00"}"#).expect("later");
        assert_eq!(at.in_words(100), "at 2026-11-26 02:00:00Z, between 01:00-05:00Z");
        assert!(when(r#"{"at": "soon"}"#).is_err() && when(r#"{"between": "night"}"#).is_err());
        let patient = format!(r#"{{"wait_for_quiet_ms": {}}}"#, u64::MAX);
        let patient: CutoverWanted = serde_json::from_str(&patient).expect("a cutover");
        assert!(patient.within() > CUTOVER_WITHIN);
    }
}
