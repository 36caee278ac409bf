//! Syncs of ten minutes: whimbrel is killed, its links are cut, both sides fail over, and clients write keys
//! of every type all the while. They run by `./dev soak`; `WHIMBREL_SOAK_SECONDS` makes them shorter.

use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::binary::Running;
use whimbrel_e2e::shards;
use whimbrel_e2e::syncing::{
    PATIENCE, Sync, cluster, comparison, cut, delete, deployment, failures_of, fill, finish, seconds,
    wait_until_following, writers,
};
use whimbrel_judge::cluster_writers::ClusterWriters;
use whimbrel_lab::{Cluster, Engine, Proxy, Server};

/// How long a link is cut.
const CUT: Duration = Duration::from_secs(5);

/// How long a replica may take to have everything.
const REPLICA_PATIENCE: Duration = Duration::from_secs(30);

/// A standalone server with a replica, behind addresses that stay the same when it fails over.
struct Service {
    primary: Server,
    replica: Server,
    for_clients: Proxy,
    for_whimbrel: Proxy,
}

impl Service {
    fn start(engine: Engine) -> Service {
        let start =
            || Server::builder(engine).arg("repl-diskless-sync-delay", "0").start().expect("it starts");
        let (primary, replica) = (start(), start());
        replica.call(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
        let proxy = || Proxy::start(&primary.addr()).expect("a proxy");
        Service { for_clients: proxy(), for_whimbrel: proxy(), primary, replica }
    }

    /// The primary dies, and its replica takes its place.
    fn fail_over(&mut self) {
        let deadline = Instant::now() + REPLICA_PATIENCE;
        while self.offset(&self.primary) != self.offset(&self.replica) {
            assert!(Instant::now() < deadline, "the replica does not come to what was acknowledged");
            thread::sleep(Duration::from_millis(50));
        }
        self.primary.kill9().expect("it can be killed");
        thread::sleep(Duration::from_secs(2));
        self.replica.call(&["REPLICAOF", "NO", "ONE"]);
        for proxy in [&mut self.for_clients, &mut self.for_whimbrel] {
            proxy.lead_to(&self.replica.addr()).expect("the proxy listens again");
        }
    }

    fn offset(&self, server: &Server) -> Option<String> {
        let info: String = redis::cmd("INFO").arg("replication").query(&mut server.connection()).ok()?;
        let is_linked = !info.contains("role:slave") || info.contains("master_link_status:up");
        let name = if info.contains("role:slave") { "slave_repl_offset:" } else { "master_repl_offset:" };
        info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned).filter(|_| is_linked)
    }
}

/// A sync that reaches each node of its source through a proxy, and the proxies.
fn by_links(source: &Cluster, target: &str) -> (Vec<Proxy>, Sync) {
    let nodes = shards::addresses(source);
    let proxies: Vec<Proxy> = nodes.iter().map(|node| Proxy::start(node).expect("a proxy")).collect();
    let map = |(node, proxy): (&String, &Proxy)| format!("--source-map={node}={}", proxy.addr());
    let options: Vec<String> = nodes.iter().zip(&proxies).map(map).collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let job = Sync::new(&source.seed(), target, &options);
    (proxies, job)
}

fn cut_all(proxies: &[&Proxy]) {
    thread::scope(|scope| {
        for proxy in proxies {
            scope.spawn(|| cut(proxy, CUT));
        }
    });
}

/// The primary of the first shard dies when its replica has everything that was acknowledged, and comes back
/// as replica.
fn fail_over(cluster: &Cluster, writers: &ClusterWriters) {
    {
        let _hold = writers.hold();
        thread::sleep(Duration::from_millis(500));
        cluster.kill9(0).expect("it can be killed");
    }
    cluster.wait_failover(0).expect("its replica takes over");
    thread::sleep(Duration::from_secs(5));
    cluster.nodes()[0].restart().expect("it restarts");
    cluster.wait_ok().expect("it comes back");
}

