//! Asking before something is changed: the one way in which all commands do it.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::termios::{FlushArg, tcflush};
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result, Side};

use crate::exit::Exit;
use crate::ui::for_stderr;

/// How often it is looked whether there is an answer, or none is wanted any more.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Do it.
    Go,
    /// The plan was shown, and that was all that was asked for.
    OnlyShow,
    /// Asked, and answered with no. The user has been told that nothing was done.
    Declined,
    /// There is no terminal to ask on. The user has been told.
    CannotAsk,
}

impl Decision {
    /// What the process ends with, unless it goes on; `shown` after a dry run.
    pub fn end(self, shown: Exit) -> Option<Exit> {
        match self {
            Decision::Go => None,
            Decision::OnlyShow => Some(shown),
            Decision::Declined => Some(Exit::Stopped),
            Decision::CannotAsk => Some(Exit::Refused),
        }
    }
}

/// What is asked before something is changed.
#[derive(Debug, Clone)]
pub struct Question {
    /// What would be done, and where: a question.
    pub text: String,
    /// What has to be typed to agree, where `y` is too easily said.
    pub typed: Option<String>,
    /// Whether the command has `--dry-run`.
    pub has_dry_run: bool,
}

impl Question {
    /// One that is answered with `y`.
    pub fn new(text: impl Into<String>) -> Question {
        Question { text: text.into(), typed: None, has_dry_run: true }
    }

    /// One that is answered by typing a name: of what loses data.
    pub fn typed(text: impl Into<String>, name: impl Into<String>) -> Question {
        Question { typed: Some(name.into()), ..Question::new(text) }
    }

    /// For a command that has no `--dry-run`.
    pub fn without_dry_run(self) -> Question {
        Question { has_dry_run: false, ..self }
    }

    fn is_yes(&self, answer: &str) -> bool {
        match &self.typed {
            Some(name) => answer.trim() == name,
            None => matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"),
        }
    }
}

/// Asks on the terminal, unless `--yes` or `--dry-run` have answered it. What was typed before the question
/// stood there is no answer to it.
///
/// # Errors
/// `Own` where the answer cannot be read.
pub async fn confirm(
    question: &Question,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    stop: &CancellationToken,
) -> Result<Decision> {
    match (dry_run, yes) {
        (true, _) => return Ok(Decision::OnlyShow),
        (false, true) => return Ok(Decision::Go),
        (false, false) => {}
    }
    // The question goes to standard error: standard output may be a file that holds the plan.
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let plan = if question.has_dry_run { ", or --dry-run to only see the plan" } else { "" };
        let error = Error::unfit(Side::Own, "", "ask whether to go on", "there is no terminal to ask on")
            .with_remedy(format!("add --yes to do it without being asked{plan}"));
        crate::ui::errors::show_error(&error, as_json, Exit::Refused);
        return Ok(Decision::CannotAsk);
    }
    let _nothing_begun = crate::signals::WhileAsking::begin();
    let agreed = ask(question, stop).await.map_err(|e| Error::own("ask whether to go on", e))?;
    if !agreed {
        eprintln!("nothing was done");
    }
    Ok(if agreed { Decision::Go } else { Decision::Declined })
}

async fn ask(question: &Question, stop: &CancellationToken) -> std::io::Result<bool> {
    let mut stderr = std::io::stderr();
    tcflush(std::io::stdin(), FlushArg::TCIFLUSH)?;
    let asked = match &question.typed {
        Some(name) => format!("{}\nType {name} to go on: ", question.text),
        None => format!("{} [y/N] ", question.text),
    };
    write!(stderr, "{}", for_stderr(&asked))?;
    stderr.flush()?;
    // A thread of its own, which nobody waits for: reading from a terminal cannot be called off.
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answer = String::new();
        let outcome = std::io::stdin().lock().read_line(&mut answer).map(|_| answer);
        // The caller may have gone.
        let _ = tell.send(outcome);
    });
    loop {
        match told.try_recv() {
            Ok(answer) => return Ok(question.is_yes(&answer?)),
            Err(mpsc::TryRecvError::Disconnected) => return Ok(false),
            Err(mpsc::TryRecvError::Empty) => {}
        }
        if stop.run_until_cancelled(tokio::time::sleep(LOOK_PERIOD)).await.is_none() {
            writeln!(stderr)?;
            return Ok(false);
        }
    }
}
