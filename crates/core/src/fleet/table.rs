//! The partition table: who holds which partition, in which version, and changes of it.

use std::fmt;

/// A partition, counted from 0.
pub type Partition = u32;

/// How many partitions a fleet has by default: as many as there are hash slots.
pub const PARTITIONS_DEFAULT: u32 = 16_384;

/// The most members that hold a partition: its owner and six others.
pub const HOLDERS_MAX: usize = 7;

/// The most partitions, so that a table stays below 64 MiB.
pub const PARTITIONS_MAX: u32 = 1 << 20;

/// How many partitions a segment has. Tables that differ are narrowed down to segments first.
pub const SEGMENT: u32 = 256;

/// A member of the fleet. A number is given to one process for its life and never again: a process that comes
/// back after its lease gets another. So nothing that is said of a former life can be taken for the present
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MemberId(pub u32);

impl MemberId {
    /// Stands for no member if a number has to be sent.
    pub const NOBODY: MemberId = MemberId(0);
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The members that hold a partition: first its owner, then the others. No member twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Holders {
    count: u8,
    /// From `count` on [`MemberId::NOBODY`].
    members: [MemberId; HOLDERS_MAX],
}

impl Holders {
    /// These members, the owner first. None if they are too many, one is there twice, or one is no member.
    pub fn new(members: &[MemberId]) -> Option<Holders> {
        let mut holders = Holders::default();
        members.iter().all(|member| holders.push(*member)).then_some(holders)
    }

    /// Adds one at the end; false if there is no room, or it is there already.
    pub fn push(&mut self, member: MemberId) -> bool {
        let count = usize::from(self.count);
        if count == HOLDERS_MAX || member == MemberId::NOBODY || self.contains(member) {
            return false;
        }
        self.members[count] = member;
        self.count += 1;
        true
    }

    /// Puts `to` where `from` is. Nothing changes if `from` is not there, or `to` is.
    pub fn replace(&mut self, from: MemberId, to: MemberId) {
        let at = self.as_slice().iter().position(|member| *member == from);
        if let Some(at) = at.filter(|_| !self.contains(to) && to != MemberId::NOBODY) {
            self.members[at] = to;
        }
    }

    /// The holders for which `keep` is true, in the same order.
    pub fn filtered(&self, keep: impl Fn(MemberId) -> bool) -> Holders {
        let mut kept = Holders::default();
        for member in self.as_slice().iter().filter(|member| keep(**member)) {
            kept.push(*member);
        }
        kept
    }

    /// The member that serves the partition.
    pub fn owner(&self) -> Option<MemberId> {
        self.as_slice().first().copied()
    }

    /// All of them, the owner first.
    pub fn as_slice(&self) -> &[MemberId] {
        &self.members[..usize::from(self.count)]
    }

    /// Whether this member is one of them.
    pub fn contains(&self, member: MemberId) -> bool {
        self.as_slice().contains(&member)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether no member holds the partition.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Debug for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice().iter().map(|member| member.0)).finish()
    }
}

/// What the table says of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Row {
    /// Raised by every change, and by every migration that failed.
    pub version: u64,
    /// Which of the storage servers has its data, as a number that the coordinator gives.
    pub backend: u32,
    /// Its holders.
    pub holders: Holders,
}

/// A change of one row: what is different, and between which versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Change {
    /// Which partition.
    pub partition: Partition,
    /// Fits a row of this version only.
    pub from: u64,
    /// Makes it this version; more than `from`.
    pub to: u64,
    /// The new backend, if it is another.
    pub backend: Option<u32>,
    /// How many hold the partition after it.
    pub(super) count: u8,
    /// The new holders by their index, [`MemberId::NOBODY`] if it stays the same.
    pub(super) holders: [MemberId; HOLDERS_MAX],
}

impl Change {
    /// What makes `after` of `before`, one version later. The version of `after` does not matter.
    pub fn between(partition: Partition, before: &Row, after: &Row) -> Change {
        let mut holders = [MemberId::NOBODY; HOLDERS_MAX];
        for (index, member) in after.holders.as_slice().iter().enumerate() {
            if before.holders.as_slice().get(index) != Some(member) {
                holders[index] = *member;
            }
        }
        Change {
            partition,
            from: before.version,
            to: before.version + 1,
            backend: Some(after.backend).filter(|backend| *backend != before.backend),
            count: after.holders.count,
            holders,
        }
    }

    /// A later version of the same row: nothing that was begun before it fits any more.
    pub fn raise(partition: Partition, before: &Row) -> Change {
        Change::between(partition, before, before)
    }

