//! How jobs are made: by which means, and how the slots of a move are divided into batches.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use whimbrel_core::migration::Rules;
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::{BatchLimits, Move, batches};
use whimbrel_core::slot::{Slot, SlotRange, SlotSet};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::handover::{Handover, HandoverOptions, SlotFenceKind};
use whimbrel_engine::native::NativeKind;
use whimbrel_engine::remedy::Remedy;

use crate::executor::NOT_AT_ONCE;
use crate::naming::{JobName, process_name};
use crate::options::TransferOptions;
use crate::pause::{self, PauseNeed};

/// How long the servers' own migration may not move if the user does not say, in milliseconds.
pub const NATIVE_STALL_MS: u64 = 30_000;

/// Pairs of nodes that are connected to at the same time.
const OPENED_AT_ONCE: usize = 8;

/// How slots move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// By whimbrel: feed, snapshot, catch-up, fence, takeover.
    External,
    /// By the servers' own atomic migration.
    Native(Native),
    /// By `SETSLOT` and `MIGRATE`.
    Legacy,
}

/// Which of the servers' own migrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Native {
    /// `CLUSTER MIGRATESLOTS`.
    Valkey9,
    /// `CLUSTER MIGRATION IMPORT`.
    Redis84,
}

impl Native {
    pub(super) fn kind(self) -> NativeKind {
        match self {
            Native::Valkey9 => NativeKind::Valkey9,
            Native::Redis84 => NativeKind::Redis84,
        }
    }
}

impl From<NativeKind> for Native {
    fn from(kind: NativeKind) -> Native {
        match kind {
            NativeKind::Valkey9 => Native::Valkey9,
            NativeKind::Redis84 => Native::Redis84,
        }
    }
}

impl Method {
    /// Its name in flags, reports and journals.
    pub fn name(self) -> &'static str {
        match self {
            Method::External => "external",
            Method::Native(_) => "native",
            Method::Legacy => "legacy",
        }
    }
}

/// How jobs are made.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How slots move.
    pub method: Method,
    /// What external jobs may do, except the longest pause.
    pub rules: Rules,
    /// How long they may pause writes at once, in milliseconds; what is usual, or what round trips need, if
    /// it is `None`.
    pub max_pause_ms: Option<u64>,
    /// How external jobs move keys.
    pub transfer: TransferOptions,
    /// How many keys their batches have at most; what suits the source if it is `None`.
    pub batch_keys: Option<u64>,
    /// How long the servers' own migration may not move before whimbrel's own method takes its place, in
    /// milliseconds. `None`: nothing takes its place.
    pub native_stall_ms: Option<u64>,
    /// What their user calls the jobs: the second one `NAME-2`, and so on.
    pub name: Option<JobName>,
}

/// How the slots of one move are handed over.
#[derive(Debug, Clone)]
pub struct HandoverPlan {
    /// How writes are fenced off.
    pub fence: SlotFenceKind,
    /// While a child of the source saves, they are fenced off by a bare fence. See
    /// [`Handover::minds_children`].
    pub minds_children: bool,
    /// Batches, in their order: one if all slots go at once.
    pub parts: Vec<SlotSet>,
    /// What a pause needs.
    pub need: PauseNeed,
    /// How long writes may be paused at once, in milliseconds.
    pub max_pause_ms: u64,
}

/// Finds out whether the slots of one move may go the classic way.
///
/// # Errors
/// As [`Handover::open`] and [`Handover::check_legacy_permissions`].
pub async fn check_legacy(deployment: &Deployment, planned: &Move) -> Result<()> {
    handover_of(deployment, planned).await?.check_legacy_permissions().await
}

/// The handover of a move that has not begun.
async fn handover_of(deployment: &Deployment, planned: &Move) -> Result<Handover> {
    let options = HandoverOptions { process: process_name().to_owned(), begun: false, ..Default::default() };
    let (source, target) = (planned.source.clone(), planned.target.clone());
    Handover::open_with(deployment, source, target, options).await
}