/// Does everything to a sync that it must survive, spread over the time.
fn endure(
    job: &Sync,
    mut sync: Running,
    writers: &ClusterWriters,
    links: impl Fn(),
    source: impl FnOnce(),
    target: impl FnOnce(),
) -> Running {
    let seconds = seconds("WHIMBREL_SOAK_SECONDS", 600);
    let pause = Duration::from_secs(seconds) / 6;
    let again = |mut sync: Running| {
        sync.kill9();
        assert!(writers.wait_for(400, PATIENCE), "the writers have stopped");
        job.start(&["--resume"])
    };
    // In the middle of the snapshot, which is slow on purpose.
    thread::sleep(Duration::from_millis(700));
    sync = again(sync);
    wait_until_following(&mut sync);
    thread::sleep(pause);
    links();
    thread::sleep(pause);
    source();
    assert!(writers.wait_for(400, PATIENCE), "the writers have stopped");
    thread::sleep(pause);
    sync = again(sync);
    thread::sleep(pause);
    target();
    thread::sleep(pause);
    links();
    thread::sleep(pause);
    assert!(sync.is_running(), "it has ended: {}\n{}", sync.stdout(), sync.stderr());
    wait_until_following(&mut sync);
    sync
}

#[test]
#[ignore = "takes ten minutes: ./dev soak"]
fn a_server_becomes_a_cluster() {
    let mut source = Service::start(Engine::Redis70);
    let target = cluster(Engine::Valkey81).start().expect("the target starts");
    fill(&deployment(source.primary.addr()));
    let writers = writers(&[source.for_clients.addr()], "one");
    let job = Sync::new(&source.for_whimbrel.addr(), &target.seed(), &["--db", "0"]);
    let sync = job.start(&["--rate-keys", "4000"]);
    let service = std::cell::RefCell::new(&mut source);
    let sync = endure(
        &job,
        sync,
        &writers,
        || cut_all(&[&service.borrow().for_whimbrel]),
        || {
            let _hold = writers.hold();
            service.borrow_mut().fail_over();
        },
        || fail_over(&target, &writers),
    );
    finish(
        &job,
        sync,
        writers,
        &source.replica.addr(),
        &target.seed(),
        &comparison().without_read_counters(),
    );
}

#[test]
#[ignore = "takes ten minutes: ./dev soak"]
fn a_cluster_becomes_a_cluster() {
    let source = cluster(Engine::Valkey81).start().expect("the source starts");
    let target = cluster(Engine::Valkey91).start().expect("the target starts");
    fill(&deployment(source.seed()));
    let writers = writers(&shards::addresses(&source), "two");
    let (proxies, job) = by_links(&source, &target.seed());
    let sync = job.start(&["--rate-keys", "4000"]);
    let sync = endure(
        &job,
        sync,
        &writers,
        || cut_all(&proxies.iter().collect::<Vec<_>>()),
        || fail_over(&source, &writers),
        || fail_over(&target, &writers),
    );
    finish(&job, sync, writers, &source.seed(), &target.seed(), &comparison());
}

#[test]
#[ignore = "takes ten minutes: ./dev soak"]
fn a_cluster_becomes_a_server() {
    let source = cluster(Engine::Redis80).start().expect("the source starts");
    let mut target = Service::start(Engine::Redis70);
    let from = deployment(source.seed());
    fill(&from);
    let writers = writers(&shards::addresses(&source), "three");
    let (proxies, job) = by_links(&source, &target.for_whimbrel.addr());
    let sync = job.start(&["--rate-keys", "4000"]);
    let sync = endure(
        &job,
        sync,
        &writers,
        || cut_all(&proxies.iter().collect::<Vec<_>>()),
        || fail_over(&source, &writers),
        || target.fail_over(),
    );
    // What a server of Redis 7.0 cannot hold was reported, and keeps it from taking over until it is gone.
    let failed = failures_of(&sync);
    assert!(!failed.is_empty(), "the data holds nothing that Redis 7.0 cannot hold");
    job.cutover(&["--fence", "none", "--max-pause", "2s"]).expect_code(4);
    delete(&from.refreshed().expect("the servers answer"), &failed);
    finish(&job, sync, writers, &source.seed(), &target.replica.addr(), &comparison());
}
