//! Messages and records as bytes: numbers in groups of seven bits, so that a change takes about ten bytes.
//!
//! What is read may come from any process, so every count is bounded before anything is made for it, and a
//! message has to end where its bytes end.

use thiserror::Error;

use super::message::{Enrolled, ITEMS_MAX, Move, Order, Record, Report, ToCoordinator, ToMember};
use super::table::Partition;
use super::table::{Change, HOLDERS_MAX, Holders, MemberId, PARTITIONS_MAX, Row, SEGMENT};

/// No message and no record is longer, in bytes: a full message of rows with the largest numbers.
pub const MESSAGE_BYTES_MAX: usize = ITEMS_MAX * 64 + 256;

/// Bytes that are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("these bytes are no message of the fleet: {0}")]
pub struct Malformed(&'static str);

type Read<T> = Result<T, Malformed>;

impl ToMember {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer(out);
        out.number(self.term);
        match &self.body {
            Order::Welcome { token, member, partitions } => {
                out.numbers(&[0, *token, member.0.into(), (*partitions).into()]);
            }
            Order::Lease { member, asked_ms, lease_ms } => {
                out.numbers(&[1, member.0.into(), *asked_ms, *lease_ms]);
            }
            Order::Gone { member } => out.numbers(&[2, member.0.into()]),
            Order::Prepare { moving, news } => {
                out.number(3);
                out.moving(moving);
                out.list(news, Writer::change);
            }
            Order::Commit { change, news } => {
                out.number(4);
                out.change(change);
                out.list(news, Writer::change);
            }
            Order::News { news } => {
                out.number(5);
                out.list(news, Writer::change);
            }
            Order::Ask { stamp } => {
                out.number(6);
                out.word(*stamp);
            }
            Order::CompareSegments { segments } => {
                out.number(7);
                out.list(segments, |out, segment| out.number((*segment).into()));
            }
            Order::Rows { rows } => {
                out.number(8);
                out.list(rows, |out, (partition, row)| {
                    out.number((*partition).into());
                    out.row(row);
                });
            }
        }
    }

    /// Reads one message that takes all of the bytes.
    ///
    /// # Errors
    /// [`Malformed`] if they are anything else.
    pub fn decode(bytes: &[u8]) -> Result<ToMember, Malformed> {
        let mut from = Reader(bytes);
        let term = from.number()?;
        let body = match from.number()? {
            0 => Order::Welcome { token: from.number()?, member: from.member()?, partitions: from.small()? },
            1 => Order::Lease { member: from.member()?, asked_ms: from.number()?, lease_ms: from.number()? },
            2 => Order::Gone { member: from.member()? },
            3 => Order::Prepare { moving: from.moving()?, news: from.list(Reader::change)? },
            4 => Order::Commit { change: from.change()?, news: from.list(Reader::change)? },
            5 => Order::News { news: from.list(Reader::change)? },
            6 => Order::Ask { stamp: from.word()? },
            7 => Order::CompareSegments { segments: from.list(Reader::small)? },
            8 => Order::Rows { rows: from.list(|from| Ok((from.partition()?, from.row()?)))? },
            _ => return Err(Malformed("an unknown kind of message")),
        };
        from.ended(ToMember { term, body })
    }
}

