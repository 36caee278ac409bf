//! The keys of a slot between real servers, and owners that come too late.

mod attempts;
mod keys;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use whimbrel_core::slot::Slot;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::probe::{Capabilities, ServerFacts};
use whimbrel_lab::{Cluster, Engine};
use whimbrel_wire::payload::Dialect;
use whimbrel_wire::value::Value;

use super::fence::{MoveEnd, SlotClaim, fence_key};
use super::names::{claim, names};
use super::{Carried, Refusal, Route, Seen, Token, carry_slot, clear_slot};

/// A time far away, not a multiple of a second.
const FAR_MS: i64 = 4_102_444_800_123;

/// How long something may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// The slot that most tests use: all keys have this tag.
const TAG: &str = "{a}";

fn slot() -> Slot {
    Slot::of_key(TAG.as_bytes())
}

fn token(version: u64) -> Token {
    Token { version, term: 1 }
}

/// A backend of one node, with a connection for the carrier and one for the test.
struct Backend {
    cluster: Cluster,
    link: Link,
    own: Link,
    can: Capabilities,
    dialect: Dialect,
}

impl Backend {
    async fn of(cluster: Cluster, side: Side) -> Backend {
        let url = cluster.nodes()[0].url();
        let (mut link, own) = (open(&url, side).await, open(&url, side).await);
        let mut can = Capabilities::probe(&mut link).await.expect("capabilities");
        can.probe_payload_version(&mut link, b"probe", false).await.expect("a version");
        let dialect = ServerFacts::ask(&mut link).await.expect("facts").dialect;
        Backend { cluster, link, own, can, dialect }
    }

    async fn open(&self, side: Side) -> Link {
        open(&self.cluster.nodes()[0].url(), side).await
    }

    async fn ask(&mut self, words: &[&str]) -> Value {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.own.call(&words).await.expect("it answers")
    }

    async fn text(&mut self, words: &[&str]) -> Option<String> {
        self.ask(words).await.as_str().map(str::to_owned)
    }

    /// All keys of the slot but the fence, with their times and payloads.
    async fn all(&mut self) -> Vec<(Bytes, Value, Value)> {
        let mut names = names(&mut self.own, slot(), 200_000).await.expect("names");
        names.sort();
        let mut all = Vec::new();
        for name in names {
            let time = self.own.call(&[b"PEXPIRETIME", &name]).await.expect("a time");
            let dump = self.own.call(&[b"DUMP", &name]).await.expect("a payload");
            all.push((name, time, dump));
        }
        all
    }

    async fn fence(&mut self) -> Option<String> {
        let fence = self.own.call(&[b"GET", &fence_key(slot())]).await.expect("it answers");
        fence.as_str().map(str::to_owned)
    }

    /// Writes this many short keys.
    async fn fill(&mut self, keys: usize) {
        for part in (0..keys).collect::<Vec<_>>().chunks(1_000) {
            for key in part {
                self.own.push(&[b"SET", format!("{TAG}{key}").as_bytes(), format!("value {key}").as_bytes()]);
            }
            self.own.flush().await.expect("sent");
            self.own.replies(part.len()).await.expect("they answer");
        }
    }

    async fn claim(&mut self, token: Token, place: MoveEnd) -> Result<Seen, Refusal> {
        claim(&mut self.link, slot(), token, place, &self.can).await
    }

    async fn clear(&mut self, token: Token) -> Result<u64, Refusal> {
        clear_slot(&mut self.link, slot(), token, &self.can).await
    }

    /// Waits until a key has expired.
    async fn wait_until_gone(&mut self, key: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.ask(&["EXISTS", key]).await != Value::Int(0) {
            assert!(Instant::now() < deadline, "{key} does not expire");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn open(url: &str, side: Side) -> Link {
    let endpoint = Arc::new(Endpoint::parse(side, url).expect("a valid address"));
    let address = endpoint.address.clone();
    Link::open(&endpoint, &address, LinkOptions::default()).await.expect("a connection")
}

/// Clusters of one node, all started at once: each takes some seconds until it serves.
fn start(engines: &[Engine]) -> Vec<Cluster> {
    let start = |engine| Cluster::builder(engine).primaries(1).start().expect("a cluster");
    std::thread::scope(|scope| {
        let started: Vec<_> = engines.iter().map(|engine| scope.spawn(move || start(*engine))).collect();
        started.into_iter().map(|cluster| cluster.join().expect("a cluster")).collect()
    })
}

/// Two backends.
struct Pair {
    a: Backend,
    b: Backend,
}

impl Pair {
    async fn of(from: Engine, to: Engine) -> Pair {
        let mut clusters = start(&[from, to]).into_iter();
        let mut next = || clusters.next().expect("one for each");
        Pair { a: Backend::of(next(), Side::Source).await, b: Backend::of(next(), Side::Target).await }
    }

    /// A pair of each of these engines.
    async fn each(engines: &[Engine]) -> Vec<(Engine, Pair)> {
        let both = |engine: &Engine| [*engine, *engine];
        let mut clusters = start(&engines.iter().flat_map(both).collect::<Vec<_>>()).into_iter();
        let mut pairs = Vec::new();
        for engine in engines {
            let mut next = || clusters.next().expect("one for each");
            let (a, b) = (next(), next());
            pairs.push((
                *engine,
                Pair { a: Backend::of(a, Side::Source).await, b: Backend::of(b, Side::Target).await },
            ));
        }
        pairs
    }

    /// With new connections, as after a refusal.
    async fn again(&mut self) {
        self.a.link = self.a.open(Side::Source).await;
        self.b.link = self.b.open(Side::Target).await;
    }

    async fn carry(&mut self, token: Token) -> Result<Carried, Refusal> {
        carry(&mut self.a, &mut self.b, token).await
    }

    /// Both sides have the same, to the byte.
    async fn assert_equal(&mut self) {
        assert_eq!(self.a.all().await, self.b.all().await);
    }
}

async fn carry(a: &mut Backend, b: &mut Backend, token: Token) -> Result<Carried, Refusal> {
    let route = Route { from: &a.can, to: &b.can, dialects: (a.dialect, b.dialect) };
    carry_slot(&mut a.link, &mut b.link, slot(), token, &route).await
}

#[track_caller]
fn assert_superseded<T: std::fmt::Debug>(outcome: Result<T, Refusal>, by: Token) {
    match outcome {
        Err(Refusal::Superseded { by: found }) => assert_eq!(found, by),
        other => panic!("not superseded: {other:?}"),
    }
}

#[track_caller]
fn failure<T: std::fmt::Debug>(outcome: Result<T, Refusal>) -> String {
    match outcome {
        Err(Refusal::Failed(error)) => error.to_string(),
        other => panic!("it should fail: {other:?}"),
    }
}
