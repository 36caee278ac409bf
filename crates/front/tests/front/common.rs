//! A front in a runtime of its own, and clients that know nothing but bytes.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Side};
use whimbrel_flow::sync::{FrontOrder, FrontStand};
use whimbrel_front::control::{Control, Status};
use whimbrel_front::migrate::phase::{Phase, Stand, StateFile};
use whimbrel_front::server::{Front, FrontOptions};
pub use whimbrel_lab::wait_until;
use whimbrel_lab::{Cluster, Server};
use whimbrel_wire::boundary::{Boundary, Passed};

/// How long a reply may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A front that runs until it is dropped.
pub struct Served {
    pub address: SocketAddr,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    /// In front of `source`, for this many clients at most.
    #[track_caller]
    pub fn at(source: &Endpoint, clients_max: usize) -> Served {
        Served::with(source, clients_max, 0)
    }

    /// Clients share this many connections to the server.
    #[track_caller]
    pub fn sharing(url: &str, share_connections: usize) -> Served {
        let source = Endpoint::parse(Side::Source, url).expect("a valid address");
        Served::with(&source, 10_000, share_connections)
    }

    #[track_caller]
    pub fn with(source: &Endpoint, clients_max: usize, share_connections: usize) -> Served {
        let stop = CancellationToken::new();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (source, until) = (source.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listen = SocketAddr::from(([127, 0, 0, 1], 0));
                let options = FrontOptions { share_connections, ..FrontOptions::new(listen, clients_max) };
                let front = Front::bind(options, source).await.expect("a front");
                sender.send(front.address().expect("an address")).expect("the test waits for it");
                front.serve(until).await;
            });
        });
        let address = receiver.recv_timeout(PATIENCE).expect("the front listens");
        Served { address, stop, thread: Some(thread) }
    }

    #[track_caller]
    pub fn of(url: &str) -> Served {
        Served::at(&Endpoint::parse(Side::Source, url).expect("a valid address"), 10_000)
    }

    #[track_caller]
    pub fn client(&self) -> Client {
        Client::to(self.address)
    }

    /// Has it end, and goes on meanwhile.
    pub fn end(&self) {
        self.stop.cancel();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Ok(()))), "the front ended badly");
        }
    }
}

/// What a front can be given.
pub trait AsUpstream {
    /// Its address.
    fn named(&self) -> String;
}

impl AsUpstream for Server {
    fn named(&self) -> String {
        self.url()
    }
}

impl AsUpstream for Cluster {
    fn named(&self) -> String {
        self.seed()
    }
}

/// A front between two servers, that runs until it is dropped.
pub struct Between {
    address: SocketAddr,
    control: Arc<Control>,
    runtime: tokio::runtime::Runtime,
    stop: CancellationToken,
    folder: Arc<tempfile::TempDir>,
    state: StateFile,
}

impl Between {
    #[track_caller]
    pub fn of(source: &impl AsUpstream, target: &impl AsUpstream) -> Between {
        Between::with_wait(source, target, Duration::from_secs(10))
    }

    /// Commands wait so long for their keys.
    #[track_caller]
    pub fn with_wait(source: &impl AsUpstream, target: &impl AsUpstream, wait: Duration) -> Between {
        Between::from(source, target, wait, Phase::Forwarding.into(), |_| {})
    }

    /// Until keys move, clients share a connection to the source.
    #[track_caller]
    pub fn sharing(source: &impl AsUpstream, target: &impl AsUpstream) -> Between {
        let share = |options: &mut FrontOptions| options.share_connections = 1;
        Between::from(source, target, Duration::from_secs(10), Phase::Forwarding.into(), share)
    }

    /// After one that died in this phase.
    #[track_caller]
    pub fn after(phase: Phase, source: &impl AsUpstream, target: &impl AsUpstream) -> Between {
        Between::reversed(0, phase, source, target)
    }

    /// After one that died in this phase, when the direction had been turned so often.
    #[track_caller]
    pub fn reversed(
        reversals: u32,
        phase: Phase,
        source: &impl AsUpstream,
        target: &impl AsUpstream,
    ) -> Between {
        Between::from(source, target, Duration::from_secs(10), Stand { phase, reversals }, |_| {})
    }

