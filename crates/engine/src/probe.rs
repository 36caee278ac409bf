//! What a server is and what it can do, found by asking it.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use whimbrel_wire::payload::{self, Dialect};
use whimbrel_wire::value::Value;

use crate::error::{Code, Result, ServerError, Side};
use crate::expiry::Clock;
use crate::link::Link;
use crate::paused::{HELD_MS_MAX, unless_paused};

/// The reply of `INFO` as fields.
#[derive(Debug, Clone, Default)]
pub struct Info(BTreeMap<String, String>);

/// What a primary says of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaFacts {
    /// It follows; false while it gets all keys anew.
    pub is_online: bool,
    /// The offset that it has acknowledged, in bytes of what it is sent.
    pub offset: u64,
}

impl Info {
    /// Asks `link` for one section, or for the default ones if `section` is empty.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub async fn ask(link: &mut Link, section: &str) -> Result<Info> {
        let reply = if section.is_empty() {
            link.call(&[b"INFO"]).await?
        } else {
            link.call(&[b"INFO", section.as_bytes()]).await?
        };
        match reply.as_bytes() {
            Some(text) => Ok(Info::parse(text)),
            None => Err(link.unexpected("INFO", &reply)),
        }
    }

    /// Parses the text of an `INFO` reply.
    pub fn parse(text: &[u8]) -> Info {
        let text = String::from_utf8_lossy(text);
        Info(
            text.lines()
                .filter(|line| !line.starts_with('#'))
                .filter_map(|line| line.split_once(':'))
                .map(|(k, v)| (k.to_owned(), v.trim_end().to_owned()))
                .collect(),
        )
    }

    /// A field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A field that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    /// The replicas of a primary, from the `replication` section.
    pub fn replicas(&self) -> Vec<ReplicaFacts> {
        let of = |line: &str| {
            let part =
                |name: &str| line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            let offset = part("offset").and_then(|offset| offset.parse().ok()).unwrap_or(0);
            ReplicaFacts { is_online: part("state") == Some("online"), offset }
        };
        let count = self.number("connected_slaves").unwrap_or(0);
        (0..count).filter_map(|place| self.field(&format!("slave{place}")).map(of)).collect()
    }

    /// All fields.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// How often a command was called (its name in lower case), with all its subcommands unless one is named
    /// after a bar, from the `commandstats` section.
    pub fn calls(&self, command: &str) -> u64 {
        let calls = |(name, value): (&String, &String)| {
            // Modules choose the case of their commands.
            let name = name.strip_prefix("cmdstat_")?.to_ascii_lowercase();
            let name = name.strip_prefix(command)?;
            let is_it = name.is_empty() || name.starts_with('|');
            value.strip_prefix("calls=").filter(|_| is_it)?.split(',').next()?.parse::<u64>().ok()
        };
        self.0.iter().filter_map(calls).sum()
    }

    /// The databases that hold keys, from the `keyspace` section.
    pub fn keyspace(&self) -> BTreeMap<u32, DbCounts> {
        self.0
            .iter()
            .filter_map(|(name, value)| {
                let db = name.strip_prefix("db")?.parse().ok()?;
                let part = |wanted: &str| {
                    value
                        .split(',')
                        .filter_map(|p| p.split_once('='))
                        .find(|(k, _)| *k == wanted)
                        .and_then(|(_, v)| v.parse().ok())
                };
                // Valkey's name of it, and Redis's.
                let volatile = part("keys_with_volatile_items").or_else(|| part("subexpiry"));
                Some((
                    db,
                    DbCounts {
                        keys: part("keys")?,
                        expires: part("expires").unwrap_or(0),
                        volatile: volatile.unwrap_or(0),
                    },
                ))
            })
            .collect()
    }
}

/// How many keys a database holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DbCounts {
    /// All keys.
    pub keys: u64,
    /// Those with a time to live.
    pub expires: u64,
    /// Hashes with fields that have one.
    pub volatile: u64,
}

/// What a server is. It changes with a restart or a failover.
#[derive(Debug, Clone)]
pub struct ServerFacts {
    /// For people: `Redis 7.0.15`.
    pub version: String,
    /// Which family of payload formats and commands it speaks.
    pub dialect: Dialect,
    /// Changes with every start of the process; `SCAN` cursors and data not written to disk do not outlive
    /// it.
    pub run_id: String,
    /// True if it runs as part of a cluster.
    pub cluster: bool,
    /// True if it is a replica.
    pub replica: bool,
    /// In a cluster: it tells a replica the owners of slots, if that one's idea of its primary's slots
    /// differs from its own. Valkey 8.0 and later notify primaries only.
    pub corrects_replicas: bool,
    /// In a cluster: a primary shows keys of a slot only if the slot is its own or marked as importing. Redis
    /// 8.4 and later.
    pub hides_keys: bool,
    /// Bytes of its data set, by its own estimate.
    pub dataset_bytes: u64,
    /// Keys it has evicted since it started.
    pub evicted_keys: u64,
    /// False if this user may not ask with `INFO`: then `run_id` is empty, numbers are 0, and the rest is
    /// what the server says in its greeting.
    pub are_known: bool,
}

