//! Begins to move keys, goes on with it after a crash, and reports how it stands.

mod hold;
mod reverse;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::probe::{Info, PROBE_KEY, ServerFacts};
use whimbrel_flow::functions;
use whimbrel_flow::keys::size::length;
use whimbrel_flow::keys::{Fetch, unlink};
use whimbrel_wire::value::Value;

use crate::command::keys::CommandTable;
use crate::command::plan::Tables;
use crate::migrate::arrived::{SlotCounts, Slots};
use crate::migrate::direction::Direction;
use crate::migrate::hold::{PauseState, Switch};
use crate::migrate::phase::{Phase, Stand, StateFile};
use crate::migrate::stages::Stages;
use crate::migrate::state::{MigrationState, Moves, Ready, Servers};
use crate::migrate::{flush, mover};
use crate::server::{Front, FrontOptions};
use crate::session::context::SessionContext;
use crate::upstream::{Found, Upstream};

/// A front between two servers, for its controllers.
#[derive(Debug)]
pub struct Control {
    source: Arc<Endpoint>,
    target: Arc<Endpoint>,
    link: LinkOptions,
    wait: Duration,
    scripts_declare_keys: bool,
    state: StateFile,
    stages: Arc<Stages>,
    shared: Arc<SessionContext>,
    tasks: Mutex<Tasks>,
    /// One at a time.
    rehearsing: Mutex<()>,
}

/// What moves keys. It ends with this.
#[derive(Debug, Default)]
struct Tasks {
    /// Move what is wanted.
    workers: JoinSet<()>,
    /// Wants everything.
    sweeper: JoinSet<()>,
    /// Nothing begins any more.
    is_finished: bool,
    /// By which clients are held.
    hold: PauseState<Switch>,
    /// Ends that.
    expiry: JoinSet<()>,
}

/// A change of what clients are served from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// See [`Control::start`].
    Start,
    /// See [`Control::reverse`].
    Reverse,
    /// See [`Control::finish`].
    Finish,
}

/// How it stands.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// How far it is.
    pub phase: Phase,
    /// Which way keys move or have moved.
    pub direction: Direction,
    /// How often that has been reversed.
    pub reversals: u32,
    /// The source, without credentials.
    pub source: String,
    /// The target, likewise.
    pub target: String,
    /// Clients that are connected.
    pub clients: u64,
    /// For how long they have been held for a cutover, in milliseconds; `None` if they are not.
    pub held_ms: Option<u64>,
    /// Since keys began to move, or to move this way, as far as this process has seen it.
    pub moving: Option<MovingStatus>,
}

/// How it stands with keys that move.
#[derive(Debug, Clone, Serialize)]
pub struct MovingStatus {
    /// The background does not move keys; commands do.
    pub paused: bool,
    /// The filter is being made anew after a restart or a turn. Until then every command moves its keys
    /// first.
    pub rebuilding: bool,
    /// Keys that this process has moved.
    pub moved: u64,
    /// Keys at the server that they move from; `None` if it does not report them.
    pub left: Option<u64>,
    /// Keys that could not be moved in the last pass over that server.
    pub staying: u64,
    /// How far the slots are, if keys move from a cluster.
    pub slots: Option<SlotCounts>,
    /// Memory of the filter.
    pub filter_bytes: u64,
    /// Keys in it.
    pub filter_keys: u64,
    /// Its memory for each of them; `None` if it has none.
    pub filter_bits_per_key: Option<f64>,
    /// Of the look-ups of commands for keys that had not arrived, the share in which the filter took them for
    /// arrived; `None` before any.
    pub filter_false_positives: Option<f64>,
    /// Commands that were sent to the server that keys move from.
    pub forwarded: u64,
    /// Commands that waited for their keys to be moved, or for the other server to say that it has them.
    pub pulled: u64,
    /// Commands that were sent to the server that keys move to at once.
    pub direct: u64,
    /// Commands that wait now.
    pub waiting: u64,
    /// Commands that got an error since their keys could not be moved in time.
    pub given_up: u64,
    /// Moves that had to be begun again.
    pub retries: u64,
    /// What went wrong last, if that is not over.
    pub trouble: Option<String>,
}

