//! Asking before something is changed: the one way in which all commands do it.

use std::io::IsTerminal;

use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_terminal::question::{Question, ask};

use crate::exit::Exit;
use crate::ui::errors;

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Do it.
    Go,
    /// The plan was shown, and that was all that was asked for.
    OnlyShow,
    /// Asked, and answered with no. The user has been notified that nothing was done.
    Declined,
    /// There is no terminal to ask on. The user has been notified.
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

/// Asks on the terminal, unless `--yes` or `--dry-run` have answered it. What was typed before the question
/// stood there is no answer to it.
///
/// # Errors
/// `Own` if the answer cannot be read.
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
        let error = Error::options(Side::Own, "ask whether to go on", "there is no terminal to ask on")
            .with_remedy("add --yes to do it without being asked, or --dry-run to only see the plan");
        errors::show_error(&error, as_json, Exit::Refused);
        return Ok(Decision::CannotAsk);
    }
    let _nothing_begun = crate::signals::WhileAsking::begin();
    let agreed = ask(question, stop).await.map_err(|e| Error::own("ask whether to go on", e))?;
    if !agreed {
        eprintln!("nothing was done");
    }
    Ok(if agreed { Decision::Go } else { Decision::Declined })
}
