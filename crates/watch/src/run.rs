//! Shows it: a page with keys on a terminal, lines or JSON elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use nix::libc::SIGTSTP;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_control::http;
use whimbrel_control::jobs::{Ask, CancelAnswer, FENCE_LEFT, Jobs};
use whimbrel_control::service;
use whimbrel_control::steering::{Request, Standing};
use whimbrel_control::store::{Entry, Kind, Status};
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_terminal::keyboard::{self, Keyboard, draw};
use whimbrel_terminal::plain::plain;
use whimbrel_terminal::print::{for_stdout, line};
use whimbrel_terminal::screen::{Screen, height_of_stdout};

use crate::app::{Action, App};
use crate::http_page;
use crate::job::{GoesOn, last_words, page};
use crate::list::{List, chosen};
use crate::poll::{PERIOD, Polled, Poller, poll};
use crate::watched::{Moment, Watched};

/// How often the page is drawn where nothing happens: it says how long ago things were heard.
const DRAWN_EVERY: Duration = Duration::from_millis(500);

/// Moves to the top left and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// How it is shown.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// Once, not until the end.
    pub once: bool,
    /// As JSON, an object a line.
    pub json: bool,
}

/// Shows a process that reports over HTTP how it stands: a sync, a daemon, a coordinator. Until `stop`, or
/// once.
///
/// # Errors
/// As [`http::status_at`].
pub async fn watch_at(at: &str, form: Form, stop: &CancellationToken) -> Result<()> {
    let mut last: Option<Value> = None;
    let mut job: Option<Watched> = None;
    loop {
        let snapshot = http::status_at(at).await?;
        if snapshot.is_object() {
            let shown = match (form.json, serde_json::from_value::<Standing>(snapshot.clone())) {
                (true, _) => show_json(&snapshot),
                (false, Ok(standing)) => show_text(form, &page_of(&mut job, standing)),
                (false, Err(_)) => {
                    show_text(form, &http_page::page(&snapshot, last.as_ref(), Screen::of_stdout()))
                }
            };
            if shown.is_err() || form.once {
                // Once is enough, or its reader has left.
                return Ok(());
            }
            last = Some(snapshot);
        }
        if stop.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_none() {
            return Ok(());
        }
    }
}

/// Shows the job that is named, or begins so; where none is, the only one that runs, or the list of all.
/// Until it has ended, `stop` or the key q; or once. On a terminal keys steer it.
///
/// # Errors
/// `Options` where there is no such job, or none is named and none runs; `Own` where the folder cannot be
/// read, or a job that is to be shown once does not answer.
pub async fn watch_jobs(
    jobs: Jobs,
    named: Option<&str>,
    form: Form,
    goes_on: GoesOn<'_>,
    stop: &CancellationToken,
) -> Result<()> {
    let has_keys = keyboard::is_there() && !form.once && !form.json;
    let jobs = Arc::new(jobs);
    let job = match named {
        Some(named) => Some(jobs.find(named)?),
        None => {
            let all = jobs.all()?;
            let running: Vec<Entry> = all.iter().filter(|entry| entry.running).cloned().collect();
            if running.is_empty() && (all.is_empty() || !has_keys) {
                let error = Error::options(Side::Own, "find the job", "no job runs in this state folder");
                return Err(error.with_remedy("see `whimbrel jobs`, or name another folder with --state-dir"));
            }
            chosen(&running, !has_keys)
        }
    };
    match (job, has_keys) {
        (job, true) => pressed(&jobs, job, goes_on, stop).await,
        (Some(job), false) => follow(&jobs, job, form, goes_on, stop).await,
        (None, false) => list(&jobs, form, stop).await,
    }
}

/// The page of a job that stands so.
fn page_of(job: &mut Option<Watched>, standing: Standing) -> String {
    let (now, entry) = (Moment::now(), Entry { status: standing.job.clone(), running: true });
    let watched = job.get_or_insert_with(|| Watched::new(entry.clone(), now));
    let polled =
        Polled { entry: Some(entry), standing: Some(standing), events: Vec::new(), has_report: false };
    watched.note(polled, now);
    let lines = page(watched, None, now, Screen::of_stdout(), None);
    lines.into_iter().map(|line| line + "\n").collect()
}

fn show_json(object: &Value) -> io::Result<()> {
    writeln!(io::stdout(), "{}", plain(&object.to_string()))
}

/// Shows a page, in the place of the last one where that can be.
fn show_text(form: Form, text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    let clear = if !form.once && out.is_terminal() { CLEAR } else { "" };
    write!(out, "{clear}{}", for_stdout(text))?;
    out.flush()
}

