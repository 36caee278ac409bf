//! Moves keys: those that commands wait for, and all others in the background.
//!
//! A move belongs to no client, so a client that leaves does not end it half-way. A few workers, each with a connection to either server, take
//! the keys whose move may begin, in the order they were wanted, and leave large ones to [workers of their own](large); the background wants no more than a few at a time, so clients wait
//! for few keys of others.

mod large;
mod slots;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, mpsc};
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;
use whimbrel_engine::error::{Code, Error, ErrorKind, Result, Side};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Info;
use whimbrel_flow::typed::staging_key;
use whimbrel_wire::value::Value;

use self::large::LARGE_WORKERS;
use crate::migrate::carry::{Carried, Route, carry, is_large};
use crate::migrate::locks::Moved;
use crate::migrate::staging::is_hidden;
use crate::migrate::state::Hub;
use crate::migrate::state::RETRY_PAUSE;
use crate::upstream::{Leash, Place, were_at_rest};

/// Keys that are moved at the same time.
pub const WORKERS: usize = 8;

/// Keys that the background wants at the same time.
const BACKGROUND_KEYS: usize = 16;

/// How much a server looks at in one `SCAN`.
const SCAN_COUNT: &[u8] = b"500";

/// Between two passes over a source in which something is left that does not move.
const PASS_PAUSE: Duration = Duration::from_secs(1);

/// Runs the workers until all of them are dropped with the future.
pub(crate) async fn work(hub: Arc<Hub>, moves: mpsc::UnboundedReceiver<Bytes>) {
    let moves = Arc::new(Mutex::new(moves));
    let (large, large_moves) = mpsc::unbounded_channel();
    let large_moves = Arc::new(Mutex::new(large_moves));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(Worker::new(&hub, &large).run(moves.clone()));
    }
    for _ in 0..LARGE_WORKERS {
        workers.spawn(Worker::new(&hub, &large).run_large(large_moves.clone()));
    }
    while workers.join_next().await.is_some() {}
}

struct Worker {
    hub: Arc<Hub>,
    /// Where large keys go.
    large: mpsc::UnboundedSender<Bytes>,
    source: Option<Link>,
    /// With what ends it.
    target: Option<(Link, Leash)>,
}

/// What came of an attempt to move a key.
enum Attempt {
    Carried(Carried),
    /// It is too large to be moved at once. Nothing has been written.
    TooLarge,
}

impl Worker {
    fn new(hub: &Arc<Hub>, large: &mpsc::UnboundedSender<Bytes>) -> Worker {
        Worker { hub: hub.clone(), large: large.clone(), source: None, target: None }
    }

    async fn run(mut self, moves: Arc<Mutex<mpsc::UnboundedReceiver<Bytes>>>) {
        loop {
            let key = moves.lock().await.recv().await;
            let Some(key) = key else { return };
            let moved = {
                // Nobody counts keys while one of them may be on both sides.
                let hub = self.hub.clone();
                let _gate = hub.gate.read().await;
                self.bring_home(&key, false).await
            };
            match moved {
                Some(moved) => self.end(&key, &moved),
                None => {
                    self.hub.locks.let_in(&key);
                    // Its workers end with this one.
                    let _ = self.large.send(key);
                }
            }
        }
    }

    /// Ends the move of a key.
    fn end(&self, key: &Bytes, moved: &Moved) {
        if matches!(moved, Moved::Home | Moved::WasHome) {
            // Before the lock is let go, or a reader could take the key for one of the source.
            self.hub.learn(key);
            self.hub.alarms().not_taken(key);
        }
        self.hub.locks.finish(key, moved);
    }

    /// Moves a key whose lock is held, however often that has to be tried. `None` where it is too large to be moved at once, unless `of_any_size`.
    async fn bring_home(&mut self, key: &[u8], of_any_size: bool) -> Option<Moved> {
        let mut is_first = true;
        loop {
            match self.attempt(key, std::mem::take(&mut is_first), of_any_size).await {
                Ok(Attempt::TooLarge) => return None,
                Ok(Attempt::Carried(Carried::Stays(why))) => return Some(Moved::Refused(why.into())),
                Ok(Attempt::Carried(Carried::Taken)) => return Some(self.taken(key)),
                Ok(Attempt::Carried(Carried::WasHome)) => return Some(Moved::WasHome),
                Ok(Attempt::Carried(Carried::Home)) => return Some(Moved::Home),
                Err(error) => {
                    if let Some(refused) = self.after(error, key).await {
                        return Some(refused);
                    }
                }
            }
        }
    }

