//! What a session between two servers is, while keys move from one to the other.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Context;

use bytes::Bytes;
use tokio::time::Sleep;
use whimbrel_engine::error::Error;

use super::call::Call;
use super::due::Change;
use super::link::{Connecting, INBOX_BYTES_MAX, Link, Server};
use crate::migrate::direction::Side;
use crate::migrate::stages::Ticket;
use crate::migrate::state::{MigrationState, Ready};
use crate::pipe::frame::one_line;
use crate::pipe::memory::MemoryPermit;
use crate::upstream::identity::Identity;

pub(super) struct Moving {
    pub(super) migration: Arc<MigrationState>,
    /// Where the session's connection leads to.
    pub(super) at: Side,
    /// The connection to the other one, where there is one.
    pub(super) parked: Option<Box<Server>>,
    /// What the first request in the inbox waits for.
    pub(super) waiting: Option<Waiting>,
    /// What came of that.
    pub(super) settled: Option<Settled>,
    /// Inside of a transaction, which is the target's.
    pub(super) multi: bool,
    /// The target watches keys for it.
    pub(super) watch: bool,
    /// It has subscribed to something: the target alone serves it, and replies are not counted.
    pub(super) alone: bool,
    /// A request is in the inbox that has to wait.
    pub(super) held_up: bool,
    pub(super) inbox_bytes_max: usize,
    pub(super) memory: Vec<MemoryPermit>,
    pub(super) stall: Option<Pin<Box<Sleep>>>,
    /// In another database, which can be once all keys have moved.
    pub(super) elsewhere: bool,
    /// It said something of itself that was not kept.
    pub(super) is_unknown: bool,
    /// After the connection: that has to be gone when this is.
    pub(super) call: Call,
}

pub(super) struct Waiting {
    pub(super) future: Pin<Box<dyn Future<Output = Settled> + Send>>,
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

/// What to do with a request that has waited.
pub(super) enum Settled {
    /// Its keys are home.
    Send,
    /// It has been answered.
    Say(Vec<u8>),
    /// It cannot be carried out.
    Refuse(Vec<u8>),
}

/// What came of looking at the first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Something was taken, or changed.
    Moved,
    /// It has to wait for something that is under way.
    HeldUp,
    /// More of it has to arrive.
    Nothing,
}

/// How much of the first request is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) len: usize,
    pub(super) whole: bool,
}

impl Moving {
    pub(super) fn new(migration: Arc<MigrationState>, ticket: Ticket) -> Moving {
        Moving {
            migration,
            at: Side::Target,
            parked: None,
            waiting: None,
            settled: None,
            multi: false,
            watch: false,
            alone: false,
            held_up: false,
            inbox_bytes_max: INBOX_BYTES_MAX,
            memory: Vec::new(),
            stall: None,
            elsewhere: false,
            is_unknown: false,
            call: Call::new(ticket),
        }
    }

    /// Nothing of it is open that another connection would not have.
    pub(super) fn is_portable(&self) -> bool {
        !(self.multi || self.watch || self.alone || self.elsewhere || self.is_unknown)
    }

    /// Whether the session is to come to rest, and the client need not send anything for that.
    pub(super) fn is_resting(&self) -> bool {
        self.call.is_called() && !self.multi && !self.watch
    }

    /// The target has agreed to what a client says once all keys have moved.
    pub(super) fn agreed(&mut self, change: Change) {
        match change {
            Change::Select(is_first) => self.elsewhere = !is_first,
            Change::Reset => (self.elsewhere, self.is_unknown) = (false, false),
            // Known from the requests.
            _ => {}
        }
    }

    /// A connection for a client that has said so much of itself.
    pub(super) fn connect(&self, side: Side, identity: &Identity) -> Connecting {
        let (migration, identity) = (self.migration.clone(), identity.clone());
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

    /// The parked connection, to go back to that server, or a new one.
    pub(super) fn link(&mut self, cx: &mut Context<'_>, side: Side, identity: &Identity) -> Link {
        if let Some(mut server) = self.parked.take() {
            let is_alive = server.read(cx).is_pending();
            // With a connection to the target its watches are gone, so that is the client's end as well.
            if is_alive || side == Side::Target && self.watch {
                return Link::Up(server);
            }
        }
        Link::Connecting(self.connect(side, identity))
    }

    pub(super) fn forget_parked(&mut self) {
        self.parked = None;
    }

    pub(super) fn wait(&mut self, future: impl Future<Output = Settled> + Send + 'static) -> Step {
        self.waiting = Some(Waiting { future: Box::pin(future), _counted: Counted::new(&self.migration) });
        Step::Moved
    }

    pub(super) fn pull(&mut self, keys: Vec<Bytes>) -> Step {
        let migration = self.migration.clone();
        migration.tally.pulled.fetch_add(1, Ordering::Relaxed);
        self.wait(async move { settled(migration.pull(keys).await) })
    }
}

pub(super) fn settled(pulled: Result<(), String>) -> Settled {
    match pulled {
        Ok(()) => Settled::Send,
        Err(why) => Settled::Refuse(format!("-TRYAGAIN whimbrel front: {}\r\n", one_line(&why)).into_bytes()),
    }
}
