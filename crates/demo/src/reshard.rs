//! `whimbrel demo`: a rebalance of a real cluster under load, and its proof.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::{Connection, Value, cmd, pipe};
use serde_json::Value as Json;
use whimbrel_core::units::{format_bytes, format_count, format_duration_ms};
use whimbrel_lab::{Cluster, Engine, SLOTS, Server};
use whimbrel_loadgen::child::{self, Ended};
use whimbrel_loadgen::interrupt::Interrupt;
use whimbrel_loadgen::program::{full_version, last_words};
use whimbrel_loadgen::rebalance::clients::{Clients, Map, Met, READERS, WRITERS, Wires, Written};
use whimbrel_loadgen::rebalance::keys::Keys;

use crate::stage::{Outcome, duration, own_binary, patient_connection, print, shown_code};

/// Primaries that have the slots at first, and the one that has none.
const OWNERS: usize = 3;
const EMPTY: usize = OWNERS;

/// What the empty one gets.
const SHARE: u16 = SLOTS / (OWNERS as u16 + 1);

/// Time between two lines, and how many there are before and after the rebalance.
const TICK: Duration = Duration::from_millis(500);
const QUIET_TICKS: u32 = 2;

/// Longer than any rebalance of a demo.
const LIMIT: Duration = Duration::from_secs(600);

/// A node that is busy is no node that has failed.
const NODE_TIMEOUT_MS: u32 = 5000;

/// Commands that are sent at once.
const BATCH: usize = 1000;

/// How long replicas may take to be equal to their primaries.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);
const SETTLE_PAUSE: Duration = Duration::from_millis(100);

/// Shows it. Everything that was started is gone afterwards.
///
/// # Errors
/// When the servers are not on this machine or go away, the user stops us, or something of our own fails.
/// What the proof finds is no error: see the exit code.
pub fn show(engine: Engine, keys: u64, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let keys = Keys::new(keys);
    let total = format_count(keys.total);
    print(&format!(
        "A rebalance under load, on a real cluster ({}): three primaries share {total} keys, a fourth is\n\
         empty, each has a replica. All of it happens on loopback; servers and files are gone when it \
         ends.\n",
        full_version(engine)
    ))?;
    let (cluster, mut map) = begin(engine, keys, interrupt)?;
    print(&format!(
        "2. {WRITERS} clients write and {READERS} read, 4,000 commands a second; they follow MOVED as every \
         cluster client does, nothing else.",
    ))?;
    let clients = Clients::start(keys, &map);
    let watched = watch(&cluster, clients, interrupt)?;
    print("\n4. The proof:")?;
    let mut proof = Proof { is_good: true };
    proof.rebalance(&watched)?;
    proof.slots(&cluster)?;
    // Through the map of before, as a client that slept all the while.
    proof.writes(keys, &watched.written, watched.all.acknowledged, &mut Wires::new(map.clone()))?;
    map = map_of(&cluster)?;
    proof.rest(&cluster, &map, keys, interrupt)?;
    proof.clients(&watched.all, watched.commands)?;
    proof.stall(&watched)?;
    for node in cluster.nodes() {
        node.stop()?;
    }
    if !proof.is_good {
        print("\nNOT everything is as it should be: see the words in capitals.")?;
        return Ok(match watched.status.success() {
            true => Outcome::Different,
            false => Outcome::of_failed(watched.status),
        });
    }
    print(&format!(
        "\nA quarter of {total} keys moved under load in {}; nothing was lost, no client saw an error. All \
         servers are stopped.",
        duration(watched.wall)
    ))?;
    Ok(Outcome::Proven)
}

