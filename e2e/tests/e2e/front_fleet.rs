//! Fronts that share the slots of one server: who is asked, who answers, and what is left when processes are
//! killed meanwhile.

mod faults;
mod load;
mod standby;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::{Connection, Value};

use load::*;
use whimbrel_e2e::binary::{Invocation, whimbrel};
use whimbrel_e2e::fleets::{Fleet, PATIENCE};
use whimbrel_judge::cluster_writers::ClusterWriters;
use whimbrel_judge::deployment::{Deployment, slot_of};
use whimbrel_lab::{Cluster, Engine, Server, for_each_engine, free_port, until};

fn server(engine: Engine) -> Server {
    Server::builder(engine).start().expect("a server")
}

fn ask(connection: &mut Connection, line: &str) -> Result<Value, String> {
    let mut words = line.split(' ');
    let mut command = redis::cmd(words.next().expect("a name"));
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(connection).map_err(|e| e.to_string())
}

#[track_caller]
fn text(connection: &mut Connection, line: &str) -> String {
    match ask(connection, line) {
        Ok(Value::BulkString(bytes)) => String::from_utf8(bytes).expect("text"),
        Ok(Value::SimpleString(text)) => text,
        Ok(Value::Okay) => "OK".to_owned(),
        Ok(Value::Int(n)) => n.to_string(),
        Ok(Value::Nil) => "nil".to_owned(),
        Ok(other) => format!("{other:?}"),
        Err(error) => error,
    }
}

/// Who has which slot, as the members report it to clients: all of them the same.
#[track_caller]
fn owners(fleet: &Fleet) -> Vec<usize> {
    let addresses = fleet.addresses();
    until("all members report the same owners", || {
        let reported = fleet.members.iter().map(|member| reported_by(&mut member.connect(), &addresses));
        let reported: Option<Vec<Vec<usize>>> = reported.collect();
        let reported = reported?;
        reported.windows(2).all(|two| two[0] == two[1]).then(|| reported[0].clone())
    })
}

fn reported_by(connection: &mut Connection, addresses: &[String]) -> Option<Vec<usize>> {
    let Ok(Value::Array(ranges)) = ask(connection, "CLUSTER SLOTS") else { return None };
    let mut owners = vec![usize::MAX; 16_384];
    for range in ranges {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &range[..] else {
            return None;
        };
        let [Value::BulkString(host), Value::Int(port), ..] = &primary[..] else { return None };
        let address = format!("{}:{port}", String::from_utf8_lossy(host));
        let owner = addresses.iter().position(|other| *other == address)?;
        owners[usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?].fill(owner);
    }
    owners.iter().all(|owner| *owner != usize::MAX).then_some(owners)
}

/// All keys, each once.
#[track_caller]
fn scanned(connection: &mut Connection) -> Vec<String> {
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let reply = redis::cmd("SCAN").arg(&cursor).arg("COUNT").arg(50).query(connection);
        let (next, keys): (String, Vec<String>) = reply.expect("a reply");
        found.extend(keys);
        if next == "0" {
            found.sort();
            found.dedup();
            return found;
        }
        cursor = next;
    }
}

fn ranges(owners: &[usize]) -> usize {
    1 + owners.windows(2).filter(|two| two[0] != two[1]).count()
}

// ---- What clients see ----

fn clients_of_both_kinds_are_served(engine: Engine) {
    let backend = server(engine);
    let fleet = Fleet::start(&backend.addr(), 3, &[]);
    let owners = owners(&fleet);
    assert!(ranges(&owners) < 20, "that many ranges make the answers long: {}", ranges(&owners));
    for member in 0..3 {
        let share = owners.iter().filter(|owner| **owner == member).count();
        assert!((5_460..=5_463).contains(&share), "{member} has {share}");
    }
    let owner = owners[usize::from(slot_of(b"k"))];
    let addresses = fleet.addresses();
    for (number, member) in fleet.members.iter().enumerate() {
        let mut cluster = member.connect();
        let reply = text(&mut cluster, "SET k v");
        if number == owner {
            assert_eq!(reply, "OK");
        } else {
            let moved = format!("{} {}", slot_of(b"k"), addresses[owner]);
            assert!(reply.contains("Moved") && reply.contains(&moved) || reply.contains(&moved), "{reply}");
        }
        // A client that knows no clusters may ask any member.
        let mut other = member.connect_forwarding();
        assert_eq!(text(&mut other, "APPEND log x"), (number + 1).to_string());
        assert_eq!(text(&mut other, "MULTI"), "OK");
        assert_eq!(text(&mut other, "SET {t}a 1"), "QUEUED");
        assert_eq!(text(&mut other, "INCR {t}a"), "QUEUED");
        assert!(text(&mut other, "EXEC").contains("int(2)"));
        assert!(text(&mut other, "CLUSTER SLOTS").contains("cluster support disabled"));
        let mut ids = Vec::new();
        for _ in 0..2 {
            ids.push(text(&mut cluster, "CLUSTER MYID"));
        }
        assert_eq!(ids[0], ids[1]);
        assert!(text(&mut cluster, "CLUSTER NODES").lines().count() == 3);
        assert!(text(&mut cluster, "CLUSTER INFO").contains("cluster_state:ok"));
    }
    assert_eq!(backend.call(&["GET", "log"]), Value::BulkString(b"xxx".to_vec()));
}

