//! The page of one job.

use whimbrel_control::jobs::Ask;
use whimbrel_control::store::{Event, Kind, Status, What};
use whimbrel_core::units::{format_bytes, format_count, format_count_of, format_duration_ms, format_time};
use whimbrel_flow::budget::RatesNow;
use whimbrel_terminal::plain::plain;
use whimbrel_terminal::screen::Screen;

use crate::details;
use crate::watched::{Moment, Over, Watched};

/// Columns of the bar, on a screen that is wide enough.
const BAR: usize = 24;

/// On a narrower one.
const BAR_NARROW: usize = 10;

/// From this width on the screen is wide enough.
const WIDE: usize = 79;

/// Of what happened to the job, at most this many are shown.
const EVENTS_MAX: usize = 100;

/// Below keys per second that say something, no end can be predicted.
const KEYS_PER_S_MIN: f64 = 1.0;

/// The command that goes on with a job that was interrupted; `None` for one that cannot go on.
pub type GoesOn<'a> = &'a (dyn Fn(&Status) -> Option<String> + Sync);

/// What stands below the page of a job.
#[derive(Debug, Default)]
pub(crate) struct Foot {
    /// What came of the last key, in a line.
    pub note: String,
    /// What is typed to cancel it, while that is asked.
    pub typed: Option<String>,
    /// Keys that do something, beside those of the job: `q quit`.
    pub keys: Vec<&'static str>,
}

/// The lines of a page, each no wider than `screen` and without line ends. With a `foot` they are no more
/// than `height`; the last is that with the keys. `goes_on` is the command that goes on with a job that was
/// interrupted.
pub(crate) fn page(
    watched: &Watched,
    goes_on: Option<&str>,
    now: Moment,
    screen: Screen,
    foot: Option<(&Foot, usize)>,
) -> Vec<String> {
    let mut body = head(watched, now, screen);
    body.extend(progress(watched, now, screen));
    let status = watched.status();
    if watched.over().is_none() {
        body.extend(steered(status, &watched.events, foot.is_some()));
    }
    body.extend(details::lines(status, &watched.details, screen));
    if let Some(when) = &status.scheduled {
        body.push(format!("cutover  scheduled {when}"));
    }
    body.extend(ended(watched, goes_on));
    let body = fitted(&body, screen);
    let below = foot.map_or_else(Vec::new, |(foot, _)| fitted(&below(watched, foot, now), screen));
    let room = foot.map_or(usize::MAX, |(_, height)| height.saturating_sub(body.len() + below.len()));
    let events = latest(&watched.events, room.min(EVENTS_MAX), screen);
    let mut lines: Vec<String> = body.into_iter().chain(events).collect();
    if let Some((_, height)) = foot {
        // What there is no room for is the last of what only this kind shows.
        lines.truncate(height.saturating_sub(below.len()));
    }
    lines.extend(below);
    lines
}

/// Which job it is, how it stands, and when that was heard.
fn head(watched: &Watched, now: Moment, screen: Screen) -> Vec<String> {
    let status = watched.status();
    let label = match &status.name {
        Some(name) => format!("{name} ({})", status.id),
        None => status.id.clone(),
    };
    let listens = status.listen.as_ref().map_or_else(String::new, |listen| format!(", listens on {listen}"));
    let state = match watched.over() {
        Some(Over::Gone) => "ended: it is not written down any more".to_owned(),
        Some(Over::Ended) => format!("ended: {}", status.phase),
        _ => watched.seen(now).state_in_words(),
    };
    let state = match (watched.over(), watched.silent(now)) {
        (Some(Over::Ended), _) if status.phase == "failed" => screen.bad(&state),
        (Some(Over::Ended), _) => screen.good(&state),
        (Some(_), _) | (_, Some(_)) => screen.bad(&state),
        (None, None) => state,
    };
    let lasted_ms = |until_s: u64| format_duration_ms(until_s.saturating_sub(status.created_s) * 1_000);
    let time = match watched.over() {
        Some(Over::Ended) => format!(
            "begun {}, ended {}: {}",
            format_time(status.created_s),
            clock(status.updated_s),
            lasted_ms(status.updated_s)
        ),
        _ => format!("{}; begun {}, {} ago", clock(now.s), format_time(status.created_s), lasted_ms(now.s)),
    };
    let mut lines = vec![
        format!("job      {label}"),
        format!("{:<9}{}{listens}", status.kind.word(), status.between()),
        format!("state    {state}"),
        format!("time     {time}"),
    ];
    lines.extend(heard(watched, now));
    if !status.message.is_empty() {
        lines.push(format!("message  {}", status.message));
    }
    lines
}

