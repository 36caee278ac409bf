//! One native migration: start, look, cancel.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_wire::value::Value;

use crate::deployment::Deployment;
use crate::endpoint::{Address, Endpoint};
use crate::error::{Error, ErrorKind, Result, Side};
use crate::link::{Link, LinkOptions};
use crate::nodes::{ClusterView, Node, key_counts};

use super::entry::Entry;
use super::failure::is_known_to_peer;
use super::state::{NativePhase, NativeState};
use super::support::NativeKind;

/// How often the two nodes are asked again while they should come to agree.
const AGREE_POLL: Duration = Duration::from_millis(20);

/// How many things (slots, migrations) an error lists.
const LISTED_MAX: usize = 8;

/// How many slots are asked how many keys have come to them.
const COUNTED_MAX: usize = 256;

/// One of the two nodes of a migration: its name and where to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name in the cluster.
    pub id: NodeId,
    /// Where to connect to, the address map applied.
    pub address: Address,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.id.short(), self.address)
    }
}

/// The owner of the slots, by the word of both nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NativeOwner {
    /// Both say: the source, all of them.
    Source,
    /// Both say: the target, all of them.
    Target,
    /// They do not agree, or neither has all of them.
    Unsettled,
}

/// What was found of a migration that was started before.
#[derive(Debug)]
pub enum NativeFound {
    /// It is under way.
    Running(Box<NativeMigration>),
    /// The target has the slots.
    Done,
    /// Neither.
    Nothing,
}

/// What became of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NativeCancel {
    /// The source keeps the slots, and both nodes agree on it.
    Cancelled,
    /// The target had taken them already, and both nodes agree on it.
    TooLate,
}

/// A native migration that was started, and the way to its two nodes.
///
/// Dropping it leaves the migration to the servers, which go on by themselves. Every method may be dropped
/// half-way: the connection it used is then thrown away, and the next call opens another.
#[derive(Debug)]
pub struct NativeMigration {
    nodes: Nodes,
    slots: SlotSet,
    name: String,
}

impl NativeMigration {
    /// Starts to move `slots` from `source` to `target`, which must both be primaries, with all slots at the
    /// source. If the reply to the command is lost, the server's own list shows whether it was carried out.
    ///
    /// # Errors
    /// `Unfit`, with nothing started, if the slots are elsewhere, if a slot of either node is marked by hand,
    /// or if the node that drives it is at work on another migration: with Valkey the source, since
    /// cancelling ends all of its exports; with Redis either, since a node has one at a time.
    /// [`is_busy`](Self::is_busy) distinguishes that one. `Server` if the server refuses for a reason of its
    /// own.
    pub async fn start(
        deployment: &Deployment,
        kind: NativeKind,
        source: &Peer,
        target: &Peer,
        slots: &SlotSet,
    ) -> Result<NativeMigration> {
        let mut nodes = Nodes::new(deployment, kind, source, target);
        nodes.check_ground(slots).await?;
        let known: HashSet<String> = nodes.check_idle().await?.into_iter().map(|e| e.name).collect();
        let is_new = |nodes: &Nodes, e: &Entry| !known.contains(&e.name) && nodes.is_same_job(e, slots);
        let started = nodes.send_start(slots).await;
        let name = match started {
            Ok(Some(id)) => Some(id),
            Ok(None) => {
                // The lists begin with the newest.
                let entries = nodes.list(nodes.driver()).await?;
                entries.into_iter().find(|e| is_new(&nodes, e)).map(|e| e.name)
            }
            Err(e) if e.is_link() => {
                // Whether it was carried out is unknown; the list knows.
                match nodes.list(nodes.driver()).await {
                    Ok(entries) => match entries.into_iter().find(|e| is_new(&nodes, e)) {
                        Some(entry) => Some(entry.name),
                        None => return Err(e),
                    },
                    Err(_) => return Err(e),
                }
            }
            Err(e) => return Err(nodes.explain_marks(e).await),
        };
        let Some(name) = name else {
            let what = "the server accepted the migration but does not list it".to_owned();
            return Err(nodes.error(nodes.driver(), kind.command(), ErrorKind::Unexpected(what)));
        };
        Ok(NativeMigration { nodes, slots: slots.clone(), name })
    }

