//! Sentences of what is read at three in the morning: none so long that it has to be read twice.

/// Words of the longest sentence.
pub const WORDS_MAX: usize = 35;

/// Where the rule holds: the README, and what leads through a job.
const PAGES: [&str; 9] = [
    "README.md",
    "docs/start/",
    "docs/operating/",
    "docs/configuration.md",
    "docs/exit-codes.md",
    "docs/guarantees.md",
    "docs/installing.md",
    "docs/introduction.md",
    "docs/support.md",
];

/// The sentences of a page that are too long: line, counted from 1, and number of words. What is not prose
/// does not count: blocks of code, and a list in a cell of a table, whose items end with a semicolon.
pub fn long_sentences(path: &str, text: &str) -> Vec<(usize, usize)> {
    if !PAGES.iter().any(|page| path.starts_with(page)) {
        return Vec::new();
    }
    let mut counter = Counter::default();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        let begins = ["#", "- ", "* ", "> ", "|"].iter().any(|sign| line.starts_with(sign));
        let is_numbered = line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        if is_fence || in_code || line.is_empty() || begins || is_numbered {
            counter.end();
        }
        if is_fence || in_code {
            continue;
        }
        let ends: &[char] = if line.starts_with('|') { &['.', '!', '?', ';'] } else { &['.', '!', '?'] };
        for word in without_code(line).split_whitespace() {
            if word == "|" {
                counter.end();
                continue;
            }
            counter.add(index + 1, word);
            if word.trim_end_matches(['"', ')', '*', '_']).ends_with(ends) {
                counter.end();
            }
        }
    }
    counter.end();
    counter.found
}

/// The sentence that is being read, and those that were too long.
#[derive(Default)]
struct Counter {
    line: usize,
    words: usize,
    found: Vec<(usize, usize)>,
}

impl Counter {
    fn add(&mut self, line: usize, word: &str) {
        if word.contains(char::is_alphanumeric) {
            if self.words == 0 {
                self.line = line;
            }
            self.words += 1;
        }
    }

    fn end(&mut self) {
        if self.words > WORDS_MAX {
            self.found.push((self.line, self.words));
        }
        self.words = 0;
    }
}

/// The line with one word for each piece of code in it, and without the addresses of its links.
fn without_code(line: &str) -> String {
    let mut text = String::new();
    for (number, piece) in line.split('`').enumerate() {
        text.push_str(if number % 2 == 0 { piece } else { "code" });
    }
    while let Some((before, after)) = text.split_once("](") {
        let rest = after.split_once(')').map_or("", |(_, rest)| rest);
        text = format!("{before}]{rest}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, usize)> {
        long_sentences("docs/operating/a.md", text)
    }

    #[test]
    fn a_sentence_is_counted_across_lines() {
        let most = "word ".repeat(WORDS_MAX);
        assert!(found(&format!("{most}.")).is_empty());
        assert_eq!(found(&format!("# Title\n\nShort. One\n{most}.\nShort.")), [(3, WORDS_MAX + 1)]);
        assert!(found(&format!("One two.\n{most}")).is_empty(), "a full stop ends it");
        assert!(found(&format!("One two\n\n{most}")).is_empty(), "so does an empty line");
        assert!(found(&format!("One two\n- {most}\n2. {most}")).is_empty(), "and the next item");
        assert!(long_sentences("docs/design/a.md", &most.repeat(2)).is_empty(), "other pages are free");
    }

    #[test]
    fn what_is_no_prose_does_not_count() {
        let long = "word ".repeat(WORDS_MAX + 5);
        assert!(found(&format!("```\n{long}\n```\n")).is_empty());
        assert!(found(&format!("A `{long}` and [b](https://host/{}).", "x.".repeat(40))).is_empty());
        let half = "word ".repeat(20);
        assert!(found(&format!("| {half} | {half} |")).is_empty(), "cells are apart");
        assert!(found(&format!("| {half}; {half} |").replace(" ;", ";")).is_empty(), "so are items");
        assert_eq!(found(&format!("{half}; {half}").replace(" ;", ";")), [(1, 40)]);
    }
}
