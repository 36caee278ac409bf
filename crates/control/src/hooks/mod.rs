//! Commands of the user's that are run at events of a job, and webhooks to which the events are posted.
//!
//! There are two kinds of events:
//!
//! - Those that only notify are what differs between one standing of the job and the next, as its events are
//!   in [`store`](crate::store). They wait in a queue, which is bounded, and are run beside the job, one
//!   after the other. Their results are noted among the events of the job, and change nothing.
//! - Those that a cutover waits for are run by it at their exact moment: see
//!   [`whimbrel_flow::sync::Hooks`].
//!
//! **Bounds.** Each command has a limited time, after which it is killed. Of what it prints the end is kept.
//! A webhook has the same time, with all its tries.
//! At the end of a job those that wait have twice the limit together, and what comes with the end has the
//! limit of each once more.

mod event;
mod run;
mod webhook;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_flow::sync::{HookReport, Hooks, Moment, Occasion, Ran, SyncPhase};

pub use self::event::HookEvent;
use self::webhook::PACE;
pub use self::webhook::{Sender, Webhook};
use crate::clock::now_s;
use crate::store::{CUT_OVER, FAILED, HookEnd, Kind, Status, Store, What};

/// Hooks of one job, at most: a cutover waits for some of them.
const HOOKS_MAX: usize = 16;

/// The phases of a front that are its events.
const FRONT_FORWARDS: &str = "forwarding";
const FRONT_MOVES: &str = "moving";
const FRONT_DONE: &str = "done";

/// Events that wait for their hooks; those of further ones are not run.
const QUEUE_MAX: usize = 32;

/// How often to look at a job that moves slots.
const POLL_PERIOD: Duration = Duration::from_millis(500);

/// Characters of the last line that a command printed, as they are shown with its failure.
const SHOWN_CHARS_MAX: usize = 200;

/// What is done, and the event at which it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// When.
    pub event: HookEvent,
    /// What.
    pub action: Action,
}

/// What is done at an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A command is run, as a shell takes it.
    Run(String),
    /// The event is posted.
    Post(Webhook),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Run(command) => f.write_str(command),
            Action::Post(webhook) => webhook.fmt(f),
        }
    }
}

/// As it is written: `EVENT=COMMAND`, or `EVENT=https://…`.
impl FromStr for Hook {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Hook, String> {
        let (event, command) = text.split_once('=').unwrap_or((text, ""));
        let event = event.trim().parse()?;
        match command.trim() {
            "" => Err(format!("say what is to be run: {event}=COMMAND")),
            text if Webhook::is_meant(text) => Ok(Hook { event, action: Action::Post(text.parse()?) }),
            command => Ok(Hook { event, action: Action::Run(command.to_owned()) }),
        }
    }
}

/// What is run at events of jobs, as this process was configured.
#[derive(Debug, Clone, Default)]
pub struct HookSettings {
    /// Which hooks, in the order in which they are run.
    pub hooks: Vec<Hook>,
    /// How long each may take.
    pub limit: Duration,
    /// How webhooks are reached.
    pub sender: Sender,
}

impl HookSettings {
    /// The same, if all of them can be run at events of a job of this kind.
    ///
    /// # Errors
    /// `Options` if one cannot, or there are too many.
    pub fn check(self, kind: Kind) -> Result<HookSettings> {
        let refused = |what: String| Error::options(Side::Own, "read the options", what);
        if self.hooks.len() > HOOKS_MAX {
            return Err(refused(format!("a job has {HOOKS_MAX} hooks at most")));
        }
        match self.hooks.iter().find(|hook| !hook.event.is_of(kind)) {
            Some(hook) => {
                let what = format!("a hook of {}: that does not happen to a {}", hook.event, kind.word());
                Err(refused(what).with_remedy(format!("there are: {}", HookEvent::names_of(kind))))
            }
            None => Ok(self),
        }
    }

    /// Those of a job that begins so; `None` if there are none.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn begin(&self, store: &Store, begun_with: &Status) -> Option<Arc<JobHooks>> {
        if self.hooks.is_empty() {
            return None;
        }
        let (store, begun_with) = (store.clone(), begun_with.clone());
        let before = Mutex::new((begun_with.clone(), BTreeSet::new()));
        let settings = self.clone();
        let runner = Arc::new(Runner { settings, store, begun_with, closes_at: Mutex::default() });
        let (events, queued) = mpsc::channel(QUEUE_MAX);
        let task = tokio::spawn(run_queued(runner.clone(), queued));
        Some(Arc::new(JobHooks { runner, queue: Mutex::new(Some(Queue { events, task })), before }))
    }
}

