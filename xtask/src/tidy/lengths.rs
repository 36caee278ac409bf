//! How long files, functions and lines may be.

use super::source::{line_of, words};

/// Lines of a file, comments and tests included.
const FILE_LINES_MAX: usize = 800;

/// Lines of a function from `fn` to its last brace, comments included.
const FUNCTION_LINES_MAX: usize = 100;

/// As rustfmt.toml says for code; rustfmt leaves comments, strings and macros as they are. The same for code
/// in pages.
const COLUMNS_MAX: usize = 110;

/// What is too long in a Rust file: line, rule, message. `code` is `text` without comments and literals.
pub(super) fn of_rust(text: &str, code: &str) -> Vec<(usize, &'static str, String)> {
    let mut found = Vec::new();
    let count = text.lines().count();
    if count > FILE_LINES_MAX {
        let message = format!("{count} lines, at most {FILE_LINES_MAX}: divide the file");
        found.push((FILE_LINES_MAX + 1, "long-file", message));
    }
    found.extend(text.lines().enumerate().filter_map(|(index, line)| too_wide(index, line)));
    for (at, name, end) in functions(code) {
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
fn functions(code: &str) -> impl Iterator<Item = (usize, &str, usize)> {
    words(code, "fn").into_iter().filter_map(|at| {
        let after = &code[at + "fn".len()..];
        let name = after.trim_start();
        let name = &name[..name.find(|c: char| !c.is_alphanumeric() && c != '_')?];
        // The type of a function has no name.
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
        Some((at, name, at + "fn".len() + open + end))
    })
}

#[cfg(test)]
mod tests {
    use super::super::source::Views;
    use super::*;

    fn rules(text: &str) -> Vec<(usize, &'static str)> {
        of_rust(text, &Views::of(text).code).into_iter().map(|(line, rule, _)| (line, rule)).collect()
    }

    #[test]
    fn long_files_and_lines_are_found() {
        assert_eq!(rules(&"\n".repeat(800)), []);
        assert_eq!(rules(&"\n".repeat(801)), [(801, "long-file")]);
        assert_eq!(rules(&format!("// {}\n", "é".repeat(107))), []);
        assert_eq!(rules(&format!("\n// {}\n", "é".repeat(108))), [(2, "long-line")]);
    }

    #[test]
    fn a_function_is_as_long_as_its_lines_with_comments_and_what_is_in_it() {
        let function = |lines: usize| {
            format!("\nfn a(b: [u8; 2]) -> fn(u8) {{\n{}}}\n", "    // a { comment\n".repeat(lines - 2))
        };
        assert_eq!(rules(&function(100)), []);
        assert_eq!(rules(&function(101)), [(2, "long-function")]);
        let within = format!("mod m {{\n    trait T {{\n        fn t();\n    }}\n{}}}\n", function(101));
        assert_eq!(rules(&within), [(6, "long-function")]);
    }

    #[test]
    fn code_in_pages_is_no_wider_than_other_code() {
        let wide = "x".repeat(111);
        assert_eq!(of_page(&format!("{wide}\n```sh\nx\n```\n{wide}\n")), []);
        let found = of_page(&format!("```sh\n{wide}\n```\n"));
        assert_eq!(found.iter().map(|(line, ..)| *line).collect::<Vec<_>>(), [2]);
    }
}
