//! When keys expire, to the millisecond, by whatever commands a server has.

use std::borrow::Borrow;

use whimbrel_wire::encode::Outbox;
use whimbrel_wire::value::Value;

/// An expiry as a server tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// There is no such key.
    Gone,
    /// The key does not expire.
    Never,
    /// In milliseconds since the epoch.
    At(i64),
    /// The server's clock went on while it was asked: to be asked again.
    Unclear,
    /// The server does not tell.
    Unknown,
}

/// How many commands [`ask`] queues.
pub fn commands(absolute: bool) -> usize {
    if absolute { 1 } else { 3 }
}

/// Queues the question when `key` expires: `PEXPIRETIME` where the server has it (`absolute`).
///
/// `PTTL` counts from the server's clock at that very command, in a transaction as well. So the clock is read
/// before and after it, and where both times are the same millisecond, the sum is the expiry to the
/// millisecond.
pub fn ask(out: &mut Outbox, absolute: bool, key: &[u8]) {
    question(absolute, key, &mut |command| out.push(command));
}

/// As [`ask`], the commands one by one: for those who have something to say before each.
pub fn question<'a>(absolute: bool, key: &'a [u8], push: &mut dyn FnMut(&[&'a [u8]])) {
    if absolute {
        push(&[b"PEXPIRETIME", key]);
    } else {
        push(&[b"TIME"]);
        push(&[b"PTTL", key]);
        push(&[b"TIME"]);
    }
}

/// Reads the replies to [`ask`]. `None` where one is missing.
pub fn read<V: Borrow<Value>>(replies: &mut impl Iterator<Item = V>, absolute: bool) -> Option<Expiry> {
    let before = if absolute { None } else { Some(replies.next()?) };
    let reply = replies.next()?;
    let after = if absolute { None } else { Some(replies.next()?) };
    Some(match reply.borrow() {
        Value::Int(-2) => Expiry::Gone,
        Value::Int(-1) => Expiry::Never,
        Value::Int(ms) => match (before, after) {
            (Some(before), Some(after)) => match (time_ms(before.borrow()), time_ms(after.borrow())) {
                (Some(before), Some(after)) if before == after => Expiry::At(before + ms),
                (Some(_), Some(_)) => Expiry::Unclear,
                _ => Expiry::Unknown,
            },
            _ => Expiry::At(*ms),
        },
        _ => Expiry::Unknown,
    })
}

/// The reply to `TIME` in milliseconds.
pub fn time_ms(reply: &Value) -> Option<i64> {
    let [seconds, micros] = reply.as_items()? else { return None };
    Some(seconds.as_int()? * 1000 + micros.as_int()? / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_that_is_counted_from_the_clock_is_exact_or_unclear() {
        let time = |micros: i64| Value::Array(vec![Value::Int(7), Value::Int(micros)]);
        let look =
            |before, left, after| read(&mut [time(before), Value::Int(left), time(after)].iter(), false);
        assert_eq!(look(1_000, 5, 1_999), Some(Expiry::At(7_006)));
        assert_eq!(look(1_999, 5, 2_000), Some(Expiry::Unclear));
        assert_eq!(look(1_999, -1, 2_000), Some(Expiry::Never));
        assert_eq!(look(1_999, -2, 2_000), Some(Expiry::Gone));
        assert_eq!(read(&mut [Value::Int(7_006)].iter(), true), Some(Expiry::At(7_006)));
        assert_eq!(read(&mut [time(0), Value::Int(7)].iter(), false), None);
    }
}