    /// What it makes of a row, if it fits and what comes out is a row.
    fn applied_to(&self, row: &Row) -> Option<Row> {
        if row.version != self.from || self.to <= self.from {
            return None;
        }
        let mut holders = Holders::default();
        for (index, edit) in self.holders.iter().take(usize::from(self.count)).enumerate() {
            let member = match *edit {
                MemberId::NOBODY => *row.holders.as_slice().get(index)?,
                member => member,
            };
            if !holders.push(member) {
                return None;
            }
        }
        Some(Row { version: self.to, backend: self.backend.unwrap_or(row.backend), holders })
    }
}

/// What became of a change at a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// The row is as the change says now.
    Changed,
    /// The row was as late as the change, or later.
    Known,
    /// Something is missing between the row and the change, or the change is of another row. Nothing was
    /// done.
    Gap,
}

/// Which member holds what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Table {
    rows: Vec<Row>,
    /// The stamp of each segment. Invariant: all stamps of its rows, xored.
    segments: Vec<u64>,
    /// All stamps of segments, xored.
    stamp: u64,
}

impl Table {
    /// A table in which no member holds anything, of at least one partition and at most [`PARTITIONS_MAX`].
    pub fn new(partitions: u32) -> Table {
        let count = partitions.clamp(1, PARTITIONS_MAX);
        let rows = vec![Row::default(); count as usize];
        let mut table = Table { rows, segments: vec![0; count.div_ceil(SEGMENT) as usize], stamp: 0 };
        for partition in 0..count {
            table.restamp(partition, row_stamp(partition, &Row::default()));
        }
        table
    }

    /// How many partitions it has.
    pub fn partitions(&self) -> u32 {
        // At most `PARTITIONS_MAX` were made.
        self.rows.len() as u32
    }

    /// One row, if there is such a partition.
    pub fn row(&self, partition: Partition) -> Option<&Row> {
        self.rows.get(partition as usize)
    }

    /// All rows, from partition 0 on.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Equal for equal tables. It is made from all versions, and costs nothing to have: each change updates
    /// it.
    ///
    /// Within one history a version of a row is made once, since there is one writer, which gives no version
    /// a second meaning after a crash: it writes a change down before any member hears of it. So equal
    /// versions would be equal owners. The stamp takes the holders and the backend in as well, so that it
    /// does not rest on that: owners that differ at equal versions, by whatever mistake, show as different
    /// stamps. Of two different tables, one in 2^64 pairs looks equal.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// The same of each [`SEGMENT`] of partitions.
    pub fn segments(&self) -> &[u64] {
        &self.segments
    }

    /// The rows of one segment with their partitions; nothing if there is no such segment.
    pub fn segment(&self, segment: u32) -> impl Iterator<Item = (Partition, &Row)> {
        let first = segment.saturating_mul(SEGMENT);
        (first..first.saturating_add(SEGMENT).min(self.partitions()))
            .filter_map(|partition| Some((partition, self.row(partition)?)))
    }

    /// Takes a change in, if it fits.
    pub fn apply(&mut self, change: &Change) -> Applied {
        let Some(row) = self.row(change.partition).copied() else { return Applied::Gap };
        if row.version >= change.to {
            return Applied::Known;
        }
        // A change that does not make a row out of this one is not of this row: the same as a gap, and healed
        // like it.
        let Some(after) = change.applied_to(&row) else { return Applied::Gap };
        self.put(change.partition, after);
        Applied::Changed
    }

    /// Takes a whole row in, if it is as late as the present one or later. Of the same version it is a
    /// repair.
    pub fn take_row(&mut self, partition: Partition, row: Row) -> Applied {
        match self.row(partition) {
            None => Applied::Gap,
            Some(known) if known.version > row.version || *known == row => Applied::Known,
            Some(_) => {
                self.put(partition, row);
                Applied::Changed
            }
        }
    }

    fn put(&mut self, partition: Partition, row: Row) {
        let before = self.rows[partition as usize];
        self.restamp(partition, row_stamp(partition, &before) ^ row_stamp(partition, &row));
        self.rows[partition as usize] = row;
    }

    fn restamp(&mut self, partition: Partition, difference: u64) {
        self.segments[(partition / SEGMENT) as usize] ^= difference;
        self.stamp ^= difference;
    }
}

/// One word for one row and its place.
fn row_stamp(partition: Partition, row: &Row) -> u64 {
    let mut stamp = mixed(u64::from(partition) + 1);
    stamp = mixed(stamp ^ row.version);
    stamp = mixed(stamp ^ (u64::from(row.backend) << 8 | u64::from(row.holders.count)));
    for member in row.holders.as_slice() {
        stamp = mixed(stamp ^ u64::from(member.0));
    }
    stamp
}

/// The finalizer of SplitMix64: each bit of the input changes half of the output's.
fn mixed(word: u64) -> u64 {
    let mut word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
