//! One HTML file that needs no other: what a person hands on.

use serde_json::Value;

/// The most points of a chart that are drawn.
const POINTS_MAX: usize = 500;

/// Width and height of a chart, in its own units.
const CHART: (f64, f64) = (600.0, 120.0);

/// What a page shows, apart from the document that it is made of.
#[derive(Debug, Default)]
pub struct Page {
    /// What it is about, in a line.
    pub title: String,
    /// Names and values.
    pub lines: Vec<(&'static str, String)>,
    /// What the chart shows, and its points: from left to right, and from 0 to 100.
    pub chart: Option<(String, Vec<(f64, f64)>)>,
    /// When, and what happened then.
    pub events: Vec<(String, String)>,
}

const TEMPLATE: &str = include_str!("page.html");

/// The file. `document` is shown below the page's own parts, and is in the file as it is, for
/// [`document_of`].
pub fn of(page: &Page, document: &Value, shown: &Value) -> String {
    let lines = page.lines.iter().map(|(name, text)| format!("<dt>{name}</dt><dd>{}</dd>\n", escaped(text)));
    let events = page.events.iter();
    let events =
        events.map(|(at, what)| format!("<tr><td>{}</td><td>{}</td></tr>\n", escaped(at), escaped(what)));
    let chart = page.chart.as_ref().map(|(name, points)| chart(name, points)).unwrap_or_default();
    // In a script nothing but a `<` could end it.
    let embedded = document.to_string().replace('<', "\\u003c");
    let parts = [
        ("title", escaped(&page.title)),
        ("lines", lines.collect()),
        ("chart", chart),
        ("events", events.collect()),
        ("report", tree(shown)),
        ("document", embedded),
    ];
    filled(TEMPLATE, &parts)
}

/// The document that a file of [`of`] was made of; `None` where it is no such file.
pub fn document_of(html: &str) -> Option<Value> {
    let (_, behind) = html.split_once("<script type=\"application/json\">")?;
    serde_json::from_str(behind.split_once("</script>")?.0).ok()
}

/// A template with its `{{parts}}` filled in.
pub fn filled(template: &str, parts: &[(&str, String)]) -> String {
    let mut pieces = template.split("{{");
    let mut html = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, behind) = piece.split_once("}}").unwrap_or(("", piece));
        html.extend(parts.iter().filter(|(part, _)| *part == name).map(|(_, text)| text.as_str()));
        html.push_str(behind);
    }
    html
}

/// Text that a browser shows as it is: names of keys are anybody's.
pub fn escaped(text: &str) -> String {
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

/// A document as nested lists.
fn tree(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| {
                format!("<dt>{}</dt><dd>{}</dd>\n", escaped(&name.replace('_', " ")), tree(value))
            });
            format!("<dl>\n{}</dl>", fields.collect::<String>())
        }
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => {
            let items = items.iter().map(|item| format!("<li>{}</li>\n", tree(item)));
            format!("<ul>\n{}</ul>", items.collect::<String>())
        }
        Value::Null => "–".to_owned(),
        Value::String(text) => escaped(text),
        other => other.to_string(),
    }
}

/// A line through points whose height is a share of 100.
fn chart(name: &str, points: &[(f64, f64)]) -> String {
    let (width, height) = CHART;
    let Some((first, last)) = points.first().zip(points.last()) else { return String::new() };
    let step = points.len().div_ceil(POINTS_MAX);
    let across = (last.0 - first.0).max(1.0);
    let place = |(x, y): &(f64, f64)| {
        let (x, y) = ((x - first.0) / across * width, height - y / 100.0 * height);
        format!("{x:.1},{y:.1}")
    };
    let drawn: Vec<String> = points.iter().step_by(step).chain(points.last()).map(place).collect();
    format!(
        "<h2>{name}</h2>\n<svg viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{name}\"><polyline points=\"{}\"/></svg>\n",
        drawn.join(" "),
        name = escaped(name)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_keys_are_no_markup() {
        assert_eq!(escaped("<a href='x'>\"&\""), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;&quot;");
        let hostile = "</script><script>alert(1)</script>";
        let document = json!({"report": {hostile: [hostile, null, 7, []]}});
        let page = Page { title: hostile.to_owned(), ..Page::default() };
        let html = of(&page, &document, &document["report"]);
        assert_eq!(html.matches("<script").count(), 1, "{html}");
        assert_eq!(html.matches("</script>").count(), 1, "{html}");
        assert_eq!(document_of(&html), Some(document));
    }

    #[test]
    fn a_chart_has_its_last_point_and_not_too_many() {
        let points: Vec<(f64, f64)> = (0..=1_000_000).map(|x| (f64::from(x), 100.0)).collect();
        let drawn = chart("keys", &points);
        assert!(drawn.ends_with("600.0,0.0\"/></svg>\n"), "{}", &drawn[drawn.len() - 60..]);
        assert!(drawn.matches(',').count() <= POINTS_MAX + 2);
        assert_eq!(chart("keys", &[]), "");
    }

    #[test]
    fn what_is_no_such_file_has_no_document() {
        assert_eq!(document_of("<html></html>"), None);
        assert_eq!(document_of("<script type=\"application/json\">{</script>"), None);
    }
}
