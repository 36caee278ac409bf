//! From single turns to tables.

use std::collections::BTreeMap;

use serde::Serialize;
use whimbrel_core::units::{format_bytes, format_count};
use whimbrel_loadgen::load::{Fault, Latencies};

use super::chart::Panel;
use super::contender::Contender;
use crate::machine::Machine;
use crate::report::{Entry, aligned, median};

/// Everything that was measured: the JSON document.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Which measurement this is.
    pub bench: &'static str,
    /// Which experiment of it.
    pub experiment: &'static str,
    /// What was measured on.
    pub machine: Machine,
    /// Rounds that were asked for.
    pub rounds: u32,
    /// Replicas of each primary.
    pub replicas: usize,
    /// Who took part, and who did not.
    pub contenders: Vec<Entry>,
    /// One for each thing that was moved under one load.
    pub cases: Vec<CaseReport>,
}

/// What was moved, and under which load.
#[derive(Debug, Clone, Serialize)]
pub struct Case {
    /// In a few words.
    pub name: String,
    /// How many slots moved.
    pub slots: u64,
    /// How many keys were in them, about.
    pub keys: u64,
    /// Bytes of their values, about.
    pub bytes: u64,
}

/// The turns of one case, and what follows from them.
#[derive(Debug, Serialize)]
pub struct CaseReport {
    /// What it was.
    #[serde(flatten)]
    pub case: Case,
    /// One for each contender.
    pub results: Vec<Summary>,
    /// Every single turn, in the order in which they were.
    pub runs: Vec<Run>,
}

/// One turn of one contender.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Whose.
    pub contender: &'static str,
    /// The round, counted from 1.
    pub round: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Seconds by the clock; `None` if it did not come to its end.
    pub wall_s: Option<f64>,
    /// Processor seconds of the tool; `None` where the servers do all by themselves.
    pub tool_cpu_s: Option<f64>,
    /// Processor seconds of all servers, with the processes that they fork.
    pub servers_cpu_s: f64,
    /// The last line of whimbrel's own JSON.
    pub report: Option<serde_json::Value>,
    /// What clients met, if there were any.
    pub clients: Option<Clients>,
}

/// What clients met during one turn.
#[derive(Debug, Clone, Serialize)]
pub struct Clients {
    /// Before slots moved.
    pub before: Latencies,
    /// Meanwhile.
    pub during: Latencies,
    /// The longest of the second after it, in milliseconds: servers may still be deleting.
    pub after_max_ms: f64,
    /// MOVED that were followed, over the whole turn.
    pub moved: u64,
    /// Everything else that was no reply.
    pub faults: BTreeMap<Fault, u64>,
    /// Begin and end of the move in seconds since the first command.
    pub window_s: (f64, f64),
    /// Commands in each 100 ms since the first command.
    pub per_100_ms: Vec<u32>,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything is where it should be.
    Moved,
    /// It said that it was done, but this is wrong.
    Wrong(String),
    /// It was stopped after this many seconds.
    TimedOut {
        /// The limit.
        limit_s: u64,
    },
    /// It gave up, with these last words.
    Failed(String),
}

/// A contender's turns of one case, in a line.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Whose.
    pub contender: &'static str,
    /// Median time in seconds; this and all that follows only over turns that came to their end.
    pub median_s: Option<f64>,
    /// Shortest time in seconds.
    pub min_s: Option<f64>,
    /// Longest time in seconds.
    pub max_s: Option<f64>,
    /// How many times faster than legacy: the median of the same ratio within each round.
    pub speedup: Option<f64>,
    /// Its time by that of the built-in migration, bare: the median of the ratio within each round.
    pub of_migrateslots: Option<f64>,
    /// Milliseconds a slot, at the median time.
    pub ms_per_slot: Option<f64>,
    /// Commands a second while slots moved, median.
    pub per_s: Option<f64>,
    /// Medians of the latencies while slots moved, in milliseconds.
    pub p50_ms: Option<f64>,
    /// See above.
    pub p99_ms: Option<f64>,
    /// See above.
    pub p999_ms: Option<f64>,
    /// The longest of all turns, until a second after the move, in milliseconds.
    pub longest_ms: Option<f64>,
    /// Sum of everything that clients met besides replies and MOVED.
    pub faults: BTreeMap<Fault, u64>,
    /// The longest write pause of all turns as whimbrel reports it, in milliseconds.
    pub pause_longest_ms: Option<f64>,
    /// What to say of its results.
    pub result: String,
}

