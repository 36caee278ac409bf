//! The coordinator of the measured fleet, in the process of the benchmark: the real machine, a real journal,
//! and members in processes of their own.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use whimbrel_control::fleet::{FleetJournal, Journal as _};
use whimbrel_core::fleet::{
    Coordinator, HOLDERS_MAX, ITEMS_MAX, Input, MemberId, Move, Options, Order, Output, Partition, Recipient,
    Record, Row, ToCoordinator, ToMember,
};
use whimbrel_engine::clock;
use whimbrel_loadgen::interrupt::Interrupt;

use super::entries::Entries;
use super::hdr::{LONGEST_NS, Sample};
use super::link::{self, Frames, Kind};
use super::size::{Mode, Size};
use crate::binaries::this_binary;

const TICK: Duration = Duration::from_millis(10);

/// Longer than any of this takes on a busy machine: then something is broken.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often the log says how many moves are left, as in the original experiment.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// What a thread of the process hears.
enum Heard {
    Connected(TcpStream),
    /// From a link by its number.
    Message(usize, Kind, Vec<u8>),
    Ended(usize),
    Journaled(u64),
    JournalFailed(String),
}

/// What was measured while partitions moved.
pub struct Measured {
    /// Time between the beginnings of two moves, as the original experiment measures, in nanoseconds.
    pub intervals: Histogram<u64>,
    /// Time from the beginning of a move until its destination knows, in nanoseconds.
    pub latencies: Histogram<u64>,
    /// Moves that the plan had.
    pub planned: u64,
    /// Moves that were made.
    pub moved: u64,
    /// How long they took.
    pub elapsed: Duration,
    /// Bytes of messages about the table, to all members.
    pub published_bytes: u64,
    /// Messages to members about moves that they had no part in.
    pub bystander_messages: u64,
    /// Transactions of the journal.
    pub journal_writes: u64,
    /// Lines of the log.
    pub log: Vec<String>,
    /// When it began.
    pub began: Instant,
    /// The same for the wall's clock.
    pub began_at: SystemTime,
    /// Single times, for logs of intervals: two for each move at most.
    pub samples: Vec<Sample>,
}

impl Measured {
    fn new(planned: u64) -> anyhow::Result<Measured> {
        Ok(Measured {
            intervals: Histogram::new_with_bounds(1, LONGEST_NS, 3)?,
            latencies: Histogram::new_with_bounds(1, LONGEST_NS, 3)?,
            planned,
            moved: 0,
            elapsed: Duration::ZERO,
            published_bytes: 0,
            bystander_messages: 0,
            journal_writes: 0,
            log: Vec::new(),
            began: Instant::now(),
            began_at: SystemTime::now(),
            samples: Vec::new(),
        })
    }

    fn sample(&mut self, is_latency: bool, time: Duration) {
        let (at, ns) = (self.began.elapsed(), nanoseconds(time));
        let of_all = if is_latency { &mut self.latencies } else { &mut self.intervals };
        of_all.saturating_record(ns);
        self.samples.push(Sample { at, is_latency, ns });
    }

    fn log(&mut self, line: String) {
        let line = format!("{} {line}", link::wall_clock());
        eprintln!("  {line}");
        self.log.push(line);
    }
}

struct Link {
    stream: TcpStream,
    gathered: Vec<u8>,
    token: u64,
    port: u64,
    member: Option<MemberId>,
}

/// A fleet under measurement.
pub struct Fleet {
    size: Size,
    mode: Mode,
    coordinator: Coordinator,
    links: Vec<Link>,
    children: Vec<Child>,
    port: u16,
    heard: Sender<Heard>,
    hears: Receiver<Heard>,
    journal: Sender<(u64, Vec<Record>)>,
    measured: Measured,
    started: HashMap<Partition, Instant>,
    last_start: Option<Instant>,
    /// Members' answers to what they have: link and numbers.
    holdings: Vec<(usize, Vec<u64>)>,
    tick_at: Instant,
    _folder: tempfile::TempDir,
}

