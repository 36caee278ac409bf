//! Several coordinators on one etcd: all of them real processes, which are killed and stopped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde_json::Value;
use whimbrel_core::fleet::{MemberId, Order, Report, ToCoordinator};
use whimbrel_engine::clock;
use whimbrel_fleet::protocol::{FromCoordinator, FromMember, Hello};
use whimbrel_lab::{Etcd, until};

use super::{PARTITIONS, PATIENCE, Process, shared_out, text, whimbrel};

/// One of several coordinators.
struct Candidate {
    child: Child,
    address: String,
    printed: Arc<Mutex<Vec<Value>>>,
}

fn serve(store: &str, options: &[&str]) -> Command {
    let mut command = whimbrel(&["serve", "--fleet", "--json", "--listen", "127.0.0.1:0", "--store", store]);
    if !options.contains(&"--partitions") {
        command.args(["--partitions", &PARTITIONS.to_string()]);
    }
    command.args(options);
    command.env_remove("WHIMBREL_STORE_PASSWORD");
    command
}

impl Candidate {
    fn start(etcd: &Etcd, options: &[&str]) -> Candidate {
        Candidate::of(serve(&format!("etcd://{}", etcd.addrs()), options))
    }

    fn of(mut command: Command) -> Candidate {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let printed = Arc::new(Mutex::new(Vec::new()));
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let heard = printed.clone();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("JSON");
                heard.lock().push(line);
            }
        });
        let mut candidate = Candidate { child, address: String::new(), printed };
        let serving = until("it serves", || candidate.find(|line| line["event"] == "serving"));
        candidate.address = serving["address"].as_str().expect("an address").to_owned();
        candidate
    }

    fn find(&self, what: impl Fn(&Value) -> bool) -> Option<Value> {
        self.printed.lock().iter().find(|line| what(line)).cloned()
    }

    /// Whether it has said that it leads in this term.
    fn has_led(&self, term: u64) -> bool {
        self.find(|line| line["event"] == "leads" && line["term"] == term).is_some()
    }

    fn stands_by_under(&self, leader: &str) -> bool {
        self.find(|line| line["event"] == "stands-by" && line["leader"] == leader).is_some()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")), signal).expect("it is there");
    }

    /// What `whimbrel fleet status` says of this one alone.
    fn asked(&self) -> Output {
        whimbrel(&["fleet", "status", "--server", &self.address]).output().expect("it runs")
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn status(servers: &str) -> Option<Value> {
    let output = whimbrel(&["fleet", "status", "--json", "--server", servers]).output().expect("it runs");
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    (status["event"] == "fleet").then_some(status)
}

/// Waits until this many members have their parts and equal tables.
#[track_caller]
fn settled(servers: &str, members: usize) -> Value {
    until("all have their parts", || {
        let status = status(servers)?;
        let all = status["fleet"]["members"].as_array().map(Vec::len);
        (status["settled"] == true && all == Some(members)).then(|| status["fleet"].clone())
    })
}

fn numbers(fleet: &Value) -> Vec<u64> {
    let members = fleet["members"].as_array().into_iter().flatten();
    members.filter_map(|member| member["member"].as_u64()).collect()
}

fn addresses(candidates: &[&Candidate]) -> String {
    let addresses: Vec<&str> = candidates.iter().map(|candidate| candidate.address.as_str()).collect();
    addresses.join(",")
}

/// Starts coordinators one after the other: the first one leads.
fn several<const N: usize>(etcd: &Etcd, options: &[&str]) -> [Candidate; N] {
    std::array::from_fn(|at| {
        let candidate = Candidate::start(etcd, options);
        if at == 0 {
            until("the first one leads", || candidate.has_led(1).then_some(()));
        }
        candidate
    })
}

#[test]
fn another_coordinator_goes_on_from_what_a_killed_one_wrote_down() {
    let etcd = Etcd::start(1).expect("etcd");
    let [mut first, second] = several(&etcd, &["--lease", "60s", "--reign", "5s"]);
    until("the other one stands by", || second.stands_by_under(&first.address).then_some(()));
    let refused = second.asked();
    assert_eq!(refused.status.code(), Some(4));
    let expected = format!("NOTLEADER {}", first.address);
    assert!(text(&refused.stderr).contains(&expected), "{}", text(&refused.stderr));
    let servers = addresses(&[&second, &first]);
    let [mut a, mut b] = ["a", "b"].map(|name| Process::of_any(&servers, name));
    let before = settled(&servers, 2);
    let had = (a.serves(), b.serves());
    first.child.kill().expect("it runs");
    first.child.wait().expect("it ends");
    until("the other one leads", || {
        assert_eq!((a.serves(), b.serves()), had, "they go on meanwhile");
        second.has_led(2).then_some(())
    });
    let after = settled(&servers, 2);
    assert_eq!((&after["term"], &after["stamp"]), (&Value::from(2), &before["stamp"]));
    assert_eq!(numbers(&after), [1, 2], "they are the same members");
    assert_eq!((a.serves(), b.serves()), had);
    // One that is asked to end does not keep the next one waiting, and does not lead any more.
    let third = Candidate::start(&etcd, &["--lease", "60s", "--reign", "600s"]);
    until("it stands by", || third.stands_by_under(&second.address).then_some(()));
    second.signal(Signal::SIGTERM);
    until("the third one leads", || third.has_led(3).then_some(()));
    assert_eq!((a.serves(), b.serves()), had);
}

#[test]
fn with_three_of_each_one_may_be_killed_at_a_time() {
    let etcd = Etcd::start(3).expect("etcd");
    // A reign in which a busy machine elects another leader of etcd.
    let options = ["--lease", "40s", "--reign", "12s"];
    let [mut first, second, third] = several(&etcd, &options);
    let servers = addresses(&[&first, &second, &third]);
    let [mut a, mut b] = ["a", "b"].map(|name| Process::of_any(&servers, name));
    settled(&servers, 2);
    // etcd's own leader: nothing ends, and members still join.
    let node = etcd.leader().expect("one leads");
    etcd.nodes()[node].kill9().expect("killed");
    let mut c = Process::of_any(&servers, "c");
    assert_eq!(settled(&servers, 3)["term"], 1, "the coordinator is the same");
    shared_out(&mut [&mut a, &mut b, &mut c]);
    etcd.nodes()[node].restart().expect("it is there again");
    // The coordinator, while partitions move.
    let mut d = Process::of_any(&servers, "d");
    until("it is a member", || (numbers(&status(&servers)?["fleet"]).len() == 4).then_some(()));
    first.child.kill().expect("it runs");
    first.child.wait().expect("it ends");
    let fleet = settled(&servers, 4);
    assert_eq!((&fleet["term"], numbers(&fleet)), (&Value::from(2), vec![1, 2, 3, 4]));
    assert!(second.has_led(2) != third.has_led(2), "one of the others leads");
    shared_out(&mut [&mut a, &mut b, &mut c, &mut d]);
    assert_eq!([&mut a, &mut b, &mut c, &mut d].map(|member| member.serves().len()), [12; 4]);
}

/// A connection of a member whose frames are written and read here.
struct Wire(TcpStream);

impl Wire {
    fn connect(address: &str) -> Wire {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.write_all(b"*3\r\n$5\r\nFLEET\r\n$6\r\nMEMBER\r\n$1\r\n2\r\n").expect("it listens");
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).expect("it answers");
        assert_eq!(&reply, b"+OK\r\n");
        Wire(stream)
    }

    fn send(&mut self, frame: &FromMember) {
        let mut bytes = Vec::new();
        whimbrel_fleet::frame::put(&mut bytes, frame.kind(), |out| frame.encode(out));
        self.0.write_all(&bytes).expect("it takes it in");
    }

    fn report(&mut self, member: MemberId, term: u64, body: Report) {
        self.send(&FromMember::Message(ToCoordinator { member, term, body }));
    }

    /// What it is sent next; none where the connection has ended.
    fn hear(&mut self) -> Option<FromCoordinator> {
        let mut head = [0; 5];
        self.0.read_exact(&mut head).ok()?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let mut bytes = vec![0; length as usize];
        self.0.read_exact(&mut bytes).ok()?;
        Some(FromCoordinator::decode(head[4], &bytes).expect("a frame"))
    }

    fn order(&mut self, is_wanted: impl Fn(&Order) -> bool) -> Order {
        loop {
            match self.hear().expect("the connection is there") {
                FromCoordinator::Message(message) if is_wanted(&message.body) => return message.body,
                _ => {}
            }
        }
    }
}

