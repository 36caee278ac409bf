//! An assessment as one HTML file that needs no other.

use whimbrel_flow::assess::{Line, Page, Section};
use whimbrel_terminal::page::{escaped, filled};

use super::words;
use crate::ui::remedies;

/// The file, with the names of its parts where they go.
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
    filled(TEMPLATE, &parts)
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
