//! One connection to one server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};
use whimbrel_wire::encode::Outbox;
use whimbrel_wire::scan::{Malformed, Progress, Scanner};
use whimbrel_wire::value::Value;

use crate::behind;
use crate::endpoint::{Address, Endpoint};
use crate::error::{Code, Error, ErrorKind, Result, ServerError, Side};
use crate::login::Token;
use crate::remedy::Remedy;
use crate::unanswered::Ended;

mod account;
mod stream;

use self::account::Account;
pub use self::stream::Io;

/// How a connection behaves.
#[derive(Debug, Clone, Copy)]
pub struct LinkOptions {
    /// The database to select.
    pub db: u32,
    /// Send `READONLY`, so that a replica of a cluster answers reads.
    pub readonly: bool,
    /// How long to try to connect, handshake included.
    pub connect_timeout_ms: u64,
    /// How long a reply may take without a single byte arriving.
    pub reply_timeout_ms: u64,
}

impl Default for LinkOptions {
    fn default() -> Self {
        LinkOptions { db: 0, readonly: false, connect_timeout_ms: 5_000, reply_timeout_ms: 30_000 }
    }
}

/// The name that connections show in `CLIENT LIST`.
pub const CLIENT_NAME: &str = "whimbrel";

const CLIENT_ID: &str = "CLIENT ID";
const INFO_SERVER: &str = "INFO server";

/// Most space asked for before a read, however long a value the peer announces.
const RESERVE_BYTES_MAX: usize = 4 << 20;

/// Space asked for before each read. Large enough that a batch of small values takes few system calls.
const READ_BYTES: usize = 64 << 10;

/// A connection to one server: greeted, authenticated, on its database.
///
/// Commands are queued in [`Link::outbox`], sent by [`Link::flush`], and answered in order by
/// [`Link::reply`]. After any error other than [`ErrorKind::Server`], and after a future of it was dropped
/// half-way, a link is out of step with the server and must be thrown away.
#[derive(Debug)]
pub struct Link {
    endpoint: Arc<Endpoint>,
    address: Address,
    options: LinkOptions,
    io: Io,
    inbox: BytesMut,
    scanner: Scanner,
    outbox: Outbox,
    /// The password that it has logged in with last.
    token: Option<Token>,
    keeps_login: bool,
    /// Commands that were sent, and replies that were read.
    account: Account,
    /// As what its server knows it, until it is remembered as that.
    identity: Option<Ended>,
    /// What was queued ends between `MULTI` and `EXEC`; and so did what was sent.
    in_transaction: bool,
    sent_in_transaction: bool,
}

impl Link {
    /// Connects to `address` with the credentials and TLS of `endpoint`.
    ///
    /// # Errors
    /// `Connect`, `Tls`, `Auth`, or what the server answered to the greeting (for example `LOADING`).
    pub async fn open(endpoint: &Arc<Endpoint>, address: &Address, options: LinkOptions) -> Result<Link> {
        // This may have to run a command, which has a bound of its own.
        endpoint.token().await?;
        let opened = async {
            let io = Io::open(endpoint, address).await?;
            io.reset_at_end();
            let mut link = Link::greeted(io, endpoint, address, options).await?;
            link.end_unanswered().await?;
            Ok(link)
        };
        Link::in_time(opened, endpoint, address, options).await
    }

    /// Connects and says nothing: for callers that log in in another way than with `AUTH`.
    ///
    /// # Errors
    /// `Connect` or `Tls`.
    pub async fn without_login(
        endpoint: &Arc<Endpoint>,
        address: &Address,
        options: LinkOptions,
    ) -> Result<Link> {
        let opened = async {
            let io = Io::open(endpoint, address).await?;
            Ok(Link::on(io, endpoint, address, options))
        };
        Link::in_time(opened, endpoint, address, options).await
    }