impl ToCoordinator {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer(out);
        out.numbers(&[self.member.0.into(), self.term]);
        match &self.body {
            Report::Join { token, weight } => out.numbers(&[0, *token, (*weight).into()]),
            Report::Renew { asked_ms } => out.numbers(&[1, *asked_ms]),
            Report::Ready { moving } => {
                out.number(2);
                out.moving(moving);
            }
            Report::Failed { moving } => {
                out.number(3);
                out.moving(moving);
            }
            Report::Took { partition, version } => out.numbers(&[4, (*partition).into(), *version]),
            Report::Gap { partitions } => {
                out.number(5);
                out.list(partitions, |out, partition| out.number((*partition).into()));
            }
            Report::Differs { stamps } => {
                out.number(6);
                out.list(stamps, |out, stamp| out.word(*stamp));
            }
            Report::Have { segment, stamp, versions } => {
                out.numbers(&[7, (*segment).into()]);
                out.word(*stamp);
                out.list(versions, |out, version| out.number(*version));
            }
        }
    }

    /// Reads one message that takes all of the bytes.
    ///
    /// # Errors
    /// [`Malformed`] if they are anything else.
    pub fn decode(bytes: &[u8]) -> Result<ToCoordinator, Malformed> {
        let mut from = Reader(bytes);
        let (member, term) = (from.member()?, from.number()?);
        let body = match from.number()? {
            0 => Report::Join { token: from.number()?, weight: from.small()? },
            1 => Report::Renew { asked_ms: from.number()? },
            2 => Report::Ready { moving: from.moving()? },
            3 => Report::Failed { moving: from.moving()? },
            4 => Report::Took { partition: from.partition()?, version: from.number()? },
            5 => Report::Gap { partitions: from.list(Reader::partition)? },
            6 => Report::Differs { stamps: from.list(Reader::word)? },
            7 => {
                let (segment, stamp) = (from.small()?, from.word()?);
                let versions = from.list(Reader::number)?;
                if versions.len() > SEGMENT as usize {
                    return Err(Malformed("more versions than a segment has partitions"));
                }
                Report::Have { segment, stamp, versions }
            }
            _ => return Err(Malformed("an unknown kind of message")),
        };
        from.ended(ToCoordinator { member, term, body })
    }
}

impl Record {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer(out);
        match self {
            Record::Member(member, of) => {
                let leaving = u64::from(of.is_leaving);
                out.numbers(&[0, member.0.into(), of.token, of.weight.into(), leaving]);
            }
            Record::Gone(member) => out.numbers(&[1, member.0.into()]),
            Record::Row(partition, row) => {
                out.numbers(&[2, (*partition).into()]);
                out.row(row);
            }
            Record::Backend(backend, weight) => out.numbers(&[3, (*backend).into(), (*weight).into()]),
        }
    }

    /// Reads one record that takes all of the bytes.
    ///
    /// # Errors
    /// [`Malformed`] if they are anything else.
    pub fn decode(bytes: &[u8]) -> Result<Record, Malformed> {
        let mut from = Reader(bytes);
        let record = match from.number()? {
            0 => {
                let member = from.member()?;
                let (token, weight, is_leaving) = (from.number()?, from.small()?, from.flag()?);
                Record::Member(member, Enrolled { token, weight, is_leaving })
            }
            1 => Record::Gone(from.member()?),
            2 => Record::Row(from.partition()?, from.row()?),
            3 => Record::Backend(from.small()?, from.small()?),
            _ => return Err(Malformed("an unknown kind of record")),
        };
        from.ended(record)
    }
}

