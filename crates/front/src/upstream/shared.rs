//! Connections to a server, or to a node of a cluster, that several clients share.
//!
//! Every client has a connection of its own, and in front of a cluster one to each node that it needs. What
//! needs nothing of that, a read or write of keys by a client without a transaction, a watch or another
//! database, may go over a shared connection instead: what many clients send goes out in one write and
//! comes back in one read, which spares the front and the server most of their system calls.
//!
//! ```text
//! session ─ handle ─▶ ┐                       ┌─▶ sink ─ session
//! session ─ handle ─▶ ┴ to ─▶ server ─▶ from ─┴─▶ sink ─ session
//! ```
//!
//! All clients of a shared connection are the same user with the same protocol, and each has been let in by
//! the server on its own connection before: a connection that was opened when the server asked for no
//! password admits no client later.
//!
//! **Order.** A client has handles to one connection at a time, and replies come in the order of requests.
//!
//! **Bounds.** [`TO_BYTES_MAX`] wait to be sent, and what one read of each client adds. A client that does
//! not take in its replies, or waits for another node first, has [`SINK_BYTES_MAX`] of them held, and more
//! out of [`POOL_BYTES_MAX`] for all clients: one client may have half of that. If that is used up, the
//! shared connection waits for it, and all its clients with it: [`STALL`] at once at most, and a tenth of the
//! time in the long run. After that it closes the sinks of all clients that have too much. There are
//! [`IDENTITIES_MAX`] times as many connections as were asked for, and those that are silent and are left one
//! by one.
//!
//! **Ends.** A shared connection that breaks takes with it the clients that are owed a reply, as their own
//! connections would. Nothing is sent twice. Requests are taken only once it is open: if it cannot be opened
//! nothing is lost, and clients keep to their own connections.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::AsyncWriteExt;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, Sleep, sleep, timeout};
use whimbrel_engine::endpoint::{Address, Endpoint};
use whimbrel_engine::error::{Code, Error, ErrorKind, Result, ServerError};
use whimbrel_engine::link::{Io, LinkOptions};
use whimbrel_wire::boundary::{Boundary, Passed};

use crate::command::by_name::ByName;
use crate::command::keys::CommandTable;
use crate::pipe::io::{Ended, OUT_BYTES_MAX, read, write};
use crate::upstream::identity::{Identity, ReplyReader, in_vain};

/// A connection with so much to send that is not taken yet takes no more requests.
const TO_BYTES_MAX: usize = 1 << 20;

/// Replies that a client has not taken.
const SINK_BYTES_MAX: usize = 1 << 20;

/// Further replies that clients have not taken, of all clients together.
const POOL_BYTES_MAX: usize = 64 << 20;

/// What one client may have of those, so that clients that never read do not have all.
const EACH_BORROWS_MAX: usize = POOL_BYTES_MAX / 2;

/// How often to check whether there is room, while all wait for that: others may make it.
const POLL_PERIOD: Duration = Duration::from_millis(20);

/// How long clients may keep others waiting with replies that they do not take.
const STALL: Duration = Duration::from_secs(1);

/// A connection from which nothing has come for this long, though something is due, gets no further clients.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// After a stall it takes this many times as long until there may be another that is as long.
const RECOVERY: u32 = 10;

/// Users and protocols that share among themselves. Clients of further ones use their own connections.
const IDENTITIES_MAX: usize = 64;

/// A longer request goes over the client's own connection.
pub(crate) const SHARED_BYTES_MAX: usize = 32 << 10;

/// A client that gets so much at once has its own connection from then on: others would wait for it.
pub(crate) const AT_ONCE_BYTES_MAX: usize = 256 << 10;

/// Has the server note how far it is, for `WAIT`, which waits for what was written before the last command of
/// its connection. Without words it changes nothing, and every user may say it.
pub(crate) const MARK: &[u8] = b"*1\r\n$5\r\nHELLO\r\n";

