//! The console: over HTTP as a script sees it, and in a real browser as people do.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::http::{Answer, Ask};
use whimbrel_e2e::resharding::{PATIENCE, Scene};
use whimbrel_lab::{Engine, wait_until};

use crate::daemon::{Served, invocation, port_of_its_own};

const ROLES: [&str; 3] = ["view", "operate", "administer"];

/// A daemon with a console, and a token for each role.
pub(crate) struct Opened {
    pub(crate) served: Served,
    /// Where the console listens: `HOST:PORT`.
    pub(crate) at: String,
    pub(crate) tokens: BTreeMap<&'static str, String>,
}

/// The user that whimbrel runs as.
pub(crate) fn user() -> String {
    let output = std::process::Command::new("id").arg("-un").output().expect("id runs");
    String::from_utf8(output.stdout).expect("a name").trim().to_owned()
}

/// A token of this folder.
#[track_caller]
pub(crate) fn token(state: &str, name: &str, role: &str) -> String {
    let args = ["token", "add", name, "--role", role, "--state-dir", state];
    Invocation::unasked(&args).run().expect_code(0).stdout.trim().to_owned()
}

impl Opened {
    /// For the cluster and the folder of a scene.
    #[track_caller]
    pub(crate) fn of(scene: &Scene, more: &[&str]) -> Opened {
        let state = scene.file("").to_string_lossy().into_owned();
        let tokens = ROLES.into_iter().map(|role| (role, token(&state, role, role))).collect();
        let console = port_of_its_own();
        let mut args = vec!["--console", &*console];
        args.extend(more);
        let mut served = Served::by(invocation(scene, "127.0.0.1:0", &args));
        assert!(served.running.wait_for_text("\"console\"", PATIENCE), "{}", served.running.stderr());
        let at = console_at(&served.running.stdout());
        Opened { served, at, tokens }
    }

    /// Asks with the token of a role.
    #[track_caller]
    pub(crate) fn ask(&self, role: &str, what: &str, body: Option<&Value>) -> Answer {
        let token = format!("Bearer {}", self.tokens[role]);
        let ask = Ask::new(&self.at, what).with("Authorization", token);
        match body {
            Some(body) => ask.json(body).answer(),
            None => ask.answer(),
        }
    }

