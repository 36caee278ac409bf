//! The queue of the server, with real clusters behind it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_control::daemon::migrations::{JobState, JobView};
use whimbrel_control::daemon::queue::Queue;
use whimbrel_control::daemon::{Daemon, DaemonOptions, Jobs};
use whimbrel_control::options::TransferOptions;
use whimbrel_control::service::{Method, Settings};
use whimbrel_control::store::Store;
use whimbrel_core::migration::Rules;
use whimbrel_core::plan::Move;
use whimbrel_core::slot::{SlotSet, tag_for_slot};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_lab::{Cluster, Engine};

const PATIENCE: Duration = Duration::from_secs(180);

fn slots(text: &str) -> SlotSet {
    text.parse().expect("a set of slots")
}

async fn link(address: &str) -> Link {
    let endpoint = Arc::new(Endpoint::parse(Side::Source, address).expect("an address"));
    let address = endpoint.address.clone();
    Link::open(&endpoint, &address, LinkOptions::default()).await.expect("a connection")
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never came: {what}"));
}

/// A cluster, and a folder for the jobs.
struct Field {
    cluster: Cluster,
    deployment: Arc<Deployment>,
    folder: tempfile::TempDir,
}

impl Field {
    async fn new(engine: Engine) -> Field {
        let cluster = Cluster::builder(engine).start().expect("a cluster");
        let endpoint = Endpoint::parse(Side::Source, &cluster.seed()).expect("an address");
        let deployment = Deployment::probe(endpoint, LinkOptions::default()).await.expect("a deployment");
        let folder = tempfile::tempdir().expect("a folder");
        Field { cluster, deployment: Arc::new(deployment), folder }
    }

    async fn queue(&self, method: Method) -> Arc<Queue> {
        open(&self.deployment, self.folder.path(), method).await
    }

    fn planned(&self, text: &str, source: usize, target: usize) -> Move {
        let id = |i: usize| self.cluster.node_id(i).parse().expect("a node id");
        Move { source: id(source), target: id(target), slots: slots(text) }
    }

    /// Writes `each` keys into each of the slots, at a primary.
    async fn fill(&self, slots: &SlotSet, each: usize, primary: usize) {
        let mut link = link(&self.cluster.nodes()[primary].addr()).await;
        for slot in slots {
            for i in 0..each {
                let key = format!("{{{}}}:{i}", tag_for_slot(slot));
                link.push(&[b"SET", key.as_bytes(), b"value"]);
            }
            link.flush().await.expect("sent");
            for reply in link.replies(each).await.expect("replies") {
                assert!(reply.is_ok(), "{reply:?}");
            }
        }
    }

    async fn keys(&self, node: usize) -> BTreeSet<Bytes> {
        let mut link = link(&self.cluster.nodes()[node].addr()).await;
        let keys = link.call(&[b"KEYS", b"*"]).await.expect("KEYS").into_items().expect("a list");
        keys.into_iter().map(|key| key.into_bytes().expect("a key")).collect()
    }

    fn owner(&self, slot: u16) -> usize {
        self.cluster.owner_of(slot).expect("an owner")
    }
}

async fn open(deployment: &Arc<Deployment>, folder: &Path, method: Method) -> Arc<Queue> {
    // Seconds for the largest job here: what is asked of one that runs comes before its end.
    let rate_keys = (method == Method::External).then_some(5_000);
    let settings = Settings {
        method,
        rules: Rules::default(),
        max_pause_ms: Some(10_000),
        transfer: TransferOptions { rate_keys, ..TransferOptions::default() },
        batch_keys: None,
        name: None,
        native_stall_ms: None,
    };
    Queue::open(deployment.clone(), Store::new(folder), settings).await.expect("the cluster answers")
}

/// Runs the queue until it is asked to stop.
fn start(queue: &Arc<Queue>) -> (CancellationToken, JoinHandle<()>) {
    let (stop, queue) = (CancellationToken::new(), queue.clone());
    let token = stop.clone();
    (stop, tokio::spawn(async move { queue.run(&token).await }))
}

async fn jobs(queue: &Queue) -> Vec<JobView> {
    queue.list().await.expect("a list")
}

