//! Processes of a fleet die, stand still and come back, links are cut and data moves: nothing is lost.

use std::time::{Duration, Instant};

use redis::Connection;
use whimbrel_e2e::fleets::{Fleet, connect};
use whimbrel_judge::cluster_writers::ClusterWriters;
use whimbrel_lab::{Cluster, Engine, Proxy, until};

use super::load::*;
use super::{owners, server};

/// What is done to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillMember,
    /// Longer than its lease: its slots are others' when it goes on.
    StopMember,
    /// From all coordinators, for as long.
    CutMember,
    /// The same, and nobody is notified: nothing passes any more.
    StallMember,
    KillCoordinator,
    StopCoordinator,
    /// Its slots go to others, and come back.
    Drain,
    KillEtcd,
    StopEtcd,
    /// A coordinator from all servers of etcd, longer than its reign.
    CutCoordinator,
    StallCoordinator,
}

const FAULTS: [Fault; 7] = [
    Fault::KillMember,
    Fault::StopMember,
    Fault::KillCoordinator,
    Fault::CutMember,
    Fault::StopCoordinator,
    Fault::StallMember,
    Fault::Drain,
];

const FAULTS_OF_ETCD: [Fault; 4] =
    [Fault::KillEtcd, Fault::StopEtcd, Fault::CutCoordinator, Fault::StallCoordinator];

/// Longer than any lease, and any reign, of these tests.
const LONG: Duration = Duration::from_secs(5);

/// Shorter than any lease.
const SHORT: Duration = Duration::from_secs(1);

/// What people wish meanwhile, one after another, where there are two backends.
const WISHES: [&[&str]; 5] = [
    &["join", "--backend", "second"],
    &["drain", "--backend", "main"],
    &["join", "--backend", "main"],
    &["join", "--backend", "second", "--weight", "3"],
    &["drain", "--backend", "second"],
];

/// How long a probe waits for an answer.
const PROBE_PATIENCE: Duration = Duration::from_millis(250);

/// Without it the probes would take the processors that the fleet needs.
const BETWEEN_PROBES: Duration = Duration::from_millis(100);

/// The time from now until somebody among these has answered for each list.
#[track_caller]
fn all_answered(through: &[String]) -> Duration {
    let began = Instant::now();
    let mut connections: Vec<Option<Connection>> = through.iter().map(|_| None).collect();
    for list in 0..LISTS {
        let mut at = list;
        until("a list is answered", || {
            at += 1;
            let connection = &mut connections[at % through.len()];
            if connection.is_none() {
                *connection = connect(&through[at % through.len()]).ok();
                if let Some(open) = connection {
                    open.set_read_timeout(Some(PROBE_PATIENCE)).expect("a socket");
                }
            }
            let answer: redis::RedisResult<u64> =
                redis::cmd("LLEN").arg(name(list)).query(connection.as_mut()?);
            if answer.is_err() {
                *connection = None;
            }
            answer.ok()
        });
    }
    began.elapsed()
}

/// The longest time that somebody had to wait for an answer for each list, while it is asked again and again
/// for at least so long.
#[track_caller]
fn longest_wait(through: &[String], lasts: Duration) -> Duration {
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < lasts || longest.is_zero() {
        longest = longest.max(all_answered(through));
        std::thread::sleep(BETWEEN_PROBES);
    }
    longest
}

