//! Runs the real `whimbrel` on a terminal, as a person does.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::Pid;
use parking_lot::Mutex;

use crate::binary::whimbrel;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// What no program writes: behind it there is nothing more to come.
const END: &[u8] = b"<<end of what is shown>>";
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A terminal with this many columns; keys may be pressed before anything runs on it.
#[derive(Debug)]
pub struct Terminal {
    keyboard: File,
    other_end: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// A new one.
    ///
    /// Panics where the system gives none.
    pub fn new(columns: u16) -> Terminal {
        Terminal::of_size(columns, 50)
    }

    /// A new one with this many lines.
    ///
    /// Panics where the system gives none.
    pub fn of_size(columns: u16, lines: u16) -> Terminal {
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).expect("the system has terminals");
        let keyboard = File::from(pair.master);
        let mut screen = keyboard.try_clone().expect("one more handle");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let shared = shown.clone();
        thread::spawn(move || {
            let mut chunk = [0; 8192];
            while let Ok(count @ 1..) = screen.read(&mut chunk) {
                shared.lock().extend_from_slice(&chunk[..count]);
            }
        });
        Terminal { keyboard, other_end: pair.slave, shown }
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// All that was shown so far, what was typed included.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock()).into_owned()
    }

    /// How it treats what is typed.
    ///
    /// Panics where it does not say.
    pub fn settings(&self) -> Termios {
        tcgetattr(&self.other_end).expect("a terminal has settings")
    }

    /// The page that is redrawn from the top left on, as it was drawn last, without what moves the cursor or
    /// erases.
    pub fn page(&self) -> String {
        let shown = self.shown();
        let pages = shown.rsplit("\x1b[H").filter_map(|page| page.split_once("\x1b[J"));
        let page = pages.map(|(page, _)| page).next().unwrap_or_default();
        ["\x1b[K", "\x1b[0m", "\r"].into_iter().fold(page.to_owned(), |page, code| page.replace(code, ""))
    }

    /// All that was shown, when nothing runs on it any more.
    ///
    /// Panics where it does not arrive.
    fn drained(&self) -> String {
        // What ended has written before this. On a busy machine it may not have been read yet.
        let mut other_end = File::from(self.other_end.try_clone().expect("one more handle"));
        other_end.write_all(END).expect("the terminal can be written to");
        let began = Instant::now();
        loop {
            {
                let mut shown = self.shown.lock();
                if shown.ends_with(END) {
                    let len = shown.len() - END.len();
                    shown.truncate(len);
                    break;
                }
            }
            assert!(began.elapsed() < PATIENCE, "what was written does not arrive:\n{}", self.shown());
            thread::sleep(POLL_INTERVAL);
        }
        self.shown()
    }

    /// Starts `whimbrel` with these arguments on it, and in an environment.
    ///
    /// Panics when it cannot be started.
    pub fn start(&self, args: &[&str], environment: &[(&str, &str)]) -> OnTerminal<'_> {
        let end = || Stdio::from(self.other_end.try_clone().expect("one more handle"));
        let mut command = Command::new(whimbrel());
        command.args(args).envs(environment.iter().copied());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn();
        OnTerminal { terminal: self, child: child.expect("whimbrel can be started") }
    }
}

/// A `whimbrel` that runs on a [`Terminal`]. It is killed when this is dropped.
#[derive(Debug)]
pub struct OnTerminal<'a> {
    terminal: &'a Terminal,
    child: Child,
}

impl OnTerminal<'_> {
    /// Presses keys while it runs.
    pub fn press(&self, keys: &str) {
        (&self.terminal.keyboard).write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Waits until the terminal shows `text`.
    ///
    /// Panics when it ends before, or takes too long.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        let began = Instant::now();
        while !self.terminal.shown().contains(text) {
            if let Some(ended) = self.ended() {
                let shown = self.terminal.drained();
                assert!(shown.contains(text), "ended without {text:?}: {ended:?}\n{shown}");
                return;
            }
            assert!(began.elapsed() < PATIENCE, "no {text:?}:\n{}", self.terminal.shown());
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until the page that is redrawn holds all of these, and none of those. Gives that page.
    ///
    /// Panics when it ends before, or takes too long.
    #[track_caller]
    pub fn wait_for_page(&mut self, with: &[&str], without: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let page = self.terminal.page();
            if with.iter().all(|text| page.contains(text)) && !without.iter().any(|text| page.contains(text))
            {
                return page;
            }
            let ended = self.ended();
            assert!(ended.is_none(), "ended without {with:?}: {ended:?}\n{}", self.terminal.shown());
            assert!(began.elapsed() < PATIENCE, "no {with:?} without {without:?}:\n{page}");
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&mut self) {
        self.signal(Signal::SIGINT);
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("process ids are positive 32-bit integers");
        kill(Pid::from_raw(pid), signal).expect("a child that was not waited for can be signalled");
    }

    /// Whether it is stopped, as Ctrl-Z does.
    pub fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Waits for its end, and gives all that the terminal has shown.
    ///
    /// Panics when it ends with another code, or takes too long.
    #[track_caller]
    pub fn expect_code(mut self, code: i32) -> String {
        let began = Instant::now();
        loop {
            let shown = self.terminal.shown();
            if let Some(status) = self.ended() {
                assert_eq!(status.code(), Some(code), "{shown}");
                return self.terminal.drained();
            }
            assert!(began.elapsed() < PATIENCE, "still running:\n{shown}");
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for OnTerminal<'_> {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