    /// Looks for what a call of [`NativeMigration::start`] with the same arguments has left: for a job that
    /// was cut off and goes on.
    ///
    /// # Errors
    /// As [`NativeMigration::poll`] and [`NativeMigration::owner`].
    pub async fn find(
        deployment: &Deployment,
        kind: NativeKind,
        source: &Peer,
        target: &Peer,
        slots: &SlotSet,
    ) -> Result<NativeFound> {
        let mut nodes = Nodes::new(deployment, kind, source, target);
        let entries = nodes.list(nodes.driver()).await?;
        let running = entries.into_iter().find(|e| e.is_active() && nodes.is_same_job(e, slots));
        if let Some(entry) = running {
            let slots = slots.clone();
            return Ok(NativeFound::Running(Box::new(NativeMigration { nodes, slots, name: entry.name })));
        }
        Ok(match nodes.owner(slots).await? {
            NativeOwner::Target => NativeFound::Done,
            _ => NativeFound::Nothing,
        })
    }

    /// Cancels what is under way of these slots, by either node's list, and asks which node has them. If a
    /// node still works on it, the slots count as unsettled.
    ///
    /// # Errors
    /// As [`NativeMigration::find`] and [`NativeMigration::cancel`].
    pub(super) async fn end(
        deployment: &Deployment,
        kind: NativeKind,
        source: &Peer,
        target: &Peer,
        slots: &SlotSet,
        timeout_ms: u64,
    ) -> Result<NativeOwner> {
        if let NativeFound::Running(mut migration) =
            NativeMigration::find(deployment, kind, source, target, slots).await?
        {
            migration.cancel(timeout_ms).await?;
        }
        let mut nodes = Nodes::new(deployment, kind, source, target);
        for side in [Side::Source, Side::Target] {
            let listed = nodes.list(side).await?;
            let (source, target) = (&nodes.source.peer.id, &nodes.target.peer.id);
            if listed.iter().any(|e| {
                e.is_active()
                    && e.slots == *slots
                    && e.source == source.as_str()
                    && e.target == target.as_str()
            }) {
                return Ok(NativeOwner::Unsettled);
            }
        }
        nodes.owner(slots).await
    }

