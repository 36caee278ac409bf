//! A recording of the demo as a picture: each line appears when it was printed.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// Nobody wants to wait for longer than that between two lines.
const WAIT_MAX: Duration = Duration::from_millis(1_500);

/// How long the last line is shown before it begins again.
const HELD: Duration = Duration::from_secs(8);

const FONT_SIZE: f64 = 12.0;
const CHARACTER: f64 = 7.25;
const LINE: f64 = 16.0;
const MARGIN: f64 = 16.0;

/// A line, and when it was printed.
struct Printed {
    at: Duration,
    text: String,
}

/// Runs the demo of a binary and writes what it prints into a file.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let [binary, file] = args else { bail!("give the whimbrel that runs and the file to be written") };
    let mut lines = vec![Printed { at: Duration::ZERO, text: "$ ./dev demo".to_owned() }];
    // Both outputs in the order in which a terminal would have them.
    let mut child = Command::new("sh")
        .args(["-c", "exec \"$0\" demo 2>&1", binary])
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("run {binary}"))?;
    let output = child.stdout.take().context("it has no output")?;
    let (mut before, mut at) = (Instant::now(), Duration::ZERO);
    for line in BufReader::new(output).lines() {
        let text = line.context("read what it prints")?;
        println!("{text}");
        at += before.elapsed().min(WAIT_MAX);
        before = Instant::now();
        lines.push(Printed { at, text });
    }
    ensure!(child.wait()?.success(), "the demo has failed");
    std::fs::write(Path::new(file), svg(&lines)).with_context(|| format!("write {file}"))
}

fn svg(lines: &[Printed]) -> String {
    let total = lines.last().map_or(HELD, |last| last.at + HELD);
    let columns = lines.iter().map(|line| line.text.chars().count()).max().unwrap_or(0);
    let width = columns as f64 * CHARACTER + 2.0 * MARGIN;
    let height = lines.len() as f64 * LINE + 2.0 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"monospace\" font-size=\"{FONT_SIZE}\">\n\
         <title>The demo, recorded by ./dev record</title>\n<style>\n\
         text {{ fill: #d8dee4; white-space: pre; }}\n"
    );
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.text.is_empty()) {
        let percent = line.at.as_secs_f64() / total.as_secs_f64() * 100.0;
        let _ = writeln!(
            svg,
            "@keyframes l{number} {{ 0% {{ opacity: 0 }} {percent:.2}%, 100% {{ opacity: 1 }} }}\n\
             #l{number} {{ animation: l{number} {:.1}s step-end infinite }}",
            total.as_secs_f64()
        );
    }
    // Who wants nothing to move sees all of it.
    svg.push_str(
        "@media (prefers-reduced-motion: reduce) { text { animation: none !important } }\n</style>\n",
    );
    svg.push_str("<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1f24\"/>\n");
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.text.is_empty()) {
        let y = MARGIN + (number as f64 + 0.8) * LINE;
        let text = line.text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = writeln!(
            svg,
            "<text id=\"l{number}\" x=\"{MARGIN}\" y=\"{y:.0}\" xml:space=\"preserve\">{text}</text>"
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_appears_when_it_was_printed() {
        let line = |ms, text: &str| Printed { at: Duration::from_millis(ms), text: text.to_owned() };
        let svg = svg(&[line(0, "$ ./dev demo"), line(1_000, ""), line(2_000, "a < b & c")]);
        assert!(svg.contains("#l2 { animation: l2 10.0s step-end infinite }"), "{svg}");
        assert!(svg.contains("@keyframes l2 { 0% { opacity: 0 } 20.00%, 100% { opacity: 1 } }"), "{svg}");
        assert!(svg.contains(">a &lt; b &amp; c</text>") && !svg.contains("id=\"l1\""), "{svg}");
    }
}
