//! A connection that can be cut, stalled and slowed.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::error::LabError;
use crate::ports;

/// More connections than this at once are turned away: each costs two threads.
const CONNECTIONS_MAX: usize = 256;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Pieces that a distant link has under way in one direction, at most: more wait at the sender.
const UNDER_WAY_MAX: usize = 1_024;

/// How often a stalled link looks whether it goes on.
const STALL_POLL: Duration = Duration::from_millis(5);

/// How many ports are tried before giving up.
const ATTEMPTS: u32 = 8;

/// A TCP proxy on loopback in front of one server: a link that can be cut and healed.
pub struct Proxy {
    addr: SocketAddr,
    target: SocketAddr,
    /// How long each byte is under way.
    delay: Duration,
    links: Arc<Mutex<Links>>,
    /// `None` while the link is cut.
    acceptor: Mutex<Option<Acceptor>>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("addr", &self.addr)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

/// The connections that pass through.
#[derive(Default)]
struct Links {
    open: HashMap<u64, Link>,
    next: u64,
    brake: Arc<Brake>,
}

/// What holds bytes up on their way.
#[derive(Default)]
struct Brake {
    /// On connections up to this number nothing passes, silently.
    stalled: AtomicU64,
    /// How much passes on each connection, in each direction. Zero: as much as there is.
    bytes_per_second: AtomicU64,
}

impl Brake {
    /// Returns when these bytes may pass on the connection of this number.
    fn wait(&self, connection: u64, bytes: &[u8]) {
        let rate = self.bytes_per_second.load(Ordering::Acquire);
        if rate > 0 {
            thread::sleep(Duration::from_secs_f64(bytes.len() as f64 / rate as f64));
        }
        while self.stalled.load(Ordering::Acquire) >= connection {
            thread::sleep(STALL_POLL);
        }
    }
}

struct Link {
    client: TcpStream,
    server: TcpStream,
    /// Directions that still carry bytes.
    directions: u8,
}

struct Acceptor {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and passes every connection on to `target`, such as `127.0.0.1:6379`.
    ///
    /// # Errors
    /// When the address is not one, or no port is free.
    pub fn start(target: &str) -> Result<Self, LabError> {
        Self::distant(target, Duration::ZERO)
    }

    /// The same, and each byte is under way for `delay`, in either direction: a round trip takes twice as
    /// long. As many bytes pass as without. A connection is made at once.
    ///
    /// # Errors
    /// As [`Proxy::start`].
    pub fn distant(target: &str, delay: Duration) -> Result<Self, LabError> {
        let target = resolve(target)?;
        let mut attempt = 1;
        let listener = loop {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, ports::free_port()?)) {
                Ok(listener) => break listener,
                Err(_) if attempt < ATTEMPTS => attempt += 1,
                Err(source) => return Err(LabError::io("listen on loopback", source)),
            }
        };
        let addr =
            listener.local_addr().map_err(|source| LabError::io("read a listener's address", source))?;
        let links = Arc::default();
        let acceptor = Mutex::new(Some(Acceptor::start(listener, target, delay, Arc::clone(&links))));
        Ok(Self { addr, target, delay, links, acceptor })
    }

    /// Where it listens, as `127.0.0.1:PORT`.
    pub fn addr(&self) -> String {
        self.addr.to_string()
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// How many connections pass through at the moment.
    pub fn connections(&self) -> usize {
        lock(&self.links).open.len()
    }

    /// Closes all connections and refuses new ones.
    pub fn cut(&self) {
        self.go_on();
        // First no new connections, then none at all.
        if let Some(acceptor) = lock(&self.acceptor).take() {
            acceptor.stop(self.addr);
        }
        for (_, link) in lock(&self.links).open.drain() {
            link.close();
        }
    }

    /// From now on nothing passes in either direction, on all connections: they stay open, and new ones are
    /// accepted. What a network does that loses everything.
    pub fn stall(&self) {
        lock(&self.links).brake.stalled.store(u64::MAX, Ordering::Release);
    }

    /// The same on the connections that there are; what comes after them passes.
    pub fn stall_present(&self) {
        let links = lock(&self.links);
        links.brake.stalled.store(links.next, Ordering::Release);
    }

    /// From now on no more than this passes on each connection, in each direction: a long answer comes late,
    /// and a short one on another connection at once.
    pub fn narrow(&self, bytes_per_second: u64) {
        lock(&self.links).brake.bytes_per_second.store(bytes_per_second, Ordering::Release);
    }

    /// Everything passes again; what was held back comes late.
    pub fn go_on(&self) {
        lock(&self.links).brake.stalled.store(0, Ordering::Release);
    }

    /// Accepts connections again, at the same address.
    ///
    /// # Errors
    /// When another process took the port meanwhile.
    pub fn heal(&self) -> Result<(), LabError> {
        let mut acceptor = lock(&self.acceptor);
        if acceptor.is_none() {
            let listener = TcpListener::bind(self.addr)
                .map_err(|source| LabError::io(format!("listen on {} again", self.addr), source))?;
            *acceptor = Some(Acceptor::start(listener, self.target, self.delay, Arc::clone(&self.links)));
        }
        Ok(())
    }

    /// Closes all connections, and passes new ones on to another server: what a service does that keeps its
    /// name when it fails over.
    ///
    /// # Errors
    /// As [`Proxy::start`] and [`Proxy::heal`].
    pub fn lead_to(&mut self, target: &str) -> Result<(), LabError> {
        self.cut();
        self.target = resolve(target)?;
        self.heal()
    }
}

