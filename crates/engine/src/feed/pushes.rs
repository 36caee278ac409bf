//! A feed of what a server pushes: invalidations, or keyspace notifications, over RESP3.
//!
//! The pushes of one turn of the server's event loop are written before the replies of that turn are sent,
//! and so a `PING` that is sent after such a reply has arrived is answered behind them: that is the barrier.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval};
use whimbrel_wire::value::Value;

use super::notifications::{Notifications, Question};
use super::progress::{FeedFailure, Shared};
use super::tracking::Tracking;
use crate::error::{Error, Result, ServerError};
use crate::link::Link;

/// Most bytes taken in at once.
const READ_BYTES: usize = 256 << 10;

/// How often the server is asked for a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long a server may give none.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A barrier that a feed was asked for: answered once everything before it is recorded.
pub(super) type Barrier = oneshot::Sender<()>;

/// What the server pushes, and what is known of it.
#[derive(Debug)]
pub(super) enum Pushed {
    Tracking(Tracking),
    Notifications(Box<Notifications>),
}

/// What a reply that is under way is for.
#[derive(Debug)]
enum Waiting {
    /// A sign of life, or a login.
    Sign,
    Barrier(Barrier),
    Question(Question),
}

/// A feed of pushes, attached.
#[derive(Debug)]
pub(super) struct Pushes {
    link: Link,
    pushed: Pushed,
    shared: Arc<Shared>,
    barriers: mpsc::Receiver<Barrier>,
    /// For each command under way.
    waiting: VecDeque<Waiting>,
    heard: Instant,
}

impl Pushes {
    /// A feed of what is pushed on `link`, which has been asked for.
    pub(super) fn new(
        link: Link,
        pushed: Pushed,
        shared: &Arc<Shared>,
        barriers: mpsc::Receiver<Barrier>,
    ) -> Pushes {
        let (shared, waiting) = (shared.clone(), VecDeque::new());
        Pushes { link, pushed, shared, barriers, waiting, heard: Instant::now() }
    }

    /// Follows the pushes until the link breaks: it cannot be resumed.
    pub(super) async fn run(mut self) {
        if let Err(failure) = self.follow().await {
            self.shared.fail(failure);
        }
    }

    async fn follow(&mut self) -> Result<(), FeedFailure> {
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What came along with the last reply of the attachment.
        self.take_in()?;
        loop {
            tokio::select! {
                received = self.link.receive(READ_BYTES) => {
                    received?;
                    self.heard = Instant::now();
                    self.take_in()?;
                }
                Some(barrier) = self.barriers.recv() => self.ping(Waiting::Barrier(barrier)).await?,
                _ = heartbeat.tick() => {
                    if self.heard.elapsed() > SILENCE_MAX {
                        return Err(Error::own("follow the changes", "the server has fallen silent").into());
                    }
                    self.log_in_again().await?;
                    // One at a time is enough.
                    if self.waiting.is_empty() {
                        self.ping(Waiting::Sign).await?;
                    }
                }
            }
        }
    }

    /// Asks what no push reports, and then for a sign of life.
    async fn ping(&mut self, waiting: Waiting) -> Result<()> {
        if let Pushed::Notifications(notifications) = &self.pushed {
            for question in notifications.questions() {
                self.link.push(question.command());
                self.waiting.push_back(Waiting::Question(*question));
            }
        }
        self.waiting.push_back(waiting);
        self.link.push(&[b"PING"]);
        self.link.flush().await
    }

    /// Before the password ends, after which some services close the connection. It is answered as a `PING`
    /// is.
    async fn log_in_again(&mut self) -> Result<()> {
        if self.link.is_login_due() {
            self.link.push_login().await?;
            self.waiting.push_back(Waiting::Sign);
            self.link.flush().await?;
        }
        Ok(())
    }

    /// Reads the frames that have arrived as a whole.
    fn take_in(&mut self) -> Result<(), FeedFailure> {
        let Pushes { link, pushed, shared, waiting, .. } = self;
        let mut answered = Vec::new();
        let mut read = 0;
        let result = shared.touched.record(|set| {
            while let Some(frame) = link.received_frame()? {
                read += frame.len() as u64;
                let value = Value::parse(&frame).map_err(|e| link.malformed(e))?;
                let reply = match (value, &*pushed) {
                    (Value::Push(items), Pushed::Tracking(tracking)) => {
                        tracking.record(&items, set);
                        continue;
                    }
                    (Value::Push(items), Pushed::Notifications(_)) => {
                        Notifications::record(&items, set);
                        continue;
                    }
                    (reply, _) => reply,
                };
                let waiting = waiting.pop_front();
                if let Some(e) = ServerError::of(&reply) {
                    let asked = match &waiting {
                        Some(Waiting::Question(question)) => question.command().join(&b' '),
                        _ => b"PING".to_vec(),
                    };
                    return Err(link.server_error(e, &asked).into());
                }
                match (waiting, &mut *pushed) {
                    (Some(Waiting::Question(question)), Pushed::Notifications(notifications)) => {
                        notifications.answered(question, &reply, set)?;
                    }
                    (Some(Waiting::Barrier(barrier)), _) => answered.push(barrier),
                    _ => {}
                }
            }
            Ok(())
        });
        shared.bytes_read.fetch_add(read, Ordering::Relaxed);
        // Everything in front of the replies is recorded by now.
        for barrier in answered {
            // The caller may have given up.
            let _ = barrier.send(());
        }
        result
    }
}
