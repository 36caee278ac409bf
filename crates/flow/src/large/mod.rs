//! Transfers one key by its type's own commands, in chunks.
//!
//! `DUMP` and `RESTORE` hold the whole of a value in one command, on both servers and here, and need a target
//! that understands the source's payload. A transfer by the type's commands needs neither: it reads a chunk
//! while it writes the one before, so that three of them at most are in memory, whatever the size of the key.
//!
//! **Exactness.** The source is read under `WATCH`. Closing the read is a transaction: when it is aborted,
//! the key was written to meanwhile, and the transfer starts over. So what arrives is one state of the key
//! and not a mixture of several. `WATCH` notices no change of consumer groups on any server, so those are
//! read twice and compared. If `WATCH` is forbidden, the read goes on without it, and only a change of type,
//! cardinality or groups is noticed.
//!
//! **Atomicity.** The target is written to a [staging key](staging_key) in the slot of the key. It takes the
//! key's place in one transaction at the end, so clients of the target see the old value or the new one. It
//! has a time to live of one hour, renewed with each chunk, so that the orphan of a killed process disappears
//! by itself.
//!
//! **Loss.** A failover, an eviction or a run that mistakes it for a leftover may remove the staging key, and
//! the next chunk would create it anew. So the transaction that creates it gives it its time to live, and
//! after each chunk it must have one: a key that came into being later has none. At the end it is watched
//! while its elements are counted, until it has taken the key's place.
//!
//! **Slots on the move.** In a slot that the target is importing no staging key can be renamed, and none is
//! needed: no client reads the key before the slot is handed over. There the value is assembled under [its
//! own name](Assembly::Importing). Hashes, sets and sorted sets are then read without `WATCH`: the caller
//! follows the changes of their elements.
//!
//! **Short commands.** A command moves [`Transfer::chunk_bytes`] or a thousand elements at most. Strings
//! above 64 MiB are the exception: while one grows on the target, the server's allocator moves it a few
//! times, at about half a millisecond for each MiB. A single `SET` would spare that, but reach the target's
//! replicas in one piece.
//!
//! **What does not arrive** because no command can set it: when a consumer of a group was last seen. Delivery
//! times of pending entries are exact to about a millisecond, since servers report them relative to now.

mod chunk;
pub(crate) mod elements;
mod scanned;
mod sequence;
mod staging;
mod stream;
mod task;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Code, Error, ErrorKind, Result, ServerError, Side};
use whimbrel_engine::expiry::{self, Clock, Expiry};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::QUERY_LIMIT_OPTION;
use whimbrel_wire::payload::Footer;
use whimbrel_wire::value::Value;

pub(crate) use staging::STAGING_PREFIX;
pub use staging::{staging_job, staging_key};
pub(crate) use task::is_of_module;
pub use task::{Assembly, Existing, KeyType, Outcome, Transfer, type_of};

use chunk::{Chunk, Command, Expect, Mortal, Reader};
use scanned::{Scanned, ScannedType};
use sequence::{ListReader, StringReader};
use stream::StreamReader;
use task::{Halt, checked};

use crate::keys::{Fetch, dumps, memory_bytes};

/// How often a transfer is tried because the key changed while it was read, if its changes are not followed.
pub const TRIES_MAX: u32 = 5;

/// The same for a key whose changes are followed: it is tried again later anyway, with all that has been
/// touched.
pub(crate) const TRIES_FOLLOWED_MAX: u32 = 2;

/// The pause before the first new start. Each further one is twice as long.
const PAUSE_FIRST_MS: u64 = 20;

/// How long a staging key outlives its last chunk.
pub(crate) const STAGING_TTL_MS: u64 = 3_600_000;

/// How often it is asked when a key expires if the answer may be unclear.
const EXPIRY_READS: usize = 8;

/// How far the clocks of this machine and of a server may be apart.
const CLOCKS_APART_MS: i64 = 60_000;

/// How often a value is tried to be renamed, at the last without `WATCH` if fields of it expire.
const PUBLISH_TRIES: u32 = 6;

