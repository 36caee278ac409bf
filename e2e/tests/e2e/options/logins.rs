//! Passwords, certificates and permissions.

use std::collections::BTreeSet;
use std::fs;

use redis::Commands;
use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::permissions::{denied, documented, give};
use whimbrel_judge::compare::{Comparison, assert_equal};
use whimbrel_judge::dataset::{Dataset, Scale};
use whimbrel_lab::{Cluster, Engine, Server, Tls};

use super::{
    DIFFERENT, PATIENCE, SUCCESS, at, calls, copied, db_size, folder, in_db, invocation, server, start,
    strings,
};

#[test]
fn tls_with_client_certificates() {
    let [left, right] =
        [(); 2].map(|()| Tls::new().expect("certificates can be made").requiring_client_cert());
    let source = start(Server::builder(Engine::Redis70).tls(&left));
    let target = start(Server::builder(Engine::Valkey91).tls(&right));
    Dataset::generate(4, Scale::Tiny).write_to(&at(source.addr())).expect("it is filled");
    let text = |path: std::path::PathBuf| path.display().to_string();
    let files = [
        "--source-ca",
        &text(left.ca()),
        "--source-cert",
        &text(left.client_cert()),
        "--source-key",
        &text(left.client_key()),
        "--target-ca",
        &text(right.ca()),
        "--target-cert",
        &text(right.client_cert()),
        "--target-key",
        &text(right.client_key()),
    ]
    .map(str::to_owned);
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let port = |server: &Server| server.tls_port().expect("it has TLS");
    let (from, to) =
        (format!("rediss://localhost:{}", port(&source)), format!("valkeys://127.0.0.1:{}", port(&target)));
    let with = |more: &[&str], files: &[&str]| {
        target.call(&["FLUSHALL"]);
        let plain = target.call(&["INFO", "commandstats"]);
        drop(plain);
        let args: Vec<&str> = more.iter().chain(files).copied().collect();
        copied(&args);
        assert_equal(&at(source.addr()), &at(target.addr()));
    };
    with(&[&from, &to], &files);
    // The scheme is optional where a flag says it, and so is the name.
    let (from, to) = (format!("127.0.0.1:{}", port(&source)), format!("127.0.0.1:{}", port(&target)));
    with(&[&from, &to, "--source-tls", "--target-tls", "--source-server-name", "localhost"], &files);
    // A user who asks for it may do without authorities.
    let without_ca: Vec<&str> =
        files.chunks(2).filter(|pair| !pair[0].ends_with("-ca")).flatten().copied().collect();
    with(&[&from, &to, "--source-tls", "--target-tls", "--insecure"], &without_ca);
}

#[test]
fn tls_to_every_node_of_a_cluster() {
    let tls = Tls::new().expect("certificates can be made");
    let source =
        Cluster::builder(Engine::Redis80).primaries(3).tls(&tls).start().expect("the cluster starts");
    let target = start(Server::builder(Engine::Redis80).tls(&tls));
    Dataset::generate(5, Scale::Tiny).write_to(&at(source.seed())).expect("it is filled");
    let from = format!("rediss://127.0.0.1:{}", source.nodes()[1].tls_port().expect("it has TLS"));
    let ca = tls.ca().display().to_string();
    copied(&[&from, &target.addr(), "--source-ca", &ca]);
    assert_equal(&at(source.seed()), &at(target.addr()));
}