impl Front {
    /// As [`Front::bind`], with a target that keys can be moved to. `state` is the file that shows how far it
    /// is; a front that died while keys moved goes on. A command waits for its keys as long as `wait`.
    ///
    /// # Errors
    /// As [`Front::bind`], for both servers; as [`StateFile::load`]; `Unfit` if clients have been sent to the
    /// target.
    pub async fn between(
        options: FrontOptions,
        source: Endpoint,
        target: Endpoint,
        state: &Path,
        wait: Duration,
    ) -> Result<(Front, Arc<Control>)> {
        let (link, scripts_declare_keys) = (options.link, options.scripts_declare_keys);
        let state = StateFile::new(state, &source, &target);
        let Stand { phase, reversals } = state.load()?;
        let (source, target) = (Arc::new(source), Arc::new(target));
        let (from, to) = Direction::after(reversals).ordered(source.clone(), target.clone());
        let mut tasks = Tasks::default();
        let (first, facts, stages) = match phase {
            Phase::Forwarding => {
                let found = Upstream::find(&from, link).await?;
                (found.upstream, found.facts, Stages::forwarding())
            }
            // The server that keys moved from is not needed any more, and may be gone.
            Phase::Done => {
                let found = Upstream::find(&to, link).await?;
                let (upstream, facts) = (found.upstream.clone(), found.facts.clone());
                (upstream, facts, Stages::moving(when_done(&from, found, link, wait, reversals).await?))
            }
            Phase::Finished => return Err(finished(&to, &state)),
            Phase::Moving => {
                let (servers, facts) = survey(&from, &to, link, scripts_declare_keys).await?;
                let (migration, moves) = MigrationState::new(servers, reversals, wait, true);
                // Whatever the process before this one has sent and was not carried out yet never will be.
                close_others(&migration).await?;
                flush::recover(&migration, &flush_file(&state)).await?;
                migration.paused.send_replace(state.is_paused());
                migration.ready.send_replace(Ready::Yes);
                tasks = Tasks::of(&migration, moves, &state);
                (migration.servers.source.clone(), facts, Stages::moving(migration))
            }
        };
        let front = Front::open(options, first, facts, Some(stages.clone())).await?;
        let shared = front.shared().clone();
        let control = Control {
            source,
            target,
            link,
            wait,
            scripts_declare_keys,
            state,
            stages,
            shared,
            tasks: Mutex::new(tasks),
            rehearsing: Mutex::new(()),
        };
        Ok((front, Arc::new(control)))
    }
}

impl Control {
    /// Begins to move keys. When it returns the phase is on disk, and clients are served from both servers.
    ///
    /// # Errors
    /// `Options` if keys move already, `Unfit` if these servers cannot be served from like this; `Own` if the
    /// state cannot be written. Then everything is as before, but clients may have been disconnected.
    pub async fn start(&self) -> Result<()> {
        self.begin(false).await
    }

    /// As [`Control::start`], and [`Control::pause`] at once: only keys that commands need move.
    ///
    /// # Errors
    /// As [`Control::start`].
    pub async fn start_paused(&self) -> Result<()> {
        self.begin(true).await
    }

    /// Refuses what would be refused of a step, and changes nothing. How many keys would move.
    ///
    /// # Errors
    /// As the step itself. What clients do until then can be in its way all the same.
    pub async fn rehearse(&self, step: Step) -> Result<u64> {
        // Servers may be slow to answer: real steps do not wait for that.
        let Ok(_one) = self.rehearsing.try_lock() else {
            return Err(refuse("rehearse", "another dry run has not ended", "try again when it has"));
        };
        match step {
            Step::Start => {
                self.must_forward(&*self.tasks.lock().await)?;
                let servers = self.servers_to_start().await?;
                let (mut from, mut to) = (servers.source.link().await?, servers.target.link().await?);
                same_libraries(&servers.target, functions::different(&mut from, &mut to).await?)?;
                Ok(servers.keys)
            }
            Step::Reverse => {
                let migration = self.must_have_moved(&*self.tasks.lock().await)?;
                let servers = self.servers_to_reverse(&migration).await?;
                Ok(keyspace(&servers.source).await?.0)
            }
            Step::Finish => {
                let Ok(tasks) = self.tasks.try_lock() else { return Err(about_to_move()) };
                self.may_finish(&tasks).map(|_| 0)
            }
        }
    }

