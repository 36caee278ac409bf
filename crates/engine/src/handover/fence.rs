//! Pausing, fencing, taking over, settling, giving back.
//!
//! **Two writers are kept apart by this order:** the source accepts no write (paused, verified) before the
//! target is made to take over, and is released only when it does not own the slots in its own view.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, timeout};
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_wire::value::Value;

use super::options::SlotFenceKind;
use super::peer::{Mark, Peer, reply_array, transaction};
use super::state::{Fenced, Handover, LongPause, Members, PING_BYTES, Paused, history, is_untouched, offset};
use crate::clock;
use crate::error::{Error, Result, ServerError};
use crate::nodes::ClusterView;
use crate::probe::Info;

/// How long the second of two broadcasts may wait for the acknowledgement of the first, and some more.
const BROADCAST_GAP: Duration = Duration::from_millis(60);

/// How long the source gets to learn by gossip before it is notified, if the pause need not end earlier: it
/// serves reads meanwhile, and clients of a source that is notified see `CLUSTERDOWN`, as they do if it has
/// given the slots up.
const GOSSIP_PATIENCE: Duration = Duration::from_secs(1);
const UNOWNED_PATIENCE: Duration = Duration::from_millis(10);

/// How long at least, if the pause should end earlier: longer than a broadcast may wait for the previous one.
const GOSSIP_PATIENCE_MIN: Duration = Duration::from_millis(50);

/// Round trips that the end of a pause takes from then on: the last looks at the source and at the target,
/// giving the slots up, letting go.
const NOTIFY_TRIPS: u32 = 4;

/// Why a takeover is not sent.
const TOO_LATE: &str = "too much time went by since the fence";

/// How long the target may take to show what it owns, while the source is paused.
const TARGET_ANSWER_MAX: Duration = Duration::from_secs(1);

/// How often the source is asked whether it has learned.
const SETTLE_POLL: Duration = Duration::from_millis(1);

/// How long the target's replicas may keep it from announcing a take-over, in milliseconds, for each of two
/// commands. It takes one or two.
const ANNOUNCE_MS: u64 = 50;

/// Time that a take-over needs to arrive, before a pause that it relies on ends, in milliseconds.
const TAKE_OVER_RESERVE_MS: u64 = 3_000;

/// The fence for a source that redirects. It says that it writes nothing, so that the pause does not hold it
/// up; what it changes is no data. Its arguments: the offset, the same with a `PING` more, the replication
/// history, the target, and the ranges of slots.
///
/// It answers `held OFFSET`; `written OFFSET`, `changed` (another role, history or ownership) or
/// `refused ERROR` if it left everything as it was; `broken ERROR` if it could not.
const FENCE_SCRIPT: &str = include_str!("fence.lua");

