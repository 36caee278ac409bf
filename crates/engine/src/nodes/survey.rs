//! Every node's own word, gathered at about the same time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Serialize, Serializer};
use tokio::task::JoinSet;
use tokio::time::timeout;
use whimbrel_core::cluster::{self, Cluster, KeyCounts, Owners, Role, State};
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_wire::value::Value;

use super::counts::{TRIM_RUNNING, count_shown_and_hidden, key_counts};
use super::view::{ClusterView, Node};
use crate::deployment::Deployment;
use crate::endpoint::{Address, Endpoint};
use crate::error::{Code, Error, ErrorKind, Result, ServerError};
use crate::link::{Link, LinkOptions};
use crate::probe::{Info, ServerFacts};

/// Nodes asked at the same time.
const PARALLEL_MAX: usize = 16;

/// How often nodes that only others know are looked for. Gossip makes a second round rare, a third one rarer.
const ROUNDS_MAX: usize = 3;

/// How long to try to connect to a node that the others have found failing.
const FAILING_CONNECT_TIMEOUT_MS: u64 = 1_000;

/// If the first node takes longer than this, another one is asked for the list of nodes as well.
const ASK_ANOTHER_AFTER: Duration = Duration::from_millis(300);

/// Most bytes of a `CLIENT LIST`: about 100,000 connections.
const CLIENT_LIST_BYTES_MAX: u64 = 64 << 20;

/// How the connections begin their names that belong to a running job of ours.
pub const JOB_CLIENT_NAME: &str = "whimbrel:job";

/// How the connections begin their names that belong to a job of ours which has not begun: it only looks
/// whether it may.
pub const CANDIDATE_CLIENT_NAME: &str = "whimbrel:candidate";

/// Which slots' keys a survey counts: one command a slot and node, about a microsecond each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// None.
    Nothing,
    /// Those that each primary owns: 16,384 in all, however many nodes there are.
    Owned,
    /// All 16,384 of every node, where keys may be that do not belong there.
    Everything,
}

/// What to ask besides each node's view and facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SurveyOptions {
    /// Which slots' keys to count.
    pub counts: Counted,
    /// Native migrations and connections of jobs of ours, of every primary.
    pub activity: bool,
}

/// A node, for people: the start of its id and its address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName {
    /// Its name.
    pub id: NodeId,
    /// Its address.
    pub address: Address,
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp(_, 0) => write!(f, "{} (no address)", self.id.short()),
            address => write!(f, "{} ({address})", self.id.short()),
        }
    }
}

/// What a node says of itself in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// For people: `Redis 7.0.15`.
    pub version: String,
    /// Changes with every start of its process.
    pub run_id: String,
    /// Whether it finds the cluster well: it answers queries then.
    pub cluster_ok: bool,
    /// Keys in database 0.
    pub keys: u64,
    /// Keys in other databases, which some servers allow in a cluster.
    pub keys_elsewhere: u64,
    /// Bytes of its data, by its own estimate.
    pub dataset_bytes: u64,
    /// It tells a replica the owners of slots, if that one's idea of its primary's slots differs from its
    /// own.
    pub corrects_replicas: bool,
    /// It shows keys of a slot only if the slot is its own or marked as importing.
    pub hides_keys: bool,
    /// It removes keys of slots that it has given away by a migration of its own.
    pub is_trimming: bool,
    /// Bytes that it has allocated.
    pub used_memory_bytes: u64,
    /// Its limit for them; 0 for none.
    pub maxmemory_bytes: u64,
    /// Keys that it has evicted since its start.
    pub evicted_keys: u64,
    /// Commands in the last second, about.
    pub ops_per_second: u64,
    /// How far its replication stream has come: what a primary has sent, what a replica has taken in.
    pub repl_offset: u64,
    /// For a replica: whether its link to the primary is up.
    pub primary_link_up: Option<bool>,
}

