//! Which tests took longest, and why others failed, from the report that cargo-nextest leaves.

use std::path::Path;

use anyhow::{Context, bail};

/// This many of those that took longest are printed.
const SHOWN: usize = 30;

/// This many lines are printed of what a test that failed said.
const REASON_LINES: usize = 12;

/// And this many characters of each.
const REASON_WIDTH: usize = 400;

/// One run of one test.
#[derive(Debug, Clone, PartialEq)]
struct Timed {
    /// Such as `whimbrel-e2e::e2e reshard::slots_move_under_writers::redis_7_0`.
    name: String,
    seconds: f64,
    /// Where and why it failed, if it did.
    failure: Option<String>,
}

/// Prints the tests that took longest in the last run with this profile of `.config/nextest.toml`. Those that
/// failed come last, so that the end of a log says why.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let [profile] = args else { bail!("give the profile whose last run is meant, such as `default`") };
    // Below the workspace, wherever cargo builds.
    let path = Path::new("target/nextest").join(profile).join("junit.xml");
    let tests = read(&path)?;
    print!("{}{}", slowest(&tests), failures(&tests));
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<Timed>> {
    let report = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    report.split("<testcase ").skip(1).map(timed).collect()
}

/// What follows `<testcase `. In XML a `>` or `"` of a value is escaped, and so is a `<` in what a test has
/// printed.
fn timed(rest: &str) -> anyhow::Result<Timed> {
    let tag = rest.split('>').next().unwrap_or_default();
    let value = |attribute: &str| {
        let (_, from) = tag.split_once(&format!("{attribute}=\""))?;
        from.split('"').next()
    };
    let name = value(" name").or_else(|| tag.strip_prefix("name=\"")?.split('"').next());
    let (Some(name), Some(program), Some(seconds)) = (name, value("classname"), value("time")) else {
        bail!("the report has a test without name, class name or time: {tag}");
    };
    let seconds = seconds.parse().with_context(|| format!("the time of {name}: {seconds}"))?;
    Ok(Timed { name: format!("{program} {name}"), seconds, failure: failure(rest) })
}

/// What is in the element `failure` of a test, up to the list of callers.
fn failure(rest: &str) -> Option<String> {
    let (_, from) = rest.split_once("<failure")?;
    let (_, from) = from.split_once('>')?;
    let text = from.split("</failure>").next().unwrap_or_default();
    let text = text.split("\nstack backtrace:").next().unwrap_or_default();
    let lines =
        text.lines().take(REASON_LINES).map(|line| line.chars().take(REASON_WIDTH).collect::<String>());
    Some(unescaped(&lines.collect::<Vec<_>>().join("\n")))
}

fn unescaped(text: &str) -> String {
    let names = [("&lt;", "<"), ("&gt;", ">"), ("&apos;", "'"), ("&quot;", "\""), ("&amp;", "&")];
    names.iter().fold(text.to_owned(), |text, (name, sign)| text.replace(name, sign))
}

fn failures(tests: &[Timed]) -> String {
    let mut text = String::new();
    for test in tests {
        let Some(failure) = &test.failure else { continue };
        text.push_str(&format!("\nFailed: {}\n", test.name));
        failure.lines().for_each(|line| text.push_str(&format!("    {line}\n")));
    }
    text
}

fn slowest(tests: &[Timed]) -> String {
    let mut longest: Vec<&Timed> = tests.iter().collect();
    longest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    longest.truncate(SHOWN);
    let all: f64 = tests.iter().map(|test| test.seconds).sum();
    let mut text =
        format!("\nThe slowest of {} tests, which took {all:.0} s one after another:\n", tests.len());
    for test in longest {
        text.push_str(&format!("{:8.1} s  {}\n", test.seconds, test.name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" time="9.5">
    <testsuite name="whimbrel-e2e::e2e" tests="2">
        <testcase name="copy::redis_7_0" classname="whimbrel-e2e::e2e" timestamp="2026-01-01" time="1.500"/>
        <testcase name="sync::it" classname="whimbrel-e2e::e2e" timestamp="2026-01-01" time="31.250">
            <failure type="test failure">thread &apos;sync::it&apos; panicked at a.rs:1:2:
printed &lt;testcase time="9"
stack backtrace:
   0: panic</failure>
            <system-err>more</system-err>
        </testcase>
        <testcase classname="xtask" name="one" time="0.010">
    </testsuite>
</testsuites>"#;

    #[test]
    fn the_slowest_come_first() {
        let tests: Vec<Timed> =
            REPORT.split("<testcase ").skip(1).map(timed).collect::<Result<_, _>>().expect("it is readable");
        assert_eq!(
            slowest(&tests),
            "\nThe slowest of 3 tests, which took 33 s one after another:\n\
             \x20   31.2 s  whimbrel-e2e::e2e sync::it\n\
             \x20    1.5 s  whimbrel-e2e::e2e copy::redis_7_0\n\
             \x20    0.0 s  xtask one\n"
        );
        assert_eq!(
            failures(&tests),
            "\nFailed: whimbrel-e2e::e2e sync::it\n    thread 'sync::it' panicked at a.rs:1:2:\n    \
             printed <testcase time=\"9\"\n"
        );
        assert!(timed("name=\"a\"/>").is_err());
    }

    #[test]
    fn only_so_many_are_shown() {
        let tests: Vec<Timed> = (0..99)
            .map(|n| Timed { name: format!("test {n}"), seconds: f64::from(n), failure: None })
            .collect();
        let text = slowest(&tests);
        assert_eq!(text.lines().count(), 2 + SHOWN);
        assert!(text.contains("test 98\n") && text.contains("test 69\n") && !text.contains("test 68\n"));
    }
}
