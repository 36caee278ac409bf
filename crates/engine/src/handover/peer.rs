//! One of the two nodes of a handover: connections to it, and the commands that both sides share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_wire::value::Value;

use crate::endpoint::{Address, Endpoint};
use crate::error::{Error, ErrorKind, Result, ServerError, Side};
use crate::link::{Link, LinkOptions};
use crate::nodes::{CANDIDATE_CLIENT_NAME, ClusterView, JOB_CLIENT_NAME, is_called, key_counts};
use crate::probe::{Info, ServerFacts, first_three, first_two};
use crate::remedy::Remedy;

use super::options::{HandoverOptions, SlotFenceKind};

/// Commands sent before their replies are read.
const PIPELINED: usize = 256;

/// Connections over which slots are marked if each mark waits for the node's replicas. Every turn of the
/// server's event loop takes one from each of them and then writes `nodes.conf`, so their number divides the
/// time; more than these gain nothing.
const POOL_MAX: usize = 64;

/// Slots that are worth one more of those connections.
const SLOTS_PER_LINK: usize = 8;

/// A connection that was idle for longer is asked whether it is still there before it is used: servers close
/// idle ones, and a command whose connection breaks has an unknown outcome.
const IDLE_MAX: Duration = Duration::from_secs(2);

/// How often a node is asked to find out how long a round trip takes; the shortest counts.
const TRIPS_MEASURED: u32 = 3;

/// How long a closed connection may still be listed.
const CLOSING_MAX: Duration = Duration::from_secs(1);

/// How long a server may take to remove what a migration of its own has left, and how often it is asked.
/// Meanwhile it refuses marks of those slots (Redis 8.4 and later).
const TRIM_MAX: Duration = Duration::from_secs(60);
const TRIM_POLL: Duration = Duration::from_millis(50);

/// A script that shows whether scripts can do what the fence needs.
const SCRIPT_PROBE: &[u8] = b"#!lua flags=no-writes\nreturn redis.call('CLUSTER', 'MYID')";

/// What a server can do, and what it must be spared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traits {
    /// How slots are fenced on it.
    pub(super) fence: SlotFenceKind,
    /// `CLUSTER SETSLOT` waits for the node's replicas, and crashes the server inside a transaction: Valkey
    /// 8.0 and later.
    pub(super) setslot_waits: bool,
    /// `CLUSTER BUMPEPOCH` notifies all other nodes of the new epoch: Valkey 8.1 and later. Before, they hear
    /// of it by chance, up to some seconds later.
    pub(super) bump_announces: bool,
    /// A node that imports a slot takes it over by itself as soon as the node that it imports from claims it
    /// no longer: Valkey 8.0 and later.
    pub(super) takes_by_itself: bool,
    /// It may die when it removes the keys of slots that it has lost by gossip while a child of it saves: a
    /// walk over a table reads what the removal of the last key has freed. Valkey 8.1.0 to 8.1.4
    /// (<https://github.com/valkey-io/valkey/pull/2753>), and what came before 9.0.
    pub(super) dies_beside_child: bool,
    /// It writes one line to its log for each range of slots that changes hands, and not one for each slot:
    /// Valkey 9.0 and later.
    pub(super) logs_ranges: bool,
    /// As [`ServerFacts::hides_keys`].
    pub(super) hides_keys: bool,
    /// `CLUSTER ADDSLOTSRANGE` and `DELSLOTSRANGE`: 7.0 and later.
    pub(super) ranges: bool,
    /// This user may run scripts that say they write nothing, which a write pause does not hold up: 7.0 and
    /// later.
    pub(super) scripts: bool,
}

