//! A fleet of processes: the coordinator is the real binary, members are this test's own binary, which is
//! killed and stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use whimbrel_engine::clock;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_engine::link::LinkOptions;
use whimbrel_fleet::{AtBackends, Membership, MembershipOptions, Standing};
use whimbrel_lab::until;

#[cfg(feature = "etcd")]
mod etcd;

/// Longer than anything takes here on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

const PARTITIONS: u32 = 48;

/// Where a member finds the coordinator, and what it is called. Only then is this binary one.
const MEMBER_OF: &str = "WHIMBREL_TEST_MEMBER_OF";

// ---- A member ----

/// Is a member, where it was started as one: see [`Process`].
#[test]
fn be_a_member() {
    let Ok(value) = std::env::var(MEMBER_OF) else { return };
    let (coordinators, name) = value.split_once(' ').expect("addresses and a name");
    let endpoint = |address| Endpoint::parse(Side::Source, address).expect("an address");
    let listener = TcpListener::bind("127.0.0.1:0").expect("it listens");
    let address = listener.local_addr().expect("it listens").to_string();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("it runs");
    let options = MembershipOptions {
        coordinators: coordinators.split(',').map(endpoint).collect(),
        link: LinkOptions::default(),
        name: name.to_owned(),
        address: address.clone(),
        weight: 1,
    };
    let membership = Arc::new(runtime.block_on(async { Membership::start(options, AtBackends) }));
    // Not at the beginning of the line, where the test runner may have written.
    println!("\nlistening {address}");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let membership = membership.clone();
            thread::spawn(move || answer(stream, &membership));
        }
    });
    // Until the one that started it drops it.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

/// A line with a partition is answered by who serves it and when that was looked at.
fn answer(stream: TcpStream, membership: &Membership) {
    stream.set_nodelay(true).expect("a socket");
    let mut to = stream.try_clone().expect("a socket");
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let partition = line.parse().expect("a partition");
        let words = match membership.view().standing(partition) {
            Standing::Ours(guard) => {
                let left_ms = guard.lease_left().as_millis();
                format!("ours {left_ms}")
            }
            Standing::Other { member, .. } => format!("other {member}"),
            Standing::Nobody => "nobody 0".to_owned(),
        };
        let line = format!("{words} {}\n", clock::now_ms());
        if to.write_all(line.as_bytes()).is_err() {
            return;
        }
    }
}

/// What a member says of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reply {
    word: String,
    number: u64,
    /// By the clock of this machine.
    at_ms: u64,
}

/// The process of a member.
struct Process {
    child: Child,
    asks: TcpStream,
    answers: BufReader<TcpStream>,
    _held: ChildStdin,
    _output: BufReader<ChildStdout>,
}

impl Process {
    fn start(coordinator: &Coordinator, name: &str) -> Process {
        Process::of_any(&coordinator.address, name)
    }

