//! Cutovers that are interrupted half-way, or whose servers hang: writers are let in on one side at most, and
//! writes are paused for no longer than was allowed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::seal::WriterFenceKind;
use whimbrel_flow::journal::{DiskFull, Journal};
use whimbrel_flow::sync::{
    Ask, Beginning, Compare, CutoverOptions, CutoverReport, FenceNote, FrontOrder, FrontSide, FrontStand,
    Fronts, NotTakenOver, OrderAnswer, SyncOptions, SyncPhase, SyncReport, SyncState, SyncStatus, WayBack,
    discard, refuse_to_discard, sync,
};
use whimbrel_lab::{Engine, Server};

use crate::sync::{options, probed};

whimbrel_lab::for_each_engine! {
    async
        nobody_is_let_in_on_the_target_before_the_source_is_fenced
        who_goes_on_keeps_writers_away_from_the_target_again
        a_fence_is_known_after_its_sync_was_given_up
        a_user_who_came_after_the_fence_was_planned_is_reported_once
}

whimbrel_lab::for_each_engine! {
    async on Redis70 Valkey91:
        what_is_left_of_a_fence_is_taken_down_while_the_sync_follows
        the_way_back_is_written_down_before_the_way_forth_is_forgotten
        who_goes_on_behind_a_front_keeps_writers_away_from_the_target_again
        a_source_that_hangs_holds_nobody_for_longer_than_was_allowed
}

/// For what must come about.
const PATIENCE: Duration = Duration::from_secs(60);

const POLL_PERIOD: Duration = Duration::from_millis(20);

/// Nothing has been said yet that springs the trap.
const ARMED: u8 = 0;
/// Nothing passes.
const SHUT: u8 = 1;
/// What comes from now on passes. What came before is lost.
const OPEN: u8 = 2;

/// A link to a server on which nothing passes any more once something certain has been said.
struct Trap {
    addr: String,
    state: Arc<AtomicU8>,
    accepting: JoinHandle<()>,
}

/// What springs a trap.
#[derive(Clone, Copy)]
struct Bait {
    words: &'static [u8],
    /// The server hears of them, if of nothing after.
    is_delivered: bool,
}