impl Traits {
    /// What a server of this version is like, found in `INFO server`. A server that says nothing about itself
    /// is treated as the most fragile version.
    fn of(info: &Info, ranges: bool, scripts: bool) -> Traits {
        let valkey = info.field("valkey_version").map(first_two);
        let later_valkey = valkey.is_some_and(|v| v >= (8, 0));
        let fence = match valkey {
            Some(v) if v >= (8, 1) => SlotFenceKind::Gossip,
            Some(v) if v >= (8, 0) => SlotFenceKind::Bare,
            _ => SlotFenceKind::Redirecting,
        };
        Traits {
            fence,
            setslot_waits: later_valkey,
            bump_announces: valkey.is_some_and(|v| v >= (8, 1)),
            takes_by_itself: later_valkey,
            dies_beside_child: info.field("valkey_version").map(first_three).is_some_and(|version| {
                ((8, 1, 0)..(8, 1, 5)).contains(&version) || ((8, 2, 0)..(9, 0, 0)).contains(&version)
            }),
            logs_ranges: valkey.is_some_and(|v| v >= (9, 0)),
            hides_keys: ServerFacts::of(info).hides_keys,
            ranges,
            scripts,
        }
    }
}

/// Why slots of this server cannot be moved from outside, and what can be done instead. Found before anything
/// is changed.
fn not_supported(info: &Info) -> Option<(String, Remedy)> {
    if info.field("valkey_version").is_some() {
        return None;
    }
    let version = info.field("redis_version")?;
    if first_two(version) < (6, 2) {
        let what = format!("Redis {version} cannot pause writes alone, which a handover from outside needs");
        return Some((what, Remedy::UpgradeOrUseLegacyMethod));
    }
    None
}

/// What `CLUSTER SETSLOT` is to set.
#[derive(Debug, Clone)]
pub(super) enum Mark {
    /// Taken in from this node.
    Importing(NodeId),
    /// No mark.
    Stable,
    /// Owned by this node.
    Node(NodeId),
}

impl Mark {
    /// Queues the command.
    pub(super) fn push(&self, link: &mut Link, slot: Slot) {
        self.push_with(link, slot, None);
    }

    /// Runs the command, which waits for the node's replicas for `timeout_ms` at most: Valkey 8.0 and later.
    /// False if it was refused: then the node has not changed, but its replicas may have.
    ///
    /// # Errors
    /// If the connection fails.
    pub(super) async fn set_within(&self, link: &mut Link, slot: Slot, timeout_ms: u64) -> Result<bool> {
        self.push_with(link, slot, Some(timeout_ms));
        link.flush().await?;
        let refused = ServerError::of(&link.reply().await?);
        if let Some(refused) = &refused {
            tracing::info!(%slot, mark = ?self, refused = refused.text, "a slot's mark was refused");
        }
        Ok(refused.is_none())
    }

    fn push_with(&self, link: &mut Link, slot: Slot, timeout_ms: Option<u64>) {
        let (word, id): (&[u8], _) = match self {
            Mark::Importing(id) => (b"IMPORTING", Some(id)),
            Mark::Stable => (b"STABLE", None),
            Mark::Node(id) => (b"NODE", Some(id)),
        };
        let outbox = link.outbox();
        outbox.command(4 + usize::from(id.is_some()) + 2 * usize::from(timeout_ms.is_some()));
        outbox.arg(b"CLUSTER");
        outbox.arg(b"SETSLOT");
        outbox.arg_int(i64::from(slot.number()));
        outbox.arg(word);
        if let Some(id) = id {
            outbox.arg(id.as_str().as_bytes());
        }
        if let Some(timeout_ms) = timeout_ms {
            outbox.arg(b"TIMEOUT");
            outbox.arg(timeout_ms.to_string().as_bytes());
        }
    }
}

/// From which node each of `slots` can be marked as importing: its owner, or any other primary if it has
/// none.
pub(super) fn origins(view: &ClusterView, slots: &SlotSet) -> BTreeMap<NodeId, Vec<Slot>> {
    let me = &view.me().id;
    let other = view.nodes.iter().find(|node| node.is_primary() && node.id != *me);
    let mut origins: BTreeMap<NodeId, Vec<Slot>> = BTreeMap::new();
    for slot in slots {
        if let Some(origin) = view.primary_of(slot).filter(|owner| owner.id != *me).or(other) {
            origins.entry(origin.id.clone()).or_default().push(slot);
        }
    }
    origins
}

