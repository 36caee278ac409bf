//! One client, its own connection to the server, and what is on its way between them.
//!
//! ```text
//!          inbox           to server
//! client ────────▶ scan ─────────────▶ server
//!        ◀──────── count ◀────────────
//!         to client          from server
//! ```
//!
//! Requests are scanned for their ends and first words, replies for their ends; payloads are only copied. All that has
//! arrived is passed on in one write. Each request is noted in `due`, so that a reply of our own comes in its turn.
//!
//! **Bounds.** A buffer that is full is not read into, so TCP slows down whoever fills it. A session with all buffers full
//! holds [`INBOX_BYTES_MAX`] and [`READ_BYTES`] of requests, [`OUT_BYTES_MAX`] and that much more in each direction, and notes of
//! [`DUE_MAX`] requests under way; with what buffers allocate ahead as they grow, and errors of our own among the notes, 4 MiB. One that
//! is idle holds no buffers. The length of a value does not matter: it is passed on as it arrives.

mod call;
pub(crate) mod context;
mod elements;
mod moving;
mod plain;
mod sharing;

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep, timeout};
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Io;
use whimbrel_wire::boundary::{Boundary, Passed};
use whimbrel_wire::request::{Request, RequestLimits, RequestScanner};

use self::moving::Moving;
use self::plain::{Change, Plain};
use self::sharing::{Sharing, Wish};
use crate::command::{Handling, Trait, handling, is_container};
use crate::face::{self, Face, Question};
use crate::migrate::direction::Home;
use crate::migrate::keyspace::{Half, with_cursor};
use crate::migrate::locks;
use crate::migrate::stages::Entrance;
use crate::migrate::staging::without_hidden;
use crate::pipe::frame::{REFUSED_COMMAND, as_array, refusal};
use crate::pipe::io::{Ended, OUT_BYTES_MAX, read, write};
use crate::session::context::SessionContext;
use crate::upstream::identity::Identity;
use crate::upstream::shared::Line;

/// A client that has sent so much which has not been passed on yet is not read from. A header and a line fit in.
const INBOX_BYTES_MAX: usize = 128 << 10;

/// A client with so many requests under way is not read from.
const DUE_MAX: usize = 8 << 10;

/// Room for notes that an idle session keeps.
const DUE_KEPT_MAX: usize = 64;

/// A reply that is changed is held whole, and cannot be longer.
const COLLECTED_BYTES_MAX: usize = 64 << 20;

/// A request longer than this is passed on while it arrives.
const WHOLE_BYTES_MAX: usize = 32 << 10;

/// How long nothing may move once the client will send no more, or is told to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a client is owed, in the order of its requests.
#[derive(Debug)]
enum Due {
    /// A reply of the server.
    Reply,
    /// Something else, or a reply that something hangs on.
    Special(Box<Special>),
}

#[derive(Debug)]
enum Special {
    /// A reply of our own.
    Own(Vec<u8>),
    /// A reply to what the client said of itself.
    Noted(Trait, Box<[u8]>),
    /// A reply to what changes the session at the source.
    Changed(Change),
    /// A reply to `RESET`.
    Reset,
    /// A reply of the source about keys that may not move before it has arrived.
    Held(Box<[locks::Shared]>),
    /// A reply that the client does not get; it gets this instead.
    Replaced(BytesMut, Vec<u8>),
    /// A reply to `SCAN`, which is changed. Until that of the source has arrived, its read is under way.
    Scanned(BytesMut, Half, Option<locks::Visit>),
    /// A reply of the target to what iterates over the elements of a key, likewise.
    Iterated(BytesMut, Half),
    /// A reply to something that only a cluster knows.
    Faced(BytesMut, Question),
}

impl Special {
    /// Where the reply is collected, if it is not passed on as it comes.
    fn collected(&mut self) -> Option<&mut BytesMut> {
        match self {
            Special::Replaced(collected, _)
            | Special::Scanned(collected, _, _)
            | Special::Iterated(collected, _)
            | Special::Faced(collected, _) => Some(collected),
            _ => None,
        }
    }
}

/// How far the end of a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// No more requests are taken. It ends when what is due has been sent, or time is up.
    Leaving,
}

