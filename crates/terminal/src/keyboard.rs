//! Keys as they are pressed, and a page above them that is redrawn.
//!
//! While a [`Keyboard`] is open the terminal gives each key at once and shows none of them. Ctrl-C and Ctrl-Z
//! are signals as before. How the terminal was is put back when it is closed; [`restore`] does so where
//! nothing is dropped any more. The thread that waits for keys has ended then, so what is typed afterwards is
//! left to whatever reads next.

use std::io::{self, IsTerminal, PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, raise};
use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};
use nix::unistd::read;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long the rest of a key's sequence may take: one that is pressed alone begins as the sequence does.
const SEQUENCE_WITHIN: Duration = Duration::from_millis(50);

/// What is read at once.
const CHUNK: usize = 256;

/// How many of these may wait; then it is not read on.
const CHUNKS_MAX: usize = 16;

/// A character that no key sends.
const NO_KEY: u8 = 0;

const SHOW_CURSOR: &str = "\x1b[?25h";

/// How the terminal was.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// One with a character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// The arrow upwards.
    Up,
    /// The arrow downwards.
    Down,
}

/// Whether a person is on both ends: keys can be pressed, and a page be seen.
pub fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Puts back how the terminal was, and shows the cursor, where a keyboard is open.
pub fn restore() {
    if let Some(saved) = SAVED.lock().take() {
        // It may be gone.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &saved);
        let mut out = io::stdout();
        let _ = write!(out, "{SHOW_CURSOR}").and_then(|()| out.flush());
    }
}

/// The keyboard of standard input.
#[derive(Debug)]
pub struct Keyboard {
    typed: mpsc::Receiver<Vec<u8>>,
    /// What was read and is no whole key yet.
    held: Vec<u8>,
    /// Closed when nothing is to be read any more.
    open: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Keyboard {
    /// From now on keys are given as they are pressed.
    ///
    /// # Errors
    /// Where standard input is no terminal, or no thread can wait for it.
    pub fn open() -> io::Result<Keyboard> {
        let (closed, open) = io::pipe()?;
        let (sender, typed) = mpsc::channel(CHUNKS_MAX);
        let mut keyboard = Keyboard { typed, held: Vec::new(), open: Some(open), thread: None };
        keyboard.take()?;
        let reading = move || wait_for_keys(&closed, &sender);
        keyboard.thread = Some(thread::Builder::new().name("keyboard".to_owned()).spawn(reading)?);
        Ok(keyboard)
    }

    /// Has the terminal give each key at once.
    fn take(&self) -> io::Result<()> {
        let before = tcgetattr(io::stdin())?;
        let mut now = before.clone();
        now.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        // Reading never waits: that is done before.
        now.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
        now.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        // It would end the process where it stands.
        now.control_chars[SpecialCharacterIndices::VQUIT as usize] = NO_KEY;
        *SAVED.lock() = Some(before);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &now)?;
        Ok(())
    }

    /// Waits for keys. Nothing is lost where this is not waited for to its end.
    ///
    /// # Errors
    /// Where the terminal has gone.
    pub async fn keys(&mut self) -> io::Result<Vec<Key>> {
        loop {
            let more = match self.held.is_empty() {
                true => self.typed.recv().await,
                false => match timeout(SEQUENCE_WITHIN, self.typed.recv()).await {
                    Ok(more) => more,
                    Err(_) => return Ok(decode(&mut self.held, true)),
                },
            };
            self.held.extend(more.ok_or(io::ErrorKind::UnexpectedEof)?);
            let keys = decode(&mut self.held, false);
            if !keys.is_empty() {
                return Ok(keys);
            }
        }
    }

    /// Stops this process, as Ctrl-Z does: with the terminal as it was. Returns when it goes on.
    ///
    /// # Errors
    /// Where the terminal has gone.
    pub fn suspend(&mut self) -> io::Result<()> {
        restore();
        raise(Signal::SIGSTOP)?;
        self.take()
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.typed.close();
        drop(self.open.take());
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
        restore();
    }
}