/// How another node is reached, for a task of its own.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) options: LinkOptions,
    pub(super) name: Arc<str>,
}

impl Connector {
    /// A connection that shows its name, and its number on the server.
    pub(super) async fn open(&self, address: &Address) -> Result<(Link, Option<i64>)> {
        let mut link = Link::open(&self.endpoint, address, self.options).await?;
        link.push(&[b"CLIENT", b"SETNAME", self.name.as_bytes()]);
        link.push(&[b"CLIENT", b"ID"]);
        link.flush().await?;
        let replies = link.replies(2).await?;
        // Both are a courtesy; if they are forbidden the others just cannot see us.
        Ok((link, replies[1].as_int()))
    }
}

/// One of the two nodes.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: NodeId,
    pub(super) address: Address,
    pub(super) traits: Traits,
    pub(super) connector: Connector,
    link: Option<(Link, Instant)>,
    pool: Vec<Link>,
    pool_used: Instant,
    /// The numbers of our own connections on this server.
    own: BTreeSet<i64>,
}

impl Peer {
    pub(super) async fn open(
        connector: Connector,
        id: NodeId,
        address: Address,
        options: &HandoverOptions,
    ) -> Result<Peer> {
        let (mut link, number) = connector.open(&address).await?;
        link.push(&[b"INFO", b"server"]);
        // Too few arguments: nothing happens, but the answer shows whether the command is known.
        link.push(&[b"CLUSTER", b"DELSLOTSRANGE"]);
        link.push(&[b"EVAL", SCRIPT_PROBE, b"0"]);
        link.flush().await?;
        let [info, refused, script] = reply_array(&mut link).await?;
        let info = link.check(info, b"INFO")?;
        let info = Info::parse(info.as_bytes().map_or(&[], |b| b));
        if let Some((what, remedy)) = not_supported(&info) {
            let side = connector.endpoint.side;
            return Err(Error::unfit(side, address.to_string(), "move slots", what).with_remedy(remedy));
        }
        let known = refused.as_error().is_some_and(|e| e.ends_with(b"'cluster|delslotsrange' command"));
        Ok(Peer {
            address,
            traits: Traits::of(
                &info,
                known && options.ranges,
                script.as_bytes().is_some_and(|ran| ran.as_ref() == id.as_str().as_bytes())
                    && options.scripts,
            ),
            id,
            connector,
            link: Some((link, Instant::now())),
            pool: Vec::new(),
            pool_used: Instant::now(),
            own: number.into_iter().collect(),
        })
    }

    pub(super) fn side(&self) -> Side {
        self.connector.endpoint.side
    }

    /// An error about this node.
    pub(super) fn unfit(&self, tried: &str, what: impl Into<String>) -> Error {
        Error::unfit(self.side(), self.address.to_string(), tried, what)
    }

    /// An error in the words of a server, which goes away by itself: callers try again after it.
    pub(super) fn for_now(&self, tried: &str, what: &str) -> Error {
        let kind = ErrorKind::Server(ServerError::classify(format!("TRYAGAIN {what}").as_bytes()));
        Error::new(self.side(), self.address.to_string(), tried, kind)
    }

    /// An error after which it is not known what is true: a command was refused half-way through something
    /// that consists of several. It carries no [`ServerError`], since that stands for «certainly not done».
    pub(super) fn in_doubt(&self, tried: &str, cause: impl std::fmt::Display) -> Error {
        let kind = ErrorKind::Own(format!("{cause}; it is not known how far that went"));
        Error::new(self.side(), self.address.to_string(), tried, kind).with_remedy(
            "look at the cluster with whimbrel status; whimbrel jobs resume finds out and goes on",
        )
    }

