//! A member's connection to the coordinator, one after another.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use whimbrel_core::fleet::{Action, Member, MemberInput, Move, Order, Partition};
use whimbrel_engine::clock;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::{Io, LinkOptions};

use crate::cell::Cell;
use crate::data::{Data, Failure};
use crate::frame::Frames;
use crate::login;
use crate::outbox::Outbox;
use crate::protocol::{COMMAND, FRAME_BYTES_MAX, FromCoordinator, FromMember, Hello};
use crate::shared::Shared;

/// How often the machine is notified that time passes.
const TICK: Duration = Duration::from_millis(50);

/// How often the coordinator hears how this member stands, in ticks.
const STATE_TICKS: u64 = 10;

/// A move that failed is tried again after a moment. If it has not failed for this long, it is not reported.
const TROUBLE_LASTS: Duration = Duration::from_secs(10);

/// How long to wait between attempts to connect: first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A coordinator that says nothing for this long is not reached any more. It answers each renewal, several in
/// a lease.
const SILENCE_MIN: Duration = Duration::from_secs(2);

/// A coordinator that takes nothing in for this long is not reached any more.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);

/// What may wait to be sent: the versions of the largest table several times over.
const OUTBOX_BYTES_MAX: usize = 32 << 20;

/// What became of a step of a move.
type Step = (Move, Which, std::result::Result<(), Failure>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Transfer,
    Settle,
}

/// How a session ended.
enum Ended {
    /// The connection is lost, for this reason.
    Lost(String),
    /// There is nothing more to do.
    Over,
    /// It can never go on.
    Broken(Error),
}

/// The machine, and what carries out what it wants.
pub(crate) struct Runner<D> {
    machine: Member,
    shared: Arc<Shared>,
    data: Arc<D>,
    coordinators: Vec<Arc<Endpoint>>,
    options: LinkOptions,
    hello: Hello,
    leaves: watch::Receiver<bool>,
    outbox: Arc<Outbox>,
    steps: JoinSet<Step>,
    /// Moves of sealed partitions that have requests under way.
    draining: Vec<Move>,
    /// It was asked to leave.
    is_leaving: bool,
    /// It was a member, left, and does not want to be one again.
    is_over: bool,
    /// Why the last move failed that did, and when.
    trouble: Option<(String, Instant)>,
    ticks: u64,
    silence_max: Duration,
}

