//! How far a sync is: what its journal keeps, and what the sync that leads back begins with.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use whimbrel_engine::error::Result;
use whimbrel_engine::feed::{Feed, History};
use whimbrel_engine::seal::WriterFence;

use super::options::WayBack;
use super::order::FrontSide;
use crate::journal::{DiskFull, Journal, JournalState};

/// Where a later feed of a primary can go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// Which primary. After a failover no feed goes on from there: the new primary may lack what the old one
    /// had acknowledged, and what has been transferred already.
    pub(super) address: String,
    /// The point of its history before which everything has been transferred.
    pub(super) history: History,
    /// How far its history was seen: something of what came in between may have been transferred as well. A
    /// server that does not have all of that any more has forgotten some of it.
    pub(super) seen: History,
}

/// Clients of a front may be sent away: what has to be known to find out whether they were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fronted {
    /// The socket on which the front takes requests.
    pub(super) socket: PathBuf,
    /// Where its clients were before.
    pub(super) before: FrontSide,
    /// The target's positions then, for a sync that leads back.
    pub(super) back: Option<Vec<Position>>,
}

/// How far a sync is: what its journal keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncState {
    /// The address of the source, as it was named.
    #[serde(default)]
    pub(super) source: String,
    /// Of the snapshot.
    pub(super) copy: JournalState,
    /// Every key has been transferred once.
    pub(super) snapshot_done: bool,
    /// The target still has to be searched for keys that the source does not have.
    pub(super) sweep: bool,
    /// Where the feeds can go on.
    pub(super) positions: Vec<Position>,
    /// Which shard of the source owned which slots when nothing was in doubt but what is below: shard id and
    /// slots.
    pub(super) layout: BTreeMap<String, String>,
    /// Slots to go through again, as ranges. Journals have had them under this name.
    #[serde(rename = "doubt")]
    pub(super) suspects: String,
    /// What was done to the source at the cutover.
    pub(super) cut_over: Option<WriterFence>,
    /// The front that may have sent its clients to the target.
    #[serde(default)]
    pub(super) fronted: Option<Fronted>,
    /// What keeps writers away from the target: it was the source before, and this sync leads back to it.
    pub(super) lift: Option<WriterFence>,
    /// A cutover back may have taken that down, or a part of it, and did not come about: it has to be put up
    /// again. While [`cut_over`](SyncState::cut_over) is known this holds of a process that died.
    #[serde(default)]
    pub(super) lifted: bool,
}

impl SyncState {
    /// Of a sync that leads back to the source of another sync, and begins where that one ended.
    pub fn leading_back(back: &Back) -> SyncState {
        SyncState {
            copy: JournalState { pass: 1, ..JournalState::default() },
            snapshot_done: true,
            positions: back.positions.clone(),
            lift: Some(back.fence.clone()),
            ..SyncState::default()
        }
    }
}

/// What a sync needs that leads back to the source of one that was cut over.
#[derive(Debug)]
pub struct Back {
    /// The target's positions at the cutover: what comes after them was written by others.
    pub(super) positions: Vec<Position>,
    pub(super) fence: WriterFence,
    /// Its journal, if it is written down already.
    pub(super) journal: Option<Journal<SyncState>>,
    /// They make the target keep a backlog from there on, until another process follows it.
    pub(super) _feeds: Vec<Feed>,
}

impl Back {
    /// The journal of the sync that leads back, which is begun if it has not been written down yet.
    ///
    /// # Errors
    /// As [`Journal::begin`].
    pub async fn journal(&mut self, place: &WayBack, disk: &DiskFull) -> Result<Journal<SyncState>> {
        match self.journal.take() {
            Some(journal) => Ok(journal),
            None => {
                let (WayBack { folder, name, description }, state) = (place, SyncState::leading_back(self));
                Journal::begin(folder, name, description, state, disk).await
            }
        }
    }
}