/// A cluster of three primaries that share the keys, and a fourth that is empty, each with a replica; and who
/// owns what.
///
/// # Errors
/// When the servers are not on this machine or go away, or the user stops us.
pub(crate) fn begin(engine: Engine, keys: Keys, interrupt: &Interrupt) -> anyhow::Result<(Cluster, Map)> {
    let (started, total) = (Instant::now(), format_count(keys.total));
    let cluster = Cluster::builder(engine)
        .primaries(OWNERS + 1)
        .replicas(1)
        .node_timeout_ms(NODE_TIMEOUT_MS)
        .start()?;
    empty_the_last(&cluster)?;
    let map = map_of(&cluster)?;
    each_owner(&cluster, &map, interrupt, 0..keys.total, keys, |connection, numbers| {
        let mut pipeline = pipe();
        for number in numbers {
            pipeline.add_command(keys.create(*number)).ignore();
        }
        Ok(pipeline.exec(connection)?)
    })?;
    let counted = cluster.total_keys()?;
    ensure!(counted == keys.total, "the cluster should hold {total} keys now, but holds {counted}");
    print(&format!(
        "1. {} servers run, and {total} keys are in: four fifths strings, the rest of the other types. That \
            took {}.",
        cluster.nodes().len(),
        duration(started.elapsed())
    ))?;
    Ok((cluster, map))
}

/// The laboratory gives every primary its share. The keyless slots of the last one go to the others in
/// thirds. Their epochs are raised first: so a claim of the last one that is still under way counts no more.
fn empty_the_last(cluster: &Cluster) -> anyhow::Result<()> {
    for owner in 0..OWNERS {
        cmd("CLUSTER").arg("BUMPEPOCH").exec(&mut cluster.connection_to(owner))?;
    }
    let first = SLOTS - SHARE;
    let mut give_away = cmd("CLUSTER");
    give_away.arg("DELSLOTSRANGE").arg(first).arg(SLOTS - 1);
    give_away.exec(&mut cluster.connection_to(EMPTY))?;
    let bound = |owner: usize| usize::from(first) + owner * usize::from(SHARE) / OWNERS;
    for owner in 0..OWNERS {
        let mut take = pipe();
        for action in ["DELSLOTSRANGE", "ADDSLOTSRANGE"] {
            take.cmd("CLUSTER").arg(action).arg(bound(owner)).arg(bound(owner + 1) - 1).ignore();
        }
        take.atomic().exec(&mut cluster.connection_to(owner))?;
    }
    cluster.wait_ok()?;
    ensure!(slots_by_primary(cluster)?[EMPTY] == 0, "the fourth primary does not give its slots away");
    Ok(())
}

/// Who owns what in the eyes of the first node.
pub(crate) fn map_of(cluster: &Cluster) -> anyhow::Result<Map> {
    Ok(Map {
        addresses: cluster.nodes().iter().map(Server::addr).collect(),
        owner_of: owners_seen_by(cluster, 0)?
            .into_iter()
            .enumerate()
            .map(|(slot, owner)| owner.with_context(|| format!("nobody owns slot {slot}")))
            .collect::<anyhow::Result<_>>()?,
    })
}

fn owners_seen_by(cluster: &Cluster, viewer: usize) -> anyhow::Result<Vec<Option<usize>>> {
    let text: String = cmd("CLUSTER").arg("NODES").query(&mut cluster.nodes()[viewer].try_connection()?)?;
    let mut owners = vec![None; usize::from(SLOTS)];
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let id = words.next().unwrap_or_default();
        let Some(index) = (0..cluster.nodes().len()).find(|&index| cluster.node_id(index) == id) else {
            continue;
        };
        // Slots on the move are in brackets.
        for range in words.skip(7).filter(|word| !word.starts_with('[')) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            for slot in first.parse::<usize>()?..=last.parse()? {
                *owners.get_mut(slot).with_context(|| format!("there is no slot {slot}"))? = Some(index);
            }
        }
    }
    Ok(owners)
}

/// How many slots each primary has in the eyes of the fourth.
fn slots_by_primary(cluster: &Cluster) -> anyhow::Result<[u16; OWNERS + 1]> {
    let mut counts = [0; OWNERS + 1];
    for owner in owners_seen_by(cluster, EMPTY)?.into_iter().flatten() {
        // A replica that has become a primary is none of ours; its slots are missed then.
        if let Some(count) = counts.get_mut(owner) {
            *count += 1;
        }
    }
    Ok(counts)
}