    /// Runs `work` with the control connection, which is opened if there is none. It is given up if it may be
    /// out of step afterwards: on any error but a server's own, and if the future is dropped.
    pub(super) async fn run<T>(&mut self, work: impl AsyncFnOnce(&mut Link) -> Result<T>) -> Result<T> {
        let mut link = self.take().await?;
        let result = work(&mut link).await;
        let in_step = match &result {
            Ok(_) => true,
            Err(e) => matches!(e.kind, ErrorKind::Server(_) | ErrorKind::Unfit(_)),
        };
        if in_step {
            self.link = Some((link, Instant::now()));
        }
        result
    }

    async fn take(&mut self) -> Result<Link> {
        if let Some((mut link, used)) = self.link.take()
            && (used.elapsed() < IDLE_MAX || link.ask(&[b"PING"]).await.is_ok())
        {
            return Ok(link);
        }
        let (link, number) = self.connector.open(&self.address).await?;
        self.own.extend(number);
        Ok(link)
    }

    /// How long a round trip takes at best.
    pub(super) async fn round_trip(&mut self) -> Result<Duration> {
        let mut shortest = Duration::MAX;
        for _ in 0..TRIPS_MEASURED {
            let asked = Instant::now();
            self.run(async |link| link.call(&[b"PING"]).await).await?;
            shortest = shortest.min(asked.elapsed());
        }
        Ok(shortest)
    }

    /// The node's view of the cluster.
    pub(super) async fn view(&mut self) -> Result<ClusterView> {
        self.run(ClusterView::ask).await
    }

    /// Sets one mark for each of `slots`: pipelined over one connection, or over many if the server waits for
    /// its replicas with each.
    pub(super) async fn set_slots(&mut self, slots: &SlotSet, mark: &Mark) -> Result<()> {
        let slots: Vec<Slot> = slots.iter().collect();
        if slots.is_empty() {
            return Ok(());
        }
        if !self.traits.setslot_waits || self.replication().await?.number("connected_slaves") == Some(0) {
            let deadline = Instant::now() + TRIM_MAX;
            loop {
                match self.run(async |link| set_slots_over(link, &slots, mark).await).await {
                    Err(e) if is_trimming(&e) && Instant::now() < deadline => sleep(TRIM_POLL).await,
                    outcome => return outcome,
                }
            }
        }
        if self.pool_used.elapsed() > IDLE_MAX {
            self.pool.clear();
        }
        let links = slots.len().div_ceil(SLOTS_PER_LINK).min(POOL_MAX);
        let mut running = JoinSet::new();
        for part in slots.chunks(slots.len().div_ceil(links)) {
            let (part, mark) = (part.to_vec(), mark.clone());
            let (connector, address, link) = (self.connector.clone(), self.address.clone(), self.pool.pop());
            running.spawn(async move {
                let (mut link, number) = match link {
                    Some(link) => (link, None),
                    None => connector.open(&address).await?,
                };
                set_slots_over(&mut link, &part, &mark).await.map(|()| (link, number))
            });
        }
        let mut outcome = Ok(());
        while let Some(joined) = running.join_next().await {
            match joined.map_err(|e| Error::own("mark slots", e)).and_then(|r| r) {
                Ok((link, number)) => {
                    self.pool.push(link);
                    self.own.extend(number);
                }
                Err(e) => outcome = outcome.and(Err(e)),
            }
        }
        self.pool_used = Instant::now();
        outcome
    }