    /// Refuses to start if keys move or have moved.
    fn must_forward(&self, tasks: &Tasks) -> Result<()> {
        tasks.must_be_free("start")?;
        match self.stages.migration() {
            None => Ok(()),
            Some(migration) if migration.is_done() => Err(refuse(
                "start",
                "all keys have moved already",
                "end it with whimbrel front finish, or have them move back with whimbrel front reverse",
            )),
            Some(_) => Err(refuse("start", "keys are moving already", "see whimbrel front status")),
        }
    }

    /// What keys would be moved with from the start. Changes nothing.
    async fn servers_to_start(&self) -> Result<Servers> {
        let (servers, _) = survey(&self.source, &self.target, self.link, self.scripts_declare_keys).await?;
        first_database_alone(&self.source, servers.other_database)?;
        must_be_empty(&servers.target).await?;
        Ok(servers)
    }

    async fn begin(&self, paused: bool) -> Result<()> {
        // One at a time.
        let mut tasks = self.tasks.lock().await;
        self.must_forward(&tasks)?;
        let servers = self.servers_to_start().await?;
        // Whether it can be written is better known before clients are stopped.
        self.state.save(Phase::Forwarding.into())?;
        let (migration, moves) = MigrationState::new(servers, 0, self.wait, false);
        migration.paused.send_replace(paused);
        self.stages.begin(migration.clone()).await;
        if let Some(connections) = &self.shared.connections {
            connections.close().await;
        }
        let begun = async {
            close_others(&migration).await?;
            must_be_empty(&migration.servers.target).await?;
            // Clients wrote until now, and may have loaded libraries.
            first_database_alone(&self.source, keyspace(&migration.servers.source).await?.1)?;
            share_libraries(&migration).await?;
            self.state.save_with(Phase::Moving.into(), paused)
        };
        if let Err(error) = begun.await {
            migration.ready.send_replace(Ready::Never);
            self.stages.undo(None);
            return Err(error);
        }
        migration.ready.send_replace(Ready::Yes);
        *tasks = Tasks::of(&migration, moves, &self.state);
        Ok(())
    }

    /// Stops the background from moving keys, or lets it go on. Commands move their keys in any case. It is
    /// so for the process that goes on after this one, too.
    ///
    /// # Errors
    /// `Options` if no keys move; `Own` if that cannot be written down: then it is so for this process.
    pub fn pause(&self, paused: bool) -> Result<()> {
        let migration = self.stages.migration().filter(|migration| !migration.is_done());
        let tried = if paused { "pause" } else { "resume" };
        let migration =
            migration.ok_or_else(|| refuse(tried, "no keys are moving", "see whimbrel front status"))?;
        migration.paused.send_replace(paused);
        self.state.save_pause(paused).map_err(|e| {
            let now = if paused { "paused" } else { "going on" };
            e.with_left(format!("it is {now} until the front is run again"))
        })
    }

    /// Writes down that the front is not needed any more, if all keys have moved. From then on clients can
    /// themselves go to the server with the keys, and the front can end. A front that is run again says so,
    /// and serves no client from the empty server.
    ///
    /// # Errors
    /// `Options` if not all have; `Own` if the state cannot be written.
    pub fn finish(&self) -> Result<()> {
        let Ok(mut tasks) = self.tasks.try_lock() else { return Err(about_to_move()) };
        let reversals = self.may_finish(&tasks)?;
        self.state.save(Stand { phase: Phase::Finished, reversals })?;
        tasks.is_finished = true;
        Ok(())
    }

