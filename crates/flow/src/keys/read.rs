//! Reads states.

use bytes::Bytes;
use whimbrel_engine::error::{Code, Error, Result, ServerError};
use whimbrel_engine::expiry::{self, Clock, Expiry};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Info;
use whimbrel_wire::encode::Outbox;
use whimbrel_wire::value::Value;

use super::state::{Body, KeyState};

/// How often a key is read again whose expiry changes, or is unclear, while it is read.
pub const UNSTABLE_ROUNDS_MAX: usize = 8;

/// Which command reads the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// `GET` or `MGET`: of strings only, and without asking first what a key is.
    String,
    /// `DUMP`: of any type.
    Payload,
}

impl Fetch {
    /// The name of the command.
    pub fn command(self) -> &'static [u8] {
        match self {
            Fetch::String => b"GET",
            Fetch::Payload => b"DUMP",
        }
    }

    /// The body that such a value is.
    pub fn body(self, value: Bytes) -> Body {
        match self {
            Fetch::String => Body::String(value),
            Fetch::Payload => Body::Payload(value),
        }
    }
}

/// What keeps a value and its expiry together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// All are read in one transaction. For strings on a server that is no cluster: there a transaction may
    /// touch one slot only.
    Transaction,
    /// The expiry is asked before and after the value, and the key is read again if the two differ: an expiry
    /// that was the same before and after was the expiry when the value was read.
    Bracketed,
    /// A value and its expiry may belong to different moments. Whatever happened in between is in a feed, and
    /// the key is transferred again.
    FeedProtected,
    /// No client writes to the key meanwhile, or what is read counts only if none has: a lock, a fence or
    /// `WATCH` ensures that. The key may expire; then it is gone. A transaction would be refused by a cluster
    /// in which the slot is on the move.
    Frozen,
}

/// How keys are read.
#[derive(Debug, Clone, Copy)]
pub struct Read {
    /// By which command.
    pub fetch: Fetch,
    /// What keeps a value and its expiry together.
    pub way: Way,
    /// By which clock it is known when they expire.
    pub clock: Clock,
    /// Each key is asked when it expires. If not, none of the database has an expiry: with
    /// [`Way::Transaction`] and [`Way::Bracketed`] that is asked along with the values; with the others the
    /// caller knows.
    pub expiries: bool,
    /// The server is importing the slots of the keys: each command follows an `ASKING`. Only for
    /// [`Way::FeedProtected`] and [`Way::Frozen`].
    pub asking: bool,
}

/// What a look at one key gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// There is no such key.
    Gone,
    /// Its value, and when it expires in milliseconds since the epoch.
    Value(Bytes, Option<i64>),
    /// It is no string, and was to be read as one.
    NotAString,
    /// Its expiry changed while it was read, or is unclear: it has to be read again.
    Unstable,
    /// Another node has it, or may have it.
    Redirected(ServerError),
    /// The server refuses, the value or its expiry. Without its expiry a key would live for ever on the other
    /// side.
    Refused(ServerError),
}

/// What a server answered about all keys of a read.
#[derive(Debug)]
pub enum Answer {
    /// One for each key, in their order.
    Found(Vec<Found>),
    /// There are expiries in the database: all have to be read again, with [`Read::expiries`].
    ExpiriesSeen,
    /// The server does not let us use transactions: they have to be read in another way.
    NoTransactions(ServerError),
    /// No reply to this command, or an impossible one.
    Unexpected(&'static str, Option<Value>),
}

impl Read {
    /// Queues the commands that read `keys`, and returns how many replies come.
    pub fn push(&self, out: &mut Outbox, keys: &[Bytes]) -> usize {
        match (self.way, self.expiries) {
            (Way::Transaction, _) => return self.push_transaction(out, keys),
            (Way::Bracketed, true) => {
                for key in keys {
                    expiry::ask(out, self.clock, key);
                    out.push(&[self.fetch.command(), key]);
                    expiry::ask(out, self.clock, key);
                }
            }
            (Way::Bracketed, false) => {
                // No expiry in the whole database after the values were read (nor before): none of these had
                // one.
                out.push(&[b"INFO", b"keyspace"]);
                for key in keys {
                    out.push(&[self.fetch.command(), key]);
                }
                out.push(&[b"INFO", b"keyspace"]);
                return keys.len() + 2;
            }
            (Way::FeedProtected | Way::Frozen, expiries) => {
                for key in keys {
                    let mut push = |command: &[&[u8]]| {
                        if self.asking {
                            out.push(&[b"ASKING"]);
                        }
                        out.push(command);
                    };
                    push(&[self.fetch.command(), key]);
                    if expiries {
                        expiry::question(self.clock, key, &mut push);
                    }
                }
            }
        }
        keys.len() * self.replies_of_each()
    }

