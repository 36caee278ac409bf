//! The cluster that is resharded, and the keys in it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::cmd;
use whimbrel_core::slot::{Slot, tag_for_slot};
use whimbrel_lab::{Cluster, Engine, SLOTS, Server};
use whimbrel_loadgen::content::{Content, Names, noise, stamp};
use whimbrel_loadgen::interrupt::Interrupt;
use whimbrel_loadgen::wire::{Reply, Wire};

/// Threads that fill the cluster.
const FILLERS: u64 = 2;

/// Bytes and commands that one of them sends to one node before it waits for the replies.
const BATCH_BYTES: usize = 512 * 1024;
const BATCH_COMMANDS: usize = 1000;

/// Passes after which every node has forgotten its slots, however many claims were under way.
const FORGET_PASSES: usize = 40;
const FORGET_PAUSE: Duration = Duration::from_millis(50);

/// How long the nodes may take to hold exactly the keys they should, after a turn that is over.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Slots of each primary, by its index.
pub type Layout = Vec<Vec<RangeInclusive<u16>>>;

/// Names of keys in a range of slots.
pub fn names_within(slots: RangeInclusive<u16>) -> Names {
    Names::In(slots.filter_map(Slot::new).map(tag_for_slot).collect())
}

/// A cluster without passwords whose nodes keep their roles.
#[derive(Debug)]
pub struct Fleet {
    /// The servers.
    pub cluster: Cluster,
}

/// What a node says of itself and of the others.
#[derive(Debug)]
struct View {
    /// By slot, the id of its owner.
    owners: Vec<Option<String>>,
    ranges: Vec<RangeInclusive<u16>>,
    has_marks: bool,
}

impl Fleet {
    /// Starts a cluster and lays out its slots.
    ///
    /// # Errors
    /// When servers do not start or do not agree.
    pub fn start(
        engine: Engine,
        replicas: usize,
        layout: &Layout,
        directives: &[(&str, String)],
    ) -> anyhow::Result<Self> {
        let mut builder = Cluster::builder(engine).primaries(layout.len()).replicas(replicas);
        for (directive, value) in directives {
            builder = builder.arg(directive, value);
        }
        let fleet = Self { cluster: builder.start()? };
        fleet.lay_out(layout)?;
        Ok(fleet)
    }

    /// The address of each primary, by index.
    pub fn address(&self, primary: usize) -> String {
        self.cluster.primaries()[primary].addr()
    }

    /// The addresses of all primaries.
    pub fn addresses(&self) -> Vec<String> {
        self.cluster.primaries().iter().map(Server::addr).collect()
    }

    /// Gives the slots of a cluster without keys to its primaries anew.
    ///
    /// # Errors
    /// When a node refuses, or the nodes do not agree in time.
    pub fn lay_out(&self, layout: &Layout) -> anyhow::Result<()> {
        let ranges_of = |name: &str, ranges: &[RangeInclusive<u16>]| {
            let mut command = cmd("CLUSTER");
            command.arg(name);
            for range in ranges {
                command.arg(range.start()).arg(range.end());
            }
            command
        };
        // A claim that is under way can bring a slot back: so until none was seen anywhere twice in a row.
        let mut quiet_passes = 0;
        for _ in 0..FORGET_PASSES {
            let mut is_quiet = true;
            for node in self.cluster.nodes() {
                let view = View::of(node)?;
                if !view.ranges.is_empty() {
                    is_quiet = false;
                    ranges_of("DELSLOTSRANGE", &view.ranges).exec(&mut node.try_connection()?)?;
                }
            }
            quiet_passes = if is_quiet { quiet_passes + 1 } else { 0 };
            if quiet_passes == 2 {
                break;
            }
            thread::sleep(FORGET_PAUSE);
        }
        for (node, ranges) in self.cluster.primaries().iter().zip(layout).filter(|(_, own)| !own.is_empty()) {
            ranges_of("ADDSLOTSRANGE", ranges).exec(&mut node.try_connection()?)?;
        }
        self.cluster.wait_ok()?;
        Ok(())
    }

