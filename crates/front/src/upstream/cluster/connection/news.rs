//! What a connection to a fleet hears of while nothing else happens on it.

use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::pipe::io::{OUT_BYTES_MAX, STALLED};
use crate::upstream::admission::Admission;
use crate::upstream::cluster::nodes::{Cluster, Role};

pub(super) type NextNews = Pin<Box<dyn Future<Output = watch::Receiver<u64>> + Send>>;

/// What a connection has to hear of while nothing else happens on it.
pub(super) enum FleetNews {
    Nothing,
    /// The end of the lease.
    Lapse(Pin<Box<WaitForCancellationFutureOwned>>),
    /// Members that have come or gone.
    Members(NextNews),
}

impl FleetNews {
    pub(super) fn of<A: Admission>(cluster: &Cluster<A>) -> FleetNews {
        match &cluster.role {
            Role::None => FleetNews::Nothing,
            Role::Backend(gate) => FleetNews::Lapse(Box::pin(gate.lapse())),
            Role::Members(gate) => FleetNews::Members(next(gate.news())),
        }
    }
}

/// Notifies when slots are sealed that may have requests under way.
pub(super) struct SealNotice {
    pub(super) seals: NextNews,
    /// Until the next check, whatever is reported: what was let go of may have arrived at the server after
    /// that, and a client may do nothing.
    pub(super) again: Option<Pin<Box<Sleep>>>,
    /// The client keeps such a slot from moving.
    pub(super) stall: Option<Stall>,
    /// How many requests have been answered meanwhile.
    pub(super) answered: u64,
    /// Bytes of the client, and for it, at the end of the last poll.
    pub(super) requests_left: usize,
    pub(super) replies_left: usize,
}

/// A client that does nothing at all is waited for no longer than this.
const IDLE: Duration = Duration::from_secs(2);

/// A client keeps a sealed slot from moving.
#[derive(Debug)]
pub(super) struct Stall {
    /// Since then, though perhaps not all the time.
    since: Instant,
    /// When it has last done something about it.
    pub(super) moved_at: Instant,
    /// It keeps that slot no longer once this many requests have been answered: then it may keep another one.
    pub(super) until_answered: u64,
}

impl Stall {
    pub(super) fn new(now: Instant, until_answered: u64) -> Stall {
        Stall { since: now, moved_at: now, until_answered }
    }

    /// Whether it has been waited for long enough: for a client that does nothing, and for a client that does
    /// little.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.moved_at + IDLE || now >= self.since + STALLED
    }
}

impl SealNotice {
    /// What is on its way to and from the client, as it has left that: it has moved where it is to.
    pub(super) fn see_client(&mut self, requests: usize, replies: usize) {
        let has_moved = match self.replies_left >= OUT_BYTES_MAX {
            true => replies < self.replies_left,
            false => requests > self.requests_left,
        };
        if let Some(stall) = &mut self.stall
            && has_moved
        {
            stall.moved_at = Instant::now();
        }
    }
}

/// The next time that a number changes.
pub(super) fn next(mut news: watch::Receiver<u64>) -> NextNews {
    Box::pin(async move {
        if news.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        news
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(20);

    fn notice(stall: Stall, requests_left: usize, replies_left: usize) -> SealNotice {
        let seals = Box::pin(std::future::pending());
        SealNotice { seals, again: None, stall: Some(stall), answered: 0, requests_left, replies_left }
    }

    /// When a client is given up that does something every so often, as far as its connection sees it.
    fn lasts(pause: Duration) -> Duration {
        let began = Instant::now();
        let mut stall = Stall::new(began, 1);
        let mut now = began;
        while !stall.is_over(now) {
            now += PAUSE;
            if (now - stall.moved_at) >= pause {
                stall.moved_at = now;
            }
        }
        now - began
    }

    #[test]
    fn a_client_is_waited_for_as_long_as_it_does_something_and_not_for_ever() {
        assert_eq!(lasts(Duration::from_secs(60)), IDLE);
        assert_eq!(lasts(Duration::from_secs(1)), STALLED);
    }

    #[test]
    fn requests_of_a_client_that_takes_nothing_in_do_not_count() {
        let past = Instant::now();
        std::thread::sleep(Duration::from_millis(2));
        let moved = |mut notice: SealNotice, requests: usize, replies: usize| {
            notice.see_client(requests, replies);
            notice.stall.is_some_and(|stall| stall.moved_at > past)
        };
        let full = || notice(Stall::new(past, 1), 0, OUT_BYTES_MAX);
        assert!(!moved(full(), 100, OUT_BYTES_MAX), "it only sends");
        assert!(moved(full(), 0, OUT_BYTES_MAX - 1), "it has taken something");
        let half_sent = || notice(Stall::new(past, 1), 0, 0);
        assert!(!moved(half_sent(), 0, 0), "it sends nothing");
        assert!(moved(half_sent(), 1, 0), "it has sent something");
    }
}
