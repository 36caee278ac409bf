//! Slowing writers down while touched keys move.

use std::pin::pin;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::Error;
use whimbrel_engine::handover::Handover;

use crate::progress::JobProgress;

/// How long one round of catching up lasts at most when writes are slowed.
pub(super) const BRAKED_ROUND: Duration = Duration::from_millis(500);

/// Does `rounds` while `brake` slows writers down, and ends the brake when they are done. The brake ends
/// earlier only if it fails.
///
/// It is not just dropped: the lifting of a pause that is still on its way then could end a later one, which
/// is relied on. A source that does not answer is waited for as long as its link waits.
///
/// # Errors
/// Those of either. What a brake that failed had on its way may still be executed.
pub(super) async fn beside_brake(
    rounds: impl Future<Output = Result<(), Error>>,
    brake: impl Future<Output = Result<(), Error>>,
    enough: &CancellationToken,
) -> Result<(), Error> {
    let mut brake = pin!(brake);
    let done = tokio::select! {
        done = rounds => done,
        braked = &mut brake => return braked,
    };
    enough.cancel();
    let ended = brake.await;
    done.and(ended)
}

/// Pauses writes for a share of the time, until it is `enough`; then they resume.
///
/// # Errors
/// As [`Handover::pause`] and [`Handover::release`].
pub(super) async fn slow_writers(
    handover: &mut Handover,
    percent: u8,
    max_pause_ms: u64,
    progress: &JobProgress,
    enough: &CancellationToken,
) -> Result<(), Error> {
    // Half of the longest pause, so that writers see many short ones and none that is worse than a
    // handover's.
    let pause_ms = (max_pause_ms / 2).max(1);
    let pause = Duration::from_millis(pause_ms);
    let period = Duration::from_millis(pause_ms * 100 / u64::from(percent.clamp(1, 100)));
    while !enough.is_cancelled() {
        handover.pause(pause_ms).await?;
        let slept = enough.run_until_cancelled(tokio::time::sleep(pause)).await;
        // Servers notice the end of a pause every 100 ms only; a pause that overlaps with the next would
        // never end.
        handover.release().await?;
        if slept.is_some() {
            progress.braked_ms.fetch_add(pause_ms, std::sync::atomic::Ordering::Relaxed);
            enough.run_until_cancelled(tokio::time::sleep(period.saturating_sub(pause))).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    fn failure(what: &str) -> Result<(), Error> {
        Err(Error::own("test", what))
    }

    #[tokio::test]
    async fn what_a_brake_has_on_its_way_is_waited_for() {
        let (enough, has_resumed) = (CancellationToken::new(), AtomicBool::new(false));
        let (begin, begun) = oneshot::channel();
        let brake = async {
            begin.send(()).expect("the rounds wait for it");
            enough.cancelled().await;
            // The answer is late.
            tokio::time::sleep(Duration::from_millis(30)).await;
            has_resumed.store(true, Ordering::Relaxed);
            Ok(())
        };
        let rounds = async {
            begun.await.expect("the brake begins");
            Ok(())
        };
        beside_brake(rounds, brake, &enough).await.expect("both are done");
        assert!(has_resumed.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn it_is_waited_for_as_well_where_the_rounds_fail() {
        let (enough, has_resumed) = (CancellationToken::new(), AtomicBool::new(false));
        let brake = async {
            enough.cancelled().await;
            has_resumed.store(true, Ordering::Relaxed);
            failure("the brake")
        };
        let e = beside_brake(async { failure("the rounds") }, brake, &enough).await.expect_err("both failed");
        assert!(e.to_string().contains("the rounds"), "{e}");
        assert!(has_resumed.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn a_brake_that_fails_ends_the_rounds() {
        let enough = CancellationToken::new();
        let failed = beside_brake(std::future::pending(), async { failure("the brake") }, &enough).await;
        let e = failed.expect_err("the brake failed");
        assert!(e.to_string().contains("the brake"), "{e}");
        // They are not done either if it fails on its way out: a pause may be left.
        let brake = async {
            enough.cancelled().await;
            failure("the brake")
        };
        let e = beside_brake(async { Ok(()) }, brake, &enough).await.expect_err("the brake failed");
        assert!(e.to_string().contains("the brake"), "{e}");
    }
}
