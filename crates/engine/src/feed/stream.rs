//! A feed that reads a replication link.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};
use whimbrel_wire::payload::Dialect;
use whimbrel_wire::replication::{Opening, Parser};
use whimbrel_wire::value::Value;

use super::command::{Decoder, Rules};
use super::connector::Connector;
use super::limits;
use super::options::{FeedKind, FeedOptions};
use super::progress::{FeedFailure, History, Shared};
use crate::deployment::Deployment;
use crate::error::{Code, Error, ErrorKind, Result, ServerError};
use crate::link::Link;
use crate::probe::Info;
use crate::remedy::Remedy;

/// Most bytes taken in at once. They are parsed under one lock, in well under a millisecond.
const READ_BYTES: usize = 256 << 10;

/// How often the server hears from us. It drops a replica that it has not heard from for `repl-timeout`, 60 s
/// unless set.
const ACK_EVERY: Duration = Duration::from_secs(1);

/// How often at first, after a snapshot: the server starts the command stream at the first acknowledgement
/// that it gets after it has noticed the end of the snapshot itself, and ignores those before.
const FIRST_ACK_EVERY: Duration = Duration::from_millis(5);

/// For how long at most.
const FIRST_ACKS: Duration = Duration::from_secs(10);

/// How long a primary may be silent; it sends a `PING` every 10 s by default
/// (`repl-ping-replica-period`).
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long to wait for a backlog to appear once a snapshot was asked for.
const BACKLOG_WITHIN: Duration = Duration::from_secs(2);

/// How long to wait between two looks for it.
const BACKLOG_EVERY: Duration = Duration::from_millis(1);

/// How long a server may take to say that it continues, and how often it is asked anew if it does not, before
/// the feed waits for its snapshot.
const CONTINUE_WITHIN: Duration = Duration::from_millis(150);
const OVERTAKE_TRIES: u32 = 8;

/// The first and the longest pause between two attempts to resume.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(250);

/// A replication link, attached.
#[derive(Debug)]
pub(super) struct Stream {
    place: Connector,
    options: FeedOptions,
    shared: Arc<Shared>,
    kind: FeedKind,
    link: Link,
    parser: Parser,
    decoder: Decoder,
    replid: String,
    /// What is acknowledged, for ever: where the feed was attached.
    acknowledged: u64,
    /// Acknowledge often, until then or until a first command comes.
    hurry_until: Option<Instant>,
    heard: Instant,
    /// How many clients the server had cut off when it was asked last.
    cuts: Option<u64>,
    /// Which of its limits cut this link off last, in words.
    cut: Option<String>,
}

/// What a server lets us have of replication.
pub(super) enum Offer {
    /// A snapshot without data, or a continuation.
    Filtered,
    /// A continuation, or else a snapshot with all data.
    Plain,
    /// Nothing, and why.
    Nothing(String),
}

/// A link on which a replication stream can be asked for.
struct Ready {
    link: Link,
    decoder: Decoder,
    cuts: Option<u64>,
    /// Snapshots are without data.
    filtered: bool,
}

/// Makes such a link, or says why none can be had.
async fn prepare(deployment: &Deployment, place: &Connector) -> Result<Result<Ready, String>> {
    let mut link = place.open().await?;
    let db = starting_db(deployment, &mut link).await?;
    let rules = load_rules(&mut link).await?;
    let cuts = limits::closed_clients(&mut link).await?;
    let filtered = match offer(&mut link).await? {
        Offer::Filtered => true,
        Offer::Plain => false,
        Offer::Nothing(why) => return Ok(Err(why)),
    };
    Ok(Ok(Ready { link, decoder: Decoder::new(rules, db), cuts, filtered }))
}

