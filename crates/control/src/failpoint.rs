//! Places where tests make the process die or wait, to see that what comes after repairs it.
//!
//! `WHIMBREL_FAILPOINT=NAME[:before|:after][@BATCH]` kills the process with `SIGKILL` right before or after
//! (which is the default) the effect of that name, of the batch of that number, counted from 0, if one is
//! given. `WHIMBREL_FAILPOINT_PAUSE` has the same form; the process waits there until the file that
//! `WHIMBREL_FAILPOINT_FILE` names exists, or a minute has passed. While it waits, there is a file of that
//! name with `.reached` after it. Neither variable does anything in a binary without debug assertions, as the
//! one that is shipped.

use std::time::Duration;

/// On which side of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Before it is executed.
    Before,
    /// After it was executed, before anything of it is written down.
    After,
}

/// How long a process waits at most.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Dies or waits here if the environment says so.
pub async fn reached(effect: &str, when: When, batch: usize) {
    if !cfg!(debug_assertions) {
        return;
    }
    let is_here = |variable| std::env::var(variable).is_ok_and(|text| matches(&text, effect, when, batch));
    if is_here("WHIMBREL_FAILPOINT") {
        // Nothing may run on the way out: no destructor, no flush. That is what a killed process is.
        let _ = std::process::Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
        std::process::abort();
    }
    if is_here("WHIMBREL_FAILPOINT_PAUSE") {
        let file = std::env::var_os("WHIMBREL_FAILPOINT_FILE").unwrap_or_default();
        let mut reached = file.clone();
        reached.push(".reached");
        // A test that waits for it finds out by itself that it is not there.
        let _ = std::fs::write(reached, "");
        let waited = tokio::time::Instant::now();
        while !std::path::Path::new(&file).exists() && waited.elapsed() < WAIT_MAX {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn matches(text: &str, effect: &str, when: When, batch: usize) -> bool {
    let (place, number) = text.split_once('@').unwrap_or((text, ""));
    let (name, side) = place.split_once(':').unwrap_or((place, "after"));
    name == effect
        && side == if when == When::Before { "before" } else { "after" }
        && (number.is_empty() || number.parse() == Ok(batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failpoint_names_effect_side_and_batch() {
        assert!(matches("fence", "fence", When::After, 3));
        assert!(!matches("fence", "fence", When::Before, 3));
        assert!(matches("fence:before", "fence", When::Before, 0));
        assert!(matches("take-over:after@1", "take-over", When::After, 1));
        assert!(!matches("take-over:after@1", "take-over", When::After, 0));
        assert!(!matches("take-over@x", "take-over", When::After, 0));
    }
}
