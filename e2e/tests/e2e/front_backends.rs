//! Fronts whose slots have their data at several backends: it moves while clients write, and nothing is lost.

use std::time::Duration;

use redis::{Connection, Value};

use whimbrel_e2e::fleets::{Fleet, PATIENCE};
use whimbrel_judge::cluster_writers::{ClusterWriters, Load, tags_in};
use whimbrel_judge::deployment::slot_of;
use whimbrel_lab::{Cluster, Engine, Proxy, Server, for_each_engine, until};

/// A cluster of one node.
fn cluster(engine: Engine) -> Cluster {
    Cluster::builder(engine).primaries(1).start().expect("a cluster")
}

/// After which what goes on has made a difference.
const OBSERVED_FOR: Duration = Duration::from_secs(2);

/// This many slots are in a partition here.
const SLOTS_OF_PARTITION: u64 = 64;
const PARTITIONS: u64 = 16_384 / SLOTS_OF_PARTITION;

/// A fleet of two backends, the first of which has everything.
#[track_caller]
fn fleet_of(first: &str, second: &str, members: usize) -> Fleet {
    let (second, partitions) = (format!("second={second}"), PARTITIONS.to_string());
    Fleet::start(first, members, &["--backend", &second, "--partitions", &partitions])
}

fn command(line: &str) -> redis::Cmd {
    let mut words = line.split(' ');
    let mut command = redis::cmd(words.next().expect("a name"));
    words.for_each(|word| {
        command.arg(word);
    });
    command
}

#[track_caller]
fn text(connection: &mut Connection, line: &str) -> String {
    match command(line).query(connection) {
        Ok(Value::BulkString(bytes)) => String::from_utf8(bytes).expect("text"),
        Ok(Value::SimpleString(text)) => text,
        Ok(Value::Okay) => "OK".to_owned(),
        Ok(Value::Int(n)) => n.to_string(),
        Ok(Value::Nil) => "nil".to_owned(),
        Ok(other) => format!("{other:?}"),
        Err(error) => error.to_string(),
    }
}

/// What a backend has besides fences.
fn keys_at(backend: &Cluster) -> Vec<String> {
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut backend.connection_to(0)).expect("keys");
    keys.into_iter().filter(|key| !key.starts_with("whimbrel:")).collect()
}

/// How many partitions have their data at a backend.
fn placed(fleet: &Fleet, name: &str) -> Option<u64> {
    let status = fleet.status()?;
    let backends = status["fleet"]["backends"].as_array()?.clone();
    backends.iter().find(|backend| backend["name"] == name)?["partitions"].as_u64()
}

/// All keys that a connection lists, as often as it does.
fn scanned(connection: &mut Connection) -> Vec<String> {
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let reply = redis::cmd("SCAN").arg(&cursor).arg("COUNT").arg(100).query(connection);
        let (next, keys): (String, Vec<String>) = reply.expect("a reply");
        found.extend(keys);
        if next == "0" {
            found.sort();
            return found;
        }
        cursor = next;
    }
}

fn data_moves_while_clients_write(engine: Engine) {
    let (first, second) = (cluster(engine), cluster(engine));
    let fleet = fleet_of(&first.seed(), &second.seed(), 2);
    let load = Load { pause: Duration::from_millis(40), ..Load::on(tags_in(0..16_384, 40)) };
    let writers = ClusterWriters::start(&fleet.addresses(), &load);
    assert!(writers.wait_for(500, PATIENCE), "nobody is answered");
    fleet.command(&["join", "--backend", "second"]).expect_code(0);
    assert_eq!(
        (placed(&fleet, "main"), placed(&fleet, "second")),
        (Some(PARTITIONS / 2), Some(PARTITIONS / 2))
    );
    assert!(writers.wait_for(500, PATIENCE), "nobody is answered");
    assert!(keys_at(&second).len() > 50, "{}", keys_at(&second).len());
    fleet.command(&["drain", "--backend", "main"]).expect_code(0);
    assert!(writers.wait_for(500, PATIENCE), "nobody is answered");
    // And back, over what the fences say was there.
    fleet.command(&["join", "--backend", "main", "--weight", "3"]).expect_code(0);
    fleet.command(&["drain", "--backend", "second"]).expect_code(0);
    assert!(writers.wait_for(500, PATIENCE), "nobody is answered");
    let record = writers.stop();
    record.observed.assert_only_moved();
    fleet.assert_kept(&record);
    until("nothing is left there", || keys_at(&second).is_empty().then_some(()));
    // Each key once, and no fence.
    let mut all = fleet.members[0].connect_forwarding();
    let wanted = {
        let mut keys = keys_at(&first);
        keys.sort();
        keys
    };
    assert_eq!(scanned(&mut all), wanted);
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut all).expect("keys");
    keys.sort();
    assert_eq!(keys, wanted);
}