    /// With the promise that scripts declare their keys.
    #[track_caller]
    pub fn with_scripts(source: &impl AsUpstream, target: &impl AsUpstream) -> Between {
        let promise = |options: &mut FrontOptions| options.scripts_declare_keys = true;
        Between::from(source, target, Duration::from_secs(10), Phase::Forwarding.into(), promise)
    }

    #[track_caller]
    fn from(
        source: &impl AsUpstream,
        target: &impl AsUpstream,
        wait: Duration,
        stand: Stand,
        change: impl FnOnce(&mut FrontOptions),
    ) -> Between {
        let endpoint = |side, address: String| Endpoint::parse(side, &address).expect("a valid address");
        let source = endpoint(Side::Source, source.named());
        let target = endpoint(Side::Target, target.named());
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let state = folder.path().join("front.state");
        StateFile::new(&state, &source, &target).save(stand).expect("written");
        Between::run(folder, (source, target), wait, change)
    }

    /// Another process that goes on after this one.
    #[track_caller]
    pub fn run_again(self, source: &impl AsUpstream, target: &impl AsUpstream) -> Between {
        let endpoint = |side, address: String| Endpoint::parse(side, &address).expect("a valid address");
        let sides = (endpoint(Side::Source, source.named()), endpoint(Side::Target, target.named()));
        let folder = self.folder.clone();
        drop(self);
        Between::run(folder, sides, Duration::from_secs(10), |_| {})
    }

    #[track_caller]
    fn run(
        folder: Arc<tempfile::TempDir>,
        (source, target): (Endpoint, Endpoint),
        wait: Duration,
        change: impl FnOnce(&mut FrontOptions),
    ) -> Between {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut options = FrontOptions::new(listen, 100);
        change(&mut options);
        let state = folder.path().join("front.state");
        let file = StateFile::new(&state, &source, &target);
        let between = Front::between(options, source, target, &state, wait);
        let (front, control) = runtime.block_on(between).expect("a front");
        let (address, stop) = (front.address().expect("an address"), CancellationToken::new());
        runtime.spawn(front.serve(stop.clone()));
        Between { address, control, runtime, stop, folder, state: file }
    }

    pub fn client(&self) -> Client {
        Client::to(self.address)
    }

    /// What is on disk.
    #[track_caller]
    pub fn stand(&self) -> Stand {
        self.state.load().expect("a state")
    }

    /// Another number each time that the state is written.
    #[track_caller]
    pub fn state_id(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(self.folder.path().join("front.state")).expect("a state").ino()
    }

    pub fn start(&self) -> Result<(), Error> {
        self.runtime.block_on(self.control.start())
    }

    /// Only what commands need moves.
    pub fn start_paused(&self) -> Result<(), Error> {
        self.runtime.block_on(self.control.start_paused())
    }

    pub fn pause(&self) -> Result<(), Error> {
        self.control.pause(true)
    }

    #[track_caller]
    pub fn resume(&self) {
        self.control.pause(false).expect("keys move");
    }

    pub fn reverse(&self) -> Result<(), Error> {
        self.runtime.block_on(self.control.reverse())
    }

    /// Only what commands need moves.
    pub fn reverse_paused(&self) -> Result<(), Error> {
        self.runtime.block_on(self.control.reverse_paused())
    }

    pub fn finish(&self) -> Result<(), Error> {
        self.control.finish()
    }

    pub fn order(&self, order: FrontOrder) -> Result<FrontStand, Error> {
        self.runtime.block_on(self.control.carry_out(order))
    }

    pub fn status(&self) -> Status {
        self.runtime.block_on(self.control.status())
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A connection.
pub struct Client(pub TcpStream);

impl Client {
    #[track_caller]
    pub fn to(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Client(stream)
    }

    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("it is taken");
    }

    /// Expects exactly these bytes next.
    #[track_caller]
    pub fn expect(&mut self, bytes: &[u8]) {
        let mut found = vec![0; bytes.len()];
        if let Err(error) = self.0.read_exact(&mut found) {
            panic!("{error} while {:?} was expected", String::from_utf8_lossy(bytes));
        }
        if found != bytes {
            // What comes with it says why: the text of an error is longer than what was expected.
            self.0.set_read_timeout(Some(Duration::from_millis(500))).expect("a limit");
            let mut more = vec![0; 1 << 10];
            let len = self.0.read(&mut more).unwrap_or(0);
            found.extend_from_slice(&more[..len]);
        }
        assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(bytes));
    }