    /// How many keys have come to the target, as far as it reports that: Valkey counts those of slots that it
    /// takes in, and is asked about some of these; Redis hides them, but counts them among all of its keys.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub(super) async fn arrived(&mut self) -> Result<u64> {
        match self.nodes.kind {
            NativeKind::Redis84 => {
                let keys = self.nodes.call(Side::Target, &[b"DBSIZE"]).await?;
                Ok(keys.as_int().and_then(|n| u64::try_from(n).ok()).unwrap_or(0))
            }
            NativeKind::Valkey9 => {
                let step = self.slots.len().div_ceil(COUNTED_MAX).max(1);
                let some: SlotSet = self.slots.iter().step_by(step).collect();
                let (mut link, end) = self.nodes.link(Side::Target).await?;
                let counts = key_counts(&mut link, &some).await?;
                end.link = Some(link);
                Ok(counts.sum(&some))
            }
        }
    }

    /// True if [`NativeMigration::start`] failed only because another migration is under way on one of the
    /// nodes.
    pub fn is_busy(error: &Error) -> bool {
        matches!(&error.kind, ErrorKind::Unfit(what) if what.starts_with(BUSY))
    }

    /// The server's name for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The slots that it moves.
    pub fn slots(&self) -> &SlotSet {
        &self.slots
    }

    /// Which built-in migration it is.
    pub fn kind(&self) -> NativeKind {
        self.nodes.kind
    }

    /// Asks the node that drives it how far it is. After a failure that only the other node knows the reason
    /// of, that one is asked too.
    ///
    /// # Errors
    /// As [`Link::open`] and [`Link::call`] for the driving node. A failed call may be repeated.
    pub async fn poll(&mut self) -> Result<NativeState> {
        let driver = self.nodes.driver();
        let entry = match self.nodes.kind {
            NativeKind::Valkey9 => self.nodes.entry(driver, &self.name).await?,
            NativeKind::Redis84 => {
                let command: [&[u8]; 5] = [b"CLUSTER", b"MIGRATION", b"STATUS", b"ID", self.name.as_bytes()];
                let reply = self.nodes.call(driver, &command).await?;
                self.nodes.read(driver, &reply)?.into_iter().next()
            }
        };
        let Some(entry) = entry else {
            let name = self.name.clone();
            return Ok(NativeState { phase: NativePhase::Lost, name, ..NativeState::default() });
        };
        let mut state = entry.state();
        if state.phase == NativePhase::Failed && is_known_to_peer(self.nodes.kind, &state.message) {
            // Its word is a courtesy: the failure stands without it.
            if let Ok(Some(at_target)) = self.nodes.entry(Side::Target, &self.name).await
                && !at_target.message.is_empty()
                && !at_target.is_active()
            {
                state.message = at_target.message;
            }
        }
        Ok(state)
    }

    /// Which node owns the slots, as both nodes say now.
    ///
    /// # Errors
    /// As [`ClusterView::ask`] on either node.
    pub async fn owner(&mut self) -> Result<NativeOwner> {
        self.nodes.owner(&self.slots).await
    }

    /// Whether the target says that all the slots are its own: what counts once the source cannot be asked.
    ///
    /// # Errors
    /// As [`ClusterView::ask`] on the target.
    pub async fn is_taken(&mut self) -> Result<bool> {
        let view = self.nodes.view(Side::Target).await?;
        Ok(contains(&view.me().slots, &self.slots))
    }

    /// Waits until both nodes name the same owner of all slots, for at most `timeout_ms`; a node that cannot
    /// be asked is asked again.
    ///
    /// # Errors
    /// The last failure to ask, if time is up.
    pub async fn settle(&mut self, timeout_ms: u64) -> Result<NativeOwner> {
        let deadline = Instant::now() + Duration::from_millis(timeout_ms);
        loop {
            let owner = self.owner().await;
            let is_settled = matches!(owner, Ok(NativeOwner::Source | NativeOwner::Target));
            if is_settled || Instant::now() >= deadline {
                return owner;
            }
            sleep(AGREE_POLL).await;
        }
    }

    /// Waits until neither node works on the migration any more, for at most `timeout_ms`: the target first
    /// removes what it has received. True if that is so.
    ///
    /// # Errors
    /// As [`NativeMigration::poll`], for either node.
    pub async fn quiesce(&mut self, timeout_ms: u64) -> Result<bool> {
        let deadline = Instant::now() + Duration::from_millis(timeout_ms);
        loop {
            let mut active = false;
            for side in [Side::Source, Side::Target] {
                let entry = self.nodes.entry(side, &self.name).await?;
                active |= entry.is_some_and(|e| e.is_active());
            }
            if !active || Instant::now() >= deadline {
                return Ok(!active);
            }
            sleep(AGREE_POLL).await;
        }
    }

    /// Cancels it, and waits until both nodes agree on the owner of the slots: the migration may have
    /// succeeded in the last moment. If it has ended already, it is only looked at.
    ///
    /// Valkey can only cancel *all* exports of the source. If others are under way there, nothing is
    /// cancelled.
    ///
    /// # Errors
    /// `Unfit` if other exports of the source would be cancelled with it, or if the nodes do not agree within
    /// `timeout_ms`; as [`NativeMigration::poll`].
    pub async fn cancel(&mut self, timeout_ms: u64) -> Result<NativeCancel> {
        match self.nodes.kind {
            NativeKind::Valkey9 => self.cancel_exports().await?,
            NativeKind::Redis84 => {
                let command: [&[u8]; 5] = [b"CLUSTER", b"MIGRATION", b"CANCEL", b"ID", self.name.as_bytes()];
                self.nodes.call(Side::Target, &command).await?;
            }
        }
        self.quiesce(timeout_ms).await?;
        match self.settle(timeout_ms).await? {
            NativeOwner::Source => Ok(NativeCancel::Cancelled),
            NativeOwner::Target => Ok(NativeCancel::TooLate),
            NativeOwner::Unsettled => Err(self.unsettled("cancel a slot migration")),
        }
    }

    async fn cancel_exports(&mut self) -> Result<()> {
        let entries = self.nodes.list(Side::Source).await?;
        let active: Vec<&Entry> = entries.iter().filter(|e| e.is_export && e.is_active()).collect();
        if !active.iter().any(|e| e.name == self.name) {
            return Ok(());
        }
        let others: Vec<String> =
            active.iter().filter(|e| e.name != self.name).map(|e| e.describe()).collect();
        if !others.is_empty() {
            let what = format!(
                "CLUSTER CANCELSLOTMIGRATIONS would also cancel {}, which we did not start",
                listed(&others)
            );
            return Err(self
                .nodes
                .error(Side::Source, "cancel a slot migration", ErrorKind::Unfit(what))
                .with_remedy("wait until those have ended, or send the command yourself"));
        }
        let reply = self.nodes.ask(Side::Source, &[b"CLUSTER", b"CANCELSLOTMIGRATIONS"]).await?;
        match reply.as_error() {
            // It ended between the two commands.
            Some(text) if text.ends_with(b"No migrations ongoing") => Ok(()),
            _ => self.nodes.check(Side::Source, reply, b"CLUSTER CANCELSLOTMIGRATIONS").map(|_| ()),
        }
    }

    /// How long the source says that it paused writes; only Redis reports it.
    pub(super) async fn pause_ms(&mut self) -> Option<u64> {
        match self.nodes.kind {
            NativeKind::Valkey9 => None,
            NativeKind::Redis84 => self.nodes.entry(Side::Source, &self.name).await.ok()??.pause_ms,
        }
    }

    /// The error for nodes that do not agree.
    pub(super) fn unsettled(&self, tried: &str) -> Error {
        let (source, target) = (&self.nodes.source.peer, &self.nodes.target.peer);
        let what = format!("{source} and {target} do not agree on who owns slots {}", self.slots);
        self.nodes
            .error(Side::Source, tried, ErrorKind::Unfit(what))
            .with_remedy("see that the nodes can reach each other, then look again with whimbrel status")
    }

    /// An error about one of the two nodes.
    pub(super) fn error(&self, side: Side, tried: &str, what: String) -> Error {
        self.nodes.error(side, tried, ErrorKind::Unfit(what))
    }
}