    /// The slots of each primary, as the first node sees them, and nobody else's.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn slots(&self) -> anyhow::Result<Vec<Vec<u16>>> {
        let view = View::of(&self.cluster.primaries()[0])?;
        let mut slots = vec![Vec::new(); self.cluster.primaries().len()];
        for (slot, owner) in (0..).zip(&view.owners) {
            let owner = owner.as_deref().with_context(|| format!("nobody owns slot {slot}"))?;
            let index = (0..slots.len()).find(|&index| self.cluster.node_id(index) == owner);
            slots[index.with_context(|| format!("a stranger owns slot {slot}"))?].push(slot);
        }
        Ok(slots)
    }

    /// Writes all keys, each value of bytes that no server can compress.
    ///
    /// # Errors
    /// When a server refuses something, the number of keys is wrong at the end, or the user stops us.
    pub fn fill(&self, content: &Content, interrupt: &Interrupt) -> anyhow::Result<()> {
        let addresses = self.addresses();
        let mut owner_of = vec![0_usize; usize::from(SLOTS)];
        for (index, slots) in self.slots()?.into_iter().enumerate() {
            for slot in slots {
                owner_of[usize::from(slot)] = index;
            }
        }
        thread::scope(|scope| {
            let fillers: Vec<_> = (0..FILLERS)
                .map(|filler| {
                    let (addresses, owner_of) = (&addresses, &owner_of);
                    scope.spawn(move || fill_part(content, filler, addresses, owner_of, interrupt))
                })
                .collect();
            fillers.into_iter().try_for_each(|filler| {
                filler.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a filler failed")))
            })
        })?;
        let found = self.cluster.total_keys()?;
        ensure!(
            found == content.keys,
            "the cluster should hold {} keys now, but holds {found}",
            content.keys
        );
        Ok(())
    }

    /// What is wrong after a turn, once it has had some time to settle: slots that nodes disagree on or that
    /// are marked, keys too many or too few, replicas that differ in number from their primaries. `None` if
    /// all is well.
    ///
    /// # Errors
    /// When a node does not answer.
    pub fn problem(&self, keys: u64) -> anyhow::Result<Option<String>> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let problem = self.problem_now(keys)?;
            if problem.is_none() || Instant::now() >= deadline {
                return Ok(problem);
            }
            thread::sleep(FORGET_PAUSE);
        }
    }

    fn problem_now(&self, keys: u64) -> anyhow::Result<Option<String>> {
        let views = self.cluster.nodes().iter().map(View::of).collect::<anyhow::Result<Vec<_>>>()?;
        for view in &views {
            if view.owners != views[0].owners || view.owners.iter().any(Option::is_none) {
                return Ok(Some("nodes disagree on who owns what".to_owned()));
            }
            if view.has_marks {
                return Ok(Some("a slot is left marked".to_owned()));
            }
        }
        let count =
            |node: &Server| -> anyhow::Result<u64> { Ok(cmd("DBSIZE").query(&mut node.try_connection()?)?) };
        let mut total = 0;
        let mut by_primary = BTreeMap::new();
        for (index, node) in self.cluster.primaries().iter().enumerate() {
            let own = count(node)?;
            by_primary.insert(index, own);
            total += own;
        }
        if total != keys {
            return Ok(Some(format!("{total} keys instead of {keys}")));
        }
        for (index, expected) in by_primary {
            for replica in self.cluster.replicas_of(index) {
                let found = count(replica)?;
                if found != expected {
                    return Ok(Some(format!("a replica holds {found} keys instead of {expected}")));
                }
            }
        }
        Ok(None)
    }
}

/// One shard after the other, all slots shared evenly among the first `owners` of `primaries`.
pub fn even_layout(owners: usize, primaries: usize) -> Layout {
    let bound = |index: usize| {
        u16::try_from(index * usize::from(SLOTS) / owners)
            .expect("at most the number of slots, which is small")
    };
    (0..primaries)
        .map(|index| if index < owners { vec![bound(index)..=bound(index + 1) - 1] } else { Vec::new() })
        .collect()
}

/// Ranges of a sorted list of slots.
pub fn ranges_of(slots: &[u16]) -> Vec<RangeInclusive<u16>> {
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    for &slot in slots {
        match ranges.last_mut() {
            Some(last) if last.end() + 1 == slot => *last = *last.start()..=slot,
            _ => ranges.push(slot..=slot),
        }
    }
    ranges
}

