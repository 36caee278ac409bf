//! The keys that move, and their values: a version, then random bytes, so that nothing can be compressed.

use anyhow::Context;
use fastrand::Rng;
use whimbrel_lab::Server;

use super::args::BenchFrontArgs;

pub(super) fn fill(source: &Server, args: &BenchFrontArgs) -> anyhow::Result<()> {
    let mut connection = source.try_connection()?;
    let mut random = Rng::with_seed(0);
    for first in (0..args.keys).step_by(1_000) {
        let mut pipeline = redis::pipe();
        for key in first..(first + 1_000).min(args.keys) {
            let value = value_of(1, args.value_bytes, &mut random);
            pipeline.cmd("SET").arg(name_of(key)).arg(value).ignore();
        }
        pipeline.exec(&mut connection)?;
    }
    Ok(())
}

const PREFIX: &str = "key:";

pub(super) fn name_of(key: u64) -> String {
    format!("{PREFIX}{key}")
}

/// The key of this name.
pub(super) fn key_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// A value of a key. It is longer than that where the version does not fit in.
pub(super) fn value_of(version: u64, bytes: usize, random: &mut Rng) -> Vec<u8> {
    let mut value = format!("{version} ").into_bytes();
    let head = value.len();
    value.resize(bytes.max(head), 0);
    random.fill(&mut value[head..]);
    value
}

pub(super) fn version_of(value: &[u8]) -> anyhow::Result<u64> {
    let head = value.split(|byte| *byte == b' ').next().unwrap_or_default();
    let version = std::str::from_utf8(head).ok().and_then(|version| version.parse().ok());
    version.context("a value that nobody has written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_names_are_read_again_whatever_comes_after_them() {
        let mut random = Rng::with_seed(7);
        for bytes in [0, 3, 2_000] {
            let value = value_of(1_234, bytes, &mut random);
            assert_eq!(version_of(&value).expect("a version"), 1_234);
            assert_eq!(value.len(), bytes.max(5));
        }
        assert!(version_of(b"x 1").is_err());
        assert_eq!(key_of(&name_of(17)), Some(17));
        assert_eq!(key_of("lib-name"), None);
    }
}