impl Handover {
    /// [`Handover::raise_epoch`] for the epochs alone. With no patience at all it begins what takes time, and
    /// does not wait.
    pub(super) async fn settle_epochs(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        let mut bumped = false;
        loop {
            let (source, target) = tokio::try_join!(epochs(&mut self.source), epochs(&mut self.target))?;
            if self.target.traits.bump_announces {
                // The target takes an epoch above all that it knows of in the turn in which it claims the
                // slots, and notifies all others; but it does so only if some node's is above its own. So
                // that is the source.
                if target.highest > target.own && target.highest >= source.own {
                    return Ok(());
                }
                if !bumped {
                    self.source.run(async |link| link.call(&[b"CLUSTER", b"BUMPEPOCH"]).await).await?;
                    bumped = true;
                }
            } else {
                if target.own > source.own {
                    return Ok(());
                }
                self.target.run(async |link| link.call(&[b"CLUSTER", b"BUMPEPOCH"]).await).await?;
                sleep(BROADCAST_GAP.min(patience)).await;
            }
            if patience.is_zero() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(self
                    .target
                    .for_now("prepare a handover", "the two nodes do not come to agree on their epochs")
                    .with_remedy("see that the nodes can reach each other's cluster bus ports"));
            }
            sleep(SETTLE_POLL).await;
        }
    }

    /// Stops writes on the source for `pause_ms`, counted by the source from when it gets the command. Reads
    /// go on.
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call). The pause may then be in effect; it ends by itself.
    pub async fn pause(&mut self, pause_ms: u64) -> Result<Paused> {
        let text = pause_ms.to_string();
        self.source
            .run(async |link| {
                let (before, before_ms) = (Instant::now(), clock::now_ms());
                link.push(&[b"CLIENT", b"PAUSE", text.as_bytes(), b"WRITE"]);
                link.push(&[b"INFO", b"replication"]);
                link.flush().await?;
                // What the source reports as its offset is read after the pause took effect, since it answers
                // in order.
                let [paused, info] = reply_array(link).await?;
                link.check(paused, b"CLIENT PAUSE")?;
                let info = link.check(info, b"INFO")?;
                let info = Info::parse(info.as_bytes().map_or(&[], |b| b));
                Ok(Paused {
                    offset: offset(&info),
                    until: before + Duration::from_millis(pause_ms),
                    until_ms: before_ms.saturating_add(pause_ms),
                    history: history(&info),
                })
            })
            .await
    }

    /// Lifts the write pause on the source. Safe if there is none.
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call).
    pub async fn release(&mut self) -> Result<()> {
        self.long_pause = None;
        self.source.run(async |link| link.call(&[b"CLIENT", b"UNPAUSE"]).await.map(drop)).await
    }

    /// Lifts a pause that an earlier process of this job may have left. Not if another job has begun at the
    /// source: a pause there would be that job's, and its handover relies on it. A pause that is left ends by
    /// itself.
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call).
    pub async fn release_what_is_left(&mut self) -> Result<()> {
        let found = match self.source.other_jobs().await {
            // Then there is no such job: none could have checked whether it may begin.
            Err(e) if e.server().is_some_and(ServerError::forbids_command) => Vec::new(),
            found => found?,
        };
        let is_ours = |name: &str| self.options.is_of_process(name) || self.options.is_of_job(name);
        if let Some(other) = found.iter().find(|other| !other.is_candidate() && !is_ours(&other.name)) {
            tracing::info!(%other, "a pause of the source is left to another job");
            return Ok(());
        }
        self.release().await
    }

    /// The take-over as the second half of something: a refusal does not mean that nothing was changed.
    pub(super) async fn take_over_after_fence(&mut self, slots: &SlotSet, not_after_ms: u64) -> Result<()> {
        self.take_over(slots, not_after_ms).await.map_err(|e| match e.server() {
            Some(_) => self.target.in_doubt("take over", e),
            None => e,
        })
    }

    /// Makes the source refuse or hold back every write to `slots`, and finds out in the same turn of its
    /// event loop whether one was accepted since `paused.offset`. If so, or if that cannot be known, nothing
    /// is fenced.
    ///
    /// A source that keeps no offset is believed if it answers before the pause ends.
    ///
    /// If the source would remove the keys itself, and would crash doing that while a child of it saves, the
    /// fence is a [bare](SlotFenceKind::Bare) one for as long as there is a child.
    ///
    /// # Errors
    /// `Server` if the source refused: then it owns the slots, and may still be paused. After any other it is
    /// not known what is true.
    pub async fn fence(&mut self, slots: &SlotSet, paused: &Paused) -> Result<Fenced> {
        self.beside_child = self.minds_children() && self.source_has_child().await?;
        let kind = self.fence_kind();
        let remark = kind != SlotFenceKind::Gossip && self.target.traits.takes_by_itself;
        if remark {
            // It would take the slots as soon as the source claims them no longer, whether the fence holds or
            // not.
            self.clear_marks_only(slots).await?;
        }
        let fenced = match self.fences_by_script(paused) {
            true => self.fence_by_script(slots, paused, false).await,
            false => self.fence_by_transaction(kind, slots, paused).await,
        };
        let is_undone = match &fenced {
            Ok(fenced) => !fenced.held,
            Err(e) => e.server().is_some(),
        };
        if remark && is_undone {
            let mark = Mark::Importing(self.source.id.clone());
            let marked = self.target.set_slots(slots, &mark).await;
            marked.map_err(|e| self.target.in_doubt("mark the slots again", e))?;
            self.marked = self.marked.union(slots);
        }
        fenced
    }

    /// Looks first, and acts only if nothing was written. With `unpause` the pause is lifted in the same
    /// turn.
    pub(super) async fn fence_by_script(
        &mut self,
        slots: &SlotSet,
        paused: &Paused,
        unpause: bool,
    ) -> Result<Fenced> {
        let expected = paused.offset.unwrap_or_default();
        let target = self.target.id.clone();
        let verdict = self
            .source
            .run(async |link| {
                let ranges = slots.ranges();
                let outbox = link.outbox();
                outbox.command(7 + 2 * ranges.len());
                outbox.arg(b"EVAL");
                outbox.arg(FENCE_SCRIPT.as_bytes());
                outbox.arg(b"0");
                outbox.arg(expected.to_string().as_bytes());
                outbox.arg((expected + PING_BYTES).to_string().as_bytes());
                outbox.arg(paused.history.as_bytes());
                outbox.arg(target.as_str().as_bytes());
                for range in ranges {
                    outbox.arg_int(i64::from(range.start().number()));
                    outbox.arg_int(i64::from(range.end().number()));
                }
                if unpause {
                    link.push(&[b"CLIENT", b"UNPAUSE"]);
                }
                link.flush().await?;
                let reply = link.replies(1 + usize::from(unpause)).await?.swap_remove(0);
                let reply = link.check(reply, b"the fence")?;
                reply.as_str().map(str::to_owned).ok_or_else(|| link.unexpected("the fence", &reply))
            })
            .await?;
        if let Some(offset) = verdict.strip_prefix("held ") {
            return Ok(Fenced { held: true, offset: offset.parse().ok(), seamless: false });
        }
        tracing::info!(expected, verdict, "the fence did not hold");
        if verdict.starts_with("broken ") {
            return Err(self.source.in_doubt("the fence", verdict));
        }
        self.release().await.map_err(|e| self.source.in_doubt("lift the pause", e))?;
        if let Some(refused) = verdict.strip_prefix("refused ") {
            let e = ServerError::classify(refused.as_bytes());
            return self.source.run(async |link| Err(link.server_error(e, b"the fence"))).await;
        }
        let offset = verdict.strip_prefix("written ").and_then(|offset| offset.parse().ok());
        Ok(Fenced { held: false, offset, seamless: false })
    }

    /// Acts and looks in one transaction, and undoes what it did if something was written.
    async fn fence_by_transaction(
        &mut self,
        kind: SlotFenceKind,
        slots: &SlotSet,
        paused: &Paused,
    ) -> Result<Fenced> {
        let (traits, target) = (self.source.traits, self.target.id.clone());
        let long = self.long_pause_ms.to_string();
        let answer = self
            .source
            .run(async |link| {
                let sent_ms = clock::now_ms();
                let items = transaction(link, "the fence", |link| {
                    let mut commands = 2;
                    if kind == SlotFenceKind::Gossip {
                        link.push(&[b"CLIENT", b"PAUSE", long.as_bytes(), b"WRITE"]);
                        commands += 1;
                    }
                    link.push(&[b"INFO", b"replication"]);
                    link.push(&[b"CLUSTER", b"NODES"]);
                    if kind != SlotFenceKind::Gossip {
                        Peer::push_slots(traits, link, "DELSLOTS", slots);
                        commands += 1;
                    }
                    if kind == SlotFenceKind::Redirecting {
                        let mark = Mark::Node(target);
                        slots.iter().for_each(|slot| mark.push(link, slot));
                        commands += slots.len();
                    }
                    commands
                })
                .await?;
                Ok(Answer::read(items, kind, sent_ms, link.endpoint(), link.address()))
            })
            .await?;
        let held = answer.refused.is_none()
            && answer.owned.as_ref().is_some_and(|owned| slots.difference(owned).is_empty())
            && answer.is_held(paused);
        if held {
            let seamless = kind == SlotFenceKind::Gossip;
            self.long_pause = seamless.then(|| LongPause {
                until_ms: answer.sent_ms.saturating_add(self.long_pause_ms),
                offset: answer.offset,
                history: answer.history,
            });
            return Ok(Fenced { held: true, offset: answer.offset, seamless });
        }
        tracing::info!(
            refused = answer.refused.as_deref().unwrap_or_default(),
            expected = paused.offset,
            offset = answer.offset,
            "the fence did not hold"
        );
        // Only what was its own before: anything else is another's.
        let own = answer.owned.unwrap_or_default().intersection(slots);
        self.undo_fence(kind, &own).await?;
        match answer.refused {
            Some(refused) => {
                let e = ServerError::classify(refused.as_bytes());
                self.source.run(async |link| Err(link.server_error(e, b"the fence"))).await
            }
            None => Ok(Fenced { held: false, offset: answer.offset, seamless: false }),
        }
    }

    /// Has the source own `slots` again and lifts the pause, both at once.
    async fn undo_fence(&mut self, kind: SlotFenceKind, slots: &SlotSet) -> Result<()> {
        self.long_pause = None;
        if kind == SlotFenceKind::Gossip || slots.is_empty() {
            return self.release().await;
        }
        let traits = self.source.traits;
        let undone = self
            .source
            .run(async |link| {
                transaction(link, "undo the fence", |link| {
                    let assigned = usize::from(kind == SlotFenceKind::Redirecting);
                    if assigned > 0 {
                        Peer::push_slots(traits, link, "DELSLOTS", slots);
                    }
                    Peer::push_slots(traits, link, "ADDSLOTS", slots);
                    link.push(&[b"CLIENT", b"UNPAUSE"]);
                    assigned + 2
                })
                .await
            })
            .await
            .map_err(|e| self.source.in_doubt("undo the fence", e))?;
        match undone.iter().find_map(ServerError::of) {
            None => Ok(()),
            // By and by: some of them may have been given up, others not.
            Some(_) => self.own_again(slots).await,
        }
    }

    async fn clear_marks_only(&mut self, slots: &SlotSet) -> Result<()> {
        self.marked = self.marked.difference(slots);
        self.target.set_slots(slots, &Mark::Stable).await
    }

    /// Makes the target the owner of `slots` and has it notify all others. Safe to repeat: slots that it owns
    /// already are fine. Call it only when the source is fenced, and not after `not_after_ms`, by
    /// [`clock::now_ms`]: later a replica of the source may have been promoted, and written to.
    ///
    /// # Errors
    /// `Server` if nothing was changed, for example since it was too late, or something was written behind a
    /// fence that relies on a pause. `Unfit` if the fence's time has run out, or the target is no primary:
    /// nothing was changed either. After any other it is not known what is true.
    pub fn take_over<'a>(&'a mut self, slots: &'a SlotSet, not_after_ms: u64) -> BoxFuture<'a, Result<()>> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            // Owners are not made to give up what they have and take it again.
            let is_repeated = slots.difference(&self.taken).is_empty();
            // Not if an earlier process fenced: that fence has to run out.
            if let Some(fence) = self.long_pause.clone() {
                // Not a second time: a source that has lost slots removes their keys, which moves its offset.
                if !is_repeated {
                    self.check_untouched(&fence).await?;
                }
                if clock::now_ms() + TAKE_OVER_RESERVE_MS > fence.until_ms {
                    return Err(self.source.unfit("take over", "the time of the write pause has run out"));
                }
            }
            if slots.is_empty() {
                return Ok(());
            }
            // After the answers so far, which a node that hangs gives late.
            if clock::now_ms() > not_after_ms {
                return Err(self.source.for_now("take over", TOO_LATE));
            }
            self.claim_until_ms = not_after_ms;
            if is_repeated || !self.claim_and_announce(slots).await? {
                self.claim_what_is_missing(slots).await?;
            }
            self.note_taken(slots);
            Ok(())
        })
    }

    /// The target owns `slots` now.
    pub(super) fn note_taken(&mut self, slots: &SlotSet) {
        self.marked = self.marked.difference(slots);
        self.taken = slots.clone();
    }

    /// Claims `slots`, and has the target notify all others at once. False if something was refused: then
    /// some of the slots may have been claimed.
    async fn claim_and_announce(&mut self, slots: &SlotSet) -> Result<bool> {
        let traits = self.target.traits;
        let is_silent = traits.setslot_waits && !traits.bump_announces;
        let Some(messenger) = last(slots).filter(|_| is_silent) else {
            return self.claim(slots, slots).await;
        };
        // The claim is heard of by chance, after up to some seconds. So one slot is left out, and follows
        // with the command that broadcasts, which must not be part of a transaction.
        let mut rest = slots.clone();
        rest.remove(messenger);
        Ok(self.claim(&rest, &rest).await? && self.claim_aloud(messenger).await?)
    }

    /// Claims one slot with a broadcast of all that the target has. False if that was refused, by the target,
    /// or because its replicas did not answer: then the slot is as before.
    async fn claim_aloud(&mut self, slot: Slot) -> Result<bool> {
        let importing = Mark::Importing(self.source.id.clone());
        let node = Mark::Node(self.target.id.clone());
        self.target
            .run(async |link| {
                let is_claimed = importing.set_within(link, slot, ANNOUNCE_MS).await?
                    && node.set_within(link, slot, ANNOUNCE_MS).await?;
                if !is_claimed {
                    // Also on the replicas, which may have followed.
                    Mark::Stable.set_within(link, slot, ANNOUNCE_MS).await?;
                }
                // Wakes the server, so that it sends its broadcast now.
                link.ask(&[b"PING"]).await?;
                Ok(is_claimed)
            })
            .await
    }

    /// Deletes the slots `known` in the target's view, and adds `added`, with a new epoch and a broadcast (on
    /// Valkey 8.0 without one). False if one of these was refused.
    async fn claim(&mut self, known: &SlotSet, added: &SlotSet) -> Result<bool> {
        let traits = self.target.traits;
        let until_ms = self.claim_until_ms;
        let importing = Mark::Importing(self.source.id.clone());
        let node = Mark::Node(self.target.id.clone());
        // Assigning a slot that is marked as importing bumps the epoch and broadcasts, but must not be done
        // in a transaction if it waits for replicas. There, bumping the epoch broadcasts by itself.
        let messenger = last(added).filter(|_| !traits.setslot_waits);
        let (mut known, mut added) = (known.clone(), added.clone());
        if let Some(messenger) = messenger {
            known.remove(messenger);
            added.remove(messenger);
        }
        self.target
            .run(async |link| {
                // A new connection may have taken its time.
                if clock::now_ms() > until_ms {
                    let text = format!("TRYAGAIN {TOO_LATE}");
                    return Err(link.server_error(ServerError::classify(text.as_bytes()), b"CLUSTER"));
                }
                let items = transaction(link, "the take-over", |link| {
                    let mut commands = 0;
                    for (command, slots) in [("DELSLOTS", &known), ("ADDSLOTS", &added)] {
                        if !slots.is_empty() {
                            Peer::push_slots(traits, link, command, slots);
                            commands += 1;
                        }
                    }
                    match messenger {
                        Some(messenger) => {
                            importing.push(link, messenger);
                            node.push(link, messenger);
                            commands + 2
                        }
                        None => {
                            link.push(&[b"CLUSTER", b"BUMPEPOCH"]);
                            commands + 1
                        }
                    }
                })
                .await?;
                Ok(items.iter().all(|item| item.as_error().is_none()))
            })
            .await
    }

    /// The take-over, step by step: some of the slots are the target's already, or have no owner in its view.
    async fn claim_what_is_missing(&mut self, slots: &SlotSet) -> Result<()> {
        let unclear = |target: &Peer, e: Error| match e.server() {
            Some(_) => target.in_doubt("take over", e),
            None => e,
        };
        let view = self.target.view().await.map_err(|e| unclear(&self.target, e))?;
        let me = view.me();
        if !me.is_primary() {
            return Err(self.target.unfit("take over", "the target has become a replica"));
        }
        let missing = slots.difference(&me.slots);
        let Members { source, target } = &self.members;
        // A node that is down may be a former primary of either shard.
        let is_elsewhere = |slot: &Slot| {
            view.primary_of(*slot).is_some_and(|owner| {
                owner.is_usable() && !source.contains(&owner.id) && !target.contains(&owner.id)
            })
        };
        if let Some(slot) = missing.iter().find(is_elsewhere) {
            let what = format!("slot {} belongs to another node by now", slot.number());
            return Err(self.target.unfit("take over", what));
        }
        let highest = view.nodes.iter().map(|n| n.config_epoch).max().unwrap_or(0);
        match missing.is_empty() {
            false => {
                let known: SlotSet = missing.iter().filter(|slot| view.primary_of(*slot).is_some()).collect();
                let claimed = self.claim(&known, &missing).await;
                if !claimed.map_err(|e| unclear(&self.target, e))? {
                    return Err(self.target.in_doubt("take over", "the target refused some of the slots"));
                }
            }
            // Taken over before, but perhaps not announced to any node.
            true if me.config_epoch < highest => {
                let bumped = self.target.run(async |link| link.call(&[b"CLUSTER", b"BUMPEPOCH"]).await).await;
                bumped.map_err(|e| unclear(&self.target, e))?;
            }
            true => {}
        }
        let view = self.target.view().await.map_err(|e| unclear(&self.target, e))?;
        if !slots.difference(&view.me().slots).is_empty() {
            return Err(self.target.in_doubt("take over", "the target did not keep some of the slots"));
        }
        Ok(())
    }

    /// Lifts a fence that is nothing but a longer pause, with one command: no take-over has been sent since.
    /// False if the source has given the slots up: then they must be given back.
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call).
    pub async fn lift_fence(&mut self) -> Result<bool> {
        let is_pause = self.fence_kind() == SlotFenceKind::Gossip;
        if is_pause {
            self.release().await?;
        }
        Ok(is_pause)
    }

    /// Makes sure that the source does not own `slots` in its own view, knows that the target does, and then
    /// lifts the pause. Safe to repeat. Call it only after [`Handover::take_over`].
    ///
    /// The source learns of it from the target, and is notified by us if that takes too long: with `until`
    /// such that the pause can be over by then.
    ///
    /// # Errors
    /// `Unfit` if the target does not own the slots, or the source does not come to know of it in time: then
    /// the pause is not lifted unless the source has given the slots up. As
    /// [`Link::call`](crate::link::Link::call).
    pub async fn settle(&mut self, slots: &SlotSet, until: Option<Instant>) -> Result<()> {
        let begun = Instant::now();
        let settle_for = Duration::from_millis(self.options.settle_ms);
        let (mut notified, mut tried) = (false, false);
        loop {
            let asked = Instant::now();
            let view = self.source.view().await?;
            let round_trip = asked.elapsed();
            let me = view.me();
            let still = me.slots.intersection(slots);
            let unlearned = match view.node(&self.target.id) {
                Some(target) => slots.difference(&target.slots),
                None => slots.clone(),
            };
            if still.is_empty() && (unlearned.is_empty() || !me.is_primary()) {
                return self.release().await;
            }
            let is_late = begun.elapsed() > settle_for;
            // A source that hung meanwhile and still owns them has to be notified first.
            if is_late && (tried || still.is_empty()) {
                return match still.is_empty() {
                    // It accepts no write to them, so no writer has to wait any longer.
                    true => self.release().await,
                    false => Err(self
                        .source
                        .unfit("hand slots over", "the source did not learn the slots' new owner in time")
                        .with_remedy("see that the two nodes can reach each other's cluster bus ports")),
                };
            }
            let patience = match (still.is_empty(), until) {
                (true, _) => UNOWNED_PATIENCE,
                (false, None) => GOSSIP_PATIENCE,
                (false, Some(until)) => {
                    let left = until.saturating_duration_since(begun);
                    let left = left.saturating_sub(round_trip.saturating_mul(NOTIFY_TRIPS));
                    // A source that is notified learns of it in what is left.
                    left.max(GOSSIP_PATIENCE_MIN).min(settle_for / 2)
                }
            };
            if !notified && begun.elapsed() > patience {
                notified = self.notify_source(&still, &unlearned).await?;
                tried = notified || is_late;
            }
            sleep(SETTLE_POLL).await;
        }
    }

    /// Takes `still` from the source, lifts the pause, then assigns `unlearned` to the target in its view.
    /// False if the source has just learned of some of them by itself: ask again.
    async fn notify_source(&mut self, still: &SlotSet, unlearned: &SlotSet) -> Result<bool> {
        // Asked once more: a replica that never heard of the claim may have taken its place since. If it
        // hangs, what it answered to the claim counts: the source takes writes when its pause has ended.
        let seen = timeout(TARGET_ANSWER_MAX, self.target.view()).await;
        let owns = match seen {
            Ok(Ok(view)) => unlearned.difference(&view.me().slots).is_empty(),
            _ if unlearned.difference(&self.taken).is_empty() => true,
            Ok(Err(e)) => return Err(e),
            Err(_) => return Err(self.target.for_now("hand slots over", "the target does not answer")),
        };
        if !owns {
            if still.is_empty() {
                self.release().await?;
            }
            return Err(self.target.unfit("hand slots over", "the target does not own all of the slots"));
        }
        let traits = self.source.traits;
        if !still.is_empty() {
            let reply = self
                .source
                .run(async |link| {
                    Peer::push_slots(traits, link, "DELSLOTS", still);
                    link.flush().await?;
                    link.reply().await
                })
                .await?;
            if reply.as_error().is_some() {
                return Ok(false);
            }
        }
        // Since Valkey 8 a pause holds up `SETSLOT`, too.
        self.release().await?;
        // Refused for slots that it has learned of meanwhile and still holds keys in: no matter.
        match self.source.set_slots(unlearned, &Mark::Node(self.target.id.clone())).await {
            Err(e) if e.server().is_none() => Err(e),
            _ => Ok(true),
        }
    }

    /// Undoes a fence after which no take-over took place: the source owns `slots` again and is not paused.
    /// Safe to repeat, and safe if there was no fence. Marks on a target that takes slots by itself are
    /// cleared first, others stay.
    ///
    /// # Errors
    /// `Server` if nothing was changed. `Unfit` if the target owns some of the slots, or another node owns
    /// them: then the source must not have them. After any other it is not known what is true.
    pub async fn give_back(&mut self, slots: &SlotSet) -> Result<()> {
        if self.target.traits.takes_by_itself {
            self.clear_marks_only(slots).await?;
        }
        // Only now: until here it might have taken them.
        let theirs = self.target.view().await?.me().slots.intersection(slots);
        if !theirs.is_empty() {
            let what = format!("the target owns slots {theirs} already");
            return Err(self.target.unfit("give slots back", what).with_remedy("go on with the handover"));
        }
        self.own_again(slots).await?;
        self.unshelter().await;
        self.release().await
    }

    /// Has the source own those of `slots` that no node owns, or that the target owns, in its view.
    async fn own_again(&mut self, slots: &SlotSet) -> Result<()> {
        let view = self.source.view().await?;
        let me = view.me();
        if !me.is_primary() {
            return Err(self.source.unfit("give slots back", "the source has become a replica"));
        }
        let missing = me.slots.intersection(slots);
        let missing = slots.difference(&missing);
        let (mut assigned, mut elsewhere) = (SlotSet::new(), SlotSet::new());
        for slot in &missing {
            match view.primary_of(slot) {
                Some(owner) if owner.id == self.target.id => {
                    assigned.insert(slot);
                }
                Some(owner) if !owner.is_usable() => {
                    let what = format!("slot {} is owned by {}, which is down", slot.number(), owner.id);
                    return Err(self.source.unfit("give slots back", what));
                }
                // It has been moved on: it must not be taken from its new owner, and there is nothing to give
                // back.
                Some(_) => {
                    elsewhere.insert(slot);
                }
                None => {}
            }
        }
        let missing = missing.difference(&elsewhere);
        if missing.is_empty() {
            return Ok(());
        }
        let traits = self.source.traits;
        let items = self
            .source
            .run(async |link| {
                transaction(link, "give slots back", |link| {
                    let mut commands = 1;
                    if !assigned.is_empty() {
                        Peer::push_slots(traits, link, "DELSLOTS", &assigned);
                        commands += 1;
                    }
                    Peer::push_slots(traits, link, "ADDSLOTS", &missing);
                    commands
                })
                .await
            })
            .await?;
        match items.iter().find_map(ServerError::of) {
            None => Ok(()),
            Some(e) => Err(self.source.in_doubt("give slots back", e.text)),
        }
    }
}