/// The answers of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// What it is, by its own word.
    pub role: Role,
    /// Whom it follows.
    pub primary: Option<NodeId>,
    /// The epoch of its claim; for a replica, of its primary's last claim that it has heard of.
    pub config_epoch: u64,
    /// The slots that it says are its own.
    pub slots: SlotSet,
    /// Open slots that it takes in, and from which node.
    pub importing: Vec<(Slot, NodeId)>,
    /// Open slots that it gives away, and to which node.
    pub migrating: Vec<(Slot, NodeId)>,
    /// The owners of slots in its view.
    pub owners: Owners,
    /// Nodes that it finds failing, or may do so.
    pub failing: Vec<NodeId>,
    /// Those of them that a majority has agreed have failed, with the epoch of each one's last claim in its
    /// view.
    pub failed: Vec<(NodeId, u64)>,
    /// Its numbers.
    pub facts: NodeFacts,
    /// Its keys in each slot, if they were asked for.
    pub counts: Option<KeyCounts>,
    /// Its keys beyond those, in slots that are not its own: a server that hides them reports only how many.
    pub hidden_keys: u64,
    /// Native migrations that it takes part in.
    pub native: Vec<NativeSeen>,
    /// Connections of running jobs of ours: their names and addresses.
    pub jobs: Vec<String>,
}

impl NodeState {
    /// Slots that it takes in.
    pub fn importing_slots(&self) -> SlotSet {
        self.importing.iter().map(|(slot, _)| *slot).collect()
    }

    /// Slots that it gives away.
    pub fn migrating_slots(&self) -> SlotSet {
        self.migrating.iter().map(|(slot, _)| *slot).collect()
    }

    /// What decisions are made by.
    fn as_state(&self) -> State<'_> {
        State {
            role: self.role,
            primary: self.primary.as_ref(),
            config_epoch: self.config_epoch,
            slots: &self.slots,
            importing: &self.importing,
            migrating: &self.migrating,
            owners: &self.owners,
            failed: &self.failed,
            counts: self.counts.as_ref(),
            hidden_keys: self.hidden_keys,
            keys_elsewhere: self.facts.keys_elsewhere,
            repl_offset: self.facts.repl_offset,
            corrects_replicas: self.facts.corrects_replicas,
        }
    }
}

/// Why a node has reported nothing of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoAnswer {
    /// It was reached, and refuses the login: a user or a password that others take, or none.
    pub refuses_login: bool,
    /// Why, in words: those of the server, if it said anything.
    pub why: String,
}

impl NoAnswer {
    /// Of a node that does not answer.
    pub fn because(why: impl Into<String>) -> NoAnswer {
        NoAnswer { refuses_login: false, why: why.into() }
    }

    /// What the node does instead of answering, for people: the rest of a sentence about it.
    pub fn verb(&self) -> &'static str {
        if self.refuses_login { "refuses the login" } else { "does not answer" }
    }

    /// What the error says, without the node it is about and what to do.
    pub(crate) fn of(mut e: Error) -> NoAnswer {
        e.remedy = None;
        let about = format!("{} {}: ", e.side, e.at);
        let text = e.to_string();
        let why = text.strip_prefix(&about).map(str::to_owned).unwrap_or(text);
        NoAnswer { refuses_login: matches!(e.kind, ErrorKind::Auth(_)), why }
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it {}: {}", self.verb(), self.why)
    }
}

/// Programs read the reason alone.
impl Serialize for NoAnswer {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.why)
    }
}

/// A node and what it answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surveyed {
    /// Its name.
    pub id: NodeId,
    /// Its address.
    pub address: Address,
    /// What it is in the eyes of the node that reported it.
    pub reported_role: Role,
    /// Whom it follows, likewise.
    pub reported_primary: Option<NodeId>,
    /// What it answered; or why there is no answer.
    pub answer: std::result::Result<NodeState, NoAnswer>,
}

impl Surveyed {
    /// For people.
    pub fn name(&self) -> NodeName {
        NodeName { id: self.id.clone(), address: self.address.clone() }
    }

    /// How many bytes of this primary's replication stream a replica of it has yet to take in. The two were
    /// asked one after the other, so some of it is the time between.
    pub fn lag_bytes_of(&self, replica: &Surveyed) -> Option<u64> {
        let (primary, replica) = (self.state()?, replica.state()?);
        Some(primary.facts.repl_offset.saturating_sub(replica.facts.repl_offset))
    }