fn a_transaction_is_its_slots_owners(engine: Engine) {
    let backend = server(engine);
    let fleet = Fleet::start(&backend.addr(), 2, &[]);
    let owners = owners(&fleet);
    let owner = owners[usize::from(slot_of(b"{t}"))];
    let (mut ours, mut others) = (fleet.members[owner].connect(), fleet.members[1 - owner].connect());
    // Another slot of the same member.
    let is_near = |key: &String| {
        let slot = slot_of(key.as_bytes());
        slot != slot_of(b"{t}") && owners[usize::from(slot)] == owner
    };
    let near = (0..).map(|n| format!("near{n}")).find(is_near).expect("a key");
    // One slot, and what is queued for others makes it fail.
    assert_eq!(text(&mut ours, "MULTI"), "OK");
    assert_eq!(text(&mut ours, "SET {t}a 1"), "QUEUED");
    assert!(text(&mut ours, &format!("SET {near} 1")).contains("hash to the same slot"));
    assert!(text(&mut ours, "EXEC").to_uppercase().contains("EXECABORT"));
    assert_eq!(text(&mut others, "MULTI"), "OK");
    assert!(text(&mut others, "SET {t}a 1").contains(&fleet.members[owner].address()));
    assert!(text(&mut others, "EXEC").to_uppercase().contains("EXECABORT"));
    assert!(text(&mut others, "WATCH {t}a").contains(&fleet.members[owner].address()));
    assert_eq!(backend.call(&["EXISTS", "{t}a"]), Value::Int(0));
    // What changes meanwhile is noticed, whichever process changed it.
    assert_eq!(text(&mut ours, "WATCH {t}a"), "OK");
    assert_eq!(text(&mut fleet.members[1 - owner].connect_forwarding(), "SET {t}a 2"), "OK");
    assert_eq!(text(&mut ours, "MULTI"), "OK");
    assert_eq!(text(&mut ours, "SET {t}a 3"), "QUEUED");
    assert_eq!(text(&mut ours, "EXEC"), "nil");
    // Queued while the slot was here, and carried out by nobody when it has gone.
    assert_eq!(text(&mut ours, "MULTI"), "OK");
    assert_eq!(text(&mut ours, "SET {t}a 4"), "QUEUED");
    let name = format!("front-{owner}");
    fleet.command(&["drain", &name]).expect_code(0);
    until("the slot has gone", || {
        let answer = text(&mut fleet.members[owner].connect(), "GET {t}a");
        answer.contains(&fleet.members[1 - owner].address()).then_some(())
    });
    let refused = text(&mut ours, "EXEC");
    assert!(refused.contains(&fleet.members[1 - owner].address()), "{refused}");
    assert_eq!(text(&mut ours, "PING"), "PONG");
    assert_eq!(backend.call(&["GET", "{t}a"]), Value::BulkString(b"2".to_vec()));
    // And it is not open any more.
    assert!(text(&mut ours, "EXEC").contains("without MULTI"));
}

