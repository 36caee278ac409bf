//! Keyspace notifications.
//!
//! `PSUBSCRIBE __keyevent@*__:*` has the server publish the name of every key that changes, on a channel that
//! names the database and the event. Four things are not published, and each is looked after in another way:
//!
//! - **What the setting leaves out.** `notify-keyspace-events` has to name every class of events. It is read
//!   when the feed is attached and again with every sign of life: if it was turned off, the feed ends. It may
//!   be turned off and on again within that second: if settings were changed, nothing is certain. Servers
//!   before 7.0 do not report that.
//! - **Databases that are emptied or exchanged**, and a server that becomes another's replica for a while.
//!   The server counts the calls of the commands that do it, so these are looked at as often, and before each
//!   barrier is answered. If a count has become smaller, the counts were reset, and nothing is certain.
//! - **Consumer groups, and functions**, much as with tracking.
//! - **Keys of some modules**: vector sets, everything of the module `bf`, and suggestions of `search`. The
//!   feed names these types, for the keys of them to be transferred again. Of modules that are not known here
//!   nothing is known either.

use std::collections::BTreeMap;

use whimbrel_wire::value::Value;

use super::asking::ask_for_pushes;
use super::progress::FeedFailure;
use super::touched::TouchedSet;
use crate::error::{Result, ServerError};
use crate::link::Link;
use crate::probe::Info;

/// What is subscribed to. A user's right to it has to be given in these very words.
const PATTERN: &str = "__keyevent@*__:*";

const SETTING: &str = "notify-keyspace-events";

/// The classes of events that `A` stands for, with those of modules.
const CLASSES: &str = "g$lszhxetd";

/// Commands after which any key may be another one, and one after which changes may have gone unpublished:
/// servers before 7.0 count it together with `CONFIG GET`, under another name.
const SWEEPING: [&str; 6] = ["flushall", "flushdb", "swapdb", "replicaof", "slaveof", "config|set"];

/// A module, as `INFO modules` names it, and the types of its keys that publish nothing.
const MODULES: [(&str, &[&str]); 8] = [
    ("vectorset", &["vectorset"]),
    ("bf", &["MBbloom--", "MBbloomCF", "CMSk-TYPE", "TopK-TYPE", "TDIS-TYPE", "bloomfltr"]),
    ("search", &["trietype0"]),
    ("ft", &["trietype0"]),
    ("ReJSON", &[]),
    ("json", &[]),
    ("timeseries", &[]),
    // Valkey's scripts, which have no keys.
    ("lua", &[]),
];

/// What a server is asked again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// Is it a primary?
    Role,
    /// How often was each command called?
    Calls,
    /// Which events does it publish?
    Setting,
}

impl Question {
    pub(super) fn command(self) -> &'static [&'static [u8]] {
        match self {
            Question::Role => &[b"INFO", b"replication"],
            Question::Calls => &[b"INFO", b"commandstats"],
            Question::Setting => &[b"CONFIG", b"GET", b"notify-keyspace-events"],
        }
    }
}

/// Modules that publish nothing of their own: Redis has them built in.
const SILENT_MODULES: [&str; 2] = ["lua", "vectorset"];

/// What is known of the source of notifications.
#[derive(Debug)]
pub(super) struct Notifications {
    calls: Calls,
    /// There are keys of modules.
    has_modules: bool,
    /// The setting may be read.
    is_setting_known: bool,
    /// Types of keys that publish nothing.
    pub(super) unseen_types: Vec<&'static str>,
    /// What could not be checked, in words.
    pub(super) unproven: Vec<String>,
}

