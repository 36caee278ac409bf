//! A feed of invalidations, as client-side caching sends them.
//!
//! `CLIENT TRACKING ON BCAST` over RESP3 pushes the name of every key that changes, and a null where a
//! database was emptied. Names come without their database. The pushes of one turn of the server's event loop
//! are written before the replies of that turn are sent, and so a `PING` that is sent after such a reply has
//! arrived is answered behind them: that is the barrier.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval};
use whimbrel_wire::value::Value;

use super::connector::Connector;
use super::progress::{FeedFailure, Shared};
use super::stream::starting_db;
use super::touched::TouchedSet;
use crate::deployment::Deployment;
use crate::error::{Error, Result, ServerError};
use crate::link::Link;

/// Most bytes taken in at once.
const READ_BYTES: usize = 256 << 10;

/// How often the server is asked for a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long a server may give none.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A barrier that a tracking feed was asked for: answered once everything before it is recorded.
pub(super) type Barrier = oneshot::Sender<()>;

/// A tracking feed, attached.
#[derive(Debug)]
pub(super) struct Tracking {
    link: Link,
    shared: Arc<Shared>,
    /// The database of all keys, where there is only one.
    db: Option<u32>,
    barriers: mpsc::Receiver<Barrier>,
    /// For each `PING` under way who waits for it; `None` for a heartbeat.
    waiting: VecDeque<Option<Barrier>>,
    heard: Instant,
}

pub(super) async fn attach(
    deployment: &Deployment,
    place: &Connector,
    shared: &Arc<Shared>,
    barriers: mpsc::Receiver<Barrier>,
) -> Result<Tracking> {
    let mut link = place.open().await?;
    let db = starting_db(deployment, &mut link).await?;
    for command in [&[b"HELLO".as_slice(), b"3"][..], &[b"CLIENT", b"TRACKING", b"ON", b"BCAST"]] {
        let reply = link.ask(command).await?;
        if let Some(e) = ServerError::of(&reply) {
            let what = format!("replication is not to be had, and {} is refused: {}", name(command), e.text);
            let (side, at) = (deployment.side(), place.address.to_string());
            return Err(Error::unfit(side, at, "attach a feed of changes", what).with_remedy(
                "give this user the permission for PSYNC and REPLCONF, or for CLIENT TRACKING",
            ));
        }
    }
    Ok(Tracking {
        link,
        shared: shared.clone(),
        db,
        barriers,
        waiting: VecDeque::new(),
        heard: Instant::now(),
    })
}

fn name(command: &[&[u8]]) -> String {
    String::from_utf8_lossy(&command.join(&b' ')).into_owned()
}

impl Tracking {
    /// Follows the pushes until the link breaks: it cannot be resumed.
    pub(super) async fn run(mut self) {
        if let Err(e) = self.follow().await {
            self.shared.fail(FeedFailure::Lost { cause: e.to_string() });
        }
    }

    async fn follow(&mut self) -> Result<()> {
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
                Some(barrier) = self.barriers.recv() => self.ping(Some(barrier)).await?,
                _ = heartbeat.tick() => {
                    if self.heard.elapsed() > SILENCE_MAX {
                        return Err(Error::own("follow the changes", "the server has fallen silent"));
                    }
                    self.log_in_again().await?;
                    // One at a time is enough.
                    if self.waiting.is_empty() {
                        self.ping(None).await?;
                    }
                }
            }
        }
    }

    async fn ping(&mut self, barrier: Option<Barrier>) -> Result<()> {
        self.waiting.push_back(barrier);
        self.link.push(&[b"PING"]);
        self.link.flush().await
    }

    /// Before the password ends, after which some services close the connection. It is answered as a `PING`
    /// is.
    async fn log_in_again(&mut self) -> Result<()> {
        if self.link.is_login_due() {
            self.link.push_login().await?;
            self.waiting.push_back(None);
            self.link.flush().await?;
        }
        Ok(())
    }

    /// Reads the frames that have arrived as a whole.
    fn take_in(&mut self) -> Result<()> {
        let Tracking { link, shared, db, waiting, .. } = self;
        let mut answered = Vec::new();
        let mut read = 0;
        let result = shared.touched.record(|set| {
            while let Some(frame) = link.received_frame()? {
                read += frame.len() as u64;
                let value = Value::parse(&frame).map_err(|e| link.malformed(e))?;
                match value {
                    Value::Push(items) => invalidate(&items, *db, set),
                    reply => match ServerError::of(&reply) {
                        Some(e) => return Err(link.server_error(e, b"PING")),
                        None => answered.push(waiting.pop_front().flatten()),
                    },
                }
            }
            Ok(())
        });
        shared.bytes_read.fetch_add(read, Ordering::Relaxed);
        // Everything in front of the replies is recorded by now.
        for barrier in answered.into_iter().flatten() {
            // The one that asked may have given up.
            let _ = barrier.send(());
        }
        result
    }
}

fn invalidate(push: &[Value], db: Option<u32>, set: &mut TouchedSet) {
    let [kind, keys] = push else { return };
    if kind.as_str() != Some("invalidate") {
        return;
    }
    match keys.as_items() {
        Some(keys) => keys.iter().filter_map(Value::as_bytes).for_each(|key| set.whole(db, key)),
        None => set.flush(),
    }
}
