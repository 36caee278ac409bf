//! What it costs to go through the front, beside a direct connection and, where it is on `PATH`, twemproxy
//! (`nutcracker`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use whimbrel_core::units::format_count;
use whimbrel_lab::{Cluster, Engine, Server};
use whimbrel_loadgen::interrupt::Interrupt;

use super::args::BenchFrontArgs;
use super::ways::{Way, direct, nutcracker, whimbrel};
use crate::report::{aligned, median};

/// Bytes of each value.
const VALUE_BYTES: usize = 100;

/// Keys that are written and read.
const KEYS: usize = 10_000;

/// Requests of which one connection alone measures the latency, each time.
const LATENCY_REQUESTS: usize = 20_000;

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Through {
    clients: u32,
    value_bytes: usize,
    /// Primaries of the cluster; `None` for one server.
    cluster: Option<u8>,
    rows: Vec<Row>,
    latency: Vec<Latency>,
}

/// One kind of request through one contender.
#[derive(Debug, Serialize)]
struct Row {
    contender: &'static str,
    command: &'static str,
    pipeline: u32,
    /// Requests a second; the median of the rounds.
    per_second: f64,
    /// The rounds.
    rounds: Vec<f64>,
    /// Processor time of the proxy for each request, in microseconds; the median of the rounds. It depends
    /// less than `per_second` on what else the machine does.
    proxy_us: Option<f64>,
    #[serde(skip)]
    proxy_us_of_rounds: Vec<f64>,
}

/// What one contender did in one round.
struct Figures {
    per_second: f64,
    proxy_us: Option<f64>,
}

/// What is gone through to: they live as long as this.
enum Behind {
    Server(Server),
    Cluster(Cluster),
}

impl Behind {
    fn start(engine: Engine, cluster: Option<u8>) -> anyhow::Result<Behind> {
        Ok(match cluster {
            None => Behind::Server(Server::builder(engine).name("source").start()?),
            Some(primaries) => Behind::Cluster(Cluster::builder(engine).primaries(primaries.into()).start()?),
        })
    }

    /// The server, or the first node.
    fn entrance(&self) -> &Server {
        match self {
            Behind::Server(server) => server,
            Behind::Cluster(cluster) => &cluster.primaries()[0],
        }
    }
}

/// How long one connection alone waits for a `GET`.
#[derive(Debug, Serialize)]
struct Latency {
    contender: &'static str,
    /// The median of the rounds' medians, in microseconds.
    p50_us: f64,
    /// The median of the rounds' 99th percentiles, in microseconds.
    p99_us: f64,
}

/// A request and its reply, both of known length.
struct Exchange {
    command: &'static str,
    /// The request, for each key.
    requests: Vec<Vec<u8>>,
    reply_bytes: usize,
}

/// Loads all ways in turns.
pub(super) fn measure(
    engine: Engine,
    args: &BenchFrontArgs,
    interrupt: &Interrupt,
) -> anyhow::Result<Through> {
    let behind = Behind::start(engine, args.cluster)?;
    let server = behind.entrance();
    // These clients follow no redirection, and nutcracker follows none either.
    let follows_none = args.cluster.is_none();
    let mut ways = Vec::new();
    if follows_none {
        ways.push(direct(server)?);
    }
    ways.push(whimbrel("whimbrel", 0, server)?);
    if args.share_connections > 0 {
        ways.push(whimbrel("whimbrel sharing", args.share_connections, server)?);
    }
    if follows_none {
        match nutcracker(server)? {
            Some(way) => ways.push(way),
            None => eprintln!("note: nutcracker is not on PATH, so it is not measured"),
        }
    }
    let exchanges = [Arc::new(set()), Arc::new(get())];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows: Vec<Row> = Vec::new();
    let mut waits: Vec<(Vec<f64>, Vec<f64>)> = ways.iter().map(|_| Default::default()).collect();
    for round in 0..args.rounds {
        for exchange in &exchanges {
            for &pipeline in &args.pipeline {
                for way in &ways {
                    interrupt.check()?;
                    let turn = runtime.block_on(load(way, exchange, pipeline, args))?;
                    eprintln!(
                        "round {}: {} {} -P {pipeline}: {} a second",
                        round + 1,
                        way.name,
                        exchange.command,
                        format_count(turn.per_second as u64)
                    );
                    note(&mut rows, way, exchange, pipeline, &turn);
                }
            }
        }
        for (way, (middle, late)) in ways.iter().zip(&mut waits) {
            interrupt.check()?;
            let mut times = runtime.block_on(alone(way, &exchanges[1]))?;
            times.sort_by(f64::total_cmp);
            middle.push(times[times.len() / 2]);
            late.push(times[times.len() * 99 / 100]);
        }
    }
    let latency = ways
        .iter()
        .zip(waits)
        .map(|(way, (middle, late))| Latency {
            contender: way.name,
            p50_us: median(middle).unwrap_or(0.0),
            p99_us: median(late).unwrap_or(0.0),
        })
        .collect();
    let (clients, cluster) = (args.clients, args.cluster);
    Ok(Through { clients, value_bytes: VALUE_BYTES, cluster, rows, latency })
}

fn note(rows: &mut Vec<Row>, way: &Way, exchange: &Exchange, pipeline: u32, turn: &Figures) {
    let (contender, command) = (way.name, exchange.command);
    let is_it = |row: &Row| row.contender == contender && row.command == command && row.pipeline == pipeline;
    let place = rows.iter().position(is_it).unwrap_or_else(|| {
        let (rounds, proxy_us_of_rounds) = (Vec::new(), Vec::new());
        rows.push(Row {
            contender,
            command,
            pipeline,
            per_second: 0.0,
            rounds,
            proxy_us: None,
            proxy_us_of_rounds,
        });
        rows.len() - 1
    });
    let row = &mut rows[place];
    row.rounds.push(turn.per_second);
    row.per_second = median(row.rounds.clone()).unwrap_or(0.0);
    row.proxy_us_of_rounds.extend(turn.proxy_us);
    row.proxy_us = median(row.proxy_us_of_rounds.clone());
}