    fn push_transaction(&self, out: &mut Outbox, keys: &[Bytes]) -> usize {
        out.push(&[b"MULTI"]);
        out.command(keys.len() + 1);
        out.arg(b"MGET");
        for key in keys {
            out.arg(key);
        }
        let mut queued = 2;
        if !self.expiries {
            out.push(&[b"INFO", b"keyspace"]);
        } else {
            for key in keys {
                expiry::ask(out, self.clock, key);
            }
            queued = 1 + keys.len() * expiry::commands(self.clock);
        }
        out.push(&[b"EXEC"]);
        queued + 2
    }

    /// How many replies come for each key; not if the keys are read [together](Way::Transaction), or [between
    /// two looks at the database](Read::expiries).
    pub fn replies_of_each(&self) -> usize {
        let expiry_reads = match (self.way, self.expiries) {
            (_, false) => 0,
            (Way::Bracketed, true) => 2,
            (_, true) => 1,
        };
        let commands = 1 + expiry_reads * expiry::commands(self.clock);
        if self.asking { 2 * commands } else { commands }
    }

    /// What the replies to [`Read::push`] say, of this many keys in database `db`.
    pub fn answer(&self, keys: usize, mut replies: Vec<Value>, db: u32) -> Answer {
        match (self.way, self.expiries) {
            (Way::Transaction, _) => return self.answer_of_transaction(keys, replies, db),
            (Way::Bracketed, false) => {
                let [before, values @ .., after] = &mut replies[..] else {
                    return Answer::Unexpected("INFO", None);
                };
                if values.len() != keys {
                    return Answer::Unexpected("read a pipeline", None);
                }
                if has_expiries(before, db) != Some(false) || has_expiries(after, db) != Some(false) {
                    return Answer::ExpiriesSeen;
                }
                return Answer::Found(values.iter_mut().map(|value| self.found_alone(value)).collect());
            }
            _ => {}
        }
        let each = self.replies_of_each();
        if replies.len() < each * keys {
            return Answer::Unexpected("read a pipeline", None);
        }
        Answer::Found(replies.chunks_mut(each).take(keys).map(|replies| self.found(replies)).collect())
    }

    /// What the replies about one key say: [`Read::replies_of_each`] of them. The value is taken out of them.
    pub fn found(&self, replies: &mut [Value]) -> Found {
        let mut unasked: Vec<Value>;
        let replies = match self.asking {
            true => {
                unasked = replies.iter_mut().skip(1).step_by(2).map(taken).collect();
                &mut unasked[..]
            }
            false => replies,
        };
        if !self.expiries {
            return replies.first_mut().map_or(Found::Unstable, |value| self.found_alone(value));
        }
        if self.way != Way::Bracketed {
            let Some((value, rest)) = replies.split_first_mut() else { return Found::Unstable };
            return match self.expiry(rest) {
                // Between the two it has expired, or was removed.
                Expiry::Gone if ServerError::of(value).is_none() => Found::Gone,
                expiry => self.found_with(value, expiry, rest),
            };
        }
        let expiry_reads = expiry::commands(self.clock);
        let Some((before, [value, after @ ..])) = replies.split_at_mut_checked(expiry_reads) else {
            return Found::Unstable;
        };
        let expiry = self.expiry(before);
        match ServerError::of(value) {
            None if !self.clock.is_same(expiry, self.expiry(after)) => Found::Unstable,
            // Created and deleted again around the read.
            None if expiry == Expiry::Gone && *value != Value::Null => Found::Unstable,
            // The later look, since that is closer to the truth if the time left counts from now.
            None => self.found_with(value, self.expiry(after), after),
            Some(_) => self.found_with(value, expiry, before),
        }
    }