/// Shared connections that a session may have a handle to, by where they lead and whose login they use.
type Open = HashMap<(Address, Identity), Vec<Weak<SharedConnection>>>;

/// All shared connections of a front.
#[derive(Debug)]
pub(crate) struct SharedConnections {
    endpoint: Arc<Endpoint>,
    link: LinkOptions,
    /// This many for clients of one identity.
    each: usize,
    /// Commands that may be shared.
    names: ByName<()>,
    next: AtomicUsize,
    /// What is held of [`POOL_BYTES_MAX`].
    pool: Arc<AtomicUsize>,
    open: Mutex<Open>,
    tasks: Mutex<JoinSet<()>>,
}

/// A connection that is shared. It ends when no session has a handle to it any more.
#[derive(Debug)]
struct SharedConnection(Arc<Mutex<Queue>>);

/// What has not been handed to the task of a shared connection yet.
#[derive(Debug, Default)]
struct Queue {
    to: BytesMut,
    /// Whose requests those are, and how many in a row.
    asking: Vec<(Arc<ReplySink>, usize)>,
    /// The task that waits for more.
    task: Option<Waker>,
    /// Clients that wait for room, once each, and how often they have been notified.
    waiters: Vec<Waker>,
    round: u64,
    /// The server takes requests.
    is_open: bool,
    /// Since when the server has said nothing although something is due.
    silent_since: Option<Instant>,
    /// No session has a handle any more.
    is_left: bool,
    /// The task has ended.
    is_closed: bool,
}

impl Queue {
    /// Whether further clients may use it. The connection may have died silently.
    fn is_usable(&self) -> bool {
        !self.is_closed && self.silent_since.is_none_or(|since| since.elapsed() < SILENCE_MAX)
    }

    /// The wakers of tasks that are to be notified that there may be room.
    fn wake_up(&mut self) -> Vec<Waker> {
        if !self.waiters.is_empty() {
            self.round += 1;
        }
        std::mem::take(&mut self.waiters)
    }
}