// ---- What is sent ----

fn name_of(key: usize) -> String {
    format!("key:{key:012}")
}

fn set() -> Exchange {
    let value = "x".repeat(VALUE_BYTES);
    let request = |key| {
        let name = name_of(key);
        format!("*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${VALUE_BYTES}\r\n{value}\r\n", name.len()).into_bytes()
    };
    Exchange { command: "SET", requests: (0..KEYS).map(request).collect(), reply_bytes: b"+OK\r\n".len() }
}

/// Of what [`set`] has written.
fn get() -> Exchange {
    let request = |key| {
        let name = name_of(key);
        format!("*2\r\n$3\r\nGET\r\n${}\r\n{name}\r\n", name.len()).into_bytes()
    };
    let reply_bytes = format!("${VALUE_BYTES}\r\n").len() + VALUE_BYTES + b"\r\n".len();
    Exchange { command: "GET", requests: (0..KEYS).map(request).collect(), reply_bytes }
}

/// Loads a way from all connections until time is up, from one thread: a load generator that takes a core of
/// its own leaves none for a proxy.
async fn load(
    way: &Way,
    exchange: &Arc<Exchange>,
    pipeline: u32,
    args: &BenchFrontArgs,
) -> anyhow::Result<Figures> {
    let mut streams = Vec::new();
    for _ in 0..args.clients {
        streams.push(connect(way).await?);
    }
    let cpu_before = way.cpu_s()?;
    let began = Instant::now();
    let until = began + Duration::from_secs(args.seconds);
    let mut clients = JoinSet::new();
    for (number, stream) in streams.into_iter().enumerate() {
        clients.spawn(client(stream, exchange.clone(), pipeline, number * 7_919, until));
    }
    let mut sent = 0;
    while let Some(ended) = clients.join_next().await {
        sent += ended?.with_context(|| format!("through {}", way.name))?;
    }
    let per_second = sent as f64 / began.elapsed().as_secs_f64();
    let used = cpu_before.zip(way.cpu_s()?).map(|(before, after)| after - before);
    Ok(Figures { per_second, proxy_us: used.map(|seconds| seconds * 1e6 / sent.max(1) as f64) })
}

/// One connection. Returns how many requests were answered.
async fn client(
    mut stream: TcpStream,
    exchange: Arc<Exchange>,
    pipeline: u32,
    mut key: usize,
    until: Instant,
) -> anyhow::Result<u64> {
    let mut sent = 0;
    let mut requests = Vec::new();
    let mut replies = vec![0; exchange.reply_bytes * pipeline as usize];
    while Instant::now() < until {
        requests.clear();
        for _ in 0..pipeline {
            key += 1;
            requests.extend_from_slice(&exchange.requests[key % KEYS]);
        }
        stream.write_all(&requests).await?;
        stream.read_exact(&mut replies).await?;
        if replies[0] == b'-' {
            bail!("{}", String::from_utf8_lossy(&replies));
        }
        sent += u64::from(pipeline);
    }
    Ok(sent)
}

/// How long each request of one connection takes, in microseconds.
async fn alone(way: &Way, exchange: &Exchange) -> anyhow::Result<Vec<f64>> {
    let mut stream = connect(way).await?;
    let mut reply = vec![0; exchange.reply_bytes];
    let mut times = Vec::with_capacity(LATENCY_REQUESTS);
    for turn in 0..LATENCY_REQUESTS {
        let sent = Instant::now();
        stream.write_all(&exchange.requests[turn % KEYS]).await?;
        stream.read_exact(&mut reply).await?;
        times.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

async fn connect(way: &Way) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(way.address).await.with_context(|| format!("connect to {}", way.name))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Through {
    fn of(&self, contender: &str, row: &Row) -> Option<f64> {
        let is_it =
            |r: &&Row| r.contender == contender && r.command == row.command && r.pipeline == row.pipeline;
        self.rows.iter().find(is_it).map(|found| row.per_second / found.per_second)
    }

    /// As tables.
    pub(super) fn text(&self) -> String {
        let head =
            ["request", "pipeline", "contender", "a second", "of direct", "of nutcracker", "proxy CPU µs"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        let times = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} ×"));
        for row in &self.rows {
            rows.push(vec![
                row.command.to_owned(),
                row.pipeline.to_string(),
                row.contender.to_owned(),
                format_count(row.per_second as u64),
                times(self.of("direct", row)),
                times(self.of("nutcracker", row)),
                row.proxy_us.map_or_else(String::new, |us| format!("{us:.2}")),
            ]);
        }
        let head = ["one connection", "p50 µs", "p99 µs", "p50 added µs"];
        let mut waits = vec![head.map(str::to_owned).to_vec()];
        let direct = self.latency.iter().find(|latency| latency.contender == "direct");
        for latency in &self.latency {
            waits.push(vec![
                latency.contender.to_owned(),
                format!("{:.1}", latency.p50_us),
                format!("{:.1}", latency.p99_us),
                direct.map_or_else(String::new, |direct| format!("{:.1}", latency.p50_us - direct.p50_us)),
            ]);
        }
        let behind = self
            .cluster
            .map_or_else(String::new, |primaries| format!(", to a cluster of {primaries} primaries"));
        format!(
            "{} connections, values of {} bytes{behind}\n\n{}\n\n{}",
            self.clients,
            self.value_bytes,
            aligned(&rows),
            aligned(&waits)
        )
    }
}
