//! What clients must not see of large keys on their way: the values at the target that are not whole yet,
//! under names of their own.
//!
//! The names are those of the front's own jobs alone, and no client can have keys of such names. Until its
//! last step a large key is at the source, where clients see it; after the last step but one it is also at
//! the target under its own name, which must not be counted twice.

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use whimbrel_flow::large::{staging_job, staging_key};
use whimbrel_wire::value::Value;

/// How the part of the names of staging keys begins that shows whose they are. The number of the turn
/// follows.
pub(crate) const JOB: &str = "front";

/// The job in the name of the marker that a [flush](super::flush) leaves.
pub(crate) const MARKER_JOB: &str = "front-flush";

/// Large keys that are on their way. It changes only while the migration's gate is held.
#[derive(Debug, Default)]
pub(crate) struct OnTheirWay(Mutex<Vec<Bytes>>);

impl OnTheirWay {
    pub(crate) fn begin(&self, key: &Bytes) {
        self.keys().push(key.clone());
    }

    pub(crate) fn end(&self, key: &Bytes) {
        self.keys().retain(|other| other != key);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys().is_empty()
    }

    /// Whether a name is that of a value which is being assembled now.
    pub(crate) fn has_staged(&self, job: &str, name: &[u8]) -> bool {
        self.keys().iter().any(|key| staging_key(job, key) == name)
    }

    pub(super) fn keys(&self) -> MutexGuard<'_, Vec<Bytes>> {
        self.0.lock()
    }
}

/// Whether clients must not see a key of the target.
pub(crate) fn is_hidden(name: &[u8]) -> bool {
    let is_turn =
        |job: &[u8]| job.strip_prefix(JOB.as_bytes()).is_some_and(|turn| turn.iter().all(u8::is_ascii_digit));
    staging_job(name).is_some_and(|job| is_turn(job) || job == MARKER_JOB.as_bytes())
}

/// A reply of the target to `SCAN` without what clients must not see.
pub(crate) fn without_hidden(reply: Vec<u8>) -> Vec<u8> {
    const MARK: &[u8] = b"whimbrel:staging:";
    if !reply.windows(MARK.len()).any(|part| part == MARK) {
        return reply;
    }
    let Ok(Value::Array(parts)) = Value::parse(&Bytes::copy_from_slice(&reply)) else { return reply };
    let [Value::Bulk(cursor), Value::Array(keys)] = &parts[..] else { return reply };
    let shown: Vec<&Bytes> = keys.iter().filter_map(Value::as_bytes).filter(|key| !is_hidden(key)).collect();
    let mut text = format!("*2\r\n${}\r\n", cursor.len()).into_bytes();
    text.extend_from_slice(cursor);
    text.extend_from_slice(format!("\r\n*{}\r\n", shown.len()).as_bytes());
    for key in shown {
        text.extend_from_slice(format!("${}\r\n", key.len()).as_bytes());
        text.extend_from_slice(key);
        text.extend_from_slice(b"\r\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_does_not_show_what_is_not_whole() {
        let reply = |keys: &[&[u8]]| {
            let mut text = format!("*2\r\n$2\r\n17\r\n*{}\r\n", keys.len()).into_bytes();
            for key in keys {
                text.extend_from_slice(format!("${}\r\n", key.len()).as_bytes());
                text.extend_from_slice(key);
                text.extend_from_slice(b"\r\n");
            }
            text
        };
        let staged = staging_key(JOB, b"large");
        let others = staging_key("other", b"large");
        assert_eq!(without_hidden(reply(&[b"a", &staged, &others, b"b"])), reply(&[b"a", &others, b"b"]));
        assert_eq!(without_hidden(reply(&[&staged])), reply(&[]));
        assert_eq!(without_hidden(reply(&[b"a"])), reply(&[b"a"]));
        assert_eq!(without_hidden(b"-ERR whimbrel:staging:\r\n".to_vec()), b"-ERR whimbrel:staging:\r\n");
    }

    #[test]
    fn what_is_on_its_way_is_known_by_its_staged_name() {
        let keys = OnTheirWay::default();
        let large = Bytes::from_static(b"large");
        keys.begin(&large);
        assert!(keys.has_staged(JOB, &staging_key(JOB, b"large")) && !keys.has_staged(JOB, b"large"));
        keys.end(&large);
        assert!(!keys.has_staged(JOB, &staging_key(JOB, b"large")));
        assert!(
            is_hidden(&staging_key("front7", b"large")) && !is_hidden(&staging_key("frontier", b"large"))
        );
        assert!(is_hidden(&staging_key(JOB, b"large")) && !is_hidden(b"whimbrel:staging:{x}:front:1"));
    }
}