/// Where replies for one client arrive.
#[derive(Debug)]
struct ReplySink {
    replies: Mutex<Replies>,
    pool: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Replies {
    from: BytesMut,
    session: Option<Waker>,
    /// The connection, which waits until there is room.
    connection: Option<Waker>,
    /// Bytes that are held out of the pool.
    borrowed: usize,
    /// Nothing more will come, or no session listens.
    is_lost: bool,
    /// It has not taken in its replies.
    is_let_go: bool,
    /// The session, which does not take replies in at the moment.
    resting: Option<Waker>,
}

/// A client's way to a shared connection.
#[derive(Debug)]
pub(crate) struct Handle {
    connection: Arc<SharedConnection>,
    sink: Arc<ReplySink>,
    identity: Identity,
    /// In which round it waits for room.
    waits_in: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl SharedConnections {
    /// `each` for clients of one identity, at least one. The table says which commands read or write keys and
    /// do nothing else.
    pub(crate) fn new(
        endpoint: Arc<Endpoint>,
        link: LinkOptions,
        table: &CommandTable,
        each: usize,
    ) -> Arc<SharedConnections> {
        Arc::new(SharedConnections {
            endpoint,
            link,
            each: each.max(1),
            names: table.plain_names().map(|name| (name.to_vec(), ())).collect(),
            next: AtomicUsize::new(0),
            pool: Arc::default(),
            open: Mutex::default(),
            tasks: Mutex::default(),
        })
    }

    /// Whether a command reads or writes keys and means nothing to the connection.
    pub(crate) fn takes(&self, name: &[u8]) -> bool {
        self.names.get(name).is_some()
    }

    /// A handle for a client; `None` if there are too many identities.
    pub(crate) fn handle(&self, identity: &Identity) -> Option<Handle> {
        self.handle_at(&self.endpoint.address, identity)
    }

    /// The same, to a node.
    pub(crate) fn handle_at(&self, at: &Address, identity: &Identity) -> Option<Handle> {
        let identity = identity.unnamed();
        let mut open = lock(&self.open);
        open.retain(|_, connections| connections.iter().any(|connection| connection.strong_count() > 0));
        let key = (at.clone(), identity.clone());
        let identities = || open.keys().filter(|(address, _)| address == at).count();
        if !open.contains_key(&key) && identities() >= IDENTITIES_MAX {
            return None;
        }
        let connections = open.entry(key).or_insert_with(|| (0..self.each).map(|_| Weak::new()).collect());
        let slot = &mut connections[self.next.fetch_add(1, Ordering::Relaxed) % self.each];
        let connection =
            slot.upgrade().filter(|connection| lock(&connection.0).is_usable()).unwrap_or_else(|| {
                let queue = Arc::new(Mutex::new(Queue::default()));
                let mut tasks = lock(&self.tasks);
                while tasks.try_join_next().is_some() {}
                let task = Task::new(queue.clone());
                let (endpoint, link) = (self.endpoint.clone(), self.link);
                let (at, identity) = (at.clone(), identity.clone());
                let opened = async move {
                    let limit = Duration::from_millis(link.connect_timeout_ms);
                    let io = Io::anonymous(&endpoint, &at, link);
                    let mut io = identity.introduce(io, &endpoint, &at, limit).await?;
                    takes_requests(&mut io, &endpoint, &at, limit).await?;
                    Ok(io)
                };
                tasks.spawn(task.run(opened));
                Arc::new(SharedConnection(queue))
            });
        *slot = Arc::downgrade(&connection);
        let sink = ReplySink { replies: Mutex::default(), pool: self.pool.clone() };
        Some(Handle { connection, sink: Arc::new(sink), identity, waits_in: AtomicU64::new(u64::MAX) })
    }

    /// Ends all connections. When it returns nothing is sent on them any more.
    pub(crate) async fn close(&self) {
        lock(&self.open).clear();
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        tasks.shutdown().await;
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        let mut queue = lock(&self.0);
        queue.is_left = true;
        if let Some(task) = queue.task.take() {
            task.wake();
        }
    }
}

/// Finds out that the server takes requests: a server that has too many clients says so instead of an answer.
async fn takes_requests(io: &mut Io, endpoint: &Endpoint, at: &Address, limit: Duration) -> Result<()> {
    let fail = |kind| Error::new(endpoint.side, at.to_string(), "connect", kind);
    let asked = async {
        io.write_all(b"*1\r\n$4\r\nPING\r\n").await?;
        io.flush().await?;
        ReplyReader::default().next(io).await
    };
    let reply = timeout(limit, asked).await.map_err(|_| in_vain(endpoint, at))?;
    match ServerError::of(&reply.map_err(|e| fail(ErrorKind::Broken(e)))?) {
        // With anything else that is refused, other commands may be carried out.
        Some(refused) if is_turned_away(&refused) => Err(fail(ErrorKind::Server(refused))),
        _ => Ok(()),
    }
}

/// Whether this is said to a connection, and not to a command.
fn is_turned_away(refused: &ServerError) -> bool {
    refused.code == Code::NoAuth
        || ["max number of clients", "DENIED"].iter().any(|words| refused.text.contains(words))
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut replies = lock(&self.sink.replies);
        (replies.is_lost, replies.from) = (true, BytesMut::new());
        self.sink.give_back(&mut replies);
        if let Some(connection) = replies.connection.take() {
            connection.wake();
        }
    }
}

impl Handle {
    /// Whether requests of this client can be sent, when nothing is under way. If the connection has ended,
    /// or the client was let go, what was sent is lost.
    pub(crate) fn is_open_for(&self, identity: &Identity) -> bool {
        self.identity.is_same_user(identity)
            && !lock(&self.sink.replies).is_lost
            && lock(&self.connection.0).is_usable()
    }

