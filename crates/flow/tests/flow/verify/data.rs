//! What both sides hold, and what is planted in one of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::Slot;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::{Address, Endpoint};
use whimbrel_engine::error::{Result, Side};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_flow::verify::{DifferenceKind, Settle, VerifyOptions, VerifyProgress, VerifyReport, verify};
use whimbrel_lab::{Engine, Server};

pub(super) const FAR_MS: u64 = 4_102_444_800_123;

/// Part of values that must never be shown.
pub(super) const SECRET: &str = "s3cr3t";

pub(super) type Command = Vec<Vec<u8>>;

/// A command of words without spaces.
pub(super) fn words(text: &str) -> Command {
    text.split(' ').map(|w| w.as_bytes().to_vec()).collect()
}

pub(super) fn bytes(args: &[&[u8]]) -> Command {
    args.iter().map(|a| a.to_vec()).collect()
}

/// A deployment to look at, and connections to fill it.
pub(super) struct Fixture {
    pub(super) deployment: Arc<Deployment>,
    pub(super) links: HashMap<(Address, u32), Link>,
}

impl Fixture {
    pub(super) async fn new(url: &str, side: Side) -> Fixture {
        Fixture::of(probe(url, side).await)
    }

    pub(super) fn of(deployment: Deployment) -> Fixture {
        Fixture { deployment: Arc::new(deployment), links: HashMap::new() }
    }

    /// Runs commands, each at the owner of its key; none may fail.
    pub(super) async fn run(&mut self, commands: &[Command]) {
        self.run_in(0, commands).await;
    }

    pub(super) async fn run_in(&mut self, db: u32, commands: &[Command]) {
        for part in commands.chunks(1_000) {
            let mut sent = Vec::new();
            for command in part {
                let at = if matches!(&command[0][..], b"XGROUP" | b"XINFO") { 2 } else { 1 };
                let key: &[u8] = if command[0] == b"XREADGROUP" {
                    // XREADGROUP GROUP g c COUNT n STREAMS key >
                    &command[command.len() - 2]
                } else {
                    command.get(at).map_or(b"", |k| &k[..])
                };
                let topology = self.deployment.topology();
                let shard = topology.shard_of(Slot::of_key(key)).expect("an owner");
                let place = (shard.primary.clone(), db);
                if !self.links.contains_key(&place) {
                    let link = self.deployment.open(&place.0, db).await.expect("a connection");
                    self.links.insert(place.clone(), link);
                }
                let args: Vec<&[u8]> = command.iter().map(|a| &a[..]).collect();
                self.links.get_mut(&place).expect("just opened").push(&args);
                sent.push((place, command));
            }
            for (place, command) in sent {
                let link = self.links.get_mut(&place).expect("open");
                link.flush().await.expect("sent");
                let reply = link.reply().await.expect("a reply");
                assert!(
                    reply.as_error().is_none(),
                    "{:?}: {reply:?}",
                    String::from_utf8_lossy(&command.join(&b' '))
                );
            }
        }
    }
}

pub(super) async fn probe(url: &str, side: Side) -> Deployment {
    let endpoint = Endpoint::parse(side, url).expect("a valid address");
    Deployment::probe(endpoint, LinkOptions::default()).await.expect("a deployment")
}

pub(super) async fn two(source: &Server, target: &Server) -> (Fixture, Fixture) {
    (Fixture::new(&source.url(), Side::Source).await, Fixture::new(&target.url(), Side::Target).await)
}

pub(super) async fn try_compare(
    source: &Fixture,
    target: &Fixture,
    options: VerifyOptions,
) -> Result<VerifyReport> {
    let progress = Arc::new(VerifyProgress::default());
    let report = verify(
        source.deployment.clone(),
        target.deployment.clone(),
        options,
        progress.clone(),
        CancellationToken::new(),
    )
    .await?;
    assert_eq!(progress.rechecking.load(Ordering::Relaxed), 0);
    assert_eq!(progress.compared.load(Ordering::Relaxed), report.tally.compared);
    assert_eq!(progress.bytes.load(Ordering::Relaxed), report.bytes_compared);
    Ok(report)
}

pub(super) async fn compare(source: &Fixture, target: &Fixture, options: VerifyOptions) -> VerifyReport {
    try_compare(source, target, options).await.expect("a report")
}

/// Nobody writes: short pauses will do.
pub(super) fn quiet() -> VerifyOptions {
    let settle = Settle { pause_ms: 20, ..Settle::default() };
    VerifyOptions { settle, chunk_bytes: 16 << 10, ..VerifyOptions::default() }
}

