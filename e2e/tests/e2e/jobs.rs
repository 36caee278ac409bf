//! `whimbrel jobs`: every kind of job is listed, and goes on, or is cancelled, whether it runs or was killed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use whimbrel_e2e::binary::{Invocation, Output, Running};
use whimbrel_e2e::fronts::Front;
use whimbrel_e2e::resharding::Scene;
use whimbrel_e2e::slow_jobs::{Slow, jobs, listed};
use whimbrel_e2e::syncing::PATIENCE;
use whimbrel_lab::{Engine, Server, wait_until};

/// Servers for jobs, and the jobs there.
struct Fixture(Slow);

impl std::ops::Deref for Fixture {
    type Target = Slow;

    fn deref(&self) -> &Slow {
        &self.0
    }
}

impl Fixture {
    fn new() -> Fixture {
        Fixture(Slow::new())
    }

    /// One for a job of this kind: of what is verified there is a copy.
    #[track_caller]
    fn of(kind: &str) -> Fixture {
        let place = Fixture::new();
        if kind == "verify" {
            let (from, to) = (place.source.addr(), place.target.addr());
            Invocation::new(&["copy", &from, &to]).timeout(PATIENCE).run().expect_code(0);
        }
        place
    }

    /// A copy, a verification or a sync that takes its time, once it is at work.
    #[track_caller]
    fn start(&self, kind: &str, more: &[&str]) -> Running {
        self.0.start(kind, 500, &[&["--match", "*"], more].concat())
    }

    fn jobs(&self, args: &[&str]) -> Output {
        jobs(self.state(), args)
    }

    /// The only job that is listed and has not ended.
    #[track_caller]
    fn open_job(&self) -> Value {
        let open: Vec<Value> =
            listed(self.state()).into_iter().filter(|job| job["state"] != "ended").collect();
        assert_eq!(open.len(), 1, "{open:#?}");
        open[0].clone()
    }
}

/// The arguments of a command as a shell takes them, with nothing in it that a shell would have to be asked
/// for. What was slow to be killed on its way need not be slow again.
#[track_caller]
fn arguments(job: &Value) -> Vec<String> {
    let again = job["again"].as_str().unwrap_or_else(|| panic!("no command: {job:#}"));
    let again = again.replace("--rate-keys 500", "--rate-keys 1000000");
    again.split(' ').skip(1).map(|word| word.trim_matches('\'').to_owned()).collect()
}

/// It is listed while it runs; once it was killed, with a command that goes on with it, which does.
#[track_caller]
fn is_killed_and_goes_on(kind: &str, more_again: &[&str]) {
    let place = Fixture::of(kind);
    // What takes load off the primaries has to do so when it goes on, too.
    let reading: &[&str] = if kind == "sync" { &[] } else { &["--from-replicas"] };
    let mut running = place.start(kind, reading);
    let job = place.open_job();
    assert_eq!((&job["kind"], &job["state"]), (&kind.into(), &"running".into()), "{job:#}");
    assert!(job["percent"].as_u64().is_some_and(|percent| percent < 100), "{job:#}");
    assert_eq!(job["again"], Value::Null, "it need not go on: {job:#}");
    running.kill9();
    let job = place.open_job();
    assert_eq!((&job["kind"], &job["state"]), (&kind.into(), &"interrupted".into()), "{job:#}");
    let sides = [place.source.addr(), place.target.addr()].map(Value::from);
    assert_eq!([job["source"].clone(), job["target"].clone()], sides, "{job:#}");
    let text = place.jobs(&["list"]).expect_code(0).stdout;
    let again = job["again"].as_str().expect("a command");
    assert!(text.contains("interrupted") && text.contains(again), "{text}");
    assert!(reading.iter().all(|option| again.contains(option)), "{again}");
    let refused = place.jobs(&["resume", job["name"].as_str().expect("a name")]).expect_code(2);
    assert!(refused.stderr.contains(again), "{}", refused.stderr);
    let words = arguments(&job);
    let words: Vec<&str> = words.iter().map(String::as_str).chain(more_again.iter().copied()).collect();
    Invocation::new(&words).timeout(PATIENCE).run().expect_code(0);
    if kind == "sync" {
        // One that has been stopped can always go on.
        assert_eq!(place.open_job()["phase"], "stopped");
        place.jobs(&["cancel", job["name"].as_str().expect("a name")]).expect_code(0);
    }
    let all = listed(place.state());
    assert_eq!(all.len(), 1, "{all:#?}");
    assert_eq!(all[0]["state"], "ended", "{all:#?}");
    assert_eq!(all[0]["created_s"], job["created_s"], "it is the same job: {all:#?}");
    place.jobs(&["clean"]).expect_code(0);
    assert!(place.jobs(&[]).expect_code(0).stdout.contains("no jobs"));
}

