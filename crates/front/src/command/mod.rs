//! What is done with which command.
//!
//! One table feeds the sessions, the errors that clients see, and the documentation: [`markdown`] writes
//! `docs/front-commands.md`, and a test compares the two.

pub mod keys;
pub mod plan;

use std::collections::HashMap;
use std::sync::LazyLock;

/// What a command means to the front. What is not in the table is passed on as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handling {
    /// Passed on. From here on replies come without being asked for.
    Subscribe,
    /// Never answered as a client expects, through any proxy that counts replies: refused.
    Refused(&'static str),
    /// The second word decides.
    Container(&'static [(&'static str, Handling)]),
    /// Passed on, and where keys may move later, something of it is remembered.
    Noted(Note),
    /// Passed on as it is.
    Passed,
}

/// What a front has to remember of a command, since it changes what the connection is to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// Another server has to be told the same.
    Trait(Trait),
    /// A transaction begins.
    Multi,
    /// It ends, with all watches.
    Exec,
    /// Keys are watched.
    Watch,
    /// None is any more.
    Unwatch,
    /// Another database.
    Select,
    /// As on a new connection.
    Reset,
}

/// What a client is to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trait {
    /// Its user.
    Login,
    /// Its protocol, and perhaps its user and its name.
    Hello,
    /// Its name.
    Name,
}

impl Note {
    /// What is done while keys move, for the documentation.
    pub(crate) fn described(self) -> &'static str {
        match self {
            Note::Trait(_) => "the target answers; the source is told the same",
            Note::Multi => "the target answers; the keys of what is queued move first",
            Note::Watch => "the keys move first, then the target",
            Note::Exec | Note::Unwatch | Note::Select => "the target answers",
            Note::Reset => "the target answers; the connection to the source is made anew",
        }
    }
}

const TRACKING: &str =
    "invalidations cannot be kept exact once keys move to another server: do without CLIENT TRACKING";
const SILENT: &str = "replies are counted: do without CLIENT REPLY OFF and CLIENT REPLY SKIP";
const FEED: &str = "this is no connection between servers: connect to the server itself";
const MONITOR: &str = "its lines cannot be told from replies: connect to the server itself";

/// The commands that are not simply passed on, in the order of the documentation.
const TABLE: &[(&str, Handling)] = &[
    (
        "CLIENT",
        Handling::Container(&[
            ("TRACKING", Handling::Refused(TRACKING)),
            ("CACHING", Handling::Refused(TRACKING)),
            ("REPLY", Handling::Refused(SILENT)),
            ("SETNAME", Handling::Noted(Note::Trait(Trait::Name))),
        ]),
    ),
    ("AUTH", Handling::Noted(Note::Trait(Trait::Login))),
    ("HELLO", Handling::Noted(Note::Trait(Trait::Hello))),
    ("SELECT", Handling::Noted(Note::Select)),
    ("MULTI", Handling::Noted(Note::Multi)),
    ("EXEC", Handling::Noted(Note::Exec)),
    ("DISCARD", Handling::Noted(Note::Exec)),
    ("WATCH", Handling::Noted(Note::Watch)),
    ("UNWATCH", Handling::Noted(Note::Unwatch)),
    ("RESET", Handling::Noted(Note::Reset)),
    ("SUBSCRIBE", Handling::Subscribe),
    ("PSUBSCRIBE", Handling::Subscribe),
    ("SSUBSCRIBE", Handling::Subscribe),
    ("UNSUBSCRIBE", Handling::Subscribe),
    ("PUNSUBSCRIBE", Handling::Subscribe),
    ("SUNSUBSCRIBE", Handling::Subscribe),
    ("MONITOR", Handling::Refused(MONITOR)),
    ("SYNC", Handling::Refused(FEED)),
    ("PSYNC", Handling::Refused(FEED)),
    ("REPLCONF", Handling::Refused(FEED)),
];

/// No command in the table is longer, so a longer one need not be looked for.
const NAME_BYTES_MAX: usize = 16;

static BY_NAME: LazyLock<HashMap<&'static [u8], Handling>> =
    LazyLock::new(|| TABLE.iter().map(|(name, handling)| (name.as_bytes(), *handling)).collect());

/// Whether the second word of a command has to be known to say what is done with it.
pub(crate) fn is_container(name: &[u8]) -> bool {
    matches!(named(name), Handling::Container(_))
}

