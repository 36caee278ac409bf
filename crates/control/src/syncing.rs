//! How a sync stands that this process runs, for those who ask.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use whimbrel_core::units::{format_bytes, format_duration_ms};
use whimbrel_flow::budget::{Rates, RatesNow};
use whimbrel_flow::sync::{SourceShown, SyncPhase, SyncReport, SyncShown, SyncStatus};

use crate::http::{Label, Metric, MetricKind, MetricsSource, count, gauge, seconds};
use crate::steering::Standing;
use crate::store::Status;

/// The sync that a process runs at the moment: after a cutover with a way back it is another one.
#[derive(Debug, Default)]
pub struct Current(Mutex<Option<Running>>);

/// One sync.
#[derive(Debug, Clone)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// The address of the source.
    pub source: String,
    /// The address of the target.
    pub target: String,
    /// How it stands.
    pub status: Arc<SyncStatus>,
    /// How fast its keys move.
    pub rates: Rates,
}

/// How a sync stands, for others.
#[derive(Debug, Serialize)]
pub struct StatusSnapshot<'a> {
    /// Its name.
    pub name: &'a str,
    /// The source, without credentials.
    pub source: &'a str,
    /// The target, without credentials.
    pub target: &'a str,
    /// How it stands.
    pub status: SyncShown,
    /// How fast its keys move, and whether it is paused.
    pub rates: RatesNow,
}

impl Running {
    /// What is shown of it.
    pub fn snapshot(&self) -> StatusSnapshot<'_> {
        StatusSnapshot {
            name: &self.name,
            source: &self.source,
            target: &self.target,
            status: self.status.shown(),
            rates: self.rates.now(),
        }
    }

    /// How it stands, as a job that began so.
    pub fn standing(&self, begun_with: &Status) -> Standing {
        let snapshot = self.snapshot();
        let counts = &snapshot.status.counts;
        let phase = serde_json::to_value(snapshot.status.phase).unwrap_or_default();
        let keys = counts.keys_total;
        let transferred = counts.written.min(keys);
        let keys_moved = match snapshot.status.phase {
            SyncPhase::Attaching | SyncPhase::Snapshotting => transferred,
            // It may have ended before anything was transferred.
            SyncPhase::Stopped => transferred.max(begun_with.keys_moved.min(keys)),
            _ => keys,
        };
        let job = Status {
            keys,
            keys_moved,
            phase: phase.as_str().unwrap_or_default().to_owned(),
            message: trouble(&snapshot.status),
            ..begun_with.clone()
        };
        Standing { job, details: serde_json::to_value(&snapshot).unwrap_or_default() }
    }
}

impl Current {
    /// Another one runs from now on.
    pub fn set(&self, running: Running) {
        *self.0.lock() = Some(running);
    }

    fn get(&self) -> Option<Running> {
        self.0.lock().clone()
    }

    fn phase(&self) -> SyncPhase {
        self.get().map(|running| running.status.shown().phase).unwrap_or_default()
    }
}

/// What the journal's disk and a cutover would cost now.
fn of_trouble(shown: &SyncShown) -> Vec<Metric> {
    let help = "For how long the journal's disk has been full; 0 while it has room";
    let full = seconds("whimbrel_sync_disk_full_seconds", help, shown.disk_full_ms.unwrap_or(0));
    let estimate = shown.pause_estimate_ms.map(|estimate_ms| {
        let help = "How long a cutover would pause writes now";
        seconds("whimbrel_sync_cutover_pause_estimate_seconds", help, estimate_ms)
    });
    [Some(full), estimate].into_iter().flatten().collect()
}