/// The kinds of difference of each key.
pub(super) fn kinds(report: &VerifyReport) -> BTreeMap<String, BTreeSet<DifferenceKind>> {
    let mut kinds: BTreeMap<String, BTreeSet<DifferenceKind>> = BTreeMap::new();
    for d in &report.differences {
        assert!(!d.detail.contains(SECRET), "a value is shown: {}", d.detail);
        kinds.entry(d.key.clone().unwrap_or_default()).or_default().insert(d.kind);
    }
    kinds
}

pub(super) fn has_field_ttl(engine: Engine) -> bool {
    matches!(engine, Engine::Redis80 | Engine::Valkey91)
}

/// A stream with entries, a group, two consumers and two pending entries.
pub(super) fn stream(key: &str) -> Vec<Command> {
    [
        format!("XADD {key} 1-1 f {SECRET}1"),
        format!("XADD {key} 1-2 f {SECRET}2"),
        format!("XADD {key} 1-3 f {SECRET}3"),
        format!("XGROUP CREATE {key} g 0"),
        format!("XREADGROUP GROUP g alice COUNT 2 STREAMS {key} >"),
        format!("XGROUP CREATECONSUMER {key} g bob"),
        format!("XGROUP CREATECONSUMER {key} g idle"),
    ]
    .iter()
    .map(|c| words(c))
    .collect()
}

/// Every type, small and large, with everything that is not plain.
pub(super) fn data_set(field_ttl: bool) -> Vec<Command> {
    let mut all = vec![
        words("SET text plain"),
        words("SET number 12345"),
        bytes(&[b"SET", b"empty value", b""]),
        bytes(&[b"SET", b"", b"the key without a name"]),
        bytes(&[b"SET", b"\xff\x00\r\nbinary", b"\x00\r\n\xfe"]),
        bytes(&[b"SET", b"head", &[b'h'; 2048]]),
        bytes(&[b"SET", b"head less one", &[b'h'; 2047]]),
        bytes(&[b"SET", b"middle", &vec![b'm'; 10_000]]),
        bytes(&[b"SET", b"long", &vec![b'l'; 1_000_001]]),
        words(&format!("SET mortal v PXAT {FAR_MS}")),
        words("RPUSH list a b c a"),
        words("SADD set a b c"),
        words("SADD intset 1 2 3"),
        words("HSET hash a 1 b 2"),
        bytes(&[b"HSET", b"hash", b"", b"empty field", b"\xff", b""]),
        words("ZADD zset 1 a -inf b inf c 0.1 d 1e300 e -0.0 f 3.141592653589793 g"),
        words("XGROUP CREATE no-entries g $ MKSTREAM"),
        words(&format!("PEXPIREAT hash {FAR_MS}")),
        words("PFADD counter a b c"),
        words("SETBIT bits 100000 1"),
    ];
    all.extend(stream("stream"));
    all.push(words("XDEL stream 1-2"));
    for i in 0..3_000 {
        all.push(words(&format!("RPUSH big:list element:{i}")));
        all.push(words(&format!("SADD big:set member:{i}")));
        all.push(words(&format!("HSET big:hash field:{i} value:{i}")));
        all.push(words(&format!("ZADD big:zset {} member:{i}", f64::from(i) / 7.0)));
        all.push(words(&format!("XADD big:stream 1-{} f v{i}", i + 1)));
        all.push(words(&format!("SET many:{i} {i}")));
    }
    all.push(words("XGROUP CREATE big:stream g 0"));
    all.push(words("XREADGROUP GROUP g c COUNT 2000 STREAMS big:stream >"));
    if field_ttl {
        all.push(words("HSET mortal:fields a 1 b 2 c 3"));
        all.push(words(&format!("HPEXPIREAT mortal:fields {FAR_MS} FIELDS 2 a b")));
        all.push(words(&format!("HPEXPIREAT big:hash {FAR_MS} FIELDS 2 field:7 field:2999")));
    }
    all
}

/// The same keys, with small encodings turned off.
pub(super) fn loosely_encoded(engine: Engine) -> Server {
    let mut server = Server::builder(engine)
        .arg("hash-max-listpack-entries", "0")
        .arg("zset-max-listpack-entries", "0")
        .arg("set-max-intset-entries", "0")
        .arg("list-max-listpack-size", "1")
        .arg("list-compress-depth", "1")
        .arg("stream-node-max-entries", "2");
    if engine != Engine::Redis70 {
        server = server.arg("set-max-listpack-entries", "0");
    }
    server.start().expect("a server")
}

pub(super) fn plain(engine: Engine) -> Server {
    Server::builder(engine).start().expect("a server")
}

pub(super) const SAME: [(Engine, Engine); 4] = [
    (Engine::Redis70, Engine::Redis70),
    (Engine::Redis80, Engine::Redis80),
    (Engine::Valkey81, Engine::Valkey81),
    (Engine::Valkey91, Engine::Valkey91),
];