/// What a server holds of a connection besides one long argument.
const QUERY_SLACK_BYTES: u64 = 64 << 10;

/// Collections of more elements than this are not compared with an existing one.
const COMPARED_ELEMENTS_MAX: i64 = 512;

/// Transfers one key from `source` to `target`.
///
/// Nothing is retried or redirected here. After an error both links must be dropped, and the transfer may be
/// started again from scratch, on other links as well. After success both links are as before.
///
/// # Errors
/// Whatever a link or a server reports. A link error, thus a transient one, if the staging key lost elements,
/// as it does when the target fails over. `Own` if `stop` was cancelled.
pub async fn transfer(source: &mut Link, target: &mut Link, t: &Transfer<'_>) -> Result<Outcome> {
    let staging = match t.place {
        Assembly::Staging | Assembly::Followed => Bytes::from(staging_key(t.job, t.key)),
        Assembly::Importing { .. } => Bytes::copy_from_slice(t.key),
    };
    let mover = Mover { t, staging };
    let result = mover.run(source, target).await;
    if let Err(e) = &result
        && (e.side != Side::Target || e.server().is_some())
    {
        // The link to the target is still good. Above all, a full target must not keep half a value for an
        // hour. The error that counts is the one at hand.
        if let Err(e) = mover.unstage(target).await {
            tracing::debug!(error = %e, "staging key not removed, it will expire");
        }
    }
    result
}

/// What the source says in the transaction that closes the read.
struct Closing {
    /// When the key expires, in milliseconds since the epoch.
    expires_at_ms: Option<i64>,
    cardinality: u64,
    /// The replies to the reader's own closing commands.
    rest: Vec<Value>,
}

/// What was written to the staging key.
#[derive(Default)]
struct Sent {
    bytes: u64,
    elements: u64,
    /// The cardinality that the staging key must have, by the target's own replies.
    cardinality: u64,
    /// What of it may have vanished since.
    mortal: Mortal,
    started: bool,
}

struct Mover<'a> {
    t: &'a Transfer<'a>,
    /// The name under which the value is assembled.
    staging: Bytes,
}

