//! Keys of modules between Redis 7.2 and 7.4, and where the target has no modules.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{Connection, Value};
use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_e2e::resharding::Scene;
use whimbrel_e2e::syncing::{Sync, report, wait_until_following};
use whimbrel_judge::cluster_writers::tags_in;
use whimbrel_judge::deployment::ask;
use whimbrel_lab::{ClusterBuilder, Engine, Server, wait_until};

const PATIENCE: Duration = Duration::from_secs(300);

const KEYS: usize = 40;

const PARTIAL: i32 = 5;
const DIFFERENT: i32 = 6;

fn whimbrel(args: &[&str]) -> Output {
    let state = tempfile::tempdir().expect("a folder for journals");
    Invocation::new(args).env("XDG_STATE_HOME", state.path()).timeout(PATIENCE).run()
}

fn start(engine: Engine) -> Server {
    Server::builder(engine).modules().start().expect("the server starts")
}

/// What makes a key of each type, with `%` for its number; the first of each has the name of the key.
const MADE_BY: &[&str] = &[
    r#"JSON.SET json:% $ {"name":"%","list":[1,2.5,null,true],"inner":{"third":0.1}}"#,
    "TS.CREATE series:% RETENTION 0 LABELS number %",
    "TS.MADD series:% 1000 1.5 series:% 2000 % series:% 3000 -0.25",
    "BF.RESERVE bloom:% 0.01 10",
    "BF.MADD bloom:% a b c d e f g h i j k l m",
    "CF.ADD cuckoo:% item",
    "CMS.INITBYDIM sketch:% 50 4",
    "CMS.INCRBY sketch:% item 7",
    "TOPK.RESERVE top:% 3",
    "TOPK.ADD top:% a b c a d a",
    "TDIGEST.CREATE digest:%",
    "TDIGEST.ADD digest:% 1 2 3 %",
    "HSET hash:% field %",
];

const TYPES: usize = 8;

fn fill(server: &Server) {
    fill_tagged(&mut server.connection(), |_| String::new());
}

/// With the tag of each number in the names of its keys.
fn fill_tagged(connection: &mut Connection, tag: impl Fn(usize) -> String) {
    for n in 0..KEYS {
        for command in MADE_BY {
            ask(connection, &tagged(command, n, &tag(n)));
        }
    }
}

fn tagged(words: &str, number: usize, tag: &str) -> String {
    words.replace(":%", &format!(":{tag}{number}")).replace('%', &number.to_string())
}

/// What modules say that their keys hold, without a dump.
fn contents(server: &Server, keys: usize) -> BTreeMap<String, Value> {
    contents_tagged(&mut server.connection(), keys, |_| String::new())
}

fn contents_tagged(
    connection: &mut Connection,
    keys: usize,
    tag: impl Fn(usize) -> String,
) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for n in 0..keys {
        for question in [
            "JSON.GET json:%",
            "TS.RANGE series:% - +",
            "TS.GET series:%",
            "BF.MEXISTS bloom:% a m nothing",
            "BF.CARD bloom:%",
            "CF.COUNT cuckoo:% item",
            "CMS.QUERY sketch:% item",
            "TOPK.LIST top:% WITHCOUNT",
            "TDIGEST.QUANTILE digest:% 0 0.5 1",
            "HGETALL hash:%",
        ] {
            let question = tagged(question, n, &tag(n));
            let answer = ask(connection, &question);
            found.insert(question, answer);
        }
    }
    found
}

