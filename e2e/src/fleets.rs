//! A fleet: coordinators and fronts, as processes, in front of one server or cluster.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use whimbrel_judge::cluster_writers::Record;
use whimbrel_judge::deployment::Deployment;
use whimbrel_lab::{Etcd, Proxy, free_port, until};

use crate::binary::{Invocation, Output, Running};

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(150);

/// How long a connection to a member that serves may take, the introduction of the client included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// A coordinator, or several on one etcd, and members.
pub struct Fleet {
    /// The members that were started and not taken out.
    pub members: Vec<Member>,
    /// The coordinators.
    pub coordinators: Vec<Coordinator>,
    /// What they share, where there are several.
    pub etcd: Option<Etcd>,
    /// What members that join are run with, where that is not the binary under test.
    binary: Option<PathBuf>,
    _folder: tempfile::TempDir,
}

/// A process of a fleet, which can be killed and run again.
pub struct Process {
    /// The one that runs.
    pub running: Running,
    args: Vec<String>,
}

/// A coordinator.
pub struct Coordinator {
    process: Process,
    port: u16,
    /// What it reaches etcd by.
    links: Vec<Proxy>,
}

/// A front that is a member.
pub struct Member {
    process: Process,
    port: u16,
    forwarding: u16,
    /// What it reaches the coordinators by.
    links: Vec<Proxy>,
}

impl Fleet {
    /// With N members in front of a backend, and all partitions where they belong. `more` are arguments
    /// of the coordinator besides.
    #[track_caller]
    pub fn start(backend: &str, members: usize, more: &[&str]) -> Fleet {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().to_str().expect("a name").to_owned();
        // Longer than a busy machine leaves any process waiting.
        let lease = if more.contains(&"--lease") { &[][..] } else { &["--lease", "10s"] };
        let more: Vec<&str> = ["--state-dir", &state].iter().chain(lease).chain(more).copied().collect();
        let coordinators = vec![Coordinator::start(backend, Vec::new(), &more, None)];
        let (etcd, binary) = (None, None);
        Fleet { members: Vec::new(), coordinators, etcd, binary, _folder: folder }.filled(members)
    }

    /// Three coordinators on an etcd, and three members, all run with another binary.
    #[track_caller]
    pub fn start_with(binary: &Path, backend: &str, more: &[&str]) -> Fleet {
        Fleet::on_etcd(backend, more, Some(binary)).filled(3)
    }

    /// The same with three coordinators on an etcd of three servers.
    #[track_caller]
    pub fn start_on_etcd(backend: &str, members: usize, more: &[&str]) -> Fleet {
        Fleet::on_etcd(backend, more, None).filled(members)
    }

    #[track_caller]
    fn on_etcd(backend: &str, more: &[&str], binary: Option<&Path>) -> Fleet {
        let folder = tempfile::tempdir().expect("a folder");
        let etcd = Etcd::start(3).expect("an etcd");
        let coordinator = |_| {
            let links: Vec<Proxy> = etcd.nodes().iter().map(|node| link_to(&node.addr())).collect();
            let store = format!("etcd://{}", addresses(&links));
            let more: Vec<&str> = ["--store", &store].iter().chain(more).copied().collect();
            Coordinator::start(backend, links, &more, binary)
        };
        let coordinators = (0..3).map(coordinator).collect();
        let (etcd, binary) = (Some(etcd), binary.map(Path::to_owned));
        let fleet = Fleet { members: Vec::new(), coordinators, etcd, binary, _folder: folder };
        until("one leads", || fleet.status().map(drop));
        fleet
    }

    fn filled(mut self, members: usize) -> Fleet {
        for number in 0..members {
            self.join(&format!("front-{number}"), &[]);
        }
        self.settled(members);
        self
    }

    /// Where the coordinators are.
    pub fn coordinator(&self) -> String {
        let all: Vec<String> =
            self.coordinators.iter().map(|one| format!("127.0.0.1:{}", one.port)).collect();
        all.join(",")
    }

    /// One more member, which has not got its part yet. `more` are arguments besides.
    #[track_caller]
    pub fn join(&mut self, name: &str, more: &[&str]) -> &mut Member {
        let (port, forwarding) = (free_port().expect("a port"), free_port().expect("a port"));
        let (listen, forward) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{forwarding}"));
        let links: Vec<Proxy> =
            self.coordinators.iter().map(|one| link_to(&format!("127.0.0.1:{}", one.port))).collect();
        let at = addresses(&links);
        let args =
            ["front", "--join", &at, "--listen", &listen, "--forward-listen", &forward, "--name", name];
        let args = args.into_iter().chain(["--json"]).chain(more.iter().copied());
        let args: Vec<String> = args.map(str::to_owned).collect();
        let process = Process::start(self.binary.as_deref(), args);
        self.members.push(Member { process, port, forwarding, links });
        self.members.last_mut().expect("it was just added")
    }

