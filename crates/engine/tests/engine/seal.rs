//! Fences by ACL rules while users come and go; pauses while servers hang.

use std::time::{Duration, Instant};

use whimbrel_core::slot::tag_for_slot;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_engine::link::LinkOptions;
use whimbrel_engine::seal::{Seal, WriterFence, WriterFenceKind, other_clients, writing_clients};
use whimbrel_lab::{Cluster, Engine, Server};

whimbrel_lab::for_each_engine! {
    async
        users_get_back_what_they_had_and_no_more
}

whimbrel_lab::for_each_engine! {
    async on Redis70 Valkey91:
        a_user_that_the_plan_does_not_know_is_not_overlooked
        a_node_that_is_not_named_just_now_is_not_overlooked
        jobs_of_whimbrels_are_distinguished_from_others
        names_that_are_no_text_hide_nobody
        a_primary_that_hangs_keeps_no_writers_of_others
        a_pause_is_taken_down_on_each_primary_that_answers
}

/// For what must come about.
const PATIENCE: Duration = Duration::from_secs(60);

struct Fenced {
    server: Server,
    deployment: Deployment,
}

impl Fenced {
    async fn start(engine: Engine) -> Fenced {
        let server = Server::builder(engine)
            .user_acl("user mover on >secret ~* &* +@all")
            .start()
            .expect("the server starts");
        let url = format!("redis://mover:secret@{}", server.addr());
        let endpoint = Endpoint::parse(Side::Source, &url).expect("an address");
        let deployment =
            Deployment::probe(endpoint, LinkOptions::default()).await.expect("the server answers");
        let fenced = Fenced { server, deployment };
        fenced.call("ACL SETUSER app on >word ~* +@all");
        fenced.call("ACL SETUSER gone on >word ~* +@all");
        fenced.call("ACL SETUSER reader on >word ~* -@all +get");
        fenced
    }

    fn call(&self, command: &str) {
        self.server.call(&command.split(' ').collect::<Vec<_>>());
    }

    async fn plan(&self) -> WriterFence {
        WriterFence::plan(&self.deployment, WriterFenceKind::Acl).await.expect("users that may write")
    }

    /// What a user may do, as the server reports it; `None` where it is unknown.
    async fn rights(&self, user: &str) -> Option<String> {
        let address = &self.deployment.endpoint.address;
        let mut link = self.deployment.open(address, 0).await.expect("a connection");
        let reply = link.call(&[b"ACL", b"GETUSER", user.as_bytes()]).await.expect("an answer");
        reply.field("commands").and_then(|rules| rules.as_str()).map(str::to_owned)
    }
}

async fn users_get_back_what_they_had_and_no_more(engine: Engine) {
    let fenced = Fenced::start(engine).await;
    let fence = fenced.plan().await;
    let before = (fenced.rights("app").await, fenced.rights("reader").await);
    fence.raise(&fenced.deployment).await.expect("the fence");
    assert_eq!(fenced.rights("app").await.as_deref(), Some("+@all -@write"), "{engine}");
    fenced.call("ACL DELUSER gone");
    fence.lift(&fenced.deployment).await.expect("it is taken down");
    assert_eq!((fenced.rights("app").await, fenced.rights("reader").await), before, "{engine}");
    assert_eq!(fenced.rights("gone").await, None, "{engine}: a user that was deleted stays deleted");
}

async fn a_user_that_the_plan_does_not_know_is_not_overlooked(engine: Engine) {
    let fenced = Fenced::start(engine).await;
    let fence = fenced.plan().await;
    fenced.call("ACL SETUSER harmless on >word ~*");
    fence.raise(&fenced.deployment).await.expect("a user without rights does no harm");
    fence.lift(&fenced.deployment).await.expect("it is taken down");
    fenced.call("ACL SETUSER late on >word ~* +set");
    let error = fence.raise(&fenced.deployment).await.expect_err("a user that may write").to_string();
    assert!(error.contains("ACL user late"), "{engine}: {error}");
    fence.lift(&fenced.deployment).await.expect("it is taken down");
    assert_eq!(fenced.rights("app").await.as_deref(), Some("+@all"), "{engine}");
}