impl MetricsSource for Current {
    fn metrics(&self) -> Vec<Metric> {
        use MetricKind::{Counter, Gauge};
        let Some(running) = self.get() else { return Vec::new() };
        let shown = running.status.shown();
        let c = &shown.counts;
        let by = |kind, name, help, value: fn(&SourceShown) -> Option<f64>| {
            let labels = |source: &SourceShown| -> Vec<Label> {
                vec![("primary", source.address.clone()), ("feed", source.feed.clone())]
            };
            // What is not known is left out: 0 would be a lie.
            let known = shown.sources.iter().filter_map(|source| Some((labels(source), value(source)?)));
            Metric::by(kind, name, help, known)
        };
        let phase = |phase: &SyncPhase| {
            (vec![("phase", phase.to_string())], if *phase == shown.phase { 1.0 } else { 0.0 })
        };
        let mut metrics = vec![
            Metric::by(
                Gauge,
                "whimbrel_sync_phase",
                "1 for the phase it is in",
                SyncPhase::ALL.iter().map(phase),
            ),
            count("whimbrel_sync_keys_read", "Keys whose state was read from the source", c.read),
            count("whimbrel_sync_read_bytes", "Bytes of keys and values read", c.bytes_read),
            count("whimbrel_sync_keys_written", "Keys written to the target", c.written),
            count("whimbrel_sync_written_bytes", "Bytes of keys and values written", c.bytes_written),
            count("whimbrel_sync_keys_removed", "Keys that were gone from the source and removed", c.gone),
            count(
                "whimbrel_sync_keys_compared",
                "Keys compared because changes may have been missed",
                c.compared,
            ),
            count("whimbrel_sync_retries", "Operations that were tried again", c.retries),
            gauge("whimbrel_sync_keys_source", "Keys of the source when it began", c.keys_total),
            gauge("whimbrel_sync_keys_failed", "Keys that are not on the target", c.failed),
            gauge("whimbrel_sync_big_keys_in_flight", "Keys that move in chunks now", c.big_in_flight),
            gauge(
                "whimbrel_sync_suspect_slots",
                "Slots to be gone through again",
                shown.suspect_slots as u64,
            ),
            by(
                Gauge,
                "whimbrel_sync_source_offset",
                "Replication offset up to which changes are known",
                |s| Some(s.offset as f64),
            ),
            by(
                Gauge,
                "whimbrel_sync_source_lag_bytes",
                "How far the primary was ahead of that, about a second ago",
                |s| Some(s.lag_bytes? as f64),
            ),
            by(
                Gauge,
                "whimbrel_sync_source_lag_seconds",
                "For how long something has been waiting to be transferred",
                |s| Some(s.lag_ms? as f64 / 1000.0),
            ),
            by(
                Gauge,
                "whimbrel_sync_source_silent_seconds",
                "For how long the primary has given no sign of life; it is asked every second",
                |s| Some(s.silent_ms as f64 / 1000.0),
            ),
            Metric::by(
                Gauge,
                "whimbrel_sync_target_silent_seconds",
                "For how long the target's primary has given no sign of life; it is asked every second",
                shown.targets.iter().map(|target| {
                    (vec![("primary", target.address.clone())], target.silent_ms as f64 / 1000.0)
                }),
            ),
            by(Gauge, "whimbrel_sync_source_touched_keys", "Keys that wait to be transferred", |s| {
                Some(s.touched as f64)
            }),
            by(
                Gauge,
                "whimbrel_sync_source_connected",
                "1 while there is a link to the primary, and it answers",
                |s| Some(if s.trouble.is_none() && !s.silent { 1.0 } else { 0.0 }),
            ),
            by(
                Counter,
                "whimbrel_sync_source_links_resumed",
                "Dropped links that went on without a gap",
                |s| Some(s.resumed as f64),
            ),
        ];
        let is_paused = u64::from(running.rates.now().is_paused());
        metrics.push(gauge(
            "whimbrel_sync_paused",
            "1 while it is paused, or outside of its hours",
            is_paused,
        ));
        metrics.extend(of_trouble(&shown));
        metrics
    }

    fn health(&self) -> Result<(), String> {
        match self.phase() {
            SyncPhase::Stopped => Err("it has stopped".to_owned()),
            _ => Ok(()),
        }
    }

    fn readiness(&self) -> Result<(), String> {
        let Some(running) = self.get() else {
            return Err("it has not begun".to_owned());
        };
        if let Some(paused) = running.rates.now().pause_in_words() {
            return Err(format!("it is {paused}"));
        }
        let shown = running.status.shown();
        let broken = shown.sources.iter().find_map(|s| Some((&s.address, s.trouble.as_ref()?)));
        let broken = broken.map(|(address, why)| format!("no link to {address}: {why}"));
        let trouble = broken.or_else(|| shown.silences().next().map(nothing_heard));
        match (shown.phase, trouble) {
            (SyncPhase::CutOver, _) => Ok(()),
            (SyncPhase::Following | SyncPhase::Rehearsing | SyncPhase::CuttingOver, trouble) => {
                trouble.map_or(Ok(()), Err)
            }
            (phase, _) => Err(format!("it does not follow yet: {phase}")),
        }
    }

    fn status(&self) -> serde_json::Value {
        self.get().and_then(|running| serde_json::to_value(running.snapshot()).ok()).unwrap_or_default()
    }
}

/// Why it does not get on as it should; empty if it does. The same words for as long as that lasts.
fn trouble(shown: &SyncShown) -> String {
    let silent = shown.silences().map(|(side, at, _)| format!("nothing is heard from the {side} {at}"));
    let full = shown.disk_full_ms.map(|_| "the disk of the state folder is full".to_owned());
    silent.chain(full).collect::<Vec<_>>().join("; ")
}

/// The longest lag, and the sum in bytes: unknown if that of one primary is. Bytes are left out if a feed
/// reports none.
pub fn lag_in_words(shown: &SyncShown) -> String {
    let lags: Option<Vec<u64>> = shown.sources.iter().map(|source| source.lag_ms).collect();
    let Some(lags) = lags else { return "unknown".to_owned() };
    let ms = lags.into_iter().max().unwrap_or(0);
    let ms = if ms < 10_000 { format!("{ms} ms") } else { format_duration_ms(ms) };
    match shown.sources.iter().map(|source| source.lag_bytes).sum::<Option<u64>>() {
        Some(bytes) => format!("{ms}, {}", format_bytes(bytes)),
        None => ms,
    }
}

/// Hooks of the cutover that failed: their events, and how.
pub fn failed_hooks(report: &SyncReport) -> impl Iterator<Item = (&str, &str)> {
    let hooks = report.cutover.iter().flat_map(|cutover| &cutover.hooks);
    hooks.filter_map(|hook| Some((&*hook.event, hook.failure.as_deref()?)))
}

/// In words, of one of [`SyncShown::silences`](whimbrel_flow::sync::SyncShown::silences).
pub fn nothing_heard((side, address, silent_ms): (&str, &str, u64)) -> String {
    format!("nothing heard from the {side} {address} for {}", format_duration_ms(silent_ms))
}