    /// What decisions are made by.
    fn as_node(&self) -> cluster::Node<'_> {
        cluster::Node {
            id: &self.id,
            reported_role: self.reported_role,
            reported_primary: self.reported_primary.as_ref(),
            state: self.state().map(NodeState::as_state),
        }
    }

    /// What it answered, if it did.
    pub fn state(&self) -> Option<&NodeState> {
        self.answer.as_ref().ok()
    }

    /// Whether it is a primary: by its own word, or else by others'.
    pub fn is_primary(&self) -> bool {
        self.state().map_or(self.reported_role, |s| s.role) == Role::Primary
    }

    /// Whom it follows, likewise.
    pub fn primary(&self) -> Option<&NodeId> {
        match self.state() {
            Some(state) => state.primary.as_ref(),
            None => self.reported_primary.as_ref(),
        }
    }
}

/// Every node's own word, gathered at about the same time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// Every node that any of them knows, in the order of ids. Nodes that are still being introduced are left
    /// out: their ids are not their own yet.
    pub nodes: Vec<Surveyed>,
}

impl Survey {
    /// Asks every node everything, 16 at once. A node that does not answer is in the result with the reason.
    ///
    /// # Errors
    /// If no node can be asked for the list of nodes.
    pub async fn take(deployment: &Deployment) -> Result<Survey> {
        Survey::take_with(deployment, SurveyOptions { counts: Counted::Everything, activity: true }).await
    }

    /// [`Survey::take`], with a choice of what to ask.
    ///
    /// # Errors
    /// Likewise.
    pub fn take_with(deployment: &Deployment, what: SurveyOptions) -> BoxFuture<'_, Result<Survey>> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            let first = first_view(deployment).await?;
            Survey::take_from(first, deployment, what, None).await
        })
    }

    /// [`Survey::take_with`], if a node that has not answered `within` this time counts as silent: those that
    /// answer do not wait for it.
    ///
    /// # Errors
    /// Likewise.
    pub async fn take_within(
        deployment: &Deployment,
        what: SurveyOptions,
        within: Duration,
    ) -> Result<Survey> {
        let first = first_view_within(deployment, within).await?;
        Survey::take_from(first, deployment, what, Some(within)).await
    }

    async fn take_from(
        first: ClusterView,
        deployment: &Deployment,
        what: SurveyOptions,
        within: Option<Duration>,
    ) -> Result<Survey> {
        let mut known: BTreeMap<NodeId, Node> = BTreeMap::new();
        let mut answers: BTreeMap<NodeId, std::result::Result<NodeState, NoAnswer>> = BTreeMap::new();
        let mut waiting: VecDeque<Node> = VecDeque::new();
        add_view(first, &mut known, &mut waiting);
        for _ in 0..ROUNDS_MAX {
            let mut running = JoinSet::new();
            let mut heard = Vec::new();
            loop {
                while running.len() < PARALLEL_MAX
                    && let Some(node) = waiting.pop_front()
                {
                    let (endpoint, options) = (deployment.endpoint.clone(), deployment.options);
                    running.spawn(async move {
                        let asking = interview(&endpoint, &node, options, what);
                        let answer = match within {
                            Some(within) => in_time(asking, &endpoint, &node.address, within).await,
                            None => asking.await,
                        };
                        (node.id, answer)
                    });
                }
                let Some(joined) = running.join_next().await else { break };
                let (id, answer) = joined.map_err(|e| Error::own("ask a node", e))?;
                match answer {
                    Ok((view, state)) => {
                        // Only what is new is kept: all views together may be large.
                        heard.extend(view.nodes.into_iter().filter(|n| !known.contains_key(&n.id)));
                        answers.insert(id, Ok(state));
                    }
                    // Otherwise a user without rights would make every node look dead.
                    Err(e) if e.server().is_some_and(|refused| refused.code == Code::NoPermission) => {
                        return Err(e);
                    }
                    Err(e) => {
                        answers.insert(id, Err(NoAnswer::of(e)));
                    }
                }
            }
            for node in heard {
                add_node(node, &mut known, &mut waiting);
            }
            if waiting.is_empty() {
                break;
            }
        }
        let nodes = known
            .into_values()
            .map(|node| Surveyed {
                answer: answers
                    .remove(&node.id)
                    .unwrap_or_else(|| Err(NoAnswer::because("only known to a node that was asked last"))),
                id: node.id,
                address: node.address,
                reported_role: node.role,
                reported_primary: node.primary,
            })
            .collect();
        Ok(Survey { nodes })
    }

    /// A node by its name.
    pub fn node(&self, id: &NodeId) -> Option<&Surveyed> {
        self.nodes.binary_search_by(|n| n.id.cmp(id)).ok().map(|at| &self.nodes[at])
    }

    /// For people; a node that is not part of the survey has no address.
    pub fn name(&self, id: &NodeId) -> NodeName {
        match self.node(id) {
            Some(node) => node.name(),
            None => NodeName { id: id.clone(), address: Address::Tcp(String::new(), 0) },
        }
    }

    /// What a repair is decided by: every node's word, without what is only for people.
    pub fn cluster(&self) -> Cluster<'_> {
        Cluster { nodes: self.nodes.iter().map(Surveyed::as_node).collect() }
    }

    /// The primaries, those with the lowest slots first, those without slots and without an answer last.
    pub fn shards(&self) -> Vec<&Surveyed> {
        let mut shards: Vec<&Surveyed> = self.primaries().collect();
        shards.sort_by_key(|n| {
            let first = n.state().and_then(|s| s.slots.iter().next());
            (Reverse(first.is_some()), first, n.address.to_string())
        });
        shards
    }

    /// All primaries, those that did not answer included.
    pub fn primaries(&self) -> impl Iterator<Item = &Surveyed> {
        self.nodes.iter().filter(|n| n.is_primary())
    }

    /// The primaries that answered.
    pub fn answering_primaries(&self) -> impl Iterator<Item = (&Surveyed, &NodeState)> {
        self.nodes.iter().filter_map(|n| Some((n, n.state()?))).filter(|(_, s)| s.role == Role::Primary)
    }

    /// The replicas of a primary, those that did not answer included.
    pub fn replicas_of<'a>(&'a self, primary: &'a NodeId) -> impl Iterator<Item = &'a Surveyed> {
        self.nodes.iter().filter(move |n| !n.is_primary() && n.primary() == Some(primary))
    }
}

