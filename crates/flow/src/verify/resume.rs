//! What lets an interrupted verification go on.
//!
//! Every now and then no further keys are read until all that were read are decided, those that are looked at
//! again included. Then what was found and how far each shard was read belong together, and are written down
//! together: no key counts twice, and none is left out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::{RwLock, RwLockReadGuard};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::remedy::Remedy;

use super::report::Ledger;
use crate::journal::{DiskFull, Journal, UnitMark};

/// How often to check whether all keys that were read are decided.
const POLL: Duration = Duration::from_millis(10);

/// In the layout of a verification after whose beginning slots have moved. No shard is called so.
const MOVED: &str = "moved";

/// How far a verification is, as its journal holds it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct VerifyState {
    /// Which shard of which side owned which slots when it began.
    layout: BTreeMap<String, String>,
    /// How far each shard and database of each side was read.
    units: BTreeMap<String, UnitMark>,
    /// What was found; `None` before the first time.
    ledger: Option<Ledger>,
}

/// Writes down how far a verification is.
#[derive(Debug)]
pub(super) struct Checkpoints {
    journal: Mutex<Journal<VerifyState>>,
    units: Mutex<BTreeMap<String, UnitMark>>,
    layout: BTreeMap<String, String>,
    /// Held, shared, by tasks that hand a page of keys on, and exclusively by the task that writes the
    /// journal.
    gate: RwLock<()>,
    /// Batches of keys that are not decided.
    open: AtomicU64,
    /// No run can go on from here: nothing more is written down.
    is_given_up: AtomicBool,
}

impl Checkpoints {
    /// Goes on with what the journal holds, or begins. What was found before is the second part.
    ///
    /// # Errors
    /// `Unfit` if slots have moved since it began: how far their keys were read is unknown. `Own` if the
    /// journal cannot be written.
    pub fn new(
        mut journal: Journal<VerifyState>,
        source: &Deployment,
        target: &Deployment,
    ) -> Result<(Checkpoints, Option<Ledger>)> {
        let layout = layout(source, target);
        let VerifyState { layout: before, units, ledger } = journal.state().clone();
        if !before.is_empty() && before != layout {
            let what = "slots have moved to other nodes since the verification began";
            return Err(Error::unfit(source.side(), source.endpoint.address.to_string(), "go on", what)
                .with_remedy(Remedy::BeginAnew));
        }
        if before.is_empty() {
            journal.begin_with(VerifyState { layout: layout.clone(), ..VerifyState::default() })?;
        }
        let (journal, units) = (Mutex::new(journal), Mutex::new(units));
        let (gate, open, is_given_up) = (RwLock::new(()), AtomicU64::new(0), AtomicBool::new(false));
        let checkpoints = Checkpoints { journal, units, layout, gate, open, is_given_up };
        Ok((checkpoints, ledger))
    }

    /// How far a unit was read.
    pub fn mark(&self, unit: &str) -> Option<UnitMark> {
        self.units().get(unit).cloned()
    }

    /// A page is handed on, and then [marked](Checkpoints::set_mark), while this is held.
    pub async fn passing(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().await
    }

    /// All keys of the unit up to there were handed on.
    pub fn set_mark(&self, unit: &str, mark: UnitMark) {
        self.units().insert(unit.to_owned(), mark);
    }

    /// A batch was handed on.
    pub fn opened(&self) {
        self.open.fetch_add(1, Ordering::AcqRel);
    }

    /// All keys of a batch are decided, or counted as looked at again.
    pub fn closed(&self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    /// Slots have moved since it began. No run can go on from here, even if the slots are back by then.
    ///
    /// # Errors
    /// As [`Journal::checkpoint`].
    pub fn give_up(&self, disk: &DiskFull) -> Result<()> {
        if self.is_given_up.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let layout = BTreeMap::from([(MOVED.to_owned(), String::new())]);
        self.journal.lock().checkpoint(&VerifyState { layout, ..VerifyState::default() }, disk)
    }

    /// Writes down how far it is, once nothing is open; `rechecking` are the keys that are looked at again.
    ///
    /// # Errors
    /// As [`Journal::checkpoint`].
    pub async fn save(&self, rechecking: &AtomicU64, ledger: &Mutex<Ledger>, disk: &DiskFull) -> Result<()> {
        if self.is_given_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _nobody_passes = self.gate.write().await;
        while self.open.load(Ordering::Acquire) > 0 || rechecking.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(POLL).await;
        }
        let ledger = ledger.lock().clone();
        let state =
            VerifyState { layout: self.layout.clone(), units: self.units().clone(), ledger: Some(ledger) };
        let mut journal = self.journal.lock();
        // Once more under the mutex: it may have been given up while we waited.
        if self.is_given_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        journal.checkpoint(&state, disk)
    }

    /// The verification is complete: the journal is removed.
    ///
    /// # Errors
    /// `Own` if it cannot be removed.
    pub fn finish(self) -> Result<()> {
        self.journal.into_inner().finish()
    }

    fn units(&self) -> MutexGuard<'_, BTreeMap<String, UnitMark>> {
        self.units.lock()
    }
}

fn layout(source: &Deployment, target: &Deployment) -> BTreeMap<String, String> {
    let of = |deployment: &Deployment| {
        let side = deployment.side();
        let topology = deployment.topology();
        let shards = topology.shards.iter();
        shards.map(|shard| (format!("{side}/{}", shard.id), shard.slots.to_string())).collect::<Vec<_>>()
    };
    of(source).into_iter().chain(of(target)).collect()
}