/// Does all faults in turn, to victims by chance, for as long as `lasts`. Returns the longest time after each
/// in which there was no answer for each list. With two backends data moves between them meanwhile.
fn disturb(fleet: &mut Fleet, appenders: &Appenders, lasts: Duration, moves: bool) -> Vec<(Fault, Duration)> {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = seed;
    let mut chance = |most: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % most
    };
    let faults: Vec<Fault> =
        FAULTS.into_iter().chain(FAULTS_OF_ETCD.into_iter().filter(|_| fleet.etcd.is_some())).collect();
    let (began, mut waits) = (Instant::now(), Vec::new());
    for (number, fault) in faults.iter().copied().cycle().enumerate() {
        if began.elapsed() > lasts && waits.len() >= faults.len() {
            break;
        }
        if moves {
            // Where nobody leads at the moment it is wished the next time.
            fleet.command(&[WISHES[number % WISHES.len()], &["--no-wait"]].concat());
        }
        let (member, coordinator, node) = (chance(3), chance(fleet.coordinators.len()), chance(3));
        // Not through the victim.
        let is_members = !matches!(
            fault,
            Fault::KillCoordinator
                | Fault::StopCoordinator
                | Fault::CutCoordinator
                | Fault::StallCoordinator
                | Fault::KillEtcd
                | Fault::StopEtcd
                | Fault::Drain
        );
        let others = fleet.members.iter().enumerate().filter(|(at, _)| !is_members || *at != member);
        let others: Vec<String> = others.map(|(_, member)| member.forwarding()).collect();
        let took =
            fault_and_back(fleet, fault, (member, coordinator, node), &|lasts| longest_wait(&others, lasts));
        waits.push((fault, took));
        appenders.wait_for(300);
    }
    waits
}

/// Does something to a victim, has `answered` look for a while, and undoes it.
fn fault_and_back(
    fleet: &mut Fleet,
    fault: Fault,
    (member, coordinator, node): (usize, usize, usize),
    answered: &dyn Fn(Duration) -> Duration,
) -> Duration {
    // Of several coordinators another one leads when it goes on. Where it is the only one, what was moving
    // waits for it, and all others for as long as leases last: it is looked afterwards.
    let is_only = fleet.etcd.is_none();
    let meanwhile = || match is_only {
        true => {
            std::thread::sleep(SHORT);
            Duration::ZERO
        }
        false => answered(LONG),
    };
    let afterwards = |took: Duration| if is_only { answered(SHORT) } else { took };
    match fault {
        Fault::KillMember => {
            fleet.members[member].kill9();
            let took = answered(SHORT);
            fleet.members[member].run_again();
            took
        }
        Fault::StopMember => {
            fleet.members[member].suspend();
            let took = answered(LONG);
            fleet.members[member].resume();
            took
        }
        Fault::CutMember | Fault::CutCoordinator => {
            let links = links_of(fleet, fault == Fault::CutMember, member, coordinator);
            links.iter().for_each(Proxy::cut);
            let took = answered(LONG);
            links.iter().for_each(|link| link.heal().expect("it listens again"));
            took
        }
        Fault::StallMember | Fault::StallCoordinator => {
            let links = links_of(fleet, fault == Fault::StallMember, member, coordinator);
            links.iter().for_each(Proxy::stall);
            let took = answered(LONG);
            links.iter().for_each(Proxy::go_on);
            took
        }
        Fault::KillCoordinator => {
            fleet.coordinators[coordinator].kill9();
            let took = meanwhile();
            fleet.coordinators[coordinator].run_again();
            afterwards(took)
        }
        Fault::StopCoordinator => {
            fleet.coordinators[coordinator].suspend();
            let took = meanwhile();
            fleet.coordinators[coordinator].resume();
            afterwards(took)
        }
        Fault::Drain => {
            let name = format!("front-{member}");
            fleet.command(&["drain", &name, "--no-wait"]);
            let took = answered(SHORT);
            fleet.command(&["join", &name, "--no-wait"]);
            took
        }
        Fault::KillEtcd => {
            let node = &fleet.etcd.as_ref().expect("an etcd").nodes()[node];
            node.kill9().expect("killed");
            let took = answered(SHORT);
            node.restart().expect("it runs again");
            took
        }
        Fault::StopEtcd => {
            let node = &fleet.etcd.as_ref().expect("an etcd").nodes()[node];
            node.suspend().expect("suspended");
            let took = answered(LONG);
            node.resume().expect("resumed");
            took
        }
    }
}