    /// How often the direction has been turned, if all keys have moved.
    fn may_finish(&self, tasks: &Tasks) -> Result<u32> {
        tasks.must_be_free("finish")?;
        match self.stages.migration() {
            Some(migration) if migration.is_done() => Ok(migration.reversals),
            Some(migration) => {
                let what = format!("keys are still at the {}", migration.direction().from());
                Err(refuse("finish", &what, "see whimbrel front status"))
            }
            None => Err(refuse("finish", "no key has moved", "see whimbrel front status")),
        }
    }

    fn phase(&self) -> Phase {
        match self.stages.migration() {
            None => Phase::Forwarding,
            Some(migration) if migration.is_done() => Phase::Done,
            Some(_) => Phase::Moving,
        }
    }

    /// How it stands.
    pub async fn status(&self) -> Status {
        let mut status = self.seen();
        if let (Some(moving), Some(migration)) = (&mut status.moving, self.stages.migration()) {
            moving.left = keys_left(&migration).await;
        }
        status
    }

    /// How it stands, without asking a server: how many keys are left is known only once all have moved.
    pub fn seen(&self) -> Status {
        let migration = self.stages.migration();
        let moving = migration.as_deref().map(moving_status);
        let reversals = migration.as_ref().map_or(0, |migration| migration.reversals);
        Status {
            phase: self.phase(),
            direction: Direction::after(reversals),
            reversals,
            source: self.source.address.to_string(),
            target: self.target.address.to_string(),
            clients: self.shared.counts.clients.load(Ordering::Relaxed),
            held_ms: self.stages.held_for().map(|held| u64::try_from(held.as_millis()).unwrap_or(u64::MAX)),
            moving,
        }
    }
}

/// Keys at the server that they move from; `None` if it does not report them.
async fn keys_left(migration: &MigrationState) -> Option<u64> {
    if migration.is_done() {
        return Some(0);
    }
    let mut link = migration.open_source().await.ok()?;
    let reply = link.call(&[b"DBSIZE"]).await.ok()?;
    reply.as_int().and_then(|left| u64::try_from(left).ok())
}

fn moving_status(migration: &MigrationState) -> MovingStatus {
    let tally = &migration.tally;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let ratio = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    let (wrong, right) = (count(&tally.filter_wrong), count(&tally.filter_no));
    let (filter_keys, filter_bytes) = migration.arrived.filtered();
    MovingStatus {
        paused: *migration.paused.borrow(),
        rebuilding: migration.is_rebuilding(),
        moved: count(&tally.moved),
        left: migration.is_done().then_some(0),
        staying: count(&tally.staying),
        slots: migration.arrived.slots().map(Slots::counts),
        filter_bytes,
        filter_keys,
        filter_bits_per_key: ratio(filter_bytes * 8, filter_keys),
        filter_false_positives: ratio(wrong, wrong + right),
        forwarded: count(&tally.forwarded),
        pulled: count(&tally.pulled),
        direct: count(&tally.direct),
        waiting: count(&tally.waiting),
        given_up: count(&tally.given_up),
        retries: count(&tally.retries),
        trouble: migration.trouble(),
    }
}

impl Tasks {
    fn of(migration: &Arc<MigrationState>, moves: Moves, state: &StateFile) -> Tasks {
        let mut tasks = Tasks::default();
        migration.flush_file.get_or_init(|| flush_file(state));
        tasks.workers.spawn(mover::work(migration.clone(), moves));
        tasks.sweep(migration, state);
        tasks
    }

    /// Has everything moved, from the beginning.
    fn sweep(&mut self, migration: &Arc<MigrationState>, state: &StateFile) {
        let (migration, state) = (migration.clone(), state.clone());
        self.sweeper.spawn(async move {
            if migration.is_rebuilding() {
                mover::rebuild(&migration).await;
            }
            mover::sweep(&migration).await;
            // Not while both are being emptied: the next process would not go on with that.
            let _gate = migration.gate.read().await;
            // Everything is as well without it: the next process goes through an empty source.
            if let Err(error) = state.save(Stand { phase: Phase::Done, reversals: migration.reversals }) {
                tracing::warn!(%error, "that all keys have moved could not be written down");
            }
            migration.set_done();
        });
    }
}

