//! Asking over sockets: one client again and again, and many at once after each move.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use anyhow::{Context, bail};
use bytes::BytesMut;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use whimbrel_loadgen::interrupt::Interrupt;
use whimbrel_wire::scan::{Progress, Scanner};

use super::layout::{Layout, Moves};
use super::stand::Stand;
use crate::report::median;

pub(super) const QUESTION: &[u8] = b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n";

/// Bytes that one client asks for in all, so that large replies are not asked for as often as small ones.
const BYTES_TOTAL: usize = 300 << 20;

/// How often one client asks.
const TIMES: std::ops::RangeInclusive<usize> = 100..=5_000;

/// What asking costs.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// From the question to the end of the reply, in microseconds, median.
    pub round_trip_us: f64,
    /// Processor time of the server for each, kernel included, in microseconds.
    pub cpu_us: f64,
}

/// One client asks the same again and again.
///
/// # Errors
/// When there is no reply, or the server does not report its CPU time.
pub fn repeatedly(stand: &mut Stand) -> anyhow::Result<Asked> {
    let mut stream = TcpStream::connect(("127.0.0.1", stand.port()))?;
    stream.set_nodelay(true)?;
    let bytes = first_reply(&mut stream)?;
    let times = (BYTES_TOTAL / bytes).clamp(*TIMES.start(), *TIMES.end());
    let mut buffer = vec![0; 1 << 20];
    let mut took_us = Vec::with_capacity(times);
    let before = stand.cpu_us()?;
    for _ in 0..times {
        let asked = Instant::now();
        stream.write_all(QUESTION)?;
        let mut left = bytes;
        while left > 0 {
            let most = left.min(buffer.len());
            match stream.read(&mut buffer[..most])? {
                0 => bail!("the connection was closed"),
                read => left -= read,
            }
        }
        took_us.push(asked.elapsed().as_secs_f64() * 1e6);
    }
    let cpu_us = (stand.cpu_us()? - before) / times as f64;
    Ok(Asked { round_trip_us: median(took_us).unwrap_or(0.0), cpu_us })
}

/// How long the reply is.
fn first_reply(stream: &mut TcpStream) -> anyhow::Result<usize> {
    stream.write_all(QUESTION)?;
    let (mut inbox, mut scanner) = (BytesMut::new(), Scanner::default());
    let mut buffer = vec![0; 1 << 16];
    loop {
        if let Progress::Complete(bytes) = scanner.scan(&inbox).map_err(|e| anyhow::anyhow!("{e}"))? {
            return Ok(bytes);
        }
        match stream.read(&mut buffer)? {
            0 => bail!("the connection was closed"),
            read => inbox.extend_from_slice(&buffer[..read]),
        }
    }
}

/// What a storm came to.
#[derive(Debug, Serialize)]
pub struct Storm {
    /// Who was asked.
    pub name: String,
    /// Questions.
    pub requests: usize,
    /// Answers that did not have the slot's new owner.
    pub stale: usize,
    /// Answers a second.
    pub requests_per_second: f64,
    /// From a question to the end of its reply, in milliseconds, half of them and 99 of 100.
    pub p50_ms: f64,
    /// Likewise.
    pub p99_ms: f64,
    /// Processor time of the server in all, moves and kernel included, in microseconds for each request.
    pub cpu_us: f64,
}

impl Storm {
    /// The share of one core that 1,000 requests a second take, in percent.
    pub fn core_percent(&self) -> f64 {
        self.cpu_us * 1_000.0 / 1e6 * 100.0
    }
}

/// After each of this many moves all clients ask at once, each on a connection of its own, and all wait for
/// all.
///
/// # Errors
/// When a reply does not come.
pub fn storm(
    name: &str,
    mut stand: Stand,
    layout: Layout,
    (clients, count): (usize, usize),
    interrupt: &Interrupt,
) -> anyhow::Result<Storm> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let port = stand.port();
    let mut waiting = runtime.block_on(async {
        let mut waiting = Vec::with_capacity(clients);
        for _ in 0..clients {
            waiting.push(Client::connect(port).await?);
        }
        anyhow::Ok(waiting)
    })?;
    let (mut moves, mut took_ms, mut stale) = (Moves::new(layout), Vec::new(), 0);
    let (before, began) = (stand.cpu_us()?, Instant::now());
    for _ in 0..count {
        interrupt.check()?;
        let moved = moves.advance();
        stand.take_in(moved)?;
        // The range that begins with the slot now.
        let expected = format!("\r\n:{}\r\n:{}\r\n", moved.slot, moved.range_end);
        let asked = runtime.block_on(ask_all(std::mem::take(&mut waiting), expected.into()))?;
        for (client, took, is_fresh) in asked {
            took_ms.push(took);
            stale += usize::from(!is_fresh);
            waiting.push(client);
        }
    }
    let (took_s, requests) = (began.elapsed().as_secs_f64(), took_ms.len());
    let cpu_us = (stand.cpu_us()? - before) / requests.max(1) as f64;
    took_ms.sort_by(f64::total_cmp);
    let at = |share: f64| took_ms.get((requests.saturating_sub(1) as f64 * share) as usize).copied();
    Ok(Storm {
        name: name.to_owned(),
        requests,
        stale,
        requests_per_second: requests as f64 / took_s,
        p50_ms: at(0.5).context("nobody asked")?,
        p99_ms: at(0.99).context("nobody asked")?,
        cpu_us,
    })
}

/// One of many.
#[derive(Debug)]
pub(super) struct Client {
    stream: tokio::net::TcpStream,
    inbox: BytesMut,
    scanner: Scanner,
}

type Outcome = (Client, f64, bool);

async fn ask_all(clients: Vec<Client>, expected: std::sync::Arc<str>) -> anyhow::Result<Vec<Outcome>> {
    let mut asking = JoinSet::new();
    for client in clients {
        asking.spawn(client.ask(expected.clone()));
    }
    let mut outcomes = Vec::with_capacity(asking.len());
    while let Some(outcome) = asking.join_next().await {
        outcomes.push(outcome.context("a client has panicked")??);
    }
    Ok(outcomes)
}

impl Client {
    pub(super) async fn connect(port: u16) -> anyhow::Result<Client> {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, inbox: BytesMut::new(), scanner: Scanner::default() })
    }

    async fn ask(mut self, expected: std::sync::Arc<str>) -> anyhow::Result<Outcome> {
        let asked = Instant::now();
        let reply = self.answer(QUESTION).await?;
        let took = asked.elapsed().as_secs_f64() * 1e3;
        let is_fresh = reply.windows(expected.len()).any(|bytes| bytes == expected.as_bytes());
        Ok((self, took, is_fresh))
    }

    /// Asks, and reads the whole reply.
    pub(super) async fn answer(&mut self, question: &[u8]) -> anyhow::Result<BytesMut> {
        self.stream.write_all(question).await?;
        loop {
            if let Progress::Complete(bytes) =
                self.scanner.scan(&self.inbox).map_err(|e| anyhow::anyhow!("{e}"))?
            {
                return Ok(self.inbox.split_to(bytes));
            }
            self.inbox.reserve(1 << 16);
            if self.stream.read_buf(&mut self.inbox).await? == 0 {
                bail!("the connection was closed");
            }
        }
    }
}
