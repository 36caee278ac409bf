//! How long reads took while slots left their server, as a picture: a panel for each server and table, a line
//! for each that answered `CLUSTER SLOTS`.

use std::fmt::Write as _;

use super::layout::form;
use super::symptom::Felt;
use crate::svg::{begun, escaped};

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 70.0;
const GAP: (f64, f64) = (80.0, 60.0);

/// From 0.1 ms on, by powers of ten.
const LEAST: i32 = -1;

const COLOURS: [(&str, &str); 2] = [("the node", "#c0392b"), ("whimbrel", "#1f6fb2")];

/// The 99th of 100 reads over time.
pub(super) fn svg(title: &str, felt: &[Felt]) -> String {
    let mut panels: Vec<(&str, bool)> = Vec::new();
    for one in felt {
        if !panels.contains(&(one.engine, one.is_fragmented)) {
            panels.push((one.engine, one.is_fragmented));
        }
    }
    let most = felt.iter().flat_map(|one| &one.p99_ms).copied().fold(1.0, f64::max);
    let most = most.log10().ceil() as i32;
    let rows = panels.len().div_ceil(2) as f64;
    let size = (LEFT + 2.0 * (WIDTH + GAP.0), TOP + rows * (HEIGHT + GAP.1));
    let mut svg = begun(title, size, LEFT);
    for (place, (name, colour)) in COLOURS.iter().enumerate() {
        let x = LEFT + place as f64 * 270.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"34\" width=\"12\" height=\"4\" fill=\"{colour}\"/>\n\
             <text x=\"{:.0}\" y=\"40\">CLUSTER SLOTS answered by {name}</text>",
            x + 18.0
        );
    }
    for (place, (engine, is_fragmented)) in panels.iter().enumerate() {
        let at = (LEFT + (place % 2) as f64 * (WIDTH + GAP.0), TOP + (place / 2) as f64 * (HEIGHT + GAP.1));
        let form = form(*is_fragmented);
        let of = felt.iter().filter(|one| (one.engine, one.is_fragmented) == (*engine, *is_fragmented));
        panel(&mut svg, &format!("{engine}, {form}"), &of.collect::<Vec<_>>(), at, most);
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, title: &str, felt: &[&Felt], (x, y): (f64, f64), most: i32) {
    let buckets = felt.iter().map(|one| one.p99_ms.len()).max().unwrap_or(1).max(2);
    let seconds = buckets as f64 * super::symptom::BUCKET.as_secs_f64();
    let at_x = |s: f64| x + s / seconds * WIDTH;
    let at_y = |ms: f64| {
        let share = (ms.max(1e-3).log10() - f64::from(LEAST)) / f64::from(most - LEAST);
        y + HEIGHT - share.clamp(0.0, 1.0) * HEIGHT
    };
    let _ =
        writeln!(svg, "<text x=\"{x}\" y=\"{:.0}\" font-weight=\"bold\">{}</text>", y - 8.0, escaped(title));
    let end = felt.iter().map(|one| one.window_s.1).fold(0.0, f64::max);
    let begin = felt.first().map_or(0.0, |one| one.window_s.0);
    let _ = writeln!(
        svg,
        "<rect x=\"{:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{HEIGHT}\" fill=\"#f4d9a6\"/>",
        at_x(begin),
        at_x(end) - at_x(begin)
    );
    for decade in LEAST..=most {
        let ms = 10f64.powi(decade);
        let (at, right) = (at_y(ms), x + WIDTH);
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" x2=\"{right:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{ms} ms</text>",
            x - 6.0,
            at + 4.0
        );
    }
    for one in felt {
        let colour = COLOURS.iter().find(|(name, _)| *name == one.answered_by).map_or("#000000", |c| c.1);
        let points: Vec<String> = one
            .p99_ms
            .iter()
            .enumerate()
            .map(|(bucket, ms)| {
                (at_x((bucket as f64 + 0.5) * super::symptom::BUCKET.as_secs_f64()), at_y(*ms))
            })
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>",
            points.join(" ")
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{0:.0}\">0 s</text>\n\
         <text x=\"{1:.0}\" y=\"{0:.0}\" text-anchor=\"end\">{seconds:.0} s</text>",
        y + HEIGHT + 14.0,
        x + WIDTH
    );
}