impl Summary {
    /// Sums up the turns of a contender.
    pub fn of(contender: &'static str, case: &Case, runs: &[Run]) -> Self {
        let mine: Vec<&Run> = runs.iter().filter(|run| run.contender == contender).collect();
        let ended: Vec<&Run> = mine.iter().copied().filter(|run| run.wall_s.is_some()).collect();
        let walls: Vec<f64> = ended.iter().filter_map(|run| run.wall_s).collect();
        // Of the other's time by this one's, in the same round.
        let ratio_to = |other: Contender| {
            let ratios = ended.iter().filter_map(|run| {
                let other =
                    runs.iter().find(|them| them.contender == other.name() && them.round == run.round)?;
                Some(other.wall_s? / run.wall_s?)
            });
            median(ratios.collect())
        };
        let of_clients = |number: &dyn Fn(&Clients) -> f64| {
            median(ended.iter().filter_map(|run| run.clients.as_ref()).map(number).collect())
        };
        let clients = || mine.iter().filter_map(|run| run.clients.as_ref());
        let mut faults = BTreeMap::new();
        for (&fault, &count) in clients().flat_map(|clients| &clients.faults) {
            *faults.entry(fault).or_default() += count;
        }
        let median_s = median(walls.clone());
        Self {
            contender,
            median_s,
            min_s: walls.iter().copied().reduce(f64::min),
            max_s: walls.iter().copied().reduce(f64::max),
            speedup: ratio_to(Contender::Legacy),
            of_migrateslots: ratio_to(Contender::Migrateslots).map(f64::recip),
            ms_per_slot: median_s.map(|seconds| seconds * 1e3 / case.slots.max(1) as f64),
            per_s: of_clients(&|clients| clients.during.per_s),
            p50_ms: of_clients(&|clients| clients.during.p50_ms),
            p99_ms: of_clients(&|clients| clients.during.p99_ms),
            p999_ms: of_clients(&|clients| clients.during.p999_ms),
            longest_ms: clients()
                .map(|clients| clients.during.max_ms.max(clients.after_max_ms))
                .reduce(f64::max),
            faults,
            pause_longest_ms: mine
                .iter()
                .map(|run| run.report.as_ref().map_or(&serde_json::Value::Null, |report| &report["pauses"]))
                // The built-in migration does not report its pauses.
                .filter(|pauses| pauses["count"].as_u64() > Some(0))
                .filter_map(|pauses| pauses["longest_ms"].as_f64())
                .reduce(f64::max),
            result: verdict(&mine),
        }
    }
}

/// The worst of the turns, and how many were so.
fn verdict(runs: &[&Run]) -> String {
    let problem = |run: &Run| match &run.outcome {
        Outcome::Moved => None,
        Outcome::Wrong(what) => Some(format!("WRONG: {what}")),
        Outcome::TimedOut { limit_s } => Some(format!("STOPPED after {limit_s} s")),
        Outcome::Failed(reason) => Some(format!("FAILED: {reason}")),
    };
    let bad: Vec<String> = runs.iter().filter_map(|run| problem(run)).collect();
    match bad.first() {
        None if runs.is_empty() => "no turn".to_owned(),
        None => "moved".to_owned(),
        Some(first) if bad.len() == runs.len() => first.clone(),
        Some(first) => format!("{first} ({} of {} turns)", bad.len(), runs.len()),
    }
}

/// Faults in a few words.
pub fn faults_in_words(faults: &BTreeMap<Fault, u64>) -> String {
    if faults.is_empty() {
        return "none".to_owned();
    }
    let words = faults.iter().map(|(fault, count)| {
        let name = match fault {
            Fault::Ask => "ASK",
            Fault::Tryagain => "TRYAGAIN",
            Fault::Clusterdown => "CLUSTERDOWN",
            Fault::Error => "other errors",
            Fault::Disconnect => "disconnects",
            Fault::GivenUp => "given up",
        };
        format!("{} {name}", format_count(*count))
    });
    words.collect::<Vec<_>>().join(", ")
}

impl CaseReport {
    /// Sums up the turns of all contenders.
    pub fn of(case: Case, contenders: &[Contender], runs: Vec<Run>) -> Self {
        let results =
            contenders.iter().map(|contender| Summary::of(contender.name(), &case, &runs)).collect();
        Self { case, results, runs }
    }