/// Does something with all these keys at their owners, all owners at once, a batch at a time.
fn each_owner(
    cluster: &Cluster,
    map: &Map,
    interrupt: &Interrupt,
    numbers: std::ops::Range<u64>,
    keys: Keys,
    work: impl Fn(&mut Connection, &[u64]) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cluster.primaries().len())
            .map(|owner| {
                let (work, numbers) = (&work, numbers.clone());
                scope.spawn(move || -> anyhow::Result<()> {
                    let mut connection = patient_connection(&cluster.nodes()[owner])?;
                    let mut batch = Vec::with_capacity(BATCH);
                    for number in numbers.filter(|number| map.owner_of[keys.slot(*number)] == owner) {
                        batch.push(number);
                        if batch.len() == BATCH {
                            work(&mut connection, &batch)?;
                            batch.clear();
                            interrupt.check()?;
                        }
                    }
                    if batch.is_empty() { Ok(()) } else { work(&mut connection, &batch) }
                })
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker failed"))))
    })
}

/// What was seen of the rebalance and of the clients meanwhile.
struct Watched {
    status: ExitStatus,
    wall: Duration,
    /// The last line of the rebalance's JSON.
    report: Json,
    last_words: String,
    /// By key, what the writers wrote.
    written: Vec<(u64, Written)>,
    /// What the clients met in all, without the single latencies.
    all: Met,
    commands: u64,
    longest_before_us: u32,
    longest_us: u32,
}

/// Runs this binary as a user would, with a line of what the clients get every half second, before, meanwhile
/// and after.
fn watch(cluster: &Cluster, clients: Clients, interrupt: &Interrupt) -> anyhow::Result<Watched> {
    let scratch = tempfile::Builder::new().prefix("whimbrel-demo-").tempdir()?;
    let (output, errors) = (scratch.path().join("output"), scratch.path().join("errors"));
    let seed = cluster.seed();
    let mut command = own_binary()?;
    command.args(["rebalance", &seed, "--use-empty", "--yes", "--json", "--method", "external"]);
    command.arg("--state-dir").arg(scratch.path().join("state"));
    command.stdin(Stdio::null()).stdout(File::create(&output)?).stderr(File::create(&errors)?);
    print(&format!(
        "3. $ whimbrel rebalance {seed} --use-empty --yes --json --method external\n\n        \
         time  commands/s       p50       p99   longest   slots moved"
    ))?;

    let mut lines = Lines::new(cluster, &clients);
    for _ in 0..QUIET_TICKS {
        lines.next("before", interrupt)?;
    }
    let longest_before_us = lines.longest_us;
    let ended = thread::scope(|scope| {
        let rebalance = scope.spawn(move || child::run(&mut command, Some(LIMIT), interrupt));
        while !rebalance.is_finished() {
            lines.next("moving", interrupt)?;
        }
        rebalance.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the rebalance could not be watched")))
    })?;
    for _ in 0..QUIET_TICKS {
        lines.next("after", interrupt)?;
    }
    let Lines { mut all, mut commands, mut longest_us, .. } = lines;
    let (written, rest) = clients.stop()?;
    commands += rest.took_us.len() as u64;
    longest_us = rest.took_us.iter().copied().fold(longest_us, u32::max);
    add(&mut all, rest);

    let Ended::Exited { status, wall, .. } = ended else {
        anyhow::bail!("the rebalance did not end within {}", duration(LIMIT));
    };
    let output = fs::read_to_string(&output)?;
    let report = output
        .lines()
        .rev()
        .filter_map(|line| serde_json::from_str::<Json>(line).ok())
        .find(|line| line["event"] == "report")
        .unwrap_or_default();
    let errors = fs::read_to_string(&errors)?;
    let printed = if errors.trim().is_empty() { &output } else { &errors };
    let last_words = last_words(printed);
    Ok(Watched { status, wall, report, last_words, written, all, commands, longest_before_us, longest_us })
}

