//! What `whimbrel --version` says about this build: its commit, its target, and the versions of the libraries
//! that speak to the network and keep what must not get lost.
//!
//! Nothing here needs git: `WHIMBREL_COMMIT` is the word of who builds, and outside of a repository the
//! commit is unknown. Builds for development do not ask, so that a commit does not compile the binary again.

use std::fmt::Write as _;
use std::process::Command;

/// The libraries that a report of a problem should name.
const LIBRARIES: [&str; 7] = ["tokio", "rustls", "ring", "redb", "hyper", "axum", "clap"];

fn main() {
    println!("cargo:rerun-if-env-changed=WHIMBREL_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../Cargo.lock");
    println!("cargo:rustc-env=WHIMBREL_BUILD_COMMIT={}", commit());
    println!("cargo:rustc-env=WHIMBREL_BUILD_TARGET={}", variable("TARGET"));
    println!("cargo:rustc-env=WHIMBREL_BUILD_LIBRARIES={}", libraries());
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn commit() -> String {
    let named = variable("WHIMBREL_COMMIT");
    if !named.is_empty() {
        return named;
    }
    if variable("PROFILE") == "debug" {
        return "not asked for (a build for development)".to_owned();
    }
    // Where the next commit shows, so that a later build asks again.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
        .unwrap_or_else(|| "unknown (not built in a git repository)".to_owned())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// `NAME VERSION, NAME VERSION` by the lock file; the libraries that this build does not have, or whose lock
/// file is not there, are left out.
fn libraries() -> String {
    let lock = std::fs::read_to_string("../../Cargo.lock").unwrap_or_default();
    let mut found = String::new();
    for name in LIBRARIES {
        let version = lock.split("[[package]]").find_map(|package| {
            let rest = package.split_once(&format!("name = \"{name}\"\nversion = \""))?.1;
            Some(rest.split_once('"')?.0)
        });
        if let Some(version) = version {
            let comma = if found.is_empty() { "" } else { ", " };
            let _ = write!(found, "{comma}{name} {version}");
        }
    }
    found
}
