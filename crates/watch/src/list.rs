//! The page of all jobs.

use std::cmp::Reverse;

use whimbrel_control::jobs::Seen;
use whimbrel_control::steering::Standing;
use whimbrel_control::store::{Entry, Kind, Status};
use whimbrel_core::units::{format_count, format_count_of, format_time};
use whimbrel_terminal::plain::plain;
use whimbrel_terminal::row::truncate;
use whimbrel_terminal::screen::Screen;
use whimbrel_terminal::table::{Table, number, text};

use crate::job::{clock, eta, fitted};
use crate::poll::Polled;
use crate::watched::{Moment, Watched};

/// Lines of the page that are no jobs: the first, a blank one, the head of the table, a note and the keys.
const LINES_AROUND: usize = 5;

/// All jobs of a state folder.
#[derive(Debug, Default)]
pub(crate) struct List {
    jobs: Vec<Watched>,
    /// Whether they were looked at.
    is_known: bool,
    /// The name of the one that Enter opens.
    selected: Option<String>,
}

impl List {
    /// They were looked at.
    pub(crate) fn note(&mut self, seen: Vec<Seen>, now: Moment) {
        self.is_known = true;
        let mut before = std::mem::take(&mut self.jobs);
        for seen in seen {
            let Seen { entry, answers, .. } = seen;
            let known = before.iter().position(|job| is_same(job.status(), &entry.status));
            let mut job =
                known.map_or_else(|| Watched::new(entry.clone(), now), |place| before.swap_remove(place));
            let job_now = entry.status.clone();
            let standing = (entry.running && answers)
                .then_some(Standing { job: job_now, details: serde_json::Value::Null });
            job.note(Polled { entry: Some(entry), standing, events: Vec::new(), has_report: false }, now);
            self.jobs.push(job);
        }
        // Those that have not ended first, the newest at the top of either.
        self.jobs.sort_by_key(|job| {
            let status = job.status();
            (status.ended, Reverse(if status.ended { status.updated_s } else { status.created_s }))
        });
        if self.place().is_none() {
            self.selected = self.jobs.first().map(|job| job.status().id.clone());
        }
    }

    fn place(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.jobs.iter().position(|job| job.status().id == *selected)
    }

    /// Selects the one this many lines below, or above.
    pub(crate) fn step(&mut self, by: isize) {
        let last = self.jobs.len().saturating_sub(1);
        let place = self.place().unwrap_or(0).saturating_add_signed(by).min(last);
        self.selected = self.jobs.get(place).map(|job| job.status().id.clone());
    }

    /// The one that is selected.
    pub(crate) fn selected(&self) -> Option<Entry> {
        self.place().map(|place| self.jobs[place].entry.clone())
    }

    /// The page: lines no wider than `screen`, and no more than `height` where one is given. `keys` are shown
    /// in the last.
    pub(crate) fn page(&self, now: Moment, screen: Screen, keys: Option<(&str, &str, usize)>) -> Vec<String> {
        let running = self.jobs.iter().filter(|job| job.entry.running).count() as u64;
        let interrupted = self.jobs.iter().filter(|job| job.entry.is_interrupted()).count() as u64;
        let listed = format_count_of(self.jobs.len() as u64, "job");
        let first = format!(
            "jobs     {}; {listed}, of which {running} run and {interrupted} were interrupted",
            format_time(now.s)
        );
        let mut lines = fitted(&[first], screen);
        let height = keys.map_or(usize::MAX, |(.., height)| height);
        let rows = height.saturating_sub(LINES_AROUND + lines.len() - 1).max(1);
        if !self.is_known {
            lines = vec!["jobs     looking".to_owned()];
        } else if self.jobs.is_empty() {
            lines.push("there are no jobs".to_owned());
        } else {
            lines.push(String::new());
            lines.extend(self.table(now, screen, rows, keys.is_some()));
        }
        if let Some((note, keys, _)) = keys {
            lines.extend(
                fitted(&[format!("note     {note}")], screen).into_iter().filter(|_| !note.is_empty()),
            );
            lines.extend(fitted(&[format!("keys     {keys}")], screen));
            let excess = lines.len().saturating_sub(height);
            // The keys stay.
            let end = lines.len().saturating_sub(1);
            lines.drain(end - excess.min(end)..end);
        }
        lines
    }

