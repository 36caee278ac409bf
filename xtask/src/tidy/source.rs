//! Rust source, read as text: what is code in it, and what it imports.

use std::ops::Range;

/// The full paths that a `use` brings in: `a::{b, c::d as e}` gives `a::b` and `a::c::d`.
pub(super) fn expand_imports(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        return if path.is_empty() { Vec::new() } else { vec![path.split_whitespace().collect()] };
    };
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let mut depth = 0;
    let branches = group.split(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    branches.flat_map(expand_imports).map(|path| format!("{}{path}", prefix.trim())).collect()
}

/// Where `word` is in `text` and not a part of a longer name.
pub(super) fn words(text: &str, word: &str) -> Vec<usize> {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(|at| !text[..*at].ends_with(in_name) && !text[at + word.len()..].starts_with(in_name))
        .collect()
}

/// The number of the line that the byte at `at` is in.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Spaces in place of all but the newlines, so that every other byte keeps its place.
pub(super) fn blank(text: &str) -> String {
    text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect()
}

/// Blanks what follows `#[cfg(test)]`, up to the end of its block. `code` has no strings and comments.
pub(super) fn without_test_modules(code: &str) -> String {
    without(code, &test_modules(code))
}

/// Blanks these parts of a text.
pub(super) fn without(text: &str, parts: &[Range<usize>]) -> String {
    let mut result = text.to_owned();
    for part in parts {
        result.replace_range(part.clone(), &blank(&text[part.clone()]));
    }
    result
}

/// Where tests are in code without strings and comments.
pub(super) fn test_modules(code: &str) -> Vec<Range<usize>> {
    const ATTRIBUTE: &str = "#[cfg(test)]";
    let mut modules = Vec::new();
    for (start, _) in code.match_indices(ATTRIBUTE) {
        let after = start + ATTRIBUTE.len();
        let mut depth = 0;
        let end = code[after..].find(|c| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            (c == '}' || c == ';') && depth == 0
        });
        modules.push(start..end.map_or(code.len(), |length| after + length + 1));
    }
    modules
}

/// Rust source with some of it blanked; every byte keeps its place.
pub(super) struct Views {
    /// Without comments and the contents of literals.
    pub(super) code: String,
    /// Without comments.
    pub(super) code_and_strings: String,
}

impl Views {
    pub(super) fn of(source: &str) -> Views {
        let mut views = Views { code: String::new(), code_and_strings: String::new() };
        let mut rest = source;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(piece_length(rest, views.code.chars().next_back()));
            let is_comment = piece.starts_with("//") || piece.starts_with("/*");
            let is_literal = !is_comment && piece.len() > 1 && piece.ends_with(['"', '\'', '#']);
            views.code.push_str(&if is_comment || is_literal { blank(piece) } else { piece.to_owned() });
            views.code_and_strings.push_str(&if is_comment { blank(piece) } else { piece.to_owned() });
            rest = after;
        }
        views
    }
}

/// The length of the comment or literal that `rest` starts with, or of its first character if there is none.
/// `before` is the character in front of it.
fn piece_length(rest: &str, before: Option<char>) -> usize {
    let first_length = rest.chars().next().map_or(0, char::len_utf8);
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_length(rest);
    }
    if let Some(length) = raw_string_length(rest, before) {
        return length;
    }
    match rest.as_bytes()[0] {
        b'"' => 1 + quoted_length(&rest[1..], '"'),
        b'\'' => {
            // A character literal has its second quote after one character or an escape; else it is a
            // lifetime.
            let mut inside = rest[1..].chars();
            match (inside.next(), inside.next()) {
                (Some('\\'), _) | (Some(_), Some('\'')) => 1 + quoted_length(&rest[1..], '\''),
                _ => 1,
            }
        }
        _ => first_length,
    }
}

/// The length up to and including the quote that ends a literal; `inside` starts after the first quote.
pub(super) fn quoted_length(inside: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return at + 1;
        }
    }
    inside.len()
}

/// The length of the raw string that `rest` starts with, if it does.
fn raw_string_length(rest: &str, before: Option<char>) -> Option<usize> {
    let after_r = rest.strip_prefix('r')?;
    // `br"…"` and `cr"…"` are raw strings as well; any other name that ends with r is a name.
    if before.is_some_and(|c| (c.is_alphanumeric() || c == '_') && c != 'b' && c != 'c') {
        return None;
    }
    let after_hashes = after_r.trim_start_matches('#');
    let hashes = &after_r[..after_r.len() - after_hashes.len()];
    let inside = after_hashes.strip_prefix('"')?;
    let end = inside.find(&format!("\"{hashes}")).map_or(inside.len(), |at| at + 1 + hashes.len());
    Some(1 + hashes.len() + 1 + end)
}

/// The length of a block comment; they nest.
fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_expanded() {
        assert_eq!(expand_imports(" a::b "), ["a::b"]);
        assert_eq!(
            expand_imports("a::{b, c::{d as e, f}, self,}"),
            ["a::b", "a::c::d", "a::c::f", "a::self"]
        );
        assert_eq!(expand_imports("a::*"), ["a::*"]);
    }

    #[test]
    fn comments_and_literals_are_distinguished_from_code() {
        let cases = [
            ("a // b\nc", "a     \nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e", "a                   e"),
            ("a(\"b // c\") d", "a(        ) d", "a(\"b // c\") d"),
            (r#"a("b\"c") d"#, "a(      ) d", r#"a("b\"c") d"#),
            ("r#\"a\"b\"# c", "         c", "r#\"a\"b\"# c"),
            ("br\"a\\\" c", "b      c", "br\"a\\\" c"),
            ("'\"' a '\\'' b", "    a      b", "'\"' a '\\'' b"),
            ("fn a<'b>(c: &'b str)", "fn a<'b>(c: &'b str)", "fn a<'b>(c: &'b str)"),
            ("r#type car\"x\"", "r#type car   ", "r#type car\"x\""),
            ("\"é\" 'é' x", "          x", "\"é\" 'é' x"),
        ];
        for (source, code, code_and_strings) in cases {
            let views = Views::of(source);
            assert_eq!(views.code, code, "{source}");
            assert_eq!(views.code_and_strings, code_and_strings, "{source}");
        }
    }
}
