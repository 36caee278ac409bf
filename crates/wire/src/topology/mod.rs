//! The replies to `CLUSTER SLOTS`, `SHARDS`, `NODES`, `INFO` and `MYID`, built when the slot table changes
//! and not when a client asks.
//!
//! The parts of a reply are kept as encoded *pages*: of `CLUSTER SLOTS` one for each 128 slots, with the
//! ranges that begin in them; of the others one for each few shards. A change encodes the pages again that it
//! touches, nothing else. A small reply is one piece of memory, a large one the list of its pages: asking for
//! either costs the clone of one [`Arc`], and sending it is a vectored write directly from the pages.
//!
//! Form and fields are those of Redis 7.0 and Valkey 9.1, compared with them by tests.
//!
//! [`Arc`]: std::sync::Arc

mod fields;
mod reply;

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotRange};
use whimbrel_core::topology::{Change, Shard, Table};

pub use self::reply::{Reader, Reply};
use crate::encode::Protocol;

/// Slots whose ranges share a page. Fewer make changes cheaper and large replies longer lists.
const PAGE_SLOTS: usize = 128;

/// How many pages shards share at most.
const SHARD_PAGES_MAX: usize = 128;

/// One value for each protocol.
type Both<T> = [T; 2];

/// All replies about one table.
#[derive(Debug)]
pub struct Replies {
    slots: Both<SlotPages>,
    /// How many ranges begin in each page of `CLUSTER SLOTS`.
    counts: Vec<usize>,
    shards: Both<ShardPages>,
    /// For each shard its slots in `CLUSTER SHARDS`, and its lines in `CLUSTER NODES`: the same in both
    /// protocols.
    texts: Vec<Texts>,
    /// The pages of `CLUSTER NODES`, which differs in its frame only.
    lines: Vec<Bytes>,
    nodes: Both<Reply>,
    /// How many shards share a page.
    shards_each: usize,
    info: Both<Reply>,
    id: Reply,
}

/// What the reply says of a shard in both protocols alike.
#[derive(Debug, Clone, Default)]
struct Texts {
    slots: Bytes,
    lines: Bytes,
}

/// `CLUSTER SLOTS` in one protocol.
#[derive(Debug, Default)]
struct SlotPages {
    /// For each shard what follows the two numbers of each of its ranges.
    nodes: Vec<Bytes>,
    pages: Vec<Bytes>,
    reply: Reply,
}

/// `CLUSTER SHARDS` in one protocol.
#[derive(Debug, Default)]
struct ShardPages {
    /// For each shard its nodes.
    nodes: Vec<Bytes>,
    pages: Vec<Bytes>,
    reply: Reply,
}

impl Replies {
    /// Builds all replies.
    pub fn new(table: &Table) -> Replies {
        let mut replies = Replies {
            slots: Default::default(),
            counts: vec![0; usize::from(Slot::COUNT) / PAGE_SLOTS],
            shards: Default::default(),
            texts: Vec::new(),
            lines: Vec::new(),
            nodes: Default::default(),
            shards_each: 1,
            info: Default::default(),
            id: Reply::default(),
        };
        replies.build(table);
        replies
    }

    /// Builds again what `change` made of another content; `table` is the table after it.
    pub fn update(&mut self, table: &Table, change: &Change) {
        if change.is_empty() {
            return;
        }
        if change.is_whole {
            return self.build(table);
        }
        for protocol in Protocol::BOTH {
            for &index in &change.groups {
                self.write_nodes(table, protocol, index);
            }
        }
        self.write_slots(table, &touched_slot_pages(table, change));
        let shards: BTreeSet<usize> = change.owners.union(&change.groups).copied().collect();
        self.write_shards(table, &shards);
        self.write_info(table);
    }

    /// `CLUSTER SLOTS`.
    pub fn slots(&self, protocol: Protocol) -> Reply {
        self.slots[protocol.index()].reply.clone()
    }

