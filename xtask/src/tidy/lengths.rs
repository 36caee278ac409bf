//! How long files, functions and lines may be.

use super::script;
use super::source::{line_of, words};

/// Lines of a file, comments and tests included.
const FILE_LINES_MAX: usize = 800;

/// Lines of a function from `fn` or `function` to its last brace, comments included.
const FUNCTION_LINES_MAX: usize = 100;

/// As rustfmt.toml says for Rust; rustfmt leaves comments, strings and macros as they are. The same for what
/// is written in other languages, and for code in pages.
const COLUMNS_MAX: usize = 110;

/// Ends of the names of text files that are no source.
const NO_SOURCE: [&str; 4] = [
    // A paragraph of prose is one line. The code between is for [`of_page`].
    ".md",
    // Cargo writes it.
    "Cargo.lock",
    // Programs draw them.
    ".svg",
    // Data: to Grafana a dashboard is one file.
    "packaging/grafana/whimbrel.json",
];

/// Where proptest keeps what it has found. It writes each case into one line.
const FOUND_CASES: &str = "/proptest-regressions/";

/// What is too long in a text file that people write, whatever its language: line, rule, message. Of Rust and
/// pages that is not all: [`of_functions`], [`of_page`].
pub(super) fn of_source(path: &str, text: &str) -> Vec<(usize, &'static str, String)> {
    let mut found = Vec::new();
    if NO_SOURCE.iter().any(|end| path.ends_with(end)) || path.contains(FOUND_CASES) {
        return found;
    }
    let count = text.lines().count();
    if count > FILE_LINES_MAX {
        let message = format!("{count} lines, at most {FILE_LINES_MAX}: divide the file");
        found.push((FILE_LINES_MAX + 1, "long-file", message));
    }
    found.extend(text.lines().enumerate().filter_map(|(index, line)| too_wide(index, line)));
    if [".js", ".mjs", ".ts"].iter().any(|end| path.ends_with(end)) {
        found.extend(of_functions(&script::code(text), "function"));
    }
    found
}

/// Functions that are too long: line, rule, message. `code` has no comments and literals, and `keyword` is
/// what a function begins with.
pub(super) fn of_functions(code: &str, keyword: &str) -> Vec<(usize, &'static str, String)> {
    let mut found = Vec::new();
    for (at, name, end) in functions(code, keyword) {
        let (first, last) = (line_of(code, at), line_of(code, end));
        let lines = last - first + 1;
        if lines > FUNCTION_LINES_MAX {
            let message = format!("{name} has {lines} lines, at most {FUNCTION_LINES_MAX}: divide it");
            found.push((first, "long-function", message));
        }
    }
    found
}

/// Lines of code in a page that are too long: line, rule, message.
pub(super) fn of_page(text: &str) -> Vec<(usize, &'static str, String)> {
    let mut is_code = false;
    let in_code = text.lines().enumerate().filter(|(_, line)| {
        let is_edge = line.trim_start().starts_with("```");
        is_code ^= is_edge;
        is_code && !is_edge
    });
    in_code.filter_map(|(index, line)| too_wide(index, line)).collect()
}

fn too_wide(index: usize, line: &str) -> Option<(usize, &'static str, String)> {
    let columns = line.chars().count();
    let message = || format!("{columns} columns, at most {COLUMNS_MAX}: divide the line");
    (columns > COLUMNS_MAX).then(|| (index + 1, "long-line", message()))
}

/// The functions with a body: where each begins, its name, and where its last brace is.
fn functions<'a>(code: &'a str, keyword: &str) -> impl Iterator<Item = (usize, &'a str, usize)> {
    words(code, keyword).into_iter().filter_map(move |at| {
        let begin = at + keyword.len();
        let after = &code[begin..];
        // JavaScript marks a generator with a star.
        let name = after.trim_start_matches(|c: char| c.is_whitespace() || c == '*');
        let name = &name[..name.find(|c: char| !c.is_alphanumeric() && c != '_')?];
        // The type of a function has no name, and what JavaScript passes on need not have one.
        if name.is_empty() {
            return None;
        }
        let mut depth = 0_i32;
        let open = after.find(|c| {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                _ => {}
            }
            depth == 0 && (c == '{' || c == ';')
        })?;
        if after[open..].starts_with(';') {
            return None;
        }
        let end = after[open..].find(|c| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            depth == 0
        })?;
        Some((at, name, begin + open + end))
    })
}

