//! Throughput over time as a picture, one panel for each contender, the migration shaded.

use std::fmt::Write;

use crate::svg::{begun, escaped};
use whimbrel_loadgen::load::BUCKET;

const PANEL_WIDTH: f64 = 460.0;
const PANEL_HEIGHT: f64 = 130.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 64.0;
const GAP_X: f64 = 64.0;
const GAP_Y: f64 = 52.0;
const BOTTOM: f64 = 8.0;

/// Marks on an axis.
const TICKS: u32 = 4;

/// One panel.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Written above it.
    pub title: String,
    /// Written below the title.
    pub subtitle: String,
    /// Commands in each [`BUCKET`].
    pub throughput: Vec<u32>,
    /// Begin and end of the migration, in seconds since the first bucket.
    pub window_s: (f64, f64),
}

/// A picture with the panels of each column below one another. All have the same scales.
pub fn svg(title: &str, columns: &[Vec<Panel>]) -> String {
    let panels = || columns.iter().flatten();
    let bucket_s = BUCKET.as_secs_f64();
    let rate_max = panels().flat_map(|panel| &panel.throughput).copied().max().unwrap_or(1).max(1);
    let rate_max = round_up(f64::from(rate_max) / bucket_s);
    let seconds_max =
        panels().map(|panel| panel.throughput.len() as f64 * bucket_s).fold(1.0, f64::max).ceil();
    let rows = columns.iter().map(Vec::len).max().unwrap_or(0);
    let width = LEFT + columns.len() as f64 * (PANEL_WIDTH + GAP_X);
    let height = TOP + rows as f64 * (PANEL_HEIGHT + GAP_Y) + BOTTOM;

    let mut svg = begun(title, (width, height), LEFT);
    for (column, panels) in columns.iter().enumerate() {
        for (row, panel) in panels.iter().enumerate() {
            let x = LEFT + column as f64 * (PANEL_WIDTH + GAP_X);
            let y = TOP + row as f64 * (PANEL_HEIGHT + GAP_Y);
            draw(&mut svg, panel, (x, y), seconds_max, rate_max);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, panel: &Panel, (x, y): (f64, f64), seconds_max: f64, rate_max: f64) {
    let bucket_s = BUCKET.as_secs_f64();
    let at_x = |seconds: f64| x + seconds / seconds_max * PANEL_WIDTH;
    let at_y = |rate: f64| y + PANEL_HEIGHT - rate / rate_max * PANEL_HEIGHT;
    let (begin, end) = panel.window_s;
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>\n\
         <text x=\"{x:.1}\" y=\"{:.1}\" fill=\"#555555\">{}</text>\n\
         <rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{PANEL_HEIGHT}\" fill=\"#f4d9a6\"/>\n\
         <rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{PANEL_WIDTH}\" height=\"{PANEL_HEIGHT}\" fill=\"none\" \
         stroke=\"#999999\"/>",
        y - 20.0,
        escaped(&panel.title),
        y - 6.0,
        escaped(&panel.subtitle),
        at_x(begin),
        (at_x(end) - at_x(begin)).max(1.0),
    );
    for tick in 0..=TICKS {
        let share = f64::from(tick) / f64::from(TICKS);
        let (seconds, rate) = (share * seconds_max, share * rate_max);
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555555\">{seconds:.1} s</text>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555555\">{rate:.0}/s</text>",
            at_x(seconds),
            y + PANEL_HEIGHT + 13.0,
            x - 4.0,
            at_y(rate) + 4.0,
        );
    }
    svg.push_str("<polyline fill=\"none\" stroke=\"#1f5f8b\" stroke-width=\"1.4\" points=\"");
    for (bucket, &commands) in panel.throughput.iter().enumerate() {
        // In the middle of its time.
        let seconds = (bucket as f64 + 0.5) * bucket_s;
        let _ = write!(svg, "{:.1},{:.1} ", at_x(seconds), at_y(f64::from(commands) / bucket_s));
    }
    svg.push_str("\"/>\n");
}

/// To one, two or five times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(1.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|&step| step >= value).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!([0.3, 1.0, 11.0, 4999.0, 5001.0].map(round_up), [1.0, 1.0, 20.0, 5000.0, 10_000.0]);
    }

    #[test]
    fn a_picture_has_all_panels_and_no_raw_text() {
        let panel = Panel {
            title: "a < b".to_owned(),
            subtitle: "x & y".to_owned(),
            throughput: vec![100, 90, 0, 100],
            window_s: (0.1, 0.3),
        };
        let svg = svg("title", &[vec![panel.clone(), panel.clone()], vec![panel]]);
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert!(svg.contains("a &lt; b") && svg.contains("x &amp; y") && svg.ends_with("</svg>\n"));
    }
}
