//! Commands that are run at events of jobs: they send clients to the target, stop writers, fail, hang, print
//! megabytes.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use redis::Value as Reply;
use serde_json::Value;
use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_e2e::fronts::Front;
use whimbrel_e2e::resharding::Scene as Cluster;
use whimbrel_e2e::syncing::{
    PATIENCE, Sync, assert_equal, comparison, deployment, fill, report, stop, wait_until_following, writers,
};
use whimbrel_judge::cluster_writers::{ClusterWriters, IncidentKind, Load, tags_in};
use whimbrel_lab::{Engine, Server, wait_until};

const USAGE: i32 = 2;
const REFUSED: i32 = 4;
const PARTIAL: i32 = 5;

/// The user that a fence by ACL leaves alone. Nothing else in these tests has this password.
const MOVER: &str = "user mover on >unheard-of ~* &* +@all";

fn server(engine: Engine) -> Server {
    Server::builder(engine).user_acl(MOVER).start().expect("the server starts")
}

fn url(server: &Server) -> String {
    format!("redis://mover:unheard-of@{}", server.addr())
}

/// A folder for what hooks leave.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Scene {
        Scene(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, text).expect("a file in our folder");
        path
    }
}

/// What came of the hooks of the only job there is: the event, how it ended, and what it printed.
#[track_caller]
fn hooks_of(state: &Path) -> Vec<(String, Value, String)> {
    hooks_in(state.join("whimbrel").to_str().expect("a plain path"))
}

