//! Sources that can be followed by keyspace notifications only.

use redis::Value;
use whimbrel_e2e::syncing::{
    PATIENCE, Sync, comparison, deployment, fill, finish, report, stop, wait_until_following, writers,
};
use whimbrel_judge::compare::Comparison;
use whimbrel_lab::{Engine, Server, ServerBuilder, wait_until};

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        nothing_is_lost_with_notifications
}

/// A user who may neither replicate nor be sent invalidations.
const RULE: &str = "user sync on >secret ~* &* +@all -psync -sync -replconf -client|tracking -config|set";

fn source(engine: Engine) -> ServerBuilder {
    Server::builder(engine).user_acl(RULE).arg("notify-keyspace-events", "AE")
}

fn url(source: &Server) -> String {
    format!("redis://sync:secret@{}", source.addr())
}

/// Clients write; a database is emptied, of which nothing is published; and somebody ends the connection.
fn nothing_is_lost_with_notifications(engine: Engine) {
    let source = source(engine).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    fill(&deployment(source.addr()));
    let mut fifth = deployment(source.addr()).primaries()[0].connect(5).expect("the source answers");
    let set = |connection: &mut redis::Connection, key: &str, value: &str| {
        redis::cmd("SET").arg(key).arg(value).exec(connection).expect("written");
    };
    (0..500).for_each(|number| set(&mut fifth, &format!("emptied:{number}"), "1"));
    redis::cmd("PFADD").arg("visitors").arg(&["a", "b", "c"]).exec(&mut fifth).expect("written");
    let writers = writers(&[source.addr()], "notified");
    let job = Sync::new(&url(&source), &target.addr(), &[]);
    let planned = job.start(&["--dry-run"]).wait(PATIENCE).expect("it ends").expect_code(0);
    assert!(planned.stdout.contains("\"feed\":\"notifications\""), "{planned:#?}");
    assert!(planned.stdout.contains("arrive with the cutover only"), "{planned:#?}");
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    assert!(sync.stdout().contains("\"feed\":\"notifications\""), "{}", sync.stdout());
    writers.wait_for(1_000, PATIENCE);

    let mut theirs = deployment(target.addr()).primaries()[0].connect(5).expect("the target answers");
    let mut size = || redis::cmd("DBSIZE").query::<u64>(&mut theirs).expect("an answer");
    wait_until("the database arrives", || size() == 501);
    redis::cmd("FLUSHDB").exec(&mut fifth).expect("emptied");
    set(&mut fifth, "after", "1");
    wait_until("the emptied database is noticed", || size() == 1);

    // To the server a sync that follows by notifications is a subscriber.
    let ended = source.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(ended, Value::Int(1), "the feed of the sync, and no other");
    set(&mut fifth, "missed", "1");
    wait_until("what was missed is found", || size() == 2);
    wait_until_following(&mut sync);
    redis::cmd("PFADD").arg("visitors").arg(&["a", "b", "c"]).exec(&mut fifth).expect("written");
    wait_until("the set is made anew", || size() == 3);
    // It keeps what it has counted in the value, and publishes nothing.
    redis::cmd("PFCOUNT").arg("visitors").exec(&mut fifth).expect("counted");
    finish(&job, sync, writers, &source.addr(), &target.addr(), &comparison());
    let keys = |server: &Server| {
        let mut connection = deployment(server.addr()).primaries()[0].connect(5).expect("it answers");
        redis::cmd("DBSIZE").query::<u64>(&mut connection).expect("an answer")
    };
    assert_eq!((keys(&source), keys(&target)), (3, 3), "{engine}");
}

/// Somebody turns it off while it is followed: the sync ends, says why, and goes on when it is on again.
#[test]
fn a_sync_ends_where_notifications_are_turned_off() {
    let source = source(Engine::Valkey91).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    let set = |key: &str| drop(source.call(&["SET", key, "1"]));
    set("before");
    let job = Sync::new(&url(&source), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    source.call(&["CONFIG", "SET", "notify-keyspace-events", "Ex"]);
    set("meanwhile");
    let ended = sync.wait(PATIENCE).expect("it ends").expect_code(7);
    assert!(ended.stdout.contains("lacks g$lszhet"), "{ended:#?}");
    source.call(&["CONFIG", "SET", "notify-keyspace-events", "AE"]);
    let mut sync = job.start(&["--resume"]);
    wait_until_following(&mut sync);
    set("after");
    job.cutover_without_fence();
    stop(sync);
    Comparison::default().assert_equal(&deployment(source.addr()), &deployment(target.addr()));
    assert_eq!(target.call(&["DBSIZE"]), Value::Int(3));
}

/// Types of which nothing is published arrive with the cutover, whatever happened to their keys.
#[test]
fn keys_of_silent_types_arrive_with_the_cutover() {
    // Without `d`, for keys of modules: vector sets are a module's to Redis, which publishes nothing.
    let source = source(Engine::Redis86).arg("notify-keyspace-events", "g$lszhxetE").start();
    let source = source.expect("the source starts");
    let target = Server::builder(Engine::Redis86).start().expect("the target starts");
    let add = |key: &str, element: &str| drop(source.call(&["VADD", key, "VALUES", "2", "1", "1", element]));
    add("vectors", "first");
    source.call(&["XADD", "stream", "1-1", "f", "v"]);
    let job = Sync::new(&url(&source), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    add("vectors", "second");
    add("made later", "first");
    source.call(&["XGROUP", "CREATE", "stream", "readers", "0"]);
    source.call(&["XREADGROUP", "GROUP", "readers", "one", "STREAMS", "stream", ">"]);
    let outcome = job.cutover(&["--fence", "none", "--max-pause", "20s"]).expect_code(0);
    assert!(report(&outcome)["report"]["compared"].as_u64().is_some_and(|keys| keys > 0), "{outcome:#?}");
    let ended = stop(sync);
    assert!(ended.stdout.contains("keys of type vectorset arrive with the cutover only"), "{ended:#?}");
    let count = |key: &str| target.call(&["VCARD", key]);
    assert_eq!((count("vectors"), count("made later")), (Value::Int(2), Value::Int(1)));
    let pending = target.call(&["XPENDING", "stream", "readers"]);
    assert!(matches!(&pending, Value::Array(parts) if parts[0] == Value::Int(1)), "{pending:?}");
}
