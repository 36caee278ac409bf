//! Moves the keys of slots between two primaries of real clusters, while clients write, and compares both
//! sides.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use redis::{Connection, Value, cmd};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::{Slot, SlotRange, SlotSet, tag_for_slot};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::{Address, Endpoint};
use whimbrel_engine::error::Side;
use whimbrel_engine::feed::{Feed, FeedKind, FeedOptions};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::probe::Info;
use whimbrel_flow::budget::Rates;
use whimbrel_flow::slots::{Level, SlotMover, SlotOptions, SlotProgress, TargetGate, count_keys};
use whimbrel_lab::{Cluster, Engine};

whimbrel_lab::for_each_engine! {
    async
        keys_of_slots_move_while_clients_write
}

whimbrel_lab::for_each_engine! {
    async on Redis70 Valkey91:
        a_rate_holds_from_the_beginning
}

whimbrel_lab::for_each_engine! {
    async on Redis70 Valkey91:
        keys_move_with_a_tracking_feed_as_well
}

whimbrel_lab::for_each_engine! {
    async on Redis70 Valkey91:
        keys_that_expire_while_they_are_compared_do_not_differ
}

/// From this size on a value moves in chunks here, so that a few thousand elements are enough.
const BIG_KEY_BYTES: u64 = 64 << 10;

/// A client rests this long between two turns. It leaves the processors to what is tested.
const WRITERS_PAUSE: Duration = Duration::from_millis(3);

/// The slots that move: the first hundred of the first primary.
fn moving_slots() -> SlotSet {
    let slot = |n| Slot::new(n).expect("a slot");
    SlotSet::from_ranges([SlotRange::new(slot(0), slot(99)).expect("a range")])
}

fn key(slot: u16, name: &str) -> String {
    format!("{name}:{{{}}}", tag_for_slot(Slot::new(slot).expect("a slot")))
}

struct Scene {
    cluster: Cluster,
    deployment: Arc<Deployment>,
    source: Address,
    target: Address,
}

impl Scene {
    async fn new(engine: Engine) -> Scene {
        let cluster = Cluster::builder(engine).primaries(3).start().expect("a cluster");
        let endpoint = Endpoint::parse(Side::Source, &cluster.seed()).expect("an endpoint");
        let deployment = Deployment::probe(endpoint, LinkOptions::default()).await.expect("probed");
        let address = |i: usize| {
            let addr = cluster.nodes()[i].addr();
            Address::parse_tcp(&addr).expect("an address")
        };
        let (source, target) = (address(0), address(1));
        let mut link = cluster.connection_to(1);
        for slot in &moving_slots() {
            let mut import = cmd("CLUSTER");
            import.arg("SETSLOT").arg(slot.number()).arg("IMPORTING").arg(cluster.node_id(0));
            import.exec(&mut link).expect("marked");
        }
        Scene { cluster, deployment: Arc::new(deployment), source, target }
    }

    fn fill(&self) {
        let mut link = self.cluster.connection_to(0);
        for slot in 0..100_u16 {
            let set = |i: u32| cmd("SET").arg(key(slot, &format!("s{i}"))).arg(format!("v{i}")).clone();
            (0..5).for_each(|i| set(i).exec(&mut link).expect("set"));
            let mut expiring = cmd("SET");
            expiring
                .arg(key(slot, "e"))
                .arg("x")
                .arg("PX")
                .arg(900_000 + u64::from(slot))
                .exec(&mut link)
                .expect("set");
            for (command, name, args) in [
                ("HSET", "h", vec!["f1", "1", "f2", "2"]),
                ("SADD", "m", vec!["a", "b"]),
                ("ZADD", "z", vec!["1.5", "a", "2", "b"]),
                ("RPUSH", "l", vec!["1", "2", "3"]),
                ("XADD", "x", vec!["*", "f", "v"]),
            ] {
                cmd(command).arg(key(slot, name)).arg(args).exec(&mut link).expect("filled");
            }
            cmd("XGROUP")
                .arg("CREATE")
                .arg(key(slot, "x"))
                .arg("g")
                .arg("0")
                .exec(&mut link)
                .expect("a group");
        }
        // Large ones: they move in chunks.
        for (command, width) in [("HSET", 2), ("SADD", 1), ("ZADD", 2), ("RPUSH", 1)] {
            let mut pipe = redis::pipe();
            for i in 0..20_000_u32 {
                let element = format!("element-{i:08}");
                let name = key(7, &format!("big-{command}"));
                match (command, width) {
                    ("HSET", _) => pipe.cmd(command).arg(name).arg(element).arg(i),
                    ("ZADD", _) => pipe.cmd(command).arg(name).arg(i).arg(element),
                    _ => pipe.cmd(command).arg(name).arg(element),
                }
                .ignore();
            }
            pipe.exec(&mut link).expect("a large key");
        }
    }

