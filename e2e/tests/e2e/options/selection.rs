//! Which keys are copied.

use std::collections::BTreeMap;

use redis::Commands;
use whimbrel_judge::compare::KeyState;
use whimbrel_judge::deployment::{Deployment, slot_of};
use whimbrel_lab::{Cluster, Engine};

use super::{SUCCESS, at, copied, copy, count, db_size, events, keys, server, writes};

/// Keys of all types under a few prefixes, one in three with a time to live.
fn fill_for_selection(deployment: &Deployment) {
    for (i, name) in names_for_selection().iter().enumerate() {
        let owner = deployment.owner_of(name).expect("every slot has an owner");
        let mut connection = deployment.primaries()[owner].connect(0).expect("it answers");
        let name = name.as_slice();
        let done: redis::RedisResult<()> = match i % 6 {
            0 => connection.set(name, i),
            1 => connection.rpush(name, &["a", "b"]),
            2 => connection.sadd(name, &["a", "b"]),
            3 => connection.zadd(name, "a", i),
            4 => connection.hset(name, "f", i),
            _ => redis::cmd("XADD").arg(name).arg("1-1").arg("f").arg(i).exec(&mut connection),
        };
        done.expect("it can be written");
        if i % 3 == 0 {
            let () = connection.pexpire_at(name, 4_000_000_000_000 + i as i64).expect("it can expire");
        }
    }
}

fn names_for_selection() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    for prefix in ["user:", "session:", "tmp:", "USER:"] {
        names.extend((0..30).map(|i| format!("{prefix}{i}").into_bytes()));
    }
    names.extend([&b""[..], b"\xff\xfe\x00", b"user:\xff", b"[user]", b"user*"].map(<[u8]>::to_vec));
    names
}

/// Options and which keys they select, by name and type.
type Case = (&'static [&'static str], fn(&[u8], &str) -> bool);

fn selections() -> Vec<Case> {
    vec![
        (&["--match", "user:*"], |name, _| name.starts_with(b"user:")),
        (&["--pattern", "user:*"], |name, _| name.starts_with(b"user:")),
        (&["--match", "user:*", "--match", "session:*"], |name, _| {
            name.starts_with(b"user:") || name.starts_with(b"session:")
        }),
        (&["--match", "user:?"], |name, _| name.starts_with(b"user:") && name.len() == 6),
        (&["--match", "[us]*:1[0-4]"], |name, _| {
            (name.starts_with(b"user:") || name.starts_with(b"session:"))
                && name
                    .rsplit(|&b| b == b':')
                    .next()
                    .is_some_and(|n| n.len() == 2 && (&b"10"[..]..=&b"14"[..]).contains(&n))
        }),
        (&["--match", r"user\*"], |name, _| name == b"user*"),
        (&["--match", r"\[user\]"], |name, _| name == b"[user]"),
        (&["--match", "*"], |_, _| true),
        (&["--match", "nothing:*"], |_, _| false),
        (&["--exclude", "user:*", "--exclude", "tmp:*"], |name, _| {
            !name.starts_with(b"user:") && !name.starts_with(b"tmp:")
        }),
        (&["--match", "user:*", "--exclude", "*1*"], |name, _| {
            name.starts_with(b"user:") && !name.contains(&b'1')
        }),
        (&["--type", "list"], |_, kind| kind == "list"),
        (&["--type", "string,stream"], |_, kind| kind == "string" || kind == "stream"),
        (&["--type", "set", "--type", "zset", "--match", "tmp:*"], |name, kind| {
            (kind == "set" || kind == "zset") && name.starts_with(b"tmp:")
        }),
        (&["--slots", "0-8191"], |name, _| slot_of(name) < 8192),
        (
            &["--slots", "0-99,5461-10922,16383"],
            |name, _| matches!(slot_of(name), 0..=99 | 5461..=10922 | 16383),
        ),
        (&["--slots", "8000-16383", "--type", "hash", "--exclude", "tmp:*"], |name, kind| {
            slot_of(name) >= 8000 && kind == "hash" && !name.starts_with(b"tmp:")
        }),
    ]
}

