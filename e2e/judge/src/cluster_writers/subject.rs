//! What a client writes to: one key or a few of one slot, what they must hold, and how a server must answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use redis::{Cmd, Value};

use crate::compare::{GroupState, KeyState, StreamState, ValueState, state_differences};
use crate::dataset::random::Random;

/// Elements after which a collection is deleted, so that keys stay small and deletions happen.
const ELEMENTS_MAX: usize = 48;
/// Expiries that must survive a move: none comes to pass during a test.
const FAR_MS: i64 = 6 * 3_600_000;
/// Expiries that come to pass during it.
const NEAR_MS: std::ops::Range<u64> = 200..900;
/// Nobody can say what a key holds this close to its expiry.
const BLUR_MS: i64 = 150;
/// The name of the one consumer group of a queue.
const GROUP: &[u8] = b"workers";
/// Keys of one slot that MSET writes together.
const TUPLE: usize = 3;
/// Raises two counters, or neither.
const RAISE_BOTH: &str = "redis.call('INCR',KEYS[1]) return redis.call('INCR',KEYS[2])";

/// The uses of a key; each has its own commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Counter,
    List,
    Set,
    SortedSet,
    Hash,
    /// A stream with a consumer group.
    Queue,
    /// Keys that are always written together.
    Tuple,
    /// Two counters that a script raises together.
    Twins,
}

impl Kind {
    pub(super) const ALL: [Self; 9] = [
        Self::Counter,
        Self::Tuple,
        Self::List,
        Self::Set,
        Self::Queue,
        Self::Text,
        Self::Hash,
        Self::SortedSet,
        Self::Twins,
    ];
}

/// What the keys of one subject hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    contents: Contents,
    expires_at_ms: Option<i64>,
}

