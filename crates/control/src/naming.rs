//! What jobs between two deployments are called: by what makes two of them the same one, and as a user wants.
//! And what a process is called.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::endpoint::{Address, Endpoint};
use whimbrel_flow::copy::CopyOptions;
use whimbrel_flow::sync::WayBack;
use whimbrel_flow::verify::VerifyOptions;
use xxhash_rust::xxh3::xxh3_64;

/// What the servers' lists of clients call this process.
pub(crate) fn process_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        // A process id alone may be that of an earlier process, or of one in another container.
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        format!("{:x}-{nanos:x}", std::process::id())
    })
}

/// What a user calls a job. It is also found by the name that it has of itself: see [`job_of`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobName(String);

impl JobName {
    /// How many characters a name may have.
    pub const LENGTH_MAX: usize = 32;

    /// What this many jobs of one command are called: `NAME`, then `NAME-2` and so on.
    pub fn numbered(&self, jobs: usize) -> Vec<String> {
        let of = |number: usize| if number == 1 { self.0.clone() } else { format!("{self}-{number}") };
        (1..=jobs).map(of).collect()
    }
}

impl AsRef<str> for JobName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for JobName {
    type Err = String;

    fn from_str(text: &str) -> Result<JobName, String> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        // A name that begins with a dash would be taken for an option.
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if begins && text.len() <= JobName::LENGTH_MAX && text.bytes().all(fits) {
            return Ok(JobName(text.to_owned()));
        }
        Err(format!(
            "a name has letters, digits, '-', '_' and '.', begins with a letter or a digit, and has {} \
             characters at most",
            JobName::LENGTH_MAX
        ))
    }
}

/// How an option is written on a command line.
pub(crate) fn written(option: &str) -> String {
    format!("--{option}")
}

/// The short name of the job that is described so.
pub fn job_of(description: &str) -> String {
    format!("{:016x}", xxh3_64(description.as_bytes()))
}

/// An address in the spelling that stands for all: a journal is found again by `localhost` that was begun by
/// `127.0.0.1`.
pub fn one_spelling(address: &Address) -> String {
    let Address::Tcp(host, port) = address else { return address.to_string() };
    let host = match host.trim_end_matches('.').to_ascii_lowercase() {
        name if name == "localhost" => "127.0.0.1".to_owned(),
        name => name.parse().map_or(name, |ip: std::net::IpAddr| ip.to_string()),
    };
    Address::Tcp(host, *port).to_string()
}

/// Both sides of a job, and the keys that it is about as the user named them.
#[derive(Debug, Clone, Copy)]
pub struct Between<'a> {
    /// Where keys come from.
    pub source: &'a Endpoint,
    /// Where they go.
    pub target: &'a Endpoint,
    /// Patterns; a key must match one, if there are any.
    pub matches: &'a [String],
    /// Patterns; a key must match none.
    pub exclude: &'a [String],
    /// All slots if none are named.
    pub slots: Option<&'a SlotSet>,
}

impl Between<'_> {
    /// What makes two copies the same copy. No password is in it.
    pub fn copy(&self, options: &CopyOptions) -> String {
        self.described(json!({
            "dbs": options.dbs, "types": options.types, "existing": options.existing.described(),
            "limit": options.limit,
        }))
    }

    /// What makes two verifications the same one; `sample` is as the user wrote it. No password is in it.
    pub fn verification(&self, options: &VerifyOptions, sample: Option<&str>) -> String {
        self.described(json!({
            "dbs": options.dbs, "types": options.types, "depth": format!("{:?}", options.depth),
            "sample": sample, "ttl_tolerance_ms": options.ttl_tolerance_ms,
            "check_extra": options.check_extra,
        }))
    }

    /// What makes two syncs the same sync; `dbs` are as the user wrote them. No password is in it.
    pub fn sync(&self, dbs: &[String]) -> String {
        let databases = [self.source.db, self.target.db];
        self.described(json!({"kind": "sync", "databases": databases, "db": dbs}))
    }

    /// Where the sync is written down that is described so.
    pub fn place(&self, folder: &Path, dbs: &[String]) -> WayBack {
        let description = self.sync(dbs);
        let name = format!("sync-{}", job_of(&description));
        WayBack { folder: folder.to_owned(), name, description }
    }

    fn described(&self, mut described: Value) -> String {
        described["source"] = one_spelling(&self.source.address).into();
        described["target"] = one_spelling(&self.target.address).into();
        described["match"] = self.matches.into();
        described["exclude"] = self.exclude.into();
        described["slots"] = self.slots.map(ToString::to_string).into();
        described.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_short() {
        for text in ["a", "9", "night.1_b-C", &"x".repeat(JobName::LENGTH_MAX)] {
            let name: JobName = text.parse().expect(text);
            assert_eq!(name.numbered(2), [text.to_owned(), format!("{text}-2")]);
        }
        for text in ["", "-a", ".a", "a b", "a/b", "ä", "a\n", &"x".repeat(JobName::LENGTH_MAX + 1)] {
            assert!(text.parse::<JobName>().is_err_and(|why| why.contains("begins with")), "{text}");
        }
    }

    #[test]
    fn an_address_has_one_spelling() {
        let spelt = |host: &str| one_spelling(&Address::Tcp(host.to_owned(), 7000));
        assert_eq!([spelt("localhost"), spelt("LOCALHOST."), spelt("127.0.0.1")], ["127.0.0.1:7000"; 3]);
        assert_eq!(
            (spelt("Db.Example"), spelt("0:0::1")),
            ("db.example:7000".to_owned(), "[::1]:7000".to_owned())
        );
    }
}
