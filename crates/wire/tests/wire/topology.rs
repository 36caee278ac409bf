//! The built replies: kept through changes they are those built anew, and what they say is what the table
//! says.

use bytes::{Buf, Bytes};
use proptest::prelude::*;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotRange, SlotSet};
use whimbrel_core::topology::{Group, Health, Member, Naming, Table};
use whimbrel_wire::encode::Protocol;
use whimbrel_wire::topology::{Replies, Reply};
use whimbrel_wire::value::Value;

fn id(number: usize) -> NodeId {
    format!("{number:040x}").parse().expect("an id")
}

/// Nodes of every kind: with and without host name, with and without TLS, and some that fail.
fn member(number: usize) -> Member {
    Member {
        id: id(number),
        ip: format!("10.0.{}.{}", number / 250, number % 250),
        hostname: (number % 3 == 1).then(|| format!("node-{number}.example")),
        naming: [Naming::Ip, Naming::Hostname, Naming::Unknown][number % 3],
        port: Some(7000),
        tls_port: number.is_multiple_of(4).then_some(7100),
        bus_port: Some(17_000),
        config_epoch: number as u64 * 3,
        health: Health::Online,
        is_connected: !number.is_multiple_of(7),
    }
}

fn groups(shards: usize, replicas: usize) -> Vec<Group> {
    let replica = |shard, place| member(shard + (place + 1) * 1_000);
    (0..shards)
        .map(|shard| Group {
            primary: member(shard),
            replicas: (0..replicas).map(|place| replica(shard, place)).collect(),
        })
        .collect()
}

fn table(shards: usize, replicas: usize, owner_of: impl FnMut(Slot) -> Option<usize>) -> Table {
    Table::new(id(0), groups(shards, replicas), owner_of)
}

/// All replies, by name.
fn all(replies: &Replies) -> Vec<(String, Bytes)> {
    let one = |name: &str, reply: Reply| (name.to_owned(), reply.to_bytes());
    let both = Protocol::BOTH.into_iter().flat_map(|p| {
        [
            one(&format!("slots {p:?}"), replies.slots(p)),
            one(&format!("shards {p:?}"), replies.shards(p)),
            one(&format!("nodes {p:?}"), replies.nodes(p)),
            one(&format!("info {p:?}"), replies.info(p)),
        ]
    });
    both.chain([one("myid", replies.my_id())]).collect()
}

fn assert_same(kept: &Replies, anew: &Replies) {
    for ((name, kept), (_, anew)) in all(kept).into_iter().zip(all(anew)) {
        assert!(kept == anew, "{name} differs:\n{kept:?}\n{anew:?}");
    }
}

fn parsed(reply: &Reply) -> Value {
    Value::parse(&reply.to_bytes()).expect("one whole value")
}

/// The owner of each slot according to the reply.
fn listed_owners(reply: &Value) -> Vec<Option<String>> {
    let mut owners = vec![None; usize::from(Slot::COUNT)];
    for entry in reply.as_items().expect("a list") {
        let [start, end, primary, ..] = entry.as_items().expect("an entry") else { panic!("a short entry") };
        let number = |value: &Value| usize::try_from(value.as_int().expect("a number")).expect("a slot");
        for owner in &mut owners[number(start)..=number(end)] {
            let id = primary.as_items().expect("a node")[2].as_str().expect("an id");
            assert!(owner.replace(id.to_owned()).is_none(), "a slot is listed twice");
        }
    }
    owners
}

fn owners(table: &Table) -> Vec<Option<String>> {
    let name = |index: usize| table.shards()[index].group().primary.id.to_string();
    Slot::all().map(|slot| table.owner(slot).map(name)).collect()
}

/// The slots of each node in `CLUSTER NODES`.
fn slots_in_lines(text: &str) -> Vec<(String, SlotSet)> {
    let slots = |words: &[&str]| words.join(",").parse().unwrap_or_default();
    text.lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .map(|words| (words[0].to_owned(), slots(&words[8..])))
        .collect()
}

