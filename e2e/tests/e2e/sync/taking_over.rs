//! The target takes over from the source, or does not; and the way back.

use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::permissions::{denied, documented, give};
use whimbrel_e2e::shards;
use whimbrel_e2e::syncing::{
    PATIENCE, Sync, assert_equal, cluster, comparison, deployment, fill, report, seconds, stop,
    wait_until_following, writers,
};
use whimbrel_judge::compare::Comparison;
use whimbrel_lab::{Cluster, Engine, Server, wait_until};

/// A cutover is refused where the target is known not to hold everything.
#[test]
fn what_the_target_lacks_keeps_it_from_taking_over() {
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    let target = Cluster::builder(Engine::Redis70).primaries(1).start().expect("the target starts");
    source.call(&["SET", "a", "1"]);
    let job = Sync::new(&source.addr(), &target.seed(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    job.cutover(&["--fence", "none", "--max-pause", "20s"]).expect_code(0);
    // It expires by its fields, which the target does not know.
    source.call(&["HSET", "fields", "f", "v"]);
    source.call(&["HPEXPIRE", "fields", "1000000", "FIELDS", "1", "f"]);
    let refused = job.cutover(&["--fence", "readonly-replica", "--max-pause", "20s"]).expect_code(4);
    assert!(refused.stdout.contains("not on the target"), "{}", refused.stdout);
    source.call(&["DEL", "fields"]);
    job.cutover(&["--fence", "none", "--max-pause", "20s"]).expect_code(0);
    // A database that nobody thought of.
    let mut second = deployment(source.addr()).primaries()[0].connect(1).expect("the source answers");
    redis::cmd("SET").arg("b").arg(1).exec(&mut second).expect("written");
    let refused = job.cutover(&["--fence", "none", "--max-pause", "20s"]).expect_code(4);
    assert!(refused.stdout.contains("not part of this sync"), "{}", refused.stdout);
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
        let planned = job.cutover(&["--fence", fence, "--max-pause", "20s", "--dry-run"]).expect_code(0);
        // No pause of a millisecond compares thousands of keys.
        let too_short = ["--fence", fence, "--compare", "full", "--max-pause", "1ms"];
        job.cutover(&[&too_short[..], &["--dry-run"]].concat()).expect_code(4);
        assert_eq!(report(&planned)["report"]["dry_run"], true, "{planned:#?}");
        redis::cmd("SET").arg("before").arg(2).exec(&mut app).expect("nothing was done yet");
        // A pause that is too short for anything is given up, and writes are not paused any more.
        job.cutover(&too_short).expect_code(4);
        redis::cmd("SET").arg("before").arg(3).exec(&mut app).expect("everything is as before");
        // One key of thousands that differs is found when all are compared.
        target.call(&["SET", "plain:77", "not what it should be"]);
        let refused =
            job.cutover(&["--fence", fence, "--compare", "full", "--max-pause", "20s"]).expect_code(4);
        assert!(refused.stdout.contains("of all keys 1 differ"), "{refused:#?}");
        let value: String = redis::cmd("GET").arg("plain:77").query(&mut app).expect("read");
        redis::cmd("SET").arg("plain:77").arg(value).exec(&mut app).expect("everything is as before");
        let more = if fence == "pause" { ["--compare", "sample"] } else { ["--compare", "full"] };
        let how = ["--fence", fence, "--fence-for", "5m", "--max-pause", "20s"];
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

/// A user who asks for a cutover and thinks better of it learns which of the two it was.
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
    let back = ["--fence", "acl", "--reverse-sync", "--max-pause", "20s"];
    for how in [[&back[..], &["--dry-run"]].concat(), back.to_vec()] {
        let refused = job.cutover(&how);
        assert_ne!(refused.code(), Some(0), "{refused:#?}");
        assert!(refused.stdout.contains("NOPERM"), "{refused:#?}");
    }
    source.call(&["SET", "nobody", "is fenced off"]);
    stop(sync);
}

/// What the real one would refuse, the dry run refuses; and it shows how changes would be learnt of.
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
    // Nothing is to fail over here, on a busy machine neither.
    let target = cluster(Engine::Valkey91).node_timeout_ms(15_000).user_acl(rule);
    let target = target.start().expect("the target starts");
    for node in target.nodes() {
        // It goes on without a gap, however long that takes on a busy machine.
        node.call(&["CONFIG", "SET", "repl-backlog-size", "64mb"]);
    }
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
        // Nobody is refused by the fence: that clients move is not what this is about.
        let hold = forth.hold();
        job.cutover(&["--fence", "acl", "--reverse-sync", "--max-pause", "20s"]).expect_code(0);
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
        job.cutover(&["--fence", "acl", "--back", "--max-pause", "20s"]).expect_code(0);
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
    job.cutover(&["--fence", "acl", "--reverse-sync", "--max-pause", "20s"]).expect_code(0);
    target.call(&["SET", "since", "then"]);
    // The way back begins a moment after the answer: until then there is nobody to ask.
    let deadline = Instant::now() + PATIENCE;
    while job.cutover(&["--fence", "acl", "--back", "--dry-run", "--max-pause", "20s"]).code() != Some(0) {
        assert!(Instant::now() < deadline, "{}", sync.stderr());
        thread::sleep(Duration::from_millis(100));
    }
    job.cutover(&["--fence", "acl", "--back", "--max-pause", "20s"]).expect_code(0);
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    source.call(&["SET", "home", "again"]);
    assert_eq!(source.call(&["GET", "since"]), redis::Value::BulkString(b"then".to_vec()));
    assert_eq!(denied(&source).len(), 0, "{:#?}", denied(&source));
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
    let printed = format!("{}{}", given_up.stdout, given_up.stderr);
    assert!(printed.contains("is stopped or hangs"), "{given_up:#?}");
    sync.resume();
    // Right after it goes on it may not have heard of the servers yet.
    wait_until("it answers again", || {
        job.cutover(&["--fence", "none", "--dry-run", "--max-pause", "20s"]).code() == Some(0)
    });
    source.call(&["SET", "two", "2"]);
    assert!(sync.is_running(), "it was cut over: {}", sync.stdout());
    stop(sync);
}