    /// Clients that change keys of all kinds, the large ones included, until they are stopped. How often they
    /// have is counted in `written`.
    fn write(&self, stop: &Arc<AtomicBool>, written: &Arc<AtomicU64>) -> Vec<JoinHandle<()>> {
        (0..4_u32)
            .map(|n| {
                let (mut link, stop) = (self.cluster.connection_to(0), stop.clone());
                let written = written.clone();
                std::thread::spawn(move || {
                    let mut writes = 0;
                    while !stop.load(Ordering::Relaxed) {
                        for command in changes(writes * 4 + u64::from(n)) {
                            command.query::<Value>(&mut link).expect("a write");
                        }
                        writes += 1;
                        written.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(WRITERS_PAUSE);
                    }
                })
            })
            .collect()
    }

    async fn mover(&self) -> SlotMover {
        self.mover_at(Rates::default()).await
    }

    async fn mover_at(&self, rates: Rates) -> SlotMover {
        let options = SlotOptions {
            lanes: 3,
            big_key_bytes: BIG_KEY_BYTES,
            chunk_bytes: 16 << 10,
            memory_bytes: 8 << 20,
            rates,
            job: "test".to_owned(),
            client_name: "whimbrel:job:test".into(),
            drain_ms_max: 60_000,
            gate: TargetGate::default(),
        };
        let progress = Arc::new(SlotProgress::default());
        let (deployment, stop) = (self.deployment.clone(), CancellationToken::new());
        SlotMover::open(deployment, &self.source, &self.target, options, progress, stop)
            .await
            .expect("a mover")
    }
}

/// A few commands that differ with `n`.
fn changes(n: u64) -> Vec<redis::Cmd> {
    let slot = (n % 100) as u16;
    let element = format!("element-{:08}", (n * 7_919) % 25_000);
    let mut commands = Vec::new();
    let mut add = |command: &str, args: Vec<String>| {
        let mut built = cmd(command);
        built.arg(args);
        commands.push(built);
    };
    add("INCR", vec![key(slot, "counter")]);
    add("SET", vec![key(slot, "s1"), n.to_string()]);
    add("HSET", vec![key(slot, "h"), format!("f{}", n % 10), n.to_string()]);
    add("LPUSH", vec![key(slot, "l"), n.to_string()]);
    add("XADD", vec![key(slot, "x"), "*".to_owned(), "n".to_owned(), n.to_string()]);
    match n % 5 {
        0 => add("DEL", vec![key(slot, "s2")]),
        1 => add("PEXPIRE", vec![key(slot, "s3"), "900000".to_owned()]),
        2 => add(
            "XREADGROUP",
            ["GROUP", "g", "c", "COUNT", "1", "STREAMS", &key(slot, "x"), ">"].map(str::to_owned).to_vec(),
        ),
        3 => add("SET", vec![key(slot, &format!("new{n}")), "1".to_owned()]),
        _ => add("PERSIST", vec![key(slot, "e")]),
    }
    add("HSET", vec![key(7, "big-HSET"), element.clone(), n.to_string()]);
    add("HDEL", vec![key(7, "big-HSET"), format!("element-{:08}", (n * 31) % 20_000)]);
    add("SADD", vec![key(7, "big-SADD"), format!("more-{n}")]);
    add("SREM", vec![key(7, "big-SADD"), element.clone()]);
    add("ZINCRBY", vec![key(7, "big-ZADD"), "1.25".to_owned(), element]);
    if n % 400 == 13 {
        add("PEXPIRE", vec![key(7, "big-HSET"), "900000".to_owned()]);
    }
    commands
}

