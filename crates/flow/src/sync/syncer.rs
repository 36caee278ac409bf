//! A sync at work: what it knows, its rounds over all primaries, and its journal.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::deployment::Topology;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::probe::Info;

use super::options::SyncOptions;
use super::source::{Round, Source};
use super::state::{Back, SyncState};
use super::status::SyncStatus;
use crate::copy;
use crate::journal::Journal;
use crate::pipeline::Shared;
use crate::retry::Backoff;

/// How many rounds are made before the pause, to have little left to do in it.
pub(super) const ROUNDS_MAX: u32 = 50;

/// How long a feed is waited for before what it has reported is transferred.
const REACH_MS: u64 = 500;

pub(super) struct Syncer {
    pub(super) shared: Arc<Shared>,
    pub(super) options: SyncOptions,
    pub(super) status: Arc<SyncStatus>,
    pub(super) journal: Journal<SyncState>,
    pub(super) state: SyncState,
    pub(super) sources: Vec<Source>,
    /// Slots to be reconciled.
    pub(super) suspects: SlotSet,
    /// The topologies that show which slots moved.
    pub(super) seen: (Arc<Topology>, Arc<Topology>),
    pub(super) reconciled_slots: u64,
    pub(super) back: Option<Back>,
    pub(super) caught_up: bool,
    /// Something was written to a database that should be part of this sync and is not.
    pub(super) unmapped: bool,
    /// When the comparison of a cutover was last rehearsed.
    pub(super) rehearsed: Option<Instant>,
    /// When the long pause ends by itself of a cutover that was given up, and that could not end it: by the
    /// clock that pauses are counted by.
    pub(super) pause_ends_ms: Option<u64>,
}

impl Syncer {
    /// One round of all primaries at the same time. Its result is the worst of theirs.
    pub(super) async fn rounds(&mut self) -> Result<Round> {
        let round = |mut source: Source| async move {
            let outcome = source.round(true).await;
            (source, outcome)
        };
        Ok(self.of_all(round).await?.into_iter().max().unwrap_or(Round::All))
    }

    /// Has all primaries do something at the same time. The first failure is returned when all have ended.
    pub(super) async fn of_all<T, F>(&mut self, work: impl Fn(Source) -> F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = (Source, Result<T>)> + Send + 'static,
    {
        let mut running = JoinSet::new();
        for source in std::mem::take(&mut self.sources) {
            running.spawn(work(source));
        }
        let (mut outcomes, mut failure) = (Vec::new(), None);
        while let Some(joined) = running.join_next().await {
            match joined {
                Ok((source, outcome)) => {
                    self.sources.push(source);
                    match outcome {
                        Ok(outcome) => outcomes.push(outcome),
                        Err(e) => failure = failure.or(Some(e)),
                    }
                }
                Err(e) => failure = failure.or(Some(Error::own("follow a primary", e))),
            }
        }
        failure.map_or(Ok(outcomes), Err)
    }

    /// Transfers what was written before this was called; true if nothing is left or in doubt.
    pub(super) async fn catch_up(&mut self) -> Result<bool> {
        if !self.read_backlogs().await? {
            return Ok(false);
        }
        while self.rounds().await? == Round::Part {}
        Ok(self.is_calm() && !self.shared.stop.is_cancelled() && !self.sources.iter().any(Source::is_broken))
    }

    /// Waits until every feed has reported what its server did before this was called, and transfers that
    /// meanwhile. False if one has ended, or the user stopped it.
    async fn read_backlogs(&mut self) -> Result<bool> {
        let shared = self.shared.clone();
        for feed in self.sources.iter().map(|source| source.feed.clone()).collect::<Vec<_>>() {
            let mut backoff = Backoff::new(shared.options.retry);
            let info = loop {
                let asked = async {
                    let mut link = shared.source.open(feed.address(), 0).await?;
                    Info::ask(&mut link, "replication").await
                };
                match asked.await {
                    Ok(info) => break info,
                    Err(_) if feed.failure().is_some() || shared.stop.is_cancelled() => return Ok(false),
                    Err(e) => shared.pause(&mut backoff, e).await?,
                }
            };
            let replid = info.field("master_replid").unwrap_or_default();
            let offset = info.number("master_repl_offset").unwrap_or(0);
            loop {
                match feed.reach_in(replid, offset, REACH_MS).await {
                    Ok(true) => break,
                    Ok(false) if !shared.stop.is_cancelled() => {}
                    // It is repaired, or all of this ends.
                    Ok(false) | Err(_) => return Ok(false),
                }
                self.rounds().await?;
            }
        }
        Ok(true)
    }

    /// All that has to be gone through again: what was found before, and what was added since.
    pub(super) fn all_suspects(&self) -> SlotSet {
        self.suspects.union(&self.shared.suspects.all())
    }

    pub(super) fn is_calm(&self) -> bool {
        self.all_suspects().is_empty()
    }

    pub(super) async fn copy_functions(&self) -> Result<()> {
        let Shared { source, target, .. } = &*self.shared;
        crate::functions::copy(source, target, copy::Existing::Replace).await.map(drop)
    }

    /// Writes down how far it is, if the disk has room.
    pub(super) fn save(&mut self) -> Result<()> {
        self.take_positions();
        self.write_down()
    }

    /// As [`Syncer::save`], of what must be on disk before the next step.
    pub(super) fn save_at_once(&mut self) -> Result<()> {
        self.take_positions();
        self.collect();
        self.journal.save(&self.state)
    }

    fn take_positions(&mut self) {
        if !self.sources.is_empty() {
            self.state.positions = self.sources.iter().filter_map(Source::position).collect();
        }
    }

    /// The positions have been read before: a slot is in doubt before the position goes beyond what made it
    /// so.
    pub(super) fn write_down(&mut self) -> Result<()> {
        self.collect();
        self.journal.checkpoint(&self.state, &self.status.copy.disk)
    }

    fn collect(&mut self) {
        self.state.layout = copy::layout(&self.seen.0);
        copy::record(&self.shared, &mut self.state.copy);
        self.status.failures(self.shared.failures.listed());
        self.state.suspects = self.all_suspects().to_string();
    }

    pub(super) fn notice(&self, text: &str) {
        self.status.copy.notice(text.to_owned());
    }

    /// How many keys have been transferred so far, or removed.
    pub(super) fn transferred(&self) -> u64 {
        let counts = self.status.copy.snapshot();
        counts.written + counts.gone
    }
}
