//! The experiment of "Toward Fast Query Serving in Key-Value Store Migration with Approximate Telemetry"
//! (Braverman and Liu), scaled to one machine: queries are sent to the target while its keys are still
//! arriving.
//!
//! Three schemes take turns. Without a filter the target alone answers. The paper's has a Bloom filter at the
//! target, to which a key is added when it has arrived; what is not in it is forwarded to the source. The
//! third is `whimbrel front`.
//!
//! A value begins with its version. Each key has one thread that writes it, so its versions are carried out
//! in order, and a read has to see the version that was acknowledged before it was sent, or a later one.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fastrand::Rng;
use redis::{Connection, cmd};
use serde::Serialize;
use whimbrel_core::units::format_count;
use whimbrel_lab::{Engine, Server};
use whimbrel_loadgen::interrupt::Interrupt;
use whimbrel_loadgen::zipf::Zipf;
use xxhash_rust::xxh3::Xxh3Builder;

use super::args::BenchFrontArgs;
use super::ways::Running;
use crate::report::aligned;

/// Threads that ask.
const CLIENTS: u64 = 8;

/// Keys that the movers of the first two schemes take at a time.
const BATCH: u64 = 64;

/// As in the paper: 125 MB for 50 million keys.
const PAPER_BITS_PER_KEY: u64 = 20;

/// The paper does not tell how many; these give false positives of 0.014 % once all keys are in it.
const PAPER_HASHES: u64 = 7;

/// A move may take so long.
const PATIENCE: Duration = Duration::from_secs(300);

/// What was seen with one scheme, one skew and one share of writes.
#[derive(Debug, Serialize)]
pub(super) struct Seen {
    pub(super) scheme: &'static str,
    pub(super) zipf: f64,
    pub(super) writes: f64,
    /// Queries while keys moved.
    queries: u64,
    /// Reads that found nothing, though every key has a value.
    found_nothing: u64,
    /// Reads that found what was there before an acknowledged write.
    stale: u64,
    /// Keys whose last acknowledged write is not there in the end.
    pub(super) writes_lost: u64,
    /// Share of the queries that were answered wrongly.
    pub(super) wrong_share: f64,
    p50_us: f64,
    p99_us: f64,
    seconds: f64,
    /// Queries that were sent on to the source.
    forwarded_share: Option<f64>,
    /// Queries that waited for their key to be moved, or for the target to say whether it has it.
    pulled_share: Option<f64>,
    filter_bits_per_key: Option<f64>,
    /// Of the keys that had not arrived, those that the filter took for arrived.
    filter_false_positives: Option<f64>,
}

/// One way of asking while keys arrive.
#[derive(Debug, Clone, Copy)]
enum Scheme {
    NoFilter,
    Paper,
    Whimbrel,
}

/// What all threads of a run share.
struct Run<'a> {
    scheme: Scheme,
    source: &'a Server,
    target: &'a Server,
    /// Where the front listens.
    front: String,
    keys: u64,
    value_bytes: usize,
    /// Which ranks are asked for, and how often.
    ranks: &'a Zipf,
    writes: f64,
    /// By key, the last version that was acknowledged.
    acknowledged: Vec<AtomicU64>,
    filter: Bloom,
    is_over: AtomicBool,
}

/// What one thread has seen.
#[derive(Debug, Default)]
struct Tally {
    found_nothing: u64,
    stale: u64,
    forwarded: u64,
    times_us: Vec<f32>,
}

/// The paper's filter.
struct Bloom {
    words: Vec<AtomicU64>,
}