for_each_engine! { data_moves_while_clients_write }

#[test]
fn who_waits_is_sent_where_the_data_is() {
    let (first, second) = (cluster(Engine::Redis70), cluster(Engine::Redis70));
    let fleet = fleet_of(&first.seed(), &second.seed(), 2);
    let address = fleet.members[0].address();
    let mut pusher = fleet.members[1].connect_forwarding();
    let mut through = fleet.members[1].connect_forwarding();
    let (mut ours, mut theirs) = (fleet.members[0].connect(), fleet.members[1].connect());
    assert!(text(&mut pusher, "XADD {q}stream * a 1").contains('-'));
    std::thread::scope(|scope| {
        let waits = [
            scope.spawn(|| text(&mut through, "BLPOP {q}queue 150")),
            scope.spawn(|| text(&mut ours, "BLPOP {q}queue 150")),
            scope.spawn(|| text(&mut theirs, "XREAD BLOCK 150000 STREAMS {q}stream $")),
        ];
        until("all that may wait do", || {
            let Value::BulkString(info) = first.nodes()[0].call(&["INFO", "clients"]) else {
                panic!("no text")
            };
            String::from_utf8(info).expect("text").contains("blocked_clients:2").then_some(())
        });
        fleet.command(&["join", "--backend", "second"]).expect_code(0);
        fleet.command(&["drain", "--backend", "main"]).expect_code(0);
        // Those that know no clusters notice nothing; the others are sent to the same place again.
        assert_eq!(text(&mut pusher, "RPUSH {q}queue a"), "1");
        let answers: Vec<String> = waits.into_iter().map(|wait| wait.join().expect("an answer")).collect();
        assert!(answers[0].contains("\"a\""), "{answers:?}");
        let sent_on = answers.iter().filter(|answer| answer.contains(&slot_of(b"{q}").to_string())).count();
        assert_eq!(sent_on, 2, "{answers:?}");
        assert!(answers.iter().any(|answer| answer.contains(&address)), "{answers:?}");
    });
    assert!(keys_at(&first).is_empty() && keys_at(&second) == ["{q}stream"]);
}

#[test]
fn a_transaction_is_carried_out_where_the_data_is_or_not_at_all() {
    let (first, second) = (cluster(Engine::Valkey91), cluster(Engine::Valkey91));
    let fleet = fleet_of(&first.seed(), &second.seed(), 1);
    let mut queued = fleet.members[0].connect();
    let mut watching = fleet.members[0].connect_forwarding();
    let mut held = fleet.members[0].connect_forwarding();
    for connection in [&mut queued, &mut watching, &mut held] {
        assert_eq!(text(connection, "SET {t}a 1"), "OK");
    }
    assert_eq!(text(&mut queued, "MULTI"), "OK");
    assert_eq!(text(&mut queued, "SET {t}a 2"), "QUEUED");
    assert_eq!(text(&mut watching, "WATCH {t}a"), "OK");
    assert_eq!(text(&mut held, "MULTI"), "OK");
    assert_eq!(text(&mut held, "INCR {t}a"), "QUEUED");
    fleet.command(&["join", "--backend", "second"]).expect_code(0);
    fleet.command(&["drain", "--backend", "main"]).expect_code(0);
    let refused = text(&mut queued, "EXEC");
    assert!(refused.contains(&fleet.members[0].address()), "{refused}");
    assert_eq!(text(&mut watching, "MULTI"), "OK");
    assert_eq!(text(&mut watching, "SET {t}a 3"), "QUEUED");
    assert_eq!(text(&mut watching, "EXEC"), "nil", "nobody can say whether it has changed");
    assert!(text(&mut held, "EXEC").contains("int(2)"));
    assert_eq!(text(&mut queued, "GET {t}a"), "2");
    assert_eq!(second.nodes()[0].call(&["GET", "{t}a"]), Value::BulkString(b"2".to_vec()));
}

