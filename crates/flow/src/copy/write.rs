//! The writing half of a lane: from key states to acknowledged keys.
//!
//! A batch is written, and whatever was not acknowledged is written again, before the next batch of the lane
//! is looked at. Writing is idempotent: a state replaces what is there. Where the user wants existing keys
//! left alone, a key that a lost acknowledgement makes look like an existing one is compared before it is
//! called a conflict.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use whimbrel_core::slot::Slot;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Error, Result, ServerError};
use whimbrel_engine::link::Link;
use whimbrel_wire::payload;
use whimbrel_wire::value::Value;

use super::read::{State, StateBatch};
use super::track::Tracker;
use super::{Existing, Shared};
use crate::progress::CopyProgress;
use crate::retry::{Backoff, RetryPolicy};
use crate::scan::Unit;
use crate::state::Body;
use crate::{typed, verify};

/// Largest `MSET` that is sent. Above it the strings of a batch go out in several.
const MSET_BYTES_MAX: u64 = 1 << 20;

/// How long a full target is waited for: somebody may be making room, but a copy cannot.
const FULL_TARGET_WAIT_MS: u64 = 5_000;

/// The writing half of one lane.
pub(super) struct Writer {
    shared: Arc<Shared>,
    unit: Unit,
    target_db: u32,
    tracker: Arc<Tracker>,
    links: HashMap<Address, Link>,
    /// For values that are moved in chunks.
    source: Option<Link>,
    several: bool,
}

/// One command in a pipeline and the states it carries, as indexes into the pending ones.
struct Sent {
    states: Vec<usize>,
    asking: bool,
}

/// What became of one state.
enum Fate {
    Done,
    /// It was to be removed, and was not there.
    Absent,
    Skipped,
    Exists,
    Retry(Error),
    ChunksInstead,
    Failed(String),
}

impl Writer {
    pub fn new(shared: Arc<Shared>, unit: Unit, target_db: u32, tracker: Arc<Tracker>) -> Writer {
        Writer {
            several: !shared.target.is_cluster() && shared.options.existing == Existing::Replace,
            shared,
            unit,
            target_db,
            tracker,
            links: HashMap::new(),
            source: None,
        }
    }

    /// Writes batches until there are no more.
    pub async fn run(mut self, mut batches: mpsc::Receiver<StateBatch>) -> Result<()> {
        while let Some(batch) = batches.recv().await {
            CopyProgress::shift(&self.shared.progress.waiting_to_write, -1);
            self.write(batch.states).await?;
            if !batch.origins.is_empty() {
                self.tracker.done(&batch.origins);
            }
        }
        Ok(())
    }

    async fn write(&mut self, states: Vec<State>) -> Result<()> {
        let mut pending = Vec::with_capacity(states.len());
        let mut in_chunks = Vec::new();
        for state in states {
            match self.fit(state) {
                State { key, body: Body::Typed, .. } => in_chunks.push(key),
                state => pending.push(state),
            }
        }
        let mut backoff = Backoff::new(self.shared.options.retry);
        let retry = self.shared.options.retry;
        let mut full = Backoff::new(RetryPolicy {
            give_up_after_ms: FULL_TARGET_WAIT_MS.min(retry.give_up_after_ms),
            ..retry
        });
        while !pending.is_empty() {
            let failure = match self.try_write(&mut pending, &mut in_chunks).await {
                Ok(None) => continue,
                Ok(Some(e)) | Err(e) => e,
            };
            self.shared.progress.retried(&failure);
            let is_full = failure.server().is_some_and(|e| e.code == Code::Oom);
            let pauses = if is_full { &mut full } else { &mut backoff };
            self.shared.pause(pauses, failure).await?;
            self.shared.refresh_target().await;
        }
        for key in in_chunks {
            self.write_in_chunks(key).await?;
        }
        Ok(())
    }

