//! Deployments are kept equal while clients write to every type, whimbrel is killed, links are cut, primaries
//! fail over and slots move. After the cutover both sides are equal by a comparison that shares no code with
//! whimbrel, and what was acknowledged by the source is on the target.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::cluster_writers::{ClusterWriters, Load, tags_in};
use whimbrel_e2e::compare::Comparison;
use whimbrel_e2e::dataset::random::Random;
use whimbrel_e2e::dataset::{Dataset, Scale};
use whimbrel_e2e::permissions::{denied, documented, give};
use whimbrel_e2e::resharding::runs;
use whimbrel_e2e::shards;
use whimbrel_e2e::syncing::{
    KEYS, PATIENCE, Sync, assert_equal, cluster, comparison, cut, delete, deployment, failures_of, fill,
    finish, report, seconds, stop, wait_until_following, writers,
};
use whimbrel_lab::{Cluster, Engine, Proxy, Server, wait_until};

whimbrel_lab::for_each_engine! {
    documented_permissions_are_enough
}

#[test]
fn a_server_becomes_a_cluster_across_kills_cuts_and_a_failover() {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = cluster(Engine::Valkey81).start().expect("the target starts");
    fill(&deployment(source.addr()));
    let proxy = Proxy::start(&source.addr()).expect("a proxy");
    let writers = writers(&[source.addr()], "one");
    let job = Sync::new(&proxy.addr(), &target.seed(), &["--db", "0"]);
    let mut sync = job.start(&["--rate-keys", "20000"]);
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
    let job = Sync::new(&source.seed(), &target.seed(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    // Of the source by whimbrel, of the target by its own means, in both cases while keys of these slots are
    // written.
    for (cluster, method) in [(&source, "external"), (&target, "native")] {
        let (seed, state) = (cluster.seed(), tempfile::tempdir().expect("a folder"));
        let state = state.path().to_str().expect("a plain path");
        let to = cluster.node_id(2);
        let args = ["reshard", &seed, "--slots", "0-499", "--to", to, "--yes", "--state-dir", state];
        let args: Vec<&str> = args.into_iter().chain(["--method", method]).collect();
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

#[test]
fn a_cluster_becomes_a_server_and_what_it_cannot_hold_is_told() {
    let source = cluster(Engine::Redis80).start().expect("the source starts");
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
    let refused = job.cutover(&["--fence", "none", "--max-pause", "2s"]).expect_code(4);
    assert!(refused.stdout.contains("not on the target"), "{}", refused.stdout);
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
    assert!(count("written") < KEYS as u64 / 4, "{report}");
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

/// A cutover is refused where the target is known not to hold everything.
#[test]
fn what_the_target_lacks_keeps_it_from_taking_over() {
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    let target = Cluster::builder(Engine::Redis70).primaries(1).start().expect("the target starts");
    source.call(&["SET", "a", "1"]);
    let job = Sync::new(&source.addr(), &target.seed(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    job.cutover(&["--fence", "none", "--max-pause", "2s"]).expect_code(0);
    // It expires by its fields, which the target does not know.
    source.call(&["HSET", "fields", "f", "v"]);
    source.call(&["HPEXPIRE", "fields", "1000000", "FIELDS", "1", "f"]);
    let refused = job.cutover(&["--fence", "readonly-replica", "--max-pause", "2s"]).expect_code(4);
    assert!(refused.stdout.contains("not on the target"), "{}", refused.stdout);
    source.call(&["DEL", "fields"]);
    job.cutover(&["--fence", "none", "--max-pause", "2s"]).expect_code(0);
    // A database that nobody thought of.
    let mut second = deployment(source.addr()).primaries()[0].connect(1).expect("the source answers");
    redis::cmd("SET").arg("b").arg(1).exec(&mut second).expect("written");
    let refused = job.cutover(&["--fence", "none", "--max-pause", "2s"]).expect_code(4);
    assert!(refused.stdout.contains("not part of this sync"), "{}", refused.stdout);
    stop(sync);
}

/// A target with keys is refused, or loses them where the user says so.
#[test]
fn a_target_with_keys_is_mirrored_only_when_told() {
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
    assert!(watch().expect_code(2).stderr.contains("no sync runs"));
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

/// Each way to keep writers out does so, and the sync ends with it.
#[test]
fn writers_are_kept_out_after_the_cutover() {
    for fence in ["acl", "readonly-replica", "pause"] {
        let rules = ["user mover on >secret ~* &* +@all", "user app on >secret ~* &* +@all"];
        let source = Server::builder(Engine::Valkey81).user_acl(rules[0]).user_acl(rules[1]);
        let source = source.start().expect("the source starts");
        let target = Server::builder(Engine::Valkey81).start().expect("the target starts");
        let (from, to) = (deployment(source.addr()), deployment(target.addr()));
        fill(&from);
        let job = Sync::new(&format!("valkey://mover:secret@{}", source.addr()), &target.addr(), &[]);
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        let app = redis::Client::open(format!("redis://app:secret@{}/", source.addr())).expect("an address");
        let mut app = app.get_connection().expect("the source answers");
        redis::cmd("SET").arg("before").arg(1).exec(&mut app).expect("written");
        let planned = job.cutover(&["--fence", fence, "--dry-run"]).expect_code(0);
        // No pause of a millisecond compares twenty thousand keys.
        let too_short = ["--fence", fence, "--compare", "full", "--max-pause", "1ms"];
        job.cutover(&[&too_short[..], &["--dry-run"]].concat()).expect_code(4);
        assert_eq!(report(&planned)["report"]["dry_run"], true, "{planned:#?}");
        redis::cmd("SET").arg("before").arg(2).exec(&mut app).expect("nothing was done yet");
        // A pause that is too short for anything is given up, and nobody is held any more.
        job.cutover(&too_short).expect_code(4);
        redis::cmd("SET").arg("before").arg(3).exec(&mut app).expect("everything is as before");
        // One key of twenty thousand that differs is found when all are compared.
        target.call(&["SET", "plain:77", "not what it should be"]);
        let refused =
            job.cutover(&["--fence", fence, "--compare", "full", "--max-pause", "20s"]).expect_code(4);
        assert!(refused.stdout.contains("of all keys 1 differ"), "{refused:#?}");
        let value: String = redis::cmd("GET").arg("plain:77").query(&mut app).expect("read");
        redis::cmd("SET").arg("plain:77").arg(value).exec(&mut app).expect("everything is as before");
        let more = if fence == "pause" { ["--compare", "sample"] } else { ["--compare", "full"] };
        let how = ["--fence", fence, "--fence-for", "5s", "--max-pause", "20s"];
        let done = job.cutover(&[&how[..], &more].concat()).expect_code(0);
        eprintln!("{fence}: {}", report(&done)["report"]);
        let output = sync.wait(PATIENCE).expect("it ends").expect_code(0);
        assert!(report(&output)["report"]["cutover"]["pause_ms"].is_u64(), "{fence}: {output:#?}");
        app.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        let late = redis::cmd("SET").arg("late").arg(1).exec(&mut app);
        let error = late.expect_err("nobody writes any more").to_string();
        eprintln!("{fence}: {error}");
        Comparison::default().databases(&[(0, 0)]).assert_equal(&from, &to);
        if fence == "acl" {
            // Cut over once more while the fence stands: what undoes both is what users had before the first.
            // That would replace what clients have written to the target since, so it has to be said twice.
            let refused = job.start(&["--mirror"]).wait(PATIENCE).expect("it ends").expect_code(4);
            assert!(refused.stdout.contains("--again"), "{refused:#?}");
            let mut sync = job.start(&["--mirror", "--again"]);
            wait_until_following(&mut sync);
            job.cutover(&["--fence", "acl", "--max-pause", "20s"]).expect_code(0);
            sync.wait(PATIENCE).expect("it ends").expect_code(0);
        }
        // What undoes it was kept, and works once.
        let url = format!("valkey://mover:secret@{}", source.addr());
        let unfence = |more: &[&str]| {
            let args: Vec<&str> = ["unfence", &url].iter().chain(more).copied().collect();
            Invocation::new(&args).env("XDG_STATE_HOME", job.state.path()).timeout(PATIENCE).run()
        };
        unfence(&["--dry-run"]).expect_code(0);
        let client =
            redis::Client::open(format!("redis://app:secret@{}/", source.addr())).expect("an address");
        let mut other = client.get_connection().expect("the source answers");
        other.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        redis::cmd("SET").arg("early").arg(1).exec(&mut other).expect_err("it was a dry run");
        let undone = unfence(&[]).expect_code(0);
        assert!(undone.stdout.contains("unfenced"), "{undone:#?}");
        let mut app = client.get_connection().expect("the source answers");
        redis::cmd("SET").arg("again").arg(1).exec(&mut app).expect("writers are let in again");
        let nothing = unfence(&[]).expect_code(2);
        assert!(nothing.stderr.contains("--state-dir"), "{nothing:#?}");
    }
}

/// A user who asks for a cutover and thinks better of it is told which of the two it was.
#[test]
fn a_cutover_is_withdrawn_or_done() {
    let rule = "user mover on >secret ~* &* +@all";
    let source = Server::builder(Engine::Valkey81).user_acl(rule).start().expect("the source starts");
    let target = Server::builder(Engine::Redis80).user_acl(rule).start().expect("the target starts");
    let url = |at: String| format!("redis://mover:secret@{at}");
    fill(&deployment(source.addr()));
    let job = Sync::new(&url(source.addr()), &url(target.addr()), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let state = job.state.path();
    let args = ["cutover", "--fence", "acl", "--compare", "full", "--max-pause", "30s"];
    for wait_ms in [0, 50, 200, 400, 800, 1_600] {
        let mut asked = Invocation::new(&args).env("XDG_STATE_HOME", state).timeout(PATIENCE).spawn();
        assert!(asked.wait_for_text("sync-", PATIENCE), "{}", asked.stderr());
        thread::sleep(Duration::from_millis(wait_ms));
        asked.interrupt();
        let output = asked.wait(PATIENCE).expect("it ends");
        let written = source.try_call(&["SET", "after", "1"]);
        match output.code() {
            Some(130) => assert!(written.is_ok(), "withdrawn, and yet writers are kept out: {output:#?}"),
            Some(0) => {
                assert!(written.is_err(), "done, and yet writers are let in: {output:#?}");
                sync.wait(PATIENCE).expect("it ends").expect_code(0);
                return;
            }
            _ => panic!("{output:#?}"),
        }
    }
    assert!(sync.is_running(), "withdrawn, and yet it has ended");
    stop(sync);
}

/// What the way back needs is found out before anybody is fenced off.
#[test]
fn a_way_back_that_cannot_work_is_refused() {
    let rules = |more: &str| format!("user mover on >secret ~* &* +@all {more}");
    let source =
        Server::builder(Engine::Redis70).user_acl(&rules("-set")).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).user_acl(&rules("")).start().expect("the target starts");
    let url = |at: String| format!("redis://mover:secret@{at}");
    let job = Sync::new(&url(source.addr()), &url(target.addr()), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    for how in [&["--fence", "acl", "--reverse-sync", "--dry-run"][..], &["--fence", "acl", "--reverse-sync"]]
    {
        let refused = job.cutover(how);
        assert_ne!(refused.code(), Some(0), "{refused:#?}");
        assert!(refused.stdout.contains("NOPERM"), "{refused:#?}");
    }
    source.call(&["SET", "nobody", "is fenced off"]);
    stop(sync);
}

/// What the real one would refuse, the dry run refuses; and it tells how changes would be learnt of.
#[test]
fn a_dry_run_is_a_rehearsal() {
    let source = Server::builder(Engine::Redis70)
        .user_acl("user mover on >secret ~* &* +@all -psync")
        .start()
        .expect("the source starts");
    let target = Server::builder(Engine::Redis70).start().expect("the target starts");
    let from = format!("redis://mover:secret@{}", source.addr());
    source.call(&["SET", "k", "1"]);
    let job = Sync::new(&from, &target.addr(), &[]);
    let run = |more: &[&str]| job.start(more).wait(PATIENCE).expect("it ends");
    let planned = run(&["--dry-run"]).expect_code(0);
    assert!(planned.stdout.contains("\"feed\":\"tracking\""), "{planned:#?}");
    run(&["--dry-run", "--feed", "replication"]).expect_code(4);
    target.call(&["SET", "other", "1"]);
    run(&["--dry-run"]).expect_code(4);
    run(&["--dry-run", "--mirror"]).expect_code(0);
    assert_eq!(target.try_call(&["EXISTS", "other"]).expect("an answer"), redis::Value::Int(1));
    // A reader may leave.
    let binary = whimbrel_e2e::binary::whimbrel().display();
    let piped = format!(
        "{binary} sync {} {} --dry-run --mirror --json | true; echo ${{PIPESTATUS[0]}}",
        from,
        target.addr()
    );
    let output = std::process::Command::new("bash").args(["-c", &piped]).output().expect("bash runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "{output:?}");
}

/// What is written to the target after the cutover is not lost on the way back.
#[test]
fn the_way_back_loses_nothing() {
    let rule = "user mover on >secret ~* &* +@all";
    let source = Server::builder(Engine::Redis70).user_acl(rule).start().expect("the source starts");
    let target = cluster(Engine::Valkey91).user_acl(rule).start().expect("the target starts");
    let url = |at: String| format!("redis://mover:secret@{at}");
    fill(&deployment(source.addr()));
    let forth = writers(&[source.addr()], "forth");
    let job = Sync::new(&url(source.addr()), &url(target.seed()), &["--db", "0"]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    forth.wait_for(400, PATIENCE);
    job.cutover(&["--fence", "acl", "--back"]).expect_code(4);
    job.cutover(&["--fence", "none", "--reverse-sync"]).expect_code(4);
    let record = {
        // Nobody is told off by the fence: that clients move is not what this is about.
        let hold = forth.hold();
        job.cutover(&["--fence", "acl", "--reverse-sync", "--max-pause", "2s"]).expect_code(0);
        drop(hold);
        forth.stop()
    };
    let late = source.try_call(&["SET", "late", "1"]);
    assert!(late.is_err(), "writers are not kept away from the source: {late:?}");
    record.assert_kept(&deployment(target.seed()));
    let back = writers(&shards::addresses(&target), "back");
    wait_until_following(&mut sync);
    thread::sleep(Duration::from_secs(seconds("WHIMBREL_BACK_SECONDS", 2)));
    back.wait_for(1_000, PATIENCE);
    // Where whimbrel is killed on the way, it goes on from where the target was.
    sync.kill9();
    back.wait_for(400, PATIENCE);
    let state = job.state.path();
    let resumed = [
        "sync",
        &url(target.seed()),
        &url(source.addr()),
        "--db",
        "0",
        "--json",
        "--report",
        "1",
        "--resume",
    ];
    let mut sync = Invocation::new(&resumed).env("XDG_STATE_HOME", state).timeout(PATIENCE).spawn();
    wait_until_following(&mut sync);
    back.wait_for(400, PATIENCE);
    // Without --back writers would be kept away from both sides.
    let neither = job.cutover(&["--fence", "acl", "--dry-run"]).expect_code(4);
    assert!(neither.stdout.contains("--back"), "{neither:#?}");
    let record = {
        let hold = back.hold();
        job.cutover(&["--fence", "acl", "--back", "--max-pause", "2s"]).expect_code(0);
        drop(hold);
        back.stop()
    };
    let output = sync.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_eq!(report(&output)["report"]["reconciled_slots"], 0, "it went on without a gap: {output:#?}");
    assert_equal(&record, &target.seed(), &source.addr(), &comparison());
    source.call(&["SET", "home", "again"]);
    let late = target.nodes()[0]
        .try_call(&["SET", "late", "1"])
        .or_else(|_| target.nodes()[1].try_call(&["SET", "late", "1"]));
    assert!(late.is_err(), "writers are not kept away from the target: {late:?}");
    // Of the two fences only the one that is up is still noted.
    let unfence = |at: &str| {
        Invocation::new(&["unfence", at]).env("XDG_STATE_HOME", job.state.path()).timeout(PATIENCE).run()
    };
    unfence(&url(source.addr())).expect_code(2);
    unfence(&url(target.seed())).expect_code(0);
    let written = target.nodes().iter().any(|node| node.try_call(&["SET", "late", "1"]).is_ok());
    assert!(written, "writers are not let in again");
}

/// A large key on its way when whimbrel is killed is assembled under another name, and no one comes back to it
/// where the source loses the key meanwhile.
#[test]
fn what_a_killed_run_assembled_does_not_stay() {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    let large = "for i = 1, 40000 do redis.call('HSET', 'large', i, string.rep('v', 1000)) end";
    source.call(&["EVAL", large, "0"]);
    let staged = || match target.call(&["KEYS", "whimbrel:staging:*"]) {
        redis::Value::Array(keys) => keys.len(),
        other => panic!("no list of keys: {other:?}"),
    };
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let mut sync = job.start(&["--rate-bytes", "4000000"]);
    wait_until("the key is on its way", || staged() == 1);
    sync.kill9();
    assert_eq!(staged(), 1, "it was killed too late");
    source.call(&["DEL", "large"]);
    // Of another job, which may be running.
    let others = "whimbrel:staging:{x}:other:0123456789abcdef0123456789abcdef";
    target.call(&["SET", others, "1", "PX", "60000"]);
    let mut sync = job.start(&["--resume"]);
    wait_until_following(&mut sync);
    wait_until("only what is another's is left", || staged() == 1);
    assert_eq!(target.call(&["EXISTS", others]), redis::Value::Int(1), "it removed what is another's");
    sync.kill9();
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

/// A large key that is never at rest arrives with the cutover, and the others do not wait for it until then.
#[test]
fn a_large_key_that_changes_all_the_time_arrives() {
    const FIELDS: u64 = 60_000;
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    let target = Server::builder(Engine::Redis80).start().expect("the target starts");
    let mut connection = source.connection();
    for first in (0..FIELDS).step_by(1_000) {
        let mut command = redis::cmd("HSET");
        command.arg("large");
        for field in first..first + 1_000 {
            command.arg(field).arg("x".repeat(100));
        }
        command.exec(&mut connection).expect("written");
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut connection = source.connection();
            let mut turn = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let field = turn * 7_919 % FIELDS;
                if redis::cmd("HSET").arg("large").arg(field).arg(turn).exec(&mut connection).is_err() {
                    return true;
                }
                turn += 1;
                thread::sleep(Duration::from_micros(500));
            }
            false
        });
        let job = Sync::new(&source.addr(), &target.addr(), &["--db", "0", "--big-key", "100KiB"]);
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        let deadline = Instant::now() + PATIENCE;
        for number in 0..20 {
            let name = format!("marker:{number}");
            source.call(&["SET", &name, "1"]);
            while target.call(&["EXISTS", &name]) != redis::Value::Int(1) {
                assert!(Instant::now() < deadline, "{name} does not arrive");
                thread::sleep(Duration::from_millis(5));
            }
        }
        let cut_over = job.cutover(&["--fence", "readonly-replica", "--max-pause", "20s"]).expect_code(0);
        eprintln!("{}", report(&cut_over)["report"]);
        thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().expect("no panic"), "the writer was not kept out");
        sync.wait(PATIENCE).expect("it ends").expect_code(0);
    });
    Comparison::default()
        .databases(&[(0, 0)])
        .assert_equal(&deployment(source.addr()), &deployment(target.addr()));
}

/// Another kind of load: the fastest there is, for `WHIMBREL_SYNC_SECONDS`. On both sides a node joins and
/// gets its share, and the one by which the cluster was named is drained, forgotten, and no longer of that
/// cluster.
#[test]
fn nodes_join_and_leave() {
    let start =
        |engine| Cluster::builder(engine).primaries(3).node_timeout_ms(4_000).start().expect("it starts");
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
    whimbrel(&["rebalance", &seed, "--use-empty", "--method", "external"]);
    whimbrel(&["drain", &seed, leaving, "--method", "external"]);
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
fn a_full_target_is_told_of() {
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

/// Keys that are followed by their elements are emptied, all at once, and made anew while the sync makes up
/// for it; and one gets what the target cannot hold.
#[test]
fn elements_are_not_added_to_what_is_not_there_any_more() {
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey81).start().expect("the target starts");
    let fields = |command: &mut redis::Cmd| {
        for field in 0..5_000 {
            command.arg(format!("field:{field}")).arg("x".repeat(40));
        }
    };
    let large = |connection: &mut redis::Connection| {
        for key in ["large:1", "large:2"] {
            let mut command = redis::cmd("HSET");
            fields(command.arg(key));
            command.exec(connection).expect("written");
        }
    };
    let mut connection = source.connection();
    large(&mut connection);
    let job = Sync::new(&source.addr(), &target.addr(), &["--db", "0", "--big-key", "20KiB"]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    for round in 0..6 {
        large(&mut connection);
        source.call(&["HSET", "large:1", "field:1", &round.to_string()]);
        job.cutover_without_fence();
        source.call(&[["FLUSHALL", "FLUSHDB"][round % 2]]);
        thread::sleep(Duration::from_millis(20 + 25 * round as u64));
        source.call(&["HSET", "large:1", "new", "1"]);
        let mut filler = redis::pipe();
        for number in 0..20_000 {
            filler.cmd("SET").arg(format!("filler:{round}:{number}")).arg(number).ignore();
        }
        filler.exec(&mut connection).expect("written");
        job.cutover_without_fence();
        assert_eq!(target.call(&["HLEN", "large:1"]), redis::Value::Int(1), "round {round}");
    }
    large(&mut connection);
    source.call(&["HSET", "large:1", "field:1", "1"]);
    job.cutover_without_fence();
    source.call(&["HPEXPIRE", "large:1", "9000000", "FIELDS", "1", "field:1"]);
    let deadline = Instant::now() + PATIENCE;
    while job.cutover(&["--fence", "none", "--max-pause", "2s"]).code() != Some(4) {
        assert!(Instant::now() < deadline, "nothing is said of what the target cannot hold");
    }
    // Another element of it changes nothing about that.
    source.call(&["HSET", "large:1", "field:2", "2"]);
    thread::sleep(Duration::from_millis(500));
    let refused = job.cutover(&["--fence", "none", "--max-pause", "2s"]).expect_code(4);
    assert!(refused.stdout.contains("not on the target"), "{}", refused.stdout);
    source.call(&["HPERSIST", "large:1", "FIELDS", "1", "field:1"]);
    job.cutover_without_fence();
    Comparison::default()
        .databases(&[(0, 0)])
        .assert_equal(&deployment(source.addr()), &deployment(target.addr()));
    stop(sync);
}

/// Hashes, sets and sorted sets of many elements, of which some change all the time: what changes is
/// transferred, not all of them. Some are deleted and made anew, get a time to live and lose it, and so do
/// fields.
#[test]
fn large_keys_are_followed_by_their_elements() {
    const ELEMENTS: u64 = 20_000;
    const SEED: u64 = 20_261_122;
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    let target = cluster(Engine::Redis80).start().expect("the target starts");
    let fill = |connection: &mut redis::Connection, kind: &str| {
        for first in (0..ELEMENTS).step_by(1_000) {
            let mut command = redis::cmd(["HSET", "SADD", "ZADD"][kind_of(kind)]);
            command.arg(kind);
            for element in first..first + 1_000 {
                let name = format!("element:{element}:{}", "x".repeat(40));
                match kind_of(kind) {
                    0 => command.arg(name).arg(element),
                    1 => command.arg(name),
                    _ => command.arg(element).arg(name),
                };
            }
            command.exec(connection).expect("written");
        }
    };
    let kinds = ["hash:1", "hash:2", "set:1", "zset:1"];
    for kind in kinds {
        fill(&mut source.connection(), kind);
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = kinds
            .iter()
            .zip(1_u64..)
            .map(|(kind, number)| {
                let (source, stop) = (&source, &stop);
                scope.spawn(move || {
                    let mut connection = source.connection();
                    let mut random = Random::new(SEED + number);
                    let mut written = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        if change(&mut connection, kind, &mut random, ELEMENTS).is_err() {
                            break;
                        }
                        written += 1;
                        if random.below(1_500) == 0 {
                            redis::cmd("DEL").arg(*kind).exec(&mut connection).expect("deleted");
                            fill(&mut connection, kind);
                        }
                        thread::sleep(Duration::from_micros(700));
                    }
                    written
                })
            })
            .collect();
        let job = Sync::new(&source.addr(), &target.seed(), &["--db", "0", "--big-key", "100KiB"]);
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        thread::sleep(Duration::from_secs(3));
        sync.kill9();
        thread::sleep(Duration::from_millis(500));
        let mut sync = job.start(&["--resume"]);
        wait_until_following(&mut sync);
        thread::sleep(Duration::from_secs(3));
        let cut_over = job.cutover_without_fence();
        eprintln!("{cut_over}");
        thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        let written: u64 = writers.into_iter().map(|writer| writer.join().expect("no panic")).sum();
        job.cutover_without_fence();
        let output = whimbrel_e2e::syncing::stop(sync);
        let counts = report(&output)["report"]["counts"].clone();
        eprintln!("{written} changes; {counts}");
        // A key moves whole when it was made anew, and at the start: far less often than it changes.
        let count = |name: &str| counts[name].as_u64().expect("a counter");
        assert!(count("big") * 10 < count("written"), "{counts}");
    });
    Comparison::default()
        .databases(&[(0, 0)])
        .tolerance_ms(1)
        .assert_equal(&deployment(source.addr()), &deployment(target.seed()));
}

/// Which of hash, set and sorted set a key is.
fn kind_of(key: &str) -> usize {
    ["hash", "set", "zset"].iter().position(|kind| key.starts_with(kind)).expect("a kind")
}

/// One change of a large key.
fn change(
    connection: &mut redis::Connection,
    key: &str,
    random: &mut Random,
    elements: u64,
) -> redis::RedisResult<()> {
    // Some are added that were not there.
    let number = random.below(elements + elements / 4);
    let name = format!("element:{number}:{}", "x".repeat(40));
    let (kind, value) = (kind_of(key), random.below(1_000_000));
    let verb = match (random.below(20), kind) {
        (0, _) => "PERSIST",
        (1, _) => "PEXPIRE",
        (2..5, _) => ["HDEL", "SREM", "ZREM"][kind],
        (5, 0) => "HPEXPIRE",
        (_, _) => ["HSET", "SADD", "ZADD"][kind],
    };
    let mut command = redis::cmd(verb);
    command.arg(key);
    match verb {
        "PERSIST" => &mut command,
        "PEXPIRE" => command.arg(600_000 + value),
        "HPEXPIRE" => command.arg(900_000).arg("FIELDS").arg(1).arg(name),
        "HSET" => command.arg(name).arg(value),
        "ZADD" => command.arg(value).arg(name),
        _ => command.arg(name),
    };
    command.exec(connection)
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

/// The same for the way back: each user has the lines of both sides, and those of the fence.
#[test]
fn documented_permissions_lead_back() {
    let both = |user: &str, password: &str, more: &[&'static str]| {
        let headings = [&["Source", "Target", "Comparison", "Functions", "Following"], more].concat();
        let mut lines = documented("whimbrel-source", &headings, password);
        let theirs = documented("whimbrel-target", &headings, password);
        lines.extend(theirs.into_iter().filter(|line| !line.contains(&"reset".to_owned())));
        lines.iter_mut().for_each(|line| line[2] = user.to_owned());
        let fence = "+client|list +client|kill +acl|whoami +acl|users +acl|getuser +acl|setuser";
        let fence = format!("ACL SETUSER {user} {fence}");
        lines.push(fence.split(' ').map(str::to_owned).collect());
        lines
    };
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    fill(&deployment(source.addr()));
    give(&source, &both("mover", "one", &[]));
    give(&target, &both("taker", "two", &["Hash fields with a time to live"]));
    let (from, to) =
        (format!("redis://mover:one@{}", source.addr()), format!("redis://taker:two@{}", target.addr()));
    let job = Sync::new(&from, &to, &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    job.cutover(&["--fence", "acl", "--reverse-sync", "--max-pause", "5s"]).expect_code(0);
    target.call(&["SET", "since", "then"]);
    // The way back begins a moment after the answer: until then there is nobody to ask.
    let deadline = Instant::now() + PATIENCE;
    while job.cutover(&["--fence", "acl", "--back", "--dry-run", "--max-pause", "5s"]).code() != Some(0) {
        assert!(Instant::now() < deadline, "{}", sync.stderr());
        thread::sleep(Duration::from_millis(100));
    }
    job.cutover(&["--fence", "acl", "--back", "--max-pause", "5s"]).expect_code(0);
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    source.call(&["SET", "home", "again"]);
    assert_eq!(source.call(&["GET", "since"]), redis::Value::BulkString(b"then".to_vec()));
    assert_eq!(denied(&source).len(), 0, "{:#?}", denied(&source));
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
    assert_eq!((&counts["gone"], &counts["written"]), (&0.into(), &5.into()), "{counts}");
    // Another sync begins where nothing is remembered.
    let job = Sync::new(&source.addr(), &other.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    set("after");
    (1..5).for_each(|n| set(&format!("a:{n}")));
    redis::cmd("DEL").arg("a:0").exec(&mut third).expect("deleted");
    wait_until("it is there", || holds(&other, 3, "after") && !holds(&other, 3, "a:0"));
    let output = stop(sync);
    assert_eq!(report(&output)["report"]["counts"]["gone"], 1, "{}", output.stdout);
    assert!(holds(&other, 5, "a:0") && holds(&target, 5, "a:0"), "a key of another database is gone");
}

fn holds(server: &Server, db: u32, key: &str) -> bool {
    let mut connection = server.connection();
    redis::cmd("SELECT").arg(db).exec(&mut connection).expect("it has the database");
    redis::cmd("EXISTS").arg(key).query(&mut connection).expect("it answers")
}

/// A process that asks a sync that is stopped gives up, and what it asked for is not done later.
#[test]
fn a_sync_that_is_stopped_is_given_up() {
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    source.call(&["SET", "one", "1"]);
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    sync.suspend();
    let given_up = job.cutover(&["--fence", "acl", "--yes", "--max-pause", "5s"]).expect_code(1);
    let said = format!("{}{}", given_up.stdout, given_up.stderr);
    assert!(said.contains("is stopped or hangs"), "{given_up:#?}");
    sync.resume();
    job.cutover(&["--fence", "none", "--dry-run", "--max-pause", "5s"]).expect_code(0);
    source.call(&["SET", "two", "2"]);
    assert!(sync.is_running(), "it was cut over: {}", sync.stdout());
    stop(sync);
}