/// What the source answered to a fence.
struct Answer {
    /// Before it was asked, and when its answer was read, by [`clock::now_ms`].
    sent_ms: u64,
    answered_ms: u64,
    is_primary: bool,
    offset: Option<u64>,
    history: String,
    /// What it owned just before.
    owned: Option<SlotSet>,
    /// The first error.
    refused: Option<String>,
}

impl Answer {
    fn read(
        items: Vec<Value>,
        kind: SlotFenceKind,
        sent_ms: u64,
        endpoint: &crate::endpoint::Endpoint,
        address: &crate::endpoint::Address,
    ) -> Answer {
        let refused = items.iter().find_map(ServerError::of).map(|e| e.text);
        let first = usize::from(kind == SlotFenceKind::Gossip);
        let text = |at: usize| items.get(at).and_then(Value::as_str).unwrap_or_default();
        let info = Info::parse(text(first).as_bytes());
        let view = ClusterView::parse(text(first + 1), endpoint, address);
        Answer {
            sent_ms,
            answered_ms: clock::now_ms(),
            is_primary: info.field("role") == Some("master"),
            offset: offset(&info),
            history: history(&info),
            owned: view.map(|view| view.me().slots.clone()),
            refused,
        }
    }

    /// Whether nothing was written between the offset in `paused` and this.
    fn is_held(&self, paused: &Paused) -> bool {
        // If the offset does not show that: it was still paused when it answered.
        let unchanged =
            is_untouched(paused.offset, self.offset).unwrap_or(self.answered_ms < paused.until_ms);
        self.is_primary && self.history == paused.history && unchanged
    }
}

pub(super) fn last(slots: &SlotSet) -> Option<Slot> {
    slots.ranges().last().map(|range| range.end())
}

/// The epochs that a node knows of.
struct Epochs {
    /// That of its own claim.
    own: u64,
    /// The highest.
    highest: u64,
}

async fn epochs(peer: &mut Peer) -> Result<Epochs> {
    peer.run(async |link| {
        let reply = link.call(&[b"CLUSTER", b"INFO"]).await?;
        let info = Info::parse(reply.as_bytes().map_or(&[], |b| b));
        match (info.number("cluster_my_epoch"), info.number("cluster_current_epoch")) {
            (Some(own), Some(highest)) => Ok(Epochs { own, highest }),
            _ => Err(link.unexpected("CLUSTER INFO", &reply)),
        }
    })
    .await
}