/// How old it is what is shown.
fn heard(watched: &Watched, now: Moment) -> Option<String> {
    match (watched.over(), watched.silent(now)) {
        (None, Some(silence)) => Some(format!(
            "SILENT   nothing heard for {} s: its process is stopped or hangs. What stands below is from {}",
            silence.as_secs(),
            clock(watched.heard.s)
        )),
        (None, None) => {
            let ago_s = now.at.saturating_duration_since(watched.heard.at).as_secs();
            Some(format!("heard    {ago_s} s ago"))
        }
        (Some(Over::Interrupted | Over::Gone), _) => {
            Some(format!("heard    last at {}; no process runs it", format_time(watched.heard.s)))
        }
        (Some(Over::Ended), _) => None,
    }
}

/// How far it is, how fast it goes, and how long it takes.
fn progress(watched: &Watched, now: Moment, screen: Screen) -> Vec<String> {
    let status = watched.status();
    let what = status.kind.keys_are();
    let mut lines = vec![match status.percent() {
        Some(percent) => {
            let width = if screen.width < WIDE { BAR_NARROW } else { BAR };
            let done = width * usize::try_from(percent).unwrap_or(100).min(100) / 100;
            let (bar, left) = ("#".repeat(done), "-".repeat(width - done));
            let (moved, all) = (format_count(status.keys_moved), format_count_of(status.keys, "key"));
            format!("keys     [{bar}{left}] {percent} %  {moved} of {all} {what}")
        }
        None => format!("keys     not counted yet; {} {what}", format_count(status.keys_moved)),
    }];
    if watched.over().is_none() {
        lines.push(format!("speed    {}", speed(watched, now)));
    }
    lines
}

fn speed(watched: &Watched, now: Moment) -> String {
    let status = watched.status();
    if watched.silent(now).is_some() {
        return "unknown, and so is when it ends".to_owned();
    }
    if status.kind == Kind::Move && status.method != "external" {
        return "known to the servers alone; ETA unknown".to_owned();
    }
    if status.rates.is_paused() {
        return "nothing moves; no ETA while it is paused".to_owned();
    }
    let bytes = watched.bytes_per_s.map(|bytes| format!(", {}/s", format_bytes(bytes.round() as u64)));
    let keys = match watched.keys_per_s {
        Some(keys) => format!("{} keys/s", format_count(keys.round() as u64)),
        None => "not known yet".to_owned(),
    };
    let has_all = status.keys > 0 && status.keys_moved >= status.keys;
    let eta = match (watched.left_ms(), watched.keys_per_s) {
        _ if has_all => String::new(),
        (Some(left_ms), _) => {
            format!("; ETA {}, at {}", format_duration_ms(left_ms), clock(now.s + left_ms.div_ceil(1_000)))
        }
        (None, Some(keys)) if keys < KEYS_PER_S_MIN => "; no ETA: next to nothing moves".to_owned(),
        (None, _) => "; ETA not known yet".to_owned(),
    };
    format!("{keys}{}{eta}", bytes.unwrap_or_default())
}

/// How long it takes, in a word or two; for lists.
pub(crate) fn eta(watched: &Watched, now: Moment) -> String {
    let left_ms = watched.left_ms().filter(|_| watched.silent(now).is_none());
    left_ms.filter(|_| !watched.status().rates.is_paused()).map_or_else(|| "-".to_owned(), format_duration_ms)
}

/// How fast its keys may move, and why they do not.
fn steered(status: &Status, events: &[Event], has_keys: bool) -> Vec<String> {
    let rates = status.rates;
    let mut lines = Vec::new();
    let bounds = RatesNow { paused: false, paused_until_s: None, ..rates };
    if bounds != RatesNow::default() {
        lines.push(format!("limits   {bounds}"));
    }
    if rates.paused {
        let is_pause = |event: &&Event| matches!(event.what, What::Steered { rates } if rates.paused);
        let is_end = |event: &Event| matches!(event.what, What::Steered { rates } if !rates.paused);
        let pauses = events.iter().rev().take_while(|event| !is_end(event)).filter(is_pause);
        let since = pauses.last().map_or_else(String::new, |event| format!(" since {}", clock(event.at_s)));
        let how = if has_keys { "; p resumes it" } else { "; whimbrel jobs resume resumes it" };
        lines.push(format!("paused   by order{since}{how}"));
    } else if let Some(words) = rates.pause_in_words() {
        lines.push(format!("paused   {words}: its keys move at certain times of the day only"));
    }
    lines
}

