//! The writing half of a lane: from key states to acknowledged keys.
//!
//! A batch is written, and whatever was not acknowledged is written again, before the next batch of the lane
//! is begun. Writing is idempotent: a state replaces what is there. If the user wants existing keys left
//! alone, a key that a lost acknowledgement makes look like an existing one is compared before it is called a
//! conflict.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;
use whimbrel_core::slot::Slot;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Error, Result, ServerError};
use whimbrel_engine::expiry::Clock;
use whimbrel_engine::link::Link;
use whimbrel_engine::remedy::Remedy;

use super::shared::Shared;
use super::writers::StateBatch;
use crate::keys::write::push_strings;
use crate::keys::{Body, Fit, KeyState, Write, WriteMode, Written, shown};
use crate::large::{self, Existing};
use crate::progress::CopyProgress;
use crate::retry::{Backoff, RetryPolicy};
use crate::scan::Unit;
use crate::verify;

/// Largest `MSET` that is sent. Above it the strings of a batch go out in several.
const MSET_BYTES_MAX: u64 = 1 << 20;

/// How long a full target is waited for: an operator may be making room, but a copy cannot.
const FULL_TARGET_WAIT_MS: u64 = 5_000;

/// After this a transfer breaks off late, if failures may not last longer: what hangs is given up before.
const LATE_MIN: Duration = Duration::from_secs(60);

/// How often the transfer of one key may break off late.
const BROKEN_LATE_MAX: u32 = 5;

/// The writing half of one lane.
pub(super) struct Writer {
    shared: Arc<Shared>,
    unit: Unit,
    target_db: u32,
    links: HashMap<Address, Link>,
    /// For values that are moved in chunks.
    source: Option<Link>,
    several: bool,
}

/// A state that has not been acknowledged.
struct Pending {
    state: KeyState,
    /// Where the target sent us for this key with `ASK`; valid for one try.
    ask: Option<Address>,
}

/// One command in a pipeline and the states it carries, as indexes into the pending ones.
struct Sent {
    states: Vec<usize>,
    write: Write,
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

impl Fate {
    /// Whether the server has become a replica.
    fn is_of_replica(&self) -> bool {
        let Fate::Retry(e) = self else { return false };
        e.server().is_some_and(|refused| matches!(refused.code, Code::ReadOnly | Code::MasterDown))
    }
}

impl Writer {
    pub fn new(shared: Arc<Shared>, unit: Unit, target_db: u32) -> Writer {
        Writer {
            several: !shared.target.is_cluster() && shared.options.existing == Existing::Replace,
            shared,
            unit,
            target_db,
            links: HashMap::new(),
            source: None,
        }
    }

    /// Writes batches until there are no more.
    pub async fn run(mut self, mut batches: mpsc::Receiver<StateBatch>) -> Result<()> {
        while let Some(batch) = batches.recv().await {
            CopyProgress::shift(&self.shared.progress.waiting_to_write, -1);
            self.write(batch.states, batch.in_chunks).await?;
            batch.batch.part_is_done();
        }
        Ok(())
    }