/// Empty is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Contents {
    Text(String),
    Counter(Option<i64>),
    List(VecDeque<String>),
    Set(BTreeSet<String>),
    /// By member; whole numbers, which have one form everywhere.
    SortedSet(BTreeMap<String, i64>),
    Hash(BTreeMap<String, String>),
    Queue(Option<Queue>),
    Tuple(Option<String>),
    Twins(Option<i64>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Queue {
    /// Values of the entries; the id of each is its place, counted from 1.
    entries: Vec<String>,
    /// How many were given out.
    delivered: usize,
    /// Given out and not acknowledged: to whom.
    pending: BTreeMap<usize, &'static str>,
    consumers: BTreeSet<&'static str>,
}

/// One command.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Set(String),
    SetUntil(String, i64),
    Append(String),
    Raise(i64),
    PushBack(String),
    PushFront(String),
    PopFront,
    AddMember(String),
    RemoveMember(String),
    Score(String, i64),
    RaiseScore(String, i64),
    RemoveScored(String),
    SetField(String, String),
    RemoveField(String),
    CreateGroup,
    /// With its place, which is its id.
    AddEntry(usize, String),
    Take(&'static str, usize),
    Acknowledge(Vec<usize>),
    Claim(usize, &'static str),
    WriteAll(String),
    RaiseBoth,
    ExpireAt(i64),
    Persist,
    Delete,
    Unlink,
    Read,
}

/// What the server must answer if it holds what the model says.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    reply: Value,
    form: Form,
}

/// How a reply is compared with what is expected.
#[derive(Clone, Copy, Debug)]
enum Form {
    Exact,
    /// An array whose elements come in any order, in groups of this many.
    Unordered(usize),
    /// What XREADGROUP answers for the one stream it was asked for; the stream's name is not looked at.
    OfOneStream,
}

impl Expected {
    fn of(reply: Value) -> Self {
        Self { reply, form: Form::Exact }
    }

    fn ok() -> Self {
        Self::of(Value::Okay)
    }

    fn number(number: usize) -> Self {
        Self::of(Value::Int(number as i64))
    }

    fn array(elements: impl IntoIterator<Item = Value>) -> Self {
        Self::of(Value::Array(elements.into_iter().collect()))
    }

    fn unordered_by(self, group: usize) -> Self {
        Self { form: Form::Unordered(group), ..self }
    }

    /// Whether a server's reply is this one.
    pub(super) fn is(&self, reply: &Value) -> bool {
        match (self.form, &self.reply, reply) {
            (Form::Unordered(group), Value::Array(expected), Value::Array(found)) => {
                sorted(expected, group) == sorted(found, group)
            }
            (Form::OfOneStream, expected, Value::Array(streams)) => match &streams[..] {
                [Value::Array(stream)] => stream.get(1) == Some(expected),
                _ => false,
            },
            (_, expected, found) => expected == found,
        }
    }
}

fn sorted(elements: &[Value], group: usize) -> Vec<&[Value]> {
    let mut groups: Vec<&[Value]> = elements.chunks(group).collect();
    groups.sort_by_cached_key(|group| format!("{group:?}"));
    groups
}

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// The server's order: by score, then by name.
fn by_score(members: &BTreeMap<String, i64>) -> Vec<(&String, i64)> {
    let mut ordered: Vec<(&String, i64)> = members.iter().map(|(member, &score)| (member, score)).collect();
    ordered.sort_by_key(|&(member, score)| (score, member));
    ordered
}

fn entry_id(place: usize) -> String {
    format!("{place}-1")
}

impl Model {
    pub(super) fn empty(kind: Kind) -> Self {
        let contents = match kind {
            Kind::Text => Contents::Text(String::new()),
            Kind::Counter => Contents::Counter(None),
            Kind::List => Contents::List(VecDeque::new()),
            Kind::Set => Contents::Set(BTreeSet::new()),
            Kind::SortedSet => Contents::SortedSet(BTreeMap::new()),
            Kind::Hash => Contents::Hash(BTreeMap::new()),
            Kind::Queue => Contents::Queue(None),
            Kind::Tuple => Contents::Tuple(None),
            Kind::Twins => Contents::Twins(None),
        };
        Self { contents, expires_at_ms: None }
    }

    pub(super) fn kind(&self) -> Kind {
        match self.contents {
            Contents::Text(_) => Kind::Text,
            Contents::Counter(_) => Kind::Counter,
            Contents::List(_) => Kind::List,
            Contents::Set(_) => Kind::Set,
            Contents::SortedSet(_) => Kind::SortedSet,
            Contents::Hash(_) => Kind::Hash,
            Contents::Queue(_) => Kind::Queue,
            Contents::Tuple(_) => Kind::Tuple,
            Contents::Twins(_) => Kind::Twins,
        }
    }

    /// The keys of a subject with this name.
    pub(super) fn keys(&self, name: &str) -> Vec<String> {
        match self.kind() {
            Kind::Tuple => (0..TUPLE).map(|part| format!("{name}:{part}")).collect(),
            Kind::Twins => vec![format!("{name}:left"), format!("{name}:right")],
            _ => vec![name.to_owned()],
        }
    }

    /// How many elements there are; 0 if the keys are absent.
    pub(super) fn len(&self) -> usize {
        match &self.contents {
            // A long string counts as many elements.
            Contents::Text(text) => text.len().div_ceil(16),
            Contents::Counter(number) | Contents::Twins(number) => usize::from(number.is_some()),
            Contents::List(elements) => elements.len(),
            Contents::Set(members) => members.len(),
            Contents::SortedSet(members) => members.len(),
            Contents::Hash(fields) => fields.len(),
            Contents::Queue(queue) => queue.as_ref().map_or(0, |queue| queue.entries.len().max(1)),
            Contents::Tuple(value) => usize::from(value.is_some()),
        }
    }

    fn is_absent(&self) -> bool {
        self.len() == 0
    }

    /// What is left at this time; `None` so close to an expiry that nobody can say.
    pub(super) fn at(&self, now_ms: i64) -> Option<Self> {
        match self.expires_at_ms {
            Some(expiry) if now_ms >= expiry + BLUR_MS => Some(Self::empty(self.kind())),
            Some(expiry) if now_ms > expiry - BLUR_MS => None,
            _ => Some(self.clone()),
        }
    }

    /// How long until an expiry that is near has passed for everybody, in milliseconds.
    pub(super) fn blurred_for_ms(&self, now_ms: i64) -> i64 {
        match self.expires_at_ms {
            Some(expiry) if expiry - now_ms < FAR_MS / 2 => (expiry + BLUR_MS - now_ms).max(0),
            _ => 0,
        }
    }

    /// Something to do next.
    pub(super) fn choose(&self, random: &mut Random, now_ms: i64) -> Op {
        if let Contents::Queue(None) = &self.contents {
            return Op::CreateGroup;
        }
        let delete = if random.below(2) == 0 { Op::Delete } else { Op::Unlink };
        if self.len() >= ELEMENTS_MAX {
            return delete;
        }
        let near_ms = now_ms + (NEAR_MS.start + random.below(NEAR_MS.end - NEAR_MS.start)) as i64;
        let far_ms = now_ms + FAR_MS + random.below(1_000) as i64;
        let may_expire = !matches!(self.kind(), Kind::Tuple | Kind::Twins | Kind::Queue);
        match random.below(24) {
            0 => return delete,
            1 if may_expire => return Op::ExpireAt(far_ms),
            2 if may_expire => return Op::ExpireAt(near_ms),
            3 if may_expire => return Op::Persist,
            4..=7 => return Op::Read,
            _ => {}
        }
        let value = format!("{:x}", random.next());
        let name = format!("n{}", random.below(60));
        let third = random.below(3) == 0;
        match &self.contents {
            Contents::Text(_) => match random.below(6) {
                0 => Op::Set(value),
                1 => Op::SetUntil(value, if third { near_ms } else { far_ms }),
                _ => Op::Append(value),
            },
            Contents::Counter(_) => Op::Raise(random.below(9) as i64 + 1),
            Contents::List(_) => match random.below(5) {
                0 => Op::PopFront,
                1 => Op::PushFront(value),
                _ => Op::PushBack(value),
            },
            Contents::Set(_) if third => Op::RemoveMember(name),
            Contents::Set(_) => Op::AddMember(name),
            Contents::SortedSet(_) if third => Op::RemoveScored(name),
            Contents::SortedSet(_) => {
                let score = random.below(1_000) as i64 - 500;
                if random.below(2) == 0 { Op::Score(name, score) } else { Op::RaiseScore(name, score) }
            }
            Contents::Hash(_) if third => Op::RemoveField(name),
            Contents::Hash(_) => Op::SetField(name, value),
            Contents::Queue(queue) => {
                let queue = queue.as_ref().expect("its absence was looked at first");
                let consumer = ["anna", "ben"][random.below(2) as usize];
                match random.below(8) {
                    0..=3 => Op::AddEntry(queue.entries.len() + 1, value),
                    4..=5 if queue.delivered < queue.entries.len() => {
                        Op::Take(consumer, random.below(3) as usize + 1)
                    }
                    6 if !queue.pending.is_empty() => {
                        let nth = random.below(queue.pending.len() as u64) as usize;
                        Op::Claim(*queue.pending.keys().nth(nth).expect("below its length"), consumer)
                    }
                    _ if !queue.pending.is_empty() => {
                        let count = random.below(queue.pending.len() as u64) as usize + 1;
                        Op::Acknowledge(queue.pending.keys().copied().take(count).collect())
                    }
                    _ => Op::AddEntry(queue.entries.len() + 1, value),
                }
            }
            Contents::Tuple(_) => Op::WriteAll(value),
            Contents::Twins(_) => Op::RaiseBoth,
        }
    }

    /// What the keys hold after `op`, and how the server answers it.
    pub(super) fn after(&self, op: &Op) -> (Self, Expected) {
        let was_there = !self.is_absent();
        let mut next = self.clone();
        let expected = match op {
            Op::Delete | Op::Unlink => {
                next = Self::empty(self.kind());
                Expected::number(if was_there { self.keys("").len() } else { 0 })
            }
            Op::ExpireAt(at_ms) => {
                if was_there {
                    next.expires_at_ms = Some(*at_ms);
                }
                Expected::number(usize::from(was_there))
            }
            Op::Persist => {
                next.expires_at_ms = None;
                Expected::number(usize::from(self.expires_at_ms.is_some()))
            }
            Op::Set(_) => {
                // SET takes an expiry away; all other writes let it be.
                next.expires_at_ms = None;
                next.contents.apply(op)
            }
            Op::SetUntil(_, at_ms) => {
                next.expires_at_ms = Some(*at_ms);
                next.contents.apply(op)
            }
            _ => next.contents.apply(op),
        };
        if next.is_absent() {
            next.expires_at_ms = None;
        }
        (next, expected)
    }

    /// How what was found of the keys (those of [`Self::keys`], in order) contradicts the model; none if it
    /// does not.
    pub(super) fn contradiction(&self, found: &[Option<&KeyState>]) -> Option<Contradiction> {
        let expected = self.states();
        debug_assert_eq!(expected.len(), found.len());
        expected.iter().zip(found).find_map(|(expected, found)| match (expected, found) {
            (None, None) => None,
            (Some(expected), None) => Some(Contradiction::Lost(expected.value.type_name().to_owned())),
            (None, Some(found)) => Some(Contradiction::Risen(found.value.type_name().to_owned())),
            (Some(expected), Some(found)) => {
                let words = self.differences(expected, found);
                (!words.is_empty()).then(|| Contradiction::Stale(words.join("; ")))
            }
        })
    }

    fn differences(&self, expected: &KeyState, found: &KeyState) -> Vec<String> {
        let (Contents::Queue(Some(queue)), ValueState::Stream(stream)) = (&self.contents, &found.value)
        else {
            return state_differences(expected, found);
        };
        let without_groups = StreamState { groups: BTreeMap::new(), ..stream.clone() };
        let without_groups = KeyState { value: ValueState::Stream(without_groups), ..found.clone() };
        let mut words = state_differences(expected, &without_groups);
        match stream.groups.get(GROUP) {
            Some(group) if stream.groups.len() == 1 => words.extend(queue.differences(group)),
            _ => words.push(format!("groups {:?} instead of one", stream.groups.keys())),
        }
        words
    }

    /// What a reader must find of each key; a stream without its group.
    fn states(&self) -> Vec<Option<KeyState>> {
        let state = |value| Some(KeyState { expires_at_ms: self.expires_at_ms, value });
        let text = |text: &str| state(ValueState::string(text.as_bytes()));
        if self.is_absent() {
            return vec![None; self.keys("").len()];
        }
        match &self.contents {
            Contents::Text(value) => vec![text(value)],
            Contents::Counter(number) => vec![number.and_then(|number| text(&number.to_string()))],
            Contents::List(elements) => vec![state(ValueState::list(elements))],
            Contents::Set(members) => vec![state(ValueState::set(members))],
            Contents::SortedSet(members) => {
                let ordered = by_score(members).into_iter().map(|(member, score)| (member, score as f64));
                vec![state(ValueState::sorted_set(ordered))]
            }
            Contents::Hash(fields) => vec![state(ValueState::hash(fields))],
            Contents::Queue(queue) => {
                let entries: Vec<(String, Vec<&str>)> = queue
                    .iter()
                    .flat_map(|queue| queue.entries.iter().zip(1..))
                    .map(|(value, place)| (entry_id(place), vec!["value", value.as_str()]))
                    .collect();
                vec![state(ValueState::stream(&entries))]
            }
            Contents::Tuple(value) => {
                vec![value.as_deref().and_then(text); TUPLE]
            }
            Contents::Twins(number) => vec![number.and_then(|number| text(&number.to_string())); 2],
        }
    }
}

/// What an acknowledged write and a key that was found contradict each other in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contradiction {
    /// A key of this type must be there.
    Lost(String),
    /// A key of this type must not be there.
    Risen(String),
    /// It holds something else; in words.
    Stale(String),
}

