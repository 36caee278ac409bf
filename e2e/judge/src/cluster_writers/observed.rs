//! What a client sees besides replies: errors by kind, redirections, and how long commands take.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Incidents kept with their words; all are counted.
const INCIDENTS_KEPT: usize = 200;
/// The histogram's bound: a command that takes longer counts as this long.
const LONGEST_US: u64 = 600_000_000;

/// Anything that a client of a cluster may be answered besides a reply and MOVED.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IncidentKind {
    /// `-ASK`: the key's slot is being moved.
    Ask,
    /// `-TRYAGAIN`: the keys of one command are on two nodes.
    TryAgain,
    /// `-CLUSTERDOWN`: nobody owns the slot, or the node does not serve.
    ClusterDown,
    /// `-READONLY`: a replica was written to.
    ReadOnly,
    /// More MOVED in a row than a client follows.
    TooManyRedirections,
    /// Any other error.
    OtherError,
    /// The connection broke, or no answer came in time, after the command was sent.
    Disconnected,
    /// A node could not be connected to.
    NotConnected,
}

impl IncidentKind {
    /// The kind of an error that a server answered, by its first word.
    pub(super) fn of_code(code: &str) -> Self {
        match code {
            "ASK" => Self::Ask,
            "TRYAGAIN" => Self::TryAgain,
            "CLUSTERDOWN" => Self::ClusterDown,
            "READONLY" => Self::ReadOnly,
            _ => Self::OtherError,
        }
    }
}

/// One of the things that should not happen.
#[derive(Clone, Debug)]
pub struct Incident {
    /// What.
    pub kind: IncidentKind,
    /// Since the writers were started.
    pub at: Duration,
    /// The server's words, or the system's, and the command.
    pub words: String,
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after {} ms: {}", self.kind, self.at.as_millis(), self.words)
    }
}

/// The longest that a command took, redirections included.
#[derive(Clone, Debug)]
pub struct Stall {
    /// How long.
    pub took: Duration,
    /// When it was sent, since the writers were started.
    pub at: Duration,
    /// Which command.
    pub command: String,
}

/// Everything that one client saw, or several together.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Commands sent, whatever became of them. A redirected one counts once.
    pub commands: u64,
    /// MOVED answers that were followed.
    pub moved: u64,
    /// How often each kind of incident happened.
    pub counts: BTreeMap<IncidentKind, u64>,
    /// The first of them, in the order of time.
    pub incidents: Vec<Incident>,
    /// The longest command.
    pub longest: Option<Stall>,
    latencies_us: Histogram<u64>,
    started: Instant,
}

impl Observed {
    /// Nothing yet; incidents and stalls will count their time from `started`.
    pub fn since(started: Instant) -> Self {
        let latencies_us = Histogram::new_with_bounds(1, LONGEST_US, 3).expect("these bounds are in range");
        Self {
            commands: 0,
            moved: 0,
            counts: BTreeMap::new(),
            incidents: Vec::new(),
            longest: None,
            latencies_us,
            started,
        }
    }

    pub(super) fn incident(&mut self, kind: IncidentKind, words: impl FnOnce() -> String) {
        *self.counts.entry(kind).or_default() += 1;
        if self.incidents.len() < INCIDENTS_KEPT {
            self.incidents.push(Incident { kind, at: self.started.elapsed(), words: words() });
        }
    }

    pub(super) fn command(&mut self, sent: Instant, words: impl FnOnce() -> String) {
        let took = sent.elapsed();
        self.commands += 1;
        self.latencies_us.saturating_record(u64::try_from(took.as_micros()).unwrap_or(LONGEST_US).max(1));
        if self.longest.as_ref().is_none_or(|longest| longest.took < took) {
            self.longest = Some(Stall { took, at: sent.duration_since(self.started), command: words() });
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.commands += other.commands;
        self.moved += other.moved;
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
        self.incidents.extend(other.incidents);
        self.incidents.sort_by_key(|incident| incident.at);
        self.incidents.truncate(INCIDENTS_KEPT);
        let own = self.longest.as_ref().map(|stall| stall.took);
        if other.longest.as_ref().map(|stall| stall.took) > own {
            self.longest = other.longest;
        }
        self.latencies_us.add(other.latencies_us).expect("all histograms have the same bounds");
    }

    /// The time within which this share of all commands (0 to 1) was answered.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_micros(self.latencies_us.value_at_quantile(share))
    }

    /// How long the longest command took.
    pub fn longest_took(&self) -> Duration {
        self.longest.as_ref().map_or(Duration::ZERO, |stall| stall.took)
    }

    /// Panics with the first incidents unless there was nothing but replies and MOVED, however often.
    #[track_caller]
    pub fn assert_only_redirected(&self) {
        let is_other = |kind: IncidentKind| kind != IncidentKind::TooManyRedirections;
        let others: Vec<&Incident> = self.incidents.iter().filter(|i| is_other(i.kind)).take(10).collect();
        // All are counted, and not all are kept.
        assert!(
            !self.counts.keys().any(|kind| is_other(*kind)),
            "clients saw {:?} in {} commands: {others:?}",
            self.counts,
            self.commands
        );
    }

    /// Whether clients were sent to where they were answered, and not back and forth more often than they
    /// follow. Where a busy machine lets a node wait that has just got a slot, they may be.
    pub fn is_direct(&self) -> bool {
        !self.counts.contains_key(&IncidentKind::TooManyRedirections)
    }

    /// Panics with the first incidents unless there was nothing but replies and MOVED.
    #[track_caller]
    pub fn assert_only_moved(&self) {
        let shown: Vec<String> = self.incidents.iter().take(10).map(Incident::to_string).collect();
        assert!(
            self.counts.is_empty(),
            "clients saw {:?} in {} commands:\n  {}",
            self.counts,
            self.commands,
            shown.join("\n  ")
        );
    }
}

/// In one line, for a test's output.
impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        write!(
            f,
            "{} commands, {} MOVED, incidents {:?}, p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms",
            self.commands,
            self.moved,
            self.counts,
            ms(self.quantile(0.5)),
            ms(self.quantile(0.99)),
            ms(self.quantile(0.999))
        )?;
        if let Some(other) = self.incidents.iter().find(|incident| incident.kind == IncidentKind::OtherError)
        {
            write!(f, ", such as {other}")?;
        }
        match &self.longest {
            Some(stall) => {
                write!(f, ", longest {:.1} ms ({} after {:?})", ms(stall.took), stall.command, stall.at)
            }
            None => Ok(()),
        }
    }
}