#[test]
fn a_copy_that_was_killed_is_listed_and_goes_on() {
    is_killed_and_goes_on("copy", &[]);
}

#[test]
fn a_verification_that_was_killed_is_listed_and_goes_on() {
    is_killed_and_goes_on("verify", &[]);
}

#[test]
fn a_sync_that_was_killed_is_listed_and_goes_on() {
    is_killed_and_goes_on("sync", &["--once"]);
}

#[test]
fn a_move_of_slots_that_was_killed_is_listed_and_goes_on() {
    let scene = Scene::of(Engine::Redis70, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    let state = scene.file("");
    let state = state.to_str().expect("a plain path").trim_end_matches('/');
    let move_it = scene.reshard("0-99", 1, &["--method", "external"]);
    let output = move_it.env("WHIMBREL_FAILPOINT", "snapshot:after").run();
    assert_eq!(output.code(), None, "it was not killed: {output:#?}");
    let all = listed(state);
    assert_eq!(all.len(), 1, "{all:#?}");
    assert_eq!((&all[0]["kind"], &all[0]["state"]), (&"move".into(), &"interrupted".into()), "{all:#?}");
    Invocation::new(&arguments(&all[0])).timeout(PATIENCE).run().expect_code(0);
    assert_eq!(listed(state)[0]["state"], "ended");
    assert_eq!(scene.cluster.owner_of(0).expect("an owner"), 1);
}

#[test]
fn a_front_that_was_killed_is_listed_and_goes_on() {
    let place = Fixture::new();
    let mut front = Front::between(&place.source.addr(), &place.target.addr(), &[]);
    let state = front.state_dir().to_owned();
    let only = || {
        let all = listed(&state);
        assert_eq!(all.len(), 1, "{all:#?}");
        all[0].clone()
    };
    assert_eq!((&only()["kind"], &only()["phase"]), (&"front".into(), &"forwarding".into()));
    Invocation::new(&["front", "start", "--yes", "--state-dir", &state]).run().expect_code(0);
    front.running.kill9();
    let job = only();
    assert_eq!((&job["kind"], &job["state"]), (&"front".into(), &"interrupted".into()), "{job:#}");
    let refused = jobs(&state, &["cancel", job["name"].as_str().expect("a name")]).expect_code(2);
    assert!(refused.stderr.contains("keys of a front can be on both servers"), "{}", refused.stderr);
    let mut again = Invocation::new(&arguments(&job)).spawn();
    assert!(again.wait_for_text("serving", PATIENCE), "{}", again.stderr());
    wait_until("all keys have moved", || front.status()["phase"] == "done");
    Invocation::new(&["front", "finish", "--yes", "--state-dir", &state]).run().expect_code(0);
    again.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_eq!((&only()["state"], &only()["phase"]), (&"ended".into(), &"finished".into()));
}

/// What runs is asked to end, what was killed is ended by its journal; neither can go on then.
#[test]
fn jobs_are_cancelled_whether_they_run_or_not() {
    for kind in ["copy", "sync"] {
        for is_killed in [false, true] {
            let place = Fixture::new();
            let mut running = place.start(kind, &[]);
            if is_killed {
                running.kill9();
            }
            let job = place.open_job();
            let name = job["name"].as_str().expect("a name");
            place.jobs(&["cancel", name]).expect_code(0);
            if !is_killed {
                running.wait(PATIENCE).expect("it ends").expect_code(130);
            }
            let all = listed(place.state());
            assert_eq!(all.len(), 1, "{kind}: {all:#?}");
            assert_eq!(
                (&all[0]["state"], &all[0]["phase"]),
                (&"ended".into(), &"cancelled".into()),
                "{kind}: {all:#?}"
            );
            let files = std::fs::read_dir(place.folder.path()).expect("a folder");
            let is_journal = |path: &Path| path.extension().is_some_and(|ending| ending == "journal");
            assert!(!files.flatten().any(|file| is_journal(&file.path())), "{kind}: it could go on");
        }
    }
}

/// A process that hangs is named as such, in bounded time.
#[test]
fn a_job_that_hangs_is_listed_as_one_that_does_not_answer() {
    let place = Fixture::new();
    let mut running = place.start("copy", &[]);
    running.suspend();
    let job = place.open_job();
    assert_eq!((&job["state"], &job["answers"]), (&"running".into(), &false.into()), "{job:#}");
    let name = job["name"].as_str().expect("a name").to_owned();
    assert!(place.jobs(&[]).expect_code(0).stdout.contains("does not answer"));
    let given_up = place.jobs(&["cancel", &name]).expect_code(1);
    assert!(given_up.stderr.contains("stopped or hangs"), "{}", given_up.stderr);
    // What was given up is not done later.
    running.resume();
    let deadline = Instant::now() + PATIENCE;
    while place.open_job()["answers"] == false {
        assert!(Instant::now() < deadline, "it does not answer again");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(place.open_job()["state"], "running");
    place.jobs(&["cancel", &name]).expect_code(0);
    running.wait(PATIENCE).expect("it ends").expect_code(130);
}

/// The name of a job.
fn name_of(job: &Value) -> &str {
    job["name"].as_str().expect("a name")
}

/// What `--json` says of how far a job is.
fn done(place: &Fixture) -> u64 {
    place.open_job()["keys_moved"].as_u64().expect("a number")
}

/// How far a job is once nothing changes any more: what was on its way has arrived.
fn done_at_rest(place: &Fixture) -> u64 {
    let mut before = done(place);
    wait_until("nothing is on its way any more", || {
        // Longer than a machine stands still.
        std::thread::sleep(Duration::from_secs(4));
        let now = done(place);
        std::mem::replace(&mut before, now) == now
    });
    before
}

/// A job at 500 keys a second is paused: nothing moves for longer than a second's worth takes; it is set
/// to be as fast as it can and still rests; it is resumed, and comes to its end.
#[track_caller]
fn is_paused_set_and_resumed(kind: &str, more: &[&str]) {
    let place = Fixture::of(kind);
    let mut running = place.start(kind, more);
    let job = place.open_job();
    let name = name_of(&job);
    assert_eq!((&job["rate_keys"], &job["paused"]), (&500.into(), &false.into()), "{job:#}");
    place.jobs(&["pause", name]).expect_code(0);
    let rests_at = done_at_rest(&place);
    assert!(place.jobs(&["list"]).expect_code(0).stdout.contains("paused"));
    let set = place.jobs(&["set", name, "rate-keys=none", "rate-bytes=1GiB"]).expect_code(0);
    assert!(set.stdout.contains("1.0 GiB a second; paused"), "{}", set.stdout);
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(done(&place), rests_at, "it goes on although it is paused");
    assert!(rests_at < job["keys"].as_u64().expect("a number"), "it was over before it was paused");
    let shown = place.jobs(&["show", name]).expect_code(0).stdout;
    assert!(shown.contains("rates    1.0 GiB a second; paused"), "{shown}");
    place.jobs(&["resume", name]).expect_code(0);
    running.wait(PATIENCE).expect("it ends").expect_code(0);
    let ended = place.jobs(&["pause", name]).expect_code(2);
    assert!(
        ended.stderr.contains(if kind == "sync" { "does not run" } else { "has ended" }),
        "{}",
        ended.stderr
    );
    let (from, to) = (place.source.addr(), place.target.addr());
    Invocation::new(&["verify", &from, &to]).timeout(PATIENCE).run().expect_code(0);
}

#[test]
fn a_copy_is_paused_set_and_resumed() {
    is_paused_set_and_resumed("copy", &[]);
}

#[test]
fn a_verification_is_paused_set_and_resumed() {
    is_paused_set_and_resumed("verify", &[]);
}

#[test]
fn a_sync_is_paused_set_and_resumed() {
    is_paused_set_and_resumed("sync", &["--once"]);
}

/// Keeps a server busy until dropped: each of its clients waits for the end of a script.
struct Busy<'a> {
    stop: Arc<AtomicBool>,
    keeping: Option<std::thread::JoinHandle<()>>,
    _server: &'a Server,
}

impl Busy<'_> {
    fn begin(server: &Server) -> Busy<'_> {
        let stop = Arc::<AtomicBool>::default();
        let (until, mut client) = (stop.clone(), server.connection());
        let keeping = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                let script = redis::cmd("EVAL")
                    .arg("local n = 0 for i = 1, 5000000 do n = n + i end return 'done'")
                    .arg(0)
                    .query::<String>(&mut client);
                assert!(script.is_ok(), "{script:?}");
            }
        });
        Busy { stop, keeping: Some(keeping), _server: server }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.keeping.take().expect("it was begun").join().expect("it kept the server busy");
    }
}

