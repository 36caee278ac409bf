//! What holds for each option that there is.

use std::ffi::OsString;

use clap::error::Error;
use whimbrel_settings::{Surroundings, options, variable, with_paths};

use super::args::Cli;
use super::command;

fn parse(line: &[&str], variables: &[(&str, &str)]) -> Result<Cli, Error> {
    let line: Vec<OsString> = ["whimbrel"].iter().chain(line).map(OsString::from).collect();
    let variable = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
    };
    whimbrel_settings::parse(&command(), &line, Surroundings { variable: &variable, holds_secret: &|_| {} })
}

/// Each option can be set, and no variable means two things.
#[test]
fn every_option_has_a_name_in_files_and_a_variable_of_its_own() {
    const OTHER: [&str; 14] = [
        "WHIMBREL_SOURCE_PASSWORD",
        "WHIMBREL_TARGET_PASSWORD",
        "WHIMBREL_PASSWORD",
        "WHIMBREL_SERVE_PASSWORD",
        "WHIMBREL_STORE_PASSWORD",
        "WHIMBREL_HOOK_SECRET",
        "WHIMBREL_LOG",
        "WHIMBREL_LOG_FORMAT",
        "WHIMBREL_CONFIG",
        "WHIMBREL_PROFILE",
        "WHIMBREL_FAILPOINT",
        "WHIMBREL_FAILPOINT_PAUSE",
        "WHIMBREL_FAILPOINT_FILE",
        // Set by Kubernetes for a service with the name whimbrel.
        "WHIMBREL_PORT",
    ];
    let mut command = command();
    command.build();
    let all = with_paths(&command);
    assert!(all.len() > 20, "{} commands", all.len());
    for (path, sub) in &all {
        for arg in options(sub) {
            let variable = variable(arg);
            assert!(!OTHER.contains(&variable.as_str()), "{variable} of {path:?}");
            assert!(arg.is_positional() || arg.get_long().is_some(), "{arg} of {path:?} has no long name");
        }
    }
}

/// The line that is made of what was typed means what was typed, for lines of every kind.
#[test]
fn nothing_of_what_was_typed_is_lost() {
    let nothing = [("WHIMBREL_NO_COUNTS", "off"), ("WHIMBREL_JSON", "off"), ("WHIMBREL_OPEN_TO_ALL", "off")];
    for line in [
        "status a:1 --no-counts --source-map",
        "copy a b --match x --match y --pattern z --db 1 --db 2:3 -yq --rate-keys=5k --source-user=u",
        "copy --source-tls -- a -b",
        "fleet drain 3 --server a,b --server c --no-wait",
        "front --listen 127.0.0.1:1 --source a start",
        "front start",
        "front --listen 127.0.0.1:1 --source a --target b",
        "jobs --state-dir /tmp/x list",
        "jobs list --state-dir /tmp/x --json",
        "serve --cluster a:1 --listen 127.0.0.1:1",
        "demo copy --keys 5",
        "demo --keys 5",
    ] {
        let line: Vec<&str> = line.split(' ').collect();
        let (plain, merged) = (parse(&line, &[]), parse(&line, &nothing));
        match (plain, merged) {
            (Ok(plain), Ok(merged)) => {
                assert_eq!(format!("{:?}", plain.command), format!("{:?}", merged.command))
            }
            (Err(plain), Err(merged)) => assert_eq!(plain.kind(), merged.kind(), "{line:?}"),
            (plain, merged) => panic!("{line:?}\n{plain:?}\n{merged:?}"),
        }
    }
}