    /// How many keys the node holds in `slots`, by its own `view`. Those that it hides show while their slots
    /// are marked, so they are for as long as it takes to count.
    pub(super) async fn count_keys(&mut self, view: &ClusterView, slots: &SlotSet) -> Result<u64> {
        let me = view.me();
        let hides = self.traits.hides_keys && me.is_primary();
        let marked: SlotSet = me.importing.iter().map(|(slot, _)| *slot).collect();
        let hidden = if hides { slots.difference(&me.slots).difference(&marked) } else { SlotSet::new() };
        for (origin, slots) in origins(view, &hidden) {
            self.set_slots(&slots.into_iter().collect(), &Mark::Importing(origin)).await?;
        }
        let counts = self.run(async |link| key_counts(link, slots).await).await;
        let unmarked = self.set_slots(&hidden, &Mark::Stable).await;
        let counts = counts?;
        unmarked.map(|()| counts.sum(slots))
    }

    /// A connection besides the control connection.
    pub(super) async fn spare(&mut self) -> Result<Link> {
        if self.pool_used.elapsed() > IDLE_MAX {
            self.pool.clear();
        }
        if let Some(link) = self.pool.pop() {
            return Ok(link);
        }
        let (link, number) = self.connector.open(&self.address).await?;
        self.own.extend(number);
        Ok(link)
    }

    /// Keeps a spare connection that is in step, for the next time.
    pub(super) fn keep_spare(&mut self, link: Link) {
        self.pool.truncate(POOL_MAX - 1);
        self.pool.push(link);
        self.pool_used = Instant::now();
    }

    /// Queues `CLUSTER ADDSLOTS` or `DELSLOTS` for all of `slots`, by ranges if the server knows those. One
    /// command.
    pub(super) fn push_slots(traits: Traits, link: &mut Link, command: &str, slots: &SlotSet) {
        let outbox = link.outbox();
        if traits.ranges {
            let ranges = slots.ranges();
            outbox.command(2 + 2 * ranges.len());
            outbox.arg(b"CLUSTER");
            outbox.arg(format!("{command}RANGE").as_bytes());
            for range in ranges {
                outbox.arg_int(i64::from(range.start().number()));
                outbox.arg_int(i64::from(range.end().number()));
            }
        } else {
            outbox.command(2 + slots.len());
            outbox.arg(b"CLUSTER");
            outbox.arg(command.as_bytes());
            for slot in slots {
                outbox.arg_int(i64::from(slot.number()));
            }
        }
    }

    /// `INFO replication`.
    pub(super) async fn replication(&mut self) -> Result<Info> {
        self.run(async |link| Info::ask(link, "replication").await).await
    }

    /// From now on connections to this server show this name.
    pub(super) async fn rename(&mut self, name: Arc<str>) -> Result<()> {
        self.connector.name = name.clone();
        // A courtesy, as in [`Connector::open`].
        self.run(async |link| link.ask(&[b"CLIENT", b"SETNAME", name.as_bytes()]).await).await.map(drop)
    }

    /// The number of the latest of our own connections on this server: of two candidates the later one gives
    /// way. A candidate that does not know its number gives way to all.
    pub(super) fn number(&self) -> i64 {
        self.own.last().copied().unwrap_or(i64::MAX)
    }

    /// The connections on this server that belong to a job of whimbrel's, or to a job that is about to begin,
    /// and are not our own.
    pub(super) async fn other_jobs(&mut self) -> Result<Vec<OtherJob>> {
        let at = self.address.clone();
        let mut found = self.clients(|line| OtherJob::of_line(line, &at)).await?;
        found.retain(|other| !self.own.contains(&other.number));
        Ok(found)
    }

    /// What `of_line` makes of the lines of `CLIENT LIST`, for all connections that are neither replicas' nor
    /// subscribers'.
    pub(super) async fn clients<T>(&mut self, of_line: impl FnMut(&str) -> Option<T>) -> Result<Vec<T>> {
        let list = self.run(list_clients).await?;
        Ok(list.lines().filter_map(of_line).collect())
    }
}