/// Likewise, in this state folder.
#[track_caller]
fn hooks_in(folder: &str) -> Vec<(String, Value, String)> {
    let jobs = |args: &[&str]| -> Vec<Value> {
        let args = [&["jobs"][..], args, &["--state-dir", folder, "--json"]].concat();
        let output = Invocation::new(&args).timeout(PATIENCE).run();
        let text = output.expect_code(0).stdout;
        text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
    };
    let listed = jobs(&[]);
    assert_eq!(listed.len(), 1, "{listed:#?}");
    let events = jobs(&["events", listed[0]["name"].as_str().expect("a name")]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let hooks = events.iter().filter(|event| event["event"] == "hook");
    hooks.map(|event| (text(&event["hook"]), event["end"].clone(), text(&event["output"]))).collect()
}

/// What the hook of this event printed, which was run once and succeeded.
#[track_caller]
fn printed_by(event: &str, hooks: &[(String, Value, String)]) -> String {
    let of_it: Vec<_> = hooks.iter().filter(|(name, _, _)| name == event).collect();
    assert_eq!(of_it.len(), 1, "{event}: {hooks:#?}");
    assert_eq!(of_it[0].1, "succeeded", "{event}: {hooks:#?}");
    of_it[0].2.clone()
}

#[track_caller]
fn set(server: &Server, key: &str) {
    assert_eq!(server.call(&["SET", key, "1"]), Reply::Okay);
}

#[track_caller]
fn wait_until_arrived(server: &Server, key: &str) {
    wait_until("it arrives", || server.call(&["EXISTS", key]) == Reply::Int(1));
}

#[track_caller]
fn assert_fenced(source: &Server) {
    let late = redis::cmd("SET").arg("late").arg(1).exec(&mut source.connection());
    let error = late.expect_err("nobody writes any more").to_string();
    assert!(error.contains("NOPERM") || error.contains("permissions"), "{error}");
}

/// Clients look up where to write, and the hook writes that down anew: as with a name in the DNS.
#[test]
fn nothing_is_lost_when_a_hook_sends_clients_to_the_target() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    fill(&deployment(source.addr()));
    let place = Scene::new();
    let name = place.write("name", &source.addr());
    let load = Load { clients: 8, address_file: Some(name.clone()), ..Load::on(tags_in(0..16_384, 56)) };
    let writers = ClusterWriters::start(&[source.addr()], &load);
    assert!(writers.wait_for(400, PATIENCE), "the writers do not come to work");
    let at = name.display();
    let switch = format!(
        "switch=sleep 5; printf %s \"$WHIMBREL_TARGET\" > {at}.new && mv {at}.new {at} && echo from \
         $WHIMBREL_SOURCE to $WHIMBREL_TARGET; cat"
    );
    let args =
        ["--on", &switch, "--on", "begun=env | grep -e unheard -e WHIMBREL_.*PASSWORD; cat; echo looked"];
    let args = [&args[..], &["--on", "following=echo $WHIMBREL_JOB", "--on", "cut-over=exit 9"]].concat();
    // The password is in the environment of the sync.
    let from = format!("redis://mover@{}", source.addr());
    let job = Sync::new(&from, &url(&target), &args);
    let mut sync = job.start_with(&[], &[("WHIMBREL_SOURCE_PASSWORD", "unheard-of")]);
    wait_until_following(&mut sync);

    let how = ["--fence", "acl", "--max-pause", "20s"];
    let planned = job.cutover_under_writers(&[&how[..], &["--dry-run"]].concat());
    let planned = report(&planned.expect_code(0));
    let hooks = &planned["report"]["hooks"];
    assert_eq!((&hooks[0]["event"], &hooks[1]), (&Value::from("switch"), &Value::Null), "{planned}");
    assert!(hooks[0]["command"].as_str().is_some_and(|command| command.contains("printf")), "{planned}");
    assert_eq!(fs::read_to_string(&name).expect("it is there"), source.addr(), "none was run");
    assert!(writers.wait_for(400, PATIENCE), "the writers have stopped");

    let done = report(&job.cutover_under_writers(&how).expect_code(0));
    assert_eq!(fs::read_to_string(&name).expect("it is there"), target.addr());
    assert_eq!(done["report"]["hooks"][0]["failure"], Value::Null, "{done}");
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    assert!(writers.wait_for(400, PATIENCE), "the writers do not go on");
    let record = writers.stop();
    eprintln!("{}; paused for {} ms", record.observed, done["report"]["pause_ms"]);
    record.assert_kept(&deployment(target.addr()));
    let refused = record.observed.counts.get(&IncidentKind::OtherError);
    assert!(refused.is_some(), "nobody was fenced off while the hook ran: {}", record.observed);

    let hooks = hooks_of(job.state.path());
    let begun = printed_by("begun", &hooks);
    let (event, last) = begun.split_once('\n').expect("two lines");
    assert_eq!(last, "looked", "a password is in the environment: {begun}");
    let event: Value = serde_json::from_str(event).expect("JSON");
    let sides = [&event["job"]["source"], &event["job"]["target"]];
    assert_eq!(sides, [&Value::from(source.addr()), &Value::from(target.addr())], "{event}");
    assert!(printed_by("following", &hooks).starts_with("sync-"), "{hooks:#?}");
    let switched = printed_by("switch", &hooks);
    let (words, event) = switched.split_once('\n').expect("two lines");
    assert_eq!(words, format!("from {} to {}", source.addr(), target.addr()));
    let event: Value = serde_json::from_str(event).expect("JSON");
    assert_eq!(event["cutover"]["fence"], "acl", "{event}");
    let last = hooks.last().expect("there are some");
    assert_eq!((&*last.0, &last.1["failed"]["code"]), ("cut-over", &Value::from(9)), "{hooks:#?}");
}