/// With `--max-latency` a server that is busy slows a copy down, and no longer once the limit is taken off.
#[test]
fn a_busy_server_slows_a_copy_down() {
    let place = Fixture::new();
    let busy = Busy::begin(&place.source);
    let (from, to) = (place.source.addr(), place.target.addr());
    let limits = ["--rate-keys", "500", "--max-latency", "10ms", "--report", "1"];
    let args = [&["copy", &from, &to, "--state-dir", place.state()], &limits[..]].concat();
    let mut running = Invocation::new(&args).timeout(PATIENCE).spawn();
    assert!(running.wait_for_text("slowed to", PATIENCE), "{}{}", running.stdout(), running.stderr());
    drop(busy);
    let job = place.open_job();
    assert_eq!(job["max_latency_ms"], 10, "{job:#}");
    let set = place.jobs(&["set", name_of(&job), "rate-keys=none", "max-latency=none"]).expect_code(0);
    assert!(set.stdout.contains("no rate is set"), "{}", set.stdout);
    running.wait(PATIENCE).expect("it ends").expect_code(0);
    Invocation::new(&["verify", &from, &to]).timeout(PATIENCE).run().expect_code(0);
}

/// With `--max-load` a server that uses more of its core slows a copy down.
#[test]
fn a_server_that_uses_its_core_slows_a_copy_down() {
    let place = Fixture::new();
    let busy = Busy::begin(&place.source);
    let (from, to) = (place.source.addr(), place.target.addr());
    let limits = ["--rate-keys", "500", "--max-load", "5%", "--report", "1"];
    let args = [&["copy", &from, &to, "--state-dir", place.state()], &limits[..]].concat();
    let mut running = Invocation::new(&args).timeout(PATIENCE).spawn();
    let words = "of a core, of 5%";
    assert!(running.wait_for_text(words, PATIENCE), "{}{}", running.stdout(), running.stderr());
    drop(busy);
    let job = place.open_job();
    assert_eq!(job["max_load"], 5, "{job:#}");
    let set = place.jobs(&["set", name_of(&job), "rate-keys=none", "max-load=none"]).expect_code(0);
    assert!(set.stdout.contains("no rate is set"), "{}", set.stdout);
    running.wait(PATIENCE).expect("it ends").expect_code(0);
    let wrong = place.jobs(&["set", name_of(&job), "max-load=200%"]);
    assert!(wrong.stderr.contains("1% to 100%"), "{}", wrong.stderr);
}

