//! The task that runs the coordinator's machine.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_core::fleet::{
    Coordinator, Enrolled, Input, MemberId, Options, Order, Output, Recipient, Record, Report, Snapshot,
    ToCoordinator, ToMember,
};
use whimbrel_engine::clock;
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_fleet::protocol::{Backend, Directory, FromCoordinator, FromMember, MEMBERS_MAX};

use super::handle::{Event, Fleet, Listens, Question, Refused};
use super::journal::{FleetJournal, Journal};
use super::links::Links;
use super::status::{BackendStatus, FleetStatus, MemberStatus};

/// How often the machine is notified that time passes.
const TICK: Duration = Duration::from_millis(20);

/// What may wait to be heard; a sender of more waits.
const EVENTS_MAX: usize = 4_096;

/// How many of those that were to leave are remembered, to say of them that they have left.
const LEFT_MAX: usize = 64;

/// How often, how far apart and how patiently to check whether a process listens at a member's address.
const PROBES: u32 = 10;
const PROBE_PAUSE: Duration = Duration::from_millis(20);
const PROBE_WITHIN: Duration = Duration::from_secs(1);

/// How a fleet is coordinated.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    /// How many partitions there are. It stays the same for the life of the fleet.
    pub partitions: u32,
    /// Servers that have the data: names and addresses, without passwords.
    pub backends: Vec<(String, String)>,
    /// How the machine works.
    pub machine: Options,
    /// Whether a member counts as dead as soon as its connection has ended and no process listens at its
    /// address.
    pub trusts_refusals: bool,
}

/// What the thread does that has the journal.
#[derive(Debug)]
enum Task {
    /// Writes records down. They have a number.
    Write(u64, Vec<Record>),
    /// Looks for the latest term, since a member speaks of a later one.
    CheckTerm(u64, ToCoordinator),
}

/// At most one of each kind waits for the thread, so that it is never waited for.
const TASKS_MAX: usize = 2;

/// What waits for which record to be on disk.
type Waiting = (u64, oneshot::Sender<std::result::Result<FleetStatus, Refused>>);

/// A coordinator that is ready to run.
#[derive(Debug)]
pub struct Coordination {
    machine: Coordinator,
    lease_ms: u64,
    expire_ms: u64,
    events: mpsc::Receiver<Event>,
    links: Links,
    backends: Vec<Backend>,
    journal: SyncSender<Task>,
    /// It has the journal open until it ends.
    writer: JoinHandle<()>,
    /// Records that wait while others are being written: at most one for each row and a few for each member.
    unwritten: Vec<Record>,
    /// The number of the last records.
    unwritten_upto: Option<u64>,
    is_writing: bool,
    is_checking_term: bool,
    waiting: Vec<Waiting>,
    directory: Directory,
    /// The members, or their addresses, may have changed.
    directory_is_stale: bool,
    moved: u64,
    failed: u64,
    /// Members that were to leave lately, at most [`LEFT_MAX`]: a member may be gone before anybody asks.
    left: VecDeque<MemberId>,
    trusts_refusals: bool,
    /// When this one began.
    began_ms: u64,
    /// For what looks after members in the background. It does not keep the receiver waiting for more events.
    sender: mpsc::WeakSender<Event>,
    /// The place of the journal.
    place: String,
    /// Until when no other process is the coordinator, if there are several.
    reign: Option<watch::Receiver<u64>>,
    /// As the machine knows it.
    reigns_until_ms: u64,
}

impl Coordination {
    /// Opens the journal, in a new term, and goes on from what it has. No member is served before
    /// [`Coordination::run`].
    ///
    /// # Errors
    /// `Own` as [`FleetJournal::open`] and [`FleetJournal::name_backends`].
    pub fn open(path: &Path, options: FleetOptions) -> Result<(Fleet, Coordination)> {
        let (mut journal, snapshot) = FleetJournal::open(path, options.partitions)?;
        let backends = journal.name_backends(&options.backends)?;
        let (fleet, mut coordination) = Coordination::on(path, journal, snapshot, backends, options.machine);
        coordination.trust_refusals(options.trusts_refusals);
        Ok((fleet, coordination))
    }