/// By which a member reaches coordinators, or a coordinator etcd.
fn links_of(fleet: &Fleet, of_member: bool, member: usize, coordinator: usize) -> &[Proxy] {
    if of_member { fleet.members[member].links() } else { fleet.coordinators[coordinator].links() }
}

fn nothing_is_lost(mut fleet: Fleet, lasts: Duration, moves: bool) {
    owners(&fleet);
    let through: Vec<String> = fleet.members.iter().map(|member| member.forwarding()).collect();
    let writers = ClusterWriters::start(&fleet.addresses(), &load());
    let appenders = Appenders::start(through, 16, Duration::from_secs(1));
    let waits = disturb(&mut fleet, &appenders, lasts, moves);
    for member in 0..3 {
        until("it takes its part again", || {
            let output = fleet.command(&["join", &format!("front-{member}"), "--no-wait"]);
            (output.code() == Some(0)).then_some(())
        });
    }
    let status = fleet.settled(3);
    owners(&fleet);
    fleet.assert_kept(&writers.stop());
    let acknowledged = appenders.check(&mut fleet.members[0].connect_forwarding());
    for fault in FAULTS.into_iter().chain(FAULTS_OF_ETCD) {
        let mut of_one: Vec<Duration> =
            waits.iter().filter(|(of, _)| *of == fault).map(|(_, took)| *took).collect();
        of_one.sort();
        if let Some(longest) = of_one.last() {
            let median = of_one[of_one.len() / 2];
            println!(
                "{fault:?}: {} times, a list had no answer for {median:?}, {longest:?} at most",
                of_one.len()
            );
        }
    }
    let moved = &status["fleet"]["moved"];
    println!(
        "{} faults, {acknowledged} appended, {moved} moves since the last coordinator began",
        waits.len()
    );
    assert!(acknowledged > 1_000, "{acknowledged}");
}

#[test]
fn nothing_is_lost_when_processes_die_stand_still_and_come_back() {
    let backend = server(Engine::Redis70);
    let fleet = Fleet::start(&backend.addr(), 3, &["--lease", "3s"]);
    nothing_is_lost(fleet, Duration::from_secs(15), false);
}

/// Another coordinator leads within the lease of members, so clients notice nothing of that.
const ON_ETCD: [&str; 4] = ["--reign", "2s", "--lease", "4s"];

#[test]
fn nothing_is_lost_when_one_of_three_coordinators_or_of_three_servers_of_etcd_dies() {
    let backend = server(Engine::Valkey91);
    // Each partition has one that stands by, and takes over from a member that is dead.
    let more = [&ON_ETCD[..], &["--copies", "2", "--dead-when-refused", "--partitions", "4096"]].concat();
    let fleet = Fleet::start_on_etcd(&backend.addr(), 3, &more);
    nothing_is_lost(fleet, Duration::from_secs(15), false);
}

/// A fleet on etcd with two backends, each of which is a cluster of one node.
fn of_two_backends(engine: Engine, partitions: &str) -> (Cluster, Cluster, Fleet) {
    let backend = || Cluster::builder(engine).primaries(1).start().expect("a cluster");
    let (first, second) = (backend(), backend());
    let at = format!("second={}", second.seed());
    let more = [&ON_ETCD[..], &["--backend", &at, "--partitions", partitions]].concat();
    let fleet = Fleet::start_on_etcd(&first.seed(), 3, &more);
    (first, second, fleet)
}

#[test]
fn nothing_is_lost_while_data_moves_and_everything_fails() {
    let (_first, _second, fleet) = of_two_backends(Engine::Redis80, "1999");
    nothing_is_lost(fleet, Duration::from_secs(15), true);
}

#[test]
#[ignore = "ten minutes"]
fn soak_nothing_is_lost_in_ten_minutes() {
    let (_first, _second, fleet) = of_two_backends(Engine::Redis70, "16384");
    nothing_is_lost(fleet, Duration::from_secs(600), true);
}
