//! Looking at the cluster from outside the two nodes: who knows of the new owner, and who leads the shards
//! now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use whimbrel_core::migration::{Observation, Primary, Process, Seen};
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::SlotSet;

use super::options::HandoverOptions;
use super::peer::{Connector, Peer};
use super::state::{Handover, Members, let_follow};
use crate::deployment::Deployment;
use crate::endpoint::{Address, Endpoint};
use crate::error::{Error, Result, Side};
use crate::link::Link;
use crate::nodes::{ClusterView, Node, Role};
use crate::probe::Info;

/// Nodes that are asked at the same time.
const PARALLEL_MAX: usize = 16;

/// Time between two questions to the same node: a quarter of the time since the first one, but no less and no
/// more than these.
const POLL_MIN: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(50);

/// Nodes that an error names at most.
const NAMED_MAX: usize = 5;

/// Rounds of closing old connections.
const SILENCE_ROUNDS: u32 = 20;

/// Connections that were idle for longer are not used any more.
const IDLE_MAX: Duration = Duration::from_secs(2);

/// The view of the first node that has one, beginning with the node that the user named.
pub(super) async fn any_view(deployment: &Deployment) -> Result<ClusterView> {
    let topology = deployment.topology();
    let mut candidates = vec![deployment.endpoint.address.clone()];
    candidates.extend(topology.shards.iter().map(|s| s.primary.clone()));
    candidates.extend(topology.shards.iter().flat_map(|s| s.replicas.iter().cloned()));
    let mut failure = None;
    for address in candidates {
        match async { ClusterView::ask(&mut deployment.open(&address, 0).await?).await }.await {
            Ok(view) => return Ok(view),
            Err(e) => failure = Some(e),
        }
    }
    // `candidates` holds the endpoint's own address at least.
    Err(failure.unwrap_or_else(|| Error::own("ask for the cluster's nodes", "no node is known")))
}

/// What is true of the two shards of a job, as far as their nodes answer.
#[derive(Debug)]
pub struct Sighting {
    /// Which nodes lead them, and which claim what.
    pub observation: Observation,
    /// What was in the way if a shard has no primary that answers: the source's, or else the target's.
    pub silence: Option<String>,
}

/// What was found of one shard.
enum Found {
    Primary(Primary),
    /// None of its nodes answered as its primary; the text says what was in the way.
    Silent(String),
}

impl Found {
    fn split(self) -> (Seen, Option<String>) {
        match self {
            Found::Primary(primary) => (Seen::Primary(primary), None),
            Found::Silent(why) => (Seen::Unreachable, Some(why)),
        }
    }
}

impl Handover {
    /// As [`Handover::unshelter`], if neither of the two nodes has to answer any more: the nodes whose
    /// replicas were kept from following the slots, by their names.
    ///
    /// # Errors
    /// If no node says where they are.
    pub async fn unshelter_nodes(deployment: &Deployment, sheltered: &[NodeId]) -> Result<()> {
        if sheltered.is_empty() {
            return Ok(());
        }
        let view = any_view(deployment).await?;
        for node in sheltered.iter().filter_map(|id| view.node(id)) {
            let_follow(deployment.open(&node.address, 0).await).await;
        }
        Ok(())
    }

