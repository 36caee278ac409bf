//! Cutovers: who is kept out, what a rehearsal finds, and what arrives with them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::{RedisResult, Value};
use whimbrel_e2e::binary::{Invocation, Running};
use whimbrel_e2e::syncing::{Ending, PATIENCE, Sync, report, stop, wait_until_following};
use whimbrel_lab::{Engine, Server, wait_until};

whimbrel_lab::for_each_engine! {
    who_waits_takes_nothing_of_the_way_back
}

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        a_dry_run_needs_the_same_rights
}

whimbrel_lab::for_each_engine! {
    on Redis80 Valkey81:
        consumers_that_were_given_nothing_arrive
}

whimbrel_lab::for_each_engine! {
    on Redis80 Valkey91:
        hashes_that_end_by_their_fields_keep_nothing_from_taking_over
}

const RULES: [&str; 2] = ["user mover on >secret ~* &* +@all", "user app on >secret ~* &* +@all"];

fn server(engine: Engine) -> Server {
    let [mover, app] = RULES;
    Server::builder(engine).user_acl(mover).user_acl(app).start().expect("the server starts")
}

fn url(server: &Server) -> String {
    format!("redis://mover:secret@{}", server.addr())
}

fn client(server: &Server) -> redis::Connection {
    let address = format!("redis://app:secret@{}/", server.addr());
    redis::Client::open(address).expect("an address").get_connection().expect("the server answers")
}

fn words(line: &str) -> redis::Cmd {
    let mut command = redis::Cmd::new();
    for word in line.split(' ') {
        command.arg(word);
    }
    command
}

/// A client that waits for one command's answer.
fn waiting(server: &Server, line: &'static str) -> JoinHandle<RedisResult<Value>> {
    let mut connection = client(server);
    thread::spawn(move || words(line).query(&mut connection))
}

const WAITS: [&str; 5] = [
    "BLPOP queue 150",
    "BZPOPMIN scores 150",
    "BLMPOP 150 1 queue LEFT",
    "BLMOVE queue elsewhere LEFT RIGHT 150",
    "XREADGROUP GROUP g waiting BLOCK 150000 STREAMS stream >",
];

/// A server with clients that wait, one in a transaction and one that watches a key; and a sync that follows
/// it.
struct Waiting {
    source: Server,
    target: Server,
    job: Sync,
    sync: Running,
    waiting: Vec<JoinHandle<RedisResult<Value>>>,
    queueing: redis::Connection,
    watching: redis::Connection,
    reading: redis::Connection,
}

impl Waiting {
    fn start(engine: Engine) -> Waiting {
        let (source, target) = (server(engine), server(engine));
        source.call(&["XGROUP", "CREATE", "stream", "g", "$", "MKSTREAM"]);
        source.call(&["SET", "plain", "1"]);
        let job = Sync::new(&url(&source), &url(&target), &["--db", "0"]);
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        let waiting = WAITS.into_iter().map(|line| waiting(&source, line)).collect();
        let (mut queueing, mut watching) = (client(&source), client(&source));
        words("MULTI").exec(&mut queueing).expect("a transaction begins");
        words("GET plain").exec(&mut queueing).expect("queued");
        words("WATCH plain").exec(&mut watching).expect("watched");
        let mut reading = client(&source);
        words("GET plain").exec(&mut reading).expect("read");
        wait_until("clients wait", || blocked(&source) == WAITS.len());
        Waiting { source, target, job, sync, waiting, queueing, watching, reading }
    }

    /// All that could still take or leave something has been ended; who only reads has not.
    fn assert_ended(&mut self, how: &str) {
        wait_until(&format!("no client waits after {how}"), || blocked(&self.source) == 0);
        for (line, waiting) in WAITS.iter().zip(self.waiting.drain(..)) {
            let answer = waiting.join().expect("no panic");
            assert!(answer.is_err(), "{how}: {line}: {answer:?}");
        }
        words("GET plain").exec(&mut self.queueing).expect_err("ended in its transaction");
        let clients = self.source.call(&["CLIENT", "LIST"]);
        if format!("{clients:?}").contains("watch=") {
            words("GET plain").exec(&mut self.watching).expect_err("ended while it watches");
        }
        words("GET plain").exec(&mut self.reading).expect("who only reads goes on");
    }
}

/// How many clients wait in a command, writers that are paused included.
fn blocked(server: &Server) -> usize {
    let Value::BulkString(info) = server.call(&["INFO", "clients"]) else { panic!("no text") };
    let info = String::from_utf8(info).expect("text");
    let number = info.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    number.and_then(|number| number.trim().parse().ok()).expect("a number")
}