/// Writes a line every [`TICK`].
struct Lines<'a> {
    cluster: &'a Cluster,
    clients: &'a Clients,
    started: Instant,
    last: Instant,
    all: Met,
    commands: u64,
    longest_us: u32,
}

impl<'a> Lines<'a> {
    fn new(cluster: &'a Cluster, clients: &'a Clients) -> Self {
        let now = Instant::now();
        Self { cluster, clients, started: now, last: now, all: Met::default(), commands: 0, longest_us: 0 }
    }

    fn next(&mut self, phase: &str, interrupt: &Interrupt) -> anyhow::Result<()> {
        interrupt.check()?;
        thread::sleep(TICK.saturating_sub(self.last.elapsed()));
        interrupt.check()?;
        let mut met = self.clients.met();
        let window = self.last.elapsed();
        self.last = Instant::now();
        met.took_us.sort_unstable();
        let count = met.took_us.len();
        // The rank that covers this share, rounded up.
        let at = |percent: usize| {
            let rank = (count * percent).div_ceil(100).saturating_sub(1);
            // Nothing may have been answered at all.
            met.took_us.get(rank).map_or_else(|| "-".to_owned(), |took_us| milliseconds(*took_us))
        };
        let per_s = (count as f64 / window.as_secs_f64()).round() as u64;
        print(&format!(
            "{phase:>6} {:>4.1} s  {:>10}  {:>8}  {:>8}  {:>8}   {:>5} of {}",
            self.started.elapsed().as_secs_f64(),
            format_count(per_s),
            at(50),
            at(99),
            at(100),
            format_count(u64::from(slots_by_primary(self.cluster)?[EMPTY])),
            format_count(u64::from(SHARE)),
        ))?;
        self.commands += count as u64;
        self.longest_us = self.longest_us.max(met.took_us.last().copied().unwrap_or_default());
        add(&mut self.all, met);
        Ok(())
    }
}

/// Adds all but the latencies.
pub(crate) fn add(all: &mut Met, met: Met) {
    all.moved += met.moved;
    all.acknowledged += met.acknowledged;
    all.wrong_reads += met.wrong_reads;
    for (word, count) in met.errors {
        *all.errors.entry(word).or_default() += count;
    }
}

/// Each line says in capitals what is not as it should be.
pub(crate) struct Proof {
    pub(crate) is_good: bool,
}

impl Proof {
    fn line(&mut self, name: &str, is_good: bool, words: &str) -> anyhow::Result<()> {
        self.is_good &= is_good;
        print(&format!("   {name:<14} {words}"))
    }

    fn rebalance(&mut self, watched: &Watched) -> anyhow::Result<()> {
        let report = &watched.report;
        if !watched.status.success() {
            let reason = report["jobs"]
                .as_array()
                .and_then(|jobs| jobs.iter().find_map(|job| job["reason"].as_str()))
                .unwrap_or(&watched.last_words);
            let exit = shown_code(watched.status);
            return self.line("Its report", false, &format!("IT FAILED with exit code {exit}: {reason}"));
        }
        let number = |value: &Json| value.as_u64().unwrap_or_default();
        let is_verified = report["verified"] == true;
        let words = format!(
            "{} keys, {} in {}; writes were paused {} times, at most {}; {}",
            format_count(number(&report["keys"])),
            format_bytes(number(&report["bytes"])),
            format_duration_ms(number(&report["duration_ms"])),
            number(&report["pauses"]["count"]),
            format_duration_ms(number(&report["pauses"]["longest_ms"])),
            if is_verified { "compared before each handover" } else { "NOT COMPARED" },
        );
        self.line("Its report", is_verified, &words)
    }