/// The hooks of a job that this process runs.
#[derive(Debug)]
pub struct JobHooks {
    runner: Arc<Runner>,
    queue: Mutex<Option<Queue>>,
    /// How the job stood last, and what is reported only once and has been.
    before: Mutex<(Status, BTreeSet<&'static str>)>,
}

/// Events that wait, and the task that runs their hooks.
#[derive(Debug)]
struct Queue {
    events: mpsc::Sender<(HookEvent, Status)>,
    task: JoinHandle<()>,
}

impl JobHooks {
    /// A process has begun the job, or goes on with it.
    pub(crate) fn has_begun(&self, is_resumed: bool, now: &Status) {
        self.before.lock().0.clone_from(now);
        self.notify(if is_resumed { HookEvent::Resumed } else { HookEvent::Begun }, now);
    }

    /// Does the `work` of a job that moves slots; others see its state in `latest`. Hooks of its events are
    /// run meanwhile and after it.
    pub(crate) async fn attend<T>(
        &self,
        is_resumed: bool,
        latest: &Mutex<Status>,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let now = || latest.lock().clone();
        self.has_begun(is_resumed, &now());
        let outcome = tokio::select! {
            outcome = work => outcome,
            never = self.poll_on(latest) => match never {},
        };
        self.poll(&now());
        self.drain().await;
        let now = match &outcome {
            Ok(_) => now(),
            Err(error) => Status { message: error.problem(), ..now() },
        };
        self.has_ended(now.ended, &now).await;
        outcome
    }

    async fn poll_on(&self, latest: &Mutex<Status>) -> Infallible {
        loop {
            tokio::time::sleep(POLL_PERIOD).await;
            let now = latest.lock().clone();
            self.poll(&now);
        }
    }

    /// Notifies of what has happened since the job was looked at last.
    pub(crate) fn poll(&self, now: &Status) {
        let mut guard = self.before.lock();
        let (before, reported) = &mut *guard;
        let events = between(before, now);
        before.clone_from(now);
        // Between this and a cutover that is refused it enters that phase again and again.
        let events = events.into_iter().filter(|e| *e != HookEvent::Following || reported.insert(e.name()));
        let events: Vec<HookEvent> = events.collect();
        drop(guard);
        events.into_iter().for_each(|event| self.notify(event, now));
    }

    fn notify(&self, event: HookEvent, now: &Status) {
        if !self.runner.of(event).is_empty()
            && let Some(queue) = &*self.queue.lock()
            && queue.events.try_send((event, now.clone())).is_err()
        {
            let why = "too many events wait for their hooks already".to_owned();
            self.runner.note(&now.id, event, HookEnd::NotRun { why }, String::new());
        }
    }

    /// Runs what waits in the queue; nothing is reported after that. To be called while the job is still
    /// listed under its name.
    pub(crate) async fn drain(&self) {
        let Some(Queue { events, task }) = self.queue.lock().take() else { return };
        *self.runner.closes_at.lock() = Some(Instant::now() + 2 * self.runner.settings.limit);
        drop(events);
        // It does not panic, and ends within that time.
        let _ = task.await;
    }

    /// Runs the hooks of the job's end, which was written down so. `is_over` if nothing is left to be done
    /// for it.
    pub(crate) async fn has_ended(&self, is_over: bool, now: &Status) {
        let events: &[HookEvent] = match (is_over, now.message.is_empty()) {
            (true, _) if now.phase == CUT_OVER => &[HookEvent::CutOver, HookEvent::Ended],
            (true, _) if now.phase == FAILED => &[HookEvent::Failed, HookEvent::Ended],
            (true, _) => &[HookEvent::Ended],
            (false, true) => &[HookEvent::Stopped],
            (false, false) => &[HookEvent::Failed],
        };
        for event in events {
            self.runner.run(*event, now, &Value::Null, None).await;
        }
    }
}

impl Hooks for JobHooks {
    fn at(&self, moment: Moment) -> Vec<HookReport> {
        let event = HookEvent::from(moment);
        let planned = |action: &Action| HookReport {
            event: event.name().to_owned(),
            command: Some(action.to_string()),
            failure: None,
        };
        self.runner.of(event).into_iter().map(planned).collect()
    }