    /// Of a key that has no expiry.
    fn found_alone(&self, value: &mut Value) -> Found {
        match ServerError::of(value) {
            Some(e) => self.refused(e),
            None => taken(value).into_bytes().map_or(Found::Gone, |value| Found::Value(value, None)),
        }
    }

    /// Of a key, its expiry, and the replies that it was read from.
    fn found_with(&self, value: &mut Value, expiry: Expiry, replies: &[Value]) -> Found {
        match (self.found_alone(value), expiry) {
            (Found::Value(value, _), Expiry::At(ms)) => Found::Value(value, Some(ms)),
            (Found::Value(..), Expiry::Unclear) => Found::Unstable,
            (Found::Value(..), Expiry::Unknown) => {
                let refusal = replies.iter().find_map(ServerError::of);
                self.refused(refusal.unwrap_or_else(|| {
                    ServerError::classify(b"NOPERM the server does not report when the key expires")
                }))
            }
            (found, _) => found,
        }
    }

    fn expiry(&self, replies: &[Value]) -> Expiry {
        expiry::read(&mut replies.iter(), self.clock).unwrap_or(Expiry::Unknown)
    }

    fn refused(&self, e: ServerError) -> Found {
        match e.code {
            Code::WrongType if self.fetch == Fetch::String => Found::NotAString,
            Code::Moved(..) | Code::Ask(..) | Code::TryAgain => Found::Redirected(e),
            _ => Found::Refused(e),
        }
    }

