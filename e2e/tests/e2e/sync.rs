//! Deployments are kept equal while clients write to every type, whimbrel is killed, links are cut, primaries
//! fail over and slots move. After the cutover both sides are equal by a comparison that shares no code with
//! whimbrel, and what was acknowledged by the source is on the target.

mod large_keys;
mod notified;
mod taking_over;

use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::permissions::{denied, documented, give};
use whimbrel_e2e::resharding::runs;
use whimbrel_e2e::shards;
use whimbrel_e2e::syncing::{
    KEYS, PATIENCE, Sync, cluster, comparison, cut, delete, deployment, failures_of, fill, finish, report,
    stop, wait_until_following, writers,
};
use whimbrel_judge::cluster_writers::{ClusterWriters, Load, tags_in};
use whimbrel_judge::compare::Comparison;
use whimbrel_judge::dataset::{Dataset, Scale};
use whimbrel_lab::{Cluster, Engine, Proxy, Server, wait_until};

whimbrel_lab::for_each_engine! {
    documented_permissions_are_enough
}

/// For syncs of primaries that die: on a busy machine no replica may be elected before the third time, and
/// each election that fails takes twenty seconds.
const PATIENT: [&str; 2] = ["--retry-for", "150s"];

#[test]
fn a_server_becomes_a_cluster_across_kills_cuts_and_a_failover() {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = cluster(Engine::Valkey81).start().expect("the target starts");
    fill(&deployment(source.addr()));
    let proxy = Proxy::start(&source.addr()).expect("a proxy");
    let writers = writers(&[source.addr()], "one");
    let job = Sync::new(&proxy.addr(), &target.seed(), &[&["--db", "0"][..], &PATIENT].concat());
    let mut sync = job.start(&["--rate-keys", "2000", "--lanes", "1"]);
    // In the middle of the snapshot.
    wait_until("keys arrive", || target.total_keys().is_ok_and(|keys| keys > 0));
    sync.kill9();
    let mut sync = job.start(&["--resume"]);
    wait_until_following(&mut sync);
    for _ in 0..2 {
        cut(&proxy, Duration::from_millis(1_500));
        writers.wait_for(200, PATIENCE);
    }
    sync.kill9();
    writers.wait_for(400, PATIENCE);
    let mut sync = job.start(&["--resume"]);
    wait_until_following(&mut sync);
    // The target's replica may lack what was acknowledged: it is found out and repaired.
    target.kill9(1).expect("it can be killed");
    target.wait_failover(1).expect("its replica takes over");
    writers.wait_for(400, PATIENCE);
    target.nodes()[1].restart().expect("it restarts");
    target.wait_ok().expect("it comes back");
    finish(&job, sync, writers, &source.addr(), &target.seed(), &comparison());
}

#[test]
fn a_cluster_becomes_a_cluster_while_slots_move_and_a_primary_fails_over() {
    let source = cluster(Engine::Valkey81).start().expect("the source starts");
    let target = cluster(Engine::Valkey91).start().expect("the target starts");
    fill(&deployment(source.seed()));
    let writers = writers(&shards::addresses(&source), "two");
    let job = Sync::new(&source.seed(), &target.seed(), &PATIENT);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    // Of the source by whimbrel, of the target by its own means, in both cases while keys of these slots are
    // written.
    // What is tested is the sync: on a busy machine the move may pause for longer than usual.
    let patient = ["--method", "external", "--max-pause", "20s"];
    for (cluster, method) in [(&source, &patient[..]), (&target, &["--method", "native"][..])] {
        let (seed, state) = (cluster.seed(), tempfile::tempdir().expect("a folder"));
        let state = state.path().to_str().expect("a plain path");
        let to = cluster.node_id(2);
        let args = ["reshard", &seed, "--slots", "0-499", "--to", to, "--yes", "--state-dir", state];
        let args = [&args[..], method].concat();
        whimbrel_e2e::binary::run(&args).expect_code(0);
        writers.wait_for(400, PATIENCE);
    }
    // The classic way, slot by slot.
    for slot in 5_500..5_503 {
        source.move_slot(slot, 1, 0).expect("the slot moves");
    }
    {
        // What a server acknowledges before its replica has it may be lost with it: that is the server's
        // promise.
        let _hold = writers.hold();
        shards::wait_until_follows(&source.nodes()[0], &source.replicas_of(0)[0]);
        source.kill9(0).expect("it can be killed");
    }
    source.wait_failover(0).expect("its replica takes over");
    assert!(writers.wait_for(400, PATIENCE), "the writers have stopped");
    source.nodes()[0].restart().expect("it restarts");
    source.wait_ok().expect("it comes back");
    finish(&job, sync, writers, &source.seed(), &target.seed(), &comparison());
}

