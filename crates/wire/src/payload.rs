//! `DUMP` payloads: their footer, their object types, and which server takes which.
//!
//! A payload is one byte for the type of the object, the object as it would stand in a snapshot, and a
//! [`Footer`] of ten bytes: the version of the snapshot format that the server writes, and a checksum of
//! everything before the checksum. `RESTORE` refuses a version that is newer than the server's own, though
//! the object itself may be in a form that the server has known for years. What a server can really read
//! depends on the type byte alone, since a changed form always gets a new type. So a payload can often be
//! handed to an older server by writing it another footer; [`verdict`] says when.
//!
//! | snapshot version | written by |
//! |---|---|
//! | 9 | Redis 5.0 to 6.2 |
//! | 10 | Redis 7.0 |
//! | 11 | Redis 7.2, Valkey 7.2 to 8.1 |
//! | 12 | Redis 7.4 to 8.4 |
//! | 13 | Redis 8.6 |
//! | 14 | Redis 8.8 |
//! | 80 | Valkey 9.0 and 9.1 |
//! | 81 | Valkey 9.2 |
//!
//! From version 12 and type 22 on, Redis and Valkey have gone separate ways: the same number means different
//! things. Valkey 9 takes versions up to 11 and its own from 80 on, and refuses those in between.

use crc::{CRC_64_REDIS, Crc, Digest, Table};

/// Slicing-by-16 tables: the fastest implementation the library has; 32 KiB, built at compile time.
static CRC64: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_REDIS);

/// The checksum that payloads end with, CRC-64/REDIS.
pub fn crc64_redis(bytes: &[u8]) -> u64 {
    CRC64.checksum(bytes)
}

/// Which family of servers a payload comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
}

/// The last ten bytes of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The version of the snapshot format.
    pub rdb_version: u16,
    /// The checksum of all bytes before it, the version included; 0 if none was computed.
    pub crc: u64,
}

impl Footer {
    /// The length of a footer in bytes.
    pub const LEN: usize = 10;

    /// Where in the footer the checksum starts.
    const CRC_AT: usize = 2;

    /// The right footer for an object of this version. `object` is the type byte and what follows it, up to
    /// the footer.
    pub fn for_object(object: &[u8], rdb_version: u16) -> Footer {
        let mut digest = CRC64.digest();
        digest.update(object);
        Footer { rdb_version, crc: finish(digest, rdb_version) }
    }

    /// The footer as it stands in a payload.
    pub fn to_bytes(self) -> [u8; Footer::LEN] {
        let mut bytes = [0; Footer::LEN];
        bytes[..Footer::CRC_AT].copy_from_slice(&self.rdb_version.to_le_bytes());
        bytes[Footer::CRC_AT..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; Footer::LEN]) -> Footer {
        let [version_low, version_high, crc @ ..] = bytes;
        Footer { rdb_version: u16::from_le_bytes([version_low, version_high]), crc: u64::from_le_bytes(crc) }
    }
}

/// The checksum of an object whose bytes are in `digest`, followed by a version.
fn finish(mut digest: Digest<'_, u64, Table<16>>, rdb_version: u16) -> u64 {
    digest.update(&rdb_version.to_le_bytes());
    digest.finalize()
}

/// The parts of a payload. They share the memory of the payload that they were read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload<'a> {
    /// The type byte: how the object is encoded.
    pub object_type: u8,
    /// The object: what is between the type byte and the footer.
    pub body: &'a [u8],
    /// The version of the snapshot format.
    pub rdb_version: u16,
}

/// Takes a payload apart without a look at its checksum, which costs nothing.
///
/// This is enough to decide what is to be done with a payload: the server that it goes to verifies the
/// checksum. Fails if the payload is too short to be one.
pub fn peek(serialized: &[u8]) -> Result<Payload<'_>, PayloadError> {
    let (object, footer) = split(serialized)?;
    let Some((&object_type, body)) = object.split_first() else {
        return Err(PayloadError::TooShort { length_bytes: serialized.len() });
    };
    Ok(Payload { object_type, body, rdb_version: footer.rdb_version })
}

/// Takes a payload apart and verifies its checksum.
///
/// A checksum of 0 means that none was computed, as in snapshots, and is accepted; `RESTORE` itself does not
/// accept it. Fails if the payload is too short to be one, or if it was damaged.
pub fn parse(serialized: &[u8]) -> Result<Payload<'_>, PayloadError> {
    let payload = peek(serialized)?;
    digest_verified(serialized)?;
    Ok(payload)
}

