//! An assessment as one HTML file that needs no other.

use whimbrel_flow::assess::{Line, Page, Section};

use super::words;
use crate::ui::remedies;

/// The file, with the names of its parts where they stand.
const TEMPLATE: &str = include_str!("page.html");

/// The whole file.
pub fn of(page: &Page) -> String {
    let line = |line: &Line| {
        let text = remedies::with(&line.text, line.remedy.as_ref());
        format!("<dt>{}</dt><dd>{}</dd>\n", line.label, escaped(&text))
    };
    let findings = page.findings.iter().map(|(severity, what, remedy)| {
        let (class, what) = (words::severity(*severity), escaped(what));
        let remedy = remedy.as_ref().map(|remedy| escaped(&remedies::words(remedy))).unwrap_or_default();
        format!(
            "<tr><td class=\"{class}\">{class}</td><td>{what}<div class=\"remedy\">{remedy}</div></td></tr>\n"
        )
    });
    let parts = [
        ("verdict", escaped(words::verdict(page.verdict))),
        ("lines", page.lines.iter().map(line).collect()),
        ("findings", findings.collect()),
        ("sections", page.sections.iter().map(table).collect()),
    ];
    let mut pieces = TEMPLATE.split("{{");
    let mut html = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, behind) = piece.split_once("}}").unwrap_or(("", piece));
        html.extend(parts.iter().filter(|(part, _)| *part == name).map(|(_, text)| text.as_str()));
        html.push_str(behind);
    }
    html
}

fn table(section: &Section) -> String {
    let row = |cells: Vec<&str>, tag: &str| {
        let cells = cells.iter().zip(&section.head).map(|(cell, column)| {
            let class = if column.is_number { " class=\"n\"" } else { "" };
            format!("<{tag}{class}>{}</{tag}>", escaped(cell))
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let head = row(section.head.iter().map(|column| column.name).collect(), "th");
    let rows = section.rows.iter().map(|cells| row(cells.iter().map(String::as_str).collect(), "td"));
    let rows: String = rows.collect();
    format!("<h2>{}</h2>\n<table>\n{head}{rows}</table>\n", escaped(section.title))
}

/// Text that a browser shows as it is: names of keys are anybody's.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_keys_are_no_markup() {
        assert_eq!(escaped("<a href='x'>\"&\""), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;&quot;");
    }
}
