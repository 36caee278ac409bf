//! Serves a client: the sockets, timers and tasks around a [`Session`], and nothing that is decided.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use whimbrel_engine::error::Error;

use super::call::Call;
use super::context::SessionContext;
use super::due::is_own;
use super::link::Link;
use super::moving::{Moving, Settled, settled};
use super::plain::Plain;
use super::sharing::Sharing;
use super::state::{Action, FAREWELL, Mode, Session, Task};
use super::way::{Connecting, Way};
use crate::migrate::direction::Side;
use crate::migrate::flush::flush;
use crate::migrate::keyspace::ask_both;
use crate::migrate::stages::Entrance;
use crate::migrate::state::{MigrationState, Ready};
use crate::pipe::frame::one_line;
use crate::pipe::io::{Ended, OUT_BYTES_MAX, read, write};
use crate::upstream::Connection;
use crate::upstream::identity::Identity;
use crate::upstream::shared::Handle;

/// Serves one client. Its fields are dropped in their order: the ticket last, when nothing is left at
/// servers.
pub(crate) struct Driver<C> {
    context: Arc<SessionContext>,
    client: C,
    session: Session,
    /// The connection to the server that the session talks to.
    way: Option<Way>,
    connecting: Option<Connecting>,
    /// Between two servers, the connection to the other one. At a shared connection, the client's own.
    parked: Option<Way>,
    /// A handle to a shared connection, while the session is not there.
    idle_handle: Option<Handle>,
    waiting: Option<Waiting>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Answers were due when the front ended.
    was_answered: bool,
    /// If keys may move.
    call: Option<Call>,
}

/// What a request waits for.
struct Waiting {
    future: Pin<Box<dyn Future<Output = Settled> + Send>>,
    _counted: Counted,
}

/// One of those that wait.
struct Counted(Arc<MigrationState>);

