//! The target takes over from a source whose writers are stopped by its operators.
//!
//! We forbid nothing, so nothing keeps a client from writing on. We can only look: the feeds report every key
//! that is touched. When no client has written for long enough, what is left is transferred and both sides
//! are compared; and if no client has written meanwhile either, the target takes over. Else the wait begins
//! again.
//!
//! **Expiries** are touches too, but no client's: the servers count them, as they count evictions, so they
//! are subtracted. That is possible only if everything is followed. Of a part, every touch counts.
//!
//! **Consumer groups** change unseen by a feed that is no replication link. There the servers' own counters
//! of calls are looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Error, ErrorKind, Result, ServerError, Side, StillWritten};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Info;
use whimbrel_engine::seal::{Reached, WriterFence, WritingClient, is_whimbrels, writing_clients};
use whimbrel_wire::value::Value;

use super::compare::Sample;
use super::conditions::{is_wanted, refused};
use super::heard::millis;
use super::options::CutoverOptions;
use super::report::{CutoverReport, ExternalReport};
use super::source::{Round, Source};
use super::status::{ExternalShown, ExternalStage, SyncPhase};
use super::syncer::{ROUNDS_MAX, Syncer};
use super::unseen::Unseen;
use crate::copy;
use crate::verify::Settle;

/// How often to check whether a client has written.
const POLL_PERIOD: Duration = Duration::from_millis(100);

/// How much of the time between two checks counts as quiet: if the machine stood still, its clients did, too.
const UNSEEN_MAX: Duration = Duration::from_secs(1);

/// How long a feed may take to reach its server's offset.
const REACH_MS: u64 = 5_000;

/// How long one connection to a primary is looked at by.
const LINK_AGE_MAX: Duration = Duration::from_secs(1);

/// How often one read is repeated because keys expired meanwhile.
const READS_MAX: u32 = 20;

/// How often both sides are compared, if a client wrote meanwhile each time.
const COMPARISONS_MAX: u32 = 10;

/// How often the server is asked which clients write.
const NAMES_EVERY: Duration = Duration::from_secs(1);

/// Clients that are remembered, and touched keys that are named.
const CLIENTS_MAX: usize = 64;
const KEYS_MAX: usize = 5;

/// Clients that wrote this long before the last write or later count as the last to write.
const LAST: Duration = Duration::from_secs(2);

/// Commands that a feed which is no replication link sees nothing of, or not everywhere.
const UNSEEN: [&str; 43] = [
    "xgroup",
    "xreadgroup",
    "xack",
    "xackdel",
    "xclaim",
    "xautoclaim",
    "xsetid",
    "xcfgset",
    "swapdb",
    "function|load",
    "function|delete",
    "function|flush",
    "function|restore",
    "vadd",
    "vrem",
    "vsetattr",
    "bf.add",
    "bf.madd",
    "bf.insert",
    "bf.load",
    "bf.loadchunk",
    "bf.reserve",
    "cf.add",
    "cf.addnx",
    "cf.compact",
    "cf.del",
    "cf.insert",
    "cf.insertnx",
    "cf.loadchunk",
    "cf.reserve",
    "cms.incrby",
    "cms.initbydim",
    "cms.initbyprob",
    "cms.merge",
    "ft.sugadd",
    "ft.sugdel",
    "tdigest.add",
    "tdigest.create",
    "tdigest.merge",
    "tdigest.reset",
    "topk.add",
    "topk.incrby",
    "topk.reserve",
];

/// Bounds of the wait for a source that no client writes to.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuietWait {
    /// How long no client may have written.
    pub(super) quiet: Duration,
    /// How long is waited for that, all in all.
    pub(super) wait: Duration,
}

/// What is known of the writes to one primary.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Activity {
    address: String,
    /// The feed has come so far.
    offset: u64,
    /// In this history of the server.
    replid: String,
    /// Touches that were no expiries, or, of a part, those of its keys: at least, and at most.
    writes: (i128, i128),
    /// Commands that the feed sees nothing of; 0 if it sees all.
    unseen: u64,
    /// Expiries were taken off.
    is_whole: bool,
}