fn digest(link: &mut Connection, key: &str, asking: bool) -> Value {
    if asking {
        cmd("ASKING").exec(link).expect("asked");
    }
    cmd("PEXPIRETIME").arg(key).query(link).expect("an expiry")
}

async fn moves_everything(engine: Engine, kind: Option<FeedKind>) {
    let scene = Scene::new(engine).await;
    scene.fill();
    let slots = moving_slots();
    let options = FeedOptions { kind, ..FeedOptions::default() };
    let feed = Feed::attach(&scene.deployment, &scene.source, slots.clone(), options).await.expect("a feed");
    let touched = feed.touched();
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers = scene.write(&stop, &written);
    let mut mover = scene.mover().await;
    let mut link = scene.deployment.open(&scene.source, 0).await.expect("a link");
    let counts = count_keys(&mut link, &slots).await.expect("counted");
    mover.begin_batch(feed.misses_consumer_groups());
    mover.snapshot(&counts).await.expect("a snapshot");
    let mut rounds = 0;
    // A busy machine may need more rounds until they have written enough.
    while rounds < 20 || written.load(Ordering::Relaxed) <= 100 {
        mover.catch_up(&touched).await.expect("a round");
        tokio::time::sleep(Duration::from_millis(20)).await;
        rounds += 1;
        assert!(writers.iter().all(|writer| !writer.is_finished()), "a writer has ended");
    }
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
    // The writers have stopped; what they did is what a pause would make final.
    drain(&mut link, &feed, &mut mover).await;
    let found = mover.compare(&slots, Level::Sample).await.expect("compared");
    assert_eq!(found.differences, 0, "{engine:?}: {:?}", found.shown);
    assert!(found.counted == 100 && found.compared > 0, "{found:?}");
    mover.compare_ahead(&slots).await.expect("compared");
    let found = mover.compare(&slots, Level::Full).await.expect("compared");
    assert_eq!(found.differences, 0, "{engine:?}: {:?}", found.shown);
    let (mut ours, mut theirs) = (scene.cluster.connection_to(0), scene.cluster.connection_to(1));
    for name in ["big-HSET", "big-SADD", "big-ZADD", "big-RPUSH"] {
        let name = key(7, name);
        assert_eq!(digest(&mut ours, &name, false), digest(&mut theirs, &name, true), "expiry of {name}");
        let sorted = |link: &mut Connection, asking: bool| {
            let command = match name.split(':').next() {
                Some("big-HSET") => "HGETALL",
                Some("big-SADD") => "SMEMBERS",
                Some("big-ZADD") => "ZRANGE",
                _ => "LRANGE",
            };
            if asking {
                cmd("ASKING").exec(link).expect("asked");
            }
            let mut read = cmd(command);
            read.arg(&name);
            if command == "ZRANGE" || command == "LRANGE" {
                read.arg(0).arg(-1);
            }
            if command == "ZRANGE" {
                read.arg("WITHSCORES");
            }
            let mut elements: Vec<String> = read.query(link).expect("elements");
            match command {
                "HGETALL" => {
                    let mut pairs: Vec<Vec<String>> = elements.chunks(2).map(<[String]>::to_vec).collect();
                    pairs.sort();
                    elements = pairs.concat();
                }
                "SMEMBERS" => elements.sort(),
                _ => {}
            }
            elements
        };
        assert_eq!(sorted(&mut ours, false), sorted(&mut theirs, true), "{engine:?}: elements of {name}");
    }
    // A difference is found, or the comparison above proves nothing.
    cmd("SET").arg(key(3, "s0")).arg("planted").exec(&mut ours).expect("planted");
    mover.compare_ahead(&slots).await.expect("compared");
    let found = mover.compare(&slots, Level::Full).await.expect("compared");
    assert_eq!(found.differences, 1, "{:?}", found.shown);
    cmd("SET").arg(key(4, "only here")).arg("1").exec(&mut ours).expect("planted");
    let found = mover.compare(&slots, Level::Counts).await.expect("compared");
    assert_eq!(found.differences, 1, "{:?}", found.shown);
}

