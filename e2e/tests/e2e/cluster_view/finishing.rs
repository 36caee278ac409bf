//! What clients delete while `whimbrel repair` finishes a half-moved slot stays deleted.

use std::path::PathBuf;
use std::thread;

use redis::cluster::ClusterConnection;
use redis::{Value, cmd};
use whimbrel_e2e::binary::{Invocation, Running};
use whimbrel_e2e::shards::assert_sound;
use whimbrel_judge::compare::Snapshot;
use whimbrel_judge::deployment::cluster_client;
use whimbrel_lab::{Cluster, Engine, wait_until};

use super::{
    KEYS, PATIENCE, SLOT, SUCCESS, asking, everything, fill, key, keys_in_slot, migrate, set_slot, start,
};

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        a_key_that_is_deleted_while_it_is_moved_stays_deleted
        what_is_written_in_place_of_a_deleted_key_stays
        clients_meet_no_key_that_they_have_deleted
}

/// Clients, and the keys that each deletes.
const CLIENTS: usize = 4;
const DELETED: usize = 400;

/// A repair that has written all keys of a half-moved slot to the target, and removed none at the source.
struct Scene {
    cluster: Cluster,
    before: Snapshot,
    repair: Running,
    go_on: PathBuf,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new(engine: Engine) -> Scene {
        let cluster = start(engine);
        fill(&cluster);
        let before = everything(&cluster);
        half_move(&cluster);
        let folder = tempfile::tempdir().expect("a temporary directory");
        let go_on = folder.path().join("go-on");
        let repair = Invocation::new(&["repair", &cluster.seed(), "--yes"])
            .env("WHIMBREL_FAILPOINT_PAUSE", "remove-moved:before")
            .env("WHIMBREL_FAILPOINT_FILE", &go_on)
            .spawn();
        let reached = go_on.with_extension("reached");
        wait_until("keys are written and not yet removed", || reached.exists());
        Scene { cluster, before, repair, go_on, _folder: folder }
    }

    /// Deletes a key at the source, where writes are paused: for three seconds, if nobody ends that.
    fn delete_at_source(&self, key: &str) {
        let deleted: u64 = cmd("DEL").arg(key).query(&mut self.cluster.connection_to(0)).expect("deleted");
        assert_eq!(deleted, 1, "{key} was still there");
    }

    /// Lets the repair go on to its end.
    fn finish(&mut self) {
        std::fs::write(&self.go_on, "").expect("the folder is there");
        self.repair.wait(PATIENCE).expect("it ends").expect_code(SUCCESS);
        assert_sound(&self.cluster);
    }
}

fn half_move(cluster: &Cluster) {
    set_slot(cluster, 1, "IMPORTING", 0);
    set_slot(cluster, 0, "MIGRATING", 1);
    migrate(cluster, 0, 1, (0..KEYS).filter(|n| n % 5 == 3), false);
}

fn a_key_that_is_deleted_while_it_is_moved_stays_deleted(engine: Engine) {
    let mut scene = Scene::new(engine);
    let deleted = [key(SLOT, 10), key(SLOT, 12)];
    deleted.iter().for_each(|key| scene.delete_at_source(key));
    scene.finish();
    let after = everything(&scene.cluster);
    for key in &deleted {
        assert!(scene.before.keys.contains_key(key.as_bytes()), "{key}");
        assert!(!after.keys.contains_key(key.as_bytes()), "{engine}: {key} is back");
    }
    assert_eq!(after.keys.len(), scene.before.keys.len() - deleted.len(), "{engine}: no other is gone");
}

/// It has the same value as before: what counts is that it was written.
fn what_is_written_in_place_of_a_deleted_key_stays(engine: Engine) {
    let mut scene = Scene::new(engine);
    let key = key(SLOT, 5);
    scene.delete_at_source(&key);
    let mut target = scene.cluster.connection_to(1);
    let value = "x".repeat(500);
    assert_eq!(asking(&mut target, cmd("SET").arg(&key).arg(&value)), Value::Okay);
    scene.finish();
    let found: Option<String> = cmd("GET").arg(&key).query(&mut target).expect("the new owner answers");
    assert_eq!(found, Some(value), "{engine}");
    assert_eq!(everything(&scene.cluster).keys.len(), scene.before.keys.len(), "{engine}: no other is gone");
}

/// Each client has keys of its own, so it knows what each answer has to be.
fn clients_meet_no_key_that_they_have_deleted(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    let own = |client: usize, n: usize| key(SLOT, 1_000 + n * CLIENTS + client);
    let mut pipeline = redis::pipe();
    for n in 0..CLIENTS * DELETED {
        pipeline.cmd("SET").arg(key(SLOT, 1_000 + n)).arg("old").ignore();
    }
    pipeline.exec(&mut cluster.connection_to(0)).expect("the owner takes keys");
    half_move(&cluster);
    let left = keys_in_slot(&cluster, 0);
    let mut repair = Invocation::new(&["repair", &cluster.seed(), "--yes"]).spawn();
    wait_until("keys move", || keys_in_slot(&cluster, 0) < left);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let cluster = &cluster;
            scope.spawn(move || {
                let connection = cluster_client(cluster.seed()).get_connection();
                let mut connection = connection.expect("the cluster answers");
                (0..DELETED).for_each(|n| delete_and_create(&mut connection, &own(client, n)));
            });
        }
    });
    repair.wait(PATIENCE).expect("it ends").expect_code(SUCCESS);
    assert_sound(&cluster);
    let mut connection = cluster.connection_to(1);
    for n in 0..CLIENTS * DELETED {
        let key = key(SLOT, 1_000 + n);
        let found: Option<String> = cmd("GET").arg(&key).query(&mut connection).expect("it answers");
        assert_eq!(found.as_deref(), Some("1"), "{engine}: {key}");
    }
}

/// Any other answer is that of an older copy.
fn delete_and_create(connection: &mut ClusterConnection, key: &str) {
    let mut ask = |command: &str, more: &[&str]| -> Value {
        cmd(command).arg(key).arg(more).query(connection).expect("it is answered")
    };
    assert_eq!(ask("DEL", &[]), Value::Int(1), "{key} was there");
    assert_eq!(ask("SET", &["new", "NX"]), Value::Okay, "{key} was deleted");
    assert_eq!(ask("DEL", &[]), Value::Int(1), "{key} was there again");
    assert_eq!(ask("EXISTS", &[]), Value::Int(0), "{key} was deleted again");
    assert_eq!(ask("INCR", &[]), Value::Int(1), "{key} begins anew");
}