pub(super) const MIXED: [(Engine, Engine); 4] = [
    (Engine::Redis70, Engine::Valkey91),
    (Engine::Redis80, Engine::Valkey91),
    (Engine::Valkey91, Engine::Redis80),
    (Engine::Valkey81, Engine::Redis70),
];
/// Something planted on the target: at which key, by which commands, and what has to be found.
pub(super) struct Plant {
    pub(super) key: &'static str,
    pub(super) commands: Vec<Command>,
    pub(super) finds: DifferenceKind,
}

pub(super) fn plant(key: &'static str, commands: &[&str], finds: DifferenceKind) -> Plant {
    Plant { key, commands: commands.iter().map(|c| words(c)).collect(), finds }
}

/// What both sides have before differences are planted.
fn base() -> Vec<Command> {
    let mut base: Vec<Command> = [
        "SET missing v",
        "SET type v",
        "SET value s3cr3t1",
        "SET length s3cr3t1",
        "SET made-empty v",
        "SET ttl-off v PXAT 4102444800123",
        "SET ttl-gone v PXAT 4102444800123",
        "SET ttl-extra v",
        "RPUSH list-element a s3cr3t c",
        "RPUSH list-order a b c d",
        "RPUSH list-length a b c",
        "SADD set-member a b c",
        "SADD set-extra a b c",
        "SADD set-gone a b c",
        "HSET hash-value f s3cr3t1 g v",
        "HSET hash-length f s3cr3t1 g v",
        "HSET field-gone f v g v",
        "HSET field-extra f v",
        "HSET field-renamed f v g v",
        "ZADD zset-ulp 0.1 m 2 n",
        "ZADD zset-member 1 m 2 n",
        "ZADD zset-extra 1 m",
        "ZADD zset-sign 1 m",
        "SET many-ways s3cr3t PXAT 4102444800123",
    ]
    .iter()
    .map(|c| words(c))
    .collect();
    base.push(bytes(&[b"SET", b"", b"v"]));
    base.push(bytes(&[b"SET", b"\xff\x00binary", b"v"]));
    base.push(bytes(&[b"SET", b"ten-megabytes", &vec![b'x'; 10 << 20]]));
    base.push(bytes(&[b"SET", b"middle-sized", &[b'x'; 9_000]]));
    base.push(bytes(&[b"SETRANGE", b"just-longer", b"2047", b"x"]));
    for i in 0..2_000 {
        base.push(words(&format!("RPUSH big-list element:{i}")));
        base.push(words(&format!("RPUSH big-order element:{i}")));
        base.push(words(&format!("SADD big-set member:{i}")));
        base.push(words(&format!("HSET big-hash field:{i} s3cr3t:{i}")));
        base.push(words(&format!("HSET big-hash-extra field:{i} s3cr3t:{i}")));
        base.push(words(&format!("ZADD big-zset {i}.1 member:{i}")));
        base.push(words(&format!("XADD big-stream 1-{} f s3cr3t{i}", i + 1)));
    }
    for key in [
        "entry-gone",
        "entry-extra",
        "entry-fields",
        "last-id",
        "entries-added",
        "max-deleted",
        "group-gone",
        "group-extra",
        "group-last-id",
        "entries-read",
        "consumer-gone",
        "consumer-extra",
        "pending-owner",
        "pending-count",
        "pending-gone",
    ] {
        base.extend(stream(key));
    }
    base
}

