//! Each command line that pages for users show is one that the definition of the command line takes.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::command;

/// Where users read command lines: files and folders of the repository. The page written from the definition
/// is among them, for the examples in it.
const PAGES: [&str; 5] = ["README.md", "SECURITY.md", "docs", "packaging/examples", "packaging/systemd"];

/// Words of usage lines that stand for something of which only some kinds are taken.
const PLACEHOLDERS: [(&str, &str); 3] = [("COMMAND", "copy"), ("TYPO", "copy"), ("N", "1")];

/// A command line of a page.
struct Shown {
    /// File and line.
    at: String,
    /// From `whimbrel` on.
    line: String,
    /// To be typed as it is. One within a sentence may leave out what everybody would add.
    is_whole: bool,
}

#[test]
fn command_lines_of_pages_are_taken() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut shown = Vec::new();
    for page in PAGES.iter().flat_map(|page| files(&root.join(page))) {
        let text = fs::read_to_string(&page).expect("the page can be read");
        let name = page.strip_prefix(&root).expect("it is in the repository").display().to_string();
        shown.extend(lines(&name, &text, page.extension().is_some_and(|end| end == "md")));
    }
    // Fewer would mean that they are no longer found.
    assert!(shown.len() > 150, "only {} command lines were found", shown.len());
    let wrong: Vec<String> = shown.iter().filter_map(mistake).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn options_that_do_not_exist_are_found() {
    let page = "# Page\n\
        Say `whimbrel sync OLD NEW --mirrored`, or `whimbrel sync --mirror`.\n\
        ```sh\n\
        whimbrel copy old:1 new:2 --verifying   # a comment\n\
        sudo -u whimbrel whimbrel copy old:1 new:2 \\\n    --verify | jq --no-such-option .\n\
        whimbrel copying old:1 new:2\n\
        whimbrel copy old:1\n\
        ```\n";
    let wrong: Vec<String> = lines("page.md", page, true).iter().filter_map(mistake).collect();
    let places: Vec<&str> = wrong.iter().filter_map(|wrong| wrong.split(' ').next()).collect();
    assert_eq!(places, ["page.md:2:", "page.md:4:", "page.md:7:", "page.md:8:"], "{wrong:#?}");
}

fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).expect("the folder can be read");
    let mut found: Vec<PathBuf> =
        entries.flat_map(|entry| files(&entry.expect("the folder can be read").path())).collect();
    found.retain(|file| file.extension().is_none_or(|end| end != "svg"));
    found.sort();
    found
}

/// The command lines of a page: of its blocks of code whole ones, of its sentences those in spans of code.
/// What is no Markdown is taken for a block of code, with its comments.
fn lines(page: &str, text: &str, is_markdown: bool) -> Vec<Shown> {
    let mut shown = Vec::new();
    let mut is_code = !is_markdown;
    let mut rows = text.lines().enumerate();
    while let Some((index, row)) = rows.next() {
        let at = format!("{page}:{}:", index + 1);
        if row.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            let mut whole = row.trim_start_matches(['#', ' ']).to_owned();
            while whole.ends_with('\\') {
                whole.pop();
                whole.push_str(rows.next().map_or("", |(_, next)| next));
            }
            // Usage lines are made from the definition.
            if let Some(line) = from_whimbrel(&whole).filter(|line| !line.contains("<COMMAND>")) {
                shown.push(Shown { at, line, is_whole: is_markdown });
            }
        } else {
            for span in row.split('`').skip(1).step_by(2) {
                shown.extend(from_whimbrel(span).map(|line| Shown { at: at.clone(), line, is_whole: false }));
            }
        }
    }
    shown
}

/// What a shell would run, from `whimbrel` on: behind a prompt, variables and `sudo`.
fn from_whimbrel(row: &str) -> Option<String> {
    // In a unit, or in a container.
    if let Some((_, after)) = row.split_once("/usr/bin/whimbrel ") {
        return Some(format!("whimbrel {after}"));
    }
    let mut rest = row.trim_start();
    loop {
        let (word, after) = rest.split_once(' ')?;
        match word {
            "whimbrel" => return Some(rest.to_owned()),
            "$" | "exec" | "sudo" => rest = after.trim_start(),
            "-u" => rest = after.trim_start().split_once(' ')?.1,
            _ if word.contains('=') => rest = after.trim_start(),
            _ => return None,
        }
    }
}

/// Its words as a shell reads them, up to a comment, a pipe, or the two spaces before what help texts say.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut rest = line.chars().peekable();
    while let Some(letter) = rest.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some(_), _) => word.push(letter),
            (None, '\'' | '"') => quote = Some(letter),
            (None, '#' | '|' | ';' | '>' | '&') if word.is_empty() => break,
            (None, ' ') => {
                let is_gap = rest.peek() == Some(&' ') && !words.is_empty();
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                // Words may be lined up behind a line that goes on.
                if is_gap && rest.clone().find(|letter| *letter != ' ') != Some('-') {
                    break;
                }
            }
            // What may be left out is there for once.
            (None, '[' | ']') => {}
            (None, _) => word.push(letter),
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words.retain(|word| word != "..." && word != "…");
    let meant = |word: &String| {
        // Of several words to choose from the first.
        let word = word.split('|').next().unwrap_or_default();
        PLACEHOLDERS.iter().find(|(name, _)| *name == word).map_or(word, |(_, meant)| meant).to_owned()
    };
    words.iter().map(meant).collect()
}

/// What is wrong with a command line, and where it stands.
fn mistake(shown: &Shown) -> Option<String> {
    let words = words(&shown.line);
    let error = command().try_get_matches_from(&words).err()?;
    // A file may have what is required, and dots stand for it.
    let is_short = shown.line.contains(" ... ") || words.iter().any(|word| word == "--config");
    let none = ContextValue::String(String::new());
    let may_lack = !shown.is_whole || is_short;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
        // A sentence may name an option without its value.
        ErrorKind::InvalidValue if !shown.is_whole && error.get(ContextKind::InvalidValue) == Some(&none) => {
            None
        }
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            if may_lack =>
        {
            None
        }
        _ => {
            let error = error.to_string();
            let what = error.lines().next().unwrap_or_default();
            Some(format!("{} {}\n    {what}", shown.at, words.join(" ")))
        }
    }
}
