//! Clients that write to a server, as far as it reports them: for the operator who has to stop them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use whimbrel_wire::value::Value;

use crate::error::Result;
use crate::feed;
use crate::link::{CLIENT_NAME, Link};
use crate::nodes::is_called;

/// A client whose last command could write.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WritingClient {
    /// The server that it is connected to.
    pub server: String,
    /// Its own address, as `HOST:PORT`.
    pub address: String,
    /// The name that it has given itself; empty if it has none.
    pub name: String,
    /// Its ACL user; empty if the server does not report it.
    pub user: String,
    /// Its last command.
    pub command: String,
}

/// The clients of a server that have written within the last second or two, among them other jobs of
/// whimbrel's by their names. `None` if this user may not ask for them.
///
/// # Errors
/// As [`Link::ask`].
pub async fn writing_clients(link: &mut Link) -> Result<Option<Vec<WritingClient>>> {
    let reply = link.ask(&[b"CLIENT", b"LIST"]).await?;
    let server = link.address().to_string();
    Ok(list_in(&reply).map(|clients| clients.lines().filter_map(|line| writing(line, &server)).collect()))
}

/// How many clients a server has besides ours and those that come from addresses that are `known`. `None` if
/// this user may not ask for them.
///
/// # Errors
/// As [`Link::ask`].
pub async fn other_clients(link: &mut Link, known: &[String]) -> Result<Option<u64>> {
    let reply = link.ask(&[b"CLIENT", b"LIST"]).await?;
    let known: BTreeSet<&str> = known.iter().map(String::as_str).collect();
    let is_other = |line: &&str| is_foreign(line) && !known.contains(field(line, "addr"));
    Ok(list_in(&reply).map(|clients| clients.lines().filter(is_other).count() as u64))
}

/// The addresses of the clients of a server that are logged in as this user, except ours: none if ours cannot
/// be distinguished from others, since this user may not name its connections.
///
/// # Errors
/// As [`Link::call`].
pub(super) async fn clients_of(link: &mut Link, user: &str) -> Result<Vec<String>> {
    let reply = link.call(&[b"CLIENT", b"LIST"]).await?;
    let Some(clients) = list_in(&reply) else { return Err(link.unexpected("CLIENT LIST", &reply)) };
    Ok(of_user(&clients, user))
}

/// The clients that a reply lists; their names may be any bytes; `None` if it is no list.
fn list_in(reply: &Value) -> Option<Cow<'_, str>> {
    reply.as_bytes().map(|text| String::from_utf8_lossy(text))
}

fn of_user(clients: &str, user: &str) -> Vec<String> {
    if !clients.lines().any(|line| field(line, "name") == CLIENT_NAME) {
        return Vec::new();
    }
    let is_theirs = |line: &&str| is_foreign(line) && field(line, "user") == user;
    clients.lines().filter(is_theirs).map(|line| field(line, "addr").to_owned()).collect()
}

fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let fields = line.split(' ').filter_map(|field| field.split_once('='));
    fields.into_iter().find(|(n, _)| *n == name).map_or("", |(_, value)| value)
}

/// Whose a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// A replica's, a feed's among them, or the primary's: no client.
    Server,
    /// Whimbrel's: this process's, or that of another job.
    Whimbrel,
    /// Of any other client.
    Foreign,
}

/// Whether a connection of this name is whimbrel's. Those that move slots are named after their jobs.
pub fn is_whimbrels(name: &str) -> bool {
    is_called(name, CLIENT_NAME)
}

/// Whose the connection in a line of `CLIENT LIST` is.
fn whose(line: &str) -> Whose {
    let (name, flags) = (field(line, "name"), field(line, "flags"));
    match flags.contains(['S', 'M']) {
        true => Whose::Server,
        false if is_whimbrels(name) => Whose::Whimbrel,
        false => Whose::Foreign,
    }
}

/// Whether a line of `CLIENT LIST` is of a client, and none of ours.
fn is_foreign(line: &str) -> bool {
    whose(line) == Whose::Foreign
}

