//! Hash slots: which slot a key belongs to, and sets of slots.
//!
//! A cluster divides its keyspace into [`Slot::COUNT`] slots. The slot of a key is CRC-16/XMODEM of the key,
//! or of its hash tag, modulo that count. Servers outside a cluster have no slots of their own, but the
//! function is the same, so a selection by slot works on every deployment.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use crc::{CRC_16_XMODEM, Crc, Table};

/// Slicing-by-16 tables: the fastest implementation the library has; 8 KiB, built at compile time.
static CRC16: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_XMODEM);

/// The number of a hash slot, always below [`Slot::COUNT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// How many slots a cluster has.
    pub const COUNT: u16 = 16_384;

    /// The lowest slot.
    pub const MIN: Slot = Slot(0);

    /// The highest slot.
    pub const MAX: Slot = Slot(Slot::COUNT - 1);

    /// The slot with this number, or `None` if the number is not below [`Slot::COUNT`].
    pub const fn new(number: u16) -> Option<Slot> {
        if number < Slot::COUNT { Some(Slot(number)) } else { None }
    }

    /// The slot that `key` belongs to: of its [hash tag](hash_tag) if it has one, of all its bytes otherwise.
    pub fn of_key(key: &[u8]) -> Slot {
        let hashed = hash_tag(key).unwrap_or(key);
        // The count is a power of two, so the remainder is a mask and always in range.
        Slot(CRC16.checksum(hashed) & (Slot::COUNT - 1))
    }

    /// The number of this slot, `0..Slot::COUNT`.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// All slots in ascending order.
    pub fn all() -> impl DoubleEndedIterator<Item = Slot> + ExactSizeIterator {
        (0..Slot::COUNT).map(Slot)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Slot {
    type Err = SlotParseError;

    /// Parses a slot number; blanks around it are ignored.
    fn from_str(text: &str) -> Result<Slot, SlotParseError> {
        let text = text.trim();
        // Only digits: the standard parser would also take a plus sign.
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(SlotParseError::NotANumber { item: text.to_owned() });
        }
        // All digits, so the only way to fail is a number that is too large.
        text.parse()
            .ok()
            .and_then(Slot::new)
            .ok_or_else(|| SlotParseError::OutOfRange { item: text.to_owned() })
    }
}

/// The hash tag of a key: the bytes between its first `{` and the first `}` after it.
///
/// `None` if there is no such pair or nothing in between; then the whole key is hashed. After an empty tag
/// no later pair counts: `{}{a}` has no tag.
pub fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&byte| byte == b'{')?;
    let rest = &key[open + 1..];
    let length = rest.iter().position(|&byte| byte == b'}')?;
    (length > 0).then(|| &rest[..length])
}

/// A hash tag, at most 4 lower-case letters and digits, whose slot is exactly `slot`.
///
/// `{tag}…` then is a key name in that slot. The same slot always gives the same tag. The first call builds
/// a table of all slots.
pub fn tag_for_slot(slot: Slot) -> String {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    TAGS.get_or_init(build_tags)[usize::from(slot.number())].clone()
}

/// Counts in base 36, shortest first, until each slot has a tag.
fn build_tags() -> Vec<String> {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut tags = vec![String::new(); usize::from(Slot::COUNT)];
    let mut missing = tags.len();
    for length in 1..=4u32 {
        for number in 0..36usize.pow(length) {
            let tag: String =
                (0..length).rev().map(|place| char::from(DIGITS[number / 36usize.pow(place) % 36])).collect();
            let entry = &mut tags[usize::from(Slot::of_key(tag.as_bytes()).number())];
            if entry.is_empty() {
                *entry = tag;
                missing -= 1;
                if missing == 0 {
                    return tags;
                }
            }
        }
    }
    unreachable!("36^4 tags reach every slot: tested for all of them")
}

/// Slots from `start` to `end`, both included, `start` not above `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotRange {
    start: Slot,
    end: Slot,
}