/// Reads keys until the other end of `closed` is, or the terminal has gone.
fn wait_for_keys(closed: &PipeReader, sender: &mpsc::Sender<Vec<u8>>) {
    let stdin = io::stdin();
    loop {
        let mut waited =
            [PollFd::new(stdin.as_fd(), PollFlags::POLLIN), PollFd::new(closed.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waited, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) if waited[1].any() != Some(false) => return,
            Ok(_) if waited[0].any() != Some(true) => continue,
            Ok(_) => {}
        }
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        let has_gone = waited[0].revents().is_none_or(|events| events.intersects(gone));
        let mut chunk = [0; CHUNK];
        match read(&stdin, &mut chunk) {
            Ok(0) if has_gone => return,
            // Somebody else has read it, or a signal came first.
            Ok(0) | Err(Errno::EINTR | Errno::EAGAIN) => {}
            Ok(count) if sender.blocking_send(chunk[..count].to_vec()).is_err() => return,
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// Takes the whole keys from what was read. `is_all` says that nothing more comes: what begins as a sequence
/// is the key Escape then.
fn decode(held: &mut Vec<u8>, is_all: bool) -> Vec<Key> {
    let (mut keys, mut at) = (Vec::new(), 0);
    while let Some(&byte) = held.get(at) {
        let rest = &held[at + 1..];
        let (key, len) = match (byte, rest) {
            (0x1b, [b'[' | b'O', sequence @ ..]) => match sequence.iter().position(|b| is_last(*b)) {
                Some(end) => (arrow(sequence[end]), end + 3),
                None if is_all => (Some(Key::Escape), held.len() - at),
                None => break,
            },
            (0x1b, []) if !is_all => break,
            (0x1b, _) => (Some(Key::Escape), 1),
            (b'\r' | b'\n', _) => (Some(Key::Enter), 1),
            (0x7f | 0x08, _) => (Some(Key::Backspace), 1),
            (b' '..=b'~', _) => (Some(Key::Char(char::from(byte))), 1),
            // No key of ours.
            _ => (None, 1),
        };
        keys.extend(key);
        at += len;
    }
    held.drain(..at);
    keys
}

/// Whether a byte is the last of a sequence.
fn is_last(byte: u8) -> bool {
    (0x40..=0x7e).contains(&byte)
}

fn arrow(last: u8) -> Option<Key> {
    match last {
        b'A' => Some(Key::Up),
        b'B' => Some(Key::Down),
        _ => None,
    }
}

/// Shows a page from the top left of the screen on, without flickering; `cursor` is whether something is
/// typed behind the last line.
///
/// # Errors
/// Where standard output has gone.
pub fn draw(lines: &[String], cursor: bool) -> io::Result<()> {
    let shown: Vec<String> = lines.iter().map(|line| format!("{line}\x1b[0m\x1b[K")).collect();
    let (page, cursor) = (shown.join("\r\n"), if cursor { SHOW_CURSOR } else { "" });
    let mut out = io::stdout().lock();
    write!(out, "\x1b[?25l\x1b[H{page}\x1b[J{cursor}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinguished_from_their_sequences() {
        let keys = |typed: &[u8], is_all: bool| {
            let mut held = typed.to_vec();
            (decode(&mut held, is_all), held)
        };
        use Key::{Backspace, Char, Down, Enter, Escape, Up};
        assert_eq!(keys(b"p\x1b[A\x1b[B\x1bOA\r\x7f", false).0, [Char('p'), Up, Down, Up, Enter, Backspace]);
        // What is no key of ours is none: F5, Delete with a modifier, other characters than ours.
        assert_eq!(keys(b"\x1b[15~\x1b[3;5~\xc3\xa9\x01q", false), (vec![Char('q')], Vec::new()));
        // Its rest may be on its way.
        assert_eq!(keys(b"c\x1b", false), (vec![Char('c')], b"\x1b".to_vec()));
        assert_eq!(keys(b"\x1b[", false), (vec![], b"\x1b[".to_vec()));
        assert_eq!(keys(b"\x1b", true), (vec![Escape], Vec::new()));
        assert_eq!(keys(b"\x1b\x1b[A", false), (vec![Escape, Up], Vec::new()));
    }
}