impl Move {
    /// Appends the move, for members that give each other data.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer(out).moving(self);
    }

    /// Reads one move from the beginning of the bytes, and returns what follows it.
    ///
    /// # Errors
    /// [`Malformed`] if there is none.
    pub fn decode(bytes: &[u8]) -> Result<(Move, &[u8]), Malformed> {
        let mut from = Reader(bytes);
        let moving = from.moving()?;
        Ok((moving, from.0))
    }
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            // The low seven bits, and that more follow.
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn numbers(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.number(*number));
    }

    fn word(&mut self, word: u64) {
        self.0.extend_from_slice(&word.to_le_bytes());
    }

    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        debug_assert!(items.len() <= ITEMS_MAX, "the other side would refuse it");
        self.number(items.len() as u64);
        items.iter().for_each(|item| each(self, item));
    }

    fn moving(&mut self, moving: &Move) {
        let Move { term, partition, from, source, destination, seals, backend } = *moving;
        self.numbers(&[term, partition.into(), from, source.0.into(), destination.0.into()]);
        self.0.push(u8::from(seals) | u8::from(backend.is_some()) << 1);
        backend.into_iter().for_each(|backend| self.number(backend.into()));
    }

    fn change(&mut self, change: &Change) {
        self.numbers(&[change.partition.into(), change.from, change.to - change.from]);
        self.0.push(change.count | u8::from(change.backend.is_some()) << 3);
        change.backend.into_iter().for_each(|backend| self.number(backend.into()));
        let edited = |index: &usize| change.holders[*index] != MemberId::NOBODY;
        self.0.push((0..HOLDERS_MAX).filter(edited).fold(0, |mask, index| mask | 1 << index));
        (0..HOLDERS_MAX).filter(edited).for_each(|index| self.number(change.holders[index].0.into()));
    }

    fn row(&mut self, row: &Row) {
        self.numbers(&[row.version, row.backend.into(), row.holders.len() as u64]);
        row.holders.as_slice().iter().for_each(|member| self.number(member.0.into()));
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Read<u8> {
        let (byte, rest) = self.0.split_first().ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(*byte)
    }

    fn number(&mut self) -> Read<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(Malformed("a number is too large"));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed("a number is too long"))
    }

    fn small(&mut self) -> Read<u32> {
        u32::try_from(self.number()?).map_err(|_| Malformed("a number is too large"))
    }

    fn flag(&mut self) -> Read<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("neither yes nor no")),
        }
    }

    fn word(&mut self) -> Read<u64> {
        let (word, rest) = self.0.split_first_chunk().ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn member(&mut self) -> Read<MemberId> {
        self.small().map(MemberId)
    }

    fn partition(&mut self) -> Read<Partition> {
        let partition = self.small()?;
        if partition < PARTITIONS_MAX { Ok(partition) } else { Err(Malformed("there is no such partition")) }
    }

    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        // Each item takes at least one byte.
        if count > ITEMS_MAX || count > self.0.len() {
            return Err(Malformed("a list is too long"));
        }
        (0..count).map(|_| each(self)).collect()
    }

    fn moving(&mut self) -> Read<Move> {
        let (term, partition, from) = (self.number()?, self.partition()?, self.number()?);
        let (source, destination, flags) = (self.member()?, self.member()?, self.byte()?);
        if flags > 3 {
            return Err(Malformed("a move of an unknown kind"));
        }
        let backend = if flags & 2 != 0 { Some(self.small()?) } else { None };
        Ok(Move { term, partition, from, source, destination, seals: flags & 1 != 0, backend })
    }

    fn change(&mut self) -> Read<Change> {
        let (partition, from, by) = (self.partition()?, self.number()?, self.number()?);
        let to =
            from.checked_add(by).filter(|_| by > 0).ok_or(Malformed("a change without a later version"))?;
        let flags = self.byte()?;
        let count = flags & 0x7;
        if flags > 0xf {
            return Err(Malformed("unknown flags of a change"));
        }
        let backend = (flags & 0x8 != 0).then(|| self.small()).transpose()?;
        let mask = self.byte()?;
        if u32::from(mask) >= 1 << count {
            return Err(Malformed("a holder beyond the last one"));
        }
        let mut holders = [MemberId::NOBODY; HOLDERS_MAX];
        for (_, holder) in holders.iter_mut().enumerate().filter(|(index, _)| mask & 1 << index != 0) {
            *holder = self.member()?;
            if *holder == MemberId::NOBODY {
                return Err(Malformed("a holder that is nobody"));
            }
        }
        Ok(Change { partition, from, to, backend, count, holders })
    }

    fn row(&mut self) -> Read<Row> {
        let (version, backend, count) = (self.number()?, self.small()?, self.number()?);
        let mut holders = Holders::default();
        for _ in 0..count {
            let member = self.member()?;
            if !holders.push(member) {
                return Err(Malformed("holders that are too many, nobody, or there twice"));
            }
        }
        Ok(Row { version, backend, holders })
    }

    fn ended<T>(self, value: T) -> Read<T> {
        if self.0.is_empty() { Ok(value) } else { Err(Malformed("something follows it")) }
    }
}
