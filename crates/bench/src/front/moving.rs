//! The experiment of "Toward Fast Query Serving in Key-Value Store Migration with Approximate Telemetry"
//! (Braverman and Liu), scaled to one machine: queries are sent to the target while its keys are still
//! arriving.
//!
//! Three schemes take turns, with the same number of queries. Without a filter the target alone answers. The
//! [paper's](super::paper) has a Bloom filter at the target, to which a key is added when it has arrived;
//! what is not in it is forwarded to the source. The third is `whimbrel front`.
//!
//! A value begins with its version. Each key has one thread that writes it, so its versions are carried out
//! in order, and a read has to see the version that was acknowledged before it was sent, or a later one.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use fastrand::Rng;
use redis::cmd;
use serde::Serialize;
use whimbrel_core::units::format_count;
use whimbrel_lab::{Engine, Server};
use whimbrel_loadgen::interrupt::Interrupt;
use whimbrel_loadgen::zipf::Zipf;

use super::args::BenchFrontArgs;
use super::data::{fill, name_of, value_of, version_of};
use super::destinations::Destinations;
use super::paper::{self, Bloom};
use super::ways::Running;
use crate::report::aligned;

/// Threads that ask.
const CLIENTS: u64 = 8;

/// A move may take so long, and a second more for each [`KEYS_EACH_SECOND`].
pub(super) const PATIENCE: Duration = Duration::from_secs(300);
const KEYS_EACH_SECOND: u64 = 10_000;

/// What was seen with one scheme, one skew and one share of writes.
#[derive(Debug, Serialize)]
pub(super) struct Seen {
    pub(super) scheme: &'static str,
    pub(super) zipf: f64,
    pub(super) writes: f64,
    /// All queries.
    queries: u64,
    /// Those of them that were sent while keys moved.
    queries_moving: u64,
    /// Reads that found nothing, though every key has a value.
    found_nothing: u64,
    /// Reads that found what was there before an acknowledged write.
    stale: u64,
    /// Keys whose last acknowledged write is not there in the end.
    pub(super) writes_lost: u64,
    /// Share of the queries that were answered wrongly.
    pub(super) wrong_share: f64,
    /// How long queries took that were sent while keys moved.
    p50_us: f64,
    p99_us: f64,
    /// How long the move took, from the order to its end.
    pub(super) seconds: f64,
    /// Most memory that the front has taken.
    front_peak_mib: Option<f64>,
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
    target: &'a Destinations,
    /// Where the front listens.
    front: String,
    keys: u64,
    value_bytes: usize,
    /// Of each client.
    queries: u64,
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
    queries: u64,
    found_nothing: u64,
    stale: u64,
    forwarded: u64,
    /// Of queries that were sent while keys moved.
    times_us: Vec<f32>,
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
                "{}, zipf {zipf}, writes {writes}: moved in {:.2} s, {} queries, {:.3} % wrong",
                one.scheme,
                one.seconds,
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
    let target = Destinations::start(engine, args.destinations)?;
    fill(&source, args)?;
    let front = matches!(scheme, Scheme::Whimbrel).then(|| Running::between(&source, &target)).transpose()?;
    let run = Run {
        scheme,
        source: &source,
        target: &target,
        front: front.as_ref().map_or_else(String::new, |front| front.address.to_string()),
        keys: args.keys,
        value_bytes: args.value_bytes,
        queries: args.queries.unwrap_or(2 * args.keys).div_ceil(CLIENTS),
        ranks,
        writes,
        acknowledged: (0..args.keys).map(|_| AtomicU64::new(1)).collect(),
        filter: Bloom::new(args.keys),
        is_over: AtomicBool::new(false),
    };
    let began = Instant::now();
    let (seconds, tallies) = thread::scope(|scope| {
        let run = &run;
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || run.serve(number))).collect();
        let moved = match &front {
            Some(front) => {
                front.move_all(PATIENCE + Duration::from_secs(args.keys / KEYS_EACH_SECOND), interrupt)
            }
            None => paper::move_all(&source, &target, args.keys, &run.filter, interrupt),
        };
        let seconds = began.elapsed().as_secs_f64();
        run.is_over.store(true, Ordering::SeqCst);
        let tallies: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        moved?;
        let tallies = tallies
            .into_iter()
            .map(|tally| tally.unwrap_or_else(|_| bail!("a client has panicked")))
            .collect::<anyhow::Result<Vec<Tally>>>()?;
        anyhow::Ok((seconds, tallies))
    })?;
    let status = front.as_ref().map(Running::status).transpose()?;
    let reported = |name: &str| status.as_ref().and_then(|status| status["moving"][name].as_f64());
    let mut times: Vec<f32> = tallies.iter().flat_map(|tally| tally.times_us.iter().copied()).collect();
    times.sort_by(f32::total_cmp);
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
    let (queries, found_nothing, stale) =
        (sum(|tally| tally.queries), sum(|tally| tally.found_nothing), sum(|tally| tally.stale));
    let all = queries.max(1) as f64;
    let forwarded_share = match scheme {
        Scheme::NoFilter => None,
        Scheme::Paper => Some(sum(|tally| tally.forwarded) as f64 / all),
        Scheme::Whimbrel => reported("forwarded").map(|forwarded| forwarded / all),
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
        queries_moving: times.len() as u64,
        found_nothing,
        stale,
        writes_lost: run.count_lost()?,
        wrong_share: (found_nothing + stale) as f64 / all,
        p50_us: times.get(times.len() / 2).copied().unwrap_or(0.0).into(),
        p99_us: times.get(times.len() * 99 / 100).copied().unwrap_or(0.0).into(),
        seconds,
        front_peak_mib: front.as_ref().map(Running::peak_mib).transpose()?,
        forwarded_share,
        pulled_share: reported("pulled").map(|pulled| pulled / all),
        filter_bits_per_key: match scheme {
            Scheme::NoFilter => None,
            Scheme::Paper => Some(paper::BITS_PER_KEY as f64),
            Scheme::Whimbrel => reported("filter_bits_per_key"),
        },
        filter_false_positives: reported("filter_false_positives"),
    })
}

