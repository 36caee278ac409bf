//! `./dev bench before`: whether anything has become slower. The other benchmarks measure an older binary
//! and the one of now in turns, within one run.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;
use whimbrel_loadgen::interrupt::{self, Interrupt};
use whimbrel_loadgen::program::last_words;

use crate::binaries::{MEASURED, this_binary};
use crate::exit::Exit;
use crate::report::{aligned, median};

/// A benchmark that runs the binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measurement {
    /// `./dev bench copy`, of short strings and of all types
    Copy,
    /// `./dev bench sync`: lag, and pauses of cutovers
    Sync,
    /// `./dev bench reshard`, by whimbrel's own method, with clients
    Reshard,
    /// `./dev bench front`: going through to one server
    Front,
    /// The same to a cluster of three primaries, each client with its own connections
    FrontCluster,
    /// To that cluster with shared connections, beside the older one without: what they gain
    FrontClusterSharing,
}

impl Measurement {
    const ALL: [Self; 6] =
        [Self::Copy, Self::Sync, Self::Reshard, Self::Front, Self::FrontCluster, Self::FrontClusterSharing];

    /// The arguments of one turn, which is one round of it.
    fn arguments(self, is_older: bool) -> &'static str {
        match self {
            Self::Copy => {
                "copy --data strings,mixed --keys 500k --rounds 1 --without \
                 replicaof,migrate,go-redis-migrate,redis-shake-scan,redis-shake-sync"
            }
            Self::Sync => "sync --seconds 5 --cutovers 3 --cut 0",
            Self::Reshard => {
                "reshard --gb 0.25 --rounds 1 --only-load --without \
                 legacy,cli-atomic,migrateslots,whimbrel-native"
            }
            Self::Front => "front --part through --seconds 2 --rounds 1",
            Self::FrontClusterSharing if !is_older => {
                "front --part through --seconds 2 --rounds 1 --cluster 3 --share-connections 1"
            }
            Self::FrontCluster | Self::FrontClusterSharing => {
                "front --part through --seconds 2 --rounds 1 --cluster 3 --share-connections 0"
            }
        }
    }

    /// What a turn's document says of whimbrel, in a fixed order.
    fn figures(self, document: &Value) -> Vec<Figure> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut figures = Vec::new();
        let mut note = |name: String, value: &Value, is_more_better: bool| {
            figures.extend(value.as_f64().map(|value| Figure { name, value, is_more_better }));
        };
        match self {
            Self::Copy => {
                for set in list(&document["data_sets"]) {
                    for result in list(&set["results"]) {
                        let what = format!("{} of {}", text(&result["contender"]), text(&set["name"]));
                        note(format!("{what}, s"), &result["median_s"], false);
                        note(format!("{what}, CPU s"), &result["tool_cpu_s"], false);
                    }
                }
            }
            Self::Sync => {
                for follower in list(&document["followers"]).iter().filter(|one| one["name"] == "whimbrel") {
                    note("sync, median lag, ms".to_owned(), &follower["lag_p50_ms"], false);
                }
                let pauses = list(&document["cutovers"]);
                let pause = median(pauses.iter().filter_map(|one| one["pause_ms"].as_f64()).collect());
                note("cutover, median pause, ms".to_owned(), &pause.into(), false);
            }
            Self::Reshard => {
                for case in list(&document["cases"]) {
                    for run in list(&case["runs"]) {
                        let what = text(&case["name"]);
                        note(format!("reshard, {what}, s"), &run["wall_s"], false);
                        note(format!("reshard, {what}, CPU s"), &run["tool_cpu_s"], false);
                    }
                }
            }
            Self::Front | Self::FrontCluster | Self::FrontClusterSharing => {
                let (behind, only) = match self {
                    Self::FrontCluster => (" (cluster)", None),
                    // Of the older one, which shares none here, what it does without.
                    Self::FrontClusterSharing => {
                        (" (cluster, connections shared now only)", Some("whimbrel sharing"))
                    }
                    _ => ("", None),
                };
                let rows: Vec<Value> = list(&document["through"]["rows"])
                    .into_iter()
                    .filter(|row| text(&row["contender"]).starts_with("whimbrel"))
                    .collect();
                let is_shared = rows.iter().any(|row| Some(text(&row["contender"])) == only);
                let is_meant = |row: &&Value| !is_shared || Some(text(&row["contender"])) == only;
                for row in rows.iter().filter(is_meant) {
                    let (command, pipeline) = (text(&row["command"]), &row["pipeline"]);
                    let contender = if only.is_some() { "whimbrel" } else { text(&row["contender"]) };
                    let what = format!("{contender} {command} -P {pipeline}{behind}");
                    note(format!("{what}, requests a second"), &row["per_second"], true);
                    note(format!("{what}, CPU µs"), &row["proxy_us"], false);
                }
            }
        }
        figures
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// `./dev bench before`.
#[derive(Debug, Args)]
pub struct BenchBeforeArgs {
    /// The older binary, built for release
    pub binary: PathBuf,