fn add_view(view: ClusterView, known: &mut BTreeMap<NodeId, Node>, waiting: &mut VecDeque<Node>) {
    for node in view.nodes {
        add_node(node, known, waiting);
    }
}

fn add_node(node: Node, known: &mut BTreeMap<NodeId, Node>, waiting: &mut VecDeque<Node>) {
    if !node.flags.handshake && !known.contains_key(&node.id) {
        // Slots are asked of each node itself; a set of them for each node would add up.
        let node = Node { slots: SlotSet::new(), ..node };
        known.insert(node.id.clone(), node.clone());
        waiting.push_back(node);
    }
}

/// The node that the user named, and all others that are known, primaries first.
fn candidates(deployment: &Deployment) -> Vec<Address> {
    let topology = deployment.topology();
    let mut candidates = vec![deployment.endpoint.address.clone()];
    candidates.extend(topology.shards.iter().map(|s| s.primary.clone()));
    candidates.extend(topology.shards.iter().flat_map(|s| s.replicas.iter().cloned()));
    let mut seen = BTreeSet::new();
    candidates.retain(|address| seen.insert(address.to_string()));
    candidates
}

/// What does not answer in time is no answer.
async fn in_time<T>(
    asking: impl Future<Output = Result<T>>,
    endpoint: &Endpoint,
    address: &Address,
    within: Duration,
) -> Result<T> {
    timeout(within, asking).await.unwrap_or_else(|_| {
        let kind = ErrorKind::Timeout(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        Err(Error::new(endpoint.side, address.to_string(), "ask the node", kind))
    })
}

/// The view of the node that answers first. If one takes long, others are asked as well.
async fn first_view_within(deployment: &Deployment, within: Duration) -> Result<ClusterView> {
    let mut waiting: VecDeque<Address> = candidates(deployment).into();
    let (mut asked, mut failure) = (JoinSet::new(), None);
    loop {
        if let Some(address) = waiting.pop_front() {
            let (endpoint, options) =
                (deployment.endpoint.clone(), LinkOptions { db: 0, ..deployment.options });
            asked.spawn(async move {
                let asking =
                    async { ClusterView::ask(&mut Link::open(&endpoint, &address, options).await?).await };
                in_time(asking, &endpoint, &address, within).await
            });
        }
        let patience = if waiting.is_empty() { within * 2 } else { ASK_ANOTHER_AFTER };
        match timeout(patience, asked.join_next()).await {
            Ok(Some(Ok(Ok(view)))) => return Ok(view),
            Ok(Some(Ok(Err(e)))) => failure = failure.or(Some(e)),
            Ok(Some(Err(e))) => failure = failure.or(Some(Error::own("ask a node", e))),
            Ok(None) if waiting.is_empty() => {
                return Err(failure.unwrap_or_else(|| Error::own("ask the cluster", "no node is known")));
            }
            // Another one is asked.
            Ok(None) | Err(_) => {}
        }
    }
}

/// The view of the first node that has one, beginning with the node that the user named.
async fn first_view(deployment: &Deployment) -> Result<ClusterView> {
    let mut failure = None;
    for address in candidates(deployment) {
        match async { ClusterView::ask(&mut deployment.open(&address, 0).await?).await }.await {
            Ok(view) => return Ok(view),
            // The error of the node that was named says most.
            Err(e) => failure = failure.or(Some(e)),
        }
    }
    Err(failure.expect("there is at least the address that was named"))
}

async fn interview(
    endpoint: &Arc<Endpoint>,
    node: &Node,
    options: LinkOptions,
    what: SurveyOptions,
) -> Result<(ClusterView, NodeState)> {
    if node.flags.noaddr {
        let what = "the cluster has lost its address";
        return Err(Error::unfit(endpoint.side, node.id.short(), "connect", what));
    }
    let mut options = LinkOptions { db: 0, ..options };
    if node.flags.fail {
        options.connect_timeout_ms = options.connect_timeout_ms.min(FAILING_CONNECT_TIMEOUT_MS);
    }
    let mut link = Link::open(endpoint, &node.address, options).await?;
    let view = ClusterView::ask(&mut link).await?;
    if view.myself != node.id {
        let what = format!("another node answers there: {}", view.myself.short());
        let error = Error::unfit(endpoint.side, node.address.to_string(), "ask the node", what);
        return Err(
            error.with_remedy("see the address map, and that each node announces an address of its own")
        );
    }
    let facts = facts(&mut link).await?;
    let mut state = summary(&view, facts);
    let counted = match what.counts {
        Counted::Nothing => None,
        Counted::Owned => Some(view.me().slots.clone()),
        Counted::Everything => Some(SlotSet::full()),
    };
    if let Some(counted) = counted {
        let may_hide = state.facts.hides_keys && state.role == Role::Primary;
        let found = match may_hide && what.counts == Counted::Everything {
            true => count_shown_and_hidden(&mut link, &state.slots.union(&state.importing_slots())).await?,
            false => None,
        };
        match found {
            Some(found) => (state.counts, state.hidden_keys) = (Some(found.shown), found.hidden),
            None => state.counts = Some(key_counts(&mut link, &counted).await?),
        }
    }
    if what.activity && state.role == Role::Primary {
        state.native = native_migrations(&mut link).await?;
        // Last: a reply that is too long leaves the link out of step.
        state.jobs = job_connections(&mut link).await?;
    }
    Ok((view, state))
}

fn summary(view: &ClusterView, facts: NodeFacts) -> NodeState {
    let me = view.me();
    NodeState {
        role: me.role,
        primary: me.primary.clone(),
        config_epoch: me.config_epoch,
        slots: me.slots.clone(),
        importing: me.importing.clone(),
        migrating: me.migrating.clone(),
        owners: Owners::new(view.nodes.iter().map(|n| (n.id.clone(), n.slots.clone()))),
        failing: view
            .nodes
            .iter()
            .filter(|n| n.flags.fail || n.flags.maybe_fail)
            .map(|n| n.id.clone())
            .collect(),
        failed: view.nodes.iter().filter(|n| n.flags.fail).map(|n| (n.id.clone(), n.config_epoch)).collect(),
        facts,
        counts: None,
        hidden_keys: 0,
        native: Vec::new(),
        jobs: Vec::new(),
    }
}

async fn facts(link: &mut Link) -> Result<NodeFacts> {
    let server = ServerFacts::ask(link).await?;
    let info = Info::ask(link, "").await?;
    let reply = link.call(&[b"CLUSTER", b"INFO"]).await?;
    let cluster = match reply.as_bytes() {
        Some(text) => Info::parse(text),
        None => return Err(link.unexpected("CLUSTER INFO", &reply)),
    };
    let keyspace = info.keyspace();
    let number = |name| info.number(name).unwrap_or(0);
    let offset = if server.replica { "slave_repl_offset" } else { "master_repl_offset" };
    Ok(NodeFacts {
        version: server.version,
        run_id: server.run_id,
        cluster_ok: cluster.field("cluster_state") == Some("ok"),
        keys: keyspace.get(&0).map_or(0, |db| db.keys),
        keys_elsewhere: keyspace.iter().filter(|(db, _)| **db != 0).map(|(_, db)| db.keys).sum(),
        dataset_bytes: server.dataset_bytes,
        used_memory_bytes: number("used_memory"),
        maxmemory_bytes: number("maxmemory"),
        corrects_replicas: server.corrects_replicas,
        hides_keys: server.hides_keys,
        is_trimming: cluster.number(TRIM_RUNNING).is_some_and(|running| running > 0),
        evicted_keys: server.evicted_keys,
        ops_per_second: number("instantaneous_ops_per_sec"),
        repl_offset: number(offset),
        primary_link_up: server.replica.then(|| info.field("master_link_status") == Some("up")),
    })
}

/// States of a native migration that is over.
const OVER: [&str; 6] = ["success", "failed", "cancelled", "canceled", "completed", "none"];

/// A migration of the servers' own that is under way, as one of its two nodes lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NativeSeen {
    /// Its name there.
    pub name: String,
    /// The node's part in it: `export` or `import`, `migrate` or `import`.
    pub operation: String,
    /// The slots, as the server reports them: `0-99 150-160`.
    pub slots: String,
    /// The node that gives them away.
    pub source: String,
    /// The node that gets them.
    pub target: String,
    /// How far it is, in the server's word.
    pub state: String,
    /// What the server says besides.
    pub message: String,
    /// When it was made, in seconds of Unix time; 0 if the server does not report it.
    pub created_s: u64,
    /// Bytes that wait to be sent; 0 if the server does not report them (Valkey 9.1 does).
    pub remaining_bytes: u64,
    /// Whether it is one of `CLUSTER MIGRATESLOTS`.
    pub is_valkey: bool,
}

