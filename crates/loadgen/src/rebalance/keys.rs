//! The keys of a cluster that is rebalanced: what each one holds follows from its number, so that everything
//! can be checked.

use redis::{Cmd, Value, cmd};

use crate::slots::slot_of;

/// Keys that the writers write; the slots that move have their share of them.
const WRITTEN_MAX: u64 = 2000;

/// Elements that collections have at least, and how their number differs from key to key.
const ELEMENTS_MIN: u64 = 3;
const ELEMENTS_SPREAD: u64 = 8;

/// All keys. The first ones are written while slots move, the others are read and stay as they are.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// How many there are.
    pub total: u64,
    /// How many of them, from number 0 on, are written.
    pub written: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Written with INCR.
    Counter,
    /// Written with SET.
    Latest,
    /// Written with HSET.
    Field,
    /// Written with RPUSH: it has every number from 0 on, in order.
    Log,
    String,
    Hash,
    List,
    Set,
    SortedSet,
    Stream,
}

impl Keys {
    /// The fewest keys that make sense.
    pub const TOTAL_MIN: u64 = 1000;

    /// This many keys.
    pub fn new(total: u64) -> Self {
        Self { total, written: WRITTEN_MAX.min(total / 2) }
    }

    /// The name of a key.
    pub fn name(self, number: u64) -> String {
        format!("demo:{number:09}")
    }

    /// The slot of a key.
    pub fn slot(self, number: u64) -> usize {
        usize::from(slot_of(self.name(number).as_bytes()))
    }

    fn kind(self, number: u64) -> Kind {
        if number < self.written {
            return [Kind::Counter, Kind::Latest, Kind::Field, Kind::Log][(number / 8 % 4) as usize];
        }
        match number % 50 {
            0..=39 => Kind::String,
            40..=42 => Kind::Hash,
            43..=44 => Kind::List,
            45..=46 => Kind::Set,
            47..=48 => Kind::SortedSet,
            _ => Kind::Stream,
        }
    }

    /// The command that creates a key. A key that will be written begins at 0.
    pub fn create(self, number: u64) -> Cmd {
        if number < self.written {
            return match self.kind(number) {
                Kind::Counter => self.command("SET", number, &["0"]),
                _ => self.write(number, 0),
            };
        }
        let elements = ELEMENTS_MIN + number % ELEMENTS_SPREAD;
        let mut words = Vec::new();
        let name = match self.kind(number) {
            Kind::Hash => {
                for element in 0..elements {
                    words.extend([format!("field:{element}"), format!("{number}:{element}")]);
                }
                "HSET"
            }
            Kind::SortedSet => {
                for element in 0..elements {
                    words.extend([element.to_string(), format!("member:{element}")]);
                }
                "ZADD"
            }
            Kind::Stream => {
                words.extend(["1700000000000-1".to_owned(), "reading".to_owned(), number.to_string()]);
                "XADD"
            }
            kind @ (Kind::List | Kind::Set) => {
                words.extend((0..elements).map(|element| format!("element:{number}:{element}")));
                if kind == Kind::List { "RPUSH" } else { "SADD" }
            }
            _ => {
                words.push(text_of(number));
                "SET"
            }
        };
        self.command(name, number, &words)
    }

    /// The command that reads enough of a key to see whether it [is right](Self::is_right).
    pub fn read(self, number: u64) -> Cmd {
        let no_words: [&str; 0] = [];
        let (name, words): (_, &[&str]) = match self.kind(number) {
            Kind::Counter | Kind::Latest | Kind::String => ("GET", &no_words),
            Kind::Field => ("HGET", &["n"]),
            Kind::Log => ("LRANGE", &["0", "-1"]),
            Kind::Hash => ("HLEN", &no_words),
            Kind::List => ("LLEN", &no_words),
            Kind::Set => ("SCARD", &no_words),
            Kind::SortedSet => ("ZCARD", &no_words),
            Kind::Stream => ("XLEN", &no_words),
        };
        self.command(name, number, words)
    }

    /// Whether a key that nobody writes holds what it was created with: a string all of it, another type as
    /// many elements.
    pub fn is_right(self, number: u64, reply: &Value) -> bool {
        match self.kind(number) {
            Kind::String => {
                matches!(reply, Value::BulkString(bytes) if *bytes == text_of(number).into_bytes())
            }
            Kind::Stream => *reply == Value::Int(1),
            _ => *reply == Value::Int((ELEMENTS_MIN + number % ELEMENTS_SPREAD).cast_signed()),
        }
    }

    /// The command that writes a key for the `turn`-th time, counted from 1.
    pub fn write(self, number: u64, turn: u64) -> Cmd {
        let turn = turn.to_string();
        match self.kind(number) {
            Kind::Counter => self.command("INCR", number, &[] as &[&str]),
            Kind::Field => self.command("HSET", number, &["n", &turn]),
            Kind::Log => self.command("RPUSH", number, &[turn]),
            _ => self.command("SET", number, &[turn]),
        }
    }

    /// How often a key was written, by the reply to [`read`](Self::read); `None` if it makes no sense: the
    /// key is missing, or a list lacks an entry or has one twice.
    pub fn times_written(self, number: u64, reply: Value) -> Option<u64> {
        if self.kind(number) != Kind::Log {
            return redis::from_redis_value(reply).ok();
        }
        let entries: Vec<u64> = redis::from_redis_value(reply).ok()?;
        let is_in_order = (0..).zip(&entries).all(|(expected, entry)| expected == *entry);
        is_in_order.then(|| (entries.len() as u64).checked_sub(1)).flatten()
    }

    fn command<W: AsRef<str>>(self, name: &str, number: u64, words: &[W]) -> Cmd {
        let mut command = cmd(name);
        command.arg(self.name(number));
        for word in words {
            command.arg(word.as_ref());
        }
        command
    }
}

/// 100 characters that differ from key to key.
fn text_of(number: u64) -> String {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut text = format!("{mixed:020}").repeat(5);
    text.truncate(100);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_holds_is_distinguished_from_what_it_should_hold() {
        let server = whimbrel_lab::Server::builder(whimbrel_lab::Engine::Redis70).start().expect("it starts");
        let mut connection = server.connection();
        let keys = Keys::new(1000);
        let mut read =
            |number: u64| -> Value { keys.read(number).query(&mut connection).expect("it answers") };
        assert!((500..600).all(|number| !keys.is_right(number, &read(number))), "nothing is there yet");
        assert!((0..40).all(|number| keys.times_written(number, read(number)).is_none()));
        let mut connection = server.connection();
        for number in (0..40).chain(500..600) {
            keys.create(number).exec(&mut connection).expect("it is created");
        }
        assert!((500..600).all(|number| keys.is_right(number, &read(number))));
        assert!((0..40).all(|number| keys.times_written(number, read(number)) == Some(0)));
        for turn in 1..=3 {
            for number in 0..40 {
                keys.write(number, turn).exec(&mut connection).expect("it is written");
            }
        }
        assert!((0..40).all(|number| keys.times_written(number, read(number)) == Some(3)));
        // The number of a list: one entry came twice.
        keys.write(24, 3).exec(&mut connection).expect("it is written");
        assert_eq!(keys.times_written(24, read(24)), None);
    }
}