/// Which clients have written, and since when none has.
#[derive(Debug)]
pub(super) struct Watch {
    /// To the primaries, and since when. They are renewed: a name may lead to another server meanwhile.
    links: BTreeMap<String, (Link, Instant)>,
    activities: Vec<Activity>,
    /// Since when no client has written, as far as it is known.
    since: Instant,
    clients: BTreeMap<WritingClient, Instant>,
    /// Addresses of clients that are known to rest.
    ignored: Vec<String>,
    keys: Vec<String>,
    named: Option<Instant>,
    waited: Duration,
    /// A feed that is no replication link, and whose server does not count calls.
    is_blind: bool,
    /// A client has written between the last two checks: it is no expiry, and nothing that came late.
    is_certain: bool,
}

impl Watch {
    pub(super) fn new() -> Watch {
        Watch {
            links: BTreeMap::new(),
            activities: Vec::new(),
            since: Instant::now(),
            clients: BTreeMap::new(),
            ignored: Vec::new(),
            keys: Vec::new(),
            named: None,
            waited: Duration::ZERO,
            is_blind: false,
            is_certain: false,
        }
    }

    /// Whether a client has certainly written between the last two checks.
    pub(super) fn is_certain(&self) -> bool {
        self.is_certain
    }

    /// Nothing that was seen before this says which clients write from now on.
    pub(super) fn begin_anew(&mut self) {
        self.activities.clear();
        self.clients.clear();
        self.keys.clear();
        self.named = None;
    }

    /// Clients that come from there are known to rest, whatever the server says of them.
    pub(super) fn ignore(&mut self, addresses: impl Iterator<Item = String>) {
        self.ignored.extend(addresses);
    }

    /// The addresses of clients that are known to rest.
    pub(super) fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Where this primary, and its feed, was at the last check.
    pub(super) fn reached(&self, address: &Address) -> Option<Reached> {
        let at = address.to_string();
        let activity = self.activities.iter().find(|activity| activity.address == at)?;
        Some(Reached { address: address.clone(), offset: activity.offset, replid: activity.replid.clone() })
    }

    /// The clients that wrote last, the latest first.
    fn last_clients(&self) -> Vec<WritingClient> {
        let Some(last) = self.clients.values().max() else { return Vec::new() };
        let mut clients: Vec<_> = self.clients.iter().filter(|(_, at)| **at + LAST >= *last).collect();
        clients.sort_by_key(|(_, at)| std::cmp::Reverse(**at));
        clients.into_iter().map(|(client, _)| client.clone()).collect()
    }

    fn shown(&self, stage: ExternalStage, quiet: QuietWait) -> ExternalShown {
        ExternalShown {
            stage,
            quiet_ms: millis(self.since),
            wanted_ms: u64::try_from(quiet.quiet.as_millis()).unwrap_or(u64::MAX),
            clients: self.last_clients(),
            keys: self.keys.clone(),
        }
    }

    pub(super) fn report(&self, restarts: u32) -> ExternalReport {
        let waited_ms = u64::try_from(self.waited.as_millis()).unwrap_or(u64::MAX);
        ExternalReport { waited_ms, restarts, clients: self.last_clients(), keys: self.keys.clone() }
    }

    /// Which clients wrote last, and which keys, for people, as far as it is known.
    pub(super) fn named(&self) -> String {
        let clients: Vec<String> = self.last_clients().iter().map(shown_client).collect();
        let mut text = String::new();
        for (what, names) in [("by", &clients), ("keys", &self.keys)] {
            if !names.is_empty() {
                text.push_str(&format!("; {what} {}", names.join(", ")));
            }
        }
        text
    }

    fn refusal(&self) -> Error {
        let ExternalReport { waited_ms, clients, keys, .. } = self.report(0);
        let clients = clients.iter().map(shown_client).collect();
        let still = StillWritten { waited_ms, clients, keys };
        Error::new(Side::Source, "", "cut over", ErrorKind::StillWritten(Box::new(still)))
    }
}

/// A client, for people.
fn shown_client(client: &WritingClient) -> String {
    let WritingClient { server, address, name, user, command } = client;
    let job = if is_whimbrels(name) { ", a job of whimbrel's" } else { "" };
    let mut text = format!("{address} at {server} ({command}{job}");
    for (what, value) in [("name", name), ("user", user)] {
        if !value.is_empty() {
            text.push_str(&format!(", {what} {value}"));
        }
    }
    text + ")"
}

