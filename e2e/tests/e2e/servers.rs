//! Every server with every task. What the README's table says of a server is what is run here; servers
//! between the ends of a range belong to the tier `all`.

use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_e2e::resharding::{MoveReport, PATIENCE, Scene};
use whimbrel_e2e::shards;
use whimbrel_e2e::syncing::{Sync, deployment, report, wait_until_following, writers};
use whimbrel_lab::{Engine, Server};

/// What each is paired with.
const OTHER: Engine = Engine::Redis70;

const REFUSED: i32 = 4;

fn whimbrel(args: &[&str]) -> Output {
    let state = tempfile::tempdir().expect("a folder for journals");
    Invocation::new(args).env("XDG_STATE_HOME", state.path()).timeout(PATIENCE).run()
}

fn start(engine: Engine) -> Server {
    Server::builder(engine).start().expect("the server starts")
}

/// Keys of every type that all servers have.
fn fill(server: &Server) {
    let mut pipe = redis::pipe();
    for number in 0..500 {
        pipe.cmd("SET").arg(format!("string:{number}")).arg(number).ignore();
        pipe.cmd("SET").arg(format!("fades:{number}")).arg(number).arg("PX").arg(3_600_000 + number).ignore();
        pipe.cmd("RPUSH").arg(format!("list:{number}")).arg("one").arg(number).ignore();
        pipe.cmd("SADD").arg(format!("set:{number}")).arg("one").arg(number).ignore();
        pipe.cmd("ZADD").arg(format!("sorted:{number}")).arg(number).arg("one").ignore();
        pipe.cmd("HSET").arg(format!("hash:{number}")).arg("field").arg(number).ignore();
        pipe.cmd("XADD").arg(format!("stream:{number}")).arg("*").arg("field").arg(number).ignore();
    }
    pipe.exec(&mut server.connection()).expect("the server takes them");
}

fn keys_are_copied_from_it_and_to_it(engine: Engine) {
    for (from, to) in [(engine, OTHER), (OTHER, engine)] {
        let (source, target) = (start(from), start(to));
        fill(&source);
        let copied = report(&whimbrel(&["copy", &source.addr(), &target.addr(), "--json"]).expect_code(0));
        assert_eq!(copied["report"]["counts"]["written"], 3_500, "{from} to {to}: {copied}");
        whimbrel(&["verify", &source.addr(), &target.addr()]).expect_code(0);
    }
}

fn a_sync_leaves_it_and_leads_to_it(engine: Engine) {
    for (from, to) in [(engine, OTHER), (OTHER, engine)] {
        let (source, target) = (start(from), start(to));
        fill(&source);
        let writers = writers(&[source.addr()], "servers");
        let job = Sync::new(&source.addr(), &target.addr(), &[]);
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        // A server that cannot pause writes alone says so beforehand.
        let by_pause = job.cutover_under_writers(&["--fence", "pause", "--dry-run", "--max-pause", "20s"]);
        by_pause.expect_code(if from == Engine::Redis60 { REFUSED } else { 0 });
        assert!(writers.wait_for(400, PATIENCE), "the writers made no progress");
        let record = writers.stop();
        job.cutover(&["--fence", "external", "--quiet-for", "1s"]).expect_code(0);
        sync.wait(PATIENCE).expect("it ends").expect_code(0);
        // What compares histories needs absolute expiries at the target.
        if !matches!(to, Engine::Redis60 | Engine::Redis62) {
            record.assert_kept(&deployment(target.addr()));
        }
        whimbrel(&["verify", &source.addr(), &target.addr()]).expect_code(0);
    }
}

fn its_slots_move_from_outside(engine: Engine) {
    let scene = Scene::of(engine, 1, &[vec![0..=8191], vec![8192..=16383]]).start();
    scene.fill(0..=1023, 64, 2_000);
    let before = scene.unwritten();
    let writers = scene.writers(0..=1023);
    assert!(writers.wait_for(1_000, PATIENCE), "the writers do not come to work");
    for target in [1, 0] {
        let outcome = MoveReport::by(scene.reshard("0-1023", target, &["--method", "external"]).spawn());
        outcome.assert_done();
        let owned = shards::slots_of(&scene.cluster, target).expect("the nodes answer");
        assert!((0..=1023).all(|slot| owned.contains(&slot)), "{engine}: they are not there");
        assert!(writers.wait_for(500, PATIENCE), "the writers stopped after {:#}", outcome.report);
    }
    scene.assert_kept(&writers.stop());
    scene.assert_unchanged(&before);
}

/// Without clients: what keeps and compares histories needs commands of Redis 7.0.
fn slots_of_redis_6_2_move_from_outside(engine: Engine) {
    let scene = Scene::of(engine, 1, &[vec![0..=8191], vec![8192..=16383]]).start();
    scene.fill(0..=1023, 64, 2_000);
    let keys = || scene.cluster.total_keys().expect("the nodes answer");
    let before = keys();
    assert!(before > 0);
    for target in [1, 0] {
        MoveReport::by(scene.reshard("0-1023", target, &["--method", "external"]).spawn()).assert_done();
        let owned = shards::slots_of(&scene.cluster, target).expect("the nodes answer");
        assert!((0..=1023).all(|slot| owned.contains(&slot)), "{engine}: they are not there");
        assert_eq!(keys(), before);
    }
}

/// Refused before anything is marked.
fn its_slots_do_not_move(engine: Engine) {
    let scene = Scene::of(engine, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    let refused = scene.reshard("0-1023", 1, &["--method", "external"]).run();
    assert_eq!(refused.code(), Some(REFUSED), "{refused:#?}");
    shards::assert_sound(&scene.cluster);
}

whimbrel_lab::for_each_engine! {
    on Redis60 Redis86:
        keys_are_copied_from_it_and_to_it
        a_sync_leaves_it_and_leads_to_it
}

whimbrel_lab::for_each_engine! {
    on Redis60:
        its_slots_do_not_move
}

whimbrel_lab::for_each_engine! {
    on Redis86:
        its_slots_move_from_outside
}

/// The others, which the tier `all` runs. The names differ: those above are modules as well.
mod matrix {
    use whimbrel_lab::Engine;

    fn keys_are_copied(engine: Engine) {
        super::keys_are_copied_from_it_and_to_it(engine);
    }

    fn a_sync_leaves_it(engine: Engine) {
        super::a_sync_leaves_it_and_leads_to_it(engine);
    }

    fn its_slots_move(engine: Engine) {
        match engine {
            Engine::Redis62 => super::slots_of_redis_6_2_move_from_outside(engine),
            _ => super::its_slots_move_from_outside(engine),
        }
    }

    whimbrel_lab::for_each_engine! {
        on Redis62 Redis70 Redis72 Redis74 Redis80 Redis82 Valkey80 Valkey81 Valkey90 Valkey91:
            keys_are_copied
            a_sync_leaves_it
            its_slots_move
    }
}