    /// `whimbrel fleet` with these words.
    pub fn command(&self, words: &[&str]) -> Output {
        let at = self.coordinator();
        let words: Vec<&str> =
            ["fleet"].iter().chain(words).copied().chain(["--server", &at, "--json"]).collect();
        Invocation::new(&words).run()
    }

    /// How it stands; nothing where the coordinator does not answer.
    pub fn status(&self) -> Option<Value> {
        let output = self.command(&["status"]);
        let line: Value = serde_json::from_str(&output.stdout).ok()?;
        (line["event"] == "fleet").then_some(line)
    }

    /// Waits until there are this many members, all have their part, and all have the same table.
    #[track_caller]
    pub fn settled(&self, members: usize) -> Value {
        until(&format!("{members} members have their parts"), || {
            let status = self.status()?;
            let count = status["fleet"]["members"].as_array()?.len();
            (status["settled"] == true && count == members).then_some(status)
        })
    }

    /// Panics unless everything is there that was acknowledged, as clients of clusters see it.
    ///
    /// On a busy machine a member may have to join once more after the fleet has settled. Its part comes back
    /// to it, and then it is looked again.
    #[track_caller]
    pub fn assert_kept(&self, record: &Record) {
        let check = || record.check(&Deployment::at(self.members[0].address()).ok()?).ok();
        record.assert_none(&until("each key is read where its slot is said to be", check));
    }

    /// Where clients of clusters connect.
    pub fn addresses(&self) -> Vec<String> {
        self.members.iter().map(Member::address).collect()
    }
}

impl Coordinator {
    #[track_caller]
    fn start(backend: &str, links: Vec<Proxy>, more: &[&str], binary: Option<&Path>) -> Coordinator {
        let port = free_port().expect("a port");
        let (listen, backend) = (format!("127.0.0.1:{port}"), format!("main={backend}"));
        let args = ["serve", "--fleet", "--listen", &listen, "--backend", &backend, "--json"];
        let args: Vec<String> = args.into_iter().chain(more.iter().copied()).map(str::to_owned).collect();
        Coordinator { process: Process::start(binary, args), port, links }
    }

    /// What it reaches etcd by.
    pub fn links(&self) -> &[Proxy] {
        &self.links
    }
}

impl Member {
    /// What it reaches the coordinators by.
    pub fn links(&self) -> &[Proxy] {
        &self.links
    }

    /// Where clients of clusters connect.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Where others do.
    pub fn forwarding(&self) -> String {
        format!("127.0.0.1:{}", self.forwarding)
    }

    /// A connection as clients of clusters have it.
    #[track_caller]
    pub fn connect(&self) -> redis::Connection {
        connect_within(&self.address(), CONNECT_TIMEOUT).expect("a connection")
    }

    /// A connection as others have it.
    #[track_caller]
    pub fn connect_forwarding(&self) -> redis::Connection {
        connect_within(&self.forwarding(), CONNECT_TIMEOUT).expect("a connection")
    }
}

impl Process {
    #[track_caller]
    fn start(binary: Option<&Path>, args: Vec<String>) -> Process {
        Process { running: run(binary, &args), args }
    }

    /// Kills it.
    pub fn kill9(&mut self) {
        self.running.kill9();
    }

    /// Runs it again, with the binary under test.
    #[track_caller]
    pub fn run_again(&mut self) {
        self.running = run(None, &self.args);
    }

    /// Stops it as people do, and runs it again with the binary under test.
    #[track_caller]
    pub fn upgrade(&mut self) {
        self.running.terminate();
        self.running.wait(PATIENCE).expect("it ends").expect_code(0);
        self.run_again();
    }

    /// It stands still.
    pub fn suspend(&self) {
        signal(self.running.pid(), Signal::SIGSTOP);
    }

    /// It goes on.
    pub fn resume(&self) {
        signal(self.running.pid(), Signal::SIGCONT);
    }
}

impl Deref for Coordinator {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Coordinator {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Deref for Member {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Member {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

#[track_caller]
fn link_to(address: &str) -> Proxy {
    Proxy::start(address).expect("a proxy")
}

fn addresses(links: &[Proxy]) -> String {
    links.iter().map(Proxy::addr).collect::<Vec<_>>().join(",")
}

/// Sends a signal to a process that was started here.
fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id"));
    kill(pid, signal).expect("the process is there");
}

/// A connection, for clients that try another member where one takes long.
///
/// # Errors
/// Where there is none.
pub fn connect(address: &str) -> redis::RedisResult<redis::Connection> {
    connect_within(address, Duration::from_secs(5))
}

fn connect_within(address: &str, within: Duration) -> redis::RedisResult<redis::Connection> {
    redis::Client::open(format!("redis://{address}/"))?.get_connection_with_timeout(within)
}

#[track_caller]
fn run(binary: Option<&Path>, args: &[String]) -> Running {
    let mut running = Invocation::new(args).binary(binary).spawn();
    assert!(running.wait_for_text("\"serving\"", PATIENCE), "{}{}", running.stdout(), running.stderr());
    running
}
