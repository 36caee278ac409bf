//! What is shown, and what a key does.

use whimbrel_control::jobs::Ask;
use whimbrel_control::store::{Entry, Status};
use whimbrel_engine::error::Result;
use whimbrel_terminal::keyboard::Key;
use whimbrel_terminal::screen::Screen;

use crate::job::{self, Foot, GoesOn};
use crate::list::List;
use crate::poll::Sight;
use crate::watched::{Moment, Watched};

/// What has to be typed to cancel a job.
const YES: &str = "yes";

/// The longest that can be typed.
const TYPED_MAX: usize = 16;

/// What the keys of the list do.
const LIST_KEYS: &str = "up/down or j/k select, Enter opens, q quit";

/// What follows from a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing but another page.
    None,
    /// The end.
    Quit,
    /// That job is looked at.
    Open(Box<Status>),
    /// All are.
    Back,
    /// The job is asked for that.
    Order(Ask),
}

/// What is shown.
#[derive(Debug)]
pub(crate) struct App {
    list: List,
    job: Option<Watched>,
    /// Whether the job was seen running, and nothing else was opened: its end is the end of the page then.
    is_alone: bool,
    /// What is typed, while it is asked whether a job is to be cancelled.
    typed: Option<String>,
    /// What came of the last key, in a line.
    note: String,
    /// Whether an order is on its way.
    is_busy: bool,
}

impl App {
    /// One job, or all.
    pub(crate) fn new(job: Option<Watched>) -> App {
        App { list: List::default(), job, is_alone: true, typed: None, note: String::new(), is_busy: false }
    }

    /// The job that is shown.
    pub(crate) fn job(&self) -> Option<&Watched> {
        self.job.as_ref()
    }

    /// Jobs were looked at. True where the only one that was to be watched has come to its end.
    ///
    /// # Errors
    /// As looking at all jobs.
    pub(crate) fn note(&mut self, sight: Sight, now: Moment) -> Result<bool> {
        match (sight, &mut self.job) {
            (Sight::All(seen), _) => self.list.note(seen?, now),
            (Sight::One(polled), Some(job)) => {
                let ran = job.over().is_none();
                job.note(*polled, now);
                if !job.seen(now).can(Ask::Cancel) {
                    // There is nothing to cancel any more.
                    self.typed = None;
                }
                return Ok(ran && self.is_alone && job.over().is_some());
            }
            (Sight::One(_), None) => {}
        }
        Ok(false)
    }

    /// That was asked of the job `of`, and has this effect, or was refused.
    pub(crate) fn answered(&mut self, of: &Status, words: &str) {
        let is_shown = self.job.as_ref().is_some_and(|job| job.status().id == of.id);
        self.is_busy = false;
        self.note = if is_shown { words.to_owned() } else { format!("{}: {words}", of.label()) };
    }

    /// An order has come to no answer.
    pub(crate) fn broken_off(&mut self) {
        (self.note, self.is_busy) = ("the request got no answer".to_owned(), false);
    }

    /// A key was pressed.
    pub(crate) fn press(&mut self, key: Key, now: Moment) -> Action {
        match (&mut self.typed, key) {
            (Some(_), Key::Escape) => {
                self.typed = None;
                self.note = "not cancelled".to_owned();
                Action::None
            }
            (Some(typed), Key::Enter) => {
                let agreed = typed == YES;
                self.typed = None;
                if agreed {
                    return self.order(Ask::Cancel);
                }
                self.note = format!("not cancelled: that takes {YES}");
                Action::None
            }
            (Some(typed), Key::Backspace) => {
                typed.pop();
                Action::None
            }
            (Some(typed), Key::Char(c)) => {
                if typed.len() < TYPED_MAX {
                    typed.push(c);
                }
                Action::None
            }
            (Some(_), Key::Up | Key::Down) => Action::None,
            (None, Key::Char('q')) => Action::Quit,
            (None, key) if self.job.is_some() => self.press_at_job(key, now),
            (None, key) => self.press_at_list(key, now),
        }
    }

