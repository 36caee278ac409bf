//! Key patterns: any pattern and any key give an answer, in bounded time, and what is said about a pattern is
//! true of the keys that it matches. A hang is found by the fuzzer's own time limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_core::glob::Pattern;
use whimbrel_core::slot::Slot;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (source, key) = input;
    let pattern = Pattern::new(source);
    assert_eq!(pattern.as_bytes(), source);
    let _ = pattern.to_string();
    let _ = pattern.is_portable();
    if pattern.matches(key) {
        assert!(key.starts_with(pattern.literal_prefix()));
        if pattern.is_literal() {
            assert_eq!(key, pattern.literal_prefix());
        }
        if let Some(slot) = pattern.tag_slot() {
            assert_eq!(Slot::of_key(key), slot);
        }
    } else {
        assert!(!pattern.is_match_all());
    }
    // Every byte escaped, the key matches itself, and only itself.
    let escaped: Vec<u8> = key.iter().flat_map(|byte| [b'\\', *byte]).collect();
    let literal = Pattern::new(&escaped);
    assert!(literal.is_literal() && literal.matches(key));
    assert_eq!(literal.matches(source), key == source);
    // Many stars do not make it slow.
    let starred: Vec<u8> = source.iter().flat_map(|byte| [b'*', *byte]).collect();
    let _ = Pattern::new(&starred).matches(&key.repeat(8));
});
