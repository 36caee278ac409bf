//! What this user may do on the servers, found out before any client is paused.

use super::fence::{WriterFence, WriterFenceKind};
use crate::deployment::Deployment;
use crate::endpoint::Address;
use crate::error::{Error, ErrorKind, Result, ServerError};
use crate::link::Link;

/// A command that is needed. Carried out it would change nothing, should anything between us and the server
/// not keep transactions.
struct Needed {
    command: &'static [&'static [u8]],
    /// How many of its words are its name.
    name_words: usize,
}

const OF_PAUSE: [Needed; 2] =
    [Needed { command: &[b"CLIENT", b"PAUSE", b"1", b"WRITE"], name_words: 2 }, OF_UNPAUSE];
const OF_UNPAUSE: Needed = Needed { command: &[b"CLIENT", b"UNPAUSE"], name_words: 2 };
const OF_ENDING: [Needed; 2] = [
    Needed { command: &[b"CLIENT", b"LIST"], name_words: 2 },
    Needed { command: &[b"CLIENT", b"KILL", b"ID", b"0"], name_words: 2 },
];
const OF_ACL: [Needed; 4] = [
    Needed { command: &[b"ACL", b"WHOAMI"], name_words: 2 },
    Needed { command: &[b"ACL", b"USERS"], name_words: 2 },
    Needed { command: &[b"ACL", b"GETUSER", b"default"], name_words: 2 },
    Needed { command: &[b"ACL", b"SETUSER", b"default"], name_words: 2 },
];
const OF_REPLICA: [Needed; 1] = [Needed { command: &[b"REPLICAOF", b"NO", b"ONE"], name_words: 1 }];

/// Finds out whether writers can be paused and then fenced off in this way. Changes nothing.
///
/// # Errors
/// `Lacks` if the server cannot pause writes alone; `Forbidden` for the first command that is refused; as
/// [`Deployment::open`].
pub async fn check_rights(deployment: &Deployment, kind: WriterFenceKind) -> Result<()> {
    if matches!(kind, WriterFenceKind::External { .. } | WriterFenceKind::Front) {
        // We pause and keep away no client.
        return Ok(());
    }
    let topology = deployment.topology();
    for shard in &topology.shards {
        let ending: &[Needed] = if kind == WriterFenceKind::None { &[] } else { &OF_ENDING };
        let mut link = deployment.open(&shard.primary, 0).await?;
        check_pause(&mut link).await?;
        check_on(link, OF_PAUSE.iter().chain(ending)).await?;
    }
    for address in topology.nodes().filter(|_| kind == WriterFenceKind::Acl) {
        check(deployment, address, &OF_ACL).await?;
    }
    if kind == WriterFenceKind::ReadonlyReplica && !deployment.is_cluster() {
        check(deployment, &deployment.server(), &OF_REPLICA).await?;
    }
    Ok(())
}

impl WriterFence {
    /// Finds out whether it can be taken down. Changes nothing.
    ///
    /// # Errors
    /// As [`check_rights`].
    pub async fn check_lift(&self, deployment: &Deployment) -> Result<()> {
        let needed: &[Needed] = match self.kind() {
            WriterFenceKind::None | WriterFenceKind::External { .. } | WriterFenceKind::Front => {
                return Ok(());
            }
            WriterFenceKind::Pause { .. } => &[OF_UNPAUSE],
            WriterFenceKind::Acl => &OF_ACL,
            WriterFenceKind::ReadonlyReplica => &OF_REPLICA,
        };
        let topology = deployment.topology();
        // Rights are those of each node; writers are paused on primaries.
        let nodes: Vec<&Address> = match self.kind() {
            WriterFenceKind::Acl => topology.nodes().collect(),
            _ => topology.shards.iter().map(|shard| &shard.primary).collect(),
        };
        for address in nodes {
            check(deployment, address, needed).await?;
        }
        Ok(())
    }
}

/// Before Redis 6.2 a server pauses all its clients or none, and nothing ends that early. It queues the
/// command all the same, so it is asked for a pause that makes no sense: those that have it refuse the time.
async fn check_pause(link: &mut Link) -> Result<()> {
    let reply = link.ask(&[b"CLIENT", b"PAUSE", b"-1", b"WRITE"]).await?;
    match ServerError::of(&reply) {
        Some(refused) if refused.text.to_ascii_lowercase().contains("unknown subcommand") => {
            Err(not_possible(link, ErrorKind::Lacks { command: "CLIENT PAUSE WRITE".to_owned() }))
        }
        _ => Ok(()),
    }
}

async fn check(deployment: &Deployment, address: &Address, needed: &[Needed]) -> Result<()> {
    check_on(deployment.open(address, 0).await?, needed.iter()).await
}

/// Queues the commands in a transaction that is never carried out: permissions are checked when a command is
/// queued. Sending it with wrong arguments would not do, since some servers count those first.
async fn check_on(mut link: Link, needed: impl Iterator<Item = &Needed>) -> Result<()> {
    link.call(&[b"MULTI"]).await?;
    for Needed { command, name_words } in needed {
        let reply = link.ask(command).await?;
        if let Some(refused) = ServerError::of(&reply) {
            let name: Vec<_> =
                command.iter().take(*name_words).map(|word| String::from_utf8_lossy(word)).collect();
            let kind = ErrorKind::Forbidden { command: name.join(" "), answer: refused.text };
            return Err(not_possible(&link, kind));
        }
    }
    // The connection ends here, and the transaction with it.
    Ok(())
}

fn not_possible(link: &Link, kind: ErrorKind) -> Error {
    Error::new(link.endpoint().side, link.address().to_string(), "cut over", kind)
}
