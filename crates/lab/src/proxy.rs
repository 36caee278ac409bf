use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::error::LabError;
use crate::ports;

/// More connections than this at once are turned away: each costs two threads.
const CONNECTIONS_MAX: usize = 256;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a stalled link looks whether it goes on.
const STALL_LOOK: Duration = Duration::from_millis(5);

/// How many ports are tried before giving up.
const ATTEMPTS: u32 = 8;

/// A TCP proxy on loopback in front of one server: a link that can be cut and healed.
pub struct Proxy {
    addr: SocketAddr,
    target: SocketAddr,
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
    /// On connections up to this number nothing passes, silently.
    stalled: Arc<AtomicU64>,
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
        let acceptor = Mutex::new(Some(Acceptor::start(listener, target, Arc::clone(&links))));
        Ok(Self { addr, target, links, acceptor })
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
        lock(&self.links).stalled.store(u64::MAX, Ordering::Release);
    }

    /// The same on the connections that there are; what comes after them passes.
    pub fn stall_present(&self) {
        let links = lock(&self.links);
        links.stalled.store(links.next, Ordering::Release);
    }

    /// Everything passes again; what was held back comes late.
    pub fn go_on(&self) {
        lock(&self.links).stalled.store(0, Ordering::Release);
    }

    /// Accepts connections again, at the same address.
    ///
    /// # Errors
    /// When somebody else took the port meanwhile.
    pub fn heal(&self) -> Result<(), LabError> {
        let mut acceptor = lock(&self.acceptor);
        if acceptor.is_none() {
            let listener = TcpListener::bind(self.addr)
                .map_err(|source| LabError::io(format!("listen on {} again", self.addr), source))?;
            *acceptor = Some(Acceptor::start(listener, self.target, Arc::clone(&self.links)));
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
    fn start(listener: TcpListener, target: SocketAddr, links: Arc<Mutex<Links>>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            for client in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                // A client that cannot be served sees its connection closed.
                let _ = client.and_then(|client| open(client, target, &links));
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
fn open(client: TcpStream, target: SocketAddr, links: &Arc<Mutex<Links>>) -> io::Result<()> {
    if lock(links).open.len() >= CONNECTIONS_MAX {
        return Ok(());
    }
    let server = TcpStream::connect_timeout(&target, CONNECT_TIMEOUT)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let requests = (client.try_clone()?, server.try_clone()?);
    let replies = (server.try_clone()?, client.try_clone()?);

    let (id, stalled) = {
        let mut links = lock(links);
        links.next += 1;
        let id = links.next;
        links.open.insert(id, Link { client, server, directions: 2 });
        (id, Arc::clone(&links.stalled))
    };
    for (from, to) in [requests, replies] {
        let (links, stalled) = (Arc::clone(links), Arc::clone(&stalled));
        thread::spawn(move || {
            carry(from, to, || stalled.load(Ordering::Acquire) >= id);
            finish(&links, id);
        });
    }
    Ok(())
}

/// Copies one direction until its end, and passes the end on.
fn carry(mut from: TcpStream, mut to: TcpStream, is_stalled: impl Fn() -> bool) {
    let mut buffer = vec![0; 64 << 10];
    let outcome = loop {
        let length = match from.read(&mut buffer) {
            Ok(length) => length,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => break Err(e),
        };
        // The end of the other side is not told either.
        while is_stalled() {
            thread::sleep(STALL_LOOK);
        }
        match to.write_all(&buffer[..length]) {
            Ok(()) if length > 0 => {}
            outcome => break outcome,
        }
    };
    if outcome.is_err() {
        // A broken direction breaks the connection.
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
    let _ = to.shutdown(Shutdown::Write);
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