    /// As [`Read::answer`]. Values are handed on as they are: this is the way that most keys of a copy go.
    fn answer_of_transaction(&self, keys: usize, replies: Vec<Value>, db: u32) -> Answer {
        let refused = [replies.first(), replies.last()].into_iter().flatten().find_map(ServerError::of);
        if let Some(e) = refused {
            return Answer::NoTransactions(e);
        }
        let Some(exec) = replies.into_iter().next_back() else { return Answer::Unexpected("EXEC", None) };
        if exec.as_items().is_none_or(<[Value]>::is_empty) {
            return Answer::Unexpected("EXEC", Some(exec));
        }
        let mut answers = exec.into_items().into_iter().flatten();
        let values = answers.next().unwrap_or(Value::Null);
        if values.as_items().is_none_or(|values| values.len() != keys) {
            return Answer::Unexpected("MGET", Some(values));
        }
        let expiries: Vec<Value> = answers.collect();
        if !self.expiries && expiries.first().and_then(|info| has_expiries(info, db)) != Some(false) {
            return Answer::ExpiriesSeen;
        }
        let expiry_reads = expiry::commands(self.clock);
        let mut found = Vec::with_capacity(keys);
        for (at, value) in values.into_items().into_iter().flatten().enumerate() {
            let expiry = match self.expiries {
                true => expiries
                    .get(at * expiry_reads..(at + 1) * expiry_reads)
                    .map_or(Expiry::Unknown, |e| self.expiry(e)),
                false => Expiry::Never,
            };
            found.push(match (value.into_bytes(), expiry) {
                // `MGET` answers null for anything that is no string, and for what is gone.
                (None, _) => Found::NotAString,
                (Some(value), Expiry::At(ms)) => Found::Value(value, Some(ms)),
                (Some(value), Expiry::Never) => Found::Value(value, None),
                (Some(_), Expiry::Unclear) => Found::Unstable,
                // The clock of Redis 6.0 goes on inside a transaction: the key has expired after it was read.
                (Some(_), Expiry::Gone) => Found::Gone,
                (Some(_), Expiry::Unknown) => {
                    return Answer::Unexpected(
                        "PEXPIRETIME or PTTL",
                        expiries.into_iter().nth(at * expiry_reads),
                    );
                }
            });
        }
        Answer::Found(found)
    }
}

/// The value, which is null afterwards.
fn taken(value: &mut Value) -> Value {
    std::mem::replace(value, Value::Null)
}

impl Found {
    /// The state of a key that was read with `fetch`; `None` if this is none.
    pub fn into_state(self, key: Bytes, fetch: Fetch) -> Option<KeyState> {
        match self {
            Found::Gone => Some(KeyState::gone(key)),
            Found::Value(value, expires_at_ms) => {
                Some(KeyState { key, body: fetch.body(value), expires_at_ms })
            }
            _ => None,
        }
    }
}

/// Whether `INFO keyspace` says that keys of a database have expiries; `None` for what is no such reply.
fn has_expiries(info: &Value, db: u32) -> Option<bool> {
    let info = Info::parse(info.as_bytes()?);
    Some(info.keyspace().get(&db).is_some_and(|counts| counts.expires > 0))
}

/// Reads keys over `link`, each again while it is unclear when it expires: [`Way::FeedProtected`] and
/// [`Way::Frozen`]. Those that had to be read again come last.
///
/// # Errors
/// Whatever the link reports; `Unfit` if it stays unclear when a key expires. What the server refuses is
/// [`Found`].
pub async fn read_all(link: &mut Link, read: &Read, keys: &[Bytes]) -> Result<Vec<(Bytes, Found)>> {
    let found = read_together(link, &[(*read, keys)]).await?;
    Ok(found.into_iter().map(|(_, key, found)| (key, found)).collect())
}

/// [`read_all`] of several groups of keys, each read in its own way, in one round trip: the keys of the first
/// group are read first. What was found comes with how it was fetched.
///
/// # Errors
/// As [`read_all`].
pub async fn read_together(
    link: &mut Link,
    groups: &[(Read, &[Bytes])],
) -> Result<Vec<(Fetch, Bytes, Found)>> {
    let mut open: Vec<(Read, Bytes)> =
        groups.iter().flat_map(|(read, keys)| keys.iter().map(|key| (*read, key.clone()))).collect();
    let mut settled = Vec::with_capacity(open.len());
    for _ in 0..UNSTABLE_ROUNDS_MAX {
        let mut expected = 0;
        for (read, key) in &open {
            expected += read.push(link.outbox(), std::slice::from_ref(key));
        }
        link.flush().await?;
        let mut replies = link.replies(expected).await?;
        let (mut replies, mut again) = (&mut replies[..], Vec::new());
        for (read, key) in open {
            let (own, rest) = replies.split_at_mut(read.replies_of_each());
            replies = rest;
            match read.found(own) {
                Found::Unstable => again.push((read, key)),
                found => settled.push((read.fetch, key, found)),
            }
        }
        open = again;
        if open.is_empty() {
            return Ok(settled);
        }
    }
    Err(unclear(link))
}

/// Reads strings without expiries with one command, over a `link` to one server; those that are none, or
/// gone, one by one after that. These come last.
///
/// # Errors
/// As [`read_all`].
pub async fn read_strings_together(
    link: &mut Link,
    read: &Read,
    keys: &[Bytes],
) -> Result<Vec<(Bytes, Found)>> {
    let out = link.outbox();
    out.command(1 + keys.len());
    out.arg(b"MGET");
    keys.iter().for_each(|key| out.arg_bytes(key));
    link.flush().await?;
    let reply = link.reply().await?;
    let values = match reply.into_items() {
        Some(values) if values.len() == keys.len() => values,
        // What is refused is refused key by key.
        _ => return read_all(link, read, keys).await,
    };
    let (mut found, mut again) = (Vec::with_capacity(keys.len()), Vec::new());
    for (key, value) in keys.iter().zip(values) {
        match value.into_bytes() {
            Some(value) => found.push((key.clone(), Found::Value(value, None))),
            None => again.push(key.clone()),
        }
    }
    if !again.is_empty() {
        found.extend(read_all(link, read, &again).await?);
    }
    Ok(found)
}

/// Says of each key whether it exists on the server, which has to own its slot.
///
/// # Errors
/// Whatever the link or the server reports.
pub async fn exist<K: AsRef<[u8]>>(link: &mut Link, keys: &[K]) -> Result<Vec<bool>> {
    for key in keys {
        link.push(&[b"EXISTS", key.as_ref()]);
    }
    link.flush().await?;
    let replies = link.replies(keys.len()).await?;
    replies.into_iter().map(|reply| Ok(link.check(reply, b"EXISTS")? == Value::Int(1))).collect()
}

/// What `DUMP` replies to each key, for a comparison or a measurement. With `asking` the server is importing
/// their slots: each command follows an `ASKING`.
///
/// # Errors
/// Whatever the link reports. What the server refuses is a reply.
pub(crate) async fn dumps<K: AsRef<[u8]>>(link: &mut Link, keys: &[K], asking: bool) -> Result<Vec<Value>> {
    let commands: Vec<_> = keys.iter().map(|key| [Fetch::Payload.command(), key.as_ref()]).collect();
    link.ask_each(asking, &commands).await
}

/// Says of each key in how many milliseconds it expires; `None` if it never does, or does not exist.
///
/// # Errors
/// Whatever the link or the server reports.
pub(crate) async fn expire_in_ms(link: &mut Link, keys: &[Bytes]) -> Result<Vec<Option<u64>>> {
    for key in keys {
        link.push(&[b"PTTL", key]);
    }
    link.flush().await?;
    let replies = link.replies(keys.len()).await?;
    let left = |reply| Ok(link.check(reply, b"PTTL")?.as_int().and_then(|ms| u64::try_from(ms).ok()));
    replies.into_iter().map(left).collect()
}

/// What it means that it stays unclear when a key expires.
pub fn unclear(link: &Link) -> Error {
    let what = "the server takes a millisecond or more to say when a key expires, so that stays inexact";
    Error::unfit(link.endpoint().side, link.address().to_string(), "read a key", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Bytes = Bytes::from_static(b"k");

    fn read(fetch: Fetch, way: Way, absolute: bool) -> Read {
        Read { fetch, way, clock: Clock::of_server(absolute), expiries: true, asking: false }
    }

    fn bulk(text: &'static str) -> Value {
        Value::Bulk(Bytes::from_static(text.as_bytes()))
    }

    fn error(text: &'static str) -> Value {
        Value::parse(&Bytes::from(format!("-{text}\r\n"))).expect("an error")
    }

    #[test]
    fn each_way_gets_as_many_replies_as_it_queues_commands() {
        let keys = [KEY, Bytes::from_static(b"l")];
        for way in [Way::Transaction, Way::Bracketed, Way::FeedProtected, Way::Frozen] {
            for (absolute, expiries) in [(true, true), (true, false), (false, true), (false, false)] {
                let mut out = Outbox::new();
                let read = Read { expiries, ..read(Fetch::String, way, absolute) };
                let expected = read.push(&mut out, &keys);
                assert_eq!(expected as u64, out.commands(), "{way:?} {absolute} {expiries}");
            }
        }
        let mut out = Outbox::new();
        let read = Read { asking: true, ..read(Fetch::Payload, Way::Frozen, false) };
        assert_eq!(read.push(&mut out, &keys) as u64, out.commands());
        assert_eq!(read.replies_of_each(), 8);
    }

    #[test]
    fn a_bracketed_value_counts_where_its_expiry_was_the_same_before_and_after() {
        let read = read(Fetch::String, Way::Bracketed, true);
        let found = |before, value, after| read.found(&mut [Value::Int(before), value, Value::Int(after)]);
        let value = Bytes::from_static(b"v");
        assert_eq!(found(70, bulk("v"), 70), Found::Value(value.clone(), Some(70)));
        assert_eq!(found(-1, bulk("v"), -1), Found::Value(value, None));
        assert_eq!(found(-1, bulk("v"), 70), Found::Unstable);
        assert_eq!(found(-2, bulk("v"), -2), Found::Unstable);
        assert_eq!(found(-2, Value::Null, -2), Found::Gone);
        assert_eq!(found(-1, error("WRONGTYPE no string"), -1), Found::NotAString);
        assert!(matches!(found(-2, error("ASK 7 a:1"), -2), Found::Redirected(_)));
        assert!(matches!(found(-1, error("NOPERM no"), -1), Found::Refused(_)));
    }

    #[test]
    fn a_key_that_has_expired_after_its_value_was_read_is_gone() {
        let read = read(Fetch::Payload, Way::Frozen, true);
        assert_eq!(read.found(&mut [bulk("v"), Value::Int(-2)]), Found::Gone);
        assert_eq!(read.found(&mut [Value::Null, Value::Int(-2)]), Found::Gone);
        assert_eq!(
            read.found(&mut [bulk("v"), Value::Int(9)]),
            Found::Value(Bytes::from_static(b"v"), Some(9))
        );
        assert!(matches!(read.found(&mut [bulk("v"), error("NOPERM no")]), Found::Refused(_)));
        let asking = Read { asking: true, ..read };
        let ok = || Value::Simple(Bytes::from_static(b"OK"));
        assert_eq!(
            asking.found(&mut [ok(), bulk("v"), ok(), Value::Int(-1)]),
            Found::Value(Bytes::from_static(b"v"), None)
        );
    }

    #[test]
    fn where_the_clock_went_on_a_key_is_read_again() {
        let read = read(Fetch::Payload, Way::Frozen, false);
        let time = |micros: i64| Value::Array(vec![Value::Int(7), Value::Int(micros)]);
        let found = |before, after| read.found(&mut [bulk("v"), time(before), Value::Int(5), time(after)]);
        assert_eq!(found(1_000, 1_999), Found::Value(Bytes::from_static(b"v"), Some(7_006)));
        assert_eq!(found(1_999, 2_000), Found::Unstable);
    }

    #[test]
    fn a_key_that_has_expired_within_a_transaction_is_gone() {
        let read = read(Fetch::String, Way::Transaction, false);
        let time = || Value::Array(vec![Value::Int(7), Value::Int(0)]);
        let answer = |left: Value| {
            let values = Value::Array(vec![bulk("v"), bulk("w")]);
            let rest = [time(), left, time(), time(), Value::Int(-1), time()];
            read.answer(2, vec![Value::Array([values].into_iter().chain(rest).collect())], 0)
        };
        let Answer::Found(found) = answer(Value::Int(-2)) else { panic!("not found") };
        assert_eq!(found, [Found::Gone, Found::Value(Bytes::from_static(b"w"), None)]);
        assert!(matches!(answer(error("ERR no")), Answer::Unexpected(..)));
    }

    #[test]
    fn a_transaction_that_shows_expiries_is_read_again_with_them() {
        let read = |expiries| Read { expiries, ..read(Fetch::String, Way::Transaction, true) };
        let ok = || Value::Simple(Bytes::from_static(b"OK"));
        let exec = |items: Vec<Value>| vec![ok(), ok(), ok(), Value::Array(items)];
        let values = || Value::Array(vec![bulk("v"), Value::Null]);
        let info = |expires| Value::Bulk(Bytes::from(format!("db0:keys=2,expires={expires},avg_ttl=0\r\n")));
        let answer = read(false).answer(2, exec(vec![values(), info(1)]), 0);
        assert!(matches!(answer, Answer::ExpiriesSeen));
        let Answer::Found(found) = read(false).answer(2, exec(vec![values(), info(0)]), 0) else {
            panic!("not found")
        };
        assert_eq!(found[0], Found::Value(Bytes::from_static(b"v"), None));
        assert_eq!(found[1], Found::NotAString);
        let Answer::Found(found) =
            read(true).answer(2, exec(vec![values(), Value::Int(70), Value::Int(-1)]), 0)
        else {
            panic!("not found")
        };
        assert_eq!(found[0], Found::Value(Bytes::from_static(b"v"), Some(70)));
        let refused = read(true).answer(2, vec![error("NOPERM no MULTI")], 0);
        assert!(matches!(refused, Answer::NoTransactions(_)));
    }
}
