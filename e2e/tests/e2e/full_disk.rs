//! What runs while the disk of its state folder is full, for a while.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_e2e::binary::{Invocation, Output, Running};
use whimbrel_e2e::resharding::{MoveReport, Scene};
use whimbrel_e2e::syncing::{PATIENCE, deployment, fill, stop, wait_until_following};
use whimbrel_judge::dataset::write_strings;
use whimbrel_lab::{Engine, Server, SmallDisk, wait_until};

/// Room for a few journals.
const DISK_BYTES: u64 = 8 << 20;

/// A disk, where this machine lets us have one.
fn small_disk() -> Option<SmallDisk> {
    match SmallDisk::start(DISK_BYTES) {
        Ok(disk) => Some(disk),
        Err(e) => {
            eprintln!("SKIPPED: no small disk can be had here: {e}");
            None
        }
    }
}

fn run(args: &[&str], disk: &SmallDisk) -> Invocation {
    let state = disk.path().to_string_lossy().into_owned();
    Invocation::new(&[args, &["--json", "--state-dir", &state]].concat()).timeout(PATIENCE)
}

/// The line of progress that was printed last.
fn progress(of: &Running) -> Value {
    let output = of.stdout();
    let lines = output.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.into_iter().find(|line| line["event"] == "progress").unwrap_or_default()
}

/// Waits until progress says what `is_so` asks of it.
#[track_caller]
fn wait_for(running: &mut Running, what: &str, is_so: impl Fn(&Value) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so(&progress(running)) {
        let (out, err) = (running.stdout(), running.stderr());
        assert!(running.is_running(), "it ended before {what}: {out}\n{err}");
        assert!(Instant::now() < deadline, "never {what}: {}\n{err}", progress(running));
        thread::sleep(Duration::from_millis(50));
    }
}

#[track_caller]
fn wait_until_arrived(target: &Server, key: &str) {
    let deadline = Instant::now() + PATIENCE;
    while target.call(&["EXISTS", key]) != redis::Value::Int(1) {
        assert!(Instant::now() < deadline, "{key} does not arrive");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A sync goes on, says that and since when the disk is full, and does not cut over meanwhile; afterwards it
/// is written down as before.
#[test]
fn a_sync_goes_on_and_says_so() {
    let Some(disk) = small_disk() else { return };
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    fill(&deployment(source.addr()));
    let args = ["sync", &source.addr(), &target.addr(), "--report", "1", "--retry-for", "60s"];
    let mut sync = run(&args, &disk).spawn();
    wait_until_following(&mut sync);
    disk.fill().expect("it is filled");
    let full_ms = |line: &Value| line["status"]["disk_full_ms"].as_u64();
    let mut keys = 0;
    // Blocks that the journal has written before can be written again: it takes a while until it needs one.
    while full_ms(&progress(&sync)).is_none() {
        keys += 1;
        source.call(&["SET", &format!("meanwhile:{keys}"), "1"]);
        assert!(sync.is_running(), "it ended: {}\n{}", sync.stdout(), sync.stderr());
        assert!(keys < 100_000, "the disk is never full: {}", progress(&sync));
        thread::sleep(Duration::from_millis(5));
    }
    wait_for(&mut sync, "full for long", |line| full_ms(line) > Some(3_000));
    source.call(&["SET", "while full", "1"]);
    wait_until_arrived(&target, "while full");
    let refused: Output = run(&["cutover", "--fence", "none", "--max-pause", "5s"], &disk).run();
    assert_ne!(refused.code(), Some(0), "{refused:#?}");
    let printed = format!("{}{}", refused.stdout, refused.stderr);
    assert!(printed.contains("disk full") || printed.contains("No space left"), "{refused:#?}");
    disk.make_room().expect("there is room");
    wait_for(&mut sync, "written down again", |line| line["status"].is_object() && full_ms(line).is_none());
    // What is written down now is right: another process can go on from it.
    sync.kill9();
    source.call(&["SET", "while nobody follows", "1"]);
    let mut sync = run(&[&args[..], &["--resume"]].concat(), &disk).spawn();
    wait_until_following(&mut sync);
    wait_until_arrived(&target, "while nobody follows");
    run(&["cutover", "--fence", "none", "--max-pause", "20s"], &disk).run().expect_code(0);
    // Without a fence it goes on following.
    let output = stop(sync);
    assert!(output.stdout.contains("\"resumed\":true"), "{}", output.stdout);
}

/// A copy ends well, although its journal could not be written for a while.
#[test]
fn a_copy_goes_on() {
    let Some(disk) = small_disk() else { return };
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    write_strings(&deployment(source.addr()), 60_000).expect("the source takes the data");
    let args = ["copy", &source.addr(), &target.addr(), "--report", "1", "--rate-keys", "1500"];
    let mut copy = run(&args, &disk).spawn();
    wait_for(&mut copy, "copying", |line| line["counts"]["written"].as_u64() > Some(1));
    disk.fill().expect("it is filled");
    wait_for(&mut copy, "full", |line| line["disk_full_ms"].is_u64());
    let state = disk.path().to_string_lossy().into_owned();
    let watch = ["watch", "copy-", "--once", "--state-dir", &state];
    let page = Invocation::new(&watch).timeout(PATIENCE).run().expect_code(0).stdout;
    assert!(page.contains("DISK     disk full since "), "{page}");
    disk.make_room().expect("there is room");
    copy.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_eq!(target.call(&["DBSIZE"]), redis::Value::Int(60_000));
}

/// A job of moves waits until it can be written down, while clients write, and nothing is lost.
#[test]
fn a_job_of_moves_waits_for_room() {
    let Some(disk) = small_disk() else { return };
    let scene = Scene::of(Engine::Valkey91, 1, &[vec![0..=8191], vec![8192..=16383]]).start();
    write_strings(&scene.deployment(), 20_000).expect("the cluster takes the data");
    let before = scene.unwritten();
    let writers = scene.writers(0..=999);
    let (seed, to) = (scene.cluster.seed(), scene.cluster.nodes()[1].addr());
    let args = ["reshard", &seed, "--slots", "0-999", "--to", &to, "--report", "1", "--max-pause", "5s"];
    // Many batches: much is written down. And at the beginning, when the journal has used few of its blocks.
    let args = [&args[..], &["--batch-keys", "20"]].concat();
    let go_on = scene.file("go-on");
    let command = run(&[&args[..], &["--yes"]].concat(), &disk);
    let command = command.env("WHIMBREL_FAILPOINT_PAUSE", "check:before");
    let mut job = command.env("WHIMBREL_FAILPOINT_FILE", &go_on).spawn();
    wait_until("it waits at the failpoint", || go_on.with_extension("reached").exists());
    disk.fill().expect("it is filled");
    fs::write(&go_on, "").expect("a file in our folder");
    wait_for(&mut job, "full", |line| line["jobs"][0]["disk_full_ms"].as_u64() > Some(2_000));
    disk.make_room().expect("there is room");
    let outcome = MoveReport::by(job);
    outcome.assert_done();
    let record = writers.stop();
    scene.assert_kept(&record);
    scene.assert_unchanged(&before);
    assert!(fs::read_dir(disk.path().join("jobs")).is_ok(), "the job was written down there");
}
