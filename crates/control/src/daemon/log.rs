//! What becomes of the jobs and the fleet of a daemon, reported as it happens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use whimbrel_core::node::NodeId;

use super::migrations::{JobState, JobView};
use super::queue::Queue;
use super::services::Jobs;
use super::shown::Shown;
use crate::fleet::news::{describe, news};
use crate::fleet::{Fleet, FleetStatus, Role};

/// How often to check which jobs have begun and which have ended.
const POLL_PERIOD: Duration = Duration::from_millis(500);

/// What a person may know of a job's way.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    /// It waits for something to change, and says what.
    Held(String),
    Ended,
}

impl Stage {
    fn of(job: &JobView) -> Stage {
        match job.state {
            state if state.is_final() => Stage::Ended,
            JobState::Connecting => Stage::Waiting,
            JobState::WaitingToSnapshot if !job.message.is_empty() => Stage::Held(job.message.clone()),
            _ => Stage::Running,
        }
    }
}

/// How a line is reported: for people, and as JSON.
type PrintLine = Box<dyn Fn(&str, &Value) + Send + Sync>;

/// Reports what becomes of jobs and of a fleet, as lines for people and as JSON.
pub struct Log {
    print_line: PrintLine,
    /// The jobs that are listed, as they were last reported.
    seen: BTreeMap<String, Stage>,
    /// The ports of nodes, as they were last reported.
    ports: BTreeMap<NodeId, u16>,
    /// For clients that ask over HTTP.
    shown: Arc<Shown>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Log {
    /// Reports with `say`.
    pub fn new(print_line: impl Fn(&str, &Value) + Send + Sync + 'static) -> Log {
        Log {
            print_line: Box::new(print_line),
            seen: BTreeMap::new(),
            ports: BTreeMap::new(),
            shown: Arc::default(),
        }
    }

    /// Its state, for clients that ask over HTTP.
    pub fn shown(&self) -> Arc<Shown> {
        self.shown.clone()
    }

    /// What ended before is none of this run's.
    pub fn begin(&mut self, jobs: Vec<JobView>) {
        let ended = jobs.into_iter().filter(|job| job.state.is_final());
        self.seen.extend(ended.map(|job| (job.name, Stage::Ended)));
    }

    /// Reports until `stop`.
    pub async fn follow(&mut self, queue: Option<&Queue>, fleet: Option<&Fleet>, stop: &CancellationToken) {
        let mut before = FleetStatus::default();
        let mut role = fleet.map(Fleet::role);
        loop {
            if let Some(queue) = queue {
                self.poll_ports(queue);
            }
            if let Some(fleet) = fleet {
                self.poll_role(fleet, &mut role);
                let status = fleet.status().await.ok();
                if let Some(status) = &status {
                    news(&before, status).iter().for_each(|(text, json)| (self.print_line)(text, json));
                    before = status.clone();
                }
                // A coordinator that stands by does not know it.
                self.shown.set_fleet(status);
            }
            if stop.run_until_cancelled(tokio::time::sleep(POLL_PERIOD)).await.is_none() {
                return;
            }
            if let Some(queue) = queue {
                self.poll(queue).await;
            }
        }
    }

    fn poll_role(&self, fleet: &Fleet, before: &mut Option<Role>) {
        let role = Some(fleet.role());
        if let Some(now) = role.as_ref().filter(|_| role != *before) {
            let (text, json) = describe(now);
            (self.print_line)(&text, &json);
        }
        self.shown.set_role(role.clone());
        *before = role;
    }

    /// Reports which ports belong to which nodes, if that has changed.
    fn poll_ports(&mut self, queue: &Queue) {
        let ports = queue.topology().ports();
        let say = |node: &NodeId, port: u16, is_open: bool| {
            let text = match is_open {
                true => format!("port {port}  is that of node {node}"),
                false => format!("port {port}  is closed: node {node} is no primary any more"),
            };
            (self.print_line)(
                &text,
                &json!({"event": "node-port", "port": port, "node": node.as_str(), "open": is_open}),
            );
        };
        for (node, port) in self.ports.iter().filter(|(node, port)| ports.get(*node) != Some(*port)) {
            say(node, *port, false);
        }
        for (node, port) in ports.iter().filter(|(node, port)| self.ports.get(*node) != Some(*port)) {
            say(node, *port, true);
        }
        self.ports = ports;
    }

    /// Looks at the jobs once.
    pub async fn poll(&mut self, queue: &Queue) {
        let mut jobs = match queue.list().await {
            Ok(jobs) => jobs,
            Err(error) => {
                tracing::warn!(%error, "the jobs cannot be listed");
                return;
            }
        };
        jobs.sort_by(|a, b| (a.created_s, &a.name).cmp(&(b.created_s, &b.name)));
        self.shown.set_jobs(&jobs);
        self.shown.set_unreachable(queue.topology().unreachable());
        let before = std::mem::take(&mut self.seen);
        for job in jobs {
            let (was, stage) = (before.get(&job.name), Stage::of(&job));
            if was != Some(&stage) {
                self.report(&job, was, &stage);
            }
            self.seen.insert(job.name, stage);
        }
    }

    fn report(&self, job: &JobView, was: Option<&Stage>, stage: &Stage) {
        let say = |event: &str, words: &str| {
            let (slots, source, target) = (job.slots.len(), short(&job.source), short(&job.target));
            (self.print_line)(
                &format!("job {}  {slots} slots, {source} -> {target}: {words}", job.name),
                &json!({
                    "event": event, "job": job.name, "slots": job.slots.to_string(), "source": job.source,
                    "target": job.target, "state": job.state.word(), "message": job.message,
                }),
            );
        };
        let has_begun = matches!(was, Some(Stage::Running | Stage::Held(_)));
        match stage {
            Stage::Waiting => say("queued", "waits for its turn"),
            Stage::Running if !has_begun => say("started", "started"),
            Stage::Running => say("started", "goes on"),
            Stage::Held(what) => say("held", &format!("waits: {what}")),
            Stage::Ended => match job.state {
                JobState::Success => say("ended", "done"),
                JobState::Cancelled => say("ended", &format!("cancelled: {}", job.message)),
                _ => say("ended", &format!("FAILED: {}", job.message)),
            },
        }
    }
}

fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}
