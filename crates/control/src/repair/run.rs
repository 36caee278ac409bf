//! Carrying out what was decided.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use whimbrel_core::cluster::Node;
use whimbrel_core::node::NodeId;
use whimbrel_core::repair::decide;
use whimbrel_core::repair::plan::{Action, Change, Evidence, Fate, Why};
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::Link;
use whimbrel_engine::nodes::repair::{self, SlotMark};
use whimbrel_engine::nodes::{ClusterView, Counted, Finding, NodeName, Survey, SurveyOptions, key_counts};
use whimbrel_engine::slot_keys;
use whimbrel_wire::value::Value;

use super::finish;
use super::instruction::slots_text;
use super::keys::{self, Tally};
use super::notes;

/// Slots that are open at the same time: an interruption leaves no more than these marked.
const OPEN_SLOTS_MAX: usize = 256;

/// Keys looked at to distinguish copies from the only ones.
const EVIDENCE_KEYS_MAX: u64 = 4_096;

/// How often and how long apart to check whether all nodes agree.
const SETTLE_ROUNDS: u32 = 75;
const SETTLE_PAUSE: Duration = Duration::from_millis(200);

/// What servers have for `cluster-node-timeout` by default.
const NODE_TIMEOUT_DEFAULT_MS: u64 = 15_000;

/// How long an election may take beyond the time until a replica asks for it.
const ELECTION_SLACK: Duration = Duration::from_secs(10);

/// How long one is waited for at most.
const ELECTION_PATIENCE_MAX: Duration = Duration::from_secs(300);

/// How many of those rounds pass before nodes that still take another one for the owner are each notified.
const PATIENT_ROUNDS: u32 = 15;

/// Carries out actions on one cluster.
pub struct Repairer<'a> {
    deployment: &'a Deployment,
    /// It has the addresses.
    survey: &'a Survey,
    stop: &'a CancellationToken,
}

impl<'a> Repairer<'a> {
    /// On the cluster as it was surveyed.
    pub fn new(deployment: &'a Deployment, survey: &'a Survey, stop: &'a CancellationToken) -> Repairer<'a> {
        Repairer { deployment, survey, stop }
    }

    fn name(&self, id: &NodeId) -> NodeName {
        self.survey.name(id)
    }

    async fn link(&self, id: &NodeId) -> Result<Link> {
        self.deployment.open(&self.name(id).address, 0).await
    }

    async fn mark(&self, node: &NodeId, slots: &SlotSet, mark: SlotMark) -> Result<()> {
        repair::set_slots(self.deployment, &self.name(node).address, slots, &mark).await
    }

    /// Whether nodes know `PEXPIRETIME`.
    fn absolute(&self) -> bool {
        self.deployment.capabilities.pexpiretime
    }

    /// Compares what a node holds with what the owner holds, by up to 4,096 keys spread over the slots.
    ///
    /// # Errors
    /// When one of the two does not answer.
    pub async fn evidence(&self, holder: &NodeId, owner: &NodeId, slots: &SlotSet) -> Result<Evidence> {
        let (mut holder, mut owner) = (self.link(holder).await?, self.link(owner).await?);
        let mut evidence = Evidence::default();
        let each = (EVIDENCE_KEYS_MAX / slots.len().max(1) as u64).clamp(1, 64);
        for slot in slots {
            let keys = slot_keys::first_names(&mut holder, &[slot], each).await?.concat();
            let both = keys::count_present(&mut owner, slot, &keys).await?;
            evidence.both += both;
            evidence.only += keys.len() as u64 - both;
            if evidence.both + evidence.only >= EVIDENCE_KEYS_MAX || self.stop.is_cancelled() {
                break;
            }
        }
        Ok(evidence)
    }

    /// Those of some slots in which a repair that was interrupted was moving keys to their owner.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn moving(&self, owner: &NodeId, slots: &SlotSet) -> Result<SlotSet> {
        notes::find(&mut self.link(owner).await?, slots).await
    }