/// How many pages of keys are looked at for one whose dump shows its version, and how large they are.
const PAGES_FOR_DUMP_MAX: usize = 16;
const PAGE_FOR_DUMP: &[u8] = b"100";

impl ServerFacts {
    /// Asks for them.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub async fn ask(link: &mut Link) -> Result<ServerFacts> {
        Ok(ServerFacts::of(&Info::ask(link, "").await?))
    }

    /// As [`ServerFacts::ask`], of a server that may refuse `INFO` to this user. Since Redis 6.2 `HELLO` is
    /// refused to no user, and its reply says what it is; before, the dump of a key shows which versions
    /// write such.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub(crate) async fn ask_or_guess(link: &mut Link) -> Result<ServerFacts> {
        match ServerFacts::ask(link).await {
            Err(e) if e.server().is_some_and(|e| e.code == Code::NoPermission) => {}
            facts => return facts,
        }
        let reply = link.ask(&[b"HELLO", b"2"]).await?;
        let field = |name| reply.field(name).and_then(Value::as_str);
        let (dialect, version) = match (field("server"), field("version")) {
            (Some("valkey"), Some(version)) => (Dialect::Valkey, format!("Valkey {version}")),
            (_, Some(version)) => (Dialect::Redis, format!("Redis {version}")),
            _ => match dump_version(link).await? {
                Some(rdb) if rdb >= FIRST_OF_VALKEY => (Dialect::Valkey, by_dump("Valkey", rdb)),
                Some(rdb) => (Dialect::Redis, by_dump("Redis or Valkey", rdb)),
                None => (Dialect::Redis, "a server of unknown version".to_owned()),
            },
        };
        let cluster = match field("mode") {
            Some(mode) => mode == "cluster",
            None => redirects(link).await?,
        };
        let role = field("role");
        Ok(ServerFacts {
            version,
            dialect,
            cluster,
            replica: matches!(role, Some("slave" | "replica")),
            are_known: false,
            ..ServerFacts::of(&Info::default())
        })
    }

    pub(crate) fn of(info: &Info) -> ServerFacts {
        let valkey = info.field("valkey_version");
        let version = match valkey {
            Some(v) => format!("Valkey {v}"),
            None => format!("Redis {}", info.field("redis_version").unwrap_or("of unknown version")),
        };
        ServerFacts {
            version,
            dialect: if valkey.is_some() { Dialect::Valkey } else { Dialect::Redis },
            run_id: info.field("run_id").unwrap_or_default().to_owned(),
            cluster: info.field("cluster_enabled") == Some("1")
                || info.field("redis_mode") == Some("cluster"),
            replica: matches!(info.field("role"), Some("slave" | "replica")),
            corrects_replicas: valkey.is_none_or(|v| first_two(v) < (8, 0)),
            hides_keys: valkey.is_none()
                && info.field("redis_version").map(first_two).is_some_and(|v| v >= (8, 4)),
            dataset_bytes: info.number("used_memory_dataset").unwrap_or(0),
            evicted_keys: info.number("evicted_keys").unwrap_or(0),
            are_known: true,
        }
    }
}

/// Keys of this many slots are asked for.
const SLOTS_ASKED: usize = 2_048;

/// Whether a server that says nothing of itself is part of a cluster: then it answers for some slots, and
/// sends clients elsewhere for others. One that owns 99 of 100 slots is taken for a standalone server once in
/// a billion times. If the user may not ask, nothing can be copied either, and that is reported then.
async fn redirects(link: &mut Link) -> Result<bool> {
    for number in 0..SLOTS_ASKED {
        link.push(&[b"PTTL", format!("whimbrel:slot:{number}").as_bytes()]);
    }
    link.flush().await?;
    let replies = link.replies(SLOTS_ASKED).await?;
    let is_elsewhere = |code| matches!(code, Code::Moved(..) | Code::Ask(..) | Code::ClusterDown);
    Ok(replies.iter().filter_map(ServerError::of).any(|e| is_elsewhere(e.code)))
}

