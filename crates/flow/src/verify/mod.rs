//! Proves that two deployments hold equal keys.
//!
//! Keys are compared as values, never as serialised bytes: equal values in different encodings, on different
//! versions, or in another order inside a hash or a set are equal. Reading two servers is not atomic, so
//! whatever looks different is looked at again: it settles as equal, stands as a difference once both sides
//! have held still, or is reported as unstable.
//!
//! Memory is bounded whatever the sizes of keys: batches of keys, windows of values. Nothing is written to
//! either side.
//!
//! - `run` feeds batches of keys to workers and looks at suspects again; `moves` follows slots that move
//!   meanwhile;
//! - `batch` compares many keys in a few round trips, `deep`, `stream` and `vectors` one key in chunks;
//! - `pair` is both sides as a worker asks them, `case` one key, and `options` what is wanted;
//! - `peer` gets a batch of commands answered by one side, whatever its topology does meanwhile;
//! - `report` is what comes out;
//! - `resume` writes down how far it is.
//!
//! **Architecture invariant:** nothing here shares code with the transfer of keys, except the scan that lists
//! names. A mistake there cannot hide here.

mod batch;
mod case;
mod counts;
mod deep;
mod groups;
mod modules;
mod moves;
mod options;
mod pair;
mod peer;
mod report;
mod resume;
mod run;
mod stream;
mod suspects;
mod vectors;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result};

use self::case::{Case, Verdict};
use self::pair::{Pair, Rules};
use self::peer::Peer;
use crate::journal::Journal;
use crate::retry::RetryPolicy;

pub use self::options::{Depth, Scope, Settle, VerifyOptions, VerifyProgress};
pub use self::report::{DbReport, Difference, DifferenceKind, Tally, VerifyReport};
pub use self::resume::VerifyState;

/// Compares `source` with `target`. Stopped by `stop`, it reports what it knows by then.
///
/// # Errors
/// `Unfit` options; whatever keeps it from reading either side and does not pass by itself. Differences are
/// no error.
pub async fn verify(
    source: Arc<Deployment>,
    target: Arc<Deployment>,
    options: VerifyOptions,
    progress: Arc<VerifyProgress>,
    stop: CancellationToken,
) -> Result<VerifyReport> {
    verify_with_journal(source, target, options, progress, None, stop).await
}

/// As [`verify`]. With a journal that was opened to go on, it goes on from there; the journal is removed once
/// everything is compared.
///
/// # Errors
/// As [`verify`]; `Own` if the journal cannot be written; `Unfit` if slots have moved since a verification
/// that is to go on began, and of a sample of a number of keys, which is not journaled.
pub fn verify_with_journal(
    source: Arc<Deployment>,
    target: Arc<Deployment>,
    options: VerifyOptions,
    progress: Arc<VerifyProgress>,
    journal: Option<Journal<VerifyState>>,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<VerifyReport>> {
    // Boxed, so that it is compiled here and not in each crate that awaits it.
    Box::pin(async move {
        check(&source, &target, &options)?;
        if journal.is_some() && matches!(options.scope, Scope::SampleKeys(_)) {
            return Err(Error::own("verify", "a sample of a number of keys is not journaled"));
        }
        let options = VerifyOptions {
            concurrency: options.concurrency.max(1),
            batch_keys: options.batch_keys.clamp(1, BATCH_KEYS_MAX),
            chunk_bytes: options.chunk_bytes.max(CHUNK_BYTES_MIN),
            ..options
        };
        run::Run::new(source, target, options, progress, journal)?.verify(stop).await
    })
}

/// Refuses a side whose user may not even ask what the server is: comparing takes more rights than copying.
///
/// # Errors
/// `Unfit`, with the rights that a comparison needs.
pub fn check_comparable(side: &Deployment) -> Result<()> {
    side.check_known(
        "keys cannot be compared by SCAN, PTTL and DUMP alone",
        "give this user +@read +info +time, or name another user",
    )
}

/// Whether `key` has the same type, value and expiry in `source_db` of the source and in `target_db` of the
/// target, however the servers encode it. Also true if the source does not have it any more.
///
/// # Errors
/// What keeps it from reading either side and does not pass by itself.
pub(crate) async fn is_same(
    source: (&Arc<Deployment>, u32),
    target: (&Arc<Deployment>, u32),
    key: &Bytes,
    retry: RetryPolicy,
) -> Result<bool> {
    Ok(Comparer::new(source, target, retry).differing(vec![key.clone()]).await?.is_empty())
}

/// Finds out which keys are not the same on both sides. Its connections are kept.
#[derive(Debug)]
pub(crate) struct Comparer {
    pair: Pair,
}

impl Comparer {
    /// Of a database of the source and one of the target.
    pub(crate) fn new(
        source: (&Arc<Deployment>, u32),
        target: (&Arc<Deployment>, u32),
        retry: RetryPolicy,
    ) -> Comparer {
        let peer =
            |(deployment, db): (&Arc<Deployment>, u32)| Peer::new(deployment.clone(), db, false, retry);
        let options = VerifyOptions::default();
        let rules = Rules {
            depth: Depth::Full,
            types: Vec::new(),
            ttl_tolerance_ms: options.ttl_tolerance_ms,
            chunk_bytes: options.chunk_bytes,
            check_extra: true,
        };
        Comparer { pair: Pair { source: peer(source), target: peer(target), rules } }
    }

    /// Those of `keys`, [`BATCH_KEYS_MAX`] at most, that are not the [same](is_same) on both sides, or change
    /// all the time.
    ///
    /// # Errors
    /// As [`is_same`].
    pub(crate) async fn differing(&mut self, keys: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let cases = self.pair.compare_at_rest(&keys).await?;
        let differs = |case: &Case| !matches!(case.verdict, Verdict::Equal | Verdict::Gone);
        Ok(cases.into_iter().filter(differs).map(|case| case.key).collect())
    }

    /// Those of `keys` of the source that are streams with consumer groups.
    ///
    /// # Errors
    /// As [`is_same`].
    pub(crate) async fn with_groups(&mut self, keys: &[Bytes]) -> Result<Vec<Bytes>> {
        groups::with_groups(&mut self.pair.source, keys).await
    }

    /// Those of `keys`, streams of the source, whose groups or numbers of consumers are others on the target.
    ///
    /// # Errors
    /// As [`is_same`].
    pub(crate) async fn with_other_groups(&mut self, keys: &[Bytes]) -> Result<Vec<Bytes>> {
        groups::with_other_groups(&mut self.pair, keys).await
    }
}

/// The servers' own input buffers and our own memory set the limit.
pub(crate) const BATCH_KEYS_MAX: usize = 512;
const CHUNK_BYTES_MIN: u64 = 4 << 10;

fn check(source: &Deployment, target: &Deployment, options: &VerifyOptions) -> Result<()> {
    let unfit = |side: &Deployment, what: &str| {
        Err(Error::unfit(side.side(), side.endpoint.address.to_string(), "verify", what))
    };
    if options.dbs.is_empty() {
        return Err(Error::own("verify", "no database was named"));
    }
    if let Scope::SamplePercent(percent) = options.scope
        && !(percent > 0.0 && percent <= 100.0)
    {
        return Err(Error::own("verify", "a sample is more than 0 and at most 100 percent"));
    }
    if source.is_cluster() && options.dbs.iter().any(|(db, _)| *db != 0) {
        return unfit(source, "a cluster is read through database 0");
    }
    if target.is_cluster() && options.dbs.iter().any(|(_, db)| *db != 0) {
        return unfit(target, "a cluster is read through database 0");
    }
    Ok(())
}