fn all_keys_together_are_those_of_the_members(engine: Engine) {
    let backend = server(engine);
    let fleet = Fleet::start(&backend.addr(), 3, &[]);
    owners(&fleet);
    let mut filler = fleet.members[0].connect_forwarding();
    for n in 0..300 {
        assert_eq!(text(&mut filler, &format!("SET k{n} v")), "OK");
    }
    let wanted: Vec<String> = {
        let mut all: Vec<String> = (0..300).map(|n| format!("k{n}")).collect();
        all.sort();
        all
    };
    let (mut scan_sum, mut keys_sum, mut count) = (Vec::new(), Vec::new(), 0);
    for member in &fleet.members {
        let mut connection = member.connect();
        let own = scanned(&mut connection);
        assert!(own.len() > 50 && own.len() < 150, "{}", own.len());
        scan_sum.extend(own);
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("keys");
        keys_sum.extend(keys);
        count += redis::cmd("DBSIZE").query::<i64>(&mut connection).expect("a number");
        assert!(text(&mut connection, "FLUSHALL").contains("refuses"));
        // Through any of them, all.
        let mut other = member.connect_forwarding();
        assert_eq!(scanned(&mut other), wanted);
        assert_eq!(text(&mut other, "DBSIZE"), "300");
        assert!(text(&mut other, "FLUSHDB").contains("refuses"));
    }
    scan_sum.sort();
    keys_sum.sort();
    assert_eq!((&scan_sum, &keys_sum, count), (&wanted, &wanted, 300));
    assert_eq!(backend.call(&["DBSIZE"]), Value::Int(300));
}

for_each_engine! {
    clients_of_both_kinds_are_served
    a_transaction_is_its_slots_owners
    all_keys_together_are_those_of_the_members
}

#[test]
fn a_cluster_may_have_the_data() {
    let backend = Cluster::builder(Engine::Valkey81).primaries(3).start().expect("a cluster");
    let fleet = Fleet::start(&backend.seed(), 2, &[]);
    owners(&fleet);
    let mut other = fleet.members[1].connect_forwarding();
    for n in 0..200 {
        assert_eq!(text(&mut other, &format!("SET k{n} v")), "OK");
    }
    let count: i64 = backend
        .nodes()
        .iter()
        .map(|node| match node.call(&["DBSIZE"]) {
            Value::Int(n) => n,
            other => panic!("{other:?}"),
        })
        .sum();
    assert_eq!((count, text(&mut other, "DBSIZE")), (200, "200".to_owned()));
    let all: Vec<String> = fleet
        .members
        .iter()
        .flat_map(|member| {
            redis::cmd("KEYS").arg("*").query::<Vec<String>>(&mut member.connect()).expect("keys")
        })
        .collect();
    assert_eq!(all.len(), 200);
    assert_eq!(scanned(&mut other).len(), 200);
}

#[test]
fn a_member_whose_log_nobody_reads_still_ends_when_asked_to() {
    let backend = server(Engine::Redis70);
    let folder = tempfile::tempdir().expect("a folder");
    let coordinator = format!("127.0.0.1:{}", free_port().expect("a port"));
    let backend = format!("main={}", backend.addr());
    let serve = ["serve", "--fleet", "--listen", &coordinator, "--backend", &backend, "--state-dir"];
    let state = folder.path().to_str().expect("a name");
    let listen = format!("127.0.0.1:{}", free_port().expect("a port"));
    let join = ["front", "--join", &coordinator, "--listen", &listen, "--leave-timeout", "100ms"];
    let spawn = |words: &[&str]| {
        let command = std::process::Command::new(whimbrel())
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = command.expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("its log")).lines();
        assert!(lines.any(|line| line.expect("a line").starts_with("serving")), "it does not serve");
        child
    };
    // What has been read of the logs is all: nobody has the other ends of these pipes any more.
    let mut serve = spawn(&serve.into_iter().chain([state]).collect::<Vec<_>>());
    let mut front = spawn(&join);
    for child in [&mut front, &mut serve] {
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
        kill(pid, Signal::SIGTERM).expect("it is there");
        let ended = until("it ends", || child.try_wait().expect("a process of ours"));
        assert!(ended.success(), "{ended}");
    }
}

#[test]
fn who_waits_for_something_does_not_keep_a_slot_from_moving() {
    let backend = server(Engine::Redis70);
    let fleet = Fleet::start(&backend.addr(), 2, &[]);
    let owner = owners(&fleet)[usize::from(slot_of(b"queue"))];
    let mut waiter = fleet.members[owner].connect();
    let mut through = fleet.members[1 - owner].connect_forwarding();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| text(&mut waiter, "BLPOP queue 150"));
        let waits_too = scope.spawn(|| text(&mut through, "BLPOP queue 150"));
        until("both wait", || {
            let Value::BulkString(info) = backend.call(&["INFO", "clients"]) else { panic!("no text") };
            String::from_utf8(info).expect("text").contains("blocked_clients:2").then_some(())
        });
        fleet.command(&["drain", &format!("front-{owner}")]).expect_code(0);
        assert_eq!(owners(&fleet)[usize::from(slot_of(b"queue"))], 1 - owner);
        let mut pusher = fleet.members[owner].connect_forwarding();
        assert_eq!(text(&mut pusher, "RPUSH queue a b"), "2");
        let mut got = vec![waits.join().expect("an answer"), waits_too.join().expect("an answer")];
        got.sort();
        assert!(got[0].contains("\"a\"") && got[1].contains("\"b\""), "{got:?}");
    });
}