impl Fleet {
    /// A coordinator without members.
    ///
    /// # Errors
    /// When the journal cannot be made, or nothing can be listened to.
    pub fn start(size: Size, mode: Mode, moves_per_member: u32) -> anyhow::Result<Fleet> {
        let folder = tempfile::tempdir().context("make a folder for the journal")?;
        let (journal, snapshot) = FleetJournal::open(&folder.path().join("fleet"), size.partitions)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("listen for members")?;
        let port = listener.local_addr()?.port();
        let (heard, hears) = channel();
        let connected = heard.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if connected.send(Heard::Connected(stream)).is_err() {
                    return;
                }
            }
        });
        let options = Options {
            copies: HOLDERS_MAX,
            // A machine with two cores may have no time for a member for long: that is not what is measured.
            lease_ms: 60_000,
            retry_ms: 5_000,
            moves_per_member,
            ..Options::default()
        };
        let coordinator = Coordinator::recover(snapshot, options, clock::now_ms(), &mut Vec::new());
        let journal = write_in_background(journal, heard.clone());
        Ok(Fleet {
            size,
            mode,
            coordinator,
            links: Vec::new(),
            children: Vec::new(),
            port,
            heard,
            hears,
            journal,
            measured: Measured::new(0)?,
            started: HashMap::new(),
            last_start: None,
            holdings: Vec::new(),
            tick_at: Instant::now(),
            _folder: folder,
        })
    }

    /// Does the experiment: one member gets everything, then the others join, then all partitions move.
    ///
    /// # Errors
    /// When something of it breaks, or entries are not where they should be.
    pub fn measure(mut self, limit: Duration, interrupt: &Interrupt) -> anyhow::Result<Measured> {
        let entries = Entries {
            count: self.size.entries,
            bytes: self.size.entry_bytes,
            partitions: self.size.partitions,
        };
        self.add_members(1, interrupt)?;
        self.take_in(Input::Hold(true))?;
        self.add_members(self.size.members, interrupt)?;
        self.measured = Measured::new(0)?;
        self.move_all(limit, interrupt)?;
        if self.coordinator.remaining() == 0 {
            self.check(&entries.digests(), interrupt)?;
        }
        Ok(std::mem::replace(&mut self.measured, Measured::new(0)?))
    }

    /// Starts members until there are `count`, and waits until they know the table.
    fn add_members(&mut self, count: u32, interrupt: &Interrupt) -> anyhow::Result<()> {
        while self.children.len() < count as usize {
            let mut command = this_binary()?;
            let token = (self.children.len() as u64 + 1) * 1_000;
            command.args(["partitions", "--member-of", &self.port.to_string()]);
            command.args(["--token", &token.to_string(), "--entries", &self.size.entries.to_string()]);
            command.args(["--entry-bytes", &self.size.entry_bytes.to_string()]);
            command.args(["--partitions", &self.size.partitions.to_string()]);
            if self.children.is_empty() {
                command.arg("--fills");
            }
            self.children.push(command.stdin(Stdio::null()).spawn().context("start a member")?);
        }
        self.until(interrupt, "members join", |fleet| {
            fleet.coordinator.members().count() == count as usize && fleet.coordinator.is_idle()
        })?;
        self.publish_addresses();
        self.agree(interrupt)
    }

    /// Waits until all members have the coordinator's table.
    fn agree(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.holdings.clear();
            for link in &mut self.links {
                link::frame(&mut link.gathered, Kind::Holdings, |_| {});
            }
            self.until(interrupt, "members answer", |fleet| fleet.holdings.len() == fleet.links.len())?;
            let stamp = self.coordinator.table().stamp();
            if self.holdings.iter().all(|(_, numbers)| numbers.first() == Some(&stamp)) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "members do not come to the same table");
            // A member that is asked this way gets what it lacks.
            let members: Vec<MemberId> = self.coordinator.members().map(|(id, _)| id).collect();
            members.into_iter().try_for_each(|id| self.take_in(Input::Linked(id)))?;
            self.work_for(Duration::from_millis(50))?;
        }
    }

    fn move_all(&mut self, limit: Duration, interrupt: &Interrupt) -> anyhow::Result<()> {
        let began = Instant::now();
        self.take_in(Input::Hold(false))?;
        self.measured.planned = self.coordinator.remaining();
        let planned = self.measured.planned;
        self.measured.log(format!("Re-partitioning cluster data... Migration queue size: {planned}"));
        let mut log_at = began + LOG_EVERY;
        while !(self.coordinator.is_idle() && self.coordinator.remaining() == 0) {
            interrupt.check()?;
            self.work_for(Duration::ZERO)?;
            if Instant::now() >= log_at {
                log_at += LOG_EVERY;
                let left = self.coordinator.remaining();
                self.measured.log(format!("Remaining migration tasks in queue => {left}"));
            }
            if began.elapsed() >= limit {
                break;
            }
        }
        self.measured.elapsed = began.elapsed();
        if self.coordinator.remaining() == 0 {
            self.measured.log("All migration tasks have been completed.".to_owned());
        } else {
            let moved = self.measured.moved;
            self.measured.log(format!("Stopped by the limit of time after {moved} migrations."));
        }
        Ok(())
    }

    /// Every holder of every partition has its entries, and nobody else does.
    fn check(
        &mut self,
        digests: &HashMap<Partition, (u64, u64)>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        self.agree(interrupt)?;
        let mut found = 0;
        for (link, numbers) in &self.holdings {
            let member = self.links[*link].member.context("a member without a number")?;
            for triple in numbers[1..].as_chunks::<3>().0 {
                let partition = u32::try_from(triple[0])?;
                let holders =
                    self.coordinator.table().row(partition).map(|row| row.holders).unwrap_or_default();
                ensure!(
                    holders.contains(member),
                    "member {member} still has entries of partition {partition}"
                );
                let is_whole = digests.get(&partition) == Some(&(triple[1], triple[2]));
                ensure!(
                    is_whole,
                    "member {member} has other entries of partition {partition} than were written"
                );
                found += 1;
            }
        }
        let holders = |partition: &Partition| {
            self.coordinator.table().row(*partition).map_or(0, |row| row.holders.len())
        };
        let expected: usize = digests.keys().map(holders).sum();
        ensure!(found == expected, "{found} of {expected} holders have their entries");
        Ok(())
    }

    fn until(
        &mut self,
        interrupt: &Interrupt,
        what: &str,
        done: impl Fn(&Fleet) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            interrupt.check()?;
            self.work_for(Duration::ZERO)?;
            ensure!(Instant::now() < deadline, "waited too long until {what}");
        }
        Ok(())
    }

    /// Does what there is to do, at least once.
    fn work_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + time;
        loop {
            if Instant::now() >= self.tick_at {
                self.tick_at = Instant::now() + TICK;
                self.take_in(Input::Tick)?;
            }
            self.flush()?;
            let mut next = self.hears.recv_timeout(TICK).ok();
            // What has come meanwhile is answered together.
            while let Some(heard) = next {
                self.take(heard)?;
                next = self.hears.try_recv().ok();
            }
            self.flush()?;
            if Instant::now() >= deadline {
                return Ok(());
            }
        }
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.links.iter_mut().try_for_each(|link| link::flush(&mut link.stream, &mut link.gathered))
    }

    fn take(&mut self, heard: Heard) -> anyhow::Result<()> {
        match heard {
            Heard::Connected(stream) => self.add_link(stream),
            Heard::Message(at, Kind::Addresses, bytes) => {
                let mut numbers = link::numbers(&bytes);
                let link = &mut self.links[at];
                (link.token, link.port) = numbers.next().zip(numbers.next()).context("hear a member")?;
                Ok(())
            }
            Heard::Message(_, Kind::Message, bytes) => {
                self.take_in(Input::Message(ToCoordinator::decode(&bytes).context("hear a member")?))
            }
            Heard::Message(at, Kind::Holdings, bytes) => {
                self.holdings.push((at, link::numbers(&bytes).collect()));
                Ok(())
            }
            Heard::Message(_, kind, _) => bail!("a member sends {kind:?}"),
            Heard::Ended(at) => bail!("the connection of member {} has ended", self.links[at].token),
            Heard::Journaled(upto) => {
                self.measured.journal_writes += 1;
                self.take_in(Input::Journaled { upto })
            }
            Heard::JournalFailed(what) => bail!(what),
        }
    }

    fn add_link(&mut self, stream: TcpStream) -> anyhow::Result<()> {
        stream.set_nodelay(true)?;
        let mut frames = Frames::new(stream.try_clone()?);
        let (heard, at) = (self.heard.clone(), self.links.len());
        thread::spawn(move || {
            while let Ok(Some((kind, bytes))) = frames.next() {
                if heard.send(Heard::Message(at, kind, bytes)).is_err() {
                    return;
                }
            }
            // Nobody listens any more where the measurement is over.
            let _ = heard.send(Heard::Ended(at));
        });
        self.links.push(Link { stream, gathered: Vec::new(), token: 0, port: 0, member: None });
        Ok(())
    }

    fn publish_addresses(&mut self) {
        let of = |link: &Link| link.member.map(|member| [u64::from(member.0), link.port]);
        let addresses: Vec<u64> = self.links.iter().filter_map(of).flatten().collect();
        for link in &mut self.links {
            link::frame(&mut link.gathered, Kind::Addresses, |out| link::put(out, &addresses));
        }
    }

    fn take_in(&mut self, input: Input) -> anyhow::Result<()> {
        let mut out = Vec::new();
        self.coordinator.handle(clock::now_ms(), input, &mut out);
        for output in out {
            match output {
                Output::Journal { number, records } => {
                    self.journal.send((number, records)).context("the journal has ended")?;
                }
                Output::Send { to, message, to_bystander } => self.send(to, &message, to_bystander),
                Output::Started(moving) => self.note_start(&moving),
                Output::Finished(moving) => self.note_end(&moving),
                Output::Failed(moving) => {
                    bail!("partition {} could not move to {}", moving.partition, moving.destination)
                }
                Output::Superseded => bail!("another coordinator has begun"),
            }
        }
        Ok(())
    }

    fn send(&mut self, to: Recipient, message: &ToMember, to_bystander: bool) {
        let is_news = matches!(message.body, Order::News { .. });
        if is_news && self.mode == Mode::WholeTable {
            // They get the table instead.
            return;
        }
        let link = match to {
            Recipient::Joiner(token) => self.links.iter_mut().find(|link| link.token == token),
            Recipient::Member(id) => self.links.iter_mut().find(|link| link.member == Some(id)),
        };
        let Some(link) = link else { return };
        if let Order::Welcome { member, .. } = message.body {
            link.member = Some(member);
        }
        let before = link.gathered.len();
        link::frame(&mut link.gathered, Kind::Message, |out| message.encode(out));
        let is_published = is_news
            || matches!(message.body, Order::Prepare { .. } | Order::Commit { .. } | Order::Rows { .. });
        if is_published {
            self.measured.published_bytes += (link.gathered.len() - before) as u64;
        }
        self.measured.bystander_messages +=
            u64::from(is_news && to_bystander && self.measured.moved < self.measured.planned);
    }

    fn note_start(&mut self, moving: &Move) {
        let now = Instant::now();
        if let Some(last) = self.last_start.replace(now) {
            self.measured.sample(false, now - last);
        }
        self.started.insert(moving.partition, now);
    }

    fn note_end(&mut self, moving: &Move) {
        self.measured.moved += 1;
        if let Some(started) = self.started.remove(&moving.partition) {
            self.measured.sample(true, started.elapsed());
        }
        if self.mode == Mode::WholeTable {
            self.publish_table(moving);
        }
    }

    /// What was done before there were changes: everybody gets the whole table after each move. It is encoded
    /// once.
    fn publish_table(&mut self, moving: &Move) {
        let rows: Vec<(Partition, Row)> =
            (0..).zip(self.coordinator.table().rows().iter().copied()).collect();
        let mut bytes = Vec::new();
        for rows in rows.chunks(ITEMS_MAX) {
            let body = Order::Rows { rows: rows.to_vec() };
            let message = ToMember { term: self.coordinator.term(), body };
            link::frame(&mut bytes, Kind::Message, |out| message.encode(out));
        }
        for link in &mut self.links {
            link.gathered.extend_from_slice(&bytes);
            self.measured.published_bytes += bytes.len() as u64;
            let takes_part = [Some(moving.source), Some(moving.destination)].contains(&link.member);
            self.measured.bystander_messages += u64::from(!takes_part);
        }
        // What has gathered would grow without end where members are slower than moves.
        let _ = self.flush();
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for link in &mut self.links {
            let _ = link.stream.flush();
            let _ = link.stream.shutdown(std::net::Shutdown::Both);
        }
        for child in &mut self.children {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Writes what comes, all that has gathered meanwhile in one transaction.
fn write_in_background(mut journal: FleetJournal, heard: Sender<Heard>) -> Sender<(u64, Vec<Record>)> {
    let (sender, batches) = channel::<(u64, Vec<Record>)>();
    thread::spawn(move || {
        while let Ok((mut upto, mut records)) = batches.recv() {
            while let Ok((number, more)) = batches.try_recv() {
                upto = number;
                records.extend(more);
            }
            let event = match journal.write(&records) {
                Ok(()) => Heard::Journaled(upto),
                Err(error) => Heard::JournalFailed(error.to_string()),
            };
            if heard.send(event).is_err() {
                return;
            }
        }
    });
    sender
}