async fn wait_for_all(queue: &Queue) -> Vec<JobView> {
    let ending = async {
        while !jobs(queue).await.iter().all(|job| job.state.is_final()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = tokio::time::timeout(PATIENCE, ending).await;
    let list = jobs(queue).await;
    ended.unwrap_or_else(|_| panic!("they never end: {list:?}"));
    list
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_move_slots() {
    let field = Field::new(Engine::Redis70).await;
    field.fill(&slots("0-99"), 3, 0).await;
    field.fill(&slots("6000-6099"), 3, 1).await;
    let before: BTreeSet<Bytes> = field.keys(0).await.into_iter().chain(field.keys(1).await).collect();
    let queue = field.queue(Method::External).await;
    let options = DaemonOptions::new("127.0.0.1:0".parse().expect("an address"));
    let daemon = Daemon::bind(options, queue.clone()).await.expect("it listens");
    let address = daemon.address().expect("an address").to_string();
    let (stop, running) = start(&queue);
    let serving = tokio::spawn(daemon.serve(stop.clone()));

    let mut client = link(&address).await;
    let third = field.cluster.node_id(2).as_bytes();
    let words: [&[u8]; 14] = [
        b"CLUSTER",
        b"MIGRATESLOTS",
        b"SLOTSRANGE",
        b"0",
        b"49",
        b"60",
        b"69",
        b"NODE",
        third,
        b"SLOTSRANGE",
        b"6000",
        b"6099",
        b"NODE",
        third,
    ];
    assert!(client.call(&words).await.expect("accepted").is_ok());
    // Before it has moved, or after: in neither case it is theirs to give again.
    let again = client.ask(&words).await.expect("an answer");
    assert!(again.as_error().is_some(), "{again:?}");
    let list = wait_for_all(&queue).await;
    assert_eq!(list.len(), 2);
    assert!(list.iter().all(|job| job.state == JobState::Success), "{list:?}");
    assert_eq!([field.owner(49), field.owner(50), field.owner(69), field.owner(6099)], [2, 0, 2, 2]);
    let moved = field.keys(2).await;
    assert_eq!(moved.len(), 480);
    let after: BTreeSet<Bytes> =
        field.keys(0).await.into_iter().chain(field.keys(1).await).chain(moved).collect();
    assert!(after == before);
    stop.cancel();
    running.await.expect("it ends");
    serving.await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_survive_a_restart() {
    let field = Field::new(Engine::Valkey81).await;
    field.fill(&slots("0-9"), 3, 0).await;
    let queue = field.queue(Method::Legacy).await;
    let moves = vec![
        field.planned("0-4", 0, 1),
        field.planned("5-9", 0, 2),
        field.planned("6000", 1, 2),
        field.planned("11000", 2, 0),
    ];
    queue.submit(moves).await.expect("taken in");
    let refused = queue.submit(vec![field.planned("9-10", 0, 1)]).await.expect_err("9 is taken");
    assert!(refused.to_string().contains("slot 9 is part of another"), "{refused}");
    let waiting = jobs(&queue).await;
    assert_eq!(waiting.len(), 4);
    assert!(waiting.iter().all(|job| job.state == JobState::Connecting), "{waiting:?}");
    let cancelled = waiting.iter().find(|job| job.slots == slots("6000")).expect("listed").name.clone();
    drop(queue);

    let queue = field.queue(Method::Legacy).await;
    assert_eq!(jobs(&queue).await.len(), 4, "they are taken up again");
    queue.cancel(&cancelled).await.expect("cancelled");
    let (stop, running) = start(&queue);
    let list = wait_for_all(&queue).await;
    for job in &list {
        let expected = if job.name == cancelled { JobState::Cancelled } else { JobState::Success };
        assert_eq!(job.state, expected, "{job:?}");
    }
    assert_eq!(list.len(), 4);
    assert_eq!([0, 4, 5, 9, 6000, 11000].map(|slot| field.owner(slot)), [1, 1, 2, 2, 1, 0]);
    assert_eq!((field.keys(1).await.len(), field.keys(2).await.len()), (15, 15));
    stop.cancel();
    running.await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_is_left_and_taken_up_again() {
    let field = Field::new(Engine::Redis80).await;
    let moved = slots("0-2047");
    field.fill(&moved, 10, 0).await;
    let before = field.keys(0).await;
    let queue = field.queue(Method::External).await;
    queue.submit(vec![field.planned("0-2047", 0, 1)]).await.expect("taken in");
    let (stop, running) = start(&queue);
    until("it to begin", async || jobs(&queue).await[0].state != JobState::Connecting).await;
    stop.cancel();
    running.await.expect("it ends");
    drop(queue);
    // Another process would begin with all of them free.
    let store = Store::new(field.folder.path());
    until("its journal to be closed", async || !store.list().expect("a list")[0].running).await;
    let left = store.list().expect("a list").remove(0).status;
    assert!(!left.ended, "{left:?}");

    let queue = field.queue(Method::External).await;
    let (stop, running) = start(&queue);
    let list = wait_for_all(&queue).await;
    assert_eq!((list.len(), list[0].state), (1, JobState::Success), "{list:?}");
    assert!(moved.iter().all(|slot| field.owner(slot.number()) == 1));
    assert!(field.keys(1).await == before && field.keys(0).await.is_empty());
    field.cluster.wait_ok().expect("all nodes agree");
    stop.cancel();
    running.await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_is_cancelled() {
    let field = Field::new(Engine::Valkey81).await;
    field.fill(&slots("0-1023"), 20, 0).await;
    let before = field.keys(0).await;
    let queue = field.queue(Method::External).await;
    queue.submit(vec![field.planned("0-1023", 0, 1)]).await.expect("taken in");
    let name = jobs(&queue).await[0].name.clone();
    let (stop, running) = start(&queue);
    until("it to begin", async || jobs(&queue).await[0].state != JobState::Connecting).await;
    queue.cancel(&name).await.expect("asked for");
    let list = wait_for_all(&queue).await;
    // A handover that had begun is finished first: then the batches before it stay where they are.
    assert!(matches!(list[0].state, JobState::Cancelled | JobState::Success), "{list:?}");
    let both: BTreeSet<Bytes> = field.keys(0).await.into_iter().chain(field.keys(1).await).collect();
    assert!(both == before);
    field.cluster.wait_ok().expect("all nodes agree");
    stop.cancel();
    running.await.expect("it ends");
}