/// A replica that is cut off is in no topology, and may be a primary when it is back.
async fn a_node_that_is_not_named_just_now_is_not_overlooked(engine: Engine) {
    let (fenced, other) = (Fenced::start(engine).await, Fenced::start(engine).await);
    let fence = fenced.plan().await;
    // Nobody may write there but our own user.
    for command in ["ACL DELUSER app gone reader", "ACL SETUSER default -@all"] {
        other.call(command);
    }
    let error = fence.raise(&other.deployment).await.expect_err("nobody is kept out there").to_string();
    assert!(error.contains(&fenced.server.addr()) && error.contains("not now"), "{engine}: {error}");
    fence.raise(&fenced.deployment).await.expect("the fence");
    fence.lift(&other.deployment).await.expect("it is taken down where it is");
    assert_eq!(fenced.rights("app").await.as_deref(), Some("+@all"), "{engine}");
    fence.raise(&fenced.deployment).await.expect("the fence");
    fenced.server.suspend().expect("suspended");
    let quickly = LinkOptions { connect_timeout_ms: 3_000, ..LinkOptions::default() };
    let url = format!("redis://mover:secret@{}", other.server.addr());
    let endpoint = Endpoint::parse(Side::Source, &url).expect("an address");
    let elsewhere = Deployment::probe(endpoint, quickly).await.expect("the server answers");
    fence.lift(&elsewhere).await.expect_err("the fence is still up there");
    fenced.server.resume().expect("resumed");
    fence.lift(&elsewhere).await.expect("now it is taken down");
    assert_eq!(fenced.rights("app").await.as_deref(), Some("+@all"), "{engine}");
}

/// Names of users may be any bytes: nobody is overlooked for it.
async fn names_that_are_no_text_hide_nobody(engine: Engine) {
    let fenced = Fenced::start(engine).await;
    let fence = fenced.plan().await;
    let mut odd = fenced.server.connection();
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg(b"caf\xe9").arg("on").arg(">word").arg("~*").arg("+@all");
    user.exec(&mut odd).expect("a user");
    redis::cmd("AUTH").arg(b"caf\xe9").arg("word").exec(&mut odd).expect("logged in");
    let address = &fenced.deployment.endpoint.address;
    let mut link = fenced.deployment.open(address, 0).await.expect("a connection");
    // A client that has written within the last second or two is listed. On a busy machine that may be over.
    let until = Instant::now() + PATIENCE;
    loop {
        redis::cmd("SET").arg("k").arg("v").exec(&mut odd).expect("written");
        let writing = writing_clients(&mut link).await.expect("a list").expect("it may be asked");
        if writing.iter().any(|client| client.command == "set") {
            break;
        }
        assert!(Instant::now() < until, "{engine}: {writing:?}");
    }
    let mut transaction = fenced.server.connection();
    redis::cmd("MULTI").exec(&mut transaction).expect("begun");
    assert_eq!(fence.end_waiting(&fenced.deployment).await.expect("ended"), 1, "{engine}");
    let error = WriterFence::plan(&fenced.deployment, WriterFenceKind::Acl).await.expect_err("it may write");
    assert!(error.to_string().contains("not valid text"), "{engine}: {error}");
    // A fence that is up is taken down all the same.
    fence.lift(&fenced.deployment).await.expect("it is taken down");
}

/// A connection that shows this name.
fn named(server: &Server, name: &str) -> redis::Connection {
    let mut link = server.connection();
    redis::cmd("CLIENT").arg("SETNAME").arg(name).exec(&mut link).expect("named");
    link
}