impl Trap {
    async fn start(server: &Server, bait: Bait) -> Trap {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address").to_string();
        let state = Arc::new(AtomicU8::new(ARMED));
        let (server, shared) = (server.addr(), state.clone());
        let accepting = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.expect("a client");
                let server = TcpStream::connect(&server).await.expect("the server listens");
                let (state, is_old) = (shared.clone(), shared.load(Ordering::SeqCst) != OPEN);
                tokio::spawn(async move {
                    let ((from, to), (back, forth)) = (client.into_split(), server.into_split());
                    // Where one direction ends the other does.
                    tokio::select! {
                        () = carry(from, forth, &state, is_old, Some(bait)) => {}
                        () = carry(back, to, &state, is_old, None) => {}
                    }
                });
            }
        });
        Trap { addr, state, accepting }
    }

    async fn is_sprung(&self) {
        wait_until("the trap is sprung", || self.state.load(Ordering::SeqCst) == SHUT).await;
    }

    fn open(&self) {
        self.state.store(OPEN, Ordering::SeqCst);
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &AtomicU8,
    is_old: bool,
    bait: Option<Bait>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        let mut bytes = &buffer[..length];
        if let Some(bait) = bait
            && bytes.windows(bait.words.len()).any(|words| words == bait.words)
            && state.compare_exchange(ARMED, SHUT, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            && bait.is_delivered
        {
            to.write_all(bytes).await.expect("the server takes it");
            bytes = &[];
        }
        while state.load(Ordering::SeqCst) == SHUT {
            sleep(POLL_PERIOD).await;
        }
        if is_old && state.load(Ordering::SeqCst) == OPEN || to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

#[track_caller]
fn wait_until(what: &str, holds: impl Fn() -> bool) -> impl Future<Output = ()> {
    let (deadline, caller) = (Instant::now() + PATIENCE, std::panic::Location::caller());
    async move {
        while !holds() {
            assert!(Instant::now() < deadline, "{caller}: it is never so that {what}");
            sleep(POLL_PERIOD).await;
        }
    }
}

/// Both sides, with a user who writes.
struct Pair {
    source: Server,
    target: Server,
    folder: TempDir,
}

/// The users that are fenced off.
const WRITERS: [&str; 2] = ["app", "default"];

impl Pair {
    fn start(engine: Engine) -> Pair {
        let server = || {
            let acl = "user mover on >secret ~* &* +@all";
            let server = Server::builder(engine).user_acl(acl).start().expect("the server starts");
            server.call(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all"]);
            server
        };
        Pair { source: server(), target: server(), folder: tempfile::tempdir().expect("a folder") }
    }

    /// Writes down a sync that follows, with more of its state.
    async fn has_followed(&self, more: Value) {
        let mut state = serde_json::to_value(SyncState::default()).expect("a state");
        (state["copy"]["pass"], state["snapshot_done"]) = (json!(1), json!(true));
        for (name, value) in more.as_object().expect("fields") {
            state[name] = value.clone();
        }
        let state: SyncState = serde_json::from_value(state).expect("a state");
        let begun = Journal::begin(self.folder.path(), "fenced", "a sync", state, &DiskFull::default()).await;
        drop(begun.expect("written"));
    }

    fn options(&self) -> SyncOptions {
        options(self.folder.path())
    }
}

/// What undoes the fence of a server, as a journal has it.
fn fence_of(server: &Server) -> Value {
    let users = WRITERS.map(|name| json!({"at": server.addr(), "name": name, "commands": "+@all"}));
    json!({"kind": "acl", "users": users})
}

fn fence_off(server: &Server) {
    for name in WRITERS {
        server.call(&["ACL", "SETUSER", name, "-@write"]);
    }
}

/// Whether a client may write there, and is not paused.
fn is_written(server: &Server) -> bool {
    let client = redis::Client::open(format!("redis://app:secret@{}", server.addr())).expect("an address");
    let write = |mut link: redis::Connection| {
        // Longer than a busy machine needs for an answer. Who is fenced off is refused at once.
        link.set_read_timeout(Some(Duration::from_secs(10)))?;
        redis::cmd("SET").arg("k").arg("v").exec(&mut link)
    };
    client.get_connection().and_then(write).is_ok()
}

/// A sync at work, on threads of its own.
struct Job {
    asks: mpsc::Sender<Ask>,
    status: Arc<SyncStatus>,
    stop: CancellationToken,
    killed: CancellationToken,
    /// `None` where it was killed.
    running: thread::JoinHandle<Option<Result<SyncReport>>>,
}

impl Job {
    /// Goes on with the one that is written down, from the server at this address.
    async fn resume(pair: &Pair, source: &str, options: SyncOptions) -> Job {
        let (source, target) =
            (probed(Side::Source, source).await, probed(Side::Target, &pair.target.addr()).await);
        let journal = Journal::open(pair.folder.path(), "fenced", "a sync", true).expect("a journal");
        let (asks, asked) = mpsc::channel(1);
        let (status, stop) = (Arc::new(SyncStatus::default()), CancellationToken::new());
        let killed = CancellationToken::new();
        let running = thread::spawn({
            let (status, stop, killed) = (status.clone(), stop.clone(), killed.clone());
            move || {
                let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
                let syncing = sync(source, target, options, status, journal, asked, stop);
                let ended = runtime.expect("threads").block_on(killed.run_until_cancelled(syncing));
                ended.map(|ended| ended.map(|(report, _)| report))
            }
        });
        Job { asks, status, stop, killed, running }
    }

    async fn follows(&self) {
        let follows = || self.status.shown().phase == SyncPhase::Following;
        wait_until("it follows", || follows() || self.running.is_finished()).await;
        assert!(!self.running.is_finished(), "it has ended");
    }

    async fn ask(&self, options: CutoverOptions) -> oneshot::Receiver<Result<CutoverReport, NotTakenOver>> {
        let (answer, answered) = oneshot::channel();
        let (withdrawn, beginning) = (CancellationToken::new(), Beginning::default());
        let ask = Ask { options, withdrawn, beginning, answer };
        self.asks.send(ask).await.expect("it takes requests");
        answered
    }

    async fn ended(self) -> SyncReport {
        wait_until("it ends", || self.running.is_finished()).await;
        self.running.join().expect("no panic").expect("nobody killed it").expect("it ends well")
    }

    /// Nothing that it has begun is carried on.
    async fn killed(self) {
        self.killed.cancel();
        wait_until("it ends", || self.running.is_finished()).await;
        assert!(self.running.join().expect("no panic").is_none(), "it ended by itself");
    }
}

fn cutover(fence: WriterFenceKind, max_pause_ms: u64, back: bool) -> CutoverOptions {
    CutoverOptions {
        max_pause_ms,
        fence,
        front: None,
        compare: Compare::Counts,
        accept_failures: false,
        reverse: false,
        back,
        dry_run: false,
    }
}

/// Where it died in between, writers would be let in on both sides, and what they write on one of them is
/// overwritten.
async fn nobody_is_let_in_on_the_target_before_the_source_is_fenced(engine: Engine) {
    let pair = Pair::start(engine);
    let trap = Trap::start(&pair.source, Bait { words: b"-@write", is_delivered: false }).await;
    pair.has_followed(json!({ "lift": fence_of(&pair.target) })).await;
    fence_off(&pair.target);
    let job = Job::resume(&pair, &trap.addr, SyncOptions { once: false, ..pair.options() }).await;
    job.follows().await;
    let _answer = job.ask(cutover(WriterFenceKind::Acl, 10_000, true)).await;
    trap.is_sprung().await;
    assert!(!is_written(&pair.target), "{engine}: writers are let in on the target already");
    job.killed().await;
    trap.open();
    let report = Job::resume(&pair, &trap.addr, pair.options()).await.ended().await;
    assert!(report.caught_up, "{engine}: {report:?}");
    assert!(!is_written(&pair.target), "{engine}: writers are let in on the target");
    wait_until("writers are let in on the source", || is_written(&pair.source)).await;
}

/// It died between the two: the target is closed before anything is followed, or as soon as that is possible.
async fn who_goes_on_keeps_writers_away_from_the_target_again(engine: Engine) {
    let pair = Pair::start(engine);
    pair.has_followed(json!({ "lift": fence_of(&pair.target), "cut_over": fence_of(&pair.source) })).await;
    fence_off(&pair.source);
    pair.target.call(&["ACL", "SETUSER", "mover", "-acl|setuser"]);
    let options = SyncOptions { once: false, ..pair.options() };
    let job = Job::resume(&pair, &pair.source.addr(), options).await;
    job.follows().await;
    assert!(is_written(&pair.source), "{engine}: nobody may write anywhere");
    let is_reported = |words: &str| job.status.copy.notices().iter().any(|notice| notice.contains(words));
    wait_until("that is reported", || is_reported("may still be let in at the target")).await;
    assert!(is_written(&pair.target), "{engine}: it had no right to keep anybody out");
    pair.target.call(&["ACL", "SETUSER", "mover", "+acl|setuser"]);
    wait_until("writers are kept away from the target", || !is_written(&pair.target)).await;
    wait_until("that is reported", || is_reported("kept away from the target again")).await;
    assert!(is_written(&pair.source), "{engine}: nobody may write anywhere");
    job.stop.cancel();
    job.ended().await;
}

/// The journal is all that knows of the fence, when its sync is given up or begun anew.
async fn a_fence_is_known_after_its_sync_was_given_up(engine: Engine) {
    let pair = Pair::start(engine);
    let folder = pair.folder.path();
    pair.has_followed(json!({})).await;
    FenceNote::refuse_to_forget(folder, "fenced", false).expect("there is no fence");
    pair.has_followed(json!({ "cut_over": fence_of(&pair.source) })).await;
    fence_off(&pair.source);
    FenceNote::refuse_to_forget(folder, "fenced", false).expect_err("it would be forgotten");
    pair.has_followed(json!({ "cut_over": fence_of(&pair.source), "lift": fence_of(&pair.target) })).await;
    discard(folder, "fenced").expect_err("both sides may be open, and it closes one");
    let pause = json!({"kind": {"pause": {"limit_ms": 1_000}}, "users": []});
    for open in [
        json!({ "cut_over": pause, "lift": fence_of(&pair.target) }),
        json!({ "lift": fence_of(&pair.target), "lifted": true }),
    ] {
        pair.has_followed(open).await;
        refuse_to_discard(folder, "fenced").expect_err("both sides may be open, and it closes one");
        discard(folder, "fenced").expect_err("it would be forgotten");
    }
    pair.has_followed(json!({ "cut_over": fence_of(&pair.source) })).await;
    assert!(discard(folder, "fenced").expect("it is given up"), "{engine}: a fence is left");
    assert!(Journal::<SyncState>::open(folder, "fenced", "a sync", true).is_err(), "it has ended");
    let source = probed(Side::Source, &pair.source.addr()).await;
    let notes = FenceNote::about(folder, &source).expect("the folder can be read");
    assert_eq!(notes.len(), 1, "{engine}: {notes:?}");
    assert!(!is_written(&pair.source), "{engine}: it is up still");
    notes[0].1.fence.lift(&source).await.expect("it is taken down");
    assert!(is_written(&pair.source), "{engine}");
}

/// A node that does not let us keeps its part of the fence. The sync goes on, and writers are let in as soon
/// as that is possible.
async fn what_is_left_of_a_fence_is_taken_down_while_the_sync_follows(engine: Engine) {
    let pair = Pair::start(engine);
    pair.has_followed(json!({ "cut_over": fence_of(&pair.source) })).await;
    fence_off(&pair.source);
    pair.source.call(&["ACL", "SETUSER", "mover", "-acl|setuser"]);
    let job = Job::resume(&pair, &pair.source.addr(), SyncOptions { once: false, ..pair.options() }).await;
    job.follows().await;
    assert!(!is_written(&pair.source), "{engine}: it had no right to let anybody in");
    let is_reported = |words: &str| job.status.copy.notices().iter().any(|notice| notice.contains(words));
    assert!(is_reported("a part of its fence stays"), "{:?}", job.status.copy.notices());
    pair.source.call(&["ACL", "SETUSER", "mover", "+acl|setuser"]);
    wait_until("writers are let in", || is_written(&pair.source)).await;
    job.stop.cancel();
    job.ended().await;
}

/// A process that is killed just after the takeover has promised a way back.
async fn the_way_back_is_written_down_before_the_way_forth_is_forgotten(engine: Engine) {
    let pair = Pair::start(engine);
    let folder = pair.folder.path();
    pair.has_followed(json!({})).await;
    let (name, description) = ("leads-back".to_owned(), "a way back".to_owned());
    let way_back = Some(WayBack { folder: folder.to_owned(), name, description });
    let options = SyncOptions { once: false, way_back, ..pair.options() };
    let job = Job::resume(&pair, &pair.source.addr(), options).await;
    job.follows().await;
    let order = CutoverOptions { reverse: true, ..cutover(WriterFenceKind::Acl, 30_000, false) };
    let answered = job.ask(order).await;
    let report = answered.await.expect("it is answered").expect("the target takes over");
    assert!(report.reverse, "{engine}: {report:?}");
    job.ended().await;
    assert!(Journal::<SyncState>::open(folder, "fenced", "a sync", true).is_err(), "it has ended");
    let back = Journal::<SyncState>::open(folder, "leads-back", "a way back", true).expect("a way back");
    assert!(back.state().clone() != SyncState::default(), "{engine}: {:?}", back.state());
}

/// The way back may be open for weeks, in which users are made. Those that the fence knows are kept away.
async fn a_user_who_came_after_the_fence_was_planned_is_reported_once(engine: Engine) {
    let pair = Pair::start(engine);
    pair.has_followed(json!({ "lift": fence_of(&pair.target), "lifted": true })).await;
    pair.target.call(&["ACL", "SETUSER", "late", "on", ">secret", "~*", "+@all"]);
    let options = SyncOptions { once: false, ..pair.options() };
    let job = Job::resume(&pair, &pair.source.addr(), options).await;
    job.follows().await;
    assert!(!is_written(&pair.target), "{engine}: writers are let in on the target");
    let notices = job.status.copy.notices();
    let named = format!("ACL user late at {}", pair.target.addr());
    assert!(notices.iter().any(|notice| notice.contains(&named)), "{engine}: {notices:?}");
    assert!(!notices.iter().any(|notice| notice.contains("tried again")), "{engine}: {notices:?}");
    // It would be taken away again, were the fence still put up each second.
    pair.target.call(&["ACL", "SETUSER", "app", "+@write"]);
    sleep(Duration::from_millis(2_500)).await;
    assert!(is_written(&pair.target), "{engine}: the fence is put up without end");
    job.stop.cancel();
    job.ended().await;
}

/// A front that has not sent its clients anywhere.
#[derive(Debug)]
struct Stayed;

impl Fronts for Stayed {
    fn send<'a>(&'a self, _: &'a Path, order: FrontOrder) -> OrderAnswer<'a> {
        Box::pin(async move {
            if order != FrontOrder::Release {
                return Err(Error::own("give a front an order", "nobody asks for that here"));
            }
            let at = FrontSide::Source;
            Ok(FrontStand { at, hold: 0, held_ms: 0, clients: 1, ended: 0, resting: Vec::new() })
        })
    }
}

async fn who_goes_on_behind_a_front_keeps_writers_away_from_the_target_again(engine: Engine) {
    let pair = Pair::start(engine);
    let front = json!({"socket": "/nowhere", "before": "source", "back": null});
    let fence = json!({"kind": "front", "users": []});
    pair.has_followed(json!({ "lift": fence_of(&pair.target), "cut_over": fence, "fronted": front })).await;
    let options = SyncOptions { fronts: Arc::new(Stayed), ..pair.options() };
    let report = Job::resume(&pair, &pair.source.addr(), options).await.ended().await;
    assert!(report.caught_up, "{engine}: {report:?}");
    assert!(!is_written(&pair.target), "{engine}: writers are let in on the target");
    assert!(is_written(&pair.source), "{engine}: nobody may write anywhere");
}

/// The long pause is ordered, the server hears of it, and of nothing for a while after that.
async fn a_source_that_hangs_holds_nobody_for_longer_than_was_allowed(engine: Engine) {
    let pair = Pair::start(engine);
    let trap = Trap::start(&pair.source, Bait { words: b"600000", is_delivered: true }).await;
    pair.has_followed(json!({})).await;
    let job = Job::resume(&pair, &trap.addr, SyncOptions { once: false, ..pair.options() }).await;
    job.follows().await;
    let fence = WriterFenceKind::Pause { limit_ms: 600_000 };
    let answer = job.ask(cutover(fence, 5_000, false)).await;
    trap.is_sprung().await;
    let sprung = Instant::now();
    let answer = tokio::time::timeout(PATIENCE, answer).await.expect("in time").expect("an answer");
    // A server may take half a minute to answer: nobody waits for that with writers paused.
    assert!(sprung.elapsed() < Duration::from_secs(25), "{engine}: {:?}", sprung.elapsed());
    let refused = answer.expect_err("it could not be carried out");
    assert!(refused.error.is_refusal(), "{engine}: {refused:?}");
    trap.open();
    wait_until("the pause is ended", || is_written(&pair.source)).await;
    let is_reported = |words: &str| job.status.copy.notices().iter().any(|notice| notice.contains(words));
    wait_until("that is reported", || is_reported("a part of the fence stays")).await;
    job.follows().await;
    job.stop.cancel();
    job.ended().await;
}
