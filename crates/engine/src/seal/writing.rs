//! Clients that write to a server, as far as it tells: for the operator who has to stop them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::feed;
use crate::link::{CLIENT_NAME, Link};

/// A client whose last command could write.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WritingClient {
    /// The server that it is connected to.
    pub server: String,
    /// Where it comes from, as `HOST:PORT`.
    pub address: String,
    /// The name that it has given itself; empty where it has not.
    pub name: String,
    /// Its ACL user; empty where the server does not tell.
    pub user: String,
    /// Its last command.
    pub command: String,
}

/// The clients of a server that have written within the last second or two, ours excepted. `None` where this
/// user may not ask for them.
///
/// # Errors
/// As [`Link::ask`].
pub async fn writing_clients(link: &mut Link) -> Result<Option<Vec<WritingClient>>> {
    let reply = link.ask(&[b"CLIENT", b"LIST"]).await?;
    let server = link.address().to_string();
    Ok(reply.as_str().map(|clients| clients.lines().filter_map(|line| writing(line, &server)).collect()))
}

/// How many clients a server has besides ours and those that come from addresses that are `known`. `None`
/// where this user may not ask for them.
///
/// # Errors
/// As [`Link::ask`].
pub async fn other_clients(link: &mut Link, known: &[String]) -> Result<Option<u64>> {
    let reply = link.ask(&[b"CLIENT", b"LIST"]).await?;
    let known: BTreeSet<&str> = known.iter().map(String::as_str).collect();
    let is_other = |line: &&str| is_foreign(line) && !known.contains(field(line, "addr"));
    Ok(reply.as_str().map(|clients| clients.lines().filter(is_other).count() as u64))
}

/// Where the clients of a server come from that are logged in as this user, ours excepted: none where ours
/// cannot be told from others, since this user may not name its connections.
///
/// # Errors
/// As [`Link::call`].
pub(super) async fn clients_of(link: &mut Link, user: &str) -> Result<Vec<String>> {
    let reply = link.call(&[b"CLIENT", b"LIST"]).await?;
    Ok(of_user(reply.as_str().unwrap_or_default(), user))
}

fn of_user(clients: &str, user: &str) -> Vec<String> {
    if !clients.lines().any(|line| field(line, "name") == CLIENT_NAME) {
        return Vec::new();
    }
    // Those of moves of slots are named after their jobs.
    let is_ours = |line: &str| field(line, "name").starts_with("whimbrel:");
    let is_theirs = |line: &&str| is_foreign(line) && !is_ours(line) && field(line, "user") == user;
    clients.lines().filter(is_theirs).map(|line| field(line, "addr").to_owned()).collect()
}

fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let fields = line.split(' ').filter_map(|field| field.split_once('='));
    fields.into_iter().find(|(n, _)| *n == name).map_or("", |(_, value)| value)
}

/// Whether a line of `CLIENT LIST` is of a client, and none of ours.
fn is_foreign(line: &str) -> bool {
    // Links of replicas, those of feeds among them, and of the primary are nobody's clients.
    let is_client = !field(line, "flags").contains(['S', 'M']);
    is_client && ![CLIENT_NAME, feed::FEED_CLIENT_NAME].contains(&field(line, "name"))
}

/// A line of `CLIENT LIST`, where it is of a client that has just written.
fn writing(line: &str, server: &str) -> Option<WritingClient> {
    let field = |name: &str| field(line, name);
    let (name, command) = (field("name"), field("cmd"));
    let is_recent = field("idle").parse::<u64>().is_ok_and(|seconds| seconds <= 1);
    (is_foreign(line) && is_recent && feed::may_write(command)).then(|| WritingClient {
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
    fn clients_with_our_own_user_are_told_from_us() {
        let clients = "id=3 addr=10.0.0.1:1 name= flags=N cmd=set user=default\n\
                       id=4 addr=10.0.0.1:2 name= flags=N cmd=set user=app\n\
                       id=5 addr=10.0.0.1:3 name=whimbrel flags=N cmd=exec user=default\n\
                       id=6 addr=10.0.0.1:4 name=whimbrel:job:7 flags=N cmd=ping user=default\n\
                       id=7 addr=10.0.0.1:5 name= flags=S cmd=replconf user=default\n";
        assert_eq!(of_user(clients, "default"), ["10.0.0.1:1"]);
        assert!(of_user(clients, "mover").is_empty());
        // Where connections cannot be named ours looks like any other.
        assert!(of_user(&clients.replace("=whimbrel", "="), "default").is_empty());
    }

    #[test]
    fn who_has_just_written_is_told_from_who_reads_rests_or_is_whimbrel() {
        let clients = "id=3 addr=10.0.0.1:1 name=worker idle=0 flags=N cmd=set user=app\n\
                       id=4 addr=10.0.0.1:2 name= idle=1 flags=N cmd=xgroup|create\n\
                       id=5 addr=10.0.0.1:3 name= idle=0 flags=N cmd=get user=app\n\
                       id=6 addr=10.0.0.1:4 name= idle=9 flags=N cmd=set user=app\n\
                       id=7 addr=10.0.0.1:5 name=whimbrel idle=0 flags=N cmd=exec user=mover\n\
                       id=8 addr=10.0.0.1:6 name= idle=0 flags=S cmd=replconf user=mover\n\
                       id=9 addr=10.0.0.1:7 name= idle=0 flags=N cmd=exec user=app\n";
        let found: Vec<_> = clients.lines().filter_map(|line| writing(line, "s:1")).collect();
        let addresses: Vec<&str> = found.iter().map(|client| client.address.as_str()).collect();
        assert_eq!(addresses, ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:7"]);
        assert_eq!((found[0].name.as_str(), found[0].user.as_str()), ("worker", "app"));
        assert_eq!((found[1].user.as_str(), found[1].server.as_str()), ("", "s:1"));
    }
}