/// What can be done about a job that is not run any more.
fn ended(watched: &Watched, goes_on: Option<&str>) -> Vec<String> {
    let status = watched.status();
    let report = || match watched.has_report {
        true => format!("whimbrel jobs report {} shows the result", status.id),
        false => format!("whimbrel jobs show {} shows it later", status.id),
    };
    match watched.over() {
        None => Vec::new(),
        Some(Over::Ended) => vec![format!("later    {}", report())],
        Some(Over::Gone) => vec!["later    whimbrel jobs lists what is known of others".to_owned()],
        Some(Over::Interrupted) => vec![match (goes_on, status.kind) {
            (Some(command), Kind::Move) => format!("goes on  {command}"),
            (Some(command), _) => {
                format!("goes on  with its users, passwords and other options: {command}")
            }
            (None, _) => "goes on  not at all: start it again".to_owned(),
        }],
    }
}

/// How it ended, in a sentence for what is read later.
pub(crate) fn last_words(watched: &Watched, goes_on: Option<&str>) -> String {
    let status = watched.status();
    let how = match watched.over() {
        Some(Over::Ended) => format!(": {}", status.phase),
        Some(Over::Interrupted) => ": it was interrupted".to_owned(),
        Some(Over::Gone) | None => String::new(),
    };
    let lines = ended(watched, goes_on);
    let more = lines.iter().map(|line| format!("\n{line}")).collect::<String>();
    format!("ended    {} does not run any more{how}{more}", status.label())
}

/// What cancelling a job does, in a sentence that begins with a verb.
pub(crate) fn cancel_does(status: &Status) -> String {
    match status.kind {
        Kind::Copy => "ends the copy; what was written stays at the target".to_owned(),
        Kind::Verify => "ends the verification, which has written nothing".to_owned(),
        Kind::Sync => {
            "ends the sync: changes are followed no more; what was written stays at the target".to_owned()
        }
        Kind::Move if status.method == "external" => format!(
            "rolls back the slots that were not handed over yet; {} of {} stay at their new owner",
            format_count(status.slots_moved() as u64),
            format_count(status.slots_planned() as u64)
        ),
        Kind::Move => {
            "asks the servers to cancel it; slots that were handed over stay at their new owner".to_owned()
        }
        Kind::Front => "is not possible for a front".to_owned(),
    }
}

/// What came of the last key, and the keys that do something.
fn below(watched: &Watched, foot: &Foot, now: Moment) -> Vec<String> {
    let mut lines = Vec::new();
    if !foot.note.is_empty() {
        lines.push(format!("note     {}", foot.note));
    }
    match &foot.typed {
        Some(typed) => {
            lines.push(format!("cancel   It {}.", cancel_does(watched.status())));
            lines.push(format!("         Type yes and press Enter, or Esc to go back: {typed}"));
        }
        None => {
            let own = watched.seen(now).asks().into_iter().filter_map(|ask| match ask {
                Ask::Pause => Some("p pause"),
                Ask::Resume => Some("p resume"),
                Ask::Cancel => Some("c cancel"),
                Ask::Set | Ask::Cutover | Ask::GoOn => None,
            });
            let keys: Vec<&str> = own.chain(foot.keys.iter().copied()).collect();
            lines.push(format!("keys     {}", keys.join(", ")));
        }
    }
    lines
}

/// The last of what happened to it for which there is room, but for how far it was.
fn latest(events: &[Event], room: usize, screen: Screen) -> Vec<String> {
    let reported = events.iter().rev().filter(|event| !matches!(event.what, What::Progress { .. }));
    let mut lines: Vec<String> = Vec::new();
    for event in reported.take(room) {
        let line = format!("{}  {}", clock(event.at_s), event.what);
        let shown = fitted(&[format!("         {line}")], screen);
        if lines.len() + shown.len() > room {
            break;
        }
        lines.splice(0..0, shown);
    }
    // On a screen that is too narrow for it there is no label.
    if let Some(first) = lines.first_mut()
        && first.starts_with("         ")
    {
        first.replace_range(..9, "events   ");
    }
    lines
}

