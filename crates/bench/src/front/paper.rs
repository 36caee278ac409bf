//! The paper's scheme: its filter, its mover, and the hop of its queries.
//!
//! Queries come to the destination, where what has not arrived by the filter is forwarded to the source. The
//! paper's source answers the client itself; over TCP the reply comes back by the way of the request. Each
//! client has a thread at the destination.

use std::hash::{BuildHasher, Hasher};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, anyhow};
use bytes::{Bytes, BytesMut};
use redis::cmd;
use whimbrel_lab::Server;
use whimbrel_loadgen::interrupt::Interrupt;
use whimbrel_wire::scan::{Progress, Scanner};
use whimbrel_wire::value::Value;
use xxhash_rust::xxh3::Xxh3Builder;

use super::data::{key_of, name_of};
use super::destinations::Destinations;

/// Keys that the mover takes at a time.
pub(super) const BATCH: u64 = 64;

/// As in the paper: 125 MB for 50 million keys.
pub(super) const BITS_PER_KEY: u64 = 20;

/// The paper does not say how many; these give false positives of 0.014 % once all keys are in it.
const HASHES: u64 = 7;

/// How much is read from a connection at once.
const READ_BYTES: usize = 16 << 10;

/// The filter.
pub(super) struct Bloom {
    words: Vec<AtomicU64>,
}

impl Bloom {
    pub(super) fn new(keys: u64) -> Bloom {
        let words = (keys * BITS_PER_KEY).div_ceil(64).max(1);
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
        (0..HASHES).map(move |i| {
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

/// Copies all keys as the paper's mover does. A write at the target before a key came keeps what was written.
pub(super) fn move_all(
    source: &Server,
    target: &Destinations,
    keys: u64,
    filter: &Bloom,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut from = source.try_connection()?;
    let mut to = target.servers().into_iter().map(Server::try_connection).collect::<Result<Vec<_>, _>>()?;
    for first in (0..keys).step_by(BATCH as usize) {
        interrupt.check()?;
        let batch = first..(first + BATCH).min(keys);
        let names: Vec<String> = batch.clone().map(name_of).collect();
        let values: Vec<Vec<u8>> = cmd("MGET").arg(&names).query(&mut from)?;
        let mut pipelines = vec![redis::pipe(); to.len()];
        for (name, value) in names.iter().zip(values) {
            pipelines[target.of(name)].cmd("SET").arg(name).arg(value).arg("NX").ignore();
        }
        for (pipeline, to) in pipelines.iter().zip(&mut to) {
            pipeline.exec(to)?;
        }
        batch.for_each(|key| filter.add(key));
    }
    Ok(())
}

/// Serves one client at the destination until it leaves, and says how many of its queries were forwarded.
pub(super) fn serve_one(
    listener: &TcpListener,
    source: &Server,
    target: &Server,
    filter: &Bloom,
) -> anyhow::Result<u64> {
    let mut client = Framed::of(listener.accept()?.0)?;
    let mut source = Framed::of(TcpStream::connect(source.addr())?)?;
    let mut target = Framed::of(TcpStream::connect(target.addr())?)?;
    let mut forwarded = 0;
    while let Some(request) = client.frame()? {
        let words = Value::parse(&request).map_err(|e| anyhow!("{e}"))?.into_items().unwrap_or_default();
        let key = words.get(1).and_then(Value::as_str).and_then(key_of);
        let is_forwarded = key.is_some_and(|key| !filter.has(key));
        forwarded += u64::from(is_forwarded);
        let to = if is_forwarded { &mut source } else { &mut target };
        to.stream.write_all(&request)?;
        let reply = to.frame()?.context("a server has closed the connection")?;
        client.stream.write_all(&reply)?;
    }
    Ok(forwarded)
}

/// A connection that is read frame by frame.
struct Framed {
    stream: TcpStream,
    inbox: BytesMut,
    scanner: Scanner,
}

impl Framed {
    fn of(stream: TcpStream) -> anyhow::Result<Framed> {
        stream.set_nodelay(true)?;
        Ok(Framed { stream, inbox: BytesMut::new(), scanner: Scanner::default() })
    }

    /// The next one; `None` at the end.
    fn frame(&mut self) -> anyhow::Result<Option<Bytes>> {
        loop {
            if let Progress::Complete(bytes) = self.scanner.scan(&self.inbox).map_err(|e| anyhow!("{e}"))? {
                return Ok(Some(self.inbox.split_to(bytes).freeze()));
            }
            let held = self.inbox.len();
            self.inbox.resize(held + READ_BYTES, 0);
            let read = self.stream.read(&mut self.inbox[held..])?;
            self.inbox.truncate(held + read);
            if read == 0 {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_knows_what_it_was_given_and_little_else() {
        let filter = Bloom::new(10_000);
        (0..10_000).for_each(|key| filter.add(key));
        assert!((0..10_000).all(|key| filter.has(key)));
        let taken_for_known = (10_000..110_000).filter(|&key| filter.has(key)).count();
        assert!(taken_for_known < 100, "{taken_for_known}");
    }
}
