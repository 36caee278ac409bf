//! What to transfer in chunks, and how a transfer ends.

use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Code, Error, Result, ServerError};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Capabilities;
use whimbrel_wire::value::Value;

/// What to do if the target has the key already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Replace it.
    Replace,
    /// Leave it as it is.
    Skip,
    /// Leave it as it is, and say so unless it holds the same value.
    Fail,
}

/// Where on the target the value is assembled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assembly {
    /// Under a staging key, which takes the place of the key in one transaction.
    Staging,
    /// As [`Assembly::Staging`], but a hash, set or sorted set takes its place even if it changed while it
    /// was read: the caller transfers its changed elements once more.
    Followed,
    /// Under its own name, in a slot that the target is importing: every command follows an `ASKING`. What is
    /// there is replaced. A key that changes while it is read is either read again (strings, lists, streams),
    /// or the caller transfers its changed elements once more (hashes, sets, sorted sets).
    Importing {
        /// Whether a hash, set or sorted set gets its expiry. A key that is still followed must not: it could
        /// expire there while its source lives on, and the next change would make a fragment of it.
        mortal: bool,
    },
}

/// What to transfer, and how.
#[derive(Debug, Clone, Copy)]
pub struct Transfer<'a> {
    /// The key.
    pub key: &'a [u8],
    /// What to do if the target has it already.
    pub existing: Existing,
    /// Where it is assembled.
    pub place: Assembly,
    /// How much to read or write at once, in bytes. An element that is larger moves alone.
    pub chunk_bytes: usize,
    /// How often to try, because the key changed while it was read.
    pub tries_max: u32,
    /// A short name of the job, part of the names of staging keys: two jobs never write to the same one.
    pub job: &'a str,
    /// What the source can do.
    pub source: &'a Capabilities,
    /// What the target can do.
    pub target: &'a Capabilities,
    /// Ends the transfer between two chunks.
    pub stop: Option<&'a CancellationToken>,
}

/// How a transfer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The target holds the key as the source did.
    Written {
        /// Bytes of elements sent.
        bytes: u64,
        /// Elements sent: 1 for a string. An element that the source's scan gave twice counts twice.
        elements: u64,
        /// True if the key has a time to live.
        ttl: bool,
    },
    /// The source has no such key, or not any more. The target was not touched.
    Gone,
    /// The target has the key already. With [`Existing::Fail`]: and it holds the same value.
    Skipped,
    /// With [`Existing::Fail`]: the target has the key, with another value, or with a value that is too large
    /// to compare.
    Conflict,
    /// The target has no way to hold this value; the text says why.
    Unholdable(String),
    /// The key changed during each of several reads. The target's key was not touched.
    Changing,
}

/// The type of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyType {
    /// `string`, which bitmaps and HyperLogLogs are too.
    String,
    /// `list`.
    List,
    /// `set`.
    Set,
    /// `zset`, which geographical indexes are too.
    Zset,
    /// `hash`.
    Hash,
    /// `stream`.
    Stream,
    /// A type of a module, by its own name.
    Module(String),
}

impl KeyType {
    pub(super) fn of_name(name: &str) -> Option<KeyType> {
        Some(match name {
            "none" => return None,
            "string" => KeyType::String,
            "list" => KeyType::List,
            "set" => KeyType::Set,
            "zset" => KeyType::Zset,
            "hash" => KeyType::Hash,
            "stream" => KeyType::Stream,
            other => KeyType::Module(other.to_owned()),
        })
    }

    /// The command that counts the elements (of a string: the bytes) of a key; `None` for types of modules.
    pub(super) fn cardinality_command(&self) -> Option<&'static [u8]> {
        Some(match self {
            KeyType::String => b"STRLEN",
            KeyType::List => b"LLEN",
            KeyType::Set => b"SCARD",
            KeyType::Zset => b"ZCARD",
            KeyType::Hash => b"HLEN",
            KeyType::Stream => b"XLEN",
            KeyType::Module(_) => return None,
        })
    }
}

/// Whether a type is none of those that every server has.
pub(crate) fn is_of_module(name: &str) -> bool {
    matches!(KeyType::of_name(name), Some(KeyType::Module(_)))
}

/// The type of `key`, or `None` if there is no such key.
///
/// # Errors
/// As [`Link::call`].
pub async fn type_of(link: &mut Link, key: &[u8]) -> Result<Option<KeyType>> {
    let reply = link.call(&[b"TYPE", key]).await?;
    match reply.as_str() {
        Some(name) => Ok(KeyType::of_name(name)),
        None => Err(link.unexpected("TYPE", &reply)),
    }
}

/// Why a try ended without an outcome.
pub(super) enum Halt {
    /// An error.
    Failed(Error),
    /// The key changed while it was read.
    Changed,
    /// The target cannot hold the value.
    Unholdable(String),
    /// The target does not hold what it took in. All replies have been read.
    Lost,
}

impl From<Error> for Halt {
    fn from(e: Error) -> Self {
        Halt::Failed(e)
    }
}

/// Turns an error reply of the source into a halt: the wrong type means that the key was replaced meanwhile.
pub(super) fn checked(source: &Link, reply: Value, command: &[u8]) -> Result<Value, Halt> {
    match ServerError::of(&reply) {
        None => Ok(reply),
        Some(e) if e.code == Code::WrongType => Err(Halt::Changed),
        Some(e) => Err(Halt::Failed(source.server_error(e, command))),
    }
}