impl Mover<'_> {
    fn run<'a>(&'a self, source: &'a mut Link, target: &'a mut Link) -> BoxFuture<'a, Result<Outcome>> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            if self.t.existing != Existing::Replace && !self.importing() {
                let reply = target.call(&[b"EXISTS", self.t.key]).await?;
                if reply.as_int() != Some(0) {
                    return self.judge_existing(source, target).await;
                }
            }
            for attempt in 0..self.t.tries_max {
                if attempt > 0 {
                    self.pause(PAUSE_FIRST_MS << (attempt - 1)).await?;
                }
                match self.attempt(source, target, attempt).await {
                    Ok(outcome) => return Ok(outcome),
                    Err(Halt::Failed(e)) => return Err(e),
                    Err(Halt::Lost) => {
                        self.unstage(target).await?;
                        return Err(lost(target));
                    }
                    Err(Halt::Unholdable(why)) => {
                        unwatch(source).await?;
                        self.unstage(target).await?;
                        return Ok(Outcome::Unholdable(why));
                    }
                    Err(Halt::Changed) => {
                        tracing::debug!(attempt, "the key changed while it was read");
                        // A connection that has seen a change refuses every transaction until it forgets.
                        unwatch(source).await?;
                    }
                }
            }
            self.unstage(target).await?;
            Ok(Outcome::Changing)
        })
    }

    fn importing(&self) -> bool {
        matches!(self.t.place, Assembly::Importing { .. })
    }

    /// Whether others follow changes of the key's elements.
    fn follows(&self, kind: &KeyType) -> bool {
        self.t.place != Assembly::Staging && matches!(kind, KeyType::Hash | KeyType::Set | KeyType::Zset)
    }

    /// Queues a command about the staged value.
    fn push(&self, target: &mut Link, args: &[&[u8]]) {
        if self.importing() {
            target.push(&[b"ASKING"]);
        }
        target.push(args);
    }

    /// Queues a command that writes elements. Long ones are sent without a copy: a copy of each would count
    /// against the memory that the job may use.
    fn push_elements(&self, target: &mut Link, command: &Command) {
        if self.importing() {
            target.push(&[b"ASKING"]);
        }
        target.outbox().push_bytes(&command.args);
    }

    /// The reply to what [`Mover::push`] has queued.
    async fn reply(&self, target: &mut Link) -> Result<Value> {
        if self.importing() {
            target.reply().await?;
        }
        target.reply().await
    }

    async fn pause(&self, pause_ms: u64) -> Result<()> {
        let pause = tokio::time::sleep(Duration::from_millis(pause_ms));
        match self.t.stop {
            None => pause.await,
            Some(stop) => {
                stop.run_until_cancelled(pause).await;
            }
        }
        self.check_stop()
    }

    fn check_stop(&self) -> Result<()> {
        if self.t.stop.is_some_and(CancellationToken::is_cancelled) {
            return Err(Error::own("transfer a key in chunks", "interrupted"));
        }
        Ok(())
    }

    async fn attempt(&self, source: &mut Link, target: &mut Link, attempt: u32) -> Result<Outcome, Halt> {
        let t = self.t;
        let mut watched = watch(source, t.key).await?;
        let Some(kind) = type_of(source, t.key).await? else {
            unwatch(source).await?;
            self.unstage(target).await?;
            return Ok(Outcome::Gone);
        };
        if self.follows(&kind) {
            // A scan returns every element that is there from its beginning to its end, and the others are
            // followed.
            unwatch(source).await?;
            watched = false;
        }
        let key = Bytes::copy_from_slice(t.key);
        let staging = self.staging.clone();
        let scanned = |kind| Scanned::new(kind, key.clone(), staging.clone(), t);
        match &kind {
            KeyType::String => {
                let reader = StringReader::new(key, staging, t.chunk_bytes);
                self.move_by(reader, &kind, watched, source, target).await
            }
            KeyType::List => {
                let reader = ListReader::new(key, staging, t.chunk_bytes);
                self.move_by(reader, &kind, watched, source, target).await
            }
            KeyType::Set => self.move_by(scanned(ScannedType::Set), &kind, watched, source, target).await,
            KeyType::Zset => self.move_by(scanned(ScannedType::Zset), &kind, watched, source, target).await,
            KeyType::Hash => self.move_by(scanned(ScannedType::Hash), &kind, watched, source, target).await,
            KeyType::Stream => {
                // If only the time of a consumer's last request is known, a consumer that polls an idle group
                // looks like a consumer that works. After a few tries, or at the last, it gets the benefit of
                // the doubt.
                let strict = attempt + 1 < t.tries_max.min(TRIES_MAX / 2 + 1);
                let reader = StreamReader::new(key, staging, t, strict);
                self.move_by(reader, &kind, watched, source, target).await
            }
            KeyType::Module(name) => {
                Err(Halt::Unholdable(format!("the target does not take what its type, {name}, is dumped as")))
            }
        }
    }

    async fn move_by<R: Reader>(
        &self,
        mut reader: R,
        kind: &KeyType,
        watched: bool,
        source: &mut Link,
        target: &mut Link,
    ) -> Result<Outcome, Halt> {
        let cardinality_command = kind.cardinality_command().unwrap_or_default();
        let mut sent = Sent::default();
        let mut current = reader.next(source).await?;
        while let Some(chunk) = current {
            self.check_stop()?;
            self.check_lengths(&chunk)?;
            let (next, written) = tokio::join!(reader.next(source), self.write(target, chunk, &mut sent));
            written?;
            current = next?;
        }
        let closing = self.close(source, cardinality_command, reader.closing(), watched).await?;
        if !reader.is_same(&closing.rest)
            || !self.follows(kind) && reader.counts_exactly() && closing.cardinality != sent.cardinality
        {
            return Err(Halt::Changed);
        }
        let is_followed = self.follows(kind) && self.t.place == Assembly::Followed;
        if (*kind == KeyType::Hash || is_followed) && sent.cardinality == 0 {
            // All fields have expired, and the source has not got round to removing them; or all elements
            // were removed before they were read, and whatever came since is followed.
            self.unstage(target).await?;
            return Ok(Outcome::Gone);
        }
        self.publish(source, target, cardinality_command, &closing, &sent).await
    }

    /// A server closes the connection on a command that is too long: every try would end that way.
    fn check_lengths(&self, chunk: &Chunk) -> Result<(), Halt> {
        let Some(max) = self.t.target.query_bytes_max else { return Ok(()) };
        let bytes = |command: &Command| command.args.iter().map(|arg| arg.len() as u64).sum::<u64>();
        match chunk.commands.iter().map(bytes).find(|bytes| bytes + QUERY_SLACK_BYTES > max) {
            Some(bytes) => Err(Halt::Unholdable(format!(
                "one of its elements needs a command of {bytes} bytes, and the server's {QUERY_LIMIT_OPTION} \
                    is {max}"
            ))),
            None => Ok(()),
        }
    }

    /// Writes one chunk to the staging key. Takes in all replies, so that the link stays in step.
    async fn write(&self, target: &mut Link, chunk: Chunk, sent: &mut Sent) -> Result<(), Halt> {
        let Some((first, rest)) = chunk.commands.split_first() else { return Ok(()) };
        let before = (sent.mortal, sent.cardinality);
        sent.mortal.join(chunk.mortal);
        sent.bytes += chunk.bytes;
        sent.elements += chunk.elements;
        let creates = !std::mem::replace(&mut sent.started, true);
        let ttl = STAGING_TTL_MS.to_string();
        let bound: Vec<&[u8]> = vec![b"PEXPIRE", &self.staging, ttl.as_bytes()];
        let unlink: Vec<&[u8]> = vec![b"UNLINK", &self.staging];
        let creation = [unlink.clone(), first.words(), bound.clone()];
        let renewal = [vec![&b"PERSIST"[..], &self.staging], bound.clone()];
        let in_transaction = creates && !self.importing();
        if in_transaction {
            target.push(&[b"MULTI"]);
        }
        if creates {
            self.push(target, &unlink);
        }
        self.push_elements(target, first);
        if in_transaction {
            target.push(&bound);
            target.push(&[b"EXEC"]);
        }
        rest.iter().for_each(|command| self.push_elements(target, command));
        if !self.importing() {
            push_transaction(target, &renewal);
        }
        target.flush().await?;

        let mut failure = None;
        let mut note = |judged: Result<(), Halt>| match judged {
            Err(halt) if failure.is_none() => failure = Some(halt),
            _ => {}
        };
        match (creates, self.importing()) {
            (true, true) => {
                let reply = self.reply(target).await?;
                note(self.judge(target, reply, b"UNLINK", Expect::NoError, sent));
                let reply = self.reply(target).await?;
                note(self.judge(target, reply, first.name(), first.expect, sent));
            }
            (true, false) => match transaction_replies(target, &creation).await {
                Ok(Some(mut replies)) if replies.len() == creation.len() => {
                    let reply = replies.swap_remove(1);
                    note(self.judge(target, reply, first.name(), first.expect, sent));
                }
                Ok(_) => note(Err(Halt::Lost)),
                Err(e) if e.server().is_some() => note(Err(Halt::Failed(e))),
                Err(e) => return Err(Halt::Failed(e)),
            },
            (false, _) => {
                let reply = self.reply(target).await?;
                note(self.judge(target, reply, first.name(), first.expect, sent));
            }
        }
        for command in rest {
            let reply = self.reply(target).await?;
            note(self.judge(target, reply, command.name(), command.expect, sent));
        }
        let kept = match self.importing() {
            true => true,
            false => match transaction_replies(target, &renewal).await {
                Ok(replies) => replies.is_some_and(|all| all.iter().all(|reply| reply.as_int() == Some(1))),
                Err(e) if e.server().is_some() => {
                    note(Err(Halt::Failed(e)));
                    true
                }
                Err(e) => return Err(Halt::Failed(e)),
            },
        };
        if let Some(halt) = failure {
            return Err(halt);
        }
        if kept {
            return Ok(());
        }
        // A hash goes with the last of its fields: with all of them, or with those of earlier chunks.
        let now_ms = server_now_ms(target).await?;
        let is_right = [before, (sent.mortal, sent.cardinality)]
            .iter()
            .any(|(mortal, cardinality)| *cardinality > 0 && mortal.are_all_gone(*cardinality, now_ms));
        if is_right { Ok(()) } else { Err(Halt::Lost) }
    }

    /// Judges what the target answered to one command of a chunk.
    fn judge(
        &self,
        target: &Link,
        reply: Value,
        command: &[u8],
        expect: Expect,
        sent: &mut Sent,
    ) -> Result<(), Halt> {
        let reply = self.checked(target, reply, command)?;
        match expect {
            Expect::NoError => Ok(()),
            Expect::Counts(n) => {
                sent.cardinality += n;
                Ok(())
            }
            Expect::Total(n) => {
                sent.cardinality += n;
                let total = reply.as_int().and_then(|n| u64::try_from(n).ok());
                if total == Some(sent.cardinality) { Ok(()) } else { Err(Halt::Lost) }
            }
            Expect::Added => match reply.as_int().and_then(|n| u64::try_from(n).ok()) {
                Some(n) => {
                    sent.cardinality += n;
                    Ok(())
                }
                None => Err(target.unexpected(&String::from_utf8_lossy(command), &reply).into()),
            },
            Expect::Items(n) if reply.as_items().is_some_and(|items| items.len() == n) => Ok(()),
            Expect::Items(_) => Err(Halt::Lost),
        }
    }

    /// Whether a server says that the key, or a group that was made in it, is not there, or not what was
    /// written: it was lost, or another run writes to it. Nothing is wrong with the value.
    fn is_disturbed(&self, refused: &ServerError) -> bool {
        let text = &refused.text;
        let is_gone = text == "ERR no such key"
            || text.starts_with("NOGROUP")
            || text.contains("requires the key to exist");
        let is_another = refused.code == Code::WrongType || text.starts_with("BUSYGROUP");
        is_gone || is_another && !self.importing()
    }

    /// Closes the read: returns when the key expires, and whether it changed since `WATCH`.
    async fn close(
        &self,
        source: &mut Link,
        cardinality_command: &[u8],
        rest: Vec<Vec<Bytes>>,
        watched: bool,
    ) -> Result<Closing, Halt> {
        let key = self.t.key;
        let clock = Clock::of_server(self.t.source.pexpiretime);
        // Whether one is clear is a matter of chance, and the whole key would have to be read again.
        let reads = if clock == Clock::Absolute { 1 } else { EXPIRY_READS };
        let mut commands: Vec<Vec<&[u8]>> = Vec::new();
        for _ in 0..reads {
            expiry::question(clock, key, &mut |command| commands.push(command.to_vec()));
        }
        commands.push(vec![cardinality_command, key]);
        commands.extend(rest.iter().map(|args| args.iter().map(|arg| &arg[..]).collect()));

        let replies = if watched {
            match run_transaction(source, &commands).await? {
                Some(replies) => replies,
                None => return Err(Halt::Changed),
            }
        } else {
            for command in &commands {
                source.push(command);
            }
            source.flush().await?;
            source.replies(commands.len()).await?
        };
        let mut replies = replies.into_iter();
        let mut commands = commands.iter();
        let mut following = |source: &Link| -> Result<Value, Halt> {
            let name = commands.next().and_then(|c| c.first().copied()).unwrap_or_default();
            let reply = replies.next().unwrap_or(Value::Null);
            checked(source, reply, name)
        };
        let mut answers = Vec::with_capacity(reads * expiry::commands(clock));
        for _ in 0..reads * expiry::commands(clock) {
            answers.push(following(source)?);
        }
        let mut answers = answers.iter();
        let reads: Vec<Expiry> = (0..reads).map_while(|_| expiry::read(&mut answers, clock)).collect();
        let clear = reads.iter().rfind(|read| **read != Expiry::Unclear);
        let expires_at_ms = match clear.copied().unwrap_or(Expiry::Unclear) {
            Expiry::At(ms) => Some(ms),
            Expiry::Never => None,
            // The key has expired since the last chunk was read, or its expiry is unknown.
            Expiry::Gone | Expiry::Unclear => return Err(Halt::Changed),
            Expiry::Unknown => return Err(source.unexpected("PEXPIRETIME or PTTL", &Value::Null).into()),
        };
        let counted = following(source)?;
        let cardinality = counted
            .as_int()
            .and_then(|n| u64::try_from(n).ok())
            .ok_or_else(|| source.unexpected(&String::from_utf8_lossy(cardinality_command), &counted))?;
        Ok(Closing { expires_at_ms, cardinality, rest: replies.collect() })
    }

    /// Lets the staging key take the place of the key.
    async fn publish(
        &self,
        source: &mut Link,
        target: &mut Link,
        cardinality_command: &[u8],
        closing: &Closing,
        sent: &Sent,
    ) -> Result<Outcome, Halt> {
        let key = self.t.key;
        let written = Outcome::Written {
            bytes: sent.bytes,
            elements: sent.elements,
            ttl: closing.expires_at_ms.is_some(),
        };
        let at = closing.expires_at_ms.map(|ms| ms.max(1).to_string());
        if self.importing() {
            self.count(target, cardinality_command, sent, false).await?;
            let followed = !matches!(cardinality_command, b"STRLEN" | b"LLEN" | b"XLEN");
            let immortal = followed && self.t.place == Assembly::Importing { mortal: false };
            if let Some(at) = at.filter(|_| !immortal) {
                self.push(target, &[b"PEXPIREAT", key, at.as_bytes()]);
                target.flush().await?;
                let reply = self.reply(target).await?;
                target.check(reply, b"PEXPIREAT")?;
            }
            return Ok(written);
        }
        let replace = self.t.existing == Existing::Replace;
        let mut commands: Vec<Vec<&[u8]>> = Vec::with_capacity(3);
        if replace {
            // RENAME over a big value would free it on the spot, and stall the server.
            commands.push(vec![b"UNLINK", key]);
        }
        commands.push(match &at {
            Some(at) => vec![b"PEXPIREAT", &self.staging, at.as_bytes()],
            None => vec![b"PERSIST", &self.staging],
        });
        commands.push(vec![if replace { b"RENAME" } else { b"RENAMENX" }, &self.staging, key]);
        for tries_left in (0..PUBLISH_TRIES).rev() {
            // If fields expire all the time, that is a change each time.
            let watches = tries_left > 0 || sent.mortal == Mortal::default();
            let is_there = self.count(target, cardinality_command, sent, watches).await?;
            // Unwatched it may be lost by now: then the old value must stay.
            let unlinks = replace && (watches || !is_there);
            let commands = &commands[usize::from(replace && !unlinks)..];
            let Some(replies) = run_transaction(target, commands).await? else {
                // It was removed, which is seen now, or one of its fields has expired.
                continue;
            };
            let mut replies = replies.into_iter().skip(usize::from(unlinks));
            let lived = replies.next().and_then(|r| r.as_int()) == Some(1);
            let renamed = replies.next().unwrap_or(Value::Null);
            return match ServerError::of(&renamed) {
                // A time that has passed deletes the key at once, and a hash goes with its last field.
                Some(e) if e.text == "ERR no such key" && (lived && at.is_some() || !is_there) => Ok(written),
                Some(e) if e.text == "ERR no such key" => Err(Halt::Lost),
                Some(e) => Err(target.server_error(e, b"RENAME").into()),
                None if renamed.as_int() == Some(0) => {
                    self.unstage(target).await?;
                    Ok(self.judge_existing(source, target).await?)
                }
                None => Ok(written),
            };
        }
        Err(Halt::Lost)
    }

    /// Counts what the target holds; false if all of it has expired. Under `WATCH` if that is wanted: what is
    /// removed after it was counted must not take the place of anything.
    async fn count(
        &self,
        target: &mut Link,
        cardinality_command: &[u8],
        sent: &Sent,
        watches: bool,
    ) -> Result<bool, Halt> {
        if watches {
            target.push(&[b"WATCH", &self.staging]);
        }
        self.push(target, &[cardinality_command, &self.staging]);
        let is_mortal = sent.mortal != Mortal::default();
        if is_mortal {
            target.push(&[b"TIME"]);
        }
        // Nothing else distinguishes an empty string from none.
        if !self.importing() {
            target.push(&[b"EXISTS", &self.staging]);
        }
        target.flush().await?;
        let watched = if watches { Some(target.reply().await?) } else { None };
        let counted = self.reply(target).await?;
        let time = if is_mortal { Some(target.reply().await?) } else { None };
        let exists = if self.importing() { Value::Int(1) } else { target.reply().await? };
        if let Some(reply) = watched {
            is_watched(target, &reply)?;
        }
        let counted = self.checked(target, counted, cardinality_command)?;
        let counted = counted.as_int().and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        let exists = self.checked(target, exists, b"EXISTS")?.as_int() == Some(1);
        let now_ms = time.map_or(Ok(i64::MIN), |reply| now_ms(target, &reply))?;
        let is_gone = counted == 0 && sent.cardinality > 0 || !exists;
        let is_right = match sent.cardinality.checked_sub(counted) {
            _ if is_gone => sent.cardinality > 0 && sent.mortal.are_all_gone(sent.cardinality, now_ms),
            Some(missing) => sent.mortal.may_lack(missing, now_ms),
            None => false,
        };
        if is_right { Ok(!is_gone) } else { Err(Halt::Lost) }
    }

    /// A reply of the target about the staging key.
    fn checked(&self, target: &Link, reply: Value, command: &[u8]) -> Result<Value, Halt> {
        target.check(reply, command).map_err(|e| match e.server() {
            Some(refused) if self.is_disturbed(refused) => Halt::Lost,
            _ => Halt::Failed(e),
        })
    }

    /// The outcome if the target has the key and it is not to be replaced.
    async fn judge_existing(&self, source: &mut Link, target: &mut Link) -> Result<Outcome> {
        if self.t.existing == Existing::Skip {
            return Ok(Outcome::Skipped);
        }
        let key = self.t.key;
        let Some(kind) = type_of(source, key).await? else { return Ok(Outcome::Gone) };
        if type_of(target, key).await? != Some(kind.clone()) {
            return Ok(Outcome::Conflict);
        }
        let Some(cardinality_command) = kind.cardinality_command() else { return Ok(Outcome::Conflict) };
        // Either may change its type at any moment, so an error is a difference like any other.
        let ours = source.ask(&[cardinality_command, key]).await?.as_int();
        let theirs = target.ask(&[cardinality_command, key]).await?.as_int();
        let (Some(ours), Some(theirs)) = (ours, theirs) else { return Ok(Outcome::Conflict) };
        let is_small = match kind {
            KeyType::String => usize::try_from(ours).is_ok_and(|n| n <= self.t.chunk_bytes),
            _ => ours <= COMPARED_ELEMENTS_MAX && self.is_small(source).await?,
        };
        if ours != theirs || !is_small || !self.t.source.dump || !self.t.target.dump {
            return Ok(Outcome::Conflict);
        }
        let dump = Fetch::Payload.command();
        let ours = dumps(source, &[key], false).await?.swap_remove(0);
        let ours = source.check(ours, dump)?;
        let theirs = dumps(target, &[key], false).await?.swap_remove(0);
        let theirs = target.check(theirs, dump)?;
        let content = |payload: &Value| {
            let payload = payload.as_bytes()?;
            Some(payload.slice(..payload.len().checked_sub(Footer::LEN)?))
        };
        Ok(match (content(&ours), content(&theirs)) {
            (Some(ours), Some(theirs)) if ours == theirs => Outcome::Skipped,
            _ => Outcome::Conflict,
        })
    }

    async fn is_small(&self, source: &mut Link) -> Result<bool> {
        if !self.t.source.memory_usage {
            return Ok(true);
        }
        let bytes_max = self.t.chunk_bytes as u64;
        Ok(memory_bytes(source, self.t.key, bytes_max).await?.is_some_and(|bytes| bytes <= bytes_max))
    }

    async fn unstage(&self, target: &mut Link) -> Result<()> {
        self.push(target, &[b"UNLINK", &self.staging]);
        target.flush().await?;
        let reply = self.reply(target).await?;
        target.check(reply, b"UNLINK").map(drop)
    }
}

