//! Large keys that change while they move, and are followed by their elements.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::binary::Output;
use whimbrel_e2e::syncing::{PATIENCE, Sync, cluster, deployment, report, stop, wait_until_following};
use whimbrel_judge::compare::Comparison;
use whimbrel_judge::dataset::random::Random;
use whimbrel_lab::{Engine, Server, wait_until};

/// A large key on its way when whimbrel is killed is assembled under another name, and no one comes back to
/// it where the source loses the key meanwhile.
#[test]
fn what_a_killed_run_assembled_does_not_stay() {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    let large = "for i = 1, 40000 do redis.call('HSET', 'large', i, string.rep('v', 1000)) end";
    source.call(&["EVAL", large, "0"]);
    let staged = || match target.call(&["KEYS", "whimbrel:staging:*"]) {
        redis::Value::Array(keys) => keys.len(),
        other => panic!("no list of keys: {other:?}"),
    };
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let mut sync = job.start(&["--rate-bytes", "4000000"]);
    wait_until("the key is on its way", || staged() == 1);
    sync.kill9();
    assert_eq!(staged(), 1, "it was killed too late");
    source.call(&["DEL", "large"]);
    // Of another job, which may be running.
    let others = "whimbrel:staging:{x}:other:0123456789abcdef0123456789abcdef";
    target.call(&["SET", others, "1", "PX", "600000"]);
    let mut sync = job.start(&["--resume"]);
    wait_until_following(&mut sync);
    wait_until("only what is another's is left", || staged() == 1);
    assert_eq!(target.call(&["EXISTS", others]), redis::Value::Int(1), "it removed what is another's");
    sync.kill9();
}

/// A large key that is never at rest arrives with the cutover, and the others do not wait for it until then.
#[test]
fn a_large_key_that_changes_all_the_time_arrives() {
    const FIELDS: u64 = 60_000;
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    let target = Server::builder(Engine::Redis80).start().expect("the target starts");
    let mut connection = source.connection();
    for first in (0..FIELDS).step_by(1_000) {
        let mut command = redis::cmd("HSET");
        command.arg("large");
        for field in first..first + 1_000 {
            command.arg(field).arg("x".repeat(100));
        }
        command.exec(&mut connection).expect("written");
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut connection = source.connection();
            let mut turn = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let field = turn * 7_919 % FIELDS;
                if redis::cmd("HSET").arg("large").arg(field).arg(turn).exec(&mut connection).is_err() {
                    return true;
                }
                turn += 1;
                thread::sleep(Duration::from_micros(500));
            }
            false
        });
        let job = Sync::new(&source.addr(), &target.addr(), &["--db", "0", "--big-key", "100KiB"]);
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        let deadline = Instant::now() + PATIENCE;
        for number in 0..20 {
            let name = format!("marker:{number}");
            source.call(&["SET", &name, "1"]);
            while target.call(&["EXISTS", &name]) != redis::Value::Int(1) {
                assert!(Instant::now() < deadline, "{name} does not arrive");
                thread::sleep(Duration::from_millis(5));
            }
        }
        let cut_over = job.cutover(&["--fence", "readonly-replica", "--max-pause", "20s"]).expect_code(0);
        eprintln!("{}", report(&cut_over)["report"]);
        // On a busy machine it may be a while until the next write.
        let deadline = Instant::now() + Duration::from_secs(20);
        while !writer.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().expect("no panic"), "the writer was not kept out");
        sync.wait(PATIENCE).expect("it ends").expect_code(0);
    });
    Comparison::default()
        .databases(&[(0, 0)])
        .assert_equal(&deployment(source.addr()), &deployment(target.addr()));
}

/// Keys that are followed by their elements are emptied, all at once, and made anew while the sync makes up
/// for it; and one gets what the target cannot hold.
#[test]
fn elements_are_not_added_to_what_is_not_there_any_more() {
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey81).start().expect("the target starts");
    let fields = |command: &mut redis::Cmd| {
        for field in 0..5_000 {
            command.arg(format!("field:{field}")).arg("x".repeat(40));
        }
    };
    let large = |connection: &mut redis::Connection| {
        for key in ["large:1", "large:2"] {
            let mut command = redis::cmd("HSET");
            fields(command.arg(key));
            command.exec(connection).expect("written");
        }
    };
    let mut connection = source.connection();
    large(&mut connection);
    let job = Sync::new(&source.addr(), &target.addr(), &["--db", "0", "--big-key", "20KiB"]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    for round in 0..6 {
        large(&mut connection);
        source.call(&["HSET", "large:1", "field:1", &round.to_string()]);
        job.cutover_without_fence();
        source.call(&[["FLUSHALL", "FLUSHDB"][round % 2]]);
        thread::sleep(Duration::from_millis(20 + 25 * round as u64));
        source.call(&["HSET", "large:1", "new", "1"]);
        let mut filler = redis::pipe();
        for number in 0..20_000 {
            filler.cmd("SET").arg(format!("filler:{round}:{number}")).arg(number).ignore();
        }
        filler.exec(&mut connection).expect("written");
        job.cutover_without_fence();
        assert_eq!(target.call(&["HLEN", "large:1"]), redis::Value::Int(1), "round {round}");
    }
    large(&mut connection);
    source.call(&["HSET", "large:1", "field:1", "1"]);
    job.cutover_without_fence();
    source.call(&["HPEXPIRE", "large:1", "9000000", "FIELDS", "1", "field:1"]);
    let deadline = Instant::now() + PATIENCE;
    let names_it = |output: &Output| output.code() == Some(4) && output.stdout.contains("not on the target");
    while !names_it(&job.cutover(&["--fence", "none", "--max-pause", "20s"])) {
        assert!(Instant::now() < deadline, "nothing is said of what the target cannot hold");
    }
    // Another element of it changes nothing about that.
    source.call(&["HSET", "large:1", "field:2", "2"]);
    thread::sleep(Duration::from_millis(500));
    let refused = job.cutover(&["--fence", "none", "--max-pause", "20s"]).expect_code(4);
    assert!(refused.stdout.contains("not on the target"), "{}", refused.stdout);
    source.call(&["HPERSIST", "large:1", "FIELDS", "1", "field:1"]);
    job.cutover_without_fence();
    Comparison::default()
        .databases(&[(0, 0)])
        .assert_equal(&deployment(source.addr()), &deployment(target.addr()));
    stop(sync);
}