fn fill_part(
    content: &Content,
    filler: u64,
    addresses: &[String],
    owner_of: &[usize],
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut wires = addresses
        .iter()
        .map(|address| Ok((Wire::connect(address)?, 0_usize)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let finish = |(wire, waiting): &mut (Wire, usize)| -> anyhow::Result<()> {
        wire.flush()?;
        for _ in 0..std::mem::take(waiting) {
            if let Reply::Error(words) = wire.reply()? {
                anyhow::bail!("a server refuses the data: {words}");
            }
        }
        Ok(())
    };
    let mut value = noise(content.value_bytes + 8, filler);
    for number in (filler..content.keys).step_by(FILLERS as usize) {
        let key = content.names.of(number);
        stamp(&mut value, number);
        let slot = Slot::of_key(key.as_bytes());
        let wire = &mut wires[owner_of[usize::from(slot.number())]];
        wire.0.push(&[b"SET", key.as_bytes(), &value[..content.value_bytes]]);
        wire.1 += 1;
        if wire.1 >= BATCH_COMMANDS || wire.0.pushed_bytes() >= BATCH_BYTES {
            finish(wire)?;
            interrupt.check()?;
        }
    }
    wires.iter_mut().try_for_each(finish)
}

impl View {
    fn of(node: &Server) -> anyhow::Result<Self> {
        let text: String = cmd("CLUSTER").arg("NODES").query(&mut node.try_connection()?)?;
        let mut view = Self { owners: vec![None; usize::from(SLOTS)], ranges: Vec::new(), has_marks: false };
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            for word in words.get(8..).unwrap_or_default() {
                if word.starts_with('[') {
                    view.has_marks = true;
                    continue;
                }
                let (first, last) = word.split_once('-').unwrap_or((word, word));
                let range = first.parse()?..=last.parse()?;
                for slot in range.clone() {
                    view.owners[usize::from(slot)] = Some(words[0].to_owned());
                }
                view.ranges.push(range);
            }
        }
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_name_every_slot_once() {
        let layout = even_layout(3, 4);
        assert_eq!(layout.iter().flatten().map(|range| range.len()).sum::<usize>(), usize::from(SLOTS));
        assert_eq!((layout.len(), layout[3].len()), (4, 0));
        assert_eq!(ranges_of(&[0, 1, 2, 7, 9, 10]), [0..=2, 7..=7, 9..=10]);
    }

    #[test]
    fn names_stay_within_their_slots() {
        let names = names_within(100..=102);
        for number in 0..50 {
            let slot = Slot::of_key(names.of(number).as_bytes()).number();
            assert!((100..=102).contains(&slot));
        }
    }

    #[test]
    fn a_fleet_is_laid_out_filled_and_judged() {
        let fleet = Fleet::start(Engine::Valkey81, 0, &even_layout(2, 3), &[]).expect("it starts");
        let content = Content { names: Names::Everywhere, keys: 3000, value_bytes: 100 };
        fleet.fill(&content, &Interrupt::never()).expect("it takes the keys");
        let slots = fleet.slots().expect("it answers");
        assert_eq!(slots.iter().map(Vec::len).collect::<Vec<_>>(), [8192, 8192, 0]);
        assert_eq!(fleet.problem(3000).expect("it answers"), None);
        let mut connection = fleet.cluster.connection_to(2);
        cmd("CLUSTER")
            .arg("SETSLOT")
            .arg(7)
            .arg("IMPORTING")
            .arg(fleet.cluster.node_id(0))
            .exec(&mut connection)
            .expect("it takes the mark");
        assert!(fleet.problem_now(3000).expect("it answers").is_some_and(|words| words.contains("marked")));
    }

    #[test]
    fn a_load_keeps_its_rate_and_follows_slots() {
        use whimbrel_loadgen::load::{Fault, Load, Pace, Plan};

        let fleet =
            Fleet::start(whimbrel_lab::Engine::Redis70, 0, &even_layout(2, 2), &[]).expect("it starts");
        let content = Content { names: names_within(0..=3), keys: 100, value_bytes: 50 };
        fleet.fill(&content, &Interrupt::never()).expect("it takes the keys");
        let plan = Plan {
            addresses: fleet.addresses(),
            owner_of: vec![0; 16_384],
            content,
            clients: 4,
            pace: Pace::Rate(1000),
        };
        let (begun, load) = (Instant::now(), Load::start(&plan));
        thread::sleep(Duration::from_millis(200));
        fleet.cluster.move_slot(2, 0, 1).expect("it moves");
        // Long enough for clients of a busy machine to notice.
        thread::sleep(Duration::from_secs(1));
        let recorded = load.stop();
        assert!(recorded.moved > 0 && recorded.samples.len() > 100, "{}", recorded.samples.len());
        // Twice as many as are due in the time that this has taken.
        let most = 2 * begun.elapsed().as_millis();
        let made = recorded.samples.len();
        assert!((made as u128) < most, "{made} commands of {most} at most: the rate is not kept");
        let known = [Fault::Ask, Fault::Tryagain];
        assert!(recorded.faults.keys().all(|fault| known.contains(fault)), "{:?}", recorded.faults);
        let plan = Plan { pace: Pace::Saturate(16), ..plan };
        let load = Load::start(&plan);
        thread::sleep(Duration::from_millis(300));
        fleet.cluster.move_slot(3, 0, 1).expect("it moves");
        thread::sleep(Duration::from_secs(1));
        let saturated = load.stop();
        assert!(saturated.moved > 0 && !saturated.samples.is_empty());
        assert_eq!(saturated.faults.get(&Fault::GivenUp), None, "{:?}", saturated.faults);
        assert_eq!(fleet.problem(100).expect("it answers"), None);
    }
}
