//! One connection to a cluster: at one end it looks like a connection to a server, at the other it has one to each node that it needs.
//!
//! Requests go to the nodes that have their keys, replies come back in the order of the requests. Only the node is read from whose reply is next, so
//! nothing has to be held for its turn.
//!
//! **Redirections.** A request of which a node says that the slot has moved is sent again, to the node that has it, on a connection that is used for
//! such requests alone: on the usual one other replies may come before. Until nothing is due any more no further requests are taken then, so
//! requests for one key keep their order. Therefore requests are kept until their replies have come, if they are no longer than [`WHOLE_BYTES_MAX`]. A longer
//! one is answered with an error instead.
//!
//! **What belongs to a connection** (user, protocol, name) is told to each node before anything else is. Transactions and watches are with the
//! node of their keys, and their keys have to be in one slot, as in any cluster.
//!
//! A node that closes a connection on which something is due, or on which something is watched or listened to, ends the connection to the cluster: it is
//! not known what was carried out. Whoever used it has to connect again, as with a server.

mod admission;
mod every;
mod held;
mod stirred;
mod take;

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use whimbrel_core::slot::Slot;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Error, ErrorKind, Result, ServerError};
use whimbrel_engine::link::Io;
use whimbrel_fleet::Guard;
use whimbrel_wire::boundary::{Boundary, Passed};
use whimbrel_wire::encode::Protocol;
use whimbrel_wire::request::{RequestLimits, RequestScanner};
use whimbrel_wire::value::Value;

use self::admission::{Heed, Waiting};
use self::every::Parts;
use self::stirred::{Stirs, Wait};
use self::take::{Asking, Multi};
use super::map::Map;
use super::{Cluster, Ids};
use crate::commands::Trait;
use crate::room::Room;
use crate::session::identity::{Identity, Replies};
use crate::session::{Ended, OUT_BYTES_MAX, READ_BYTES, as_array, read, write};
use crate::whole::one_line;

/// A longer request is passed on while it arrives, and cannot be sent again.
const WHOLE_BYTES_MAX: usize = 256 << 10;

/// While so much is kept to be sent again, no more requests are taken.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// So many requests may be under way.
const DUE_MAX: usize = 4 << 10;

/// The longest error of a server.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// Between two tries of a request that a node cannot carry out now.
const PAUSE: Duration = Duration::from_millis(20);

/// So often a request is tried again: five seconds of pauses.
const TRIES_MAX: u32 = 250;

const MOVING: &[u8] = b"-TRYAGAIN whimbrel front: the slot is moving between nodes of the cluster\r\n";

/// Connections that have to be ended for certain: so many for one to the cluster. It is replaced then.
const IDS_MAX: usize = 1 << 10;

/// A connection, and the id that the server gave it where that was asked for and told.
type Connecting = Pin<Box<dyn Future<Output = Result<(Io, Option<i64>)>> + Send>>;

/// A node, and what is on its way there and back.
struct Node {
    address: Address,
    state: State,
    to: BytesMut,
    from: BytesMut,
    boundary: Boundary,
    /// Replies that are to come from it.
    due: usize,
    /// By which a request that waits for something to happen is ended, where this front serves slots of a fleet.
    id: Option<i64>,
}

enum State {
    Connecting(Connecting),
    Up(Box<Io>),
    /// It could not be reached, and nothing was sent to it.
    Failed(String),
}

/// Where the reply comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// It is our own.
    Here,
    Node(u16),
    /// The connection for requests that were redirected.
    Detour,
}

struct Due {
    at: At,
    what: What,
    /// To send it again; `None` where it was too long, or where that is never done.
    request: Option<Bytes>,
    /// That of its keys.
    slot: Option<Slot>,
    tries: u32,
    /// Kept until the reply has come.
    guard: Option<Guard>,
    /// It may wait for something to happen.
    wait: Option<Wait>,
}

impl Due {
    fn new(at: At, what: What) -> Due {
        Due { at, what, request: None, slot: None, tries: 0, guard: None, wait: None }
    }
}

