//! The name under which a key is assembled, and how large it is.

use bytes::Bytes;
use whimbrel_core::slot::{Slot, tag_for_slot};
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Link;
use whimbrel_wire::value::Value;
use xxhash_rust::xxh3::xxh3_128;

use crate::state::{SAMPLES_FIRST, was_sampled};

/// Names that begin so are not keys of the source: values are assembled under them.
pub(crate) const STAGING_PREFIX: &str = "whimbrel:staging:";

/// Where `job` assembles `key` on the target: `whimbrel:staging:{TAG}:JOB:HASH`, always in the slot of `key`.
pub fn staging_key(job: &str, key: &[u8]) -> Vec<u8> {
    let tag = tag_for_slot(Slot::of_key(key));
    format!("{STAGING_PREFIX}{{{tag}}}:{job}:{:032x}", xxh3_128(key)).into_bytes()
}

/// The job whose staging key has this name; `None` for any other name.
pub fn staging_job(name: &[u8]) -> Option<&[u8]> {
    let tagged = name.strip_prefix(STAGING_PREFIX.as_bytes())?.strip_prefix(b"{")?;
    let end = tagged.windows(2).position(|two| two == b"}:")?;
    let rest = &tagged[end + 2..];
    let colon = rest.iter().rposition(|byte| *byte == b':')?;
    let (job, hash) = (&rest[..colon], &rest[colon + 1..]);
    (hash.len() == 32 && hash.iter().all(u8::is_ascii_hexdigit)).then_some(job)
}

/// The memory that a key takes, in bytes: exact where it is not above `big_key_bytes`, and else no less than
/// that. `None` where there is no such key. It costs the server no walk through a large one.
///
/// # Errors
/// As [`Link::call`]; the server must have `MEMORY USAGE`.
pub async fn memory_bytes(link: &mut Link, key: &[u8], big_key_bytes: u64) -> Result<Option<u64>> {
    Ok(memory_bytes_of(link, &[Bytes::copy_from_slice(key)], big_key_bytes).await?.pop().flatten())
}

/// [`memory_bytes`] of some keys, in two round trips at most. The caller bounds how many they are.
///
/// # Errors
/// As [`memory_bytes`].
pub async fn memory_bytes_of(
    link: &mut Link,
    keys: &[Bytes],
    big_key_bytes: u64,
) -> Result<Vec<Option<u64>>> {
    let ask = async |link: &mut Link, keys: &[&Bytes], samples: &[u8]| {
        for key in keys {
            link.push(&[b"MEMORY", b"USAGE", key, b"SAMPLES", samples]);
        }
        link.flush().await?;
        let replies = link.replies(keys.len()).await?;
        replies.into_iter().map(|reply| link.check(reply, b"MEMORY USAGE")).collect::<Result<Vec<Value>>>()
    };
    let mut replies = ask(link, &keys.iter().collect::<Vec<_>>(), SAMPLES_FIRST).await?;
    let again: Vec<usize> = (0..keys.len()).filter(|&at| was_sampled(&replies[at], big_key_bytes)).collect();
    if !again.is_empty() {
        let some: Vec<&Bytes> = again.iter().map(|&at| &keys[at]).collect();
        for (at, reply) in again.into_iter().zip(ask(link, &some, b"0").await?) {
            replies[at] = reply;
        }
    }
    let read = |reply: &Value| match reply {
        Value::Null => Ok(None),
        Value::Int(bytes) => Ok(Some(bytes.unsigned_abs())),
        _ => Err(link.unexpected("MEMORY USAGE", reply)),
    };
    replies.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_keys_are_known_by_their_names_and_jobs() {
        let name = staging_key("job", b"key");
        assert_eq!(staging_job(&name), Some(&b"job"[..]));
        for other in [&name[1..], &name[..name.len() - 1], b"whimbrel:staging:", b"key"] {
            assert_eq!(staging_job(other), None);
        }
    }
}
