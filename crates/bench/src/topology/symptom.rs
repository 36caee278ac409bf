//! What clients of a shard feel while its slots leave it: their reads wait behind the questions that all
//! others ask after a `MOVED`.
//!
//! One server is real, and believes in the other primaries. Slots leave it, one after another. Clients read
//! from it at a fixed rate; one that gets `MOVED` asks for the whole table before it goes on, as
//! hiredis-vip and Jedis do: of the node that said so, or of whimbrel.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use redis::{Connection, cmd};
use serde::Serialize;
use tokio::task::JoinSet;
use whimbrel_core::slot::{Slot, tag_for_slot};
use whimbrel_lab::Engine;
use whimbrel_loadgen::interrupt::Interrupt;

use super::ask::{Client, QUESTION};
use super::layout::{Layout, SLOTS, SlotMove};
use super::stand::Stand;

/// How long clients read before slots move, and afterwards.
const CALM: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(1);

/// How often a slot moves.
const MOVE_EVERY: Duration = Duration::from_millis(50);

/// How often each client reads.
const READ_EVERY: Duration = Duration::from_millis(50);

/// Keys that one read names, all of one slot.
const KEYS: usize = 10;

/// The picture has a point for each.
pub(super) const BUCKET: Duration = Duration::from_millis(200);

/// How long a server that was just started may refuse writes.
const WRITABLE_WITHIN: Duration = Duration::from_secs(20);

/// What was felt.
#[derive(Debug, Serialize)]
pub(super) struct Felt {
    /// The server that clients read from.
    pub engine: &'static str,
    /// Who answered `CLUSTER SLOTS`.
    pub answered_by: &'static str,
    pub is_fragmented: bool,
    /// Slots that moved.
    pub moved: usize,
    /// Questions for the table.
    pub refreshes: usize,
    /// Reads before slots moved, and while they did.
    pub calm: Latencies,
    pub moving: Latencies,
    /// From the beginning on, each for 200 ms: the 99th of 100 reads, in milliseconds.
    pub p99_ms: Vec<f64>,
    /// When the first slot moved and the last, in seconds since the beginning.
    pub window_s: (f64, f64),
}

/// In milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Latencies {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub most_ms: f64,
}

impl Latencies {
    fn of(mut reads: Vec<f64>) -> Latencies {
        reads.sort_by(f64::total_cmp);
        let at = |share: f64| reads.get((reads.len().saturating_sub(1) as f64 * share) as usize).copied();
        let at = |share| at(share).unwrap_or(0.0);
        Latencies { p50_ms: at(0.5), p99_ms: at(0.99), most_ms: at(1.0) }
    }
}

/// A read that was answered: when it was sent, since the beginning, and how long it took.
type Read = (Duration, f64);

/// What all clients know.
struct Shared {
    /// Slots in the order in which they leave.
    order: Vec<usize>,
    /// How many have left.
    left: AtomicUsize,
    refreshes: AtomicUsize,
    began: Instant,
    until: Instant,
}

