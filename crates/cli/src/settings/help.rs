//! Which options the help texts show first.

/// The options that `-h` shows, for each command that has many. `--help` shows all.
pub const USUAL: [(&str, &str); 13] = [
    ("assess", "db sample full load source-password-file target-password-file html json"),
    (
        "copy",
        "match db replace skip verify dry-run resume yes source-password-file \
            target-password-file json",
    ),
    ("verify", "match db depth sample settle resume source-password-file target-password-file json"),
    ("sync", "match db mirror dry-run once resume yes source-password-file target-password-file http json"),
    ("cutover", "fence max-pause compare quiet-for reverse-sync back dry-run yes state-dir json"),
    ("reshard", "slots to from count max-pause verify server dry-run yes password-file json"),
    ("rebalance", "weight by use-empty max-pause verify server dry-run yes password-file json"),
    ("drain", "max-pause verify rate-keys server dry-run yes password-file json"),
    (
        "serve",
        "cluster listen listen-password-file http max-pause state-dir password-file fleet \
            backend store",
    ),
    ("front", "listen source target source-password-file target-password-file join"),
    ("status", "no-counts password-file json"),
    ("unfence", "dry-run state-dir password-file json"),
    ("repair", "strays dry-run yes password-file json"),
];

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::USUAL;
    use crate::settings::{self, command};

    fn words(line: &[&str]) -> String {
        let line: Vec<OsString> = ["whimbrel"].iter().chain(line).map(OsString::from).collect();
        settings::parse(&line).expect_err("it is words or an error").to_string()
    }

    #[test]
    fn short_help_fits_a_screen_and_long_help_has_all() {
        let mut whole = command().term_width(100);
        whole.build();
        let mut long_ones = Vec::new();
        for sub in whole.get_subcommands_mut() {
            let (name, long) = (sub.get_name().to_owned(), sub.render_long_help().to_string());
            let lines = sub.render_help().to_string().lines().count();
            if lines > 50 {
                long_ones.push(format!("whimbrel {name} -h has {lines} lines"));
            }
            for arg in sub.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set()) {
                let option = format!("--{}", arg.get_long().expect("it has a long name"));
                assert!(long.contains(&option), "whimbrel {name} --help lacks {option}");
            }
        }
        assert!(long_ones.is_empty(), "{long_ones:?}");
        assert!(whole.render_help().to_string().lines().count() <= 50);
    }

    #[test]
    fn what_short_help_shows_is_there() {
        let whole = command();
        for (name, usual) in USUAL {
            let sub = whole.find_subcommand(name).expect("the command is there");
            for option in usual.split(' ') {
                let arg = sub.get_arguments().find(|arg| arg.get_long() == Some(option));
                assert!(arg.is_some_and(|arg| !arg.is_hide_short_help_set()), "{name} --{option}");
            }
            let short = words(&[name, "-h"]);
            assert!(short.contains(&format!("whimbrel {name} --help shows ")), "{short}");
        }
    }

    #[test]
    fn help_for_what_is_no_command_names_a_similar_one() {
        let error = words(&["help", "cutovr"]);
        assert!(error.contains("'cutover'"), "{error}");
        let error = words(&["help", "fleet", "statsu"]);
        assert!(error.contains("'status'"), "{error}");
    }

    #[test]
    fn choices_are_named_where_an_option_is_missing() {
        let error = words(&["cutover"]);
        assert!(
            error.contains("--fence <FENCE> is one of none, pause, acl, readonly-replica, external"),
            "{error}"
        );
    }
}