    /// Carries out one action.
    ///
    /// # Errors
    /// When a node does not answer or refuses. What was open for it is closed all the same, as far as the
    /// node answers.
    pub async fn carry_out(&self, action: &Action) -> Result<Tally> {
        let slots = &action.slots;
        match &action.change {
            Change::Remind { primary, epoch, replicas } => {
                self.remind(*epoch, replicas, slots).await?;
                self.elected(primary, replicas).await.map(|()| Tally::default())
            }
            Change::ClearMarks { node } if action.why == Why::ReplicaKeptMarks => {
                self.clear_kept_marks(node, slots).await.map(|()| Tally::default())
            }
            Change::ClearMarks { node } => {
                self.mark(node, slots, SlotMark::Stable).await.map(|()| Tally::default())
            }
            Change::Yield { node, .. } => {
                repair::forget_owners(&mut self.link(node).await?, slots).await.map(|()| Tally::default())
            }
            Change::Claim { node } => {
                repair::claim(&mut self.link(node).await?, slots).await?;
                self.settle(slots, node).await.map(|()| Tally::default())
            }
            Change::Announce { owner } => {
                repair::bump_epoch(&mut self.link(owner).await?).await?;
                self.settle(slots, owner).await.map(|()| Tally::default())
            }
            Change::Finish { source, target, mark_target } => {
                self.in_pieces(slots, async |piece| self.finish(source, target, *mark_target, piece).await)
                    .await
            }
            Change::Empty { holder, owner, copied, fate } => {
                let fate = match fate {
                    Some(fate) => *fate,
                    None => {
                        let evidence = self.evidence(holder, owner, slots);
                        decide::fate(*copied, self.opened(holder, owner, slots, evidence).await?)
                    }
                };
                let rescue = fate != Fate::Discard;
                let are_hidden = matches!(action.why, Why::HiddenKeys { .. });
                self.in_pieces(slots, async |piece| {
                    let piece = match are_hidden {
                        true => self.occupied(holder, owner, rescue, &piece).await?,
                        false => piece,
                    };
                    self.empty(holder, owner, rescue, piece).await
                })
                .await
            }
            Change::EmptyReplica { primary, replica } => {
                self.in_pieces(slots, async |piece| self.empty_replica(primary, replica, piece).await).await
            }
        }
    }

    async fn in_pieces(
        &self,
        slots: &SlotSet,
        work: impl AsyncFn(SlotSet) -> Result<Tally>,
    ) -> Result<Tally> {
        let mut tally = Tally::default();
        let slots: Vec<Slot> = slots.iter().collect();
        for piece in slots.chunks(OPEN_SLOTS_MAX) {
            if self.stop.is_cancelled() {
                break;
            }
            tally.add(work(piece.iter().copied().collect()).await?);
        }
        Ok(tally)
    }

