//! Copies keys from one deployment to another.
//!
//! Each shard and database of the source is scanned, a few at a time, and its keys go through the lanes of a
//! [pipeline](crate::pipeline), whose tracker says how far the journal may go.
//!
//! **Invariant: one lane per key.** All reads and writes of a key go through the same lane in order, so an
//! older read can never overwrite a newer one, even though `SCAN` may give a key twice.
//!
//! **What a pass may have missed is gone through again.** Slots that changed their owner on the source while
//! it was scanned, and slots whose target primary was replaced or restarted after it had acknowledged writes,
//! are *in doubt*. After a pass they are copied once more, until a pass ends without doubt.

mod emptied;
mod passes;
mod preflight;
mod rights;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;

pub(crate) use self::preflight::check_reading;
pub use self::preflight::{Plan, PlannedDb, databases, plan, with_empty_databases};
pub use self::rights::check_rights;
pub use crate::journal::KeyFailure;
pub use crate::keys::shown;
pub use crate::large::Existing;
pub use crate::pipeline::{CopyOptions, DbPair, LaneCounts};

pub(crate) use self::passes::{
    check_target, find_suspects, layout, note_evicted, passes, poll_target, record, remember, run_pass,
    target_runs,
};
pub(crate) use self::preflight::{GIVE_INFO, SYNC_ASKS_MORE, check_way_back};
use crate::journal::{Journal, JournalState};
use crate::pipeline::{Shared, remove_leftovers};
use crate::progress::{CopyCounts, CopyProgress};

/// What a copy did.
#[derive(Debug, Clone, Serialize)]
pub struct CopyReport {
    /// All counters.
    pub counts: CopyCounts,
    /// How long it took.
    pub duration_ms: u64,
    /// How often the keyspace, or the part in doubt, was gone through.
    pub passes: u32,
    /// True if every selected key has been dealt with; false if it was stopped.
    pub complete: bool,
    /// True if it went on from a journal.
    pub resumed: bool,
    /// Keys that the target evicted while it was copied to. If there are any, the copy is not whole.
    pub evicted: u64,
    /// Commands that emptied or exchanged a database of the source while it was copied, and how often they
    /// ran: whatever the database was, the servers do not say. If there are any, the copy is neither what
    /// there was nor what there is.
    pub emptied: BTreeMap<String, u64>,
    /// The first keys that were not copied; their number is in the counters.
    pub failures: Vec<KeyFailure>,
    /// What the user should know.
    pub notices: Vec<String>,
}

/// Copies. The plan has been made, and agreed to, before.
///
/// `stop` ends it early and cleanly: what is in the lanes is finished and the journal is written. With a
/// journal that holds an earlier run, that run continues.
///
/// # Errors
/// What could not be helped by trying again. The journal stays, and a later run can go on.
pub fn copy(
    source: Arc<Deployment>,
    target: Arc<Deployment>,
    options: CopyOptions,
    progress: Arc<CopyProgress>,
    mut journal: Option<Journal>,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<CopyReport>> {
    // Boxed, so that it is compiled here and not in each crate that awaits it.
    Box::pin(async move {
        let started = Instant::now();
        let shared = Arc::new(Shared::new(source, target, options, progress, stop));
        let mut state = match &journal {
            Some(journal) => journal.state().clone(),
            None => JournalState::default(),
        };
        let resumed = !state.is_fresh();
        let runs = target_runs(&shared).await?;
        remember(&shared, &state);
        if resumed && state.target_runs != runs {
            shared
                .progress
                .notice("a server of the target is not the process it was: the copy starts again".to_owned());
            state = JournalState::default();
            remember(&shared, &state);
        }
        state.target_runs = runs;
        if resumed && !state.is_fresh() && state.source_layout != layout(&shared.source.topology()) {
            // A slot may have moved from a shard that was not scanned yet to a shard that was scanned.
            shared.progress.notice("slots of the source have moved since: the copy starts again".to_owned());
            state = JournalState { target_runs: state.target_runs, ..JournalState::default() };
            remember(&shared, &state);
        }
        let mut leftovers = JoinSet::new();
        if resumed {
            leftovers.spawn(remove_leftovers(shared.clone()));
        }
        for words in rights::unpromised(&shared.source, &shared.options) {
            shared.progress.notice(words);
        }
        let before = emptied::count(&shared).await?;
        let complete = passes(&shared, &mut state, &mut |state| match &mut journal {
            Some(journal) => journal.checkpoint(state, &shared.progress.disk),
            None => Ok(()),
        })
        .await?;
        // A copy that was stopped reports that it is not whole, and does not wait for servers any more.
        let emptied = match complete {
            true => emptied::since(&before, &emptied::count(&shared).await?),
            false => BTreeMap::new(),
        };
        for (command, times) in &emptied {
            shared.progress.notice(format!(
                "{command} ran on the source meanwhile ({times} times): keys of before and after may be \
                    mixed, or missing; copy again"
            ));
        }
        if complete && let Some(journal) = journal.take() {
            journal.finish()?;
        }
        leftovers.join_all().await;
        let evicted = note_evicted(&shared);
        let failures = shared.failures.listed();
        Ok(CopyReport {
            counts: shared.progress.snapshot(),
            duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            passes: state.pass,
            complete,
            resumed,
            evicted,
            emptied,
            failures,
            notices: shared.progress.notices(),
        })
    })
}
