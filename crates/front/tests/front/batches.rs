//! Keys that the background moves several at a time.

use whimbrel_front::migrate::phase::Phase;
use whimbrel_lab::{Engine, Server};

use crate::common::{Between, alone, wait_until};

/// Keys of each kind.
const EACH: usize = 150;

/// When keys expire, where they do: in the year 2100.
const EXPIRES_AT_MS: &str = "4102444800000";

fn pair() -> (Server, Server) {
    let start = |engine| Server::builder(engine).start().expect("a server");
    (start(Engine::Redis70), start(Engine::Valkey91))
}

/// Keys of several kinds, strings among them that are easily taken for others.
fn fill(source: &Server) {
    for i in 0..EACH {
        let i = i.to_string();
        let mut connection = source.connection();
        let binary: Vec<u8> = (0..=255).cycle().skip(i.len()).take(700).collect();
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(format!("int:{i}")).arg(&i);
        pipe.cmd("SET").arg(format!("empty:{i}")).arg("");
        pipe.cmd("SET").arg(format!("binary:{i}")).arg(binary);
        pipe.cmd("PFADD").arg(format!("loglog:{i}")).arg(&i).arg("x");
        pipe.cmd("RPUSH").arg(format!("list:{i}")).arg(&i).arg("x");
        pipe.cmd("HSET").arg(format!("hash:{i}")).arg("f").arg(&i);
        pipe.exec(&mut connection).expect("written");
    }
}

const KINDS: usize = 6;

/// Of all keys, in order: name, the bytes of strings and how they are held, the elements of others, and when
/// they expire.
fn content(server: &Server) -> Vec<String> {
    let mut connection = server.connection();
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("keys");
    keys.sort();
    let of = |key: &String, connection: &mut redis::Connection| {
        let read: &[&str] = match key.split(':').next() {
            Some("list") => &["LRANGE", key, "0", "-1"],
            Some("hash") => &["HGETALL", key],
            _ => &["GETRANGE", key, "0", "-1"],
        };
        let value: Vec<Vec<u8>> = match read[0] {
            "GETRANGE" => vec![redis::cmd(read[0]).arg(&read[1..]).query(connection).expect("a value")],
            _ => redis::cmd(read[0]).arg(&read[1..]).query(connection).expect("elements"),
        };
        let is_int: bool = redis::cmd("OBJECT")
            .arg("ENCODING")
            .arg(key)
            .query::<String>(connection)
            .is_ok_and(|encoding| encoding == "int");
        let expires: i64 = redis::cmd("PEXPIRETIME").arg(key).query(connection).expect("a time");
        format!("{key} {value:?} {is_int} {expires}")
    };
    keys.iter().map(|key| of(key, &mut connection)).collect()
}

/// How often a server has carried out a command.
fn calls(server: &Server, command: &str) -> u64 {
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).expect("statistics");
    let start = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&start));
    line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().expect("a number"))
}

fn wait_until_done(between: &Between) {
    wait_until("all keys have moved", || between.status().phase == Phase::Done);
}

#[test]
fn every_kind_of_value_arrives_with_its_expiry() {
    let _alone = alone();
    for expire in [false, true] {
        let (source, target) = pair();
        fill(&source);
        if expire {
            for i in (0..EACH).step_by(3) {
                for kind in ["int", "empty", "binary", "hash"] {
                    source.call(&["PEXPIREAT", &format!("{kind}:{i}"), EXPIRES_AT_MS]);
                }
            }
        }
        let before = content(&source);
        assert_eq!(before.len(), KINDS * EACH);
        let between = Between::of(&source, &target);
        source.call(&["CONFIG", "RESETSTAT"]);
        between.start().expect("it begins");
        wait_until_done(&between);
        assert_eq!(content(&source), [""; 0]);
        assert_eq!(content(&target), before, "with expiries: {expire}");
        // Only where a key may expire it is asked for that.
        assert_eq!(calls(&source, "pexpiretime") > EACH as u64, expire);
        assert!(expire || calls(&source, "mget") > 0);
        // Strings do not travel as payloads.
        assert!(calls(&source, "dump") < 3 * EACH as u64, "{}", calls(&source, "dump"));
    }
}

#[test]
fn one_that_the_target_has_already_keeps_no_other_back() {
    let _alone = alone();
    let (source, target) = pair();
    fill(&source);
    let before = content(&source);
    let between = Between::of(&source, &target);
    between.start_paused().expect("it begins");
    target.call(&["SET", "int:17", "another"]);
    between.resume();
    let moving = || between.status().moving.expect("keys move");
    let all_others = KINDS * EACH - 1;
    wait_until("all others have moved", || moving().moved == all_others as u64 && moving().staying == 1);
    assert!(moving().trouble.is_some_and(|trouble| trouble.contains("key int:17 is at the target")));
    assert_eq!(content(&source), [r#"int:17 [[49, 55]] true -1"#]);
    let expected = before.into_iter().map(|line| match line.starts_with("int:17 ") {
        true => format!("int:17 {:?} false -1", [b"another"]),
        false => line,
    });
    assert_eq!(content(&target), expected.collect::<Vec<_>>());
    source.call(&["DEL", "int:17"]);
    wait_until_done(&between);
}

#[test]
fn without_the_right_to_a_command_keys_move_by_others() {
    let _alone = alone();
    let cases: [(&[&str], &[&str]); 4] =
        [(&["-mget"], &["-msetnx"]), (&["-get", "-mget"], &[]), (&["-strlen"], &[]), (&[], &["-set"])];
    for (source_rules, target_rules) in cases {
        let (source, target) = pair();
        fill(&source);
        let before = content(&source);
        for (server, rules) in [(&source, source_rules), (&target, target_rules)] {
            server.call(&[&["ACL", "SETUSER", "default"][..], rules].concat());
        }
        let between = Between::of(&source, &target);
        between.start().expect("it begins");
        wait_until_done(&between);
        assert_eq!(content(&target), before, "{source_rules:?} {target_rules:?}");
        let status = between.status().moving.expect("keys have moved");
        assert_eq!((status.retries, status.trouble), (0, None), "{source_rules:?} {target_rules:?}");
    }
}