#[test]
fn a_hook_that_fails_or_hangs_has_the_cutover_refused_and_the_sync_follows_on() {
    let (source, target) = (server(Engine::Valkey91), server(Engine::Redis70));
    set(&source, "before");
    let place = Scene::new();
    let (how, ids) = (place.write("how", "fail"), place.file("ids"));
    let ready = format!(
        "cutover-ready=case $(cat {}) in fail) echo no way >&2; exit 3;; hang) sleep 600 & echo $$ $! > {}; \
         sleep 600;; print) yes | head -c 5000000; exec <&- >&- 2>&-;; esac",
        how.display(),
        ids.display()
    );
    let more = ["--on", &ready, "--on", "cutover-refused=echo $WHIMBREL_MESSAGE", "--on", "switch=echo no"];
    // Those that only notify may do as they like.
    let more = [&more[..], &["--on", "begun=sleep 600", "--on", "following=yes", "--on", "stopped=kill $$"]];
    let job =
        Sync::new(&url(&source), &url(&target), &[&more.concat()[..], &["--hook-timeout", "5s"]].concat());
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    for (mode, words) in [("fail", "exit code 3: no way"), ("hang", "was killed, as it had not ended")] {
        place.write("how", mode);
        let refused = job.cutover(&["--fence", "acl", "--max-pause", "5s"]).expect_code(REFUSED);
        assert!(refused.stdout.contains("the hook of cutover-ready"), "{mode}: {}", refused.stdout);
        assert!(refused.stdout.contains(words), "{mode}: {}", refused.stdout);
        set(&source, mode);
        wait_until_arrived(&target, mode);
    }
    let ids = fs::read_to_string(&ids).expect("it was run");
    assert_eq!(ids.split_whitespace().count(), 2, "{ids}");
    wait_until("all of it is gone", || ids.split_whitespace().all(|id| !runs(id)));
    place.write("how", "print");
    // Without a fence nobody is sent anywhere.
    job.cutover(&["--fence", "none", "--max-pause", "20s"]).expect_code(0);
    stop(sync);

    let hooks = hooks_of(job.state.path());
    let of = |event: &str| -> Vec<&(String, Value, String)> {
        hooks.iter().filter(|(name, _, _)| name == event).collect()
    };
    let refused: Vec<&str> = of("cutover-refused").iter().map(|(_, _, text)| text.as_str()).collect();
    assert_eq!(refused.len(), 2, "{hooks:#?}");
    assert!(refused.iter().all(|why| why.contains("the hook of cutover-ready")), "{refused:?}");
    let ready = of("cutover-ready");
    assert_eq!(ready[0].1["failed"]["code"], 3, "{hooks:#?}");
    assert_eq!(ready[1].1["timed-out"]["after_ms"], 5_000, "{hooks:#?}");
    assert_eq!(ready[2].1, "succeeded", "{hooks:#?}");
    assert!(ready[2].2.len() < 5_000, "{} bytes", ready[2].2.len());
    assert_eq!(of("switch").len(), 0, "{hooks:#?}");
    assert!(of("begun")[0].1["timed-out"].is_object(), "{hooks:#?}");
    assert!(of("following")[0].1["timed-out"].is_object(), "{hooks:#?}");
    assert_eq!(of("stopped")[0].1["killed"]["signal"], 15, "{hooks:#?}");
}

/// A user who thinks better of it need not wait for the hook.
#[test]
fn a_cutover_that_is_withdrawn_ends_its_hook() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis70));
    let place = Scene::new();
    let id = place.file("id");
    let ready = format!("cutover-ready=echo $$ > {0}.new; mv {0}.new {0}; sleep 600", id.display());
    let more = ["--on", &ready, "--on", "cutover-refused=echo started again", "--hook-timeout", "5m"];
    let job = Sync::new(&url(&source), &url(&target), &more);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let mut asking = job.start_cutover(&["--fence", "acl", "--max-pause", "5s"]);
    wait_until("the hook runs", || id.exists());
    // It is followed meanwhile.
    set(&source, "meanwhile");
    wait_until_arrived(&target, "meanwhile");
    asking.terminate();
    asking.wait(PATIENCE).expect("it ends").expect_code(130);
    let id = fs::read_to_string(&id).expect("it is there");
    wait_until("it is gone", || !runs(id.trim()));
    set(&source, "afterwards");
    wait_until_arrived(&target, "afterwards");
    stop(sync);
    assert_eq!(printed_by("cutover-refused", &hooks_of(job.state.path())), "started again");
}

/// Whether a process of this id runs; one that is only to be waited for does not.
fn runs(id: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    state.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
}

/// The writers are fenced off and the target has everything: that stands, and the user hears that more is to
/// be done.
#[test]
fn a_switch_that_fails_is_reported_and_nothing_is_undone() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis70));
    set(&source, "before");
    let more = ["--on", "switch=echo the name server is away; exit 1", "--on", "switch=echo unspoken"];
    let job = Sync::new(&url(&source), &url(&target), &more);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let args = ["cutover", "--fence", "acl", "--max-pause", "20s"];
    let asked = Invocation::new(&args).env("XDG_STATE_HOME", job.state.path()).timeout(PATIENCE).run();
    let asked: Output = asked.expect_code(PARTIAL);
    assert!(asked.stdout.contains("may not write any more"), "{}", asked.stdout);
    let words = "the hook of switch ended with exit code 1: the name server is away";
    assert!(asked.stdout.contains(words) && asked.stdout.contains("nothing of it is undone"), "{asked:#?}");
    let ended = report(&sync.wait(PATIENCE).expect("it ends").expect_code(PARTIAL));
    assert_eq!(ended["report"]["cutover"]["hooks"][1]["failure"], Value::Null, "{ended}");
    assert!(!ended.to_string().contains("unspoken"), "no output and no command is in a report: {ended}");
    assert_fenced(&source);
    assert_eq!(target.call(&["EXISTS", "before"]), Reply::Int(1));
}

