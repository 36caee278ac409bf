//! How much the command line may hold.

use anyhow::Context;

/// The sources of the command line, which is a face: what works behind it belongs to the libraries.
pub(super) const FACE: &str = "crates/cli/src/";

/// Lines of all files of the face together.
const FACE_LINES_MAX: usize = 9_500;

/// What is wrong by the rule `face`.
pub(super) fn check(files: &[String]) -> anyhow::Result<Option<String>> {
    let mut lines = 0;
    for path in files.iter().filter(|path| path.starts_with(FACE)) {
        lines +=
            std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?.lines().count();
    }
    let message = format!("{lines} lines, at most {FACE_LINES_MAX}: what is no face goes to control or flow");
    Ok((lines > FACE_LINES_MAX).then_some(message))
}
