//! Slots of a cluster, by code that is not the product's.

use crc16::{State, XMODEM};
use whimbrel_lab::SLOTS;

/// The slot of a key: CRC-16/XMODEM of its hash tag, or of all of it.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    State::<XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_the_hash_tag_rule() {
        // From the cluster specification: the CRC of "123456789" is 0x31C3.
        assert_eq!(slot_of(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b""), 0);
        assert_eq!(slot_of(b"{user}a"), slot_of(b"user"));
        assert_eq!(slot_of(b"x{user}{other}"), slot_of(b"user"));
        assert_eq!(slot_of(b"{{a}}b"), slot_of(b"{a"));
        assert_ne!(slot_of(b"{}{x}"), slot_of(b"x"));
        assert_ne!(slot_of(b"a}b"), slot_of(b"b"));
    }
}
