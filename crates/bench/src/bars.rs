//! Results as bars, side by side for each setting, on logarithmic scales.

use std::fmt::Write;

use crate::svg::{begun, escaped};

const BAR_WIDTH: f64 = 24.0;
const GROUP_WIDTH_MIN: f64 = 96.0;
/// About that of a letter below the bars.
const LETTER_WIDTH: f64 = 6.0;
const PANEL_HEIGHT: f64 = 220.0;
const LEFT: f64 = 84.0;
const TOP: f64 = 84.0;
const GAP_X: f64 = 90.0;
const BOTTOM: f64 = 64.0;
const COLORS: [&str; 3] = ["#b0413e", "#d9a441", "#1f5f8b"];

/// What is shown.
pub struct Bars<'a> {
    /// The title of the picture.
    pub title: &'a str,
    /// What each setting is called, in two lines.
    pub settings: Vec<[String; 2]>,
    /// What is compared, in the order of the bars: three at most have colours of their own.
    pub contenders: Vec<&'a str>,
    /// Side by side.
    pub panels: Vec<Panel<'a>>,
}

/// One thing that was measured.
pub struct Panel<'a> {
    /// What it is, with its unit.
    pub name: &'a str,
    /// Powers of ten at the ends of the scale.
    pub scale: (i32, i32),
    /// For each setting that of each contender; `None` where it was not measured.
    pub values: Vec<Vec<Option<f64>>>,
}

impl Bars<'_> {
    /// As a picture. What is nothing has no bar, and says 0.
    pub fn svg(&self) -> String {
        let longest = self.settings.iter().flatten().map(|line| line.chars().count()).max().unwrap_or(0);
        let bars_width = (self.contenders.len() as f64 + 1.0) * BAR_WIDTH;
        let group_width = GROUP_WIDTH_MIN.max(bars_width).max((longest as f64 + 2.0) * LETTER_WIDTH);
        let panel_width = self.settings.len() as f64 * group_width;
        let step = panel_width + GAP_X + LEFT / 2.0;
        let width = LEFT + self.panels.len() as f64 * step;
        let mut svg = begun(self.title, (width, TOP + PANEL_HEIGHT + BOTTOM), LEFT);
        for (at, contender) in self.contenders.iter().enumerate() {
            let x = LEFT + at as f64 * 130.0;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"36\" width=\"12\" height=\"12\" fill=\"{}\"/>\n<text x=\"{:.1}\" \
                    y=\"46\">{}</text>",
                COLORS[at % COLORS.len()],
                x + 18.0,
                escaped(contender)
            );
        }
        for (at, panel) in self.panels.iter().enumerate() {
            panel.draw(&mut svg, LEFT + at as f64 * step, group_width, self);
        }
        svg.push_str("</svg>\n");
        svg
    }
}

impl Panel<'_> {
    fn draw(&self, svg: &mut String, x: f64, group_width: f64, bars: &Bars<'_>) {
        let bottom = TOP + PANEL_HEIGHT;
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>\n\
             <rect x=\"{x:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{PANEL_HEIGHT}\" fill=\"none\" \
             stroke=\"#999999\"/>",
            TOP - 10.0,
            escaped(self.name),
            bars.settings.len() as f64 * group_width
        );
        for power in self.scale.0..=self.scale.1 {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555555\">{}</text>",
                x - 4.0,
                bottom - self.height(10_f64.powi(power)) + 4.0,
                10_f64.powi(power)
            );
        }
        for (group, (setting, values)) in bars.settings.iter().zip(&self.values).enumerate() {
            let from = x + group as f64 * group_width;
            let bars_from = from + (group_width - values.len() as f64 * BAR_WIDTH) / 2.0;
            for (at, value) in values.iter().enumerate() {
                let Some(value) = value else { continue };
                let (bar_x, height) = (bars_from + at as f64 * BAR_WIDTH, self.height(*value));
                let _ = writeln!(
                    svg,
                    "<rect x=\"{bar_x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\"/>",
                    bottom - height,
                    BAR_WIDTH - 3.0,
                    COLORS[at % COLORS.len()]
                );
                if *value == 0.0 {
                    let _ =
                        writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">0</text>", bar_x + 7.0, bottom - 3.0);
                }
            }
            for (line, text) in setting.iter().enumerate() {
                let _ = writeln!(
                    svg,
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    from + group_width / 2.0,
                    bottom + 16.0 + 14.0 * line as f64,
                    escaped(text)
                );
            }
        }
    }

    /// How high a bar is; 0 for nothing, and at least a little for anything else.
    fn height(&self, value: f64) -> f64 {
        if value <= 0.0 {
            return 0.0;
        }
        let share = (value.log10() - f64::from(self.scale.0)) / f64::from(self.scale.1 - self.scale.0);
        share.clamp(0.0, 1.0).max(0.01) * PANEL_HEIGHT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_powers_and_nothing_has_none() {
        let panel = Panel { name: "", scale: (-4, 2), values: Vec::new() };
        assert_eq!(panel.height(0.0), 0.0);
        assert_eq!(panel.height(100.0), PANEL_HEIGHT);
        assert!((panel.height(0.1) - PANEL_HEIGHT / 2.0).abs() < 1e-9);
        assert!(panel.height(1e-9) > 0.0);
    }
}