impl Activity {
    /// Whether a client has certainly written to this primary since it was looked at before.
    fn shows_writes_since(&self, earlier: &[Activity]) -> bool {
        let before = earlier.iter().find(|activity| activity.address == self.address && activity.is_whole);
        self.is_whole
            && before.is_some_and(|before| self.writes.0 > before.writes.1 || self.unseen > before.unseen)
    }
}

/// What a server reports about itself at one moment.
struct Counted {
    offset: u64,
    replid: String,
    /// Keys that it removed by itself.
    reaped: u64,
    unseen: u64,
    counts_calls: bool,
    dbs: Vec<u32>,
}

impl Counted {
    async fn ask(link: &mut Link, is_blind: bool) -> Result<Counted> {
        const SECTIONS: [&[u8]; 3] = [b"stats", b"replication", b"keyspace"];
        let sections = SECTIONS.into_iter().chain(is_blind.then_some(b"commandstats".as_slice()));
        let asked = sections.map(|section| link.push(&[b"INFO", section])).count();
        link.flush().await?;
        let infos = link.replies(asked).await?;
        // A server that is busy, with a script say, reports nothing of what that has written.
        let busy = |info: &Value| {
            ServerError::of(info).filter(|error| matches!(error.code, Code::Busy | Code::Loading))
        };
        if let Some(error) = infos.iter().find_map(busy) {
            return Err(link.server_error(error, b"INFO"));
        }
        // What may not be asked for counts as nothing: then every touch is a write.
        let info = |at: usize| infos.get(at).and_then(|info| info.as_bytes().map(|text| Info::parse(text)));
        let [stats, replication, keyspace, calls] = [0, 1, 2, 3].map(|at| info(at).unwrap_or_default());
        let reaped = ["expired_keys", "evicted_keys"].iter().filter_map(|name| stats.number(name)).sum();
        Ok(Counted {
            offset: replication.number("master_repl_offset").unwrap_or(0),
            replid: replication.field("master_replid").unwrap_or_default().to_owned(),
            reaped,
            unseen: UNSEEN.iter().map(|command| calls.calls(command)).sum(),
            counts_calls: calls.calls("info") > 0,
            dbs: keyspace.keyspace().into_keys().collect(),
        })
    }
}

impl Syncer {
    /// Waits until no client writes to the source, transfers what is left, compares, and checks for writes
    /// once more.
    ///
    /// # Errors
    /// `StillWritten` if a client goes on writing; `Unfit` if both sides differ, or if it was withdrawn.
    pub(super) async fn take_over_when_quiet(
        &mut self,
        options: &CutoverOptions,
        quiet: QuietWait,
        report: &mut CutoverReport,
        lift: Option<&WriterFence>,
        chosen: &(Sample, Unseen),
        withdrawn: &CancellationToken,
    ) -> Result<()> {
        let mut watch = Watch::new();
        let outcome = self.when_quiet(options, quiet, report, (&mut watch, chosen), withdrawn).await;
        self.status.external(None);
        outcome?;
        if let Some(lift) = lift {
            // The process that goes on after a crash puts it up again.
            self.state.lifted = true;
            if let Err(e) = self.save_at_once() {
                self.state.lifted = false;
                return Err(refused(e.problem()).with_remedy("see that the disk has room, and ask again"));
            }
            if let Err(e) = lift.lift(&self.shared.target).await {
                self.close_target().await;
                return Err(e);
            }
            report.lifted = true;
        }
        report.pause_ms = millis(watch.since);
        if watch.is_blind {
            report.notices.push(
                "the source does not count calls of commands: whether consumer groups changed during the \
                 comparison is not known"
                    .to_owned(),
            );
        }
        Ok(())
    }

