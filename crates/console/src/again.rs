//! The command that goes on with a job that was interrupted.

use std::path::Path;

use whimbrel_control::store::{Kind, Status};
use whimbrel_terminal::plain::quoted;

/// What goes on with an interrupted job, as a shell takes it. `None` for one that cannot go on.
pub fn command(status: &Status, folder: Option<&Path>) -> Option<String> {
    let mut words = match status.kind {
        Kind::Move => ["jobs", "resume", status.label()].map(str::to_owned).to_vec(),
        _ if status.again.is_empty() => return None,
        _ => status.again.clone(),
    };
    if let Some(folder) = folder {
        words.extend(["--state-dir".to_owned(), folder.to_string_lossy().into_owned()]);
    }
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    Some(format!("whimbrel {}", words.join(" ")))
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
        let moves = Status { id: "m1".to_owned(), ..Status::default() };
        assert_eq!(command(&moves, None).expect("it can go on"), "whimbrel jobs resume m1");
    }
}
