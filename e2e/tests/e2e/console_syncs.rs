//! Syncs that are begun, limited, gone on with and cut over later from the console, by clicks and by scripts.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use whimbrel_e2e::http::Ask;
use whimbrel_e2e::resharding::{PATIENCE, Scene};
use whimbrel_e2e::syncing::{deployment, fill, writers};
use whimbrel_lab::{Engine, Server};

use crate::console::Opened;
use crate::console_page::{browser, number, picture, test};

/// The password of the user that whimbrel runs as at both servers.
const SECRET: &str = "a-secret-of-the-mover";

/// The cluster of a daemon, of which nothing is asked here, and two servers.
fn servers() -> (Scene, Server, Server) {
    let scene = Scene::of(Engine::Redis70, 0, &[vec![0..=16_383]]).start();
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    for server in [&source, &target] {
        let user = ["SETUSER", "mover", "on", &format!(">{SECRET}"), "~*", "&*", "+@all"];
        redis::cmd("ACL").arg(&user).exec(&mut server.connection()).expect("a user");
    }
    (scene, source, target)
}

/// Begins a sync, and waits until it follows.
#[track_caller]
fn begin(opened: &Opened, source: &Server, target: &Server) -> String {
    let (from, to) = (format!("redis://mover@{}", source.addr()), format!("redis://mover@{}", target.addr()));
    let wanted = json!({
        "kind": "sync", "source": from, "target": to, "confirm": to,
        "source_password": SECRET, "target_password": SECRET,
    });
    let name = opened.post("/jobs", &wanted)["name"].as_str().expect("a name").to_owned();
    opened.wait_for_job(&name, |job| job["phase"] == "following");
    name
}

/// Ends the processes that the console has begun, as a machine that has no memory left would.
#[track_caller]
fn kill_children(of: u32) {
    let is_child = |stat: &str| {
        let mut after_name = stat.rsplit_once(')')?.1.split_whitespace();
        Some(after_name.nth(1)?.parse() == Ok(of))
    };
    let processes = std::fs::read_dir("/proc").expect("the processes").filter_map(|entry| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        is_child(&stat)?.then_some(pid)
    });
    let children: Vec<i32> = processes.collect();
    assert!(!children.is_empty(), "it has begun no process");
    for pid in children {
        let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
        assert!(killed.expect("kill runs").success(), "{pid}");
    }
}

/// Whether a value is as a schema of the document has it.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(named) = schema["$ref"].as_str() {
        let name = named.rsplit('/').next().unwrap_or_default();
        return check(document, &document["components"]["schemas"][name], value, at);
    }
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("{at}: the schema has the type {other}"),
    };
    match &schema["type"] {
        Value::String(kind) => assert!(is(kind), "{at} is no {kind}: {value}"),
        Value::Array(kinds) => {
            assert!(kinds.iter().filter_map(Value::as_str).any(is), "{at} is none of {kinds:?}: {value}");
        }
        _ => {}
    }
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{at} is none of {words:?}: {value}");
    }
    let Some(object) = value.as_object() else {
        for (place, item) in value.as_array().into_iter().flatten().enumerate() {
            check(document, &schema["items"], item, &format!("{at}[{place}]"));
        }
        return;
    };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        assert!(object.contains_key(name), "{at} has no {name}: {value}");
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = object.get(name) {
            check(document, schema, value, &format!("{at}.{name}"));
        }
    }
}

/// Limits of all kinds are set over HTTP, and answers are as the document says.
#[test]
fn limits_are_set_and_answers_are_as_the_document_says() {
    let (scene, source, target) = servers();
    fill(&deployment(source.addr()));
    let opened = Opened::of(&scene, &[]);
    let name = begin(&opened, &source, &target);
    let document = opened.get("/openapi.json");
    let schema = |method: &str, path: &str| {
        let answer = &document["paths"][format!("/api/v1{path}")][method]["responses"]["200"]["content"];
        answer["application/json"]["schema"].clone()
    };
    let set = format!("/jobs/{name}/set");
    let wanted = json!({
        "rate_keys": 5_000, "max_latency_ms": 50, "max_lag": "64MiB", "max_load": "60%",
        "between": "00:00-23:59:59", "memory_bytes": 32 << 20,
        "lanes": "2:3",
    });
    let answer = opened.post(&set, &wanted);
    check(&document, &schema("post", "/jobs/{name}/set"), &answer, "set");
    for (limit, expected) in [
        ("rate_keys", json!(5_000)),
        ("max_latency_ms", json!(50)),
        ("max_lag", json!({"bytes": 64 << 20})),
        ("max_load", json!(60)),
        ("between", json!("00:00-23:59:59Z")),
        ("memory_bytes", json!(32 << 20)),
        ("lanes", json!("2:3")),
    ] {
        assert_eq!(answer["rates"][limit], expected, "{limit}: {answer}");
    }
    let job = opened.wait_for_job(&name, |job| job["limits"].is_string());
    for words in ["5,000 keys a second", "over 50 ms", "over 64.0 MiB behind", "over 60% of a core"] {
        assert!(job["limits"].as_str().is_some_and(|limits| limits.contains(words)), "{words}: {job}");
    }
    let none = json!({"rate_keys": null, "max_lag": null, "max_load": null, "between": null});
    let answer = opened.post(&set, &none);
    assert!(answer["rates"]["max_lag"].is_null() && answer["rates"]["between"].is_null(), "{answer}");
    let wrong = opened.ask("operate", &format!("POST /api/v1{set}"), Some(&json!({"max_lag": "far"})));
    assert_eq!((wrong.status, wrong.json()["remedy"].is_string()), (400, true), "{}", wrong.body);
    let orders = [("pause", "/jobs/{name}/pause"), ("resume", "/jobs/{name}/resume")];
    for (order, path) in orders {
        let answer = opened.post(&format!("/jobs/{name}/{order}"), &json!({}));
        check(&document, &schema("post", path), &answer, order);
    }
    for path in ["/me", "/jobs", "/jobs/{name}", "/cluster", "/cluster/repair", "/audit"] {
        check(&document, &schema("get", path), &opened.get(&path.replace("{name}", &name)), path);
    }
    let rehearsed = opened.post(
        &format!("/jobs/{name}/cutover"),
        &json!({"dry_run": true, "fence": "acl",
        "max_pause_ms": 5_000}),
    );
    check(&document, &schema("post", "/jobs/{name}/cutover"), &rehearsed, "a rehearsal");
    let cancelled = opened.post(&format!("/jobs/{name}/cancel"), &json!({"confirm": name}));
    check(&document, &schema("post", "/jobs/{name}/cancel"), &cancelled, "a cancellation");
    assert_eq!(cancelled["state"], "asked", "{cancelled}");
    opened.wait_for_job(&name, |job| job["ended"] == true);
    // A document that nobody may read describes nothing.
    assert_eq!(Ask::new(&opened.at, "GET /api/v1/openapi.json").answer().status, 200);
}