    /// The table for people, as Markdown understands it as well. Columns that say nothing are left out.
    pub fn table(&self) -> String {
        let number = |digits: usize| {
            move |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.digits$}"))
        };
        let (hundredths, tenths, thousandths) = (number(2), number(1), number(3));
        let had_clients = self.runs.iter().any(|run| run.clients.is_some());
        let columns: Vec<(&str, Vec<String>)> = vec![
            ("contender", self.each(|line| line.contender.to_owned())),
            ("median s", self.each(|line| hundredths(line.median_s))),
            (
                "min – max s",
                self.each(|line| match (line.min_s, line.max_s) {
                    (Some(min), Some(max)) => format!("{min:.2} – {max:.2}"),
                    _ => String::new(),
                }),
            ),
            ("× as fast as legacy", self.each(|line| hundredths(line.speedup))),
            ("× MIGRATESLOTS' time", self.each(|line| hundredths(line.of_migrateslots))),
            ("ms a slot", self.each(|line| thousandths(line.ms_per_slot))),
            (
                "commands/s",
                self.each(|line| {
                    line.per_s.map_or_else(String::new, |rate| format_count(rate.round() as u64))
                }),
            ),
            ("p50 ms", self.each(|line| hundredths(line.p50_ms))),
            ("p99 ms", self.each(|line| hundredths(line.p99_ms))),
            ("p99.9 ms", self.each(|line| hundredths(line.p999_ms))),
            ("longest ms", self.each(|line| tenths(line.longest_ms))),
            (
                "client errors",
                self.each(|line| if had_clients { faults_in_words(&line.faults) } else { String::new() }),
            ),
            ("longest pause ms", self.each(|line| tenths(line.pause_longest_ms))),
            ("result", self.each(|line| line.result.replace('|', "/"))),
        ];
        let columns: Vec<_> =
            columns.into_iter().filter(|(_, cells)| cells.iter().any(|cell| !cell.is_empty())).collect();
        let mut rows = vec![columns.iter().map(|(head, _)| (*head).to_owned()).collect::<Vec<_>>()];
        for line in 0..self.results.len() {
            let dash = |cell: &String| if cell.is_empty() { "–".to_owned() } else { cell.clone() };
            rows.push(columns.iter().map(|(_, cells)| dash(&cells[line])).collect());
        }
        format!(
            "{}: {} slots, {} keys, {} of values\n\n{}",
            self.case.name,
            format_count(self.case.slots),
            format_count(self.case.keys),
            format_bytes(self.case.bytes),
            aligned(&rows)
        )
    }

    fn each(&self, cell: impl Fn(&Summary) -> String) -> Vec<String> {
        self.results.iter().map(cell).collect()
    }

    /// One panel for each contender: its turn of median length. Empty if there were no clients.
    pub fn panels(&self) -> Vec<Panel> {
        let panel = |line: &Summary| {
            let mut mine: Vec<&Run> = self
                .runs
                .iter()
                .filter(|run| run.contender == line.contender && run.clients.is_some())
                .collect();
            mine.sort_by(|left, right| {
                left.wall_s.unwrap_or(f64::MAX).total_cmp(&right.wall_s.unwrap_or(f64::MAX))
            });
            let run = mine.get(mine.len().saturating_sub(1) / 2)?;
            let clients = run.clients.as_ref()?;
            let time = run.wall_s.map_or_else(|| "not done".to_owned(), |wall_s| format!("{wall_s:.2} s"));
            Some(Panel {
                title: format!("{}, {}: {time}", self.case.name, line.contender),
                subtitle: format!(
                    "p99 {:.1} ms, p99.9 {:.1} ms, longest {:.0} ms; errors: {}",
                    clients.during.p99_ms,
                    clients.during.p999_ms,
                    clients.during.max_ms.max(clients.after_max_ms),
                    faults_in_words(&clients.faults)
                ),
                throughput: clients.per_100_ms.clone(),
                window_s: clients.window_s,
            })
        };
        self.results.iter().filter_map(panel).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(contender: Contender, round: u32, wall_s: Option<f64>, outcome: Outcome) -> Run {
        Run {
            contender: contender.name(),
            round,
            outcome,
            wall_s,
            tool_cpu_s: None,
            servers_cpu_s: 1.0,
            report: Some(serde_json::json!({"pauses": {"count": 1, "longest_ms": f64::from(round)}})),
            clients: None,
        }
    }

    fn case() -> Case {
        Case { name: "a case".to_owned(), slots: 4000, keys: 10, bytes: 100 }
    }

    #[test]
    fn ratios_are_within_rounds() {
        let runs = vec![
            run(Contender::Legacy, 1, Some(20.0), Outcome::Moved),
            run(Contender::External, 1, Some(2.0), Outcome::Moved),
            run(Contender::Migrateslots, 1, Some(1.0), Outcome::Moved),
            run(Contender::Legacy, 2, Some(10.0), Outcome::Moved),
            run(Contender::External, 2, Some(2.0), Outcome::Moved),
            run(Contender::Migrateslots, 2, Some(4.0), Outcome::Moved),
        ];
        let line = Summary::of(Contender::External.name(), &case(), &runs);
        assert_eq!((line.speedup, line.of_migrateslots), (Some(7.5), Some(1.0 / 1.25)));
        assert_eq!((line.ms_per_slot, line.pause_longest_ms), (Some(0.5), Some(2.0)));
        assert_eq!(line.result, "moved");
    }

    #[test]
    fn failures_stand_in_the_table_and_empty_columns_do_not() {
        let runs = vec![
            run(Contender::Legacy, 1, Some(20.0), Outcome::Wrong("3 keys instead of 4".to_owned())),
            run(Contender::Legacy, 2, Some(20.0), Outcome::Moved),
            run(Contender::External, 1, None, Outcome::TimedOut { limit_s: 9 }),
        ];
        let report = CaseReport::of(case(), &[Contender::Legacy, Contender::External], runs);
        let table = report.table();
        assert!(table.contains("WRONG: 3 keys instead of 4 (1 of 2 turns)"), "{table}");
        assert!(table.contains("STOPPED after 9 s") && !table.contains("p99"), "{table}");
        assert!(report.panels().is_empty());
    }
}
