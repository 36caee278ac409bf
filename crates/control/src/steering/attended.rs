//! A job that this process runs: listed, and asked by others, for as long as it is.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::Result;

use super::protocol::{Steered, stands};
use super::server::{Socket, SocketFile};
use crate::clock::now_s;
use crate::store::{Status, Store};

/// How often it is written down how the job stands.
const PUBLISH_PERIOD: Duration = Duration::from_secs(1);

/// How a job ended, or did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How<'a> {
    /// Nothing is left to be done for it; the word is for people.
    Ended(&'a str),
    /// It can go on. Why it does not, or nothing.
    Interrupted(&'a str),
    /// Nothing was begun that anybody has to know about.
    Forgotten,
}

/// A job that others see and can ask, until [`Attended::leave`]. If that is not reached, the job is listed as
/// interrupted, as it stood last.
#[derive(Debug)]
pub struct Attended<S: Steered> {
    store: Store,
    id: String,
    steered: Arc<S>,
    file: Arc<SocketFile>,
    serving: Task<Socket>,
    publishing: Task<()>,
}

/// Something that is done until it is to end.
#[derive(Debug)]
struct Task<T> {
    closing: CancellationToken,
    handle: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Task<T> {
    fn spawn<F: Future<Output = T> + Send + 'static>(work: impl FnOnce(CancellationToken) -> F) -> Task<T> {
        let closing = CancellationToken::new();
        let handle = Some(tokio::spawn(work(closing.clone())));
        Task { closing, handle }
    }

    /// Ends it, and waits until it has; what it leaves.
    async fn end(&mut self) -> Option<T> {
        self.closing.cancel();
        // None of them panics.
        self.handle.take()?.await.ok()
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.handle.iter().for_each(JoinHandle::abort);
    }
}

impl<S: Steered> Attended<S> {
    /// Shows the job to others and takes their requests. The caller has the job's journal open, or
    /// locked.
    ///
    /// # Errors
    /// `Own` if the socket cannot be made; `Options` if another job has its name.
    pub async fn begin(store: &Store, steered: Arc<S>) -> Result<Attended<S>> {
        let job = steered.standing().await.job;
        let socket = Socket::bind(&store.socket(&job.id))?;
        let file = socket.file();
        let is_resumed = store.find(&job.id).is_some();
        store.publish_first(&job).await?;
        if is_resumed {
            store.note_resumed(&job.id);
        }
        if let Some(hooks) = steered.hooks() {
            hooks.has_begun(is_resumed, &job);
        }
        let serving = Task::spawn(|closing| socket.serve(steered.clone(), closing));
        let publishing = Task::spawn(|closing| publish(store.clone(), steered.clone(), closing));
        Ok(Attended { store: store.clone(), id: job.id, steered, file, serving, publishing })
    }

    /// What is asked.
    pub fn steered(&self) -> Arc<S> {
        self.steered.clone()
    }

    /// Ends it: callers that wait get their answers, and it is written down how the job ended. What is run at
    /// its events has come to its end then.
    pub async fn leave(self, how: How<'_>) {
        self.leave_after(how, || {}).await;
    }

    /// As [`Attended::leave`], but something is done once that is written down, and before the hooks of its
    /// end, which may hang.
    pub(crate) async fn leave_after(mut self, how: How<'_>, finish: impl FnOnce()) {
        if let Some(hooks) = self.steered.hooks() {
            hooks.drain().await;
        }
        self.publishing.end().await;
        // No request is answered any more, and the job seems to be served until its end is written down:
        // otherwise it would seem to be run by no process in between.
        let socket = self.serving.end().await;
        let now = stands(&*self.steered).await.map(|standing| standing.job);
        let Some(now) = now.or_else(|| self.store.find(&self.id)) else { return };
        let now = Status { updated_s: now_s(), ..now };
        let (now, is_over) = match how {
            How::Ended(phase) => {
                let ended = Status { phase: phase.to_owned(), message: String::new(), ended: true, ..now };
                let id = self.store.end(&ended);
                (Status { id, ..ended }, true)
            }
            How::Interrupted(why) => {
                let interrupted = Status { message: why.to_owned(), ..now };
                self.store.publish(&interrupted);
                (interrupted, false)
            }
            How::Forgotten => return self.store.forget(&self.id),
        };
        finish();
        drop(socket);
        if let Some(hooks) = self.steered.hooks() {
            hooks.has_ended(is_over, &now).await;
        }
    }
}

impl<S: Steered> Drop for Attended<S> {
    fn drop(&mut self) {
        // Before the journal is closed, and another process can run the job.
        self.file.remove();
    }
}

async fn publish<S: Steered>(store: Store, steered: Arc<S>, closing: CancellationToken) {
    while closing.run_until_cancelled(tokio::time::sleep(PUBLISH_PERIOD)).await.is_some() {
        if let Some(standing) = stands(&*steered).await {
            let now = Status { updated_s: now_s(), ..standing.job };
            store.publish(&now);
            if let Some(hooks) = steered.hooks() {
                hooks.poll(&now);
            }
        }
    }
}
