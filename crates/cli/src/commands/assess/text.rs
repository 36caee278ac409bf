//! An assessment for a terminal.

use whimbrel_flow::assess::{self, Line, Page, Severity, Verdict};
use whimbrel_terminal::screen::Screen;
use whimbrel_terminal::table::{Column, Table, number, text};

use super::words;
use crate::ui::remedies;

/// An assessment for a terminal of this width.
pub fn as_text(page: &Page, screen: Screen) -> String {
    let mut shown = String::new();
    for Line { label, text, remedy } in &page.lines {
        shown.push_str(&format!("{label:<9}{}\n", remedies::with(text, remedy.as_ref())));
    }
    for section in &page.sections {
        shown.push_str(&format!("\n{}\n", section.title));
        let head: Vec<_> = section.head.iter().map(column).collect();
        let mut table = Table::new(&head, section.flexible);
        section.rows.iter().for_each(|row| table.row(row.clone()));
        for line in table.lines(screen) {
            shown.push_str(&line);
            shown.push('\n');
        }
    }
    shown.push('\n');
    for (severity, what, remedy) in &page.findings {
        let label = words::severity(*severity);
        let painted = match severity {
            Severity::Blocks => screen.bad(label),
            Severity::Warns => label.to_owned(),
            Severity::Notes => screen.faint(label),
        };
        let pad = " ".repeat(9 - label.len());
        let what = remedies::with(what, remedy.as_ref());
        shown.push_str(&format!("{painted}{pad}{what}\n"));
    }
    let verdict = match page.verdict {
        Verdict::Blocked => screen.bad("verdict"),
        Verdict::Ready | Verdict::WithCare => screen.good("verdict"),
    };
    shown.push_str(&format!("{verdict}  {}\n", words::verdict(page.verdict)));
    shown
}

fn column(column: &assess::Column) -> Column {
    match column.is_number {
        true => number(column.name, column.rank),
        false => text(column.name, column.rank),
    }
}