/// The file that says that both servers are being emptied.
fn flush_file(state: &StateFile) -> PathBuf {
    state.path().with_extension("flushing")
}

/// Looks at both servers, and refuses what cannot be served exactly. Changes nothing.
async fn survey(
    source: &Arc<Endpoint>,
    target: &Arc<Endpoint>,
    options: LinkOptions,
    scripts_declare_keys: bool,
) -> Result<(Servers, ServerFacts)> {
    let from_found = Upstream::find(source, options).await?;
    let mut to_found = Upstream::find(target, options).await?;
    for found in [&from_found, &to_found] {
        // Any node of a cluster reports where its primaries are.
        if found.facts.replica && !found.facts.cluster {
            return Err(unfit(found.upstream.endpoint(), "it is a replica", "name its primary"));
        }
    }
    if from_found.facts.run_id == to_found.facts.run_id
        || from_found.upstream.shares_nodes(&to_found.upstream)
    {
        return Err(unfit(target, "it is the source as well", "name another server"));
    }
    let (mut from, mut to) = (from_found.upstream.link().await?, to_found.upstream.link().await?);
    // After a turn, this is the deployment that is called the source; its version is not known yet.
    to_found.can.probe_payload_version(&mut to, PROBE_KEY, false).await?;
    if !from_found.can.pexpiretime {
        return Err(unfit(
            source,
            "it does not report when keys expire",
            "PEXPIRETIME is in Redis 7.0 and later",
        ));
    }
    let (keys, other_database) = keyspace(&from_found.upstream).await?;
    let keys = keys + keyspace(&to_found.upstream).await?.0;
    for command in [&[Fetch::Payload.command(), PROBE_KEY][..], &unlink(PROBE_KEY), NOBODY] {
        must_run(&mut from, command).await?;
    }
    for command in [&[&b"EXISTS"[..], PROBE_KEY][..], NOBODY] {
        must_run(&mut to, command).await?;
    }
    let strings = may_take_strings(&mut from, &mut to).await?;
    let tables = Tables {
        source: CommandTable::ask(&mut from).await?,
        target: CommandTable::ask(&mut to).await?,
        scripts_declare_keys,
    };
    let is_one = !from_found.upstream.is_cluster();
    let servers = Servers {
        link: options,
        source_can: from_found.can,
        target_can: to_found.can,
        dialects: (from_found.facts.dialect, to_found.facts.dialect),
        strings,
        tables,
        keys,
        other_database,
        source_run_id: is_one.then(|| from_found.facts.run_id.clone()),
        source: from_found.upstream,
        target: to_found.upstream,
    };
    Ok((servers, from_found.facts))
}

/// Whether our users may read and write strings as such. If not, all keys travel as payloads.
async fn may_take_strings(from: &mut Link, to: &mut Link) -> Result<bool> {
    for command in [&length(PROBE_KEY)[..], &[Fetch::String.command(), PROBE_KEY]] {
        if from.may_run(command).await?.is_some() {
            return Ok(false);
        }
    }
    // Nothing is written: there is no such key.
    Ok(to.may_run(&[b"SET", PROBE_KEY, b"", b"XX"]).await?.is_none())
}

/// How many keys there are in database 0, and another database that has some.
async fn keyspace(upstream: &Upstream) -> Result<(u64, Option<u32>)> {
    let (mut keys, mut other) = (0, None);
    for mut node in upstream.each().await? {
        // A service may leave out what INFO says of databases, and a server that loads its data has not met
        // all of it yet: this one it refuses then.
        let counted = node.call(&[b"DBSIZE"]).await?.as_int().map_or(0, i64::unsigned_abs);
        let mut reported = 0;
        for (db, counts) in Info::ask(&mut node, "keyspace").await?.keyspace() {
            match db {
                0 => reported = counts.keys,
                _ => other = other.or(Some(db)),
            }
        }
        keys += reported.max(counted);
    }
    Ok((keys, other))
}

