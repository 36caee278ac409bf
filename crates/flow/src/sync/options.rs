//! What a sync and a cutover are asked for.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use whimbrel_engine::feed::FeedOptions;
use whimbrel_engine::seal::WriterFenceKind;

use super::hooks::Hooks;
use super::order::Fronts;
use crate::copy::CopyOptions;

/// What to keep equal, and how.
#[derive(Debug, Clone)]
pub struct SyncOptions {
    /// Which keys, and how they are transferred. [`CopyOptions::mirror`] must be set, and no types and no
    /// limit.
    pub copy: CopyOptions,
    /// How changes are learnt of.
    pub feed: FeedOptions,
    /// Only a replication link will do.
    pub replication_only: bool,
    /// The target held keys before: those that the source does not have are removed after the snapshot.
    pub sweep_first: bool,
    /// Function libraries are copied, and once more at the cutover.
    pub functions: bool,
    /// End as soon as nothing is left to transfer.
    pub once: bool,
    /// All databases were meant: keys in a database that was left out are worth a notice.
    pub all_dbs: bool,
    /// Where a [`FenceNote`](super::FenceNote) is left after a cutover.
    pub fence_file: PathBuf,
    /// Where to write down the sync that leads back, as soon as the target has taken over, if a way back is
    /// asked for.
    pub way_back: Option<WayBack>,
    /// How orders reach fronts.
    pub fronts: Arc<dyn Fronts>,
    /// What is run at moments of a cutover.
    pub hooks: Option<Arc<dyn Hooks>>,
}

/// How much is compared before the writers are fenced off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compare {
    /// Nothing.
    None,
    /// The number of keys that do not expire, in each database.
    Counts,
    /// That, and the whole content of a sample of keys.
    Sample,
    /// The whole content of all keys, and that the target has no others.
    Full,
}

/// How the target is to take over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutoverOptions {
    /// How long writes may be paused, in milliseconds.
    pub max_pause_ms: u64,
    /// How they are kept out afterwards.
    pub fence: WriterFenceKind,
    /// The socket of the front that clients go through, for [`WriterFenceKind::Front`].
    pub front: Option<PathBuf>,
    /// How much is compared before.
    pub compare: Compare,
    /// Go on although keys are known that are not on the target.
    pub accept_failures: bool,
    /// Be able to come back: the target is followed from the very moment of the cutover.
    pub reverse: bool,
    /// Come back: writers are let in again where this sync leads to. Only for one that leads back.
    pub back: bool,
    /// Only find out whether it could be done, and how long writes would be paused.
    pub dry_run: bool,
}

/// Where a sync that leads back is written down, as [`Journal::begin`](crate::journal::Journal::begin) takes
/// it.
#[derive(Debug, Clone)]
pub struct WayBack {
    /// In which folder.
    pub folder: PathBuf,
    /// By which name.
    pub name: String,
    /// What describes it.
    pub description: String,
}