    /// What follows where the target has another key of this name.
    fn taken(&self, key: &[u8]) -> Moved {
        self.hub.alarms().taken = Some(Bytes::copy_from_slice(key));
        Moved::Refused("the target has another one of this name, which was not moved there".into())
    }

    /// What follows from an error: `None` where the move begins again, on new connections.
    async fn after(&mut self, error: Error, key: &[u8]) -> Option<Moved> {
        // Refused by a server. The lock may be let go only where nothing was written: a copy at the target that is not home would
        // be taken for the key itself.
        if is_final(&error) && self.is_as_before(key).await {
            let text = error.to_string();
            self.hub.set_trouble(Some(text.clone()));
            return Some(Moved::Refused(text.into()));
        }
        self.note(&error);
        self.source = None;
        self.replace_target().await;
        sleep(RETRY_PAUSE).await;
        None
    }

    async fn attempt(&mut self, key: &[u8], is_first: bool, of_any_size: bool) -> Result<Attempt> {
        let hub = self.hub.clone();
        let route = route(&hub, !is_first);
        let is_in_filter = !hub.is_rebuilding() && hub.may_have_arrived(key);
        // What the target has is home, but for what a crash has left, or an attempt that failed half-way.
        if is_first && is_in_filter {
            let (_, target) = self.links().await?;
            if target.call(&[b"EXISTS", key]).await? == Value::Int(1) {
                return Ok(Attempt::Carried(Carried::WasHome));
            }
        }
        if !of_any_size && is_large(self.source().await?, key, &route).await? {
            return Ok(Attempt::TooLarge);
        }
        let (source, target) = self.links().await?;
        let carried = carry(source, target, key, &route).await?;
        if carried == Carried::Home {
            hub.set_trouble(None);
            hub.tally.moved.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Attempt::Carried(carried))
    }

    /// The connection to the source, made anew where there is none.
    async fn source(&mut self) -> Result<&mut Link> {
        if self.source.is_none() {
            self.source = Some(self.hub.open_source().await?);
        }
        self.source.as_mut().ok_or_else(not_open)
    }

    /// Both connections.
    async fn links(&mut self) -> Result<(&mut Link, &mut Link)> {
        if self.target.is_none() {
            self.target = Some(self.hub.servers.target.leashed().await?);
        }
        self.source().await?;
        match (&mut self.source, &mut self.target) {
            (Some(source), Some((target, _))) => Ok((source, target)),
            _ => Err(not_open()),
        }
    }

    /// Whether the target has nothing of a key, and nothing is on its way there.
    async fn is_as_before(&mut self, key: &[u8]) -> bool {
        self.source = None;
        self.replace_target().await;
        let Some((target, _)) = &mut self.target else { return false };
        let staged = staging_key(&self.hub.job, key);
        target.call(&[b"UNLINK", &staged]).await.is_ok()
            && matches!(target.call(&[b"EXISTS", key]).await, Ok(Value::Int(0)))
    }

