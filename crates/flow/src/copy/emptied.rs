//! Databases of the source that were emptied or exchanged while they were copied.
//!
//! To a copy `FLUSHDB` and `FLUSHALL` look like many keys that were deleted, and after `SWAPDB` it reads
//! another database under the same number. What arrives then is neither what there was nor what there is. The
//! servers count these commands.

use std::collections::BTreeMap;
use std::sync::Arc;

use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;
use whimbrel_engine::probe::Info;

use crate::pipeline::Shared;
use crate::retry::Backoff;

/// As servers name them in `INFO commandstats`.
const COMMANDS: [&str; 3] = ["flushall", "flushdb", "swapdb"];

/// How often each server has run each of these commands.
pub(super) type Counted = BTreeMap<(String, &'static str), u64>;

/// Asks all primaries of the source; nothing for one that does not say.
///
/// # Errors
/// If a server cannot be asked for as long as the options try again, or the copy is stopped.
pub(super) async fn count(shared: &Arc<Shared>) -> Result<Counted> {
    if !shared.source.facts.are_known {
        return Ok(Counted::new());
    }
    let mut backoff = Backoff::new(shared.options.retry);
    loop {
        match try_count(&shared.source).await {
            Ok(counted) => return Ok(counted),
            // It may not be asked, or knows no such section.
            Err(e) if e.server().is_some() => return Ok(Counted::new()),
            Err(e) => shared.pause(&mut backoff, e).await?,
        }
    }
}

async fn try_count(source: &Deployment) -> Result<Counted> {
    let mut counted = Counted::new();
    for shard in &source.topology().shards {
        let mut link = source.open(&shard.primary, 0).await?;
        let stats = Info::ask(&mut link, "commandstats").await?;
        for command in COMMANDS {
            let calls = stats.field(&format!("cmdstat_{command}")).and_then(calls).unwrap_or(0);
            counted.insert((shard.primary.to_string(), command), calls);
        }
    }
    Ok(counted)
}

/// Of `calls=3,usec=12,…`.
fn calls(stats: &str) -> Option<u64> {
    stats.strip_prefix("calls=")?.split(',').next()?.parse().ok()
}

/// Which commands ran since `before`, and how often. Servers that have taken over, or that count from 0
/// again, do not report it.
pub(super) fn since(before: &Counted, now: &Counted) -> BTreeMap<String, u64> {
    let mut ran = BTreeMap::new();
    for (place, count) in now {
        let more = before.get(place).map_or(0, |earlier| count.saturating_sub(*earlier));
        if more > 0 {
            *ran.entry(place.1.to_uppercase()).or_default() += more;
        }
    }
    ran
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ran_since_is_reported_and_nothing_of_servers_that_count_anew() {
        let at = |address: &str, command, count| ((address.to_owned(), command), count);
        let before = Counted::from([at("a", "flushdb", 2), at("a", "swapdb", 0), at("b", "flushdb", 9)]);
        let now = Counted::from([
            at("a", "flushdb", 4),
            at("a", "swapdb", 1),
            at("b", "flushdb", 1),
            at("c", "flushall", 5),
        ]);
        let ran = since(&before, &now);
        assert_eq!(ran, BTreeMap::from([("FLUSHDB".to_owned(), 2), ("SWAPDB".to_owned(), 1)]));
        assert_eq!(calls("calls=12,usec=3,usec_per_call=0.25"), Some(12));
        assert_eq!(calls("usec=3"), None);
    }
}