impl Bloom {
    fn new(keys: u64) -> Bloom {
        let words = (keys * PAPER_BITS_PER_KEY).div_ceil(64).max(1);
        Bloom { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The bits of a key, by double hashing (Kirsch and Mitzenmacher, 2006).
    fn bits(&self, key: u64) -> impl Iterator<Item = (usize, u64)> {
        let hash = |seed| {
            let mut hasher = Xxh3Builder::new().with_seed(seed).build_hasher();
            hasher.write_u64(key);
            hasher.finish()
        };
        let (first, step, bits) = (hash(1), hash(2) | 1, self.words.len() as u64 * 64);
        (0..PAPER_HASHES).map(move |i| {
            let bit = first.wrapping_add(i.wrapping_mul(step)) % bits;
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    fn add(&self, key: u64) {
        for (word, bit) in self.bits(key) {
            self.words[word].fetch_or(bit, Ordering::SeqCst);
        }
    }

    fn has(&self, key: u64) -> bool {
        self.bits(key).all(|(word, bit)| self.words[word].load(Ordering::SeqCst) & bit != 0)
    }
}

/// Runs all schemes, with each skew and each share of writes, as the paper does: shares of writes with the
/// least skew, and skews with the most writes.
pub(super) fn measure(
    engine: Engine,
    args: &BenchFrontArgs,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Seen>> {
    let least_skew = args.zipf.iter().copied().fold(f64::INFINITY, f64::min);
    let most_writes = args.writes.iter().copied().fold(0.0, f64::max);
    let mut pairs: Vec<(f64, f64)> = args.writes.iter().map(|&writes| (least_skew, writes)).collect();
    pairs.extend(args.zipf.iter().filter(|&&zipf| zipf != least_skew).map(|&zipf| (zipf, most_writes)));
    let mut seen = Vec::new();
    for (zipf, writes) in pairs {
        let ranks = Zipf::new(args.keys, zipf);
        for scheme in [Scheme::NoFilter, Scheme::Paper, Scheme::Whimbrel] {
            interrupt.check()?;
            let one = run(engine, args, scheme, (zipf, writes), &ranks, interrupt)?;
            eprintln!(
                "{}, zipf {zipf}, writes {writes}: {} queries, {:.3} % wrong",
                one.scheme,
                format_count(one.queries),
                one.wrong_share * 100.0
            );
            seen.push(one);
        }
    }
    Ok(seen)
}

fn run(
    engine: Engine,
    args: &BenchFrontArgs,
    scheme: Scheme,
    (zipf, writes): (f64, f64),
    ranks: &Zipf,
    interrupt: &Interrupt,
) -> anyhow::Result<Seen> {
    let source = Server::builder(engine).name("source").start()?;
    let target = Server::builder(engine).name("target").start()?;
    fill(&source, args)?;
    let front = matches!(scheme, Scheme::Whimbrel).then(|| Running::between(&source, &target)).transpose()?;
    let run = Run {
        scheme,
        source: &source,
        target: &target,
        front: front.as_ref().map_or_else(String::new, |front| front.address.to_string()),
        keys: args.keys,
        value_bytes: args.value_bytes,
        ranks,
        writes,
        acknowledged: (0..args.keys).map(|_| AtomicU64::new(1)).collect(),
        filter: Bloom::new(args.keys),
        is_over: AtomicBool::new(false),
    };
    let began = Instant::now();
    let tallies = thread::scope(|scope| {
        let run = &run;
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || run.ask(number))).collect();
        let moved = match &front {
            Some(front) => front.move_all(PATIENCE, interrupt),
            None => run.move_all(interrupt),
        };
        run.is_over.store(true, Ordering::SeqCst);
        let tallies: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        moved?;
        tallies
            .into_iter()
            .map(|tally| tally.unwrap_or_else(|_| bail!("a client has panicked")))
            .collect::<anyhow::Result<Vec<Tally>>>()
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let status = front.as_ref().map(Running::status).transpose()?;
    let told = |name: &str| status.as_ref().and_then(|status| status["moving"][name].as_f64());
    let mut times: Vec<f32> = tallies.iter().flat_map(|tally| tally.times_us.iter().copied()).collect();
    times.sort_by(f32::total_cmp);
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
    let (queries, found_nothing, stale) =
        (times.len() as u64, sum(|tally| tally.found_nothing), sum(|tally| tally.stale));
    let all = queries.max(1) as f64;
    let forwarded_share = match scheme {
        Scheme::NoFilter => None,
        Scheme::Paper => Some(sum(|tally| tally.forwarded) as f64 / all),
        Scheme::Whimbrel => told("forwarded").map(|forwarded| forwarded / all),
    };
    Ok(Seen {
        scheme: match scheme {
            Scheme::NoFilter => "no filter",
            Scheme::Paper => "paper",
            Scheme::Whimbrel => "whimbrel",
        },
        zipf,
        writes,
        queries,
        found_nothing,
        stale,
        writes_lost: run.count_lost()?,
        wrong_share: (found_nothing + stale) as f64 / all,
        p50_us: times.get(times.len() / 2).copied().unwrap_or(0.0).into(),
        p99_us: times.get(times.len() * 99 / 100).copied().unwrap_or(0.0).into(),
        seconds,
        forwarded_share,
        pulled_share: told("pulled").map(|pulled| pulled / all),
        filter_bits_per_key: match scheme {
            Scheme::NoFilter => None,
            Scheme::Paper => Some(PAPER_BITS_PER_KEY as f64),
            Scheme::Whimbrel => told("filter_bits_per_key"),
        },
        filter_false_positives: told("filter_false_positives"),
    })
}

impl Run<'_> {
    /// Asks until all keys have moved.
    fn ask(&self, number: u64) -> anyhow::Result<Tally> {
        let open = |address: &str| -> anyhow::Result<Connection> {
            Ok(redis::Client::open(format!("redis://{address}/"))?.get_connection_with_timeout(PATIENCE)?)
        };
        let mut home = match self.scheme {
            Scheme::Whimbrel => open(&self.front)?,
            Scheme::NoFilter | Scheme::Paper => self.target.try_connection()?,
        };
        let mut source = self.source.try_connection()?;
        let mut random = Rng::with_seed(number + 1);
        let mut tally = Tally::default();
        while !self.is_over.load(Ordering::SeqCst) {
            let is_write = random.f64() < self.writes;
            let mut key = self.some_key(&mut random);
            if is_write {
                // Its only writer.
                key = (key - key % CLIENTS + number) % self.keys;
            }
            let sent = Instant::now();
            let is_forwarded = matches!(self.scheme, Scheme::Paper) && !self.filter.has(key);
            let to = if is_forwarded { &mut source } else { &mut home };
            tally.forwarded += u64::from(is_forwarded);
            let last = self.acknowledged[key as usize].load(Ordering::SeqCst);
            if is_write && key % CLIENTS == number {
                cmd("SET").arg(name_of(key)).arg(value_of(last + 1, self.value_bytes)).exec(to)?;
                self.acknowledged[key as usize].store(last + 1, Ordering::SeqCst);
            } else {
                match cmd("GET").arg(name_of(key)).query::<Option<String>>(to)? {
                    None => tally.found_nothing += 1,
                    Some(value) if version_of(&value)? < last => tally.stale += 1,
                    Some(_) => {}
                }
            }
            tally.times_us.push(sent.elapsed().as_secs_f32() * 1e6);
        }
        Ok(tally)
    }

    /// A key by its rank; ranks are spread over the names.
    fn some_key(&self, random: &mut Rng) -> u64 {
        // The multiplier is prime and larger than what is allowed for the number of keys.
        self.ranks.pick(random).wrapping_mul(1_000_000_007) % self.keys
    }

    /// Copies all keys as the paper's mover does. A write at the target before a key came keeps what
    /// was written.
    fn move_all(&self, interrupt: &Interrupt) -> anyhow::Result<()> {
        let (mut from, mut to) = (self.source.try_connection()?, self.target.try_connection()?);
        for first in (0..self.keys).step_by(BATCH as usize) {
            interrupt.check()?;
            let batch = first..(first + BATCH).min(self.keys);
            let names: Vec<String> = batch.clone().map(name_of).collect();
            let values: Vec<String> = cmd("MGET").arg(&names).query(&mut from)?;
            let mut pipeline = redis::pipe();
            for (name, value) in names.iter().zip(values) {
                pipeline.cmd("SET").arg(name).arg(value).arg("NX").ignore();
            }
            pipeline.exec(&mut to)?;
            batch.for_each(|key| self.filter.add(key));
        }
        Ok(())
    }

    /// Keys whose last acknowledged version the target does not have. Nobody writes any more.
    fn count_lost(&self) -> anyhow::Result<u64> {
        let mut target = self.target.try_connection()?;
        let mut lost = 0;
        for first in (0..self.keys).step_by(BATCH as usize) {
            let batch: Vec<u64> = (first..(first + BATCH).min(self.keys)).collect();
            let names: Vec<String> = batch.iter().copied().map(name_of).collect();
            let values: Vec<Option<String>> = cmd("MGET").arg(&names).query(&mut target)?;
            for (key, value) in batch.into_iter().zip(values) {
                let found = value.as_deref().map(version_of).transpose()?.unwrap_or(0);
                lost += u64::from(found < self.acknowledged[key as usize].load(Ordering::SeqCst));
            }
        }
        Ok(lost)
    }
}

fn fill(source: &Server, args: &BenchFrontArgs) -> anyhow::Result<()> {
    let mut connection = source.try_connection()?;
    for first in (0..args.keys).step_by(1_000) {
        let mut pipeline = redis::pipe();
        for key in first..(first + 1_000).min(args.keys) {
            pipeline.cmd("SET").arg(name_of(key)).arg(value_of(1, args.value_bytes)).ignore();
        }
        pipeline.exec(&mut connection)?;
    }
    Ok(())
}

fn name_of(key: u64) -> String {
    format!("key:{key}")
}

fn value_of(version: u64, bytes: usize) -> String {
    format!("{version:<bytes$}")
}

fn version_of(value: &str) -> anyhow::Result<u64> {
    value.trim_end().parse().context("a value that nobody has written")
}

/// The table of what was seen.
pub(super) fn table(seen: &[Seen]) -> String {
    let head = [
        "scheme",
        "zipf",
        "writes",
        "queries",
        "found nothing",
        "stale",
        "wrong",
        "writes lost",
        "p50 µs",
        "p99 µs",
        "forwarded",
        "pulled",
        "bits a key",
        "false positives",
        "",
    ];
    let percent =
        |share: Option<f64>| share.map_or_else(String::new, |share| format!("{:.3} %", share * 100.0));
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in seen {
        rows.push(vec![
            one.scheme.to_owned(),
            format!("{}", one.zipf),
            format!("{}", one.writes),
            format_count(one.queries),
            format_count(one.found_nothing),
            format_count(one.stale),
            percent(Some(one.wrong_share)),
            format_count(one.writes_lost),
            format!("{:.0}", one.p50_us),
            format!("{:.0}", one.p99_us),
            percent(one.forwarded_share),
            percent(one.pulled_share),
            one.filter_bits_per_key.map_or_else(String::new, |bits| format!("{bits:.1}")),
            percent(one.filter_false_positives),
            String::new(),
        ]);
    }
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_knows_what_it_was_told_and_little_else() {
        let filter = Bloom::new(10_000);
        (0..10_000).for_each(|key| filter.add(key));
        assert!((0..10_000).all(|key| filter.has(key)));
        let taken_for_known = (10_000..110_000).filter(|&key| filter.has(key)).count();
        assert!(taken_for_known < 100, "{taken_for_known}");
    }
}
