//! How large values are, asked before they are read, and groups of bounded size.

use bytes::Bytes;
use whimbrel_engine::error::{Code, Result, ServerError};
use whimbrel_engine::link::Link;
use whimbrel_wire::value::Value;

/// Most keys in one group.
pub const GROUP_KEYS_MAX: usize = 512;

/// Groups are sized to this many bytes of values.
pub const GROUP_BYTES: u64 = 512 << 10;

/// How many elements `MEMORY USAGE` looks at first. Above a certain answer it is asked to look at all of
/// them. If there are more elements than samples the answer is above that, even if each takes ten bytes only,
/// so no element that was left out goes unnoticed; and a key that is already too large never costs the server
/// a walk through all of it.
const SAMPLES_FIRST: &[u8] = b"400";
const SAMPLED_BYTES_MAX: u64 = 4 << 10;

/// All elements.
const SAMPLES_ALL: &[u8] = b"0";

/// How closely a server looks at a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Samples {
    /// At some of its elements.
    First,
    /// All of them: only if the first look [may have left out](was_sampled) large ones.
    All,
}

/// The question how much memory a key takes.
pub fn usage(key: &[u8], samples: Samples) -> [&[u8]; 5] {
    let samples = match samples {
        Samples::First => SAMPLES_FIRST,
        Samples::All => SAMPLES_ALL,
    };
    [b"MEMORY", b"USAGE", key, b"SAMPLES", samples]
}

/// The command of [`length`], as errors name it.
pub const LENGTH: &[u8] = b"STRLEN";

/// The question how many bytes a string has: 0 for a missing key, and refused for a key of another type.
pub fn length(key: &[u8]) -> [&[u8]; 2] {
    [LENGTH, key]
}

/// True for an answer to a first look that may leave out large elements.
pub fn was_sampled(reply: &Value, large_bytes: u64) -> bool {
    matches!(reply, Value::Int(n) if (SAMPLED_BYTES_MAX + 1..=large_bytes).contains(&n.unsigned_abs()))
}

/// The replies to the question how much memory keys take, exact for all that are not above `large_bytes`, in
/// two round trips at most. With `asking` the server is importing their slots.
///
/// # Errors
/// Whatever the link reports; what a server refuses is a reply.
pub async fn usage_of(link: &mut Link, keys: &[Bytes], large_bytes: u64, asking: bool) -> Result<Vec<Value>> {
    let mut replies = measure(link, &keys.iter().collect::<Vec<_>>(), Samples::First, asking).await?;
    measure_exactly(link, keys, &mut replies, large_bytes, asking).await?;
    Ok(replies)
}

/// Makes exact what the first looks at keys have answered, as [`usage_of`] does, in one round trip at most.
///
/// # Errors
/// As [`usage_of`].
pub async fn measure_exactly(
    link: &mut Link,
    keys: &[Bytes],
    replies: &mut [Value],
    large_bytes: u64,
    asking: bool,
) -> Result<()> {
    let again: Vec<usize> = (0..keys.len()).filter(|&at| was_sampled(&replies[at], large_bytes)).collect();
    if !again.is_empty() {
        let some: Vec<&Bytes> = again.iter().map(|&at| &keys[at]).collect();
        for (at, reply) in again.into_iter().zip(measure(link, &some, Samples::All, asking).await?) {
            replies[at] = reply;
        }
    }
    Ok(())
}

async fn measure(link: &mut Link, keys: &[&Bytes], how: Samples, asking: bool) -> Result<Vec<Value>> {
    let commands: Vec<_> = keys.iter().map(|key| usage(key, how)).collect();
    link.ask_each(asking, &commands).await
}

/// The memory that a key takes, in bytes: exact if it is not above `large_bytes`, and else no less than that.
/// `None` if there is no such key. It costs the server no walk through a large one.
///
/// # Errors
/// As [`Link::call`]; the server must have `MEMORY USAGE`.
pub async fn memory_bytes(link: &mut Link, key: &[u8], large_bytes: u64) -> Result<Option<u64>> {
    Ok(memory_bytes_of(link, &[Bytes::copy_from_slice(key)], large_bytes).await?.pop().flatten())
}

/// [`memory_bytes`] of some keys, in two round trips at most. The caller bounds how many they are.
///
/// # Errors
/// As [`memory_bytes`].
pub async fn memory_bytes_of(link: &mut Link, keys: &[Bytes], large_bytes: u64) -> Result<Vec<Option<u64>>> {
    let replies = usage_of(link, keys, large_bytes, false).await?;
    let read = |reply: Value| match link.check(reply, b"MEMORY USAGE")? {
        Value::Null => Ok(None),
        Value::Int(bytes) => Ok(Some(bytes.unsigned_abs())),
        other => Err(link.unexpected("MEMORY USAGE", &other)),
    };
    replies.into_iter().map(read).collect()
}

