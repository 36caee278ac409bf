//! Passwords that a command prints, and commands that a service has renamed.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::permissions::denied;
use whimbrel_e2e::syncing::{
    PATIENCE, Sync, comparison, cut, deployment, fill, finish, seconds, wait_until_following, writers,
};
use whimbrel_lab::{Engine, Proxy, Server};

/// For how long a password is valid.
const VALID: Duration = Duration::from_secs(5);

/// A busy machine may be late to hand out the next one: until then clients read the one before.
const LATE: Duration = Duration::from_secs(8);

/// How often there is a new one. The last of them is handed out, and is valid for [`VALID`] from then on.
const ROTATED: Duration = Duration::from_millis(500);

/// Gives the user `mover` of all servers a new password, and takes those away that have ended.
struct Tokens<'a> {
    servers: [&'a Server; 2],
    file: &'a Path,
    given: Vec<(String, Instant)>,
    made: u32,
}

impl Tokens<'_> {
    fn rotate(&mut self) {
        self.made += 1;
        let token = format!("token-{}", self.made);
        let call = |rule: &str| {
            for server in self.servers {
                server.call(&["ACL", "SETUSER", "mover", rule]);
            }
        };
        call(&format!(">{token}"));
        // Renamed, so that nobody reads half of it.
        let draft = self.file.with_extension("draft");
        fs::write(&draft, format!("{token}\n")).expect("written");
        fs::rename(&draft, self.file).expect("renamed");
        // A process that has read the one before did so a moment ago at the latest.
        self.given.push((token, Instant::now()));
        let ended = |handed: &Instant| handed.elapsed() > VALID + ROTATED + LATE;
        self.given.iter().filter(|(_, handed)| ended(handed)).for_each(|(old, _)| call(&format!("<{old}")));
        self.given.retain(|(_, handed)| !ended(handed));
    }
}

/// Links are cut while passwords come and go: no login is refused, and nothing is lost.
#[test]
fn a_sync_outlives_its_passwords() {
    for (engine, without) in [(Engine::Redis70, "-replconf -psync"), (Engine::Valkey91, "")] {
        let rule = format!("user mover on ~* &* +@all {without}");
        let server = || Server::builder(engine).user_acl(rule.trim_end()).start().expect("a server starts");
        let (source, target) = (server(), server());
        let proxy = Proxy::start(&source.addr()).expect("a proxy starts");
        fill(&deployment(source.addr()));
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        let mut tokens = Tokens { servers: [&source, &target], file: &file, given: Vec::new(), made: 0 };
        tokens.rotate();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    thread::sleep(ROTATED);
                    tokens.rotate();
                }
            });
            let command = format!("cat {}", file.display());
            let job = Sync::new(
                &format!("redis://mover@{}", proxy.addr()),
                &format!("redis://mover@{}", target.addr()),
                &[
                    "--source-password-command",
                    &command,
                    "--target-password-command",
                    &command,
                    "--password-ttl",
                    "5s",
                ],
            );
            let writers = writers(&[source.addr()], "pw");
            let mut sync = job.start(&[]);
            wait_until_following(&mut sync);
            let until = Instant::now() + Duration::from_secs(seconds("WHIMBREL_TOKEN_SECONDS", 20));
            while Instant::now() < until {
                thread::sleep(Duration::from_secs(4));
                cut(&proxy, Duration::from_millis(300));
            }
            finish(&job, sync, writers, &source.addr(), &target.addr(), &comparison());
            is_over.store(true, Ordering::Relaxed);
        });
        for server in [&source, &target] {
            let refused: Vec<String> =
                denied(server).into_iter().filter(|entry| entry.contains("\"auth\"")).collect();
            assert!(refused.is_empty(), "{engine}: {refused:#?}");
        }
    }
}