    /// Makes a payload fit for the target, or decides that it cannot travel as one.
    fn fit(&self, mut state: State) -> State {
        let Shared { source, target, .. } = &*self.shared;
        let version_max = target.capabilities.payload_version_max;
        let dialects = (source.facts.dialect, target.facts.dialect);
        state.body = match state.body {
            // A value is never there without its expiry.
            Body::String(value) if state.expires_at_ms.is_some() && !target.capabilities.set_pxat => {
                match version_max {
                    Some(version) => Body::Dump(payload::of_string(&value, version).into()),
                    None => Body::Typed,
                }
            }
            body => body.fit(dialects, version_max),
        };
        if self.is_too_long(state.bytes()) {
            state.body = Body::Typed;
        }
        state
    }

    /// Whether the target closes the connection on a command of so many bytes.
    fn is_too_long(&self, bytes: u64) -> bool {
        self.shared.target.capabilities.query_bytes_max.is_some_and(|max| bytes > max / 2)
    }

    /// One try for all pending states. What is dealt with leaves `pending`; what has to go in chunks instead
    /// goes to `in_chunks`. The error, where there is one, says why the rest is still there.
    async fn try_write(
        &mut self,
        pending: &mut Vec<State>,
        in_chunks: &mut Vec<Bytes>,
    ) -> Result<Option<Error>> {
        let mut failure = None;
        let mut fates: Vec<Option<Fate>> = Vec::new();
        fates.resize_with(pending.len(), || None);
        let mut busy = Vec::new();
        for (address, members) in self.by_owner(pending, &mut failure) {
            match self.send(&address, pending, &members).await {
                Ok((link, sent)) => busy.push((link, sent)),
                Err(e) => failure = Some(e),
            }
        }
        for (mut link, sent) in busy {
            if let Err(e) = self.receive(&mut link, sent, pending, &mut fates).await {
                failure = Some(e);
                continue;
            }
            self.links.insert(link.address().clone(), link);
        }
        let mut left = Vec::new();
        for (state, fate) in std::mem::take(pending).into_iter().zip(fates) {
            match fate {
                None => left.push(state),
                Some(Fate::Retry(e)) => {
                    left.push(self.redirected(state, &e));
                    failure = Some(e);
                }
                Some(fate @ (Fate::Done | Fate::Absent)) if matches!(state.body, Body::Gone) => {
                    let removed = u64::from(matches!(fate, Fate::Done));
                    CopyProgress::add(&self.shared.progress.gone, removed);
                    self.shared.arrived(self.unit.db, &state.key);
                    self.shared.unfollow_elements(self.unit.db, &state.key);
                }
                Some(Fate::Done | Fate::Absent) => {
                    self.shared.arrived(self.unit.db, &state.key);
                    CopyProgress::add(&self.shared.progress.written, 1);
                    CopyProgress::add(&self.shared.progress.bytes_written, state.bytes());
                }
                Some(Fate::Skipped) => CopyProgress::add(&self.shared.progress.skipped, 1),
                Some(Fate::ChunksInstead) => in_chunks.push(state.key),
                Some(Fate::Failed(why)) => self.shared.failed(self.unit.db, &state.key, why),
                Some(Fate::Exists) => {
                    match self.same_at_target(&state.key).await {
                        Ok(true) => CopyProgress::add(&self.shared.progress.skipped, 1),
                        Ok(false) => {
                            *pending = left;
                            return Err(self.conflict(&state.key));
                        }
                        // Asked again: it must not count as dealt with.
                        Err(e) => {
                            failure = Some(e);
                            left.push(state);
                        }
                    }
                }
            }
        }
        *pending = left;
        Ok(failure)
    }

    fn redirected(&self, mut state: State, e: &Error) -> State {
        state.ask = match e.server().map(|e| &e.code) {
            Some(Code::Ask(slot, to)) => {
                // Should the migration be undone, the key stays where nobody looks for it.
                self.shared.doubt_target(*slot);
                Address::parse_tcp(&e.at).and_then(|told_by| self.shared.target.reach(to, &told_by))
            }
            _ => None,
        };
        state
    }