impl SlotRange {
    /// All slots.
    pub const FULL: SlotRange = SlotRange { start: Slot::MIN, end: Slot::MAX };

    /// The range from `start` to `end`, both included, or `None` if `start` is above `end`.
    pub fn new(start: Slot, end: Slot) -> Option<SlotRange> {
        (start <= end).then_some(SlotRange { start, end })
    }

    /// The first slot of the range.
    pub const fn start(self) -> Slot {
        self.start
    }

    /// The last slot of the range; it belongs to it.
    pub const fn end(self) -> Slot {
        self.end
    }

    /// How many slots there are in the range; never 0.
    pub const fn count(self) -> usize {
        (self.end.0 - self.start.0) as usize + 1
    }

    /// Whether `slot` is in the range.
    pub fn contains(self, slot: Slot) -> bool {
        self.start <= slot && slot <= self.end
    }

    /// The slots of the range in ascending order.
    pub fn slots(self) -> impl DoubleEndedIterator<Item = Slot> {
        (self.start.0..=self.end.0).map(Slot)
    }
}

impl From<Slot> for SlotRange {
    fn from(slot: Slot) -> SlotRange {
        SlotRange { start: slot, end: slot }
    }
}

impl fmt::Display for SlotRange {
    /// `7` for a single slot, `0-1023` otherwise.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.start == self.end {
            write!(f, "{}", self.start)
        } else {
            write!(f, "{}-{}", self.start, self.end)
        }
    }
}

impl FromStr for SlotRange {
    type Err = SlotParseError;

    /// Parses `7` or `0-1023`; blanks around the numbers are ignored.
    fn from_str(text: &str) -> Result<SlotRange, SlotParseError> {
        match text.split_once('-') {
            None => text.parse::<Slot>().map(SlotRange::from),
            Some((start, end)) => SlotRange::new(start.parse()?, end.parse()?)
                .ok_or_else(|| SlotParseError::Reversed { item: text.trim().to_owned() }),
        }
    }
}

const WORD_BITS: usize = u64::BITS as usize;
const WORDS: usize = Slot::COUNT as usize / WORD_BITS;

/// A set of slots: a bitmap of 2 KiB.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SlotSet {
    words: Box<[u64; WORDS]>,
}

impl SlotSet {
    /// The empty set.
    pub fn new() -> SlotSet {
        SlotSet { words: Box::new([0; WORDS]) }
    }

    /// The set of all slots.
    pub fn full() -> SlotSet {
        SlotSet { words: Box::new([u64::MAX; WORDS]) }
    }

    /// The set of all slots in any of `ranges`, which may overlap and come in any order.
    pub fn from_ranges(ranges: impl IntoIterator<Item = SlotRange>) -> SlotSet {
        ranges.into_iter().flat_map(SlotRange::slots).collect()
    }

    /// Adds `slot`; `true` if it was not in the set before.
    pub fn insert(&mut self, slot: Slot) -> bool {
        let (word, bit) = SlotSet::place(slot);
        let absent = self.words[word] & bit == 0;
        self.words[word] |= bit;
        absent
    }

    /// Takes `slot` out; `true` if it was in the set before.
    pub fn remove(&mut self, slot: Slot) -> bool {
        let (word, bit) = SlotSet::place(slot);
        let present = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        present
    }

    /// Whether `slot` is in the set.
    pub fn contains(&self, slot: Slot) -> bool {
        let (word, bit) = SlotSet::place(slot);
        self.words[word] & bit != 0
    }

    /// How many slots are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no slot is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Whether every slot is in the set.
    pub fn is_full(&self) -> bool {
        self.words.iter().all(|&word| word == u64::MAX)
    }

