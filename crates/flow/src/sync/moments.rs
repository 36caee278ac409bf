//! The moments of a cutover at which [`Hooks`](super::hooks::Hooks) are run. What holds for them is
//! documented there.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::seal::WriterFenceKind;

use super::conditions::{is_wanted, refused};
use super::cutover::before_fence;
use super::hooks::{Moment, Occasion};
use super::options::SyncOptions;
use super::report::{CutoverReport, HookReport};
use super::syncer::Syncer;

/// How often what is touched is transferred while a hook runs.
const ROUND_PAUSE: Duration = Duration::from_millis(100);

impl Syncer {
    /// What a cutover with this fence would run. Without one no client is sent anywhere.
    pub(super) fn planned_hooks(&self, fence: WriterFenceKind) -> Vec<HookReport> {
        let Some(hooks) = &self.options.hooks else { return Vec::new() };
        let moments: &[Moment] =
            if fence == WriterFenceKind::None { &[Moment::Ready] } else { &[Moment::Ready, Moment::Switch] };
        moments.iter().flat_map(|moment| hooks.at(*moment)).collect()
    }

    /// Runs what is to be done before any client is paused.
    ///
    /// # Errors
    /// A refusal if any of it fails, or if the cutover is withdrawn.
    pub(super) async fn be_ready(
        &mut self,
        report: &mut CutoverReport,
        withdrawn: &CancellationToken,
    ) -> Result<()> {
        let cutover = Some(report.clone());
        let occasion = Occasion { moment: Moment::Ready, why: String::new(), cutover, until: None };
        report.hooks = self.meanwhile(occasion, Some(withdrawn)).await?;
        report.hooks.iter().find_map(HookReport::problem).map_or(Ok(()), |what| Err(refused(what)))
    }

    /// Runs what undoes that. The sync follows on, whatever the result.
    pub(super) async fn be_refused(&mut self, error: &Error) {
        let why = error.problem();
        let occasion = Occasion { moment: Moment::Refused, why, cutover: None, until: None };
        match self.meanwhile(occasion, None).await {
            Ok(hooks) => hooks.iter().filter_map(HookReport::problem).for_each(|what| self.notice(&what)),
            Err(error) => self.notice(&error.problem()),
        }
    }

    /// Goes on transferring what is touched until all has been run. With `withdrawn` it is ended once the
    /// cutover is withdrawn.
    async fn meanwhile(
        &mut self,
        occasion: Occasion,
        withdrawn: Option<&CancellationToken>,
    ) -> Result<Vec<HookReport>> {
        let Some(hooks) = &self.options.hooks else { return Ok(Vec::new()) };
        // In a task of its own, which ends with this: a round may take longer than a hook has time.
        let mut running = JoinSet::new();
        running.spawn(hooks.run(occasion));
        loop {
            tokio::select! {
                Some(ran) = running.join_next() => return ran.map_err(|e| Error::own("run a hook", e)),
                () = sleep(ROUND_PAUSE) => {}
            }
            if let Some(withdrawn) = withdrawn {
                is_wanted(withdrawn)?;
                if self.shared.stop.is_cancelled() {
                    return Err(refused("the sync was stopped"));
                }
            }
            // What fails here fails again when the cutover goes on, or the sync.
            if let Err(error) = self.rounds().await {
                tracing::debug!(%error, "a round failed while a hook ran");
            }
            self.save()?;
        }
    }
}

/// Runs what sends clients to the target. To be called when the cutover is written down: see
/// [`hooks`](super::hooks). What fails is part of the report, and nothing is undone: the target has
/// everything, and no client may write to the source. `at` is when the target took over.
pub(super) async fn send_clients(options: &SyncOptions, report: &mut CutoverReport, at: Instant) {
    let Some(hooks) = &options.hooks else { return };
    let until = match report.fence {
        // After that the source takes writes again: clients that are sent away then leave others behind.
        WriterFenceKind::Pause { limit_ms } => Some(at + before_fence(limit_ms)),
        _ => None,
    };
    let cutover = Some(report.clone());
    let ran = hooks.run(Occasion { moment: Moment::Switch, why: String::new(), cutover, until }).await;
    report.hooks.extend(ran);
}