/// Attaches a replication link, or says why none can be had.
pub(super) async fn attach(
    deployment: &Deployment,
    place: &Connector,
    shared: &Arc<Shared>,
    options: FeedOptions,
) -> Result<Result<Stream, String>> {
    let Ready { mut link, decoder, cuts, filtered } = match prepare(deployment, place).await? {
        Ok(ready) => ready,
        Err(why) => return Ok(Err(why)),
    };
    let mut from = None;
    // Keeps a snapshot from being forgotten until the backlog that it made is in use.
    let mut asking = None;
    if options.kind != Some(FeedKind::Filtered) {
        from = backlog(&mut link).await?;
        if from.is_none() && filtered {
            asking = ask_for_snapshot(place).await?;
            let until = Instant::now() + BACKLOG_WITHIN;
            while let Some(asking) = &mut asking
                && Instant::now() < until
            {
                from = backlog(&mut link).await?;
                // If it is refused, no answer will follow.
                let heard = timeout(BACKLOG_EVERY, asking.receive(READ_BYTES / 64)).await;
                if from.is_some() || matches!(heard, Ok(Err(_))) || asking.received().starts_with(b"-") {
                    break;
                }
            }
        }
    }
    if from.is_none() && (!filtered || options.kind == Some(FeedKind::Partial)) {
        return Ok(Err("the server has no backlog to continue from".to_owned()));
    }
    let offset = from.as_ref().map_or(0, |from| from.offset);
    let mut stream = Stream::new(place, shared, options, (link, decoder, cuts), offset);
    stream.ask(from.as_ref()).await?;
    let opening = match from.is_some() && asking.is_some() {
        false => stream.opening().await?,
        // It answers at once if it can continue; else when the snapshot begins.
        true => match timeout(CONTINUE_WITHIN, stream.opening()).await {
            Ok(opening) => opening?,
            Err(_) => match overtake(deployment, place, shared, options).await? {
                Some(stream) => return Ok(Ok(stream)),
                None => stream.opening().await?,
            },
        },
    };
    match opening {
        Opening::Continue { replid } => {
            stream.replid = replid.or(from.map(|from| from.replid)).unwrap_or_default();
        }
        Opening::Full { replid, .. } => {
            if !filtered || options.kind == Some(FeedKind::Partial) {
                return Ok(Err("the server would send all its data first".to_owned()));
            }
            stream.kind = FeedKind::Filtered;
            stream.replid = replid;
            while !stream.parser.is_streaming() {
                stream.receive().await?;
            }
            stream.hurry_until = Some(Instant::now() + FIRST_ACKS);
        }
        Opening::Refused(text) => return stream.refused(&text).map(Err),
    }
    drop(asking);
    stream.acknowledged = stream.parser.offset();
    stream.publish();
    Ok(Ok(stream))
}

/// Tries to go on from a backlog that has just been made and is left behind again between the question for
/// its end and the one for what follows: some of the moments between two writes are long enough.
async fn overtake(
    deployment: &Deployment,
    place: &Connector,
    shared: &Arc<Shared>,
    options: FeedOptions,
) -> Result<Option<Stream>> {
    for _ in 0..OVERTAKE_TRIES {
        let Ok(mut ready) = prepare(deployment, place).await? else { return Ok(None) };
        let Some(from) = backlog(&mut ready.link).await? else { return Ok(None) };
        let parts = (ready.link, ready.decoder, ready.cuts);
        let mut stream = Stream::new(place, shared, options, parts, from.offset);
        if let Ok(opening) = timeout(CONTINUE_WITHIN, stream.psync(Some(&from))).await
            && let Opening::Continue { replid } = opening?
        {
            stream.replid = replid.unwrap_or(from.replid);
            stream.publish();
            return Ok(Some(stream));
        }
    }
    Ok(None)
}

/// Attaches a replication link that continues from `from`. `None` if the server no longer has what came after
/// it, or lets no replica continue.
pub(super) async fn attach_at(
    deployment: &Deployment,
    place: &Connector,
    shared: &Arc<Shared>,
    options: FeedOptions,
    from: &History,
) -> Result<Option<Stream>> {
    let mut ready = match prepare(deployment, place).await? {
        Ok(ready) => ready,
        Err(why) => {
            tracing::info!(at = %place.address, %why, "no replication link");
            return Ok(None);
        }
    };
    ready.decoder.goes_on_in(from.db);
    let parts = (ready.link, ready.decoder, ready.cuts);
    let mut stream = Stream::new(place, shared, options, parts, from.offset);
    match stream.psync(Some(from)).await? {
        // Another server has taken over, which may lack what keys that were read at the former one had.
        Opening::Continue { replid: Some(now) } if *now != from.replid => return Ok(None),
        Opening::Continue { .. } => stream.replid.clone_from(&from.replid),
        // With all its data, perhaps: the link is dropped before any of it is taken in.
        Opening::Full { .. } => return Ok(None),
        Opening::Refused(text) => return stream.refused(&text).map(|_| None),
    }
    stream.publish();
    Ok(Some(stream))
}