    /// The slots of the set in ascending order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { words: &self.words, next_word: 0, rest: 0 }
    }

    /// The slots that are in this set, in `other`, or in both.
    pub fn union(&self, other: &SlotSet) -> SlotSet {
        self.combined(other, |ours, theirs| ours | theirs)
    }

    /// The slots that are in both sets.
    pub fn intersection(&self, other: &SlotSet) -> SlotSet {
        self.combined(other, |ours, theirs| ours & theirs)
    }

    /// The slots that are in this set but not in `other`.
    pub fn difference(&self, other: &SlotSet) -> SlotSet {
        self.combined(other, |ours, theirs| ours & !theirs)
    }

    /// The set as the fewest possible ranges, in ascending order.
    pub fn ranges(&self) -> Vec<SlotRange> {
        let mut ranges: Vec<SlotRange> = Vec::new();
        for slot in self.iter() {
            match ranges.last_mut() {
                Some(last) if last.end.0 + 1 == slot.0 => last.end = slot,
                _ => ranges.push(SlotRange::from(slot)),
            }
        }
        ranges
    }

    fn combined(&self, other: &SlotSet, combine: impl Fn(u64, u64) -> u64) -> SlotSet {
        let words = std::array::from_fn(|index| combine(self.words[index], other.words[index]));
        SlotSet { words: Box::new(words) }
    }

    /// The index of the word that holds `slot`, and its bit in there.
    fn place(slot: Slot) -> (usize, u64) {
        let number = usize::from(slot.0);
        (number / WORD_BITS, 1 << (number % WORD_BITS))
    }
}

impl Default for SlotSet {
    fn default() -> SlotSet {
        SlotSet::new()
    }
}

impl FromIterator<Slot> for SlotSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> SlotSet {
        let mut set = SlotSet::new();
        set.extend(slots);
        set
    }
}

impl Extend<Slot> for SlotSet {
    fn extend<I: IntoIterator<Item = Slot>>(&mut self, slots: I) {
        for slot in slots {
            self.insert(slot);
        }
    }
}

impl<'a> IntoIterator for &'a SlotSet {
    type Item = Slot;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl fmt::Display for SlotSet {
    /// The ranges, separated by commas: `0-1023,5000`. Nothing for the empty set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges().into_iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{range}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotSet({self})")
    }
}

impl FromStr for SlotSet {
    type Err = SlotParseError;

    /// Parses slots and ranges separated by commas: `0-1023,5000`. Blanks are ignored, overlaps are fine. The
    /// empty text is an error, since a user who selects slots means to have some.
    fn from_str(text: &str) -> Result<SlotSet, SlotParseError> {
        if text.trim().is_empty() {
            return Err(SlotParseError::Empty);
        }
        let ranges = text.split(',').map(str::parse).collect::<Result<Vec<SlotRange>, _>>()?;
        Ok(SlotSet::from_ranges(ranges))
    }
}

/// The slots of a [`SlotSet`] in ascending order; made by [`SlotSet::iter`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    words: &'a [u64; WORDS],
    /// The index of the word to read when `rest` is used up.
    next_word: usize,
    /// The bits not yet given of the word before `next_word`.
    rest: u64,
}

impl Iterator for Iter<'_> {
    type Item = Slot;

    fn next(&mut self) -> Option<Slot> {
        while self.rest == 0 {
            self.rest = *self.words.get(self.next_word)?;
            self.next_word += 1;
        }
        let bit = self.rest.trailing_zeros() as usize;
        self.rest &= self.rest - 1;
        let number = (self.next_word - 1) * WORD_BITS + bit;
        Some(Slot(u16::try_from(number).expect("the bitmap has as many bits as there are slots")))
    }
}