    fn press_at_list(&mut self, key: Key, now: Moment) -> Action {
        match key {
            Key::Up | Key::Char('k') => self.list.step(-1),
            Key::Down | Key::Char('j') => self.list.step(1),
            Key::Enter => {
                if let Some(entry) = self.list.selected() {
                    return self.open(entry, now);
                }
            }
            _ => {}
        }
        Action::None
    }

    fn open(&mut self, entry: Entry, now: Moment) -> Action {
        let status = Box::new(entry.status.clone());
        (self.job, self.is_alone) = (Some(Watched::new(entry, now)), false);
        self.note.clear();
        Action::Open(status)
    }

    fn press_at_job(&mut self, key: Key, now: Moment) -> Action {
        let asks = self.job.as_ref().map(|job| job.seen(now).asks()).unwrap_or_default();
        match key {
            Key::Escape | Key::Backspace => {
                (self.job, self.is_alone) = (None, false);
                self.note.clear();
                Action::Back
            }
            Key::Char('p') if asks.contains(&Ask::Pause) => self.order(Ask::Pause),
            Key::Char('p') if asks.contains(&Ask::Resume) => self.order(Ask::Resume),
            Key::Char('c') if asks.contains(&Ask::Cancel) && !self.is_busy => {
                self.note.clear();
                self.typed = Some(String::new());
                Action::None
            }
            Key::Char('p' | 'c') => {
                self.note = "the job cannot do that now".to_owned();
                Action::None
            }
            _ => Action::None,
        }
    }

    fn order(&mut self, ask: Ask) -> Action {
        if self.is_busy {
            self.note = "still waiting for the answer to the last keystroke".to_owned();
            return Action::None;
        }
        (self.note, self.is_busy) = (format!("the job is asked to {}", ask.word()), true);
        Action::Order(ask)
    }

    /// Whether something is typed behind the last line.
    pub(crate) fn is_typing(&self) -> bool {
        self.typed.is_some()
    }

    /// The page, for a screen of this size.
    pub(crate) fn page(
        &self,
        goes_on: GoesOn<'_>,
        now: Moment,
        screen: Screen,
        height: usize,
    ) -> Vec<String> {
        let Some(job) = &self.job else {
            return self.list.page(now, screen, Some((&self.note, LIST_KEYS, height)));
        };
        let foot =
            Foot { note: self.note.clone(), typed: self.typed.clone(), keys: vec!["Esc all jobs", "q quit"] };
        job::page(job, goes_on(job.status()).as_deref(), now, screen, Some((&foot, height)))
    }

