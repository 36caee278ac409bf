//! Programs that are run, and what they say.

use std::path::{Path, PathBuf};
use std::process::Command;

use whimbrel_lab::Engine;

/// How much of a program's last words a failure is quoted with.
const LAST_WORDS_CHARS_MAX: usize = 200;

/// The whimbrel binary at `path`, with what makes a run independent of the user's environment.
pub fn whimbrel(path: &Path) -> Command {
    let mut command = Command::new(path);
    // The servers here have no passwords, and refuse any.
    command.env_remove("WHIMBREL_SOURCE_PASSWORD").env_remove("WHIMBREL_TARGET_PASSWORD");
    command
}

/// Where a program is on `PATH`.
pub fn find_on_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// The last line of a program's output that is not blank, shortened.
pub fn last_words(output: &str) -> String {
    let line = output.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no output");
    line.chars().take(LAST_WORDS_CHARS_MAX).collect()
}

/// The engine's name, and the version that its binary reports.
pub fn full_version(engine: Engine) -> String {
    let text = engine
        .binaries()
        .ok()
        .and_then(|binaries| Command::new(binaries.server).arg("--version").output().ok())
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    match text.split_whitespace().find_map(|word| word.strip_prefix("v=")) {
        Some(version) => format!("{} {version}", if engine.is_valkey() { "Valkey" } else { "Redis" }),
        None => engine.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_the_last_line_with_text() {
        assert_eq!(last_words("one\ntwo \n\n"), "two");
        assert_eq!(last_words("\n"), "no output");
        assert_eq!(last_words(&"x".repeat(1000)).len(), LAST_WORDS_CHARS_MAX);
    }
}