fn keys_of_modules_are_copied_and_compared_by_value(from: Engine, to: Engine) {
    let (source, target) = (start(from), start(to));
    fill(&source);
    let copied = report(&whimbrel(&["copy", &source.addr(), &target.addr(), "--json"]).expect_code(0));
    assert_eq!(copied["report"]["counts"]["written"], KEYS * TYPES, "{copied}");
    assert_eq!(contents(&source, KEYS), contents(&target, KEYS));
    let equal = report(&whimbrel(&["verify", &source.addr(), &target.addr(), "--json"]).expect_code(0));
    assert_eq!(equal["report"]["opaque"], 0, "{equal}");

    let mut connection = target.connection();
    for (change, back, key, text) in [
        ("JSON.SET json:3 $.inner.third 0.2", "JSON.SET json:3 $.inner.third 0.1", "json:3", "$.inner.third"),
        (
            "TS.ADD series:4 2000 9 ON_DUPLICATE LAST",
            "TS.ADD series:4 2000 4 ON_DUPLICATE LAST",
            "series:4",
            "2000",
        ),
        ("TS.ALTER series:5 LABELS number x", "TS.ALTER series:5 LABELS number 5", "series:5", "labels"),
    ] {
        ask(&mut connection, change);
        let differs = whimbrel(&["verify", &source.addr(), &target.addr()]).expect_code(DIFFERENT);
        let all = format!("{}{}", differs.stdout, differs.stderr);
        assert!(all.contains(key) && all.contains(text), "{differs:#?}");
        ask(&mut connection, back);
    }
    for change in ["BF.ADD bloom:6 other", "CF.ADD cuckoo:6 other", "TOPK.ADD top:6 z z z z z z"] {
        ask(&mut connection, change);
        whimbrel(&["verify", &source.addr(), &target.addr()]).expect_code(DIFFERENT);
        whimbrel(&["copy", &source.addr(), &target.addr(), "--replace", "--yes"]).expect_code(0);
    }
    whimbrel(&["verify", &source.addr(), &target.addr()]).expect_code(0);
}

fn what_the_older_module_does_not_read_is_named(from: Engine, to: Engine) {
    let (source, target) = (start(from), start(to));
    fill(&source);
    let copied = report(&whimbrel(&["copy", &source.addr(), &target.addr(), "--json"]).expect_code(PARTIAL));
    let counts = &copied["report"]["counts"];
    assert_eq!((counts["failed"].as_u64(), counts["written"].as_u64()), (Some(40), Some(280)), "{copied}");
    let failures = copied["report"]["failures"].as_array().expect("a list");
    assert!(failures.iter().all(|failure| {
        let says = |name: &str, what: &str| failure[name].as_str().is_some_and(|text| text.contains(what));
        says("key", "series:") && says("reason", "TSDB-TYPE")
    }));
    let without = |contents: BTreeMap<String, Value>| -> BTreeMap<String, Value> {
        contents.into_iter().filter(|(question, _)| !question.starts_with("TS.")).collect()
    };
    let mut connection = target.connection();
    for n in 0..KEYS {
        ask(&mut connection, &format!("TS.ADD series:{n} 1 1"));
    }
    assert_eq!(without(contents(&source, KEYS)), without(contents(&target, KEYS)));
}

fn a_sync_brings_what_modules_write(from: Engine, to: Engine) {
    let (source, target) = (start(from), start(to));
    fill(&source);
    let mut connection = source.connection();
    ask(&mut connection, "TS.CREATE hours:1");
    ask(&mut connection, "TS.CREATERULE series:1 hours:1 AGGREGATION max 1000");
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    for n in 0..KEYS {
        ask(&mut connection, &format!("JSON.SET json:{n} $.inner {{\"changed\":{n}}}"));
        ask(&mut connection, &format!("JSON.MERGE json:{n} $ {{\"more\":[{n}]}}"));
        ask(&mut connection, &format!("TS.MADD series:{n} 5000 {n} series:{n} 6000 7"));
        ask(&mut connection, &format!("TS.INCRBY series:{n} 1 TIMESTAMP 7000"));
        ask(&mut connection, &format!("BF.ADD bloom:{n} later"));
        ask(&mut connection, &format!("CF.ADD cuckoo:{n} item"));
        ask(&mut connection, &format!("CMS.INCRBY sketch:{n} item 1"));
        ask(&mut connection, &format!("TOPK.ADD top:{n} e e e"));
        ask(&mut connection, &format!("TDIGEST.ADD digest:{n} 100"));
    }
    let hours = |server: &Server| ask(&mut server.connection(), "TS.RANGE hours:1 - +");
    wait_until("the target has what the rule has written", || {
        let written = hours(&source);
        written != Value::Array(Vec::new()) && written == hours(&target)
    });
    wait_until("the target has what was written", || contents(&source, KEYS) == contents(&target, KEYS));
    ask(&mut connection, "JSON.SET json:0 $.inner 7");
    ask(&mut connection, "TS.ADD series:1 9000 9");
    job.cutover(&["--fence", "pause", "--max-pause", "20s"]).expect_code(0);
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_eq!(contents(&source, KEYS), contents(&target, KEYS));
    assert_eq!(hours(&source), hours(&target));
    whimbrel(&["verify", &source.addr(), &target.addr()]).expect_code(0);
}