impl Notifications {
    /// Subscribes on `link`, or says why that will not do. What cannot be checked is accepted only if this
    /// kind of feed `is_asked_for`.
    pub(super) async fn begin(link: &mut Link, is_asked_for: bool) -> Result<Result<Notifications, String>> {
        let modules = link.ask(&[b"INFO", b"modules"]).await?;
        let modules = modules.as_bytes().map(|text| modules_of(text)).unwrap_or_default();
        let mut found = Notifications {
            calls: Calls::default(),
            has_modules: modules.iter().any(|name| !SILENT_MODULES.contains(&name.as_str())),
            is_setting_known: true,
            unseen_types: unseen_types(link, &modules).await?,
            unproven: Vec::new(),
        };
        let unknown: Vec<&str> = modules
            .iter()
            .map(String::as_str)
            .filter(|name| MODULES.iter().all(|(known, _)| known != name))
            .collect();
        if !unknown.is_empty() {
            found.unproven.push(format!("whether {} publishes what changes its keys", unknown.join(", ")));
        }
        let setting = link.ask(Question::Setting.command()).await?;
        match ServerError::of(&setting) {
            Some(e) => {
                found.is_setting_known = false;
                found
                    .unproven
                    .push(format!("whether {SETTING} is AE there, since CONFIG GET is refused ({})", e.text));
            }
            None => {
                if let Some(why) = found.lacks(&setting) {
                    return Ok(Err(why));
                }
            }
        }
        if !is_asked_for && !found.unproven.is_empty() {
            return Ok(Err(format!("it cannot be checked {}", found.unproven.join(", and "))));
        }
        // Counted first, so that a call between this and the subscription counts as one afterwards.
        let reply = link.ask(Question::Calls.command()).await?;
        let Some(calls) = reply.as_bytes().map(|text| Calls::parse(text)).filter(|calls| !calls.0.is_empty())
        else {
            let why = "the server does not say how often commands were called (INFO commandstats), which \
                       alone shows a FLUSHALL";
            return Ok(Err(why.to_owned()));
        };
        found.calls = calls;
        let asked = ask_for_pushes(link, &[b"PSUBSCRIBE", PATTERN.as_bytes()]).await?;
        let channel = format!("it takes the right on PSUBSCRIBE and on the channels &{PATTERN}");
        Ok(asked.map(|()| found).map_err(|why| format!("{why}; {channel}")))
    }

    /// What is asked with each sign of life, and before each barrier.
    pub(super) fn questions(&self) -> &'static [Question] {
        match self.is_setting_known {
            true => &[Question::Role, Question::Calls, Question::Setting],
            false => &[Question::Role, Question::Calls],
        }
    }

    /// Takes in an answer.
    pub(super) fn answered(
        &mut self,
        question: Question,
        reply: &Value,
        set: &mut TouchedSet,
    ) -> Result<(), FeedFailure> {
        match (question, reply.as_bytes()) {
            (Question::Role, Some(text)) => {
                if let Some("slave" | "replica") = Info::parse(text).field("role") {
                    return Err(FeedFailure::Demoted);
                }
            }
            (Question::Calls, Some(text)) => {
                let calls = Calls::parse(text);
                if calls.may_have_swept(&self.calls) {
                    set.flush();
                }
                self.calls = calls;
            }
            (Question::Setting, _) => {
                if let Some(why) = self.lacks(reply) {
                    return Err(FeedFailure::Muted { why });
                }
            }
            (Question::Role | Question::Calls, None) => {
                let cause = "the server no longer answers INFO".to_owned();
                return Err(FeedFailure::Malformed { cause });
            }
        }
        Ok(())
    }

    /// Why the setting is not enough, if it is not.
    fn lacks(&self, reply: &Value) -> Option<String> {
        let setting = reply.field(SETTING).and_then(Value::as_str).unwrap_or_default();
        let lacking = lacking(setting, self.has_modules);
        (!lacking.is_empty()).then(|| {
            let enough = enough(setting);
            format!("{SETTING} is \"{setting}\" there and lacks {lacking}: {enough} would do")
        })
    }

    /// Records what a push reports.
    pub(super) fn record(push: &[Value], set: &mut TouchedSet) {
        let [kind, _, channel, key] = push else { return };
        if kind.as_str() != Some("pmessage") {
            return;
        }
        if let Some(key) = key.as_bytes() {
            set.whole(channel.as_str().and_then(db_of), key);
        }
    }
}

/// The database of `__keyevent@DB__:EVENT`.
fn db_of(channel: &str) -> Option<u32> {
    channel.strip_prefix("__keyevent@")?.split_once("__:")?.0.parse().ok()
}

/// The letters that a setting needs and does not have.
fn lacking(setting: &str, has_modules: bool) -> String {
    let classes = CLASSES.chars().filter(|class| *class != 'd' || has_modules);
    let needed = classes.filter(|class| !setting.contains('A') && !setting.contains(*class));
    needed.chain((!setting.contains('E')).then_some('E')).collect()
}