    fn by_owner(&self, pending: &[State], failure: &mut Option<Error>) -> HashMap<Address, Vec<usize>> {
        let target = &self.shared.target;
        let topology = target.topology();
        let mut groups: HashMap<Address, Vec<usize>> = HashMap::new();
        if !topology.cluster {
            groups.insert(target.server(), (0..pending.len()).collect());
            return groups;
        }
        for (i, state) in pending.iter().enumerate() {
            let slot = Slot::of_key(&state.key);
            match (&state.ask, topology.shard_of(slot)) {
                (Some(address), _) => groups.entry(address.clone()).or_default().push(i),
                (None, Some(shard)) => groups.entry(shard.primary.clone()).or_default().push(i),
                (None, None) => *failure = Some(target.unowned(slot)),
            }
        }
        groups
    }

    async fn send(
        &mut self,
        address: &Address,
        pending: &[State],
        members: &[usize],
    ) -> Result<(Link, Vec<Sent>)> {
        let mut link = match self.links.remove(address) {
            Some(link) => link,
            None => self.shared.open_target(address, self.target_db).await?,
        };
        let existing = self.shared.options.existing;
        let mut sent = Vec::new();
        let mut several: Vec<usize> = Vec::new();
        let mut several_bytes = 0;
        for &i in members {
            let state = &pending[i];
            let asking = state.ask.is_some();
            let out = link.outbox();
            if asking {
                out.push(&[b"ASKING"]);
            }
            match &state.body {
                Body::String(_) if self.several && state.expires_at_ms.is_none() && !asking => {
                    if !several.is_empty() && self.is_too_long(several_bytes + state.bytes()) {
                        push_mset(&mut link, pending, &several);
                        sent.push(Sent { states: std::mem::take(&mut several), asking: false });
                        several_bytes = 0;
                    }
                    several_bytes += state.bytes();
                    several.push(i);
                    if several_bytes > MSET_BYTES_MAX {
                        push_mset(&mut link, pending, &several);
                        sent.push(Sent { states: std::mem::take(&mut several), asking: false });
                        several_bytes = 0;
                    }
                    continue;
                }
                Body::String(value) => {
                    let extra = usize::from(existing != Existing::Replace);
                    out.command(3 + extra + if state.expires_at_ms.is_some() { 2 } else { 0 });
                    out.arg(b"SET");
                    out.arg_bytes(&state.key);
                    out.arg_bytes(value);
                    if let Some(at) = state.expires_at_ms {
                        out.arg(b"PXAT");
                        out.arg_int(at.max(1));
                    }
                    if extra == 1 {
                        out.arg(b"NX");
                    }
                }
                Body::Dump(dump) => {
                    let replace = usize::from(existing == Existing::Replace);
                    let absolute = usize::from(state.expires_at_ms.is_some());
                    out.command(4 + replace + absolute);
                    out.arg(b"RESTORE");
                    out.arg_bytes(&state.key);
                    // 0 would mean no expiry: an expiry at the epoch itself is long past at 1 as well.
                    out.arg_int(state.expires_at_ms.map_or(0, |at| at.max(1)));
                    out.arg_bytes(dump);
                    if absolute == 1 {
                        out.arg(b"ABSTTL");
                    }
                    if replace == 1 {
                        out.arg(b"REPLACE");
                    }
                }
                Body::Gone => out.push(&[b"UNLINK", &state.key]),
                // `fit` has taken these out.
                Body::Typed => return Err(Error::own("write a batch", "a typed state in a batch")),
            }
            sent.push(Sent { states: vec![i], asking });
        }
        if !several.is_empty() {
            push_mset(&mut link, pending, &several);
            sent.push(Sent { states: several, asking: false });
        }
        link.flush().await?;
        Ok((link, sent))
    }

    async fn receive(
        &mut self,
        link: &mut Link,
        sent: Vec<Sent>,
        pending: &[State],
        fates: &mut [Option<Fate>],
    ) -> Result<()> {
        for Sent { states, asking } in sent {
            if asking {
                link.reply().await?;
            }
            let reply = link.reply().await?;
            for &i in &states {
                fates[i] = Some(self.fate(&reply, &pending[i], states.len() > 1, link));
            }
        }
        Ok(())
    }

