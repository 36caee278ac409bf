//! Members that stand by for others, and members that are known to be dead. The lease is longer than any test
//! waits, so what is served again is not so because a lease has ended.

use std::sync::atomic::Ordering;
use std::time::Duration;

use whimbrel_e2e::fleets::{Fleet, PATIENCE};
use whimbrel_judge::deployment::slot_of;
use whimbrel_lab::{Engine, Server, until};

use super::load::Appenders;
use super::{owners, server, text};

const LEASE: &str = "10m";

/// Each partition has one that stands by, and a member that refuses connections is dead.
const STAND_BY: [&str; 5] = ["--lease", LEASE, "--copies", "2", "--dead-when-refused"];

/// Members, and partitions that nobody has.
fn counted(fleet: &Fleet) -> Option<(usize, u64)> {
    let status = fleet.status()?;
    Some((status["fleet"]["members"].as_array()?.len(), status["fleet"]["unowned"].as_u64()?))
}

#[test]
fn what_a_killed_member_had_is_served_at_once() {
    let backend = server(Engine::Redis70);
    is_served_at_once(&backend, Fleet::start(&backend.addr(), 3, &STAND_BY), 16_384);
}

/// Each time another one of three coordinators has died before, among them the one that leads.
#[test]
fn what_a_killed_member_had_is_served_whichever_coordinator_leads() {
    // Fewer partitions than usual: etcd has to write down each that goes to another member.
    whichever_leads(4_096);
}

mod matrix {
    #[test]
    fn what_a_killed_member_had_is_served_whichever_coordinator_leads() {
        super::whichever_leads(16_384);
    }
}

#[track_caller]
fn whichever_leads(partitions: u64) {
    let backend = server(Engine::Valkey91);
    let number = partitions.to_string();
    let more = [&STAND_BY[..], &["--reign", "2s", "--partitions", &number]].concat();
    is_served_at_once(&backend, Fleet::start_on_etcd(&backend.addr(), 3, &more), partitions);
}

#[track_caller]
fn is_served_at_once(backend: &Server, mut fleet: Fleet, partitions: u64) {
    let through = fleet.members.iter().map(|member| member.forwarding()).collect();
    let appenders = Appenders::start(through, 6, Duration::from_secs(1));
    appenders.wait_for(200);
    for round in 0..3 {
        until("each partition has one that stands by", || {
            let status = fleet.settled(3);
            let members = status["fleet"]["members"].as_array().expect("members").clone();
            let stand_by: u64 = members.iter().filter_map(|member| member["stands_by"].as_u64()).sum();
            (stand_by == partitions).then_some(())
        });
        let several = fleet.coordinators.len() > 1;
        if several {
            fleet.coordinators[round].kill9();
            until("its members are with the one that leads", || {
                let status = fleet.status()?;
                let members = status["fleet"]["members"].as_array()?.clone();
                members.iter().all(|member| member["connected"] == true).then_some(())
            });
            appenders.wait_for(200);
        }
        fleet.members[round].kill9();
        until("others have what it had", || counted(&fleet).filter(|counted| *counted == (2, 0)));
        appenders.wait_for(200);
        fleet.members[round].run_again();
        if several {
            fleet.coordinators[round].run_again();
        }
    }
    fleet.settled(3);
    appenders.wait_for(200);
    assert!(appenders.troubles.load(Ordering::Relaxed) > 0, "nobody noticed that a front was killed");
    let acknowledged = appenders.check(&mut backend.connection());
    assert!(acknowledged > 500, "{acknowledged}");
}

/// A front that lives, and has only lost its connection, is not taken for dead: it listens.
#[test]
fn a_member_that_is_cut_off_is_not_taken_for_dead() {
    let backend = server(Engine::Redis70);
    let fleet = Fleet::start(&backend.addr(), 2, &["--lease", LEASE, "--dead-when-refused"]);
    let numbers = |fleet: &Fleet| -> Option<Vec<u64>> {
        let status = fleet.status()?;
        status["fleet"]["members"].as_array()?.iter().map(|member| member["member"].as_u64()).collect()
    };
    let before = numbers(&fleet).expect("two members");
    for link in fleet.members[0].links() {
        link.cut();
        link.heal().expect("it is there again");
    }
    until("it has lost its connection and has another", || {
        let status = fleet.status()?;
        let members = status["fleet"]["members"].as_array()?.clone();
        members.iter().all(|member| member["connected"] == true).then_some(())
    });
    fleet.settled(2);
    assert_eq!(numbers(&fleet), Some(before), "it is another member now");
}

#[test]
fn who_is_called_dead_loses_its_slots_at_once_and_who_lives_does_not() {
    let backend = server(Engine::Valkey91);
    let mut fleet = Fleet::start(&backend.addr(), 2, &["--lease", LEASE]);
    let owner = owners(&fleet)[usize::from(slot_of(b"k"))];
    let name = format!("front-{owner}");
    let mut through = fleet.members[1 - owner].connect_forwarding();
    assert_eq!(text(&mut through, "SET k v"), "OK");
    for how in ["--dry-run", "--yes"] {
        let refused = fleet.command(&["dead", &name, how]);
        assert_eq!(refused.code(), Some(4), "{how}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stdout.contains("may not be dead"), "{how}: {}", refused.stdout);
    }
    fleet.members[owner].kill9();
    until("its connection has ended", || {
        let status = fleet.status()?;
        let members = status["fleet"]["members"].as_array()?.clone();
        members.iter().any(|member| member["connected"] == false).then_some(())
    });
    fleet.command(&["dead", &name, "--dry-run"]).expect_code(0);
    assert_eq!(counted(&fleet), Some((2, 0)), "a dry run changes nothing");
    fleet.command(&["dead", &name, "--yes"]).expect_code(0);
    let mut again = fleet.members[1 - owner].connect_forwarding();
    again.set_read_timeout(Some(PATIENCE)).expect("a socket");
    until("the other one serves its slots", || (text(&mut again, "GET k") == "v").then_some(()));
    fleet.command(&["dead", &name, "--yes"]).expect_code(2);
}
