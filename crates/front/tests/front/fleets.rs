//! A fleet of fronts and its coordinator, all in this process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_control::daemon::queue::Queue;
use whimbrel_control::daemon::{Daemon, DaemonOptions, Services};
use whimbrel_control::fleet::{self, Coordination, FleetOptions, FleetStatus};
use whimbrel_core::fleet::Options;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Result, Side};
use whimbrel_front::fleet::{JoinOptions, Joined};
use whimbrel_front::server::FrontOptions;
use whimbrel_lab::Server;

use crate::common::{Client, command, wait_until};

const PARTITIONS: u32 = 16;

/// What is served by members that this process has.
pub struct Fleet {
    coordinator: Option<Coordinator>,
    // Dropped before the folder.
    runtime: Arc<Runtime>,
    folder: tempfile::TempDir,
}

struct Coordinator {
    fleet: fleet::Fleet,
    port: u16,
    stop: CancellationToken,
    runs: JoinHandle<Result<()>>,
    serves: JoinHandle<()>,
}

/// A front that is a member, and serves until it is dropped.
pub struct Member {
    pub own: SocketAddr,
    pub forwarding: SocketAddr,
    runtime: Arc<Runtime>,
    stop: CancellationToken,
    serves: Option<JoinHandle<Result<bool>>>,
}

impl Fleet {
    #[track_caller]
    pub fn start(backends: &[&Server]) -> Fleet {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let (runtime, folder) =
            (Arc::new(runtime.expect("a runtime")), tempfile::tempdir().expect("a folder"));
        // Nobody else gets it while one coordinator follows another.
        let port = whimbrel_lab::free_port().expect("a port");
        let coordinator = runtime.block_on(Coordinator::start(folder.path(), port, backends));
        Fleet { coordinator: Some(coordinator), runtime, folder }
    }

    /// Its coordinator ends, and another one begins that knows these backends.
    #[track_caller]
    pub fn start_again(&mut self, backends: &[&Server]) {
        let coordinator = self.coordinator.take().expect("a coordinator");
        let (port, path) = (coordinator.port, self.folder.path());
        self.coordinator = Some(self.runtime.block_on(async {
            coordinator.end().await;
            Coordinator::start(path, port, backends).await
        }));
    }

    /// One more member. It may take `leave_patience` to give its slots to others when it leaves.
    #[track_caller]
    pub fn join(&self, backend: &Server, leave_patience: Duration) -> Member {
        let coordinator = self.coordinator.as_ref().expect("a coordinator");
        let (port, stop) = (coordinator.port, CancellationToken::new());
        let joined = self.runtime.block_on(joined(port, backend, leave_patience));
        let own = joined.announced().to_string().parse().expect("an address");
        let forwarding = joined.forwarding().expect("an address").expect("it forwards");
        let serves = Some(self.runtime.spawn(joined.serve(stop.clone())));
        Member { own, forwarding, runtime: self.runtime.clone(), stop, serves }
    }

    /// Two members that have their parts. The first one has the slot of `key`.
    #[track_caller]
    pub fn pair(&self, backend: &Server, leave_patience: Duration, key: &str) -> [Member; 2] {
        let members = [self.join(backend, leave_patience), self.join(backend, leave_patience)];
        wait_until("both have their parts", || {
            let status = self.status();
            status.is_settled() && status.members.len() == 2
        });
        let [first, second] = members;
        match first.has(key) {
            true => [first, second],
            false => [second, first],
        }
    }

    #[track_caller]
    pub fn status(&self) -> FleetStatus {
        let coordinator = self.coordinator.as_ref().expect("a coordinator");
        self.runtime.block_on(coordinator.fleet.status()).expect("it answers")
    }

    /// Requests that are under way at all members, and keep their slots.
    pub fn held_requests(&self) -> u64 {
        self.status().members.iter().map(|member| member.held).sum()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if let Some(coordinator) = &self.coordinator {
            coordinator.stop.cancel();
        }
    }
}

impl Coordinator {
    async fn start(folder: &Path, port: u16, backends: &[&Server]) -> Coordinator {
        let named = |(number, backend): (usize, &&Server)| (format!("backend-{number}"), backend.url());
        let options = FleetOptions {
            partitions: PARTITIONS,
            backends: backends.iter().enumerate().map(named).collect(),
            // No lease ends by itself, however busy the machine is.
            machine: Options { lease_ms: 60_000, ..Options::default() },
            trusts_refusals: false,
        };
        let (fleet, coordination) = Coordination::open(&folder.join("fleet"), options).expect("it opens");
        let options = DaemonOptions::new(([127, 0, 0, 1], port).into());
        let services = Services::<Queue> { jobs: None, fleet: Some(fleet.clone()) };
        let daemon = Daemon::offer(options, services).await.expect("it listens");
        let port = daemon.address().expect("it listens").port();
        let stop = CancellationToken::new();
        let serves = tokio::spawn(daemon.serve(stop.clone()));
        let runs = tokio::spawn(coordination.run(stop.clone()));
        Coordinator { fleet, port, stop, runs, serves }
    }

    async fn end(self) {
        self.stop.cancel();
        self.serves.await.expect("it ends");
        self.runs.await.expect("it ends").expect("no error");
    }
}

async fn joined(coordinator: u16, backend: &Server, leave_patience: Duration) -> Joined {
    let endpoint = |url: &str| Endpoint::parse(Side::Source, url);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let join = JoinOptions {
        coordinators: vec![endpoint(&format!("127.0.0.1:{coordinator}")).expect("an address")],
        name: None,
        announce: None,
        weight: 1,
        forward_listen: Some(any),
        leave_patience_ms: u64::try_from(leave_patience.as_millis()).expect("not that long"),
        endpoint_of: Arc::new(endpoint),
    };
    let backend = endpoint(&backend.url()).expect("an address");
    Joined::join(FrontOptions::new(any, 100), backend, join).await.expect("a member")
}

impl Member {
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::to(self.own)
    }

    /// Whether it has the slot of a key, which does not exist.
    #[track_caller]
    pub fn has(&self, key: &str) -> bool {
        let mut client = self.client();
        client.send(&command(&["GET", key]));
        match client.line().as_str() {
            "$-1\r\n" => true,
            moved if moved.starts_with("-MOVED") => false,
            other => panic!("{other}"),
        }
    }

    /// Leaves the fleet, and ends; false where others did not get all that it had in time.
    #[track_caller]
    pub fn leaves(mut self) -> bool {
        self.stop.cancel();
        let serves = self.serves.take().expect("it serves");
        self.runtime.block_on(serves).expect("it ends").expect("no error")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(serves) = self.serves.take() {
            serves.abort();
        }
    }
}