    /// The page as it stays when nothing is pressed any more.
    pub(crate) fn last_page(&self, goes_on: GoesOn<'_>, now: Moment, screen: Screen) -> Vec<String> {
        match &self.job {
            Some(job) => job::page(job, goes_on(job.status()).as_deref(), now, screen, None),
            None => self.list.page(now, screen, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use whimbrel_control::jobs::Seen;
    use whimbrel_control::store::Kind;

    use super::*;
    use crate::poll::Polled;
    use crate::watched::tests::{after, answered, entry};

    const SCREEN: Screen = Screen { width: 80, colour: false };

    fn app(kind: Kind) -> (App, Moment, Entry) {
        let entry = entry(kind);
        let now = Moment { s: entry.status.updated_s, ..Moment::now() };
        let mut app = App::new(Some(Watched::new(entry.clone(), now)));
        app.note(answered(&entry, Value::Null).into(), now).expect("noted");
        (app, now, entry)
    }

    fn shown(app: &App, now: Moment) -> String {
        app.page(&|_| None, now, SCREEN, 24).join("\n")
    }

    fn press(app: &mut App, keys: &str, now: Moment) -> Action {
        let key = |c: char| match c {
            '\r' => Key::Enter,
            '\u{1b}' => Key::Escape,
            '\u{7f}' => Key::Backspace,
            c => Key::Char(c),
        };
        keys.chars().map(|c| app.press(key(c), now)).last().expect("a key")
    }

    #[test]
    fn a_job_is_cancelled_by_a_word_alone() {
        let (mut app, now, entry) = app(Kind::Copy);
        for keys in ["c\r", "cy\r", "cyes\u{1b}", "cq\r", "cno\r", "cyesyes\r"] {
            assert_eq!(press(&mut app, keys, now), Action::None, "{keys:?}");
            assert!(shown(&app, now).contains("not cancelled") && !app.is_typing(), "{}", shown(&app, now));
        }
        assert_eq!(press(&mut app, "cyesx\u{7f}\r", now), Action::Order(Ask::Cancel));
        assert_eq!(press(&mut app, "p", now), Action::None, "one after the other");
        app.answered(&entry.status, "it has ended already");
        assert!(shown(&app, now).contains("note     it has ended already"), "{}", shown(&app, now));
        // The answer about another job says so.
        let other = Status { id: "copy-9".to_owned(), ..Status::default() };
        app.answered(&other, "paused");
        assert!(shown(&app, now).contains("note     copy-9: paused"), "{}", shown(&app, now));
        assert_eq!(press(&mut app, "\u{1b}", now), Action::Back);
        assert!(shown(&app, now).contains("looking") && !shown(&app, now).contains("no jobs"));
        app.note(Sight::All(Ok(Vec::new())), now).expect("noted");
        assert!(shown(&app, now).contains("there are no jobs"), "{}", shown(&app, now));
    }

    #[test]
    fn one_that_was_interrupted_is_cancelled_while_it_is_looked_at() {
        let (mut app, now, entry) = app(Kind::Copy);
        let polled = || Polled {
            entry: Some(Entry { running: false, ..entry.clone() }),
            standing: None,
            events: Vec::new(),
            has_report: false,
        };
        assert!(app.note(polled().into(), now).expect("noted"), "it ran before");
        press(&mut app, "cye", now);
        assert!(!app.note(polled().into(), now).expect("noted") && app.is_typing());
        assert_eq!(press(&mut app, "s\r", now), Action::Order(Ask::Cancel));
    }

    #[test]
    fn p_pauses_and_has_it_go_on() {
        let (mut app, now, mut entry) = app(Kind::Front);
        assert_eq!(press(&mut app, "p", now), Action::Order(Ask::Pause));
        app.answered(&entry.status, "paused");
        entry.status.rates.paused = true;
        app.note(answered(&entry, Value::Null).into(), now).expect("noted");
        assert_eq!(press(&mut app, "p", now), Action::Order(Ask::Resume));
        app.answered(&entry.status, "resumed");
        assert_eq!(press(&mut app, "c", now), Action::None);
        assert!(shown(&app, now).contains("cannot do that") && !app.is_typing(), "a front has no cancel");
        // Of a process that hangs nothing is asked.
        assert_eq!(press(&mut app, "p", after(now, 9)), Action::None);
    }

    #[test]
    fn the_end_of_the_only_job_is_the_end_of_the_page() {
        let ended = |entry: &Entry| {
            let mut entry = Entry { running: false, ..entry.clone() };
            entry.status.ended = true;
            Polled { entry: Some(entry), standing: None, events: Vec::new(), has_report: true }
        };
        let (mut app, now, entry) = app(Kind::Copy);
        press(&mut app, "cye", now);
        assert!(app.note(ended(&entry).into(), now).expect("noted") && !app.is_typing());
        assert!(!app.note(ended(&entry).into(), now).expect("noted"), "it had ended before");
        // Opened from the list it stays, with how it ended.
        assert_eq!(press(&mut app, "\u{1b}", now), Action::Back);
        let seen = || vec![Seen { entry: entry.clone(), answers: true, is_elsewhere: false }];
        app.note(Sight::All(Ok(seen())), now).expect("noted");
        assert!(shown(&app, now).contains("Enter opens"), "{}", shown(&app, now));
        assert_eq!(press(&mut app, "jk\r", now), Action::Open(Box::new(entry.status.clone())));
        assert!(!app.note(ended(&entry).into(), now).expect("noted"));
        assert!(shown(&app, now).contains("jobs report"), "{}", shown(&app, now));
        assert_eq!(press(&mut app, "q", now), Action::Quit);
    }
}