#[test]
fn passwords() {
    // Everything that has a meaning in a URL, a shell or a protocol.
    let password = "p@ss:w/o?r#d% é'\"\\$";
    let encoded = "p%40ss%3Aw%2Fo%3Fr%23d%25%20%C3%A9%27%22%5C%24";
    // The lab's default user gets none, so that the tests see everything; the users get theirs at run time.
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis80));
    for server in [&source, &target] {
        let secret = format!(">{password}");
        server.call(&["ACL", "SETUSER", "mover:1", "on", &secret, "~*", "&*", "+@all"]);
    }
    strings(&source, 3000, 10);
    let state = folder();
    let file = state.path().join("password");
    fs::write(&file, format!("{password}\nnot this line\n")).expect("a file can be written");
    let file = file.display().to_string();
    let (from, to) = (source.addr(), target.addr());
    let (from_url, to_url) =
        (format!("redis://mover%3A1:{encoded}@{from}"), format!("redis://mover%3A1:{encoded}@{to}"));
    let (from_user, to_user) = (format!("redis://mover%3A1@{from}"), format!("redis://mover%3A1@{to}"));
    let env = |call: Invocation| {
        call.env("WHIMBREL_SOURCE_PASSWORD", password).env("WHIMBREL_TARGET_PASSWORD", password)
    };
    let calls = [
        invocation(state.path(), &[&from_url, &to_url]),
        env(invocation(state.path(), &[&from_user, &to_user])),
        env(invocation(state.path(), &[&from, &to, "--source-user", "mover:1", "--target-user", "mover:1"])),
        invocation(
            state.path(),
            &[&from_user, &to_user, "--source-password-file", &file, "--target-password-file", &file],
        ),
        // A file is closer to the user's mind than a variable.
        invocation(state.path(), &[&from_user, &to_url, "--source-password-file", &file])
            .env("WHIMBREL_SOURCE_PASSWORD", "another"),
    ];
    for call in calls {
        target.call(&["FLUSHALL"]);
        let output = call.run().expect_code(SUCCESS);
        assert_eq!(db_size(&target), 3000);
        for text in [&output.stdout, &output.stderr] {
            assert!(!text.contains("p@ss") && !text.contains("p%40ss"), "{text}");
        }
    }

    // What others on the machine see of the process, and what stays behind of it.
    target.call(&["FLUSHALL"]);
    let args = [&*from_user, &to_user, "--rate-keys", "100", "--report", "1"];
    let mut running = env(invocation(state.path(), &args)).env("WHIMBREL_LOG", "trace").spawn();
    assert!(running.wait_for_text("written", PATIENCE));
    let seen = fs::read(format!("/proc/{}/cmdline", running.pid())).expect("it runs");
    assert!(!String::from_utf8_lossy(&seen).contains("p@ss"));
    let kept = state.path().join("whimbrel");
    // Its socket is there as well, and cannot be read.
    let files: Vec<_> = [kept.clone(), kept.join("jobs")]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).expect("it keeps a journal"))
        .map(|entry| entry.expect("a folder can be listed").path())
        .filter(|path| path.is_file())
        .collect();
    assert!(!files.is_empty(), "it keeps no journal");
    for file in files {
        // A draft has its final name by now.
        let Ok(bytes) = fs::read(&file) else { continue };
        let has_password = bytes.windows(4).any(|bytes| bytes == b"p@ss" || bytes == b"p%40");
        assert!(!has_password, "{}", file.display());
    }
    running.interrupt();
    let output = running.wait(PATIENCE).expect("it ends");
    assert!(
        !output.stderr.contains("p@ss") && !output.stderr.contains("p%40"),
        "with the log at its chattiest"
    );
}

/// What a user may do, as in ACL SETUSER: `memory|usage`.
fn granted(commands: &[Vec<String>]) -> BTreeSet<String> {
    commands.iter().flatten().filter_map(|word| word.strip_prefix('+')).map(str::to_owned).collect()
}