/// With `--max-lag` a replica of the target that is behind slows a copy down.
#[test]
fn a_replica_that_is_behind_slows_a_copy_down() {
    let place = Fixture::new();
    let replica = Server::builder(Engine::Valkey91).start().expect("the replica starts");
    let (from, to) = (place.source.addr(), place.target.addr());
    let port = place.target.port().to_string();
    assert_eq!(replica.call(&["REPLICAOF", "127.0.0.1", &port]), redis::Value::Okay);
    wait_until("it follows", || {
        let info: String =
            redis::cmd("INFO").arg("replication").query(&mut place.target.connection()).expect("INFO");
        info.contains("state=online")
    });
    replica.suspend().expect("it is stopped");
    let limits = ["--rate-keys", "500", "--max-lag", "1KiB", "--report", "1"];
    let args = [&["copy", &from, &to, "--state-dir", place.state()], &limits[..]].concat();
    let mut running = Invocation::new(&args).timeout(PATIENCE).spawn();
    let words = "a replica of the target is";
    assert!(running.wait_for_text(words, PATIENCE), "{}{}", running.stdout(), running.stderr());
    let job = place.open_job();
    assert_eq!(job["max_lag"]["bytes"], 1_024, "{job:#}");
    replica.resume().expect("it goes on");
    let set = place.jobs(&["set", name_of(&job), "rate-keys=none", "max-lag=none"]).expect_code(0);
    assert!(set.stdout.contains("no rate is set"), "{}", set.stdout);
    running.wait(PATIENCE).expect("it ends").expect_code(0);
}

/// A window that is closed for the next hour at least, and when it opens.
fn closed_window() -> (String, String) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs();
    let hour = |later: u64| (now / 3_600 + later) % 24;
    (format!("{:02}:00-{:02}:00", hour(2), hour(3)), format!("paused until {:02}:00Z", hour(2)))
}

/// Waits until the only job runs and is paused so.
#[track_caller]
fn wait_until_paused(state: &str, paused: &str, running: &mut Running) -> Value {
    let deadline = Instant::now() + PATIENCE;
    while !jobs(state, &[]).expect_code(0).stdout.contains(paused) {
        let goes_on = running.is_running() && Instant::now() < deadline;
        assert!(goes_on, "it is not paused: {}{}", running.stdout(), running.stderr());
        std::thread::sleep(Duration::from_millis(50));
    }
    listed(state).pop().expect("it is there")
}

