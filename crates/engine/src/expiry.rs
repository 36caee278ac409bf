//! When keys expire, to the millisecond, by whatever commands a server has.

use std::borrow::Borrow;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use whimbrel_wire::encode::Outbox;
use whimbrel_wire::value::Value;

/// An expiry as a server reports it.
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
    /// The server does not report it.
    Unknown,
}

/// By which clock it is known when a key expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The server reports the time itself, by `PEXPIRETIME`.
    Absolute,
    /// The server's, which is read before and after `PTTL`. `PTTL` counts from the clock at that very
    /// command, even in a transaction: if both times are the same millisecond, the sum is the expiry to the
    /// millisecond.
    Servers,
    /// [That of this process](now_ms): `PTTL` says how much is left, and counts from when its answer is read.
    /// So an expiry is later than the server's own, by no more than has passed since it was asked.
    Own {
        /// When it was asked, at the earliest.
        asked: Instant,
    },
}

impl Clock {
    /// That of a server whose clock may be asked: `absolute` if it has `PEXPIRETIME`.
    pub fn of_server(absolute: bool) -> Clock {
        if absolute { Clock::Absolute } else { Clock::Servers }
    }

    /// Whether two answers, the second of a later question, may be about the same expiry. By the clock of
    /// this process less is left the second time, and no more is missing than has passed.
    pub fn is_same(self, before: Expiry, after: Expiry) -> bool {
        match (self, before, after) {
            (Clock::Own { asked }, Expiry::At(before), Expiry::At(after)) => {
                let passed = i64::try_from(asked.elapsed().as_millis()).unwrap_or(i64::MAX);
                // The two answers may have been read in two milliseconds.
                (-1..=passed.saturating_add(1)).contains(&before.saturating_sub(after))
            }
            _ => before == after,
        }
    }
}

/// The clock of this process in milliseconds since the epoch. It is set once and then goes on evenly,
/// whatever is done to the machine's.
pub fn now_ms() -> i64 {
    static BEGAN: LazyLock<(Instant, i64)> = LazyLock::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (Instant::now(), i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    });
    let (began, at_ms) = *BEGAN;
    at_ms.saturating_add(i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX))
}

/// How many commands [`ask`] queues.
pub fn commands(clock: Clock) -> usize {
    if clock == Clock::Servers { 3 } else { 1 }
}

/// Queues the question when `key` expires.
pub fn ask(out: &mut Outbox, clock: Clock, key: &[u8]) {
    question(clock, key, &mut |command| out.push(command));
}

/// As [`ask`], the commands one by one: for callers that send something before each.
pub fn question<'a>(clock: Clock, key: &'a [u8], push: &mut dyn FnMut(&[&'a [u8]])) {
    match clock {
        Clock::Absolute => push(&[b"PEXPIRETIME", key]),
        Clock::Servers => {
            push(&[b"TIME"]);
            push(&[b"PTTL", key]);
            push(&[b"TIME"]);
        }
        Clock::Own { .. } => push(&[b"PTTL", key]),
    }
}

/// Reads the replies to [`ask`]. `None` if one is missing.
pub fn read<V: Borrow<Value>>(replies: &mut impl Iterator<Item = V>, clock: Clock) -> Option<Expiry> {
    let has_times = clock == Clock::Servers;
    let before = if has_times { Some(replies.next()?) } else { None };
    let reply = replies.next()?;
    let after = if has_times { Some(replies.next()?) } else { None };
    Some(match reply.borrow() {
        Value::Int(-2) => Expiry::Gone,
        Value::Int(-1) => Expiry::Never,
        Value::Int(ms) => match (before, after) {
            (Some(before), Some(after)) => match (time_ms(before.borrow()), time_ms(after.borrow())) {
                (Some(before), Some(after)) if before == after => Expiry::At(before + ms),
                (Some(_), Some(_)) => Expiry::Unclear,
                _ => Expiry::Unknown,
            },
            _ if clock == Clock::Absolute => Expiry::At(*ms),
            _ => Expiry::At(now_ms().saturating_add(*ms)),
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_expiry_that_is_counted_from_the_clock_is_exact_or_unclear() {
        let time = |micros: i64| Value::Array(vec![Value::Int(7), Value::Int(micros)]);
        let expiry_of = |before, left, after| {
            read(&mut [time(before), Value::Int(left), time(after)].iter(), Clock::Servers)
        };
        assert_eq!(expiry_of(1_000, 5, 1_999), Some(Expiry::At(7_006)));
        assert_eq!(expiry_of(1_999, 5, 2_000), Some(Expiry::Unclear));
        assert_eq!(expiry_of(1_999, -1, 2_000), Some(Expiry::Never));
        assert_eq!(expiry_of(1_999, -2, 2_000), Some(Expiry::Gone));
        assert_eq!(read(&mut [Value::Int(7_006)].iter(), Clock::Absolute), Some(Expiry::At(7_006)));
        assert_eq!(read(&mut [time(0), Value::Int(7)].iter(), Clock::Servers), None);
    }

    #[test]
    fn what_is_left_counts_from_now_and_may_only_have_become_less() {
        let own = |passed| Clock::Own { asked: Instant::now() - Duration::from_millis(passed) };
        let expiry_of = |left| read(&mut [Value::Int(left)].iter(), own(0));
        let before = now_ms();
        let Some(Expiry::At(at)) = expiry_of(7_000) else { panic!("no expiry") };
        assert!((before + 7_000..=now_ms() + 7_000).contains(&at), "{at} {before}");
        assert_eq!((expiry_of(-1), expiry_of(-2)), (Some(Expiry::Never), Some(Expiry::Gone)));
        let at = Expiry::At;
        assert!(own(500).is_same(at(9_000), at(8_500)) && own(500).is_same(at(9_000), at(9_000)));
        assert!(!own(0).is_same(at(9_000), at(8_000)), "it was shortened");
        assert!(!own(500).is_same(at(9_000), at(9_010)), "it was prolonged");
        assert!(!own(500).is_same(at(9_000), Expiry::Never) && own(0).is_same(Expiry::Never, Expiry::Never));
        assert!(!Clock::Absolute.is_same(at(9_000), at(8_999)));
    }
}