/// A hook may have sent clients to the target already: no later run of the sync lets others in at the source.
#[test]
fn a_cutover_stands_though_whimbrel_dies_while_clients_are_sent_to_the_target() {
    let (source, target) = (server(Engine::Valkey91), server(Engine::Valkey91));
    set(&source, "before");
    let place = Scene::new();
    let id = place.file("id");
    let switch = format!("switch=echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600", id.display());
    let job = Sync::new(&url(&source), &url(&target), &["--on", &switch]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let mut asking = job.start_cutover(&["--fence", "acl", "--max-pause", "20s"]);
    wait_until("the hook runs", || id.exists());
    sync.kill9();
    let id = fs::read_to_string(&id).expect("it is there");
    assert!(runs(id.trim()), "it has ended");
    Command::new("kill").arg(id.trim()).status().expect("it is ended");
    let asked = asking.wait(PATIENCE).expect("it ends");
    assert_ne!(asked.code(), Some(0), "nobody knows what came of the hook: {asked:#?}");
    let refused = job.start(&["--resume"]).wait(PATIENCE).expect("it ends").expect_code(REFUSED);
    assert!(refused.stdout.contains("--again"), "{refused:#?}");
    assert_fenced(&source);
    assert_eq!(target.call(&["EXISTS", "before"]), Reply::Int(1));
}

/// Where somebody else has to stop the writers, that can be a hook.
#[test]
fn a_hook_stops_the_writers() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    fill(&deployment(source.addr()));
    let writers = writers(&[source.addr()], "hooks");
    let place = Scene::new();
    let (stop, stopped) = (place.file("stop"), place.file("stopped"));
    let ready = format!(
        "cutover-ready=touch {}; while ! test -e {}; do sleep 0.1; done; echo stopped",
        stop.display(),
        stopped.display()
    );
    let job = Sync::new(&url(&source), &url(&target), &["--on", &ready]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let stopping = thread::spawn(move || {
        wait_until("the hook runs", || stop.exists());
        assert!(writers.wait_for(400, PATIENCE), "they write while the hook runs");
        let record = writers.stop();
        fs::write(stopped, "").expect("a file in our folder");
        record
    });
    job.cutover(&["--fence", "external", "--quiet-for", "1s"]).expect_code(0);
    let record = stopping.join().expect("no panic");
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_equal(&record, &source.addr(), &target.addr(), &comparison());
    assert_eq!(printed_by("cutover-ready", &hooks_of(job.state.path())), "stopped");
}

#[test]
fn a_copy_has_hooks_and_what_cannot_happen_is_refused() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis70));
    set(&source, "before");
    let (from, to) = (source.addr(), target.addr());
    let state = tempfile::tempdir().expect("a folder");
    let run =
        |args: &[&str]| Invocation::new(args).env("XDG_STATE_HOME", state.path()).timeout(PATIENCE).run();
    let refused = |args: &[&str], words: &str| {
        let output = run(args).expect_code(USAGE);
        assert!(output.stderr.contains(words), "{args:?}: {}", output.stderr);
    };
    refused(&["sync", &from, &to, "--on", "nonsense=true"], "begun, resumed, following, moving");
    refused(&["sync", &from, &to, "--on", "switch="], "say what is to be run");
    refused(&["copy", &from, &to, "--on", "switch=true"], "begun, resumed, paused");
    refused(&["sync", &from, &to, "--on", "begun=true", "--hook-timeout", "1h"], "from 100ms to 5m");
    refused(
        &["verify", &from, &to, "--depth", "counts", "--on", "ended=true"],
        "leave out --name, --on and --http",
    );
    assert_eq!(target.call(&["DBSIZE"]), Reply::Int(0), "nothing was begun");
    run(&["copy", &from, &to, "--on", "ended=echo $WHIMBREL_PHASE as $WHIMBREL_KIND"]).expect_code(0);
    assert_eq!(printed_by("ended", &hooks_of(state.path())), "done as copy");
}