/// A line of `CLIENT LIST`, if it is of a client that has just written.
fn writing(line: &str, server: &str) -> Option<WritingClient> {
    let field = |name: &str| field(line, name);
    let (name, command) = (field("name"), field("cmd"));
    let is_recent = field("idle").parse::<u64>().is_ok_and(|seconds| seconds <= 1);
    let writes = match whose(line) {
        Whose::Server => false,
        // What we and other jobs read is read in transactions. We only read the server that is asked here.
        Whose::Whimbrel => feed::may_write(command) && !command.eq_ignore_ascii_case("exec"),
        Whose::Foreign => feed::may_write(command),
    };
    (is_recent && writes).then(|| WritingClient {
        server: server.to_owned(),
        address: field("addr").to_owned(),
        name: name.to_owned(),
        user: field("user").to_owned(),
        command: command.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_question_shows_whose_a_connection_is() {
        for (name, whose_it_is) in [
            ("", Whose::Foreign),
            ("worker", Whose::Foreign),
            ("whimbrels", Whose::Foreign),
            ("whimbrel", Whose::Whimbrel),
            ("whimbrel:feed", Whose::Whimbrel),
            ("whimbrel:job:p:7", Whose::Whimbrel),
            ("whimbrel:candidate:p:", Whose::Whimbrel),
        ] {
            assert_eq!(whose(&format!("id=3 addr=10.0.0.1:1 name={name} flags=N cmd=set")), whose_it_is);
        }
        assert_eq!(whose("id=3 addr=10.0.0.1:1 name=whimbrel flags=S cmd=replconf"), Whose::Server);
    }

    #[test]
    fn clients_with_our_own_user_are_distinguished_from_us() {
        let clients = "id=3 addr=10.0.0.1:1 name= flags=N cmd=set user=default\n\
                       id=4 addr=10.0.0.1:2 name= flags=N cmd=set user=app\n\
                       id=5 addr=10.0.0.1:3 name=whimbrel flags=N cmd=exec user=default\n\
                       id=6 addr=10.0.0.1:4 name=whimbrel:job:7 flags=N cmd=ping user=default\n\
                       id=7 addr=10.0.0.1:5 name= flags=S cmd=replconf user=default\n";
        assert_eq!(of_user(clients, "default"), ["10.0.0.1:1"]);
        assert!(of_user(clients, "mover").is_empty());
        // If connections cannot be named, ours looks like any other.
        assert!(of_user(&clients.replace("=whimbrel", "="), "default").is_empty());
    }

    #[test]
    fn who_has_just_written_is_distinguished_from_who_reads_or_rests() {
        let clients = "id=3 addr=10.0.0.1:1 name=worker idle=0 flags=N cmd=set user=app\n\
                       id=4 addr=10.0.0.1:2 name= idle=1 flags=N cmd=xgroup|create\n\
                       id=5 addr=10.0.0.1:3 name= idle=0 flags=N cmd=get user=app\n\
                       id=6 addr=10.0.0.1:4 name= idle=9 flags=N cmd=set user=app\n\
                       id=7 addr=10.0.0.1:5 name=whimbrel idle=0 flags=N cmd=exec user=mover\n\
                       id=8 addr=10.0.0.1:6 name= idle=0 flags=S cmd=replconf user=mover\n\
                       id=9 addr=10.0.0.1:7 name= idle=0 flags=N cmd=exec user=app\n\
                       id=10 addr=10.0.0.1:8 name=whimbrel:job:7 idle=0 flags=N cmd=exec user=mover\n\
                       id=11 addr=10.0.0.1:9 name=whimbrel:job:7 idle=0 flags=N cmd=unlink user=mover\n\
                       id=12 addr=10.0.0.1:10 name=whimbrels idle=0 flags=N cmd=exec user=app\n";
        let found: Vec<_> = clients.lines().filter_map(|line| writing(line, "s:1")).collect();
        let addresses: Vec<&str> = found.iter().map(|client| client.address.as_str()).collect();
        assert_eq!(addresses, ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:7", "10.0.0.1:9", "10.0.0.1:10"]);
        assert_eq!((found[0].name.as_str(), found[0].user.as_str()), ("worker", "app"));
        assert_eq!((found[1].user.as_str(), found[1].server.as_str()), ("", "s:1"));
    }
}