/// What becomes of a reply.
enum What {
    Reply,
    /// Our own.
    Own(Vec<u8>),
    /// Nobody gets it.
    Swallowed,
    /// This is given in its place.
    Replaced(Vec<u8>),
    /// The answer to what the client said of itself.
    Noted(Trait, Bytes),
    Reset,
    /// One of several that become one.
    Part,
    /// The reply of this node to `SCAN`.
    Scanned(u16),
    /// Tells that what the client has said about channels is through.
    Fence,
    /// That of `EXEC`, after those of what was held back until then.
    Held(Held),
    /// To `WATCH`, where what is watched may turn out to be elsewhere.
    Watched,
}

/// A transaction that is sent as one, so that it can be sent again as one.
struct Held {
    /// Replies before that of `EXEC`.
    count: usize,
    /// Those that have not come.
    left: usize,
    /// Why something of it was refused that another node may carry out.
    refused: Option<Bytes>,
}

impl What {
    /// Whether the reply is looked at as a whole.
    fn is_collected(&self) -> bool {
        match self {
            What::Reply | What::Own(_) | What::Noted(..) | What::Reset | What::Watched => false,
            What::Held(held) => held.left > 0,
            _ => true,
        }
    }
}

pub(super) struct Conn {
    cluster: Arc<Cluster>,
    map: Arc<Map>,
    client: DuplexStream,
    /// The other end was dropped.
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
    ids: Option<Ids>,
    /// Nodes are not to take our certificate for the client's login.
    is_for_client: bool,
    requests: RequestScanner,
    inbox: BytesMut,
    inbox_bytes_max: usize,
    room: Vec<Room>,
    to_client: BytesMut,
    /// By their numbers.
    nodes: Vec<Option<Box<Node>>>,
    detour: Option<Box<Node>>,
    /// Where commands without keys go.
    main: Option<u16>,
    due: VecDeque<Due>,
    kept_bytes: usize,
    /// Of the first that is due.
    collected: BytesMut,
    parts: Parts,
    identity: Identity,
    multi: Multi,
    watching: Option<u16>,
    /// Something that should be watched is not: the transaction that follows must not be carried out.
    watch_lost: bool,
    /// That of the keys of the transaction, or of what is watched, where this front serves slots of a fleet.
    bound_slot: Option<Slot>,
    /// The first request waits for somebody who serves its slot.
    waiting: Option<Waiting>,
    heeds: Heed,
    /// While requests are under way that may wait for something to happen.
    stirs: Option<Stirs>,
    /// The node that tells of messages.
    ear: Option<u16>,
    /// With the older protocol, once it has begun to listen: replies are not counted, and everything goes to that node.
    alone: bool,
    /// No more requests are taken until nothing is due.
    settling: bool,
    refreshing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pause: Option<Pin<Box<Sleep>>>,
    asking: Option<Asking>,
    /// Where the rest of a long request goes; `None` inside: nowhere.
    passing: Option<Option<u16>>,
    client_closed: bool,
}