    async fn write(&mut self, states: Vec<KeyState>, mut in_chunks: Vec<Bytes>) -> Result<()> {
        let fit = self.fit();
        let mut pending = Vec::with_capacity(states.len());
        for state in states {
            match fit.state(state) {
                Ok(state) => pending.push(Pending { state, ask: None }),
                Err(key) => in_chunks.push(key),
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

    /// What the target takes.
    fn fit(&self) -> Fit {
        let Shared { source, target, .. } = &*self.shared;
        Fit::of((source.facts.dialect, target.facts.dialect), &target.capabilities)
    }

    /// What to do with keys that the target has already.
    fn mode(&self) -> WriteMode {
        match self.shared.options.existing {
            Existing::Replace => WriteMode::Replace,
            Existing::Skip | Existing::Fail => WriteMode::IfAbsent,
        }
    }

    /// One try for all pending states. What is dealt with leaves `pending`; what has to go in chunks instead
    /// goes to `in_chunks`. The error, if there is one, says why the rest is still there.
    async fn try_write(
        &mut self,
        pending: &mut Vec<Pending>,
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
            // A primary that was demoted keeps its connections; behind its address may be another one by now.
            if !fates.iter().flatten().any(Fate::is_of_replica) {
                self.links.insert(link.address().clone(), link);
            }
        }
        let mut left = Vec::new();
        for (Pending { state, ask }, fate) in std::mem::take(pending).into_iter().zip(fates) {
            match fate {
                None => left.push(Pending { state, ask }),
                Some(Fate::Retry(e)) => {
                    left.push(Pending { ask: self.redirected(&e), state });
                    failure = Some(e);
                }
                Some(fate @ (Fate::Done | Fate::Absent)) if state.is_gone() => {
                    let removed = u64::from(matches!(fate, Fate::Done));
                    CopyProgress::add(&self.shared.progress.gone, removed);
                    self.shared.removed(self.unit.db, &state.key);
                }
                Some(Fate::Done | Fate::Absent) => {
                    self.shared.failures.arrived(self.unit.db, &state.key);
                    CopyProgress::add(&self.shared.progress.written, 1);
                    CopyProgress::add(&self.shared.progress.bytes_written, state.bytes());
                }
                Some(Fate::Skipped) => self.skipped(&state.key),
                Some(Fate::ChunksInstead) => in_chunks.push(state.key),
                Some(Fate::Failed(why)) => self.shared.failed(self.unit.db, &state.key, why),
                Some(Fate::Exists) => {
                    match self.same_at_target(&state.key).await {
                        Ok(true) => self.skipped(&state.key),
                        Ok(false) => {
                            *pending = left;
                            return Err(self.conflict(&state.key));
                        }
                        // Asked again: it must not count as dealt with.
                        Err(e) => {
                            failure = Some(e);
                            left.push(Pending { state, ask });
                        }
                    }
                }
            }
        }
        *pending = left;
        Ok(failure)
    }

    /// Where the target sends us for a key, if that is for one try.
    fn redirected(&self, e: &Error) -> Option<Address> {
        match e.server().map(|e| &e.code) {
            Some(Code::Ask(slot, to)) => {
                // If the migration is undone, the key stays where no lane looks for it.
                self.shared.suspects.note_target(*slot);
                Address::parse_tcp(&e.at).and_then(|asked| self.shared.target.reach(to, &asked))
            }
            _ => None,
        }
    }

    fn by_owner(&self, pending: &[Pending], failure: &mut Option<Error>) -> HashMap<Address, Vec<usize>> {
        let target = &self.shared.target;
        let topology = target.topology();
        let mut groups: HashMap<Address, Vec<usize>> = HashMap::new();
        if !topology.cluster {
            groups.insert(target.server(), (0..pending.len()).collect());
            return groups;
        }
        for (i, Pending { state, ask }) in pending.iter().enumerate() {
            let slot = Slot::of_key(&state.key);
            match (ask, topology.shard_of(slot)) {
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
        pending: &[Pending],
        members: &[usize],
    ) -> Result<(Link, Vec<Sent>)> {
        let mut link = match self.links.remove(address) {
            Some(link) => link,
            None => self.shared.open_target(address, self.target_db).await?,
        };
        let (mode, fit) = (self.mode(), self.fit());
        let clock = self.shared.source.capabilities.clock();
        let by_own_clock = matches!(clock, Clock::Own { .. });
        let mut sent = Vec::new();
        let mut several: Vec<usize> = Vec::new();
        let mut several_bytes = 0;
        for &i in members {
            let Pending { state, ask } = &pending[i];
            let write = Write { mode, asking: ask.is_some(), by_own_clock };
            let is_plain = matches!(state.body, Body::String(_)) && state.expires_at_ms.is_none();
            if !(self.several && is_plain) || write.asking {
                write.push(link.outbox(), state);
                sent.push(Sent { states: vec![i], write });
                continue;
            }
            if !several.is_empty() && fit.is_too_long(several_bytes + state.bytes()) {
                sent.push(push_several(&mut link, pending, &mut several, write));
                several_bytes = 0;
            }
            several_bytes += state.bytes();
            several.push(i);
            if several_bytes > MSET_BYTES_MAX {
                sent.push(push_several(&mut link, pending, &mut several, write));
                several_bytes = 0;
            }
        }
        if !several.is_empty() {
            let write = Write { mode, asking: false, by_own_clock };
            sent.push(push_several(&mut link, pending, &mut several, write));
        }
        link.flush().await?;
        Ok((link, sent))
    }

    async fn receive(
        &mut self,
        link: &mut Link,
        sent: Vec<Sent>,
        pending: &[Pending],
        fates: &mut [Option<Fate>],
    ) -> Result<()> {
        for Sent { states, write } in sent {
            for _ in 1..write.replies() {
                link.reply().await?;
            }
            let reply = link.reply().await?;
            for &i in &states {
                let state = &pending[i].state;
                fates[i] = Some(match write.written(&reply, &state.body) {
                    Some(written) => self.fate(written, state, states.len() > 1, link),
                    None => Fate::Retry(link.unexpected("write a key", &reply)),
                });
            }
        }
        Ok(())
    }

    fn fate(&mut self, written: Written, state: &KeyState, several: bool, link: &Link) -> Fate {
        let e = match written {
            Written::Done => return Fate::Done,
            Written::Absent => return Fate::Absent,
            Written::Exists if self.shared.options.existing == Existing::Skip => return Fate::Skipped,
            Written::Exists => return Fate::Exists,
            Written::NotUnderstood(_) => return Fate::ChunksInstead,
            Written::Refused(e) => e,
        };
        match e.code {
            Code::NoPermission | Code::UnknownCommand if several => {
                // MSET is not allowed there, SET may be.
                self.several = false;
                let text = "TRYAGAIN without MSET".to_owned();
                Fate::Retry(link.server_error(ServerError { code: Code::TryAgain, text }, b"write keys"))
            }
            Code::NoPermission if e.text.contains("key") && !e.text.contains("command") => {
                Fate::Failed(format!("target: {}", e.text))
            }
            ref code if code.is_transient() => Fate::Retry(link.server_error(e, b"write keys")),
            Code::NoPermission | Code::NoAuth | Code::UnknownCommand => {
                Fate::Retry(link.server_error(e, Write::command(&state.body)))
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
        let what = format!("key {} exists with another value", shown(key));
        Error::unfit(
            self.shared.target.side(),
            self.shared.target.endpoint.address.to_string(),
            "write a key",
            what,
        )
        .with_remedy(Remedy::BeginAnewWithOtherPolicy)
    }

    async fn write_in_chunks(&mut self, key: Bytes) -> Result<()> {
        if let Some(why) = self.shared.only_whole {
            let why = format!("it does not go to the target in one command, and {why}");
            self.shared.failed(self.unit.db, &key, why);
            return Ok(());
        }
        let progress = self.shared.progress.clone();
        let _permit = self.shared.limits.big_transfers.start().await;
        CopyProgress::shift(&progress.big_in_flight, 1);
        let outcome = self.transfer(&key).await;
        CopyProgress::shift(&progress.big_in_flight, -1);
        let Some(outcome) = outcome? else { return Ok(()) };
        match outcome {
            large::Outcome::Written { bytes, .. } => {
                self.shared.failures.arrived(self.unit.db, &key);
                if self.place() == large::Assembly::Followed {
                    self.shared.followed.add(self.unit.db, &key);
                }
                CopyProgress::add(&progress.big, 1);
                CopyProgress::add(&progress.written, 1);
                CopyProgress::add(&progress.bytes_read, bytes);
                CopyProgress::add(&progress.bytes_written, bytes);
                self.shared.limits.paced(self.shared.limits.rates.take_bytes(bytes)).await;
            }
            large::Outcome::Gone if self.shared.options.mirror => {
                // Boxed: a write may end in chunks, and chunks in a removal.
                Box::pin(self.write(vec![KeyState::gone(key)], Vec::new())).await?;
            }
            large::Outcome::Gone => CopyProgress::add(&progress.gone, 1),
            large::Outcome::Skipped => self.skipped(&key),
            large::Outcome::Conflict if self.same_at_target(&key).await? => self.skipped(&key),
            large::Outcome::Conflict => return Err(self.conflict(&key)),
            large::Outcome::Unholdable(why) => {
                self.shared.failed(self.unit.db, &key, format!("the target cannot hold it: {why}"));
            }
            large::Outcome::Changing if self.shared.options.mirror => {
                self.shared.unstable.note(&self.unit, key)
            }
            large::Outcome::Changing => {
                let why = "it changed every time it was read; the target was not touched".to_owned();
                self.shared.failed(self.unit.db, &key, why);
            }
        }
        Ok(())
    }

    /// The target has the key already, and it stays.
    fn skipped(&self, key: &[u8]) {
        self.shared.failures.arrived(self.unit.db, key);
        CopyProgress::add(&self.shared.progress.skipped, 1);
    }

    /// `None` if the slot of the key is in doubt, and gone through again, or if a server refuses what this
    /// key needs.
    async fn transfer(&mut self, key: &Bytes) -> Result<Option<large::Outcome>> {
        let slot = Slot::of_key(key);
        let retry = self.shared.options.retry;
        let mut backoff = Backoff::new(retry);
        let late = Duration::from_millis(retry.give_up_after_ms).max(LATE_MIN);
        let mut broken_late = 0;
        loop {
            let began = Instant::now();
            let e = match self.try_transfer(key, slot).await {
                Ok(outcome) => return Ok(Some(outcome)),
                Err(e) => e,
            };
            self.shared.progress.retried(&e);
            if matches!(e.server().map(|e| &e.code), Some(Code::Moved(..) | Code::Ask(..) | Code::TryAgain))
                && e.side == self.shared.source.side()
            {
                // Its slot is leaving the node we read from: it is copied when the slot has settled.
                self.shared.suspects.note_source(slot);
                return Ok(None);
            }
            if matches!(e.server().map(|e| &e.code), Some(Code::Ask(..))) {
                // The target's slot is on the move: its other node would want ASKING before each command.
                self.shared.suspects.note_target(slot);
                return Ok(None);
            }
            if let Some(why) = refused_for_good(&e) {
                self.shared.failed(self.unit.db, key, why);
                return Ok(None);
            }
            if e.is_transient() && began.elapsed() > late {
                // A transfer may take longer than failures may last: each that went well for this long is a
                // failure of its own. But not for ever, if it never gets to the end.
                backoff = Backoff::new(retry);
                broken_late += 1;
                if broken_late >= BROKEN_LATE_MAX {
                    let why = format!("its transfer broke off {broken_late} times, at last so: {e}");
                    self.shared.failed(self.unit.db, key, why);
                    return Ok(None);
                }
            }
            self.shared.pause(&mut backoff, e).await?;
            self.shared.refresh_source().await;
            self.shared.refresh_target().await;
        }
    }

    /// If changed elements are followed, a key may change while it is read.
    fn place(&self) -> large::Assembly {
        match self.shared.followed.is_seen(&self.unit.shard_id) {
            true => large::Assembly::Followed,
            false => large::Assembly::Staging,
        }
    }

    async fn try_transfer(&mut self, key: &Bytes, slot: Slot) -> Result<large::Outcome> {
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
        let outcome = large::transfer(
            &mut source,
            &mut target,
            &large::Transfer {
                key,
                existing: options.existing,
                place: self.place(),
                chunk_bytes: options.chunk_bytes.min(part_bytes_max),
                tries_max: if options.mirror { large::TRIES_FOLLOWED_MAX } else { large::TRIES_MAX },
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

/// Why a key cannot be transferred by the commands of its type, if a server refuses one of them permanently:
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

/// Queues one command for several strings, which are taken out of `several`.
fn push_several(link: &mut Link, pending: &[Pending], several: &mut Vec<usize>, write: Write) -> Sent {
    push_strings(link.outbox(), WriteMode::Replace, several.iter().map(|&i| &pending[i].state));
    Sent { states: std::mem::take(several), write }
}