/// How the slots of each move are divided into batches. Pairs of nodes are connected to and asked for
/// permissions at the same time. Their round trips are measured one after another, so that none is measured
/// while we are busy.
///
/// # Errors
/// As [`divide_into_batches`]: the error of the first move that has one.
pub async fn plan_handovers(
    deployment: &Deployment,
    moves: &[Move],
    settings: &Settings,
    keys_of: impl Fn(&NodeId, Slot) -> u64 + Copy,
) -> Result<Vec<HandoverPlan>> {
    let opening: Vec<_> = moves.iter().map(|planned| checked_handover(deployment, planned)).collect();
    let mut opened = stream::iter(opening).buffered(OPENED_AT_ONCE);
    let mut plans = Vec::with_capacity(moves.len());
    for planned in moves {
        // The others go no further until this is asked for the next one.
        let Some(handover) = opened.try_next().await? else { break };
        plans.push(divide(handover, planned, settings, |slot| keys_of(&planned.source, slot)).await?);
    }
    Ok(plans)
}

/// The handover of a move that has not begun, and that is allowed.
async fn checked_handover(deployment: &Deployment, planned: &Move) -> Result<Handover> {
    let mut handover = handover_of(deployment, planned).await?;
    handover.check_permissions().await?;
    Ok(handover)
}

/// How the slots of one move are divided into batches, and what pause that needs.
///
/// # Errors
/// `Unfit` if all slots are to go at once and cannot, and if the longest pause is too short for any handover.
/// As [`Handover::open`].
pub(super) async fn divide_into_batches(
    deployment: &Deployment,
    planned: &Move,
    settings: &Settings,
    keys_of: impl Fn(Slot) -> u64,
) -> Result<HandoverPlan> {
    divide(checked_handover(deployment, planned).await?, planned, settings, keys_of).await
}

async fn divide(
    mut handover: Handover,
    planned: &Move,
    settings: &Settings,
    keys_of: impl Fn(Slot) -> u64,
) -> Result<HandoverPlan> {
    let fence = handover.fence_kind();
    let Rules { atomic, verify, .. } = settings.rules;
    let unfit = |handover: &Handover, what: String, remedy: Remedy| {
        let at = handover.source_address().to_string();
        Error::unfit(Side::Source, at, "plan the handover", what).with_remedy(remedy)
    };
    let keys_max = settings.batch_keys.unwrap_or(fence.batch_keys_max()).max(1);
    let limits = BatchLimits { keys_max, slots_max: handover.batch_slots_max() };
    let mut parts = batches(&planned.slots, &keys_of, limits);
    if atomic && !planned.slots.is_empty() {
        parts = vec![planned.slots.clone()];
    }
    if let [only] = &parts[..]
        && handover.should_split(only).await?
        && let Some(last) = only.iter().last()
    {
        if atomic {
            let remedy = "give the target a slot first, or move the slots in batches";
            return Err(unfit(&handover, NOT_AT_ONCE.to_owned(), Remedy::Words(remedy.into())));
        }
        let last = SlotSet::from_ranges(SlotRange::new(last, last));
        parts = vec![only.difference(&last), last];
    }
    let largest = parts.iter().max_by_key(|part| part.len()).cloned().unwrap_or_default();
    let keys = largest.iter().map(&keys_of).sum();
    let longest_ms = settings.max_pause_ms.unwrap_or(pause::USUAL_MS);
    let need = PauseNeed::measure_for(&mut handover, &largest, keys, verify, atomic, longest_ms).await?;
    let max_pause_ms = need.longest_ms(settings.max_pause_ms);
    if let Some((what, remedy)) = need.too_long_for(max_pause_ms) {
        return Err(unfit(&handover, what, remedy));
    }
    Ok(HandoverPlan { fence, minds_children: handover.minds_children(), parts, need, max_pause_ms })
}