/// A setting that publishes everything that this one does, and what is needed.
fn enough(setting: &str) -> String {
    let more = setting.chars().filter(|letter| !CLASSES.contains(*letter) && !"AE".contains(*letter));
    "AE".chars().chain(more).collect()
}

/// The names of the modules in the answer to `INFO modules`.
fn modules_of(text: &[u8]) -> Vec<String> {
    // There is a line for each with the same name of a field.
    let text = String::from_utf8_lossy(text);
    let names = text.lines().filter_map(|line| line.trim_end().strip_prefix("module:name="));
    names.filter_map(|line| line.split(',').next()).map(str::to_owned).collect()
}

/// The types of these modules' keys that publish nothing.
async fn unseen_types(link: &mut Link, modules: &[String]) -> Result<Vec<&'static str>> {
    let mut types = Vec::new();
    for (_, unseen) in MODULES.iter().filter(|(name, _)| modules.iter().any(|module| module == name)) {
        for name in *unseen {
            // Modules of one name are not the same everywhere, and some servers refuse types they lack.
            let known = link.ask(&[b"SCAN", b"0", b"COUNT", b"1", b"TYPE", name.as_bytes()]).await?;
            if ServerError::of(&known).is_none() && !types.contains(name) {
                types.push(*name);
            }
        }
    }
    Ok(types)
}

/// How often each command was called.
#[derive(Debug, Default)]
struct Calls(BTreeMap<String, u64>);

impl Calls {
    fn parse(text: &[u8]) -> Calls {
        let info = Info::parse(text);
        let calls = |(name, value): (&str, &str)| {
            let calls = value.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
            Some((name.strip_prefix("cmdstat_")?.to_ascii_lowercase(), calls))
        };
        Calls(info.fields().filter_map(calls).collect())
    }

    fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Whether any key may have become another one since `before`: by a command that does so, or by one that
    /// was forgotten when the counts were reset.
    fn may_have_swept(&self, before: &Calls) -> bool {
        SWEEPING.iter().any(|name| self.of(name) != before.of(name))
            || before.0.iter().any(|(name, calls)| self.of(name) < *calls)
    }
}

#[cfg(test)]
mod tests {
    use super::{Calls, db_of, enough, lacking, modules_of};

    #[test]
    fn a_setting_lacks_what_it_does_not_name() {
        assert_eq!(lacking("AE", true), "");
        assert_eq!(lacking("AKE", true), "");
        assert_eq!(lacking("g$lshzxetE", false), "");
        assert_eq!(lacking("g$lshzxetE", true), "d");
        assert_eq!(lacking("", false), "g$lszhxetE");
        assert_eq!(lacking("Ex", false), "g$lszhet");
        assert_eq!(lacking("AK", false), "E");
        assert_eq!(enough(""), "AE");
        assert_eq!(enough("gKnE"), "AEKn");
    }

    #[test]
    fn a_channel_names_its_database() {
        assert_eq!(db_of("__keyevent@12__:set"), Some(12));
        assert_eq!(db_of("__keyspace@1__:a"), None);
        assert_eq!(db_of("__keyevent@x__:set"), None);
    }

    #[test]
    fn modules_are_recognised_by_their_lines() {
        let text = b"# Modules\r\nmodule:name=bf,ver=20802,api=1\r\nmodule:name=lua,ver=1\r\n";
        assert_eq!(modules_of(text), ["bf", "lua"]);
    }

    #[test]
    fn a_sweep_shows_in_the_counts_and_so_does_their_reset() {
        let calls = |text: &str| Calls::parse(text.as_bytes());
        let before = calls("cmdstat_get:calls=7,usec=1\r\ncmdstat_flushall:calls=1,usec=1\r\n");
        let swept = |after: &str| calls(after).may_have_swept(&before);
        assert!(!swept("cmdstat_get:calls=9,usec=1\r\ncmdstat_flushall:calls=1,usec=1\r\n"));
        assert!(swept("cmdstat_get:calls=9,usec=1\r\ncmdstat_flushall:calls=2,usec=1\r\n"));
        assert!(swept("cmdstat_get:calls=9,usec=1\r\n"));
        // One flush before the reset, and one after it.
        assert!(swept("cmdstat_get:calls=1,usec=1\r\ncmdstat_flushall:calls=1,usec=1\r\n"));
        assert!(swept("cmdstat_flushall:calls=1,usec=1\r\n"));
    }
}
