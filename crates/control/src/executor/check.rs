//! What is looked at before a batch is begun, and again before its pause: whether it may be.

use std::time::Duration;

use tokio::time::Instant;
use whimbrel_core::migration::{Detail, Why};
use whimbrel_core::slot::SlotSet;
use whimbrel_flow::slots::has_other_databases;

use super::{Doing, Executor, NOT_AT_ONCE, Trouble, because};
use crate::pause::PauseNeed;
use crate::strangers;

/// How often to check whether the obstacle to a pause has gone.
const CLEAR_POLL: Duration = Duration::from_millis(100);

impl Executor {
    pub(super) fn check<'a>(&'a mut self, slots: &'a SlotSet) -> Doing<'a> {
        Box::pin(async move {
            let former = match (&self.members, &self.between) {
                (Some(members), Some((_, target))) => {
                    members.target.first().filter(|f| *f != target).cloned()
                }
                _ => None,
            };
            if let Some(former) = former
                && self.handover().await?.may_come_back_and_take(&former).await?
            {
                let message = format!(
                    "the target's shard failed over, and its former primary {former} is down with slots \
                     marked as importing: when it comes back it would take them by itself, with old keys; \
                     start again when it is back, or after CLUSTER FORGET"
                );
                return Err(because(Why::Permanent, message));
            }
            let handover = self.handover().await?;
            handover.check_permissions().await?;
            self.wait_for_others().await?;
            let seen = self.handover().await?.inspect(slots).await?;
            if !seen.source.is_primary {
                return Err(because(Why::SourceChanged, "the source is no primary"));
            }
            if !seen.target.is_primary {
                return Err(because(Why::TargetChanged, "the target is no primary"));
            }
            if seen.source.claims.intersection(slots).len() != slots.len() {
                let message = "the source does not own all of the slots any more";
                return Err(because(Why::OwnerChanged, message));
            }
            let open = seen.source.open.union(&seen.target.open);
            if !open.is_empty() {
                let message = format!(
                    "slots {open} are marked as migrating or importing: a migration is running, or one was \
                     left half-done; see `whimbrel repair`"
                );
                return Err(because(Why::Busy, message));
            }
            if seen.target.keys > 0 {
                let message = format!(
                    "the target holds {} keys in slots that are not its own, left over from something; see \
                     `whimbrel repair`",
                    seen.target.keys
                );
                return Err(because(Why::Busy, message));
            }
            let handover = self.handover().await?;
            for address in [handover.source_address().clone(), handover.target_address().clone()] {
                if has_other_databases(&mut self.deployment.open(&address, 0).await?).await? {
                    let message = format!(
                        "{address} holds keys in another database than 0, which this method does not move: \
                         only the servers' own migration does"
                    );
                    return Err(because(Why::Permanent, message));
                }
            }
            let (verify, atomic, longest_ms) =
                (self.rules.verify, self.rules.atomic, self.rules.max_pause_ms);
            let handover = self.handover().await?;
            if atomic && handover.should_split(slots).await? {
                return Err(because(Why::Permanent, NOT_AT_ONCE));
            }
            let need =
                PauseNeed::measure_for(handover, slots, seen.source.keys, verify, atomic, longest_ms).await?;
            let need =
                need.with_writes(self.write_took, longest_ms).having_taken(self.sealing_took_ms, longest_ms);
            self.need = need;
            self.progress.rates.needs_pause(need.least_ms);
            // Written down with the outcome of this, before anything is switched off.
            self.handover().await?.find_shelter(slots).await?;
            if !self.begun || self.gives_way {
                self.handover().await?.begin().await?;
                (self.begun, self.gives_way) = (true, false);
                self.give_way_to_begun().await?;
            }
            let (source, target) = (seen.source.process, seen.target.process);
            self.staged_at = Some(target.clone());
            self.members = Some(self.handover().await?.members().clone());
            Ok(Detail::Checked { source, target, pause_ms: need.least_ms })
        })
    }