/// Another job of whimbrel's that reads is nobody who writes, and no client. One that writes is named.
async fn jobs_of_whimbrels_are_distinguished_from_others(engine: Engine) {
    let fenced = Fenced::start(engine).await;
    fenced.call("SET k v");
    let address = &fenced.deployment.endpoint.address;
    let mut link = fenced.deployment.open(address, 0).await.expect("a connection");
    let (mut job, mut copy) = (named(&fenced.server, "whimbrel:job:p:7"), named(&fenced.server, "whimbrel"));
    let mut library = named(&fenced.server, "library");
    for reader in [&mut job, &mut copy] {
        redis::pipe().atomic().get("k").exec(reader).expect("read");
    }
    // Refused where it is no cluster: it is the last command all the same.
    redis::cmd("CLUSTER").arg("SLOTS").exec(&mut library).expect_err("no cluster");
    let writing = writing_clients(&mut link).await.expect("a list").expect("it may be asked");
    assert_eq!(writing, [], "{engine}");
    let until = Instant::now() + PATIENCE;
    // Those that have just gone are listed for a moment.
    while other_clients(&mut link, &[]).await.expect("a list") != Some(1) {
        assert!(Instant::now() < until, "{engine}: {:?}", fenced.server.call(&["CLIENT", "LIST"]));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(library);
    // On a busy machine it may be too long ago that they have written.
    let until = Instant::now() + PATIENCE;
    loop {
        for writer in [&mut job, &mut copy] {
            redis::cmd("UNLINK").arg("gone").exec(writer).expect("written");
        }
        let writing = writing_clients(&mut link).await.expect("a list").expect("it may be asked");
        let mut names: Vec<&str> = writing.iter().map(|client| client.name.as_str()).collect();
        names.sort_unstable();
        if names == ["whimbrel", "whimbrel:job:p:7"] {
            break;
        }
        assert!(names.len() < 2 && Instant::now() < until, "{engine}: {names:?}");
    }
}

/// Far longer than a test waits.
const PAUSE_MS: u64 = 600_000;

/// Three primaries, none of which is missed when it hangs for a while.
struct Primaries {
    cluster: Cluster,
    deployment: Deployment,
}

impl Primaries {
    async fn start(engine: Engine) -> Primaries {
        let cluster = Cluster::builder(engine).primaries(3).node_timeout_ms(60_000);
        let cluster = cluster.start().expect("the cluster starts");
        let quickly = LinkOptions { connect_timeout_ms: 3_000, ..LinkOptions::default() };
        let endpoint = Endpoint::parse(Side::Source, &cluster.seed()).expect("an address");
        let deployment = Deployment::probe(endpoint, quickly).await.expect("the nodes answer");
        Primaries { cluster, deployment }
    }

    /// Whether a client may write to a primary, and is not paused.
    fn is_written(&self, index: usize) -> bool {
        let node = &self.cluster.nodes()[index];
        let topology = self.deployment.topology();
        let shard = topology.shards.iter().find(|shard| shard.primary.to_string() == node.addr());
        let slot = shard.and_then(|shard| shard.slots.iter().next()).expect("it has slots");
        let client = redis::Client::open(format!("redis://{}", node.addr())).expect("an address");
        let write = |mut link: redis::Connection| {
            link.set_read_timeout(Some(Duration::from_secs(1)))?;
            redis::cmd("SET").arg(format!("{{{}}}", tag_for_slot(slot))).arg("v").exec(&mut link)
        };
        client.get_connection_with_timeout(Duration::from_secs(1)).and_then(write).is_ok()
    }

    /// Not at the first look: a busy machine may need more than the second that a client waits. The pause
    /// would last for longer than is waited here.
    async fn wait_until_written(&self, index: usize) {
        let until = Instant::now() + PATIENCE;
        while !self.is_written(index) {
            assert!(Instant::now() < until, "writes to primary {index} are paused");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// It hangs when the pause is ordered. Writes to the others resume although it does not answer, and those to
/// it as soon as it has read that they are to be paused.
async fn a_primary_that_hangs_keeps_no_writers_of_others(engine: Engine) {
    let primaries = Primaries::start(engine).await;
    let mut seal = Seal::open(&primaries.deployment).await.expect("connections");
    primaries.cluster.nodes()[1].suspend().expect("suspended");
    let pausing = tokio::time::timeout(Duration::from_secs(1), seal.pause(PAUSE_MS));
    pausing.await.expect_err("one does not answer");
    assert!(!primaries.is_written(0) && !primaries.is_written(2), "{engine}: the others are paused");
    let began = Instant::now();
    seal.release().await.expect_err("one does not answer");
    // A reply may take half a minute.
    assert!(began.elapsed() < Duration::from_secs(20), "{engine}: {:?}", began.elapsed());
    assert!(seal.until_ms().is_some(), "{engine}: one may be paused still");
    primaries.wait_until_written(0).await;
    primaries.wait_until_written(2).await;
    primaries.cluster.nodes()[1].resume().expect("resumed");
    primaries.wait_until_written(1).await;
    seal.release().await.expect("all of them answer");
    assert_eq!(seal.until_ms(), None, "{engine}");
}

/// While one hangs, writes to the others resume all the same.
async fn a_pause_is_taken_down_on_each_primary_that_answers(engine: Engine) {
    let primaries = Primaries::start(engine).await;
    let fence = WriterFence::plan(&primaries.deployment, WriterFenceKind::Pause { limit_ms: PAUSE_MS });
    let fence = fence.await.expect("nothing is in the way");
    let mut seal = Seal::open(&primaries.deployment).await.expect("connections");
    seal.pause(PAUSE_MS).await.expect("paused");
    drop(seal);
    assert!((0..3).all(|index| !primaries.is_written(index)), "{engine}: all of them are paused");
    primaries.cluster.nodes()[1].suspend().expect("suspended");
    fence.lift(&primaries.deployment).await.expect_err("one does not answer");
    primaries.wait_until_written(0).await;
    primaries.wait_until_written(2).await;
    primaries.cluster.nodes()[1].resume().expect("resumed");
    fence.lift(&primaries.deployment).await.expect("all of them answer");
    primaries.wait_until_written(1).await;
}