/// Clients that waited for an item before the cutover take none of those that come back from the target.
fn who_waits_takes_nothing_of_the_way_back(engine: Engine) {
    let mut w = Waiting::start(engine);
    w.job.cutover(&["--fence", "acl", "--reverse-sync", "--max-pause", "20s"]).expect_code(0);
    w.target.call(&["RPUSH", "queue", "1", "2", "3"]);
    w.target.call(&["ZADD", "scores", "1", "one", "2", "two"]);
    w.target.call(&["XADD", "stream", "1-1", "f", "v"]);
    w.target.call(&["SET", "last", "1"]);
    let last = || w.source.call(&["EXISTS", "last"]) == Value::Int(1);
    wait_until("changes come back", last);
    wait_until_following(&mut w.sync);
    w.job.cutover(&["--fence", "acl", "--back", "--max-pause", "20s"]).expect_code(0);
    for (server, side) in [(&w.source, "source"), (&w.target, "target")] {
        for (command, expected) in [("LLEN", 3), ("ZCARD", 2), ("XLEN", 1)] {
            let key = match command {
                "LLEN" => "queue",
                "ZCARD" => "scores",
                _ => "stream",
            };
            let found = server.call(&[command, key]);
            assert_eq!(found, Value::Int(expected), "{engine}: {command} {key} of the {side}");
        }
        assert_eq!(server.call(&["EXISTS", "elsewhere"]), Value::Int(0), "{engine}: {side}");
    }
    w.assert_ended(&format!("{engine}: acl"));
}

/// The other fences end them as well; without a fence nobody is disturbed.
#[test]
fn every_fence_ends_who_waits() {
    for (fence, engine) in [("readonly-replica", Engine::Redis70), ("pause", Engine::Valkey91)] {
        let mut w = Waiting::start(engine);
        w.job.cutover(&["--fence", "none", "--max-pause", "20s"]).expect_code(0);
        wait_until("paused writers go on", || blocked(&w.source) == WAITS.len());
        assert!(w.waiting.iter().all(|waiting| !waiting.is_finished()), "{engine}");
        w.job.cutover(&["--fence", fence, "--fence-for", "20s", "--max-pause", "5s"]).expect_code(0);
        w.assert_ended(fence);
    }
}