/// Differences, each in a key of its own.
fn planted() -> Vec<Plant> {
    use DifferenceKind::*;
    let mut fields = stream("entry-fields");
    fields[1] = words("XADD entry-fields 1-2 f s3cr3tX");
    fields.insert(0, words("DEL entry-fields"));
    vec![
        plant("missing", &["DEL missing"], Missing),
        plant("extra", &["SET extra v"], Extra),
        plant("whimbrel:staging:{x}:1", &["SET whimbrel:staging:{x}:1 v"], Extra),
        plant("type", &["DEL type", "RPUSH type v"], Type),
        plant("value", &["SET value s3cr3t2"], Value),
        plant("length", &["SET length s3cr3t12"], Length),
        plant("just-longer", &["SETRANGE just-longer 2048 x"], Length),
        plant("middle-sized", &["SETRANGE middle-sized 8999 y"], Value),
        plant("ten-megabytes", &["SETRANGE ten-megabytes 10485759 y"], Value),
        plant("ttl-off", &["PEXPIREAT ttl-off 4102444801123"], Ttl),
        plant("ttl-gone", &["PERSIST ttl-gone"], Ttl),
        plant("ttl-extra", &["PEXPIREAT ttl-extra 4102444800123"], Ttl),
        plant("list-element", &["LSET list-element 1 s3cr3X"], Element),
        plant("list-order", &["LSET list-order 1 c", "LSET list-order 2 b"], Order),
        plant("list-length", &["RPUSH list-length d"], Length),
        plant("set-member", &["SREM set-member a", "SADD set-member x"], Element),
        plant("set-extra", &["SADD set-extra x"], Element),
        plant("set-gone", &["SREM set-gone b"], Element),
        plant("hash-value", &["HSET hash-value f s3cr3t2"], Value),
        plant("hash-length", &["HSET hash-length f s3cr3t12"], Value),
        plant("field-gone", &["HDEL field-gone f"], Element),
        plant("field-extra", &["HSET field-extra x v"], Element),
        plant("field-renamed", &["HDEL field-renamed f", "HSET field-renamed x v"], Element),
        plant("zset-ulp", &["ZADD zset-ulp 0.10000000000000002 m"], Score),
        plant("zset-sign", &["ZADD zset-sign -1 m"], Score),
        plant("zset-member", &["ZREM zset-member m", "ZADD zset-member 1 x"], Element),
        plant("zset-extra", &["ZADD zset-extra 1 x"], Element),
        plant("big-list", &["LSET big-list 1999 other"], Element),
        plant("big-order", &["LSET big-order 1 element:1500", "LSET big-order 1500 element:1"], Order),
        plant("big-set", &["SREM big-set member:1234", "SADD big-set other"], Element),
        plant("big-hash", &["HSET big-hash field:777 s3cr3t:77X"], Value),
        plant("big-hash-extra", &["HSET big-hash-extra other v"], Element),
        plant("big-zset", &["ZADD big-zset 1500.1000000000001 member:1500"], Score),
        plant("big-stream", &["XDEL big-stream 1-1999"], StreamEntry),
        plant("entry-gone", &["XDEL entry-gone 1-3"], StreamEntry),
        plant("entry-extra", &["XADD entry-extra 1-4 f v"], StreamEntry),
        Plant { key: "entry-fields", commands: fields, finds: StreamEntry },
        plant("last-id", &["XSETID last-id 9-9 ENTRIESADDED 3 MAXDELETEDID 0-0"], StreamMeta),
        plant("entries-added", &["XSETID entries-added 1-3 ENTRIESADDED 77 MAXDELETEDID 0-0"], StreamMeta),
        plant("max-deleted", &["XSETID max-deleted 1-3 ENTRIESADDED 3 MAXDELETEDID 1-0"], StreamMeta),
        plant("group-gone", &["XGROUP DESTROY group-gone g"], Group),
        plant("group-extra", &["XGROUP CREATE group-extra h 0"], Group),
        plant("group-last-id", &["XGROUP SETID group-last-id g 1-1 ENTRIESREAD 2"], Group),
        plant("entries-read", &["XGROUP SETID entries-read g 1-2 ENTRIESREAD 1"], Group),
        plant("consumer-gone", &["XGROUP DELCONSUMER consumer-gone g idle"], Consumer),
        plant("consumer-extra", &["XGROUP CREATECONSUMER consumer-extra g x"], Consumer),
        plant("pending-owner", &["XCLAIM pending-owner g bob 0 1-1 JUSTID"], Pending),
        plant("pending-count", &["XCLAIM pending-count g alice 0 1-1 RETRYCOUNT 9"], Pending),
        plant("pending-gone", &["XACK pending-gone g 1-2"], Pending),
        plant("many-ways", &["SET many-ways s3cr3X"], Value),
        Plant { key: "made-empty", commands: vec![bytes(&[b"SET", b"made-empty", b""])], finds: Length },
        Plant { key: "", commands: vec![bytes(&[b"SET", b"", b"x"])], finds: Value },
        Plant {
            key: "\\xff\\x00binary",
            commands: vec![bytes(&[b"SET", b"\xff\x00binary", b"x"])],
            finds: Value,
        },
    ]
}

/// For each planted difference the data that both sides have before.
pub(super) fn plants(field_ttl: bool) -> (Vec<Command>, Vec<Plant>) {
    use DifferenceKind::FieldTtl;
    let (mut base, mut plants) = (base(), planted());
    if field_ttl {
        let base_ttl = format!("HPEXPIREAT {{}} {FAR_MS} FIELDS 1 f");
        for key in ["field-ttl-off", "field-ttl-gone", "field-ttl-extra"] {
            base.push(words(&format!("HSET {key} f v g v")));
            if key != "field-ttl-extra" {
                base.push(words(&base_ttl.replace("{}", key)));
            }
        }
        plants.push(plant("field-ttl-off", &["HPEXPIREAT field-ttl-off 4102444801123 FIELDS 1 f"], FieldTtl));
        plants.push(plant("field-ttl-gone", &["HPERSIST field-ttl-gone FIELDS 1 f"], FieldTtl));
        plants.push(plant(
            "field-ttl-extra",
            &["HPEXPIREAT field-ttl-extra 4102444801123 FIELDS 1 f"],
            FieldTtl,
        ));
    }
    (base, plants)
}