#[cfg(test)]
mod tests {
    use super::super::source::Views;
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        of_source(path, text).into_iter().map(|(line, rule, _)| (line, rule)).collect()
    }

    #[test]
    fn long_files_and_lines_are_found() {
        assert_eq!(rules("a.rs", &"\n".repeat(800)), []);
        assert_eq!(rules("a.rs", &"\n".repeat(801)), [(801, "long-file")]);
        assert_eq!(rules("a.rs", &format!("// {}\n", "é".repeat(107))), []);
        assert_eq!(rules("a.rs", &format!("\n// {}\n", "é".repeat(108))), [(2, "long-line")]);
    }

    #[test]
    fn all_source_has_the_same_lengths() {
        let wide = format!("\n{}\n", "é".repeat(111));
        let sources = [
            "crates/a/b.rs",
            "a.js",
            "a.mjs",
            "a.ts",
            "a.css",
            "a.html",
            "a.lua",
            "a/Cargo.toml",
            "a.sh",
            "a.py",
            "a.yml",
            "a.yaml",
            "a.json",
            "a.tpl",
            "a.service",
            "dev",
            "a/try",
        ];
        for path in sources {
            assert_eq!(rules(path, &wide), [(2, "long-line")], "{path}");
            assert_eq!(rules(path, &"\n".repeat(801)), [(801, "long-file")], "{path}");
        }
        for path in ["a.md", "fuzz/Cargo.lock", "a.svg", "a/proptest-regressions/b.txt"] {
            assert_eq!(rules(path, &wide.repeat(801)), [], "{path}");
        }
    }

    #[test]
    fn a_function_is_as_long_as_its_lines_with_comments_and_what_is_in_it() {
        let rules = |text: &str| {
            let found = of_functions(&Views::of(text).code, "fn").into_iter();
            found.map(|(line, rule, _)| (line, rule)).collect::<Vec<_>>()
        };
        let function = |lines: usize| {
            format!("\nfn a(b: [u8; 2]) -> fn(u8) {{\n{}}}\n", "    // a { comment\n".repeat(lines - 2))
        };
        assert_eq!(rules(&function(100)), []);
        assert_eq!(rules(&function(101)), [(2, "long-function")]);
        let within = format!("mod m {{\n    trait T {{\n        fn t();\n    }}\n{}}}\n", function(101));
        assert_eq!(rules(&within), [(6, "long-function")]);
    }

    #[test]
    fn functions_of_scripts_are_no_longer_than_others() {
        let function =
            |head: &str, lines: usize| format!("{head} {{\n{}}}\n", "  a(`}`);\n".repeat(lines - 2));
        for head in ["function a()", "export async function a({ b = {} })", "function* a(b = /[/}]/)"] {
            assert_eq!(rules("a.js", &function(head, 100)), [], "{head}");
            assert_eq!(rules("a.js", &function(head, 101)), [(1, "long-function")], "{head}");
        }
        let within = format!("const a = () => {{\n{}}};\n", function("function b()", 101));
        assert_eq!(rules("a.js", &within), [(2, "long-function")]);
        assert_eq!(rules("a.lua", &within), [], "another language");
    }

    #[test]
    fn code_in_pages_is_no_wider_than_other_code() {
        let wide = "x".repeat(111);
        assert_eq!(of_page(&format!("{wide}\n```sh\nx\n```\n{wide}\n")), []);
        let found = of_page(&format!("```sh\n{wide}\n```\n"));
        assert_eq!(found.iter().map(|(line, ..)| *line).collect::<Vec<_>>(), [2]);
    }
}