/// With the documented permissions nothing is refused, and everything that is granted is used.
#[test]
fn documented_permissions() {
    let mut used: [BTreeSet<String>; 2] = Default::default();
    let mut given: [BTreeSet<String>; 2] = Default::default();
    let mut note = |side: usize, servers: &[Server], commands: &[Vec<String>]| {
        for server in servers {
            used[side]
                .extend(calls(server).into_iter().filter(|(_, calls)| *calls > 0).map(|(name, _)| name));
            assert_eq!(denied(server), [""; 0]);
        }
        given[side].extend(granted(commands));
    };
    for engine in Engine::ALL {
        let field_expiries = matches!(engine, Engine::Redis80 | Engine::Valkey91);
        let mut headings = vec!["Source", "Target", "Comparison", "Functions"];
        if field_expiries {
            headings.push("Hash fields with a time to live");
        }
        let source_user = documented("whimbrel-source", &headings, "one");
        let target_user = documented("whimbrel-target", &headings, "two");
        assert!(source_user.len() >= 5 && target_user.len() >= 7);
        let urls = |from: &str, to: &str| {
            (format!("redis://whimbrel-source:one@{from}"), format!("redis://whimbrel-target:two@{to}"))
        };
        let dataset = Dataset::generate(6, Scale::Tiny).with_functions();

        let (source, target) = (server(engine), server(engine));
        dataset.write_to(&at(source.addr())).expect("it is filled");
        // A stream all of whose entries are gone, and one that never had any.
        source.call(&["XADD", "emptied", "5-1", "f", "v"]);
        source.call(&["XDEL", "emptied", "5-1"]);
        source.call(&["XGROUP", "CREATE", "unborn", "g", "$", "MKSTREAM"]);
        for i in 0..400 {
            let i = i.to_string();
            source.call(&["SADD", "extra:set", &format!("member:{i}")]);
            source.call(&["HSET", "extra:hash", &format!("field:{i}"), &i]);
            source.call(&["ZADD", "extra:zset", &i, &format!("member:{i}")]);
        }
        give(&source, &source_user);
        give(&target, &target_user);
        let (from, to) = urls(&source.addr(), &target.addr());
        copied(&[&from, &to, "--functions"]);
        // In chunks, and with each of the policies.
        for policy in ["--replace", "--skip", "--fail"] {
            copied(&[&from, &to, policy, "--big-key", "1", "--db", "0"]);
        }
        copied(&[&from, &to, "--big-key", "1", "--db", "0:8", "--skip"]);
        copied(&[&from, &to, "--type", "list,set", "--replace"]);
        for args in [&[][..], &["--db", "0", "--depth", "counts"], &["--db", "0", "--depth", "meta"]] {
            let all: Vec<&str> =
                ["verify", &*from, &*to, "--ignore-extra"].iter().chain(args).copied().collect();
            Invocation::new(&all).run().expect_code(SUCCESS);
        }
        // What the target has more of is looked for on the source.
        let mut there = in_db(&target, 8);
        let extras = [("SADD", "extra:set"), ("HSET", "extra:hash"), ("ZADD", "extra:zset")];
        for (command, key) in extras {
            redis::cmd(command).arg(key).arg(&["1", "more"]).exec(&mut there).expect("it can be written");
        }
        // With a time to live: the target is asked whether it is about to expire.
        let () = there.set_ex("stowaway", 1, 1_000).expect("it can be written");
        Invocation::new(&["verify", &from, &to, "--db", "0:8"]).run().expect_code(DIFFERENT);
        let () = there.del("stowaway").expect("it can be deleted");
        for (_, key) in extras {
            let () = there.del(key).expect("it can be deleted");
            source.call(&["DEL", key]);
            target.call(&["DEL", key]);
        }
        note(0, std::slice::from_ref(&source), &source_user);
        note(1, std::slice::from_ref(&target), &target_user);
        Comparison::default()
            .databases(&[(0, 0), (1, 1), (9, 9), (0, 8)])
            // Where a stream is copied entry by entry, delivery times are reported relative to now.
            .tolerance_ms(20)
            .functions()
            .assert_equal(&at(source.addr()), &at(target.addr()));

        if matches!(engine, Engine::Redis70 | Engine::Valkey91) {
            let build = || Cluster::builder(engine).primaries(2).start().expect("the cluster starts");
            let (source, target) = (build(), build());
            dataset.write_to(&at(source.seed())).expect("it is filled");
            source.nodes().iter().for_each(|node| give(node, &source_user));
            target.nodes().iter().for_each(|node| give(node, &target_user));
            let (from, to) = urls(&source.seed(), &target.seed());
            copied(&[&from, &to, "--functions", "--big-key", "64KiB", "--from-replicas"]);
            note(0, source.nodes(), &source_user);
            note(1, target.nodes(), &target_user);
            Comparison::default()
                .tolerance_ms(20)
                .functions()
                .assert_equal(&at(source.seed()), &at(target.seed()));
        }
    }
    // Needed only while a slot is on the move, where a key changes while it is read in chunks, and where a
    // connection breaks.
    let exempt = ["asking", "unwatch", "client|kill"].map(str::to_owned);
    for (side, (given, used)) in given.iter().zip(&used).enumerate() {
        let idle: Vec<_> = given.difference(used).filter(|name| !exempt.contains(name)).collect();
        assert!(idle.is_empty(), "granted to the {} and never used: {idle:?}", ["source", "target"][side]);
    }
}