    async fn when_quiet(
        &mut self,
        options: &CutoverOptions,
        quiet: QuietWait,
        report: &mut CutoverReport,
        (watch, (sample, unseen)): (&mut Watch, &(Sample, Unseen)),
        withdrawn: &CancellationToken,
    ) -> Result<()> {
        for restarts in 0..COMPARISONS_MAX {
            self.wait_until_quiet(quiet, watch, withdrawn).await?;
            report.external = Some(watch.report(restarts));
            self.status.external(Some(watch.shown(ExternalStage::Comparing, quiet)));
            let before = self.transferred();
            self.carry_unseen_types().await?;
            self.carry_unseen(unseen).await?;
            self.drain().await?;
            if self.options.functions {
                self.copy_functions().await?;
            }
            report.drained = self.transferred() - before;
            let comparing = self.compare(options.compare, sample, Settle::default());
            let Some(compared) = withdrawn.run_until_cancelled(comparing).await else {
                return is_wanted(withdrawn);
            };
            let compared = compared?;
            // A primary of the target that was replaced may lack what its predecessor had acknowledged. A
            // primary that does not answer may have been replaced.
            copy::check_target(&self.shared).await?;
            self.shared.check_source().await?;
            if !self.is_in_order() || self.check_for_writes(watch).await? {
                continue;
            }
            self.drain().await?;
            compared.refusal().map_or(Ok(()), Err)?;
            self.check(options)?;
            is_wanted(withdrawn)?;
            report.compared = compared.keys;
            // What has expired during the comparison has just been transferred, and no client has written
            // meanwhile.
            if self.is_in_order() && !self.check_for_writes(watch).await? {
                return Ok(());
            }
        }
        Err(watch.refusal())
    }

    /// What a dry run can find out: which clients write now.
    pub(super) async fn rehearse_quiet(&mut self) -> Result<ExternalReport> {
        let mut watch = Watch::new();
        self.check_for_writes(&mut watch).await?;
        sleep(NAMES_EVERY).await;
        self.check_for_writes(&mut watch).await?;
        Ok(watch.report(0))
    }

    async fn wait_until_quiet(
        &mut self,
        quiet: QuietWait,
        watch: &mut Watch,
        withdrawn: &CancellationToken,
    ) -> Result<()> {
        watch.activities.clear();
        let waited = watch.waited;
        let began = Instant::now();
        let mut checked = began;
        loop {
            is_wanted(withdrawn)?;
            if self.shared.stop.is_cancelled() {
                return Err(refused("the sync was stopped"));
            }
            if !self.is_in_order() {
                self.repair().await?;
                self.status.phase(SyncPhase::CuttingOver);
                watch.activities.clear();
            }
            let unseen = std::mem::replace(&mut checked, Instant::now()).elapsed();
            watch.since += unseen.saturating_sub(UNSEEN_MAX);
            let wrote = self.check_for_writes(watch).await?;
            self.drain().await?;
            self.save()?;
            watch.waited = waited + began.elapsed();
            self.status.external(Some(watch.shown(ExternalStage::Waiting, quiet)));
            if !wrote && watch.since.elapsed() >= quiet.quiet && self.is_in_order() {
                return Ok(());
            }
            if watch.waited > quiet.wait {
                return Err(watch.refusal());
            }
            sleep(POLL_PERIOD).await;
        }
    }

    /// Whether a client has written since the last check, or may have. What was touched is still there to be
    /// transferred.
    pub(super) async fn check_for_writes(&mut self, watch: &mut Watch) -> Result<bool> {
        let mut activities = Vec::new();
        for index in 0..self.sources.len() {
            match self.check_source(index, watch).await {
                Ok(activity) => activities.extend(activity),
                Err(error) => {
                    // What it has done meanwhile is unknown.
                    tracing::debug!(%error, "a primary of the source could not be looked at");
                    watch.links.clear();
                }
            }
        }
        if activities.iter().any(|activity| !activity.is_whole) {
            // Only when it is taken it is known whether a touched key is one of ours.
            self.drain().await?;
            for activity in activities.iter_mut().filter(|activity| !activity.is_whole) {
                let of_it = |source: &&Source| source.feed.address().to_string() == activity.address;
                let admitted = self.sources.iter().find(of_it).map_or(0, |source| source.admitted);
                activity.writes = (admitted.into(), admitted.into());
            }
        }
        // Rounds end in any order.
        activities.sort_by(|a, b| a.address.cmp(&b.address));
        let is_first = watch.activities.is_empty();
        let is_quiet = activities.len() == self.sources.len()
            && activities.len() == watch.activities.len()
            && activities.iter().zip(&watch.activities).all(|(now, before)| {
                (&now.address, now.unseen, now.is_whole) == (&before.address, before.unseen, before.is_whole)
                    && now.writes.1 <= before.writes.0
            });
        let is_flushed = self.sources.iter().any(Source::is_broken);
        watch.is_certain = activities.iter().any(|now| now.shows_writes_since(&watch.activities));
        watch.activities = activities;
        let wrote = !is_quiet || is_flushed;
        if wrote {
            watch.since = Instant::now();
            if !is_first {
                self.name_writers(watch).await;
            }
        }
        Ok(wrote)
    }

