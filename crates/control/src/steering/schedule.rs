//! A scheduled cutover.
//!
//! It is written down in `jobs/ID.schedule` before the order is answered, so a sync that goes on after its
//! process has died goes on with it. It is gone when the cutover has come about, was taken back, or its time
//! has passed.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use whimbrel_core::schedule::Due;
use whimbrel_core::units::format_time;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::seal::WriterFenceKind;
use whimbrel_flow::sync::{CutoverOptions, SyncPhase};

use super::protocol::{Refusal, Scheduled, Standing, Why};
use crate::clock::now_s;
use crate::store::{Status, Store, What};

/// How often to check whether it is due.
const POLL_PERIOD: Duration = Duration::from_secs(1);

/// Why another pause is not allowed.
pub(super) const NO_ORDER: &str = "max-pause can be changed of a move of slots by whimbrel's own method, \
     and of a scheduled cutover; nothing was changed";

/// How long after a cutover that did not come about it is tried again.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// What was scheduled.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    order: Mutex<Order>,
    /// Held from the look at the order until another one is written down and stands: of two that change it at
    /// once the later one goes by what the earlier one has left.
    changing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Order {
    scheduled: Option<Scheduled>,
    /// When it was tried last.
    tried: Option<Instant>,
    /// Takes back a cutover that is being tried.
    withdrawn: CancellationToken,
}

impl Schedule {
    /// What was ordered, if anything.
    pub(super) fn get(&self) -> Option<Scheduled> {
        self.order.lock().scheduled.clone()
    }

    fn set(&self, scheduled: Option<Scheduled>) {
        let mut order = self.order.lock();
        order.withdrawn.cancel();
        *order = Order { scheduled, ..Order::default() };
    }

    /// Goes on with what an earlier run of the job was ordered, or begins without it.
    pub(super) fn begin(&self, store: &Store, id: &str, is_resumed: bool) {
        let known = match is_resumed {
            true => store.schedule(id),
            false => store.keep_schedule(id, None::<&Scheduled>).map(|()| None),
        };
        self.set(known.unwrap_or_else(|error| {
            let why = format!("the order that was written down cannot be read: {error}");
            store.note(id, What::NotCutOver { why });
            None
        }));
    }

    /// Takes an order, or takes it back, once that is written down. Says whether one stood before.
    ///
    /// # Errors
    /// If it cannot be ordered, if its time has passed, or if it would hand nothing over.
    pub(super) fn order(
        &self,
        store: &Store,
        id: &str,
        scheduled: Option<Scheduled>,
    ) -> std::result::Result<bool, Refusal> {
        let _changing = self.changing.lock();
        let refused = |text: String| Err(Refusal { why: Why::Refused, text });
        let now_s = now_s();
        if let Some(Scheduled { when, options }) = &scheduled {
            if when.due(now_s, None, 0) == Due::TooLate {
                return refused(format!("its time has passed: it is {}", format_time(now_s)));
            }
            if options.fence == WriterFenceKind::None {
                let text = "without a fence nothing is handed over, so there is nothing to schedule";
                return refused(text.to_owned());
            }
        }
        keep(store, id, scheduled.as_ref())?;
        let stood = self.get().is_some();
        if stood || scheduled.is_some() {
            store.note(id, What::Scheduled { when: scheduled.as_ref().map(Scheduled::in_words) });
        }
        self.set(scheduled);
        Ok(stood)
    }

    /// Allows another pause than was ordered, once that is written down. A cutover that is being tried goes
    /// on as it was begun; a cutover that waits to be tried again does not wait longer.
    ///
    /// # Errors
    /// If nothing is ordered, or it cannot be written down.
    pub(super) fn allow_pause(
        &self,
        store: &Store,
        id: &str,
        max_pause_ms: u64,
    ) -> std::result::Result<(), Refusal> {
        let _changing = self.changing.lock();
        let Some(mut scheduled) = self.get() else { return Err(Refusal::unsupported(NO_ORDER)) };
        scheduled.options.max_pause_ms = max_pause_ms;
        keep(store, id, Some(&scheduled))?;
        store.note(id, What::Scheduled { when: Some(scheduled.in_words()) });
        let mut order = self.order.lock();
        (order.scheduled, order.tried) = (Some(scheduled), None);
        Ok(())
    }

