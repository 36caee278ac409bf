//! Command lines that pages for users show, held against the definition of the command line.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Words of usage lines that stand for something of which only some kinds are taken.
const PLACEHOLDERS: [(&str, &str); 3] = [("COMMAND", "copy"), ("TYPO", "copy"), ("N", "1")];

/// A command line of a page.
#[derive(Debug)]
pub struct Shown {
    /// File and line.
    at: String,
    /// From the program's name on.
    line: String,
    /// To be typed as it is. One within a sentence may leave out what everybody would add.
    is_whole: bool,
}

/// The command lines of a page: of its blocks of code whole ones, of its sentences those in spans of code.
/// What is no Markdown is taken for a block of code, with its comments.
pub fn lines(page: &str, text: &str, is_markdown: bool) -> Vec<Shown> {
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
pub fn mistake(command: Command, shown: &Shown) -> Option<String> {
    let words = words(&shown.line);
    let error = command.try_get_matches_from(&words).err()?;
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