/// All replies agree with the table, and with the simple walk over all slots.
fn assert_true(replies: &Replies, table: &Table) {
    let ranges: Vec<(SlotRange, usize)> = table.ranges_from(SlotRange::FULL).collect();
    for protocol in Protocol::BOTH {
        let slots = parsed(&replies.slots(protocol));
        assert_eq!(listed_owners(&slots), owners(table));
        assert_eq!(slots.as_items().expect("a list").len(), ranges.len());
        let shards = parsed(&replies.shards(protocol));
        let mut listed = SlotSet::new();
        for (entry, shard) in shards.as_items().expect("a list").iter().zip(table.shards()) {
            let ends = entry.field("slots").and_then(Value::as_items).expect("slots");
            let ends: Vec<u16> = ends.iter().filter_map(|end| end.as_int()?.try_into().ok()).collect();
            let expected: Vec<u16> =
                shard.ranges().iter().flat_map(|r| [r.start().number(), r.end().number()]).collect();
            assert_eq!(ends, expected);
            listed = listed.union(&SlotSet::from_ranges(shard.ranges().iter().copied()));
            let nodes = entry.field("nodes").and_then(Value::as_items).expect("nodes");
            assert_eq!(nodes.len(), 1 + shard.group().replicas.len());
            for (node, member) in nodes.iter().zip(shard.group().members()) {
                assert_eq!(node.field("id").and_then(Value::as_str), Some(member.id.as_str()));
            }
        }
        assert_eq!(listed.len(), table.assigned());
        let nodes = parsed(&replies.nodes(protocol));
        let lines = slots_in_lines(nodes.as_str().expect("text"));
        assert_eq!(lines.len(), table.shards().iter().map(|s| s.group().members().count()).sum::<usize>());
        for shard in table.shards() {
            let id = shard.group().primary.id.as_str();
            let (_, slots) = lines.iter().find(|(name, _)| name == id).expect("a line");
            assert_eq!(slots.ranges(), shard.ranges());
        }
        let info = parsed(&replies.info(protocol));
        let assigned = format!("cluster_slots_assigned:{}\r\n", table.assigned());
        assert!(info.as_str().expect("text").contains(&assigned));
    }
    assert_eq!(parsed(&replies.my_id()).as_str(), Some(table.myself().as_str()));
}

#[derive(Debug, Clone)]
enum Step {
    /// Gives slots from one place on, a number of them, every n-th, to a shard or to nobody.
    Assign(u16, u16, u16, Option<usize>),
    /// A node of this shard gets another health.
    Health(usize, Health),
    /// One replica less, or one more again.
    Replicas(usize, usize),
}

fn steps(shards: usize) -> impl Strategy<Value = Vec<Step>> {
    let health =
        prop::sample::select(vec![Health::Online, Health::Loading, Health::Suspected, Health::Failed]);
    let one = prop_oneof![
        4 => (0u16..16_384, 1u16..600, 1u16..5, prop::option::weighted(0.9, 0..shards))
            .prop_map(|(from, count, step, owner)| Step::Assign(from, count, step, owner)),
        1 => (0..shards, health).prop_map(|(shard, health)| Step::Health(shard, health)),
        1 => (0..shards, 0usize..3).prop_map(|(shard, replicas)| Step::Replicas(shard, replicas)),
    ];
    prop::collection::vec(one, 1..12)
}

/// Takes a step as a fresh look at the cluster would show it.
fn seen_anew(table: &Table, step: &Step, shards: usize) -> Table {
    let mut seen: Vec<Group> = table.shards().iter().map(|shard| shard.group().clone()).collect();
    match step {
        Step::Health(shard, health) => {
            seen[*shard].primary.health = *health;
            seen[*shard].replicas.iter_mut().for_each(|replica| replica.health = *health);
        }
        Step::Replicas(shard, replicas) => {
            seen[*shard].replicas = groups(shards, *replicas).swap_remove(*shard).replicas;
        }
        Step::Assign(..) => {}
    }
    Table::new(table.myself().clone(), seen, |slot| table.owner(slot))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_kept_is_what_is_built_anew(
        (shards, steps) in prop::sample::select(vec![1usize, 3, 20, 300]).prop_flat_map(|n| (Just(n),
        steps(n))),
        // From whole ranges to slots that belong to nodes in turn.
        fragments in prop::sample::select(vec![1u16, 2, 7, 130, 6_000]),
        replicas in 0usize..3,
    ) {
        let mut table = table(shards, replicas, |slot| Some(usize::from(slot.number() / fragments) % shards));
        let mut kept = Replies::new(&table);
        // A client that still reads an earlier reply is not disturbed.
        let before = kept.slots(Protocol::Resp2);
        let copy = before.to_bytes();
        for step in steps {
            let change = match step {
                Step::Assign(from, count, every, owner) => {
                    let numbers = (from..from.saturating_add(count)).step_by(usize::from(every));
                    table.assign(&numbers.filter_map(Slot::new).collect(), owner)
                }
                ref step => {
                    let seen = seen_anew(&table, step, shards);
                    table.adopt(seen)
                }
            };
            kept.update(&table, &change);
            assert_same(&kept, &Replies::new(&table));
        }
        assert_true(&kept, &table);
        prop_assert_eq!(before.to_bytes(), copy);
    }

    #[test]
    fn a_reply_may_be_written_in_any_pieces(
        pieces in prop::collection::vec(1usize..30_000, 1..60), fragments in prop::sample::select(vec![1u16,
        6_000]),
    ) {
        let replies = Replies::new(&table(5, 1, |slot| Some(usize::from(slot.number() / fragments) % 5)));
        let reply = replies.slots(Protocol::Resp3);
        let mut reader = reply.reader();
        let mut written = Vec::new();
        for piece in pieces.into_iter().cycle() {
            if !reader.has_remaining() {
                break;
            }
            let mut places = [std::io::IoSlice::new(&[]); 4];
            let count = reader.chunks_vectored(&mut places);
            let ready: Vec<u8> = places[..count].iter().flat_map(|place| place.to_vec()).collect();
            prop_assert!(ready.starts_with(reader.chunk()) && !reader.chunk().is_empty());
            let piece = piece.min(ready.len());
            written.extend(&ready[..piece]);
            reader.advance(piece);
        }
        prop_assert_eq!(written, reply.to_bytes());
    }
}