impl NativeSeen {
    /// The slots; none if they are reported in a form that is not known.
    pub fn slot_set(&self) -> SlotSet {
        self.slots.replace(' ', ",").parse().unwrap_or_default()
    }

    /// Whether the node gives the slots away.
    pub fn is_export(&self) -> bool {
        self.operation != "import"
    }

    /// The command that ends it, and the node that takes it.
    pub fn ended_by(&self) -> String {
        let short = |id: &str| id.get(..8).unwrap_or(id).to_owned();
        match self.is_valkey {
            true => format!("CLUSTER CANCELSLOTMIGRATIONS at {}", short(&self.source)),
            false => format!("CLUSTER MIGRATION CANCEL ID {} at {}", self.name, short(&self.target)),
        }
    }
}

impl fmt::Display for NativeSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NativeSeen { operation, name, slots, state, .. } = self;
        write!(f, "{operation} {name} of slots {slots}: {state}")
    }
}

/// The native migrations under way that a node takes part in, on servers that have any: `CLUSTER
/// GETSLOTMIGRATIONS` of Valkey 9, `CLUSTER MIGRATION STATUS ALL` of Redis 8.4.
///
/// # Errors
/// As [`Link::replies`].
pub async fn native_migrations(link: &mut Link) -> Result<Vec<NativeSeen>> {
    link.push(&[b"CLUSTER", b"GETSLOTMIGRATIONS"]);
    link.push(&[b"CLUSTER", b"MIGRATION", b"STATUS", b"ALL"]);
    link.flush().await?;
    let mut found = Vec::new();
    for reply in link.replies(2).await? {
        // A server that does not know the command, or forbids it, has nothing to report.
        let Some(migrations) = reply.as_items() else { continue };
        for migration in migrations {
            let text = |name: &str| migration.field(name).and_then(Value::as_str).unwrap_or("?").to_owned();
            let (operation, state) = (text("operation").to_lowercase(), text("state"));
            let is_valkey = migration.field("slot_ranges").is_some();
            // Redis tries an import that has failed again by itself.
            let will_be_tried_again = !is_valkey && operation == "import" && state == "failed";
            if OVER.contains(&state.as_str()) && !will_be_tried_again {
                continue;
            }
            let either = |one: &str, other: &str| {
                let name = if migration.field(one).is_some() { one } else { other };
                text(name)
            };
            // Redis counts milliseconds.
            let number = |name: &str| {
                let number = migration.field(name).and_then(Value::as_int).unwrap_or(0);
                u64::try_from(number).unwrap_or(0)
            };
            let created = number("create_time");
            found.push(NativeSeen {
                name: either("name", "id"),
                operation,
                slots: either("slot_ranges", "slots"),
                source: either("source_node", "source"),
                target: either("target_node", "dest"),
                state,
                message: either("message", "last_error"),
                created_s: if is_valkey { created } else { created / 1_000 },
                remaining_bytes: number("remaining_repl_size"),
                is_valkey,
            });
        }
    }
    Ok(found)
}