/// The connection to the server, and what is on its way there and back.
#[derive(Debug)]
struct Server {
    way: Way,
    to: BytesMut,
    /// Requests in `to`, where they are counted: on a shared connection.
    asked: usize,
    from: BytesMut,
    boundary: Boundary,
    /// It knows that nothing more will be sent.
    shut: bool,
}

/// How the server is reached.
#[derive(Debug)]
enum Way {
    /// By the client's own connection.
    Own(Io),
    /// By one that several clients share.
    Shared(Line),
}

type Connecting = Pin<Box<dyn Future<Output = Result<Io>> + Send>>;

enum Link {
    Connecting(Connecting),
    Up(Box<Server>),
    /// It could not be reached; the client has been told.
    Lost,
}

impl Server {
    fn new(way: Way) -> Server {
        let (to, from) = (BytesMut::new(), BytesMut::new());
        Server { way, to, asked: 0, from, boundary: Boundary::default(), shut: false }
    }

    /// Nothing has been sent that is not answered, but for what the caller knows of.
    fn is_idle(&self) -> bool {
        self.to.is_empty() && self.from.is_empty() && self.boundary.is_between()
    }

    /// Reads what has arrived, 0 bytes at the end of it.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &mut self.way {
            Way::Own(io) => read(io, cx, &mut self.from),
            Way::Shared(line) => line.take(cx, &mut self.from).map(Ok),
        }
    }

    fn is_shared(&self) -> bool {
        matches!(self.way, Way::Shared(_))
    }
}

pub(crate) struct Session<C> {
    shared: Arc<SessionContext>,
    client: C,
    link: Link,
    requests: RequestScanner,
    inbox: BytesMut,
    to_client: BytesMut,
    due: VecDeque<Due>,
    identity: Identity,
    /// Where keys may move later.
    plain: Option<Box<Plain>>,
    /// While keys move.
    moving: Option<Box<Moving>>,
    /// Where connections are shared.
    sharing: Option<Box<Sharing>>,
    /// False once the client has subscribed to something: then more or fewer replies come than requests.
    counted: bool,
    /// What the present request asks that only a cluster knows.
    asking: Option<Question>,
    /// The start of the present request has been passed on (or, with `true`, thrown away).
    passing: Option<bool>,
    stage: Stage,
    /// The client will send no more.
    client_closed: bool,
    farewell: Option<Pin<Box<Sleep>>>,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Session<C> {
    pub(crate) fn new(shared: Arc<SessionContext>, client: C) -> Session<C> {
        let (plain, moving) = match shared.stages.as_ref().map(|stages| stages.enter()) {
            None => (None, None),
            Some(Entrance::Forwarding(ticket)) => (Some(Box::new(Plain::new(ticket))), None),
            Some(Entrance::Moving(hub, ticket)) => (None, Some(Box::new(Moving::new(hub, ticket)))),
        };
        let sharing = shared.trunks.as_ref().filter(|_| plain.is_some());
        let sharing = sharing.map(|trunks| Box::new(Sharing::new(trunks.clone())));
        let identity = Identity::default();
        let connecting = match &moving {
            Some(moving) => moving.connect(Home::Target, &identity),
            None => connect(&shared),
        };
        let mut session = Session {
            shared,
            client,
            link: Link::Connecting(connecting),
            requests: RequestScanner::new(RequestLimits::default()),
            inbox: BytesMut::new(),
            to_client: BytesMut::new(),
            due: VecDeque::new(),
            identity,
            plain,
            moving,
            sharing,
            counted: true,
            asking: None,
            passing: None,
            stage: Stage::Open,
            client_closed: false,
            farewell: None,
        };
        if session.moving.is_none() {
            // A name, and the words that may matter.
            session.requests.keep(if session.shared.face.is_some() { face::WORDS } else { 2 });
        }
        session
    }

    /// Serves until one side hangs up.
    pub(crate) async fn run(mut self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
        // With TLS the end has to be told, or it looks like a cut.
        let _ = timeout(FAREWELL, self.client.shutdown()).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let call = match (&mut self.plain, &mut self.moving) {
            (Some(plain), _) => Some(&mut plain.call),
            (None, moving) => moving.as_mut().map(|moving| &mut moving.call),
        };
        if call.is_some_and(|call| call.is_evicted(cx)) {
            return Poll::Ready(());
        }
        loop {
            match self.turn(cx) {
                Ok(true) => {}
                Ok(false) if self.is_over(cx) || self.is_stalled(cx) => return Poll::Ready(()),
                Ok(false) if self.is_at_rest() => self.go_over(),
                Ok(false) => {
                    self.release_memory();
                    return Poll::Pending;
                }
                Err(Ended) => return Poll::Ready(()),
            }
        }
    }

    /// Moves what can be moved; true where anything was.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = self.poll_connecting(cx);
        self.watch_parked(cx);
        moved |= self.read_client(cx)?;
        let taken = if self.moving.is_some() { self.take_while_moving(cx) } else { self.take_requests() };
        moved |= taken;
        if self.client_closed && !taken && self.wants_requests() && !self.is_held_up() {
            // There was room, so no whole request is left.
            moved |= self.leave();
        }
        moved |= self.write_server(cx)?;
        moved |= self.read_server(cx)?;
        moved |= self.take_replies()?;
        moved |= self.write_client(cx)?;
        Ok(moved)
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        if self.stage == Stage::Open {
            return false;
        }
        let settled = self.due.is_empty() && self.to_client.is_empty();
        settled || self.farewell.as_mut().is_none_or(|timer| timer.as_mut().poll(cx).is_ready())
    }

