//! Rules that neither compiler nor linter know: what may depend on what, and what may not be in a file.
//!
//! Checks all files that git tracks or would track, and the crates of the workspace. Changes nothing.

mod circles;
mod face;
mod glossary;
mod key_states;
mod lengths;
mod links;
mod prose;
mod script;
mod source;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

use self::circles::Imports;
use self::source::{
    Views, blank, expand_imports, line_of, test_modules, without, without_test_modules, words,
};
use crate::files::{list_files, output_of};
use crate::modules;

/// Checks the repository in the current folder, which must be its root, and prints `path:line: rule: message`
/// for each finding. Fails if there are any, or if the repository cannot be read.
pub fn run() -> anyhow::Result<()> {
    let metadata = read_metadata()?;
    let mut findings: Vec<Finding> = Vec::new();
    for package in &metadata.packages {
        let root = &metadata.workspace_root;
        findings.extend(check_dependencies(package, root));
        findings.extend(check_package_files(package, root)?);
        findings.extend(check_imports(package, root));
    }
    let files = list_files()?;
    findings.extend(face::check(&files)?.map(|message| Finding::new(face::FACE, 1, "face", message)));
    findings
        .extend(modules::check(&files)?.map(|message| Finding::new(modules::FILE, 1, "modules", message)));
    let mut pages = BTreeMap::new();
    for path in &files {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {path}"))?;
        // What is not UTF-8 or has zero bytes is not text.
        if let Some(text) = std::str::from_utf8(&bytes).ok().filter(|text| !text.contains('\0')) {
            findings.extend(check_text(path, text));
            if path.ends_with(".md") {
                pages.insert(path.clone(), text.to_owned());
            }
        }
    }
    findings.extend(check_pages(&pages));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    ensure!(findings.is_empty(), "tidy: {} finding(s)", findings.len());
    println!("tidy: {} files and {} crates, no findings", files.len(), metadata.packages.len());
    Ok(())
}

/// Rules `link`, `contents`, `long-line` and `long-sentence`.
fn check_pages(pages: &BTreeMap<String, String>) -> Vec<Finding> {
    let dead = links::dead(pages, &|path| Path::new(path).exists());
    let dead = dead.into_iter().map(|(path, line, what)| Finding::new(&path, line, "link", what));
    let unlisted = links::unlisted(pages);
    let unlisted =
        unlisted.iter().map(|path| Finding::new(path, 1, "contents", "docs/SUMMARY.md does not name it"));
    let wide = pages.iter().flat_map(|(path, text)| {
        let wide = lengths::of_page(text).into_iter();
        wide.map(|(line, rule, message)| Finding::new(path, line, rule, message))
    });
    let long = pages.iter().flat_map(|(path, text)| {
        prose::long_sentences(path, text).into_iter().map(|(line, words)| {
            let message = format!("a sentence of {words} words, at most {}: divide it", prose::WORDS_MAX);
            Finding::new(path, line, "long-sentence", message)
        })
    });
    dead.chain(unlisted).chain(wide).chain(long).collect()
}

/// One place where a rule is broken.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// Counted from 1.
    line: usize,
    rule: &'static str,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: &'static str, message: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.message)
    }
}

// ---- Crates ----

/// The part of `cargo metadata` that is needed.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: String,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `None` for a normal dependency, else `dev` or `build`.
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: String,
}

fn read_metadata() -> anyhow::Result<Metadata> {
    let json = output_of("cargo", &["metadata", "--no-deps", "--format-version", "1"])?;
    serde_json::from_slice(&json).context("cargo metadata has another form than expected")
}

/// What a crate of ours may depend on among the crates of ours.
struct Arrows {
    name: &'static str,
    /// Normal, build and development dependencies.
    may_use: &'static [&'static str],
    /// Development dependencies in addition to those.
    may_test_with: &'static [&'static str],
}

const CORE: &str = "whimbrel-core";
const WIRE: &str = "whimbrel-wire";
const ENGINE: &str = "whimbrel-engine";
const FLOW: &str = "whimbrel-flow";
const FRONT: &str = "whimbrel-front";
const JUDGE: &str = "whimbrel-judge";
const LAB: &str = "whimbrel-lab";
const LOADGEN: &str = "whimbrel-loadgen";
const CONTROL: &str = "whimbrel-control";
const CONSOLE: &str = "whimbrel-console";
const FLEET: &str = "whimbrel-fleet";
const DEMO: &str = "whimbrel-demo";
const SETTINGS: &str = "whimbrel-settings";
const TERMINAL: &str = "whimbrel-terminal";
const WATCH: &str = "whimbrel-watch";

