//! A member of the measured fleet: a process that holds entries in memory, and gives them away when it is
//! ordered to.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use whimbrel_core::fleet::{Action, Member, MemberId, MemberInput, Move, Partition, ToMember};
use whimbrel_engine::clock;

use super::entries::{Entries, digest};
use super::link::{self, Frames, Kind};

/// How often it looks at the clock.
const TICK: Duration = Duration::from_millis(20);

const RETRY_MS: u64 = 1_000;

/// What a thread of the process hears.
enum Heard {
    Coordinator(Kind, Vec<u8>),
    /// From a member that gives data, and where to answer.
    Data(Vec<u8>, usize),
    NewPeer(TcpStream),
    Answered(Kind, Vec<u8>),
    /// A connection has ended: the measurement is over, or broken.
    Ended,
}

struct Process {
    member: Member,
    coordinator: TcpStream,
    unsent: Vec<u8>,
    data: HashMap<Partition, Vec<Vec<u8>>>,
    ports: HashMap<MemberId, u16>,
    /// Where this one gives data, and what it has to say there.
    outgoing: HashMap<MemberId, (TcpStream, Vec<u8>)>,
    /// From where it is given data, and what it has to answer.
    incoming: Vec<(TcpStream, Vec<u8>)>,
    heard: Sender<Heard>,
}

/// Is a member until the coordinator goes away. `entries` are those of the first member.
///
/// # Errors
/// When connections break in the middle.
pub fn run(coordinator_port: u16, token: u64, entries: Option<Entries>) -> anyhow::Result<()> {
    let mut coordinator =
        TcpStream::connect(("127.0.0.1", coordinator_port)).context("reach the coordinator")?;
    coordinator.set_nodelay(true)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("listen for data")?;
    let mut hello = Vec::new();
    let port = u64::from(listener.local_addr()?.port());
    link::frame(&mut hello, Kind::Addresses, |out| link::put(out, &[token, port]));
    coordinator.write_all(&hello)?;
    let (heard, hears) = channel();
    hear(&coordinator, heard.clone(), Heard::Coordinator)?;
    let accepted = heard.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if accepted.send(Heard::NewPeer(stream)).is_err() {
                return;
            }
        }
    });
    let mut process = Process {
        member: Member::new(token, 1, RETRY_MS),
        coordinator,
        unsent: Vec::new(),
        data: entries.map(|entries| entries.by_partition()).unwrap_or_default(),
        ports: HashMap::new(),
        outgoing: HashMap::new(),
        incoming: Vec::new(),
        heard,
    };
    process.work(&hears)
}

/// Has a thread read frames from a connection.
fn hear(
    stream: &TcpStream,
    heard: Sender<Heard>,
    what: impl Fn(Kind, Vec<u8>) -> Heard + Send + 'static,
) -> anyhow::Result<()> {
    let mut frames = Frames::new(stream.try_clone()?);
    thread::spawn(move || {
        while let Ok(Some((kind, bytes))) = frames.next() {
            if heard.send(what(kind, bytes)).is_err() {
                return;
            }
        }
        // Nobody listens any more where the process ends anyway.
        let _ = heard.send(Heard::Ended);
    });
    Ok(())
}

