//! Connections to the server that several clients share.
//!
//! Every client has a connection of its own. What needs nothing of that, a read or write of keys by a client without a transaction, a watch or another
//! database, may go over a trunk instead: what many clients send goes out in one write and comes back in one read, which spares the front
//! and the server most of their system calls.
//!
//! ```text
//! session ─ line ─▶ ┐                       ┌─▶ ear ─ session
//! session ─ line ─▶ ┴ to ─▶ server ─▶ from ─┴─▶ ear ─ session
//! ```
//!
//! All clients of a trunk are the same user with the same protocol, and each has been let in by the server on its own connection before: a trunk
//! that was opened when the server asked for no password admits nobody later.
//!
//! **Order.** A client has lines to one trunk at a time, and replies come in the order of requests.
//!
//! **Bounds.** [`TO_BYTES_MAX`] wait to be sent, and what one read of each client adds. A client that does not take in its replies has
//! [`EAR_BYTES_MAX`] and two reads of them held; after that the trunk waits for him, for [`STALL`] in all, and then lets go of him. There are at
//! most [`IDENTITIES_MAX`] times as many trunks as were asked for.
//!
//! **Ends.** A trunk that breaks takes with it the clients to whom something is due, as their own connections would. Nothing is sent twice.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, Sleep, sleep};
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Io;
use whimbrel_wire::boundary::{Boundary, Passed};

use crate::command::keys::CommandTable;
use crate::pipe::io::{Ended, read, write};
use crate::upstream::Place;
use crate::upstream::identity::Identity;

/// Who has so much to send that nobody has taken yet takes no more requests.
const TO_BYTES_MAX: usize = 1 << 20;

/// Replies that a client has not taken.
const EAR_BYTES_MAX: usize = 1 << 20;

/// How long in all a client may keep others waiting with replies that it does not take.
const STALL: Duration = Duration::from_secs(1);

/// Users and protocols that share among themselves. Clients of further ones use their own connections.
const IDENTITIES_MAX: usize = 64;

/// No command that is shared has a longer name.
const NAME_BYTES_MAX: usize = 32;

/// All trunks of a front.
#[derive(Debug)]
pub(crate) struct Trunks {
    place: Place,
    /// So many for clients of one identity.
    each: usize,
    /// Commands that may be shared, in upper case.
    names: HashSet<Vec<u8>>,
    next: AtomicUsize,
    open: Mutex<HashMap<Identity, Vec<Weak<Trunk>>>>,
    tasks: Mutex<JoinSet<()>>,
}

/// A connection that is shared. It ends when nobody has a line to it any more.
#[derive(Debug)]
struct Trunk(Arc<Mutex<Queue>>);

/// What has not been handed to the task of a trunk yet.
#[derive(Debug, Default)]
struct Queue {
    to: BytesMut,
    /// Whose requests those are, and how many in a row.
    asking: Vec<(Arc<Ear>, usize)>,
    /// The task that waits for more.
    task: Option<Waker>,
    /// Clients that wait for room.
    crowd: Vec<Waker>,
    /// Nobody has a line any more.
    is_left: bool,
    /// The task has ended.
    is_closed: bool,
}

/// Where replies arrive for one client.
#[derive(Debug, Default)]
struct Ear(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    from: BytesMut,
    session: Option<Waker>,
    /// The trunk, which waits until there is room.
    trunk: Option<Waker>,
    /// How long it has waited for this client.
    kept_waiting: Duration,
    /// Nothing more will come, or nobody listens.
    is_lost: bool,
}

