//! From single runs to tables.

use serde::Serialize;
use whimbrel_core::units::{format_bytes, format_count};
use whimbrel_loadgen::check::Comparison;

use crate::contender::Contender;
use crate::machine::Machine;

/// Everything that was measured: the JSON document.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Which measurement this is.
    pub bench: &'static str,
    /// What was measured on.
    pub machine: Machine,
    /// Rounds that were asked for.
    pub rounds: u32,
    /// Who took part, and who did not.
    pub contenders: Vec<Entry>,
    /// One for each data set.
    pub data_sets: Vec<SetReport>,
}

/// A contender's part in the measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// How it is configured.
    pub how: String,
    /// Why it did not take part, if it did not.
    pub absent: Option<String>,
}

/// The runs with one data set, and what follows from them.
#[derive(Debug, Serialize)]
pub struct SetReport {
    /// Its name.
    pub name: &'static str,
    /// What is in it.
    pub content: &'static str,
    /// How many keys.
    pub keys: u64,
    /// Memory that the source needs for it, in bytes.
    pub source_memory_bytes: u64,
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
    /// The place in the round, counted from 1.
    pub place: usize,
    /// How it ended.
    pub outcome: Outcome,
    /// Seconds by the clock; `None` if it did not come to its end.
    pub wall_s: Option<f64>,
    /// Processor seconds of the tool; `None` where the servers do all by themselves.
    pub tool_cpu_s: Option<f64>,
    /// Processor seconds of the source, with the process that it forks for a snapshot.
    pub source_cpu_s: f64,
    /// Processor seconds of the target.
    pub target_cpu_s: f64,
    /// What the target held afterwards.
    pub check: Comparison,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything arrived.
    Equal,
    /// It said that it was done, but keys are missing or different.
    Wrong,
    /// It was stopped after this many seconds.
    TimedOut {
        /// The limit.
        limit_s: u64,
    },
    /// It gave up.
    Failed {
        /// What it said last.
        reason: String,
    },
}

/// A contender's runs with one data set, in a line.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Whose.
    pub contender: &'static str,
    /// Median time in seconds; this and all that follows only over runs that came to their end.
    pub median_s: Option<f64>,
    /// Shortest time in seconds.
    pub min_s: Option<f64>,
    /// Longest time in seconds.
    pub max_s: Option<f64>,
    /// Its median time by whimbrel's: 2 is twice as long.
    pub ratio: Option<f64>,
    /// The median of its time by whimbrel's in the same round.
    pub ratio_in_round: Option<f64>,
    /// Keys per second, at the median time.
    pub keys_per_s: Option<f64>,
    /// Median processor seconds of the tool.
    pub tool_cpu_s: Option<f64>,
    /// Median processor seconds of the source.
    pub source_cpu_s: Option<f64>,
    /// Median processor seconds of the target.
    pub target_cpu_s: Option<f64>,
    /// What to say of its results.
    pub result: String,
}

impl Summary {
    /// Sums up the runs of a contender.
    pub fn of(contender: Contender, keys: u64, runs: &[Run]) -> Self {
        let own = |name: &'static str| runs.iter().filter(move |run| run.contender == name);
        let mine: Vec<&Run> = own(contender.name()).collect();
        let ended: Vec<&Run> = mine.iter().copied().filter(|run| run.wall_s.is_some()).collect();
        let walls: Vec<f64> = ended.iter().filter_map(|run| run.wall_s).collect();
        let base = Contender::Whimbrel.name();
        let base_walls: Vec<f64> = own(base).filter_map(|run| run.wall_s).collect();
        let ratios: Vec<f64> = ended
            .iter()
            .filter_map(|run| {
                let base_wall = own(base).find(|other| other.round == run.round)?.wall_s?;
                Some(run.wall_s? / base_wall)
            })
            .collect();
        let median_s = median(walls.clone());
        Self {
            contender: contender.name(),
            median_s,
            min_s: walls.iter().copied().reduce(f64::min),
            max_s: walls.iter().copied().reduce(f64::max),
            ratio: median_s.zip(median(base_walls)).map(|(own, base)| own / base),
            ratio_in_round: median(ratios),
            keys_per_s: median_s.map(|seconds| keys as f64 / seconds),
            tool_cpu_s: median(ended.iter().filter_map(|run| run.tool_cpu_s).collect()),
            source_cpu_s: median(ended.iter().map(|run| run.source_cpu_s).collect()),
            target_cpu_s: median(ended.iter().map(|run| run.target_cpu_s).collect()),
            result: verdict(&mine),
        }
    }
}

/// The worst of the runs, and how many were so.
fn verdict(runs: &[&Run]) -> String {
    let of = |what: String, is_so: &dyn Fn(&Run) -> bool| {
        let count = runs.iter().filter(|run| is_so(run)).count();
        if count == runs.len() { what } else { format!("{what} ({count} of {} rounds)", runs.len()) }
    };
    for run in runs {
        match &run.outcome {
            Outcome::Equal => {}
            Outcome::Wrong => return of(wrong(&run.check), &|run| run.outcome == Outcome::Wrong),
            Outcome::TimedOut { limit_s } => {
                return of(format!("STOPPED after {limit_s} s"), &|run| {
                    matches!(run.outcome, Outcome::TimedOut { .. })
                });
            }
            Outcome::Failed { reason } => {
                return of(format!("FAILED: {reason}"), &|run| matches!(run.outcome, Outcome::Failed { .. }));
            }
        }
    }
    match runs.iter().map(|run| run.check.expiry_off_ms_max).max() {
        None => "no run".to_owned(),
        Some(0) => "equal".to_owned(),
        Some(off_ms) => format!("equal but for expiry times, up to {off_ms} ms off"),
    }
}