    /// Takes back what is ordered, if that is still `expired`.
    fn expire(&self, store: &Store, id: &str, expired: &Scheduled) -> std::result::Result<(), Refusal> {
        let _changing = self.changing.lock();
        if self.get().as_ref() != Some(expired) {
            return Ok(());
        }
        keep(store, id, None)?;
        store.note(id, What::Scheduled { when: None });
        self.set(None);
        Ok(())
    }

    /// Has a job `cut_over` when that is due by how it `stands`. Its result is an event of the job.
    pub(super) async fn carry_out(
        &self,
        (store, id): (&Store, &str),
        stands: impl AsyncFn() -> Standing,
        cut_over: impl AsyncFn(CutoverOptions, CancellationToken) -> std::result::Result<Value, Refusal>,
    ) -> Infallible {
        let mut refused = String::new();
        loop {
            tokio::time::sleep(POLL_PERIOD).await;
            let Some(scheduled) = self.get() else {
                refused.clear();
                continue;
            };
            let Scheduled { when, options } = scheduled.clone();
            let tried = self.order.lock().tried;
            let standing = stands().await;
            let pause_ms = standing.details["status"]["pause_estimate_ms"].as_u64();
            match when.due(now_s(), pause_ms, options.max_pause_ms) {
                Due::At(_) | Due::OnceReady => continue,
                // A sync that was resumed just now has to see what was written meanwhile, which may take
                // long.
                Due::Now if standing.job.phase != SyncPhase::Following.to_string() => continue,
                Due::Now if tried.is_some_and(|tried| tried.elapsed() < TRIED_AGAIN_AFTER) => continue,
                Due::Now => {}
                Due::TooLate => {
                    let why = "its time has passed by more than an hour".to_owned();
                    store.note(id, What::NotCutOver { why });
                    if let Err(refusal) = self.expire(store, id, &scheduled) {
                        tracing::warn!(
                            why = refusal.text,
                            "a cutover whose time has passed stays written down"
                        );
                    }
                    continue;
                }
            }
            let withdrawn = {
                let mut order = self.order.lock();
                order.tried = Some(Instant::now());
                order.withdrawn.clone()
            };
            match cut_over(options, withdrawn).await {
                // Once is enough: other events would be forgotten over it.
                Err(Refusal { text, .. }) if text != refused => {
                    refused.clone_from(&text);
                    store.note(id, What::NotCutOver { why: text });
                }
                _ => {}
            }
        }
    }
}

/// Writes an order down, or that there is none.
fn keep(store: &Store, id: &str, scheduled: Option<&Scheduled>) -> std::result::Result<(), Refusal> {
    store.keep_schedule(id, scheduled).map_err(|error| Refusal {
        why: Why::Internal,
        text: format!("the order cannot be written down: {error}"),
    })
}

/// Takes back what was ordered of a sync that no process runs. Says whether anything was.
///
/// # Errors
/// If it cannot be removed.
pub(crate) fn take_back(store: &Store, status: &Status) -> Result<bool> {
    let stood = store.schedule::<Scheduled>(&status.id).is_ok_and(|known| known.is_some());
    let kept = store.keep_schedule(&status.id, None::<&Scheduled>);
    kept.map_err(|e| Error::own(format!("take back the cutover of {}", status.id), e))?;
    if stood {
        store.note(&status.id, What::Scheduled { when: None });
        store.publish(&Status { scheduled: None, ..status.clone() });
    }
    Ok(stood)
}