/// A client's way to a trunk.
#[derive(Debug)]
pub(crate) struct Line {
    trunk: Arc<Trunk>,
    ear: Arc<Ear>,
    identity: Identity,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Trunks {
    /// `each` for clients of one identity, at least one. The server is asked which commands read or write keys and do nothing else.
    ///
    /// # Errors
    /// As [`CommandTable::ask`].
    pub(crate) async fn new(place: Place, each: usize) -> Result<Arc<Trunks>> {
        let table = CommandTable::ask(&mut place.link().await?).await?;
        let names = table.plain_names().map(|name| name.to_ascii_uppercase());
        Ok(Arc::new(Trunks {
            place,
            each: each.max(1),
            names: names.filter(|name| name.len() <= NAME_BYTES_MAX).collect(),
            next: AtomicUsize::new(0),
            open: Mutex::default(),
            tasks: Mutex::default(),
        }))
    }

    /// Whether a command reads or writes keys and means nothing to the connection.
    pub(crate) fn takes(&self, name: &[u8]) -> bool {
        let mut upper = [0; NAME_BYTES_MAX];
        let Some(upper) = upper.get_mut(..name.len()) else { return false };
        upper.copy_from_slice(name);
        upper.make_ascii_uppercase();
        self.names.contains(&*upper)
    }

    /// A line for a client; `None` where there are too many identities.
    pub(crate) fn line(self: &Arc<Trunks>, identity: &Identity) -> Option<Line> {
        let identity = identity.unnamed();
        let mut open = lock(&self.open);
        open.retain(|_, trunks| trunks.iter().any(|trunk| trunk.strong_count() > 0));
        if open.len() >= IDENTITIES_MAX && !open.contains_key(&identity) {
            return None;
        }
        let trunks =
            open.entry(identity.clone()).or_insert_with(|| (0..self.each).map(|_| Weak::new()).collect());
        let place = &mut trunks[self.next.fetch_add(1, Ordering::Relaxed) % self.each];
        let trunk = place.upgrade().filter(|trunk| !lock(&trunk.0).is_closed).unwrap_or_else(|| {
            let queue = Arc::new(Mutex::new(Queue::default()));
            let mut tasks = lock(&self.tasks);
            while tasks.try_join_next().is_some() {}
            tasks.spawn(Task::new(queue.clone()).run(self.place.clone(), identity.clone()));
            Arc::new(Trunk(queue))
        });
        *place = Arc::downgrade(&trunk);
        Some(Line { trunk, ear: Arc::default(), identity })
    }

    /// Ends all trunks. When it returns nothing is sent on them any more.
    pub(crate) async fn close(&self) {
        lock(&self.open).clear();
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        tasks.shutdown().await;
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        let mut queue = lock(&self.0);
        queue.is_left = true;
        if let Some(task) = queue.task.take() {
            task.wake();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut heard = lock(&self.ear.0);
        (heard.is_lost, heard.from) = (true, BytesMut::new());
        if let Some(trunk) = heard.trunk.take() {
            trunk.wake();
        }
    }
}

impl Line {
    /// Whether requests of this client can be sent. Where the trunk has ended, what was sent is lost.
    pub(crate) fn is_open_for(&self, identity: &Identity) -> bool {
        self.identity.is_same_user(identity) && !lock(&self.trunk.0).is_closed
    }

    /// Hands over `count` requests, if there is room; true where that was so.
    ///
    /// # Errors
    /// [`Ended`] where the trunk has ended.
    pub(crate) fn send(
        &self,
        cx: &mut Context<'_>,
        requests: &mut BytesMut,
        count: usize,
    ) -> std::result::Result<bool, Ended> {
        let mut queue = lock(&self.trunk.0);
        if queue.is_closed {
            return Err(Ended);
        }
        if queue.to.len() >= TO_BYTES_MAX {
            queue.crowd.push(cx.waker().clone());
            return Ok(false);
        }
        queue.to.extend_from_slice(requests);
        requests.clear();
        queue.asking.push((self.ear.clone(), count));
        let task = queue.task.take();
        drop(queue);
        if let Some(task) = task {
            task.wake();
        }
        Ok(true)
    }

    /// Takes what has arrived, as from a connection: nothing at the end.
    pub(crate) fn take(&self, cx: &mut Context<'_>, into: &mut BytesMut) -> Poll<usize> {
        let mut heard = lock(&self.ear.0);
        if heard.from.is_empty() {
            if heard.is_lost {
                return Poll::Ready(0);
            }
            if heard.session.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
                heard.session = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let bytes = heard.from.len();
        if into.is_empty() {
            *into = std::mem::take(&mut heard.from);
        } else {
            into.extend_from_slice(&heard.from);
            heard.from.clear();
        }
        let trunk = heard.trunk.take();
        drop(heard);
        if let Some(trunk) = trunk {
            trunk.wake();
        }
        Poll::Ready(bytes)
    }
}

impl Ear {
    /// Hands over replies, or a piece of one. Where the client has too much of them, how long it has kept others waiting before.
    fn hear(&self, bytes: &[u8]) -> Option<Duration> {
        let mut heard = lock(&self.0);
        if heard.is_lost {
            return None;
        }
        heard.from.extend_from_slice(bytes);
        let waited = (heard.from.len() >= EAR_BYTES_MAX).then_some(heard.kept_waiting);
        let session = heard.session.take();
        drop(heard);
        if let Some(session) = session {
            session.wake();
        }
        waited
    }

    fn lose(&self) {
        let mut heard = lock(&self.0);
        heard.is_lost = true;
        if let Some(session) = heard.session.take() {
            session.wake();
        }
    }

    /// Whether it still has too much.
    fn is_full(&self, cx: &mut Context<'_>) -> bool {
        let mut heard = lock(&self.0);
        let is_full = !heard.is_lost && heard.from.len() >= EAR_BYTES_MAX;
        heard.trunk = is_full.then(|| cx.waker().clone());
        is_full
    }
}

/// Sends what is asked, and hands out what comes back.
struct Task {
    queue: Arc<Mutex<Queue>>,
    to: BytesMut,
    from: BytesMut,
    boundary: Boundary,
    /// Who gets the next replies, and how many in a row.
    asking: VecDeque<(Arc<Ear>, usize)>,
    full: Option<Full>,
}

/// A client that has too much, for whom everybody waits.
struct Full {
    ear: Arc<Ear>,
    since: Instant,
    until: Pin<Box<Sleep>>,
}

/// However it ends, those who wait are told.
impl Drop for Task {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue);
        queue.is_closed = true;
        let (asking, crowd) = (std::mem::take(&mut queue.asking), std::mem::take(&mut queue.crowd));
        drop(queue);
        self.asking.drain(..).chain(asking).for_each(|(ear, _)| ear.lose());
        crowd.into_iter().for_each(Waker::wake);
    }
}

impl Task {
    fn new(queue: Arc<Mutex<Queue>>) -> Task {
        Task {
            queue,
            to: BytesMut::new(),
            from: BytesMut::new(),
            boundary: Boundary::default(),
            asking: VecDeque::new(),
            full: None,
        }
    }