/// The footer that `serialized` has to get instead of its own to be of version `rdb_version`.
///
/// With this a large payload can be sent as it is, except its last [`Footer::LEN`] bytes, without a copy of
/// it. The old checksum is verified in the same pass, since a new one would hide any damage. Fails as
/// [`parse`] does.
pub fn new_footer(serialized: &[u8], rdb_version: u16) -> Result<Footer, PayloadError> {
    peek(serialized)?;
    let digest = digest_verified(serialized)?;
    Ok(Footer { rdb_version, crc: finish(digest, rdb_version) })
}

/// A copy of a payload with a footer of version `rdb_version`; see [`new_footer`], also for how it fails.
pub fn rewrite_footer(serialized: &[u8], rdb_version: u16) -> Result<Vec<u8>, PayloadError> {
    let footer = new_footer(serialized, rdb_version)?;
    let mut rewritten = serialized.to_vec();
    let footer_at = rewritten.len() - Footer::LEN;
    rewritten[footer_at..].copy_from_slice(&footer.to_bytes());
    Ok(rewritten)
}

/// Divides a payload into the object with its type byte, and the footer.
fn split(serialized: &[u8]) -> Result<(&[u8], Footer), PayloadError> {
    let (object, footer) = serialized
        .split_last_chunk::<{ Footer::LEN }>()
        .ok_or(PayloadError::TooShort { length_bytes: serialized.len() })?;
    Ok((object, Footer::from_bytes(*footer)))
}

/// The digest of the object, after its checksum was found to be right.
fn digest_verified(serialized: &[u8]) -> Result<Digest<'static, u64, Table<16>>, PayloadError> {
    let (object, footer) = split(serialized)?;
    let mut digest = CRC64.digest();
    digest.update(object);
    let computed = finish(digest.clone(), footer.rdb_version);
    if footer.crc != 0 && footer.crc != computed {
        return Err(PayloadError::Checksum { stated: footer.crc, computed });
    }
    Ok(digest)
}

/// What makes bytes no payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// There is no room for a type byte and a footer.
    #[error("a DUMP payload of {length_bytes} bytes is too short: it has at least 11")]
    TooShort {
        /// The length.
        length_bytes: usize,
    },
    /// The checksum is wrong, so some byte of the payload is.
    #[error("a DUMP payload is damaged: its checksum is {stated:016x}, but its bytes give {computed:016x}")]
    Checksum {
        /// The checksum in the footer.
        stated: u64,
        /// The checksum of the bytes that are there.
        computed: u64,
    },
}

/// What is to be done with a payload so that a target takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The target takes the payload as it is.
    AsIs,
    /// The target can read the object, but the payload needs a footer of this version.
    RewriteFooter(u16),
    /// The target cannot read the object: the value has to be read and written with commands of its type.
    TypedCopy,
}

/// Says what is to be done with a payload of `source` so that `target` takes it.
///
/// `target_max_version` is the newest version that the target's `RESTORE` accepts. An object type that is not
/// known here gives [`Verdict::TypedCopy`], even between equal servers: nothing can be said about it. Module
/// types are known, but whether the target has the module only the target can say.
pub fn verdict(
    object_type: u8,
    payload_version: u16,
    source: Dialect,
    target: Dialect,
    target_max_version: u16,
) -> Verdict {
    let same_meaning = source == target || object_type < FIRST_DIVERGED_TYPE;
    let readable = same_meaning
        && min_version_of(object_type, target).is_some_and(|version| version <= target_max_version);
    if !readable {
        Verdict::TypedCopy
    } else if accepts_version(target, target_max_version, payload_version) {
        Verdict::AsIs
    } else {
        Verdict::RewriteFooter(target_max_version)
    }
}

/// From this type byte on, Redis and Valkey mean different things by the same byte.
const FIRST_DIVERGED_TYPE: u8 = 22;

/// Whether objects of this type may have elements that expire one by one. Its key goes with the last of them,
/// whether it has a time to live itself or not.
pub fn has_mortal_elements(object_type: u8, dialect: Dialect) -> bool {
    matches!((object_type, dialect), (22..=25, Dialect::Redis) | (22, Dialect::Valkey))
}

/// Whether objects of this type are streams, of whatever dialect. See [`min_version_of`].
pub fn is_stream(object_type: u8) -> bool {
    matches!(object_type, 15 | 19 | 21 | 26 | 27)
}