fn types_that_the_target_lacks_are_named_before_anything_begins(from: Engine, to: Engine) {
    let source = start(from);
    let target = Server::builder(to).start().expect("the server starts");
    fill(&source);
    let mut connection = source.connection();
    ask(&mut connection, "TS.CREATE hours:1");
    ask(&mut connection, "TS.CREATERULE series:1 hours:1 AGGREGATION avg 3600000");
    ask(&mut connection, "FT.CREATE found ON JSON PREFIX 1 json: SCHEMA $.name AS name TAG");
    let (from, to) = (source.addr(), target.addr());
    for args in [&["--dry-run"][..], &["--replace", "--yes"]] {
        let args = [&["copy", &from, &to], args].concat();
        let copied = whimbrel(&args).expect_code(PARTIAL);
        let plan = copied.stderr;
        for named in [
            "40 keys of type ReJSON-RL: the target has no JSON.SET",
            "41 keys of type TSDB-TYPE: the target has no TS.ADD",
            "40 keys of type MBbloom--",
            "40 keys of type TDIS-TYPE",
            "FT.CREATE found ON JSON PREFIX 1 json:",
            "TS.CREATERULE series:1 hours:1 AGGREGATION",
        ] {
            assert!(plan.contains(named), "{named} in {plan}");
        }
        let keys: usize = redis::cmd("DBSIZE").query(&mut target.connection()).expect("a number");
        assert_eq!(keys, if args.contains(&"--dry-run") { 0 } else { KEYS });
    }
    let chosen = ["copy", &from, &to, "--replace", "--yes", "--type", "hash"];
    let copied = whimbrel(&chosen).expect_code(0);
    assert!(!copied.stderr.contains("of type"), "{copied:#?}");
}