/// What binaries may use: every library that is not for model checking.
const ALL: &[&str] = &[
    CONSOLE, CONTROL, FRONT, FLEET, FLOW, ENGINE, WIRE, CORE, LOADGEN, LAB, DEMO, SETTINGS, TERMINAL, WATCH,
];

/// The arrows of `docs/architecture.md`. A crate that is missing here is a finding.
const ARROWS: &[Arrows] = &[
    Arrows { name: CORE, may_use: &[], may_test_with: &[] },
    Arrows { name: WIRE, may_use: &[CORE], may_test_with: &[] },
    Arrows { name: ENGINE, may_use: &[WIRE, CORE], may_test_with: &[LAB] },
    Arrows { name: FLOW, may_use: &[ENGINE, WIRE, CORE], may_test_with: &[LAB] },
    Arrows { name: FLEET, may_use: &[ENGINE, WIRE, CORE], may_test_with: &[] },
    Arrows { name: FRONT, may_use: &[FLEET, FLOW, ENGINE, WIRE, CORE], may_test_with: &[CONTROL, LAB] },
    Arrows { name: LAB, may_use: &[], may_test_with: &[] },
    Arrows { name: CONTROL, may_use: &[FLEET, FLOW, ENGINE, WIRE, CORE], may_test_with: &[LAB] },
    Arrows { name: CONSOLE, may_use: &[CONTROL, FLOW, ENGINE, CORE, TERMINAL], may_test_with: &[] },
    Arrows { name: WATCH, may_use: &[CONTROL, FLOW, ENGINE, CORE, TERMINAL], may_test_with: &[] },
    Arrows { name: "whimbrel-sim", may_use: &[CORE], may_test_with: &[] },
    Arrows { name: LOADGEN, may_use: &[LAB], may_test_with: &[] },
    Arrows { name: DEMO, may_use: &[LOADGEN, LAB, CORE], may_test_with: &[] },
    Arrows { name: TERMINAL, may_use: &[], may_test_with: &[] },
    Arrows { name: SETTINGS, may_use: &[], may_test_with: &[] },
    Arrows { name: "whimbrel", may_use: ALL, may_test_with: &[] },
    Arrows { name: "whimbrel-bench", may_use: ALL, may_test_with: &[] },
    Arrows { name: "whimbrel-e2e", may_use: &[JUDGE, LOADGEN, LAB], may_test_with: &[] },
    Arrows { name: JUDGE, may_use: &[LOADGEN], may_test_with: &[] },
    Arrows { name: "xtask", may_use: &[], may_test_with: &[] },
];

/// Crates without I/O, clock and randomness, with their folder.
const PURE_CRATES: [(&str, &str); 2] = [(CORE, "crates/core/"), (WIRE, "crates/wire/")];

/// Libraries that bring what pure crates must not have.
const IMPURE_LIBRARIES: [&str; 11] = [
    "async-std",
    "chrono",
    "fastrand",
    "getrandom",
    "jiff",
    "mio",
    "rand",
    "smol",
    "socket2",
    "time",
    "tokio",
];

/// Rules `arrows` and `pure` for what a manifest says.
fn check_dependencies(package: &Package, root: &str) -> Vec<Finding> {
    let path = from_root(&package.manifest_path, root);
    // The exact line of a dependency is not in the metadata, and not worth a TOML parser.
    let finding = |rule, message: String| Finding::new(path, 1, rule, message);
    let Some(arrows) = ARROWS.iter().find(|arrows| arrows.name == package.name) else {
        let message = format!("{} is not in the table of crates in xtask/src/tidy.rs", package.name);
        return vec![finding("arrows", message)];
    };
    let is_pure = PURE_CRATES.iter().any(|(name, _)| *name == package.name);
    let mut findings = Vec::new();
    for dependency in &package.dependencies {
        let name = dependency.name.as_str();
        let is_dev = dependency.kind.as_deref() == Some("dev");
        let is_ours = ARROWS.iter().any(|arrows| arrows.name == name);
        let allowed = arrows.may_use.contains(&name) || is_dev && arrows.may_test_with.contains(&name);
        if is_ours && !allowed {
            findings.push(finding("arrows", format!("{} may not depend on {name}", package.name)));
        }
        if is_pure && !is_dev && IMPURE_LIBRARIES.contains(&name) {
            findings.push(finding("pure", format!("{} is pure and may not depend on {name}", package.name)));
        }
    }
    findings
}