impl Contents {
    fn apply(&mut self, op: &Op) -> Expected {
        match (self, op) {
            (contents, Op::Read) => contents.read(),
            (Self::Text(text), Op::Set(value) | Op::SetUntil(value, _)) => {
                text.clone_from(value);
                Expected::ok()
            }
            (Self::Text(text), Op::Append(more)) => {
                text.push_str(more);
                Expected::number(text.len())
            }
            (Self::Counter(number), Op::Raise(by)) => {
                Expected::of(Value::Int(*number.insert(number.unwrap_or(0) + by)))
            }
            (Self::List(elements), Op::PushBack(element)) => {
                elements.push_back(element.clone());
                Expected::number(elements.len())
            }
            (Self::List(elements), Op::PushFront(element)) => {
                elements.push_front(element.clone());
                Expected::number(elements.len())
            }
            (Self::List(elements), Op::PopFront) => {
                Expected::of(elements.pop_front().map_or(Value::Nil, |element| bulk(&element)))
            }
            (Self::Set(members), Op::AddMember(member)) => {
                Expected::number(usize::from(members.insert(member.clone())))
            }
            (Self::Set(members), Op::RemoveMember(member)) => {
                Expected::number(usize::from(members.remove(member)))
            }
            (Self::SortedSet(members), Op::Score(member, score)) => {
                Expected::number(usize::from(members.insert(member.clone(), *score).is_none()))
            }
            (Self::SortedSet(members), Op::RaiseScore(member, by)) => {
                let score = members.entry(member.clone()).or_default();
                *score += by;
                Expected::of(bulk(&score.to_string()))
            }
            (Self::SortedSet(members), Op::RemoveScored(member)) => {
                Expected::number(usize::from(members.remove(member).is_some()))
            }
            (Self::Hash(fields), Op::SetField(field, value)) => {
                Expected::number(usize::from(fields.insert(field.clone(), value.clone()).is_none()))
            }
            (Self::Hash(fields), Op::RemoveField(field)) => {
                Expected::number(usize::from(fields.remove(field).is_some()))
            }
            (Self::Queue(queue), Op::CreateGroup) => {
                *queue = Some(Queue::default());
                Expected::ok()
            }
            (Self::Queue(Some(queue)), op) => queue.apply(op),
            (Self::Tuple(all), Op::WriteAll(value)) => {
                *all = Some(value.clone());
                Expected::ok()
            }
            (Self::Twins(number), Op::RaiseBoth) => {
                Expected::of(Value::Int(*number.insert(number.unwrap_or(0) + 1)))
            }
            (contents, op) => unreachable!("{op:?} on {contents:?}: each kind has its own commands"),
        }
    }

