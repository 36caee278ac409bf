//! The console's pages before a checker of accessibility (axe), at three widths, light and dark.

use serde_json::{Value, json};
use whimbrel_e2e::browser::Browser;
use whimbrel_e2e::resharding::Scene;
use whimbrel_e2e::syncing::{deployment, fill};
use whimbrel_lab::{Engine, Server};

use crate::console::Opened;
use crate::console_page::{browser, number, test};

/// What the checker finds in what is shown now, each in a line.
#[track_caller]
fn findings(browser: &mut Browser, checker: &str) -> Vec<String> {
    if browser.eval("typeof axe") != "object" {
        browser.eval(&format!("{checker}; null"));
    }
    let found =
        browser.eval("axe.run(document, {resultTypes: ['violations']}).then(results => results.violations)");
    let lines = found.as_array().expect("findings").iter().map(|finding| {
        let places: Vec<&Value> =
            finding["nodes"].as_array().into_iter().flatten().take(3).map(|node| &node["html"]).collect();
        format!("{} ({}): {places:?}", finding["id"], finding["impact"])
    });
    lines.collect()
}

/// Checks what is shown, at each width and in both schemes. Nothing has to be scrolled sideways.
#[track_caller]
fn check(browser: &mut Browser, checker: &str, page: &str) {
    for dark in [false, true] {
        browser.prefer_dark(dark);
        for width in [1_440, 768, 360] {
            browser.resize(width, 900);
            let found = findings(browser, checker);
            assert!(found.is_empty(), "{page} at {width}, dark: {dark}: {found:#?}");
            let wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
            assert_eq!(browser.eval(wider), 0, "{page} at {width} is wider than the screen");
        }
    }
}

/// Pages and dialogs, with a cluster, a sync that runs and a comparison that found a difference.
#[test]
fn no_page_keeps_anybody_out() {
    let checker = whimbrel_lab::page_checker().expect("the checker: ./dev engines axe brings it");
    let checker = std::fs::read_to_string(checker).expect("the checker is read");
    let scene = Scene::of(Engine::Redis70, 0, &[vec![0..=12_000], vec![12_001..=16_383], Vec::new()]).start();
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    let (from, to) = (source.addr(), target.addr());
    fill(&deployment(&from));
    let opened = Opened::of(&scene, &[]);
    let between = json!({"kind": "verify", "source": from, "target": to});
    let verify = opened.post("/jobs", &between)["name"].as_str().expect("a name").to_owned();
    opened.wait_for_job(&verify, |job| job["ended"] == true);
    let between = json!({"kind": "sync", "source": from, "target": to, "confirm": to});
    let sync = opened.post("/jobs", &between)["name"].as_str().expect("a name").to_owned();
    opened.wait_for_job(&sync, |job| job["phase"] == "following");

    let mut browser = browser(&opened, "administer");
    browser.wait_for(&format!("{} === 3", number("shard")));
    // It finds something where something is wrong, or it would prove nothing.
    browser.eval("document.querySelector('main').insertAdjacentHTML('beforeend', '<button id=x></button>')");
    let planted = findings(&mut browser, &checker);
    assert!(planted.iter().any(|found| found.contains("button-name")), "{planted:?}");
    browser.eval("document.getElementById('x').remove()");

    check(&mut browser, &checker, "cluster");
    browser.resize(1_440, 900);
    browser.click(&test("rebalance"));
    browser.click(&test("plan-use-empty"));
    browser.click(&test("plan-button"));
    browser.wait_for(&format!("{} === 3", number("plan-node-row")));
    check(&mut browser, &checker, "the plan");
    browser.press("Escape");
    let jobs = [&verify, &sync].map(|name| format!("jobs/{name}"));
    let pages = ["jobs", &jobs[0], &jobs[1], "migrations", &format!("migrations/{sync}"), "fleet", "audit"];
    for page in pages {
        browser.open(&format!("http://{}/#/{page}", opened.at));
        browser.wait_for(&format!("document.querySelector('main h1') && location.hash === '#/{page}'"));
        check(&mut browser, &checker, page);
    }
    browser.open(&format!("http://{}/#/jobs/{sync}", opened.at));
    browser.resize(1_440, 900);
    browser.click(&test("cancel"));
    browser.wait_for(&format!("{} === 1", number("cancel-dialog")));
    check(&mut browser, &checker, "a dialog");
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}
