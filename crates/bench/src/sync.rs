//! `./dev bench sync`: how far a target is behind while writers are at work, beside `REPLICAOF`, and how long
//! the cutover pauses their writes.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use redis::{Connection, cmd};
use serde::Serialize;
use serde_json::Value;
use whimbrel_core::units::{format_bytes, format_count};
use whimbrel_lab::{Engine, Proxy, Server};
use whimbrel_loadgen::interrupt::{self, Interrupt};

use crate::binaries::{whimbrel_binary, without_questions};
use crate::exit::Exit;
use crate::machine::{Machine, engine};
use crate::report::{aligned, median};

/// Threads that write.
const WRITERS: u64 = 4;

/// Each sends what is due in one pipeline, so often.
const BEAT: Duration = Duration::from_millis(5);

/// Bytes of each value.
const VALUE_BYTES: usize = 100;

/// Between two markers.
const MARKER_PAUSE: Duration = Duration::from_millis(10);

/// Between two looks for one: the precision of what is measured.
const POLL_PERIOD: Duration = Duration::from_micros(200);

/// The source keeps so much of its stream: more than is written while the link is cut.
const BACKLOG: &str = "256mb";

/// A machine on which more are refused has other things to do.
const REFUSED_MAX: u32 = 20;

/// How long a contender may take to come to follow.
const PATIENCE: Duration = Duration::from_secs(120);

/// `./dev bench sync`.
#[derive(Debug, Args)]
pub struct BenchSyncArgs {
    /// Servers to measure with: redis-7.0, redis-8.0, valkey-8.1 or valkey-9.1
    #[arg(long, default_value = "redis-7.0", value_parser = engine)]
    pub engine: Engine,

    /// SET commands a second, all writers together
    #[arg(long, default_value_t = 20_000)]
    pub rate: u64,

    /// Keys that are written, 100 bytes each
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub keys: u64,

    /// How long each contender is measured
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,

    /// Cutovers, of which each ends with writes resumed
    #[arg(long, default_value_t = 5)]
    pub cutovers: u32,

    /// How long the link to the source is cut, to see how fast whimbrel catches up; 0: not at all
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=600))]
    pub cut: u64,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    machine: Machine,
    rate: u64,
    keys: u64,
    followers: Vec<Follower>,
    cutovers: Vec<Cutover>,
    /// Cutovers that would have taken longer than they may; writes were not paused.
    refused: u32,
    catching_up: Option<CatchingUp>,
}

/// How whimbrel came back after its link was cut.
#[derive(Debug, Serialize)]
struct CatchingUp {
    cut_s: f64,
    /// From when the link was there again until the last marker had arrived that was written before.
    took_s: f64,
    /// N times as fast as the writers: what was written during the cut and while it caught up, over the
    /// latter.
    times_write_rate: f64,
    /// The most memory that the process had resident, from its start to its end.
    peak_resident_bytes: u64,
}

/// How one contender followed.
#[derive(Debug, Serialize)]
struct Follower {
    name: &'static str,
    writes_per_second: f64,
    markers: usize,
    lag_p50_ms: f64,
    lag_p99_ms: f64,
    lag_max_ms: f64,
}

/// One cutover.
#[derive(Debug, Serialize)]
struct Cutover {
    estimate_ms: u64,
    pause_ms: u64,
    /// The longest that a pipeline of a writer took from shortly before the cutover to shortly after.
    writers_longest_ms: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// When servers do not start or go away, whimbrel does not follow, or something of our own fails.
pub fn run(args: &BenchSyncArgs) -> anyhow::Result<Exit> {
    interrupt::run(Exit::Stopped, |interrupt| measure(args.engine, args, interrupt))
}

fn measure(engine: Engine, args: &BenchSyncArgs, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let machine = Machine::of_this(engine);
    let source = Server::builder(engine)
        .name("source")
        .arg("repl-diskless-sync-delay", "0")
        .arg("repl-backlog-size", BACKLOG)
        .start()?;
    let (writes, longest_us, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let (followers, (cutovers, refused), catching_up) = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (source, writes, longest_us, stop) = (&source, &writes, &longest_us, &stop);
                scope.spawn(move || write(source, number, args, writes, longest_us, stop))
            })
            .collect();
        let outcome = (|| {
            let mut followers = vec![replicaof(engine, &source, args, &writes, interrupt)?];
            let (follower, cutovers) = whimbrel(engine, &source, args, &writes, &longest_us, interrupt)?;
            followers.push(follower);
            let catching_up =
                (args.cut > 0).then(|| catch_up(engine, &source, args, interrupt)).transpose()?;
            anyhow::Ok((followers, cutovers, catching_up))
        })();
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            match writer.join() {
                Ok(written) => written?,
                Err(_) => bail!("a writer has panicked"),
            }
        }
        outcome
    })?;
    let (rate, keys) = (args.rate, args.keys);
    let report = Report { bench: "sync", machine, rate, keys, followers, cutovers, refused, catching_up };
    let mut out = std::io::stdout();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        false => writeln!(out, "{}", report.text())?,
    }
    Ok(Exit::Success)
}

