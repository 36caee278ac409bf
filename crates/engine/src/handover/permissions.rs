//! What the user of a handover has to be allowed, found out before anything is changed.

use super::options::FenceKind;
use super::peer::Peer;
use super::state::Handover;
use crate::error::{Code, Error, Result, ServerError};
use crate::link::Link;
use crate::paused::{check_unpaused, unless_paused};
use crate::probe::PROBE_KEY;

type Command = &'static [&'static [u8]];

/// Needed on both nodes. Each is refused for its arguments, or changes nothing.
const BOTH: [Command; 9] = [
    &[b"CLUSTER", b"NODES"],
    &[b"CLUSTER", b"SETSLOT", b"99999", b"STABLE"],
    &[b"CLUSTER", b"DELSLOTS", b"99999"],
    &[b"CLUSTER", b"ADDSLOTS", b"99999"],
    &[b"CLUSTER", b"COUNTKEYSINSLOT", b"99999"],
    &[b"CLUSTER", b"GETKEYSINSLOT", b"99999", b"1"],
    &[b"CLIENT", b"LIST"],
    &[b"INFO", b"replication"],
    &[b"UNLINK", PROBE_KEY],
];

/// Needed on nodes that have them.
const RANGES: [Command; 2] = [
    &[b"CLUSTER", b"DELSLOTSRANGE", b"99999", b"99999"],
    &[b"CLUSTER", b"ADDSLOTSRANGE", b"99999", b"99999"],
];

const SOURCE: [Command; 6] = [
    &[b"CLIENT", b"PAUSE", b"-1", b"WRITE"],
    &[b"CLIENT", b"UNPAUSE"],
    &[b"DUMP", PROBE_KEY],
    &[b"PTTL", PROBE_KEY],
    &[b"STRLEN", PROBE_KEY],
    &[b"GET", PROBE_KEY],
];

const TARGET: [Command; 4] = [
    &[b"WAIT", b"0", b"1"],
    &[b"RESTORE", PROBE_KEY, b"0", b"-"],
    &[b"SET", PROBE_KEY, b"", b"XX"],
    &[b"ASKING"],
];

/// Where the source learns of its loss by gossip.
const BUMP: Command = &[b"CLUSTER", b"BUMPEPOCH"];

/// What the classic way needs on both nodes, and on each.
const LEGACY: [Command; 3] = [
    &[b"CLUSTER", b"NODES"],
    &[b"CLUSTER", b"SETSLOT", b"99999", b"STABLE"],
    &[b"CLUSTER", b"GETKEYSINSLOT", b"99999", b"1"],
];
const LEGACY_SOURCE: [Command; 1] = [&[b"MIGRATE", b"", b"0", PROBE_KEY, b"0", b"1"]];
/// What the source asks of it, as the same user.
const LEGACY_TARGET: [Command; 1] = [&[b"RESTORE-ASKING", PROBE_KEY, b"0", b"-"]];

/// How much longer than the longest of whimbrel's own pauses.
const HELD_MORE_MS: u64 = 2_000;

/// Outside of a transaction, where they are refused for just that.
const OF_TRANSACTIONS: [Command; 2] = [&[b"EXEC"], &[b"DISCARD"]];

impl Handover {
    /// Finds out whether this user may do everything that a handover needs, before anything is changed.
    ///
    /// # Errors
    /// `Server` for the first command that is forbidden; `Paused` where somebody has paused the clients of a
    /// node.
    pub async fn check_permissions(&mut self) -> Result<()> {
        let held_ms_max = self.held_ms_max();
        let bumps = self.usual_fence() == FenceKind::Gossip;
        for (peer, own) in [(&mut self.source, &SOURCE[..]), (&mut self.target, &TARGET[..])] {
            let ranges = RANGES.iter().filter(|_| peer.traits.ranges);
            let bump = [&BUMP].into_iter().filter(|_| bumps);
            let needed = BOTH.iter().chain(own).chain(ranges).chain(bump).copied().collect();
            check(peer, needed, held_ms_max).await?;
        }
        Ok(())
    }

    /// For how long a node may keep what writes waiting: as long as a pause may last that a killed job left.
    fn held_ms_max(&self) -> u64 {
        self.long_pause_ms + HELD_MORE_MS
    }

    /// As [`Handover::check_permissions`], for slots that move the classic way. That needs no transactions,
    /// and no rights for other keys than those that move: where the user has none of these, nothing is found
    /// out.
    ///
    /// # Errors
    /// Likewise.
    pub async fn check_legacy_permissions(&mut self) -> Result<()> {
        let held_ms_max = self.held_ms_max();
        for (peer, own) in [(&mut self.source, &LEGACY_SOURCE[..]), (&mut self.target, &LEGACY_TARGET[..])] {
            match check(peer, LEGACY.iter().chain(own).copied().collect(), held_ms_max).await {
                Err(e) if is_of_the_check(&e) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }
}

/// Whether it is the way in which rights are found out that is forbidden: transactions, or the probe's key.
fn is_of_the_check(error: &Error) -> bool {
    let of_transactions = ["EXEC", "DISCARD", "MULTI"].iter().any(|name| *error.tried == **name);
    let of_key = |e: &ServerError| e.code == Code::NoPermission && !e.forbids_command();
    of_transactions || error.server().is_some_and(of_key)
}

/// Queues commands in a transaction that is never carried out: permissions are checked when they are queued.
async fn check(peer: &mut Peer, needed: Vec<Command>, held_ms_max: u64) -> Result<()> {
    peer.run(async |link| {
        for command in OF_TRANSACTIONS {
            let reply = link.ask(command).await?;
            refused(link, command, ServerError::of(&reply))?;
        }
        check_unpaused(link, held_ms_max).await?;
        link.call(&[b"MULTI"]).await?;
        for command in &needed {
            link.push(command);
        }
        link.flush().await?;
        let replies = unless_paused(link, held_ms_max, async |link| link.replies(needed.len()).await).await?;
        link.call(&[b"DISCARD"]).await?;
        needed
            .iter()
            .zip(&replies)
            .try_for_each(|(command, reply)| refused(link, command, ServerError::of(reply)))
    })
    .await
}

/// An error where the user may not run it. What else the server has against it is no matter.
fn refused(link: &Link, command: Command, answer: Option<ServerError>) -> Result<()> {
    let Some(answer) = answer.filter(|e| matches!(e.code, Code::NoPermission | Code::UnknownCommand)) else {
        return Ok(());
    };
    let words = if matches!(command[0], b"CLUSTER" | b"CLIENT") { 2 } else { 1 };
    let name: Vec<_> = command.iter().take(words).map(|word| String::from_utf8_lossy(word)).collect();
    let error: Error = link.server_error(answer, name.join(" ").as_bytes());
    Err(error.with_remedy(
        "moving slots from outside needs this command: give this user the permission, or name another user; \
            where the service forbids it to everybody, use the service's own means",
    ))
}