/// Shows all jobs, without keys.
async fn list(jobs: &Jobs, form: Form, stop: &CancellationToken) -> Result<()> {
    let mut list = List::default();
    loop {
        let seen = jobs.as_they_are(jobs.all()?).await;
        let shown = match form.json {
            true => {
                let objects: Vec<Value> = seen.iter().map(|seen| seen.as_object(None)).collect();
                show_json(&json!({"jobs": objects}))
            }
            false => {
                list.note(seen, Moment::now());
                let lines = list.page(Moment::now(), Screen::of_stdout(), None);
                show_text(form, &(lines.join("\n") + "\n"))
            }
        };
        let pause = async { stop.run_until_cancelled(tokio::time::sleep(PERIOD)).await };
        if shown.is_err() || form.once || pause.await.is_none() {
            return Ok(());
        }
    }
}

/// Shows one job, without keys.
async fn follow(
    jobs: &Jobs,
    entry: Entry,
    form: Form,
    goes_on: GoesOn<'_>,
    stop: &CancellationToken,
) -> Result<()> {
    let mut watched = Watched::new(entry, Moment::now());
    let (mut last, mut is_first) = (None, true);
    loop {
        let polled = poll(jobs, watched.status()).await;
        let answers = polled.standing.is_some();
        watched.note(polled, Moment::now());
        let over = watched.over().is_some();
        if form.once && !over && !answers {
            let what = format!("{} is stopped or hangs: it does not answer", watched.status().label());
            return Err(Error::own("watch the job", what).with_remedy(
                "see what the process does that runs it: SIGCONT resumes one that was stopped",
            ));
        }
        // What has ended before is shown as well.
        let shown = match (answers || over && is_first, form.json) {
            (true, true) => show_json(&object(&watched)),
            (true, false) => show_text(form, &as_text(&watched, last.as_ref(), goes_on)),
            (false, true) => Ok(()),
            (false, false) => show_silence(&watched),
        };
        if shown.is_err() || form.once || over && is_first {
            return Ok(());
        }
        if over {
            if !form.json {
                line(&last_words(&watched, goes_on(watched.status()).as_deref()));
            }
            return Ok(());
        }
        (last, is_first) = (Some(watched.details.clone()), false);
        if stop.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_none() {
            return Ok(());
        }
    }
}

/// For how long nothing was heard, where that is worth a line.
fn show_silence(watched: &Watched) -> io::Result<()> {
    match watched.silent(Moment::now()) {
        Some(silence) => {
            let name = watched.status().label();
            writeln!(
                io::stdout(),
                "{}",
                for_stdout(&format!("SILENT   nothing heard from {name} for {} s", silence.as_secs()))
            )
        }
        None => Ok(()),
    }
}

/// A job for programs: what its kind shows, and beside it what every job does.
fn object(watched: &Watched) -> Value {
    let mut object = match &watched.details {
        Value::Object(details) => Value::Object(details.clone()),
        _ => json!({}),
    };
    object["job"] = watched.seen(Moment::now()).as_object(None);
    object
}

fn as_text(watched: &Watched, last: Option<&Value>, goes_on: GoesOn<'_>) -> String {
    let screen = Screen::of_stdout();
    if watched.status().kind == Kind::Sync && watched.details.is_object() {
        return http_page::page(&watched.details, last.filter(|last| last.is_object()), screen);
    }
    let command = goes_on(watched.status());
    page(watched, command.as_deref(), Moment::now(), screen, None).join("\n") + "\n"
}