/// Writes what is due, beat by beat, until it is stopped.
fn write(
    source: &Server,
    number: u64,
    args: &BenchSyncArgs,
    writes: &AtomicU64,
    longest_us: &AtomicU64,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut connection = source.try_connection()?;
    let each = (args.rate / WRITERS * BEAT.as_millis() as u64 / 1_000).max(1);
    let value = [b'x'; VALUE_BYTES];
    let (mut due, mut turn) = (Instant::now(), number);
    while !stop.load(Ordering::Relaxed) {
        due += BEAT;
        if let Some(early) = due.checked_duration_since(Instant::now()) {
            thread::sleep(early);
        }
        let mut pipeline = redis::pipe();
        for _ in 0..each {
            // Spread over the keys by a step that shares no factor with most numbers.
            turn = turn.wrapping_add(WRITERS * 7_919);
            pipeline.cmd("SET").arg(format!("key:{}", turn % args.keys)).arg(&value[..]).ignore();
        }
        let sent = Instant::now();
        pipeline.exec(&mut connection)?;
        longest_us.fetch_max(sent.elapsed().as_micros() as u64, Ordering::Relaxed);
        writes.fetch_add(each, Ordering::Relaxed);
    }
    Ok(())
}

/// Measures how long markers take from the source to the target.
fn follow(
    name: &'static str,
    source: &Server,
    target: &Server,
    args: &BenchSyncArgs,
    writes: &AtomicU64,
    interrupt: &Interrupt,
) -> anyhow::Result<Follower> {
    let (mut from, mut to) = (source.try_connection()?, target.try_connection()?);
    let (began, before) = (Instant::now(), writes.load(Ordering::Relaxed));
    let mut lags = Vec::new();
    while began.elapsed() < Duration::from_secs(args.seconds) {
        interrupt.check()?;
        let marker = format!("marker:{name}:{}", lags.len());
        cmd("SET").arg(&marker).arg(1).exec(&mut from)?;
        let sent = Instant::now();
        await_marker(&mut to, &marker, sent)?;
        lags.push(sent.elapsed().as_secs_f64() * 1_000.0);
        thread::sleep(MARKER_PAUSE);
    }
    let written = writes.load(Ordering::Relaxed) - before;
    lags.sort_by(f64::total_cmp);
    let at = |share: f64| lags[((lags.len() - 1) as f64 * share) as usize];
    let follower = Follower {
        name,
        writes_per_second: written as f64 / began.elapsed().as_secs_f64(),
        markers: lags.len(),
        lag_p50_ms: at(0.5),
        lag_p99_ms: at(0.99),
        lag_max_ms: at(1.0),
    };
    eprintln!("{name}: lag {:.1} ms, p99 {:.1} ms", follower.lag_p50_ms, follower.lag_p99_ms);
    Ok(follower)
}

fn await_marker(target: &mut Connection, marker: &str, sent: Instant) -> anyhow::Result<()> {
    while cmd("EXISTS").arg(marker).query::<u64>(target)? == 0 {
        if sent.elapsed() > PATIENCE {
            bail!("{marker} does not arrive");
        }
        thread::sleep(POLL_PERIOD);
    }
    Ok(())
}

fn replicaof(
    engine: Engine,
    source: &Server,
    args: &BenchSyncArgs,
    writes: &AtomicU64,
    interrupt: &Interrupt,
) -> anyhow::Result<Follower> {
    let target = Server::builder(engine).name("replica").start()?;
    cmd("REPLICAOF").arg("127.0.0.1").arg(source.port()).exec(&mut target.try_connection()?)?;
    let mut from = source.try_connection()?;
    cmd("SET").arg("marker:replica").arg(1).exec(&mut from)?;
    await_marker(&mut target.try_connection()?, "marker:replica", Instant::now())?;
    follow("replicaof", source, &target, args, writes, interrupt)
}

/// A running sync, killed when it is dropped.
struct Running {
    process: Child,
    /// Where its journal is.
    state: PathBuf,
}