    /// `CLUSTER SHARDS`.
    pub fn shards(&self, protocol: Protocol) -> Reply {
        self.shards[protocol.index()].reply.clone()
    }

    /// `CLUSTER NODES`.
    pub fn nodes(&self, protocol: Protocol) -> Reply {
        self.nodes[protocol.index()].clone()
    }

    /// `CLUSTER NODES` in the eyes of another node: `table` is the table that the replies are built from.
    /// Only the pages that name one of the two are encoded.
    pub fn nodes_of(&self, table: &Table, myself: &NodeId, protocol: Protocol) -> Reply {
        let mut lines = self.lines.clone();
        let names = |shard: &Shard| {
            shard.group().members().any(|member| member.id == *myself || member.id == *table.myself())
        };
        let others = table.shards().iter().enumerate().filter(|(_, shard)| names(shard));
        let pages: BTreeSet<usize> = others.map(|(index, _)| index / self.shards_each).collect();
        for page in pages {
            let shards = &table.shards()[self.places(page)];
            lines[page] =
                shards.iter().map(|shard| fields::lines(shard, myself)).collect::<Vec<_>>().concat().into();
        }
        let bytes = lines.iter().map(Bytes::len).sum();
        let mut reply = Reply::default();
        reply.renew(fields::text_head(bytes, protocol), &lines, b"\r\n", &BTreeSet::new());
        reply
    }

    /// `CLUSTER INFO`.
    pub fn info(&self, protocol: Protocol) -> Reply {
        self.info[protocol.index()].clone()
    }

    /// `CLUSTER MYID`.
    pub fn my_id(&self) -> Reply {
        self.id.clone()
    }

    fn build(&mut self, table: &Table) {
        let count = table.shards().len();
        self.shards_each = count.div_ceil(SHARD_PAGES_MAX).max(1);
        let pages = count.div_ceil(self.shards_each);
        for protocol in Protocol::BOTH {
            let slots = &mut self.slots[protocol.index()];
            *slots = SlotPages {
                nodes: vec![Bytes::new(); count],
                pages: vec![Bytes::new(); self.counts.len()],
                ..SlotPages::default()
            };
            self.shards[protocol.index()] = ShardPages {
                nodes: vec![Bytes::new(); count],
                pages: vec![Bytes::new(); pages],
                ..ShardPages::default()
            };
            for index in 0..count {
                self.write_nodes(table, protocol, index);
            }
        }
        self.texts = vec![Texts::default(); count];
        self.lines = vec![Bytes::new(); pages];
        self.nodes = Default::default();
        self.write_slots(table, &(0..self.counts.len()).collect());
        self.write_shards(table, &(0..count).collect());
        self.write_info(table);
        let mut out = BytesMut::new();
        fields::bulk(table.myself().as_str().as_bytes(), &mut out);
        self.id = Reply::of(out.freeze());
    }

    /// What the reply says of the nodes of one shard, whatever slots it has.
    fn write_nodes(&mut self, table: &Table, protocol: Protocol, index: usize) {
        let Some(shard) = table.shards().get(index) else { return };
        self.slots[protocol.index()].nodes[index] = fields::slot_nodes(shard.group(), protocol);
        self.shards[protocol.index()].nodes[index] = fields::shard_nodes(shard.group(), protocol);
    }

    fn write_slots(&mut self, table: &Table, touched: &BTreeSet<usize>) {
        for protocol in Protocol::BOTH {
            let SlotPages { nodes, pages, reply } = &mut self.slots[protocol.index()];
            for &page in touched {
                let mut out = BytesMut::with_capacity(pages[page].len() + 256);
                let mut count = 0;
                for (range, owner) in table.ranges_from(window(page)) {
                    let replicas = fields::named_replicas(table.shards()[owner].group()).count();
                    fields::header(b'*', 3 + replicas, &mut out);
                    fields::numbers(range, &mut out);
                    out.put_slice(&nodes[owner]);
                    count += 1;
                }
                pages[page] = out.freeze();
                self.counts[page] = count;
            }
            let head = fields::header_bytes(b'*', self.counts.iter().sum());
            reply.renew(head, pages, b"", touched);
        }
    }