    fn run(&self, occasion: Occasion) -> Ran {
        let runner = self.runner.clone();
        Box::pin(async move {
            let Occasion { moment, why, cutover, until } = occasion;
            let phase = if moment == Moment::Switch { SyncPhase::CutOver } else { SyncPhase::CuttingOver };
            let now = Status {
                phase: phase.to_string(),
                message: why,
                updated_s: now_s(),
                ..runner.begun_with.clone()
            };
            let cutover = serde_json::to_value(&cutover).unwrap_or_default();
            runner.run(moment.into(), &now, &cutover, until).await
        })
    }
}

/// What has happened to a job between two standings.
fn between(before: &Status, now: &Status) -> Vec<HookEvent> {
    let mut events = Vec::new();
    if before.phase != now.phase && now.phase == SyncPhase::Following.to_string() {
        events.push(HookEvent::Following);
    }
    if now.kind == Kind::Front {
        let is_turned = before.source != now.source;
        let is_new = before.phase != now.phase || is_turned;
        // It may be done before it was looked at again.
        let begins = now.phase == FRONT_DONE && (before.phase == FRONT_FORWARDS || is_turned);
        let goes = is_new && now.phase == FRONT_MOVES;
        events.extend((begins || goes).then_some(HookEvent::Moving));
        events.extend((is_new && now.phase == FRONT_DONE).then_some(HookEvent::Moved));
    }
    if before.moved != now.moved && !now.moved.is_empty() {
        events.push(HookEvent::HandedOver);
    }
    match (before.rates.is_paused(), now.rates.is_paused()) {
        (false, true) => events.push(HookEvent::Paused),
        (true, false) => events.push(HookEvent::Unpaused),
        _ => {}
    }
    match (before.message.is_empty(), now.message.is_empty()) {
        // If the job has ended, it says how.
        (true, false) if now.ended => {}
        (true, false) => events.push(HookEvent::Trouble),
        (false, true) => events.push(HookEvent::Recovered),
        _ => {}
    }
    events
}

async fn run_queued(runner: Arc<Runner>, mut queued: mpsc::Receiver<(HookEvent, Status)>) {
    while let Some((event, status)) = queued.recv().await {
        let until = *runner.closes_at.lock();
        runner.run(event, &status, &Value::Null, until).await;
    }
}

/// Runs the hooks of a job, and notes what came of them.
#[derive(Debug)]
struct Runner {
    settings: HookSettings,
    store: Store,
    begun_with: Status,
    /// When those that wait have waited long enough.
    closes_at: Mutex<Option<Instant>>,
}

impl Runner {
    fn of(&self, event: HookEvent) -> Vec<&Action> {
        let of_it = self.settings.hooks.iter().filter(|hook| hook.event == event);
        of_it.map(|hook| &hook.action).collect()
    }

    /// Runs the hooks of one event, in the order in which they were named. A hook that fails stops the others
    /// only while they get ready for a cutover, which then does not take place.
    async fn run(
        &self,
        event: HookEvent,
        now: &Status,
        cutover: &Value,
        until: Option<Instant>,
    ) -> Vec<HookReport> {
        let mut reports = Vec::new();
        for action in self.of(event) {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let limit = left.map_or(self.settings.limit, |left| left.min(self.settings.limit));
            let run::Ended { end, output } = if limit.is_zero() {
                let why = "there was no time left for it".to_owned();
                run::Ended { end: HookEnd::NotRun { why }, output: String::new() }
            } else {
                self.act(action, (event, now, cutover), limit).await
            };
            let failure = (end != HookEnd::Succeeded).then(|| in_words(&end, &output));
            self.note(&now.id, event, end, output);
            let has_failed = failure.is_some();
            reports.push(HookReport { event: event.name().to_owned(), command: None, failure });
            if has_failed && event == HookEvent::CutoverReady {
                break;
            }
        }
        reports
    }

    /// Does one thing, for `limit` at most.
    async fn act(
        &self,
        action: &Action,
        (event, now, cutover): (HookEvent, &Status, &Value),
        limit: Duration,
    ) -> run::Ended {
        let body = json!({"event": event.name(), "at_s": now_s(), "job": now, "cutover": cutover});
        let body = body.to_string() + "\n";
        match action {
            Action::Run(command) => {
                run::run(command, &self.environment(event, now), body.as_bytes(), limit).await
            }
            Action::Post(to) => {
                webhook::post(to, &self.settings.sender, event.name(), body.as_bytes(), limit, PACE).await
            }
        }
    }