    /// Whether a member counts as dead as soon as its connection has ended and no process listens at its
    /// address.
    pub(super) fn trust_refusals(&mut self, trusts: bool) {
        self.trusts_refusals = trusts;
    }

    /// Goes on from `snapshot`, on a journal whose term is the snapshot's.
    pub fn on(
        path: &Path,
        journal: impl Journal,
        snapshot: Snapshot,
        backends: Vec<Backend>,
        options: Options,
    ) -> (Fleet, Coordination) {
        let place = path.display().to_string();
        let (events, coordination) = Coordination::begun(place, journal, snapshot, backends, options, None);
        (Fleet::new(coordination.term(), events), coordination)
    }

    /// As [`Coordination::on`], for a coordinator that has been elected: it ends when its reign does.
    #[cfg(feature = "etcd")]
    pub(super) fn elected(
        place: String,
        journal: impl Journal,
        snapshot: Snapshot,
        backends: Vec<Backend>,
        options: Options,
        reign: watch::Receiver<u64>,
    ) -> (mpsc::Sender<Event>, Coordination) {
        Coordination::begun(place, journal, snapshot, backends, options, Some(reign))
    }

    fn begun(
        place: String,
        journal: impl Journal,
        snapshot: Snapshot,
        backends: Vec<Backend>,
        options: Options,
        reign: Option<watch::Receiver<u64>>,
    ) -> (mpsc::Sender<Event>, Coordination) {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let (lease_ms, expire_ms) = (options.lease_ms, options.expire_ms());
        let (journal, writer) = write_in_background(journal, sender.clone());
        let mut out = Vec::new();
        let machine = Coordinator::recover(snapshot, options, clock::now_ms(), &mut out);
        let mut coordination = Coordination {
            machine,
            lease_ms,
            expire_ms,
            events,
            links: Links::default(),
            backends,
            journal,
            writer,
            unwritten: Vec::new(),
            unwritten_upto: None,
            is_writing: false,
            is_checking_term: false,
            waiting: Vec::new(),
            directory: Directory::default(),
            directory_is_stale: true,
            moved: 0,
            failed: 0,
            left: VecDeque::new(),
            trusts_refusals: false,
            began_ms: clock::now_ms(),
            sender: sender.downgrade(),
            place,
            reign,
            reigns_until_ms: u64::MAX,
        };
        // Nothing that it wants at first can end it: only later messages can.
        let _ = coordination.carry_out(out);
        (sender, coordination)
    }

    /// Its term.
    pub fn term(&self) -> u64 {
        self.machine.term()
    }