    /// An idle connection holds no buffers: there may be thousands. What has been taken out of one from its start does not
    /// count as its capacity, so each that is empty is given up.
    fn release_memory(&mut self) {
        let (to, from) = match &mut self.link {
            Link::Up(server) => (Some(&mut server.to), Some(&mut server.from)),
            Link::Connecting(_) | Link::Lost => (None, None),
        };
        let buffers = [Some(&mut self.inbox), Some(&mut self.to_client), to, from];
        for buffer in buffers.into_iter().flatten().filter(|buffer| buffer.is_empty()) {
            *buffer = BytesMut::new();
        }
        if self.due.is_empty() && self.due.capacity() > DUE_KEPT_MAX {
            self.due = VecDeque::new();
        }
    }

    fn poll_connecting(&mut self, cx: &mut Context<'_>) -> bool {
        let Link::Connecting(connecting) = &mut self.link else { return false };
        let Poll::Ready(connected) = connecting.as_mut().poll(cx) else { return false };
        match connected {
            Ok(io) => self.link = Link::Up(Box::new(Server::new(Way::Own(io)))),
            Err(error) => {
                tracing::warn!(%error, "the server cannot be reached for a client");
                self.shared.counts.unreachable.fetch_add(1, Ordering::Relaxed);
                self.link = Link::Lost;
                self.say(format!("-ERR whimbrel front: {error}\r\n").into_bytes());
                self.leave();
            }
        }
        true
    }

    // ---- From the client to the server ----

    fn wants_requests(&self) -> bool {
        self.stage == Stage::Open
            && self.due.len() < DUE_MAX
            && (self.passing.is_some() || self.plain.as_ref().is_none_or(|plain| plain.takes_requests()))
            && self.to_client.len() < OUT_BYTES_MAX
            && matches!(&self.link, Link::Up(server) if server.to.len() < OUT_BYTES_MAX)
    }