/// Rules `lints` and `crate-docs`.
fn check_package_files(package: &Package, root: &str) -> anyhow::Result<Vec<Finding>> {
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    let mut findings = Vec::new();
    findings.extend(check_lints(from_root(&package.manifest_path, root), &read(&package.manifest_path)?));
    for target in &package.targets {
        if target.kind.iter().any(|kind| kind.ends_with("lib") || kind == "bin") {
            findings.extend(check_crate_docs(from_root(&target.src_path, root), &read(&target.src_path)?));
        }
    }
    Ok(findings)
}

/// The modules at the top of crates with an order, from the top down: none uses one that stands before it.
const ORDERS: &[(&str, &[&str])] = &[
    (
        FRONT,
        &[
            "fleet", "counted", "control", "server", "session", "migrate", "upstream", "face", "command",
            "pipe", "exposure",
        ],
    ),
    ("whimbrel", &["commands", "ui", "settings", "signals", "exit", "version"]),
    (
        "whimbrel-console",
        &[
            "server",
            "routes",
            "stream",
            "checks",
            "orders",
            "reading",
            "inner",
            "remembered",
            "plans",
            "cluster",
            "runs",
            "canaries",
            "mover",
            "snapshot",
            "shown",
            "interface",
            "page",
            "audit",
            "tokens",
            "counted",
            "failure",
            "files",
            "again",
            "report",
        ],
    ),
];

/// Rules `circle` and `order`: no circle of imports among the modules of a crate, and no arrow up where it
/// has an order.
fn check_imports(package: &Package, root: &str) -> Vec<Finding> {
    let is_source = |target: &&Target| target.kind.iter().any(|kind| kind.ends_with("lib") || kind == "bin");
    let mut findings = Vec::new();
    for target in package.targets.iter().filter(is_source) {
        let path = from_root(&target.src_path, root);
        let imports = Imports::of_crate(&target.src_path, &|path| std::fs::read_to_string(path).ok());
        findings.extend(imports.circles().into_iter().map(|circle| Finding::new(path, 1, "circle", circle)));
        let order = ORDERS.iter().find(|(name, _)| *name == package.name);
        let broken = order.map(|(_, order)| imports.against(order)).unwrap_or_default();
        findings.extend(broken.into_iter().map(|arrow| Finding::new(path, 1, "order", arrow)));
    }
    findings
}

fn check_lints(path: &str, manifest: &str) -> Option<Finding> {
    let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    let inherited = lines.by_ref().take_while(|line| !line.starts_with('[')).any(|line| {
        line.split_once('=').is_some_and(|(key, value)| key.trim() == "workspace" && value.trim() == "true")
    });
    (!inherited).then(|| Finding::new(path, 1, "lints", "the crate must inherit [lints] workspace = true"))
}

fn check_crate_docs(path: &str, source: &str) -> Option<Finding> {
    (!source.starts_with("//!"))
        .then(|| Finding::new(path, 1, "crate-docs", "a crate starts with //! and what it is for"))
}

fn from_root<'a>(path: &'a str, root: &str) -> &'a str {
    path.strip_prefix(root).map_or(path, |rest| rest.trim_start_matches('/'))
}

// ---- Text ----

// The words below are put together from parts, so that this file does not break its own rules.