/// The target does not hold what it took in: transient, since a failover does that.
fn lost(target: &Link) -> Error {
    let kind = ErrorKind::Broken(io::Error::other(
        "the staging key lost elements, perhaps by a failover or an eviction",
    ));
    Error::new(target.endpoint().side, target.address().to_string(), "write a key in chunks", kind)
}

/// What time it is for the server.
async fn server_now_ms(link: &mut Link) -> Result<i64> {
    let reply = link.ask(&[b"TIME"]).await?;
    now_ms(link, &reply)
}

/// The reply to `TIME`. If the user may not ask the server: the latest time that its clock may show.
fn now_ms(link: &Link, reply: &Value) -> Result<i64> {
    match ServerError::of(reply) {
        Some(e) if e.forbids_command() => Ok(expiry::now_ms().saturating_add(CLOCKS_APART_MS)),
        Some(e) => Err(link.server_error(e, b"TIME")),
        None => expiry::time_ms(reply).ok_or_else(|| link.unexpected("TIME", reply)),
    }
}

/// Watches the key of the source; false if the server does not let us.
async fn watch(source: &mut Link, key: &[u8]) -> Result<bool> {
    let reply = source.ask(&[b"WATCH", key]).await?;
    let is_watched = is_watched(source, &reply)?;
    if !is_watched {
        tracing::warn!(server = %source.address(), "WATCH is not allowed: big keys that change while they \
            are read may arrive mixed");
    }
    Ok(is_watched)
}