    /// Says what is wrong if a connection is not opened in time.
    async fn in_time(
        opened: impl Future<Output = Result<Link>>,
        endpoint: &Endpoint,
        address: &Address,
        options: LinkOptions,
    ) -> Result<Link> {
        let limit = Duration::from_millis(options.connect_timeout_ms);
        timeout(limit, opened).await.unwrap_or_else(|_| {
            let kind = ErrorKind::Connect(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no connection within {} ms", options.connect_timeout_ms),
            ));
            let remedy = match endpoint.tls {
                // A server without TLS waits for the rest of what it takes for a command.
                Some(_) => {
                    "see that the server is up; if this port does not use TLS, write redis:// or valkey://"
                }
                None => "see that the server is up and reachable, and that the address is right",
            };
            Err(Error::new(endpoint.side, address.to_string(), "connect", kind).with_remedy(remedy))
        })
    }

    /// Logs in on a connection on which nothing has been said yet. The caller bounds how long it may take.
    ///
    /// # Errors
    /// As [`Link::open`], except `Connect` and `Tls`.
    pub async fn greeted(
        io: Io,
        endpoint: &Arc<Endpoint>,
        address: &Address,
        options: LinkOptions,
    ) -> Result<Link> {
        let mut link = Link::on(io, endpoint, address, options);
        link.greet().await?;
        Ok(link)
    }

    /// A connection on which nothing has been said yet.
    fn on(io: Io, endpoint: &Arc<Endpoint>, address: &Address, options: LinkOptions) -> Link {
        Link {
            endpoint: endpoint.clone(),
            address: address.clone(),
            options,
            io,
            inbox: BytesMut::new(),
            scanner: Scanner::default(),
            outbox: Outbox::new(),
            token: None,
            keeps_login: true,
            account: Account::default(),
            identity: None,
            in_transaction: false,
            sent_in_transaction: false,
        }
    }

    /// Logs out: from here on the server sees the user `default`, logged in only if that needs no password.
    async fn log_out(&mut self) -> Result<()> {
        let reset = self.ask(&[b"RESET"]).await?;
        if ServerError::of(&reset).is_none() {
            return Ok(());
        }
        // Redis 6.0 does not have RESET, and takes no certificate for a login either.
        let user = self.ask(&[b"ACL", b"WHOAMI"]).await?;
        let is_out = match ServerError::of(&user) {
            Some(e) => e.code == Code::NoAuth,
            None => user.as_bytes().is_some_and(|user| user.as_ref() == b"default"),
        };
        if is_out {
            return Ok(());
        }
        let what = "it may take the certificate of this process for a login, and does not know RESET";
        Err(self
            .fail("log out", ErrorKind::Unfit(what.to_owned()))
            .with_remedy("set tls-auth-clients-user to off there, or do not rename RESET"))
    }

    /// The server this link leads to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The endpoint whose credentials it uses.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// The options it was opened with.
    pub fn options(&self) -> LinkOptions {
        self.options
    }

    /// Changes how long a reply may take, in milliseconds.
    pub(crate) fn set_reply_timeout_ms(&mut self, ms: u64) {
        self.options.reply_timeout_ms = ms;
    }

    /// The connection itself, for another protocol from here on, and what of it has arrived already.
    pub fn into_parts(self) -> (Io, BytesMut) {
        (self.io, self.inbox)
    }

    /// Where commands are queued. Every command queued must be matched by one [`Link::reply`].
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Queues a command of short arguments.
    pub fn push(&mut self, args: &[&[u8]]) {
        match args.first() {
            Some(&b"MULTI") => self.in_transaction = true,
            Some(&(b"EXEC" | b"DISCARD")) => self.in_transaction = false,
            _ => {}
        }
        self.outbox.push(args);
    }

    /// Whether it logs in again by itself before its password expires, when commands are sent and all earlier
    /// ones have been answered. Links on which more arrives than answers must not.
    pub(crate) fn keeps_login(&mut self, keeps: bool) {
        self.keeps_login = keeps;
    }

    /// Whether its password expires soon.
    pub(crate) fn is_login_due(&self) -> bool {
        let renew_at = self.token.as_ref().and_then(|token| token.renew_at);
        renew_at.is_some_and(|at| at <= Instant::now())
    }

    /// Queues a login with a new password.
    ///
    /// # Errors
    /// As [`Endpoint::token`].
    pub(crate) async fn push_login(&mut self) -> Result<()> {
        self.token = self.endpoint.token().await?;
        if let Some(Token { secret, .. }) = &self.token {
            match &self.endpoint.user {
                Some(user) => self.outbox.push(&[b"AUTH", user.as_bytes(), secret.expose().as_bytes()]),
                None => self.outbox.push(&[b"AUTH", secret.expose().as_bytes()]),
            }
        }
        Ok(())
    }

    /// Logs in again if its password expires soon, before what is queued is sent.
    async fn keep_login(&mut self) -> Result<()> {
        let queued = std::mem::take(&mut self.outbox);
        let sent = self.account.sent;
        self.push_login().await?;
        let outcome = match self.write_out().await {
            Ok(()) => self.reply().await,
            Err(e) => Err(e),
        };
        self.outbox = queued;
        (self.account.sent, self.account.answered) = (sent, sent);
        match ServerError::of(&outcome?) {
            None => Ok(()),
            Some(mut e) => {
                self.redact(&mut e);
                // With a new connection it may succeed.
                let what = io::Error::other(format!("the server refused the new password: {}", e.text));
                Err(self.fail("log in again", ErrorKind::Broken(what)))
            }
        }
    }

    /// Sends everything queued.
    ///
    /// # Errors
    /// `Broken`, or `Timeout` if the server takes nothing in for the reply timeout.
    pub async fn flush(&mut self) -> Result<()> {
        let is_in_step = self.account.sent == self.account.answered && !self.sent_in_transaction;
        if self.keeps_login && is_in_step && self.is_login_due() {
            self.keep_login().await?;
        }
        self.account.sent = self.outbox.commands();
        self.sent_in_transaction = self.in_transaction;
        let Address::Behind(behind) = &self.address else { return self.write_out().await };
        let passed = behind::passed(&mut self.outbox, &behind.route);
        let queued = std::mem::replace(&mut self.outbox, passed);
        let written = self.write_out().await;
        self.outbox = queued;
        written
    }

    async fn write_out(&mut self) -> Result<()> {
        let limit = Duration::from_millis(self.options.reply_timeout_ms);
        while !self.outbox.is_empty() {
            match timeout(limit, self.io.write_buf(&mut self.outbox)).await {
                Ok(Ok(0)) => return Err(self.fail("send", ErrorKind::Closed)),
                Ok(Ok(_)) => {}
                Ok(Err(e)) => return Err(self.fail("send", ErrorKind::Broken(e))),
                Err(_) => return Err(self.fail("send", ErrorKind::Timeout(self.options.reply_timeout_ms))),
            }
        }
        match timeout(limit, self.io.flush()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => Err(self.fail("send", ErrorKind::Broken(e))),
            Err(_) => Err(self.fail("send", ErrorKind::Timeout(self.options.reply_timeout_ms))),
        }
    }

    /// The next whole frame, as bytes.
    ///
    /// # Errors
    /// `Broken`, `Closed`, `Timeout` or `Malformed`.
    pub async fn frame(&mut self) -> Result<Bytes> {
        loop {
            let missing = match self.scanner.scan(&self.inbox) {
                Ok(Progress::Complete(len)) => {
                    self.account.answered += 1;
                    return Ok(self.inbox.split_to(len).freeze());
                }
                Ok(Progress::Incomplete(missing)) => missing,
                Err(e) => return Err(self.fail("read a reply", ErrorKind::Malformed(e))),
            };
            if self.inbox.capacity() - self.inbox.len() < missing.min(READ_BYTES / 4) {
                // What the peer announces it has yet to send: memory follows what has arrived.
                self.inbox.reserve(missing.clamp(READ_BYTES, RESERVE_BYTES_MAX));
            }
            let limit = Duration::from_millis(self.options.reply_timeout_ms);
            match timeout(limit, self.io.read_buf(&mut self.inbox)).await {
                Ok(Ok(0)) => return Err(self.fail("read a reply", ErrorKind::Closed)),
                Ok(Ok(_)) => {}
                Ok(Err(e)) => return Err(self.fail("read a reply", ErrorKind::Broken(e))),
                Err(_) => {
                    return Err(self.fail("read a reply", ErrorKind::Timeout(self.options.reply_timeout_ms)));
                }
            }
        }
    }

    /// Waits, without a limit of time, until bytes arrive that answer no request: pushes, or a command
    /// stream. They are added to [`Link::received`]; at most about `bytes_max` at once. Dropping the future
    /// loses nothing, so a caller can wait for something else at the same time.
    ///
    /// # Errors
    /// `Broken` or `Closed`.
    pub async fn receive(&mut self, bytes_max: usize) -> Result<()> {
        if self.inbox.capacity() - self.inbox.len() < bytes_max / 4 {
            self.inbox.reserve(bytes_max);
        }
        match self.io.read_buf(&mut self.inbox).await {
            Ok(0) => Err(self.fail("wait for the server", ErrorKind::Closed)),
            Ok(_) => Ok(()),
            Err(e) => Err(self.fail("wait for the server", ErrorKind::Broken(e))),
        }
    }

    /// The bytes that have arrived and were not read as a frame. A caller that reads them in its own way
    /// removes what it has read, and must not mix that with frames: a frame that has partly arrived is not
    /// the caller's.
    pub fn received(&mut self) -> &mut BytesMut {
        &mut self.inbox
    }

    /// A frame that has arrived as a whole, if there is one.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn received_frame(&mut self) -> Result<Option<Bytes>> {
        match self.scanner.scan(&self.inbox) {
            Ok(Progress::Complete(len)) => Ok(Some(self.inbox.split_to(len).freeze())),
            Ok(Progress::Incomplete(_)) => Ok(None),
            Err(e) => Err(self.malformed(e)),
        }
    }

    /// An error for bytes that are not what this link should carry.
    pub fn malformed(&self, e: Malformed) -> Error {
        self.fail("read from the server", ErrorKind::Malformed(e))
    }

    /// The next reply. An error reply is a value here.
    ///
    /// # Errors
    /// As [`Link::frame`].
    pub async fn reply(&mut self) -> Result<Value> {
        let frame = self.frame().await?;
        Value::parse(&frame).map_err(|e| self.fail("read a reply", ErrorKind::Malformed(e)))
    }

    /// The next `n` replies, in order. Error replies are values here.
    ///
    /// # Errors
    /// As [`Link::frame`].
    pub async fn replies(&mut self, n: usize) -> Result<Vec<Value>> {
        let mut replies = Vec::with_capacity(n);
        for _ in 0..n {
            replies.push(self.reply().await?);
        }
        Ok(replies)
    }

    /// The next `n` replies, in order, if they are no longer than `bytes_max` together. A string that would
    /// make them longer is refused at its header: nothing of it is held.
    ///
    /// # Errors
    /// As [`Link::frame`]; [`Error::is_too_large`] for longer ones.
    pub async fn replies_within(&mut self, n: usize, bytes_max: u64) -> Result<Vec<Value>> {
        let usual = self.scanner.limits().frame_bytes_max;
        let mut left = bytes_max;
        let mut replies = Vec::with_capacity(n);
        for _ in 0..n {
            self.scanner.limit_frames(left);
            let frame = self.frame().await?;
            left = left.saturating_sub(frame.len() as u64);
            replies
                .push(Value::parse(&frame).map_err(|e| self.fail("read a reply", ErrorKind::Malformed(e)))?);
        }
        self.scanner.limit_frames(usual);
        Ok(replies)
    }

    /// Sends commands in one round trip, and returns what is answered to each; with `asking` each follows an
    /// `ASKING`, for slots that the server is importing. What it refuses is a reply.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub async fn ask_each<'c>(
        &mut self,
        asking: bool,
        commands: &[impl AsRef<[&'c [u8]]>],
    ) -> Result<Vec<Value>> {
        for command in commands {
            if asking {
                self.push(&[b"ASKING"]);
            }
            self.push(command.as_ref());
        }
        self.flush().await?;
        let mut replies = Vec::with_capacity(commands.len());
        for _ in commands {
            if asking {
                self.reply().await?;
            }
            replies.push(self.reply().await?);
        }
        Ok(replies)
    }

    /// Sends one command and returns its reply, an error reply as a value.
    ///
    /// # Errors
    /// As [`Link::flush`] and [`Link::frame`].
    pub async fn ask(&mut self, args: &[&[u8]]) -> Result<Value> {
        self.push(args);
        self.flush().await?;
        self.reply().await
    }

    /// Sends one command and returns its reply; an error reply becomes an error that names the command.
    ///
    /// # Errors
    /// As [`Link::ask`], and `Server`.
    pub async fn call(&mut self, args: &[&[u8]]) -> Result<Value> {
        let reply = self.ask(args).await?;
        self.check(reply, args.first().copied().unwrap_or_default())
    }

    /// Turns an error reply to `command` into an error that names it.
    ///
    /// # Errors
    /// `Server`.
    pub fn check(&self, reply: Value, command: &[u8]) -> Result<Value> {
        match ServerError::of(&reply) {
            None => Ok(reply),
            Some(e) => Err(self.server_error(e, command)),
        }
    }

    /// An error for a server's refusal of `command` (its name, or a few words; never values).
    pub fn server_error(&self, e: ServerError, command: &[u8]) -> Error {
        let remedy = match e.code {
            Code::NoPermission => Some("give this user the permission, or name another user"),
            Code::NoAuth => Some("name a user and a password"),
            Code::WritesStopped => Some("see why the server has stopped writes"),
            Code::Oom => Some("raise maxmemory on that server or make room"),
            _ => None,
        };
        let error = self.fail(&String::from_utf8_lossy(command), ErrorKind::Server(e));
        match remedy {
            Some(remedy) => error.with_remedy(remedy),
            None => error,
        }
    }

    /// An error for a reply of the wrong kind.
    pub fn unexpected(&self, command: &str, reply: &Value) -> Error {
        // Never the value itself: it may be user data.
        let kind = match reply {
            Value::Error(text) => format!("error {}", ServerError::classify(text).text),
            Value::Null => "null".to_owned(),
            Value::Int(n) => format!("integer {n}"),
            Value::Array(items) => format!("array of {}", items.len()),
            Value::Simple(_) | Value::Bulk(_) => "a string".to_owned(),
            _ => "another kind of value".to_owned(),
        };
        self.fail(command, ErrorKind::Unexpected(kind))
    }

    pub(crate) fn fail(&self, tried: &str, kind: ErrorKind) -> Error {
        if matches!(kind, ErrorKind::Closed | ErrorKind::Broken(_) | ErrorKind::Timeout(_)) {
            // Now, since another link may be opened in its place before it is dropped.
            self.account.note_end();
        }
        Error::new(self.endpoint.side, self.address.to_string(), tried, kind)
    }

    async fn greet(&mut self) -> Result<()> {
        self.greet_commands().await.map_err(|e| match &e.kind {
            ErrorKind::Closed | ErrorKind::Broken(_) | ErrorKind::Malformed(_)
                if self.endpoint.tls.is_none() && matches!(self.address, Address::Tcp(..)) =>
            {
                e.with_remedy("if this port expects TLS, write rediss:// or valkeys://")
            }
            // With TLS 1.3 the server judges the client's certificate after our handshake is complete.
            ErrorKind::Closed | ErrorKind::Broken(_)
                if self.endpoint.tls.as_ref().is_some_and(|tls| tls.cert_file.is_none()) =>
            {
                e.with_remedy(Remedy::NameClientCertificate(self.endpoint.side))
            }
            _ => e,
        })
    }

    /// Takes the password out of an answer to `AUTH`: servers and proxies may quote what they were sent.
    fn redact(&self, e: &mut ServerError) {
        if e.code == Code::UnknownCommand {
            "this server knows no AUTH command".clone_into(&mut e.text);
        } else if let Some(password) =
            self.token.as_ref().map(|token| token.secret.expose()).filter(|p| !p.is_empty())
        {
            e.text = e.text.replace(password, "…");
        }
    }

    async fn greet_commands(&mut self) -> Result<()> {
        let mut sent: Vec<&'static str> = Vec::new();
        self.push_login().await?;
        if self.token.is_some() {
            sent.push("AUTH");
        }
        let is_behind = matches!(self.address, Address::Behind(_));
        if is_behind {
            // All that it knows, and enough for it to say that it wants a password.
            self.push(&[b"PING"]);
            sent.push("PING");
        } else {
            self.push(&[b"CLIENT", b"SETNAME", CLIENT_NAME.as_bytes()]);
            sent.push("CLIENT SETNAME");
            if self.endpoint.side == Side::Target {
                self.push(&[b"CLIENT", b"ID"]);
                sent.push(CLIENT_ID);
                self.push(&[b"INFO", b"server"]);
                sent.push(INFO_SERVER);
            }
        }
        if is_behind && self.options.db != 0 {
            let what = format!("database {} cannot be selected: a proxy has one, 0", self.options.db);
            return Err(self.fail("SELECT", ErrorKind::Unfit(what)));
        }
        if self.options.db != 0 {
            let db = self.options.db.to_string();
            self.push(&[b"SELECT", db.as_bytes()]);
            sent.push("SELECT");
        }
        if self.options.readonly && !is_behind {
            self.push(&[b"READONLY"]);
            sent.push("READONLY");
        }
        self.flush().await?;
        for command in sent {
            let reply = self.reply().await?;
            self.note_identity(command, &reply);
            let Some(mut e) = ServerError::of(&reply) else { continue };
            if command == "AUTH" {
                self.redact(&mut e);
            }
            match (command, &e.code) {
                (_, Code::WrongPassword) => {
                    if let Some(command) = &self.endpoint.password_command
                        && command.refused().await
                    {
                        // It has ended before its time: another one may do.
                        let what =
                            io::Error::other(format!("the password is not valid any more: {}", e.text));
                        return Err(self
                            .fail("log in", ErrorKind::Connect(what))
                            .with_remedy(Remedy::NamePasswordTtl));
                    }
                    let what = format!("the server refused the credentials: {}", e.text);
                    return Err(self
                        .fail("log in", ErrorKind::Auth(what))
                        .with_remedy("check the user and the password"));
                }
                (_, Code::NoAuth) => {
                    return Err(self
                        .fail("log in", ErrorKind::Auth("the server wants a password".to_owned()))
                        .with_remedy(Remedy::NamePassword));
                }
                // A name and replica reads are a courtesy: a proxy or an ACL may forbid them, and a
                // standalone server knows no READONLY.
                ("CLIENT SETNAME" | CLIENT_ID | INFO_SERVER | "READONLY", _) => {}
                ("AUTH", _) => {
                    return Err(self.fail("log in", ErrorKind::Auth(e.text)));
                }
                ("SELECT", Code::Other) => {
                    let what = format!("database {} cannot be selected: {}", self.options.db, e.text);
                    return Err(self.fail("SELECT", ErrorKind::Unfit(what)));
                }
                _ => return Err(self.server_error(e, command.as_bytes())),
            }
        }
        Ok(())
    }

    /// Has the server close earlier connections that ended while commands on them had no answer. From then on
    /// the same is done for this one.
    async fn end_unanswered(&mut self) -> Result<()> {
        let Some(own) = self.identity.take() else { return Ok(()) };
        let unanswered = self.endpoint.unanswered.clone();
        let ended = unanswered.of(&own.run_id);
        for ended in &ended {
            self.push(&[b"CLIENT", b"KILL", b"ID", ended.id.to_string().as_bytes()]);
        }
        self.flush().await?;
        // A connection that is not there any more is fine too.
        for reply in self.replies(ended.len()).await? {
            if ServerError::of(&reply).is_some_and(|e| e.code == Code::NoPermission) {
                tracing::warn!(
                    address = %self.address,
                    "no right to close a connection with unanswered commands (client|kill): they may be \
                     carried out late"
                );
            }
        }
        unanswered.remove(&ended);
        self.account.is_kept_by(unanswered, own);
        Ok(())
    }

    /// Notes by what its server knows it, from the answers to the greeting.
    fn note_identity(&mut self, command: &str, reply: &Value) {
        match (command, reply, reply.as_bytes()) {
            (CLIENT_ID, Value::Int(id), _) => {
                self.identity = Some(Ended { run_id: String::new(), id: *id });
            }
            (INFO_SERVER, _, Some(text)) => {
                let text = String::from_utf8_lossy(text);
                let run_id = text.lines().find_map(|line| line.strip_prefix("run_id:"));
                // Without one it cannot be distinguished from another server at the same address.
                self.identity = self
                    .identity
                    .take()
                    .zip(run_id)
                    .map(|(identity, run_id)| Ended { run_id: run_id.trim().to_owned(), ..identity });
            }
            (INFO_SERVER, ..) => self.identity = None,
            _ => {}
        }
    }
}

impl Io {
    /// As [`Io::open`], without a login: servers can be set to take the certificate of `endpoint` for a login
    /// (`tls-auth-clients-user`), and that would be our login, not the login of the client that this
    /// connection is for.
    ///
    /// # Errors
    /// `Connect` or `Tls`; what [`Link::call`] reports; `Unfit` if the server cannot be made to forget the
    /// login.
    pub async fn anonymous(endpoint: &Arc<Endpoint>, address: &Address, options: LinkOptions) -> Result<Io> {
        let io = Io::open(endpoint, address).await?;
        if let Err(error) = io.bound_silence() {
            tracing::debug!(%error, "a connection to a server has no limit for silence");
        }
        if endpoint.tls.as_ref().is_none_or(|tls| tls.cert_file.is_none()) {
            return Ok(io);
        }
        let mut link = Link::on(io, endpoint, address, options);
        link.log_out().await?;
        Ok(link.into_parts().0)
    }
}