impl Counted {
    fn new(migration: &Arc<MigrationState>) -> Counted {
        migration.tally.waiting.fetch_add(1, Ordering::Relaxed);
        Counted(migration.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.tally.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> Driver<C> {
    pub(crate) fn new(context: Arc<SessionContext>, client: C) -> Driver<C> {
        let (mode, call) = match context.stages.as_ref().map(|stages| stages.enter()) {
            None => (Mode::Forwarding, None),
            Some(Entrance::Moving(migration, ticket)) => {
                (Mode::Moving(Box::new(Moving::new(migration))), Some(Call::new(ticket)))
            }
            Some(Entrance::Forwarding(ticket)) => {
                let plain = Box::new(Plain::default());
                let mode = match &context.connections {
                    Some(connections) if !context.source.is_cluster() => {
                        Mode::Sharing(plain, Box::new(Sharing::new(connections.clone())))
                    }
                    // Connections to a cluster share by themselves.
                    _ => Mode::Noting(plain),
                };
                (mode, Some(Call::new(ticket)))
            }
        };
        let session = Session::new(mode, context.face.clone(), context.source.is_cluster());
        let mut driver = Driver {
            context,
            client,
            session,
            way: None,
            connecting: None,
            parked: None,
            idle_handle: None,
            waiting: None,
            timer: None,
            was_answered: false,
            call,
        };
        driver.connecting = Some(driver.connect(Side::Target));
        driver
    }

    /// Serves until one side hangs up.
    pub(crate) async fn run(mut self) {
        let context = self.context.clone();
        let mut end = Some(pin!(context.ending.wakes()));
        std::future::poll_fn(|cx| {
            // Once, before the first look at whether it has begun, so that no end is missed.
            if let Some(end) = end.take() {
                let _ = end.poll(cx);
            }
            self.poll(cx)
        })
        .await;
        // The next stage need not wait for a client that takes its time with what follows.
        (self.way, self.connecting, self.parked) = (None, None, None);
        (self.idle_handle, self.waiting, self.call) = (None, None, None);
        // With TLS the end has to be announced, or it looks like a cut.
        let _ = timeout(FAREWELL, self.client.shutdown()).await;
        if self.was_answered && self.session.may_send() {
            // A connection that is closed over what was not read is reset, and the last answers may be lost.
            let _ = timeout(FAREWELL, tokio::io::copy(&mut self.client, &mut tokio::io::sink())).await;
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.session.tick(Instant::now());
        if !self.may_go_on(cx) {
            return Poll::Ready(());
        }
        loop {
            match self.step(cx) {
                Ok(true) => {}
                Ok(false) if self.session.is_over() || self.session.is_stalled() => return Poll::Ready(()),
                Ok(false) if self.context.ending.has_begun() && self.session.retire() => {
                    self.was_answered = self.session.is_owed();
                }
                Ok(false) if self.session.is_quiet() && self.is_called_on(cx) => {
                    // Clients may be held again already: nothing is taken before that is known.
                    if !self.go_over() || !self.may_go_on(cx) {
                        return Poll::Ready(());
                    }
                }
                Ok(false) if self.is_due(cx) => self.session.tick(Instant::now()),
                Ok(false) => {
                    self.session.release_memory();
                    return Poll::Pending;
                }
                Err(Ended) => return Poll::Ready(()),
            }
        }
    }

    /// Comes to rest if it is called; false if it has to end.
    fn may_go_on(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(call) = &mut self.call else { return true };
        if !call.is_called(cx) {
            return true;
        }
        self.session.called();
        self.session.is_quiet() || !call.is_evicted(cx)
    }

    /// Moves what can be moved; true if anything was.
    fn step(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = self.poll_connecting(cx);
        self.watch_parked(cx);
        self.poll_waiting(cx);
        moved |= self.read_client(cx)?;
        moved |= self.session.take();
        moved |= !self.session.actions.is_empty() && self.act(cx);
        moved |= self.write_server(cx)?;
        moved |= self.read_server(cx)?;
        moved |= self.session.take_replies()?;
        moved |= !self.session.actions.is_empty() && self.act(cx);
        moved |= self.write_client(cx)?;
        Ok(moved)
    }

    /// Whether the time has come that the session waits for.
    fn is_due(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(deadline) = self.session.deadline() else {
            self.timer = None;
            return false;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(cx).is_ready()
    }

    // ---- Connections ----

    /// A connection for this client, which has said so much about itself: to one of two servers, or to the
    /// one.
    fn connect(&self, side: Side) -> Connecting {
        let identity = self.session.identity.clone();
        if let Mode::Moving(moving) = &self.session.mode {
            return connect_to(moving.migration.clone(), side, identity);
        }
        let context = self.context.clone();
        Box::pin(async move {
            let mut connection = context.source.introduce(&identity).await?;
            if let (Connection::Cluster(cluster), Some(shared)) = (&mut connection, &context.connections) {
                cluster.share(shared.clone());
            }
            Ok(connection)
        })
    }

    fn poll_connecting(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(connecting) = &mut self.connecting else { return false };
        let Poll::Ready(connected) = connecting.as_mut().poll(cx) else { return false };
        self.connecting = None;
        match connected {
            Ok(connection) => self.go_on_with(connection.into()),
            Err(error) => {
                tracing::warn!(%error, "the server cannot be reached for a client");
                self.context.counts.unreachable.fetch_add(1, Ordering::Relaxed);
                self.session.unreachable(&error.to_string());
            }
        }
        true
    }

    fn go_on_with(&mut self, way: Way) {
        self.session.connected(way.kind());
        self.way = Some(way);
    }

    /// Gives up a parked connection of the client's own that the server has closed: a new one is made when it
    /// is needed.
    fn watch_parked(&mut self, cx: &mut Context<'_>) {
        if matches!(self.session.mode, Mode::Sharing(..))
            && self.parked.as_mut().is_some_and(|own| !own.is_alive(cx))
        {
            self.parked = None;
        }
    }

    /// Does what the session wants done; true if that was anything.
    fn act(&mut self, cx: &mut Context<'_>) -> bool {
        let mut acted = false;
        while let Some(action) = self.session.actions.pop_front() {
            acted = true;
            match action {
                Action::SwitchSide { side, parks, keeps_end } => self.switch_side(cx, side, parks, keeps_end),
                Action::ForgetParked => self.parked = None,
                Action::Share => self.share(),
                Action::Unshare => self.unshare(),
                Action::Wait(task) => self.wait(task),
            }
        }
        acted
    }

    fn switch_side(&mut self, cx: &mut Context<'_>, side: Side, parks: bool, keeps_end: bool) {
        let parked = std::mem::replace(&mut self.parked, self.way.take().filter(|_| parks));
        match parked.and_then(|mut way| (way.is_alive(cx) || keeps_end).then_some(way)) {
            Some(way) => self.go_on_with(way),
            None => self.connecting = Some(self.connect(side)),
        }
    }

    fn share(&mut self) {
        let identity = &self.session.identity;
        let handle = self.idle_handle.take().filter(|handle| handle.is_open_for(identity));
        let connections = self.context.connections.as_ref();
        match handle.or_else(|| connections.and_then(|connections| connections.handle(identity))) {
            None => self.session.not_shared(),
            Some(handle) => {
                self.parked = self.way.take();
                self.go_on_with(Way::Shared(handle));
            }
        }
    }

    fn unshare(&mut self) {
        if let Some(Way::Shared(handle)) = self.way.take() {
            self.idle_handle = Some(handle);
        }
        match self.parked.take() {
            Some(own) => self.go_on_with(own),
            None => self.connecting = Some(self.connect(Side::Source)),
        }
    }

    /// Sends by the client's own connection what a shared one was to take, which could not be opened.
    fn keep_to_own(&mut self) -> Result<bool, Ended> {
        let (Some(own), Link::Up(wire)) = (self.parked.take(), &mut self.session.link) else {
            return Err(Ended);
        };
        let requests = wire.to.bytes_mut().split();
        self.way = Some(own);
        self.session.not_shared();
        if let Link::Up(wire) = &mut self.session.link {
            wire.to.bytes_mut().unsplit(requests);
        }
        Ok(true)
    }

    /// It rests; true if it is to go on.
    fn is_called_on(&mut self, cx: &mut Context<'_>) -> bool {
        let from = [&self.way, &self.parked].into_iter().flatten().filter_map(Way::local_address);
        self.call.as_mut().is_some_and(|call| call.is_over(cx, from))
    }

    /// Goes on as the front does from now on, and lets go of the servers if that is with another one. False
    /// if the client has something there that another connection would not have.
    fn go_over(&mut self) -> bool {
        match self.context.stages.as_ref().map(|stages| stages.enter()) {
            None => {}
            Some(Entrance::Moving(migration, ticket)) if self.session.is_of(&migration) => {
                self.session.stay();
                self.call = Some(Call::new(ticket));
            }
            Some(Entrance::Moving(..)) if !self.session.is_portable() => return false,
            Some(Entrance::Moving(migration, ticket)) => {
                (self.way, self.parked, self.idle_handle) = (None, None, None);
                (self.connecting, self.waiting) = (None, None);
                self.session.go_over(Moving::new(migration));
                self.connecting = Some(self.connect(Side::Target));
                self.call = Some(Call::new(ticket));
            }
            Some(Entrance::Forwarding(ticket)) => {
                self.session.stay();
                self.call = Some(Call::new(ticket));
            }
        }
        true
    }

    // ---- What requests wait for ----

    fn wait(&mut self, task: Task) {
        let Mode::Moving(moving) = &self.session.mode else { return };
        let (migration, identity) = (moving.migration.clone(), self.session.identity.clone());
        let _counted = Counted::new(&migration);
        self.waiting = Some(Waiting { future: Box::pin(carry_out(task, migration, identity)), _counted });
    }

    fn poll_waiting(&mut self, cx: &mut Context<'_>) {
        let Some(waiting) = &mut self.waiting else { return };
        if let Poll::Ready(settled) = waiting.future.as_mut().poll(cx) {
            self.waiting = None;
            self.session.settled(settled);
        }
    }

    // ---- Bytes ----

    fn read_client(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        if !self.session.wants_bytes() {
            return Ok(false);
        }
        match read(&mut self.client, cx, &mut self.session.inbox) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(0)) => self.session.client_closed(),
            Poll::Ready(read) => {
                read?;
            }
        }
        Ok(true)
    }

    fn write_client(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let written = write(&mut self.client, cx, &mut self.session.to_client)?;
        if written {
            self.session.written();
        }
        Ok(written)
    }

    fn write_server(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let shuts = self.session.is_shut();
        let (Some(way), Link::Up(wire)) = (&mut self.way, &mut self.session.link) else { return Ok(false) };
        let Way::Shared(handle) = way else { return way.send(cx, wire, shuts) };
        if wire.to.is_empty() {
            return Ok(false);
        }
        let identity = &self.session.identity;
        if !handle.is_open_for(identity) {
            // Our own answers are due as well.
            let due = self.session.due.iter().filter(|due| !is_own(Some(due))).count();
            match (due == wire.asked, handle.was_never_open()) {
                (true, true) => return self.keep_to_own(),
                // Another handle if that one has ended and nothing was under way on it.
                (true, false) => {
                    let connections = self.context.connections.as_ref();
                    *handle =
                        connections.and_then(|connections| connections.handle(identity)).ok_or(Ended)?;
                }
                (false, _) => {}
            }
        }
        let is_sent = handle.send(cx, wire.to.bytes_mut(), wire.asked)?;
        if is_sent {
            wire.asked = 0;
        }
        Ok(is_sent)
    }

    fn read_server(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let (Some(way), Link::Up(wire)) = (&mut self.way, &mut self.session.link) else { return Ok(false) };
        let is_full = self.session.to_client.len() >= OUT_BYTES_MAX;
        let is_let_go = match way {
            Way::Own(_) => false,
            Way::Cluster(cluster) => is_full && cluster.is_let_go(cx),
            Way::Shared(shared) => is_full && shared.is_let_go(cx),
        };
        if is_let_go {
            // It does not read, so it would never come to the end.
            return Err(Ended);
        }
        let read = match way {
            Way::Cluster(cluster) => match cluster.poll(cx, &mut wire.to, &mut wire.from) {
                Ok(moved) => return Ok(moved),
                // What came before the end is still to be taken.
                Err(Ended) if is_full || !wire.from.is_empty() => return Ok(false),
                Err(Ended) => Poll::Ready(Ok(0)),
            },
            Way::Own(_) | Way::Shared(_) if is_full => return Ok(false),
            Way::Own(_) | Way::Shared(_) => way.read(cx, wire),
        };
        match read {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(0)) => {
                self.session.server_closed()?;
                if matches!(self.session.link, Link::Lost) {
                    self.way = None;
                }
            }
            Poll::Ready(Ok(bytes)) => self.session.arrived(bytes),
            Poll::Ready(Err(_)) if self.session.switch_to_target() => {}
            Poll::Ready(Err(_)) => return Err(Ended),
        }
        Ok(true)
    }
}

/// A connection to one of two servers, once keys move.
fn connect_to(migration: Arc<MigrationState>, side: Side, identity: Identity) -> Connecting {
    Box::pin(async move {
        let mut ready = migration.ready.subscribe();
        match ready.wait_for(|ready| *ready != Ready::NotYet).await.map(|ready| *ready) {
            Ok(Ready::Yes) => {}
            _ => return Err(Error::own("serve", "it could not begin to move keys: connect again")),
        }
        match side {
            Side::Source => migration.servers.source.introduce(&identity).await,
            Side::Target => migration.servers.target.introduce(&identity).await,
        }
    })
}

async fn carry_out(task: Task, migration: Arc<MigrationState>, identity: Identity) -> Settled {
    match task {
        Task::Pull(keys) => settled(migration.pull(keys).await),
        Task::PullKeysOf(words) => match migration.keys_of(&words).await {
            Ok(keys) => settled(migration.pull(keys).await),
            Err(why) => Settled::Refuse(format!("-{}\r\n", one_line(&why)).into_bytes()),
        },
        Task::AskBoth(query, words) => Settled::Reply(ask_both(migration, identity, query, words).await),
        Task::Flush(words) => flush(migration, identity, words).await.map_or(Settled::Send, Settled::Reply),
    }
}
