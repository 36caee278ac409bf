//! What is nobody else's business stays so, and what others have written is no order; servers' words only
//! show.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use whimbrel_e2e::binary::{Invocation, whimbrel};
use whimbrel_e2e::syncing::{PATIENCE, Sync, wait_until_following};
use whimbrel_lab::{Engine, Server};

const USAGE: i32 = 2;
const REFUSED: i32 = 4;

/// A user that owns nothing.
const NOBODY: u32 = 65_534;

fn server() -> Server {
    Server::builder(Engine::Valkey81).start().expect("the server starts")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

#[test]
fn the_state_folder_is_its_users_alone() {
    let (source, target) = (server(), server());
    let (from, to) = (source.addr(), target.addr());
    source.call(&["SET", "a", "b"]);
    let place = tempfile::tempdir().expect("a folder");
    let state = place.path().join("state");
    let mut sync = Command::new("sh");
    sync.args(["-c", "umask 000; exec \"$@\"", "sh"]).arg(whimbrel());
    sync.args(["sync", &from, &to, "--once", "--quiet", "--state-dir"]).arg(&state);
    assert!(sync.status().expect("it runs").success());
    assert_eq!(mode(&state), 0o700);
    let files: Vec<_> =
        fs::read_dir(&state).expect("a folder").map(|file| file.expect("a file").path()).collect();
    let (folders, files): (Vec<_>, Vec<_>) = files.into_iter().partition(|path| path.is_dir());
    assert!(!files.is_empty() && !folders.is_empty());
    assert!(files.iter().all(|file| mode(file) == 0o600), "{files:?}");
    assert!(folders.iter().all(|folder| mode(folder) == 0o700), "{folders:?}");

    let refused = |state: &Path, words: &str| {
        let state = state.to_str().expect("a plain name");
        let output =
            Invocation::new(&["copy", &from, &to, "--skip", "--state-dir", state]).run().expect_code(USAGE);
        assert!(output.stderr.contains(words), "{}", output.stderr);
    };
    let link = place.path().join("link");
    symlink(&state, &link).expect("a link");
    refused(&link, "is a symbolic link");
    set_mode(&state, 0o777);
    refused(&state, "can be written to by other users");
    set_mode(&state, 0o700);
    // A file of somebody else's is not emptied through a link.
    let victim = place.path().join("victim");
    fs::write(&victim, "kept").expect("written");
    for file in files {
        let name = file.file_name().expect("a name").to_str().expect("plain").to_owned();
        fs::remove_file(&file).expect("removed");
        symlink(&victim, &file).expect("a link");
        let draft = format!("{}.json-draft", name.trim_end_matches(".journal"));
        symlink(&victim, state.join("jobs").join(draft)).expect("a link");
    }
    let mut sync = Command::new(whimbrel());
    sync.args(["sync", &from, &to, "--mirror", "--yes", "--once", "--quiet", "--state-dir"]).arg(&state);
    assert!(!sync.output().expect("it runs").status.success());
    assert_eq!(fs::read_to_string(&victim).expect("it is there"), "kept");
}

/// Asks a job to end, as whimbrel does, and prints what it says first: a frame is its length and JSON.
const CALLER: &str = r#"
import json, socket, struct, sys
job = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
job.settimeout(30)
job.connect(sys.argv[1])
def hear():
    length = job.recv(4, socket.MSG_WAITALL)
    return job.recv(struct.unpack(">I", length)[0], socket.MSG_WAITALL).decode()
first = hear()
print(first)
if "hello" in first:
    text = json.dumps("cancel").encode()
    job.sendall(struct.pack(">I", len(text)) + text)
    print(hear())
"#;

#[test]
fn a_job_takes_no_order_of_another_user() {
    let (source, target) = (server(), server());
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let jobs = job.state.path().join("whimbrel").join("jobs");
    let files = fs::read_dir(&jobs).expect("a folder").map(|file| file.expect("a file").path());
    let socket = files.into_iter().find(|path| path.extension().is_some_and(|e| e == "socket"));
    let socket = socket.expect("a socket");
    assert_eq!(mode(&socket), 0o600);
    let call = |user: Option<u32>| {
        let mut caller = Command::new("python3");
        caller.args(["-c", CALLER]).arg(&socket);
        if let Some(user) = user {
            caller.uid(user);
        }
        let output = caller.output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    // Another user can be tried only by the one who can become every other.
    if nix::unistd::geteuid().is_root() {
        assert!(call(Some(NOBODY)).contains("Permission denied"), "{}", call(Some(NOBODY)));
        for path in socket.ancestors().take_while(|path| path.starts_with(job.state.path())) {
            set_mode(path, 0o777);
        }
        let printed = call(Some(NOBODY));
        assert!(printed.contains("another user") && !printed.contains("hello"), "{printed}");
        assert!(sync.is_running(), "{}", sync.stdout());
    }
    // The same of our own is an order.
    let printed = call(None);
    assert!(printed.contains("hello"), "{printed}");
    sync.wait(PATIENCE).expect("it ends").expect_code(130);
}

#[test]
fn a_fence_gives_back_no_more_than_a_fence_takes() {
    let source = server();
    let state = tempfile::tempdir().expect("a folder");
    let at = source.addr();
    source.call(&["ACL", "SETUSER", "guest", "reset"]);
    let user = format!(r#"{{"at":"{at}","name":"guest","commands":"+@all on nopass ~*"}}"#);
    let note = format!(r#"{{"source":"{at}","fence":{{"kind":"acl","users":[{user}]}}}}"#);
    fs::write(state.path().join("sync-1.fence"), note).expect("written");
    let folder = state.path().to_str().expect("a plain name");
    let output = Invocation::new(&["unfence", &at, "--state-dir", folder]).run().expect_code(1);
    assert!(output.stderr.contains("no cutover has written that"), "{}", output.stderr);
    let user: Vec<String> = redis::cmd("ACL").arg("LIST").query(&mut source.connection()).expect("an answer");
    assert!(user.iter().any(|user| user.starts_with("user guest off")), "{user:?}");
}

/// A server that answers everything with an error that sets a terminal's title.
fn titled() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            thread::spawn(move || {
                let mut asked = [0; 4096];
                while let Ok(1..) = stream.read(&mut asked) {
                    if stream.write_all(b"-ERR \x1b]0;owned\x07 \xc2\x9b2J no\r\n").is_err() {
                        return;
                    }
                }
            });
        }
    });
    at
}

