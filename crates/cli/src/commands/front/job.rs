//! A front that can move keys, for others: what they see of it, and what they can ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_control::failpoint::{self, When};
use whimbrel_control::hooks::JobHooks;
use whimbrel_control::http::{HttpServer, Metric, MetricKind, expose};
use whimbrel_control::job_metrics::JobMetrics;
use whimbrel_control::steering::{Attended, How, Refusal, Request, Standing, Steered, Why};
use whimbrel_control::store::Status;
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_flow::budget::RatesNow;
use whimbrel_flow::sync::FrontOrder;
use whimbrel_front::control::{Control, Status as FrontStatus, Step};
use whimbrel_front::counted::{clients, numbers};
use whimbrel_front::migrate::phase::Phase;
use whimbrel_front::server::Counts;

use crate::settings::args::FrontArgs;
use crate::ui::remedies::whole;

/// A front, for others.
pub struct FrontJob {
    control: Arc<Control>,
    finished: CancellationToken,
    is_finished: AtomicBool,
    beginning: Status,
    hooks: Option<Arc<JobHooks>>,
}

impl FrontJob {
    /// A front that began so, with what is run at its events. `finished` is cancelled when it has nothing
    /// left to do.
    pub fn new(
        control: Arc<Control>,
        finished: CancellationToken,
        (beginning, hooks): (Status, Option<Arc<JobHooks>>),
    ) -> FrontJob {
        FrontJob { control, finished, is_finished: AtomicBool::new(false), beginning, hooks }
    }

    /// How the job stands whose front stands so.
    pub fn stands(&self, status: &FrontStatus) -> Standing {
        let phase = serde_json::to_value(status.phase).unwrap_or_default();
        let moving = status.moving.as_ref();
        let (moved, left) = moving.map_or((0, None), |moving| (moving.moved, moving.left));
        let rates = RatesNow { paused: moving.is_some_and(|moving| moving.paused), ..RatesNow::default() };
        let (source, target) = status.direction.ordered(status.source.clone(), status.target.clone());
        let job = Status {
            source,
            target,
            rates,
            message: moving.and_then(|moving| moving.trouble.clone()).unwrap_or_default(),
            keys: left.map_or(0, |left| moved + left),
            keys_moved: moved,
            phase: phase.as_str().unwrap_or_default().to_owned(),
            ..self.beginning.clone()
        };
        Standing { job, details: serde_json::to_value(status).unwrap_or_default() }
    }
}

impl Steered for FrontJob {
    async fn standing(&self) -> Standing {
        self.stands(&self.control.status().await)
    }

    fn hooks(&self) -> Option<&JobHooks> {
        self.hooks.as_deref()
    }

    async fn carry_out(
        &self,
        request: Request,
        withdrawn: CancellationToken,
    ) -> std::result::Result<Value, Refusal> {
        let done = match request {
            Request::Start => self.control.start().await,
            Request::Pause => self.control.pause(true),
            Request::Resume => self.control.pause(false),
            Request::Reverse => self.control.reverse().await,
            Request::Finish => self.control.finish().inspect(|()| {
                self.is_finished.store(true, Ordering::Release);
                self.finished.cancel();
            }),
            Request::Status => Ok(()),
            Request::Rehearse(change) => {
                let step = match *change {
                    Request::Start => Step::Start,
                    Request::Reverse => Step::Reverse,
                    Request::Finish => Step::Finish,
                    _ => return Err(Refusal::unsupported("that is not rehearsed")),
                };
                let keys = self.control.rehearse(step).await;
                return keys.map(Value::from).map_err(|e| Refusal { why: why(&e), text: whole(&e) });
            }
            Request::Front(order) => {
                let (name, holds) = (format!("front-{}", order.name()), order.name() == "hold");
                failpoint::reached(&name, When::Before, 0).await;
                let mut stand = self.control.carry_out(order).await;
                failpoint::reached(&name, When::After, 0).await;
                if holds && withdrawn.is_cancelled() {
                    // No process is left that could end the hold.
                    stand = self.control.carry_out(FrontOrder::Release).await;
                }
                let stand = stand.map(|stand| serde_json::to_value(&stand).unwrap_or_default());
                return stand.map_err(|e| Refusal { why: why(&e), text: whole(&e) });
            }
            Request::Cancel | Request::Cutover(_) | Request::Schedule(_) => {
                let text = "a front is not cancelled or cut over: whimbrel front reverse has the keys move \
                    back, whimbrel front finish ends it";
                return Err(Refusal::unsupported(text));
            }
            Request::Set(_) => {
                let text = "a front's keys have no rate that could be set: whimbrel jobs pause stops them";
                return Err(Refusal::unsupported(text));
            }
        };
        done.map(|()| Value::Null).map_err(|e| Refusal { why: why(&e), text: whole(&e) })
    }
}

/// Shows what the front counts if the user wants it.
pub fn expose_front(
    (args, http): (&FrontArgs, Option<HttpServer>),
    counts: Vec<Arc<Counts>>,
    job: Option<Arc<FrontJob>>,
    stop: &CancellationToken,
) -> Result<JoinSet<()>> {
    let (ports, moves) = (counts.clone(), job.clone());
    let metrics = move || {
        let kind = |is_counter| if is_counter { MetricKind::Counter } else { MetricKind::Gauge };
        let numbers = numbers(&ports, moves.as_deref().map(|job| &*job.control)).into_iter();
        numbers.map(|n| Metric::new(kind(n.is_counter), n.name, n.help, n.value)).collect()
    };
    let status = move || match &job {
        Some(job) => json!(job.stands(&job.control.seen())),
        None => json!({"clients": clients(&counts)}),
    };
    let metrics = JobMetrics::other(metrics, status);
    expose(http, Arc::new(metrics), stop, |text, json| args.show.print(text, json))
}

/// The front has ended: it is written down how far it came.
pub async fn leave(attended: Attended<FrontJob>) {
    let job = attended.steered();
    let how = match job.control.status().await.phase {
        _ if job.is_finished.load(Ordering::Acquire) => How::Ended("finished"),
        // No key has moved, so nothing has to be continued.
        Phase::Forwarding => How::Forgotten,
        Phase::Moving | Phase::Done | Phase::Finished => How::Interrupted(""),
    };
    attended.leave(how).await;
}

fn why(error: &Error) -> Why {
    match (&error.kind, error.side) {
        // The command line is right; it is the servers or the moment that do not fit.
        _ if error.is_refusal() => Why::Refused,
        (ErrorKind::Own(_), _) | (_, Side::Own) => Why::Internal,
        (ErrorKind::Server(_), _) => Why::Refused,
        _ => Why::Unreachable,
    }
}
