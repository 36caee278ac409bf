//! etcd on loopback, one node or three.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use parking_lot::{Mutex, MutexGuard};
use tempfile::TempDir;

use crate::binaries;
use crate::error::LabError;
use crate::ports;
use crate::process::{self, Process};

/// How long nodes may take to agree on a leader, on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a node may take to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

const POLL: Duration = Duration::from_millis(20);

/// How often other ports are tried when another process was quicker.
const ATTEMPTS: u32 = 4;

/// How much of its log a node that did not start is quoted with.
const LOG_TAIL_LINES: usize = 20;

/// An etcd on loopback, for clients without TLS. Killed, and its folders removed, on drop.
pub struct Etcd {
    nodes: Vec<EtcdNode>,
}

/// One of its processes.
pub struct EtcdNode {
    binary: PathBuf,
    args: Vec<String>,
    port: u16,
    /// Before the folder, so that the process ends first.
    process: Mutex<Process>,
    dir: TempDir,
}

impl Etcd {
    /// Starts `nodes` servers, which elect their leader within a second, and waits until all of them answer.
    ///
    /// # Errors
    /// When etcd is not on this machine, or does not become ready; then the error has the end of a log.
    pub fn start(nodes: usize) -> Result<Etcd, LabError> {
        let cached = binaries::cache_dir().map(|dir| dir.join("etcd/bin/etcd"));
        let binary = cached.filter(|path| path.is_file()).ok_or(LabError::EtcdMissing)?;
        let mut attempt = 1;
        loop {
            match Etcd::launch(&binary, nodes).and_then(Etcd::ready) {
                Err(LabError::StartFailed { log_tail, .. })
                    if attempt < ATTEMPTS && log_tail.contains("address already in use") =>
                {
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn launch(binary: &Path, count: usize) -> Result<Etcd, LabError> {
        let ports = (0..count).map(|_| Ok((ports::free_port()?, ports::free_port()?)));
        let ports: Vec<(u16, u16)> = ports.collect::<Result<_, LabError>>()?;
        let peers: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(at, (_, peer))| format!("n{at}=http://127.0.0.1:{peer}"))
            .collect();
        let nodes = ports.iter().enumerate().map(|(at, (port, peer))| {
            let dir = tempfile::Builder::new()
                .prefix("whimbrel-lab-etcd-")
                .tempdir()
                .map_err(|source| LabError::io("create a folder for etcd", source))?;
            let client_url = format!("http://127.0.0.1:{port}");
            let peer_url = format!("http://127.0.0.1:{peer}");
            let args = [
                ("name", format!("n{at}")),
                ("data-dir", dir.path().join("data").to_string_lossy().into_owned()),
                ("listen-client-urls", client_url.clone()),
                ("advertise-client-urls", client_url),
                ("listen-peer-urls", peer_url.clone()),
                ("initial-advertise-peer-urls", peer_url),
                ("initial-cluster", peers.join(",")),
                ("heartbeat-interval", "100".to_owned()),
                ("election-timeout", "1000".to_owned()),
                // A busy disk would have it elect another leader. A killed process loses nothing by this.
                ("unsafe-no-fsync", "true".to_owned()),
                ("bcrypt-cost", "4".to_owned()),
            ];
            let args: Vec<String> =
                args.into_iter().map(|(name, value)| format!("--{name}={value}")).collect();
            let process = Mutex::new(spawn(binary, &args, dir.path())?);
            Ok(EtcdNode { binary: binary.to_owned(), args, port: *port, process, dir })
        });
        Ok(Etcd { nodes: nodes.collect::<Result<_, LabError>>()? })
    }

    fn ready(self) -> Result<Etcd, LabError> {
        let deadline = Instant::now() + READY_TIMEOUT;
        for node in &self.nodes {
            node.wait_ready(deadline)?;
        }
        Ok(self)
    }

    /// Its nodes.
    pub fn nodes(&self) -> &[EtcdNode] {
        &self.nodes
    }

    /// All nodes, as `127.0.0.1:PORT,127.0.0.1:PORT`.
    pub fn addrs(&self) -> String {
        let addrs: Vec<String> = self.nodes.iter().map(EtcdNode::addr).collect();
        addrs.join(",")
    }

    /// Which of the nodes leads the others, once one that knows answers; none if no node does for a long
    /// while.
    pub fn leader(&self) -> Option<usize> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let leader = self.leader_now();
            if leader.is_some() || Instant::now() >= deadline {
                return leader;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn leader_now(&self) -> Option<usize> {
        let number = |text: &str, name: &str| {
            let (_, rest) = text.split_once(&format!("\"{name}\":\""))?;
            rest.split_once('"').map(|(number, _)| number.to_owned())
        };
        self.nodes.iter().position(|node| {
            let status = node.post("/v3/maintenance/status", "{}").unwrap_or_default();
            number(&status, "leader").is_some_and(|leader| Some(leader) == number(&status, "member_id"))
        })
    }

    /// Requires all clients to log in as `root` with this password from now on.
    ///
    /// # Errors
    /// When a node does not answer.
    pub fn require_login(&self, password: &str) -> Result<(), LabError> {
        let Some(node) = self.nodes.first() else { return Ok(()) };
        for (path, body) in [
            ("/v3/auth/user/add", format!("{{\"name\":\"root\",\"password\":\"{password}\"}}")),
            ("/v3/auth/role/add", "{\"name\":\"root\"}".to_owned()),
            ("/v3/auth/user/grant", "{\"user\":\"root\",\"role\":\"root\"}".to_owned()),
            ("/v3/auth/enable", "{}".to_owned()),
        ] {
            node.post(path, &body)?;
        }
        Ok(())
    }
}

impl EtcdNode {
    /// Where clients reach it, as `127.0.0.1:PORT`.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// SIGKILL, and waits for the end. The folder stays.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn kill9(&self) -> Result<(), LabError> {
        self.process().kill9()
    }

    /// SIGSTOP: it keeps its connections and answers nothing.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn suspend(&self) -> Result<(), LabError> {
        self.process().signal(Signal::SIGSTOP)
    }

    /// SIGCONT, after [`suspend`](Self::suspend).
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn resume(&self) -> Result<(), LabError> {
        self.process().signal(Signal::SIGCONT)
    }

    /// Starts it again, after [`kill9`](Self::kill9), on the same ports and with the same data, and waits
    /// until it answers.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn restart(&self) -> Result<(), LabError> {
        self.kill9()?;
        *self.process() = spawn(&self.binary, &self.args, self.dir.path())?;
        self.wait_ready(Instant::now() + READY_TIMEOUT)
    }

    /// Sends a request to its JSON gateway, and returns the answer's body, whatever its status.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn post(&self, path: &str, json: &str) -> Result<String, LabError> {
        let length = json.len();
        self.ask(&format!(
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{json}"
        ))
        .map_err(|source| LabError::io(format!("ask etcd at {}", self.addr()), source))
    }