#[test]
fn channels_stay_where_they_are() {
    let (first, second) = (cluster(Engine::Redis80), cluster(Engine::Redis80));
    let fleet = fleet_of(&first.seed(), &second.seed(), 2);
    fleet.command(&["join", "--backend", "second"]).expect_code(0);
    fleet.command(&["drain", "--backend", "main"]).expect_code(0);
    let listens = fleet.members[0].connect();
    listens.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut listens = listens;
    let mut channel = listens.as_pubsub();
    channel.subscribe("news").expect("subscribed");
    let mut says = fleet.members[1].connect_forwarding();
    assert_eq!(text(&mut says, "PUBLISH news hello"), "1");
    assert_eq!(channel.get_message().expect("a message").get_payload::<String>().expect("text"), "hello");
    // One with a slot is where its slot has no data.
    let owner = fleet.members.iter().find(|member| text(&mut member.connect(), "GET news") == "nil");
    let mut shard = owner.expect("somebody has the slot").connect();
    shard.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let subscribed: Value = command("SSUBSCRIBE news").query(&mut shard).expect("subscribed");
    assert!(format!("{subscribed:?}").contains("ssubscribe"), "{subscribed:?}");
    assert_eq!(text(&mut says, "SPUBLISH news again"), "1");
    let message = shard.recv_response().expect("a message");
    assert!(format!("{message:?}").contains("again"), "{message:?}");
    // With the older protocol nobody could know which answer is whose.
    let subscribed: Value = command("SUNSUBSCRIBE news").query(&mut shard).expect("no longer subscribed");
    assert!(format!("{subscribed:?}").contains("sunsubscribe"), "{subscribed:?}");
    assert!(text(&mut shard, "SET news old").contains("another connection"));
    assert_eq!(text(&mut says, "GET news"), "nil");
}

#[test]
fn what_cannot_be_carried_stays_and_is_said() {
    let (server, second) =
        (Server::builder(Engine::Redis70).start().expect("a server"), cluster(Engine::Redis70));
    let fleet = fleet_of(&server.addr(), &second.seed(), 1);
    let mut client = fleet.members[0].connect_forwarding();
    assert_eq!(text(&mut client, "SET k v"), "OK");
    fleet.command(&["join", "--backend", "second", "--no-wait"]).expect_code(0);
    until("it is tried", || {
        let status = fleet.status()?;
        (status["fleet"]["failed"].as_u64()? > 10).then_some(())
    });
    assert_eq!(placed(&fleet, "second"), Some(0));
    until("it is said why", || {
        let status = fleet.status()?;
        status["fleet"]["members"][0]["trouble"].as_str()?.contains("has no cluster mode").then_some(())
    });
    assert_eq!((text(&mut client, "GET k"), text(&mut client, "SET k w")), ("v".to_owned(), "OK".to_owned()));
    // It is taken back.
    fleet.command(&["drain", "--backend", "second"]).expect_code(0);
    fleet.settled(1);
    for (words, code, why) in [
        (&["drain", "--backend", "main"][..], 4, "no other backend"),
        (&["join", "--backend", "third"][..], 2, "no backend third"),
    ] {
        let refused = fleet.command(words).expect_code(code);
        assert!(refused.stdout.contains(why), "{}", refused.stdout);
    }
}

#[test]
fn keys_that_nobody_carried_there_are_not_removed() {
    let (first, second) = (cluster(Engine::Valkey81), cluster(Engine::Valkey81));
    second.nodes()[0].call(&["SET", "somebodys", "value"]);
    let fleet = fleet_of(&first.seed(), &second.seed(), 1);
    fleet.command(&["join", "--backend", "second", "--no-wait"]).expect_code(0);
    fleet.command(&["drain", "--backend", "main", "--no-wait"]).expect_code(0);
    let at_second =
        until("all others have moved", || placed(&fleet, "second").filter(|count| *count >= PARTITIONS - 1));
    assert_eq!(at_second, PARTITIONS - 1);
    assert_eq!(second.nodes()[0].call(&["GET", "somebodys"]), Value::BulkString(b"value".to_vec()));
    assert_eq!(second.nodes()[0].call(&["DEL", "somebodys"]), Value::Int(1));
    until("that one has moved as well", || placed(&fleet, "second").filter(|count| *count == PARTITIONS));
}