/// One clear line each, and nothing written.
#[test]
fn a_password_command_that_does_not_work_says_so() {
    let rule = "user mover on >secret ~* &* +@all";
    let source = Server::builder(Engine::Valkey91).user_acl(rule).start().expect("a server starts");
    let target = Server::builder(Engine::Valkey91).start().expect("a server starts");
    source.call(&["SET", "k", "1"]);
    let from = format!("redis://mover@{}", source.addr());
    for (command, words) in [
        ("echo secret; echo no session >&2; exit 7", "exit status: 7): no session"),
        ("true", "printed nothing"),
        ("sleep 600", "did not end within"),
    ] {
        let state = tempfile::tempdir().expect("a folder");
        let args = ["copy", &from, &target.addr(), "--source-password-command", command];
        let output =
            Invocation::new(&args).env("XDG_STATE_HOME", state.path()).timeout(PATIENCE).run().expect_code(3);
        let errors: Vec<&str> = output.stderr.lines().filter(|line| line.starts_with("error")).collect();
        assert_eq!(errors.len(), 1, "{output:#?}");
        assert!(errors[0].contains(words) && errors[0].contains("source"), "{command}: {}", errors[0]);
        assert!(!output.stderr.contains("secret"), "{}", output.stderr);
        assert_eq!(target.call(&["DBSIZE"]), redis::Value::Int(0));
    }
}

/// A service that gives `PSYNC` another name. A stock server cannot be started like that, since it looks at
/// the name itself: so a proxy stands for it, which knows `XSYNC` and no `PSYNC`.
fn renaming(server: &Server) -> String {
    const NAMES: [(&[u8], &[u8]); 2] = [(b"PSYNC", b"QSYNC"), (b"XSYNC", b"PSYNC")];
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (at, to) = (listener.local_addr().expect("an address").to_string(), server.addr());
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&to) else { return };
            let (mut back, mut forth) =
                (server.try_clone().expect("a copy"), client.try_clone().expect("a copy"));
            thread::spawn(move || {
                let _ = std::io::copy(&mut back, &mut forth);
                let _ = forth.shutdown(Shutdown::Both);
            });
            let (mut client, mut server) = (client, server);
            thread::spawn(move || {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(read @ 1..) = client.read(&mut bytes) {
                    // Such a command comes alone.
                    if let Some(name) = bytes.get_mut(8..13)
                        && let Some((_, other)) = NAMES.iter().find(|(wanted, _)| *wanted == &*name)
                    {
                        name.copy_from_slice(other);
                    }
                    if server.write_all(&bytes[..read]).is_err() {
                        break;
                    }
                }
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    at
}

#[test]
fn a_renamed_psync_is_used() {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    fill(&deployment(source.addr()));
    let at = renaming(&source);
    let refused =
        Sync::new(&at, &target.addr(), &["--feed", "replication", "--dry-run"]).start(&[]).wait(PATIENCE);
    refused.expect("it ends").expect_code(4);
    for name in ["XSYNC".to_owned(), format!("{at}=XSYNC")] {
        let more = ["--source-psync", &name, "--feed", "replication", "--mirror"];
        let job = Sync::new(&at, &target.addr(), &more);
        let writers = writers(&[source.addr()], &format!("psync{}", name.len()));
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        assert!(sync.stdout().contains("replication from the backlog"), "{}", sync.stdout());
        finish(&job, sync, writers, &source.addr(), &target.addr(), &comparison());
    }
}

/// A name that is not it says so, instead of taking in all data.
#[test]
fn a_server_that_takes_it_for_sync_is_refused() {
    let source = Server::builder(Engine::Redis70).arg("rename-command", "PSYNC hidden-psync");
    let source = source.start().expect("the source starts");
    let target = Server::builder(Engine::Redis70).start().expect("the target starts");
    let job = Sync::new(&source.addr(), &target.addr(), &["--source-psync", "hidden-psync"]);
    let refused = job.start(&["--dry-run"]).wait(PATIENCE).expect("it ends").expect_code(4);
    assert!(refused.stdout.contains("hidden-psync is not answered as PSYNC is"), "{refused:#?}");
}
