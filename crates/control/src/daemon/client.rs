//! A daemon as those see it who hand moves to it, and watch until they are made.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use whimbrel_core::plan::Move;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, ErrorKind, Result};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_wire::value::Value;

use super::migrations::JobState;

/// How often the daemon is asked how its jobs stand.
const POLL: Duration = Duration::from_millis(250);

/// How long a daemon that is being restarted is waited for.
const RECONNECT_MAX: Duration = Duration::from_secs(60);

/// A job that is not listed this many times in a row is gone: its state is being written when it is missed
/// once.
const MISSED_MAX: u32 = 4;

/// A job of the daemon, as it lists it.
#[derive(Debug, Clone)]
struct Listed {
    name: String,
    source: String,
    target: String,
    slots: SlotSet,
    state: String,
    message: String,
}

/// A move that the daemon was asked to make.
#[derive(Debug, Clone)]
pub struct Submitted {
    /// The move.
    pub planned: Move,
    /// The daemon's name for its job.
    pub name: String,
    /// How far it is, in the daemon's word: see [`JobState::word`].
    pub state: String,
    /// Why it failed, or what it waits for.
    pub message: String,
    missed: u32,
}

/// How a submitted move ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All slots are at the target.
    Done,
    /// It was cancelled.
    Cancelled,
    /// It was given up.
    Failed,
    /// The daemon has forgotten it: its files were removed.
    Gone,
}

impl Submitted {
    /// Whether it waits for its turn.
    pub fn is_waiting(&self) -> bool {
        self.state == JobState::Connecting.word()
    }

    /// How it ended, if it has.
    pub fn end(&self) -> Option<End> {
        let ended = [
            (JobState::Success, End::Done),
            (JobState::Cancelled, End::Cancelled),
            (JobState::Failed, End::Failed),
        ];
        let found = ended.into_iter().find(|(state, _)| state.word() == self.state).map(|(_, end)| end);
        found.or((self.missed >= MISSED_MAX).then_some(End::Gone))
    }

    /// Source and target, for people.
    pub fn between(&self) -> String {
        format!("{} -> {}", self.planned.source.short(), self.planned.target.short())
    }
}

/// A daemon; when a connection to it breaks, a new one is made.
#[derive(Debug)]
pub struct DaemonClient {
    endpoint: Arc<Endpoint>,
    options: LinkOptions,
    link: Option<Link>,
}

impl DaemonClient {
    /// Nothing is connected yet.
    pub fn new(endpoint: Endpoint, options: LinkOptions) -> DaemonClient {
        DaemonClient { endpoint: Arc::new(endpoint), options, link: None }
    }

    /// The daemon's address.
    pub fn address(&self) -> String {
        self.endpoint.address.to_string()
    }

    async fn link(&mut self) -> Result<&mut Link> {
        let link = match self.link.take() {
            Some(link) => link,
            None => Link::open(&self.endpoint, &self.endpoint.address, self.options).await?,
        };
        Ok(self.link.insert(link))
    }

    /// One command, once: if its answer is lost, it is not known whether it was carried out.
    async fn call(&mut self, command: &[&[u8]]) -> Result<Value> {
        let outcome = async { self.link().await?.call(command).await }.await;
        if outcome.as_ref().is_err_and(|e| e.server().is_none()) {
            self.link = None;
        }
        outcome
    }

    /// One command that may be sent again.
    async fn call_again(&mut self, command: &[&[u8]]) -> Result<Value> {
        let asked = Instant::now();
        loop {
            match self.call(command).await {
                Err(e) if e.is_link() && asked.elapsed() < RECONNECT_MAX => tokio::time::sleep(POLL).await,
                Err(e) if e.is_link() => {
                    return Err(e.with_remedy(
                        "jobs that it has taken in go on once it runs again; see CLUSTER GETSLOTMIGRATIONS \
                            there",
                    ));
                }
                outcome => return outcome,
            }
        }
    }

    fn listed(&self, reply: Value) -> Result<Vec<Listed>> {
        let unexpected = || {
            let what = "a list of slot migrations that cannot be understood".to_owned();
            let kind = ErrorKind::Unexpected(what);
            let at = self.endpoint.address.to_string();
            Error::new(self.endpoint.side, at, "CLUSTER GETSLOTMIGRATIONS", kind)
        };
        let items = reply.into_items().ok_or_else(unexpected)?;
        items.iter().map(read_job).collect::<Option<_>>().ok_or_else(unexpected)
    }