    /// Sends a command and expects this reply.
    #[track_caller]
    pub fn ask(&mut self, words: &[&str], reply: &str) {
        self.send(&command(words));
        self.expect(reply.as_bytes());
    }

    /// Goes on with `SCAN`, adds the keys of its reply to `found`, and returns where to go on.
    #[track_caller]
    pub fn scan(&mut self, cursor: &str, found: &mut BTreeSet<String>) -> String {
        self.send(&command(&["SCAN", cursor, "COUNT", "10"]));
        let (next, keys) = self.page();
        found.extend(keys);
        next
    }

    /// The reply to `SCAN` or one of its relatives: where to go on, and what it has found.
    #[track_caller]
    pub fn page(&mut self) -> (String, Vec<String>) {
        assert_eq!(self.line(), "*2\r\n");
        self.line();
        let next = self.line().trim().to_owned();
        let count: usize = self.line().trim()[1..].parse().expect("a number");
        let items = (0..count).map(|_| {
            self.line();
            self.line().trim().to_owned()
        });
        (next, items.collect())
    }

    /// The next line, with its end.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap_or_else(|error| panic!("{error} after {line:?}"));
            line.push(byte[0]);
        }
        String::from_utf8_lossy(&line).into_owned()
    }

    /// The next reply, whatever it is.
    #[track_caller]
    pub fn reply(&mut self) -> String {
        let (mut bytes, mut boundary, mut passed) = (Vec::new(), Boundary::default(), 0);
        loop {
            match boundary.pass(&bytes[passed..]).expect("RESP") {
                Passed::Frame { .. } => return String::from_utf8_lossy(&bytes).into_owned(),
                Passed::Part(more) => passed += more,
            }
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap_or_else(|error| panic!("{error} after {bytes:?}"));
            bytes.push(byte[0]);
        }
    }

    /// Sends a command and returns the string that it is answered with.
    #[track_caller]
    pub fn asks(&mut self, words: &[&str]) -> String {
        self.send(&command(words));
        let header = self.line();
        let len: usize = header[1..].trim().parse().unwrap_or_else(|_| panic!("no string: {header}"));
        let mut text = vec![0; len + 2];
        self.0.read_exact(&mut text).expect("all of it");
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Says that nothing more comes, and returns all that still arrives.
    #[track_caller]
    pub fn finish(mut self) -> Vec<u8> {
        self.0.shutdown(Shutdown::Write).expect("half of it is closed");
        self.rest()
    }

    /// All that arrives until the other side hangs up.
    #[track_caller]
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => rest,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => rest,
            Err(error) => panic!("{error} after {} bytes", rest.len()),
        }
    }
}

/// A command as an array of bulk strings.
pub fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

/// Resident memory of this process, the front included.
pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux reports it");
    let pages: u64 = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number of pages");
    pages * 4096
}

/// Runs the test of this name in a process of its own, since it measures the memory of its process: what
/// other tests have allocated and given back comes and goes as it likes. True where that was done; false in
/// that process.
#[track_caller]
pub fn in_own_process(test: &str) -> bool {
    const OWN: &str = "WHIMBREL_TEST_IN_OWN_PROCESS";
    if std::env::var_os(OWN).is_some() {
        return false;
    }
    let _alone = alone();
    let program = std::env::current_exe().expect("this program");
    let output =
        std::process::Command::new(program).args(["--exact", test, "--nocapture"]).env(OWN, "1").output();
    let output = output.expect("it runs once more");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("1 passed"), "there is no test {test}: {printed}");
    true
}

/// See [`alone`].
pub struct Alone {
    _guard: MutexGuard<'static, ()>,
}

/// Tests of this process run one at a time, since some measure its memory.
pub fn alone() -> Alone {
    static MEASURED: Mutex<()> = Mutex::new(());
    Alone { _guard: MEASURED.lock() }
}
