//! `FLUSHALL` and `FLUSHDB` while keys move: to clients, both servers are emptied at the one moment at which
//! the target is.
//!
//! Before that moment no client may see that the source is empty already: no key moves, and none is read
//! there. So what is at the source cannot be distinguished from what waits to be moved.
//! `docs/design/front.md` explains the rest.
//!
//! A front that dies in between leaves a file, and a [marker](marker) at the target that vanishes with all
//! other keys at that moment. If both are there, the next front goes on with it before it serves.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};
use whimbrel_engine::error::{Error, ErrorKind, Result};
use whimbrel_engine::link::Link;
use whimbrel_flow::journal::{make_anew, sync_name};
use whimbrel_flow::large::staging_key;
use whimbrel_wire::encode::Outbox;
use whimbrel_wire::value::Value;

use crate::migrate::staging::MARKER_JOB;
use crate::migrate::state::{MigrationState, RETRY_PAUSE};
use crate::pipe::frame::{one_line, refusal};
use crate::upstream::identity::{Identity, ReplyReader};
use crate::upstream::{KillHandle, Upstream};

/// How long it waits until no key moves and none is read at the source.
const REST_WAIT: Duration = Duration::from_secs(1);

const CLUSTERED: &str =
    "the nodes of a cluster cannot be emptied at one moment: delete the keys, or wait until all have moved";

const BUSY: &[u8] =
    b"-TRYAGAIN whimbrel front: keys are moving, and cannot be removed as a whole right now\r\n";

/// A key of the target that is there from before the source is emptied until the target is.
fn marker() -> Vec<u8> {
    staging_key(MARKER_JOB, b"")
}

/// Empties both servers for a client, and returns its reply; `None` if all keys have moved meanwhile, so that
/// the target can answer.
pub(crate) async fn flush(
    migration: Arc<MigrationState>,
    identity: Identity,
    words: Vec<Bytes>,
) -> Option<Vec<u8>> {
    let is_known = |word: &Bytes| word.eq_ignore_ascii_case(b"ASYNC") || word.eq_ignore_ascii_case(b"SYNC");
    if words.len() > 2 || !words.iter().skip(1).all(is_known) {
        return Some(b"-ERR syntax error\r\n".to_vec());
    }
    let limit = Duration::from_millis(migration.servers.link.reply_timeout_ms);
    let upstreams = [&migration.servers.source, &migration.servers.target];
    if upstreams.iter().any(|upstream| upstream.is_cluster()) {
        return Some(refusal(&words[0], CLUSTERED));
    }
    for upstream in upstreams {
        let asking = may_flush(upstream, &identity, &words);
        match timeout(limit, asking).await {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(refused))) => return Some([b"-", &refused[..], b"\r\n"].concat()),
            Ok(Err(error)) => return Some(failed(&error)),
            Err(_) => return Some(b"-ERR whimbrel front: a server does not answer\r\n".to_vec()),
        }
    }
    // A client that leaves must not end it half-way.
    let flushing = tokio::spawn(flush_at_rest(migration, words));
    flushing.await.unwrap_or_else(|_| Some(b"-ERR whimbrel front: it is ending\r\n".to_vec()))
}

/// What the server would refuse it with to this client; nothing is removed.
async fn may_flush(upstream: &Upstream, identity: &Identity, words: &[Bytes]) -> Result<Option<Bytes>> {
    let endpoint = upstream.endpoint();
    let fail =
        |e| Error::new(endpoint.side, endpoint.address.to_string(), "ask for a right", ErrorKind::Broken(e));
    let mut io = upstream.introduce(identity).await?.into_io();
    let mut out = Outbox::new();
    out.push(&[b"MULTI"]);
    out.command(words.len());
    for word in words {
        out.arg_bytes(word);
    }
    out.push(&[b"DISCARD"]);
    io.write_all_buf(&mut out).await.map_err(fail)?;
    io.flush().await.map_err(fail)?;
    let mut replies = ReplyReader::default();
    for _ in 0..2 {
        if let Value::Error(refused) = replies.next(&mut io).await.map_err(fail)? {
            return Ok(Some(refused));
        }
    }
    Ok(None)
}

