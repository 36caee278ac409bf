//! Logs of intervals, as HdrHistogram's own tools read them.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

/// Times above an hour count as one, in nanoseconds.
pub const LONGEST_NS: u64 = 3_600_000_000_000;

/// How long an interval is.
const INTERVAL: Duration = Duration::from_secs(1);

/// The tools show largest values in milliseconds where these are nanoseconds.
const NS_PER_MS: f64 = 1e6;

/// One time that was measured.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// When, since the beginning.
    pub at: Duration,
    /// Whether it is that of a whole move, and not that between two beginnings.
    pub is_latency: bool,
    /// The time, in nanoseconds.
    pub ns: u64,
}

/// Writes a line for each second and kind: `interval` and `latency` are their tags.
///
/// # Errors
/// When the file cannot be written.
pub fn write(file: &Path, title: &str, began_at: SystemTime, samples: &[Sample]) -> anyhow::Result<()> {
    let out = File::create(file).with_context(|| format!("write {}", file.display()))?;
    let (mut out, mut serializer) = (BufWriter::new(out), V2DeflateSerializer::new());
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment(title)
        .with_start_time(began_at)
        .with_base_time(began_at)
        .with_max_value_divisor(NS_PER_MS)
        .begin_log_with(&mut out, &mut serializer)?;
    let of = |sample: &Sample| sample.at.as_secs() / INTERVAL.as_secs();
    for second in samples.chunk_by(|one, next| of(one) == of(next)) {
        for (name, is_latency) in [("interval", false), ("latency", true)] {
            let mut histogram: Histogram<u64> = Histogram::new_with_bounds(1, LONGEST_NS, 3)?;
            let own = second.iter().filter(|sample| sample.is_latency == is_latency);
            own.for_each(|sample| histogram.saturating_record(sample.ns));
            let begins = second.first().map_or(0, of);
            let begins = INTERVAL * u32::try_from(begins).unwrap_or(u32::MAX);
            if !histogram.is_empty() {
                log.write_histogram(&histogram, begins, INTERVAL, Tag::new(name))
                    .map_err(|e| anyhow!("write {}: {e}", file.display()))?;
            }
        }
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;

    #[test]
    fn a_log_has_a_line_for_each_second_and_kind() {
        let sample = |ms, is_latency| Sample { at: Duration::from_millis(ms), is_latency, ns: ms * 1_000 };
        let samples = [sample(100, false), sample(900, true), sample(2_500, true)];
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("moves.hdr");
        write(&file, "moves", SystemTime::now(), &samples).expect("it is written");
        let text = std::fs::read(&file).expect("it is there");
        let entries: Vec<(u64, String)> = IntervalLogIterator::new(&text)
            .filter_map(|entry| match entry.expect("an entry") {
                LogEntry::Interval(of) => {
                    let tag = of.tag().map(|tag| tag.as_str().to_owned());
                    Some((of.start_timestamp().as_secs(), tag.unwrap_or_default()))
                }
                _ => None,
            })
            .collect();
        let named = |second, tag: &str| (second, tag.to_owned());
        assert_eq!(entries, [named(0, "interval"), named(0, "latency"), named(2, "latency")]);
    }
}
