//! Private words that `docs/glossary.md` replaces. None of them names a type or a function, or stands in what
//! people read.

use super::source::words;

/// Names of types that say nothing to a stranger, or have meant several things.
const TYPES: [&str; 46] = [
    "Aim",
    "Card",
    "Crowd",
    "Desk",
    "Door",
    "Ear",
    "Exposed",
    "Fared",
    "Fence",
    "Half",
    "Heed",
    "Home",
    "Hub",
    "Leash",
    "Loose",
    "Manner",
    "Named",
    "Obstinate",
    "Parcel",
    "Party",
    "Place",
    "Quiet",
    "Reserve",
    "Room",
    "Stirs",
    "Surgeon",
    "Trunk",
    "While",
    "Whole",
    "Wish",
    "Witness",
    "Doubt",
    "Mend",
    "Look",
    "Turn",
    "Learn",
    "Tell",
    "Say",
    "Mender",
    "Teller",
    "Cut",
    "Held",
    "Looked",
    "Looking",
    "Said",
    "Told",
];

/// Verbs that stand for many things: suspect, repair, poll, notify, print and the like say which.
const VERBS: [&str; 12] =
    ["doubt", "heed", "learn", "look", "looked", "mend", "said", "say", "teach", "tell", "told", "turn"];

/// Verbs that are plain with what follows them.
const FUNCTIONS: [&str; 1] = ["look_up"];

/// Parts of names, wherever they stand in one.
const PARTS: [&str; 4] = ["told_of", "mended", "whoever", "amiss"];

/// Phrases of prose, and what to write.
const PHRASES: [(&str, &str); 13] = [
    ("whoever", "the client, the server that"),
    ("amiss", "a problem"),
    ("is told of", "is reported"),
    ("are told of", "are reported"),
    ("mends", "repairs"),
    ("mended", "repaired"),
    ("writers are held", "writes are paused"),
    ("writers were held", "writes were paused"),
    ("writers held", "writes paused"),
    ("no writer is held", "writes are not paused"),
    ("writers are let go", "writes resume"),
    ("writers may be held", "writes may be paused"),
    ("holds writers", "pauses writes"),
];

/// The page that has them side by side, this file, and what is history.
const EXEMPT: [&str; 3] = ["docs/glossary.md", "xtask/src/tidy/glossary.rs", "CHANGELOG.md"];

/// What a line of code defines by a private word. `code` has neither comments nor strings.
pub fn private_names(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        for keyword in ["struct", "enum", "trait", "type"] {
            let defined = defined_after(line, keyword);
            found
                .extend(defined.filter(|name| TYPES.contains(name)).map(|name| (index + 1, name.to_owned())));
        }
        let defined = defined_after(line, "fn").filter(|name| !FUNCTIONS.contains(name));
        let is_private = |name: &&str| {
            VERBS.contains(&name.split('_').next().unwrap_or_default())
                || PARTS.iter().any(|part| name.contains(part))
        };
        found.extend(defined.filter(is_private).map(|name| (index + 1, name.to_owned())));
    }
    found
}

/// Phrases of a text that stumble: line, counted from 1, the phrase, and what to write.
pub fn private_phrases(path: &str, text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let is_read = [".rs", ".md", ".js"].iter().any(|ending| path.ends_with(ending));
    if !is_read || EXEMPT.contains(&path) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.to_ascii_lowercase();
        let here = PHRASES.into_iter().filter(|(phrase, _)| !words(&line, phrase).is_empty());
        found.extend(here.map(|(phrase, instead)| (index + 1, phrase, instead)));
    }
    found
}

/// The name that a line defines by this keyword.
fn defined_after<'a>(line: &'a str, keyword: &str) -> Option<&'a str> {
    let at = *words(line, keyword).first()?;
    let rest = line[at + keyword.len()..].trim_start();
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_words_are_found() {
        let names = |code| private_names(code).into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(
            names("pub(super) struct Door<'a> {\n    fn look_again(&self) {}"),
            ["Door", "look_again"]
        );
        assert_eq!(names("fn a_disk_is_mended() {}\nfn it_is_told_of() {}").len(), 2);
        assert_eq!(names("fn teller() {} \nstruct DoorFrame;\nfn look_up() {}"), [] as [&str; 0]);
        let text = "A client is\nwhoever connects.";
        assert_eq!(private_phrases("docs/a.md", text), [(2, "whoever", "the client, the server that")]);
        assert_eq!(private_phrases("docs/glossary.md", text), []);
    }
}
