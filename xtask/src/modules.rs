//! The map of all modules, docs/modules.md: the first sentence of what each says of itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context;

use crate::files::list_files;

/// Where it is.
pub const FILE: &str = "docs/modules.md";

const HEAD: &str = "# Modules\n\n\
    <!-- Made by `cargo run -p xtask -- modules`. -->\n\n\
    What each module is for, in the words of its own first line. [Architecture](architecture.md) says how\n\
    they belong together.\n";

/// Writes the map of the repository in the current folder, which must be its root.
pub fn run() -> anyhow::Result<()> {
    let page = page(&list_files()?)?;
    std::fs::write(FILE, page).with_context(|| format!("cannot write {FILE}"))
}

/// What is wrong with the map, if anything is.
pub fn check(files: &[String]) -> anyhow::Result<Option<String>> {
    let is_current = std::fs::read_to_string(FILE).ok() == Some(page(files)?);
    Ok((!is_current).then(|| "it is not that of the code: cargo run -p xtask -- modules".to_owned()))
}

/// The map, of these files.
fn page(files: &[String]) -> anyhow::Result<String> {
    let mut crates: BTreeMap<&str, BTreeMap<String, String>> = BTreeMap::new();
    for path in files {
        let Some((folder, name)) = module_of(path) else { continue };
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        crates.entry(folder).or_default().insert(name, first_sentence(&text));
    }
    let mut page = HEAD.to_owned();
    for (folder, modules) in &crates {
        let about = modules.get("").map_or("", String::as_str);
        write!(page, "\n## {folder}\n\n{about}\n\n| module | what it is for |\n|---|---|\n")?;
        for (name, about) in modules.iter().filter(|(name, _)| !name.is_empty()) {
            writeln!(page, "| `{name}` | {about} |")?;
        }
    }
    Ok(page)
}

/// The folder of its crate, and its path in it, which is empty for the crate itself; `None` for what is no
/// module, or one of tests.
fn module_of(path: &str) -> Option<(&str, String)> {
    let (folder, rest) = path.strip_suffix(".rs")?.split_once("/src/")?;
    let rest = rest.strip_suffix("/mod").unwrap_or(rest);
    let rest = if matches!(rest, "lib" | "main") { "" } else { rest };
    let is_test = rest.split('/').any(|part| part == "tests");
    (!is_test).then(|| (folder, rest.replace('/', "::")))
}

/// The first sentence of a module's documentation, without links.
fn first_sentence(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let paragraph = lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let sentence = paragraph.split_once(". ").map_or(paragraph.as_str(), |(sentence, _)| sentence);
    let mut plain = String::new();
    let mut rest = sentence.trim_end_matches(['.', ':']);
    while let Some((before, link)) = rest.split_once('[') {
        plain.push_str(before);
        let Some((label, after)) = link.split_once(']') else { break };
        plain.push_str(label);
        rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    plain.push_str(rest);
    // A bar would end a cell of the table.
    plain.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_named_as_in_code() {
        assert_eq!(module_of("crates/flow/src/keys/mod.rs"), Some(("crates/flow", "keys".to_owned())));
        assert_eq!(module_of("crates/flow/src/keys/read.rs"), Some(("crates/flow", "keys::read".to_owned())));
        assert_eq!(module_of("crates/flow/src/lib.rs"), Some(("crates/flow", String::new())));
        assert_eq!(module_of("crates/flow/src/keys/tests.rs"), None);
        assert_eq!(module_of("crates/flow/tests/flow/main.rs"), None);
        assert_eq!(module_of("docs/modules.md"), None);
    }

    #[test]
    fn a_sentence_is_plain() {
        let text =
            "//! Asks [`link`](crate::link), [`Info`] for\n//! this | that. Then more.\n//!\n//! More.\n";
        assert_eq!(first_sentence(text), "Asks `link`, `Info` for this \\| that");
        assert_eq!(first_sentence("//! Alone.\n"), "Alone");
        assert_eq!(first_sentence("use std::io;\n"), "");
    }
}