/// From this version of dumps on they are Valkey's alone.
const FIRST_OF_VALKEY: u16 = 80;

fn by_dump(name: &str, rdb_version: u16) -> String {
    format!("{name} of unknown version, which dumps in version {rdb_version}")
}

/// The version of the dumps that a server writes, by that of some key; `None` if it shows none.
async fn dump_version(link: &mut Link) -> Result<Option<u16>> {
    let mut cursor = b"0".to_vec();
    for _ in 0..PAGES_FOR_DUMP_MAX {
        let reply = link.ask(&[b"SCAN", &cursor, b"COUNT", PAGE_FOR_DUMP]).await?;
        let Some([next, keys]) = reply.as_items() else { return Ok(None) };
        for key in keys.as_items().unwrap_or_default().iter().filter_map(Value::as_bytes).take(1) {
            let dump = link.ask(&[b"DUMP", key]).await?;
            if let Some(found) = dump.as_bytes().and_then(|dump| payload::peek(dump).ok()) {
                return Ok(Some(found.rdb_version));
            }
        }
        match next.as_bytes() {
            Some(next) if &next[..] != b"0" => cursor = next.to_vec(),
            _ => return Ok(None),
        }
    }
    Ok(None)
}

/// The first three numbers of a version; what cannot be read is the highest.
pub(crate) fn first_three(version: &str) -> (u32, u32, u32) {
    let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(u32::MAX));
    let first = numbers.next().unwrap_or(u32::MAX);
    (first, numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The first two of them.
pub(crate) fn first_two(version: &str) -> (u32, u32) {
    let (first, second, _) = first_three(version);
    (first, second)
}

/// What a server can do. Found by asking for its commands; no caller needs to know a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// `PEXPIRETIME`: absolute expiry times of keys (Redis 7.0 and later).
    pub pexpiretime: bool,
    /// `HPEXPIRETIME` and `HPEXPIREAT`: hash fields with a time to live.
    pub hash_field_ttl: bool,
    /// `FUNCTION`.
    pub functions: bool,
    /// `MEMORY USAGE`.
    pub memory_usage: bool,
    /// `DUMP`.
    pub dump: bool,
    /// `RESTORE`.
    pub restore: bool,
    /// `GET`. This, `TYPE` and `TIME` every server has; a user of a source may lack the right to them.
    pub get: bool,
    /// `TYPE`.
    pub type_name: bool,
    /// `TIME`.
    pub time: bool,
    /// `SET` with `PXAT`, and `XGROUP CREATECONSUMER` (Redis 6.2 and later).
    pub set_pxat: bool,
    /// `SMISMEMBER` and `ZMSCORE`: several elements at once (Redis 6.2 and later).
    pub many_elements: bool,
    /// Time series: one may be filled by what is written to another.
    pub series: bool,
    /// The longest command that it takes, in bytes (`client-query-buffer-limit`); `None` if it does not
    /// report it. It closes the connection on a longer one.
    pub query_bytes_max: Option<u64>,
    /// The highest version of a `DUMP` payload that it accepts; `None` until asked with
    /// [`Capabilities::probe_payload_version`], or if it does not let us restore.
    pub payload_version_max: Option<u16>,
}

/// A name for commands that are tried; it is never written.
pub const PROBE_KEY: &[u8] = b"whimbrel:probe";

/// The commands whose presence [`Capabilities::probe`] asks for.
const PROBED: [&str; 9] =
    // `SET` is as it should be if there is `GETEX`: both came at once.
    [
        "pexpiretime",
        "hpexpiretime",
        "function",
        "memory",
        "dump",
        "restore",
        "getex",
        "smismember",
        "ts.info",
    ];

/// The setting that [`Capabilities::query_bytes_max`] is read from.
pub const QUERY_LIMIT_OPTION: &str = "client-query-buffer-limit";

impl Capabilities {
    /// By which clock it is known, from now on, when keys expire.
    pub fn clock(&self) -> Clock {
        match (self.pexpiretime, self.time) {
            (true, _) => Clock::Absolute,
            (false, true) => Clock::Servers,
            (false, false) => Clock::Own { asked: Instant::now() },
        }
    }

    /// Whether values can be read in pieces: their types are reported, and exactly when they expire.
    pub fn reads_pieces(&self) -> bool {
        self.type_name && (self.pexpiretime || self.time)
    }