/// `CLIENT LIST` of all connections that are neither replicas' nor subscribers'.
pub(super) async fn list_clients(link: &mut Link) -> Result<String> {
    link.push(&[b"CLIENT", b"LIST", b"TYPE", b"NORMAL"]);
    link.flush().await?;
    let reply = link.replies_within(1, CLIENT_LIST_BYTES_MAX).await?.remove(0);
    let list = link.check(reply, b"CLIENT LIST")?;
    Ok(String::from_utf8_lossy(list.as_bytes().map_or(&[], |b| b)).into_owned())
}

/// A field of a line of `CLIENT LIST`.
pub(super) fn client_field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// A connection of a job that is not our own.
pub(super) struct OtherJob {
    /// Its number on the server.
    pub(super) number: i64,
    /// What it is called.
    pub(super) name: String,
    from: String,
    at: Address,
}

/// For how long jobs that are listed may be such that just end: their connections are still listed then.
pub(super) struct Closing {
    until: Instant,
}

impl Closing {
    pub(super) fn begin() -> Closing {
        Closing { until: Instant::now() + CLOSING_MAX }
    }

    /// Whether to list them once more, after a moment.
    pub(super) async fn may_be(&self, others: &[OtherJob]) -> bool {
        if others.is_empty() || Instant::now() >= self.until {
            return false;
        }
        sleep(Duration::from_millis(50)).await;
        true
    }
}

impl OtherJob {
    /// Of a line of `CLIENT LIST` of the node `at`; `None` for any other connection.
    pub(super) fn of_line(line: &str, at: &Address) -> Option<OtherJob> {
        let is_of_job =
            |name: &&str| is_called(name, JOB_CLIENT_NAME) || is_called(name, CANDIDATE_CLIENT_NAME);
        let name = client_field(line, "name").filter(is_of_job)?.to_owned();
        let number = client_field(line, "id")?.parse().ok()?;
        let from = client_field(line, "addr").unwrap_or_default().to_owned();
        Some(OtherJob { number, name, from, at: at.clone() })
    }

    /// Whether one of `options` whose own latest number on the server is `own` gives way to it: see
    /// [`Handover::other_jobs`](super::Handover::other_jobs).
    pub(super) fn goes_before(&self, own: i64, options: &HandoverOptions) -> bool {
        let own = if options.begun { i64::MIN } else { own };
        (!self.is_candidate() || self.number < own) && !options.is_of_process(&self.name)
    }

    /// Whether it has not begun.
    pub(super) fn is_candidate(&self) -> bool {
        is_called(&self.name, CANDIDATE_CLIENT_NAME)
    }
}

impl fmt::Display for OtherJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} at {}", self.name, self.from, self.at)
    }
}

/// Most bytes of a `CLIENT LIST`: about 100,000 connections.
const CLIENT_LIST_BYTES_MAX: u64 = 64 << 20;

/// The next replies, as many as the caller names.
pub(super) async fn reply_array<const N: usize>(link: &mut Link) -> Result<[Value; N]> {
    let replies = link.replies(N).await?;
    Ok(replies.try_into().expect("replies(n) gives n of them"))
}

/// Whether a mark was refused only until the server has removed what a migration of its own has left.
fn is_trimming(error: &Error) -> bool {
    error.server().is_some_and(|e| e.text.contains("pending trim job"))
}

async fn set_slots_over(link: &mut Link, slots: &[Slot], mark: &Mark) -> Result<()> {
    for piece in slots.chunks(PIPELINED) {
        for slot in piece {
            mark.push(link, *slot);
        }
        link.flush().await?;
        // All replies are read before any is judged, so that the link stays in step.
        for reply in link.replies(piece.len()).await? {
            link.check(reply, b"CLUSTER SETSLOT")?;
        }
    }
    Ok(())
}