    /// Whether the connection has ended before it took requests.
    pub(crate) fn was_never_open(&self) -> bool {
        let queue = lock(&self.connection.0);
        queue.is_closed && !queue.is_open
    }

    /// Hands over `count` requests, if there is room; true if that was so.
    ///
    /// # Errors
    /// [`Ended`] if the connection has ended.
    pub(crate) fn send(
        &self,
        cx: &mut Context<'_>,
        requests: &mut BytesMut,
        count: usize,
    ) -> std::result::Result<bool, Ended> {
        let mut queue = lock(&self.connection.0);
        if queue.is_closed {
            return Err(Ended);
        }
        if !queue.is_open || queue.to.len() >= TO_BYTES_MAX {
            if self.waits_in.swap(queue.round, Ordering::Relaxed) != queue.round {
                queue.waiters.push(cx.waker().clone());
            }
            return Ok(false);
        }
        queue.to.extend_from_slice(requests);
        requests.clear();
        queue.asking.push((self.sink.clone(), count));
        let task = queue.task.take();
        drop(queue);
        if let Some(task) = task {
            task.wake();
        }
        Ok(true)
    }

    /// Whether the client was let go because it does not take in its replies: for a session that takes in
    /// none either. It is woken then.
    pub(crate) fn is_let_go(&self, cx: &Context<'_>) -> bool {
        let mut replies = lock(&self.sink.replies);
        if replies.resting.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            replies.resting = Some(cx.waker().clone());
        }
        replies.is_let_go
    }

    /// Takes of what has arrived, as from a connection: nothing at the end. Returns how much there was.
    pub(crate) fn take(&self, cx: &mut Context<'_>, into: &mut BytesMut) -> Poll<usize> {
        let mut replies = lock(&self.sink.replies);
        if replies.from.is_empty() {
            if replies.is_lost {
                return Poll::Ready(0);
            }
            if replies.session.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
                replies.session = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let bytes = replies.from.len();
        if into.is_empty() && bytes <= OUT_BYTES_MAX {
            *into = std::mem::take(&mut replies.from);
        } else {
            // Not more than that: what is taken does not count any more, but is still held.
            let part = bytes.min(OUT_BYTES_MAX);
            into.extend_from_slice(&replies.from[..part]);
            replies.from.advance(part);
            if replies.from.is_empty() {
                replies.from = BytesMut::new();
            }
        }
        self.sink.give_back(&mut replies);
        let connection = replies.connection.take();
        drop(replies);
        if let Some(connection) = connection {
            connection.wake();
        }
        Poll::Ready(bytes)
    }
}

impl ReplySink {
    /// Hands over replies, or a piece of one. True if the client has too much of them.
    fn push(&self, bytes: &[u8]) -> bool {
        let mut replies = lock(&self.replies);
        if replies.is_lost {
            return false;
        }
        replies.from.extend_from_slice(bytes);
        let is_full = !self.has_room(&mut replies);
        let session = replies.session.take();
        drop(replies);
        if let Some(session) = session {
            session.wake();
        }
        is_full
    }