    fn environment(&self, event: HookEvent, now: &Status) -> [(&'static str, String); 8] {
        [
            ("WHIMBREL_EVENT", event.name().to_owned()),
            ("WHIMBREL_JOB", now.id.clone()),
            ("WHIMBREL_KIND", now.kind.word().to_owned()),
            ("WHIMBREL_SOURCE", now.source.clone()),
            ("WHIMBREL_TARGET", now.target.clone()),
            ("WHIMBREL_PHASE", now.phase.clone()),
            ("WHIMBREL_MESSAGE", now.message.clone()),
            ("WHIMBREL_STATE_DIR", self.store.state_dir().to_string_lossy().into_owned()),
        ]
    }

    fn note(&self, id: &str, event: HookEvent, end: HookEnd, output: String) {
        self.store.note(id, What::Hook { hook: event.name().to_owned(), end, output });
    }
}

/// How a command failed, with the last line that it printed.
fn in_words(end: &HookEnd, output: &str) -> String {
    match output.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
        Some(line) => format!("{end}: {}", line.chars().take(SHOWN_CHARS_MAX).collect::<String>()),
        None => end.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far more than any of these takes on a busy machine.
    const LIMIT: Duration = Duration::from_secs(60);

    fn job() -> Status {
        let (source, target) = ("a:1".to_owned(), "b:2".to_owned());
        Status { id: "sync-1".to_owned(), kind: Kind::Sync, source, target, ..Status::default() }
    }

    fn hooks(store: &Store, limit: Duration, hooks: &[(HookEvent, &str)]) -> Arc<JobHooks> {
        let hook = |(event, command): &(HookEvent, &str)| {
            format!("{event}={command}").parse::<Hook>().expect(command)
        };
        let settings =
            HookSettings { hooks: hooks.iter().map(hook).collect(), limit, sender: Sender::default() };
        settings.begin(store, &job()).expect("there are some")
    }

    /// What was noted: the event's name, how it ended, and what it printed.
    fn noted(store: &Store) -> Vec<(String, HookEnd, String)> {
        let hook = |what| match what {
            What::Hook { hook, end, output } => Some((hook, end, output)),
            _ => None,
        };
        store.events("sync-1").into_iter().filter_map(|event| hook(event.what)).collect()
    }

    #[test]
    fn what_differs_is_an_event() {
        let begins = job();
        let follows = Status { phase: "following".to_owned(), ..job() };
        assert_eq!(between(&begins, &follows), [HookEvent::Following]);
        let mut paused = Status { message: "silent".to_owned(), ..follows.clone() };
        paused.rates.paused = true;
        assert_eq!(between(&follows, &paused), [HookEvent::Paused, HookEvent::Trouble]);
        assert_eq!(between(&paused, &paused), []);
        assert_eq!(between(&paused, &follows), [HookEvent::Unpaused, HookEvent::Recovered]);
        let front = |phase: &str| Status { kind: Kind::Front, phase: phase.to_owned(), ..job() };
        let both = [HookEvent::Moving, HookEvent::Moved];
        assert_eq!(between(&front("forwarding"), &front("done")), both, "it was too quick to be seen");
        assert_eq!(between(&front("moving"), &front("done")), both[1..]);
        assert_eq!(between(&front("done"), &front("moving")), both[..1], "it was reversed");
        let back = Status { source: "b:2".to_owned(), target: "a:1".to_owned(), ..front("done") };
        assert_eq!(between(&front("done"), &back), both, "and was there before that was seen");
        let moves = |moved: &str, message: &str, ended: bool| {
            let (moved, message) = (moved.to_owned(), message.to_owned());
            Status { kind: Kind::Move, moved, message, ended, ..job() }
        };
        let none = moves("", "", false);
        assert_eq!(between(&none, &moves("0-5", "", true)), [HookEvent::HandedOver], "also the last ones");
        assert_eq!(between(&none, &moves("", "it cannot", true)), [], "how it ended comes with its end");
    }

    #[tokio::test]
    async fn events_are_reported_one_after_the_other_and_once_where_that_is_enough() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        let say = "echo $WHIMBREL_EVENT of $WHIMBREL_JOB";
        let hooks = hooks(
            &store,
            LIMIT,
            &[
                (HookEvent::Begun, "sleep 0.3; echo slow"),
                (HookEvent::Following, say),
                (HookEvent::Trouble, "echo $WHIMBREL_MESSAGE; exit 7"),
                (HookEvent::CutOver, say),
                (HookEvent::Ended, "echo $WHIMBREL_PHASE from $WHIMBREL_SOURCE to $WHIMBREL_TARGET"),
            ],
        );
        store.publish(&job());
        hooks.has_begun(false, &job());
        let follows = Status { phase: "following".to_owned(), ..job() };
        let cutting = Status { phase: "cutting-over".to_owned(), ..job() };
        for standing in [&follows, &cutting, &follows] {
            hooks.poll(standing);
        }
        hooks.poll(&Status { message: "a:1 is silent".to_owned(), ..follows });
        hooks.drain().await;
        hooks.poll(&job());
        hooks.has_ended(true, &Status { phase: CUT_OVER.to_owned(), ..job() }).await;
        let expected = [
            ("begun", HookEnd::Succeeded, "slow"),
            ("following", HookEnd::Succeeded, "following of sync-1"),
            ("trouble", HookEnd::Failed { code: 7 }, "a:1 is silent"),
            ("cut-over", HookEnd::Succeeded, "cut-over of sync-1"),
            ("ended", HookEnd::Succeeded, "cut over from a:1 to b:2"),
        ];
        assert_eq!(noted(&store), expected.map(|(hook, end, text)| (hook.to_owned(), end, text.to_owned())));
    }