/// Runs a transaction. `queue` queues its commands and returns their number.
///
/// # Errors
/// `Server` if the server refused to queue a command, or all of them: then none was executed. What a command
/// answers inside the transaction is a value.
pub(super) async fn transaction(
    link: &mut Link,
    what: &str,
    queue: impl FnOnce(&mut Link) -> usize,
) -> Result<Vec<Value>> {
    link.push(&[b"MULTI"]);
    let commands = queue(link);
    link.push(&[b"EXEC"]);
    // Wakes the server, should what it has to send others wait for its next turn.
    link.push(&[b"PING"]);
    link.flush().await?;
    let mut replies = link.replies(commands + 3).await?;
    replies.pop();
    let exec = replies.pop();
    if let Some(refused) = replies.iter().find_map(ServerError::of) {
        return Err(link.server_error(refused, what.as_bytes()));
    }
    let exec = link.check(exec.unwrap_or(Value::Null), what.as_bytes())?;
    match exec.into_items() {
        Some(items) if items.len() == commands => Ok(items),
        _ => Err(link.unexpected(what, &Value::Null)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traits(info: &str) -> Traits {
        Traits::of(&Info::parse(info.as_bytes()), true, true)
    }

    #[test]
    fn servers_that_cannot_pause_writes_alone_are_refused() {
        let refused = |info: &str| not_supported(&Info::parse(info.as_bytes())).is_some();
        assert!(refused("redis_version:6.0.9\r\n"));
        for info in [
            "redis_version:6.2.14\r\n",
            "redis_version:8.6.3\r\n",
            "redis_version:7.2.4\r\nvalkey_version:9.1.2\r\n",
            "",
        ] {
            assert!(!refused(info), "{info}");
        }
    }

    #[test]
    fn servers_that_hide_keys_are_known() {
        for info in ["redis_version:8.4.0\r\n", "redis_version:8.6.3\r\n"] {
            assert!(traits(info).hides_keys, "{info}");
        }
        for info in ["redis_version:8.2.3\r\n", "redis_version:7.2.4\r\nvalkey_version:9.1.2\r\n", ""] {
            assert!(!traits(info).hides_keys, "{info}");
        }
    }

    #[test]
    fn servers_that_die_beside_a_child_are_known() {
        for (version, dies) in [("8.0.9", false), ("8.1.0", true), ("8.1.4", true), ("8.1.5", false)] {
            assert_eq!(traits(&format!("valkey_version:{version}\r\n")).dies_beside_child, dies, "{version}");
        }
        for (version, dies) in [("8.9.240", true), ("9.0.0", false), ("9.1.2", false), ("255.255.255", false)]
        {
            assert_eq!(traits(&format!("valkey_version:{version}\r\n")).dies_beside_child, dies, "{version}");
        }
        assert!(!traits("redis_version:8.1.2\r\n").dies_beside_child);
    }

    #[test]
    fn each_server_gets_the_fence_that_it_survives() {
        for (info, fence, waits) in [
            ("redis_version:6.2.14\r\n", SlotFenceKind::Redirecting, false),
            ("redis_version:7.0.15\r\n", SlotFenceKind::Redirecting, false),
            ("redis_version:8.0.2\r\n", SlotFenceKind::Redirecting, false),
            ("redis_version:7.2.4\r\nvalkey_version:7.2.9\r\n", SlotFenceKind::Redirecting, false),
            ("redis_version:7.2.4\r\nvalkey_version:8.0.3\r\n", SlotFenceKind::Bare, true),
            ("redis_version:7.2.4\r\nvalkey_version:8.1.1\r\n", SlotFenceKind::Gossip, true),
            ("redis_version:7.2.4\r\nvalkey_version:9.1.2\r\n", SlotFenceKind::Gossip, true),
            ("redis_version:7.2.4\r\nvalkey_version:255.255.255\r\n", SlotFenceKind::Gossip, true),
        ] {
            let traits = traits(info);
            assert_eq!(
                (traits.fence, traits.setslot_waits, traits.takes_by_itself),
                (fence, waits, waits),
                "{info}"
            );
            // What Valkey 8.0 alone lacks of the later ones.
            assert_eq!(traits.bump_announces, fence == SlotFenceKind::Gossip, "{info}");
        }
    }
}
