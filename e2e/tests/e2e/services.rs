//! Services that forbid much, imitated by the rights of a user on a stock server: what is followed, which
//! cutovers are left, and that a dry run says so. The pages are in `docs/services`.

use std::time::Duration;

use whimbrel_e2e::syncing::{
    PATIENCE, Sync, assert_equal, comparison, deployment, fill, report, wait_until_following,
};
use whimbrel_judge::cluster_writers::{ClusterWriters, Load, tags_in};
use whimbrel_lab::{Engine, Server};

const REFUSED: i32 = 4;

/// A service as its documentation describes it.
struct Service {
    /// What stands for it.
    engine: Engine,
    /// Rights that the user lacks there, after `+@all`; what is given back follows.
    rights: &'static str,
    /// How changes are learnt of.
    feed: &'static str,
    /// Fences that a dry run of the cutover allows. With all others it says what is forbidden.
    fences: &'static [&'static str],
}

/// Every fence but `front`, which needs one.
const FENCES: [&str; 5] = ["none", "pause", "acl", "readonly-replica", "external"];

fn left(service: &Service) {
    // Redis 6.0 has no rights to channels.
    let channels = if service.engine == Engine::Redis60 { "" } else { "&* " };
    let user = format!("user mover on >secret ~* {channels}+@all {}", service.rights);
    // Where the service publishes what changes keys, another way is taken all the same if there is one.
    let source = Server::builder(service.engine).arg("notify-keyspace-events", "AE").user_acl(&user);
    let source = source.start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    // What fills a server and what compares two needs commands of Redis 7.0.
    let is_old = service.engine == Engine::Redis60;
    if !is_old {
        fill(&deployment(source.addr()));
    }
    let load = Load { clients: 16, ..Load::on(tags_in(0..16_384, 56)) };
    let writers = ClusterWriters::start(&[source.addr()], &load);
    assert!(writers.wait_for(400, PATIENCE), "the writers do not come to work");
    // As for a customer who has no other user than this one.
    let job = Sync::new(&format!("redis://mover:secret@{}", source.addr()), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let feed = format!("\"feed\":\"{}", service.feed);
    assert!(sync.stdout().contains(&feed), "{feed}: {}", sync.stdout());

    for fence in FENCES {
        let more = ["--fence", fence, "--dry-run", "--max-pause", "20s"];
        let rehearsed = job.cutover_under_writers(&more);
        if service.fences.contains(&fence) {
            rehearsed.expect_code(0);
        } else {
            let refused = rehearsed.expect_code(REFUSED);
            let why = ["is refused there", "has no CLIENT PAUSE WRITE"];
            assert!(why.iter().any(|why| refused.stdout.contains(why)), "{fence}: {}", refused.stdout);
            assert!(refused.stdout.contains("external"), "{fence}: {}", refused.stdout);
        }
    }

    // The way that every one of them leaves.
    // Clients of a machine that stands still for less are not taken for stopped ones.
    let cutover = job.start_cutover(&["--fence", "external", "--quiet-for", "5s"]);
    assert!(writers.wait_for(400, PATIENCE), "the writers have stopped");
    let record = writers.stop();
    let mut cutover = cutover;
    let done = report(&cutover.wait(PATIENCE).expect("it ends").expect_code(0));
    eprintln!("{}: quiet for {} ms", service.engine, done["report"]["pause_ms"]);
    sync.wait(PATIENCE + Duration::from_secs(10)).expect("it ends").expect_code(0);
    if is_old {
        record.assert_kept(&deployment(target.addr()));
        whimbrel_e2e::binary::run(&["verify", &source.addr(), &target.addr()]).expect_code(0);
    } else {
        assert_equal(&record, &source.addr(), &target.addr(), &comparison());
    }
}

/// Nodes of AWS ElastiCache. It has users of its own kind, and nobody may change them by ACL SETUSER.
#[test]
fn elasticache_is_left() {
    left(&Service {
        engine: Engine::Redis70,
        rights: "-bgsave -bgrewriteaof -config -debug -migrate -replicaof -slaveof -sync -psync \
                 -save -shutdown -acl|setuser -acl|load -acl|save -acl|deluser",
        feed: "tracking",
        fences: &["none", "pause", "external"],
    });
}

/// Google's Memorystore for Redis.
#[test]
fn memorystore_for_redis_is_left() {
    left(&Service {
        engine: Engine::Redis70,
        rights: "-acl -bgsave -bgrewriteaof -cluster -command -config -debug -migrate -module \
                 -monitor -object -psync -replconf -replicaof -slaveof -save -shutdown -sync \
                 -client +client|tracking +client|kill +client|list +client|id +client|setname \
                 +client|getname +client|caching",
        feed: "tracking",
        fences: &["external"],
    });
}

/// Azure Cache for Redis, which is Redis 6.0: it pauses all clients or none.
#[test]
fn azure_cache_for_redis_is_left() {
    left(&Service {
        engine: Engine::Redis60,
        rights: "-acl -bgsave -bgrewriteaof -config -debug -migrate -module -psync -replconf \
                 -replicaof -slaveof -save -shutdown -sync",
        feed: "tracking",
        fences: &["external"],
    });
}

/// What is forbidden where keyspace notifications are all that is left.
const NOTIFICATIONS_ONLY: &str = "-acl -client|pause -client|tracking -client|unpause -config|set -debug \
                                  -migrate -monitor -psync -replconf -sync";

/// One that permits neither replication nor tracking, and publishes what changes keys.
#[test]
fn one_that_publishes_changes_is_left() {
    left(&Service {
        engine: Engine::Redis70,
        rights: NOTIFICATIONS_ONLY,
        feed: "notifications",
        fences: &["external"],
    });
}

/// One that permits neither replication nor tracking, and publishes nothing, cannot be followed; that is said
/// before anything is written, and a copy is what is left.
#[test]
fn one_that_reports_no_changes_is_copied() {
    let rights = "-acl -debug -migrate -psync -replconf -sync -client +client|list +client|setname";
    let user = format!("user mover on >secret ~* &* +@all {rights}");
    let source = Server::builder(Engine::Redis70).user_acl(&user).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    fill(&deployment(source.addr()));
    let from = format!("redis://mover:secret@{}", source.addr());
    let job = Sync::new(&from, &target.addr(), &[]);
    let mut sync = job.start(&[]);
    let refused = sync.wait(PATIENCE).expect("it ends");
    assert_ne!(refused.code(), Some(0), "{refused:#?}");
    assert!(refused.stdout.contains("CLIENT TRACKING"), "{refused:#?}");
    assert!(refused.stdout.contains("lacks g$lszhxetE: AE would do"), "{refused:#?}");
    assert_eq!(target.call(&["DBSIZE"]), redis::Value::Int(0), "something was written");
    whimbrel_e2e::binary::run(&["copy", &from, &target.addr(), "--verify"]).expect_code(0);
}

/// The others, which the tier `all` runs.
mod matrix {
    use whimbrel_lab::Engine;

    use super::{NOTIFICATIONS_ONLY, Service, left};

    #[test]
    fn one_that_publishes_changes_is_left_for_valkey() {
        left(&Service {
            engine: Engine::Valkey91,
            rights: NOTIFICATIONS_ONLY,
            feed: "notifications",
            fences: &["external"],
        });
    }

    /// Google's Memorystore for Valkey, not clustered.
    #[test]
    fn memorystore_for_valkey_is_left() {
        left(&Service {
            engine: Engine::Valkey81,
            rights: "-acl -bgsave -bgrewriteaof -config -debug -migrate -module -monitor -psync \
                     -replconf -replicaof -slaveof -save -shutdown -sync -client|pause \
                     -client|unpause",
            feed: "tracking",
            fences: &["external"],
        });
    }

    /// Redis Cloud, Redis Software and Azure Managed Redis.
    #[test]
    fn redis_cloud_is_left() {
        left(&Service {
            engine: Engine::Redis80,
            rights: "-acl|setuser -acl|deluser -acl|load -acl|save -asking -bgsave -bgrewriteaof \
                     -client|getredir -client|pause -client|unpause -cluster|countkeysinslot \
                     -cluster|getkeysinslot -config -debug -migrate -module -psync -replconf \
                     -replicaof -slaveof -save -select -shutdown -sync",
            feed: "tracking",
            fences: &["external"],
        });
    }

    /// Tencent Cloud's Redis.
    #[test]
    fn tencent_is_left() {
        left(&Service {
            engine: Engine::Redis70,
            rights: "-acl -client|kill -client|pause -client|unpause -config|set -psync -replconf \
                     -sync",
            feed: "tracking",
            fences: &["external"],
        });
    }

    /// Oracle's OCI Cache.
    #[test]
    fn oci_cache_is_left() {
        left(&Service {
            engine: Engine::Valkey81,
            rights: "-acl -cluster -config|set -debug -migrate -psync -replicaof -slaveof",
            feed: "tracking",
            fences: &["none", "pause", "external"],
        });
    }

    /// Aiven for Valkey, which lets replication through.
    #[test]
    fn aiven_for_valkey_is_left() {
        left(&Service {
            engine: Engine::Valkey81,
            rights: "-acl -cluster -command -config -debug -migrate -monitor -replicaof -slaveof",
            feed: "replication",
            fences: &["none", "pause", "external"],
        });
    }
}
