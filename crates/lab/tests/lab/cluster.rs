//! Clusters: forming, failing over, moving slots.

use std::time::Duration;

use redis::Value;
use whimbrel_lab::{Cluster, Engine, LabError, SLOTS, Tls};

whimbrel_lab::for_each_engine! {
    survives_the_loss_of_a_primary
    moves_slots_behind_a_password_and_tls
}

/// A connection that follows the cluster's redirections.
fn client(cluster: &Cluster) -> redis::cluster::ClusterConnection {
    // By itself it gives each connection a second, which a busy machine may need for less.
    redis::cluster::ClusterClientBuilder::new(vec![format!("redis://{}", cluster.seed())])
        .connection_timeout(Duration::from_secs(20))
        .build()
        .unwrap()
        .get_connection()
        .unwrap()
}

fn survives_the_loss_of_a_primary(engine: Engine) {
    let cluster = Cluster::builder(engine).primaries(3).replicas(1).start().unwrap();
    assert_eq!((cluster.nodes().len(), cluster.primaries().len()), (6, 3));
    assert_eq!(cluster.current_primaries().unwrap(), [0, 1, 2]);
    assert_eq!(cluster.owner_of(0).unwrap(), 0);
    assert_eq!(cluster.owner_of(SLOTS - 1).unwrap(), 2);
    assert_eq!(cluster.replicas_of(1)[0].port(), cluster.nodes()[4].port());

    let mut connection = client(&cluster);
    for n in 0..100 {
        redis::cmd("SET").arg(format!("key:{n}")).arg(n).exec(&mut connection).unwrap();
    }
    assert_eq!(cluster.total_keys().unwrap(), 100);
    // What a primary has acknowledged, its replica has only after a WAIT.
    for index in 0..3 {
        let acknowledged: i64 =
            redis::cmd("WAIT").arg(1).arg(10_000).query(&mut cluster.connection_to(index)).unwrap();
        // A primary counts a replica for the writes of this connection, of which there are none.
        assert_eq!(acknowledged, 1);
    }

    let pids: Vec<u32> = cluster.nodes().iter().map(whimbrel_lab::Server::pid).collect();
    cluster.kill9(1).unwrap();
    assert_eq!(cluster.wait_failover(1).unwrap(), 4);
    assert_eq!(cluster.current_primaries().unwrap(), [0, 2, 4]);
    assert_eq!(cluster.owner_of(SLOTS / 2).unwrap(), 4);
    assert!(matches!(cluster.wait_failover(3), Err(LabError::Cluster(_))));

    // The old primary comes back as a replica of the new one.
    cluster.nodes()[1].restart().unwrap();
    cluster.wait_ok().unwrap();
    cluster.flush().unwrap();
    assert_eq!(cluster.total_keys().unwrap(), 0);

    let dirs: Vec<_> = cluster.nodes().iter().map(|node| node.dir().to_owned()).collect();
    drop(cluster);
    assert!(pids.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()));
    assert!(dirs.iter().all(|dir| !dir.exists()));
}

fn moves_slots_behind_a_password_and_tls(engine: Engine) {
    let tls = Tls::new().unwrap();
    let cluster =
        Cluster::builder(engine).primaries(2).replicas(1).password("secret").tls(&tls).start().unwrap();
    let slot = 12_182;
    assert_eq!(cluster.owner_of(slot).unwrap(), 1);
    let keyslot = cluster.nodes()[0].call(&["CLUSTER", "KEYSLOT", "{foo}"]);
    assert_eq!(keyslot, Value::Int(i64::from(slot)));
    for n in 0..1200 {
        cluster.nodes()[1].call(&["SET", &format!("{{foo}}:{n}"), "value"]);
    }

    cluster.move_slot(slot, 1, 0).unwrap();
    cluster.wait_ok().unwrap();
    assert_eq!(cluster.owner_of(slot).unwrap(), 0);
    assert_eq!(cluster.nodes()[0].call(&["DBSIZE"]), Value::Int(1200));
    assert_eq!(cluster.nodes()[1].call(&["DBSIZE"]), Value::Int(0));
    let refused = cluster.nodes()[1].try_call(&["GET", "{foo}:1"]).unwrap_err();
    assert!(
        matches!(&refused, LabError::Command { source, .. } if source.code() == Some("MOVED")),
        "{refused}"
    );

    let mut over_tls = cluster.nodes()[0].tls_connection().unwrap();
    let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(&mut over_tls).unwrap();
    assert!(nodes.contains(&format!(":{}@", cluster.nodes()[1].tls_port().unwrap())), "{nodes}");
}

#[test]
fn twenty_primaries_form_a_cluster() {
    let cluster = Cluster::builder(Engine::Valkey91).primaries(20).start().unwrap();
    assert_eq!(cluster.current_primaries().unwrap().len(), 20);
    let owners: std::collections::BTreeSet<usize> =
        (0..SLOTS).step_by(512).map(|slot| cluster.owner_of(slot).unwrap()).collect();
    assert_eq!(owners.len(), 20);
}

#[test]
fn a_cluster_needs_a_primary() {
    assert!(matches!(Cluster::builder(Engine::Redis70).primaries(0).start(), Err(LabError::Cluster(_))));
}
