//! Asks jobs how they stand, again and again, beside what is shown meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use whimbrel_control::jobs::{Jobs, Seen};
use whimbrel_control::steering::{Standing, standing};
use whimbrel_control::store::{Entry, Event, Status};
use whimbrel_engine::error::Result;

/// How often it is looked; jobs write down as often how they stand.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// A job as it was at one moment.
#[derive(Debug)]
pub(crate) struct Polled {
    /// As it is written down; `None` where it is not.
    pub entry: Option<Entry>,
    /// What its process says; `None` where nobody runs it, or it does not answer within 2 s.
    pub standing: Option<Standing>,
    /// What happened to it, the oldest first.
    pub events: Vec<Event>,
    /// Whether it is written down what came of it.
    pub has_report: bool,
}

/// Looks at a job once.
pub(crate) async fn poll(jobs: &Jobs, status: &Status) -> Polled {
    let Some(mut entry) = jobs.now_of(status) else {
        return Polled { entry: None, standing: None, events: Vec::new(), has_report: false };
    };
    let mut current = None;
    if entry.running {
        current = standing(&jobs.store.socket(&entry.status.id)).await;
        if current.is_none() {
            // It may have ended meanwhile.
            entry = jobs.now_of(status).unwrap_or(entry);
        }
    }
    let (id, ended) = (&entry.status.id, entry.status.ended);
    let (events, has_report) = (jobs.store.events(id), ended && jobs.store.report(id).is_some());
    Polled { entry: Some(entry), standing: current, events, has_report }
}

/// What was seen.
#[derive(Debug)]
pub(crate) enum Sight {
    /// All jobs.
    All(Result<Vec<Seen>>),
    /// The one that is watched.
    One(Box<Polled>),
}

impl From<Polled> for Sight {
    fn from(polled: Polled) -> Sight {
        Sight::One(Box::new(polled))
    }
}

/// Looks until it is dropped.
#[derive(Debug)]
pub(crate) struct Poller {
    seen: mpsc::Receiver<Sight>,
    _task: JoinSet<()>,
}

impl Poller {
    /// At this job, or at all.
    pub(crate) fn at(jobs: Arc<Jobs>, job: Option<Status>) -> Poller {
        let (sender, seen) = mpsc::channel(1);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let sight = match &job {
                    Some(status) => poll(&jobs, status).await.into(),
                    None => Sight::All(match jobs.all() {
                        Ok(entries) => Ok(jobs.as_they_are(entries).await),
                        Err(error) => Err(error),
                    }),
                };
                if sender.send(sight).await.is_err() {
                    return;
                }
                tokio::time::sleep(PERIOD).await;
            }
        });
        Poller { seen, _task: task }
    }

    /// What was seen next. It waits for ever where looking has failed.
    pub(crate) async fn next(&mut self) -> Sight {
        match self.seen.recv().await {
            Some(sight) => sight,
            None => std::future::pending().await,
        }
    }
}