/// A time of the day, to the second.
pub(crate) fn clock(epoch_s: u64) -> String {
    let time = format_time(epoch_s);
    time.split_once(' ').map_or_else(|| time.clone(), |(_, clock)| clock.to_owned())
}

/// Lines as a terminal only shows them, each no wider than the screen.
pub(crate) fn fitted(lines: &[String], screen: Screen) -> Vec<String> {
    let one_line = |line: &String| plain(line).replace(['\n', '\t'], " ");
    lines.iter().flat_map(|line| screen.fitted(&one_line(line))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use textwrap::core::display_width;
    use whimbrel_control::store::Entry;

    use super::*;
    use crate::watched::tests::{after, answered, entry};

    const HEIGHT: usize = 24;

    fn screen(width: usize) -> Screen {
        Screen { width, colour: false }
    }

    fn details(kind: Kind) -> Value {
        let counts = json!({"written": 4_200, "bytes_written": 2_048, "skipped": 1, "failed": 2, "gone": 3,
            "retries": 4, "big_in_flight": 1, "keys_total": 10_000});
        match kind {
            Kind::Copy => json!({"counts": counts}),
            Kind::Verify => json!({"differing": 7}),
            Kind::Move => Value::Null,
            Kind::Front => json!({"clients": 12, "reversals": 1, "held_ms": 30,
                "moving": {"left": 5_800, "staying": 2, "rebuilding": true}}),
            Kind::Sync => json!({"status": {
                "phase": "snapshotting", "counts": counts, "suspect_slots": 0, "failures": [],
                "pause_estimate_ms": 12,
                "sources": [{"address": "old.example.com:6379", "feed": "replication", "offset": 77,
                    "lag_bytes": 3, "lag_ms": 7, "touched": 12, "resumed": 0, "silent": true,
                    "silent_ms": 9_000}],
            }}),
        }
    }

    /// One that has been watched for some seconds, at the moment after.
    fn watched(entry: &Entry) -> (Watched, Moment) {
        let began = Moment { s: entry.status.updated_s, ..Moment::now() };
        let mut watched = Watched::new(entry.clone(), began);
        for second in 0..=4 {
            let mut entry = entry.clone();
            entry.status.keys_moved -= 100 * (4 - second);
            let mut details = details(entry.status.kind);
            if entry.status.kind == Kind::Sync {
                details["status"]["counts"]["written"] = json!(entry.status.keys_moved);
            }
            watched.note(answered(&entry, details), after(began, second));
        }
        watched.events = (0..40)
            .map(|n| Event { at_s: entry.status.created_s + n, what: What::Phase { phase: format!("{n}") } })
            .collect();
        (watched, after(began, 5))
    }

    fn foot() -> Foot {
        Foot { keys: vec!["Esc list", "q quit"], ..Foot::default() }
    }

    fn shown(watched: &Watched, now: Moment, width: usize) -> String {
        page(watched, Some("whimbrel again"), now, screen(width), Some((&foot(), HEIGHT))).join("\n")
    }

    #[test]
    fn the_page_of_each_kind_fits_and_says_what_it_must() {
        for kind in [Kind::Copy, Kind::Verify, Kind::Sync, Kind::Move, Kind::Front] {
            let mut entry = entry(kind);
            entry.status.rates.rate_keys = Some(1_000);
            entry.status.message = "waits \u{1b}]0;owned\u{7} for\na node\tthat does not answer ".repeat(3);
            let (watched, now) = watched(&entry);
            for width in [50, 80, 120] {
                let page = shown(&watched, now, width);
                assert!(page.lines().all(|line| display_width(line) <= width), "{width}:\n{page}");
                assert!(page.lines().count() <= HEIGHT, "{width}:\n{page}");
                assert!(!page.contains('\u{1b}'), "{page}");
                assert!(page.lines().last().is_some_and(|line| line.ends_with("q quit")), "{page}");
            }
            for width in 1..50 {
                // Words are broken where they must be, and nothing else.
                let _ = (shown(&watched, now, width), page(&watched, None, now, screen(width), None));
            }
            let page = shown(&watched, now, 80);
            let own: &[&str] = match kind {
                Kind::Copy => &["written  4,200 keys, 2.0 KiB", "1 skipped, 2 failed", "c cancel"],
                Kind::Verify => &["7 keys differing", "compared", "c cancel"],
                Kind::Sync => {
                    &["LAG MS", "SILENT   nothing heard from the source", "about 12 ms", "c cancel"]
                }
                Kind::Move => &["10 of 100", "external", "aaaaaaaa -> bbbbbbbb", "10.0.0.1:7000", "c cancel"],
                Kind::Front => &["clients  12", "held for 30 ms", "5,800 keys left", "2 keys could not"],
            };
            let all =
                ["42 %", "4,200 of 10,000 keys", "100 keys/s", "; ETA 58.0 s, at 16:02:43Z", "heard    1 s"];
            let more =
                ["16:01:45Z; begun 2025-11-24 16:00:00Z, 1m 45s ago", "limits   1,000 keys", "p pause"];
            for expected in own.iter().chain(&all).chain(&more) {
                assert!(page.contains(expected), "no {expected:?} in\n{page}");
            }
            assert_eq!(page.contains("c cancel"), kind != Kind::Front, "{page}");
            if kind == Kind::Verify {
                assert!(page.contains("events   ") && page.contains("Z  39"), "the last of them:\n{page}");
            }
        }
    }

    #[test]
    fn a_process_that_hangs_is_not_shown_as_if_it_went_on() {
        let entry = entry(Kind::Copy);
        let (watched, now) = watched(&entry);
        let page = shown(&watched, after(now, 6), 80);
        for expected in ["nothing heard for 7 s", "does not answer", "below is from 16:01:44Z", "unknown"] {
            assert!(page.contains(expected), "no {expected:?} in\n{page}");
        }
        for wrong in ["running", "keys/s", "ETA 5", "p pause", "c cancel"] {
            assert!(!page.contains(wrong), "{wrong:?} in\n{page}");
        }
    }

    #[test]
    fn how_it_ended_is_said_with_what_can_be_done() {
        let entry = entry(Kind::Copy);
        let (mut seen, now) = watched(&entry);
        seen.entry.running = false;
        let page = shown(&seen, now, 120);
        for expected in ["interrupted", "other options: whimbrel again", "no process runs it", "c cancel"] {
            assert!(page.contains(expected), "no {expected:?} in\n{page}");
        }
        assert!(!page.contains("p pause") && !page.contains("keys/s"), "{page}");
        let page = page_without_command(&seen, now);
        assert!(page.contains("start it again"), "{page}");
        (seen.entry.status.ended, seen.entry.status.phase) = (true, "copied".to_owned());
        let page = shown(&seen, now, 80);
        assert!(page.contains("ended: copied") && page.contains("jobs show copy-"), "{page}");
        seen.has_report = true;
        let page = shown(&seen, now, 80);
        assert!(page.contains("whimbrel jobs report copy-0123456789abcdef"), "{page}");
        assert!(
            last_words(&seen, None).contains("does not run any more: copied\nlater    whimbrel jobs rep")
        );
        assert!(!page.contains("c cancel") && !page.contains("heard"), "{page}");
    }

    fn page_without_command(watched: &Watched, now: Moment) -> String {
        page(watched, None, now, screen(80), None).join("\n")
    }

    #[test]
    fn a_pause_says_since_when_and_how_it_ends() {
        let mut entry = entry(Kind::Copy);
        entry.status.rates.paused = true;
        let (mut watched, now) = watched(&entry);
        let steered = |at_s: u64, paused: bool| {
            let rates = RatesNow { paused, ..RatesNow::default() };
            Event { at_s: entry.status.created_s + at_s, what: What::Steered { rates } }
        };
        watched.events = vec![steered(1, true), steered(2, false), steered(61, true)];
        let page = shown(&watched, now, 80);
        assert!(page.contains("paused   by order since 16:01:01Z; p resumes it"), "{page}");
        assert!(page.contains("p resume") && page.contains("no ETA while it is paused"), "{page}");
        assert!(!page.contains("limits"), "{page}");
    }

    #[test]
    fn cancelling_says_what_it_does_before_it_is_agreed_to() {
        let (watched, now) = watched(&entry(Kind::Move));
        let foot = Foot { typed: Some("ye".to_owned()), ..foot() };
        let page = page(&watched, None, now, screen(80), Some((&foot, HEIGHT)));
        let end = page[page.len() - 3..].join(" ");
        assert!(end.contains("rolls back the slots that were not handed over yet; 10 of 100 stay"), "{end}");
        assert!(end.ends_with("Enter, or Esc to go back: ye"), "{end}");
    }
}
