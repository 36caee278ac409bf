//! The command that goes on with a job that was interrupted.

use std::path::Path;

use whimbrel_control::store::{Kind, Status};
use whimbrel_terminal::plain::quoted;

/// What goes on with an interrupted job, as a shell takes it. `None` for one that cannot go on.
pub fn command(status: &Status, folder: Option<&Path>) -> Option<String> {
    match status.kind {
        Kind::Move => Some(written(["jobs", "resume", status.label()].map(str::to_owned).to_vec(), folder)),
        _ if status.again.is_empty() => None,
        _ => Some(written(status.again.clone(), folder)),
    }
}

/// What ends a job for good, as a shell takes it.
pub fn cancel(status: &Status, folder: Option<&Path>) -> String {
    written(["jobs", "cancel", &status.id].map(str::to_owned).to_vec(), folder)
}

fn written(mut words: Vec<String>, folder: Option<&Path>) -> String {
    if let Some(folder) = folder {
        words.extend(["--state-dir".to_owned(), folder.to_string_lossy().into_owned()]);
    }
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    format!("whimbrel {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_as_a_shell_takes_it() {
        let again = ["copy", "a:1", "--match", "u:*", "--exclude", "it's"].map(str::to_owned).to_vec();
        let copy = Status { kind: Kind::Copy, again, ..Status::default() };
        assert_eq!(
            command(&copy, Some(Path::new("/x y"))).expect("it can go on"),
            "whimbrel copy a:1 --match 'u:*' --exclude 'it'\\''s' --state-dir '/x y'"
        );
        assert_eq!(command(&Status { again: Vec::new(), ..copy }, None), None);
        let one = Status { id: "m1".to_owned(), ..Status::default() };
        assert_eq!(cancel(&one, Some(Path::new("/x"))), "whimbrel jobs cancel m1 --state-dir /x");
        let moves = Status { id: "m1".to_owned(), ..Status::default() };
        assert_eq!(command(&moves, None).expect("it can go on"), "whimbrel jobs resume m1");
    }
}