#[test]
fn a_coordinator_that_was_stopped_grants_no_lease_and_writes_nothing_when_it_wakes_up() {
    let etcd = Etcd::start(1).expect("etcd");
    let [first, second] = several(&etcd, &["--lease", "30s", "--reign", "5s"]);
    let mut wire = Wire::connect(&first.address);
    let hello = |name: &str| {
        FromMember::Hello(Hello { token: 77, name: name.to_owned(), weight: 1, ..Hello::default() })
    };
    wire.send(&hello("slow"));
    wire.report(MemberId::NOBODY, 0, Report::Join { token: 77, weight: 1 });
    let welcome = wire.order(|order| matches!(order, Order::Welcome { .. }));
    let Order::Welcome { member, .. } = welcome else { panic!("{welcome:?}") };
    wire.report(member, 1, Report::Renew { asked_ms: clock::now_ms() });
    wire.order(|order| matches!(order, Order::Lease { .. }));
    let before = settled_or_not(&first);
    first.signal(Signal::SIGSTOP);
    // It finds all of this when it wakes up: a member that wants to go on, and one that wants to be one.
    let asked_ms = clock::now_ms();
    wire.report(member, 1, Report::Renew { asked_ms });
    wire.report(MemberId::NOBODY, 0, Report::Join { token: 78, weight: 1 });
    until("another one leads", || second.has_led(2).then_some(()));
    first.signal(Signal::SIGCONT);
    let mut granted = Vec::new();
    while let Some(frame) = wire.hear() {
        if let FromCoordinator::Message(message) = frame {
            granted.extend(
                Some(message.body)
                    .filter(|order| matches!(order, Order::Lease { .. } | Order::Welcome { .. })),
            );
        }
    }
    let is_late =
        |order: &Order| !matches!(order, Order::Lease { asked_ms: other, .. } if *other != asked_ms);
    assert!(!granted.iter().any(is_late), "{granted:?}");
    until("it stands by", || first.stands_by_under(&second.address).then_some(()));
    let after = status(&second.address).expect("it leads")["fleet"].clone();
    assert_eq!((numbers(&after), after["term"].as_u64()), (numbers(&before), Some(2)));
    assert_eq!(numbers(&after), [u64::from(member.0)]);
}