    /// Asks as an administrator, and expects what was asked for.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.ask("administer", &format!("GET /api/v1{path}"), None);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    /// The same with a body.
    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.ask("administer", &format!("POST /api/v1{path}"), Some(body));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    /// Waits until a job is as `is` would have it.
    #[track_caller]
    pub(crate) fn wait_for_job(&self, name: &str, is: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let job = self.get(&format!("/jobs/{name}"))["job"].clone();
            if is(&job) {
                return job;
            }
            assert!(Instant::now() < deadline, "not yet: {job}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Where a daemon says that its console is.
#[track_caller]
pub(crate) fn console_at(stdout: &str) -> String {
    let events = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let url = events.filter(|event| event["event"] == "console").find_map(|event| {
        let url = event["url"].as_str()?.strip_prefix("http://")?.strip_suffix('/')?;
        Some(url.to_owned())
    });
    url.expect("it says where its console is")
}

fn scene() -> Scene {
    let scene = Scene::of(Engine::Redis70, 0, &[vec![0..=12_000], vec![12_001..=16_383], Vec::new()]).start();
    scene.fill(0..=199, 200, 2_000);
    scene
}

/// What the document says of a request: any that is allowed has to be no worse than refused for its content.
fn body_of(operation: &Value) -> Value {
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let mut body = json!({});
    for name in required.iter().filter_map(Value::as_str) {
        let property = &schema["properties"][name];
        body[name] = match property["enum"].get(0) {
            Some(first) => first.clone(),
            None => json!("nothing"),
        };
    }
    body
}

#[test]
fn each_role_can_do_what_the_document_says_and_no_more() {
    let scene = scene();
    let opened = Opened::of(&scene, &[]);
    let document = Ask::new(&opened.at, "GET /api/v1/openapi.json").answer().json();
    let mut tried = 0;
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            let Some(needs) = operation["x-role"].as_str() else { continue };
            // Nothing ends there by itself: it is tried below.
            if path.ends_with("/stream") {
                continue;
            }
            let path = path.replace("{name}", "nobody").replace("{id}", "nobody");
            let what = format!("{} {path}", method.to_uppercase());
            let body = (method == "post").then(|| body_of(operation));
            let nobody = Ask::new(&opened.at, &what);
            let nobody = body.as_ref().map_or(nobody.clone(), |body| nobody.json(body)).answer();
            assert_eq!(nobody.status, 401, "{what}: {}", nobody.body);
            let least = ROLES.iter().position(|role| *role == needs).expect("a role");
            for (place, role) in ROLES.into_iter().enumerate() {
                let answer = opened.ask(role, &what, body.as_ref());
                let is_refused = answer.status == 403;
                // A refusal says what to do.
                let has_remedy = answer.status < 400 || answer.json()["remedy"].is_string();
                assert!(has_remedy, "{what} as {role}: {} {}", answer.status, answer.body);
                assert_eq!(is_refused, place < least, "{what} as {role}: {} {}", answer.status, answer.body);
                assert!(answer.status < 500 || answer.status == 503, "{what}: {}", answer.body);
                tried += 1;
            }
        }
    }
    assert!(tried >= 3 * 15, "{tried}");
    let entries = opened.get("/audit")["entries"].as_array().cloned().expect("entries");
    assert!(entries.iter().all(|entry| entry["role"] != "view"), "{entries:?}");
    assert!(entries.iter().any(|entry| entry["order"] == "pause" && entry["who"] == "operate"));
}

#[test]
fn pages_from_elsewhere_and_other_names_are_refused() {
    let scene = scene();
    let opened = Opened::of(&scene, &["--console-host", "console.example"]);
    let token = format!("Bearer {}", opened.tokens["administer"]);
    let status = |headers: &[(&'static str, &str)], what: &str| {
        let ask = Ask::new(&opened.at, what).with("Authorization", token.clone());
        let ask = headers.iter().fold(ask, |ask, (name, value)| ask.with(name, *value));
        ask.answer().status
    };
    let own = format!("http://{}", opened.at);
    assert_eq!(status(&[], "GET /api/v1/me"), 200);
    assert_eq!(status(&[("Origin", &own)], "GET /api/v1/me"), 200);
    assert_eq!(status(&[("Host", "console.example")], "GET /api/v1/me"), 200);
    for host in ["evil.example", "127.0.0.1.evil.example:80", "console.example.evil.example", ""] {
        assert_eq!(status(&[("Host", host)], "GET /api/v1/me"), 421, "{host}");
        assert_eq!(status(&[("Host", host)], "GET /"), 421, "{host}");
    }
    for origin in ["http://evil.example", "null", "https://127.0.0.1", ""] {
        assert_eq!(status(&[("Origin", origin)], "GET /api/v1/me"), 403, "{origin}");
    }
    // What a form of another page can send without asking first.
    let form = Ask::new(&opened.at, "POST /api/v1/plans").with("Authorization", token.clone());
    let form = form.with("Content-Type", "text/plain");
    let form = Ask { body: r#"{"kind": "rebalance"}"#.to_owned(), ..form }.answer();
    assert_eq!(form.status, 415, "{}", form.body);
    for wrong in ["Bearer ", "Bearer x", "Basic YTpi", &format!("Bearer {}x", opened.tokens["view"])] {
        let answer = Ask::new(&opened.at, "GET /api/v1/me").with("Authorization", wrong).answer();
        assert_eq!(answer.status, 401, "{wrong}");
    }
    let page = Ask::new(&opened.at, "GET /").answer();
    for header in ["content-security-policy: default-src 'none'", "x-frame-options: DENY", "no-store"] {
        assert!(page.head.contains(header), "{}", page.head);
    }
    // A token that is taken back is refused at once.
    let state = scene.file("").to_string_lossy().into_owned();
    Invocation::unasked(&["token", "remove", "administer", "--state-dir", &state]).run().expect_code(0);
    assert_eq!(status(&[], "GET /api/v1/me"), 401);
}

#[test]
fn a_console_is_not_opened_for_everybody_or_nobody() {
    let scene = scene();
    let (seed, state) = (scene.cluster.seed(), scene.file("").to_string_lossy().into_owned());
    let serve = |console: &str| {
        let args =
            ["serve", "--cluster", &seed, "--listen", "127.0.0.1:0", "--state-dir", &state, "--console"];
        Invocation::unasked(&args.iter().copied().chain([console]).collect::<Vec<_>>()).run()
    };
    let nobody = serve("127.0.0.1:0").expect_code(2);
    assert!(nobody.stderr.contains("whimbrel token add"), "{}", nobody.stderr);
    token(&state, "alice", "view");
    let clear = serve("0.0.0.0:0").expect_code(2);
    assert!(clear.stderr.contains("in clear") && clear.stderr.contains("certificate"), "{}", clear.stderr);
    let twice = ["token", "add", "alice", "--role", "view", "--state-dir", &state];
    assert!(Invocation::unasked(&twice).run().expect_code(2).stderr.contains("there is a token"));
    let listed = Invocation::unasked(&["token", "list", "--state-dir", &state]).run().expect_code(0);
    assert!(
        listed.stdout.contains("alice  view") && !listed.stdout.contains("whimbrel_"),
        "{}",
        listed.stdout
    );
}

fn a_plan_is_approved_as_it_was_shown(engine: Engine) {
    let scene = Scene::of(engine, 0, &[vec![0..=12_000], vec![12_001..=16_383], Vec::new()]).start();
    scene.fill(0..=199, 200, 2_000);
    let before = scene.unwritten();
    let opened = Opened::of(&scene, &["--method", "external", "--max-pause", "5s"]);
    let plan = opened.post("/plans", &json!({"kind": "rebalance", "use_empty": true}));
    let after: Vec<i64> = plan["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| node["after"]["slots"].as_i64().expect("slots"))
        .collect();
    assert_eq!(after.iter().sum::<i64>(), 16_384);
    assert!(after.iter().all(|slots| (5_461..=5_462).contains(slots)), "{after:?}");
    let approve = format!("/plans/{}/approve", plan["id"].as_str().expect("an id"));
    let refused = opened.ask("operate", &format!("POST /api/v1{approve}"), Some(&json!({"confirm": "yes"})));
    assert_eq!(refused.status, 400, "{}", refused.body);
    let confirmed = json!({"confirm": plan["cluster"]});
    let jobs = opened.post(&approve, &confirmed)["jobs"].clone();
    let names: Vec<&str> = jobs.as_array().expect("jobs").iter().filter_map(Value::as_str).collect();
    assert_eq!(names.len(), plan["moves"].as_array().expect("moves").len());
    let again = opened.ask("operate", &format!("POST /api/v1{approve}"), Some(&confirmed));
    assert_eq!(again.status, 409, "{}", again.body);
    for name in &names {
        let job = opened.wait_for_job(name, |job| job["ended"] == true);
        assert_eq!(job["phase"], "done", "{job}");
    }
    // The nodes are asked once a second.
    wait_until("the console shows who has what now", || {
        let cluster = opened.get("/cluster");
        let shards = cluster["shards"].as_array().expect("shards");
        let slots = |shard: &Value| shard["slot_count"].as_i64().expect("slots");
        shards.len() == 3 && shards.iter().all(|shard| (5_461..=5_462).contains(&slots(shard)))
    });
    // What has changed since is found before anything moves.
    let owner = scene.cluster.owner_of(0).expect("an owner");
    let (one, other) = ((owner + 1) % 3, (owner + 2) % 3);
    let wanted = json!({"kind": "reshard", "slots": "0-9", "to": scene.cluster.node_id(one)});
    let outdated = opened.post("/plans", &wanted);
    scene.reshard("0-9", other, &["--method", "external"]).run().expect_code(0);
    let approve = format!("/plans/{}/approve", outdated["id"].as_str().expect("an id"));
    let refused = opened.ask("operate", &format!("POST /api/v1{approve}"), Some(&confirmed));
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert!(refused.body.contains("does not own"), "{}", refused.body);
    scene.assert_unchanged(&before);
    scene.assert_all_run();
}

/// Jobs of one plan: who had them begun is said everywhere, what the nodes show meanwhile is no problem, and
/// all of them end at once.
#[test]
fn jobs_of_a_plan_are_known_and_cancelled_together() {
    let layout = [vec![0..=5_999], vec![6_000..=11_999], vec![12_000..=16_383]];
    let scene = Scene::of(Engine::Redis70, 0, &layout).start();
    // In all slots of the first node: a job without keys would soon be done.
    scene.fill(0..=5_999, 200, 20_000);
    let before = scene.unwritten();
    let opened = Opened::of(&scene, &["--method", "external", "--max-pause", "5s", "--rate-keys", "300"]);
    let cluster = scene.cluster.seed();
    let plan = opened.post("/plans", &json!({"kind": "drain", "node": scene.cluster.node_id(0)}));
    let wanted = json!({"kind": "reshard", "slots": "0-9", "to": scene.cluster.node_id(2)});
    let other = opened.post("/plans", &wanted);
    let id = |plan: &Value| plan["id"].as_str().expect("an id").to_owned();
    let confirmed = json!({"confirm": cluster});
    let what = format!("POST /api/v1/plans/{}/approve", id(&plan));
    let approved = opened.ask("operate", &what, Some(&confirmed));
    assert_eq!(approved.status, 200, "{}", approved.body);
    let approved = approved.json();
    let names: Vec<&str> =
        approved["jobs"].as_array().expect("jobs").iter().filter_map(Value::as_str).collect();
    assert!(names.len() > 1, "{names:?}");

    // A plan of which nothing comes is not used up.
    for _ in 0..2 {
        let what = format!("POST /api/v1/plans/{}/approve", id(&other));
        let refused = opened.ask("operate", &what, Some(&confirmed));
        assert_eq!(refused.status, 422, "{}", refused.body);
    }

    for name in &names {
        let job = opened.get(&format!("/jobs/{name}"));
        let by = format!("token operate (console), as {}", user());
        assert_eq!(job["job"]["begun_by"], by, "{job}");
        assert_eq!(job["job"]["plan"], plan["id"]);
        assert_eq!(job["events"][0]["text"], format!("begun by {by}"), "{job}");
    }
    let listed = scene.jobs(&["list"]).run().expect_code(0).stdout;
    assert!(listed.contains("token operate (console)"), "{listed}");

    // Its slots are open by now; nothing is wrong with that.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let cluster = opened.get("/cluster");
        let found = cluster["findings"].as_array().cloned().expect("findings");
        // On a busy machine a node may not answer in time, which is a problem of its own.
        let shards = cluster["shards"].as_array().expect("shards");
        if shards.iter().all(|shard| shard["answers"] == true) {
            assert!(found.iter().all(|found| found["problem"] == false), "{found:?}");
            assert_eq!(cluster["healthy"], true, "{found:?}");
            if found.iter().any(|found| found["kind"] == "open" && found["under_way"] == true) {
                break;
            }
        }
        assert!(Instant::now() < deadline, "no slot is open: {cluster}");
        thread::sleep(Duration::from_millis(100));
    }

    let what = format!("POST /api/v1/plans/{}/cancel", id(&plan));
    let refused = opened.ask("operate", &what, Some(&json!({"confirm": "yes"})));
    assert_eq!(refused.status, 400, "{}", refused.body);
    // Nobody cancels what they were not shown.
    let some = json!({"confirm": cluster, "jobs": [names[0]]});
    let unseen = opened.ask("operate", &what, Some(&some));
    assert_eq!((unseen.status, unseen.body.contains(names[1])), (409, true), "{}", unseen.body);
    let cancelled = opened.ask("operate", &what, Some(&json!({"confirm": cluster, "jobs": names})));
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    assert_eq!(cancelled.json()["refused"], json!([]), "{}", cancelled.body);
    for name in &names {
        // One that waited for its turn leaves nothing behind.
        let answer = opened.ask("view", &format!("GET /api/v1/jobs/{name}"), None);
        if answer.status == 200 {
            let job = opened.wait_for_job(name, |job| job["ended"] == true);
            assert_eq!(job["phase"], "cancelled", "{job}");
        }
    }
    let again = opened.ask("operate", &what, Some(&confirmed));
    assert_eq!(again.status, 409, "{}", again.body);
    scene.assert_unchanged(&before);
    scene.assert_all_run();
}

/// The console counts what it is asked for; a token is needed to see that, as for all else.
#[test]
fn the_console_counts_what_it_is_asked_for() {
    let scene = scene();
    let opened = Opened::of(&scene, &[]);
    assert_eq!(Ask::new(&opened.at, "GET /metrics").answer().status, 401);
    let wrong = Ask::new(&opened.at, "GET /api/v1/jobs").with("Authorization", "Bearer wrong").answer();
    assert_eq!(wrong.status, 401, "{}", wrong.body);
    opened.get("/jobs");
    opened.ask("operate", "POST /api/v1/jobs/nobody/pause", Some(&json!({})));
    opened.ask("view", "GET /api/v1/no/such/thing", None);
    let answer = opened.ask("view", "GET /metrics", None);
    assert_eq!(answer.status, 200, "{}", answer.body);
    for expected in [
        "whimbrel_console_requests_total{operation=\"GET /api/v1/jobs\",status=\"200\"} 1.0",
        "whimbrel_console_requests_total{operation=\"GET /api/v1/jobs\",status=\"401\"} 1.0",
        "whimbrel_console_requests_total{operation=\"POST /api/v1/jobs/{name}/pause\",status=\"404\"} 1.0",
        "whimbrel_console_requests_total{operation=\"other\",status=\"404\"} 1.0",
        "whimbrel_console_orders_total{order=\"pause\",result=\"refused\"} 1.0",
        "whimbrel_console_wrong_tokens_total 1.0",
        "whimbrel_console_streams 0.0",
    ] {
        assert!(answer.body.lines().any(|line| line == expected), "no {expected} in\n{}", answer.body);
    }
}

/// Whatever is asked for, the answer is JSON without anything that a terminal obeys.
#[test]
fn odd_names_are_answered_as_json() {
    let scene = scene();
    let opened = Opened::of(&scene, &[]);
    let odd = opened.ask("view", "GET /api/v1/jobs/%ff", None);
    assert_eq!((odd.status, odd.json()["error"].is_string()), (400, true), "{}", odd.body);
    let odd = opened.ask("view", "GET /api/v1/jobs/%1b%5b2J", None);
    let error = odd.json()["error"].as_str().unwrap_or_default().to_owned();
    assert_eq!((odd.status, error.contains(char::is_control)), (404, false), "{}", odd.body);
    assert!(error.contains("[2J"), "{error}");
}

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91: a_plan_is_approved_as_it_was_shown
}