    /// Waits until both nodes and their replicas show the target as the owner of `slots`, and all other
    /// primaries as the owner of `everywhere`; those are not asked if it is empty. Nodes that the target
    /// finds unreachable are left out: they learn when they come back.
    ///
    /// Each node is asked for its view as a whole; nothing is sent for single slots.
    ///
    /// # Errors
    /// `Unfit` if it takes too long; it names the nodes that do not know. As [`ClusterView::ask`].
    pub async fn confirm(&mut self, slots: &SlotSet, everywhere: &SlotSet) -> Result<()> {
        let view = self.target.view().await?;
        let (slots, everywhere) = (Arc::new(slots.clone()), Arc::new(everywhere.clone()));
        // What each has to know of.
        let lesson = |n: &Node| {
            let shard = n.primary.as_ref().unwrap_or(&n.id);
            let is_involved = *shard == self.source.id || *shard == self.target.id;
            let lesson = if is_involved { &slots } else { &everywhere };
            let is_asked = n.is_usable() && (is_involved || n.is_primary()) && !lesson.is_empty();
            is_asked.then(|| lesson.clone())
        };
        let mut waiting: Vec<(NodeId, Address, Arc<SlotSet>)> =
            view.nodes.iter().filter_map(|n| Some((n.id.clone(), n.address.clone(), lesson(n)?))).collect();
        let deadline = Instant::now() + Duration::from_millis(self.options.confirm_ms);
        let mut running = JoinSet::new();
        let mut ignorant = Vec::new();
        self.watchers.retain(|_, (_, used)| used.elapsed() < IDLE_MAX);
        loop {
            while running.len() < PARALLEL_MAX
                && let Some((id, address, slots)) = waiting.pop()
            {
                let (connector, owner) = (self.target.connector.clone(), self.target.id.clone());
                let link = self.watchers.remove(&id).map(|(link, _)| link);
                running.spawn(async move {
                    let asked = knows(&connector, link, &address, &owner, &slots, deadline).await;
                    (id, address, asked)
                });
            }
            let Some(joined) = running.join_next().await else { break };
            let (id, address, asked) = joined.map_err(|e| Error::own("ask a node", e))?;
            match asked {
                Ok((link, true)) => {
                    self.watchers.insert(id, (link, Instant::now()));
                }
                Ok((_, false)) => ignorant.push(address.to_string()),
                Err(e) if e.is_link() => ignorant.push(format!("{address} (does not answer)")),
                Err(e) => return Err(e),
            }
        }
        if !ignorant.is_empty() {
            let more = ignorant.len().saturating_sub(NAMED_MAX);
            ignorant.truncate(NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let text =
                format!("these nodes do not know the slots' new owner yet: {}{more}", ignorant.join(", "));
            return Err(self
                .target
                .for_now("confirm", &text)
                .with_remedy("see that the nodes can reach each other's cluster bus ports"));
        }
        self.unshelter().await;
        Ok(())
    }

    /// Whether `former`, the target's shard's primary of an earlier try, may take slots by itself when it
    /// comes back: it died with slots marked as importing, and Valkey 8 and later claims those as soon as
    /// their source claims them no longer.
    ///
    /// # Errors
    /// As [`ClusterView::ask`].
    pub async fn may_come_back_and_take(&mut self, former: &NodeId) -> Result<bool> {
        if !self.target.traits.takes_by_itself {
            return Ok(false);
        }
        let view = self.target.view().await?;
        // A former primary that is a replica again has no marks of its own any more, and one that is
        // forgotten is not believed.
        Ok(view.node(former).is_some_and(|node| !node.is_usable() || node.is_primary()))
    }

    /// Finds out what is true: which nodes lead the shards of `source` and `target` now, and which of `slots`
    /// those claim.
    ///
    /// Makes sure that nothing which an earlier process, or a dropped handover, has sent can still be
    /// executed: connections that are named after a job are closed on both nodes, unless they are this call's
    /// own.
    ///
    /// Nothing in a cluster shows whose replica a promoted node was, once its primary is down. With
    /// [`Handover::observe_members`] it is found among the nodes that are remembered; here, among those that
    /// the deployment's topology has, and by the slots that it took over.
    ///
    /// # Errors
    /// If no node of the cluster answers; as [`Link::call`] for refusals. A shard without a primary that
    /// answers is no error.
    pub async fn observe(
        deployment: &Deployment,
        source: &NodeId,
        target: &NodeId,
        slots: &SlotSet,
    ) -> Result<Observation> {
        let members = Members { source: vec![source.clone()], target: vec![target.clone()] };
        Handover::observe_members(deployment, &members, slots).await
    }

    /// [`Handover::observe`], with the nodes that each shard had.
    ///
    /// # Errors
    /// Likewise; `Unfit` if a shard has no members.
    pub async fn observe_members(
        deployment: &Deployment,
        members: &Members,
        slots: &SlotSet,
    ) -> Result<Observation> {
        let options = HandoverOptions::default();
        Ok(Handover::observe_with(deployment, members, slots, &options).await?.observation)
    }

    /// [`Handover::observe_members`] for the job that `options` label: connections of other jobs are left
    /// alone.
    ///
    /// # Errors
    /// Likewise.
    pub async fn observe_with(
        deployment: &Deployment,
        members: &Members,
        slots: &SlotSet,
        options: &HandoverOptions,
    ) -> Result<Sighting> {
        let view = any_view(deployment).await?;
        let source = observe(deployment, &view, Side::Source, &members.source, slots, options);
        let target = observe(deployment, &view, Side::Target, &members.target, slots, options);
        let ((source, owners_of_one), (target, owners_of_other)) = tokio::try_join!(source, target)?;
        let ((source, source_silence), (target, target_silence)) = (source.split(), target.split());
        let mut members_of_both: BTreeSet<NodeId> =
            members.source.iter().chain(&members.target).cloned().collect();
        members_of_both.extend([&source, &target].into_iter().filter_map(|seen| match seen {
            Seen::Primary(primary) => Some(primary.node.clone()),
            Seen::Unreachable => None,
        }));
        let others =
            owners_of_one.into_iter().chain(owners_of_other).filter(|(id, _)| !members_of_both.contains(id));
        let elsewhere = others.fold(SlotSet::new(), |all, (_, slots)| all.union(&slots));
        let observation = Observation { source, target, elsewhere };
        Ok(Sighting { observation, silence: source_silence.or(target_silence) })
    }
}

/// Asks one node until it shows `owner` as the owner of all of `slots`, or the time is up.
async fn knows(
    connector: &Connector,
    link: Option<Link>,
    address: &Address,
    owner: &NodeId,
    slots: &SlotSet,
    deadline: Instant,
) -> Result<(Link, bool)> {
    let mut link = match link {
        Some(link) => link,
        None => Link::open(&connector.endpoint, address, connector.options).await?,
    };
    let begun = Instant::now();
    loop {
        let view = ClusterView::ask(&mut link).await?;
        let knows = view.node(owner).is_some_and(|n| slots.difference(&n.slots).is_empty());
        if knows || Instant::now() >= deadline {
            return Ok((link, knows));
        }
        sleep((begun.elapsed() / 4).clamp(POLL_MIN, POLL_MAX)).await;
    }
}

/// Which nodes have which slots, by one node's word.
type Owners = Vec<(NodeId, SlotSet)>;

/// What the primary of a shard says of itself, and of the owners of `slots`.
async fn observe(
    deployment: &Deployment,
    view: &ClusterView,
    side: Side,
    members: &[NodeId],
    slots: &SlotSet,
    options: &HandoverOptions,
) -> Result<(Found, Owners)> {
    let endpoint = Arc::new(Endpoint { side, ..(*deployment.endpoint).clone() });
    let connector = Connector { endpoint, options: deployment.options, name: options.client_name() };
    let (node, address) = match leader(deployment, &connector, view, members, slots).await? {
        Ok(leader) => leader,
        Err(why) => return Ok((Found::Silent(why), Owners::new())),
    };
    let seen = async {
        let mut peer = Peer::open(connector, node.clone(), address, options).await?;
        silence(&mut peer, options).await?;
        let view = peer.view().await?;
        if !view.me().is_primary() {
            return Ok::<_, Error>(None);
        }
        let info = peer.run(async |link| Info::ask(link, "server").await).await?;
        let keys = peer.count_keys(&view, slots).await?;
        let primary = Primary {
            node,
            process: Process(info.field("run_id").unwrap_or_default().to_owned()),
            claims: view.me().slots.intersection(slots),
            keys,
        };
        let owners = view.nodes.iter().map(|n| (n.id.clone(), n.slots.intersection(slots)));
        Ok(Some((primary, owners.filter(|(_, slots)| !slots.is_empty()).collect::<Owners>())))
    };
    match seen.await {
        Ok(Some((primary, owners))) => Ok((Found::Primary(primary), owners)),
        Ok(None) => Ok((Found::Silent("it has just been demoted".to_owned()), Owners::new())),
        Err(e) if e.is_transient() => Ok((Found::Silent(e.to_string()), Owners::new())),
        Err(e) => Err(e),
    }
}

/// The node that leads a shard, by its own word; the inner error says what its nodes answered instead. If
/// several say so, the node with the latest claim: the others have not heard yet.
async fn leader(
    deployment: &Deployment,
    connector: &Connector,
    view: &ClusterView,
    members: &[NodeId],
    slots: &SlotSet,
) -> Result<std::result::Result<(NodeId, Address), String>> {
    let Some(first) = members.first() else {
        return Err(Error::options(connector.endpoint.side, "find a shard", "none of its nodes is named"));
    };
    let mut candidates: BTreeMap<&NodeId, &Node> = BTreeMap::new();
    let mut add = |node: &NodeId| {
        if let Some(node) = view.node(node).filter(|n| !n.flags.noaddr && !n.flags.handshake) {
            candidates.insert(&node.id, node);
        }
    };
    for member in members {
        // The node itself, the node that it follows now, and the nodes that follow either.
        let head = view.node(member).and_then(|n| n.primary.as_ref()).unwrap_or(member);
        add(member);
        add(head);
        view.replicas_of(head).chain(view.replicas_of(member)).for_each(|n| add(&n.id));
    }
    let topology = deployment.topology();
    for replica in topology.shards.iter().filter(|s| s.id == first.as_str()).flat_map(|s| &s.replicas) {
        view.nodes.iter().filter(|n| n.address == *replica).for_each(|n| add(&n.id));
    }
    if connector.endpoint.side == Side::Source
        && view.node(first).is_some_and(|n| n.flags.fail && n.slots.is_empty())
    {
        // It is down and owns nothing any more: the node that has all that it was about to give has been
        // promoted in its place.
        view.primaries().filter(|n| slots.difference(&n.slots).is_empty()).for_each(|n| add(&n.id));
    }
    let mut running = JoinSet::new();
    for node in candidates.into_values() {
        let (connector, id, address) = (connector.clone(), node.id.clone(), node.address.clone());
        running.spawn(async move {
            let asked = async {
                let mut link = Link::open(&connector.endpoint, &address, connector.options).await?;
                ClusterView::ask(&mut link).await
            };
            let view = asked.await;
            (id, address, view)
        });
    }
    let (mut leading, mut others) = (Vec::new(), Vec::new());
    while let Some(joined) = running.join_next().await {
        let (node, address, view) = joined.map_err(|e| Error::own("ask a node", e))?;
        match view {
            Ok(view) if view.me().role == Role::Primary => leading.push((node, address, view)),
            Ok(_) => others.push(format!("{address} is a replica")),
            // A node that does not answer does not lead.
            Err(e) => others.push(e.to_string()),
        }
    }
    let best = leading.into_iter().max_by_key(|(node, _, view)| (view.me().config_epoch, node == first));
    Ok(best.map(|(node, address, _)| (node, address)).ok_or_else(|| match others.is_empty() {
        true => "no node of its shard is known to the cluster".to_owned(),
        false => {
            others.truncate(NAMED_MAX);
            others.join("; ")
        }
    }))
}

/// Closes all connections of the job but our own, until none is left.
async fn silence(peer: &mut Peer, options: &HandoverOptions) -> Result<()> {
    for _ in 0..SILENCE_ROUNDS {
        let mut others = peer.other_jobs().await?;
        others.retain(|other| options.is_of_job(&other.name));
        if others.is_empty() {
            return Ok(());
        }
        for other in others {
            tracing::info!(connection = %other, "an old connection is closed");
            let number = other.number.to_string();
            // A connection that is already gone is fine too.
            peer.run(async |link| link.ask(&[b"CLIENT", b"KILL", b"ID", number.as_bytes()]).await).await?;
        }
    }
    Err(peer
        .unfit("close old connections", "others keep appearing")
        .with_remedy("stop the other whimbrel first"))
}