/// Shows one job, or all, with keys.
async fn pressed(
    jobs: &Arc<Jobs>,
    job: Option<Entry>,
    goes_on: GoesOn<'_>,
    stop: &CancellationToken,
) -> Result<()> {
    let fail = |e: io::Error| Error::own("use the terminal", e);
    let mut watched = job.map(|entry| Watched::new(entry, Moment::now()));
    if let Some(job) = &mut watched {
        // Before anything is said of how long ago it was heard.
        let Some(polled) = stop.run_until_cancelled(poll(jobs, job.status())).await else { return Ok(()) };
        job.note(polled, Moment::now());
    }
    let status = watched.as_ref().map(|job| job.status().clone());
    let mut app = App::new(watched);
    let mut poller = Poller::at(jobs.clone(), status);
    let mut orders: JoinSet<(Status, String)> = JoinSet::new();
    let mut keyboard = Keyboard::open().map_err(fail)?;
    let mut suspended = signal(SignalKind::from_raw(SIGTSTP)).map_err(fail)?;
    // Who has gone sees nothing any more, but the terminal may go on.
    let mut hung_up = signal(SignalKind::hangup()).map_err(fail)?;
    let mut resized = signal(SignalKind::window_change()).map_err(fail)?;
    let mut drawn = tokio::time::interval(DRAWN_EVERY);
    let has_ended = loop {
        show(&app, goes_on).map_err(fail)?;
        tokio::select! {
            () = stop.cancelled() => break false,
            sight = poller.next() => if app.note(sight, Moment::now())? {
                break true;
            },
            Some(answer) = orders.join_next() => match answer {
                Ok((of, words)) => app.answered(&of, &words),
                Err(_) => app.broken_off(),
            },
            keys = keyboard.keys() => {
                let mut quits = false;
                for key in keys.map_err(fail)? {
                    // At once: an order is for the job that is shown when its key is pressed.
                    let (asked, action) = (app.is_typing(), app.press(key, Moment::now()));
                    match action {
                        Action::None if app.is_typing() == asked => continue,
                        Action::None => {}
                        Action::Quit => quits = true,
                        Action::Open(status) => poller = Poller::at(jobs.clone(), Some(*status)),
                        Action::Back => poller = Poller::at(jobs.clone(), None),
                        Action::Order(ask) => {
                            if let Some(job) = app.job() {
                                orders.spawn(order(jobs.clone(), job.entry.clone(), ask));
                            }
                            continue;
                        }
                    }
                    // What was typed before a page or a question was seen is not meant for it.
                    break;
                }
                if quits {
                    break false;
                }
            }
            _ = hung_up.recv() => break false,
            _ = suspended.recv() => keyboard.suspend().map_err(fail)?,
            _ = resized.recv() => {}
            _ = drawn.tick() => {}
        }
    };
    // What is asked of a job comes to its end although nobody looks any more.
    let mut late = Vec::new();
    while let Some(Some(answer)) = stop.run_until_cancelled(orders.join_next()).await {
        late.extend(answer.ok().map(|(of, words)| format!("{}: {words}", of.label())));
    }
    leave(&app, goes_on, keyboard).map_err(fail)?;
    late.iter().for_each(|words| line(words));
    if let (true, Some(job)) = (has_ended, app.job()) {
        line(&last_words(job, goes_on(job.status()).as_deref()));
    }
    Ok(())
}

fn show(app: &App, goes_on: GoesOn<'_>) -> io::Result<()> {
    let (screen, height) = (narrower(Screen::of_stdout()), height_of_stdout());
    draw(&app.page(goes_on, Moment::now(), screen, height), app.is_typing())
}

/// Some terminals begin a new line behind the last column.
fn narrower(screen: Screen) -> Screen {
    Screen { width: screen.width.saturating_sub(1).max(1), ..screen }
}

/// The page as it was last stays, without its keys, and the terminal is as it was before.
fn leave(app: &App, goes_on: GoesOn<'_>, keyboard: Keyboard) -> io::Result<()> {
    let mut lines = app.last_page(goes_on, Moment::now(), narrower(Screen::of_stdout()));
    lines.truncate(height_of_stdout().saturating_sub(1));
    let shown = draw(&lines, false);
    drop(keyboard);
    shown.and_then(|()| writeln!(io::stdout()))
}

/// Asks a job for something; what came of it, in a line.
async fn order(jobs: Arc<Jobs>, entry: Entry, ask: Ask) -> (Status, String) {
    let (id, store) = (&entry.status.id, &jobs.store);
    let outcome = match ask {
        Ask::Pause => service::ask(store, id, Request::Pause, "pause")
            .await
            .map(|_| "paused: no more keys move until p resumes it".to_owned()),
        Ask::Resume => {
            service::ask(store, id, Request::Resume, "resume").await.map(|_| "its keys move again".to_owned())
        }
        Ask::Cancel => cancel(&jobs, &entry).await,
        Ask::Set | Ask::Cutover | Ask::GoOn => Ok("that has no key here".to_owned()),
    };
    let words = outcome.unwrap_or_else(|error| format!("refused: {error}"));
    (entry.status, words)
}

async fn cancel(jobs: &Jobs, entry: &Entry) -> Result<String> {
    let status = &entry.status;
    Ok(match jobs.cancel(entry).await? {
        CancelAnswer::HasEnded => format!("it has ended already: {}", status.phase),
        CancelAnswer::Asked => "its process was asked to end it".to_owned(),
        CancelAnswer::Discarded { leaves_fence: false } => "cancelled: it cannot go on any more".to_owned(),
        CancelAnswer::Discarded { leaves_fence: true } => format!("cancelled{FENCE_LEFT}"),
        CancelAnswer::NeedsCluster => format!(
            "no process runs it: whimbrel jobs cancel {} rolls back what it began in its cluster",
            status.label()
        ),
    })
}