impl Process {
    fn work(&mut self, hears: &Receiver<Heard>) -> anyhow::Result<()> {
        let mut tick_at_ms = 0;
        loop {
            if clock::now_ms() >= tick_at_ms {
                tick_at_ms = clock::now_ms() + TICK.as_millis() as u64;
                self.take_in(MemberInput::Tick)?;
            }
            self.flush()?;
            let mut next = match hears.recv_timeout(TICK) {
                Ok(heard) => Some(heard),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            // What has come meanwhile is answered together.
            while let Some(heard) = next {
                if matches!(heard, Heard::Ended) {
                    return Ok(());
                }
                self.take(heard)?;
                next = hears.try_recv().ok();
            }
        }
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        link::flush(&mut self.coordinator, &mut self.unsent)?;
        let peers = self.outgoing.values_mut().chain(&mut self.incoming);
        peers.into_iter().try_for_each(|(stream, unsent)| link::flush(stream, unsent))
    }

    fn take(&mut self, heard: Heard) -> anyhow::Result<()> {
        match heard {
            Heard::Coordinator(Kind::Message, bytes) => {
                self.take_in(MemberInput::Message(ToMember::decode(&bytes).context("hear the coordinator")?))
            }
            Heard::Coordinator(Kind::Addresses, bytes) => {
                let numbers: Vec<u64> = link::numbers(&bytes).collect();
                for pair in numbers.as_chunks::<2>().0 {
                    self.ports.insert(MemberId(u32::try_from(pair[0])?), u16::try_from(pair[1])?);
                }
                Ok(())
            }
            Heard::Coordinator(Kind::Holdings, _) => {
                self.send_holdings();
                Ok(())
            }
            Heard::NewPeer(stream) => {
                stream.set_nodelay(true)?;
                let at = self.incoming.len();
                hear(&stream, self.heard.clone(), move |_, bytes| Heard::Data(bytes, at))?;
                self.incoming.push((stream, Vec::new()));
                Ok(())
            }
            Heard::Data(bytes, from) => self.take_data(&bytes, from),
            Heard::Answered(kind, bytes) => {
                let (moving, _) = Move::decode(&bytes).context("hear another member")?;
                let is_taken = kind == Kind::Taken;
                self.take_in(match is_taken {
                    true => MemberInput::Transferred(moving),
                    false => MemberInput::TransferFailed(moving),
                })
            }
            Heard::Coordinator(kind, _) => bail!("the coordinator sends {kind:?}"),
            Heard::Ended => Ok(()),
        }
    }

    /// Takes in the entries of a partition, if the move is still wanted.
    fn take_data(&mut self, bytes: &[u8], from: usize) -> anyhow::Result<()> {
        let (moving, mut rest) = Move::decode(bytes).context("hear another member")?;
        let is_wanted = self.member.offered(&moving);
        if is_wanted {
            let mut entries = Vec::new();
            while let Some((length, tail)) = rest.split_first_chunk::<4>() {
                let (entry, tail) = tail
                    .split_at_checked(u32::from_le_bytes(*length) as usize)
                    .context("an entry ends too early")?;
                entries.push(entry.to_vec());
                rest = tail;
            }
            self.data.insert(moving.partition, entries);
        }
        let kind = if is_wanted { Kind::Taken } else { Kind::Refused };
        link::frame(&mut self.incoming[from].1, kind, |out| moving.encode(out));
        Ok(())
    }

    fn take_in(&mut self, input: MemberInput) -> anyhow::Result<()> {
        let mut actions = Vec::new();
        self.member.handle(clock::now_ms(), input, &mut actions);
        for action in actions {
            match action {
                Action::Send(message) => {
                    link::frame(&mut self.unsent, Kind::Message, |out| message.encode(out))
                }
                Action::Transfer(moving) => self.give_data(moving)?,
                // Nobody writes while partitions move: there is nothing that has changed.
                Action::Drain(moving) => self.take_in(MemberInput::Drained(moving))?,
                Action::Discard(partition) => {
                    self.data.remove(&partition);
                }
                // All rows have the same backend.
                Action::Leave(..) => {}
            }
        }
        Ok(())
    }

    fn give_data(&mut self, moving: Move) -> anyhow::Result<()> {
        let destination = moving.destination;
        if !self.outgoing.contains_key(&destination) {
            let port = *self.ports.get(&destination).context("nobody said where the destination is")?;
            let stream = TcpStream::connect(("127.0.0.1", port)).context("reach another member")?;
            stream.set_nodelay(true)?;
            hear(&stream, self.heard.clone(), Heard::Answered)?;
            self.outgoing.insert(destination, (stream, Vec::new()));
        }
        let Some((_, unsent)) = self.outgoing.get_mut(&destination) else { return Ok(()) };
        let entries = self.data.get(&moving.partition).map_or(&[][..], Vec::as_slice);
        link::frame(unsent, Kind::Data, |out| {
            moving.encode(out);
            for entry in entries {
                out.extend_from_slice(&(entry.len() as u32).to_le_bytes());
                out.extend_from_slice(entry);
            }
        });
        Ok(())
    }

    /// The stamp of its table, then for each partition that it has entries of its number, how many, and their
    /// digest.
    fn send_holdings(&mut self) {
        let (member, data) = (&self.member, &self.data);
        link::frame(&mut self.unsent, Kind::Holdings, |out| {
            link::put(out, &[member.table().stamp()]);
            for (partition, entries) in data.iter().filter(|(_, entries)| !entries.is_empty()) {
                link::put(out, &[u64::from(*partition), entries.len() as u64, digest(entries)]);
            }
        });
    }
}