impl Conn {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        client: DuplexStream,
        gone: CancellationToken,
        ids: Option<Ids>,
        is_for_client: bool,
    ) -> Conn {
        Conn {
            map: cluster.map(),
            heeds: Heed::of(&cluster),
            cluster,
            client,
            gone: Box::pin(gone.cancelled_owned()),
            ids,
            is_for_client,
            requests: RequestScanner::new(RequestLimits::default()),
            inbox: BytesMut::new(),
            inbox_bytes_max: WHOLE_BYTES_MAX,
            room: Vec::new(),
            to_client: BytesMut::new(),
            nodes: Vec::new(),
            detour: None,
            main: None,
            due: VecDeque::new(),
            kept_bytes: 0,
            collected: BytesMut::new(),
            parts: Parts::default(),
            identity: Identity::default(),
            multi: Multi::No,
            watching: None,
            watch_lost: false,
            bound_slot: None,
            waiting: None,
            stirs: None,
            ear: None,
            alone: false,
            settling: false,
            refreshing: None,
            pause: None,
            asking: None,
            passing: None,
            client_closed: false,
        }
    }

    /// Serves until either side has ended.
    pub(super) async fn run(mut self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
        let _ = self.client.shutdown().await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // First of all: nothing may be sent for somebody who is gone.
        if self.gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            match self.turn(cx) {
                Ok(true) => {}
                Ok(false) if self.is_over() => return Poll::Ready(()),
                Ok(false) => {
                    self.release_memory();
                    return Poll::Pending;
                }
                Err(Ended) => return Poll::Ready(()),
            }
        }
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = self.heed(cx)?;
        moved |= self.stirred(cx)?;
        moved |= self.refreshed(cx);
        moved |= self.read_client(cx)?;
        moved |= self.take(cx)?;
        moved |= self.drive_nodes(cx)?;
        moved |= self.take_replies(cx)?;
        moved |= write(&mut self.client, cx, &mut self.to_client)?;
        Ok(moved)
    }

    /// The client will send no more, and has got all it is owed.
    fn is_over(&self) -> bool {
        let is_idle = self.due.is_empty() && self.to_client.is_empty();
        let is_ready = self.asking.is_none() && self.refreshing.is_none() && self.pause.is_none();
        self.client_closed && is_idle && is_ready
    }

    fn release_memory(&mut self) {
        let nodes = self.nodes.iter_mut().flatten().chain(&mut self.detour);
        let buffers = nodes.flat_map(|node| [&mut node.to, &mut node.from]);
        let own = [&mut self.inbox, &mut self.to_client, &mut self.collected];
        for buffer in buffers.chain(own).filter(|buffer| buffer.is_empty()) {
            *buffer = BytesMut::new();
        }
    }

    /// Takes over what has been learned of the cluster.
    fn refreshed(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(refreshing) = &mut self.refreshing else { return false };
        if refreshing.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.refreshing = None;
        self.map = self.cluster.map();
        true
    }

    fn refresh(&mut self) {
        if self.refreshing.is_none() {
            let (cluster, seen) = (self.cluster.clone(), self.map.generation);
            self.refreshing = Some(Box::pin(async move { cluster.refresh(seen).await }));
        }
        self.settling = true;
    }

    fn read_client(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        if self.client_closed || self.inbox.len() >= self.inbox_bytes_max {
            return Ok(false);
        }
        match read(&mut self.client, cx, &mut self.inbox) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => {
                self.client_closed = true;
                Ok(true)
            }
            Poll::Ready(read) => {
                read?;
                Ok(true)
            }
        }
    }

    // ---- Nodes ----

    /// A connection to a node, as a future, that knows all of the client.
    fn connect(&self, address: &Address) -> Connecting {
        let (cluster, identity, ids) = (self.cluster.clone(), self.identity.clone(), self.ids.clone());
        let (address, is_for_client) = (address.clone(), self.is_for_client);
        // Before there is a second backend nothing has to be let go of, and users who may not ask for it need not.
        let asks_id = self.gate().is_some_and(|gate| gate.has_several());
        Box::pin(async move {
            let deployment = cluster.deployment_at(&address);
            let endpoint = &deployment.endpoint;
            let opened = timeout(cluster.limit(), async {
                let io = match is_for_client {
                    true => Io::anonymous(endpoint, &address, deployment.options).await?,
                    false => Io::open(endpoint, &address).await?,
                };
                identity.say_all(io, endpoint, &address).await
            });
            let in_vain = || ErrorKind::Connect(io::ErrorKind::TimedOut.into());
            let mut io = opened.await.unwrap_or_else(|_| {
                Err(Error::new(endpoint.side, address.to_string(), "connect", in_vain()))
            })?;
            if let Some(ids) = ids {
                if ids.lock().unwrap_or_else(PoisonError::into_inner).len() >= IDS_MAX {
                    return Err(Error::own(
                        "connect to a node",
                        "the connections of before have to be ended first",
                    ));
                }
                let id = client_id(&mut io).await.map_err(|e| {
                    Error::new(endpoint.side, address.to_string(), "CLIENT ID", ErrorKind::Broken(e))
                })?;
                ids.lock().unwrap_or_else(PoisonError::into_inner).push((address, id));
                return Ok((io, Some(id)));
            }
            let id = if asks_id { told_id(&mut io, cluster.limit()).await? } else { None };
            Ok((io, id))
        })
    }

    fn new_node(&self, address: Address) -> Box<Node> {
        Box::new(Node {
            state: State::Connecting(self.connect(&address)),
            address,
            to: BytesMut::new(),
            from: BytesMut::new(),
            boundary: Boundary::default(),
            due: 0,
            id: None,
        })
    }

    fn is_bound_to(&self, number: u16) -> bool {
        self.watching == Some(number) || self.ear == Some(number) || self.multi == Multi::At(number)
    }

    /// The node of a number, with a connection that is alive as far as can be seen.
    fn node(&mut self, cx: &mut Context<'_>, number: u16) -> Result<&mut Node, Ended> {
        let at = usize::from(number);
        if self.nodes.len() <= at {
            self.nodes.resize_with(at + 1, || None);
        }
        let address = self.map.address(number);
        let is_usable = match &mut self.nodes[at] {
            None => false,
            Some(node) if node.due > 0 => true,
            // Its number has been given to another one.
            Some(node) if node.address != *address => false,
            Some(node) => match &mut node.state {
                State::Up(io) => read(io, cx, &mut node.from).is_pending() || !node.from.is_empty(),
                State::Connecting(_) => true,
                State::Failed(_) => false,
            },
        };
        if !is_usable {
            if self.nodes[at].is_some() && self.is_bound_to(number) {
                return Err(Ended);
            }
            self.nodes[at] = Some(self.new_node(self.map.address(number).clone()));
        }
        self.nodes[at].as_deref_mut().ok_or(Ended)
    }

    fn node_at(&mut self, at: At) -> Option<&mut Node> {
        match at {
            At::Here => None,
            At::Node(number) => self.nodes.get_mut(usize::from(number))?.as_deref_mut(),
            At::Detour => self.detour.as_deref_mut(),
        }
    }

    /// Connects, and sends what can be sent.
    fn drive_nodes(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = false;
        let closes = self.client_closed && self.inbox.is_empty();
        for node in self.nodes.iter_mut().flatten().chain(&mut self.detour) {
            if let State::Connecting(connecting) = &mut node.state
                && let Poll::Ready(connected) = connecting.as_mut().poll(cx)
            {
                moved = true;
                node.state = match connected {
                    Ok((io, id)) => {
                        node.id = id;
                        State::Up(Box::new(io))
                    }
                    Err(error) => {
                        node.to.clear();
                        State::Failed(error.to_string())
                    }
                };
            }
            if let State::Up(io) = &mut node.state {
                moved |= write(&mut **io, cx, &mut node.to)?;
                if closes && node.to.is_empty() && node.due > 0 {
                    // As a server would learn it: whoever waits for something to happen is let go of.
                    let _ = Pin::new(&mut **io).poll_shutdown(cx);
                }
            }
        }
        Ok(moved)
    }

    // ---- Replies ----

    fn take_replies(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = false;
        loop {
            if let Some(pause) = &mut self.pause {
                if pause.as_mut().poll(cx).is_pending() {
                    return Ok(moved);
                }
                self.pause = None;
                self.again();
                moved = true;
            }
            let Some(head) = self.due.front() else { return Ok(self.listen(cx)? || moved) };
            let at = head.at;
            if at == At::Here {
                if let Some(What::Own(reply)) = self.due.pop_front().map(|due| due.what) {
                    self.to_client.extend_from_slice(&reply);
                }
                moved = true;
                continue;
            }
            match self.reply_of(cx, at)? {
                true => moved = true,
                false => return Ok(moved),
            }
        }
    }

    /// Takes what has arrived of the reply that is next; true where that was anything.
    fn reply_of(&mut self, cx: &mut Context<'_>, at: At) -> Result<bool, Ended> {
        let is_full = self.to_client.len() >= OUT_BYTES_MAX;
        let Some(node) = self.node_at(at) else { return Err(Ended) };
        let io = match &mut node.state {
            State::Connecting(_) => return Ok(false),
            State::Failed(why) => {
                let why = why.clone();
                self.unreachable(why);
                return Ok(true);
            }
            State::Up(io) => io,
        };
        if is_full {
            return Ok(false);
        }
        let mut has_read = false;
        if node.from.len() < READ_BYTES {
            match read(&mut **io, cx, &mut node.from) {
                Poll::Pending => {}
                // What has been carried out is not known.
                Poll::Ready(Ok(0) | Err(_)) if node.from.is_empty() => return Err(Ended),
                Poll::Ready(_) => has_read = true,
            }
        }
        Ok(self.take_frames(at)? || has_read)
    }

    /// Hands on the frames of a node for as long as they are next in turn; true where there were any.
    fn take_frames(&mut self, at: At) -> Result<bool, Ended> {
        let mut moved = false;
        loop {
            let is_mine = self.due.front().map_or(self.ear.map(At::Node) == Some(at), |head| head.at == at);
            let is_collected = self.due.front().is_some_and(|head| head.what.is_collected());
            if !is_mine || self.pause.is_some() {
                return Ok(moved);
            }
            // What has come by now was carried out while the slot was this front's; of what comes later that is not known.
            let guard = self.due.front().and_then(|head| head.guard.as_ref());
            if guard.is_some_and(|guard| guard.lease_left().is_zero()) {
                return Err(Ended);
            }
            let Some(node) = self.node_at(at).filter(|node| !node.from.is_empty()) else { return Ok(moved) };
            if node.boundary.is_between() && node.from[0] == b'-' {
                let Some(end) = node.from.iter().position(|byte| *byte == b'\n') else {
                    return if node.from.len() > ERROR_BYTES_MAX { Err(Ended) } else { Ok(moved) };
                };
                let line = node.from.split_to(end + 1).freeze();
                self.refused(line);
                moved = true;
                continue;
            }
            let (bytes, kind) = match node.boundary.pass(&node.from) {
                Ok(Passed::Part(bytes)) => (bytes, None),
                Ok(Passed::Frame { bytes, kind }) => (bytes, Some(kind)),
                Err(error) => {
                    tracing::warn!(%error, "a node of the cluster does not speak RESP");
                    return Err(Ended);
                }
            };
            let part = node.from.split_to(bytes);
            if is_collected {
                self.collected.extend_from_slice(&part);
            } else {
                self.to_client.extend_from_slice(&part);
            }
            if self.collected.len() > every::COLLECTED_BYTES_MAX {
                tracing::warn!("the replies of a cluster's nodes to one request are too long");
                return Err(Ended);
            }
            moved |= bytes > 0;
            match kind {
                None => return Ok(moved),
                // Messages come when they come. One that came within a reply that is looked at is lost to it, not to the client.
                Some(b'>') => {
                    let pushed = std::mem::take(&mut self.collected);
                    self.to_client.extend_from_slice(&pushed);
                }
                Some(_) => self.arrived(true),
            }
        }
    }

    /// Hears of messages, and of the end of a connection on which something is open.
    fn listen(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = false;
        let bound = match self.multi {
            Multi::At(number) => Some(number),
            _ => None,
        };
        for number in [self.ear, self.watching, bound].into_iter().flatten() {
            let is_full = self.to_client.len() >= OUT_BYTES_MAX;
            let Some(node) = self.node_at(At::Node(number)) else { return Err(Ended) };
            let State::Up(io) = &mut node.state else { continue };
            if is_full || node.from.len() >= READ_BYTES {
                continue;
            }
            match read(&mut **io, cx, &mut node.from) {
                Poll::Pending => {}
                Poll::Ready(Ok(0) | Err(_)) => return Err(Ended),
                Poll::Ready(Ok(_)) => moved = true,
            }
            if self.ear == Some(number) {
                moved |= self.take_frames(At::Node(number))?;
            }
        }
        Ok(moved)
    }

    /// The whole reply of the first has come.
    fn arrived(&mut self, is_agreed: bool) {
        if let Some(What::Held(held)) = self.due.front_mut().map(|due| &mut due.what)
            && held.left > 0
        {
            held.left -= 1;
            self.collected.clear();
            return;
        }
        let Some(due) = self.due.pop_front() else { return };
        self.kept_bytes -= due.request.as_ref().map_or(0, Bytes::len);
        if let Some(node) = self.node_at(due.at) {
            node.due = node.due.saturating_sub(1);
        }
        let reply = std::mem::take(&mut self.collected);
        match due.what {
            What::Reply | What::Own(_) | What::Swallowed | What::Fence | What::Held(_) | What::Watched => {}
            What::Replaced(own) => self.to_client.extend_from_slice(&own),
            What::Noted(what, request) if is_agreed => {
                self.identity.say(what, request.as_ref().into());
                self.forget_all_but(due.at);
            }
            What::Reset if is_agreed => {
                self.identity.forget();
                self.forget_all_but(due.at);
            }
            What::Noted(..) | What::Reset => {}
            What::Part => {
                let reply = match self.parts.are_keys() {
                    true => self.own_keys(reply.to_vec(), false, due.at).into(),
                    false => reply.freeze(),
                };
                if let Some(whole) = self.parts.add(reply) {
                    self.to_client.extend_from_slice(&whole);
                }
            }
            What::Scanned(node) => {
                let reply = every::with_cursor(&self.map, self.cursor_shift(), node, &reply);
                let reply = self.own_keys(reply, true, At::Node(node));
                self.to_client.extend_from_slice(&reply);
            }
        }
    }

    /// Other nodes have to be told anew what the client is.
    fn forget_all_but(&mut self, kept: At) {
        for (number, node) in (0..).zip(&mut self.nodes) {
            if At::Node(number) != kept && node.as_ref().is_some_and(|node| node.due == 0) {
                *node = None;
            }
        }
        self.detour = None;
    }

    /// A node has answered with an error: `line`, as it came.
    fn refused(&mut self, line: Bytes) {
        match self.due.front_mut().map(|due| &mut due.what) {
            Some(What::Held(held)) if held.left > 0 => {
                if held.refused.is_none() && is_about_slots(&line) {
                    held.refused = Some(line);
                }
                self.arrived(false);
            }
            Some(What::Held(held)) => {
                let why = if is_about_slots(&line) { Some(line.clone()) } else { held.refused.take() };
                match why {
                    // What was watched there is not known elsewhere: as if it had been changed.
                    Some(_) if self.due.front().is_some_and(|due| due.request.is_none()) => {
                        let aborted = self.aborted();
                        self.refresh();
                        self.pass_error(aborted);
                    }
                    why => self.refused_by_one(why.unwrap_or(line)),
                }
            }
            Some(What::Watched) if is_about_slots(&line) => {
                self.watch_lost = true;
                self.refresh();
                self.pass_error(b"+OK\r\n");
            }
            _ => self.refused_by_one(line),
        }
    }

    /// The reply to a transaction that is not carried out since something that was watched has changed.
    fn aborted(&self) -> &'static [u8] {
        match self.identity.protocol() {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        }
    }

    fn refused_by_one(&mut self, line: Bytes) {
        if let Some(answer) = self.sent_on(&line) {
            return self.pass_error(&answer);
        }
        let text = line[1..].trim_ascii_end();
        let code = ServerError::classify(text).code;
        if !is_about_slots(&line) {
            return self.pass_error(&line);
        }
        let Some(head) = self.due.front_mut() else {
            return self.pass_error(if code == Code::ClusterDown { &line } else { MOVING });
        };
        let is_kept = head.request.is_some();
        head.tries += 1;
        let is_last = head.tries > TRIES_MAX;
        if matches!(code, Code::Moved(..) | Code::ClusterDown) {
            self.refresh();
        }
        match code {
            Code::ClusterDown if !is_kept || is_last => self.pass_error(&line),
            // What was said would lead the client past the front.
            _ if !is_kept || is_last => self.pass_error(MOVING),
            Code::Moved(_, to) => self.redirect(&to, false),
            Code::Ask(_, to) => self.redirect(&to, true),
            _ => self.wait(),
        }
    }

    /// An error is the reply.
    fn pass_error(&mut self, line: &[u8]) {
        if let Some(What::Held(held)) = self.due.front_mut().map(|due| &mut due.what) {
            held.left = 0;
        }
        match self.due.front().map(|head| &head.what) {
            // The reply to the question itself is still to come, unless it is that which was refused.
            Some(What::Fence) if !line.windows(6).any(|word| word == b"'ping'") => {
                return self.to_client.extend_from_slice(line);
            }
            Some(What::Swallowed | What::Replaced(_) | What::Fence) => {}
            Some(What::Part | What::Scanned(_)) => self.collected.extend_from_slice(line),
            _ => self.to_client.extend_from_slice(line),
        }
        if !self.alone {
            self.arrived(false);
        }
    }

    /// Sends the first that is due to another node, which its own has named.
    fn redirect(&mut self, announced: &str, asking: bool) {
        self.settling = true;
        let Some(head) = self.due.front() else { return };
        let (at, is_first) = (head.at, head.tries < 3);
        let told_by = self.node_at(at).map(|node| node.address.clone());
        let to = told_by.and_then(|told_by| self.cluster.deployment_at(&told_by).reach(announced, &told_by));
        match to {
            // It may be the same one over and over again while the nodes disagree.
            Some(to) if is_first || asking => self.detour(to, asking),
            _ => self.wait(),
        }
    }

    fn wait(&mut self) {
        self.settling = true;
        self.pause = Some(Box::pin(sleep(PAUSE)));
    }

    /// After a pause: the first that is due is sent to whoever has its slot by now.
    fn again(&mut self) {
        self.map = self.cluster.map();
        let Some(head) = self.due.front() else { return };
        let owner = match head.slot {
            Some(slot) => self.place_of(head.guard.as_ref(), slot),
            None => {
                let primaries = self.map.primaries();
                primaries.get(head.tries as usize % primaries.len().max(1)).copied()
            }
        };
        match owner {
            Some(owner) => self.detour(self.map.address(owner).clone(), false),
            None => self.unreachable("the slot has no owner".to_owned()),
        }
    }

    /// The node of the first that is due cannot be reached, and nothing was sent there.
    fn unreachable(&mut self, why: String) {
        self.refresh();
        let Some(head) = self.due.front_mut() else { return };
        head.tries += 1;
        let can_retry = head.request.is_some() && !matches!(head.what, What::Part | What::Scanned(_));
        if can_retry && head.tries <= TRIES_MAX {
            return self.wait();
        }
        let line = format!("-CLUSTERDOWN whimbrel front: {}\r\n", one_line(&why));
        self.pass_error(line.as_bytes());
    }

    fn detour(&mut self, to: Address, asking: bool) {
        let is_there = self.detour.as_ref().is_some_and(|node| {
            node.address == to && matches!(node.state, State::Up(_) | State::Connecting(_))
        });
        let Some(head) = self.due.front_mut() else { return };
        let Some(request) = head.request.clone() else { return };
        if let What::Held(held) = &mut head.what {
            (held.left, held.refused) = (held.count, None);
        }
        let before = std::mem::replace(&mut head.at, At::Detour);
        if let Some(node) = self.node_at(before) {
            node.due = node.due.saturating_sub(1);
        }
        if !is_there {
            self.detour = Some(self.new_node(to));
        }
        let Some(node) = self.detour.as_deref_mut() else { return };
        if asking {
            node.to.extend_from_slice(&as_array(&[b"ASKING".to_vec()]));
            node.due += 1;
            let what = What::Swallowed;
            self.due.push_front(Due::new(At::Detour, what));
        }
        node.due += 1;
        node.to.extend_from_slice(&request);
    }
}