/// What is known of a key before it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Size {
    /// A string of this many bytes. 0 for a missing key.
    String(u64),
    /// Of another type, or gone; the memory that it takes, as of [`memory_bytes`].
    Other(u64),
    /// The server refuses to report it.
    Refused(ServerError),
}

/// How large keys are, strings by their lengths and all others by the memory that they take; of the latter it
/// is exact if it is not above `large_bytes`. With `at_once` the server is asked for both of each key in the
/// first round trip, which costs it more; else a key that turns out to be no string takes a second one. Some
/// keys take one more. The server must have `MEMORY USAGE`.
///
/// # Errors
/// Whatever the link reports.
pub async fn sizes_of(link: &mut Link, keys: &[Bytes], large_bytes: u64, at_once: bool) -> Result<Vec<Size>> {
    for key in keys {
        link.push(&length(key));
        if at_once {
            link.push(&usage(key, Samples::First));
        }
    }
    link.flush().await?;
    let mut sizes = Vec::with_capacity(keys.len());
    let (mut others, mut usages) = (Vec::new(), Vec::new());
    for (at, key) in keys.iter().enumerate() {
        let length = link.reply().await?;
        let usage = if at_once { Some(link.reply().await?) } else { None };
        sizes.push(match (ServerError::of(&length), length.as_int()) {
            (None, Some(bytes)) => Size::String(bytes.unsigned_abs()),
            (Some(e), _) if e.code == Code::WrongType => {
                others.push((at, key.clone()));
                usages.extend(usage);
                Size::Other(0)
            }
            (Some(e), _) => Size::Refused(e),
            (None, None) => return Err(link.unexpected("STRLEN", &length)),
        });
    }
    if others.is_empty() {
        return Ok(sizes);
    }
    let (places, keys): (Vec<usize>, Vec<Bytes>) = others.into_iter().unzip();
    if !at_once {
        usages = usage_of(link, &keys, large_bytes, false).await?;
    } else {
        measure_exactly(link, &keys, &mut usages, large_bytes, false).await?;
    }
    for (at, usage) in places.into_iter().zip(usages) {
        sizes[at] = match (ServerError::of(&usage), usage) {
            (Some(e), _) => Size::Refused(e),
            (None, Value::Int(bytes)) => Size::Other(bytes.unsigned_abs()),
            (None, Value::Null) => Size::Other(0),
            (None, other) => return Err(link.unexpected("MEMORY USAGE", &other)),
        };
    }
    Ok(sizes)
}

/// Packs keys of known size into groups, with the bytes of each.
pub fn pack(sized: Vec<(Bytes, u64)>) -> Vec<(Vec<Bytes>, u64)> {
    pack_within(sized, GROUP_KEYS_MAX, GROUP_BYTES)
}

/// As [`pack`], with bounds of the caller's own. A value that is larger stands alone.
pub fn pack_within(sized: Vec<(Bytes, u64)>, keys_max: usize, bytes_max: u64) -> Vec<(Vec<Bytes>, u64)> {
    let mut groups: Vec<(Vec<Bytes>, u64)> = Vec::new();
    for (key, bytes) in sized {
        match groups.last_mut() {
            Some((group, total)) if *total + bytes <= bytes_max && group.len() < keys_max => {
                group.push(key);
                *total += bytes;
            }
            _ => groups.push((vec![key], bytes)),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_hide_large_elements_is_measured_again() {
        let again = |n| was_sampled(&Value::Int(n), 8 << 20);
        assert!(!again(4 << 10) && again((4 << 10) + 1));
        assert!(again(8 << 20) && !again((8 << 20) + 1));
        assert!(!was_sampled(&Value::Null, 8 << 20));
    }

    #[test]
    fn a_group_is_bounded_by_keys_and_bytes_and_a_larger_value_stands_alone() {
        let sized = |sizes: &[u64]| sizes.iter().map(|&n| (Bytes::from(n.to_string()), n)).collect();
        let lengths = |groups: Vec<(Vec<Bytes>, u64)>| {
            groups.into_iter().map(|(keys, bytes)| (keys.len(), bytes)).collect::<Vec<_>>()
        };
        assert_eq!(lengths(pack_within(sized(&[4, 6, 1, 50, 2]), 9, 10)), [(2, 10), (1, 1), (1, 50), (1, 2)]);
        assert_eq!(lengths(pack_within(sized(&[1, 1, 1]), 2, 10)), [(2, 2), (1, 1)]);
    }
}