/// The command that is shown makes the same index at the target.
fn indexes_are_named_with_what_makes_them(from: Engine, to: Engine) {
    let (source, target) = (start(from), start(to));
    let mut connection = source.connection();
    for index in [
        "FT.CREATE texts ON HASH PREFIX 2 h: g: FILTER @n>3 LANGUAGE german SCORE 0.5 NOOFFSETS SCHEMA \
            t TEXT NOSTEM WEIGHT 2.0 SORTABLE n NUMERIC SORTABLE tag TAG SEPARATOR ; CASESENSITIVE \
            SORTABLE UNF g GEO v VECTOR HNSW 8 TYPE FLOAT32 DIM 4 DISTANCE_METRIC L2 M 20 \
            w VECTOR FLAT 6 TYPE FLOAT64 DIM 2 DISTANCE_METRIC COSINE",
        "FT.CREATE documents ON JSON PREFIX 1 json: SCHEMA $.name AS name TAG $.list[*] AS list NUMERIC",
    ] {
        ask(&mut connection, &index.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    let plan = whimbrel(&["copy", &source.addr(), &target.addr(), "--dry-run"]).expect_code(0).stderr;
    let mut there = target.connection();
    let commands: Vec<&str> =
        plan.lines().filter_map(|line| Some(&line[line.find("FT.CREATE")?..])).collect();
    assert_eq!(commands.len(), 2, "{plan}");
    for command in commands {
        ask(&mut there, command);
    }
    let about = |connection: &mut Connection, index: &str| {
        let fields: Vec<Value> =
            redis::from_redis_value(ask(connection, &format!("FT.INFO {index}"))).expect("a list");
        format!("{:?}", &fields[..8])
    };
    for index in ["texts", "documents"] {
        assert_eq!(about(&mut connection, index), about(&mut there, index));
    }
}

/// Keys of modules move with their slots, and are compared before these are handed over.
fn keys_of_modules_move_with_their_slots(engine: Engine) {
    let layout = [vec![0..=5_460], vec![5_461..=10_922], vec![10_923..=16_383]];
    let scene = Scene::of(engine, 0, &layout).cluster(ClusterBuilder::modules).start();
    let tags = tags_in(0..=999, KEYS);
    let tag = |number: usize| format!("{{{}}}", tags[number]);
    fill_tagged(&mut scene.cluster.connection_to(0), tag);
    let before = contents_tagged(&mut scene.cluster.connection_to(0), KEYS, tag);
    for (to, compared) in [(1, "sample"), (2, "full")] {
        // A busy machine does not compare vectors within the usual pause.
        let how = ["--method", "external", "--verify", compared, "--max-pause", "5s"];
        scene.reshard("0-999", to, &how).run().expect_code(0);
        scene.cluster.wait_ok().expect("the nodes agree");
        assert_eq!(contents_tagged(&mut scene.cluster.connection_to(to), KEYS, tag), before, "{compared}");
    }
}

/// Vector sets are linked at random, so no two of them have the same payload: they are compared by their
/// vectors.
fn vector_sets_move_with_their_slots(engine: Engine) {
    const VECTORS: usize = 80;
    let layout = [vec![0..=5_460], vec![5_461..=10_922], vec![10_923..=16_383]];
    let scene = Scene::of(engine, 0, &layout).start();
    let tags = tags_in(0..=999, 20);
    let mut source = scene.cluster.connection_to(0);
    for tag in &tags {
        for n in 0..VECTORS {
            let vector = format!("{} 0.{n} {}", n % 7, 1_000 - n);
            ask(&mut source, &format!("VADD {{{tag}}}v VALUES 3 {vector} e{n} SETATTR {{\"n\":{n}}}"));
        }
    }
    let contents = |node: usize| -> Vec<Value> {
        let mut connection = scene.cluster.connection_to(node);
        let questions = tags.iter().flat_map(|tag| {
            let of_one = move |n| ["VEMB", "VGETATTR"].map(|what| format!("{what} {{{tag}}}v e{n}"));
            std::iter::once(format!("VCARD {{{tag}}}v")).chain((0..VECTORS).flat_map(of_one))
        });
        questions.map(|question| ask(&mut connection, &question)).collect()
    };
    let before = contents(0);
    for (to, compared) in [(1, "sample"), (2, "full")] {
        // A busy machine does not compare vectors within the usual pause.
        let how = ["--method", "external", "--verify", compared, "--max-pause", "5s"];
        scene.reshard("0-999", to, &how).run().expect_code(0);
        scene.cluster.wait_ok().expect("the nodes agree");
        assert_eq!(contents(to), before, "{compared}");
    }
    scene.assert_all_run();
}

whimbrel_lab::for_each_engine! {
    on Redis80 Redis86:
        vector_sets_move_with_their_slots
        other_vectors_of_elements_arrive_with_a_cutover
        other_vectors_of_elements_arrive_with_their_slots
}

/// Redis does not replicate that an element gets another vector.
fn other_vectors_of_elements_arrive_with_a_cutover(engine: Engine) {
    const SETS: usize = 30;
    let (source, target) = (
        Server::builder(engine).start().expect("a source"),
        Server::builder(engine).start().expect("a target"),
    );
    let mut connection = source.connection();
    let set = |connection: &mut Connection, n: usize, vector: &str| {
        ask(connection, &format!("VADD v{n} VALUES 3 {vector} e SETATTR {{\"n\":{n}}}"));
    };
    (0..SETS).for_each(|n| set(&mut connection, n, "1 2 3"));
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    (0..SETS).for_each(|n| set(&mut connection, n, &format!("{n} 9 1")));
    let vectors = |server: &Server| -> Vec<Value> {
        let mut connection = server.connection();
        (0..SETS).map(|n| ask(&mut connection, &format!("VEMB v{n} e"))).collect()
    };
    let wanted = vectors(&source);
    job.cutover(&["--fence", "pause", "--max-pause", "20s"]).expect_code(0);
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_eq!(vectors(&target), wanted);
}

/// Likewise, and nothing is compared that would find it.
fn other_vectors_of_elements_arrive_with_their_slots(engine: Engine) {
    let layout = [vec![0..=5_460], vec![5_461..=10_922], vec![10_923..=16_383]];
    let scene = Scene::of(engine, 0, &layout).start();
    let tags = tags_in(0..=999, 60);
    let mut source = scene.cluster.connection_to(0);
    for tag in &tags {
        for element in ["a", "b"] {
            ask(&mut source, &format!("VADD {{{tag}}}v VALUES 3 1 2 3 {element}"));
        }
    }
    let slow = ["--method", "external", "--verify", "none", "--rate-keys", "30", "--batch-keys", "1000"];
    let mut moving = scene.reshard("0-999", 1, &slow).spawn();
    // Acknowledged until the source owns the slots no more.
    let mut acknowledged = BTreeMap::new();
    let mut owned = true;
    for round in 1.. {
        for tag in &tags {
            let mut update = redis::cmd("VADD");
            update.arg(format!("{{{tag}}}v")).arg("VALUES").arg(3).arg(round).arg(5).arg(7).arg("a");
            match update.exec(&mut source) {
                Ok(()) => drop(acknowledged.insert(tag.clone(), round)),
                Err(e) if e.to_string().to_uppercase().contains("MOVED") => owned = false,
                Err(e) => panic!("{e}"),
            }
        }
        if !owned {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    moving.wait(PATIENCE).expect("it ends").expect_code(0);
    scene.cluster.wait_ok().expect("the nodes agree");
    let fresh = Server::builder(engine).start().expect("one to compare with");
    let (mut target, mut model) = (scene.cluster.connection_to(1), fresh.connection());
    for (tag, round) in acknowledged {
        ask(&mut model, &format!("VADD {tag} VALUES 3 {round} 5 7 a"));
        let wanted = ask(&mut model, &format!("VEMB {tag} a"));
        assert_eq!(ask(&mut target, &format!("VEMB {{{tag}}}v a")), wanted, "{tag} of round {round}");
    }
}

/// All of them take servers that the tier `all` brings.
mod matrix {
    use whimbrel_lab::Engine::{Redis70, Redis72, Redis74, Valkey91};

    #[test]
    fn keys_of_modules_reach_a_newer_server() {
        super::keys_of_modules_are_copied_and_compared_by_value(Redis72, Redis74);
    }

    #[test]
    fn keys_of_modules_reach_an_equal_server() {
        super::keys_of_modules_are_copied_and_compared_by_value(Redis74, Redis74);
    }

    #[test]
    fn keys_of_modules_reach_an_older_server_where_it_reads_them() {
        super::what_the_older_module_does_not_read_is_named(Redis74, Redis72);
    }

    #[test]
    fn a_sync_brings_what_modules_write() {
        super::a_sync_brings_what_modules_write(Redis72, Redis74);
    }

    #[test]
    fn types_that_redis_lacks_are_named() {
        super::types_that_the_target_lacks_are_named_before_anything_begins(Redis72, Redis70);
    }

    #[test]
    fn types_that_valkey_lacks_are_named() {
        super::types_that_the_target_lacks_are_named_before_anything_begins(Redis74, Valkey91);
    }

    #[test]
    fn keys_of_modules_move_with_their_slots_on_redis_7_2() {
        super::keys_of_modules_move_with_their_slots(Redis72);
    }

    #[test]
    fn keys_of_modules_move_with_their_slots_on_redis_7_4() {
        super::keys_of_modules_move_with_their_slots(Redis74);
    }

    #[test]
    fn indexes_are_named_with_what_makes_them() {
        super::indexes_are_named_with_what_makes_them(Redis72, Redis74);
    }
}