/// Sends a request and does not wait for its answer.
fn send(connection: &mut Connection, line: &str) {
    let mut words = line.split(' ');
    let mut command = redis::cmd(words.next().expect("a name"));
    words.for_each(|word| {
        command.arg(word);
    });
    connection.send_packed_command(&command.get_packed_command()).expect("sent");
}

#[test]
fn a_slot_moves_when_what_is_under_way_has_been_answered() {
    let backend = server(Engine::Valkey91);
    let fleet = Fleet::start(&backend.addr(), 2, &[]);
    let owner = owners(&fleet)[usize::from(slot_of(b"k"))];
    let mut client = fleet.members[owner].connect();
    let mut next = fleet.members[1 - owner].connect();
    assert_eq!(text(&mut client, "PING"), "PONG");
    assert_eq!(text(&mut next, "PING"), "PONG");
    backend.suspend().expect("suspended");
    send(&mut client, "INCR k");
    let member = |status: &serde_json::Value| {
        let members = status["fleet"]["members"].as_array().expect("members").clone();
        members.into_iter().find(|member| member["name"] == format!("front-{owner}")).expect("the member")
    };
    until("it is under way", || (member(&fleet.status()?)["held"] == 1).then_some(()));
    fleet.command(&["drain", &format!("front-{owner}"), "--no-wait"]).expect_code(0);
    until("all others have moved", || (member(&fleet.status()?)["owned"] == 1).then_some(()));
    // Neither of the two serves it now: the other one waits with it.
    assert!(text(&mut next, "GET k").contains(&fleet.members[owner].address()));
    backend.resume().expect("resumed");
    assert_eq!(client.recv_response().expect("an answer"), Value::Int(1));
    until("it has moved", || (member(&fleet.status()?)["owned"] == 0).then_some(()));
    assert_eq!(text(&mut next, "INCR k"), "2");
}

#[test]
fn what_is_under_way_when_the_lease_ends_is_cut_off() {
    let backend = server(Engine::Redis80);
    let fleet = Fleet::start(&backend.addr(), 1, &["--lease", "5s"]);
    owners(&fleet);
    let (mut client, mut idle) = (fleet.members[0].connect(), fleet.members[0].connect());
    until("it serves", || (text(&mut client, "SET k v") == "OK").then_some(()));
    assert_eq!(text(&mut idle, "PING"), "PONG");
    backend.suspend().expect("suspended");
    send(&mut client, "GET k");
    fleet.coordinators[0].suspend();
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let cut = client.recv_response().expect_err("nobody answers");
    assert!(!cut.is_timeout(), "it was left waiting: {cut}");
    backend.resume().expect("resumed");
    // A client with nothing under way stays, and is not served what is not this member's.
    assert_eq!(text(&mut idle, "PING"), "PONG");
    assert!(text(&mut idle, "GET k").contains("nobody serves the slot"));
    fleet.coordinators[0].resume();
    until("it serves again", || (text(&mut idle, "GET k") == "v").then_some(()));
}

#[test]
fn nobody_is_sent_back_to_a_member_that_has_to_join_again() {
    let backend = server(Engine::Redis80);
    let fleet = Fleet::start(&backend.addr(), 1, &["--lease", "2s"]);
    owners(&fleet);
    let mut client = fleet.members[0].connect();
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    for _ in 0..3 {
        fleet.members[0].suspend();
        until("it is lost", || fleet.status()?["fleet"]["members"].as_array()?.is_empty().then_some(()));
        fleet.members[0].resume();
        // What it knows of the table is of before, until it has joined again.
        until("it serves again", || {
            let error = match redis::cmd("GET").arg("k").query::<Value>(&mut client) {
                Ok(value) => return (value == Value::Nil).then_some(()),
                Err(error) => error,
            };
            let answer = error.to_string();
            assert!(!answer.contains("MOVED") && !answer.contains("Moved"), "{answer}");
            // On a busy machine its lease may end once more with this under way, which is cut off then.
            if error.code().is_none() {
                client = fleet.members[0].connect();
                client.set_read_timeout(Some(PATIENCE)).expect("a socket");
            }
            None
        });
    }
}

