//! Servers that sentinels watch: failovers are followed, nothing is lost, and no trace is left.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Commands;
use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::syncing::{Ending, Sync, comparison, deployment, fill, stop, wait_until_following};
use whimbrel_lab::{Engine, Sentinels, Server, wait_until};

const NAME: &str = "orders";

/// A writer rests this long between writes: otherwise it would take a whole processor.
const BETWEEN_WRITES: Duration = Duration::from_millis(1);

/// Sentinels of a busy machine elect none of them again and again, and take minutes for a failover.
const PATIENT: [&str; 2] = ["--retry-for", "10m"];

/// How long a failover may take. Sentinels that stood still for two seconds do nothing for half a minute, and
/// an election that fails is tried again after ten seconds.
const FAILED_OVER: Duration = Duration::from_secs(300);

/// A primary with a replica, and what watches them.
struct Watched {
    nodes: [Server; 2],
    sentinels: Sentinels,
}

impl Watched {
    fn start(engine: Engine, password: Option<&str>) -> Watched {
        let server = || Server::builder(engine).start().expect("a server starts");
        let nodes = [server(), server()];
        follow(&nodes[1], &nodes[0]);
        let sentinels = Sentinels::start(engine, NAME, &nodes[0], password).expect("sentinels start");
        Watched { nodes, sentinels }
    }

    fn address(&self) -> String {
        format!("sentinel://{}", self.sentinels.address())
    }

