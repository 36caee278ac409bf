//! What no feed by replication reports, and is looked for: consumers that were given nothing, and other
//! vectors of elements that are there.
//!
//! A consumer that waits in `XREADGROUP` on a quiet stream is made by that, and most servers do not replicate
//! it before it is given an entry. Redis replicates no `VADD` of an element that is there already.

use bytes::Bytes;
use whimbrel_engine::error::Result;
use whimbrel_wire::value::Value;

use super::source::Source;
use super::syncer::Syncer;
use crate::modules::VECTOR_SET;
use crate::scan::{KeyScan, ScanOptions, Unit};
use crate::verify::{BATCH_KEYS_MAX, Comparer};

/// Keys, with their shard of the source and their database.
type Found = Vec<(String, u32, Vec<Bytes>)>;

/// Keys that may have changed unseen.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    /// Streams that have consumer groups.
    streams: Found,
    /// Vector sets.
    vectors: Found,
}

impl Unseen {
    /// How many there are.
    pub(super) fn keys(&self) -> u64 {
        self.lists().map(|(_, _, keys)| keys.len() as u64).sum()
    }

    /// Whether this key of the source is one of them.
    pub(super) fn has(&self, db: u32, key: &Bytes) -> bool {
        self.lists().any(|(_, of, keys)| *of == db && keys.contains(key))
    }

    fn lists(&self) -> impl Iterator<Item = &(String, u32, Vec<Bytes>)> {
        self.streams.iter().chain(&self.vectors)
    }
}

impl Syncer {
    /// Finds them. It goes through all keys, so it is done while no client is paused; a key that is created
    /// afterwards is followed like any other.
    pub(super) async fn unseen(&mut self) -> Result<Unseen> {
        let of_shard = |source: Source| async move {
            let found = async { Ok((streams_of(&source).await?, vectors_of(&source).await?)) };
            let found = found.await;
            (source, found)
        };
        let mut unseen = Unseen::default();
        for (streams, vectors) in self.of_all(of_shard).await? {
            unseen.streams.extend(streams);
            unseen.vectors.extend(vectors);
        }
        Ok(unseen)
    }

    /// Transfers again what may have changed unseen.
    pub(super) async fn carry_unseen(&mut self, unseen: &Unseen) -> Result<()> {
        for (shard_id, db, keys) in &unseen.vectors {
            let source = self.sources.iter_mut().find(|source| source.unit.shard_id == *shard_id);
            if let Some(source) = source {
                source.transfer(*db, keys.clone()).await?;
            }
        }
        self.carry_consumers(&unseen.streams).await
    }

    /// Transfers again the streams for which the target has other groups or fewer consumers.
    async fn carry_consumers(&mut self, streams: &Found) -> Result<()> {
        let shared = self.shared.clone();
        for (shard_id, db, keys) in streams {
            let source = self.sources.iter_mut().find(|source| source.unit.shard_id == *shard_id);
            let pair = shared.options.dbs.iter().find(|pair| pair.source == *db);
            let (Some(source), Some(pair)) = (source, pair) else { continue };
            let (ours, theirs) = ((&shared.source, pair.source), (&shared.target, pair.target));
            let mut comparer = Comparer::new(ours, theirs, shared.options.retry);
            for batch in keys.chunks(BATCH_KEYS_MAX) {
                let differing = comparer.with_other_groups(batch).await?;
                if !differing.is_empty() {
                    source.transfer(*db, differing).await?;
                }
            }
        }
        Ok(())
    }

    /// Keys of types that the feed may not have seen changes of are transferred once more: streams, for their
    /// consumer groups, if it is no replication link. Returns how many there were.
    pub(super) async fn carry_unseen_types(&mut self) -> Result<u64> {
        let shared = self.shared.clone();
        let mut carried = 0;
        for source in &mut self.sources {
            let feed = source.feed.clone();
            for pair in &shared.options.dbs {
                for type_name in feed.unseen_types() {
                    let mut scan = scan(source, pair.source, type_name);
                    while let Some(page) = scan.next().await? {
                        let mut keys = page.keys;
                        keys.retain(|key| shared.options.selection.admits(key));
                        if !keys.is_empty() {
                            carried += keys.len() as u64;
                            source.transfer(pair.source, keys).await?;
                        }
                    }
                }
            }
        }
        Ok(carried)
    }
}

/// Whether a key is of a type that this feed may not have seen changes of.
pub(super) async fn is_of_unseen_type(source: &Source, db: u32, key: &Bytes) -> Result<bool> {
    let types = source.feed.unseen_types();
    if types.is_empty() {
        return Ok(false);
    }
    let mut link = source.shared.source.open(source.feed.address(), db).await?;
    let reply = link.ask(&[b"TYPE", key]).await?;
    // If it is refused, for example because the slot has moved, the type is not known.
    Ok(reply.as_str().is_none_or(|name| types.contains(&name)))
}

/// Goes through the keys of one type in one database of a primary.
fn scan(source: &Source, db: u32, type_name: &str) -> KeyScan {
    let shared = &source.shared;
    let unit = Unit { db, ..source.unit.clone() };
    let type_name = Some(type_name.to_owned());
    let options = ScanOptions { count: shared.options.scan_count, pattern: None, type_name };
    KeyScan::new(shared.source.clone(), unit, options, shared.options.retry, None)
}

/// The vector sets of a primary, if it has such, and its feed is one by replication. Tracking sees all of
/// their changes, and notifications none: they are one of its unseen types.
async fn vectors_of(source: &Source) -> Result<Found> {
    let shared = &source.shared;
    let mut vectors = Found::new();
    if !source.feed.kind().is_replication() {
        return Ok(vectors);
    }
    let mut link = shared.source.open(source.feed.address(), 0).await?;
    let reply = link.ask(&[b"COMMAND", b"INFO", b"VADD"]).await?;
    if reply.as_items().and_then(<[Value]>::first).is_none_or(Value::is_null) {
        return Ok(vectors);
    }
    for pair in &shared.options.dbs {
        let mut scan = scan(source, pair.source, VECTOR_SET);
        let mut found = Vec::new();
        while let Some(page) = scan.next().await? {
            found.extend(page.keys.into_iter().filter(|key| shared.options.selection.admits(key)));
        }
        if !found.is_empty() {
            vectors.push((source.unit.shard_id.clone(), pair.source, found));
        }
    }
    Ok(vectors)
}

async fn streams_of(source: &Source) -> Result<Found> {
    let shared = &source.shared;
    let mut streams = Found::new();
    for pair in &shared.options.dbs {
        let mut comparer =
            Comparer::new((&shared.source, pair.source), (&shared.target, pair.target), shared.options.retry);
        let mut scan = scan(source, pair.source, "stream");
        let mut found = Vec::new();
        while let Some(page) = scan.next().await? {
            let mut keys = page.keys;
            keys.retain(|key| shared.options.selection.admits(key));
            for batch in keys.chunks(BATCH_KEYS_MAX) {
                found.extend(comparer.with_groups(batch).await?);
            }
        }
        if !found.is_empty() {
            streams.push((source.unit.shard_id.clone(), pair.source, found));
        }
    }
    Ok(streams)
}