    /// Coordinates until `stop`.
    ///
    /// # Errors
    /// If the journal cannot be written, a later coordinator has begun, or the reign is over. Members then go
    /// on by their leases, and the next coordinator goes on from the journal. It may have it as soon as this
    /// returns.
    pub async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let outcome = self.work(&stop).await;
        let Coordination { events, journal, writer, links, .. } = self;
        // So that members look for the next coordinator at once.
        links.close_all();
        // Without either the writer ends, after what it is at.
        drop((events, journal));
        let ended = tokio::task::spawn_blocking(move || writer.join()).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("the thread that writes the journal did not end normally");
        }
        outcome
    }

    async fn work(&mut self, stop: &CancellationToken) -> Result<()> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_ms = clock::now_ms();
        let mut patient_until_ms = 0;
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                event = self.events.recv() => event,
                _ = ticks.tick() => None,
            };
            let now_ms = clock::now_ms();
            self.check_lease(now_ms)?;
            if now_ms.saturating_sub(last_ms) > self.lease_ms / 2 {
                // This process stood still. Members have asked meanwhile, and nothing has read that yet: they
                // are treated as members that have just been heard, as after a restart.
                patient_until_ms = now_ms + self.expire_ms;
            }
            last_ms = now_ms;
            match event {
                Some(event) => self.take(event)?,
                None if now_ms >= patient_until_ms => self.take_in(Input::Tick)?,
                None => {}
            }
            self.refresh_directory();
        }
    }

    /// Tells the machine how long it reigns. Nothing is heard after that: a process that stood still
    /// meanwhile finds here that its reign is over.
    fn check_lease(&mut self, now_ms: u64) -> Result<()> {
        let Some(until_ms) = self.reign.as_ref().map(|reign| *reign.borrow()) else { return Ok(()) };
        if now_ms >= until_ms {
            let what = "etcd has not confirmed in time that this one still leads: another coordinator may be \
                elected";
            let tried = format!("coordinate the fleet of {}", self.place);
            return Err(Error::new(Side::Store, "", tried, ErrorKind::Own(what.to_owned())));
        }
        if until_ms == std::mem::replace(&mut self.reigns_until_ms, until_ms) {
            return Ok(());
        }
        self.take_in(Input::Reign { until_ms })
    }

    fn take(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Linked(link, outbox, hello) => self.links.open(link, outbox, hello),
            Event::Ended(link) => self.ended(link),
            Event::Probed(member, listens) => return self.probed(member, listens),
            Event::Received(link, frame) => return self.hear(link, frame),
            Event::Written(Err(error)) => return Err(error),
            Event::Written(Ok(upto)) => {
                self.is_writing = false;
                self.take_in(Input::Journaled { upto })?;
                self.write_next();
                let is_done = |(number, _): &mut Waiting| *number <= upto;
                let done: Vec<Waiting> = self.waiting.extract_if(.., is_done).collect();
                // A client that has gone does not wait for an answer.
                done.into_iter().for_each(|(_, answer)| drop(answer.send(Ok(FleetStatus::default()))));
                let leaving: Vec<MemberId> = self.leaving().collect();
                leaving.into_iter().for_each(|member| self.links.notify_leaving(member));
            }
            Event::Terms(link, message, latest) => return self.judge_term(link, message, latest),
            Event::Asked(question, answer) => return self.answer(&question, answer),
        }
        Ok(())
    }

    /// A member speaks on a connection: true if it is another one than before. Then it is found out whether
    /// its address is reached from here: only then a refusal later says anything.
    fn bind(&mut self, link: u64, member: MemberId) -> bool {
        let is_new = self.links.bind(link, member, clock::now_ms());
        if is_new && self.trusts_refusals {
            self.ask_host_of(member, Listens::Yes);
        }
        is_new
    }

    /// Finds out whether a process listens at a member's address, and reports it if it is as expected.
    fn ask_host_of(&self, member: MemberId, expected: Listens) {
        let Some(known) = self.links.known.get(&member) else { return };
        let (address, sender) = (known.hello.address.clone(), self.sender.clone());
        tokio::spawn(async move {
            if is_confirmed(&address, expected).await
                && let Some(sender) = sender.upgrade()
            {
                // If the coordinator has ended, the next one waits for the lease.
                let _ = sender.send(Event::Probed(member, expected)).await;
            }
        });
    }

    /// If the member's host says that no process listens at its address, its process is gone: what it owns
    /// need not wait for the end of its lease.
    fn ended(&mut self, link: u64) {
        let member = self.links.member_of(link);
        self.links.close(link);
        let Some(member) = member.filter(|member| self.trusts_refusals && !self.links.is_linked(*member))
        else {
            return;
        };
        match self.links.known.get(&member).map(|known| known.reached) {
            Some(true) => self.ask_host_of(member, Listens::No),
            _ => tracing::warn!(
                %member,
                "its connection has ended, and its address was never reached: its lease is waited for"
            ),
        }
    }

    fn probed(&mut self, member: MemberId, listens: Listens) -> Result<()> {
        match (listens, self.links.is_linked(member)) {
            (Listens::Yes, true) => {
                if let Some(known) = self.links.known.get_mut(&member) {
                    known.reached = true;
                }
            }
            (Listens::No, false) => return self.take_in(Input::Dead(member)),
            // It has connected again meanwhile, or has gone: another process was asked.
            _ => {}
        }
        Ok(())
    }

    fn leaving(&self) -> impl Iterator<Item = MemberId> {
        self.machine.members().filter(|(_, enrolled)| enrolled.is_leaving).map(|(id, _)| id)
    }

    fn hear(&mut self, link: u64, frame: FromMember) -> Result<()> {
        match frame {
            FromMember::Hello(_) => Ok(()),
            FromMember::Message(message) => self.hear_message(link, message),
            FromMember::State { stamp, held, trouble } => {
                let member = self.links.member_of(link);
                if let Some(known) = member.and_then(|member| self.links.known.get_mut(&member)) {
                    (known.stamp, known.held, known.trouble) = (Some(stamp), held, trouble);
                }
                Ok(())
            }
            FromMember::Leave => match self.links.member_of(link) {
                Some(member) => self.take_in(Input::Leave(member)),
                None => Ok(()),
            },
        }
    }

    /// A connection speaks for the member that has joined by its token, and may ask to join by it.
    fn hear_message(&mut self, link: u64, message: ToCoordinator) -> Result<()> {
        // A member that was refused is not heard any more.
        let Some(speaks_for) = self.links.token_of(link) else { return Ok(()) };
        if message.term > self.machine.term() {
            self.check_term(link, message);
            return Ok(());
        }
        let member = message.member;
        match (&message.body, self.machine.token_of(member)) {
            (Report::Join { token, .. }, _) => match self.may_join(speaks_for, *token) {
                Ok(()) => self.links.asks(link, *token),
                Err(why) => {
                    self.refuse(link, why);
                    return Ok(());
                }
            },
            (_, Some(token)) if token == speaks_for => self.meet(link, member)?,
            (_, Some(_)) => {
                self.refuse(link, format!("it did not join as member {member}"));
                return Ok(());
            }
            // It is none any more, or never was.
            (Report::Renew { .. }, None) => {
                let gone = ToMember { term: self.machine.term(), body: Order::Gone { member } };
                self.links.send_on(link, &FromCoordinator::Message(gone));
                return Ok(());
            }
            (_, None) => return Ok(()),
        }
        self.take_in(Input::Message(message))
    }

    /// Whether a process may join by this token on this connection: one process is one member at a time.
    fn may_join(&self, former: u64, token: u64) -> std::result::Result<(), String> {
        if former != token && self.machine.has_joined(former) {
            return Err("it has joined on this connection already".to_owned());
        }
        if !self.machine.has_joined(token) && self.machine.enrolled() >= MEMBERS_MAX {
            return Err(format!("the fleet has {MEMBERS_MAX} members, and takes no more"));
        }
        Ok(())
    }

    /// A member speaks of a later term than this one. Whether that has begun is for the journal to say, and
    /// not for members.
    fn check_term(&mut self, link: u64, message: ToCoordinator) {
        if !std::mem::replace(&mut self.is_checking_term, true) {
            // If the thread has ended, it has said why.
            let _ = self.journal.send(Task::CheckTerm(link, message));
        }
    }

    fn judge_term(&mut self, link: u64, message: ToCoordinator, latest: Result<u64>) -> Result<()> {
        self.is_checking_term = false;
        let latest = latest.unwrap_or_else(|error| {
            tracing::warn!(%error, "the latest term could not be looked for");
            self.machine.term()
        });
        if latest >= message.term {
            return self.take_in(Input::Message(message));
        }
        self.refuse(link, format!("it speaks of term {}, which has not begun here", message.term));
        Ok(())
    }

    fn refuse(&mut self, link: u64, why: String) {
        tracing::warn!(
            why,
            "a connection of a member is ended; see that it is of this fleet, and of this journal"
        );
        self.links.refuse(link, why);
    }

    /// A member speaks on a connection.
    fn meet(&mut self, link: u64, member: MemberId) -> Result<()> {
        if !self.bind(link, member) {
            return Ok(());
        }
        self.directory_is_stale = true;
        self.links.send_to(Recipient::Member(member), &FromCoordinator::Directory(self.directory.clone()));
        if self.leaving().any(|other| other == member) {
            self.links.notify_leaving(member);
        }
        self.take_in(Input::Linked(member))
    }

    fn take_in(&mut self, input: Input) -> Result<()> {
        if let Input::Leave(member) = input
            && !self.left.contains(&member)
        {
            self.left.truncate(LEFT_MAX - 1);
            self.left.push_front(member);
        }
        let mut out = Vec::new();
        self.machine.handle(clock::now_ms(), input, &mut out);
        self.carry_out(out)
    }

    fn carry_out(&mut self, out: Vec<Output>) -> Result<()> {
        for output in out {
            match output {
                Output::Journal { number, records } => {
                    self.unwritten.extend(records);
                    self.unwritten_upto = Some(number);
                    self.write_next();
                }
                Output::Send { to, message, .. } => {
                    match (&message.body, to) {
                        (Order::Welcome { token, member, .. }, _) => {
                            self.directory_is_stale = true;
                            let link = self.links.joiner(*token);
                            link.map(|link| self.bind(link, *member));
                        }
                        (Order::Gone { .. }, _) => self.directory_is_stale = true,
                        _ => {}
                    }
                    self.links.send_to(to, &FromCoordinator::Message(message));
                }
                Output::Started(_) => {}
                Output::Finished(_) => self.moved += 1,
                Output::Failed(_) => self.failed += 1,
                Output::Superseded => {
                    let what = "a member has heard of a later coordinator than this one";
                    return Err(Error::own(format!("coordinate the fleet of {}", self.place), what)
                        .with_remedy(
                            "end the other one, or this one; see that they do not work on copies of \
                            one journal",
                        ));
                }
            }
        }
        Ok(())
    }

    fn write_next(&mut self) {
        let Some(upto) = self.unwritten_upto.filter(|_| !self.is_writing && !self.unwritten.is_empty())
        else {
            return;
        };
        self.is_writing = true;
        // If the thread has ended, it has said why.
        let _ = self.journal.send(Task::Write(upto, std::mem::take(&mut self.unwritten)));
    }

    /// Sends all members the addresses of all members, when these have changed.
    fn refresh_directory(&mut self) {
        if !std::mem::take(&mut self.directory_is_stale) {
            return;
        }
        let ids: Vec<MemberId> = self.machine.members().map(|(id, _)| id).collect();
        self.links.forget_all_but(&ids);
        let address = |id: &MemberId| self.links.known.get(id).map(|known| known.hello.address.clone());
        let members = ids.iter().map(|id| (*id, address(id).unwrap_or_default())).collect();
        let directory = Directory { members, backends: self.backends.clone() };
        if directory != self.directory {
            self.directory = directory;
            self.links.send_to_all(&FromCoordinator::Directory(self.directory.clone()));
        }
    }

    fn answer(
        &mut self,
        question: &Question,
        answer: oneshot::Sender<std::result::Result<FleetStatus, Refused>>,
    ) -> Result<()> {
        let before = self.unwritten_upto;
        let input = match question {
            Question::Status => {
                let _ = answer.send(Ok(self.status()));
                return Ok(());
            }
            Question::Rehearse(question) => {
                let _ = answer.send(self.input(question).map(|_| self.status()));
                return Ok(());
            }
            question => self.input(question),
        };
        match input {
            Err(refused) => {
                let _ = answer.send(Err(refused));
            }
            Ok(input) => {
                self.take_in(input)?;
                match self.unwritten_upto.filter(|number| Some(*number) > before) {
                    Some(number) => self.waiting.push((number, answer)),
                    None => drop(answer.send(Ok(FleetStatus::default()))),
                }
            }
        }
        Ok(())
    }

    /// What carries out what is asked. Changes nothing.
    fn input(&self, question: &Question) -> std::result::Result<Input, Refused> {
        match question {
            Question::Leave(member) => self.may_give_up(*member).map(|()| Input::Leave(*member)),
            Question::Dead(member) => self.may_be_dead(*member).map(|()| Input::Dead(*member)),
            Question::Weigh(member, weight) => self.weigh(*member, *weight),
            Question::Assign(backend, weight) => self.place(backend, *weight),
            // Neither of the others carries anything out.
            Question::Rebalance | Question::Status | Question::Rehearse(_) => Ok(Input::Hold(false)),
        }
    }

    fn weigh(&self, member: MemberId, weight: Option<u32>) -> std::result::Result<Input, Refused> {
        let came_with = self.links.known.get(&member).map(|known| known.hello.weight);
        let enrolled = self.enrolled(member)?;
        let weight = weight.or(came_with).unwrap_or(enrolled.weight.max(1));
        if weight == 0 {
            self.may_give_up(member)?;
        } else if enrolled.is_leaving {
            return Err(Refused::Unfit(format!(
                "member {member} leaves; start its process again afterwards"
            )));
        }
        Ok(Input::Weigh { member, weight })
    }

    /// The part of the data that a backend gets, if that can be.
    fn place(&self, name: &str, weight: u32) -> std::result::Result<Input, Refused> {
        let refuse = |what: String| Err(Refused::Unfit(what));
        let Some(backend) = self.backends.iter().find(|backend| backend.name == name) else {
            return refuse(format!("there is no backend {name}"));
        };
        let weights = self.machine.backend_weights();
        if weight == 0 && weights.iter().all(|(number, weight)| *number == backend.number || *weight == 0) {
            return refuse(format!("no other backend takes the data of {name}"));
        }
        Ok(Input::WeighBackend { backend: backend.number, weight })
    }

    fn enrolled(&self, member: MemberId) -> std::result::Result<Enrolled, Refused> {
        let found = self.machine.members().find(|(id, _)| *id == member).map(|(_, enrolled)| enrolled);
        found.ok_or_else(|| Refused::Unfit(format!("there is no member {member}")))
    }

    /// Whether there is another member to take a member's partitions.
    fn may_give_up(&self, member: MemberId) -> std::result::Result<(), Refused> {
        self.enrolled(member)?;
        let takes = |(id, enrolled): (MemberId, Enrolled)| {
            id != member && enrolled.weight > 0 && !enrolled.is_leaving
        };
        if self.machine.members().any(takes) {
            return Ok(());
        }
        Err(Refused::Unfit(format!("nobody else takes the partitions of member {member}")))
    }

    /// Whether nothing speaks against a member's death: a member that was just heard is not dead.
    fn may_be_dead(&self, member: MemberId) -> std::result::Result<(), Refused> {
        self.enrolled(member)?;
        let known = self.links.known.get(&member);
        // Its connection was seen to end.
        if known.is_some() && !self.links.is_linked(member) {
            return Ok(());
        }
        // A coordinator that has just begun has heard no member yet.
        let heard_ms = known.map_or(0, |known| known.heard_ms).max(self.began_ms);
        let silent_ms = clock::now_ms().saturating_sub(heard_ms);
        if silent_ms < self.lease_ms / 2 {
            return Err(Refused::Unfit(format!(
                "member {member} may not be dead: it, or this coordinator, was there {silent_ms} ms ago; \
                 whimbrel fleet leave has it go"
            )));
        }
        Ok(())
    }

    fn status(&self) -> FleetStatus {
        let table = self.machine.table();
        let mut owned: BTreeMap<MemberId, u64> = BTreeMap::new();
        let mut stands_by: BTreeMap<MemberId, u64> = BTreeMap::new();
        let mut placed: BTreeMap<u32, u64> = BTreeMap::new();
        let mut unowned = 0;
        for row in table.rows() {
            *placed.entry(row.backend).or_default() += 1;
            match row.holders.owner() {
                Some(owner) => *owned.entry(owner).or_default() += 1,
                None => unowned += 1,
            }
            for member in row.holders.as_slice().iter().skip(1) {
                *stands_by.entry(*member).or_default() += 1;
            }
        }
        let now_ms = clock::now_ms();
        let members = self.machine.members().map(|(id, enrolled)| {
            let known = self.links.known.get(&id);
            let hello = known.map(|known| known.hello.clone()).unwrap_or_default();
            let (lag, moves) = self.machine.lag(id).unwrap_or_default();
            MemberStatus {
                member: id.0,
                name: hello.name,
                address: hello.address,
                version: hello.version,
                weight: enrolled.weight,
                leaving: enrolled.is_leaving,
                connected: self.links.is_linked(id),
                owned: owned.get(&id).copied().unwrap_or_default(),
                stands_by: stands_by.get(&id).copied().unwrap_or_default(),
                moves,
                lag,
                silent_ms: known.map(|known| now_ms.saturating_sub(known.heard_ms)),
                held: known.map(|known| known.held).unwrap_or_default(),
                trouble: known.map(|known| known.trouble.clone()).unwrap_or_default(),
                equal: known.and_then(|known| known.stamp).map(|stamp| stamp == table.stamp()),
            }
        });
        let weights = self.machine.backend_weights();
        let mut backends: Vec<&Backend> = self.backends.iter().collect();
        backends.sort_by_key(|backend| backend.number);
        let backends = backends.into_iter().map(|backend| BackendStatus {
            number: backend.number,
            name: backend.name.clone(),
            url: backend.url.clone(),
            weight: weights.get(&backend.number).copied().unwrap_or_default(),
            partitions: placed.get(&backend.number).copied().unwrap_or_default(),
        });
        FleetStatus {
            term: self.machine.term(),
            partitions: table.partitions(),
            stamp: format!("{:016x}", table.stamp()),
            unowned,
            moving: self.machine.running() as u64,
            remaining: self.machine.remaining(),
            moved: self.moved,
            failed: self.failed,
            backends: backends.collect(),
            members: members.collect(),
            left: self.left.iter().map(|member| member.0).collect(),
        }
    }
}

