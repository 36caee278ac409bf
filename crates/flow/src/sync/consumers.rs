//! Consumers that were given nothing.
//!
//! A consumer that waits in `XREADGROUP` on a quiet stream is made by that, and most servers do not replicate
//! it before it is given an entry. So no feed tells of it, and it is looked for.

use bytes::Bytes;
use whimbrel_engine::error::Result;

use super::source::Source;
use super::syncer::Syncer;
use crate::scan::{KeyScan, ScanOptions, Unit};
use crate::verify::{BATCH_KEYS_MAX, Comparer};

/// Streams that have consumer groups: of which shard of the source and which of its databases.
pub(super) type Streams = Vec<(String, u32, Vec<Bytes>)>;

impl Syncer {
    /// Finds them. It goes through all keys, so it is done while nobody is paused; a stream that is made
    /// afterwards is followed as every other key.
    pub(super) async fn streams_with_groups(&mut self) -> Result<Streams> {
        let of_shard = |source: Source| async move {
            let found = streams_of(&source).await;
            (source, found)
        };
        Ok(self.of_all(of_shard).await?.into_iter().flatten().collect())
    }

    /// Transfers those again of which the target has other groups or fewer consumers.
    pub(super) async fn carry_consumers(&mut self, streams: &Streams) -> Result<()> {
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

    /// The feed does not see changes of consumer groups: all streams are transferred once more.
    pub(super) async fn streams_again(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        for source in &mut self.sources {
            for pair in &shared.options.dbs {
                let mut scan = scan_streams(source, pair.source);
                while let Some(page) = scan.next().await? {
                    let mut keys = page.keys;
                    keys.retain(|key| shared.options.selection.admits(key));
                    if !keys.is_empty() {
                        source.transfer(pair.source, keys).await?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Goes through the streams of one database of a primary.
fn scan_streams(source: &Source, db: u32) -> KeyScan {
    let shared = &source.shared;
    let unit = Unit { db, ..source.unit.clone() };
    let type_name = Some("stream".to_owned());
    let options = ScanOptions { count: shared.options.scan_count, pattern: None, type_name };
    KeyScan::new(shared.source.clone(), unit, options, shared.options.retry, None)
}

async fn streams_of(source: &Source) -> Result<Streams> {
    let shared = &source.shared;
    let mut streams = Streams::new();
    for pair in &shared.options.dbs {
        let mut comparer =
            Comparer::new((&shared.source, pair.source), (&shared.target, pair.target), shared.options.retry);
        let mut scan = scan_streams(source, pair.source);
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
