//! What was answered wrongly while keys arrived, as a picture: a bar for each scheme, side by side for each setting.

use std::fmt::Write;

use super::moving::Seen;
use crate::bench::svg::{begun, escaped};

const GROUP_WIDTH: f64 = 96.0;
const BAR_WIDTH: f64 = 24.0;
const PANEL_HEIGHT: f64 = 220.0;
const LEFT: f64 = 84.0;
const TOP: f64 = 84.0;
const GAP_X: f64 = 90.0;
const BOTTOM: f64 = 64.0;
const COLORS: [&str; 3] = ["#b0413e", "#d9a441", "#1f5f8b"];

/// The lowest power of ten on a scale.
const LOWEST: i32 = -4;

/// A picture with two panels: the share of wrong answers, and the writes that were lost in the end. Both scales are logarithmic; what is
/// nothing has no bar, and says 0.
pub(super) fn svg(title: &str, seen: &[Seen]) -> String {
    let mut settings: Vec<(f64, f64)> = Vec::new();
    let mut schemes: Vec<&str> = Vec::new();
    for one in seen {
        if !settings.contains(&(one.zipf, one.writes)) {
            settings.push((one.zipf, one.writes));
        }
        if !schemes.contains(&one.scheme) {
            schemes.push(one.scheme);
        }
    }
    let panel_width = settings.len() as f64 * GROUP_WIDTH;
    let width = 2.0 * (LEFT + panel_width) + GAP_X;
    let height = TOP + PANEL_HEIGHT + BOTTOM;
    let mut svg = begun(title, (width, height), LEFT);
    for (at, scheme) in schemes.iter().enumerate() {
        let x = LEFT + at as f64 * 130.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"36\" width=\"12\" height=\"12\" fill=\"{}\"/>\n<text x=\"{:.1}\" y=\"46\">{}</text>",
            COLORS[at % COLORS.len()],
            x + 18.0,
            escaped(scheme)
        );
    }
    let value = |what: fn(&Seen) -> f64| {
        move |setting: (f64, f64), scheme: &str| {
            seen.iter().find(|one| (one.zipf, one.writes) == setting && one.scheme == scheme).map(what)
        }
    };
    let wrong = value(|one| one.wrong_share * 100.0);
    let lost = value(|one| one.writes_lost as f64);
    let panels: [(&str, i32, i32, &Value); 2] = [
        ("wrong answers, % of queries", LOWEST, 2, &wrong),
        ("keys whose last write was lost", -1, 2, &lost),
    ];
    for (at, (name, low, high, value)) in panels.into_iter().enumerate() {
        let x = LEFT + at as f64 * (panel_width + GAP_X + LEFT / 2.0);
        let panel = Panel { name, x, low, high };
        panel.draw(&mut svg, &settings, &schemes, value);
    }
    svg.push_str("</svg>\n");
    svg
}

type Value<'a> = dyn Fn((f64, f64), &str) -> Option<f64> + 'a;

struct Panel<'a> {
    name: &'a str,
    x: f64,
    /// Powers of ten at the ends of the scale.
    low: i32,
    high: i32,
}

impl Panel<'_> {
    fn draw(&self, svg: &mut String, settings: &[(f64, f64)], schemes: &[&str], value: &Value) {
        let (x, bottom) = (self.x, TOP + PANEL_HEIGHT);
        let width = settings.len() as f64 * GROUP_WIDTH;
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>\n\
             <rect x=\"{x:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{PANEL_HEIGHT}\" fill=\"none\" stroke=\"#999999\"/>",
            TOP - 10.0,
            escaped(self.name)
        );
        for power in self.low..=self.high {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555555\">{}</text>",
                x - 4.0,
                bottom - self.height(10_f64.powi(power)) + 4.0,
                10_f64.powi(power)
            );
        }
        for (group, setting) in settings.iter().enumerate() {
            let from =
                x + group as f64 * GROUP_WIDTH + (GROUP_WIDTH - schemes.len() as f64 * BAR_WIDTH) / 2.0;
            for (at, scheme) in schemes.iter().enumerate() {
                let Some(value) = value(*setting, scheme) else { continue };
                let (bar_x, height) = (from + at as f64 * BAR_WIDTH, self.height(value));
                let _ = writeln!(
                    svg,
                    "<rect x=\"{bar_x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\"/>",
                    bottom - height,
                    BAR_WIDTH - 3.0,
                    COLORS[at % COLORS.len()]
                );
                if value == 0.0 {
                    let _ =
                        writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">0</text>", bar_x + 7.0, bottom - 3.0);
                }
            }
            let _ = writeln!(
                svg,
                "<text x=\"{0:.1}\" y=\"{1:.1}\" text-anchor=\"middle\">zipf {3}</text>\n\
                 <text x=\"{0:.1}\" y=\"{2:.1}\" text-anchor=\"middle\">{4:.0} % writes</text>",
                x + (group as f64 + 0.5) * GROUP_WIDTH,
                bottom + 16.0,
                bottom + 30.0,
                setting.0,
                setting.1 * 100.0
            );
        }
    }

    /// How high a bar is; 0 for nothing, and at least a little for anything else.
    fn height(&self, value: f64) -> f64 {
        if value <= 0.0 {
            return 0.0;
        }
        let share = (value.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        share.clamp(0.0, 1.0).max(0.01) * PANEL_HEIGHT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_powers_and_nothing_has_none() {
        let panel = Panel { name: "", x: 0.0, low: -4, high: 2 };
        assert_eq!(panel.height(0.0), 0.0);
        assert_eq!(panel.height(100.0), PANEL_HEIGHT);
        assert!((panel.height(0.1) - PANEL_HEIGHT / 2.0).abs() < 1e-9);
        assert!(panel.height(1e-9) > 0.0);
    }
}
