//! The report of a job of each kind, as it is handed on: in a real browser that reaches nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::browser::Browser;
use whimbrel_e2e::fronts::{Front, PATIENCE};
use whimbrel_e2e::resharding::Scene;
use whimbrel_e2e::syncing::wait_until_following;
use whimbrel_lab::{Engine, Server, until};

/// Ended jobs by their kind: what they are called, and where they are written down.
fn jobs_of_each_kind() -> (BTreeMap<String, (String, String)>, Vec<tempfile::TempDir>) {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_str().expect("a plain name").to_owned();
    let server = || Server::builder(Engine::Valkey81).start().expect("the server starts");
    let (source, target, last, old, new) = (server(), server(), server(), server(), server());
    for number in 0..200 {
        source.call(&["SET", &format!("key:{number}"), "<b>value</b>"]);
        old.call(&["SET", &format!("key:{number}"), "<b>value</b>"]);
    }
    let run = |args: &[&str]| {
        let args = [args, &["--state-dir", &state]].concat();
        Invocation::new(&args).timeout(PATIENCE).run().expect_code(0)
    };
    let (from, to) = (source.addr(), target.addr());
    run(&["copy", &from, &to, "--name", "nightly"]);
    run(&["verify", &from, &to]);
    let sync = ["sync", &old.addr(), &new.addr(), "--json", "--state-dir", &state];
    let mut sync = Invocation::new(&sync).spawn();
    wait_until_following(&mut sync);
    run(&["cutover", "--fence", "readonly-replica", "--max-pause", "20s"]);
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    let scene = Scene::of(Engine::Valkey81, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    scene.fill(0..=99, 2, 10);
    let (seed, to) = (scene.cluster.seed(), scene.cluster.node_id(1));
    run(&["reshard", &seed, "--slots", "0-99", "--to", to, "--yes", "--max-pause", "5s"]);
    let mut front = Front::between(&from, &last.addr(), &[]);
    front.command("start").expect_code(0);
    until("all keys have moved", || (front.status()["phase"] == "done").then_some(()));
    front.command("finish").expect_code(0);
    front.running.wait(PATIENCE).expect("it ends").expect_code(0);
    let mut found = BTreeMap::new();
    for state in [state.as_str(), front.state_dir()] {
        let listed = Invocation::new(&["jobs", "list", "--json", "--state-dir", state]).run().expect_code(0);
        for line in listed.stdout.lines() {
            let job: Value = serde_json::from_str(line).expect("JSON");
            let text = |name: &str| job[name].as_str().expect("text").to_owned();
            assert_eq!(job["state"], "ended", "{job:#}");
            let page = folder.path().join(format!("{}.html", text("kind")));
            let page = page.to_str().expect("a plain name").to_owned();
            let args = ["jobs", "report", &text("name"), "--html", &page, "--state-dir", state];
            Invocation::new(&args).run().expect_code(0);
            found.insert(text("kind"), (text("name"), page));
        }
    }
    (found, vec![folder])
}

#[test]
fn a_report_of_each_kind_opens_without_a_network() {
    let (jobs, _folders) = jobs_of_each_kind();
    let kinds: Vec<&str> = jobs.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["copy", "front", "move", "sync", "verify"]);
    let mut browser = Browser::start();
    browser.cut_network(true);
    for (kind, (name, page)) in &jobs {
        browser.resize(1_280, 900);
        browser.open(&format!("file://{page}"));
        browser.wait_for("document.readyState === 'complete'");
        let text = browser.text("body");
        for expected in [name.as_str(), "started", "ended", "digest", "sha256:", "begun by"] {
            assert!(text.contains(expected), "{kind}: {expected} is not in {text}");
        }
        let asked = browser.eval("performance.getEntriesByType('resource').length");
        assert_eq!(asked, 0, "{kind}: it asks for something else");
        if let Some(folder) = std::env::var_os("WHIMBREL_SCREENSHOTS").map(PathBuf::from) {
            browser.screenshot(&folder.join(format!("report-{kind}.png")));
        }
        browser.resize(360, 900);
        let wide = browser.eval("document.documentElement.scrollWidth > innerWidth");
        assert_eq!(wide, false, "{kind}: it is wider than a narrow screen");
        Invocation::new(&["jobs", "report", "--check", page]).run().expect_code(0);
    }
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}
