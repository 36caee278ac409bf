//! Takes jobs in and runs them in their turn: those that get into each other's way one after another, others
//! at the same time, also several sources to one target.
//!
//! Every job is in the [`Store`] before it is acknowledged. While it runs, a queue takes up all jobs of its
//! cluster in the folder that have not ended and that no process runs, whichever process made them: its own
//! from before a restart, those of other whimbrels that were killed, and, every 15 s, those that were
//! suspended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use whimbrel_core::migration::Phase;
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::Move;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::Link;
use whimbrel_engine::nodes::{ClusterView, KeyCounts, Node, key_counts};
use whimbrel_wire::value::Value;

use crate::clock::now_s;
use crate::job::View;
use crate::service::{self, Method, PARALLEL_MAX, Ready, Settings, Task};
use crate::steering::Request;
use crate::store::{Entry, Origin, Status, Store};
use crate::strangers::{self, Own, Wanted};
use crate::topology::Topology;

use super::migrations::{JobState, JobView};
use super::services::Jobs;

/// Jobs that may wait; more are refused.
pub const WAITING_MAX: usize = 1_000;

/// Jobs that are remembered only here: cancelled before their turn.
const FORGOTTEN_MAX: usize = 100;

/// How often the folder is looked through for jobs that no process runs.
const TAKE_UP_PERIOD: Duration = Duration::from_secs(15);

/// How long a stop waits for a moment at which a job may be left, and how often it looks.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
const LEAVE_POLL: Duration = Duration::from_millis(5);

/// How often the cluster is asked for changes that are not our own. Nothing reports them sooner: a failover
/// changes the epoch, but slots that move to the node with the highest one do not.
const POLL_PERIOD: Duration = Duration::from_millis(50);

/// If answers take long, polling takes half of the time at most.
const POLL_SHARE: u32 = 1;

/// How long the node that is asked may take, before another one is.
const POLL_WITHIN: Duration = Duration::from_millis(500);

/// For how long what others do in the cluster is shown as it was found.
const OTHERS_KEPT: Duration = Duration::from_secs(1);

/// How long a client that asks for jobs waits for that at most.
const OTHERS_WITHIN: Duration = Duration::from_millis(500);

/// How many questions of clients are passed on to nodes at once; others wait.
const ASKED_MAX: usize = 8;

/// For how long a connection is kept for the next question. Some clients ask one for each slot.
const LINK_KEPT: Duration = Duration::from_secs(5);

/// A job that runs.
struct Running {
    ways: Ways,
    cancel: CancellationToken,
    view: Arc<View>,
    task: AbortHandle,
}

/// What a job does with which nodes.
#[derive(Debug, Clone)]
struct Ways {
    source: NodeId,
    target: NodeId,
    /// Jobs of the same method may have one target, as on the command line; `None` if they may not.
    shared_as: Option<&'static str>,
}

impl Ways {
    fn of(task: &Task) -> Ways {
        Ways {
            source: task.source().clone(),
            target: task.target().clone(),
            shared_as: (!task.takes_target_alone()).then(|| task.method()),
        }
    }

    /// Whether both may run at the same time. The pause of a source would hold up the takeover of a job that
    /// has it for its target.
    fn go_beside(&self, other: &Ways) -> bool {
        let sources = [&self.source, &other.source];
        let one_target =
            self.target == other.target && (self.shared_as.is_none() || self.shared_as != other.shared_as);
        sources[0] != sources[1]
            && !sources.contains(&&self.target)
            && !sources.contains(&&other.target)
            && !one_target
    }
}

/// What became of a job that is not to run any more.
enum Withdrawn {
    /// The process that runs it here rolls it back.
    Cancelled,
    /// It had not begun; this is how it is remembered.
    TakenOut(Box<JobView>),
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Ready>,
    running: BTreeMap<String, Running>,
    /// Cancelled before their turn: their files are gone.
    forgotten: VecDeque<JobView>,
}