/// How the error for a node that is at work on another migration begins.
const BUSY: &str = "another slot migration is under way";

/// The two nodes, with a connection to each that is opened when it is needed.
#[derive(Debug)]
struct Nodes {
    kind: NativeKind,
    source: PeerLink,
    target: PeerLink,
}

#[derive(Debug)]
struct PeerLink {
    peer: Peer,
    endpoint: Arc<Endpoint>,
    options: LinkOptions,
    /// Taken out while it is in use, so that a call that was dropped half-way leaves none behind that is out
    /// of step.
    link: Option<Link>,
}

impl Nodes {
    fn new(deployment: &Deployment, kind: NativeKind, source: &Peer, target: &Peer) -> Nodes {
        let end = |side: Side, peer: &Peer| PeerLink {
            peer: peer.clone(),
            // Both belong to one deployment; an error says which of the two it is about.
            endpoint: Arc::new(Endpoint { side, ..(*deployment.endpoint).clone() }),
            options: LinkOptions { db: 0, ..deployment.options },
            link: None,
        };
        Nodes { kind, source: end(Side::Source, source), target: end(Side::Target, target) }
    }

    /// Whether an entry of the driving node is about the same slots between the same nodes.
    fn is_same_job(&self, entry: &Entry, slots: &SlotSet) -> bool {
        entry.is_export == (self.kind == NativeKind::Valkey9)
            && entry.slots == *slots
            && entry.source == self.source.peer.id.as_str()
            && entry.target == self.target.peer.id.as_str()
    }

    /// The node that gets the command to start, and that knows most.
    fn driver(&self) -> Side {
        match self.kind {
            NativeKind::Valkey9 => Side::Source,
            NativeKind::Redis84 => Side::Target,
        }
    }

    fn end(&self, side: Side) -> &PeerLink {
        match side {
            Side::Target => &self.target,
            _ => &self.source,
        }
    }

    async fn link(&mut self, side: Side) -> Result<(Link, &mut PeerLink)> {
        let end = match side {
            Side::Target => &mut self.target,
            _ => &mut self.source,
        };
        let link = match end.link.take() {
            Some(link) => link,
            None => Link::open(&end.endpoint, &end.peer.address, end.options).await?,
        };
        Ok((link, end))
    }