/// Has `clients` clients read while slots move for that long.
///
/// # Errors
/// When servers do not start or a reply does not come.
pub(super) fn measure(
    (engine, layout): (Engine, Layout),
    by_whimbrel: bool,
    (clients, moving): (usize, Duration),
    interrupt: &Interrupt,
) -> anyhow::Result<Felt> {
    let mut server = Stand::server(engine, layout)?;
    let mut ours = if by_whimbrel { Some(Stand::ours(layout)?) } else { None };
    let order: Vec<usize> = (0..SLOTS).filter(|slot| layout.owner(*slot) == 0).collect();
    if let Stand::Server(_, connection) = &mut server {
        fill(connection, &order)?;
    }
    let ports = (server.port(), ours.as_ref().map_or(server.port(), Stand::port));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut readers = runtime.block_on(async {
        let mut readers = Vec::with_capacity(clients);
        for _ in 0..clients {
            let (node, mut table) = (Client::connect(ports.0).await?, Client::connect(ports.1).await?);
            // As clients do before anything else; one that says nothing is not kept by a daemon.
            table.answer(QUESTION).await?;
            readers.push((node, table));
        }
        anyhow::Ok(readers)
    })?;
    let began = Instant::now();
    let until = began + CALM + moving + AFTER;
    let (left, refreshes) = Default::default();
    let shared = Arc::new(Shared { order, left, refreshes, began, until });
    let mut reading = JoinSet::new();
    for (number, (node, table)) in readers.drain(..).enumerate() {
        reading.spawn_on(read(number, node, table, shared.clone()), runtime.handle());
    }
    // At least one slot stays, so that there is something to read.
    let most = shared.order.len() - 1;
    let mut moved = 0;
    std::thread::sleep(CALM);
    while began.elapsed() < CALM + moving && moved < most {
        interrupt.check()?;
        let slot = shared.order[moved];
        let one = SlotMove { slot, to: 1, range_end: slot };
        // Who is asked knows it first: nobody is sent what is out of date.
        if let Some(ours) = &mut ours {
            ours.take_in(one)?;
        }
        if let Stand::Server(_, connection) = &mut server {
            // A slot that holds keys is given to nobody.
            let names: Vec<String> = (0..KEYS).map(|key| name(slot, key)).collect();
            cmd("DEL").arg(names).exec(connection)?;
        }
        server.take_in(one)?;
        moved += 1;
        shared.left.store(moved, Ordering::Release);
        std::thread::sleep(MOVE_EVERY);
    }
    let window_s = (CALM.as_secs_f64(), began.elapsed().as_secs_f64());
    let reads = runtime.block_on(async {
        let mut reads: Vec<Read> = Vec::new();
        while let Some(outcome) = reading.join_next().await {
            reads.extend(outcome.context("a client has panicked")??);
        }
        anyhow::Ok(reads)
    })?;
    let between = |from: f64, to: f64| {
        let is_in = |at: f64| from <= at && at < to;
        reads.iter().filter(|(at, _)| is_in(at.as_secs_f64())).map(|(_, ms)| *ms).collect::<Vec<f64>>()
    };
    let buckets = (until - began).as_millis().div_ceil(BUCKET.as_millis()) as usize;
    let bucket_s = BUCKET.as_secs_f64();
    let p99_ms = (0..buckets)
        .map(|bucket| bucket as f64 * bucket_s)
        .map(|from| Latencies::of(between(from, from + bucket_s)).p99_ms)
        .collect();
    Ok(Felt {
        engine: engine.name(),
        answered_by: if by_whimbrel { "whimbrel" } else { "the node" },
        is_fragmented: layout.is_fragmented,
        moved,
        refreshes: shared.refreshes.load(Ordering::Relaxed),
        calm: Latencies::of(between(0.0, window_s.0)),
        moving: Latencies::of(between(window_s.0, window_s.1)),
        p99_ms,
        window_s,
    })
}

fn fill(connection: &mut Connection, slots: &[usize]) -> anyhow::Result<()> {
    let until = Instant::now() + WRITABLE_WITHIN;
    for slot in slots {
        for key in 0..KEYS {
            let mut set = cmd("SET");
            set.arg(name(*slot, key)).arg("x".repeat(100));
            // One that was just started says for a moment that the cluster is down.
            while let Err(e) = set.exec(connection) {
                if Instant::now() > until {
                    bail!("the server takes no writes: {e}");
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    Ok(())
}

fn name(slot: usize, key: usize) -> String {
    let slot = u16::try_from(slot).ok().and_then(Slot::new);
    format!("{{{}}}:{key}", slot.map(tag_for_slot).unwrap_or_default())
}

/// What one client asks for the keys of a slot.
fn question(slot: usize) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n$4\r\nMGET\r\n", KEYS + 1);
    for key in (0..KEYS).map(|key| name(slot, key)) {
        bytes.push_str(&format!("${}\r\n{key}\r\n", key.len()));
    }
    bytes.into_bytes()
}

/// Reads until it is over. A read of a slot that has left is not answered here, so it does not count.
async fn read(
    number: usize,
    mut node: Client,
    mut table: Client,
    shared: Arc<Shared>,
) -> anyhow::Result<Vec<Read>> {
    let (mut reads, mut known) = (Vec::new(), 0);
    // Not all at once, and not all of the same slot.
    let first = shared.began + READ_EVERY.mul_f64(number as f64 * 0.618 % 1.0);
    let mut ticks = tokio::time::interval_at(first.into(), READ_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut turn = number * 7_919;
    loop {
        ticks.tick().await;
        let asked = Instant::now();
        if asked >= shared.until {
            return Ok(reads);
        }
        turn += 1;
        let there = &shared.order[known..];
        let answer = node.answer(&question(there[turn % there.len()])).await?;
        match &answer[..] {
            [b'*', ..] => reads.push((asked - shared.began, asked.elapsed().as_secs_f64() * 1e3)),
            [b'-', b'M', b'O', b'V', b'E', b'D', ..] => {
                let left = shared.left.load(Ordering::Acquire);
                table.answer(QUESTION).await?;
                shared.refreshes.fetch_add(1, Ordering::Relaxed);
                known = left;
            }
            other => bail!("the server answered {}", other.escape_ascii()),
        }
    }
}