fn resolve(target: &str) -> Result<SocketAddr, LabError> {
    let unusable = |source| LabError::io(format!("use {target} as a proxy's target"), source);
    target
        .to_socket_addrs()
        .map_err(unusable)?
        .next()
        .ok_or_else(|| unusable(io::Error::from(io::ErrorKind::AddrNotAvailable)))
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Acceptor {
    fn start(listener: TcpListener, target: SocketAddr, delay: Duration, links: Arc<Mutex<Links>>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            for client in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                // A client that cannot be served sees its connection closed.
                let _ = client.and_then(|client| open(client, target, delay, &links));
            }
        });
        Self { stop, thread }
    }

    fn stop(self, addr: SocketAddr) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread; if that fails it is not waiting, but gone.
        let _ = TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT);
        let _ = self.thread.join();
    }
}

impl Link {
    fn close(&self) {
        // A side that is closed already is as wanted.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

/// Connects a client through to the target.
fn open(client: TcpStream, target: SocketAddr, delay: Duration, links: &Arc<Mutex<Links>>) -> io::Result<()> {
    if lock(links).open.len() >= CONNECTIONS_MAX {
        return Ok(());
    }
    let server = TcpStream::connect_timeout(&target, CONNECT_TIMEOUT)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let requests = (client.try_clone()?, server.try_clone()?);
    let replies = (server.try_clone()?, client.try_clone()?);

    let (id, brake) = {
        let mut links = lock(links);
        links.next += 1;
        let id = links.next;
        links.open.insert(id, Link { client, server, directions: 2 });
        (id, Arc::clone(&links.brake))
    };
    for (from, to) in [requests, replies] {
        let (links, brake) = (Arc::clone(links), Arc::clone(&brake));
        thread::spawn(move || {
            carry(&from, &to, delay, |bytes| brake.wait(id, bytes));
            finish(&links, id);
        });
    }
    Ok(())
}

/// Copies one direction until its end, and passes the end on. `wait` returns when bytes may pass.
fn carry(from: &TcpStream, to: &TcpStream, delay: Duration, wait: impl Fn(&[u8]) + Sync) {
    let deliver = |bytes: &[u8]| {
        // The end of the other side is not passed on either.
        wait(bytes);
        (&*to).write_all(bytes)
    };
    let outcome = match delay.is_zero() {
        true => read_all(from, deliver),
        false => carry_later(from, delay, deliver),
    };
    if outcome.is_err() {
        // A broken direction breaks the connection.
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Delivers what is read until the end, each piece after `delay`.
fn carry_later(
    from: &TcpStream,
    delay: Duration,
    deliver: impl Fn(&[u8]) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let (sender, under_way) = sync_channel::<(Instant, Vec<u8>)>(UNDER_WAY_MAX);
    thread::scope(|scope| {
        let delivers = scope.spawn(|| {
            let outcome = under_way.into_iter().try_for_each(|(due, bytes)| {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                deliver(&bytes)
            });
            if outcome.is_err() {
                // Ends the reading below.
                let _ = from.shutdown(Shutdown::Both);
            }
            outcome
        });
        let read = read_all(from, |bytes| {
            let piece = (Instant::now() + delay, bytes.to_vec());
            sender.send(piece).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
        });
        drop(sender);
        let delivered = delivers.join().unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::BrokenPipe)));
        read.and(delivered)
    })
}

/// Gives away what arrives until the end.
fn read_all(mut from: &TcpStream, mut give: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => give(&buffer[..length])?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Forgets a connection once both directions have ended.
fn finish(links: &Mutex<Links>, id: u64) {
    let mut links = lock(links);
    if let Some(link) = links.open.get_mut(&id) {
        link.directions -= 1;
        if link.directions == 0 {
            links.open.remove(&id);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is consistent between any two statements.
    mutex.lock()
}
