//! Options from files and the environment, on real servers.

use std::fs;
use std::path::Path;

use redis::Value;
use whimbrel_e2e::binary::Invocation;
use whimbrel_lab::{Engine, Server};

const PASSWORD: &str = "not-to-be-shown";

/// A file with all that a copy needs, its password included.
fn configured(folder: &Path, source: &Server, target: &Server) -> String {
    let file = folder.join("whimbrel.toml");
    let text = format!(
        "state-dir = {state:?}\n[copy]\nyes = true\n[profile.night]\nreplace = true\n[profile.night.copy]\n\
            source = \"redis://:{PASSWORD}@{from}\"\ntarget = \"{to}\"\nmatch = [\"a*\", \"b*\"]\n",
        state = folder.join("state"),
        from = source.addr(),
        to = target.addr(),
    );
    fs::write(&file, text).expect("the file is written");
    file.display().to_string()
}

fn servers() -> (Server, Server) {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Redis70).start().expect("the target starts");
    for key in ["a1", "b1", "c1"] {
        source.call(&["SET", key, "new"]);
    }
    target.call(&["SET", "a1", "old"]);
    source.call(&["CONFIG", "SET", "requirepass", PASSWORD]);
    (source, target)
}

/// What the target has of the three keys; nothing where it lacks one.
fn values(target: &Server) -> Vec<String> {
    let Value::Array(values) = target.call(&["MGET", "a1", "b1", "c1"]) else { panic!("no array") };
    let text = |value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).expect("it is text"),
        _ => String::new(),
    };
    values.into_iter().map(text).collect()
}

/// Source, target, password and selection from a file: the password is found, and nothing is asked for.
#[test]
fn a_copy_is_described_by_a_file() {
    let (source, target) = servers();
    let folder = tempfile::tempdir().expect("a folder");
    let config = configured(folder.path(), &source, &target);
    let run = |args: &[&str], variables: &[(&str, &str)]| {
        let args: Vec<&str> = ["copy"].iter().chain(args).copied().collect();
        let mut invocation = Invocation::unasked(&args);
        for (name, value) in variables {
            invocation = invocation.env(name, value);
        }
        invocation.run()
    };
    // What is typed wins over the file: nothing is replaced.
    run(&["--config", &config, "--profile", "night", "--skip"], &[]).expect_code(0);
    assert_eq!(values(&target), ["old", "new", ""]);
    // The environment alone, with the file's own replace.
    let variables = [("WHIMBREL_CONFIG", &*config), ("WHIMBREL_PROFILE", "night"), ("WHIMBREL_MATCH", "a*")];
    let output = run(&[], &variables).expect_code(0);
    assert_eq!(values(&target), ["new", "new", ""]);
    assert!(!output.stdout.contains(PASSWORD) && !output.stderr.contains(PASSWORD));
    // Nothing is contacted where the file makes no sense.
    fs::write(&config, "[copy]\nreplase = true\n").expect("the file is written");
    let output = run(&["--config", &config, &source.addr(), &target.addr()], &[]).expect_code(2);
    let expected = format!("{config}:2: copy has no option replase");
    assert!(output.stderr.contains(&expected), "{}", output.stderr);
}

/// `config show` says where each value comes from, and no password.
#[test]
fn what_is_in_force_is_shown() {
    let (source, target) = servers();
    let folder = tempfile::tempdir().expect("a folder");
    let config = configured(folder.path(), &source, &target);
    let show = |args: &[&str]| {
        let args: Vec<&str> = ["config", "show", "--config", &config, "--profile", "night"]
            .iter()
            .chain(args)
            .copied()
            .collect();
        let output = Invocation::unasked(&args).env("WHIMBREL_LANES", "7").run().expect_code(0);
        assert!(!output.stdout.contains(PASSWORD), "{}", output.stdout);
        output.stdout
    };
    let all = show(&["copy", "--skip"]);
    let line = |option: &str| {
        let found = all.lines().find(|line| line.split_whitespace().next() == Some(option));
        found.unwrap_or_else(|| panic!("no {option} in\n{all}")).to_owned()
    };
    assert!(line("source").contains(&format!(":***@{}", source.addr())), "{all}");
    assert!(line("source").contains(&format!("{config}:7")), "{all}");
    assert!(line("lanes").contains("7") && line("lanes").ends_with("WHIMBREL_LANES"), "{all}");
    assert!(line("skip").ends_with("command line"), "{all}");
    assert!(line("replace").ends_with("not in force: --skip (command line)"), "{all}");
    assert!(line("memory").ends_with("default"), "{all}");
    let sources = show(&[]);
    assert!(sources.contains("WHIMBREL_LANES") && sources.contains("***"), "{sources}");
    assert_eq!(values(&target), ["old", "", ""]);
}

/// What a report of a problem needs.
#[test]
fn the_version_names_the_build() {
    let text = Invocation::unasked(&["--version"]).run().expect_code(0).stdout;
    for part in ["whimbrel ", "\ncommit    ", "\nfeatures  ", "\ntarget    ", "rustls ", "redb "] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let short = Invocation::unasked(&["-V"]).run().expect_code(0).stdout;
    assert_eq!(short.lines().count(), 1, "{short}");
}
