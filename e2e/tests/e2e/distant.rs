//! Slots move while whimbrel is far from the servers, and clients are near them: a round trip takes 20 ms,
//! and clients write all the while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::cluster_writers::{Load, tags_in};
use whimbrel_e2e::resharding::{PATIENCE, Scene, Told};
use whimbrel_e2e::shards;
use whimbrel_lab::{Engine, Proxy};

/// How long each byte is under way, in either direction.
const DELAY: Duration = Duration::from_millis(10);

/// Keys that nobody writes to.
const KEYS: usize = 4_000;

/// Commands that clients have done before slots move.
const WARM: u64 = 300;

/// How long a thread sleeps that finds out how late it is woken.
const NAP: Duration = Duration::from_millis(2);

/// A pause crosses the machine's scheduler some dozens of times: the proxies, the servers, whimbrel. So many
/// of the longest stalls that a thread saw meanwhile are no fault of the job's.
const STALLS: u64 = 4;

/// Writers of every type on slots of the first node: about 200 commands per second.
fn load() -> Load {
    let pause = Duration::from_millis(20);
    Load { clients: 4, pause, ..Load::on(tags_in(0..=1023, 48)) }
}

/// Finds out for how long at most this machine left a thread waiting that was due.
struct Stalls {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Stalls {
    fn watch() -> Stalls {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::sleep(NAP);
                longest = longest.max(began.elapsed().saturating_sub(NAP));
            }
            longest
        });
        Stalls { stop, thread }
    }

    fn longest(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only sleeps")
    }
}

/// Panics unless no pause was longer than the plan allowed, but for stalls of the machine.
#[track_caller]
fn assert_pauses_kept(told: &Told, stalls: Duration) {
    let plan = told.output.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let plan = plan.into_iter().find(|line| line["event"] == "plan").expect("a plan comes first");
    let allowed_ms = plan["max_pause_ms"].as_u64().expect("an external move has a longest pause");
    let longest_ms = told.report["pauses"]["longest_ms"].as_u64().expect("a report tells its pauses");
    let slack_ms = STALLS * u64::try_from(stalls.as_millis()).expect("a short time");
    eprintln!("{longest_ms} ms of {allowed_ms} ms, stalls of {stalls:?}");
    assert!(
        longest_ms <= allowed_ms + slack_ms,
        "a pause of {longest_ms} ms, {allowed_ms} ms are allowed, stalls of {stalls:?}: {:#}\n{}",
        told.report,
        told.output.stderr,
    );
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

/// Nothing is told to it: the pause is what round trips need, and nothing that was acknowledged is lost.
fn slots_move_from_afar(engine: Engine) {
    let scene = Scene::of(engine, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    scene.fill(0..=1023, 500, KEYS);
    let before = scene.unwritten();
    let (proxies, maps) = far_from(&scene);
    let writers = scene.write(&load());
    assert!(writers.wait_for(WARM, PATIENCE), "the writers do not come to work");
    let stalls = Stalls::watch();
    let told = Told::by(reshard(&scene, &proxies[0].addr(), &maps).spawn());
    let stalls = stalls.longest();
    told.assert_done();
    assert!(writers.wait_for(WARM / 3, PATIENCE), "the writers stopped after {:#}", told.report);
    let owned = shards::slots_of(&scene.cluster, 1).unwrap();
    assert!((0..=1023).all(|slot| owned.contains(&slot)), "{:#}", told.report);
    let record = writers.stop();
    eprintln!("{engine}: {}, {:#}", record.observed, told.report["pauses"]);
    eprintln!("{}", told.output.stderr);
    assert_pauses_kept(&told, stalls);
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
    let told = output.expect_code(4).stdout;
    assert!(told.contains("a round trip takes") && told.contains("100 ms are allowed"), "{told}");
    assert!((0..=1023).all(|slot| shards::slots_of(&scene.cluster, 0).unwrap().contains(&slot)));
}

whimbrel_lab::for_each_engine! {
    slots_move_from_afar
}

whimbrel_lab::for_each_engine! {
    on Redis70: a_pause_that_round_trips_do_not_fit_into_is_refused
}