/// Whether an error says that a node does not carry something out which another one may, or the same one later.
fn is_about_slots(line: &[u8]) -> bool {
    let code = ServerError::classify(line.get(1..).unwrap_or_default().trim_ascii_end()).code;
    matches!(code, Code::Moved(..) | Code::Ask(..) | Code::TryAgain | Code::ClusterDown)
}

/// The same, where its user may ask for it.
///
/// # Errors
/// Where the connection is lost.
async fn told_id(io: &mut Io, limit: Duration) -> Result<Option<i64>> {
    let lost = |e: io::Error| Error::own("ask for the id of a connection", e);
    let asked = async {
        io.write_all(&as_array(&[b"CLIENT".to_vec(), b"ID".to_vec()])).await.map_err(lost)?;
        io.flush().await.map_err(lost)?;
        Replies::default().next(io).await.map_err(lost)
    };
    let told = timeout(limit, asked).await.map_err(|_| lost(io::ErrorKind::TimedOut.into()))?;
    Ok(told?.as_int())
}

/// The id that a server has given a connection.
async fn client_id(io: &mut Io) -> io::Result<i64> {
    io.write_all(&as_array(&[b"CLIENT".to_vec(), b"ID".to_vec()])).await?;
    io.flush().await?;
    match Replies::default().next(io).await? {
        Value::Int(id) => Ok(id),
        _ => Err(io::Error::other("the server does not tell the id of a connection")),
    }
}