    /// What is measured; repeatable or with commas
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Measurement>,

    /// Rounds, in which both binaries take turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// One number of one turn.
#[derive(Debug, Clone, PartialEq)]
struct Figure {
    name: String,
    value: f64,
    is_more_better: bool,
}

/// A figure of both binaries.
#[derive(Debug, Serialize)]
struct Row {
    figure: String,
    /// Median of the rounds.
    before: f64,
    /// Median of the rounds.
    now: f64,
    /// The median of how many times as good it is now, in the same round: 1.1 is ten per cent better.
    times_as_good: f64,
    /// The worst round and the best one.
    range: (f64, f64),
}

/// Measures, and prints a table or one JSON document on standard output.
///
/// # Errors
/// When a benchmark fails with either binary.
pub fn run(args: &BenchBeforeArgs) -> anyhow::Result<Exit> {
    let older = std::path::absolute(&args.binary)?;
    ensure!(older.is_file(), "{} is no file", older.display());
    let wanted = |one: &Measurement| args.only.is_empty() || args.only.contains(one);
    interrupt::run(Exit::Stopped, |interrupt| {
        let mut rows = Vec::new();
        for measurement in Measurement::ALL.into_iter().filter(wanted) {
            let (mut before, mut now) = (Vec::new(), Vec::new());
            for round in 1..=args.rounds {
                eprintln!("round {round}: {}", measurement.arguments(false));
                // Who is first takes turns as well.
                if round % 2 == 1 {
                    before.push(run_once(measurement, Some(&older), interrupt)?);
                    now.push(run_once(measurement, None, interrupt)?);
                } else {
                    now.push(run_once(measurement, None, interrupt)?);
                    before.push(run_once(measurement, Some(&older), interrupt)?);
                }
            }
            rows.extend(compared(&before, &now));
        }
        let mut out = std::io::stdout();
        match args.json {
            true => writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?,
            false => writeln!(out, "{}", table(&rows))?,
        }
        Ok(Exit::Success)
    })
}

fn run_once(
    measurement: Measurement,
    older: Option<&Path>,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Figure>> {
    interrupt.check()?;
    let mut command = this_binary()?;
    let arguments = measurement.arguments(older.is_some());
    command.args(arguments.split_whitespace()).arg("--json").stdin(Stdio::null());
    if let Some(path) = older {
        command.env(MEASURED, path);
    }
    let output = command.output().context("run a benchmark")?;
    interrupt.check()?;
    if !output.status.success() {
        bail!("{}: {}", output.status, last_words(&String::from_utf8_lossy(&output.stderr)));
    }
    let document = serde_json::from_slice(&output.stdout).context("read what a benchmark measured")?;
    Ok(measurement.figures(&document))
}

/// Figures that both have in every round.
fn compared(before: &[Vec<Figure>], now: &[Vec<Figure>]) -> Vec<Row> {
    let names = now.first().map_or(&[][..], Vec::as_slice);
    names.iter().filter_map(|figure| row(figure, before, now)).collect()
}

fn row(figure: &Figure, before: &[Vec<Figure>], now: &[Vec<Figure>]) -> Option<Row> {
    let of = |rounds: &[Vec<Figure>]| -> Option<Vec<f64>> {
        let one = |round: &Vec<Figure>| round.iter().find(|one| one.name == figure.name).map(|one| one.value);
        rounds.iter().map(one).collect()
    };
    let (before, now) = (of(before)?, of(now)?);
    let good = |(before, now): (&f64, &f64)| match figure.is_more_better {
        true => now / before,
        false => before / now,
    };
    let ratios: Vec<f64> = before.iter().zip(&now).map(good).collect();
    let range = (ratios.iter().copied().reduce(f64::min)?, ratios.iter().copied().reduce(f64::max)?);
    Some(Row {
        figure: figure.name.clone(),
        before: median(before)?,
        now: median(now)?,
        times_as_good: median(ratios)?,
        range,
    })
}

fn table(rows: &[Row]) -> String {
    let head = ["figure", "before", "now", "times as good", "worst to best round"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        vec![
            row.figure.clone(),
            format!("{:.3}", row.before),
            format!("{:.3}", row.now),
            format!("{:.3}", row.times_as_good),
            format!("{:.3} to {:.3}", row.range.0, row.range.1),
        ]
    }));
    aligned(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(name: &str, value: f64, is_more_better: bool) -> Figure {
        Figure { name: name.to_owned(), value, is_more_better }
    }

    #[test]
    fn more_is_better_where_it_is_requests_and_worse_where_it_is_time() {
        let before = [vec![figure("s", 2.0, false), figure("requests", 100.0, true)]];
        let now = [vec![figure("s", 1.0, false), figure("requests", 50.0, true)]];
        let ratios: Vec<f64> = compared(&before, &now).iter().map(|row| row.times_as_good).collect();
        assert_eq!(ratios, [2.0, 0.5]);
    }

    #[test]
    fn rounds_are_compared_with_their_own_like() {
        let one = |value| vec![figure("s", value, false)];
        let rows = compared(&[one(1.0), one(10.0), one(4.0)], &[one(2.0), one(10.0), one(1.0)]);
        assert_eq!((rows[0].times_as_good, rows[0].range), (1.0, (0.5, 4.0)));
    }

    #[test]
    fn a_figure_that_one_of_them_lacks_is_left_out() {
        assert!(compared(&[vec![]], &[vec![figure("s", 1.0, false)]]).is_empty());
    }

    #[test]
    fn shared_connections_stand_beside_an_older_front_without_them() {
        let row = |contender: &str, per_second: f64| {
            serde_json::json!({"contender": contender, "command": "GET", "pipeline": 1,
                "per_second": per_second, "proxy_us": null})
        };
        let document = |rows: Vec<Value>| serde_json::json!({"through": {"rows": rows}});
        let [older, now] = [
            document(vec![row("whimbrel", 100.0)]),
            document(vec![row("whimbrel", 105.0), row("whimbrel sharing", 150.0)]),
        ]
        .map(|document| [Measurement::FrontClusterSharing.figures(&document)]);
        let ratios: Vec<f64> = compared(&older, &now).iter().map(|row| row.times_as_good).collect();
        assert_eq!(ratios, [1.5]);
    }

    #[test]
    fn figures_are_those_of_whimbrel() {
        let rows = serde_json::json!({"through": {"rows": [
            {"contender": "direct", "command": "GET", "pipeline": 1, "per_second": 9.0, "proxy_us": null},
            {"contender": "whimbrel", "command": "GET", "pipeline": 1, "per_second": 5.0, "proxy_us": 2.5},
        ]}});
        let expected = [
            figure("whimbrel GET -P 1, requests a second", 5.0, true),
            figure("whimbrel GET -P 1, CPU µs", 2.5, false),
        ];
        assert_eq!(Measurement::Front.figures(&rows), expected);
    }
}