    fn read(&self) -> Expected {
        let number = |number: &Option<i64>| number.map_or(Value::Nil, |number| bulk(&number.to_string()));
        match self {
            Self::Text(text) if text.is_empty() => Expected::of(Value::Nil),
            Self::Text(text) => Expected::of(bulk(text)),
            Self::Counter(value) => Expected::of(number(value)),
            Self::List(elements) => Expected::array(elements.iter().map(|element| bulk(element))),
            Self::Set(members) => Expected::array(members.iter().map(|member| bulk(member))).unordered_by(1),
            Self::SortedSet(members) => Expected::array(
                by_score(members)
                    .into_iter()
                    .flat_map(|(member, score)| [bulk(member), bulk(&score.to_string())]),
            ),
            Self::Hash(fields) => {
                Expected::array(fields.iter().flat_map(|(field, value)| [bulk(field), bulk(value)]))
                    .unordered_by(2)
            }
            Self::Queue(queue) => Expected::number(queue.as_ref().map_or(0, |queue| queue.entries.len())),
            Self::Tuple(value) => {
                let value = value.as_deref().map_or(Value::Nil, bulk);
                Expected::array(std::iter::repeat_n(value, TUPLE))
            }
            Self::Twins(value) => Expected::array([number(value), number(value)]),
        }
    }
}