async fn keys_of_slots_move_while_clients_write(engine: Engine) {
    moves_everything(engine, None).await;
}

async fn keys_move_with_a_tracking_feed_as_well(engine: Engine) {
    moves_everything(engine, Some(FeedKind::Tracking)).await;
}

/// Nobody writes any more: transfers all that the feed has reported until now.
async fn drain(source: &mut Link, feed: &Feed, mover: &mut SlotMover) {
    let info = source.call(&[b"INFO", b"replication"]).await.expect("info");
    let info = Info::parse(info.as_bytes().expect("text"));
    let offset = info.number("master_repl_offset").expect("an offset");
    assert!(feed.reach(offset, 120_000).await.expect("a feed"), "the feed reaches the offset");
    let deadline = Instant::now() + Duration::from_secs(120);
    assert!(mover.drain(&feed.touched(), deadline).await.expect("drained"), "drained in time");
}

/// Large sets have other payloads on the other side, so their elements are asked for, in several questions.
/// The time of each key comes at some moment between two of them.
async fn keys_that_expire_while_they_are_compared_do_not_differ(engine: Engine) {
    const KEYS: u32 = 300;
    const MEMBERS: u32 = 140;
    let scene = Scene::new(engine).await;
    let slots = moving_slots();
    let names: Vec<String> = (0..KEYS).map(|i| key((i % 100) as u16, &format!("set{i}"))).collect();
    let mut client = scene.cluster.connection_to(0);
    let begun = Instant::now();
    for name in &names {
        let members: Vec<String> = (0..MEMBERS).map(|i| format!("m{i}")).collect();
        cmd("SADD").arg(name).arg(members).exec(&mut client).expect("a set");
    }
    let options = FeedOptions::default();
    let feed = Feed::attach(&scene.deployment, &scene.source, slots.clone(), options).await.expect("a feed");
    let mut mover = scene.mover().await;
    let mut link = scene.deployment.open(&scene.source, 0).await.expect("a link");
    mover.begin_batch(feed.misses_consumer_groups());
    mover.snapshot(&count_keys(&mut link, &slots).await.expect("counted")).await.expect("a snapshot");
    mover.compare_ahead(&slots).await.expect("compared");
    // A busy machine needs longer until it has compared them for the first time.
    let first_ms = 5_000 + 2 * u64::try_from(begun.elapsed().as_millis()).expect("a short time");
    // What is touched from here on is compared.
    for (name, i) in names.iter().zip(0_u64..) {
        cmd("PEXPIRE").arg(name).arg(first_ms + 10 * i).exec(&mut client).expect("an expiry");
    }
    drain(&mut link, &feed, &mut mover).await;
    let mut compared = 0;
    loop {
        let left = cmd("EXISTS").arg(&names[names.len() - 1]).query::<u32>(&mut client).expect("exists");
        let found = mover.compare(&slots, Level::Full).await.expect("compared");
        assert_eq!(found.differences, 0, "{engine:?}: {:?}", found.shown);
        compared += found.compared;
        if left == 0 {
            break;
        }
    }
    assert!(compared > u64::from(KEYS) * 2, "compared {compared}");
}

