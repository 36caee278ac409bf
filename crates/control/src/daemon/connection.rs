//! One connection to the server.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use whimbrel_fleet::login::Verifier;
use whimbrel_wire::scan::{Limits, Progress, Scanner};
use whimbrel_wire::value::Value;

use super::at_node::AtNode;
use super::command::{self, Answer, Session};
use super::fleet;
use super::options::DaemonOptions;
use super::reply::{encode, error, ok};
use super::services::{Jobs, Services};
use crate::lobby::{Guesses, Lobby, Waiting};

/// The longest command of a client that has not logged in.
const STRANGER_BYTES_MAX: u64 = 16 << 10;

/// Words in a command: as many as it takes to name every second slot as a range.
const WORDS_MAX: u64 = 20_000;

/// The longest word.
const WORD_BYTES_MAX: u64 = 16 << 10;

/// How long a refused login delays the client that tried.
const LOGIN_PAUSE: Duration = Duration::from_millis(200);

const READ_BYTES: usize = 4 << 10;

/// Which clients are let in, and how many.
#[derive(Debug)]
pub(super) struct Entrance {
    pub(super) lobby: Arc<Lobby>,
    pub(super) places: Arc<Semaphore>,
    pub(super) guesses: Guesses,
    /// Set if there is a password.
    pub(super) verifier: Option<Verifier>,
}

/// A client that has just connected.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: u64,
    pub(super) ip: IpAddr,
    pub(super) stream: TcpStream,
    pub(super) waiting: Waiting,
    /// The node, if it has connected to a node's port.
    pub(super) node: Option<AtNode>,
}

/// One client.
#[derive(Debug)]
pub(super) struct Connection<J> {
    stream: TcpStream,
    ip: IpAddr,
    /// Until it has a place of its own.
    waiting: Option<Waiting>,
    place: Option<OwnedSemaphorePermit>,
    entrance: Arc<Entrance>,
    options: Arc<DaemonOptions>,
    services: Services<J>,
    stop: CancellationToken,
    session: Session,
    inbox: BytesMut,
    scanner: Scanner,
    opened: Instant,
}

impl<J: Jobs> Connection<J> {
    pub(super) fn new(
        client: Client,
        options: Arc<DaemonOptions>,
        services: Services<J>,
        entrance: Arc<Entrance>,
        stop: CancellationToken,
    ) -> Connection<J> {
        let Client { id, ip, stream, waiting, node } = client;
        let session = Session::new(id, node, &options);
        let limits = Limits {
            depth_max: 1,
            elements_max: WORDS_MAX,
            bulk_bytes_max: WORD_BYTES_MAX,
            line_bytes_max: 32,
            frame_bytes_max: options.request_bytes_max,
        };
        let mut scanner = Scanner::new(limits);
        if !session.is_in {
            scanner.limit_frames(STRANGER_BYTES_MAX.min(options.request_bytes_max));
        }
        let inbox = BytesMut::new();
        Connection {
            stream,
            ip,
            waiting: Some(waiting),
            place: None,
            entrance,
            options,
            services,
            stop,
            session,
            inbox,
            scanner,
            opened: Instant::now(),
        }
    }