#[test]
fn servers_do_not_set_titles() {
    let at = titled();
    for args in [&["status", &at][..], &["copy", &at, &at], &["copy", &at, &at, "--json"]] {
        let output = Invocation::new(args).run();
        let printed = output.stdout + &output.stderr;
        assert!(printed.contains("owned"), "{printed:?}");
        assert!(!printed.contains(|c: char| c.is_control() && c != '\n'), "{printed:?}");
    }
}

#[test]
fn files_with_secrets_that_others_can_read_are_reported() {
    let server = Server::builder(Engine::Valkey81).password("pw").start().expect("the server starts");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pw");
    fs::write(&file, "pw\n").expect("written");
    let copy = |mode: u32| {
        set_mode(&file, mode);
        let name = file.to_str().expect("a plain name");
        let at = server.addr();
        let args = ["copy", &at, &at, "--db", "0:1", "--dry-run"];
        let files = ["--source-password-file", name, "--target-password-file", name];
        Invocation::new(&[&args[..], &files].concat()).run().expect_code(0).stderr
    };
    assert!(copy(0o644).contains("can be read by other users of this machine: chmod 600"));
    assert!(!copy(0o600).contains("can be read by other users"));
}

/// A server without a password answers only this machine, and a front is on this machine.
#[test]
fn a_front_makes_no_open_server_public() {
    let open = server();
    let closed = Server::builder(Engine::Valkey81).arg("requirepass", "hunter2").start().expect("it starts");
    let closed_at = format!("redis://:hunter2@{}", closed.addr());
    let state = tempfile::tempdir().expect("a folder");
    let folder = state.path().to_str().expect("a name");
    let front = |more: &[&str]| {
        let args = [&["front", "--listen", "0.0.0.0:0"], more].concat();
        Invocation::new(&args).timeout(PATIENCE)
    };
    let to_closed = ["--source", &closed_at, "--target", &open.addr(), "--state-dir", folder];
    for args in [&["--source", &open.addr()][..], &to_closed] {
        let refused = front(args).run().expect_code(REFUSED);
        for word in ["wants no password", "--open-to-all", &open.addr()] {
            assert!(refused.stderr.contains(word), "no {word:?} in {}", refused.stderr);
        }
    }
    for args in [&["--source", &closed_at][..], &["--source", &open.addr(), "--open-to-all"]] {
        let mut serving = front(args).spawn();
        assert!(serving.wait_for_text("serving", PATIENCE), "{}", serving.stderr());
        serving.terminate();
        serving.wait(PATIENCE).expect("it ends").expect_code(0);
    }
}