    #[tokio::test]
    async fn hooks_that_hang_hold_the_end_of_a_job_up_for_a_bounded_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        store.publish(&job());
        let hooks = hooks(&store, Duration::from_secs(1), &[(HookEvent::Paused, "sleep 600")]);
        let mut paused = job();
        paused.rates.paused = true;
        for _ in 0..QUEUE_MAX + 10 {
            hooks.poll(&paused);
            hooks.poll(&job());
        }
        hooks.drain().await;
        let noted = noted(&store);
        assert_eq!(noted.len(), QUEUE_MAX + 10, "{noted:?}");
        let timed_out = noted.iter().filter(|(_, end, _)| matches!(end, HookEnd::TimedOut { .. })).count();
        assert!((1..=4).contains(&timed_out), "{noted:?}");
    }

    #[tokio::test]
    async fn a_cutover_hears_what_came_of_its_hooks() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        store.publish(&job());
        let commands = [
            (HookEvent::CutoverReady, "echo stopped"),
            (HookEvent::CutoverReady, "echo; echo it will not >&2; echo; exit 3"),
            (HookEvent::CutoverReady, "echo not reached"),
            (HookEvent::Switch, "exit 1"),
            (HookEvent::Switch, "cat"),
        ];
        let hooks = hooks(&store, LIMIT, &commands);
        let occasion = |moment| Occasion { moment, why: "too slow".to_owned(), cutover: None, until: None };
        assert_eq!(hooks.at(Moment::Switch).len(), 2);
        assert_eq!(hooks.at(Moment::Ready)[0].command.as_deref(), Some("echo stopped"));
        assert_eq!(hooks.at(Moment::Refused), []);
        assert_eq!(noted(&store), [], "none has been run");
        let failures = |ran: Vec<HookReport>| -> Vec<Option<String>> {
            ran.into_iter().map(|hook| hook.failure).collect()
        };
        let failed = |text: &str| Some(text.to_owned());
        let ran = failures(hooks.run(occasion(Moment::Ready)).await);
        assert_eq!(ran, [None, failed("ended with exit code 3: it will not")]);
        let ran = failures(hooks.run(occasion(Moment::Switch)).await);
        assert_eq!(ran, [failed("ended with exit code 1"), None], "the others are run all the same");
        let (_, _, output) = noted(&store).pop().expect("it was run");
        let body: Value = serde_json::from_str(&output).expect("JSON");
        assert_eq!((&body["event"], &body["job"]["target"]), (&json!("switch"), &json!("b:2")));
        let late = Occasion { until: Some(Instant::now()), ..occasion(Moment::Switch) };
        let ran = failures(hooks.run(late).await);
        let no_time = failed("was not run: there was no time left for it");
        assert_eq!(ran, [no_time.clone(), no_time]);
    }
}