    /// Answers commands in their order until the client leaves, misbehaves, or the server stops.
    ///
    /// # Errors
    /// If the connection breaks.
    pub(super) async fn run(mut self) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        while !self.session.is_over {
            match self.command() {
                Ok(Some(words)) => {
                    if words.is_empty() {
                        continue;
                    }
                    if self.session.is_in && fleet::is_member(&words) && self.services.fleet.is_some() {
                        return self.be_a_member(&words).await;
                    }
                    if self.session.is_in && !self.takes_place() {
                        self.send(&error("max number of clients reached")).await?;
                        break;
                    }
                    if command::is_login(&words) {
                        sleep(self.entrance.guesses.pause(self.ip, Instant::now())).await;
                    }
                    let was_in = self.session.is_in;
                    let verifier = self.entrance.verifier.as_ref();
                    let reply = self.session.answer(&words, &self.options, &self.services, verifier).await;
                    if reply.is_wrong_password() {
                        self.entrance.guesses.refused(self.ip, Instant::now());
                        sleep(LOGIN_PAUSE).await;
                    }
                    if self.session.is_in != was_in {
                        let most = if was_in { STRANGER_BYTES_MAX } else { u64::MAX };
                        self.scanner.limit_frames(most.min(self.options.request_bytes_max));
                    }
                    match reply {
                        Answer::Value(value) => self.send(&value).await?,
                        Answer::Built(built) => self.write(built.reader()).await?,
                    }
                }
                Ok(None) => {
                    if !self.receive().await? {
                        break;
                    }
                }
                Err(what) => {
                    // It is not known where the next command would begin.
                    self.send(&error(format!("Protocol error: {what}"))).await?;
                    break;
                }
            }
        }
        timeout(Duration::from_millis(self.options.write_timeout_ms), self.stream.shutdown()).await?
    }

    /// Whether there is a place for a client that has logged in. Members need none of these places: they have
    /// their own.
    fn takes_place(&mut self) -> bool {
        if self.place.is_none() {
            self.place = self.entrance.places.clone().try_acquire_owned().ok();
            if self.place.is_some() {
                self.waiting = None;
            }
        }
        self.place.is_some()
    }

    /// From here on the connection is that of a member of the fleet, if it speaks as this coordinator does.
    async fn be_a_member(mut self, words: &[Bytes]) -> io::Result<()> {
        if let Err(refusal) = fleet::check_version(words) {
            return self.send(&refusal).await;
        }
        let Some(members) = self.services.fleet.clone() else { return Ok(()) };
        if let Err(refused) = members.is_heard() {
            return self.send(&fleet::refusal(&refused)).await;
        }
        self.send(&ok()).await?;
        (self.waiting, self.place) = (None, None);
        members.serve(self.stream, self.inbox, &self.stop).await
    }

    /// The next whole command, if it has arrived: an array of strings. Lines without a length do not count:
    /// people type them into telnet, and browsers can be made to send them.
    fn command(&mut self) -> Result<Option<Vec<Bytes>>, &'static str> {
        let Progress::Complete(len) = self.scanner.scan(&self.inbox).map_err(|e| e.what)? else {
            return Ok(None);
        };
        let frame = self.inbox.split_to(len).freeze();
        let Ok(Value::Array(items)) = Value::parse(&frame) else {
            return Err("expected an array of strings");
        };
        let words = items.into_iter().map(|item| match item {
            Value::Bulk(word) => Ok(word),
            _ => Err("expected an array of strings"),
        });
        words.collect::<Result<_, _>>().map(Some)
    }

    /// Reads some more; false if there is nothing more to come, or the client may not wait for it.
    async fn receive(&mut self) -> io::Result<bool> {
        let mut until = Instant::now() + Duration::from_millis(self.options.idle_timeout_ms);
        if !self.session.is_in {
            until = until.min(self.opened + Duration::from_millis(self.options.login_timeout_ms));
        }
        self.inbox.reserve(READ_BYTES);
        tokio::select! {
            () = self.stop.cancelled() => Ok(false),
            read = timeout_at(until, self.stream.read_buf(&mut self.inbox)) => match read {
                Ok(read) => Ok(read? > 0),
                Err(_) => Ok(false),
            },
        }
    }

    async fn send(&mut self, reply: &Value) -> io::Result<()> {
        let mut out = BytesMut::new();
        encode(reply, self.session.protocol, &mut out);
        self.write(out).await
    }

    async fn write(&mut self, mut out: impl Buf) -> io::Result<()> {
        let limit = Duration::from_millis(self.options.write_timeout_ms);
        while out.has_remaining() {
            if timeout(limit, self.stream.write_buf(&mut out)).await?? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}