async fn flush_at_rest(migration: Arc<MigrationState>, words: Vec<Bytes>) -> Option<Vec<u8>> {
    let Ok(_gate) = timeout(REST_WAIT, migration.gate.write()).await else { return Some(BUSY.to_vec()) };
    if migration.is_done() {
        return None;
    }
    let Some(file) = migration.flush_file.get().filter(|_| !migration.is_rebuilding()) else {
        return Some(BUSY.to_vec());
    };
    let closed = migration.locks.close();
    if timeout(REST_WAIT, closed.emptied()).await.is_err() {
        return Some(BUSY.to_vec());
    }
    let begun = match write(file) {
        Ok(()) => empty_both(&migration, &words, false).await,
        Err(error) => Err(Error::own(format!("write {}", file.display()), error)),
    };
    if let Err(error) = std::fs::remove_file(file) {
        // Without the marker it means nothing.
        tracing::warn!(%error, file = %file.display(), "the note of a flush is left");
    }
    Some(begun.map_or_else(|error| failed(&error), |()| b"+OK\r\n".to_vec()))
}

/// Goes on with what the process before this one had begun. No client is served yet.
///
/// # Errors
/// If the target cannot be asked.
pub(crate) async fn recover(migration: &MigrationState, file: &Path) -> Result<()> {
    if !file.exists() {
        return Ok(());
    }
    let mut target = migration.open_target().await?;
    if is_marked(&mut target).await? {
        empty_both(migration, &[Bytes::from_static(b"FLUSHDB"), Bytes::from_static(b"ASYNC")], true).await?;
    }
    std::fs::remove_file(file).map_err(|e| Error::own(format!("remove {}", file.display()), e))
}

/// Why an attempt has not succeeded.
enum Halt {
    /// A server has refused it, and nothing was removed.
    Refused(Error),
    /// Something may have been removed.
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        Halt::Failed(error)
    }
}

/// How far it is.
struct Progress {
    /// The marker has been written, so it is there until the target is emptied.
    is_marked: bool,
    /// The source may have been emptied.
    is_begun: bool,
    /// What ends the connection to the target that the last attempt had.
    target: Option<KillHandle>,
}

/// Empties the source and then the target, however often that has to be tried.
///
/// # Errors
/// What a server has refused before anything was removed.
async fn empty_both(migration: &MigrationState, words: &[Bytes], is_begun: bool) -> Result<()> {
    let mut progress = Progress { is_marked: is_begun, is_begun, target: None };
    loop {
        match attempt(migration, words, &mut progress).await {
            Ok(()) => {
                migration.set_trouble(None);
                return Ok(());
            }
            Err(Halt::Refused(error)) => return Err(error),
            Err(Halt::Failed(error)) => {
                tracing::warn!(%error, "emptying both servers is tried again");
                migration.set_trouble(Some(error.to_string()));
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

async fn attempt(
    migration: &MigrationState,
    words: &[Bytes],
    progress: &mut Progress,
) -> std::result::Result<(), Halt> {
    if let Some(old) = &mut progress.target {
        // What still waits in it would remove what clients have written since.
        old.kill().await?;
    }
    let (mut target, kill_handle) = migration.servers.target.killable().await?;
    progress.target = Some(kill_handle);
    if progress.is_marked && !is_marked(&mut target).await? {
        return Ok(());
    }
    let refused = |error: Error, is_begun: bool| match error.kind {
        ErrorKind::Server(_) if !is_begun => Halt::Refused(error),
        _ => Halt::Failed(error),
    };
    target.call(&[b"SET", &marker(), b"1"]).await.map_err(|error| refused(error, progress.is_begun))?;
    progress.is_marked = true;
    let words: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
    let mut source = migration.open_source().await?;
    let was_begun = std::mem::replace(&mut progress.is_begun, true);
    if let Err(error) = source.call(&words).await {
        let halt = refused(error, was_begun);
        if matches!(halt, Halt::Refused(_)) {
            progress.is_begun = false;
            target.call(&[b"DEL", &marker()]).await?;
        }
        return Err(halt);
    }
    target.call(&words).await?;
    Ok(())
}

async fn is_marked(target: &mut Link) -> Result<bool> {
    Ok(target.call(&[b"EXISTS", &marker()]).await? == Value::Int(1))
}

/// It is on disk when this returns.
fn write(file: &Path) -> std::io::Result<()> {
    make_anew(file)?.sync_all()?;
    sync_name(file)
}

fn failed(error: &Error) -> Vec<u8> {
    format!("-ERR whimbrel front: {}\r\n", one_line(&error.to_string())).into_bytes()
}
