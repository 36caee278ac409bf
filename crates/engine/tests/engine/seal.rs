//! Fences by ACL rules while users come and go.

use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_engine::link::LinkOptions;
use whimbrel_engine::seal::{FenceKind, WriterFence};
use whimbrel_lab::{Engine, Server};

whimbrel_lab::for_each_engine! {
    async
        users_get_back_what_they_had_and_no_more
}

whimbrel_lab::for_each_engine! {
    async on Redis70 Valkey91:
        a_user_that_the_plan_does_not_know_is_not_overlooked
}

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
        WriterFence::plan(&self.deployment, FenceKind::Acl).await.expect("users that may write")
    }

    /// What a user may do, as the server tells it; `None` where it is unknown.
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
