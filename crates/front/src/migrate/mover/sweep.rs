//! Passes over the source until it is empty, and the filter made anew after a crash.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::probe::Info;
use whimbrel_flow::keys::count::unlink_counted;
use whimbrel_flow::scan::page;

use super::pass::{Pass, SCAN_COUNT};
use crate::migrate::staging::is_hidden;
use crate::migrate::state::MigrationState;
use crate::upstream::{Upstream, were_at_rest};

/// Between two passes over a source in which something is left that does not move.
const PASS_PAUSE: Duration = Duration::from_secs(1);

/// Puts all keys of the target into the filter, and removes what a crash has left of them at the source.
/// Until then every command moves its keys first.
pub(crate) async fn rebuild(migration: &MigrationState) {
    while let Err(error) = try_rebuild(migration).await {
        tracing::warn!(%error, "the filter is begun again");
        migration.set_trouble(Some(error.to_string()));
        sleep(PASS_PAUSE).await;
    }
    migration.set_trouble(None);
    migration.rebuilt();
}

async fn try_rebuild(migration: &MigrationState) -> Result<()> {
    let mut source = migration.open_source().await?;
    let mut anywhere = migration.open_target().await?;
    let target = &migration.servers.target;
    let is_one = !migration.servers.source.is_cluster();
    let before = target.claims().await?;
    for mut node in target.each().await? {
        let mut cursor = Bytes::from_static(b"0");
        loop {
            let (next, keys) = page(&mut node, &cursor, SCAN_COUNT).await?;
            let (staged, keys): (Vec<Bytes>, Vec<Bytes>) = keys.into_iter().partition(|key| is_hidden(key));
            // Begun by the process that died. If it has just been begun again, that is noticed, and it begins
            // once more.
            let left: Vec<Bytes> = staged
                .into_iter()
                .filter(|name| !migration.on_their_way.has_staged(&migration.job, name))
                .collect();
            unlink_counted(&mut anywhere, &left, false).await?;
            unlink_counted(&mut source, &keys, is_one).await?;
            for key in &keys {
                migration.note_arrival(key);
            }
            if &next[..] == b"0" {
                break;
            }
            cursor = next;
        }
    }
    // A key that went from one node of a cluster to another meanwhile may have been missed on both.
    if were_at_rest(&before, &target.claims().await?) {
        return Ok(());
    }
    let (at, what) = (target.endpoint().address.to_string(), "slots moved between its nodes meanwhile");
    Err(Error::unfit(Side::Target, at, "find all keys", what))
}

/// Goes over the source until it is empty, and nothing of it is under way. Returns then.
pub(crate) async fn sweep(migration: &Arc<MigrationState>) {
    loop {
        match pass(migration).await {
            Ok(0) => return none_under_way(migration).await,
            Ok(_) => sleep(PASS_PAUSE).await,
            Err(error) => {
                tracing::warn!(%error, "the keys of the source are gone through again");
                migration.set_trouble(Some(error.to_string()));
                sleep(PASS_PAUSE).await;
            }
        }
    }
}

/// Waits for the moves that were wanted when the source had been found empty. One of them may hold what was
/// still there, of a key that has expired since. Those that are wanted later find nothing, and write nothing.
async fn none_under_way(migration: &MigrationState) {
    let mut wanted = Vec::new();
    migration.locks.for_each_wanted(|key| wanted.push(Bytes::copy_from_slice(key)));
    for key in wanted {
        // If its move has ended, this is another move that finds nothing.
        let _ = migration.locks.want(&key).await;
    }
}

/// Moves what one iteration over the source gives, and returns how many keys are left after it, in all
/// databases.
async fn pass(migration: &Arc<MigrationState>) -> Result<u64> {
    let source = migration.open_source().await?;
    let mut pass = Pass::new(migration, source);
    match migration.arrived.slots() {
        None => pass.scan().await?,
        Some(slots) => pass.by_slot(slots).await?,
    }
    migration.tally.staying.store(pass.staying, Ordering::Relaxed);
    let (left, other_database) = count(&migration.servers.source).await?;
    let mut alarms = migration.alarms();
    alarms.returned = pass.returned;
    alarms.other_database = other_database;
    Ok(left)
}

/// How many keys there are in all databases, and a database other than 0 that has any. If there seem to be
/// none although one could be on its way from one node of a cluster to another, it is one.
async fn count(upstream: &Upstream) -> Result<(u64, Option<u32>)> {
    let before = upstream.claims().await?;
    let (mut left, mut other) = (0, None);
    for mut node in upstream.each().await? {
        let reply = node.call(&[b"DBSIZE"]).await?;
        let keys = reply.as_int().and_then(|n| u64::try_from(n).ok());
        left += keys.ok_or_else(|| node.unexpected("DBSIZE", &reply))?;
        for (db, counts) in Info::ask(&mut node, "keyspace").await?.keyspace() {
            if db != 0 {
                left += counts.keys;
                other = other.or(Some(db));
            }
        }
    }
    if left == 0 && !were_at_rest(&before, &upstream.claims().await?) {
        left = 1;
    }
    Ok((left, other))
}
