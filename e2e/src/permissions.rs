//! What `docs/permissions.md` says that users need.

use std::fs;
use std::path::Path;

use whimbrel_lab::Server;

/// The lines of the page under some headings, with a password, as commands for one of the two users.
///
/// Panics where the page cannot be read.
pub fn documented(user: &str, headings: &[&str], password: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/permissions.md");
    let text = fs::read_to_string(&path).expect("the permissions are documented");
    let mut wanted = false;
    let mut commands = Vec::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            wanted = headings.contains(&heading);
        } else if wanted && line.starts_with(&format!("ACL SETUSER {user} ")) {
            commands.push(line.replace("PASSWORD", password).split(' ').map(str::to_owned).collect());
        }
    }
    commands
}

/// Gives them to a server, and has it forget what was called and denied before.
pub fn give(server: &Server, commands: &[Vec<String>]) {
    for command in commands {
        server.call(&command.iter().map(String::as_str).collect::<Vec<_>>());
    }
    server.call(&["CONFIG", "RESETSTAT"]);
    server.call(&["ACL", "LOG", "RESET"]);
}

/// What a server has denied since.
///
/// Panics where it does not report it.
pub fn denied(server: &Server) -> Vec<String> {
    let log = server.call(&["ACL", "LOG"]);
    let redis::Value::Array(entries) = log else { panic!("{log:?}") };
    entries.iter().map(|entry| format!("{}: {entry:?}", server.addr())).collect()
}