/// The names of the events whose hooks were run.
fn names(hooks: &[(String, Value, String)]) -> Vec<&str> {
    hooks.iter().map(|(name, _, _)| name.as_str()).collect()
}

/// One of each batch that is handed over, and those of the job; another process that goes on with it has its
/// own.
#[test]
fn a_move_of_slots_has_hooks() {
    let scene = Cluster::of(Engine::Redis70, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    scene.fill(0..=9, 10, 100);
    let folder = scene.file("");
    let folder = folder.to_str().expect("a plain path").trim_end_matches('/').to_owned();
    let (handed, ended) = ("handed-over=cat", "ended=echo $WHIMBREL_KIND $WHIMBREL_PHASE");
    let hooks = ["--method", "external", "--on", "begun=echo $WHIMBREL_JOB", "--on", handed, "--on", ended];
    scene.reshard("0-4", 1, &hooks).run().expect_code(0);
    let ran = hooks_in(&folder);
    assert_eq!(names(&ran), ["begun", "handed-over", "ended"], "{ran:#?}");
    let event: Value = serde_json::from_str(&printed_by("handed-over", &ran)).expect("JSON");
    assert_eq!((&event["job"]["moved"], &event["job"]["kind"]), (&"0-4".into(), &"move".into()), "{event}");
    assert_eq!(printed_by("ended", &ran), "move done");
    scene.jobs(&["clean"]).run().expect_code(0);

    let go_on = scene.file("go-on");
    let killed = scene.reshard("5-9", 1, &hooks).env("WHIMBREL_FAILPOINT", "snapshot:after");
    let killed = killed.env("WHIMBREL_FAILPOINT_PAUSE", "snapshot:before");
    let mut killed = killed.env("WHIMBREL_FAILPOINT_FILE", &go_on).spawn();
    wait_until("it waits before it is killed", || go_on.with_extension("reached").exists());
    // On a busy machine it would be dead before that.
    wait_until("its first hook has run", || !hooks_in(&folder).is_empty());
    fs::write(&go_on, "").expect("a file in our folder");
    let killed = killed.wait(PATIENCE).expect("it ends");
    assert_eq!(killed.code(), None, "it was not killed: {killed:#?}");
    let resume = ["resume", "--on", "begun=echo no", "--on", "resumed=yes | head -c 3000000", "--on", ended];
    scene.jobs(&resume).run().expect_code(0);
    let ran = hooks_in(&folder);
    assert_eq!(names(&ran)[..], ["begun", "resumed", "ended"], "{ran:#?}");
    assert!(ran[1].2.len() < 5_000, "{} bytes", ran[1].2.len());
    let refused = scene.reshard("10-11", 1, &["--on", "switch=true"]).run().expect_code(USAGE);
    assert!(refused.stdout.contains("handed-over"), "{}", refused.stdout);
}

/// Keys move to the target and back; the events name the sides as keys move between them.
#[test]
fn a_front_has_hooks() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    set(&source, "before");
    let says = |event: &str| format!("{event}=echo from $WHIMBREL_SOURCE to $WHIMBREL_TARGET");
    let events = ["begun", "moving", "moved", "ended"].map(says);
    let more: Vec<&str> = events.iter().flat_map(|event| ["--on", event]).collect();
    let mut front = Front::between(&source.addr(), &target.addr(), &more);
    let state = front.state_dir().to_owned();
    let ran = |count: usize| {
        wait_until("the hooks are run", || hooks_in(&state).len() >= count);
        let ran = hooks_in(&state);
        assert!(ran.iter().all(|(_, end, _)| end == "succeeded"), "{ran:#?}");
        ran.into_iter().map(|(name, _, text)| (name, text)).collect::<Vec<_>>()
    };
    let expected = |event: &str, from: &Server, to: &Server| {
        (event.to_owned(), format!("from {} to {}", from.addr(), to.addr()))
    };
    front.connect();
    Invocation::new(&["front", "start", "--yes", "--state-dir", &state]).run().expect_code(0);
    let there = ["begun", "moving", "moved"].map(|event| expected(event, &source, &target));
    assert_eq!(ran(3), there);
    Invocation::new(&["front", "reverse", "--yes", "--state-dir", &state]).run().expect_code(0);
    wait_until("the key is back", || source.call(&["EXISTS", "before"]) == Reply::Int(1));
    assert_eq!(ran(5)[3..], ["moving", "moved"].map(|event| expected(event, &target, &source)));
    Invocation::new(&["front", "finish", "--yes", "--state-dir", &state]).run().expect_code(0);
    front.running.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_eq!(ran(6).pop(), Some(expected("ended", &target, &source)));
    let alone = ["front", "--listen", "127.0.0.1:0", "--source", &source.addr(), "--on", "begun=true"];
    let refused = Invocation::new(&alone).run().expect_code(USAGE);
    assert!(refused.stderr.contains("--target"), "{}", refused.stderr);
}

