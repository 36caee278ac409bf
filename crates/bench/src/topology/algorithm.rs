//! The ways to answer `CLUSTER SLOTS`, in this process: nodes times slots, the walk, and ours.

use std::hint::black_box;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use whimbrel_control::topology::Topology;
use whimbrel_core::slot::{Slot, SlotRange, SlotSet};
use whimbrel_core::topology::{Group, Table};
use whimbrel_wire::encode::Protocol;

use super::layout::{Layout, Moves, SLOTS, SlotMove, node_id};

/// How long one thing is done again and again, and how often at least.
const TIME: Duration = Duration::from_millis(300);
const TIMES_MIN: u32 = 3;

/// What one way costs.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// To answer, in microseconds.
    pub answer_us: f64,
    /// To take in a change and answer then, in microseconds.
    pub changed_us: f64,
}

/// What the three ways cost, and how long the reply is.
#[derive(Debug)]
pub struct Costs {
    /// As the seed's servers did it before: all slots for each node.
    pub nodes_times_slots: Cost,
    /// As they do it since: all slots once.
    pub walk: Cost,
    /// Built replies.
    pub built: Cost,
    /// Bytes of the reply.
    pub reply_bytes: usize,
}

/// Measures all three.
///
/// # Errors
/// When their replies are not the same.
pub fn measure(layout: Layout) -> anyhow::Result<Costs> {
    let table = layout.table()?;
    let topology = Topology::new(table.clone());
    let built = || topology.reply(b"SLOTS", Protocol::Resp2).context("it is built");
    let bytes = built()?.to_bytes();
    if walk(&table) != bytes || nodes_times_slots(&table, &sets(&table)).len() != bytes.len() {
        bail!("the ways to answer do not agree");
    }
    let costs = Costs {
        nodes_times_slots: plain(layout, nodes_times_slots)?,
        walk: plain(layout, |table, _| walk(table))?,
        built: Cost {
            answer_us: mean_us(|| {
                // One alone is shorter than the clock can measure.
                for _ in 0..1_000 {
                    black_box(built()).ok();
                }
            }) / 1_000.0,
            changed_us: changed(layout, &topology)?,
        },
        reply_bytes: bytes.len(),
    };
    Ok(costs)
}

/// Those that build at each request: a change costs them nothing but itself.
fn plain(layout: Layout, build: impl Fn(&Table, &[SlotSet]) -> Vec<u8>) -> anyhow::Result<Cost> {
    let mut table = layout.table()?;
    let mut sets = sets(&table);
    let answer_us = mean_us(|| drop(black_box(build(&table, &sets))));
    let mut moves = Moves::new(layout);
    let changed_us = mean_us(|| {
        let SlotMove { slot, to, .. } = moves.advance();
        if let Some(slot) = slot_at(slot) {
            if let Some(from) = table.owner(slot) {
                sets[from].remove(slot);
            }
            sets[to].insert(slot);
            table.assign(&SlotSet::from_iter([slot]), Some(to));
        }
        drop(black_box(build(&table, &sets)));
    });
    Ok(Cost { answer_us, changed_us })
}

/// Ours: the change, all replies in both protocols after it, and the answer.
fn changed(layout: Layout, topology: &Topology) -> anyhow::Result<f64> {
    let mut moves = Moves::new(layout);
    let ids = (0..layout.primaries).map(node_id).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(mean_us(|| {
        let SlotMove { slot, to, .. } = moves.advance();
        if let Some(slot) = slot_at(slot) {
            topology.hand_over(&SlotSet::from_iter([slot]), &ids[to]);
        }
        drop(black_box(topology.reply(b"SLOTS", Protocol::Resp2)));
    }))
}

/// The mean time of one call, in microseconds.
fn mean_us(mut call: impl FnMut()) -> f64 {
    let (began, mut times) = (Instant::now(), 0);
    // Whole tables last for as many moves as their smallest node has slots, times the nodes.
    while times < TIMES_MIN || began.elapsed() < TIME && times < 2_000 {
        call();
        times += 1;
    }
    began.elapsed().as_secs_f64() * 1e6 / f64::from(times)
}

fn slot_at(number: usize) -> Option<Slot> {
    u16::try_from(number).ok().and_then(Slot::new)
}

/// The bitmap of each node, as servers keep it.
fn sets(table: &Table) -> Vec<SlotSet> {
    table.shards().iter().map(|shard| SlotSet::from_ranges(shard.ranges().iter().copied())).collect()
}

/// For each node all slots.
fn nodes_times_slots(table: &Table, sets: &[SlotSet]) -> Vec<u8> {
    let (mut body, mut count) = (Vec::new(), 0);
    for (shard, set) in table.shards().iter().zip(sets) {
        let mut start = None;
        for slot in Slot::all() {
            let is_owned = set.contains(slot);
            if is_owned {
                start = start.or(Some(slot));
            }
            let is_last = usize::from(slot.number()) + 1 == SLOTS;
            if let Some(from) = start.filter(|_| !is_owned || is_last) {
                let end = if is_owned { Some(slot) } else { Slot::new(slot.number() - 1) };
                if let Some(range) = end.and_then(|end| SlotRange::new(from, end)) {
                    entry(range, shard.group(), &mut body);
                    count += 1;
                }
                start = None;
            }
        }
    }
    finished(count, body)
}

/// All slots once.
fn walk(table: &Table) -> Vec<u8> {
    let (mut body, mut count) = (Vec::new(), 0);
    for (range, owner) in table.ranges_from(SlotRange::FULL) {
        entry(range, table.shards()[owner].group(), &mut body);
        count += 1;
    }
    finished(count, body)
}

fn finished(count: usize, body: Vec<u8>) -> Vec<u8> {
    let mut reply = format!("*{count}\r\n").into_bytes();
    reply.extend(body);
    reply
}

/// One entry in RESP2, field by field.
fn entry(range: SlotRange, group: &Group, out: &mut Vec<u8>) {
    let node = &group.primary;
    // Writing to memory cannot fail.
    let _ = write!(out, "*3\r\n:{}\r\n:{}\r\n*4\r\n", range.start(), range.end());
    for text in [node.ip.as_str(), node.id.as_str()] {
        let _ = write!(out, "${}\r\n{text}\r\n", text.len());
        if text == node.ip {
            let _ = write!(out, ":{}\r\n", node.client_port());
        }
    }
    out.extend(b"*0\r\n");
}