/// A sync whose process was killed goes on by clicks, with the passwords that are written down nowhere, and
/// cuts over by itself once that is due.
#[test]
fn a_killed_sync_goes_on_and_cuts_over_later_by_clicks() {
    let (scene, source, target) = servers();
    let (from, to) = (source.addr(), target.addr());
    fill(&deployment(&from));
    let opened = Opened::of(&scene, &[]);
    let name = begin(&opened, &source, &target);
    let first = writers(std::slice::from_ref(&from), "first");
    assert!(first.wait_for(200, PATIENCE));
    kill_children(opened.served.running.pid());
    opened.wait_for_job(&name, |job| job["state"] == "interrupted");
    let first = first.stop();

    let mut browser = browser(&opened, "administer");
    browser.open(&format!("http://{}/#/jobs/{name}", opened.at));
    browser.wait_for(&format!("{} === 1", number("go-on")));
    browser.click(&test("go-on"));
    browser.fill(&test("go-on-confirm"), &name);
    // Without passwords a server refuses it, which is said in the dialog.
    browser.click(&test("go-on-button"));
    browser.wait_within("/password/i.test(document.querySelector('dialog .failure')?.innerText)", PATIENCE);
    picture(&mut browser, "go-on");
    for side in ["source", "target"] {
        browser.fill(&test(&format!("go-on-{side}-password")), SECRET);
    }
    browser.click(&test("go-on-button"));
    browser.wait_within(&format!("{} === 0", number("go-on-dialog")), PATIENCE);
    let job = opened.wait_for_job(&name, |job| job["phase"] == "following" && job["running"] == true);
    assert!(job["begun_by"].as_str().is_some_and(|by| by.starts_with("token administer")), "{job}");

    browser.open(&format!("http://{}/#/migrations/{name}", opened.at));
    browser.wait_for(&format!("{} === 1", number("cutover-open")));
    browser.fill(&test("max-pause"), "5s");
    browser.fill(&test("cutover-at"), "2099-01-01T00:00Z");
    order(&mut browser, &name);
    let job = opened.wait_for_job(&name, |job| job["scheduled"].is_string());
    assert!(job["scheduled"].as_str().is_some_and(|at| at.contains("2099-01-01")), "{job}");
    browser.wait_for_text(&test("step-cutover"), "a cutover is scheduled: at 2099-01-01");
    picture(&mut browser, "ordered");
    browser.click(&test("cutover-withdraw"));
    opened.wait_for_job(&name, |job| job["scheduled"].is_null());
    let what = format!("POST /api/v1/jobs/{name}/cutover/withdraw");
    let nothing = opened.ask("administer", &what, Some(&json!({})));
    assert_eq!(nothing.status, 409, "{}", nothing.body);

    let later = writers(std::slice::from_ref(&from), "later");
    browser.fill(&test("cutover-at"), "");
    browser.click(&test("cutover-ready"));
    order(&mut browser, &name);
    opened.wait_for_job(&name, |job| job["phase"] == "cut over");
    let later = later.stop();
    for record in [&first, &later] {
        record.assert_kept(&deployment(&to));
    }
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
    let orders = opened.get("/audit")["entries"].to_string();
    assert!(!orders.contains(SECRET), "{orders}");
    for order in ["go-on", "withdraw cutover"] {
        assert!(orders.contains(order), "{order} is not in {orders}");
    }
}

/// Orders the cutover that is chosen, with all that has to be confirmed.
#[track_caller]
fn order(browser: &mut whimbrel_e2e::browser::Browser, name: &str) {
    let until = Instant::now() + PATIENCE;
    while browser.eval(&format!("{} === 0", number("cutover-dialog"))) == true {
        assert!(Instant::now() < until, "the dialog does not open");
        browser.click(&test("cutover-open"));
        std::thread::sleep(Duration::from_millis(500));
    }
    for warning in ["cutover-unverified", "cutover-unrehearsed"] {
        if browser.eval(&format!("{} === 1", number(warning))) == true {
            browser.click(&test(warning));
        }
    }
    browser.fill(&test("cutover-confirm"), name);
    browser.click(&test("cutover-button"));
    browser.wait_within(&format!("{} === 0", number("cutover-dialog")), PATIENCE);
}