fn wrong(check: &Comparison) -> String {
    let lost = check.source_keys.saturating_sub(check.target_keys);
    if lost > 0 {
        format!("LOST {} keys", format_count(lost))
    } else if check.target_keys > check.source_keys {
        format!("{} KEYS TOO MANY", format_count(check.target_keys - check.source_keys))
    } else {
        format!("{} of {} sampled keys DIFFER", check.different, check.sampled)
    }
}

/// The middle value, or the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

impl SetReport {
    /// The table for people, as Markdown understands it as well.
    pub fn table(&self) -> String {
        let seconds =
            |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
        let head = [
            "contender",
            "median s",
            "min – max s",
            "× whimbrel",
            "× in round",
            "keys/s",
            "CPU s tool",
            "source",
            "target",
            "result",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for line in &self.results {
            rows.push(vec![
                line.contender.to_owned(),
                seconds(line.median_s),
                match (line.min_s, line.max_s) {
                    (Some(min), Some(max)) => format!("{min:.2} – {max:.2}"),
                    _ => "–".to_owned(),
                },
                seconds(line.ratio),
                seconds(line.ratio_in_round),
                line.keys_per_s.map_or_else(|| "–".to_owned(), |rate| format_count(rate.round() as u64)),
                seconds(line.tool_cpu_s),
                seconds(line.source_cpu_s),
                seconds(line.target_cpu_s),
                line.result.replace('|', "/"),
            ]);
        }
        format!(
            "{}: {} keys, {} in the source's memory: {}\n\n{}",
            self.name,
            format_count(self.keys),
            format_bytes(self.source_memory_bytes),
            self.content,
            aligned(&rows)
        )
    }
}

/// The first and the last column begin where they begin; numbers end together.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let is_text = |column: usize| column == 0 || column + 1 == columns;
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let padded =
                if is_text(column) { format!("| {cell:<width$} ") } else { format!("| {cell:>width$} ") };
            text.push_str(&padded);
        }
        text.push_str("|\n");
        if index == 0 {
            for (column, width) in widths.iter().enumerate() {
                let dashes = "-".repeat(width + 1);
                text.push_str(&if is_text(column) { format!("|{dashes}-") } else { format!("|{dashes}:") });
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(contender: Contender, round: u32, wall_s: Option<f64>, outcome: Outcome) -> Run {
        let target_keys = if outcome == Outcome::Wrong { 990 } else { 1000 };
        let check = Comparison {
            source_keys: 1000,
            target_keys,
            sampled: 200,
            different: 0,
            example: None,
            expiry_off_ms_max: 0,
        };
        Run {
            contender: contender.name(),
            round,
            place: 1,
            outcome,
            wall_s,
            tool_cpu_s: None,
            source_cpu_s: 1.0,
            target_cpu_s: 1.0,
            check,
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_of_medians_and_within_rounds() {
        let runs = [
            run(Contender::Whimbrel, 1, Some(1.0), Outcome::Equal),
            run(Contender::Migrate, 1, Some(4.0), Outcome::Equal),
            run(Contender::Whimbrel, 2, Some(2.0), Outcome::Equal),
            run(Contender::Migrate, 2, Some(4.0), Outcome::Equal),
            run(Contender::Whimbrel, 3, Some(4.0), Outcome::Equal),
            run(Contender::Migrate, 3, Some(4.0), Outcome::Equal),
        ];
        let summary = Summary::of(Contender::Migrate, 1000, &runs);
        assert_eq!((summary.median_s, summary.min_s, summary.max_s), (Some(4.0), Some(4.0), Some(4.0)));
        assert_eq!((summary.ratio, summary.ratio_in_round), (Some(2.0), Some(2.0)));
        assert_eq!(summary.keys_per_s, Some(250.0));
        assert_eq!(summary.result, "equal");
    }

    #[test]
    fn losses_stand_in_the_table() {
        let runs = [
            run(Contender::Whimbrel, 1, Some(1.0), Outcome::Equal),
            run(Contender::GoRedisMigrate, 1, Some(2.0), Outcome::Wrong),
            run(Contender::GoRedisMigrate, 2, Some(2.0), Outcome::Equal),
            run(Contender::RedisShakeScan, 1, None, Outcome::TimedOut { limit_s: 120 }),
        ];
        let of = |contender| Summary::of(contender, 1000, &runs).result;
        assert_eq!(of(Contender::GoRedisMigrate), "LOST 10 keys (1 of 2 rounds)");
        assert_eq!(of(Contender::RedisShakeScan), "STOPPED after 120 s");
        assert_eq!(of(Contender::RedisShakeSync), "no run");
    }

    #[test]
    fn tables_are_aligned() {
        let rows = [
            vec!["a".to_owned(), "bb".to_owned(), "c".to_owned()],
            vec!["×".to_owned(), "1".to_owned(), "dd".to_owned()],
        ];
        assert_eq!(aligned(&rows), "| a | bb | c  |\n|---|---:|----|\n| × |  1 | dd |\n");
    }
}
