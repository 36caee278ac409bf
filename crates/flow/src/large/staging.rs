//! The name under which a key is assembled.

use whimbrel_core::slot::{Slot, tag_for_slot};
use xxhash_rust::xxh3::xxh3_128;

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