/// The database that commands are for at the start of a stream, if that is certain: a cluster has one
/// database unless it is a Valkey 9 that was given more.
pub(super) async fn starting_db(deployment: &Deployment, link: &mut Link) -> Result<Option<u32>> {
    if !deployment.is_cluster() {
        return Ok(None);
    }
    let reply = link.ask(&[b"CONFIG", b"GET", b"cluster-databases"]).await?;
    let databases = match reply.as_error() {
        // If it is forbidden to ask, a server that could have more may have more.
        Some(_) if deployment.facts.dialect == Dialect::Valkey => None,
        Some(_) => Some(1),
        None => Some(reply.field("cluster-databases").and_then(Value::as_int).unwrap_or(1)),
    };
    Ok((databases == Some(1)).then_some(0))
}

/// The built-in rules, and what the server says of commands that they do not cover: those of its modules.
async fn load_rules(link: &mut Link) -> Result<Rules> {
    let mut rules = Rules::builtin();
    let listed = link.ask(&[b"COMMAND", b"LIST", b"FILTERBY", b"ACLCAT", b"write"]).await?;
    let entries = match listed.as_items() {
        Some(names) => {
            let mut unknown: Vec<Vec<u8>> = names
                .iter()
                .filter_map(Value::as_bytes)
                // Subcommands follow their command after a bar.
                .filter_map(|name| Some(name.split(|b| *b == b'|').next()?.to_ascii_uppercase()))
                .filter(|name| !rules.knows(name))
                .collect();
            unknown.dedup();
            if unknown.is_empty() {
                return Ok(rules);
            }
            let mut command: Vec<&[u8]> = vec![b"COMMAND", b"INFO"];
            command.extend(unknown.iter().map(Vec::as_slice));
            link.ask(&command).await?
        }
        // Redis 6.2 describes all at once. If it is forbidden, unknown commands touch all that they name.
        None => link.ask(&[b"COMMAND"]).await?,
    };
    let is_write = |entry: &Value| {
        let flags = entry.as_items().and_then(|entry| entry.get(2)?.as_items());
        flags.is_some_and(|flags| flags.iter().any(|flag| flag.as_str() == Some("write")))
    };
    entries
        .as_items()
        .unwrap_or_default()
        .iter()
        .filter(|entry| is_write(entry))
        .for_each(|e| rules.add_rule(e));
    Ok(rules)
}

/// Sentinel makes a replica of each line about one in `INFO`, keeps it permanently, and asks it to take part
/// in a failover. It ignores a line whose port is not valid.
pub(crate) const NO_PORT: &str = "65536";

/// Says what we can take, that no connection to us is possible, and asks that snapshots be without data.
pub(super) async fn offer(link: &mut Link) -> Result<Offer> {
    link.push(&[b"REPLCONF", b"capa", b"eof", b"capa", b"psync2"]);
    link.push(&[b"REPLCONF", b"rdb-filter-only", b""]);
    link.push(&[b"REPLCONF", b"listening-port", NO_PORT.as_bytes()]);
    link.flush().await?;
    let replies = link.replies(3).await?;
    Ok(match (ServerError::of(&replies[0]), ServerError::of(&replies[1])) {
        (Some(e), _) => Offer::Nothing(e.text),
        (None, Some(_)) => Offer::Plain,
        (None, None) => Offer::Filtered,
    })
}

/// Where a server's backlog ends, if it keeps one.
pub(super) async fn backlog(link: &mut Link) -> Result<Option<History>> {
    let reply = link.ask(&[b"INFO", b"replication"]).await?;
    let Some(text) = reply.as_bytes() else { return Ok(None) };
    let info = Info::parse(text);
    let history = || {
        let replid = info.field("master_replid")?.to_owned();
        Some(History { replid, offset: info.number("master_repl_offset")?, db: None })
    };
    Ok(if info.field("repl_backlog_active") == Some("1") { history() } else { None })
}