/// A sync posts its events; the one that gets ready for a cutover refuses it when it is answered so.
#[test]
fn events_are_posted() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    set(&source, "before");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = format!("http://{}/hooks/token-7", listener.local_addr().expect("an address"));
    let asked = thread::spawn(move || {
        let answers = ["503 Service Unavailable", "200 OK", "403 Forbidden"];
        answers.map(|answer| {
            let (mut stream, _) = listener.accept().expect("a client");
            let (mut request, mut buffer) = (String::new(), [0; 4096]);
            while !request.ends_with("}\n") {
                let read = stream.read(&mut buffer).expect("a request");
                assert!(read > 0, "it breaks off: {request}");
                request.push_str(std::str::from_utf8(&buffer[..read]).expect("text"));
            }
            write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 6\r\n\r\nnot us").expect("it is read");
            request
        })
    });
    let (follows, ready) = (format!("following={to}"), format!("cutover-ready={to}"));
    let place = Scene::new();
    let secret = place.write("secret", "s3cret\n");
    let secret = secret.to_str().expect("a plain path");
    let more = ["--on", &follows, "--on", &ready, "--hook-secret-file", secret];
    let job = Sync::new(&url(&source), &url(&target), &more);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    wait_until("it is posted", || !hooks_of(job.state.path()).is_empty());
    let refused = job.cutover(&["--fence", "acl", "--max-pause", "5s"]).expect_code(REFUSED);
    assert!(refused.stdout.contains("answers 403 Forbidden: not us"), "{}", refused.stdout);
    assert!(!refused.stdout.contains("token-7"), "{}", refused.stdout);
    stop(sync);
    let asked = asked.join().expect("no panic");
    let signed = |request: &&String| request.to_lowercase().contains("\r\nx-whimbrel-signature: sha256=");
    assert!(asked.iter().all(|request| signed(&request)), "{asked:#?}");
    let body: Value = serde_json::from_str(asked[1].lines().last().expect("a body")).expect("JSON");
    assert_eq!((&body["event"], &body["job"]["kind"]), (&"following".into(), &"sync".into()), "{body}");
    let hooks = hooks_of(job.state.path());
    assert_eq!(printed_by("following", &hooks), "not us");
    assert_eq!(hooks[1].1["not-delivered"]["tries"], 1, "{hooks:#?}");
    let events = Invocation::new(&["jobs", "events", "sync-"]).env("XDG_STATE_HOME", job.state.path()).run();
    let kept = format!("{}{}", events.expect_code(0).stdout, listed_text(job.state.path()));
    assert!(!kept.contains("token-7") && !kept.contains("s3cret"), "{kept}");
    let from = source.addr();
    let refused = ["copy", &from, &target.addr(), "--replace", "--on", "ended=http://10.0.0.1/"];
    let refused = Invocation::new(&refused).run().expect_code(USAGE);
    assert!(refused.stderr.contains("on this machine alone"), "{}", refused.stderr);
}

/// All that is in the files of the jobs of a state folder.
fn listed_text(state: &Path) -> String {
    let files = fs::read_dir(state.join("whimbrel/jobs")).expect("a folder");
    let text = |file: std::io::Result<fs::DirEntry>| fs::read_to_string(file.expect("a file").path());
    files.filter_map(|file| text(file).ok()).collect()
}