impl Queue {
    fn apply(&mut self, op: &Op) -> Expected {
        match op {
            Op::AddEntry(place, value) => {
                self.entries.push(value.clone());
                Expected::of(bulk(&entry_id(*place)))
            }
            Op::Take(consumer, count) => {
                self.consumers.insert(consumer);
                let last = (self.delivered + count).min(self.entries.len());
                let taken = self.delivered + 1..=last;
                self.delivered = last;
                let entries = taken.map(|place| {
                    self.pending.insert(place, consumer);
                    let fields = vec![bulk("value"), bulk(&self.entries[place - 1])];
                    Value::Array(vec![bulk(&entry_id(place)), Value::Array(fields)])
                });
                Expected { reply: Value::Array(entries.collect()), form: Form::OfOneStream }
            }
            Op::Claim(place, consumer) => {
                self.consumers.insert(consumer);
                self.pending.insert(*place, consumer);
                Expected::array([bulk(&entry_id(*place))])
            }
            Op::Acknowledge(places) => {
                Expected::number(places.iter().filter(|place| self.pending.remove(place).is_some()).count())
            }
            _ => unreachable!("{op:?} is not for queues"),
        }
    }

    /// Without the logical read counter: Redis 7.0 does not send it to replicas, so a failover changes it.
    fn differences(&self, group: &GroupState) -> Vec<String> {
        let mut words = Vec::new();
        let last = if self.delivered == 0 { "0-0".to_owned() } else { entry_id(self.delivered) };
        if group.last_delivered_id != last {
            words.push(format!("last delivered {} instead of {last}", group.last_delivered_id));
        }
        let consumers: BTreeSet<Vec<u8>> =
            self.consumers.iter().map(|consumer| consumer.as_bytes().to_vec()).collect();
        if group.consumers != consumers {
            words.push(format!("consumers {:?} instead of {:?}", group.consumers, self.consumers));
        }
        let pending: BTreeMap<String, Vec<u8>> = self
            .pending
            .iter()
            .map(|(&place, consumer)| (entry_id(place), consumer.as_bytes().to_vec()))
            .collect();
        let found: BTreeMap<String, Vec<u8>> =
            group.pending.iter().map(|(id, entry)| (id.clone(), entry.consumer.clone())).collect();
        if pending != found {
            let ids =
                |pending: &BTreeMap<String, Vec<u8>>| pending.keys().cloned().collect::<Vec<_>>().join(" ");
            words.push(format!("pending {} instead of {}", ids(&found), ids(&pending)));
        }
        words
    }
}