/// Asks for a snapshot on a link of its own, which makes the server keep a backlog from now on. `None` if the
/// server would have to send data.
async fn ask_for_snapshot(place: &Connector) -> Result<Option<Link>> {
    let mut link = place.open().await?;
    if !matches!(offer(&mut link).await?, Offer::Filtered) {
        return Ok(None);
    }
    link.push(&[place.psync(), b"?", b"-1"]);
    link.flush().await?;
    Ok(Some(link))
}

impl Stream {
    /// Of a link on which nothing has been asked for yet; the first byte to come is the one after `offset`.
    fn new(
        place: &Connector,
        shared: &Arc<Shared>,
        options: FeedOptions,
        (link, decoder, cuts): (Link, Decoder, Option<u64>),
        offset: u64,
    ) -> Stream {
        Stream {
            place: place.clone(),
            options,
            shared: shared.clone(),
            kind: FeedKind::Partial,
            parser: Parser::new(offset),
            decoder,
            replid: String::new(),
            acknowledged: offset,
            hurry_until: None,
            heard: Instant::now(),
            cuts,
            cut: None,
            link,
        }
    }

    /// Why a stream is refused permanently; an error if it may be available later.
    fn refused(&self, text: &[u8]) -> Result<String> {
        let e = ServerError::classify(text);
        if e.code.is_transient() { Err(self.link.server_error(e, b"PSYNC")) } else { Ok(e.text) }
    }

    /// How it was attached.
    pub(super) fn kind(&self) -> FeedKind {
        self.kind
    }

    /// Follows the stream until it cannot be resumed.
    pub(super) async fn run(mut self) {
        loop {
            let Err(e) = self.follow().await else { continue };
            let failure = match &e.kind {
                ErrorKind::Malformed(_) => Err(FeedFailure::Malformed { cause: e.to_string() }),
                _ => {
                    tracing::warn!(at = %self.place.address, cause = %e, "the feed's link broke");
                    self.shared.is_broken(Some(e.to_string()));
                    self.resume(e).await
                }
            };
            if let Err(failure) = failure {
                return self.shared.fail(failure);
            }
        }
    }

