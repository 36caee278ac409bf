//! How an error is shown, and what the process ends with after it.

use serde_json::json;
use whimbrel_engine::error::Error;

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

/// Prints an error: one line, on standard error; with `--json` an object on standard output.
pub fn show_error(error: &Error, as_json: bool, exit: Exit) {
    if as_json {
        say!(
            "{}",
            json!({"event": "error", "side": error.side.to_string(), "text": error.to_string(), "exit": exit as u8})
        );
    } else {
        eprintln!("error: {error}");
    }
}