    /// Whether no more is held than allowed. The pool lends what is lacking, if it has that.
    fn has_room(&self, replies: &mut Replies) -> bool {
        let lacking = replies.from.len().saturating_sub(SINK_BYTES_MAX + replies.borrowed);
        if lacking == 0 {
            return true;
        }
        if replies.borrowed + lacking > EACH_BORROWS_MAX {
            return false;
        }
        let lent = self.pool.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            held.checked_add(lacking).filter(|held| *held <= POOL_BYTES_MAX)
        });
        if lent.is_ok() {
            replies.borrowed += lacking;
        }
        lent.is_ok()
    }

    /// Gives back what is not held any more.
    fn give_back(&self, replies: &mut Replies) {
        let held = replies.from.len().saturating_sub(SINK_BYTES_MAX).min(replies.borrowed);
        self.pool.fetch_sub(replies.borrowed - held, Ordering::Relaxed);
        replies.borrowed = held;
    }

    fn close(&self) {
        let mut replies = lock(&self.replies);
        replies.is_lost = true;
        if let Some(session) = replies.session.take() {
            session.wake();
        }
    }

    /// Gives up a client that does not take in its replies, and what is held for it.
    fn let_go(&self) {
        let mut replies = lock(&self.replies);
        (replies.is_let_go, replies.from) = (true, BytesMut::new());
        self.give_back(&mut replies);
        let resting = replies.resting.take();
        drop(replies);
        if let Some(session) = resting {
            session.wake();
        }
        self.close();
    }

    /// Whether it still has too much.
    fn is_full(&self, cx: &mut Context<'_>) -> bool {
        let mut replies = lock(&self.replies);
        let is_full = !replies.is_lost && !self.has_room(&mut replies);
        replies.connection = is_full.then(|| cx.waker().clone());
        is_full
    }
}

/// Sends what is asked, and hands out what comes back.
struct Task {
    queue: Arc<Mutex<Queue>>,
    to: BytesMut,
    from: BytesMut,
    boundary: Boundary,
    /// Which sinks get the next replies, and how many in a row.
    asking: VecDeque<(Arc<ReplySink>, usize)>,
    full: Option<Full>,
    patience: Patience,
}

/// Clients that have too much: all others wait for them.
struct Full {
    sinks: Vec<Arc<ReplySink>>,
    since: Instant,
    until: Instant,
    next_poll: Pin<Box<Sleep>>,
}

/// How long all may be kept waiting: [`STALL`], less what has been used of it lately.
struct Patience {
    used: Duration,
    counted: Instant,
}

impl Patience {
    fn new(now: Instant) -> Patience {
        Patience { used: Duration::ZERO, counted: now }
    }

    /// What is left of it.
    fn left(&mut self, now: Instant) -> Duration {
        let since = now.duration_since(self.counted);
        (self.used, self.counted) = (self.used.saturating_sub(since / RECOVERY), now);
        STALL.saturating_sub(self.used)
    }

    /// They have waited since then.
    fn use_up(&mut self, since: Instant, now: Instant) {
        (self.used, self.counted) = (self.used + now.duration_since(since), now);
    }
}

