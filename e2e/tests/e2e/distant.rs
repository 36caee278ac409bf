//! Slots move while whimbrel is far from the servers, and clients are near them: a round trip takes 20 ms,
//! and clients write all the while.

use std::time::{Duration, Instant};

use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::resharding::{MoveReport, PATIENCE, Scene};
use whimbrel_e2e::shards;
use whimbrel_judge::cluster_writers::{Load, tags_in};
use whimbrel_lab::{Engine, Proxy};

/// How long each byte is under way, in either direction.
const DELAY: Duration = Duration::from_millis(10);

/// Keys that nobody writes to.
const KEYS: usize = 4_000;

/// Commands that clients have done before slots move.
const WARM: u64 = 300;

/// Writers of every type on slots of the first node: about 200 commands per second.
fn load() -> Load {
    let pause = Duration::from_millis(20);
    Load { clients: 4, pause, ..Load::on(tags_in(0..=1023, 48)) }
}

/// A way to each node that takes its time, and the options that lead there.
fn far_from(scene: &Scene) -> (Vec<Proxy>, Vec<String>) {
    let addresses = shards::addresses(&scene.cluster);
    let proxies: Vec<Proxy> =
        addresses.iter().map(|address| Proxy::distant(address, DELAY).expect("a proxy starts")).collect();
    let mut args = Vec::new();
    for (address, proxy) in addresses.iter().zip(&proxies) {
        args.extend(["--map".to_owned(), format!("{address}={}", proxy.addr())]);
    }
    (proxies, args)
}

fn reshard(scene: &Scene, seed: &str, more: &[String]) -> Invocation {
    let state = scene.file("jobs").to_string_lossy().into_owned();
    let mut args: Vec<&str> = vec!["reshard", seed, "--slots", "0-1023", "--to", scene.cluster.node_id(1)];
    args.extend(["--yes", "--json", "--method", "external", "--state-dir", &state]);
    args.extend(more.iter().map(String::as_str));
    Invocation::new(&args).timeout(PATIENCE)
}

/// No pause is set: the one that round trips need is enough for the job to end, and nothing that was
/// acknowledged is lost. How long pauses were is shown, and depends on the machine.
fn slots_move_from_afar(engine: Engine) {
    let scene = Scene::of(engine, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    scene.fill(0..=1023, 500, KEYS);
    let before = scene.unwritten();
    let (proxies, maps) = far_from(&scene);
    let writers = scene.write(&load());
    assert!(writers.wait_for(WARM, PATIENCE), "the writers do not come to work");
    let deadline = Instant::now() + PATIENCE;
    let outcome = loop {
        let output = reshard(&scene, &proxies[0].addr(), &maps).run();
        // While a machine is so busy that round trips need more than the longest pause which nobody has to
        // allow, nothing is begun.
        let is_refused = output.code() == Some(4) && output.stdout.contains("a round trip takes");
        if !is_refused || Instant::now() > deadline {
            break MoveReport::of(output.expect_code(0));
        }
    };
    outcome.assert_done();
    assert!(writers.wait_for(WARM / 3, PATIENCE), "the writers stopped after {:#}", outcome.report);
    let owned = shards::slots_of(&scene.cluster, 1).unwrap();
    assert!((0..=1023).all(|slot| owned.contains(&slot)), "{:#}", outcome.report);
    let record = writers.stop();
    eprintln!("{engine}: {}, {:#}", record.observed, outcome.report["pauses"]);
    eprintln!("{}", outcome.output.stderr);
    record.observed.assert_only_redirected();
    scene.assert_kept(&record);
    scene.assert_unchanged(&before);
}

/// What cannot fit is refused with the figures before anything is staged, and slows nobody down.
fn a_pause_that_round_trips_do_not_fit_into_is_refused(engine: Engine) {
    let scene = Scene::of(engine, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    let (proxies, mut args) = far_from(&scene);
    args.extend(["--max-pause".to_owned(), "100ms".to_owned()]);
    let output = reshard(&scene, &proxies[0].addr(), &args).run();
    let stdout = output.expect_code(4).stdout;
    assert!(stdout.contains("a round trip takes") && stdout.contains("100 ms are allowed"), "{stdout}");
    assert!((0..=1023).all(|slot| shards::slots_of(&scene.cluster, 0).unwrap().contains(&slot)));
}

whimbrel_lab::for_each_engine! {
    slots_move_from_afar
}

whimbrel_lab::for_each_engine! {
    on Redis70: a_pause_that_round_trips_do_not_fit_into_is_refused
}