    fn ask(&self, request: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }

    fn wait_ready(&self, deadline: Instant) -> Result<(), LabError> {
        loop {
            let seen = match self.ask("GET /health HTTP/1.0\r\n\r\n") {
                Ok(health) if health.contains("\"true\"") => return Ok(()),
                Ok(health) => health,
                Err(error) => error.to_string(),
            };
            if !self.process().is_running() || Instant::now() >= deadline {
                return Err(self.start_failed(&seen));
            }
            thread::sleep(POLL);
        }
    }

    fn start_failed(&self, seen: &str) -> LabError {
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        LabError::StartFailed {
            server: format!("etcd (port {})", self.port),
            reason: seen.to_owned(),
            log_tail: lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n"),
        }
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock()
    }
}

fn spawn(binary: &Path, args: &[String], dir: &Path) -> Result<Process, LabError> {
    let log = OpenOptions::new().create(true).append(true).open(dir.join("log"));
    let log = log.map_err(|source| LabError::io("open a log for etcd", source))?;
    let errors = log.try_clone().map_err(|source| LabError::io("open a log for etcd", source))?;
    let mut command = process::command(binary);
    command.args(args).stdout(log).stderr(errors);
    Process::spawn(command).map_err(|source| LabError::io("start etcd", source))
}