/// `vectorset`, as payloads of modules name it: nine characters of six bits each (`moduleTypeEncodeId` of the
/// servers).
const VECTOR_SET_ID: u64 = 0x2f_79cb_68ae_c7ad;

/// Whether it is a vector set, of Redis 8 and later.
pub fn is_vector_set(payload: &Payload<'_>) -> bool {
    // A length of 64 bits, whose lowest ten are the version of the encoding.
    let (7, [0x81, id @ ..]) = (payload.object_type, payload.body) else { return false };
    id.first_chunk().is_some_and(|id| u64::from_be_bytes(*id) >> 10 == VECTOR_SET_ID)
}

/// The snapshot version whose servers of this dialect were the first to read objects of this type; later ones
/// read them as well. `None` if no server of the dialect does, or if the type is not known here.
pub fn min_version_of(object_type: u8, dialect: Dialect) -> Option<u16> {
    let version = match (object_type, dialect) {
        // String, list, set, sorted set and hash in their plain forms.
        (0..=4, _) => 1,
        // Sorted set with binary scores.
        (5, _) => 8,
        // 6 is a module value of a release candidate of Redis 4.0: listed by all, read by none.
        // Module value, to be read by the module of the same name.
        (7, _) => 8,
        // Hash as zipmap.
        (9, _) => 2,
        // List as ziplist, set as intset, sorted set as ziplist, hash as ziplist.
        (10..=12, _) => 3,
        (13, _) => 4,
        // List as quicklist of ziplists.
        (14, _) => 7,
        // Stream.
        (15, _) => 9,
        // Hash as listpack, sorted set as listpack, list as quicklist of listpacks, stream with more
        // counters.
        (16..=19, _) => 10,
        // Set as listpack, stream with more about its consumers.
        (20..=21, _) => 11,
        // Hashes with field TTLs: two forms of the release candidates of Redis 7.4, and two final ones.
        (22..=25, Dialect::Redis) => 12,
        // Stream with the idempotent producers of Redis 8.6.
        (26, Dialect::Redis) => 13,
        // Stream with the released entries of Redis 8.8, and its arrays.
        (27..=28, Dialect::Redis) => 14,
        // Hash with field TTLs.
        (22, Dialect::Valkey) => 80,
        // Hash with paths.
        (23, Dialect::Valkey) => 81,
        _ => return None,
    };
    Some(version)
}

/// Whether `RESTORE` of a server that writes `max_version` takes a payload of `version`.
fn accepts_version(dialect: Dialect, max_version: u16, version: u16) -> bool {
    let foreign = dialect == Dialect::Valkey && VALKEY_FOREIGN_VERSIONS.contains(&version);
    version <= max_version && !foreign
}

/// Versions that Valkey 9 refuses, as Redis has used them for forms that Valkey does not know.
const VALKEY_FOREIGN_VERSIONS: std::ops::RangeInclusive<u16> = 12..=79;

/// The length of a [`probe`](empty_probe) in bytes: a type and a footer.
pub const PROBE_LEN: usize = 1 + Footer::LEN;

/// A payload that no server takes, with which a server can be asked for the versions that it accepts.
///
/// Its footer is right for `rdb_version`, its object type does not exist. `RESTORE` of it writes nothing. It
/// says `Bad data format` if the version is accepted, and `DUMP payload version or checksum are wrong` if it
/// is not. Any other answer (permissions, memory, a slot of another node, a key that exists) came earlier and
/// says nothing about the version.
pub fn empty_probe(rdb_version: u16) -> [u8; PROBE_LEN] {
    const NO_OBJECT_TYPE: u8 = 0xff;
    let mut probe = [NO_OBJECT_TYPE; PROBE_LEN];
    probe[1..].copy_from_slice(&Footer::for_object(&[NO_OBJECT_TYPE], rdb_version).to_bytes());
    probe
}