/// A rate holds from the first key on: at no moment more has arrived than it allows, but for what is read
/// together.
async fn a_rate_holds_from_the_beginning(engine: Engine) {
    const PER_SECOND: u64 = 200;
    let scene = Scene::new(engine).await;
    let mut pipe = redis::pipe();
    for slot in 0..100_u16 {
        for i in 0..30 {
            pipe.cmd("SET").arg(key(slot, &format!("s{i}"))).arg(i).ignore();
        }
    }
    pipe.exec(&mut scene.cluster.connection_to(0)).expect("filled");
    let mut mover = scene.mover_at(Rates::new(Some(PER_SECOND), None)).await;
    let mut link = scene.deployment.open(&scene.source, 0).await.expect("a link");
    let counts = count_keys(&mut link, &moving_slots()).await.expect("counted");
    mover.begin_batch(false);
    let mut arrived = scene.cluster.connection_to(1);
    let began = Instant::now();
    let watch = async {
        let mut seen = 0;
        // Some seconds' worth, however long that takes.
        while seen < 3 * PER_SECOND {
            tokio::time::sleep(Duration::from_millis(20)).await;
            seen = cmd("DBSIZE").query::<u64>(&mut arrived).expect("a number");
            // A tenth of a second that nobody took, and a tenth that is read together.
            let allowed = PER_SECOND as f64 * (began.elapsed().as_secs_f64() + 0.2);
            assert!(seen as f64 <= allowed, "{engine}: {seen} keys after {:?}", began.elapsed());
        }
    };
    tokio::select! {
        done = mover.snapshot(&counts) => panic!("{engine}: it ended before it was looked at: {done:?}"),
        () = watch => {}
    }
}

/// A paused source keeps keys whose time has come, and the target does not: that is no difference, in large
/// slots either.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_slot_of_which_keys_expire_under_the_pause_is_equal() {
    const KEYS: u32 = 120_000;
    const EXPIRING: u32 = 50;
    let scene = Scene::new(Engine::Valkey81).await;
    let mut ours = scene.cluster.connection_to(0);
    for first in (0..KEYS).step_by(10_000) {
        let mut pipe = redis::pipe();
        for i in first..first + 10_000 {
            pipe.cmd("SET").arg(key(7, &format!("k{i}"))).arg(i).ignore();
        }
        pipe.exec(&mut ours).expect("filled");
    }
    let slot = Slot::new(7).expect("a slot");
    let slots = SlotSet::from_ranges([SlotRange::new(slot, slot).expect("a range")]);
    let mut mover = scene.mover().await;
    let mut link = scene.deployment.open(&scene.source, 0).await.expect("a link");
    let counts = count_keys(&mut link, &slots).await.expect("counted");
    mover.begin_batch(false);
    mover.snapshot(&counts).await.expect("a snapshot");
    let count = |link: &mut Connection| -> u32 {
        cmd("CLUSTER").arg("COUNTKEYSINSLOT").arg(7).query(link).expect("counted")
    };
    let mut theirs = scene.cluster.connection_to(1);
    assert_eq!((count(&mut ours), count(&mut theirs)), (KEYS, KEYS));
    // None goes at the source before it is paused.
    cmd("DEBUG").arg("SET-ACTIVE-EXPIRE").arg(0).exec(&mut ours).expect("set");
    let now_s: u64 = cmd("TIME").query::<Vec<u64>>(&mut ours).expect("a time")[0];
    // All at once: the time must not come before it is set.
    let mut pipe = redis::pipe();
    for i in 0..EXPIRING {
        pipe.cmd("ASKING").ignore();
        pipe.cmd("EXPIREAT").arg(key(7, &format!("k{i}"))).arg(now_s + 12).ignore();
    }
    for side in [&mut ours, &mut theirs] {
        pipe.exec(side).expect("expires");
    }
    cmd("CLIENT").arg("PAUSE").arg(120_000).arg("WRITE").exec(&mut ours).expect("paused");
    let deadline = Instant::now() + Duration::from_secs(60);
    while count(&mut theirs) > KEYS - EXPIRING {
        assert!(Instant::now() < deadline, "the target keeps what is due");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(count(&mut ours), KEYS, "a paused source keeps what is due");
    let found = mover.compare(&slots, Level::Counts).await.expect("compared");
    assert_eq!(found.differences, 0, "{:?}", found.shown);
    // A difference is found among them, or the comparison above proves nothing.
    cmd("ASKING").exec(&mut theirs).expect("asked");
    cmd("DEL").arg(key(7, "k100")).exec(&mut theirs).expect("planted");
    let found = mover.compare(&slots, Level::Counts).await.expect("compared");
    assert_eq!(found.differences, 1, "{:?}", found.shown);
    assert!(found.shown[0].contains("k100"), "{:?}", found.shown);
    cmd("CLIENT").arg("UNPAUSE").exec(&mut ours).expect("let go");
}