    fn fate(&mut self, reply: &Value, state: &State, several: bool, link: &Link) -> Fate {
        let existing = self.shared.options.existing;
        let Some(e) = ServerError::of(reply) else {
            return match reply {
                Value::Simple(_) => Fate::Done,
                Value::Int(0) if matches!(state.body, Body::Gone) => Fate::Absent,
                Value::Int(_) if matches!(state.body, Body::Gone) => Fate::Done,
                // SET NX found the key.
                Value::Null if existing == Existing::Skip => Fate::Skipped,
                Value::Null if existing == Existing::Fail => Fate::Exists,
                other => Fate::Retry(link.unexpected("write a key", other)),
            };
        };
        match e.code {
            Code::BusyKey if existing == Existing::Skip => Fate::Skipped,
            Code::BusyKey => Fate::Exists,
            Code::PayloadVersion | Code::PayloadFormat => Fate::ChunksInstead,
            Code::NoPermission | Code::UnknownCommand if several => {
                // MSET is not allowed there, SET may be.
                self.several = false;
                let text = "TRYAGAIN without MSET".to_owned();
                Fate::Retry(link.server_error(ServerError { code: Code::TryAgain, text }, b"MSET"))
            }
            Code::NoPermission if e.text.contains("key") && !e.text.contains("command") => {
                Fate::Failed(format!("target: {}", e.text))
            }
            ref code if code.is_transient() => Fate::Retry(link.server_error(e, b"write keys")),
            Code::NoPermission | Code::NoAuth | Code::UnknownCommand => {
                let command = match state.body {
                    Body::Dump(_) => "RESTORE",
                    Body::Gone => "UNLINK",
                    Body::String(_) | Body::Typed => "SET",
                };
                Fate::Retry(link.server_error(e, command.as_bytes()))
            }
            _ => Fate::Failed(format!("target: {}", e.text)),
        }
    }

    /// Whether the target already holds this key as the source does, as after a lost acknowledgement or when
    /// `SCAN` has given the key twice.
    async fn same_at_target(&self, key: &Bytes) -> Result<bool> {
        let Shared { source, target, options, .. } = &*self.shared;
        verify::is_same((source, self.unit.db), (target, self.target_db), key, options.retry).await
    }

    fn conflict(&self, key: &[u8]) -> Error {
        let what = format!("key {} exists with another value", super::shown(key));
        Error::unfit(
            self.shared.target.side(),
            self.shared.target.endpoint.address.to_string(),
            "write a key",
            what,
        )
        .with_remedy(
            "start again, without --resume, with --replace to overwrite such keys or --skip to leave them",
        )
    }

    async fn write_in_chunks(&mut self, key: Bytes) -> Result<()> {
        let progress = self.shared.progress.clone();
        let _permit = self.shared.big_transfers.start().await;
        CopyProgress::shift(&progress.big_in_flight, 1);
        let outcome = self.transfer(&key).await;
        CopyProgress::shift(&progress.big_in_flight, -1);
        let Some(outcome) = outcome? else { return Ok(()) };
        match outcome {
            typed::Outcome::Written { bytes, .. } => {
                self.shared.arrived(self.unit.db, &key);
                if self.place() == typed::Place::Followed {
                    self.shared.follow_elements(self.unit.db, &key);
                }
                CopyProgress::add(&progress.big, 1);
                CopyProgress::add(&progress.written, 1);
                CopyProgress::add(&progress.bytes_read, bytes);
                CopyProgress::add(&progress.bytes_written, bytes);
                self.shared.paced(self.shared.rates.take_bytes(bytes)).await;
            }
            typed::Outcome::Gone if self.shared.options.mirror => {
                let state = State { key, body: Body::Gone, expires_at_ms: None, ask: None };
                // Boxed: a write may end in chunks, and chunks in a removal.
                Box::pin(self.write(vec![state])).await?;
            }
            typed::Outcome::Gone => CopyProgress::add(&progress.gone, 1),
            typed::Outcome::Skipped => CopyProgress::add(&progress.skipped, 1),
            typed::Outcome::Conflict if self.same_at_target(&key).await? => {
                CopyProgress::add(&progress.skipped, 1)
            }
            typed::Outcome::Conflict => return Err(self.conflict(&key)),
            typed::Outcome::Unholdable(why) => {
                self.shared.failed(self.unit.db, &key, format!("the target cannot hold it: {why}"));
            }
            typed::Outcome::Changing if self.shared.options.mirror => {
                self.shared.touch_again(&self.unit, key)
            }
            typed::Outcome::Changing => {
                let why = "it changed every time it was read; the target was not touched".to_owned();
                self.shared.failed(self.unit.db, &key, why);
            }
        }
        Ok(())
    }