    /// Whether a client has certainly written since the last check, and which. What was touched is left
    /// alone.
    pub(super) async fn has_been_written(&mut self, watch: &mut Watch) -> bool {
        let mut has_been = false;
        for index in 0..self.sources.len() {
            let Ok(Some(now)) = self.check_source(index, watch).await else { continue };
            has_been |= now.shows_writes_since(&watch.activities);
        }
        if has_been {
            self.name_writers(watch).await;
        }
        has_been
    }

    /// `None` if the feed does not reach the server's offset.
    async fn check_source(&mut self, index: usize, watch: &mut Watch) -> Result<Option<Activity>> {
        let shared = self.shared.clone();
        let feed = self.sources[index].feed.clone();
        let address = feed.address().to_string();
        if watch.links.get(&address).is_none_or(|(_, since)| since.elapsed() >= LINK_AGE_MAX) {
            let link = shared.source.open(feed.address(), 0).await?;
            watch.links.insert(address.clone(), (link, Instant::now()));
        }
        let Some((link, _)) = watch.links.get_mut(&address) else { return Ok(None) };
        let is_blind = feed.misses_consumer_groups();
        for attempt in 1.. {
            let before = Counted::ask(link, is_blind).await?;
            if !feed.reach_in(&before.replid, before.offset, REACH_MS).await? {
                return Ok(None);
            }
            let touches = i128::from(feed.touched().recorded());
            let after = Counted::ask(link, is_blind).await?;
            if before.reaped != after.reaped && attempt < READS_MAX {
                continue;
            }
            watch.is_blind |= is_blind && !after.counts_calls;
            let is_followed = |db: &u32| shared.options.dbs.iter().any(|pair| pair.source == *db);
            let is_whole = shared.options.selection.is_everything() && after.dbs.iter().all(is_followed);
            let writes = (touches - i128::from(after.reaped), touches - i128::from(before.reaped));
            return Ok(Some(Activity {
                address,
                offset: before.offset,
                replid: before.replid,
                writes,
                unseen: after.unseen,
                is_whole,
            }));
        }
        Ok(None)
    }

    /// Remembers which clients write, and some of the keys, for people.
    async fn name_writers(&mut self, watch: &mut Watch) {
        let mut keys = Vec::new();
        for source in &self.sources {
            let touched = source.feed.touched();
            let touches = touched.take(KEYS_MAX - keys.len().min(KEYS_MAX));
            keys.extend(touches.iter().map(|touch| copy::shown(&touch.key)));
            touched.put_back(touches);
        }
        if !keys.is_empty() {
            watch.keys = keys;
        }
        if watch.named.is_some_and(|at| at.elapsed() < NAMES_EVERY) {
            return;
        }
        watch.named = Some(Instant::now());
        for (link, _) in watch.links.values_mut() {
            let Ok(Some(clients)) = writing_clients(link).await else { continue };
            let ignored: BTreeSet<&String> = watch.ignored.iter().collect();
            for client in clients.into_iter().filter(|client| !ignored.contains(&client.address)) {
                if watch.clients.len() >= CLIENTS_MAX
                    && !watch.clients.contains_key(&client)
                    && let Some(oldest) = watch.clients.iter().min_by_key(|(_, at)| **at)
                {
                    let oldest = oldest.0.clone();
                    watch.clients.remove(&oldest);
                }
                watch.clients.insert(client, Instant::now());
            }
        }
    }

    /// Transfers what is touched, as long as that makes it less.
    pub(super) async fn drain(&mut self) -> Result<()> {
        self.drain_while(|| true).await
    }

    /// As [`Syncer::drain`], for this long at most: a large value that changes all the time is never
    /// finished. Refused if it is not wanted any more.
    pub(super) async fn drain_for(&mut self, limit: Duration, withdrawn: &CancellationToken) -> Result<()> {
        let until = Instant::now() + limit;
        self.drain_while(|| Instant::now() < until && !withdrawn.is_cancelled()).await?;
        is_wanted(withdrawn)
    }

    async fn drain_while(&mut self, goes_on: impl Fn() -> bool) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            if self.rounds().await? != Round::Part || !goes_on() {
                break;
            }
        }
        Ok(())
    }

    fn is_in_order(&self) -> bool {
        self.is_calm() && !self.sources.iter().any(Source::is_broken)
    }
}