/// Outside of its window a job moves nothing, also after it was killed. To resume it does not open it.
#[test]
fn a_copy_keeps_to_its_window() {
    let place = Fixture::new();
    let (window, paused) = closed_window();
    let (from, to) = (place.source.addr(), place.target.addr());
    let args = ["copy", &from, &to, "--state-dir", place.state(), "--between", &window];
    let mut running = Invocation::new(&args).timeout(PATIENCE).spawn();
    let job = wait_until_paused(place.state(), &paused, &mut running);
    assert_eq!((&job["state"], &job["keys_moved"]), (&"running".into(), &0.into()), "{job:#}");
    running.kill9();
    let words = arguments(&place.open_job());
    assert!(words.join(" ").contains(&format!("--between {window}Z")), "{words:?}");
    let mut running = Invocation::new(&words).timeout(PATIENCE).spawn();
    let shown = paused.to_uppercase();
    assert!(running.wait_for_text(&shown, PATIENCE), "{words:?}: {}{}", running.stdout(), running.stderr());
    let job = wait_until_paused(place.state(), &paused, &mut running);
    place.jobs(&["resume", name_of(&job)]).expect_code(0);
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(place.target.call(&["DBSIZE"]), redis::Value::Int(0), "it does not keep to its window");
    let shown = place.jobs(&["show", name_of(&job)]).expect_code(0).stdout;
    assert!(shown.contains(&format!("between {window}Z; {paused}")), "{shown}");
    place.jobs(&["set", name_of(&job), "between=none"]).expect_code(0);
    running.wait(PATIENCE).expect("it ends").expect_code(0);
    Invocation::new(&["verify", &from, &to]).timeout(PATIENCE).run().expect_code(0);
}