    async fn follow(&mut self) -> Result<()> {
        let mut acks = interval(ACK_EVERY);
        acks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut first_acks = interval(FIRST_ACK_EVERY);
        first_acks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                received = self.receive() => {
                    received?;
                    self.hurry_until = None;
                    self.publish();
                }
                _ = acks.tick() => {
                    if self.heard.elapsed() > SILENCE_MAX {
                        return Err(Error::own("follow the changes", "the server has fallen silent"));
                    }
                    self.acknowledge().await?;
                }
                _ = first_acks.tick(), if self.hurry_until.is_some() => {
                    if self.hurry_until.is_some_and(|until| until < Instant::now()) {
                        self.hurry_until = None;
                    }
                    self.acknowledge().await?;
                }
            }
        }
    }

    /// Takes in what arrives next. Dropping the future loses nothing.
    async fn receive(&mut self) -> Result<()> {
        if self.link.received().is_empty() {
            self.link.receive(READ_BYTES).await?;
        }
        self.heard = Instant::now();
        let Stream { link, parser, decoder, shared, .. } = self;
        let bytes = link.received();
        let parsed = shared.touched.record(|set| parser.feed(bytes, &mut decoder.recorder(set)));
        shared.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        bytes.clear();
        parsed.map_err(|e| link.malformed(e))
    }

    /// Reports how far everything is recorded. Comes after the recording, so that a reader of the offset
    /// finds it there.
    fn publish(&self) {
        let offset = self.parser.offset();
        self.shared.progress.send_if_modified(|progress| {
            let changed = progress.offset != offset || progress.replid != self.replid;
            progress.offset = offset;
            // Of a `SELECT` that has arrived in part, it may be ahead: that comes once more, before anything
            // else does.
            progress.db = self.decoder.db();
            if progress.replid != self.replid {
                progress.replid.clone_from(&self.replid);
            }
            changed
        });
    }

    async fn acknowledge(&mut self) -> Result<()> {
        let offset = self.acknowledged.to_string();
        self.link.push(&[b"REPLCONF", b"ACK", offset.as_bytes()]);
        self.link.flush().await
    }

    /// Asks for the stream after `from`, or from a snapshot on, and waits for the reply.
    async fn psync(&mut self, from: Option<&History>) -> Result<Opening> {
        self.ask(from).await?;
        self.opening().await
    }

    async fn ask(&mut self, from: Option<&History>) -> Result<()> {
        match from {
            Some(from) => {
                let next = (from.offset + 1).to_string();
                self.link.push(&[self.place.psync(), from.replid.as_bytes(), next.as_bytes()]);
            }
            None => self.link.push(&[self.place.psync(), b"?", b"-1"]),
        }
        self.link.flush().await
    }

    /// What is answered to that. Dropping the future loses nothing.
    async fn opening(&mut self) -> Result<Opening> {
        loop {
            if let Some(opening) = self.parser.opening() {
                return Ok(opening.clone());
            }
            self.receive().await.map_err(|e| self.misnamed(e))?;
        }
    }

    /// Stock servers look at the name: what `rename-command` calls otherwise is taken for `SYNC`, and sends
    /// all data at once.
    fn misnamed(&self, e: Error) -> Error {
        let name = self.place.psync();
        if name.eq_ignore_ascii_case(b"PSYNC") || !matches!(e.kind, ErrorKind::Malformed(_)) {
            return e;
        }
        let what = format!("{} is not answered as PSYNC is", String::from_utf8_lossy(name));
        Error::unfit(e.side, e.at, "attach a feed of changes", what).with_remedy(Remedy::LeaveOutPsyncName)
    }

    /// Makes a new link and continues where it broke.
    async fn resume(&mut self, mut cause: Error) -> Result<(), FeedFailure> {
        let until = Instant::now() + Duration::from_millis(self.options.resume_timeout_ms);
        let mut pause = RETRY_PAUSE;
        loop {
            match timeout_at(until, self.reconnect()).await {
                Ok(Ok(Some(failure))) => return Err(failure),
                Ok(Ok(None)) => {
                    self.shared.resumed.fetch_add(1, Ordering::Relaxed);
                    self.shared.is_broken(None);
                    tracing::info!(at = %self.place.address, "the feed goes on without a gap");
                    return Ok(());
                }
                Ok(Err(e)) => {
                    self.shared.is_broken(Some(e.to_string()));
                    cause = e;
                }
                Err(_) => return Err(FeedFailure::Lost { cause: cause.to_string() }),
            }
            if Instant::now() + pause >= until {
                return Err(FeedFailure::Lost { cause: cause.to_string() });
            }
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    /// One attempt: what makes further ones useless, or an error after which another may succeed.
    async fn reconnect(&mut self) -> Result<Option<FeedFailure>> {
        let mut link = self.place.open().await?;
        let reply = link.ask(&[b"INFO", b"replication"]).await?;
        if let Some(text) = reply.as_bytes()
            && matches!(Info::parse(text).field("role"), Some("slave" | "replica"))
        {
            return Ok(Some(FeedFailure::Demoted));
        }
        let cuts = limits::closed_clients(&mut link).await?;
        let is_cut = cuts.zip(self.cuts).is_some_and(|(now, before)| now > before);
        if is_cut || cuts.is_none() {
            let cut = limits::limit_in_words(&mut link, is_cut).await?;
            tracing::warn!(at = %self.place.address, cut, "the feed was cut off");
            (self.cuts, self.cut) = (cuts, Some(cut));
        }
        if let Offer::Nothing(why) = offer(&mut link).await? {
            return Err(link.server_error(ServerError { code: Code::Other, text: why }, b"REPLCONF"));
        }
        // A command that had arrived in part comes once more.
        let db = self.decoder.db();
        let from = History { replid: self.replid.clone(), offset: self.parser.offset(), db };
        self.link = link;
        self.parser = Parser::new(from.offset);
        self.heard = Instant::now();
        match self.psync(Some(&from)).await? {
            // The changes go on without a gap. But connections by which keys are read may lead to the former
            // primary: what they give is older than what was reported.
            Opening::Continue { replid } if replid.as_ref().is_some_and(|now| *now != from.replid) => {
                Ok(Some(FeedFailure::Replaced))
            }
            Opening::Continue { .. } => Ok(None),
            Opening::Full { .. } => Ok(Some(FeedFailure::Gap { offset: from.offset, cut: self.cut.clone() })),
            Opening::Refused(text) => Err(self.link.server_error(ServerError::classify(&text), b"PSYNC")),
        }
    }
}