    /// A member of whichever of these coordinators leads.
    fn of_any(coordinators: &str, name: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this test's binary"));
        command.args(["fleet::be_a_member", "--exact", "--nocapture"]);
        command.env(MEMBER_OF, format!("{coordinators} {name}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(output.read_line(&mut line).expect("its output") > 0, "it has ended");
            if let Some(address) = line.trim().strip_prefix("listening ") {
                break address.to_owned();
            }
        };
        let asks = TcpStream::connect(address).expect("it listens");
        asks.set_nodelay(true).expect("a socket");
        asks.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let answers = BufReader::new(asks.try_clone().expect("a socket"));
        let held = child.stdin.take().expect("its input");
        Process { child, asks, answers, _held: held, _output: output }
    }

    fn ask(&mut self, partition: u32) {
        self.asks.write_all(format!("{partition}\n").as_bytes()).expect("it takes a question");
    }

    fn answer(&mut self) -> Reply {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        let mut words = line.split_whitespace();
        let mut next = || words.next().unwrap_or_else(|| panic!("an answer: {line}"));
        Reply {
            word: next().to_owned(),
            number: next().parse().expect("a number"),
            at_ms: next().parse().expect("a time"),
        }
    }

    fn of(&mut self, partition: u32) -> Reply {
        self.ask(partition);
        self.answer()
    }

    fn serves(&mut self) -> BTreeSet<u32> {
        (0..PARTITIONS).filter(|partition| self.of(*partition).word == "ours").collect()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")), signal).expect("it is there");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// ---- The coordinator ----

struct Coordinator {
    child: Child,
    address: String,
    http: String,
    _output: BufReader<ChildStdout>,
}

fn whimbrel(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_whimbrel"));
    command.args(args).env_remove("WHIMBREL_SERVE_PASSWORD");
    command
}

fn serve(folder: &Path, listen: &str, lease: &str) -> Command {
    let mut command = whimbrel(&["serve", "--fleet", "--json", "--http", "127.0.0.1:0", "--listen", listen]);
    command.args(["--lease", lease, "--partitions", &PARTITIONS.to_string()]).arg("--state-dir").arg(folder);
    command
}

impl Coordinator {
    fn start(folder: &Path, listen: &str, lease: &str) -> Coordinator {
        let mut child = serve(folder, listen, lease).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut address_of = |event: &str| loop {
            let mut line = String::new();
            assert!(output.read_line(&mut line).expect("its output") > 0, "it has ended");
            let line: Value = serde_json::from_str(&line).expect("JSON");
            if line["event"] == event {
                return line["address"].as_str().expect("an address").to_owned();
            }
        };
        let (address, http) = (address_of("serving"), address_of("http"));
        Coordinator { child, address, http, _output: output }
    }

    fn fleet(&self, words: &[&str]) -> Output {
        let mut command = whimbrel(&["fleet"]);
        command.args(words);
        if matches!(words[0], "drain" | "leave") {
            command.arg("--yes");
        }
        command.args(["--server", &self.address]).output().expect("it runs")
    }

    fn status(&self) -> Value {
        let output = self.fleet(&["status", "--json"]);
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Waits until this many members have their parts and equal tables: owned partitions by name.
    #[track_caller]
    fn settled(&self, members: usize) -> BTreeMap<String, u64> {
        until("all have their parts", || {
            let status = self.status();
            let all = status["fleet"]["members"].as_array().cloned().unwrap_or_default();
            let owned = |member: &Value| {
                (
                    member["name"].as_str().expect("a name").to_owned(),
                    member["owned"].as_u64().expect("a number"),
                )
            };
            (status["settled"] == true && all.len() == members).then(|| all.iter().map(owned).collect())
        })
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.http).expect("it answers");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it listens");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        text
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until each partition is served by exactly one of these.
#[track_caller]
fn shared_out(members: &mut [&mut Process]) {
    until("each partition is served by one", || {
        let served: Vec<u32> = members.iter_mut().flat_map(|member| member.serves()).collect();
        let different: BTreeSet<u32> = served.iter().copied().collect();
        // One may move between two answers.
        (different.len() == served.len() && different.len() == PARTITIONS as usize).then_some(())
    });
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

// ---- What is tested ----

#[test]
fn what_a_killed_member_had_is_given_away_after_its_lease_and_not_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let coordinator = Coordinator::start(folder.path(), "127.0.0.1:0", "5s");
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| Process::start(&coordinator, name));
    let owned = coordinator.settled(3);
    assert_eq!(owned.values().copied().collect::<Vec<_>>(), [16, 16, 16]);
    shared_out(&mut [&mut a, &mut b, &mut c]);
    let partition = *b.serves().first().expect("it has some");
    let last = b.of(partition);
    assert_eq!(last.word, "ours");
    b.signal(Signal::SIGKILL);
    let next = until("another one serves it", || {
        [a.of(partition), c.of(partition)].into_iter().find(|answer| answer.word == "ours")
    });
    assert!(next.at_ms >= last.at_ms + last.number, "its lease still ran: {last:?} {next:?}");
    assert_eq!(coordinator.settled(2).values().copied().collect::<Vec<_>>(), [24, 24]);
    shared_out(&mut [&mut a, &mut c]);
}

#[test]
fn a_member_that_was_stopped_does_not_serve_when_it_wakes_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let listen = format!("127.0.0.1:{}", whimbrel_lab::free_port().expect("a port"));
    let coordinator = Coordinator::start(folder.path(), &listen, "4s");
    let [mut a, mut b] = ["a", "b"].map(|name| Process::start(&coordinator, name));
    coordinator.settled(2);
    let partition = *b.serves().first().expect("it has some");
    b.signal(Signal::SIGSTOP);
    until("the other one serves it", || (a.of(partition).word == "ours").then_some(()));
    // Nobody can send it anything, or make it a member again, before it answers: its own clock has to do.
    let address = coordinator.address.clone();
    drop(coordinator);
    b.ask(partition);
    b.signal(Signal::SIGCONT);
    let answer = b.answer();
    assert_ne!(answer.word, "ours", "{answer:?}");
    // It comes back as another member, and gets its part again.
    let coordinator = Coordinator::start(folder.path(), &address, "4s");
    coordinator.settled(2);
    shared_out(&mut [&mut a, &mut b]);
    let status = coordinator.status();
    let numbers = status["fleet"]["members"].as_array().into_iter().flatten();
    let numbers: Vec<u64> = numbers.filter_map(|member| member["member"].as_u64()).collect();
    assert!(numbers.iter().any(|number| *number > 2), "a number is never given again: {numbers:?}");
}

#[test]
fn a_coordinator_that_is_killed_goes_on_from_its_journal() {
    let folder = tempfile::tempdir().expect("a folder");
    // Nobody else takes the port while no coordinator listens on it.
    let listen = format!("127.0.0.1:{}", whimbrel_lab::free_port().expect("a port"));
    let mut coordinator = Coordinator::start(folder.path(), &listen, "60s");
    let [mut a, mut b] = ["a", "b"].map(|name| Process::start(&coordinator, name));
    coordinator.settled(2);
    let before = coordinator.status();
    let second = serve(folder.path(), "127.0.0.1:0", "60s").output().expect("it runs");
    assert_eq!(second.status.code(), Some(1), "{}", text(&second.stdout));
    assert!(text(&second.stdout).contains("another coordinator"), "{}", text(&second.stdout));
    coordinator.child.kill().expect("it runs");
    coordinator.child.wait().expect("it ends");
    let had = (a.serves(), b.serves());
    assert_eq!((had.0.len(), had.1.len()), (24, 24), "they go on without it");
    let none = coordinator.fleet(&["status"]);
    assert_eq!(none.status.code(), Some(3), "{}", text(&none.stderr));
    assert!(text(&none.stderr).starts_with("error: coordinator"), "{}", text(&none.stderr));
    let address = coordinator.address.clone();
    drop(coordinator);
    let coordinator = Coordinator::start(folder.path(), &address, "60s");
    coordinator.settled(2);
    let after = coordinator.status();
    let of = |status: &Value, name: &str| status["fleet"][name].clone();
    assert_eq!(of(&after, "stamp"), of(&before, "stamp"));
    assert_eq!(of(&after, "term").as_u64(), of(&before, "term").as_u64().map(|term| term + 1));
    assert_eq!((a.serves(), b.serves()), had);
    // It coordinates as before.
    let mut c = Process::start(&coordinator, "c");
    coordinator.settled(3);
    shared_out(&mut [&mut a, &mut b, &mut c]);
}

#[test]
fn a_coordinator_that_was_stopped_does_not_take_its_members_for_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let coordinator = Coordinator::start(folder.path(), "127.0.0.1:0", "3s");
    let [mut a, mut b] = ["a", "b"].map(|name| Process::start(&coordinator, name));
    coordinator.settled(2);
    let (had_a, had_b) = (a.serves(), b.serves());
    let pid = Pid::from_raw(i32::try_from(coordinator.child.id()).expect("a pid"));
    kill(pid, Signal::SIGSTOP).expect("it is there");
    until("their leases have run out", || (a.serves().is_empty() && b.serves().is_empty()).then_some(()));
    kill(pid, Signal::SIGCONT).expect("it is there");
    until("they serve again what they had", || (a.serves() == had_a && b.serves() == had_b).then_some(()));
    let status = coordinator.status();
    let numbers = status["fleet"]["members"].as_array().into_iter().flatten();
    let numbers: Vec<u64> = numbers.filter_map(|member| member["member"].as_u64()).collect();
    assert_eq!(numbers, [1, 2], "they are the same members");
}

#[test]
fn people_see_to_a_fleet() {
    let folder = tempfile::tempdir().expect("a folder");
    let coordinator = Coordinator::start(folder.path(), "127.0.0.1:0", "10s");
    let [mut a, mut b] = ["a", "b"].map(|name| Process::start(&coordinator, name));
    coordinator.settled(2);
    let expect = |words: &[&str], code: i32| {
        let output = coordinator.fleet(words);
        let all = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {all}");
        all
    };
    let page = expect(&["status"], 0);
    assert!(page.contains("48 partitions, 2 members") && page.contains("settled"), "{page}");
    assert!(expect(&["drain", "nobody"], 2).contains("no member nobody"));
    assert!(expect(&["drain", "b"], 0).contains("done"));
    assert_eq!((a.serves().len(), b.serves().len()), (48, 0));
    assert!(expect(&["leave", "a"], 4).contains("nobody else"));
    expect(&["join", "b", "--weight", "3"], 0);
    assert_eq!((a.serves().len(), b.serves().len()), (12, 36));
    expect(&["rebalance"], 0);
    until("it is shown over HTTP", || {
        let metrics = coordinator.get("/metrics");
        let has = |line: &str| metrics.lines().any(|other| other == line);
        let shows = has("whimbrel_fleet_members 2.0")
            && has("whimbrel_fleet_moves_failed_total 0.0")
            && metrics
                .lines()
                .any(|line| line.starts_with("whimbrel_fleet_member_partitions{") && line.ends_with(" 36.0"));
        shows.then_some(())
    });
    let watched = whimbrel(&["watch", "--once", "--at", &coordinator.http]).output().expect("it runs");
    assert!(text(&watched.stdout).contains("48 partitions, 2 members"), "{}", text(&watched.stdout));
    let printed = expect(&["leave", "b", "--json"], 0);
    let last: Value = printed.lines().last().and_then(|line| serde_json::from_str(line).ok()).expect("JSON");
    assert_eq!(
        (&last["event"], last["fleet"]["members"].as_array().map(Vec::len)),
        (&Value::from("done"), Some(1))
    );
    assert_eq!((a.serves().len(), b.serves().len()), (48, 0));
    a.signal(Signal::SIGKILL);
    until("it is a problem", || (coordinator.fleet(&["status"]).status.code() == Some(8)).then_some(()));
}