/// Jobs of one cluster, waiting and running.
pub struct Queue {
    deployment: Arc<Deployment>,
    store: Store,
    settings: Settings,
    state: Mutex<State>,
    /// Notified when a job has come.
    arrival: Notify,
    /// Held while jobs are taken in: two commands for the same slots are not both accepted.
    intake: tokio::sync::Mutex<()>,
    /// What clients get to know of the cluster.
    topology: Arc<Topology>,
    /// The cluster as it was last seen: how its nodes are reached.
    seen: Mutex<Arc<ClusterView>>,
    asked: Semaphore,
    /// What others do in the cluster.
    others: tokio::sync::Mutex<Option<Others>>,
    /// Connections over which questions were passed on, and when. As many as may be asked at once.
    links: Mutex<Vec<(NodeId, Link, Instant)>>,
}

impl Queue {
    /// A queue on a folder, for a cluster as it is now. Nothing is taken up before [`Queue::run`].
    ///
    /// # Errors
    /// Whatever keeps the cluster from being asked for its nodes.
    pub async fn open(deployment: Arc<Deployment>, store: Store, settings: Settings) -> Result<Arc<Queue>> {
        let view = crate::view_of(&deployment).await?;
        Ok(Arc::new(Queue {
            topology: Arc::new(Topology::new(view.table(&deployment.endpoint))),
            seen: Mutex::new(Arc::new(view)),
            asked: Semaphore::new(ASKED_MAX),
            links: Mutex::default(),
            others: tokio::sync::Mutex::default(),
            deployment,
            store,
            settings,
            state: Mutex::default(),
            arrival: Notify::new(),
            intake: tokio::sync::Mutex::default(),
        }))
    }

