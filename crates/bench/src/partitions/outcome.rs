//! What a run came to.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::coordinator::Measured;
use super::size::{Mode, Size};

/// What one run came to. Times of a move in microseconds.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    #[serde(flatten)]
    pub(super) size: Size,
    pub(super) mode: Mode,
    pub(super) planned: u64,
    pub(super) moved: u64,
    pub(super) seconds: f64,
    /// Where the run was stopped: what all moves would have taken, at the same pace.
    pub(super) seconds_estimated: Option<f64>,
    pub(super) interval: Times,
    pub(super) latency: Times,
    pub(super) published_bytes_per_move: f64,
    pub(super) bystander_messages_per_move: f64,
    pub(super) journal_writes: u64,
    pub(super) log: Vec<String>,
    pub(super) percentiles: Vec<String>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Times {
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) max_us: f64,
}

impl Times {
    fn of(histogram: &Histogram<u64>) -> Times {
        let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Times { mean_us: histogram.mean() / 1e3, p50_us: us(0.5), p99_us: us(0.99), max_us: us(1.0) }
    }
}

impl Outcome {
    pub(super) fn new(size: Size, mode: Mode, measured: Measured) -> Outcome {
        let seconds = measured.elapsed.as_secs_f64();
        let per_move = |count: u64| count as f64 / measured.moved.max(1) as f64;
        let is_whole = measured.moved >= measured.planned;
        Outcome {
            size,
            mode,
            planned: measured.planned,
            moved: measured.moved,
            seconds,
            seconds_estimated: (!is_whole)
                .then(|| seconds * measured.planned as f64 / measured.moved.max(1) as f64),
            interval: Times::of(&measured.intervals),
            latency: Times::of(&measured.latencies),
            published_bytes_per_move: per_move(measured.published_bytes),
            bystander_messages_per_move: per_move(measured.bystander_messages),
            journal_writes: measured.journal_writes,
            percentiles: percentiles(&measured.intervals),
            log: measured.log,
        }
    }
}

/// The percentiles of a histogram of nanoseconds, in microseconds, in the format of HdrHistogram.
fn percentiles(histogram: &Histogram<u64>) -> Vec<String> {
    let mut lines = vec!["       Value(µs) Percentile TotalCount 1/(1-Percentile)".to_owned(), String::new()];
    let mut count = 0;
    for value in histogram.iter_quantiles(5) {
        let quantile = value.quantile_iterated_to();
        let value_us = value.value_iterated_to() as f64 / 1e3;
        count += value.count_since_last_iteration();
        let rest = if quantile < 1.0 { format!(" {:14.2}", 1.0 / (1.0 - quantile)) } else { String::new() };
        lines.push(format!("{value_us:12.3} {quantile:14.12} {count:10}{rest}"));
    }
    let us = |nanoseconds: f64| nanoseconds / 1e3;
    lines.push(format!(
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]",
        us(histogram.mean()),
        us(histogram.stdev())
    ));
    lines.push(format!(
        "#[Max     = {:12.3}, Total count    = {:12}]",
        us(histogram.max() as f64),
        histogram.len()
    ));
    // As many as it takes for this many digits.
    let sub_buckets = (2 * 10_u64.pow(histogram.sigfig().into())).next_power_of_two();
    let buckets = histogram.buckets();
    lines.push(format!("#[Buckets = {buckets:12}, SubBuckets     = {sub_buckets:12}]"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_printed_as_hdrhistogram_does() {
        let mut histogram = Histogram::new(3).expect("a histogram");
        (1..=4).for_each(|value| histogram.record(value * 1_000).expect("it fits"));
        let lines = percentiles(&histogram);
        assert_eq!(lines[0], "       Value(µs) Percentile TotalCount 1/(1-Percentile)");
        assert_eq!(lines[2], "       1.000 0.000000000000          1           1.00");
        assert!(
            lines.contains(&"       2.000 0.500000000000          2           2.00".to_owned()),
            "{lines:?}"
        );
        assert!(lines[lines.len() - 3].starts_with("#[Mean    =        2.50"), "{lines:?}");
        assert!(lines[lines.len() - 1].ends_with("SubBuckets     =         2048]"), "{lines:?}");
    }
}