/// Tries all coordinators at once, each again and again, until one takes this member: only the leader does.
/// So a coordinator that does not answer does not delay the others.
async fn connect(
    coordinators: &[Arc<Endpoint>],
    options: LinkOptions,
    shared: &Arc<Shared>,
) -> (Io, BytesMut) {
    let mut attempts = JoinSet::new();
    for endpoint in coordinators {
        let (endpoint, shared) = (endpoint.clone(), shared.clone());
        attempts.spawn(async move {
            let mut pause = PAUSE_MIN;
            loop {
                match connect_to(&endpoint, options).await {
                    Ok(io) => return io,
                    Err(error) => {
                        let why = error.to_string();
                        tracing::info!(why, "the coordinator is not reached");
                        shared.see(|seen| (seen.is_connected, seen.trouble) = (false, Some(why)));
                    }
                }
                pause = (pause * 2).min(PAUSE_MAX);
                sleep(pause).await;
            }
        });
    }
    loop {
        match attempts.join_next().await {
            Some(Ok(io)) => return io,
            // It says why itself, and others may still be tried.
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }
}

async fn connect_to(endpoint: &Arc<Endpoint>, options: LinkOptions) -> Result<(Io, BytesMut)> {
    let mut link = login::open(endpoint, options).await?;
    link.call(&COMMAND.map(str::as_bytes)).await?;
    Ok(link.into_parts())
}

impl<D: Data> Runner<D> {
    pub(crate) fn new(
        machine: Member,
        shared: Arc<Shared>,
        data: D,
        coordinators: Vec<Arc<Endpoint>>,
        options: LinkOptions,
        hello: Hello,
        leaves: watch::Receiver<bool>,
    ) -> Runner<D> {
        Runner {
            machine,
            shared,
            data: Arc::new(data),
            coordinators,
            options,
            hello,
            leaves,
            outbox: Arc::new(Outbox::new(OUTBOX_BYTES_MAX)),
            steps: JoinSet::new(),
            draining: Vec::new(),
            is_leaving: false,
            is_over: false,
            trouble: None,
            ticks: 0,
            silence_max: SILENCE_MIN,
        }
    }

    /// Is a member until `stop`, or until it has left.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let outcome = stop.run_until_cancelled(self.work()).await.unwrap_or(Ok(()));
        // The lease is not kept from now on.
        self.shared.lease_until_ms.store(0, Ordering::SeqCst);
        self.shared.see(|seen| (seen.is_connected, seen.has_left) = (false, true));
        outcome
    }

    async fn work(&mut self) -> Result<()> {
        let mut pause = PAUSE_MIN;
        loop {
            if self.wants_to_leave() && self.machine.id().is_none() {
                return Ok(());
            }
            let mut leaves = self.leaves.clone();
            let io = tokio::select! {
                io = connect(&self.coordinators, self.options, &self.shared) => io,
                // A process that is no member has nothing to leave, and no coordinator to ask.
                Ok(_) = leaves.wait_for(|leaves| *leaves), if self.machine.id().is_none() => continue,
            };
            let began = Instant::now();
            let why = match self.session(io).await {
                Ended::Lost(why) => why,
                Ended::Over => return Ok(()),
                Ended::Broken(error) => return Err(error),
            };
            tracing::info!(why, "the coordinator is not reached");
            self.shared.see(|seen| (seen.is_connected, seen.trouble) = (false, Some(why)));
            // What lasted for a while was no failed attempt.
            pause = if began.elapsed() > PAUSE_MAX { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
            sleep(pause).await;
        }
    }

    fn wants_to_leave(&self) -> bool {
        self.is_leaving || *self.leaves.borrow()
    }

    async fn session(&mut self, (io, begun): (Io, BytesMut)) -> Ended {
        let (reader, mut writer): (ReadHalf<Io>, WriteHalf<Io>) = tokio::io::split(io);
        let mut frames = Frames::new(reader, begun, FRAME_BYTES_MAX);
        let outbox = Arc::new(Outbox::new(OUTBOX_BYTES_MAX));
        self.outbox = outbox.clone();
        let sending = outbox.send(&mut writer, WRITE_PATIENCE);
        tokio::pin!(sending);
        self.send(&FromMember::Hello(Hello { token: self.machine.token(), ..self.hello.clone() }));
        self.shared.see(|seen| (seen.is_connected, seen.trouble) = (true, None));
        if let Err(ended) = self.take_in(MemberInput::Linked, []) {
            return ended;
        }
        let shared = self.shared.clone();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard_at = Instant::now();
        loop {
            let silent_at = heard_at + self.silence_max;
            let outcome = tokio::select! {
                next = timeout_at(silent_at, frames.next()) => {
                    heard_at = Instant::now();
                    self.hear(next)
                }
                sent = &mut sending => Err(Ended::Lost(match sent {
                    Ok(()) => "it takes too little in".to_owned(),
                    Err(e) => format!("it cannot be sent anything: {e}"),
                })),
                _ = ticks.tick() => self.tick(),
                Some(step) = self.steps.join_next() => match step {
                    Ok(step) => self.step_done(step),
                    Err(e) => Err(Ended::Broken(Error::own("give a partition away", e))),
                },
                () = shared.quiet.notified() => self.settle_quiet(),
                changed = self.leaves.changed() => match changed {
                    Ok(()) => {
                        self.send(&FromMember::Leave);
                        Ok(())
                    }
                    Err(_) => Err(Ended::Over),
                },
            };
            if let Err(ended) = outcome {
                return ended;
            }
            if self.is_over {
                return Ended::Over;
            }
        }
    }

    fn hear(
        &mut self,
        next: std::result::Result<io::Result<Option<(u8, Bytes)>>, tokio::time::error::Elapsed>,
    ) -> std::result::Result<(), Ended> {
        let lost = |why: String| Err(Ended::Lost(why));
        let (kind, bytes) = match next {
            Err(_) => return lost(format!("it has said nothing for {} ms", self.silence_max.as_millis())),
            Ok(Err(e)) => return lost(format!("the connection broke: {e}")),
            Ok(Ok(None)) => return lost("it has closed the connection".to_owned()),
            Ok(Ok(Some(frame))) => frame,
        };
        match FromCoordinator::decode(kind, &bytes) {
            Ok(FromCoordinator::Message(message)) => {
                if let Order::Lease { lease_ms, .. } = message.body {
                    // It answers three times in a lease.
                    self.silence_max = SILENCE_MIN.max(Duration::from_millis(lease_ms * 2 / 3));
                }
                let touched: Vec<Partition> = message.partitions().collect();
                self.take_in(MemberInput::Message(message), touched)
            }
            Ok(FromCoordinator::Directory(directory)) => {
                self.shared.take_directory(directory);
                Ok(())
            }
            Ok(FromCoordinator::Leaving) => {
                self.is_leaving = true;
                Ok(())
            }
            Ok(FromCoordinator::Refused(why)) => lost(format!("it refuses this member: {why}")),
            Err(e) => lost(format!("it says {e}")),
        }
    }

    fn tick(&mut self) -> std::result::Result<(), Ended> {
        self.ticks += 1;
        if self.wants_to_leave() && self.machine.id().is_none() {
            return Err(Ended::Over);
        }
        if self.ticks.is_multiple_of(STATE_TICKS) {
            if self.wants_to_leave() {
                self.send(&FromMember::Leave);
            }
            let (stamp, held) = (self.machine.table().stamp(), self.shared.held.load(Ordering::Relaxed));
            let lately = self.trouble.as_ref().filter(|(_, at)| at.elapsed() < TROUBLE_LASTS);
            let trouble = lately.map(|(why, _)| why.clone()).unwrap_or_default();
            self.send(&FromMember::State { stamp, held, trouble });
        }
        self.take_in(MemberInput::Tick, [])
    }

    fn step_done(&mut self, (moving, which, outcome): Step) -> std::result::Result<(), Ended> {
        if let Err(why) = &outcome {
            tracing::warn!(partition = moving.partition, to = %moving.destination, %why, "a partition stays \
                here");
        }
        if let Err(why) = &outcome {
            // Names of keys may be in it: none of it may move the cursor of a terminal.
            let shown: String = why.0.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
            self.trouble = Some((format!("partition {}: {shown}", moving.partition), Instant::now()));
        }
        let input = match (outcome, which) {
            (Ok(()), Which::Transfer) => MemberInput::Transferred(moving),
            (Ok(()), Which::Settle) => MemberInput::Drained(moving),
            (Err(_), _) => MemberInput::TransferFailed(moving),
        };
        self.take_in(input, [moving.partition])
    }

    /// Goes on with moves that have no request under way any more.
    fn settle_quiet(&mut self) -> std::result::Result<(), Ended> {
        let shared = self.shared.clone();
        let is_quiet = |moving: &mut Move| shared.cell(moving.partition).is_none_or(Cell::is_quiet);
        let quiet: Vec<Move> = self.draining.extract_if(.., is_quiet).collect();
        for moving in quiet {
            let data = self.data.clone();
            self.steps.spawn(async move { (moving, Which::Settle, data.settle(&moving).await) });
        }
        Ok(())
    }

    fn send(&self, frame: &FromMember) {
        // If it cannot be said, the connection ends, and the machine says it again on the next one.
        self.outbox.push(frame.kind(), |out| frame.encode(out));
    }

    /// Gives the machine its input, shows what it came to, and does what it wants: in this order, so that no
    /// task begins a request of a sealed partition after the check for requests under way.
    fn take_in(
        &mut self,
        input: MemberInput,
        touched: impl IntoIterator<Item = Partition>,
    ) -> std::result::Result<(), Ended> {
        let (mut actions, before) = (Vec::new(), self.machine.id());
        self.machine.handle(clock::now_ms(), input, &mut actions);
        let is_same = self.machine.id() == before;
        let fits = if is_same {
            self.shared.follow(&self.machine, touched)
        } else {
            // With its number it has lost its seals, so all partitions are to be looked at.
            self.shared.follow(&self.machine, 0..self.machine.table().partitions())
        };
        if !fits {
            let what = "the fleet at this address has another number of partitions than the one this was a \
                member of";
            return Err(Ended::Broken(
                Error::own("join the fleet", what).with_remedy("start this process anew"),
            ));
        }
        if !is_same {
            self.draining.clear();
            if before.is_some() && self.wants_to_leave() {
                self.is_over = true;
                return Ok(());
            }
        }
        for action in actions {
            match action {
                Action::Send(message) => self.send(&FromMember::Message(message)),
                Action::Transfer(moving) => {
                    let data = self.data.clone();
                    self.steps.spawn(async move { (moving, Which::Transfer, data.transfer(&moving).await) });
                }
                Action::Drain(moving) => {
                    self.draining.push(moving);
                    self.settle_quiet()?;
                }
                Action::Discard(partition) => self.data.discard(partition),
                Action::Leave(moving, backend) => self.data.leave(&moving, backend),
            }
        }
        Ok(())
    }
}