    fn write_shards(&mut self, table: &Table, shards: &BTreeSet<usize>) {
        for &index in shards {
            let Some(shard) = table.shards().get(index) else { continue };
            let (slots, lines) = (fields::shard_slots(shard), fields::lines(shard, table.myself()));
            self.texts[index] = Texts { slots, lines };
        }
        let touched: BTreeSet<usize> = shards.iter().map(|index| index / self.shards_each).collect();
        for &page in &touched {
            let lines: Vec<&[u8]> =
                self.texts[self.places(page)].iter().map(|text| &text.lines[..]).collect();
            self.lines[page] = lines.concat().into();
        }
        let text_bytes = self.lines.iter().map(Bytes::len).sum();
        for protocol in Protocol::BOTH {
            for &page in &touched {
                let places = self.places(page);
                let ShardPages { nodes, pages, .. } = &mut self.shards[protocol.index()];
                let mut out = BytesMut::with_capacity(pages[page].len() + 256);
                for (texts, nodes) in self.texts[places.clone()].iter().zip(&nodes[places]) {
                    fields::shard(&texts.slots, nodes, protocol, &mut out);
                }
                pages[page] = out.freeze();
            }
            let ShardPages { pages, reply, .. } = &mut self.shards[protocol.index()];
            reply.renew(fields::header_bytes(b'*', table.shards().len()), pages, b"", &touched);
            let head = fields::text_head(text_bytes, protocol);
            self.nodes[protocol.index()].renew(head, &self.lines, b"\r\n", &touched);
        }
    }

    /// Which shards share a page.
    fn places(&self, page: usize) -> Range<usize> {
        let first = page * self.shards_each;
        first..(first + self.shards_each).min(self.texts.len())
    }

    fn write_info(&mut self, table: &Table) {
        let text = fields::info(table);
        self.info = Protocol::BOTH.map(|protocol| {
            let mut out = BytesMut::from(&fields::text_head(text.len(), protocol)[..]);
            out.put_slice(text.as_bytes());
            out.put_slice(b"\r\n");
            Reply::of(out.freeze())
        });
    }
}

/// The slots of a page.
fn window(page: usize) -> SlotRange {
    let at = |place: usize| u16::try_from(place).ok().and_then(Slot::new);
    let ends = (at(page * PAGE_SLOTS), at(page * PAGE_SLOTS + PAGE_SLOTS - 1));
    let (Some(first), Some(last)) = ends else { unreachable!("there are no pages beyond the slots") };
    SlotRange::new(first, last).expect("a page has several slots")
}

fn page_of(slot: Slot) -> usize {
    usize::from(slot.number()) / PAGE_SLOTS
}

/// The pages of `CLUSTER SLOTS` whose ranges, or whose nodes, are others.
///
/// A range can only differ if it begins in changed slots, right after them, or reaches up to them: then it
/// begins where the range of the slot before them begins. That slot has kept its owner, so its range begins
/// at another place only if slots before that have changed, and then their pages are among these for the same
/// reason.
fn touched_slot_pages(table: &Table, change: &Change) -> BTreeSet<usize> {
    let mut pages = BTreeSet::new();
    for range in change.slots.ranges() {
        pages.extend(page_of(range.start())..=page_of(range.end()));
        pages.extend(Slot::new(range.end().number() + 1).map(page_of));
        let before = range.start().number().checked_sub(1).and_then(Slot::new);
        pages.extend(before.and_then(|slot| table.range_of(slot)).map(|(range, _)| page_of(range.start())));
    }
    for shard in change.groups.iter().filter_map(|index| table.shards().get(*index)) {
        pages.extend(shard.ranges().iter().map(|range| page_of(range.start())));
    }
    pages
}