/// The connections to a node whose names say that they belong to a job of ours.
async fn job_connections(link: &mut Link) -> Result<Vec<String>> {
    link.push(&[b"CLIENT", b"LIST"]);
    link.flush().await?;
    let reply = match link.replies_within(1, CLIENT_LIST_BYTES_MAX).await {
        Ok(mut replies) => replies.remove(0),
        Err(e) if e.is_too_large() => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    if let Some(error) = ServerError::of(&reply) {
        return match error.code {
            // If it is forbidden, the marks of open slots still show them.
            Code::NoPermission | Code::UnknownCommand => Ok(Vec::new()),
            _ => Err(link.server_error(error, b"CLIENT LIST")),
        };
    }
    let Some(text) = reply.as_bytes() else {
        return Err(link.unexpected("CLIENT LIST", &reply));
    };
    Ok(named_connections(&String::from_utf8_lossy(text)))
}

/// Whether a client has a name of this kind: the kind itself, or with more after a colon. Names of others may
/// begin alike.
pub(crate) fn is_called(name: &str, kind: &str) -> bool {
    name.strip_prefix(kind).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

fn named_connections(clients: &str) -> Vec<String> {
    let field = |line: &str, name: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    };
    let mut found: Vec<String> = clients
        .lines()
        .filter_map(|line| {
            let name = field(line, "name").filter(|name| is_called(name, JOB_CLIENT_NAME))?;
            let host = field(line, "addr")?;
            Some(format!("{name} from {}", host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host)))
        })
        .collect();
    // A job has several connections.
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_jobs_are_distinguished_from_others() {
        let clients = "id=3 addr=127.0.0.1:5000 laddr=127.0.0.1:6379 fd=8 name=whimbrel age=1\n\
                       id=4 addr=10.0.0.7:5001 laddr=127.0.0.1:6379 fd=9 name=whimbrel:job:17 age=1\n\
                       id=5 addr=10.0.0.7:5002 laddr=127.0.0.1:6379 fd=9 name=whimbrel:job:17 age=1\n\
                       id=6 addr=[::1]:5003 laddr=127.0.0.1:6379 fd=9 name= age=1\n";
        assert_eq!(named_connections(clients), ["whimbrel:job:17 from 10.0.0.7"]);
    }
}
