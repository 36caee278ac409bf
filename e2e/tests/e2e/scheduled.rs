//! Scheduled cutovers: the sync makes them, also after it was killed.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use redis::Value as Reply;
use serde_json::Value;
use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::syncing::{PATIENCE, Sync, deployment, fill, report, stop, wait_until_following};
use whimbrel_judge::cluster_writers::{ClusterWriters, Load, tags_in};
use whimbrel_lab::{Engine, Server, wait_until};

const USAGE: i32 = 2;
const REFUSED: i32 = 4;

/// What is said where the target has a key more.
const STRAY: &str = "holds 2 and should hold 1";

/// The user that a fence by ACL leaves alone.
const MOVER: &str = "user mover on >unheard-of ~* &* +@all";

fn server(engine: Engine) -> Server {
    Server::builder(engine).user_acl(MOVER).start().expect("the server starts")
}

fn url(server: &Server) -> String {
    format!("redis://mover:unheard-of@{}", server.addr())
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// A moment as it is typed.
fn typed(format: &str, epoch_s: u64) -> String {
    let args = ["-u", "-d", &format!("@{epoch_s}"), &format!("+{format}")];
    let output = Command::new("date").args(args).output().expect("date runs");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// What `whimbrel jobs` says, an object a line.
#[track_caller]
fn jobs(state: &Path, args: &[&str]) -> Vec<Value> {
    let args = [&["jobs"][..], args, &["--json"]].concat();
    let output = Invocation::new(&args).env("XDG_STATE_HOME", state).timeout(PATIENCE).run();
    let text = output.expect_code(0).stdout;
    text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

/// When the only job's cutover is due, in words.
#[track_caller]
fn scheduled(job: &Sync) -> Option<String> {
    let listed = jobs(job.state.path(), &[]);
    assert_eq!(listed.len(), 1, "{listed:#?}");
    listed[0]["scheduled"].as_str().map(str::to_owned)
}

#[test]
fn a_killed_sync_that_goes_on_cuts_over_when_that_is_due() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    fill(&deployment(source.addr()));
    let load = Load { clients: 4, ..Load::on(tags_in(0..16_384, 56)) };
    let writers = ClusterWriters::start(&[source.addr()], &load);
    assert!(writers.wait_for(400, PATIENCE), "the writers do not come to work");
    let job = Sync::new(&url(&source), &url(&target), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);

    let at_s = now_s() + 60;
    let at = typed("%Y-%m-%dT%H:%M:%SZ", at_s);
    let order = ["--fence", "acl", "--max-pause", "20s", "--at", &at];
    let ordered = report(&job.cutover_under_writers(&order).expect_code(0));
    assert_eq!((&ordered["event"], &ordered["when"]["not_before_s"]), (&"scheduled".into(), &at_s.into()));
    sync.kill9();
    let words = scheduled(&job).expect("it is known while nobody runs it");
    assert!(words.starts_with("at ") && words.contains(&typed("%H:%M:%S", at_s)), "{words}");

    let mut sync = job.start(&["--resume"]);
    let done = sync.wait(PATIENCE).expect("it ends by itself").expect_code(0);
    assert!(now_s() >= at_s, "it was too early");
    assert_eq!(report(&done)["report"]["cutover"]["fence"], "acl", "{done:#?}");
    writers.stop().assert_kept(&deployment(target.addr()));
    let late = redis::cmd("SET").arg("late").arg(1).exec(&mut source.connection());
    late.expect_err("nobody writes any more");
    assert_eq!(scheduled(&job), None);
    let name = jobs(job.state.path(), &[])[0]["name"].as_str().expect("a name").to_owned();
    let events = jobs(job.state.path(), &["events", &name]);
    let of_it = events.iter().find(|event| event["event"] == "scheduled");
    assert!(of_it.is_some_and(|event| event["when"] == words), "{events:#?}");
}

#[test]
fn what_is_scheduled_waits_is_tried_again_and_is_taken_back() {
    let (source, target) = (server(Engine::Valkey91), server(Engine::Redis70));
    assert_eq!(source.call(&["SET", "before", "1"]), Reply::Okay);
    let job = Sync::new(&url(&source), &url(&target), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let order = |more: &[&str]| job.cutover(&[&["--fence", "acl", "--max-pause", "5s"], more].concat());

    for (typed_in, problem) in [
        (&["--at", "02:00"][..], "write a time with its offset"),
        (&["--between", "01:00-01:00"], "begins when it ends"),
        (&["--between", "1-2"], "write a time of the day"),
        (&["--when-ready", "--dry-run"], "cannot be used with"),
    ] {
        let refused = order(typed_in).expect_code(USAGE);
        assert!(refused.stderr.contains(problem), "{typed_in:?}: {refused:#?}");
    }
    let past = typed("%Y-%m-%d %H:%MZ", now_s() - 7_300);
    let refused = order(&["--at", &past]).expect_code(USAGE);
    assert!(refused.stdout.contains("its time has passed"), "{refused:#?}");

    let refused = job.cutover(&["--fence", "none", "--when-ready"]).expect_code(USAGE);
    assert!(refused.stdout.contains("without a fence"), "{refused:#?}");
    // A pause that is too long now may be short enough then.
    job.cutover(&["--fence", "acl", "--max-pause", "1ms", "--between", "00:00-00:01"]).expect_code(0);
    job.cutover(&["--withdraw"]).expect_code(0);

    // What would be refused then is refused now.
    assert_eq!(target.call(&["SET", "stray", "1"]), Reply::Okay);
    let refused = order(&["--when-ready"]).expect_code(REFUSED);
    assert!(refused.stdout.contains(STRAY), "{refused:#?}");
    assert_eq!(scheduled(&job), None);
    assert_eq!(target.call(&["DEL", "stray"]), Reply::Int(1));

    // A time of the day that is not now.
    let hours = [2, 3].map(|hours| typed("%H:%M", now_s() + hours * 3_600)).join("-");
    order(&["--between", &hours, "--when-ready"]).expect_code(0);
    let words = scheduled(&job).expect("it is scheduled");
    assert!(words.contains(&hours) && words.contains("at most 5.0 s"), "{words}");
    let name = jobs(job.state.path(), &[])[0]["name"].as_str().expect("a name").to_owned();
    let set = |limit: &str| {
        Invocation::new(&["jobs", "set", &name, limit]).env("XDG_STATE_HOME", job.state.path()).run()
    };
    set("max-pause=7s").expect_code(0);
    let words = scheduled(&job).expect("it is scheduled still");
    assert!(words.contains(&hours) && words.contains("at most 7.0 s"), "{words}");
    let taken_back = report(&job.cutover(&["--withdraw"]).expect_code(0));
    assert_eq!(taken_back["event"], "withdrawn");
    assert_eq!(scheduled(&job), None);
    let refused = set("max-pause=7s").expect_code(USAGE);
    assert!(refused.stderr.contains("of a scheduled cutover"), "{refused:#?}");

    // One that is due and refused is tried again, and says why.
    order(&["--at", &typed("%Y-%m-%dT%H:%M:%SZ", now_s() + 40)]).expect_code(0);
    assert_eq!(target.call(&["SET", "stray", "1"]), Reply::Okay);
    let refusal = || {
        let events = jobs(job.state.path(), &["events", &name]);
        events
            .iter()
            .any(|event| event["event"] == "not-cut-over" && event["why"].to_string().contains(STRAY))
    };
    wait_until("it is refused", refusal);
    assert!(scheduled(&job).is_some(), "it is still scheduled");
    assert_eq!(source.call(&["SET", "written", "1"]), Reply::Okay, "writers go on");
    wait_until("it arrives", || target.call(&["EXISTS", "written"]) == Reply::Int(1));
    stop(sync);
    // Also of one that nobody runs, and once.
    for stood in [true, false] {
        let taken_back = report(&job.cutover(&["--withdraw"]).expect_code(0));
        assert_eq!(taken_back["scheduled"], stood, "{taken_back}");
        assert_eq!(scheduled(&job), None);
    }
}

/// A cutover that was taken back stays so, whatever is set at the same moment.
#[test]
fn what_is_taken_back_does_not_come_back() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    let job = Sync::new(&url(&source), &url(&target), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let name = jobs(job.state.path(), &[])[0]["name"].as_str().expect("a name").to_owned();
    let at = typed("%Y-%m-%d %H:%MZ", now_s() + 7_200);
    for _ in 0..8 {
        job.cutover(&["--fence", "acl", "--at", &at]).expect_code(0);
        let set = ["jobs", "set", &name, "max-pause=400ms"];
        let set = || Invocation::new(&set).env("XDG_STATE_HOME", job.state.path()).spawn();
        let setting = [set(), set(), set()];
        job.cutover(&["--withdraw"]).expect_code(0);
        for mut one in setting {
            // The ones that come too late are refused.
            let code = one.wait(PATIENCE).expect("it ends").code();
            assert!(code == Some(0) || code == Some(USAGE), "{code:?}");
        }
        assert_eq!(scheduled(&job), None);
    }
    stop(sync);
}

/// By day, for a sync that moves keys at night alone: nothing can be rehearsed, and the order is taken.
#[test]
fn a_cutover_is_scheduled_while_the_window_of_the_sync_is_closed() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    fill(&deployment(source.addr()));
    let job = Sync::new(&url(&source), &url(&target), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let hour = |later: u64| (now_s() / 3_600 + later) % 24;
    let night = format!("between={:02}:00-{:02}:00", hour(2), hour(3));
    let id = jobs(job.state.path(), &[])[0]["id"].as_str().expect("a name").to_owned();
    let set = |rate: &str| jobs(job.state.path(), &["set", &id, rate]);
    set(&night);
    wait_until("it is known", || jobs(job.state.path(), &[])[0]["paused_until_s"].is_u64());
    let now = job.cutover(&["--fence", "acl", "--max-pause", "5s"]);
    assert_eq!(now.code(), Some(REFUSED), "{}{}", now.stdout, now.stderr);
    let at = typed("%Y-%m-%dT%H:%M:%SZ", now_s());
    let order = ["--fence", "acl", "--max-pause", "20s", "--when-ready", "--at", &at];
    assert_eq!(report(&job.cutover(&order).expect_code(0))["event"], "scheduled");
    assert!(scheduled(&job).is_some());
    assert!(sync.is_running(), "nothing happens outside of the window");
    set("between=none");
    let done = sync.wait(PATIENCE).expect("it ends by itself").expect_code(0);
    assert!(done.stdout.contains("cut-over") || done.stdout.contains("cut over"), "{}", done.stdout);
}
