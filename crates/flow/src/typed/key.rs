//! The name under which a key is assembled, and how large it is.

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

/// The memory that a key takes, in bytes: exact where it is not above `big_key_bytes`, and else no less than that. `None` where there is no such
/// key. It costs the server no walk through a large one.
///
/// # Errors
/// As [`Link::call`]; the server must have `MEMORY USAGE`.
pub async fn memory_bytes(link: &mut Link, key: &[u8], big_key_bytes: u64) -> Result<Option<u64>> {
    let mut reply = link.call(&[b"MEMORY", b"USAGE", key, b"SAMPLES", SAMPLES_FIRST]).await?;
    if was_sampled(&reply, big_key_bytes) {
        reply = link.call(&[b"MEMORY", b"USAGE", key, b"SAMPLES", b"0"]).await?;
    }
    match &reply {
        Value::Null => Ok(None),
        Value::Int(bytes) => Ok(Some(bytes.unsigned_abs())),
        _ => Err(link.unexpected("MEMORY USAGE", &reply)),
    }
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