#[test]
fn protocols_differ_as_those_of_servers_do() {
    let replies = Replies::new(&table(2, 0, |slot| Some(usize::from(slot.number() > 8_191))));
    let text = |reply: Reply| String::from_utf8(reply.to_bytes().to_vec()).expect("text");
    let entry = |map: [&str; 2]| {
        format!(
            "*2\r\n*3\r\n:0\r\n:8191\r\n*4\r\n$8\r\n10.0.0.0\r\n:7000\r\n$40\r\n{}\r\n{}\r\n\
             *3\r\n:8192\r\n:16383\r\n*4\r\n$14\r\nnode-1.example\r\n:7000\r\n$40\r\n{}\r\n{}\r\n\
             $2\r\nip\r\n$8\r\n10.0.0.1\r\n",
            id(0),
            map[0],
            id(1),
            map[1]
        )
    };
    assert_eq!(text(replies.slots(Protocol::Resp2)), entry(["*0", "*2"]));
    assert_eq!(text(replies.slots(Protocol::Resp3)), entry(["%0", "%1"]));
    assert!(
        text(replies.shards(Protocol::Resp2)).starts_with("*2\r\n*4\r\n$5\r\nslots\r\n*2\r\n:0\r\n:8191\r\n")
    );
    assert!(
        text(replies.shards(Protocol::Resp3)).starts_with("*2\r\n%2\r\n$5\r\nslots\r\n*2\r\n:0\r\n:8191\r\n")
    );
    assert!(text(replies.nodes(Protocol::Resp2)).starts_with('$'));
    assert!(text(replies.nodes(Protocol::Resp3)).starts_with('='));
    assert!(text(replies.info(Protocol::Resp3)).contains("\r\ntxt:cluster_state:ok\r\n"));
}

/// Another node's `CLUSTER NODES` is that of a table in its eyes, for primaries and replicas, with one shard
/// on a page and with several.
#[test]
fn the_lines_of_another_node_are_those_of_its_own_table() {
    for shards in [1, 3, 300] {
        let owner_of = |slot: Slot| Some(usize::from(slot.number() / 7) % shards);
        let (mine, kept) = (table(shards, 1, owner_of), Replies::new(&table(shards, 1, owner_of)));
        for node in [0, shards - 1, shards / 2, 1_000] {
            let theirs = Replies::new(&Table::new(id(node), groups(shards, 1), owner_of));
            for protocol in Protocol::BOTH {
                let reply = kept.nodes_of(&mine, &id(node), protocol).to_bytes();
                assert!(reply == theirs.nodes(protocol).to_bytes(), "node {node} of {shards}: {reply:?}");
            }
        }
    }
}

/// Only what is touched is encoded again: the other pages stay where they are in memory.
#[test]
fn a_change_leaves_other_pages_alone() {
    let mut table = table(3, 1, |slot| Some(usize::from(slot.number()) % 3));
    let mut replies = Replies::new(&table);
    let places = |reply: &Reply| -> Vec<*const u8> {
        let mut reader = reply.reader();
        let mut places = Vec::new();
        while reader.has_remaining() {
            places.push(reader.chunk().as_ptr());
            reader.advance(reader.chunk().len());
        }
        places
    };
    let before = replies.slots(Protocol::Resp2);
    let moved = SlotSet::from_iter(Slot::new(5_000));
    let change = table.assign(&moved, Some(0));
    replies.update(&table, &change);
    let after = replies.slots(Protocol::Resp2);
    let (before, after) = (places(&before), places(&after));
    assert_eq!(before.len(), after.len());
    let others = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    // The page, and the head with the number of ranges.
    assert_eq!(others, 2);
}

/// What a change does to the ranges beside it, where these are in another page.
#[test]
fn changes_at_the_edges_of_pages_reach_over_them() {
    for fragments in [1, 64, 8_192] {
        for number in [0, 1, 127, 128, 129, 255, 256, 8_191, 8_192, 16_255, 16_256, 16_383] {
            let mut table = table(3, 1, |slot| Some(usize::from(slot.number() / fragments) % 2));
            let mut kept = Replies::new(&table);
            let moved = SlotSet::from_iter(Slot::new(number));
            for owner in [Some(2), Some(0), Some(1), None, Some(1)] {
                let change = table.assign(&moved, owner);
                kept.update(&table, &change);
                assert_same(&kept, &Replies::new(&table));
            }
        }
    }
}