    /// Has the daemon take in all moves, or none, and finds its jobs for them. `begun` says whether it may
    /// have.
    ///
    /// # Errors
    /// What the daemon answers; if it is not reached, or does not list its jobs.
    pub async fn submit(&mut self, moves: &[Move], begun: &mut bool) -> Result<Vec<Submitted>> {
        let reply = self.call(&LIST).await?;
        let known: BTreeSet<String> = self.listed(reply)?.into_iter().map(|job| job.name).collect();
        let mut words: Vec<Vec<u8>> = vec![b"CLUSTER".to_vec(), b"MIGRATESLOTS".to_vec()];
        for planned in moves {
            words.push(b"SLOTSRANGE".to_vec());
            for range in planned.slots.ranges() {
                words.push(range.start().to_string().into_bytes());
                words.push(range.end().to_string().into_bytes());
            }
            words.push(b"NODE".to_vec());
            words.push(planned.target.to_string().into_bytes());
        }
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let outcome = self.call(&words).await;
        // Refused is refused; whatever else was lost on the way may have arrived.
        *begun = outcome.as_ref().err().is_none_or(|e| e.server().is_none());
        outcome.map_err(|e| match e.server() {
            Some(_) => e,
            None => {
                e.with_remedy("see there with CLUSTER GETSLOTMIGRATIONS whether it has taken the jobs in")
            }
        })?;
        let reply = self.call_again(&LIST).await?;
        let mut new: Vec<Listed> =
            self.listed(reply)?.into_iter().filter(|job| !known.contains(&job.name)).collect();
        let mut jobs = Vec::with_capacity(moves.len());
        for planned in moves {
            // No two jobs that have not ended share a slot: a new job for these slots is the requested one.
            let place = new.iter().position(|job| {
                job.slots == planned.slots
                    && job.target == planned.target.to_string()
                    && job.source == planned.source.to_string()
            });
            let Some(place) = place else {
                let what = format!("it has taken in the jobs, but lists none for slots {}", planned.slots);
                return Err(Error::unfit(
                    self.endpoint.side,
                    self.endpoint.address.to_string(),
                    "find the jobs",
                    what,
                ));
            };
            let Listed { name, state, message, .. } = new.swap_remove(place);
            jobs.push(Submitted { planned: planned.clone(), name, state, message, missed: 0 });
        }
        Ok(jobs)
    }

    /// Watches until all jobs have ended, and keeps up to date how they stand. `stop` cancels those that have
    /// not.
    ///
    /// # Errors
    /// If the daemon is not reached for longer than a restart takes, or does not cancel a job.
    pub async fn until_ended(
        &mut self,
        shared: &Mutex<Vec<Submitted>>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let mut is_cancelled = false;
        while shared.lock().iter().any(|job| job.end().is_none()) {
            let mut refusal = None;
            if is_cancelled {
                tokio::time::sleep(POLL).await;
            } else if stop.run_until_cancelled(tokio::time::sleep(POLL)).await.is_none() {
                is_cancelled = true;
                let jobs: Vec<String> = shared
                    .lock()
                    .iter()
                    .filter(|job| job.end().is_none())
                    .map(|job| job.name.clone())
                    .collect();
                for name in jobs {
                    match self.call_again(&[b"CLUSTER", b"CANCELSLOTMIGRATIONS", name.as_bytes()]).await {
                        // A job that has just ended cannot be cancelled any more.
                        Err(e) if e.server().is_some() => refusal = Some((name, e)),
                        outcome => drop(outcome?),
                    }
                }
            }
            let reply = self.call_again(&LIST).await?;
            let listed = self.listed(reply)?;
            let mut jobs = shared.lock();
            for job in jobs.iter_mut() {
                match listed.iter().find(|listed| listed.name == job.name) {
                    Some(listed) => {
                        job.state.clone_from(&listed.state);
                        job.message.clone_from(&listed.message);
                        job.missed = 0;
                    }
                    None if is_cancelled => JobState::Cancelled.word().clone_into(&mut job.state),
                    None => job.missed += 1,
                }
            }
            if let Some((name, e)) = refusal
                && jobs.iter().any(|job| job.name == name && job.end().is_none())
            {
                return Err(e);
            }
        }
        Ok(())
    }
}

fn read_job(entry: &Value) -> Option<Listed> {
    let text = |name| entry.field(name).and_then(Value::as_str).map(str::to_owned);
    Some(Listed {
        name: text("name")?,
        source: text("source_node")?,
        target: text("target_node")?,
        slots: text("slot_ranges")?.replace(' ', ",").parse().ok()?,
        state: text("state")?,
        message: text("message")?,
    })
}

const LIST: [&[u8]; 2] = [b"CLUSTER", b"GETSLOTMIGRATIONS"];