fn check_selections(source: &str, target: &str, flush: &dyn Fn(), written: &dyn Fn() -> Vec<String>) {
    let deployment = at(source);
    fill_for_selection(&deployment);
    let all = keys(&deployment, 0);
    assert_eq!(all.len(), names_for_selection().len());
    for (args, selects) in selections() {
        flush();
        let expected: BTreeMap<_, _> =
            all.iter().filter(|(name, state)| selects(name, state.value.type_name())).collect();

        let before = written();
        let dry: Vec<&str> = [source, target, "--dry-run", "--json"].iter().chain(args).copied().collect();
        let dry = copy(&dry).expect_code(SUCCESS);
        let plans = events(&dry, "plan");
        assert_eq!(plans.len(), 1, "{}", dry.stdout);
        assert_eq!(plans[0]["plan"]["dbs"][0]["selected_keys"], expected.len(), "{args:?}: {}", plans[0]);
        assert_eq!(plans[0]["plan"]["dbs"][0]["source_keys"], all.len());
        assert_eq!(before, written(), "a dry run has written");

        let wet: Vec<&str> = [source, target].iter().chain(args).copied().collect();
        let report = copied(&wet);
        let found = keys(&at(target), 0);
        assert_eq!(found.iter().collect::<BTreeMap<_, _>>(), expected, "{args:?}");
        assert_eq!(count(&report, "written"), expected.len() as u64, "{args:?}: {report}");
        assert_eq!(
            count(&report, "failed") + count(&report, "skipped") + count(&report, "gone"),
            0,
            "{report}"
        );
        assert_eq!(report["complete"], true);
    }
}

#[test]
fn selection_on_standalone_servers() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    check_selections(&source.addr(), &target.addr(), &|| drop(target.call(&["FLUSHALL"])), &|| {
        vec![writes(&target)]
    });
}

#[test]
fn selection_on_clusters() {
    let source = Cluster::builder(Engine::Valkey81).primaries(3).start().expect("the cluster starts");
    let target = Cluster::builder(Engine::Redis80).primaries(3).start().expect("the cluster starts");
    check_selections(&source.seed(), &target.seed(), &|| target.flush().expect("it can be flushed"), &|| {
        target.nodes().iter().map(writes).collect()
    });
}

#[test]
fn limit() {
    let (source, target) = (server(Engine::Redis80), server(Engine::Redis80));
    fill_for_selection(&at(source.addr()));
    let (from, to) = (source.addr(), target.addr());
    let all = names_for_selection().len() as u64;
    let is_list_or_set = |state: &KeyState| matches!(state.value.type_name(), "list" | "set");
    let lists_and_sets = keys(&at(&from), 0).values().filter(|state| is_list_or_set(state)).count() as u64;
    for (args, expected) in [
        (&["--limit", "7"][..], 7),
        (&["--limit", "1"], 1),
        (&["--limit", "1k"], all),
        (&["--limit", "5", "--match", "user:*"], 5),
        (&["--limit", "5", "--type", "hash"], 5),
        (&["--limit", "20", "--type", "list,set"], 20),
        (&["--limit", "1000", "--type", "list,set"], lists_and_sets),
        (&["--limit", "3", "--scan-count", "1", "--lanes", "1"], 3),
    ] {
        target.call(&["FLUSHALL"]);
        let both: Vec<&str> = [&*from, &*to].iter().chain(args).copied().collect();
        let report = copied(&both);
        assert_eq!((db_size(&target), count(&report, "written")), (expected, expected), "{args:?}");
        assert_eq!(report["complete"], true, "{args:?}");
        let source_keys = keys(&at(&from), 0);
        assert!(keys(&at(&to), 0).iter().all(|(name, state)| source_keys.get(name) == Some(state)));
    }
}