/// Hashes, sets and sorted sets of many elements, of which some change all the time: what changes is
/// transferred, not all of them. Some are deleted and made anew, get a time to live and lose it, and so do
/// fields.
#[test]
fn large_keys_are_followed_by_their_elements() {
    const ELEMENTS: u64 = 20_000;
    const SEED: u64 = 20_261_122;
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    // Nothing is to fail over here, on a busy machine neither.
    let target = cluster(Engine::Redis80).node_timeout_ms(15_000).start().expect("the target starts");
    let fill = |connection: &mut redis::Connection, kind: &str| {
        for first in (0..ELEMENTS).step_by(1_000) {
            let mut command = redis::cmd(["HSET", "SADD", "ZADD"][kind_of(kind)]);
            command.arg(kind);
            for element in first..first + 1_000 {
                let name = format!("element:{element}:{}", "x".repeat(40));
                match kind_of(kind) {
                    0 => command.arg(name).arg(element),
                    1 => command.arg(name),
                    _ => command.arg(element).arg(name),
                };
            }
            command.exec(connection).expect("written");
        }
    };
    let kinds = ["hash:1", "hash:2", "set:1", "zset:1"];
    for kind in kinds {
        fill(&mut source.connection(), kind);
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = kinds
            .iter()
            .zip(1_u64..)
            .map(|(kind, number)| {
                let (source, stop) = (&source, &stop);
                scope.spawn(move || {
                    let mut connection = source.connection();
                    let mut random = Random::new(SEED + number);
                    let (mut written, mut made_anew) = (0_u64, 0_u64);
                    while !stop.load(Ordering::Relaxed) {
                        if change(&mut connection, kind, &mut random, ELEMENTS).is_err() {
                            break;
                        }
                        written += 1;
                        if random.below(1_500) == 0 {
                            redis::cmd("DEL").arg(*kind).exec(&mut connection).expect("deleted");
                            fill(&mut connection, kind);
                            made_anew += 1;
                        }
                        thread::sleep(Duration::from_micros(700));
                    }
                    (written, made_anew)
                })
            })
            .collect();
        let job = Sync::new(&source.addr(), &target.seed(), &["--db", "0", "--big-key", "100KiB"]);
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        thread::sleep(Duration::from_secs(3));
        sync.kill9();
        thread::sleep(Duration::from_millis(500));
        let mut sync = job.start(&["--resume"]);
        wait_until_following(&mut sync);
        thread::sleep(Duration::from_secs(3));
        let cut_over = job.cutover_without_fence();
        eprintln!("{cut_over}");
        thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        let ended = writers.into_iter().map(|writer| writer.join().expect("no panic"));
        let (written, made_anew) = ended.fold((0_u64, 0_u64), |all, one| (all.0 + one.0, all.1 + one.1));
        job.cutover_without_fence();
        let output = whimbrel_e2e::syncing::stop(sync);
        let counts = report(&output)["report"]["counts"].clone();
        eprintln!("{written} changes, {made_anew} times anew; {counts}");
        // A key moves whole when it was made anew, maybe also before all of it is there, and at the start:
        // far less often than it is written. A busy machine gathers more changes into each of those, until
        // there are not many more of them than of keys that were made anew.
        let count = |name: &str| counts[name].as_u64().expect("a counter");
        let at_most = 3 * (made_anew + kinds.len() as u64);
        assert!(count("big") * 3 < count("written") || count("big") <= at_most, "{made_anew}: {counts}");
    });
    Comparison::default()
        .databases(&[(0, 0)])
        .tolerance_ms(1)
        .assert_equal(&deployment(source.addr()), &deployment(target.seed()));
}

/// Which of hash, set and sorted set a key is.
fn kind_of(key: &str) -> usize {
    ["hash", "set", "zset"].iter().position(|kind| key.starts_with(kind)).expect("a kind")
}

/// One change of a large key.
fn change(
    connection: &mut redis::Connection,
    key: &str,
    random: &mut Random,
    elements: u64,
) -> redis::RedisResult<()> {
    // Some are added that were not there.
    let number = random.below(elements + elements / 4);
    let name = format!("element:{number}:{}", "x".repeat(40));
    let (kind, value) = (kind_of(key), random.below(1_000_000));
    let verb = match (random.below(20), kind) {
        (0, _) => "PERSIST",
        (1, _) => "PEXPIRE",
        (2..5, _) => ["HDEL", "SREM", "ZREM"][kind],
        (5, 0) => "HPEXPIRE",
        (_, _) => ["HSET", "SADD", "ZADD"][kind],
    };
    let mut command = redis::cmd(verb);
    command.arg(key);
    match verb {
        "PERSIST" => &mut command,
        "PEXPIRE" => command.arg(600_000 + value),
        "HPEXPIRE" => command.arg(900_000).arg("FIELDS").arg(1).arg(name),
        "HSET" => command.arg(name).arg(value),
        "ZADD" => command.arg(value).arg(name),
        _ => command.arg(name),
    };
    command.exec(connection)
}