impl Op {
    /// The command, for the keys of a subject of this kind.
    pub(super) fn command(&self, kind: Kind, keys: &[String]) -> Cmd {
        let key = &keys[0];
        let mut command = Cmd::new();
        match self {
            Self::Set(value) => command.arg("SET").arg(key).arg(value),
            Self::SetUntil(value, at_ms) => command.arg("SET").arg(key).arg(value).arg("PXAT").arg(at_ms),
            Self::Append(value) => command.arg("APPEND").arg(key).arg(value),
            Self::Raise(by) => command.arg("INCRBY").arg(key).arg(by),
            Self::PushBack(value) => command.arg("RPUSH").arg(key).arg(value),
            Self::PushFront(value) => command.arg("LPUSH").arg(key).arg(value),
            Self::PopFront => command.arg("LPOP").arg(key),
            Self::AddMember(member) => command.arg("SADD").arg(key).arg(member),
            Self::RemoveMember(member) => command.arg("SREM").arg(key).arg(member),
            Self::Score(member, score) => command.arg("ZADD").arg(key).arg(score).arg(member),
            Self::RaiseScore(member, by) => command.arg("ZINCRBY").arg(key).arg(by).arg(member),
            Self::RemoveScored(member) => command.arg("ZREM").arg(key).arg(member),
            Self::SetField(field, value) => command.arg("HSET").arg(key).arg(field).arg(value),
            Self::RemoveField(field) => command.arg("HDEL").arg(key).arg(field),
            Self::CreateGroup => {
                command.arg("XGROUP").arg("CREATE").arg(key).arg(GROUP).arg("0").arg("MKSTREAM")
            }
            Self::AddEntry(place, value) => {
                command.arg("XADD").arg(key).arg(entry_id(*place)).arg("value").arg(value)
            }
            Self::Take(consumer, count) => command
                .arg("XREADGROUP")
                .arg("GROUP")
                .arg(GROUP)
                .arg(consumer)
                .arg("COUNT")
                .arg(count)
                .arg("STREAMS")
                .arg(key)
                .arg(">"),
            Self::Acknowledge(places) => {
                let ids: Vec<String> = places.iter().map(|&place| entry_id(place)).collect();
                command.arg("XACK").arg(key).arg(GROUP).arg(ids)
            }
            Self::Claim(place, consumer) => command
                .arg("XCLAIM")
                .arg(key)
                .arg(GROUP)
                .arg(consumer)
                .arg(0)
                .arg(entry_id(*place))
                .arg("JUSTID"),
            Self::WriteAll(value) => {
                command.arg("MSET");
                keys.iter().fold(&mut command, |command, key| command.arg(key).arg(value))
            }
            Self::RaiseBoth => command.arg("EVAL").arg(RAISE_BOTH).arg(keys.len()).arg(keys),
            Self::ExpireAt(at_ms) => command.arg("PEXPIREAT").arg(key).arg(at_ms),
            Self::Persist => command.arg("PERSIST").arg(key),
            Self::Delete => command.arg("DEL").arg(keys),
            Self::Unlink => command.arg("UNLINK").arg(keys),
            Self::Read => match kind {
                Kind::Text | Kind::Counter => command.arg("GET").arg(key),
                Kind::List => command.arg("LRANGE").arg(key).arg(0).arg(-1),
                Kind::Set => command.arg("SMEMBERS").arg(key),
                Kind::SortedSet => command.arg("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES"),
                Kind::Hash => command.arg("HGETALL").arg(key),
                Kind::Queue => command.arg("XLEN").arg(key),
                Kind::Tuple | Kind::Twins => command.arg("MGET").arg(keys),
            },
        };
        command
    }
}