    /// Asks the cluster for changes until `stop`: the same node for as long as it answers. While none does,
    /// clients are shown what was seen last.
    async fn watch(&self, stop: &CancellationToken) {
        let (mut link, mut pause, mut is_known) = (None, POLL_PERIOD, false);
        while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
            let began = Instant::now();
            match stop.run_until_cancelled(self.poll_nodes(&mut link)).await {
                Some(Err(error)) if !is_known => {
                    tracing::warn!(%error, "the cluster cannot be asked for its nodes");
                    is_known = true;
                }
                Some(Err(_)) | None => {}
                Some(Ok(())) => is_known = false,
            }
            pause = POLL_PERIOD.max(began.elapsed() * POLL_SHARE);
        }
    }

    async fn poll_nodes(&self, link: &mut Option<Link>) -> Result<()> {
        let asked = link.as_ref().map(|open| open.address().clone());
        // Taken out: what does not answer in time is out of step.
        let view = match link.take() {
            Some(mut open) => match timeout(POLL_WITHIN, ClusterView::ask_with_replicas(&mut open)).await {
                Ok(Ok(view)) => Some((open, view)),
                _ => None,
            },
            None => None,
        };
        let (open, view) = match view {
            Some(answered) => answered,
            None => self.ask_another(asked.as_ref()).await?,
        };
        *link = Some(open);
        self.topology.see(view.table(&self.deployment.endpoint));
        *self.seen.lock() = Arc::new(view);
        Ok(())
    }

    /// Asks the node that was named, and those that were seen last, primaries first, one after another; the
    /// one that has just not answered comes last. If none of them answers, the addresses known from the
    /// beginning.
    async fn ask_another(&self, silent: Option<&Address>) -> Result<(Link, ClusterView)> {
        let seen = self.seen.lock().clone();
        let (primaries, replicas): (Vec<&Node>, Vec<&Node>) =
            seen.nodes.iter().filter(|node| node.is_usable()).partition(|node| node.is_primary());
        let nodes = primaries.into_iter().chain(replicas).map(|node| &node.address);
        let all = std::iter::once(&self.deployment.endpoint.address).chain(nodes);
        let (last, first): (Vec<&Address>, Vec<&Address>) = all.partition(|at| Some(*at) == silent);
        for address in first.into_iter().chain(last) {
            let asking = async {
                let mut link = self.deployment.open(address, 0).await?;
                let view = ClusterView::ask_with_replicas(&mut link).await?;
                Ok::<_, Error>((link, view))
            };
            if let Ok(Ok(answered)) = timeout(POLL_WITHIN, asking).await {
                return Ok(answered);
            }
        }
        crate::ask_anyone(&self.deployment).await
    }

    /// Takes up the jobs of the folder that no process runs: left by a restart, by another whimbrel that was
    /// killed, or suspended until something changes.
    async fn take_up(&self) {
        let cluster = self.deployment.endpoint.address.to_string();
        let entries = match self.entries().await {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!(%error, "the jobs cannot be listed");
                return;
            }
        };
        for entry in entries {
            let status = entry.status;
            // Those of our own count as running too: we have their journals open.
            if status.ended || entry.running || status.cluster != cluster {
                continue;
            }
            let taken_up = async {
                let mut ready = Ready::open(&self.store, &status.id)?;
                Ok::<_, Error>((!ready.give_up(&self.deployment).await?).then_some(ready))
            };
            match taken_up.await {
                Ok(Some(ready)) => self.lock().waiting.push_back(ready),
                Ok(None) => tracing::warn!(job = status.id, "a job has been given up"),
                Err(error) => tracing::warn!(job = status.id, %error, "a job cannot be taken up"),
            }
        }
    }

    /// What belongs to the jobs of the folder that have not ended.
    async fn own(&self) -> Result<Own> {
        let mut own = Own::default();
        for job in self.list().await?.into_iter().filter(|job| !job.state.is_final()) {
            own.slots = own.slots.union(&job.slots);
            own.nodes.extend([&job.source, &job.target].into_iter().filter_map(|id| id.parse().ok()));
        }
        Ok(own)
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        let store = self.store.clone();
        let listing = tokio::task::spawn_blocking(move || store.list()).await;
        listing.map_err(|e| Error::own("list jobs", e))?
    }

    /// Runs jobs until `stop`. Jobs that run then are left at the next moment at which writes are not paused
    /// and no slot is between two owners, within 10 s; they go on when a queue runs on the folder again.
    pub async fn run(&self, stop: &CancellationToken) {
        tokio::join!(self.work(stop), self.watch(stop));
    }

    async fn work(&self, stop: &CancellationToken) {
        let mut tasks = JoinSet::new();
        let mut again = tokio::time::interval(TAKE_UP_PERIOD);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                // The first time at once.
                _ = again.tick() => self.take_up().await,
                () = self.arrival.notified() => {}
                Some(_) = tasks.join_next() => {}
            }
            self.lock().running.retain(|_, running| !running.task.is_finished());
            self.begin(&mut tasks);
        }
        let ours: BTreeSet<String> = self.lock().running.keys().cloned().collect();
        let _ = timeout(LEAVE_TIMEOUT, self.leave()).await;
        tasks.shutdown().await;
        {
            let mut state = self.lock();
            state.running.clear();
            // Their journals are open as well.
            state.waiting.clear();
        }
        let _ = timeout(LEAVE_TIMEOUT, self.closed(&ours)).await;
    }

    /// Waits until no task has the journals of these jobs open any more: the work on a job ends after the
    /// task that began it, and until then the job looks as if it were running.
    async fn closed(&self, jobs: &BTreeSet<String>) {
        let is_open = |entry: &Entry| entry.running && jobs.contains(&entry.status.id);
        while self.entries().await.is_ok_and(|entries| entries.iter().any(is_open)) {
            tokio::time::sleep(LEAVE_POLL).await;
        }
    }

    /// Begins every waiting job that gets into the way of none that runs, or that came before it and waits
    /// still.
    fn begin(&self, tasks: &mut JoinSet<()>) {
        let mut state = self.lock();
        let mut before: Vec<Ways> = state.running.values().map(|r| r.ways.clone()).collect();
        let mut later = VecDeque::new();
        while let Some(ready) = state.waiting.pop_front() {
            let ways = Ways::of(&ready.task);
            let is_free = before.iter().all(|other| ways.go_beside(other));
            before.push(ways.clone());
            if !is_free || state.running.len() >= PARALLEL_MAX {
                later.push_back(ready);
                continue;
            }
            let (name, view, cancel) =
                (ready.task.id().to_string(), ready.view.clone(), CancellationToken::new());
            view.set_topology(self.topology.clone());
            let (deployment, token, job) = (self.deployment.clone(), cancel.clone(), name.clone());
            let task = tasks.spawn(async move {
                match service::run(&deployment, vec![ready], &token).await {
                    Ok(reports) => {
                        for report in reports {
                            tracing::info!(job, ending = ?report.ending, reason = report.reason, "a job has \
                                ended");
                        }
                    }
                    Err(error) => tracing::error!(job, %error, "a job had to stop"),
                }
            });
            state.running.insert(name, Running { ways, cancel, view, task });
        }
        state.waiting = later;
    }

    /// Ends jobs one by one, each at a moment at which it may be left.
    async fn leave(&self) {
        while !self.leave_some() {
            tokio::time::sleep(LEAVE_POLL).await;
        }
    }

    /// Ends those that may be left now; true if none is left.
    fn leave_some(&self) -> bool {
        let mut state = self.lock();
        state.running.retain(|_, running| {
            let may_be_left = running.view.summary().is_none_or(|s| !is_sealed(s.phase));
            if may_be_left {
                running.task.abort();
            }
            !may_be_left && !running.task.is_finished()
        });
        state.running.is_empty()
    }

    /// How many keys each source has in the slots that it is to give away.
    async fn count(&self, moves: &[Move], view: &ClusterView) -> Result<BTreeMap<NodeId, KeyCounts>> {
        let mut slots: BTreeMap<&NodeId, SlotSet> = BTreeMap::new();
        for planned in moves {
            let all = slots.entry(&planned.source).or_default();
            *all = all.union(&planned.slots);
        }
        let mut counts = BTreeMap::new();
        for (id, slots) in slots {
            let node = view.node(id).ok_or_else(|| Error::own("count keys", format!("node {id} is gone")))?;
            let mut link = self.deployment.open(&node.address, 0).await?;
            counts.insert(id.clone(), key_counts(&mut link, &slots).await?);
        }
        Ok(counts)
    }

    /// [`Jobs::submit`], for a user other than this process's.
    ///
    /// # Errors
    /// Likewise.
    pub async fn submit_for(&self, moves: Vec<Move>, origin: &Origin) -> Result<Vec<String>> {
        let _intake = self.intake.lock().await;
        if self.lock().waiting.len() + moves.len() > WAITING_MAX {
            return Err(Error::own("take in jobs", format!("more than {WAITING_MAX} would wait")));
        }
        let own = self.own().await?;
        if let Some(slot) = moves.iter().find_map(|m| m.slots.intersection(&own.slots).iter().next()) {
            return Err(Error::own("take in jobs", format!("slot {slot} is part of another one")));
        }
        strangers::refuse(&self.deployment, &Wanted::of(&moves), &own).await?;
        let counts = self.count(&moves, &self.view().await?).await?;
        let keys_of = |node: &NodeId, slot| counts.get(node).map_or(0, |c| u64::from(c.of(slot)));
        let (store, deployment, settings) = (&self.store, &self.deployment, &self.settings);
        let plans = match settings.method {
            Method::External => service::plan_handovers(deployment, &moves, settings, &keys_of).await?,
            Method::Native(_) | Method::Legacy => Vec::new(),
        };
        let ready =
            service::prepare_for(store, deployment, (&moves, plans), settings, keys_of, origin).await?;
        let names = ready.iter().map(|ready| ready.task.id().to_string()).collect();
        self.lock().waiting.extend(ready);
        self.arrival.notify_one();
        Ok(names)
    }

    /// Cancels a job that runs here or waits for its turn, or removes a job that has not begun. `None` if the
    /// process that runs it has to be asked.
    fn withdraw(&self, name: &str, known: Option<JobView>) -> Option<Withdrawn> {
        let mut state = self.lock();
        if let Some(running) = state.running.get(name) {
            running.cancel.cancel();
            return Some(Withdrawn::Cancelled);
        }
        let place = state.waiting.iter().position(|ready| ready.task.id().as_str() == name);
        let ready = match place {
            Some(place) => state.waiting.remove(place),
            // No process has taken it up yet, or another process runs it: then its journal cannot be opened.
            None => Ready::open(&self.store, name).ok(),
        }?;
        match known {
            Some(job) if job.state == JobState::Connecting && is_fresh(&ready.task) => {
                let message = "cancelled before its turn".to_owned();
                let job = JobView { state: JobState::Cancelled, message, updated_s: now_s(), ..job };
                Some(Withdrawn::TakenOut(Box::new(job)))
            }
            _ => {
                // What it has begun is rolled back in its turn.
                ready.cancel();
                state.waiting.push_front(ready);
                self.arrival.notify_one();
                Some(Withdrawn::Cancelled)
            }
        }
    }

    /// A connection to a node that was used not long ago.
    fn kept_link(&self, id: &NodeId, address: &Address) -> Option<Link> {
        let mut links = self.links.lock();
        links.retain(|(_, _, used)| used.elapsed() < LINK_KEPT);
        let place = links.iter().position(|(node, link, _)| node == id && link.address() == address)?;
        Some(links.swap_remove(place).1)
    }

    fn keep_link(&self, id: &NodeId, link: Link) {
        let mut links = self.links.lock();
        links.push((id.clone(), link, Instant::now()));
        if links.len() > ASKED_MAX {
            links.remove(0);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Phases in which writes are paused, or slots are between two owners: or may be, while that is looked into
/// or undone.
fn is_sealed(phase: &str) -> bool {
    matches!(
        phase,
        "pausing"
            | "draining"
            | "comparing"
            | "fencing"
            | "taking-over"
            | "releasing"
            | "giving-back"
            | "observing"
            | "rolling-back"
    )
}

/// What others do in the cluster.
struct Others {
    /// When the nodes were asked last, and when all of them answered last.
    asked: Instant,
    heard: Instant,
    found: Vec<JobView>,
}

impl Others {
    /// As it was found, and with the fact that the nodes do not answer any more, if so.
    fn shown(&self) -> Vec<JobView> {
        let silent_s = self.asked.saturating_duration_since(self.heard).as_secs();
        let as_it_was = |job: &JobView| match silent_s {
            0 => job.clone(),
            _ => JobView {
                message: format!("this is how it stood {silent_s} s ago: a node does not answer"),
                ..job.clone()
            },
        };
        self.found.iter().map(as_it_was).collect()
    }
}

impl Jobs for Queue {
    async fn view(&self) -> Result<ClusterView> {
        crate::view_of(&self.deployment).await
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    async fn ask(&self, node: Option<&NodeId>, words: &[&[u8]]) -> Result<Value> {
        let _place = self.asked.acquire().await.map_err(|e| Error::own("ask a node", e))?;
        let seen = self.seen.lock().clone();
        let id = node.unwrap_or(&seen.myself);
        let node = seen.node(id).ok_or_else(|| Error::own("ask a node", format!("node {id} is gone")))?;
        // The server may have closed it meanwhile: then another one is opened, and asked again.
        if let Some(mut link) = self.kept_link(id, &node.address)
            && let Ok(reply) = link.ask(words).await
        {
            self.keep_link(id, link);
            return Ok(reply);
        }
        let mut link = self.deployment.open(&node.address, 0).await?;
        let reply = link.ask(words).await?;
        self.keep_link(id, link);
        Ok(reply)
    }

    async fn submit(&self, moves: Vec<Move>) -> Result<Vec<String>> {
        self.submit_for(moves, &Origin::default()).await
    }

    async fn list(&self) -> Result<Vec<JobView>> {
        let entries = self.entries().await?;
        let cluster = self.deployment.endpoint.address.to_string();
        let ours = entries.into_iter().filter(|entry| entry.status.cluster == cluster);
        let mut jobs: Vec<JobView> = ours.filter_map(|entry| show(entry.status)).collect();
        jobs.extend(self.lock().forgotten.iter().cloned());
        jobs.sort_by(|a, b| (b.created_s, &a.name).cmp(&(a.created_s, &b.name)));
        Ok(jobs)
    }

    async fn others(&self) -> Result<Vec<JobView>> {
        // Clients ask again and again while something moves.
        let mut others = self.others.lock().await;
        if let Some(known) = others.as_ref().filter(|known| known.asked.elapsed() < OTHERS_KEPT) {
            return Ok(known.shown());
        }
        let own: Vec<Status> = self.entries().await?.into_iter().map(|entry| entry.status).collect();
        let asked = Instant::now();
        let known = match timeout(OTHERS_WITHIN, strangers::others(&self.deployment, &own)).await {
            Ok(found) => {
                let found = found?.into_iter().filter_map(show).collect();
                Others { asked: Instant::now(), heard: Instant::now(), found }
            }
            // A node that does not answer holds up no client.
            Err(_) => match others.take() {
                Some(known) => Others { asked: Instant::now(), ..known },
                None => Others { asked: Instant::now(), heard: asked, found: Vec::new() },
            },
        };
        let shown = known.shown();
        *others = Some(known);
        Ok(shown)
    }

    async fn cancel(&self, name: &str) -> Result<()> {
        let known = self.list().await?.into_iter().find(|job| job.name == name);
        let job = match self.withdraw(name, known) {
            None => return service::ask(&self.store, name, Request::Cancel, "cancel").await.map(drop),
            Some(Withdrawn::Cancelled) => return Ok(()),
            Some(Withdrawn::TakenOut(job)) => *job,
        };
        self.store.remove(name)?;
        let mut state = self.lock();
        state.forgotten.push_back(job);
        if state.forgotten.len() > FORGOTTEN_MAX {
            state.forgotten.pop_front();
        }
        Ok(())
    }
}

/// Whether the journal agrees that nothing was begun.
fn is_fresh(task: &Task) -> bool {
    match task {
        Task::External(record) => *record.job.phase() == Phase::Queued,
        Task::Plain(plain) => !plain.begun,
    }
}

/// A job of the folder as the server shows it; `None` for one whose slots cannot be read.
fn show(status: Status) -> Option<JobView> {
    Some(JobView {
        slots: status.slots.parse().ok()?,
        name: status.id,
        source: status.source,
        target: status.target,
        created_s: status.created_s,
        updated_s: status.updated_s,
        state: JobState::of_phase(&status.phase),
        message: status.message,
        remaining_bytes: status.remaining_bytes,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use whimbrel_core::slot::SlotSet;

    use super::{JobView, Others, Ways};
    use crate::daemon::migrations::JobState;
    use crate::scene::id;

    #[test]
    fn moves_of_others_say_how_old_they_are_while_a_node_does_not_answer() {
        let job = JobView {
            name: "m".to_owned(),
            slots: SlotSet::new(),
            source: String::new(),
            target: String::new(),
            created_s: 1,
            updated_s: 1,
            state: JobState::Replicating,
            message: "as it said".to_owned(),
            remaining_bytes: 0,
        };
        let heard = Instant::now();
        let shown = |after_s| {
            let asked = heard + Duration::from_secs(after_s);
            Others { asked, heard, found: vec![job.clone()] }.shown().remove(0).message
        };
        assert_eq!(shown(0), "as it said");
        assert_eq!(shown(7), "this is how it stood 7 s ago: a node does not answer");
    }

    #[test]
    fn jobs_of_several_sources_have_one_target_at_the_same_time() {
        let ways = |source, target, shared_as| Ways { source: id(source), target: id(target), shared_as };
        let external = Some("external");
        let first = ways(0, 1, external);
        assert!(first.go_beside(&ways(2, 1, external)), "one target");
        assert!(first.go_beside(&ways(2, 3, None)), "no node in common");
        for other in [
            ways(0, 2, external),
            ways(2, 0, external),
            ways(1, 2, external),
            ways(2, 1, Some("native")),
            ways(2, 1, None),
        ] {
            assert!(!first.go_beside(&other), "{other:?}");
            assert!(!other.go_beside(&first), "{other:?}");
        }
    }
}