/// Whether the host of this address confirms that a process listens there, or that none does. A process that
/// is being ended may listen a moment longer than its connections last.
async fn is_confirmed(address: &str, expected: Listens) -> bool {
    for _ in 0..PROBES {
        let Ok(Ok(hosts)) = timeout(PROBE_WITHIN, lookup_host(address)).await else { return false };
        let hosts: Vec<SocketAddr> = hosts.collect();
        let mut refusals = 0;
        for host in &hosts {
            match timeout(PROBE_WITHIN, TcpStream::connect(host)).await {
                Ok(Ok(_)) if expected == Listens::Yes => return true,
                Ok(Err(e)) if e.kind() == std::io::ErrorKind::ConnectionRefused => refusals += 1,
                _ => {}
            }
        }
        // If one of several hosts does not answer, the member may be there.
        if expected == Listens::No && refusals == hosts.len() && refusals > 0 {
            return true;
        }
        sleep(PROBE_PAUSE).await;
    }
    false
}

/// Writes what comes, in a thread of its own: the disk may take its time. It ends with the coordinator, or
/// when something cannot be written.
fn write_in_background(
    mut journal: impl Journal,
    events: mpsc::Sender<Event>,
) -> (SyncSender<Task>, JoinHandle<()>) {
    let (sender, tasks) = sync_channel(TASKS_MAX);
    let writer = std::thread::spawn(move || {
        while let Ok(task) = tasks.recv() {
            let event = match task {
                Task::Write(upto, records) => Event::Written(journal.write(&records).map(|()| upto)),
                Task::CheckTerm(link, message) => Event::Terms(link, message, journal.latest_term()),
            };
            let is_over = matches!(event, Event::Written(Err(_)));
            if events.blocking_send(event).is_err() || is_over {
                return;
            }
        }
    });
    (sender, writer)
}