    fn slots(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        let agreement = cluster.wait_ok();
        let counts = slots_by_primary(cluster)?;
        let is_even = counts.iter().all(|&count| count == SHARE);
        let words = match agreement {
            Err(error) => format!("THE NODES DISAGREE: {error}"),
            Ok(()) if is_even => {
                format!("{} on each of 4 primaries; all nodes agree", format_count(u64::from(SHARE)))
            }
            Ok(()) => format!("NOT EVEN: {counts:?}"),
        };
        let is_good = words.ends_with("agree");
        self.line("Slots", is_good, &words)
    }

    /// What no client writes, how many keys there are, and the replicas.
    pub(crate) fn rest(
        &mut self,
        cluster: &Cluster,
        map: &Map,
        keys: Keys,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        self.other_keys(cluster, map, keys, interrupt)?;
        self.counts(keys.total, cluster.total_keys()?)?;
        self.replicas(cluster, interrupt)
    }

    /// Reads every written key back, as a client does.
    pub(crate) fn writes(
        &mut self,
        keys: Keys,
        written: &[(u64, Written)],
        acknowledged: u64,
        wires: &mut Wires,
    ) -> anyhow::Result<()> {
        let mut wrong = Vec::new();
        for (number, written) in written {
            let found = wires.call(keys.slot(*number), &keys.read(*number))?;
            let found = keys.times_written(*number, found);
            let is_right = found == Some(written.acknowledged)
                || written.is_in_doubt && found == Some(written.acknowledged + 1);
            if !is_right {
                let found =
                    found.map_or_else(|| "nothing that makes sense".to_owned(), |times| times.to_string());
                wrong.push(format!(
                    "{}: {} acknowledged, found {found}",
                    keys.name(*number),
                    written.acknowledged
                ));
            }
        }
        let is_good = wrong.is_empty() && acknowledged > 0;
        let verdict = match wrong.first() {
            Some(first) => format!("{} KEYS ARE WRONG, such as {first}", wrong.len()),
            None if is_good => "every one is there, none twice".to_owned(),
            None => "NOTHING WAS WRITTEN".to_owned(),
        };
        let words = format!(
            "{} acknowledged, to counters, strings, hashes and lists ({} keys): {verdict}",
            format_count(acknowledged),
            format_count(written.len() as u64)
        );
        self.line("Writes", is_good, &words)
    }

    /// Reads every other key from its owner.
    fn other_keys(
        &mut self,
        cluster: &Cluster,
        map: &Map,
        keys: Keys,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let wrong = parking_lot::Mutex::new((0_u64, None));
        each_owner(cluster, map, interrupt, keys.written..keys.total, keys, |connection, numbers| {
            let mut pipeline = pipe();
            for number in numbers {
                pipeline.add_command(keys.read(*number));
            }
            let replies: Vec<Value> = pipeline.query(connection)?;
            for (number, _) in
                numbers.iter().zip(&replies).filter(|(number, reply)| !keys.is_right(**number, reply))
            {
                let mut wrong = wrong.lock();
                wrong.0 += 1;
                wrong.1.get_or_insert_with(|| keys.name(*number));
            }
            Ok(())
        })?;
        let (count, example) = wrong.into_inner();
        let verdict = match &example {
            None => "all right".to_owned(),
            Some(example) => format!("{count} ARE WRONG, such as {example}"),
        };
        let words = format!("{} read back: {verdict}", format_count(keys.total - keys.written));
        self.line("Other keys", example.is_none(), &words)
    }

    fn counts(&mut self, before: u64, after: u64) -> anyhow::Result<()> {
        let is_equal = before == after;
        let words = format!(
            "{} on all primaries before, {} after{}",
            format_count(before),
            format_count(after),
            if is_equal { "" } else { ": NOT THE SAME" }
        );
        self.line("DBSIZE", is_equal, &words)
    }