    /// Asks which commands the server has. If `COMMAND` itself is forbidden, everything a server of the
    /// oldest supported version has is assumed, and what can be tried is tried.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub async fn probe(link: &mut Link) -> Result<Capabilities> {
        let mut args: Vec<&[u8]> = vec![b"COMMAND", b"INFO"];
        args.extend(PROBED.iter().map(|c| c.as_bytes()));
        let reply = link.ask(&args).await?;
        let has = |i: usize, assumed: bool| match reply.as_items() {
            // RESP2 servers answer an unknown command with a null array.
            Some(items) => items.get(i).is_some_and(|v| v.as_items().is_some_and(|v| !v.is_empty())),
            None => assumed,
        };
        let mut capabilities = Capabilities {
            pexpiretime: has(0, true),
            hash_field_ttl: has(1, false),
            functions: has(2, false),
            memory_usage: has(3, true),
            dump: has(4, true),
            restore: has(5, true),
            get: true,
            type_name: true,
            time: true,
            set_pxat: has(6, true),
            many_elements: has(7, true),
            series: has(8, false),
            query_bytes_max: query_bytes_max(link).await?,
            payload_version_max: None,
        };
        capabilities.drop_forbidden(link).await?;
        Ok(capabilities)
    }

    /// What exists may still be forbidden to this user. If there is another way, that is taken.
    async fn drop_forbidden(&mut self, link: &mut Link) -> Result<()> {
        let is_source = link.endpoint().side == Side::Source;
        let tried: [(bool, &mut bool, &[&[u8]]); 6] = [
            (true, &mut self.pexpiretime, &[b"PEXPIRETIME", PROBE_KEY]),
            (true, &mut self.memory_usage, &[b"MEMORY", b"USAGE", PROBE_KEY]),
            (true, &mut self.dump, &[b"DUMP", PROBE_KEY]),
            (is_source, &mut self.get, &[b"GET", PROBE_KEY]),
            (is_source, &mut self.type_name, &[b"TYPE", PROBE_KEY]),
            (is_source, &mut self.time, &[b"TIME"]),
        ];
        for (is_asked, capability, command) in tried {
            if is_asked && *capability {
                *capability = link.may_run(command).await?.is_none();
            }
        }
        Ok(())
    }

    /// Finds the highest payload version that `link`'s server accepts, without writing anything: it is
    /// offered payloads of an impossible type, and says which of version and content it objects to.
    ///
    /// `key` names a key of a slot that the server owns, or, with `importing`, of one that it is importing;
    /// the key is never written.
    ///
    /// # Errors
    /// As [`Link::replies`]; `Paused` if the server's clients are paused.
    pub async fn probe_payload_version(
        &mut self,
        link: &mut Link,
        key: &[u8],
        importing: bool,
    ) -> Result<()> {
        let command: &[u8] = if importing { b"RESTORE-ASKING" } else { b"RESTORE" };
        for &version in &PAYLOAD_VERSIONS {
            link.push(&[command, key, b"0", &payload::empty_probe(version)]);
        }
        link.flush().await?;
        let mut best = None;
        let replies =
            unless_paused(link, HELD_MS_MAX, async |link| link.replies(PAYLOAD_VERSIONS.len()).await).await?;
        for (&version, reply) in PAYLOAD_VERSIONS.iter().zip(replies) {
            match ServerError::of(&reply).map(|e| e.code) {
                Some(Code::PayloadFormat) => best = best.max(Some(version)),
                Some(Code::UnknownCommand | Code::NoPermission) => self.restore = false,
                _ => {}
            }
        }
        self.payload_version_max = best;
        if best.is_none() {
            self.restore = false;
        }
        Ok(())
    }
}

/// The server's limit for a command, if it reports it. Only values that are written are long, so a source is
/// not asked: there this user may have no right to ask it.
async fn query_bytes_max(link: &mut Link) -> Result<Option<u64>> {
    if link.endpoint().side != Side::Target {
        return Ok(None);
    }
    let reply = link.ask(&[b"CONFIG", b"GET", QUERY_LIMIT_OPTION.as_bytes()]).await?;
    Ok(reply.field(QUERY_LIMIT_OPTION).and_then(Value::as_str).and_then(|text| text.parse().ok()))
}

/// RDB versions that servers since Redis 6.2 write, and the next ones: from 9 on by Redis, 9 to 11 and from
/// 80 on by Valkey.
const PAYLOAD_VERSIONS: [u16; 12] = [9, 10, 11, 12, 13, 14, 15, 80, 81, 82, 83, 84];

/// What distinguishes the process behind a link from all others: its `run_id`, or its address if it has none
/// to report.
///
/// # Errors
/// As [`Link::call`].
pub async fn process_behind(link: &mut Link) -> Result<String> {
    let info = Info::ask(link, "server").await?;
    Ok(info.field("run_id").map_or_else(|| link.address().to_string(), str::to_owned))
}