    fn read_client(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        if self.client_closed || self.stage != Stage::Open || self.inbox.len() >= self.inbox_bytes_max() {
            return Ok(false);
        }
        match read(&mut self.client, cx, &mut self.inbox) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => {
                // It may have closed one half only, and still want to know.
                self.client_closed = true;
                Ok(true)
            }
            Poll::Ready(read) => {
                read?;
                Ok(true)
            }
        }
    }

    /// Takes requests out of the inbox for as long as there is room for what comes of them.
    fn take_requests(&mut self) -> bool {
        let mut taken = 0;
        // Where the requests begin that are to be passed on as they are.
        let mut plain_from = 0;
        while self.wants_requests() && taken < self.inbox.len() {
            let rest = &self.inbox[taken..];
            let (len, whole) = match self.requests.scan(rest) {
                Ok(Request::Array(len)) => (len, true),
                Ok(Request::Inline(len, words)) if !words.is_empty() => {
                    if !self.is_where_it_goes(Wish::Own) {
                        break;
                    }
                    // It goes on as an array, so that there is one form from here on.
                    self.pass_on(plain_from, taken);
                    taken += len;
                    plain_from = taken;
                    self.requests.next();
                    self.take_words(&words);
                    continue;
                }
                Ok(Request::Nothing(len) | Request::Inline(len, _)) => {
                    self.pass_on(plain_from, taken);
                    taken += len;
                    plain_from = taken;
                    self.requests.next();
                    continue;
                }
                Ok(Request::Incomplete(_)) => match self.passable(rest) {
                    Some(len) => (len, false),
                    None => break,
                },
                Err(bad) => {
                    self.pass_on(plain_from, taken);
                    if let Some(answer) = bad.answer() {
                        self.say(answer.into_bytes());
                    }
                    self.leave();
                    self.inbox.clear();
                    return true;
                }
            };
            if self.sharing.is_some() && self.passing.is_none() {
                let wish = self.wish(taken, whole.then_some(len));
                if !self.is_where_it_goes(wish) {
                    break;
                }
            }
            let rest = &self.inbox[taken..];
            let is_passed = match self.passing {
                Some(thrown_away) => !thrown_away,
                None => {
                    let args = self.requests.args();
                    let word = |i: usize| args.get(i).and_then(|range| rest.get(range.clone()));
                    let name = word(0).unwrap_or_default();
                    if self.shared.face.is_some() {
                        let words: Vec<&[u8]> =
                            args.iter().map_while(|range| rest.get(range.clone())).collect();
                        self.asking =
                            Question::of(&words).filter(|_| whole && self.requests.args_left() == 0);
                    }
                    match handling(name, word(1)) {
                        Handling::Refused(why) => {
                            let error = refusal(name, why);
                            self.pass_on(plain_from, taken);
                            plain_from = taken;
                            self.say_or_have_said(error);
                            false
                        }
                        Handling::Subscribe => {
                            self.counted = false;
                            true
                        }
                        Handling::Noted(note) if self.plain.is_some() || self.shared.face.is_some() => {
                            let request = whole.then(|| rest[..len].into());
                            let is_first = word(1).is_some_and(|database| database == b"0");
                            self.note(note, request, is_first);
                            true
                        }
                        Handling::Passed | Handling::Container(_) | Handling::Noted(_) => {
                            self.owe_reply();
                            true
                        }
                    }
                }
            };
            if !is_passed {
                self.pass_on(plain_from, taken);
                plain_from = taken + len;
            }
            taken += len;
            if whole {
                self.passing = None;
                self.requests.next();
            } else {
                self.passing = Some(!is_passed);
                self.requests.forget(len);
            }
        }
        self.pass_on(plain_from, taken);
        self.inbox.advance(taken);
        taken > 0
    }

    /// How much of an unfinished request can be passed on already: where it is long, and what to do with it is known.
    fn passable(&self, rest: &[u8]) -> Option<usize> {
        let bytes = self.requests.forgettable(rest);
        if self.passing.is_some() {
            return (bytes > 0).then_some(bytes);
        }
        let args = self.requests.args();
        let name = args.first().and_then(|range| rest.get(range.clone()))?;
        let is_known = !is_container(name) || args.get(1).is_some_and(|range| range.end <= rest.len());
        (rest.len() > WHOLE_BYTES_MAX && is_known).then_some(bytes)
    }

    fn take_words(&mut self, words: &[Vec<u8>]) {
        let name = words.first().map(Vec::as_slice).unwrap_or_default();
        if self.shared.face.is_some() {
            self.asking = Question::of(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        let second = words.get(1).map(Vec::as_slice);
        let request = as_array(words);
        match handling(name, second) {
            Handling::Refused(why) => return self.say_or_have_said(refusal(name, why)),
            Handling::Subscribe => self.counted = false,
            Handling::Noted(note) if self.plain.is_some() || self.shared.face.is_some() => {
                self.note(note, Some(request.as_slice().into()), second == Some(b"0"));
            }
            Handling::Passed | Handling::Container(_) | Handling::Noted(_) => self.owe_reply(),
        }
        if let Link::Up(server) = &mut self.link {
            server.to.extend_from_slice(&request);
        }
    }

    fn owe_reply(&mut self) {
        self.owe(Due::Reply);
    }

    fn owe(&mut self, due: Due) {
        let due = match (self.asking.take(), due) {
            (Some(asked), Due::Reply) => Due::Special(Box::new(Special::Faced(BytesMut::new(), asked))),
            (_, due) => due,
        };
        if self.counted {
            self.due.push_back(due);
            if let Link::Up(server) = &mut self.link {
                server.asked += 1;
            }
        }
    }

    /// A reply of our own, after all that are due before it.
    fn say(&mut self, reply: Vec<u8>) {
        self.due.push_back(Due::Special(Box::new(Special::Own(reply))));
    }

    /// An error of our own in its turn. Where replies are not counted only the server knows when that is: it is sent something that it
    /// refuses, with the reason among its words, as which it comes back.
    fn say_or_have_said(&mut self, error: Vec<u8>) {
        if self.counted {
            return self.say(error);
        }
        let why = error.strip_prefix(b"-ERR ").unwrap_or(&error).trim_ascii().to_vec();
        if let Link::Up(server) = &mut self.link {
            server.to.extend_from_slice(&as_array(&[REFUSED_COMMAND.to_vec(), why]));
        }
    }

    fn pass_on(&mut self, from: usize, to: usize) {
        if let Link::Up(server) = &mut self.link
            && from < to
        {
            server.to.extend_from_slice(&self.inbox[from..to]);
        }
    }

    /// Takes no more requests; true where it has just come to that.
    fn leave(&mut self) -> bool {
        if self.stage == Stage::Leaving {
            return false;
        }
        self.stage = Stage::Leaving;
        self.farewell = Some(Box::pin(sleep(FAREWELL)));
        true
    }

    fn write_server(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Link::Up(server) = &mut self.link else { return Ok(false) };
        let Way::Own(io) = &mut server.way else { return self.send_shared(cx) };
        let written = write(io, cx, &mut server.to)?;
        if self.client_closed && self.stage == Stage::Leaving && server.to.is_empty() && !server.shut {
            // The server learns it as it would without us, answers what has come, and lets go of a client that waits for
            // something to happen: nothing may be popped for one who has left.
            server.shut = Pin::new(io).poll_shutdown(cx).is_ready();
        }
        Ok(written)
    }

    // ---- From the server to the client ----

    fn read_server(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Link::Up(server) = &mut self.link else { return Ok(false) };
        if self.to_client.len() >= OUT_BYTES_MAX {
            return Ok(false);
        }
        let read = server.read(cx);
        if let (Some(sharing), Poll::Ready(Ok(bytes))) = (&mut self.sharing, &read) {
            sharing.got(*bytes);
        }
        if matches!(read, Poll::Ready(Ok(0) | Err(_))) && self.turn_to_target(cx) {
            return Ok(true);
        }
        match read {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => {
                // What came before the end is still the client's.
                self.take_replies()?;
                self.due.retain(
                    |due| matches!(due, Due::Special(special) if matches!(**special, Special::Own(_))),
                );
                self.link = Link::Lost;
                self.leave();
                Ok(true)
            }
            Poll::Ready(read) => {
                read?;
                Ok(true)
            }
        }
    }

    /// Hands replies to the client, those of our own in their turn.
    fn take_replies(&mut self) -> Result<bool, Ended> {
        let mut moved = self.say_own();
        let Link::Up(server) = &mut self.link else { return Ok(moved) };
        let mut passed = 0;
        while passed < server.from.len() {
            let (bytes, kind) = match server.boundary.pass(&server.from[passed..]) {
                Ok(Passed::Part(bytes)) => (bytes, None),
                Ok(Passed::Frame { bytes, kind }) => (bytes, Some(kind)),
                Err(error) => {
                    tracing::warn!(%error, "the server does not speak RESP");
                    return Err(Ended);
                }
            };
            let collected = match self.due.front_mut() {
                Some(Due::Special(special)) => special.collected(),
                _ => None,
            };
            match collected {
                Some(collected) => {
                    self.to_client.extend_from_slice(&server.from[..passed]);
                    collected.extend_from_slice(&server.from[passed..passed + bytes]);
                    server.from.advance(passed + bytes);
                    passed = 0;
                    moved = true;
                    if collected.len() > COLLECTED_BYTES_MAX {
                        tracing::warn!("a reply that has to be changed is too long");
                        return Err(Ended);
                    }
                }
                None => passed += bytes,
            }
            match kind {
                None => break,
                // Pushes come when they come.
                Some(b'>') => {}
                Some(kind) => {
                    let first = if is_own(self.due.front()) { None } else { self.due.pop_front() };
                    if let Some(sharing) = &mut self.sharing {
                        sharing.heard(first.as_ref(), kind);
                    }
                    let said = match first {
                        None | Some(Due::Reply) => None,
                        Some(Due::Special(special)) => {
                            let face = self.shared.face.as_deref();
                            arrived(
                                *special,
                                kind,
                                face,
                                &mut self.identity,
                                &mut self.plain,
                                &mut self.moving,
                            )
                        }
                    };
                    if said.is_some() || is_own(self.due.front()) {
                        self.to_client.extend_from_slice(&server.from[..passed]);
                        server.from.advance(passed);
                        passed = 0;
                        self.to_client.extend_from_slice(&said.unwrap_or_default());
                        while let Some(reply) = next_own(&mut self.due) {
                            self.to_client.extend_from_slice(&reply);
                        }
                    }
                }
            }
        }
        self.to_client.extend_from_slice(&server.from[..passed]);
        server.from.advance(passed);
        moved |= passed > 0;
        Ok(moved)
    }

    /// Says what of our own is first in turn.
    fn say_own(&mut self) -> bool {
        let is_between = match &self.link {
            Link::Up(server) => server.boundary.is_between(),
            // With two servers a client may be between both.
            Link::Connecting(_) => self.moving.is_some(),
            Link::Lost => true,
        };
        let mut said = false;
        while is_between && let Some(reply) = next_own(&mut self.due) {
            self.to_client.extend_from_slice(&reply);
            said = true;
        }
        said
    }

    fn write_client(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let written = write(&mut self.client, cx, &mut self.to_client)?;
        if written {
            self.is_reading();
        }
        if let (true, Some(farewell)) = (written, &mut self.farewell) {
            // Whoever still takes something in may take all of it.
            farewell.as_mut().reset(Instant::now() + FAREWELL);
        }
        Ok(written)
    }
}

/// What the arrival of a reply means; returns what the client gets in its place.
fn arrived(
    special: Special,
    kind: u8,
    face: Option<&Face>,
    identity: &mut Identity,
    plain: &mut Option<Box<Plain>>,
    moving: &mut Option<Box<Moving>>,
) -> Option<Vec<u8>> {
    let is_agreed = kind != b'-' && kind != b'!';
    match special {
        Special::Replaced(_, own) => return Some(own),
        Special::Scanned(reply, half, visit) => {
            // It has been carried out.
            drop(visit);
            return Some(without_hidden(with_cursor(half, &reply)));
        }
        Special::Iterated(reply, half) => return Some(with_cursor(half, &reply)),
        Special::Faced(reply, asked) => {
            let answer = face.and_then(|face| face.answer(asked, &reply, identity.protocol()));
            return Some(answer.map_or_else(|| reply.to_vec(), |answer| answer.to_vec()));
        }
        Special::Noted(what, request) if is_agreed => match plain {
            Some(plain) if plain.is_in_transaction() => plain.agreed(Change::Unkept),
            _ => identity.say(what, request),
        },
        Special::Reset if is_agreed => {
            identity.forget();
            if let Some(plain) = plain {
                plain.agreed(Change::Reset);
            }
            if let Some(moving) = moving {
                moving.agreed(Change::Reset);
            }
        }
        Special::Changed(change) if is_agreed => {
            if let Some(plain) = plain {
                plain.agreed(change);
            }
            if let Some(moving) = moving {
                moving.agreed(change);
            }
            return None;
        }
        // What was held is let go.
        _ => return None,
    }
    if let Some(moving) = moving {
        // The other server has to be told.
        moving.forget_parked();
    }
    None
}

fn is_own(due: Option<&Due>) -> bool {
    matches!(due, Some(Due::Special(special)) if matches!(**special, Special::Own(_)))
}

fn next_own(due: &mut VecDeque<Due>) -> Option<Vec<u8>> {
    if !is_own(due.front()) {
        return None;
    }
    match due.pop_front() {
        Some(Due::Special(special)) => match *special {
            Special::Own(reply) => Some(reply),
            _ => None,
        },
        _ => None,
    }
}

/// To the source, for a client who has been there before.
fn connect_again(shared: &Arc<SessionContext>, identity: &Identity) -> Connecting {
    let (shared, identity) = (shared.clone(), identity.clone());
    Box::pin(async move { shared.source.introduce(&identity).await })
}

/// To the source, for a client that will log in itself.
fn connect(shared: &Arc<SessionContext>) -> Connecting {
    let shared = shared.clone();
    Box::pin(async move { shared.source.io().await })
}
