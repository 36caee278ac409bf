//! What the user of a handover has to be allowed, found out before anything is changed.

use whimbrel_wire::value::Value;

use super::options::SlotFenceKind;
use super::peer::Peer;
use super::state::Handover;
use crate::error::{Code, Error, Result, ServerError};
use crate::link::Link;
use crate::paused::{HELD_BY_PAUSE, unless_paused};
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

/// If the source learns of its loss by gossip.
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

/// Outside of a transaction: in one they are refused for just that.
const OF_TRANSACTIONS: [Command; 2] = [&[b"EXEC"], &[b"DISCARD"]];

impl Handover {
    /// Finds out whether this user may do everything that a handover needs, before anything is changed.
    ///
    /// # Errors
    /// `Server` for the first command that is forbidden; `Paused` if the clients of a node are paused.
    pub async fn check_permissions(&mut self) -> Result<()> {
        let held_ms_max = self.held_ms_max();
        let bumps = self.usual_fence() == SlotFenceKind::Gossip;
        let needed = |peer: &Peer, own: &[Command]| {
            let ranges = RANGES.iter().filter(|_| peer.traits.ranges);
            let bump = [&BUMP].into_iter().filter(|_| bumps);
            BOTH.iter().chain(own).chain(ranges).chain(bump).copied().collect()
        };
        let of_source = needed(&self.source, &SOURCE);
        let of_target = needed(&self.target, &TARGET);
        let (source, target) = tokio::join!(
            check(&mut self.source, of_source, held_ms_max),
            check(&mut self.target, of_target, held_ms_max)
        );
        source.and(target)
    }

    /// For how long a node may keep what writes waiting: as long as a pause may last that a killed job left.
    fn held_ms_max(&self) -> u64 {
        self.long_pause_ms + HELD_MORE_MS
    }

    /// As [`Handover::check_permissions`], for slots that move the classic way. That needs no transactions,
    /// and no rights for other keys than those that move: if the user has none of these, nothing is found
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
        // A transaction that this user cannot end must not be begun.
        OF_TRANSACTIONS.iter().for_each(|command| link.push(command));
        link.flush().await?;
        let replies = link.replies(OF_TRANSACTIONS.len()).await?;
        refusal(link, &OF_TRANSACTIONS, &replies)?;
        // What follows waits for the answer: outside of a transaction it would be carried out.
        link.call(&[b"MULTI"]).await?;
        link.push(&HELD_BY_PAUSE);
        needed.iter().for_each(|command| link.push(command));
        link.push(&[b"DISCARD"]);
        link.flush().await?;
        let count = needed.len() + 2;
        let mut replies = unless_paused(link, held_ms_max, async |link| link.replies(count).await).await?;
        let ended = replies.pop().unwrap_or(Value::Null);
        link.check(ended, b"DISCARD")?;
        refusal(link, &needed, &replies[1..])
    })
    .await
}

/// An error for the first of some commands that the user may not run.
fn refusal(link: &Link, commands: &[Command], replies: &[Value]) -> Result<()> {
    let mut answers = commands.iter().zip(replies);
    answers.try_for_each(|(command, reply)| refused(link, command, ServerError::of(reply)))
}

/// An error if the user may not run it. Any other objection of the server does not matter.
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
