//! Feeds of the primaries of a source.

use std::sync::Arc;

use whimbrel_core::slot::SlotSet;
use whimbrel_engine::deployment::{Deployment, Shard};
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::feed::{Feed, FeedFailure, FeedKind, FeedOptions};
use whimbrel_engine::remedy::Remedy;

use super::options::SyncOptions;
use super::source::Source;
use super::state::Position;
use super::status::SyncPhase;
use super::syncer::Syncer;
use crate::pipeline::Shared;
use crate::retry::Backoff;

/// How the changes of each primary of a source would be learnt of, and what of them would not be seen, in
/// words: feeds are attached, and dropped again.
///
/// # Errors
/// As [`Feed::attach`]; `Unfit` if no replication can be had and nothing else will do.
pub async fn rehearse_feeds(
    source: &Deployment,
    options: FeedOptions,
    replication_only: bool,
) -> Result<Vec<(Address, FeedKind, Vec<String>)>> {
    let mut kinds = Vec::new();
    for shard in &source.topology().shards {
        let feed = Feed::attach(source, &shard.primary, SlotSet::full(), options).await?;
        refuse_blind(&feed, replication_only)?;
        kinds.push((shard.primary.clone(), feed.kind(), not_seen(&feed)));
    }
    Ok(kinds)
}

impl Syncer {
    /// Gives every primary of the source a feed. What may have been missed is in doubt afterwards.
    pub(super) async fn attach(&mut self) -> Result<()> {
        self.status.phase(SyncPhase::Attaching);
        let topology = self.shared.source.topology();
        let mut old = std::mem::take(&mut self.sources);
        // Those that are written down are older, and count only if there are no others. The position at a
        // server whose place another one has taken does not count either: keys may have been read there that
        // the feed had not reported yet, and that its successor never got.
        let is_same = |source: &&Source| source.feed.failure() != Some(FeedFailure::Replaced);
        let mut known: Vec<Position> = old.iter().filter(is_same).filter_map(Source::position).collect();
        known.extend(self.state.positions.iter().filter(|_| old.is_empty()).cloned());
        let alive = |source: &Source, shard: &Shard| {
            *source.feed.address() == shard.primary && source.feed.failure().is_none()
        };
        self.unmapped |= old.iter().any(|source| source.unmapped);
        let mut sources = Vec::new();
        for shard in &topology.shards {
            if let Some(index) = old.iter().position(|source| alive(source, shard)) {
                let mut source = old.swap_remove(index);
                source.become_shard(shard);
                sources.push(source);
                continue;
            }
            let ended = old.iter().find(|source| *source.feed.address() == shard.primary);
            let ended = ended.map(|source| source.feed.clone());
            match self.attach_to(shard, &known, ended.as_deref()).await {
                Ok(source) => sources.push(source),
                Err(e) => {
                    // A process that goes on after this finds them as they were, and repairs them again.
                    sources.append(&mut old);
                    self.sources = sources;
                    return Err(e);
                }
            }
        }
        let by_elements = sources.iter().filter(|source| source.feed.kind().is_replication());
        self.shared.followed.begin(by_elements.map(|source| source.unit.shard_id.clone()).collect());
        self.sources = sources;
        self.status.sources(self.sources.iter().map(|source| source.view.clone()).collect());
        Ok(())
    }

    /// What is in the way shows with the feed that has `ended`, in whose place the new one comes.
    async fn attach_to(&mut self, shard: &Shard, known: &[Position], ended: Option<&Feed>) -> Result<Source> {
        let shared = self.shared.clone();
        let mut backoff = Backoff::new(shared.options.retry);
        loop {
            match try_attach(&shared, shard, known, &self.options).await {
                Ok((feed, Some(position))) => {
                    tracing::info!(at = %shard.primary, offset = position.history.offset, "following goes \
                        on");
                    return Ok(Source::new(
                        &shared,
                        shard,
                        feed,
                        Some(position.history),
                        self.options.all_dbs,
                    ));
                }
                Ok((feed, None)) => {
                    self.suspects = self.suspects.union(&shard.slots);
                    return Ok(Source::new(&shared, shard, feed, None, self.options.all_dbs));
                }
                Err(e) => {
                    if let Some(ended) = ended {
                        ended.is_not_replaced(&e);
                    }
                    shared.pause(&mut backoff, e).await?;
                }
            }
            // Another node may lead the shard by now: the caller reads the topology again.
            shared.refresh_source().await;
            let topology = shared.source.topology();
            if !topology.shards.iter().any(|now| now.primary == shard.primary)
                && let Some(now) =
                    topology.shards.iter().max_by_key(|s| s.slots.intersection(&shard.slots).len())
            {
                return Box::pin(self.attach_to(&now.clone(), known, ended)).await;
            }
        }
    }
}

/// A feed, and the position from which it goes on, if there was one.
async fn try_attach(
    shared: &Arc<Shared>,
    shard: &Shard,
    known: &[Position],
    options: &SyncOptions,
) -> Result<(Feed, Option<Position>)> {
    // A slot that comes to this primary later has been watched from the beginning.
    let slots = SlotSet::full();
    let at = shard.primary.to_string();
    let is_replication = options.feed.kind.is_none_or(FeedKind::is_replication);
    let wanted = |position: &&Position| is_replication && position.address == at;
    for position in known.iter().filter(wanted) {
        let attach = async |from| {
            Feed::attach_at(&shared.source, &shard.primary, slots.clone(), options.feed, from).await
        };
        if position.seen != position.history && attach(&position.seen).await?.is_none() {
            continue;
        }
        if let Some(feed) = attach(&position.history).await? {
            return Ok((feed, Some(position.clone())));
        }
    }
    let feed = Feed::attach(&shared.source, &shard.primary, slots, options.feed).await?;
    refuse_blind(&feed, options.replication_only)?;
    not_seen(&feed).into_iter().for_each(|words| shared.progress.notice(words));
    Ok((feed, None))
}

/// What a feed does not see, and what could not be checked of it, in words.
fn not_seen(feed: &Feed) -> Vec<String> {
    let mut words = Vec::new();
    if feed.misses_consumer_groups() {
        // Streams stand for their consumer groups.
        let types: Vec<&str> = feed.unseen_types().iter().copied().filter(|name| *name != "stream").collect();
        let keys = match types[..] {
            [] => "changes of consumer groups and functions".to_owned(),
            _ => format!("changes of consumer groups, functions and keys of type {}", types.join(", ")),
        };
        let (at, kind) = (feed.address(), feed.kind());
        words.push(format!("{at} is followed by {kind}: {keys} arrive with the cutover only"));
    }
    let unproven = feed.unproven().iter();
    words.extend(unproven.map(|what| format!("{}: it could not be checked {what}", feed.address())));
    words
}

fn refuse_blind(feed: &Feed, replication_only: bool) -> Result<()> {
    if !replication_only || feed.kind().is_replication() {
        return Ok(());
    }
    let at = feed.address().to_string();
    Err(Error::unfit(
        Side::Source,
        at,
        "attach a feed of changes",
        "the server does not let us have a replication link",
    )
    .with_remedy(Remedy::AllowReplicationOrAnyFeed))
}
