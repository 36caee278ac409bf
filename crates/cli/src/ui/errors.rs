//! How an error is shown, and what the process ends with after it.

use serde_json::json;
use whimbrel_engine::error::Error;

use super::remedies;
use crate::exit::Exit;
use crate::signals::stopped_by_user;

/// What the process ends with after an error. `begun` is true once something may have been written.
pub fn exit_of(error: &Error, begun: bool) -> Exit {
    if begun && stopped_by_user() { Exit::Stopped } else { Exit::of(error, begun) }
}

/// Shows why a command ended that writes nothing, and says what the process ends with.
pub fn end_of(error: &Error, as_json: bool) -> Exit {
    let exit = Exit::of(error, false);
    show_error(error, as_json, exit);
    exit
}

/// Prints an error, on standard error: what is wrong, and on the next line what to do. With `--json` an
/// object on standard output.
pub fn show_error(error: &Error, as_json: bool, exit: Exit) {
    show_error_of(&error.side.to_string(), error, str::to_owned, as_json, exit);
}

/// The same for a command that has other names than source and target: the `side`, and what `renamed` makes
/// of a text.
pub fn show_error_of(side: &str, error: &Error, renamed: impl Fn(&str) -> String, as_json: bool, exit: Exit) {
    let of_side = |text: String| match text.strip_prefix(&error.side.to_string()) {
        Some(rest) => renamed(&format!("{side}{rest}")),
        None => renamed(&text),
    };
    if as_json {
        let text = of_side(remedies::whole(error));
        out!("{}", json!({"event": "error", "side": side, "text": text, "exit": exit as u8}));
        return;
    }
    let problem = of_side(error.problem());
    // That it is our own, the prompt above has said.
    eprintln!("error: {}", problem.strip_prefix("whimbrel: ").unwrap_or(&problem));
    if let Some(remedy) = &error.remedy {
        eprintln!("       {}", renamed(&remedies::words(remedy)));
    }
}