    async fn ask(&mut self, side: Side, command: &[&[u8]]) -> Result<Value> {
        let (mut link, end) = self.link(side).await?;
        let reply = link.ask(command).await?;
        end.link = Some(link);
        Ok(reply)
    }

    async fn call(&mut self, side: Side, command: &[&[u8]]) -> Result<Value> {
        let reply = self.ask(side, command).await?;
        self.check(side, reply, &command[..command.len().min(3)].join(&b' '))
    }

    /// Turns an error reply into an error.
    fn check(&self, side: Side, reply: Value, command: &[u8]) -> Result<Value> {
        match crate::error::ServerError::of(&reply) {
            None => Ok(reply),
            Some(e) => Err(self.error(side, &String::from_utf8_lossy(command), ErrorKind::Server(e))),
        }
    }

    async fn view(&mut self, side: Side) -> Result<ClusterView> {
        let (mut link, end) = self.link(side).await?;
        let view = ClusterView::ask(&mut link).await?;
        end.link = Some(link);
        Ok(view)
    }

    fn read(&self, side: Side, reply: &Value) -> Result<Vec<Entry>> {
        Entry::read_all(self.kind, reply).ok_or_else(|| {
            let what = "a list of slot migrations in a form that is not known".to_owned();
            self.error(side, "list slot migrations", ErrorKind::Unexpected(what))
        })
    }

    /// What a node lists, the newest first.
    async fn list(&mut self, side: Side) -> Result<Vec<Entry>> {
        let command: &[&[u8]] = match self.kind {
            NativeKind::Valkey9 => &[b"CLUSTER", b"GETSLOTMIGRATIONS"],
            NativeKind::Redis84 => &[b"CLUSTER", b"MIGRATION", b"STATUS", b"ALL"],
        };
        let reply = self.call(side, command).await?;
        self.read(side, &reply)
    }

    async fn entry(&mut self, side: Side, name: &str) -> Result<Option<Entry>> {
        Ok(self.list(side).await?.into_iter().find(|e| e.name == name))
    }

    /// Sends the command that starts it. Redis answers the name of its task.
    async fn send_start(&mut self, slots: &SlotSet) -> Result<Option<String>> {
        let mut words: Vec<String> = match self.kind {
            NativeKind::Valkey9 => vec!["CLUSTER".into(), "MIGRATESLOTS".into(), "SLOTSRANGE".into()],
            NativeKind::Redis84 => vec!["CLUSTER".into(), "MIGRATION".into(), "IMPORT".into()],
        };
        for range in slots.ranges() {
            words.extend([range.start().to_string(), range.end().to_string()]);
        }
        if self.kind == NativeKind::Valkey9 {
            words.extend(["NODE".to_owned(), self.target.peer.id.to_string()]);
        }
        let command: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
        let driver = self.driver();
        let reply = self.ask(driver, &command).await?;
        let reply = self.check(driver, reply, self.kind.command().as_bytes())?;
        match self.kind {
            NativeKind::Valkey9 => Ok(None),
            NativeKind::Redis84 => match reply.as_str() {
                Some(id) => Ok(Some(id.to_owned())),
                None => {
                    let what = "no task id".to_owned();
                    Err(self.error(driver, self.kind.command(), ErrorKind::Unexpected(what)))
                }
            },
        }
    }

    /// Both are primaries, the source has all slots, and none is marked by hand. The servers check all this
    /// too; here it is found before anything is started, and named.
    async fn check_ground(&mut self, slots: &SlotSet) -> Result<()> {
        let tried = self.kind.command();
        for side in [Side::Source, Side::Target] {
            let view = self.view(side).await?;
            let (me, peer) = (view.me(), &self.end(side).peer);
            if me.id != peer.id {
                let what = format!("this is node {}, not {}", me.id.short(), peer.id.short());
                return Err(self
                    .error(side, tried, ErrorKind::Unfit(what))
                    .with_remedy("look at the cluster, then run the command again"));
            }
            if !me.is_primary() {
                let what = "this node is a replica now".to_owned();
                return Err(self
                    .error(side, tried, ErrorKind::Unfit(what))
                    .with_remedy("look at the cluster, then run the command again"));
            }
            if let Some(marks) = describe_marks(me) {
                return Err(self.error(side, tried, ErrorKind::Unfit(marks)).with_remedy(MARKS_REMEDY));
            }
            let missing = slots.difference(&me.slots);
            if side == Side::Source && !missing.is_empty() {
                let what = format!("slots {missing} are not at this node");
                return Err(self
                    .error(side, tried, ErrorKind::Unfit(what))
                    .with_remedy("look at the cluster, then run the command again"));
            }
        }
        Ok(())
    }

