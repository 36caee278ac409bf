//! Asks how many of several keys there are, and removes several: their replies are numbers of keys.

use bytes::Bytes;
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Link;

use super::state::Body;
use super::write::Write;

/// Most keys of one command.
const KEYS_TOGETHER: usize = 128;

/// How many of the keys there are, in one round trip. With `is_one` it is a server by itself: in a cluster
/// one command for several keys would not do.
///
/// # Errors
/// Whatever the link or the server reports; `Unexpected` for what is no number of keys.
pub async fn count_existing(link: &mut Link, keys: &[Bytes], is_one: bool) -> Result<u64> {
    sum_of(link, b"EXISTS", keys, is_one).await
}

/// Removes the keys in one round trip, and returns how many there were. `is_one` is as of [`count_existing`].
///
/// # Errors
/// As [`count_existing`].
pub async fn unlink_counted(link: &mut Link, keys: &[Bytes], is_one: bool) -> Result<u64> {
    sum_of(link, Write::command(&Body::Gone), keys, is_one).await
}

/// Sends a command for the keys, and adds up the replies.
async fn sum_of(link: &mut Link, command: &[u8], keys: &[Bytes], is_one: bool) -> Result<u64> {
    let together = if is_one { KEYS_TOGETHER } else { 1 };
    for some in keys.chunks(together) {
        let out = link.outbox();
        out.command(1 + some.len());
        out.arg(command);
        some.iter().for_each(|key| out.arg_bytes(key));
    }
    link.flush().await?;
    let mut sum = 0;
    for _ in keys.chunks(together) {
        let reply = link.reply().await?;
        let reply = link.check(reply, command)?;
        let number = reply.as_int().and_then(|n| u64::try_from(n).ok());
        sum += number.ok_or_else(|| link.unexpected(&String::from_utf8_lossy(command), &reply))?;
    }
    Ok(sum)
}