/// For a front that is run again when all keys have moved. To sessions it looks as after a move whose end
/// they have seen: cursors of `SCAN` that the source gave go on at the start of the target. The source is not
/// asked for anything, ever.
async fn when_done(
    source: &Arc<Endpoint>,
    target: Found,
    options: LinkOptions,
    wait: Duration,
    reversals: u32,
) -> Result<Arc<MigrationState>> {
    let table = CommandTable::ask(&mut target.upstream.link().await?).await?;
    let servers = Servers {
        source: Upstream::server(source, options),
        target: target.upstream,
        link: options,
        source_can: target.can,
        target_can: target.can,
        dialects: (target.facts.dialect, target.facts.dialect),
        strings: false,
        tables: Tables { source: table.clone(), target: table, scripts_declare_keys: true },
        keys: 0,
        other_database: None,
        source_run_id: None,
    };
    let (migration, _) = MigrationState::new(servers, reversals, wait, false);
    migration.set_done();
    migration.ready.send_replace(Ready::Yes);
    Ok(migration)
}

/// Loads the function libraries of the source into the target. No other client is connected to either.
async fn share_libraries(migration: &MigrationState) -> Result<()> {
    let (mut source, mut target) = (migration.open_source().await?, migration.open_target().await?);
    same_libraries(&migration.servers.target, functions::share(&mut source, &mut target).await?)
}

/// Refuses libraries of the same name that differ.
fn same_libraries(target: &Upstream, different: Vec<String>) -> Result<()> {
    if different.is_empty() {
        return Ok(());
    }
    Err(unfit(
        target.endpoint(),
        &format!("it has other function libraries of the same names as the source: {}", different.join(", ")),
        "delete those at the target with FUNCTION DELETE, or load there what is right into both",
    ))
}

/// Closes no connection.
const NOBODY: &[&[u8]] = &[b"CLIENT", b"KILL", b"ADDR", b"0.0.0.0:0"];

async fn must_run(link: &mut Link, command: &[&[u8]]) -> Result<()> {
    match link.may_run(command).await? {
        None => Ok(()),
        Some(refused) => Err(link.server_error(refused, command[0])),
    }
}

fn first_database_alone(source: &Endpoint, other: Option<u32>) -> Result<()> {
    other.map_or(Ok(()), |db| {
        Err(unfit(
            source,
            &format!("database {db} has keys"),
            "only those of database 0 are served while they move: move all by a sync that ends at the front",
        ))
    })
}

async fn must_be_empty(target: &Upstream) -> Result<()> {
    match keyspace(target).await? {
        (0, None) => Ok(()),
        _ => Err(unfit(target.endpoint(), "it has keys", "a front moves keys to an empty server or cluster")),
    }
}

/// Closes all connections of clients on both servers but our own: what any client sent there before is
/// carried out by now or never.
async fn close_others(migration: &MigrationState) -> Result<()> {
    let (source, target) = (migration.servers.source.each().await?, migration.servers.target.each().await?);
    for mut link in source.into_iter().chain(target) {
        for kind in [&b"normal"[..], b"pubsub"] {
            let reply = link.call(&[b"CLIENT", b"KILL", b"TYPE", kind]).await?;
            if !matches!(reply, Value::Int(_)) {
                return Err(link.unexpected("CLIENT KILL", &reply));
            }
        }
    }
    Ok(())
}

fn finished(target: &Endpoint, state: &StateFile) -> Error {
    unfit(
        target,
        "the front was finished, and clients have been sent here",
        &format!(
            "connect to it without a front; to begin anew with these servers, remove {}",
            state.path().display()
        ),
    )
}

fn about_to_move() -> Error {
    refuse("finish", "keys are about to move", "see whimbrel front status")
}

fn unfit(at: &Endpoint, what: &str, remedy: &str) -> Error {
    let kind = ErrorKind::Unfit(what.to_owned());
    Error::new(at.side, at.address.to_string(), "serve while keys move", kind).with_remedy(remedy.to_owned())
}

fn refuse(tried: &str, what: &str, remedy: &str) -> Error {
    Error::options(Side::Own, tried, what).with_remedy(remedy.to_owned())
}