/// A payload of a string, for servers on which no other command sets a value and its expiry at once.
pub fn of_string(value: &[u8], rdb_version: u16) -> Vec<u8> {
    let mut payload = Vec::with_capacity(value.len() + 10 + Footer::LEN);
    // The type of strings.
    payload.push(0);
    match value.len() as u64 {
        short @ ..0x40 => payload.push(short as u8),
        middle @ ..0x4000 => payload.extend((middle as u16 | 0x4000).to_be_bytes()),
        long => {
            payload.push(0x81);
            payload.extend(long.to_be_bytes());
        }
    }
    payload.extend_from_slice(value);
    let footer = Footer::for_object(&payload, rdb_version);
    payload.extend_from_slice(&footer.to_bytes());
    payload
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Dialect::{Redis, Valkey};
    use super::Verdict::{AsIs, RewriteFooter, TypedCopy};
    use super::*;

    /// What `DUMP` of real servers answered: payload in hexadecimal, object type, version.
    const RECORDED: &[(&str, u8, u16)] = &[
        // Redis 7.0: SET k hello; SADD k a b; SADD k 1 2; XADD k 1-1 f v; HSET k f v; RPUSH k a b; ZADD k 1.5
        // a.
        ("000568656c6c6f0a006372df766534200a", 0, 10),
        ("0202016201610a0075d99d835ef85f65", 2, 10),
        ("0b0c0200000002000000010002000a006f7938b134eb202e", 11, 10),
        (
            "1301100000000000000001000000000000\
             00011d1d0000000a0001010001010181660200010201000100018176020401ff\
             0101010101000001000a00ff55ab626ac035db",
            19,
            10,
        ),
        ("100d0d0000000200816602817602ff0a0020f13d442354089d", 16, 10),
        ("1201020d0d0000000200816102816202ff0a0068eb0a891341bbb1", 18, 10),
        ("110f0f000000020081610283312e3504ff0a00080c6e19808e7d98", 17, 10),
        // Redis 8.0: the same string, set and stream, and a hash with a field TTL in both encodings.
        ("000568656c6c6f0c00a804ebb69f1ebe43", 0, 12),
        ("140d0d0000000200816102816202ff0c00a84583074e16a194", 20, 12),
        (
            "1501100000000000000001000000000000\
             00011d1d0000000a0001010001010181660200010201000100018176020401ff\
             0101010101000001000c0047f32561afb1fbb3",
            21,
            12,
        ),
        ("1900d8c32cbb03000017170000000300816602817602f400d8c32cbb03000009ff0c00392e29b3549a6f6b", 25, 12),
        ("1800d8c32cbb0300000101016601760c004ed5ef3cbdf7e268", 24, 12),
        // Valkey 8.1: the string.
        ("000568656c6c6f0b000aad620598abc983", 0, 11),
        // Valkey 9.1: the string, and a hash with a field TTL.
        ("000568656c6c6f5000ac5816e7fb6647fe", 0, 80),
        ("16010166017600d8c32cbb0300005000567f9c2f2a89e8b2", 22, 80),
    ];

    fn bytes_of(hexadecimal: &str) -> Vec<u8> {
        let digits: Vec<u8> = hexadecimal
            .chars()
            .map(|digit| u8::try_from(digit.to_digit(16).expect("a digit")).expect("below 16"))
            .collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    /// As `DUMP` of Redis 8.6 gives it.
    #[test]
    fn vector_sets_are_recognised_by_their_module() {
        let body = [0x81, 0xbd, 0xe7, 0x2d, 0xa2, 0xbb, 0x1e, 0xb4, 0x00, 0x02, 0x03];
        let of = |object_type, body| is_vector_set(&Payload { object_type, body, rdb_version: 12 });
        assert!(of(7, &body) && !of(4, &body) && !of(7, &body[..8]));
        assert!(!of(7, &[0x81, 0, 0, 0, 0, 0, 0, 0, 1]));
    }

    #[test]
    fn the_known_checksum() {
        assert_eq!(crc64_redis(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        assert_eq!(crc64_redis(b""), 0);
    }

    #[test]
    fn recorded_payloads_are_taken_apart() {
        for &(hexadecimal, object_type, rdb_version) in RECORDED {
            let serialized = bytes_of(hexadecimal);
            let payload = parse(&serialized).expect(hexadecimal);
            assert_eq!(payload.object_type, object_type, "{hexadecimal}");
            assert_eq!(payload.rdb_version, rdb_version, "{hexadecimal}");
            assert_eq!(payload.body, &serialized[1..serialized.len() - 10], "{hexadecimal}");
            assert_eq!(peek(&serialized), Ok(payload));
        }
    }

    #[test]
    fn one_servers_payload_becomes_anothers() {
        let string_of = |version| {
            let found = RECORDED.iter().find(|recorded| recorded.1 == 0 && recorded.2 == version);
            bytes_of(found.expect("recorded for this version").0)
        };
        for from in [10, 11, 12, 80] {
            for to in [10, 11, 12, 80] {
                assert_eq!(rewrite_footer(&string_of(from), to), Ok(string_of(to)), "{from} to {to}");
            }
        }
    }

    #[test]
    fn damage_is_noticed() {
        let serialized = bytes_of(RECORDED[0].0);
        for at in 0..serialized.len() {
            let mut damaged = serialized.clone();
            damaged[at] ^= 0x10;
            let error = parse(&damaged).expect_err("a byte was changed");
            assert!(matches!(error, PayloadError::Checksum { .. }), "byte {at}: {error}");
            assert_eq!(rewrite_footer(&damaged, 9), Err(error), "byte {at}");
        }
    }

    #[test]
    fn a_payload_without_checksum_gets_one() {
        let serialized = bytes_of(RECORDED[0].0);
        let mut without = serialized.clone();
        let crc_at = without.len() - 8;
        without[crc_at..].fill(0);
        assert_eq!(parse(&without), parse(&serialized));
        assert_eq!(rewrite_footer(&without, 10), Ok(serialized));
    }

    #[test]
    fn short_payloads_are_refused() {
        for length_bytes in 0..PROBE_LEN {
            let error = Err(PayloadError::TooShort { length_bytes });
            assert_eq!(parse(&vec![0; length_bytes]), error);
            assert_eq!(peek(&vec![0; length_bytes]), error);
            assert_eq!(rewrite_footer(&vec![0; length_bytes], 9).err(), error.err());
        }
        assert!(parse(&[0; PROBE_LEN]).is_ok(), "a type, a version of 0 and no checksum");
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let short = parse(b"").expect_err("nothing there").to_string();
        assert_eq!(short, "a DUMP payload of 0 bytes is too short: it has at least 11");
        let damaged = parse(b"\x00\x00\x0a\x00\x01\0\0\0\0\0\0\0").expect_err("a wrong checksum").to_string();
        assert!(
            damaged.starts_with(
                "a DUMP payload is damaged: its checksum is 0000000000000001, but its bytes give "
            ),
            "{damaged}"
        );
    }

    #[test]
    fn probes_are_right_but_for_their_type() {
        for version in [0, 9, 10, 11, 12, 79, 80, u16::MAX] {
            let probe = empty_probe(version);
            let payload = parse(&probe).expect("the checksum is right");
            assert_eq!(payload, Payload { object_type: 0xff, body: b"", rdb_version: version });
            assert_ne!(probe[3..], [0; 8], "servers refuse payloads without a checksum");
            for dialect in [Redis, Valkey] {
                assert_eq!(min_version_of(payload.object_type, dialect), None);
            }
        }
    }

    #[test]
    fn verdicts() {
        let redis_7_0 = (Redis, 10);
        let redis_8_0 = (Redis, 12);
        let valkey_8_1 = (Valkey, 11);
        let valkey_9_1 = (Valkey, 80);
        let cases = [
            // Plain and old forms go everywhere.
            (0, redis_7_0, redis_7_0, AsIs),
            (0, redis_7_0, redis_8_0, AsIs),
            (0, redis_7_0, valkey_9_1, AsIs),
            (0, redis_8_0, redis_7_0, RewriteFooter(10)),
            (0, valkey_8_1, redis_7_0, RewriteFooter(10)),
            (0, valkey_8_1, valkey_9_1, AsIs),
            (0, valkey_9_1, redis_8_0, RewriteFooter(12)),
            (0, valkey_9_1, valkey_8_1, RewriteFooter(11)),
            (11, redis_8_0, valkey_8_1, RewriteFooter(11)),
            (13, (Redis, 9), valkey_9_1, AsIs),
            (15, (Redis, 9), redis_7_0, AsIs),
            // 12 is below 80 and yet refused.
            (0, redis_8_0, valkey_9_1, RewriteFooter(80)),
            (21, redis_8_0, valkey_9_1, RewriteFooter(80)),
            (0, (Redis, 13), valkey_9_1, RewriteFooter(80)),
            // Forms that an old target does not know.
            (16, redis_7_0, (Redis, 9), TypedCopy),
            (19, redis_7_0, (Redis, 9), TypedCopy),
            (20, redis_8_0, redis_7_0, TypedCopy),
            (21, valkey_8_1, redis_7_0, TypedCopy),
            (20, redis_8_0, valkey_8_1, RewriteFooter(11)),
            (21, valkey_9_1, redis_8_0, RewriteFooter(12)),
            // Field TTLs stay within their dialect, at a version that has them.
            (24, redis_8_0, redis_8_0, AsIs),
            (25, redis_8_0, redis_8_0, AsIs),
            (25, (Redis, 14), redis_8_0, RewriteFooter(12)),
            (25, redis_8_0, redis_7_0, TypedCopy),
            (25, redis_8_0, valkey_9_1, TypedCopy),
            (22, valkey_9_1, valkey_9_1, AsIs),
            (22, (Valkey, 81), valkey_9_1, RewriteFooter(80)),
            (23, (Valkey, 81), valkey_9_1, TypedCopy),
            (22, valkey_9_1, valkey_8_1, TypedCopy),
            // The same byte, another meaning.
            (22, valkey_9_1, redis_8_0, TypedCopy),
            (22, redis_8_0, valkey_9_1, TypedCopy),
            (22, redis_8_0, redis_8_0, AsIs),
            // Newer streams and arrays.
            (26, (Redis, 13), (Redis, 13), AsIs),
            (26, (Redis, 13), redis_8_0, TypedCopy),
            (28, (Redis, 14), (Redis, 13), TypedCopy),
            // Modules.
            (6, redis_7_0, redis_7_0, TypedCopy),
            (7, redis_7_0, redis_8_0, AsIs),
            (7, redis_8_0, valkey_9_1, RewriteFooter(80)),
            // Unknown.
            (8, redis_7_0, redis_7_0, TypedCopy),
            (200, redis_8_0, redis_8_0, TypedCopy),
            (255, valkey_9_1, valkey_9_1, TypedCopy),
        ];
        for (object_type, (source, version), (target, max), expected) in cases {
            let given = verdict(object_type, version, source, target, max);
            let shown = format!("type {object_type}, {source:?} {version} to {target:?} {max}");
            assert_eq!(given, expected, "{shown}");
        }
    }

    fn dialects() -> impl Strategy<Value = Dialect> {
        prop_oneof![Just(Redis), Just(Valkey)]
    }

    /// Servers with the newest version they take: no Valkey stands at one of the versions that it refuses.
    fn targets() -> impl Strategy<Value = (Dialect, u16)> {
        let redis = prop_oneof![Just(9u16), Just(10), Just(11), Just(12), Just(13), Just(14)];
        let valkey = prop_oneof![Just(10u16), Just(11), Just(80), Just(81)];
        prop_oneof![redis.prop_map(|max| (Redis, max)), valkey.prop_map(|max| (Valkey, max))]
    }

    proptest! {
        #[test]
        fn written_payloads_are_read_back(
            object in proptest::collection::vec(any::<u8>(), 1..200),
            version in any::<u16>(),
            other in any::<u16>(),
        ) {
            let footer = Footer::for_object(&object, version);
            let serialized = [object.as_slice(), &footer.to_bytes()].concat();
            prop_assert_eq!(
                parse(&serialized),
                Ok(Payload { object_type: object[0], body: &object[1..], rdb_version: version })
            );
            let rewritten = rewrite_footer(&serialized, other).expect("the checksum is right");
            prop_assert_eq!(parse(&rewritten).map(|payload| payload.rdb_version), Ok(other));
            prop_assert_eq!(&rewritten[..object.len()], object.as_slice());
            prop_assert_eq!(rewrite_footer(&rewritten, version), Ok(serialized));
        }

        #[test]
        fn any_bytes_are_taken_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&bytes);
            let _ = rewrite_footer(&bytes, 10);
        }

        /// What is passed on is never of a version that the target refuses, and never of a form it does not
        /// know.
        #[test]
        fn targets_get_only_what_they_take(
            object_type in any::<u8>(),
            version in 1u16..100,
            source in dialects(),
            (target, target_max) in targets(),
        ) {
            let sent = match verdict(object_type, version, source, target, target_max) {
                TypedCopy => return Ok(()),
                AsIs => version,
                RewriteFooter(rewritten) => {
                    prop_assert_ne!(rewritten, version);
                    rewritten
                }
            };
            prop_assert!(sent <= target_max);
            prop_assert!(!(target == Valkey && VALKEY_FOREIGN_VERSIONS.contains(&sent)));
            prop_assert!(object_type <= 21 || source == target);
            prop_assert!(min_version_of(object_type, target).is_some_and(|min| min <= target_max));
        }
    }
}