/// Why a text is not a slot, a range of slots or a set of slots.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotParseError {
    /// There is nothing in the text.
    #[error("no slots given: expected slots and ranges such as 0-1023,5000")]
    Empty,
    /// A part of the text should be a slot number and is not.
    #[error("\"{item}\" is not a slot number: expected slots and ranges such as 0-1023,5000")]
    NotANumber {
        /// The part of the text.
        item: String,
    },
    /// A number is too large for a slot.
    #[error("slot {item} is out of range: slots go from 0 to 16383")]
    OutOfRange {
        /// The number as it was given.
        item: String,
    },
    /// A range starts above its end.
    #[error("the slot range {item} is reversed: the lower slot comes first, as in 0-1023")]
    Reversed {
        /// The range as it was given.
        item: String,
    },
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn slot(number: u16) -> Slot {
        Slot::new(number).expect("tests use valid slots")
    }

    fn range(start: u16, end: u16) -> SlotRange {
        SlotRange::new(slot(start), slot(end)).expect("tests use ascending ranges")
    }

    /// CRC-16/XMODEM by its definition, one bit at a time.
    fn crc16_bitwise(bytes: &[u8]) -> u16 {
        bytes.iter().fold(0, |crc, &byte| {
            (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            })
        })
    }

    #[test]
    fn slots_have_bounds() {
        assert_eq!(Slot::new(0), Some(Slot::MIN));
        assert_eq!(Slot::new(16_383), Some(Slot::MAX));
        assert_eq!(Slot::new(16_384), None);
        assert_eq!(Slot::new(u16::MAX), None);
        assert_eq!(Slot::all().len(), 16_384);
        assert_eq!(Slot::all().next_back(), Some(Slot::MAX));
    }

    #[test]
    fn slots_of_known_keys() {
        // The check value of the cluster specification, and answers of CLUSTER KEYSLOT.
        assert_eq!(Slot::of_key(b"123456789").number(), 0x31c3);
        assert_eq!(Slot::of_key(b"foo").number(), 12_182);
        assert_eq!(Slot::of_key(b"bar").number(), 5_061);
        assert_eq!(Slot::of_key(b"").number(), 0);
        assert_eq!(Slot::of_key(b"{foo}.anything"), Slot::of_key(b"foo"));
        assert_eq!(Slot::of_key(b"user:{foo}:{bar}"), Slot::of_key(b"foo"));
    }

    #[test]
    fn hash_tags() {
        let cases: [(&[u8], Option<&[u8]>); 12] = [
            (b"", None),
            (b"plain", None),
            (b"{a}", Some(b"a")),
            (b"x{a}y", Some(b"a")),
            (b"{a}{b}", Some(b"a")),
            (b"{}", None),
            (b"{}{a}", None),
            (b"foo{{bar}}zap", Some(b"{bar")),
            (b"}{a}", Some(b"a")),
            (b"{a", None),
            (b"a}", None),
            (b"\xff{\x00}\xfe", Some(b"\x00")),
        ];
        for (key, tag) in cases {
            assert_eq!(hash_tag(key), tag, "{:?}", key.escape_ascii().to_string());
        }
        assert_eq!(Slot::of_key(b"{}{a}").number(), crc16_bitwise(b"{}{a}") % Slot::COUNT);
    }

    #[test]
    fn each_slot_has_a_tag() {
        let mut seen = BTreeSet::new();
        for slot in Slot::all() {
            let tag = tag_for_slot(slot);
            assert!((1..=4).contains(&tag.len()), "{tag}");
            assert!(tag.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{tag}");
            assert_eq!(Slot::of_key(tag.as_bytes()), slot);
            assert_eq!(Slot::of_key(format!("{{{tag}}}:rest").as_bytes()), slot);
            seen.insert(tag);
        }
        assert_eq!(seen.len(), usize::from(Slot::COUNT));
    }

    #[test]
    fn ranges_are_inclusive() {
        assert_eq!(range(3, 3).count(), 1);
        assert_eq!(range(3, 5).slots().map(Slot::number).collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!(SlotRange::FULL.count(), 16_384);
        assert!(range(3, 5).contains(slot(5)) && !range(3, 5).contains(slot(6)));
        assert_eq!(SlotRange::new(slot(5), slot(3)), None);
    }

    #[test]
    fn sets_print_as_ranges() {
        let set = SlotSet::from_ranges([range(5_000, 5_000), range(0, 1_000), range(900, 1_023)]);
        assert_eq!(set.to_string(), "0-1023,5000");
        assert_eq!(set.ranges(), [range(0, 1_023), range(5_000, 5_000)]);
        assert_eq!(set.len(), 1_025);
        assert_eq!(SlotSet::new().to_string(), "");
        assert_eq!(SlotSet::full().to_string(), "0-16383");
        assert_eq!(format!("{set:?}"), "SlotSet(0-1023,5000)");
        assert!(SlotSet::full().is_full() && !set.is_full() && !set.is_empty() && SlotSet::new().is_empty());
    }

    #[test]
    fn sets_parse_leniently_in_form_and_strictly_in_value() {
        let parsed: SlotSet = " 5000 , 0 - 1023,10-20 ".parse().expect("valid");
        assert_eq!(parsed.to_string(), "0-1023,5000");
        let failures = [
            ("", "no slots given"),
            ("  ", "no slots given"),
            ("1,,2", "\"\" is not a slot number"),
            ("a", "\"a\" is not a slot number"),
            ("+1", "\"+1\" is not a slot number"),
            ("-5", "\"\" is not a slot number"),
            ("1-2-3", "\"2-3\" is not a slot number"),
            ("16384", "slot 16384 is out of range"),
            ("0-99999999999", "slot 99999999999 is out of range"),
            ("5,20-10", "the slot range 20-10 is reversed"),
        ];
        for (text, start) in failures {
            let message = text.parse::<SlotSet>().expect_err(text).to_string();
            assert!(message.starts_with(start), "{text:?} gave {message:?}");
        }
    }

    proptest! {
        #[test]
        fn slot_of_key_is_the_bitwise_checksum(key in proptest::collection::vec(any::<u8>(), 0..80)) {
            let hashed = hash_tag(&key).unwrap_or(&key);
            prop_assert_eq!(Slot::of_key(&key).number(), crc16_bitwise(hashed) % Slot::COUNT);
        }

        #[test]
        fn hash_tag_is_between_the_first_braces(key in "[ab{}]{0,8}") {
            let expected = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
            let expected = expected.filter(|tag| !tag.is_empty());
            prop_assert_eq!(hash_tag(key.as_bytes()), expected.map(str::as_bytes));
        }

        #[test]
        fn sets_behave_as_sets(
            ours in proptest::collection::btree_set(0..Slot::COUNT, 0..200),
            theirs in proptest::collection::btree_set(0..Slot::COUNT, 0..200),
            removed in 0..Slot::COUNT,
        ) {
            let build = |numbers: &BTreeSet<u16>| numbers.iter().copied().map(slot).collect::<SlotSet>();
            let numbers = |set: &SlotSet| set.iter().map(Slot::number).collect::<BTreeSet<_>>();
            let (a, b) = (build(&ours), build(&theirs));
            prop_assert_eq!(a.len(), ours.len());
            prop_assert_eq!(numbers(&a), ours.clone());
            prop_assert_eq!(numbers(&a.union(&b)), &ours | &theirs);
            prop_assert_eq!(numbers(&a.intersection(&b)), &ours & &theirs);
            prop_assert_eq!(numbers(&a.difference(&b)), &ours - &theirs);
            let mut changed = a.clone();
            prop_assert_eq!(changed.remove(slot(removed)), ours.contains(&removed));
            prop_assert!(!changed.contains(slot(removed)));
            prop_assert!(changed.insert(slot(removed)));
            prop_assert!(!changed.insert(slot(removed)));
            prop_assert!(changed.contains(slot(removed)));
        }

        #[test]
        fn ranges_and_text_lead_back_to_the_set(
            pairs in proptest::collection::vec((0..Slot::COUNT, 0u16..40), 1..60),
        ) {
            let set = SlotSet::from_ranges(
                pairs.into_iter().map(|(start, extra)| range(start, (start + extra).min(Slot::COUNT - 1))),
            );
            let ranges = set.ranges();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end().number() + 1 < pair[1].start().number()));
            prop_assert_eq!(ranges.iter().map(|range| range.count()).sum::<usize>(), set.len());
            prop_assert_eq!(&SlotSet::from_ranges(ranges), &set);
            prop_assert_eq!(set.to_string().parse::<SlotSet>(), Ok(set));
        }
    }
}
