//! An assessment as one HTML file that needs no other.

use std::fmt::Write;

use super::page::{Page, Section};
use super::words;
use whimbrel_terminal::table::Align;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;\
    color:#222;background:#fff}h1{font-size:1.4rem}h2{font-size:1.05rem;margin-top:2rem}\
    table{border-collapse:collapse;width:100%}th{text-align:left;font-weight:600;color:#666}\
    th,td{padding:.25rem .75rem .25rem 0;border-bottom:1px solid #ddd;vertical-align:top}\
    .n{text-align:right}.blocks{color:#b00020;font-weight:600}.care{color:#8a5a00;font-weight:600}\
    .note{color:#666}.remedy{color:#555}dt{float:left;clear:left;width:6rem;color:#666}dd{margin-left:6rem}";

/// The whole file.
pub fn of(page: &Page) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>whimbrel assess</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{}</h1>\n<dl>\n",
        escaped(words::verdict(page.verdict))
    );
    let mut add = |text: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = html.write_fmt(text);
    };
    for (label, line) in &page.lines {
        add(format_args!("<dt>{label}</dt><dd>{}</dd>\n", escaped(line)));
    }
    add(format_args!("</dl>\n<h2>Findings</h2>\n<table>\n"));
    for (severity, what, remedy) in &page.findings {
        let class = words::severity(*severity);
        let remedy = remedy.as_deref().map(escaped).unwrap_or_default();
        add(format_args!(
            "<tr><td class=\"{class}\">{class}</td><td>{}<div class=\"remedy\">{remedy}</div></td></tr>\n",
            escaped(what)
        ));
    }
    add(format_args!("</table>\n"));
    for section in &page.sections {
        add(format_args!("{}", table(section)));
    }
    add(format_args!("</body>\n</html>\n"));
    html
}

fn table(section: &Section) -> String {
    let row = |cells: Vec<&str>, tag: &str| {
        let cells = cells.iter().zip(&section.head).map(|(cell, column)| {
            let class = if column.align == Align::Right { " class=\"n\"" } else { "" };
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