    /// Compares every replica with its primary by number and by the servers' own checksum.
    fn replicas(&mut self, cluster: &Cluster, interrupt: &Interrupt) -> anyhow::Result<()> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let mut problem = replicas_problem(cluster)?;
        while problem.is_some() && Instant::now() < deadline {
            interrupt.check()?;
            thread::sleep(SETTLE_PAUSE);
            problem = replicas_problem(cluster)?;
        }
        let words = match &problem {
            None => "equal to their primaries, by DBSIZE and by DEBUG DIGEST",
            Some(words) => words,
        };
        self.line("Replicas", problem.is_none(), words)
    }

    pub(crate) fn clients(&mut self, all: &Met, commands: u64) -> anyhow::Result<()> {
        let is_good = all.errors.is_empty() && all.wrong_reads == 0;
        let words = format!(
            "{} commands, {}, {} ({} MOVED followed)",
            format_count(commands),
            errors_in_words(&all.errors),
            if all.wrong_reads == 0 {
                "no wrong read".to_owned()
            } else {
                format!("{} WRONG READS", format_count(all.wrong_reads))
            },
            format_count(all.moved),
        );
        self.line("Clients", is_good, &words)
    }

    fn stall(&mut self, watched: &Watched) -> anyhow::Result<()> {
        let words = format!(
            "{} for any command, from when it was due (before the rebalance: {})",
            milliseconds(watched.longest_us),
            milliseconds(watched.longest_before_us)
        );
        self.line("Longest stall", true, &words)
    }
}

fn replicas_problem(cluster: &Cluster) -> anyhow::Result<Option<String>> {
    let state = |node: &Server| -> anyhow::Result<(u64, String)> {
        let mut connection = patient_connection(node)?;
        Ok((cmd("DBSIZE").query(&mut connection)?, cmd("DEBUG").arg("DIGEST").query(&mut connection)?))
    };
    for (index, primary) in cluster.primaries().iter().enumerate() {
        let expected = state(primary)?;
        for replica in cluster.replicas_of(index) {
            let found = state(replica)?;
            if found != expected {
                return Ok(Some(format!(
                    "{} DIFFERS from its primary: {} keys, digest {}, instead of {}, {}",
                    replica.addr(),
                    found.0,
                    found.1,
                    expected.0,
                    expected.1
                )));
            }
        }
    }
    Ok(None)
}

fn errors_in_words(errors: &BTreeMap<String, u64>) -> String {
    if errors.is_empty() {
        return "no error".to_owned();
    }
    let kinds: Vec<String> =
        errors.iter().map(|(word, count)| format!("{} {word}", format_count(*count))).collect();
    format!("ERRORS: {}", kinds.join(", "))
}

fn milliseconds(us: u32) -> String {
    format!("{:.1} ms", f64::from(us) / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_named() {
        assert_eq!(errors_in_words(&BTreeMap::new()), "no error");
        let errors = BTreeMap::from([("ASK".to_owned(), 2), ("TRYAGAIN".to_owned(), 1000)]);
        assert_eq!(errors_in_words(&errors), "ERRORS: 2 ASK, 1,000 TRYAGAIN");
    }

    #[test]
    fn a_lost_write_and_a_stray_one_are_both_found() {
        let server = Server::builder(Engine::Redis70).start().expect("it starts");
        let mut connection = server.connection();
        let keys = Keys::new(1000);
        for number in 0..40 {
            keys.create(number).exec(&mut connection).expect("it is created");
            keys.write(number, 1).exec(&mut connection).expect("it is written");
        }
        let is_proven = |number: u64, acknowledged: u64, is_in_doubt: bool| {
            let map = Map { addresses: vec![server.addr()], owner_of: vec![0; usize::from(SLOTS)] };
            let mut proof = Proof { is_good: true };
            let written = Written { acknowledged, is_in_doubt };
            proof.writes(keys, &[(number, written)], 1, &mut Wires::new(map)).expect("it answers");
            proof.is_good
        };
        for number in [0, 8, 16, 24] {
            assert!(is_proven(number, 1, false));
            assert!(!is_proven(number, 2, false), "a write is lost");
            assert!(!is_proven(number, 0, false), "a write nobody made");
            assert!(is_proven(number, 0, true), "one whose reply never came");
        }
    }
}
