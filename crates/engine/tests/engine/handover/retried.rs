//! What comes after a handover, tried again where replicas are late.

use whimbrel_core::slot::SlotSet;
use whimbrel_engine::handover::Handover;

use super::until;

/// As [`Handover::clean_up`]. Replicas of a busy machine may be too late for a command that waits for them:
/// then it is tried once more, and so below.
pub(super) async fn clean_up(handover: &mut Handover, slots: &SlotSet, keys_per_s: Option<u64>) {
    let try_it = async || handover.clean_up(slots, keys_per_s).await.inspect_err(|e| println!("{e}")).is_ok();
    until("cleaned up", try_it).await;
}

pub(super) async fn clear_marks(handover: &mut Handover, slots: &SlotSet) {
    let try_it = async || handover.clear_marks(slots).await.inspect_err(|e| println!("{e}")).is_ok();
    until("cleared", try_it).await;
}

/// How many keys went at last.
pub(super) async fn wipe(handover: &mut Handover, slots: &SlotSet) -> u64 {
    let mut wiped = None;
    let try_it = async || {
        wiped = handover.wipe(slots, None).await.inspect_err(|e| println!("{e}")).ok();
        wiped.is_some()
    };
    until("wiped", try_it).await;
    wiped.expect("it is")
}