#[test]
fn nobody_waits_for_a_member_that_stands_still() {
    let backend = server(Engine::Redis70);
    let fleet = Fleet::start(&backend.addr(), 2, &["--lease", "3s"]);
    let owner = owners(&fleet)[usize::from(slot_of(b"k"))];
    let mut through = until("it is served", || {
        let mut through = fleet.members[1 - owner].connect_forwarding();
        (text(&mut through, "SET k v") == "OK").then_some(through)
    });
    fleet.members[owner].suspend();
    through.set_read_timeout(Some(PATIENCE)).expect("a socket");
    // It was sent there, so it is not known whether it was carried out: the connection is cut. On a busy
    // machine the lease may have ended before it was sent. Then it is answered.
    match redis::cmd("GET").arg("k").query::<String>(&mut through) {
        Ok(value) => assert_eq!(value, "v"),
        Err(cut) => assert!(!cut.is_timeout(), "it was left waiting: {cut}"),
    }
    // On a busy machine that member may have lost its own lease for a moment, and cut its clients off.
    let value = until("the other member answers", || {
        let mut again = fleet.members[1 - owner].connect_forwarding();
        again.set_read_timeout(Some(PATIENCE)).expect("a socket");
        match redis::cmd("GET").arg("k").query::<String>(&mut again) {
            Ok(value) => Some(value),
            Err(cut) if cut.is_timeout() => panic!("it was left waiting: {cut}"),
            Err(_) => None,
        }
    });
    assert_eq!(value, "v");
    fleet.members[owner].resume();
    fleet.settled(2);
    assert_eq!(text(&mut fleet.members[1 - owner].connect_forwarding(), "GET k"), "v");
}

// ---- Errors ----

#[test]
fn what_cannot_be_joined_is_said() {
    let backend = server(Engine::Redis70);
    let nobody = format!("127.0.0.1:{}", free_port().expect("a port"));
    let listen = format!("127.0.0.1:{}", free_port().expect("a port"));
    let join = |at: &str, more: &[&str]| {
        let words = ["front", "--join", at, "--listen", &listen];
        Invocation::new(&words.into_iter().chain(more.iter().copied()).collect::<Vec<_>>()).run()
    };
    let refused = join(&nobody, &["--source", &backend.addr()]).expect_code(3);
    assert!(refused.stderr.contains(&format!("coordinator {nobody}")), "{}", refused.stderr);
    assert_eq!(join(&nobody, &[]).code(), Some(3));

    let port = free_port().expect("a port");
    let folder = tempfile::tempdir().expect("a folder");
    let at = format!("127.0.0.1:{port}");
    let serve = ["serve", "--fleet", "--listen", &at, "--state-dir", folder.path().to_str().expect("a name")];
    let mut serve = Invocation::new(&serve).env("WHIMBREL_SERVE_PASSWORD", "hunter2").spawn();
    assert!(serve.wait_for_text("serving", PATIENCE), "{}", serve.stderr());
    let refused = join(&at, &["--source", &backend.addr()]);
    assert!(refused.stderr.contains("password"), "{}", refused.stderr);
    assert_eq!(refused.code(), Some(3));
    let with_password = format!("redis://:hunter2@{at}");
    let refused = join(&with_password, &[]).expect_code(4);
    assert!(refused.stderr.contains("--source") && !refused.stderr.contains("hunter2"), "{}", refused.stderr);
    let everywhere =
        ["front", "--join", &with_password, "--listen", "0.0.0.0:0", "--source", &backend.addr()];
    let refused = Invocation::new(&everywhere).run().expect_code(2);
    assert!(refused.stderr.contains("--announce"), "{}", refused.stderr);
    serve.terminate();
}

// ---- While processes come and go ----

#[test]
fn the_check_of_lists_finds_what_is_wrong() {
    let event = |token: Option<&str>, length: usize, last: Option<&str>, sent: u64, answered: u64| Event {
        list: 0,
        token: token.map(str::to_owned),
        length: Some(length),
        last: last.map(str::to_owned),
        sent: Duration::from_millis(sent),
        answered: Duration::from_millis(answered),
    };
    let held: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
    let check = |events: &[Event]| check_list(&held, &events.iter().collect::<Vec<_>>());
    let right =
        [event(Some("a"), 1, None, 0, 5), event(Some("b"), 2, None, 1, 2), event(None, 2, Some("b"), 3, 9)];
    assert_eq!(check(&right), Ok(()));
    for wrong in [
        event(Some("x"), 3, None, 10, 11),
        event(Some("c"), 2, None, 10, 11),
        event(None, 3, Some("b"), 10, 11),
        event(None, 4, Some("d"), 10, 11),
        event(None, 1, Some("a"), 10, 11),
    ] {
        let mut all = right.to_vec();
        all.push(wrong.clone());
        assert!(check(&all).is_err(), "{wrong:?}");
    }
    let doubled: Vec<String> = ["a", "b", "a"].map(str::to_owned).to_vec();
    assert!(check_list(&doubled, &[]).is_err());
}

