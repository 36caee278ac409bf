//! Questions, answered by a person on the terminal.

use std::io::{BufRead, Write};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::termios::{FlushArg, tcflush};
use tokio_util::sync::CancellationToken;

use crate::print::for_stderr;

/// How often it is looked whether there is an answer, or none is wanted any more.
const POLL_PERIOD: Duration = Duration::from_millis(20);

/// What is asked before something is changed.
#[derive(Debug, Clone)]
pub struct Question {
    /// What would be done, and where: a question.
    pub text: String,
    /// What has to be typed to agree, where `y` is too easily said.
    pub typed: Option<String>,
}

impl Question {
    /// One that is answered with `y`.
    pub fn new(text: impl Into<String>) -> Question {
        Question { text: text.into(), typed: None }
    }

    /// One that is answered by typing a name: of what loses data.
    pub fn typed(text: impl Into<String>, name: impl Into<String>) -> Question {
        Question { typed: Some(name.into()), ..Question::new(text) }
    }

    fn is_yes(&self, answer: &str) -> bool {
        match &self.typed {
            Some(name) => answer.trim() == name,
            None => matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"),
        }
    }
}

/// Asks on standard error: standard output may be a file that holds the plan. What was typed before the
/// question stood there is no answer to it. True where the answer is yes.
///
/// # Errors
/// Where the answer cannot be read.
pub async fn ask(question: &Question, stop: &CancellationToken) -> std::io::Result<bool> {
    let mut stderr = std::io::stderr();
    tcflush(std::io::stdin(), FlushArg::TCIFLUSH)?;
    let asked = match &question.typed {
        Some(name) => format!("{}\nType {name} to go on: ", question.text),
        None => format!("{} [y/N] ", question.text),
    };
    write!(stderr, "{}", for_stderr(&asked))?;
    stderr.flush()?;
    // A thread of its own, which nobody waits for: reading from a terminal cannot be called off.
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answer = String::new();
        let outcome = std::io::stdin().lock().read_line(&mut answer).map(|_| answer);
        // The caller may have gone.
        let _ = sender.send(outcome);
    });
    loop {
        match receiver.try_recv() {
            Ok(answer) => return Ok(question.is_yes(&answer?)),
            Err(mpsc::TryRecvError::Disconnected) => return Ok(false),
            Err(mpsc::TryRecvError::Empty) => {}
        }
        if stop.run_until_cancelled(tokio::time::sleep(POLL_PERIOD)).await.is_none() {
            writeln!(stderr)?;
            return Ok(false);
        }
    }
}