    /// Neither node may be at work on something that a cancellation of ours would hit, or that would refuse
    /// ours. Returns what the driving node lists.
    async fn check_idle(&mut self) -> Result<Vec<Entry>> {
        let driver = self.driver();
        let listed_there = self.list(driver).await?;
        // Imports of a Valkey source go on by themselves and are not hit by a cancellation of ours.
        let in_the_way = |e: &&Entry| e.is_active() && (self.kind == NativeKind::Redis84 || e.is_export);
        let mut busy: Vec<String> = listed_there.iter().filter(in_the_way).map(Entry::describe).collect();
        let mut side = driver;
        if busy.is_empty() && self.kind == NativeKind::Redis84 {
            side = Side::Source;
            busy = self.list(side).await?.iter().filter(|e| e.is_active()).map(Entry::describe).collect();
        }
        if busy.is_empty() {
            return Ok(listed_there);
        }
        let what = format!("{BUSY} on this node: {}", listed(&busy));
        Err(self
            .error(side, self.kind.command(), ErrorKind::Unfit(what))
            .with_remedy("wait until it has ended, or cancel it, then start again"))
    }

    /// If a server refused because of marks that were set after we looked, says which.
    async fn explain_marks(&mut self, error: Error) -> Error {
        let is_marks = error
            .server()
            .is_some_and(|e| e.text.contains("being manually") || e.text.contains("must be STABLE"));
        if !is_marks {
            return error;
        }
        for side in [Side::Source, Side::Target] {
            let marks = self.view(side).await.ok().and_then(|view| describe_marks(view.me()));
            if let Some(marks) = marks {
                return self
                    .error(side, self.kind.command(), ErrorKind::Unfit(marks))
                    .with_remedy(MARKS_REMEDY);
            }
        }
        error.with_remedy(MARKS_REMEDY)
    }

    async fn owner(&mut self, slots: &SlotSet) -> Result<NativeOwner> {
        let (source, target) = (self.source.peer.id.clone(), self.target.peer.id.clone());
        let views = [self.view(Side::Source).await?, self.view(Side::Target).await?];
        let all_see = |owner: &NodeId| {
            views.iter().all(|view| view.node(owner).is_some_and(|node| contains(&node.slots, slots)))
        };
        Ok(match (all_see(&source), all_see(&target)) {
            (true, false) => NativeOwner::Source,
            (false, true) => NativeOwner::Target,
            _ => NativeOwner::Unsettled,
        })
    }

    fn error(&self, side: Side, tried: &str, kind: ErrorKind) -> Error {
        Error::new(side, self.end(side).peer.address.to_string(), tried, kind)
    }
}

/// What to do about marks.
const MARKS_REMEDY: &str = "native migration needs a node without marked slots: finish or close them (see \
    whimbrel repair), or use another method";

fn contains(all: &SlotSet, some: &SlotSet) -> bool {
    some.difference(all).is_empty()
}

/// The slots that a node has marked by hand; `None` if there are none.
fn describe_marks(me: &Node) -> Option<String> {
    let slots = |marks: &[(Slot, NodeId)]| marks.iter().map(|(slot, _)| *slot).collect::<SlotSet>();
    let (importing, migrating) = (slots(&me.importing), slots(&me.migrating));
    let text = [("IMPORTING", importing), ("MIGRATING", migrating)]
        .into_iter()
        .filter(|(_, slots)| !slots.is_empty())
        .map(|(mark, slots)| format!("slots {slots} are marked {mark} by hand"))
        .collect::<Vec<_>>()
        .join(", ");
    (!text.is_empty()).then_some(text)
}

fn listed(items: &[String]) -> String {
    let mut text = items.iter().take(LISTED_MAX).cloned().collect::<Vec<_>>().join("; ");
    if items.len() > LISTED_MAX {
        text.push_str(&format!("; and {} more", items.len() - LISTED_MAX));
    }
    text
}