/// A fleet of two versions: three coordinators on etcd and three members are upgraded one by one, while
/// clients of both kinds write and read. `WHIMBREL_OLD_BIN` is the older binary; without it the processes are
/// run again with the one that they had.
#[test]
fn a_fleet_is_upgraded_one_process_at_a_time() {
    let older = std::env::var_os("WHIMBREL_OLD_BIN").map_or_else(|| whimbrel().to_owned(), PathBuf::from);
    let backend = server(Engine::Valkey91);
    let mut fleet = Fleet::start_with(&older, &backend.addr(), &["--reign", "2s", "--lease", "4s"]);
    owners(&fleet);
    let writers = ClusterWriters::start(&fleet.addresses(), &load());
    let through = fleet.members.iter().map(|member| member.forwarding()).collect();
    let appenders = Appenders::start(through, 6, Duration::from_secs(1));
    assert!(writers.wait_for(500, PATIENCE), "nobody is answered");
    let goes_on = |fleet: &Fleet| {
        fleet.settled(3);
        owners(fleet);
        assert!(writers.wait_for(300, PATIENCE), "nobody is answered");
        appenders.wait_for(300);
    };
    // In the order that the runbook has.
    for number in 0..3 {
        fleet.coordinators[number].upgrade();
        goes_on(&fleet);
    }
    for number in 0..3 {
        fleet.members[number].upgrade();
        goes_on(&fleet);
    }
    fleet.assert_kept(&writers.stop());
    let acknowledged = appenders.check(&mut backend.connection());
    assert!(acknowledged > 1_000, "{acknowledged}");
}

#[test]
fn a_fourth_front_joins_under_load_and_leaves_again() {
    assert!((0..3).any(|_| a_fourth_front_comes_and_goes()), "clients were sent back and forth each time");
}

/// False where clients were sent back and forth more often than they follow, as a busy machine may have it.
fn a_fourth_front_comes_and_goes() -> bool {
    let backend = server(Engine::Redis70);
    let mut fleet = Fleet::start(&backend.addr(), 3, &[]);
    owners(&fleet);
    let writers = ClusterWriters::start(&fleet.addresses(), &load());
    let through = fleet.members.iter().map(|member| member.forwarding()).collect();
    let appenders = Appenders::start(through, 6, PATIENCE);
    let counters: Vec<Counter> =
        (0..6).map(|n| Counter::start(format!("sum:{n}"), &fleet.members[n % 3].forwarding())).collect();
    assert!(writers.wait_for(500, PATIENCE), "nobody is answered");
    fleet.join("fourth", &[]);
    fleet.settled(4);
    let shares = owners(&fleet);
    assert_eq!(shares.iter().filter(|owner| **owner == 3).count(), 4_096);
    assert!(writers.wait_for(1_000, PATIENCE), "nobody is answered");
    appenders.wait_for(500);
    // It is stopped as people stop it: everything goes to others first.
    let mut fourth = fleet.members.pop().expect("a member");
    fourth.running.terminate();
    let ended = fourth.running.wait(PATIENCE).expect("it ends").expect_code(0);
    assert!(ended.stdout.contains("\"empty\":true"), "{}", ended.stdout);
    fleet.settled(3);
    assert!(writers.wait_for(1_000, PATIENCE), "nobody is answered");
    let record = writers.stop();
    record.observed.assert_only_redirected();
    record.assert_kept(&Deployment::at(backend.addr()).expect("the server"));
    for counter in counters {
        let (key, added) = counter.stop();
        assert!(added > 10, "{added}");
        assert_eq!(backend.call(&["GET", &key]), Value::BulkString(added.to_string().into_bytes()));
    }
    assert_eq!(appenders.troubles.load(Ordering::Relaxed), 0, "clients that know no clusters had errors");
    let acknowledged = appenders.check(&mut backend.connection());
    assert!(acknowledged > 500, "{acknowledged}");
    record.observed.is_direct()
}