/// It does not even attach to the source; its journal has the window.
#[test]
fn a_move_of_slots_keeps_to_its_window() {
    let scene = Scene::of(Engine::Redis70, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    let state = scene.file("");
    let state = state.to_str().expect("a plain path").trim_end_matches('/');
    let (window, paused) = closed_window();
    let mut running = scene.reshard("0-99", 1, &["--between", &window, "--max-pause", "5s"]).spawn();
    wait_until_paused(state, &paused, &mut running);
    assert!(running.is_running(), "it has ended: {}{}", running.stdout(), running.stderr());
    running.kill9();
    let resume = ["jobs", "resume", "--state-dir", state];
    let mut running = Invocation::new(&resume).timeout(PATIENCE).spawn();
    let job = wait_until_paused(state, &paused, &mut running);
    std::thread::sleep(Duration::from_millis(1_500));
    let info: String =
        redis::cmd("INFO").arg("replication").query(&mut scene.cluster.connection_to(0)).expect("INFO");
    assert!(info.contains("connected_slaves:0"), "it has attached: {info}");
    assert_eq!(scene.cluster.owner_of(0).expect("an owner"), 0);
    jobs(state, &["set", name_of(&job), "between=none"]).expect_code(0);
    running.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_eq!(scene.cluster.owner_of(0).expect("an owner"), 1);
    let refused = scene.reshard("0-9", 0, &["--method", "native", "--between", &window]).run();
    assert!(refused.expect_code(2).stdout.contains("--between"));
}

/// The only job, once its snapshot has begun.
#[track_caller]
fn once_it_moves_keys(state: &str, running: &mut Running) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let job = listed(state).pop().unwrap_or_default();
        if job["phase"] == "snapshotting" {
            return job;
        }
        let goes_on = running.is_running() && Instant::now() < deadline;
        assert!(goes_on, "it moves no keys: {job:#}\n{}\n{}", running.stdout(), running.stderr());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// At a key a second it would take hours; set to be faster, it is there at once.
#[test]
fn a_move_of_slots_is_paused_set_and_resumed() {
    let scene = Scene::of(Engine::Redis70, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    scene.fill(0..=99, 100, 10_000);
    let filled = scene.cluster.total_keys().expect("a number");
    let state = scene.file("");
    let state = state.to_str().expect("a plain path").trim_end_matches('/');
    let slowly = ["--method", "external", "--rate-keys", "1"];
    let mut running = scene.reshard("0-99", 1, &slowly).timeout(PATIENCE).spawn();
    let job = once_it_moves_keys(state, &mut running);
    let name = name_of(&job);
    jobs(state, &["pause", name]).expect_code(0);
    // Monitors are not shown what administrators do, the slow log is.
    scene.cluster.nodes()[0].call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    scene.cluster.nodes()[0].call(&["CONFIG", "SET", "slowlog-max-len", "1000000"]);
    let refused = jobs(state, &["set", name, "max-pause=1ms", "rate-keys=5"]).expect_code(2);
    assert!(refused.stderr.contains("even without writers"), "{}", refused.stderr);
    let refused = jobs(state, &["set", name, "lanes=2:4"]).expect_code(2);
    assert!(refused.stderr.contains("reads and writes"), "{}", refused.stderr);
    // More lanes than the target takes connections.
    let clients = connections(&scene.cluster.nodes()[1]);
    scene.cluster.nodes()[1].call(&["CONFIG", "SET", "maxclients", &(clients + 12).to_string()]);
    let set = jobs(state, &["set", name, "rate-keys=none", "max-pause=7777ms", "lanes=64"]).expect_code(0);
    assert!(set.stdout.contains("lanes: 64, writes paused for at most 7.8 s; paused"), "{}", set.stdout);
    let written_down = || {
        let record = std::fs::read(format!("{state}/jobs/{name}.job")).expect("the job's record");
        String::from_utf8_lossy(&record).contains("\"max_pause_ms\":7777")
    };
    wait_until("it is written down, although the job is paused", written_down);
    let events = jobs(state, &["events", name]).expect_code(0).stdout;
    assert!(events.contains("set by ") && events.contains(": lanes: 64, writes paused"), "{events}");
    std::thread::sleep(Duration::from_millis(1_500));
    let job = listed(state).remove(0);
    assert_eq!((&job["phase"], &job["paused"]), (&"snapshotting".into(), &true.into()), "{job:#}");
    jobs(state, &["resume", name]).expect_code(0);
    running.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_eq!(scene.cluster.owner_of(0).expect("an owner"), 1);
    assert_eq!(scene.cluster.total_keys().expect("a number"), filled);
    let done: Vec<(u64, u64, u64, Vec<String>, String, String)> =
        redis::cmd("SLOWLOG").arg("GET").arg(-1).query(&mut scene.cluster.connection_to(0)).expect("a log");
    let is_pause =
        |words: &Vec<String>| words[0].eq_ignore_ascii_case("client") && words[1..].contains(&"7777".into());
    assert!(done.iter().any(|(.., words, _, _)| is_pause(words)), "no pause was as long as allowed");
}

/// Whatever it is that hurts, nothing moves any more; and goes on later.
#[test]
fn every_job_is_paused_at_once_and_resumed() {
    let place = Fixture::of("verify");
    let refused = place.jobs(&["pause", "--all"]).expect_code(2);
    assert!(refused.stderr.contains("there are none"), "{}", refused.stderr);
    let mut running = [place.start("verify", &[]), place.start("sync", &["--mirror"])];
    let are_paused = |paused: bool| {
        let open: Vec<Value> =
            listed(place.state()).into_iter().filter(|job| job["state"] != "ended").collect();
        open.len() == 2 && open.iter().all(|job| job["paused"] == paused)
    };
    assert!(are_paused(false));
    let printed = place.jobs(&["pause", "--all"]).expect_code(0).stdout;
    assert_eq!(printed.matches("is paused").count(), 2, "{printed}");
    // Where one does not answer in time it is listed as it wrote down last that it stands.
    wait_until("both are listed as paused", || are_paused(true));
    let printed = place.jobs(&["resume", "--all"]).expect_code(0).stdout;
    assert_eq!(printed.matches("is resumed").count(), 2, "{printed}");
    wait_until("none is listed as paused", || are_paused(false));
    running.iter_mut().for_each(|job| drop(job.kill9()));
}

/// How many clients a server has.
fn connections(server: &Server) -> usize {
    let mut client = server.connection();
    redis::cmd("CLIENT").arg("LIST").query::<String>(&mut client).expect("a list").lines().count()
}

/// A job that began with one lane gets more connections at once, gives them back, and moves everything.
#[track_caller]
fn lanes_are_changed(kind: &str, more: &[&str]) {
    let place = Fixture::of(kind);
    let mut running = place.start(kind, &[&["--lanes", "1"], more].concat());
    let job = place.open_job();
    let name = name_of(&job);
    let before = connections(&place.target);
    let set = place.jobs(&["set", name, "lanes=2:9"]).expect_code(0);
    assert!(set.stdout.contains("lanes: 2:9"), "{}", set.stdout);
    // Among those before may be one that was closed again.
    wait_until("there are more connections", || connections(&place.target) >= before + 7);
    place.jobs(&["set", name, "lanes=1:2"]).expect_code(0);
    wait_until("they are given back", || connections(&place.target) <= before + 1);
    place.jobs(&["set", name, "lanes=4", "rate-keys=none"]).expect_code(0);
    running.wait(PATIENCE).expect("it ends").expect_code(0);
    let (from, to) = (place.source.addr(), place.target.addr());
    Invocation::new(&["verify", &from, &to]).timeout(PATIENCE).run().expect_code(0);
}

#[test]
fn lanes_of_a_copy_are_changed_while_it_runs() {
    lanes_are_changed("copy", &[]);
}

#[test]
fn lanes_of_a_sync_are_changed_while_it_runs() {
    lanes_are_changed("sync", &["--once"]);
}

/// By the name that its user gives it a job is listed, steered, gone on with and reported on; until it has
/// ended no other job gets that name.
#[test]
fn a_job_is_found_by_the_name_that_its_user_gives_it() {
    let place = Fixture::new();
    let mut running = place.start("copy", &["--name", "nightly.1"]);
    let job = place.open_job();
    assert_eq!(name_of(&job), "nightly.1", "{job:#}");
    let id = job["id"].as_str().expect("an id").to_owned();
    assert!(id.starts_with("copy-"), "{job:#}");
    let (from, to) = (place.source.addr(), place.target.addr());
    let is_refused = |kind: &str, more: &[&str]| {
        let args = [&[kind, &from, &to, "--state-dir", place.state(), "--name", "nightly.1"], more].concat();
        let refused = Invocation::new(&args).timeout(PATIENCE).run().expect_code(2);
        let error = refused.stderr.lines().filter(|line| line.contains("error")).collect::<Vec<_>>();
        let named = format!("the name nightly.1 is taken: {id} has it, a copy {from} -> {to} that ");
        assert!(matches!(error[..], [line] if line.contains(&named)), "{}", refused.stderr);
        assert_eq!(listed(place.state()).len(), 1, "a job that was refused is listed");
    };
    for (kind, more) in [("copy", &["--match", "a*", "--dry-run"][..]), ("sync", &[]), ("verify", &[])] {
        is_refused(kind, more);
    }
    for (words, expected) in [
        (&["set", "nightly.1", "rate-keys=400"][..], "400 keys a second"),
        (&["pause", "nightly"], "is paused"),
        (&["resume", &id], "is resumed"),
        (&["show", "nightly.1"], &id),
    ] {
        let steered = place.jobs(words).expect_code(0);
        assert!(steered.stdout.contains(expected), "{words:?}: {}", steered.stdout);
    }
    running.kill9();
    is_refused("sync", &["--mirror", "--yes"]);
    let words = arguments(&place.open_job());
    assert!(words.windows(2).any(|pair| pair == ["--name", "nightly.1"]), "{words:?}");
    assert!(words.windows(2).any(|pair| pair[0] == "--rate-keys"), "it goes on at another rate: {words:?}");
    Invocation::new(&words).timeout(PATIENCE).run().expect_code(0);
    let text = place.jobs(&["report", "nightly.1"]).expect_code(0).stdout;
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(document["job"]["created_s"], job["created_s"], "{text}");
    // It has ended, so the name is free.
    let sync = ["sync", &from, &to, "--state-dir", place.state(), "--name", "nightly.1", "--mirror", "--yes"];
    Invocation::new(&[&sync[..], &["--once"]].concat()).timeout(PATIENCE).run().expect_code(0);
    assert_eq!(place.open_job()["kind"], "sync", "the one that has not ended is meant");
    place.jobs(&["cancel", "nightly.1"]).expect_code(0);
    let bad = ["copy", &from, &to, "--name", "no/way"];
    let refused = Invocation::new(&bad).run().expect_code(2);
    assert!(refused.stderr.contains("letters, digits"), "{}", refused.stderr);
}

/// One command makes several jobs.
#[test]
fn moves_of_slots_get_the_name_and_a_number() {
    let layout = [vec![0..=5460], vec![5461..=10_922], vec![10_923..=16_383]];
    let scene = Scene::of(Engine::Redis70, 0, &layout).start();
    let state = scene.file("");
    let state = state.to_str().expect("a plain path").trim_end_matches('/');
    let to = scene.cluster.node_id(2).to_owned();
    let more = ["--slots", "5461-5470", "--to", &to, "--name", "east", "--max-pause", "5s"];
    let moves = || scene.reshard("0-9", 1, &more);
    let killed = moves().env("WHIMBREL_FAILPOINT", "snapshot:after").run();
    assert_eq!(killed.code(), None, "it was not killed: {killed:#?}");
    let mut names: Vec<Value> = listed(state).iter().map(|job| job["name"].clone()).collect();
    names.sort_by_key(ToString::to_string);
    assert_eq!(names, ["east", "east-2"]);
    let refused = moves().run().expect_code(2);
    assert!(refused.stdout.contains("the name east is taken"), "{}", refused.stdout);
    for name in ["east-2", "east"] {
        jobs(state, &["resume", name]).expect_code(0);
    }
    assert_eq!([0, 5461].map(|slot| scene.cluster.owner_of(slot).expect("an owner")), [1, 2]);
    moves().run().expect_code(0);
}

/// What cannot be paused or set says why.
#[test]
fn what_cannot_be_steered_is_refused() {
    let place = Fixture::new();
    let mut running = place.start("copy", &[]);
    let job = place.open_job();
    let name = name_of(&job);
    for (words, expected) in [
        (&["set", name, "lanes=0"][..], "READ:WRITE"),
        (&["set", name, "max-pause=1s"], "of a scheduled cutover"),
        (&["set", name, "rate-keys=fast"], "rate-keys=fast"),
        (&["set", name], "RATE"),
        (&["set", name, "between=5-6"], "01:00-05:00"),
        (&["set", name, "memory=none"], "more than nothing"),
        (&["set", name, "max-lag=1s"], "at least 2s"),
        (&["pause", "nobody"], "there is no job nobody"),
    ] {
        let refused = place.jobs(words).expect_code(2);
        assert!(refused.stderr.contains(expected), "{words:?}: {}", refused.stderr);
    }
    let set = place.jobs(&["set", name, "memory=1MiB"]).expect_code(0);
    assert!(set.stdout.contains("500 keys a second, values of 1.0 MiB in flight"), "{}", set.stdout);
    running.kill9();
    let refused = place.jobs(&["pause", name]).expect_code(2);
    assert!(refused.stderr.contains("does not run: it was interrupted"), "{}", refused.stderr);
}

/// A verification writes nothing, and has no values in flight.
#[test]
fn what_a_verification_has_not_cannot_be_set() {
    let place = Fixture::of("verify");
    let mut running = place.start("verify", &[]);
    let job = place.open_job();
    for (setting, why) in [
        ("max-lag=64MiB", "writes nothing"),
        ("memory=1MiB", "of a copy or a sync"),
        ("lanes=2", "of a copy, a sync or a move of slots"),
    ] {
        let refused = place.jobs(&["set", name_of(&job), setting, "rate-keys=7"]).expect_code(2);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
    assert_eq!(place.open_job()["rate_keys"], 500, "nothing was changed");
    running.kill9();
}

/// From a copy that was steered: its events, also while they happen; one document, as JSON and as a page; and
/// a byte that was changed in either is found.
#[test]
fn what_happened_to_a_job_is_kept_and_handed_on() {
    let place = Fixture::new();
    let mut running = place.start("copy", &[]);
    let job = place.open_job();
    let name = name_of(&job);
    let following = ["jobs", "events", name, "--follow", "--state-dir", place.state()];
    let mut following = Invocation::new(&following).timeout(PATIENCE).spawn();
    assert!(following.wait_for_text("begun by", PATIENCE), "{}", following.stderr());
    place.jobs(&["pause", name]).expect_code(0);
    assert!(following.wait_for_text("a second; paused", PATIENCE), "{}", following.stdout());
    place.jobs(&["set", name, "rate-keys=none"]).expect_code(0);
    place.jobs(&["resume", name]).expect_code(0);
    running.wait(PATIENCE).expect("it ends").expect_code(0);
    let followed = following.wait(PATIENCE).expect("it ends").expect_code(0).stdout;
    let events = place.jobs(&["events", name]).expect_code(0).stdout;
    assert_eq!(followed, events);
    let mut rest = &events[..];
    for expected in ["begun by", "copying", "500 keys a second; paused", "no rate is set", "ended: done"] {
        let place = rest.find(expected).unwrap_or_else(|| panic!("{expected} is not in {events}"));
        rest = &rest[place..];
    }
    let text = place.jobs(&["report", name]).expect_code(0).stdout;
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(document["report"]["counts"]["written"], job["keys"], "{text}");
    let (json, page) = (place.folder.path().join("report.json"), place.folder.path().join("report.html"));
    let of = |path: &Path| path.to_str().expect("a plain path").to_owned();
    std::fs::write(&json, &text).expect("written");
    place.jobs(&["report", name, "--html", &of(&page)]).expect_code(0);
    for file in [json, page] {
        place.jobs(&["report", "--check", &of(&file)]).expect_code(0);
        let made = std::fs::read_to_string(&file).expect("a file");
        for (what, instead) in [("copying", "copyinG"), ("done", "dome"), ("sha256:", "sha256:0")] {
            std::fs::write(&file, made.replacen(what, instead, 1)).expect("written");
            place.jobs(&["report", "--check", &of(&file)]).expect_code(6);
        }
        std::fs::write(&file, "something else").expect("written");
        place.jobs(&["report", "--check", &of(&file)]).expect_code(2);
    }
}

/// A move of slots, which has its journal, and is cancelled while it is paused.
#[test]
fn a_move_of_slots_that_was_cancelled_has_a_report() {
    let scene = Scene::of(Engine::Valkey91, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    scene.fill(0..=99, 100, 10_000);
    let state = scene.file("");
    let state = state.to_str().expect("a plain path").trim_end_matches('/');
    let slowly = ["--method", "external", "--rate-keys", "1"];
    let mut running = scene.reshard("0-99", 1, &slowly).timeout(PATIENCE).spawn();
    let job = once_it_moves_keys(state, &mut running);
    let name = name_of(&job);
    jobs(state, &["pause", name]).expect_code(0);
    wait_until("that is written down", || {
        jobs(state, &["events", name]).expect_code(0).stdout.contains("1 key a second; paused")
    });
    jobs(state, &["cancel", name]).expect_code(0);
    running.wait(PATIENCE).expect("it ends").expect_code(130);
    let text = jobs(state, &["report", name]).expect_code(0).stdout;
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(document["report"]["ending"], "cancelled", "{text}");
    let events = document["events"].as_array().expect("a list");
    let is_paused = |event: &Value| event["rates"]["paused"] == true;
    assert!(events.iter().any(is_paused), "{text}");
    assert_eq!(events.last().map(|event| &event["event"]), Some(&"ended".into()), "{text}");
}