/// However it ends, waiters are notified.
impl Drop for Task {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue);
        queue.is_closed = true;
        let (asking, waiters) = (std::mem::take(&mut queue.asking), queue.wake_up());
        drop(queue);
        self.asking.drain(..).chain(asking).for_each(|(sink, _)| sink.close());
        waiters.into_iter().for_each(Waker::wake);
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
            patience: Patience::new(Instant::now()),
        }
    }

    async fn run(mut self, opened: impl Future<Output = Result<Io>>) {
        let mut io = match opened.await {
            Ok(io) => io,
            Err(error) => {
                tracing::warn!(%error, "no connection for clients to share: they keep to their own");
                return;
            }
        };
        lock(&self.queue).is_open = true;
        self.collect();
        while poll_fn(|cx| self.poll(cx, &mut io)).await.is_ok() {
            // More has been asked. Sessions that are about to ask as well go first, so that one write is
            // enough for all.
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
        if !self.asking.is_empty() && queue.silent_since.is_none() {
            queue.silent_since = Some(Instant::now());
        }
        let waiters = queue.wake_up();
        drop(queue);
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Until more is asked; an error at the end.
    fn poll(&mut self, cx: &mut Context<'_>, io: &mut Io) -> Poll<std::result::Result<(), Ended>> {
        while self.step(cx, io)? {}
        let mut queue = lock(&self.queue);
        if queue.is_left {
            return Poll::Ready(Err(Ended));
        }
        // What the server does not take stays with the sessions that ask.
        if !queue.asking.is_empty() && self.to.len() < TO_BYTES_MAX {
            return Poll::Ready(Ok(()));
        }
        queue.task = Some(cx.waker().clone());
        Poll::Pending
    }

    fn step(&mut self, cx: &mut Context<'_>, io: &mut Io) -> std::result::Result<bool, Ended> {
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

    /// Whether a client has to take in replies first.
    fn is_held_up(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(full) = &mut self.full else { return false };
        loop {
            full.sinks.retain(|sink| sink.is_full(cx));
            if full.sinks.is_empty() || Instant::now() >= full.until {
                break;
            }
            if full.next_poll.as_mut().poll(cx).is_pending() {
                return true;
            }
            full.next_poll.as_mut().reset((Instant::now() + POLL_PERIOD).min(full.until));
        }
        for sink in &full.sinks {
            tracing::info!("a client that does not take in its replies is let go");
            sink.let_go();
        }
        self.patience.use_up(full.since, Instant::now());
        self.full = None;
        false
    }

    /// Hands out whole replies and the available part of the next one, each to its sink.
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
                self.hand_over(start, passed);
                self.asking.pop_front();
                start = passed;
            }
        }
        self.hand_over(start, passed);
        self.from.advance(passed);
        lock(&self.queue).silent_since = (!self.asking.is_empty()).then(Instant::now);
        Ok(())
    }

    fn hand_over(&mut self, from: usize, to: usize) {
        let Some((sink, _)) = self.asking.front().filter(|_| from < to) else { return };
        if !sink.push(&self.from[from..to]) {
            return;
        }
        let sink = sink.clone();
        let now = Instant::now();
        let full = self.full.get_or_insert_with(|| {
            let until = now + self.patience.left(now);
            Full { sinks: Vec::new(), since: now, until, next_poll: Box::pin(sleep(POLL_PERIOD)) }
        });
        if !full.sinks.iter().any(|full| Arc::ptr_eq(full, &sink)) {
            full.sinks.push(sink);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink(pool: &Arc<AtomicUsize>) -> ReplySink {
        ReplySink { replies: Mutex::default(), pool: pool.clone() }
    }

    #[test]
    fn a_sink_is_full_once_the_pool_is_used_up_and_gives_back_what_it_had() {
        let pool = Arc::new(AtomicUsize::new(POOL_BYTES_MAX - 10));
        let (one, other) = (sink(&pool), sink(&pool));
        assert!(!one.push(&[0; SINK_BYTES_MAX]), "what each may have");
        assert!(!one.push(&[0; 10]), "what is left of the pool");
        assert!(!other.push(&[0; SINK_BYTES_MAX]) && other.push(&[0; 1]), "there is no more");
        lock(&one.replies).from.advance(10);
        one.give_back(&mut lock(&one.replies));
        assert!(other.has_room(&mut lock(&other.replies)));
        assert_eq!(pool.load(Ordering::Relaxed), POOL_BYTES_MAX - 10 + 1);
    }

    #[test]
    fn one_client_does_not_get_the_whole_pool() {
        let pool = Arc::default();
        let one = sink(&pool);
        assert!(!one.push(&vec![0; SINK_BYTES_MAX + POOL_BYTES_MAX / 2]) && one.push(&[0]));
        assert_eq!(pool.load(Ordering::Relaxed), POOL_BYTES_MAX / 2);
    }

    #[tokio::test]
    async fn everybody_waits_for_a_tenth_of_the_time_at_most() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut patience = Patience::new(begin);
        assert_eq!(patience.left(at(0)), STALL);
        patience.use_up(at(0), at(1_000));
        assert_eq!(patience.left(at(1_000)), Duration::ZERO);
        assert_eq!(patience.left(at(6_000)), STALL / 2);
        patience.use_up(at(6_000), at(6_100));
        assert_eq!(patience.left(at(6_100)), STALL / 10 * 4);
        assert_eq!(patience.left(at(60_000)), STALL);
    }
}