/// Hosts that the repository does not name: where packages come from is the business of who builds.
const REGISTRY_HOSTS: [&str; 11] = [
    concat!("deb.debian", ".org"),
    concat!("security.debian", ".org"),
    concat!("ftp.debian", ".org"),
    concat!("snapshot.debian", ".org"),
    concat!("crates", ".io"),
    concat!("static.rust-lang", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("sum.golang", ".org"),
    concat!("pypi", ".org"),
    concat!("registry.npmjs", ".org"),
    concat!("docker", ".io"),
];

/// Folders that exist on somebody's machine only.
const MACHINE_PATHS: [&str; 3] = [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/")];

const MARKERS: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];

const VERSION_FIELDS: [&str; 2] = [concat!("redis", "_version"), concat!("valkey", "_version")];

/// Crates that may know which version a server has: `engine` for the product, `lab` for tests.
const VERSION_CRATES: [&str; 2] = ["crates/engine/", "crates/lab/"];

/// All rules for the text of one file.
fn check_text(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if path.starts_with("fuzz/seeds/") {
        // Input for a fuzzer is bytes, whatever it looks like.
        return findings;
    }
    // Not `lines`, which would hide a carriage return.
    for (index, line) in text.split_terminator('\n').enumerate() {
        let mut found = |rule, message: String| findings.push(Finding::new(path, index + 1, rule, message));
        if line.ends_with(char::is_whitespace) {
            found("white-space", "white space at the end of the line".to_owned());
        }
        for marker in MARKERS {
            if !words(line, marker).is_empty() && !names_issue(line) {
                found("marker", format!("{marker} without the number of an issue, as in #12"));
            }
        }
        // Cargo writes the name of its registry into lock files.
        if !path.ends_with("Cargo.lock") {
            for host in REGISTRY_HOSTS.into_iter().filter(|host| line.contains(host)) {
                found("registry", format!("names the package registry {host}"));
            }
        }
        for folder in MACHINE_PATHS.into_iter().filter(|folder| has_absolute_path(line, folder)) {
            found("machine-path", format!("a path of somebody's machine: {folder}"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        findings.push(Finding::new(path, text.lines().count(), "final-newline", "no newline at the end"));
    }
    let phrases = glossary::private_phrases(path, text).into_iter();
    findings.extend(phrases.map(|(line, phrase, instead)| {
        Finding::new(path, line, "glossary", format!("{phrase}: write {instead}"))
    }));
    let long = lengths::of_source(path, text).into_iter();
    findings.extend(long.map(|(line, rule, message)| Finding::new(path, line, rule, message)));
    if path.ends_with(".rs") {
        findings.extend(check_rust(path, text));
    }
    if path.ends_with(".lua") {
        findings.extend(key_states(path, &text.replace('\'', "\"")));
    }
    findings
}

/// Whether `#` and a number are in the line.
fn names_issue(line: &str) -> bool {
    line.split('#').skip(1).any(|after| after.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether `folder` is in the line as the start of a path, not in the middle of a longer one or of an
/// address.
fn has_absolute_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.~}$)*>/".contains(c))
    })
}

/// The rules for Rust files.
fn check_rust(path: &str, text: &str) -> Vec<Finding> {
    let views = Views::of(text);
    let mut findings = Vec::new();
    let long = lengths::of_functions(&views.code, "fn").into_iter();
    findings.extend(long.map(|(line, rule, message)| Finding::new(path, line, rule, message)));
    for (index, line) in views.code.lines().enumerate() {
        let compact: String = line.split_whitespace().collect();
        if compact.contains("#[allow(") || compact.contains("#![allow(") {
            let message = "use #[expect(…, reason = \"…\")]";
            findings.push(Finding::new(path, index + 1, "allow", message));
        }
        if compact.contains("dbg!") {
            findings.push(Finding::new(path, index + 1, "dbg", "left over from debugging"));
        }
    }
    let names = glossary::private_names(&views.code).into_iter();
    findings.extend(names.map(|(line, name)| {
        let message = format!("{name} is a private word: docs/glossary.md has that of the field");
        Finding::new(path, line, "glossary", message)
    }));
    let in_crate_source = path.starts_with("crates/") && path.contains("/src/");
    if in_crate_source && !VERSION_CRATES.iter().any(|folder| path.starts_with(folder)) {
        for (index, line) in views.code_and_strings.lines().enumerate() {
            for field in VERSION_FIELDS.into_iter().filter(|field| line.contains(field)) {
                let message = format!("{field}: only crates/engine knows server versions");
                findings.push(Finding::new(path, index + 1, "server-version", message));
            }
        }
    }
    if in_crate_source
        && LIBRARIES.iter().any(|folder| path.starts_with(folder))
        && !FLAGS_ALLOWED.contains(&path)
    {
        findings.extend(check_flags(path, &without(&views.code_and_strings, &test_modules(&views.code))));
    }
    let is_pure = PURE_CRATES.iter().any(|(_, folder)| path.starts_with(folder));
    let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
    if in_crate_source && !is_test {
        findings.extend(key_states(path, &without(&views.code_and_strings, &test_modules(&views.code))));
    }
    if is_pure && in_crate_source && !is_test {
        findings.extend(check_pure(path, &without_test_modules(&views.code)));
    }
    findings
}

/// Crates that know nothing of the command line: what to do about an error is a variant of theirs, and the
/// flags are named in `cli/src/ui/remedies.rs`.
const LIBRARIES: [&str; 8] = [
    "crates/core/",
    "crates/wire/",
    "crates/engine/",
    "crates/flow/",
    "crates/fleet/",
    "crates/front/",
    "crates/control/",
    "crates/terminal/",
];

/// Files of libraries that may name flags: they write documents and answers for people who run a front, and
/// the arguments that continue a job, which its state has for programs.
const FLAGS_ALLOWED: [&str; 3] = [
    "crates/control/src/naming.rs",
    "crates/front/src/command/documentation.rs",
    "crates/front/src/command/rule.rs",
];

/// Rule `flag` for code and strings without comments and tests.
fn check_flags(path: &str, text: &str) -> Vec<Finding> {
    let is_flag = |at: &usize| {
        let (before, after) = (text[..*at].chars().next_back(), &text[at + 2..]);
        before.is_none_or(|c| c != '-') && after.starts_with(|c: char| c.is_ascii_lowercase() || c == '{')
    };
    let places = text.match_indices("--").map(|(at, _)| at).filter(is_flag);
    let message = "a library names a flag: have it be a Remedy, and cli/src/ui/remedies.rs name it";
    places.map(|at| Finding::new(path, line_of(text, at), "flag", message)).collect()
}

/// Rule `key-states` for code and strings without comments and tests.
fn key_states(path: &str, text: &str) -> Vec<Finding> {
    let named = key_states::named(path, text).into_iter();
    named.map(|(line, message)| Finding::new(path, line, "key-states", message)).collect()
}

/// Modules and items that pure crates must not use.
const IMPURE_PATHS: [&str; 11] = [
    "std::time::Instant",
    "std::time::SystemTime",
    "std::time::UNIX_EPOCH",
    "std::net",
    "std::fs",
    "std::io",
    "std::env",
    "std::process",
    "std::thread",
    "tokio",
    "rand",
];

/// What is pure in spite of its path: a borrowed range of bytes, which `bytes::Buf` speaks of.
const PURE_PATHS: [&str; 1] = ["std::io::IoSlice"];

/// Imports of whole modules, behind which an impure item could hide.
const HIDING_PATHS: [&str; 5] = ["std", "std::*", "std::time", "std::time::self", "std::time::*"];

const PRINTING_MACROS: [&str; 4] = ["print", "println", "eprint", "eprintln"];

/// Rule `pure` for code without comments, strings and tests.
fn check_pure(path: &str, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |at: usize, what: &str| {
        let line = line_of(code, at);
        findings.push(Finding::new(path, line, "pure", format!("{what} in a crate without I/O and clock")));
    };
    let mut rest = code.to_owned();
    for start in words(code, "use") {
        let end = code[start..].find(';').map_or(code.len(), |length| start + length);
        for import in expand_imports(&code[start + "use".len()..end]) {
            let import = import.trim_start_matches("::");
            let is_impure = |path: &str| {
                import.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            };
            let impure = IMPURE_PATHS.into_iter().any(is_impure) || HIDING_PATHS.contains(&import);
            if impure && !PURE_PATHS.contains(&import) {
                found(start, import);
            }
        }
        rest.replace_range(start..end, &blank(&code[start..end]));
    }
    for impure in IMPURE_PATHS {
        for at in words(&rest, impure) {
            if PURE_PATHS.into_iter().any(|pure| words(&rest[at..], pure).first() == Some(&0)) {
                continue;
            }
            // A name such as `rand` is only suspicious as the start of a path.
            if impure.contains("::") || rest[at + impure.len()..].starts_with("::") {
                found(at, impure);
            }
        }
    }
    for name in PRINTING_MACROS {
        for at in words(&rest, name).into_iter().filter(|at| rest[at + name.len()..].starts_with('!')) {
            found(at, name);
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Findings as `line rule`.
    fn found(path: &str, text: &str) -> Vec<String> {
        check_text(path, text).iter().map(|finding| format!("{} {}", finding.line, finding.rule)).collect()
    }

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        Package {
            name: name.to_owned(),
            manifest_path: "Cargo.toml".to_owned(),
            dependencies: dependencies
                .iter()
                .map(|(name, kind)| Dependency { name: (*name).to_owned(), kind: kind.map(str::to_owned) })
                .collect(),
            targets: Vec::new(),
        }
    }

    #[test]
    fn arrows() {
        let broken = |name, dependencies: &[(&str, Option<&str>)]| {
            check_dependencies(&package(name, dependencies), "")
                .into_iter()
                .map(|f| f.message)
                .collect::<Vec<_>>()
        };
        assert!(broken(WIRE, &[(CORE, None), ("bytes", None)]).is_empty());
        assert!(broken(ENGINE, &[(LAB, Some("dev")), ("tokio", None)]).is_empty());
        assert!(broken("whimbrel", &[(LAB, None), (FLOW, None)]).is_empty());
        assert_eq!(broken(CORE, &[(WIRE, None)]), ["whimbrel-core may not depend on whimbrel-wire"]);
        assert_eq!(
            broken(WIRE, &[(ENGINE, Some("build"))]),
            ["whimbrel-wire may not depend on whimbrel-engine"]
        );
        assert_eq!(broken(ENGINE, &[(LAB, None)]), ["whimbrel-engine may not depend on whimbrel-lab"]);
        assert_eq!(broken(FLOW, &[("whimbrel", Some("dev"))]), ["whimbrel-flow may not depend on whimbrel"]);
        assert!(broken("whimbrel-bench", &[(CONTROL, None), (LOADGEN, None)]).is_empty());
        assert_eq!(broken(LOADGEN, &[(CORE, None)]), ["whimbrel-loadgen may not depend on whimbrel-core"]);
        assert_eq!(broken("whimbrel-e2e", &[(FLOW, None)]), ["whimbrel-e2e may not depend on whimbrel-flow"]);
        assert_eq!(broken(JUDGE, &[(ENGINE, None)]), ["whimbrel-judge may not depend on whimbrel-engine"]);
        assert_eq!(
            broken("whimbrel-demo", &[(FLOW, None)]),
            ["whimbrel-demo may not depend on whimbrel-flow"]
        );
        assert_eq!(broken("new", &[]), ["new is not in the table of crates in xtask/src/tidy.rs"]);
    }

    #[test]
    fn pure_crates_have_pure_dependencies() {
        let rules = |name, dependencies: &[(&str, Option<&str>)]| {
            check_dependencies(&package(name, dependencies), "")
                .into_iter()
                .map(|f| f.rule)
                .collect::<Vec<_>>()
        };
        assert_eq!(rules(CORE, &[("tokio", None)]), ["pure"]);
        assert_eq!(rules(WIRE, &[("rand", Some("build"))]), ["pure"]);
        assert!(rules(WIRE, &[("rand", Some("dev")), ("crc", None)]).is_empty());
        assert!(rules(LAB, &[("rand", None)]).is_empty());
    }

    #[test]
    fn lints_are_inherited() {
        let inherits = |manifest| check_lints("Cargo.toml", manifest).is_none();
        assert!(inherits("[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"));
        assert!(inherits("[lints]\nworkspace=true\n[dependencies]\n"));
        assert!(!inherits("[package]\nname = \"a\"\n"));
        assert!(!inherits("[lints]\n[dependencies]\nworkspace = true\n"));
        assert!(!inherits("[lints]\nworkspace = false\n"));
    }

    #[test]
    fn crates_say_what_they_are_for() {
        assert_eq!(check_crate_docs("lib.rs", "//! Words.\n"), None);
        assert!(check_crate_docs("lib.rs", "\n//! Words.\n").is_some());
        assert!(check_crate_docs("lib.rs", "/// Words.\n").is_some());
    }

    #[test]
    fn the_ends_of_lines_and_files() {
        assert!(found("a.md", "a\n\nb\n").is_empty());
        assert!(found("a.md", "").is_empty());
        assert_eq!(found("a.md", "a \nb\t\n \n"), ["1 white-space", "2 white-space", "3 white-space"]);
        assert_eq!(found("a.md", "a\r\nb\n"), ["1 white-space"]);
        assert_eq!(found("a.md", "a\nb"), ["2 final-newline"]);
    }

    #[test]
    fn markers_name_an_issue() {
        for marker in MARKERS {
            assert_eq!(found("a.rs", &format!("// a\n// {marker}: later\n")), ["2 marker"]);
            assert_eq!(found("a.sh", &format!("# {marker} later\n")), ["1 marker"]);
            assert!(found("a.rs", &format!("// {marker}(#12): later\n")).is_empty());
            assert!(found("a.rs", &format!("// {marker}S and x{marker} are words\n")).is_empty());
        }
    }

    #[test]
    fn registries_are_not_named() {
        for host in REGISTRY_HOSTS {
            assert_eq!(found("a.md", &format!("see https://{host}/x\n")), ["1 registry"]);
            assert!(found("Cargo.lock", &format!("source = \"{host}\"\n")).is_empty());
            assert!(found("fuzz/Cargo.lock", &format!("source = \"{host}\"\n")).is_empty());
        }
        assert!(found("a.md", "see debian.org, docs.rs\n").is_empty());
    }

    #[test]
    fn machines_are_not_shown() {
        for folder in MACHINE_PATHS {
            assert_eq!(found("a.sh", &format!("cd {folder}x\n")), ["1 machine-path"]);
            assert_eq!(found("a.sh", &format!("\"{folder}x\"\n")), ["1 machine-path"]);
            assert!(found("a.sh", &format!("cd $dir{folder}x ../a{folder}x ${{d}}{folder}\n")).is_empty());
        }
    }

    #[test]
    fn lengths_are_checked() {
        assert_eq!(found("a.rs", &"//\n".repeat(801)), ["801 long-file"]);
        assert_eq!(found("a.rs", &format!("fn a() {{\n{}}}\n", "//\n".repeat(99))), ["1 long-function"]);
        assert_eq!(found("dev", &format!("# {}\n", "a".repeat(109))), ["1 long-line"]);
        assert!(found("a.md", &"//\n".repeat(801)).is_empty());
    }

    #[test]
    fn leftovers() {
        assert_eq!(found("a.rs", "#[allow(dead_code)]\nfn a() {}\n"), ["1 allow"]);
        assert_eq!(found("a.rs", "#![allow(dead_code)]\n"), ["1 allow"]);
        assert_eq!(found("a.rs", "fn a() {\n    dbg!(1);\n}\n"), ["2 dbg"]);
        assert!(found("a.rs", "// dbg!(1)\nfn a() -> &str { \"#[allow(x)] dbg!(1)\" }\n").is_empty());
        assert!(found("a.rs", "#[expect(dead_code, reason = \"r\")]\n").is_empty());
    }

    #[test]
    fn only_engine_knows_versions() {
        for field in VERSION_FIELDS {
            let source = format!("// {field}\nfn a(info: &str) {{ info.find(\"{field}:\") }}\n");
            assert_eq!(found("crates/flow/src/a.rs", &source), ["2 server-version"]);
            assert_eq!(found("crates/cli/src/main.rs", &source), ["2 server-version"]);
            for elsewhere in ["crates/engine/src/probe.rs", "crates/lab/src/lib.rs", "e2e/tests/a.rs"] {
                assert!(found(elsewhere, &source).is_empty(), "{elsewhere}");
            }
        }
    }

    #[test]
    fn states_of_keys_have_one_place() {
        let source = "fn a(link: &mut Link) { link.push(&[b\"DUMP\", key]); }\n// \"DUMP\"\n";
        assert_eq!(found("crates/flow/src/slots/lane.rs", source), ["1 key-states"]);
        assert_eq!(found("crates/front/src/migrate/carry.rs", source), ["1 key-states"]);
        for place in ["crates/flow/src/keys/read.rs", "crates/flow/src/verify/batch.rs", "e2e/src/lib.rs"] {
            assert!(found(place, source).is_empty(), "{place}");
        }
        let test = format!("#[cfg(test)]\nmod tests {{\n    {source}}}\n");
        assert!(found("crates/flow/src/slots/lane.rs", &test).is_empty());
        for command in ["UNLINK", "DEL", "STRLEN", "HGETALL", "SMEMBERS", "LRANGE", "ZRANGE", "XRANGE"] {
            let source = format!("fn a(link: &mut Link) {{ link.push(&[b\"{command}\", key]); }}\n");
            assert_eq!(found("crates/front/src/migrate/x.rs", &source), ["1 key-states"], "{command}");
            assert_eq!(found("crates/control/src/repair/x.rs", &source), ["1 key-states"], "{command}");
            for place in ["crates/flow/src/keys/x.rs", "crates/front/src/command/x.rs", "crates/lab/src/x.rs"]
            {
                assert!(found(place, &source).is_empty(), "{command} {place}");
            }
        }
        let script = "return redis.call('DUMP', KEYS[1])\n";
        assert_eq!(found("crates/front/src/fleet/carrier/fence.lua", script), ["1 key-states"]);
        assert!(found("crates/flow/src/keys/restore.lua", script).is_empty());
        assert_eq!(
            found("crates/engine/src/nodes/counts.rs", "const A: &str = \"GETKEYSINSLOT\";\n").len(),
            1
        );
        assert!(found("crates/cli/src/main.rs", "fn a() -> &str { \"DUMP of a key\" }\n").is_empty());
    }

    #[test]
    fn pure_crates_do_no_io() {
        let in_core = |source: &str| found("crates/core/src/a.rs", source);
        let impure = [
            "use std::fs;",
            "use std::{fmt, io::{self, Read}};",
            "use std::{\n    net::IpAddr,\n};",
            "use std::time::{Duration, Instant};",
            "use std::time;",
            "use std::time::*;",
            "use ::std::env as e;",
            "pub use tokio::net;",
            "fn a() { let b = std::time::SystemTime::now(); }",
            "fn a() { std::thread::yield_now() }",
            "fn a() { rand::random() }",
            "fn a() { println!() }",
            "fn a(b: std::io::IoSliceMut<'_>) {}",
            "use std::io::{IoSlice, Read};",
        ];
        for source in impure {
            assert!(!in_core(&format!("{source}\n")).is_empty(), "{source}");
            assert!(found("crates/flow/src/a.rs", &format!("{source}\n")).is_empty(), "{source}");
        }
        assert_eq!(in_core("\nuse std::fs::{self, File};\n"), ["2 pure", "2 pure"]);
        let pure = [
            "use std::time::Duration;",
            "use std::io::IoSlice;",
            "fn a(b: &mut [std::io::IoSlice<'_>]) {}",
            "use std::{collections::BTreeMap, fmt};",
            "use std::iter; use crate::io; use super::net::a;",
            "// std::fs\nfn a() -> &'static str { \"std::fs\" }",
            "fn a(rand: u64, tokio: &'static str) { rand }",
            "#[cfg(test)]\nmod tests {\n    use std::fs;\n    fn a() { std::io::empty(); }\n}",
            "#[cfg(test)]\nmod tests;",
        ];
        for source in pure {
            assert_eq!(in_core(&format!("{source}\n")), [""; 0], "{source}");
        }
        assert_eq!(in_core("#[cfg(test)]\nmod tests {\n    fn a() {}\n}\nuse std::fs;\n"), ["5 pure"]);
        assert!(found("crates/core/src/tests.rs", "use std::fs;\n").is_empty());
        assert!(found("crates/wire/tests/a.rs", "use std::fs;\n").is_empty());
    }

    #[test]
    fn libraries_name_no_flags() {
        let text = "/// As `--max-pause` says.\nconst A: &str = \"x --max-pause\";\n\
            const B: &str = \"a -- b --{side}-ca\";\n\
            #[cfg(test)]\nmod tests {\n    const C: &str = \"--json\";\n}\n";
        assert_eq!(found("crates/flow/src/a.rs", text), ["2 flag", "3 flag"]);
        assert!(found("crates/cli/src/a.rs", text).is_empty());
        assert!(found("crates/front/src/command/rule.rs", text).is_empty());
    }
}