    /// Waits until the replica has taken the place of the primary, which was killed, and has that come back
    /// as its replica.
    fn fails_over(&self) {
        let promoted = self.nodes[1].port();
        let deadline = Instant::now() + FAILED_OVER;
        while self.sentinels.primary_port() != Some(promoted) {
            assert!(Instant::now() < deadline, "the sentinels do not agree on the new primary");
            thread::sleep(Duration::from_millis(50));
        }
        self.nodes[0].restart().expect("it comes back");
        while !is_replica(&self.nodes[0]) {
            assert!(Instant::now() < deadline, "the old primary does not follow the new one");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until each sentinel has asked the primary for its replicas once more.
    fn wait_for_poll(&self) {
        for sentinel in self.sentinels.nodes() {
            let age_ms = || -> u64 {
                let fields: Vec<String> =
                    redis::from_redis_value(sentinel.call(&["SENTINEL", "MASTER", NAME])).expect("fields");
                let age = fields.chunks(2).find(|pair| pair[0] == "info-refresh").expect("it answers");
                age[1].parse().expect("a number")
            };
            let mut last = age_ms();
            wait_until("a sentinel asks again", || {
                let now = age_ms();
                let has_asked = now < last;
                last = now;
                has_asked
            });
        }
    }

    /// The sentinels know the two servers, and nobody else.
    #[track_caller]
    fn assert_no_trace(&self) {
        let own: Vec<String> = self.nodes.iter().map(|node| node.port().to_string()).collect();
        let known = self.sentinels.replica_ports();
        assert!(!known.is_empty() && known.iter().all(|port| own.contains(port)), "{known:?}, not {own:?}");
        for sentinel in self.sentinels.nodes() {
            let kept = fs::read_to_string(sentinel.dir().join("server.conf")).expect("it is there");
            let replicas = kept.lines().filter(|line| line.contains("known-") && line.contains(NAME));
            let replicas = replicas.filter(|line| line.contains("replica") || line.contains("slave"));
            for line in replicas {
                assert!(own.iter().any(|port| line.ends_with(port.as_str())), "{line}");
            }
        }
    }
}

fn follow(replica: &Server, primary: &Server) {
    replica.call(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    wait_until("the replica follows", || info(replica).contains("master_link_status:up"));
}

/// Ends the link of the server's replica, but not that of the feed: what is written from now on does not even
/// wait in the replica's socket.
fn disconnect_replica(primary: &Server) {
    let clients: String =
        redis::from_redis_value(primary.call(&["CLIENT", "LIST", "TYPE", "replica"])).expect("a list");
    let replica = clients.lines().find(|line| !line.contains("name=whimbrel")).expect("it is connected");
    let id = replica.split(' ').find_map(|field| field.strip_prefix("id=")).expect("it has an id");
    primary.call(&["CLIENT", "KILL", "ID", id]);
}

fn info(server: &Server) -> String {
    redis::from_redis_value(server.call(&["INFO", "replication"])).expect("text")
}

/// Whether it follows another server. A sentinel that turns a server into a replica ends all its clients, so
/// the question may go unanswered.
fn is_replica(server: &Server) -> bool {
    let reply = server.try_call(&["INFO", "replication"]).ok();
    let info: Option<String> = reply.and_then(|reply| redis::from_redis_value(reply).ok());
    info.is_some_and(|info| info.contains("role:slave"))
}

fn offset(server: &Server) -> String {
    let info = info(server);
    info.lines().find_map(|line| line.strip_prefix("master_repl_offset:")).unwrap_or_default().to_owned()
}

/// A client that writes to whichever server is the primary, and remembers what was acknowledged.
struct Writer {
    at: Mutex<Option<String>>,
    acknowledged: AtomicU64,
    is_over: AtomicBool,
}

impl Writer {
    fn new(server: &Server) -> Writer {
        let at = Mutex::new(Some(server.url()));
        Writer { at, acknowledged: AtomicU64::new(0), is_over: AtomicBool::new(false) }
    }

    fn run(&self) {
        let mut n = 0u64;
        let mut connection: Option<(String, redis::Connection)> = None;
        while !self.is_over.load(Ordering::Relaxed) {
            let at = self.at.lock();
            let Some(url) = at.as_ref() else {
                drop(at);
                thread::sleep(BETWEEN_WRITES);
                continue;
            };
            if connection.as_ref().is_none_or(|(known, _)| known != url) {
                let open = redis::Client::open(url.as_str()).and_then(|client| client.get_connection());
                connection = open.ok().map(|open| (url.clone(), open));
            }
            let Some((_, open)) = &mut connection else {
                drop(at);
                thread::sleep(BETWEEN_WRITES);
                continue;
            };
            n += 1;
            let set: redis::RedisResult<()> = open.set(format!("written:{}", n % 500), n);
            if set.is_ok() {
                self.acknowledged.store(n, Ordering::Relaxed);
            } else {
                connection = None;
            }
            drop(at);
            thread::sleep(BETWEEN_WRITES);
        }
    }

    /// Nothing is under way any more, until [`Writer::resume`].
    fn hold(&self) {
        *self.at.lock() = None;
    }

    fn resume(&self, server: &Server) {
        *self.at.lock() = Some(server.url());
    }

    #[track_caller]
    fn wait_for(&self, more: u64) {
        let from = self.acknowledged.load(Ordering::Relaxed);
        wait_until("writes are acknowledged", || self.acknowledged.load(Ordering::Relaxed) >= from + more);
    }
}

/// The source fails over while it is followed. What the old primary alone had acknowledged is gone, on the
/// target as well; all else arrives; the sentinels have heard of no replica that is none.
fn a_sync_follows_a_failover(engine: Engine) {
    let source = Watched::start(engine, None);
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    fill(&deployment(source.nodes[0].addr()));
    let writer = Writer::new(&source.nodes[0]);
    thread::scope(|scope| {
        let _ending = Ending(&writer.is_over);
        scope.spawn(|| writer.run());
        let job = Sync::new(&source.address(), &target.addr(), &PATIENT);
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        writer.wait_for(200);
        source.wait_for_poll();
        writer.hold();
        let [old, new] = &source.nodes;
        wait_until("the replica has everything", || offset(old) == offset(new));
        new.suspend().expect("suspended");
        disconnect_replica(old);
        old.call(&["SET", "lost", "with the old primary"]);
        wait_until("what will be lost is on the target", || {
            target.call(&["EXISTS", "lost"]) == redis::Value::Int(1)
        });
        old.kill9().expect("killed");
        new.resume().expect("it goes on");
        source.fails_over();
        writer.resume(new);
        writer.wait_for(500);
        job.cutover_without_fence();
        writer.is_over.store(true, Ordering::Relaxed);
        job.cutover_without_fence();
        stop(sync);
        assert_eq!(new.call(&["EXISTS", "lost"]), redis::Value::Int(0), "the failover has lost it");
        comparison().assert_equal(&deployment(new.addr()), &deployment(target.addr()));
        let last = writer.acknowledged.load(Ordering::Relaxed);
        let kept: u64 = target.connection().get(format!("written:{}", last % 500)).expect("it is there");
        assert!(kept >= last, "{kept} instead of {last}");
    });
    source.assert_no_trace();
}

/// A feed from a server that sentinels watch, which was named by its own address.
fn a_feed_leaves_no_trace(engine: Engine) {
    let source = Watched::start(engine, None);
    let target = Server::builder(engine).start().expect("the target starts");
    let job = Sync::new(&source.nodes[0].addr(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    assert!(info(&source.nodes[0]).contains("connected_slaves:2"), "the feed is one of them");
    source.wait_for_poll();
    source.assert_no_trace();
    stop(sync);
}

/// The target fails over while it is written to: what it lost is written again.
fn a_target_may_fail_over(engine: Engine) {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Watched::start(engine, None);
    fill(&deployment(source.addr()));
    let writer = Writer::new(&source);
    thread::scope(|scope| {
        let _ending = Ending(&writer.is_over);
        scope.spawn(|| writer.run());
        let job = Sync::new(&source.addr(), &target.address(), &PATIENT);
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        writer.wait_for(200);
        target.nodes[0].kill9().expect("killed");
        target.fails_over();
        writer.wait_for(200);
        job.cutover_without_fence();
        writer.is_over.store(true, Ordering::Relaxed);
        job.cutover_without_fence();
        stop(sync);
        comparison().assert_equal(&deployment(source.addr()), &deployment(target.nodes[1].addr()));
    });
    target.assert_no_trace();
}

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
    a_sync_follows_a_failover
}

whimbrel_lab::for_each_engine! {
    on Redis60 Redis70 Redis86 Valkey91:
    a_feed_leaves_no_trace
}

whimbrel_lab::for_each_engine! {
    on Redis86 Valkey81:
    a_target_may_fail_over
}

/// Copy and verify find the primary by the sentinels, which have a password of their own.
#[test]
fn sentinels_with_a_password_are_asked() {
    let source = Watched::start(Engine::Redis70, Some("guarded"));
    let target = Server::builder(Engine::Redis70).start().expect("the target starts");
    fill(&deployment(source.nodes[0].addr()));
    let run = |command: &str| {
        Invocation::new(&[command, &source.address(), &target.addr(), "--db", "0"])
            .env("WHIMBREL_SOURCE_SENTINEL_PASSWORD", "guarded")
            .run()
            .expect_code(0)
    };
    run("copy");
    run("verify");
    let refused = Invocation::new(&["copy", &source.address(), &target.addr()]).run().expect_code(3);
    assert!(refused.stderr.contains("password"), "{}", refused.stderr);
    source.assert_no_trace();
}

/// What is wrong is said in one line, and nothing is written.
#[test]
fn a_name_that_no_sentinel_knows_is_refused() {
    let source = Watched::start(Engine::Redis70, None);
    let target = Server::builder(Engine::Redis70).start().expect("the target starts");
    let unknown = source.address().replace(NAME, "invoices");
    let refused = Invocation::new(&["copy", &unknown, &target.addr()]).run().expect_code(4);
    assert!(refused.stderr.contains("know no primary of the name invoices"), "{}", refused.stderr);
    assert_eq!(refused.stderr.lines().count(), 2, "{}", refused.stderr);
    for node in source.sentinels.nodes() {
        node.kill9().expect("killed");
    }
    let silent = Invocation::new(&["copy", &source.address(), &target.addr()]).run().expect_code(3);
    assert!(silent.stderr.contains("see that the sentinels are up"), "{}", silent.stderr);
}