impl Run<'_> {
    /// One client, and what stands between it and the servers in its scheme.
    fn serve(&self, number: u64) -> anyhow::Result<Tally> {
        let targets = self.target.servers();
        match self.scheme {
            Scheme::NoFilter => self.ask(number, &targets.iter().map(|it| it.addr()).collect::<Vec<_>>()),
            Scheme::Whimbrel => self.ask(number, std::slice::from_ref(&self.front)),
            Scheme::Paper => thread::scope(|scope| {
                let (mut addresses, mut hops) = (Vec::new(), Vec::new());
                for target in targets {
                    let listener = TcpListener::bind("127.0.0.1:0")?;
                    addresses.push(listener.local_addr()?.to_string());
                    let (source, filter) = (self.source, &self.filter);
                    hops.push(scope.spawn(move || paper::serve_one(&listener, source, target, filter)));
                }
                // Its connections are closed when this returns, and the hops end.
                let tally = self.ask(number, &addresses);
                let mut forwarded = 0;
                for hop in hops {
                    forwarded += hop.join().unwrap_or_else(|_| bail!("the destination has panicked"))?;
                }
                Ok(Tally { forwarded, ..tally? })
            }),
        }
    }

    /// Sends the queries of one client: to the destination of each key, or where there is one address, there.
    fn ask(&self, number: u64, addresses: &[String]) -> anyhow::Result<Tally> {
        let connection = |address: &String| {
            let client = redis::Client::open(format!("redis://{address}/"))?;
            client.get_connection_with_timeout(PATIENCE)
        };
        let mut connections = addresses.iter().map(connection).collect::<Result<Vec<_>, _>>()?;
        let mut random = Rng::with_seed(number + 1);
        let mut tally = Tally::default();
        for _ in 0..self.queries {
            let is_write = random.f64() < self.writes;
            let mut key = self.some_key(&mut random);
            if is_write {
                // Its only writer.
                key = (key - key % CLIENTS + number) % self.keys;
            }
            let is_moving = !self.is_over.load(Ordering::SeqCst);
            let last = self.acknowledged[key as usize].load(Ordering::SeqCst);
            let name = name_of(key);
            let connection = match &mut connections[..] {
                [one] => one,
                several => &mut several[self.target.of(&name)],
            };
            let sent = Instant::now();
            if is_write && key % CLIENTS == number {
                let value = value_of(last + 1, self.value_bytes, &mut random);
                cmd("SET").arg(name).arg(value).exec(connection)?;
                self.acknowledged[key as usize].store(last + 1, Ordering::SeqCst);
            } else {
                match cmd("GET").arg(name).query::<Option<Vec<u8>>>(connection)? {
                    None => tally.found_nothing += 1,
                    Some(value) if version_of(&value)? < last => tally.stale += 1,
                    Some(_) => {}
                }
            }
            tally.queries += 1;
            if is_moving {
                tally.times_us.push(sent.elapsed().as_secs_f32() * 1e6);
            }
        }
        Ok(tally)
    }

    /// A key by its rank; ranks are spread over the names.
    fn some_key(&self, random: &mut Rng) -> u64 {
        // The multiplier is prime and larger than what is allowed for the number of keys.
        self.ranks.pick(random).wrapping_mul(1_000_000_007) % self.keys
    }

    /// Keys whose last acknowledged version the target does not have. Nobody writes any more.
    fn count_lost(&self) -> anyhow::Result<u64> {
        let targets = self.target.servers().into_iter().map(Server::try_connection);
        let mut targets = targets.collect::<Result<Vec<_>, _>>()?;
        let mut lost = 0;
        for first in (0..self.keys).step_by(paper::BATCH as usize) {
            let mut batches = vec![(Vec::new(), redis::pipe()); targets.len()];
            for key in first..(first + paper::BATCH).min(self.keys) {
                let name = name_of(key);
                let (keys, pipeline) = &mut batches[self.target.of(&name)];
                keys.push(key);
                pipeline.cmd("GET").arg(name);
            }
            for ((keys, pipeline), target) in batches.into_iter().zip(&mut targets) {
                let values: Vec<Option<Vec<u8>>> = pipeline.query(target)?;
                for (key, value) in keys.into_iter().zip(values) {
                    let found = value.as_deref().map(version_of).transpose()?.unwrap_or(0);
                    lost += u64::from(found < self.acknowledged[key as usize].load(Ordering::SeqCst));
                }
            }
        }
        Ok(lost)
    }
}

/// The table of what was seen.
pub(super) fn table(seen: &[Seen]) -> String {
    let head = [
        "scheme",
        "zipf",
        "writes",
        "moved in",
        "of paper",
        "queries",
        "while moving",
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
        "front MiB",
        "",
    ];
    let percent =
        |share: Option<f64>| share.map_or_else(String::new, |share| format!("{:.3} %", share * 100.0));
    let of_paper = |one: &Seen| {
        let is_it =
            |other: &&Seen| other.scheme == "paper" && other.zipf == one.zipf && other.writes == one.writes;
        seen.iter().find(is_it).map(|paper| one.seconds / paper.seconds)
    };
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in seen {
        rows.push(vec![
            one.scheme.to_owned(),
            format!("{}", one.zipf),
            format!("{}", one.writes),
            format!("{:.2} s", one.seconds),
            of_paper(one).map_or_else(String::new, |ratio| format!("{ratio:.2} ×")),
            format_count(one.queries),
            format_count(one.queries_moving),
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
            one.front_peak_mib.map_or_else(String::new, |mib| format!("{mib:.0}")),
            String::new(),
        ]);
    }
    aligned(&rows)
}