/// A primary that dies while keys are looked for that only the target has is asked no longer than until its
/// replica has taken over.
#[test]
fn a_source_that_fails_over_while_the_target_is_swept_is_followed_on() {
    let source = cluster(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    fill(&deployment(source.seed()));
    shards::wait_until_follows(&source.nodes()[1], &source.replicas_of(1)[0]);
    // All of them belong to another primary: what fails of the one that dies is the question which keys it
    // has.
    let tags = tags_in(0..5_000, 1);
    let stray = |number: usize| format!("{{{}}}:stray:{number}", tags[0]);
    let mut pipe = redis::pipe();
    for number in 0..60_000 {
        pipe.cmd("SET").arg(stray(number)).arg(number).ignore();
    }
    pipe.exec(&mut target.connection()).expect("written");
    let some: Vec<String> = (0..60_000).step_by(300).map(stray).collect();
    let exist: Vec<&str> = std::iter::once("EXISTS").chain(some.iter().map(String::as_str)).collect();
    let left = || match target.call(&exist) {
        redis::Value::Int(left) => left,
        other => panic!("no number: {other:?}"),
    };
    let how = ["--mirror", "--rate-keys", "5000"];
    let job = Sync::new(&source.seed(), &target.addr(), &[&how[..], &PATIENT].concat());
    let mut sync = job.start(&[]);
    wait_until("the target is swept", || left() < 200);
    source.kill9(1).expect("it can be killed");
    assert!(left() > 0, "the sweep was over before the primary died");
    source.wait_failover(1).expect("its replica takes over");
    wait_until_following(&mut sync);
    assert_eq!(left(), 0, "{}", sync.stdout());
    source.nodes()[1].restart().expect("it restarts");
    source.wait_ok().expect("it comes back");
    job.cutover_without_fence();
    stop(sync);
    comparison().assert_equal(&deployment(source.seed()), &deployment(target.addr()));
}

#[test]
fn a_cluster_becomes_a_server_and_what_it_cannot_hold_is_reported() {
    // Nothing is to fail over here, on a busy machine neither.
    let source = cluster(Engine::Redis80).node_timeout_ms(15_000).start().expect("the source starts");
    let target = Server::builder(Engine::Redis70).start().expect("the target starts");
    let from = deployment(source.seed());
    fill(&from);
    let special = "{special}:hash";
    let owner = from.owner_of(special.as_bytes()).expect("every slot has an owner");
    let mut connection = from.primaries()[owner].connect(0).expect("the source answers");
    redis::cmd("HSET").arg(special).arg("a").arg(1).exec(&mut connection).expect("written");
    let mut expire = redis::cmd("HPEXPIRE");
    expire.arg(special).arg(10_000_000).arg("FIELDS").arg(1).arg("a").exec(&mut connection).expect("written");
    let writers = writers(&shards::addresses(&source), "three");
    let job = Sync::new(&source.seed(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    writers.wait_for(1_000, PATIENCE);
    // While clients write, it may be refused for what they have just written.
    wait_until("what cannot be held is named", || {
        let refused = job.cutover(&["--fence", "none", "--max-pause", "20s"]).expect_code(4);
        refused.stdout.contains("not on the target")
    });
    // Without what cannot be held there is nothing to complain about.
    let names = failures_of(&sync);
    assert!(names.iter().any(|name| name == special), "{names:?}");
    delete(&from, &names);
    finish(&job, sync, writers, &source.seed(), &target.addr(), &comparison());
}

/// A service that forbids replication: consumer groups, of which the feed knows nothing, arrive with the
/// cutover.
#[test]
fn tracking_will_do_where_replication_is_forbidden() {
    let rule = "user sync on >secret ~* &* +@all -psync -sync -replconf";
    let source = Server::builder(Engine::Redis70).user_acl(rule).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    fill(&deployment(source.addr()));
    let writers = writers(&[source.addr()], "four");
    let from = format!("redis://sync:secret@{}", source.addr());
    let job = Sync::new(&from, &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    assert!(sync.stdout().contains("tracking"), "{}", sync.stdout());
    writers.wait_for(2_000, PATIENCE);
    finish(&job, sync, writers, &source.addr(), &target.addr(), &comparison());
    let refused =
        Sync::new(&from, &target.addr(), &["--feed", "replication", "--mirror"]).start(&[]).wait(PATIENCE);
    let refused = refused.expect("it ends");
    assert!(refused.stdout.contains("replication link"), "{refused:#?}");
}

/// Where the source cannot continue from where the sync was, nothing is lost and nothing comes back.
#[test]
fn what_was_missed_is_found() {
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    let (from, to) = (deployment(source.addr()), deployment(target.addr()));
    fill(&from);
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    sync.kill9();
    let mut connection = source.connection();
    for number in 0..500 {
        redis::cmd("DEL").arg(format!("plain:{number}")).exec(&mut connection).expect("deleted");
        redis::cmd("SET")
            .arg(format!("plain:{}", 1_000 + number))
            .arg("changed")
            .exec(&mut connection)
            .expect("written");
    }
    // Far more than the backlog holds.
    for _ in 0..40 {
        redis::cmd("SET").arg("filler").arg(vec![b'x'; 100_000]).exec(&mut connection).expect("written");
    }
    let mut sync = job.start(&["--resume"]);
    wait_until_following(&mut sync);
    // Another database than before is written to, and one is emptied.
    let mut third = from.primaries()[0].connect(3).expect("the source answers");
    redis::cmd("SET").arg("late").arg(1).exec(&mut third).expect("written");
    job.cutover_without_fence();
    Comparison::default().databases(&[(0, 0), (3, 3)]).assert_equal(&from, &to);
    redis::cmd("FLUSHDB").exec(&mut third).expect("emptied");
    redis::cmd("DEL").arg("filler").exec(&mut connection).expect("deleted");
    job.cutover_without_fence();
    Comparison::default().databases(&[(0, 0), (3, 3)]).assert_equal(&from, &to);
    let output = stop(sync);
    let report = report(&output)["report"].clone();
    assert!(report["reconciled_slots"].as_u64() > Some(0), "{}", output.stdout);
    // Only what differs is transferred.
    let count = |name: &str| report["counts"][name].as_u64().expect("a counter");
    assert!(count("compared") >= KEYS as u64, "{report}");
    assert!(count("written") < KEYS as u64 / 2, "{report}");
}

/// Slots leave a primary, and keys with a time to live are deleted there, while nobody follows.
#[test]
fn slots_that_left_while_nobody_followed_are_gone_through_again() {
    let source = Cluster::builder(Engine::Redis70).primaries(2).start().expect("the source starts");
    let target = Server::builder(Engine::Redis70).start().expect("the target starts");
    let from = deployment(source.seed());
    let tag = &tags_in(0..1, 1)[0];
    let mut connection = source.connection_to(0);
    for number in 0..200 {
        let key = format!("{{{tag}}}:{number}");
        redis::cmd("SET").arg(key).arg(1).arg("EX").arg(100_000).exec(&mut connection).expect("written");
    }
    let job = Sync::new(&source.seed(), &target.addr(), &[]);
    job.start(&["--once"]).wait(PATIENCE).expect("it ends").expect_code(0);
    for number in 0..50 {
        redis::cmd("DEL").arg(format!("{{{tag}}}:{number}")).exec(&mut connection).expect("deleted");
    }
    source.move_slot(0, 0, 1).expect("the slot moves");
    job.start(&["--once", "--resume"]).wait(PATIENCE).expect("it ends").expect_code(0);
    let to = deployment(target.addr());
    Comparison::default().databases(&[(0, 0)]).assert_equal(&from.refreshed().expect("it answers"), &to);
}

/// One command for what starts a sync by itself, whether it has begun or not.
#[test]
fn the_same_command_begins_and_goes_on() {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Redis70).start().expect("the target starts");
    let job = Sync::new(&source.addr(), &target.addr(), &["--once", "--resume-or-begin"]);
    for value in ["first", "second"] {
        source.call(&["SET", "key", value]);
        job.start(&[]).wait(PATIENCE).expect("it ends").expect_code(0);
        assert_eq!(target.call(&["GET", "key"]), redis::Value::BulkString(value.as_bytes().to_vec()));
    }
}

/// Whatever happens, nothing outside the selection is written or removed.
#[test]
fn only_what_is_selected_is_touched() {
    let source = Server::builder(Engine::Valkey81).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey81).start().expect("the target starts");
    fill(&deployment(source.addr()));
    let (inside, outside) = (&tags_in(0..100, 1)[0], &tags_in(5_000..5_100, 1)[0]);
    for tag in [inside, outside] {
        source.call(&["SET", &format!("{{{tag}}}:both"), "the source's"]);
        target.call(&["SET", &format!("{{{tag}}}:both"), "the target's"]);
        target.call(&["SET", &format!("{{{tag}}}:target"), "the target's"]);
    }
    let job = Sync::new(&source.addr(), &target.addr(), &["--db", "0", "--slots", "0-99", "--mirror"]);
    job.start(&["--once"]).wait(PATIENCE).expect("it ends").expect_code(0);
    let count = |server: &Server| match server.call(&["DBSIZE"]) {
        redis::Value::Int(keys) => keys,
        other => panic!("{other:?}"),
    };
    let before = count(&target);
    // Everything is gone through again: the source's history is another one.
    source.call(&["DEBUG", "CHANGE-REPL-ID"]);
    for _ in 0..40 {
        source.call(&["SET", "filler", &"x".repeat(100_000)]);
    }
    job.start(&["--once", "--resume"]).wait(PATIENCE).expect("it ends").expect_code(0);
    assert_eq!(count(&target), before);
    let value = |tag: &str, name: &str| target.call(&["GET", &format!("{{{tag}}}:{name}")]);
    let bytes = |text: &str| redis::Value::BulkString(text.as_bytes().to_vec());
    assert_eq!(value(inside, "both"), bytes("the source's"));
    assert_eq!(value(inside, "target"), redis::Value::Nil);
    assert_eq!(
        [value(outside, "both"), value(outside, "target")],
        [bytes("the target's"), bytes("the target's")]
    );
}

/// A target with keys is refused, or loses them where the user says so.
#[test]
fn a_target_with_keys_is_mirrored_only_when_asked() {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Redis70).start().expect("the target starts");
    let (from, to) = (deployment(source.addr()), deployment(target.addr()));
    fill(&from);
    target.call(&["SET", "stranger", "1"]);
    target.call(&["SET", "plain:1", "another"]);
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let refused = job.start(&[]).wait(PATIENCE).expect("it ends").expect_code(4);
    assert!(refused.stdout.contains("--mirror"), "{}", refused.stdout);
    let job = Sync::new(&source.addr(), &target.addr(), &["--mirror"]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    job.cutover_without_fence();
    Comparison::default().databases(&[(0, 0)]).assert_equal(&from, &to);
    stop(sync);
}

/// It ends by itself where that is wanted, goes on later, and shows how it stands.
#[test]
fn it_ends_when_nothing_is_left_and_goes_on_later() {
    let source = Server::builder(Engine::Valkey81).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey81).start().expect("the target starts");
    let (from, to) = (deployment(source.addr()), deployment(target.addr()));
    fill(&from);
    let job = Sync::new(&source.addr(), &target.addr(), &["--db", "0"]);
    let output = job.start(&["--once"]).wait(PATIENCE).expect("it ends").expect_code(0);
    assert_eq!(report(&output)["report"]["caught_up"], true, "{output:#?}");
    Comparison::default().databases(&[(0, 0)]).assert_equal(&from, &to);
    source.call(&["SET", "later", "1"]);
    source.call(&["DEL", "plain:5"]);
    let output = job.start(&["--once", "--resume"]).wait(PATIENCE).expect("it ends").expect_code(0);
    let counts = report(&output)["report"]["counts"].clone();
    // From the backlog: nothing else was looked at.
    assert!(counts["written"].as_u64() < Some(10) && counts["scanned"] == 0, "{counts}");
    Comparison::default().databases(&[(0, 0)]).assert_equal(&from, &to);

    let watch = || {
        let shown = Invocation::new(&["watch", "--once"]).env("XDG_STATE_HOME", job.state.path());
        shown.timeout(PATIENCE).run()
    };
    assert!(watch().expect_code(2).stderr.contains("no job runs"));
    let mut sync = job.start(&["--resume"]);
    wait_until_following(&mut sync);
    let mut page = String::new();
    wait_until("it is shown that it follows", || {
        page = watch().expect_code(0).stdout;
        page.contains("following")
    });
    assert!(page.contains(&source.addr()), "{page}");
    stop(sync);
}

/// With the documented permissions nothing is refused.
fn documented_permissions_are_enough(engine: Engine) {
    let mut headings = vec!["Source", "Target", "Comparison", "Functions", "Following"];
    if matches!(engine, Engine::Redis80 | Engine::Valkey91) {
        headings.push("Hash fields with a time to live");
    }
    let users = [("whimbrel-source", "one"), ("whimbrel-target", "two")];
    let [ours, theirs] = users.map(|(user, password)| documented(user, &headings, password));
    let source = Cluster::builder(engine).primaries(2).start().expect("the source starts");
    let target = Cluster::builder(engine).primaries(2).start().expect("the target starts");
    let (from, to) = (deployment(source.seed()), deployment(target.seed()));
    Dataset::generate(8, Scale::Tiny).with_functions().write_to(&from).expect("the source takes the data");
    source.nodes().iter().for_each(|node| give(node, &ours));
    target.nodes().iter().for_each(|node| give(node, &theirs));
    let writers = writers(&shards::addresses(&source), "five");
    let url = |user: &str, password: &str, at: String| format!("redis://{user}:{password}@{at}");
    let [from_url, to_url] =
        [(users[0], source.seed()), (users[1], target.seed())].map(|((u, p), at)| url(u, p, at));
    let job = Sync::new(&from_url, &to_url, &["--functions", "--big-key", "2000"]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    // Slots are gone through again, which takes more than following.
    source.move_slot(0, 0, 1).expect("the slot moves");
    writers.wait_for(500, PATIENCE);
    finish(&job, sync, writers, &source.seed(), &target.seed(), &comparison());
    Comparison::default().databases(&[(0, 0)]).functions().assert_equal(&from.refreshed().unwrap(), &to);
    let all = source.nodes().iter().chain(target.nodes());
    let denied: Vec<String> = all.flat_map(denied).collect();
    assert!(denied.is_empty(), "{engine}: {denied:#?}");
}

/// Another kind of load: the fastest there is, for `WHIMBREL_SYNC_SECONDS`. On both sides a node joins and
/// gets its share, and the one by which the cluster was named is drained, forgotten, and no longer of that
/// cluster.
#[test]
fn nodes_join_and_leave() {
    let start =
        |engine| Cluster::builder(engine).primaries(3).node_timeout_ms(6_000).start().expect("it starts");
    let (source, target) = (start(Engine::Valkey81), start(Engine::Redis80));
    let joining = |engine| Server::builder(engine).cluster().start().expect("a node starts");
    let (new_source, new_target) = (joining(Engine::Valkey81), joining(Engine::Redis80));
    fill(&deployment(source.seed()));
    let mut addresses = shards::addresses(&source);
    addresses.push(new_source.addr());
    let writers = writers(&addresses[1..3], "joining");
    let job = Sync::new(&source.seed(), &target.seed(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    for (cluster, new) in [(&source, &new_source), (&target, &new_target)] {
        join_and_leave(cluster, new);
        assert!(writers.wait_for(400, PATIENCE), "the writers have stopped");
        assert!(sync.is_running(), "it has ended: {}\n{}", sync.stdout(), sync.stderr());
    }
    finish(&job, sync, writers, &new_source.addr(), &new_target.addr(), &comparison());
}

fn join_and_leave(cluster: &Cluster, new: &Server) {
    let stays = &cluster.nodes()[1];
    let port = stays.port().to_string();
    new.call(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    let state = tempfile::tempdir().expect("a folder");
    let state = state.path().to_str().expect("a plain path");
    let whimbrel = |args: &[&str]| {
        let args: Vec<&str> = args.iter().copied().chain(["--yes", "--state-dir", state]).collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            // The nodes may not have heard of each other yet.
            let output = Invocation::new(&args).timeout(PATIENCE).run();
            if output.code() == Some(0) {
                return;
            }
            assert!(Instant::now() < deadline, "{args:?}: {output:#?}");
            thread::sleep(Duration::from_millis(500));
        }
    };
    let (seed, leaving) = (stays.addr(), cluster.node_id(0));
    let patient = ["--method", "external", "--max-pause", "20s"];
    whimbrel(&[&["rebalance", &*seed, "--use-empty"][..], &patient].concat());
    whimbrel(&[&["drain", &*seed, leaving][..], &patient].concat());
    for node in cluster.nodes()[1..].iter().chain([new]) {
        node.call(&["CLUSTER", "FORGET", leaving]);
    }
    cluster.nodes()[0].call(&["FLUSHALL"]);
    cluster.nodes()[0].call(&["CLUSTER", "RESET", "HARD"]);
    // From now on it is a cluster of its own, which knows nothing of the others.
    for slot in ["0", "1", "2"] {
        cluster.nodes()[0].call(&["CLUSTER", "ADDSLOTS", slot]);
    }
}

/// A target without room is waited for, and then complained of; with more room the sync goes on.
#[test]
fn a_full_target_is_reported() {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    fill(&deployment(source.addr()));
    target.call(&["CONFIG", "SET", "maxmemory", "6mb"]);
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let args = ["sync", &source.addr(), &target.addr(), "--retry-for", "2s"];
    let state = job.state.path();
    let full = Invocation::new(&args).env("XDG_STATE_HOME", state).timeout(PATIENCE).run().expect_code(7);
    assert!(full.stderr.contains("target") && full.stderr.contains("maxmemory"), "{full:#?}");
    assert!(full.stderr.contains("--resume"), "{full:#?}");
    target.call(&["CONFIG", "SET", "maxmemory", "0"]);
    let mut sync = job.start(&["--resume"]);
    wait_until_following(&mut sync);
    // While it follows as well, and there it is given time.
    target.call(&["CONFIG", "SET", "maxmemory", "6mb"]);
    source.call(&["SET", "late", "1"]);
    thread::sleep(Duration::from_secs(2));
    assert!(sync.is_running(), "{}", sync.stdout());
    target.call(&["CONFIG", "SET", "maxmemory", "0"]);
    job.cutover_without_fence();
    Comparison::default()
        .databases(&[(0, 0)])
        .assert_equal(&deployment(source.addr()), &deployment(target.addr()));
    stop(sync);
}

#[test]
fn many_writers_are_followed() {
    let source = Server::builder(Engine::Valkey91).start().expect("the source starts");
    let target = Server::builder(Engine::Redis80).start().expect("the target starts");
    let load = Load { clients: 16, pause: Duration::ZERO, ..Load::on(tags_in(0..16384, 64)) };
    let writers = ClusterWriters::start(&[source.addr()], &load);
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    thread::sleep(Duration::from_secs(runs("WHIMBREL_SYNC_SECONDS", 4) as u64));
    finish(&job, sync, writers, &source.addr(), &target.addr(), &comparison());
}

/// A stream that goes on does not say again which database its commands are for.
#[test]
fn a_stream_that_goes_on_is_for_the_database_that_it_was_for() {
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    let [target, other] =
        [(); 2].map(|()| Server::builder(Engine::Valkey91).start().expect("the target starts"));
    let in_db = |server: &Server, db: u32| {
        let mut connection = server.connection();
        redis::cmd("SELECT").arg(db).exec(&mut connection).expect("it has the database");
        connection
    };
    let mut third = in_db(&source, 3);
    let mut set = |key: &str| redis::cmd("SET").arg(key).arg(1).exec(&mut third).expect("written");
    // The same names elsewhere stay.
    let same = |server: &Server| redis::cmd("SET").arg("a:0").arg(1).exec(&mut in_db(server, 5));
    same(&source).expect("written");
    set("a:0");
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    set("before");
    wait_until("it is there", || holds(&target, 3, "before"));
    stop(sync);
    (0..5).for_each(|n| set(&format!("a:{n}")));
    let output = job.start(&["--once", "--resume"]).wait(PATIENCE).expect("it ends").expect_code(0);
    let counts = report(&output)["report"]["counts"].clone();
    // A key is there a moment before its answer is: `before` may be copied again.
    let written = counts["written"].as_u64().expect("a number");
    assert!(counts["gone"] == 0 && (5..=6).contains(&written), "{counts}");
    assert!((0..5).all(|n| holds(&target, 3, &format!("a:{n}"))), "a key is not where it was written");
    // Another sync begins where nothing is remembered.
    let job = Sync::new(&source.addr(), &other.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    set("after");
    (1..5).for_each(|n| set(&format!("a:{n}")));
    redis::cmd("DEL").arg("a:0").exec(&mut third).expect("deleted");
    wait_until("it is there", || holds(&other, 3, "after") && !holds(&other, 3, "a:0"));
    // A key is gone a moment before that is counted.
    assert!(sync.wait_for_text("\"gone\":1", PATIENCE), "{}", sync.stdout());
    let output = stop(sync);
    assert_eq!(report(&output)["report"]["counts"]["gone"], 1, "{}", output.stdout);
    assert!(holds(&other, 5, "a:0") && holds(&target, 5, "a:0"), "a key of another database is gone");
}

fn holds(server: &Server, db: u32, key: &str) -> bool {
    let mut connection = server.connection();
    redis::cmd("SELECT").arg(db).exec(&mut connection).expect("it has the database");
    redis::cmd("EXISTS").arg(key).query(&mut connection).expect("it answers")
}
