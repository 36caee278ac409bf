//! Asking before something is changed.

use std::io::{BufRead, IsTerminal, Write};

use serde_json::json;
use whimbrel_engine::error::{Error, Result};

use crate::exit::Exit;

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Do it.
    Go,
    /// The plan was shown, and that was all that was asked for.
    OnlyShow,
    /// Asked, and answered with no.
    Declined,
    /// There is no terminal to ask on. The user has been told.
    CannotAsk,
}

/// Asks `question` on the terminal, unless `--yes` or `--dry-run` have answered it.
///
/// # Errors
/// `Own` where the answer cannot be read.
pub fn confirm(question: &str, yes: bool, dry_run: bool, as_json: bool) -> Result<Decision> {
    match (dry_run, yes) {
        (true, _) => return Ok(Decision::OnlyShow),
        (false, true) => return Ok(Decision::Go),
        (false, false) => {}
    }
    // The question goes to standard error: standard output may be a file that holds the plan.
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let text = "there is no terminal to ask on; add --yes to do it without being asked, or --dry-run to only \
                    see the plan";
        if as_json {
            let exit = Exit::Refused as u8;
            say!("{}", json!({"event": "error", "side": "whimbrel", "text": text, "exit": exit}));
        } else {
            eprintln!("error: {text}");
        }
        return Ok(Decision::CannotAsk);
    }
    let fail = |e| Error::own("ask whether to go on", e);
    let mut stderr = std::io::stderr();
    write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).map_err(fail)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(fail)?;
    let agreed = matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    Ok(if agreed { Decision::Go } else { Decision::Declined })
}
