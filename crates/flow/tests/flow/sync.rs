//! A sync goes on after a cutover that was interrupted.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use whimbrel_core::select::Selection;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::feed::FeedOptions;
use whimbrel_engine::link::LinkOptions;
use whimbrel_flow::budget::Rates;
use whimbrel_flow::copy::{CopyOptions, DbPair, Existing, LaneCounts};
use whimbrel_flow::journal::{DiskFull, Journal};
use whimbrel_flow::retry::RetryPolicy;
use whimbrel_flow::sync::{FrontOrder, Fronts, OrderAnswer, SyncOptions, SyncState, SyncStatus, sync};
use whimbrel_lab::{Engine, Proxy, Server};

whimbrel_lab::for_each_engine! {
    async
        a_fence_is_known_until_it_is_down
        what_was_written_meanwhile_is_read_before_a_resumed_sync_has_caught_up
}

/// Nobody goes through one here.
#[derive(Debug)]
struct NoFronts;

impl Fronts for NoFronts {
    fn send<'a>(&'a self, _: &'a Path, _: FrontOrder) -> OrderAnswer<'a> {
        Box::pin(async { Err(Error::own("give a front an order", "there is none")) })
    }
}

/// The server at this address, for a user that may do all.
pub(crate) async fn probed(side: Side, address: &str) -> Arc<Deployment> {
    let endpoint = Endpoint::parse(side, &format!("redis://mover:secret@{address}")).expect("an address");
    Arc::new(Deployment::probe(endpoint, LinkOptions::default()).await.expect("it answers"))
}

/// Everything, once.
pub(crate) fn options(folder: &Path) -> SyncOptions {
    SyncOptions {
        copy: CopyOptions {
            selection: Selection::default(),
            types: Vec::new(),
            dbs: vec![DbPair { source: 0, target: 0 }],
            existing: Existing::Replace,
            limit: None,
            memory_bytes: 16 << 20,
            big_key_bytes: 1 << 20,
            chunk_bytes: 64 << 10,
            rates: Rates::new(None, None),
            scan_count: 100,
            lanes: LaneCounts::of(1),
            shards_at_once: 1,
            from_replicas: false,
            retry: RetryPolicy::default(),
            job: "fenced".to_owned(),
            mirror: true,
        },
        feed: FeedOptions::default(),
        replication_only: false,
        sweep_first: false,
        functions: false,
        once: true,
        all_dbs: true,
        fence_file: folder.join("fenced.fence"),
        way_back: None,
        fronts: Arc::new(NoFronts),
        hooks: None,
    }
}

/// Whimbrel died while the fence of a cutover stood. It cannot take it down the first time that it goes on:
/// the second time it still knows of it.
async fn a_fence_is_known_until_it_is_down(engine: Engine) {
    let acl = "user mover on >secret ~* &* +@all";
    let source = Server::builder(engine).user_acl(acl).start().expect("the source starts");
    let target = Server::builder(engine).user_acl(acl).start().expect("the target starts");
    let app = format!("redis://app:secret@{}", source.addr());
    let write = || {
        let client = redis::Client::open(app.as_str()).expect("an address");
        client.get_connection().and_then(|mut link| redis::cmd("SET").arg("k").arg("v").exec(&mut link))
    };
    source.call(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all"]);
    write().expect("nobody is fenced off yet");
    source.call(&["ACL", "SETUSER", "app", "-@write"]);
    write().expect_err("it is fenced off");

    let folder = tempfile::tempdir().expect("a folder");
    let mut state = serde_json::to_value(SyncState::default()).expect("a state");
    (state["copy"]["pass"], state["snapshot_done"]) = (json!(1), json!(true));
    let user = json!({"at": source.addr(), "name": "app", "commands": "+@all"});
    state["cut_over"] = json!({"kind": "acl", "users": [user]});
    let state: SyncState = serde_json::from_value(state).expect("a state");
    let begun = Journal::begin(folder.path(), "fenced", "a sync", state, &DiskFull::default()).await;
    drop(begun.expect("written"));
    let go_on = || async {
        let journal = Journal::open(folder.path(), "fenced", "a sync", true).expect("a journal");
        let (source, target) =
            (probed(Side::Source, &source.addr()).await, probed(Side::Target, &target.addr()).await);
        let (_asks, asked) = mpsc::channel(1);
        let (status, stop) = (Arc::new(SyncStatus::default()), CancellationToken::new());
        let ended: Result<_> =
            sync(source, target, options(folder.path()), status, journal, asked, stop).await;
        ended.map(|(report, _)| report)
    };

    source.call(&["ACL", "SETUSER", "mover", "-acl|setuser"]);
    let refused = go_on().await.expect_err("it has no right to take it down");
    assert!(refused.to_string().contains("setuser") || refused.to_string().contains("SETUSER"), "{refused}");
    write().expect_err("it is still fenced off");
    source.call(&["ACL", "SETUSER", "mover", "+acl|setuser"]);
    let report = go_on().await.expect("it goes on");
    assert!(report.caught_up, "{report:?}");
    write().expect("it is let in again");
}

/// A feed that goes on has said so long before it has read all that was written since.
async fn what_was_written_meanwhile_is_read_before_a_resumed_sync_has_caught_up(engine: Engine) {
    const KEYS: usize = 2_000;
    let acl = "user mover on >secret ~* &* +@all";
    let server = || {
        let builder = Server::builder(engine).user_acl(acl).arg("repl-backlog-size", "64mb");
        builder.start().expect("the server starts")
    };
    let (source, target) = (server(), server());
    let narrow = Proxy::start(&source.addr()).expect("a proxy");
    let folder = tempfile::tempdir().expect("a folder");
    let run = async |resume| {
        let journal = Journal::open(folder.path(), "fenced", "a sync", resume).expect("a journal");
        let (source, target) =
            (probed(Side::Source, &narrow.addr()).await, probed(Side::Target, &target.addr()).await);
        let (_asks, asked) = mpsc::channel(1);
        let (status, stop) = (Arc::new(SyncStatus::default()), CancellationToken::new());
        let ended = sync(source, target, options(folder.path()), status, journal, asked, stop).await;
        ended.expect("it ends well").0
    };
    source.call(&["SET", "first", "v"]);
    assert!(run(false).await.caught_up, "{engine}");
    let mut pipe = redis::pipe();
    for n in 0..KEYS {
        pipe.set(format!("k:{n}"), vec![b'x'; 1_000]).ignore();
    }
    let () = pipe.query(&mut source.connection()).expect("written");
    // The feed takes seconds to read this; how far the server is, is answered at once.
    narrow.narrow(500_000);
    let report = run(true).await;
    assert!(report.caught_up, "{engine}: {report:?}");
    let keys: usize = redis::cmd("DBSIZE").query(&mut target.connection()).expect("counted");
    assert_eq!(keys, KEYS + 1, "{engine}: {report:?}");
}