/// A pair of standalone servers, and a sync that follows.
fn following(from: Engine, to: Engine, dataset: impl FnOnce(&Server)) -> (Server, Server, Sync, Running) {
    let (source, target) = (server(from), server(to));
    dataset(&source);
    let job = Sync::new(&url(&source), &url(&target), &["--db", "0"]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    (source, target, job, sync)
}

/// The dry run says no where the cutover would, with the same words.
#[track_caller]
fn assert_both_refuse(job: &Sync, how: &[&str], words: &[&str]) {
    let how = [how, &["--max-pause", "5s"]].concat();
    let deadline = Instant::now() + PATIENCE;
    for how in [[&how[..], &["--dry-run"]].concat(), how] {
        let mut refused = job.cutover(&how);
        // A dry run pauses nobody: while clients write faster than a busy machine compares, it cannot know,
        // and says so.
        while refused.stdout.contains("it proves nothing yet") && Instant::now() < deadline {
            refused = job.cutover(&how);
        }
        let refused = refused.expect_code(4);
        for words in words {
            assert!(refused.stdout.contains(words), "{how:?}: {words}: {}", refused.stdout);
        }
    }
}

#[test]
fn a_dry_run_finds_what_differs() {
    let fill = |source: &Server| {
        for number in 0..20 {
            source.call(&["SET", &format!("plain:{number}"), "1"]);
        }
    };
    let (source, target, job, sync) = following(Engine::Redis70, Engine::Valkey91, fill);
    target.call(&["SET", "stray", "1"]);
    assert_both_refuse(&job, &["--fence", "none"], &["holds 21 and should hold 20", "--mirror"]);
    // While clients write other keys all the time, too.
    let stop_writing = AtomicBool::new(false);
    thread::scope(|scope| {
        // Also where an assertion fails: the thread is waited for.
        let _ending = Ending(&stop_writing);
        scope.spawn(|| {
            let mut connection = client(&source);
            while !stop_writing.load(Ordering::Relaxed) {
                words("SET plain:3 2").exec(&mut connection).expect("written");
                thread::sleep(Duration::from_millis(20));
            }
        });
        assert_both_refuse(
            &job,
            &["--fence", "none", "--compare", "counts"],
            &["holds 21 and should hold 20"],
        );
        target.call(&["DEL", "stray"]);
        job.cutover(&["--fence", "none", "--max-pause", "20s", "--dry-run"]).expect_code(0);
        job.cutover(&["--fence", "none", "--max-pause", "20s"]).expect_code(0);
    });
    // As many keys, and one of them is another.
    target.call(&["SET", "plain:7", "not what it should be"]);
    assert_both_refuse(&job, &["--fence", "none", "--compare", "full"], &["of all keys 1 differ"]);
    for number in 0..20 {
        target.call(&["SET", &format!("plain:{number}"), "not what it should be"]);
    }
    assert_both_refuse(&job, &["--fence", "none"], &["plain:", "differs"]);
    stop(sync);
}

/// A sample is reported as one.
#[test]
fn a_sample_says_what_it_is_worth() {
    let fill = |source: &Server| {
        let mut pipe = redis::pipe();
        for number in 0..3_000 {
            pipe.cmd("SET").arg(format!("plain:{number}")).arg(number).ignore();
        }
        pipe.exec(&mut source.connection()).expect("written");
    };
    let (_source, _target, job, sync) = following(Engine::Valkey81, Engine::Valkey81, fill);
    let state = job.state.path();
    let args = ["cutover", "--fence", "none", "--dry-run", "--max-pause", "20s"];
    let shown = Invocation::new(&args).env("XDG_STATE_HOME", state).timeout(PATIENCE).run().expect_code(0);
    assert!(shown.stdout.contains("of 3,000 keys in full"), "{}", shown.stdout);
    assert!(shown.stdout.contains("in 1 % of the keys with 4"), "{}", shown.stdout);
    let report = report(&job.cutover(&args[1..]).expect_code(0))["report"].clone();
    assert_eq!(report["keys"], 3_000, "{report}");
    assert!(report["finds_one_percent"].as_f64().is_some_and(|p| p > 0.4 && p < 0.5), "{report}");
    stop(sync);
}

/// What the user may not do is found out by the dry run, and reported with what helps.
fn a_dry_run_needs_the_same_rights(engine: Engine) {
    let (source, _target, job, sync) =
        following(engine, engine, |source| drop(source.call(&["SET", "k", "1"])));
    for (right, name, fences) in [
        ("client|pause", "CLIENT PAUSE", &["none", "pause", "acl", "readonly-replica"][..]),
        ("client|unpause", "CLIENT UNPAUSE", &["none"]),
        ("client|kill", "CLIENT KILL", &["pause", "acl", "readonly-replica"]),
        ("client|list", "CLIENT LIST", &["acl"]),
        ("acl|setuser", "ACL SETUSER", &["acl"]),
        ("acl|getuser", "ACL GETUSER", &["acl"]),
        ("replicaof", "REPLICAOF", &["readonly-replica"]),
    ] {
        source.call(&["ACL", "SETUSER", "mover", &format!("-{right}")]);
        for fence in fences {
            assert_both_refuse(
                &job,
                &["--fence", fence],
                &[name, &format!("give this user +{}", family(right))],
            );
        }
        source.call(&["ACL", "SETUSER", "mover", &format!("+{right}")]);
        source.call(&["SET", "k", right]);
    }
    for fence in ["none", "pause", "acl", "readonly-replica"] {
        job.cutover(&["--fence", fence, "--max-pause", "20s", "--dry-run"]).expect_code(0);
    }
    stop(sync);
}

/// An ACL fence leaves whimbrel's own user its rights: a client that is logged in as that user would go on
/// writing, and what it writes be lost.
#[test]
fn clients_with_whimbrels_own_user_keep_an_acl_fence_from_being_put_up() {
    let fill = |source: &Server| drop(source.call(&["SET", "k", "1"]));
    let (source, _target, job, sync) = following(Engine::Redis70, Engine::Valkey91, fill);
    let client = redis::Client::open(url(&source)).expect("an address");
    let mut client = client.get_connection().expect("a connection");
    words("SET k 2").exec(&mut client).expect("written");
    let expected = ["a client is logged in there as whimbrel's own user, mover", "would not stop them"];
    assert_both_refuse(&job, &["--fence", "acl"], &expected);
    words("SET k 3").exec(&mut client).expect("nobody was fenced off");
    drop(client);
    let may = || job.cutover(&["--fence", "acl", "--dry-run", "--max-pause", "20s"]).code() == Some(0);
    wait_until("it is possible without that client", may);
    stop(sync);
}

/// A service that has no `CLIENT` for anybody.
#[test]
fn a_dry_run_finds_a_command_that_is_not_there() {
    let source = Server::builder(Engine::Valkey81).arg("rename-command", "CLIENT elsewhere");
    let source = source.start().expect("the source starts");
    let target = server(Engine::Valkey81);
    let job = Sync::new(&source.addr(), &url(&target), &["--db", "0"]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    for fence in ["none", "pause"] {
        assert_both_refuse(&job, &["--fence", fence], &["CLIENT PAUSE", "--fence external"]);
    }
    stop(sync);
}

/// The beginning of the rights that are named together.
fn family(right: &str) -> &str {
    match right {
        "client|pause" | "client|unpause" => "client|pause",
        "client|kill" | "client|list" => "client|list",
        "acl|setuser" | "acl|getuser" => "acl|whoami",
        other => other,
    }
}

/// Hashes lose their last field while the source is paused, which keeps them then.
fn hashes_that_end_by_their_fields_keep_nothing_from_taking_over(engine: Engine) {
    let fill = |source: &Server| {
        let mut connection = source.connection();
        let mut pipe = redis::pipe();
        for number in 0..12_000 {
            pipe.cmd("HSET").arg(format!("hash:{number}")).arg("f").arg(number).ignore();
        }
        pipe.exec(&mut connection).expect("written");
    };
    let (source, _target, job, sync) = following(engine, engine, fill);
    let mut pipe = redis::pipe();
    for number in 0..12_000 {
        let (key, after_ms) = (format!("hash:{number}"), 1_000 + number / 2);
        pipe.cmd("HPEXPIRE").arg(key).arg(after_ms).arg("FIELDS").arg(1).arg("f").ignore();
    }
    pipe.exec(&mut source.connection()).expect("written");
    let left = || source.call(&["DBSIZE"]);
    let mut cut_over = 0;
    while left() != Value::Int(0) {
        for compare in ["sample", "full"] {
            job.cutover(&["--fence", "none", "--compare", compare, "--max-pause", "20s"]).expect_code(0);
        }
        cut_over += 1;
    }
    assert!(cut_over > 0, "{engine}: nothing was left to end");
    stop(sync);
}

/// Servers do not replicate a consumer before it is given something.
fn consumers_that_were_given_nothing_arrive(engine: Engine) {
    let fill = |source: &Server| {
        for stream in ["early", "late"] {
            source.call(&["XGROUP", "CREATE", stream, "g", "$", "MKSTREAM"]);
        }
    };
    let (source, target, job, sync) = following(engine, engine, fill);
    let _waiting = waiting(&source, "XREADGROUP GROUP g idle BLOCK 150000 STREAMS early late > >");
    let consumers = |server: &Server| format!("{:?}", server.call(&["XINFO", "CONSUMERS", "late", "g"]));
    wait_until("there is a consumer", || consumers(&source).contains("name"));
    assert!(!consumers(&target).contains("name"), "{engine}: servers replicate it: nothing is to be shown");
    job.cutover(&["--fence", "acl", "--compare", "full", "--max-pause", "20s"]).expect_code(0);
    assert!(consumers(&target).contains("name"), "{engine}: {}", consumers(&target));
    drop(sync);
}

/// The source hangs before a cutover is asked for: that is said in bounded time, with how long nothing was
/// heard, and that nothing was changed. The sync goes on, and the cutover succeeds once it answers.
#[test]
fn a_source_that_hangs_is_reported() {
    for is_noticed in [false, true] {
        let fill = |source: &Server| drop(source.call(&["SET", "k", "1"]));
        let (source, target, job, mut sync) = following(Engine::Redis70, Engine::Valkey91, fill);
        source.suspend().expect("suspended");
        if is_noticed {
            let deadline = Instant::now() + PATIENCE;
            while !sync.stdout().lines().next_back().is_some_and(|line| line.contains("\"silent\":true")) {
                assert!(sync.is_running() && Instant::now() < deadline, "{}", sync.stdout());
                thread::sleep(Duration::from_millis(50));
            }
        }
        let refused = job.cutover(&["--fence", "none", "--max-pause", "5s"]).expect_code(3);
        // On a busy machine the sync may have noticed before the cutover asks.
        let words = ["no answer for", "no connection within"];
        let words = if is_noticed { &words[..1] } else { &words[..] };
        assert!(words.iter().any(|words| refused.stdout.contains(words)), "{words:?}: {}", refused.stdout);
        for words in ["nothing was changed", &*source.addr()] {
            assert!(refused.stdout.contains(words), "{words}: {}", refused.stdout);
        }
        source.resume().expect("resumed");
        wait_until("it is cut over", || {
            job.cutover(&["--fence", "none", "--max-pause", "20s"]).code() == Some(0)
        });
        assert_eq!(target.call(&["GET", "k"]), source.call(&["GET", "k"]));
        stop(sync);
    }
}

/// Where the fence is a pause, the way back begins when it is over: until then nothing is written there.
#[test]
fn the_way_back_waits_for_the_end_of_a_pause() {
    let fill = |source: &Server| drop(source.call(&["SET", "k", "1"]));
    let (source, target, job, sync) = following(Engine::Redis70, Engine::Redis70, fill);
    let how = ["--fence", "pause", "--fence-for", "12s", "--reverse-sync", "--max-pause", "5s"];
    job.cutover(&how).expect_code(0);
    target.call(&["SET", "k", "2"]);
    let arrived = target.call(&["GET", "k"]);
    wait_until("changes come back", || source.call(&["GET", "k"]) == arrived);
    stop(sync);
}