/// What is done with a command, by its first word and, where there is one, its second.
pub fn handling(name: &[u8], second: Option<&[u8]>) -> Handling {
    match named(name) {
        Handling::Container(subcommands) => second
            .and_then(|second| {
                subcommands.iter().find(|(name, _)| second.eq_ignore_ascii_case(name.as_bytes()))
            })
            .map_or(Handling::Passed, |(_, handling)| *handling),
        handling => handling,
    }
}

fn named(name: &[u8]) -> Handling {
    let mut upper = [0; NAME_BYTES_MAX];
    let Some(upper) = upper.get_mut(..name.len()) else { return Handling::Passed };
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    BY_NAME.get(&*upper).copied().unwrap_or(Handling::Passed)
}

/// The page of the documentation about all of this.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Commands through the front\n\n\
         Written by the test `the_page_is_the_table` in `crates/front/src/commands.rs`, from the table that the front works \
         by.\n\nEvery client has a connection of its own to the source. What is not listed here is passed on as it is, and so \
         is its reply: commands with keys, of modules too, transactions, scripts, blocking commands, `PUBLISH`, `SCAN`, \
         administration. The rights are those of the client's own user.\n\n\
         ## Before keys move\n\n\
         | command | what the front does |\n|---|---|\n",
    );
    for (name, handling) in TABLE {
        match handling {
            Handling::Container(subcommands) => {
                for (second, handling) in *subcommands {
                    text.push_str(&row(&format!("{name} {second}"), *handling));
                }
                text.push_str(&row(&format!("{name}, anything else"), Handling::Passed));
            }
            handling => text.push_str(&row(name, *handling)),
        }
    }
    text.push_str(
        "\n## While keys move\n\n\
         What is refused above is refused here too. In a transaction only what has keys is taken, and what has nothing to do with \
         them; a command that is refused there makes `EXEC` fail, as any error does. When all keys have moved, everything is passed \
         on to the target as above. After a turn (`whimbrel front reverse`) what is said here of the source is true of the target, and \
         the other way round.\n\n",
    );
    text.push_str(&crate::command::plan::rows());
    text.push_str(
        "\n## Clusters\n\n\
         Where source or target is a cluster, this is what becomes of a command that goes there. In a transaction what goes to several nodes is \
         refused, and `EXEC` fails.\n\n",
    );
    text.push_str(&crate::upstream::cluster::rows());
    text
}

fn row(name: &str, handling: Handling) -> String {
    let what = match handling {
        Handling::Subscribe => {
            "passed on; from here on replies are passed on without being counted".to_owned()
        }
        Handling::Refused(why) => format!("refused: {why}"),
        Handling::Container(_) => "depends on the second word".to_owned(),
        Handling::Noted(_) => {
            "passed on; with `--target` the front remembers what it says of the client".to_owned()
        }
        Handling::Passed => "passed on".to_owned(),
    };
    format!("| `{name}` | {what} |\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `WHIMBREL_WRITE_DOCS=1` writes the page instead.
    #[test]
    fn the_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/front-commands.md");
        if std::env::var_os("WHIMBREL_WRITE_DOCS").is_some() {
            std::fs::write(path, markdown()).expect("the page can be written");
        }
        let page = std::fs::read_to_string(path).expect("the page is there");
        assert_eq!(page, markdown(), "write it anew with WHIMBREL_WRITE_DOCS=1");
    }

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(handling(b"get", None), Handling::Passed);
        assert_eq!(handling(b"multi", None), Handling::Noted(Note::Multi));
        assert_eq!(handling(b"subScribe", None), Handling::Subscribe);
        assert_eq!(handling(b"CLIENT", Some(b"ID")), Handling::Passed);
        assert_eq!(handling(b"CLIENT", None), Handling::Passed);
        assert!(matches!(handling(b"client", Some(b"reply")), Handling::Refused(_)));
        assert_eq!(handling(&[b'x'; 500], None), Handling::Passed);
        assert_eq!(handling(b"", None), Handling::Passed);
    }

    #[test]
    fn no_name_is_longer_than_what_is_looked_for() {
        assert!(TABLE.iter().all(|(name, _)| name.len() <= NAME_BYTES_MAX));
    }
}