    /// `None` where the slot of the key is in doubt, and gone through again, or where a server refuses what
    /// this key needs.
    async fn transfer(&mut self, key: &Bytes) -> Result<Option<typed::Outcome>> {
        let slot = Slot::of_key(key);
        let mut backoff = Backoff::new(self.shared.options.retry);
        loop {
            let e = match self.try_transfer(key, slot).await {
                Ok(outcome) => return Ok(Some(outcome)),
                Err(e) => e,
            };
            self.shared.progress.retried(&e);
            if matches!(e.server().map(|e| &e.code), Some(Code::Moved(..) | Code::Ask(..) | Code::TryAgain))
                && e.side == self.shared.source.side()
            {
                // Its slot is leaving the node we read from: it is copied when the slot has settled.
                self.shared.doubt_source(slot);
                return Ok(None);
            }
            if matches!(e.server().map(|e| &e.code), Some(Code::Ask(..))) {
                // The target's slot is on the move: its other node would want ASKING before each command.
                self.shared.doubt_target(slot);
                return Ok(None);
            }
            if let Some(why) = refused_for_good(&e) {
                self.shared.failed(self.unit.db, key, why);
                return Ok(None);
            }
            self.shared.pause(&mut backoff, e).await?;
            self.shared.refresh_source().await;
            self.shared.refresh_target().await;
        }
    }

    /// Where changed elements are transferred by somebody, a key need not rest while it is read.
    fn place(&self) -> typed::Place {
        match self.shared.sees_elements(&self.unit.shard_id) {
            true => typed::Place::Followed,
            false => typed::Place::Staging,
        }
    }

    async fn try_transfer(&mut self, key: &Bytes, slot: Slot) -> Result<typed::Outcome> {
        let mut source = match self.source.take() {
            Some(link) => link,
            None => self.unit.open(&self.shared.source).await?,
        };
        let mut target = self.shared.open_target_owner(slot, self.target_db).await?;
        let options = &self.shared.options;
        let part_bytes_max = self
            .shared
            .target
            .capabilities
            .query_bytes_max
            .map_or(usize::MAX, |max| usize::try_from(max / 4).unwrap_or(usize::MAX));
        let outcome = typed::transfer(
            &mut source,
            &mut target,
            &typed::Transfer {
                key,
                existing: options.existing,
                place: self.place(),
                chunk_bytes: options.chunk_bytes.min(part_bytes_max),
                tries_max: if options.mirror { typed::TRIES_FOLLOWED_MAX } else { typed::TRIES_MAX },
                job: &options.job,
                source: &self.shared.source.capabilities,
                target: &self.shared.target.capabilities,
                stop: Some(&self.shared.stop),
            },
        )
        .await?;
        self.source = Some(source);
        Ok(outcome)
    }
}

/// Why a key cannot be transferred by the commands of its type, where a server refuses one of them for good:
/// that key is left out, and the others go on.
fn refused_for_good(e: &Error) -> Option<String> {
    let refusal = e.server()?;
    match refusal.code {
        Code::UnknownCommand | Code::WrongType | Code::Other => {
            Some(format!("{}: {}: {}", e.side, e.tried, refusal.text))
        }
        _ => None,
    }
}

fn push_mset(link: &mut Link, pending: &[State], states: &[usize]) {
    let out = link.outbox();
    out.command(1 + 2 * states.len());
    out.arg(b"MSET");
    for &i in states {
        if let State { key, body: Body::String(value), .. } = &pending[i] {
            out.arg_bytes(key);
            out.arg_bytes(value);
        }
    }
}
