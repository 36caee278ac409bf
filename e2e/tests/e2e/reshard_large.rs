//! Large collections move while their elements change: within the longest pause, or the job is refused before
//! the fence and says why.
//!
//! `WHIMBREL_LARGE_MB=200` makes each of them as large as that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Cmd, Connection};
use whimbrel_e2e::resharding::{MoveReport, PATIENCE, Scene, runs};
use whimbrel_e2e::shards;
use whimbrel_judge::cluster_writers::{Client, IncidentKind, Observed, Outcome, tags_in};
use whimbrel_judge::compare::Comparison;
use whimbrel_judge::deployment::Deployment;
use whimbrel_lab::{Engine, Server};

/// Bytes of each element's value.
const ELEMENT_BYTES: usize = 100;
/// Elements of one command while the collections are made.
const CHUNK: usize = 500;
/// Between two changes of a collection.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy)]
enum Kind {
    Hash,
    Set,
    SortedSet,
    List,
    Stream,
}

fn element(number: usize, version: u64) -> String {
    format!("{number:08}:{version:08}:{}", "x".repeat(ELEMENT_BYTES - 18))
}

/// Makes elements, all new.
fn grow(kind: Kind, key: &str, numbers: std::ops::Range<usize>) -> Vec<Cmd> {
    let command = |name: &str| {
        let mut command = redis::cmd(name);
        command.arg(key);
        command
    };
    let several = |name: &str, add: &dyn Fn(&mut Cmd, usize)| {
        let mut command = command(name);
        numbers.clone().for_each(|number| add(&mut command, number));
        vec![command]
    };
    match kind {
        Kind::Hash => several("HSET", &|command, number| {
            command.arg(format!("f{number}")).arg(element(number, 0));
        }),
        Kind::Set => several("SADD", &|command, number| {
            command.arg(element(number, 0));
        }),
        Kind::SortedSet => several("ZADD", &|command, number| {
            command.arg(number).arg(element(number, 0));
        }),
        Kind::List => several("RPUSH", &|command, number| {
            command.arg(element(number, 0));
        }),
        Kind::Stream => numbers
            .map(|number| {
                let mut entry = command("XADD");
                entry.arg(format!("{}-1", number + 1)).arg("value").arg(element(number, 0));
                entry
            })
            .collect(),
    }
}

/// Changes, adds or removes an element.
fn change(kind: Kind, key: &str, size: usize, turn: u64) -> Cmd {
    let number = (turn.wrapping_mul(7919) as usize) % size;
    let mut command = Cmd::new();
    let is_removal = turn.is_multiple_of(3);
    match kind {
        Kind::Hash if is_removal => command.arg("HDEL").arg(key).arg(format!("f{number}")),
        Kind::Hash => command.arg("HSET").arg(key).arg(format!("f{number}")).arg(element(number, turn)),
        Kind::Set if is_removal => command.arg("SREM").arg(key).arg(element(number, 0)),
        Kind::Set => command.arg("SADD").arg(key).arg(element(number, turn)),
        Kind::SortedSet if is_removal => command.arg("ZREM").arg(key).arg(element(number, 0)),
        Kind::SortedSet => command.arg("ZADD").arg(key).arg(turn).arg(element(number, 0)),
        Kind::List if is_removal => command.arg("LPOP").arg(key),
        Kind::List => command.arg("RPUSH").arg(key).arg(element(number, turn)),
        Kind::Stream if is_removal => command.arg("XDEL").arg(key).arg(format!("{}-1", number + 1)),
        Kind::Stream => {
            let id = format!("{}-1", size as u64 + turn);
            command.arg("XADD").arg(key).arg(id).arg("value").arg(element(number, turn))
        }
    };
    command
}

/// Their changes are followed element by element.
fn large_hashes_and_sets_move(engine: Engine) {
    let outcome = move_large(engine, &[Kind::Hash, Kind::Set, Kind::SortedSet]);
    outcome.assert_done();
}

/// Places in a list have no names: it moves within the pause, or not at all.
fn large_lists_and_streams_move_or_are_refused(engine: Engine) {
    move_large(engine, &[Kind::List, Kind::Stream]);
}

/// Whether nothing has happened to a client but that it met more redirections in a row than it follows.
fn is_only_redirected(observed: &Observed) -> bool {
    observed.counts.keys().all(|kind| *kind == IncidentKind::TooManyRedirections)
}

