//! Links between pages: a page that is moved or a heading that is renamed must not leave a link that leads
//! nowhere.

use std::collections::BTreeMap;

/// The contents of the site, by which a reader finds a page.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Each link of `pages`, text by path, that leads nowhere: path, line, what is wrong. `is_file` says whether
/// a path of the repository is there.
pub fn dead(
    pages: &BTreeMap<String, String>,
    is_file: &dyn Fn(&str) -> bool,
) -> Vec<(String, usize, String)> {
    let mut found = Vec::new();
    for (path, text) in pages {
        for (line, target) in links(text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) =
                target.split_once('#').map_or((target.as_str(), None), |(f, h)| (f, Some(h)));
            let to = if file.is_empty() { Some(path.clone()) } else { joined(path, file) };
            let Some(to) = to.filter(|to| pages.contains_key(to) || is_file(to)) else {
                found.push((path.clone(), line, format!("the link {target} leads to no file")));
                continue;
            };
            let is_there = |heading: &str| match pages.get(&to) {
                Some(page) => headings(page).iter().any(|slug| slug == heading),
                // A line of source, or the like.
                None => true,
            };
            if heading.is_some_and(|heading| !is_there(heading)) {
                found.push((path.clone(), line, format!("the link {target} leads to no heading of {to}")));
            }
        }
    }
    found
}

/// Pages below docs/ that the contents do not name.
pub fn unlisted(pages: &BTreeMap<String, String>) -> Vec<String> {
    let Some(summary) = pages.get(SUMMARY) else { return Vec::new() };
    let listed: Vec<String> = links(summary).into_iter().filter_map(|(_, to)| joined(SUMMARY, &to)).collect();
    let is_page = |path: &&String| path.starts_with("docs/") && path.as_str() != SUMMARY;
    pages.keys().filter(is_page).filter(|path| !listed.contains(path)).cloned().collect()
}

/// The targets of links with their lines, counted from 1; not those in code.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in without_code(text) {
        let mut rest = line.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, behind)) = after.split_once(')') else { break };
            // A title may follow the target.
            if let Some(target) = target.split(' ').next().filter(|target| !target.is_empty()) {
                found.push((index + 1, target.to_owned()));
            }
            rest = behind;
        }
    }
    found
}

/// Lines with their index, without code blocks and with spans of code taken out.
fn without_code(text: &str) -> Vec<(usize, String)> {
    let mut in_block = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            lines.push((index, line.split('`').step_by(2).collect()));
        }
    }
    lines
}

/// The anchors of a page's headings, as renderers make them.
fn headings(text: &str) -> Vec<String> {
    let mut in_block = false;
    let mut slugs: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        }
        let title = line.trim_start_matches('#');
        if in_block || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let keep = |c: char| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || matches!(c, '-' | '_') => Some(c.to_ascii_lowercase()),
            _ => None,
        };
        let slug: String = title.trim().chars().filter_map(keep).collect();
        let same = slugs.iter().filter(|known| **known == slug).count();
        slugs.push(if same == 0 { slug } else { format!("{slug}-{same}") });
    }
    slugs
}

/// Where a link of the page `from` leads; `None` out of the repository.
fn joined(from: &str, to: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in to.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(pages: &[(&str, &str)]) -> BTreeMap<String, String> {
        pages.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let pages = pages(&[
            (
                "README.md",
                "[a](docs/a.md) [b](docs/b.md \"title\")\n[c](docs/a.md#two-words) [d](docs/a.md#three)",
            ),
            (
                "docs/a.md",
                "# Two `words`\n[up](../README.md) [out](../../x.md) [own](#two-words) [web](https://x/y)\n\
                ```\n[code](nowhere.md)\n# three\n```\n`[code](nowhere.md)` [source](../src/lib.rs)",
            ),
        ]);
        let found = dead(&pages, &|path| path == "src/lib.rs");
        let expected = [
            ("README.md", 1, "the link docs/b.md leads to no file"),
            ("README.md", 2, "the link docs/a.md#three leads to no heading of docs/a.md"),
            ("docs/a.md", 2, "the link ../../x.md leads to no file"),
        ];
        let expected = expected.map(|(path, line, what)| (path.to_owned(), line, what.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn pages_that_nobody_finds_are_found() {
        let pages = pages(&[
            ("docs/SUMMARY.md", "- [A](sub/a.md)"),
            ("docs/sub/a.md", ""),
            ("docs/b.md", ""),
            ("c.md", ""),
        ]);
        assert_eq!(unlisted(&pages), ["docs/b.md"]);
    }
}