/// How the fleet stands, whether or not its members have all they should.
fn settled_or_not(candidate: &Candidate) -> Value {
    until("it leads", || status(&candidate.address))["fleet"].clone()
}

#[test]
fn a_coordinator_without_etcd_leads_until_its_reign_is_over_and_again_when_etcd_is_back() {
    let etcd = Etcd::start(1).expect("etcd");
    let candidate = Candidate::start(&etcd, &["--lease", "60s", "--reign", "5s"]);
    until("it leads", || candidate.has_led(1).then_some(()));
    let mut a = Process::of_any(&candidate.address, "a");
    settled(&candidate.address, 1);
    let had = a.serves();
    etcd.nodes()[0].suspend().expect("suspended");
    let refused = until("it stands by", || {
        assert_eq!(a.serves(), had, "its member goes on");
        let refused = candidate.asked();
        (refused.status.code() == Some(4)).then(|| text(&refused.stderr))
    });
    assert!(refused.contains("NOTLEADER ? nobody leads"), "{refused}");
    etcd.nodes()[0].resume().expect("resumed");
    let fleet = settled(&candidate.address, 1);
    assert_eq!(numbers(&fleet), [1], "it is the same member");
    assert!(fleet["term"].as_u64() > Some(1), "{fleet}");
    assert_eq!(a.serves(), had);
}

#[test]
fn what_cannot_work_is_refused_with_a_reason() {
    let etcd = Etcd::start(1).expect("etcd");
    let at = etcd.addrs();
    {
        let candidate = Candidate::start(&etcd, &["--reign", "5s"]);
        until("it leads", || candidate.has_led(1).then_some(()));
    }
    let refused = |store: &str, options: &[&str], code: i32, expected: &str| {
        let output = serve(store, options).output().expect("it runs");
        let all = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{store}: {all}");
        assert!(all.contains(expected) && !all.contains("hunter"), "{store}: {all}");
    };
    refused(&format!("etcd://{at}"), &["--partitions", "49"], 1, "48 partitions, not 49");
    refused("etcd://127.0.0.1:1", &[], 3, "cannot connect");
    refused("redis://127.0.0.1:1", &[], 2, "etcd://");
    etcd.require_login("hunter2").expect("it takes passwords");
    refused(&format!("etcd://{at}"), &[], 3, "login");
    refused(&format!("etcd://root:hunter3@{at}"), &[], 3, "login");
    refused(&format!("etcd://root@{at}"), &[], 2, "no password");
    let candidate = Candidate::of(serve(&format!("etcd://root:hunter2@{at}/other"), &[]));
    until("it leads", || candidate.has_led(1).then_some(()));
    let shown = std::fs::read(format!("/proc/{}/cmdline", candidate.child.id())).expect("its command line");
    assert!(text(&shown).contains("etcd://root@") && !text(&shown).contains("hunter"), "{}", text(&shown));
    assert!(candidate.find(|line| line.to_string().contains("hunter")).is_none());
}