fn move_large(engine: Engine, kinds: &[Kind]) -> MoveReport {
    let megabytes = runs("WHIMBREL_LARGE_MB", 12);
    let size = megabytes * 1_000_000 / ELEMENT_BYTES;
    let scene = Scene::of(engine, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    let twin = Server::builder(engine).start().expect("the server starts");
    let keys: Vec<(Kind, String)> = kinds
        .iter()
        .zip(tags_in(0..100, kinds.len()))
        .map(|(&kind, tag)| (kind, format!("{{{tag}}}:{kind:?}")))
        .collect();
    let fill = |connection: &mut Connection| {
        for (kind, key) in &keys {
            for first in (0..size).step_by(CHUNK) {
                let mut pipeline = redis::pipe();
                for command in grow(*kind, key, first..(first + CHUNK).min(size)) {
                    pipeline.add_command(command).ignore();
                }
                pipeline.exec(connection).expect("a server takes the elements");
            }
        }
    };
    fill(&mut scene.cluster.connection_to(0));
    fill(&mut twin.connection());

    let stop = AtomicBool::new(false);
    let started = Instant::now();
    let (output, observed) = thread::scope(|scope| {
        let writers: Vec<_> = keys
            .iter()
            .map(|(kind, key)| {
                let (stop, twin) = (&stop, &twin);
                let addresses = shards::addresses(&scene.cluster);
                scope.spawn(move || {
                    let mut client = Client::new(addresses, Observed::since(started));
                    let mut copy = twin.connection();
                    let mut turn = 1;
                    while !stop.load(Ordering::Relaxed) {
                        let command = change(*kind, key, size, turn);
                        match client.send(key, &command) {
                            Outcome::Acknowledged(_) => {
                                command.exec(&mut copy).expect("the twin does the same")
                            }
                            // On a busy machine it may be sent back and forth at a handover. Then it has not
                            // been carried out.
                            Outcome::Refused if is_only_redirected(&client.observed) => continue,
                            outcome => panic!("{kind:?}: {outcome:?}: {}", client.observed),
                        }
                        turn += 1;
                        thread::sleep(PAUSE);
                    }
                    client.observed
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(300));
        let output = scene.reshard("0-99", 1, &["--method", "external"]).run();
        thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
        let observed: Vec<Observed> =
            writers.into_iter().map(|writer| writer.join().expect("no write failed")).collect();
        (output, observed)
    });
    for (seen, (kind, _)) in observed.iter().zip(&keys) {
        eprintln!("{engine}, {kind:?} of {megabytes} MB: {seen}");
        seen.assert_only_redirected();
    }
    let owned = shards::slots_of(&scene.cluster, 0).expect("the source answers").len();
    let has_moved = output.code() == Some(0);
    let outcome = MoveReport::of(if has_moved { output } else { output.expect_code(7) });
    if has_moved {
        outcome.assert_done();
        eprintln!("{engine}: moved, pauses {}", outcome.report["pauses"]);
        assert_eq!(owned, 8192 - 100);
    } else {
        let reason = outcome.reason();
        eprintln!("{engine}: refused: {reason}");
        assert!(reason.contains("pause"), "{reason}");
        assert_eq!(owned, 8192);
    }
    shards::assert_sound(&scene.cluster);
    let twin = Deployment::at(twin.addr()).expect("the twin answers");
    Comparison::default().databases(&[(0, 0)]).assert_equal(&twin, &scene.deployment());
    outcome
}

/// The two servers remove keys whose time has come when each sees fit, the source none at all under a pause:
/// that is no difference, however many keys a slot has.
fn slots_full_of_expiring_keys_move(engine: Engine) {
    const KEYS: u64 = 6_000;
    let scene = Scene::of(engine, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    let tag = &tags_in(0..100, 1)[0];
    let fill = |node: usize| {
        let mut connection = scene.cluster.connection_to(node);
        for first in (0..KEYS).step_by(CHUNK) {
            let mut pipeline = redis::pipe();
            for number in first..(first + CHUNK as u64).min(KEYS) {
                // Several come to their end in every millisecond, and a tenth stays.
                let command = pipeline.cmd("SET").arg(format!("{{{tag}}}:{number}")).arg(number);
                if number % 10 != 0 {
                    command.arg("PX").arg(100 + number / 5);
                }
                command.ignore();
            }
            pipeline.exec(&mut connection).expect("a server takes the keys");
        }
    };
    for turn in 0..6 {
        let (source, target) = (turn % 2, 1 - turn % 2);
        fill(source);
        let output = scene.reshard("0-99", target, &["--method", "external"]).run().expect_code(0);
        MoveReport::of(output).assert_done();
    }
    let deadline = Instant::now() + PATIENCE;
    while scene.cluster.total_keys().expect("the nodes answer") != KEYS / 10 {
        assert!(Instant::now() < deadline, "keys without an end are gone, or others stay");
        thread::sleep(Duration::from_millis(100));
    }
    shards::assert_sound(&scene.cluster);
}

whimbrel_lab::for_each_engine! {
    large_hashes_and_sets_move
    large_lists_and_streams_move_or_are_refused
    slots_full_of_expiring_keys_move
}