#[test]
fn what_was_carried_survives_a_failover_where_it_is_now() {
    let first = cluster(Engine::Redis70);
    let second = Cluster::builder(Engine::Redis70).primaries(3).replicas(1).start().expect("a cluster");
    let fleet = fleet_of(&first.seed(), &second.seed(), 2);
    let mut client = fleet.members[0].connect_forwarding();
    for n in 0..500 {
        assert_eq!(text(&mut client, &format!("SET k{n} v{n}")), "OK");
    }
    fleet.command(&["join", "--backend", "second"]).expect_code(0);
    fleet.command(&["drain", "--backend", "main"]).expect_code(0);
    until("nothing is left there", || keys_at(&first).is_empty().then_some(()));
    whimbrel_e2e::shards::wait_until_follows(&second.nodes()[0], &second.replicas_of(0)[0]);
    second.kill9(0).expect("killed");
    second.wait_failover(0).expect("a replica takes over");
    let mut client = fleet.members[1].connect_forwarding();
    for n in 0..500 {
        let key = format!("k{n}");
        until("it is answered", || {
            (text(&mut client, &format!("GET {key}")) == format!("v{n}")).then_some(())
        });
    }
    assert_eq!(text(&mut client, "SET k1 again"), "OK");
}

#[test]
fn what_a_lost_member_has_left_behind_is_removed() {
    let (first, second) = (cluster(Engine::Valkey91), cluster(Engine::Valkey91));
    let mut fleet = fleet_of(&first.seed(), &second.seed(), 2);
    fleet.command(&["join", "--backend", "second"]).expect_code(0);
    // As if its member had been killed before it could remove this; and what no move has left.
    let moved = |key: &String| u64::from(slot_of(key.as_bytes())) / SLOTS_OF_PARTITION >= PARTITIONS / 2;
    let left = (0..).map(|n| format!("left{n}")).find(moved).expect("a key");
    let stays = (0..).map(|n| format!("stays{n}")).find(|key| !moved(key)).expect("a key");
    assert_eq!(first.nodes()[0].call(&["SET", &left, "old"]), Value::Okay);
    for part in ["", "also"] {
        assert_eq!(second.nodes()[0].call(&["SET", &format!("{{{stays}}}{part}"), "somebodys"]), Value::Okay);
    }
    let mut client = fleet.members[1].connect_forwarding();
    assert_eq!(text(&mut client, &format!("GET {left}")), "nil");
    assert_eq!(text(&mut client, &format!("SET {left} new")), "OK");
    fleet.members[0].kill9();
    fleet.members[0].run_again();
    fleet.settled(2);
    until("it is removed", || keys_at(&first).is_empty().then_some(()));
    assert_eq!(text(&mut client, &format!("GET {left}")), "new");
    assert_eq!(keys_at(&second).len(), 3, "{:?}", keys_at(&second));
}

#[test]
fn what_is_under_way_is_answered_before_its_data_moves() {
    let (first, second) = (cluster(Engine::Redis70), cluster(Engine::Redis70));
    let link = Proxy::start(&first.seed()).expect("a proxy");
    let announce = format!("CONFIG SET cluster-announce-port {}", link.port());
    assert_eq!(text(&mut first.connection_to(0), &announce), "OK");
    let fleet = fleet_of(&link.addr(), &second.seed(), 1);
    let mut client = fleet.members[0].connect();
    assert_eq!(text(&mut client, "INCR n"), "1");
    // It has been sent, and does not arrive. A client that connects now is not hindered.
    link.stall_present();
    client.send_packed_command(&command("INCR n").get_packed_command()).expect("sent");
    fleet.command(&["join", "--backend", "second", "--no-wait"]).expect_code(0);
    fleet.command(&["drain", "--backend", "main", "--no-wait"]).expect_code(0);
    until("all others have moved", || (placed(&fleet, "main")? == 1).then_some(()));
    // For as long as it takes: it would have moved by the next look.
    std::thread::sleep(OBSERVED_FOR);
    assert_eq!(placed(&fleet, "main"), Some(1));
    link.go_on();
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    assert_eq!(client.recv_response().expect("an answer"), Value::Int(2));
    until("it has moved as well", || (placed(&fleet, "main")? == 0).then_some(()));
    assert_eq!(text(&mut client, "INCR n"), "3");
    assert_eq!(keys_at(&second), ["n"]);
}
