//! JavaScript, read as text: what is code in it.

use super::source::{blank, quoted_length};

/// The script with comments and literals blanked, but for the quote that ends one; every byte keeps its
/// place. What a template has in `${…}` is code.
pub(super) fn code(script: &str) -> String {
    let mut code = String::new();
    let mut rest = script;
    // For each template whose `${…}` this is in, how many braces are open there.
    let mut holes: Vec<usize> = Vec::new();
    while let Some(first) = rest.chars().next() {
        let ends_hole = first == '}' && holes.last() == Some(&0);
        let blanked = match first {
            '/' if rest.starts_with("//") => Some(rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => Some(rest.find("*/").map_or(rest.len(), |at| at + 2)),
            '/' if begins_regex(&code) => Some(regex_length(rest)),
            '"' | '\'' => Some(1 + quoted_length(&rest[1..], first)),
            '`' => Some(template_length(rest)),
            '}' if ends_hole => Some(template_length(rest)),
            _ => None,
        };
        let (piece, after) = rest.split_at(blanked.unwrap_or(first.len_utf8()));
        rest = after;
        if ends_hole {
            holes.pop();
        }
        if blanked.is_none() {
            code.push_str(piece);
            if let Some(braces) = holes.last_mut() {
                *braces = *braces + usize::from(first == '{') - usize::from(first == '}');
            }
            continue;
        }
        code.push_str(&blank(piece));
        if first != '/' && piece.ends_with(['"', '\'', '`']) {
            code.pop();
            code.push('"');
        } else if first != '/' && piece.ends_with("${") {
            holes.push(0);
        }
    }
    code
}

/// Whether a stroke after this code begins a regular expression. Else it divides a value.
fn begins_regex(code: &str) -> bool {
    let before = code.trim_end();
    let ends_value = |c: char| c.is_alphanumeric() || "_$)]}\"".contains(c);
    !before.ends_with(ends_value) || before.ends_with("return")
}

/// The length up to and including the stroke that ends a regular expression; 1 where it is none, since the
/// line has no other stroke.
fn regex_length(rest: &str) -> usize {
    let mut in_class = false;
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1).take_while(|(_, c)| *c != '\n') {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '/' if !in_class => return at + 1,
            _ => {}
        }
    }
    1
}

/// The length up to and including what ends a piece of a template: its last quote, or `${`. `rest` starts
/// with its first quote, or the brace after which it goes on.
fn template_length(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '`' => return at + 1,
            '$' if rest[at..].starts_with("${") => return at + 2,
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let cases = [
            ("a // {\nb /* { \n */ c", "a     \nb      \n    c"),
            (r#"a("}\"", '{', "é") b"#, r#"a(    ",   ",    ") b"#),
            ("`{ ${b({ c: `}` })} }` d", "     b({ c:   \" })   \" d"),
            (r"`\${ \` {` + a", "         \" + a"),
            (r"a.replace(/[/{]\/}/g, b)", "a.replace(         g, b)"),
            ("return /{/.test(a)", "return    .test(a)"),
            ("(a) / b / {} / 2 / \"c\" / d", "(a) / b / {} / 2 /   \" / d"),
        ];
        for (script, expected) in cases {
            assert_eq!(code(script), expected, "{script}");
        }
    }
}