    async fn run(mut self, place: Place, identity: Identity) {
        let mut io = match place.introduce(&identity).await {
            Ok(io) => io,
            Err(error) => {
                tracing::warn!(%error, "the server cannot be reached for clients that share a connection");
                return;
            }
        };
        while poll_fn(|cx| self.poll(cx, &mut io)).await.is_ok() {
            // More has been asked. Those who are about to ask as well go first, so that one write is enough for all.
            yield_now().await;
            self.collect();
        }
    }

    /// Takes over what is asked.
    fn collect(&mut self) {
        let mut queue = lock(&self.queue);
        if self.to.is_empty() {
            std::mem::swap(&mut self.to, &mut queue.to);
        } else {
            self.to.extend_from_slice(&queue.to);
            queue.to.clear();
        }
        self.asking.extend(queue.asking.drain(..));
        let crowd = std::mem::take(&mut queue.crowd);
        drop(queue);
        crowd.into_iter().for_each(Waker::wake);
    }

    /// Until more is asked; an error at the end.
    fn poll(&mut self, cx: &mut Context<'_>, io: &mut Io) -> Poll<std::result::Result<(), Ended>> {
        while self.turn(cx, io)? {}
        let mut queue = lock(&self.queue);
        if queue.is_left {
            return Poll::Ready(Err(Ended));
        }
        // What the server does not take stays with those who ask.
        if !queue.asking.is_empty() && self.to.len() < TO_BYTES_MAX {
            return Poll::Ready(Ok(()));
        }
        queue.task = Some(cx.waker().clone());
        Poll::Pending
    }

    fn turn(&mut self, cx: &mut Context<'_>, io: &mut Io) -> std::result::Result<bool, Ended> {
        let mut moved = !self.to.is_empty() && write(io, cx, &mut self.to)?;
        if self.is_held_up(cx) {
            return Ok(moved);
        }
        match read(io, cx, &mut self.from) {
            Poll::Pending => {}
            Poll::Ready(Ok(bytes)) if bytes > 0 => {
                self.hand_out()?;
                moved = true;
            }
            Poll::Ready(_) => return Err(Ended),
        }
        Ok(moved)
    }

    /// Whether somebody has to take in replies first.
    fn is_held_up(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(full) = &mut self.full else { return false };
        let is_full = full.ear.is_full(cx);
        if is_full && full.until.as_mut().poll(cx).is_pending() {
            return true;
        }
        if is_full {
            tracing::info!("a client that does not take in its replies is let go");
            full.ear.lose();
        }
        lock(&full.ear.0).kept_waiting += full.since.elapsed();
        self.full = None;
        false
    }

    /// Whole replies and what there is of the next one, each to whom it is due.
    fn hand_out(&mut self) -> std::result::Result<(), Ended> {
        let (mut start, mut passed) = (0, 0);
        while passed < self.from.len() {
            let Some((_, left)) = self.asking.front_mut() else {
                tracing::warn!("the server says what nobody has asked for");
                return Err(Ended);
            };
            let step = self.boundary.pass(&self.from[passed..]).map_err(|error| {
                tracing::warn!(%error, "the server does not speak RESP");
                Ended
            })?;
            let Passed::Frame { bytes, kind } = step else {
                let Passed::Part(bytes) = step else { continue };
                passed += bytes;
                break;
            };
            if kind == b'>' {
                tracing::warn!("the server pushes what nobody has asked for");
                return Err(Ended);
            }
            passed += bytes;
            *left -= 1;
            if *left == 0 {
                self.give(start, passed);
                self.asking.pop_front();
                start = passed;
            }
        }
        self.give(start, passed);
        self.from.advance(passed);
        Ok(())
    }

    fn give(&mut self, from: usize, to: usize) {
        let Some((ear, _)) = self.asking.front().filter(|_| from < to) else { return };
        if let Some(waited) = ear.hear(&self.from[from..to]) {
            let until = Box::pin(sleep(STALL.saturating_sub(waited)));
            self.full = Some(Full { ear: ear.clone(), since: Instant::now(), until });
        }
    }
}