    /// After an error: a new connection to the target, once the old one has been ended. Otherwise a `RESTORE` that still waits in it could be
    /// carried out later, when the key has been deleted, and bring it back.
    async fn replace_target(&mut self) {
        let mut old = self.target.take().map(|(_, leash)| leash);
        loop {
            let replaced = async {
                if let Some(old) = &mut old {
                    old.cut().await?;
                }
                self.hub.servers.target.leashed().await
            };
            match replaced.await {
                Ok(target) => {
                    self.target = Some(target);
                    return;
                }
                Err(error) => {
                    self.hub.set_trouble(Some(error.to_string()));
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }
}

/// Whether a server has refused, and will again. A cluster in which a slot moves or a node fails will not for ever.
fn is_final(error: &Error) -> bool {
    match &error.kind {
        ErrorKind::Server(refused) => !matches!(refused.code, Code::TryAgain | Code::ClusterDown),
        _ => false,
    }
}

/// What both sides are and can do.
fn route(hub: &Hub, is_tried_again: bool) -> Route<'_> {
    let servers = &hub.servers;
    Route {
        source: &servers.source_can,
        target: &servers.target_can,
        dialects: servers.dialects,
        job: &hub.job,
        may_be_there: is_tried_again || hub.is_rebuilding(),
    }
}

fn not_open() -> Error {
    Error::own("move a key", "no connection after opening it")
}

/// Puts all keys of the target into the filter, and removes what a crash has left of them at the source. Until then every
/// command moves its keys first.
pub(crate) async fn rebuild(hub: &Hub) {
    while let Err(error) = try_rebuild(hub).await {
        tracing::warn!(%error, "the filter is begun again");
        hub.set_trouble(Some(error.to_string()));
        sleep(PASS_PAUSE).await;
    }
    hub.set_trouble(None);
    hub.rebuilt();
}

async fn try_rebuild(hub: &Hub) -> Result<()> {
    let mut source = hub.open_source().await?;
    let mut anywhere = hub.open_target().await?;
    let target = &hub.servers.target;
    let before = target.claims().await?;
    for mut node in target.each().await? {
        let mut cursor = Bytes::from_static(b"0");
        loop {
            let (next, keys) = scan(&mut node, &cursor).await?;
            let (staged, keys): (Vec<Bytes>, Vec<Bytes>) = keys.into_iter().partition(|key| is_hidden(key));
            // Begun by the one that died. Where it has just been begun again, that is noticed, and it begins once more.
            let left: Vec<Bytes> =
                staged.into_iter().filter(|name| !hub.on_their_way.has_staged(&hub.job, name)).collect();
            sum_of(&mut anywhere, b"UNLINK", &left).await?;
            sum_of(&mut source, b"UNLINK", &keys).await?;
            for key in &keys {
                hub.note_arrival(key);
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

/// Sends a command for each of the keys, and adds up the replies. One command for all would not do in a cluster.
async fn sum_of(link: &mut Link, command: &[u8], keys: &[Bytes]) -> Result<u64> {
    for key in keys {
        link.push(&[command, key]);
    }
    link.flush().await?;
    let mut sum = 0;
    for _ in keys {
        let reply = link.reply().await?;
        let reply = link.check(reply, command)?;
        sum += number(link, &String::from_utf8_lossy(command), &reply)?;
    }
    Ok(sum)
}

/// Goes over the source until it is empty, and nothing of it is under way. Returns then.
pub(crate) async fn sweep(hub: &Arc<Hub>) {
    loop {
        match pass(hub).await {
            Ok(0) => return none_under_way(hub).await,
            Ok(_) => sleep(PASS_PAUSE).await,
            Err(error) => {
                tracing::warn!(%error, "the keys of the source are gone through again");
                hub.set_trouble(Some(error.to_string()));
                sleep(PASS_PAUSE).await;
            }
        }
    }
}

/// Waits for the moves that were wanted when the source had been found empty. One of them may hold what was still there, of a key that has expired
/// since. Those that are wanted later find nothing, and write nothing.
async fn none_under_way(hub: &Hub) {
    let mut wanted = Vec::new();
    hub.locks.for_each_wanted(|key| wanted.push(Bytes::copy_from_slice(key)));
    for key in wanted {
        // Where it has ended, this is one more that finds nothing.
        let _ = hub.locks.want(&key).await;
    }
}

/// One iteration over the source.
struct Pass {
    hub: Arc<Hub>,
    source: Link,
    /// Keys that move.
    wanted: JoinSet<(Bytes, Option<Moved>)>,
    /// Keys that cannot be moved.
    staying: u64,
    /// Keys that are home, and have not been asked for at the source since.
    home: Vec<Bytes>,
    /// Keys that are home, and at the source.
    returned: u64,
    /// Keys that have not gone from the source although they were seen to, lately.
    stuck: HashSet<Bytes>,
    /// Iterations over the nodes have given all keys, slots or not.
    is_scanned: bool,
}

impl Pass {
    /// Has keys moved that the source has, a few at a time.
    async fn take(&mut self, keys: Vec<Bytes>) -> Result<()> {
        let (staged, keys): (Vec<Bytes>, Vec<Bytes>) = keys.into_iter().partition(|key| is_hidden(key));
        // Nothing is assembled at the source: a crash has left them in another turn.
        sum_of(&mut self.source, b"UNLINK", &staged).await?;
        for key in keys {
            resumed(&self.hub).await;
            if self.hub.is_known(&key) {
                // Moved since the reply was made, or it has come back: then it must not be taken for the key.
                if self.stuck.insert(key.clone()) {
                    self.home.push(key);
                }
                continue;
            }
            if self.stuck.contains(&key) {
                continue;
            }
            if self.wanted.len() >= BACKGROUND_KEYS {
                let ended = self.wanted.join_next().await;
                self.ended(ended);
            }
            let hub = self.hub.clone();
            self.wanted.spawn(async move {
                let moved = hub.locks.want(&key).await.ok();
                (key, moved)
            });
        }
        // Once for each reply, so the bound is what a server gives in a few of them.
        self.look_for_returned().await
    }

    /// Waits for all that move.
    async fn settle(&mut self) -> Result<()> {
        while let Some(ended) = self.wanted.join_next().await {
            self.ended(Some(ended));
        }
        self.look_for_returned().await
    }

    fn ended(&mut self, wanted: Option<std::result::Result<(Bytes, Option<Moved>), JoinError>>) {
        match wanted {
            Some(Ok((key, Some(Moved::Home | Moved::WasHome)))) => self.home.push(key),
            Some(Ok((key, Some(Moved::Refused(_))))) => {
                self.staying += 1;
                self.stuck.insert(key);
            }
            _ => {}
        }
    }

    /// A key that is home is not at the source, for ever. One that is has been put there by somebody else, or the source has forgotten
    /// that it was removed.
    async fn look_for_returned(&mut self) -> Result<()> {
        self.returned += sum_of(&mut self.source, b"EXISTS", &self.home).await?;
        self.home.clear();
        Ok(())
    }

    /// All keys that iterations over the nodes give.
    async fn scan(&mut self) -> Result<()> {
        for mut node in self.hub.servers.source.each().await? {
            let mut cursor = Bytes::from_static(b"0");
            loop {
                let (next, keys) = scan(&mut node, &cursor).await?;
                self.take(keys).await?;
                self.stuck.clear();
                if &next[..] == b"0" {
                    break;
                }
                cursor = next;
            }
        }
        self.settle().await
    }
}

/// Moves what one iteration over the source gives, and returns how many keys are left after it, in all databases.
async fn pass(hub: &Arc<Hub>) -> Result<u64> {
    let source = hub.open_source().await?;
    let (hub, wanted) = (hub.clone(), JoinSet::new());
    let (home, stuck) = (Vec::new(), HashSet::new());
    let mut pass =
        Pass { hub: hub.clone(), source, wanted, staying: 0, home, returned: 0, stuck, is_scanned: false };
    match hub.arrived.slots() {
        None => pass.scan().await?,
        Some(slots) => pass.by_slot(slots).await?,
    }
    hub.tally.staying.store(pass.staying, Ordering::Relaxed);
    let (left, other_database) = count(&hub.servers.source).await?;
    let mut alarms = hub.alarms();
    alarms.returned = pass.returned;
    alarms.other_database = other_database;
    Ok(left)
}

/// How many keys there are, in all databases, and a database other than 0 that has some. Where there seem to be none although one could be on
/// its way from one node of a cluster to another, it is one.
async fn count(place: &Place) -> Result<(u64, Option<u32>)> {
    let before = place.claims().await?;
    let (mut left, mut other) = (0, None);
    for mut node in place.each().await? {
        let reply = node.call(&[b"DBSIZE"]).await?;
        left += number(&node, "DBSIZE", &reply)?;
        for (db, counts) in Info::ask(&mut node, "keyspace").await?.keyspace() {
            if db != 0 {
                left += counts.keys;
                other = other.or(Some(db));
            }
        }
    }
    if left == 0 && !were_at_rest(&before, &place.claims().await?) {
        left = 1;
    }
    Ok((left, other))
}

fn number(link: &Link, command: &str, reply: &Value) -> Result<u64> {
    reply.as_int().and_then(|n| u64::try_from(n).ok()).ok_or_else(|| link.unexpected(command, reply))
}

/// Waits while the background is paused.
async fn resumed(hub: &Hub) {
    // The sender is the hub's own, so it cannot have gone.
    let _ = hub.paused.subscribe().wait_for(|paused| !paused).await;
}

async fn scan(link: &mut Link, cursor: &Bytes) -> Result<(Bytes, Vec<Bytes>)> {
    let reply = link.call(&[b"SCAN", cursor, b"COUNT", SCAN_COUNT]).await?;
    let unexpected = link.unexpected("SCAN", &reply);
    let mut items = reply.into_items().unwrap_or_default().into_iter();
    match (items.next().and_then(Value::into_bytes), items.next().and_then(Value::into_items)) {
        (Some(next), Some(keys)) => Ok((next, keys.into_iter().filter_map(Value::into_bytes).collect())),
        _ => Err(unexpected),
    }
}