    /// No other job may be at work on the two nodes when a batch is begun. Meanwhile this job goes back to
    /// checking whether it may begin: a job that has begun does not wait for it.
    ///
    /// # Errors
    /// `Busy` if another job is, for longer than this job may stand still.
    async fn wait_for_others(&mut self) -> Result<(), Trouble> {
        let (began, patience) = (Instant::now(), Duration::from_millis(self.options.stall_ms));
        loop {
            let others = self.handover().await?.other_jobs().await?;
            let what = if others.is_empty() {
                let natives = self.handover().await?.native_migrations().await?;
                let listed = natives.join(", ");
                let what = format!("a migration of the servers' own is running on these nodes: {listed}");
                (!natives.is_empty()).then_some(what)
            } else {
                let jobs = strangers::all_shown(&others);
                Some(format!("another whimbrel is moving slots of these nodes: {jobs}"))
            };
            self.progress.waits(what.as_deref());
            let Some(what) = what else { return Ok(()) };
            if began.elapsed() >= patience {
                self.progress.waits(None);
                return Err(because(Why::Busy, strangers::waited(&what, patience)));
            }
            self.gives_way = true;
            self.forget_links();
            let pause = tokio::time::sleep(strangers::give_way());
            if self.stop.run_until_cancelled(pause).await.is_none() {
                self.progress.waits(None);
                return Err(because(Why::Interrupted, "cancelled"));
            }
        }
    }

    /// Another one may have begun since we looked, before it saw us: a connection that was lost in between
    /// has a later number than it had. Nothing was changed yet, so both can go back and look again, not at
    /// once.
    ///
    /// # Errors
    /// `Transient` if there is one.
    async fn give_way_to_begun(&mut self) -> Result<(), Trouble> {
        let others = self.handover().await?.other_jobs().await?;
        if others.is_empty() {
            return Ok(());
        }
        self.gives_way = true;
        self.forget_links();
        self.stop.run_until_cancelled(tokio::time::sleep(strangers::give_way())).await;
        let jobs = strangers::all_shown(&others);
        Err(because(Why::Transient, format!("another whimbrel began at the same moment: {jobs}")))
    }

    /// An obstacle to a pause that goes away by itself and may have come since the check: first what it is,
    /// then why the pause is given up if it lasts too long.
    ///
    /// A migration of the servers' own does not touch our slots, since those are marked; but it pauses writes
    /// and changes epochs. A replica of the target that gets all keys anew lacks those that were copied: if
    /// it were promoted after the handover, they would be lost, as the source has removed its own by then.
    async fn in_the_way(&mut self) -> Result<Option<(String, Why)>, Trouble> {
        let handover = self.handover().await?;
        let natives = handover.native_migrations().await?.join(", ");
        if !natives.is_empty() {
            let what = format!("a migration of the servers' own is running on these nodes: {natives}");
            return Ok(Some((what, Why::Busy)));
        }
        let replica = handover.replica_in_full_sync().await?;
        Ok(replica.map(|at| (format!("replica {at} of the target gets all keys anew"), Why::TooSlow)))
    }

    /// Waits until nothing is in the way of a pause.
    ///
    /// # Errors
    /// `TooSlow` if something was waited for: what was written meanwhile is to be caught up with first.
    /// `Busy` or `TooSlow` if it does not go away.
    pub(super) async fn wait_until_clear(&mut self) -> Result<(), Trouble> {
        let (began, patience) = (Instant::now(), Duration::from_millis(self.options.stall_ms));
        let mut waited_for = None;
        while let Some((what, why)) = self.in_the_way().await? {
            if began.elapsed() > patience {
                self.progress.waits(None);
                return Err(because(why, strangers::waited(&what, patience)));
            }
            self.progress.waits(Some(&what));
            self.feed()?;
            if waited_for.as_ref() != Some(&what) {
                tracing::info!(what, "the pause waits");
            }
            waited_for = Some(what);
            let pause = tokio::time::sleep(CLEAR_POLL);
            if self.stop.run_until_cancelled(pause).await.is_none() {
                self.progress.waits(None);
                return Err(because(Why::Interrupted, "cancelled"));
            }
        }
        self.progress.waits(None);
        match waited_for {
            None => Ok(()),
            Some(what) => Err(because(Why::TooSlow, format!("waited first: {what}"))),
        }
    }
}