/// Judges the reply to `WATCH`; false if the server does not let us.
fn is_watched(link: &Link, reply: &Value) -> Result<bool> {
    match ServerError::of(reply) {
        None => Ok(true),
        Some(e) if matches!(e.code, Code::UnknownCommand | Code::NoPermission) => Ok(false),
        Some(e) => Err(link.server_error(e, b"WATCH")),
    }
}

/// Forgets what is watched. A server that does not let us watch does not let us forget either.
async fn unwatch(source: &mut Link) -> Result<()> {
    let reply = source.ask(&[b"UNWATCH"]).await?;
    match ServerError::of(&reply) {
        Some(e) if !matches!(e.code, Code::UnknownCommand | Code::NoPermission) => {
            Err(source.server_error(e, b"UNWATCH"))
        }
        _ => Ok(()),
    }
}

/// Runs commands as one transaction; `None` if a watched key changed. Errors of single commands are values.
async fn run_transaction(link: &mut Link, commands: &[Vec<&[u8]>]) -> Result<Option<Vec<Value>>> {
    push_transaction(link, commands);
    link.flush().await?;
    transaction_replies(link, commands).await
}

/// Queues commands as one transaction.
fn push_transaction(link: &mut Link, commands: &[Vec<&[u8]>]) {
    link.push(&[b"MULTI"]);
    commands.iter().for_each(|command| link.push(command));
    link.push(&[b"EXEC"]);
}

/// The replies to what [`push_transaction`] has queued, as [`run_transaction`].
async fn transaction_replies(link: &mut Link, commands: &[Vec<&[u8]>]) -> Result<Option<Vec<Value>>> {
    let mut refused = None;
    let names = [&b"MULTI"[..]].into_iter().chain(commands.iter().filter_map(|c| c.first().copied()));
    for name in names {
        let reply = link.reply().await?;
        if let Err(e) = link.check(reply, name) {
            refused.get_or_insert(e);
        }
    }
    let reply = link.reply().await?;
    // The reason why a command was refused says more than the abort that follows from it.
    if let Some(e) = refused {
        return Err(e);
    }
    match link.check(reply, b"EXEC")? {
        Value::Null => Ok(None),
        Value::Array(replies) if replies.len() == commands.len() => Ok(Some(replies)),
        other => Err(link.unexpected("EXEC", &other)),
    }
}