    /// Waits until every node that answers sees the owner. If some still do not after a while, those are
    /// notified one by one: on Redis 7.0 two nodes were seen to take each other as the owner permanently.
    async fn settle(&self, slots: &SlotSet, owner: &NodeId) -> Result<()> {
        let mut notified = false;
        for round in 0..SETTLE_ROUNDS {
            let what = SurveyOptions { counts: Counted::Nothing, activity: false };
            let survey = Survey::take_with(self.deployment, what).await?;
            let agreed = !survey.findings().iter().any(|finding| match finding {
                Finding::Unowned { slots: disputed, .. } | Finding::Disagreement { slots: disputed, .. } => {
                    !disputed.intersection(slots).is_empty()
                }
                _ => false,
            });
            if agreed {
                return Ok(());
            }
            if round >= PATIENT_ROUNDS && !notified {
                notified = true;
                for (node, state) in survey.answering_primaries().filter(|(node, _)| node.id != *owner) {
                    // A node that claims the slot itself would refuse, or lose keys over it.
                    let mistaken = slots
                        .difference(&state.slots)
                        .iter()
                        .filter(|slot| state.owners.of(*slot) != Some(owner))
                        .collect();
                    self.mark(&node.id, &mistaken, SlotMark::Node(owner.clone())).await?;
                }
            }
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        let name = self.name(owner);
        let what = format!("not every node has learned within 15 s that {name} owns {}", slots_text(slots));
        Err(Error::unfit(self.deployment.side(), name.address.to_string(), "announce the owner", what)
            .with_remedy("see that the nodes reach each other on the cluster bus, and run repair again"))
    }

    /// Clears marks that replicas have and their primary has not, until they are gone. A primary passes
    /// `SETSLOT` on only to replicas that it knows of, by the cluster bus, and whose link is up; one that has
    /// just come back it may hear of seconds later, and a synchronisation does not bring what was missed.
    ///
    /// Each replica is asked itself: a survey may lack one that its primary has forgotten.
    async fn clear_kept_marks(&self, primary: &NodeId, slots: &SlotSet) -> Result<()> {
        let cluster = self.survey.cluster();
        let marked = |node: &Node<'_>| !cluster.stray_marks(node).intersection(slots).is_empty();
        let replicas = cluster.nodes.iter().filter(|node| node.primary() == Some(primary) && marked(node));
        let mut links = Vec::new();
        for replica in replicas {
            links.push(self.link(replica.id).await?);
        }
        for round in 0..SETTLE_ROUNDS {
            if round > 0 {
                tokio::time::sleep(SETTLE_PAUSE).await;
            }
            let mut kept = SlotSet::new();
            for link in &mut links {
                let view = ClusterView::ask(link).await?;
                // A replica that follows another node by now is for that node to clear.
                if view.me().primary.as_ref() == Some(primary) {
                    kept = kept.union(&view.me().marked_slots().intersection(slots));
                }
            }
            if kept.is_empty() || self.stop.is_cancelled() {
                return Ok(());
            }
            self.mark(primary, &kept, SlotMark::Stable).await?;
        }
        let at = self.name(primary).address.to_string();
        let what = "one of its replicas has kept them for 15 s";
        Err(Error::unfit(self.deployment.side(), at, "clear marks that a replica kept", what)
            .with_remedy("see in the replica's log whether it follows its primary, and run repair again"))
    }

    /// A replica repeats its primary's claim in all that it sends. A node that hears it says nothing if the
    /// slots are those that it knows of, whatever the epochs; if one differs, it sends the replica what it
    /// knows of the owner of each. So each replica forgets one slot, and gets it back with that answer. (The
    /// other way round, with the slot forgotten by the node that answers, Redis 7.0 loses it when the primary
    /// comes back.)
    async fn remind(&self, epoch: u64, replicas: &[NodeId], slots: &SlotSet) -> Result<()> {
        let lesson: SlotSet = slots.iter().take(1).collect();
        let mut links = Vec::new();
        for replica in replicas {
            let mut link = self.link(replica).await?;
            // It may have heard since, and have been elected: a slot that a primary forgets is not served.
            let view = ClusterView::ask(&mut link).await?;
            if !view.me().is_primary() && view.me().config_epoch < epoch {
                repair::forget_owners(&mut link, &lesson).await?;
            }
            links.push((replica, link));
        }
        for _ in 0..SETTLE_ROUNDS {
            let mut waiting = Vec::new();
            for (replica, mut link) in links {
                let view = ClusterView::ask(&mut link).await?;
                let knows = view.me().is_primary()
                    || view.me().config_epoch >= epoch
                        && lesson.iter().all(|slot| view.primary_of(slot).is_some());
                if !knows {
                    waiting.push((replica, link));
                }
            }
            links = waiting;
            if links.is_empty() || self.stop.is_cancelled() {
                return Ok(());
            }
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        let at = self.name(links[0].0).address.to_string();
        let what = "it has not heard within 15 s of what its primary claimed last";
        Err(Error::unfit(self.deployment.side(), at, "have the replica elected", what)
            .with_remedy("see that the nodes reach each other on the cluster bus, and run repair again"))
    }

    /// Waits for one of the replicas to become a primary. They ask again four times the timeout of nodes
    /// after they were refused.
    async fn elected(&self, primary: &NodeId, replicas: &[NodeId]) -> Result<()> {
        let mut links = Vec::new();
        let mut node_timeout_ms = NODE_TIMEOUT_DEFAULT_MS;
        for replica in replicas {
            let mut link = self.link(replica).await?;
            // Forbidden by an ACL or a service, it is as usual.
            if let Ok(reply) = link.ask(&[b"CONFIG", b"GET", b"cluster-node-timeout"]).await
                && let Some(ms) = reply.field("cluster-node-timeout").and_then(Value::as_str)
            {
                node_timeout_ms = ms.parse().unwrap_or(node_timeout_ms);
            }
            links.push(link);
        }
        let patience = Duration::from_millis(node_timeout_ms.saturating_mul(4)) + ELECTION_SLACK;
        let patience = patience.min(ELECTION_PATIENCE_MAX);
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline && !self.stop.is_cancelled() {
            for link in &mut links {
                if ClusterView::ask(link).await?.me().is_primary() {
                    return Ok(());
                }
            }
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        if self.stop.is_cancelled() {
            return Ok(());
        }
        let what = format!("no replica has been elected within {} s", patience.as_secs());
        let remedy = "look at the replicas' logs; if their data is too old for an election \
                      (cluster-replica-validity-factor), decide whether to use CLUSTER FAILOVER TAKEOVER on \
                      one";
        let at = self.name(primary).address.to_string();
        Err(Error::unfit(self.deployment.side(), at, "wait for a failover", what).with_remedy(remedy))
    }

    async fn finish(
        &self,
        source: &NodeId,
        target: &NodeId,
        mark_target: bool,
        slots: SlotSet,
    ) -> Result<Tally> {
        if mark_target {
            self.mark(target, &slots, SlotMark::Importing(source.clone())).await?;
        }
        let (mut from, mut to) = (self.link(source).await?, self.link(target).await?);
        let mut tally = Tally::default();
        let mut done = SlotSet::new();
        for slot in &slots {
            if self.stop.is_cancelled() {
                break;
            }
            let moved = finish::finish_slot(&mut from, &mut to, slot, self.absolute()).await?;
            // A slot with a key that cannot be moved stays open: its clients find all of its keys.
            if moved.stuck == 0 {
                done.insert(slot);
            }
            tally.add(moved);
        }
        // The new owner first: if the old one lost it first, no node would have it for a moment.
        let owned = SlotMark::Node(target.clone());
        self.mark(target, &done, owned.clone()).await?;
        self.mark(source, &done, owned).await?;
        // The target's claim is announced by itself. The caller that reads the cluster again checks that it
        // stands.
        Ok(tally)
    }

    /// Those of some slots in which a node holds keys that it hides unless the slots are marked.
    async fn occupied(
        &self,
        holder: &NodeId,
        owner: &NodeId,
        rescue: bool,
        slots: &SlotSet,
    ) -> Result<SlotSet> {
        let mut link = self.link(holder).await?;
        // A node does not mark what is its own by now.
        let slots = &slots.difference(&ClusterView::ask(&mut link).await?.me().slots);
        // As in `empty`: what shows while the slots are marked must not look like copies to another repair.
        if rescue {
            notes::write(&mut self.link(owner).await?, slots).await?;
        }
        let counting = async { Ok(key_counts(&mut link, slots).await?.occupied()) };
        let occupied = self.opened(holder, owner, slots, counting).await?;
        if rescue {
            notes::remove(&mut self.link(owner).await?, &slots.difference(&occupied)).await?;
        }
        Ok(occupied)
    }

    async fn empty(&self, holder: &NodeId, owner: &NodeId, rescue: bool, slots: SlotSet) -> Result<Tally> {
        if slots.is_empty() {
            return Ok(Tally::default());
        }
        // Keys that are to be moved are no copies, and must not look like them to another repair, if this one
        // dies. If it fails, the notes stay.
        if rescue {
            notes::write(&mut self.link(owner).await?, &slots).await?;
        }
        let emptied = self.opened(holder, owner, &slots, async {
            let (mut from, mut to) = (self.link(holder).await?, self.link(owner).await?);
            let mut tally = Tally::default();
            for slot in &slots {
                if self.stop.is_cancelled() {
                    break;
                }
                tally.add(keys::empty_slot(&mut from, &mut to, slot, rescue, self.absolute()).await?);
            }
            Ok(tally)
        });
        let tally = emptied.await?;
        if rescue {
            notes::remove(&mut self.link(owner).await?, &slots).await?;
        }
        Ok(tally)
    }

    async fn empty_replica(&self, primary: &NodeId, replica: &NodeId, slots: SlotSet) -> Result<Tally> {
        let (mut from, mut of) = (self.link(primary).await?, self.link(replica).await?);
        let view = ClusterView::ask(&mut from).await?;
        let mut tally = Tally::default();
        // Each owner's slots are opened towards it.
        for owner in view.primaries().filter(|n| n.id != *primary) {
            let slots = slots.intersection(&owner.slots);
            let emptied = self.opened(primary, &owner.id, &slots, async {
                let mut tally = Tally::default();
                for slot in &slots {
                    if self.stop.is_cancelled() {
                        break;
                    }
                    tally.add(keys::empty_slot_of_replica(&mut from, &mut of, slot).await?);
                }
                Ok(tally)
            });
            tally.add(emptied.await?);
        }
        Ok(tally)
    }

    /// Does something while `holder` imports `slots` from `owner`: only then it takes commands for them, and
    /// its replicas with it. The marks are cleared whatever comes of it.
    async fn opened<T>(
        &self,
        holder: &NodeId,
        owner: &NodeId,
        slots: &SlotSet,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let marked = self.mark(holder, slots, SlotMark::Importing(owner.clone())).await;
        let outcome = match marked {
            Ok(()) => work.await,
            Err(e) => Err(e),
        };
        let cleared = self.mark(holder, slots, SlotMark::Stable).await;
        let outcome = outcome?;
        cleared.map(|()| outcome)
    }
}