    fn table(&self, now: Moment, screen: Screen, rows: usize, has_keys: bool) -> Vec<String> {
        let head = [
            text(" ", 0),
            text("JOB", 0),
            text("KIND", 1),
            text("STATE", 0),
            number("DONE", 1),
            number("KEYS/S", 2),
            number("ETA", 1),
            text("FROM -> TO", 4),
            text("ENDED", 5),
            text("STARTED", 6),
        ];
        let mut table = Table::new(&head, 7);
        let selected = self.place().unwrap_or(0);
        // The selected one is always seen.
        let first = selected.saturating_sub(rows.saturating_sub(1));
        for (place, job) in self.jobs.iter().enumerate().skip(first).take(rows) {
            let status = job.status();
            let silent = job.silent(now);
            let known = |cell: String| if silent.is_some() { "-".to_owned() } else { cell };
            let state = match silent {
                Some(silence) => format!("nothing heard for {} s", silence.as_secs()),
                None => job.seen(now).state_in_words(),
            };
            let percent = status.percent().map_or_else(|| "-".to_owned(), |percent| format!("{percent} %"));
            let speed = job.keys_per_s.filter(|_| job.over().is_none());
            let mark = if has_keys && place == selected { ">" } else { " " };
            let cells = [
                mark.to_owned(),
                status.label().to_owned(),
                status.kind.word().to_owned(),
                state,
                known(percent),
                known(speed.map_or_else(|| "-".to_owned(), |keys| format_count(keys.round() as u64))),
                eta(job, now),
                status.between(),
                status.ended_at().unwrap_or_default(),
                clock(status.created_s),
            ];
            table.row(cells.iter().map(|cell| plain(cell).replace(['\n', '\t'], " ")).collect());
        }
        table.lines(screen).iter().map(|line| truncate(line, screen.width)).collect()
    }
}

/// Whether it is one run of one job, under whatever name.
fn is_same(one: &Status, other: &Status) -> bool {
    (&one.id, one.created_s) == (&other.id, other.created_s)
}

/// The job that is shown where none is named: the only one that runs, else the only sync that does.
pub(crate) fn chosen(running: &[Entry], only_sync: bool) -> Option<Entry> {
    let syncs: Vec<&Entry> = running.iter().filter(|entry| entry.status.kind == Kind::Sync).collect();
    match (running, &syncs[..]) {
        ([one], _) => Some(one.clone()),
        (_, [one]) if only_sync => Some((*one).clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use textwrap::core::display_width;

    use super::*;
    use crate::watched::tests::{after, entry};

    const KINDS: [Kind; 5] = [Kind::Copy, Kind::Verify, Kind::Sync, Kind::Move, Kind::Front];

    fn seen(entry: Entry) -> Seen {
        Seen { entry, answers: true, is_elsewhere: false }
    }

    /// A job of each kind that runs, and many that have ended.
    fn list(began: Moment) -> List {
        let mut list = List::default();
        for second in 0..=4 {
            let running = KINDS.map(|kind| {
                let mut entry = entry(kind);
                entry.status.keys_moved += 100 * second;
                entry
            });
            let ended = (0..40).map(|number| {
                let mut entry = Entry { running: false, ..entry(Kind::Copy) };
                (entry.status.ended, entry.status.phase) = (true, "copied".to_owned());
                (entry.status.id, entry.status.updated_s) =
                    (format!("copy-{number}"), 1_764_000_000 - number);
                entry
            });
            list.note(running.into_iter().chain(ended).map(seen).collect(), after(began, second));
        }
        list
    }

    #[test]
    fn the_list_fits_and_shows_what_is_selected() {
        let began = Moment { s: 1_764_000_100, ..Moment::now() };
        let (mut list, now) = (list(began), after(began, 5));
        let shown = |list: &List, width: usize, now: Moment| {
            let page = list.page(now, Screen { width, colour: false }, Some(("", "Enter opens, q quit", 24)));
            assert!(page.len() <= 24, "{page:#?}");
            assert!(page.iter().all(|line| display_width(line) <= width), "{width}: {page:#?}");
            page.join("\n")
        };
        for width in [50, 80, 120] {
            shown(&list, width, now);
        }
        let page = shown(&list, 80, now);
        assert!(page.contains("45 jobs, of which 5 run and 0 were") && page.ends_with("q quit"), "{page}");
        for kind in KINDS {
            let line = page.lines().find(|line| line.contains(&format!("  {}  ", kind.word())));
            let line = line.unwrap_or_else(|| panic!("no {kind:?} in\n{page}"));
            for expected in ["running: copying", "46 %", "  100  ", "54.0 s"] {
                assert!(line.contains(expected), "no {expected:?} in {line}");
            }
        }
        list.step(-1);
        list.step(41);
        let page = shown(&list, 80, now);
        assert!(page.lines().any(|line| line.starts_with(">  copy-36 ")), "{page}");
        assert_eq!(list.selected().expect("one is").status.id, "copy-36");
        list.step(100);
        assert!(shown(&list, 80, now).contains(">  copy-39"), "the last one");
        // What is heard of no more is not shown as if it went on.
        list.step(-100);
        let page = shown(&list, 80, after(now, 6));
        let line = page.lines().find(|line| line.starts_with("> ")).expect("it is selected");
        assert!(line.contains("nothing heard for 7 s") && !line.contains("46 %"), "{line}");
    }

    #[test]
    fn the_job_that_is_meant_is_the_only_one_that_runs() {
        let [copy, sync] = [Kind::Copy, Kind::Sync].map(entry);
        let is = |running: &[&Entry], only_sync: bool| {
            let running: Vec<Entry> = running.iter().copied().cloned().collect();
            chosen(&running, only_sync).map(|entry| entry.status.kind)
        };
        assert_eq!(is(&[&copy], false), Some(Kind::Copy));
        assert_eq!((is(&[&copy, &sync], false), is(&[&copy, &sync], true)), (None, Some(Kind::Sync)));
        assert_eq!((is(&[&sync, &sync], true), is(&[], true)), (None, None));
    }
}