impl Running {
    /// Starts it, and waits until it follows.
    fn start(source: &str, target: &Server, interrupt: &Interrupt) -> anyhow::Result<Running> {
        let state = target.dir().join("state");
        let output = target.dir().join("sync-output");
        let file = File::create(&output)?;
        let mut command = whimbrel_binary()?;
        command.arg("sync").args([source, &target.addr()]).arg("--quiet").arg("--state-dir").arg(&state);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut running = Running { process: command.spawn().context("start whimbrel")?, state };
        let began = Instant::now();
        // Until it follows it refuses to cut over.
        while cutover(&running.state, &["--dry-run"])?.is_none() {
            interrupt.check()?;
            if running.process.try_wait()?.is_some() || began.elapsed() > PATIENCE {
                bail!("whimbrel does not follow: {}", std::fs::read_to_string(&output).unwrap_or_default());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(running)
    }

    /// As the system accounts it (`VmHWM`).
    fn peak_resident_bytes(&self) -> anyhow::Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib << 10)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn whimbrel(
    engine: Engine,
    source: &Server,
    args: &BenchSyncArgs,
    writes: &AtomicU64,
    longest_us: &AtomicU64,
    interrupt: &Interrupt,
) -> anyhow::Result<(Follower, (Vec<Cutover>, u32))> {
    let target = Server::builder(engine).name("target").start()?;
    let running = Running::start(&source.addr(), &target, interrupt)?;
    let follower = follow("whimbrel", source, &target, args, writes, interrupt)?;
    let (mut cutovers, mut refused) = (Vec::new(), 0);
    let how = [&["--fence", "none"], without_questions("cutover")?].concat();
    while cutovers.len() < args.cutovers as usize {
        interrupt.check()?;
        thread::sleep(Duration::from_millis(500));
        longest_us.store(0, Ordering::Relaxed);
        let Some(report) = cutover(&running.state, &how)? else {
            // Where it would take longer than it may, writes are not paused.
            refused += 1;
            if refused > REFUSED_MAX {
                bail!("{refused} cutovers were refused");
            }
            continue;
        };
        thread::sleep(Duration::from_millis(100));
        let number = |name: &str| report["report"][name].as_u64().unwrap_or(0);
        cutovers.push(Cutover {
            estimate_ms: number("estimate_ms"),
            pause_ms: number("pause_ms"),
            writers_longest_ms: longest_us.load(Ordering::Relaxed) as f64 / 1_000.0,
        });
    }
    Ok((follower, (cutovers, refused)))
}

/// Cuts the link of a sync while writers go on, and measures how long it then takes to have everything.
fn catch_up(
    engine: Engine,
    source: &Server,
    args: &BenchSyncArgs,
    interrupt: &Interrupt,
) -> anyhow::Result<CatchingUp> {
    let target = Server::builder(engine).name("behind").start()?;
    let proxy = Proxy::start(&source.addr())?;
    let running = Running::start(&proxy.addr(), &target, interrupt)?;
    let (mut from, mut to) = (source.try_connection()?, target.try_connection()?);
    let cut = Instant::now();
    proxy.cut();
    // Any of them may be the last to arrive: touched keys have no order.
    let mut markers = Vec::new();
    while cut.elapsed() < Duration::from_secs(args.cut) {
        interrupt.check()?;
        let marker = format!("marker:cut:{}", markers.len());
        cmd("SET").arg(&marker).arg(1).exec(&mut from)?;
        markers.push(marker);
        thread::sleep(MARKER_PAUSE);
    }
    proxy.heal()?;
    let (healed, cut_s) = (Instant::now(), cut.elapsed().as_secs_f64());
    for marker in &markers {
        await_marker(&mut to, marker, healed)?;
    }
    let took_s = healed.elapsed().as_secs_f64();
    let peak_resident_bytes = running.peak_resident_bytes()?;
    Ok(CatchingUp { cut_s, took_s, times_write_rate: (cut_s + took_s) / took_s, peak_resident_bytes })
}

/// What a cutover came to; `None` where it was refused, or nobody was there to ask.
fn cutover(state: &std::path::Path, how: &[&str]) -> anyhow::Result<Option<Value>> {
    let output = whimbrel_binary()?
        .args(["cutover", "--json", "--state-dir"])
        .arg(state)
        .args(how)
        .output()
        .context("cut over")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text
        .lines()
        .next_back()
        .and_then(|line| serde_json::from_str(line).ok())
        .filter(|_| output.status.success()))
}

impl Report {
    fn text(&self) -> String {
        let head = ["follower", "writes/s", "markers", "lag p50 ms", "p99 ms", "longest ms", ""];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for follower in &self.followers {
            rows.push(vec![
                follower.name.to_owned(),
                format_count(follower.writes_per_second as u64),
                format_count(follower.markers as u64),
                format!("{:.1}", follower.lag_p50_ms),
                format!("{:.1}", follower.lag_p99_ms),
                format!("{:.1}", follower.lag_max_ms),
                String::new(),
            ]);
        }
        let of =
            |value: fn(&Cutover) -> f64| median(self.cutovers.iter().map(value).collect()).unwrap_or(0.0);
        let most = |value: fn(&Cutover) -> f64| self.cutovers.iter().map(value).fold(0.0, f64::max);
        let catching_up = self.catching_up.as_ref().map_or_else(String::new, |up| {
            format!(
                "\nafter a cut of {:.1} s: caught up in {:.1} s, {:.1} times as fast as the writers; {} \
                    resident at most",
                up.cut_s,
                up.took_s,
                up.times_write_rate,
                format_bytes(up.peak_resident_bytes)
            )
        });
        format!(
            "{}\n\n{}\ncutovers: {}, and {} refused; writes paused for {:.0} ms (median; {:.0} at most), \
             {:.0} ms estimated; the longest write around them {:.1} ms (median; {:.1} at most){catching_up}",
            self.machine.describe(),
            aligned(&rows),
            self.cutovers.len(),
            self.refused,
            of(|c| c.pause_ms as f64),
            most(|c| c.pause_ms as f64),
            of(|c| c.estimate_ms as f64),
            of(|c| c.writers_longest_ms),
            most(|c| c.writers_longest_ms),
        )
    }
}
