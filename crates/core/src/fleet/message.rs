//! What coordinator and members say to each other, and what a coordinator writes down.

use super::table::Partition;
use super::table::{Change, MemberId, Row};

/// The most changes, rows, partitions or stamps in one message.
pub const ITEMS_MAX: usize = 4_096;

/// A partition that moves. Term, partition and version name it: a later attempt has another version or
/// another term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Move {
    /// The term of the coordinator that wants it.
    pub term: u64,
    /// Which partition.
    pub partition: Partition,
    /// The version of its row that it starts from.
    pub from: u64,
    /// The member that has the data: the owner.
    pub source: MemberId,
    /// The member that gets the data.
    pub destination: MemberId,
    /// Whether the destination becomes the owner, or the data gets another place: then the source stops
    /// serving before it gives its last data.
    pub seals: bool,
    /// To which backend the data goes, if that is another one. Then source and destination are one member:
    /// the owner carries it.
    pub backend: Option<u32>,
}

/// From the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ToMember {
    /// The coordinator's term. A member that knows a later one does not listen.
    pub term: u64,
    /// What is said.
    pub body: Order,
}

/// What the coordinator says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Order {
    /// The answer to [`Report::Join`].
    Welcome {
        /// What the member called itself.
        token: u64,
        /// What it is called from now on.
        member: MemberId,
        /// How many partitions there are.
        partitions: u32,
    },
    /// The answer to [`Report::Renew`].
    Lease {
        /// The member that it is for.
        member: MemberId,
        /// The time of the member's own clock that its question had.
        asked_ms: u64,
        /// How long it may serve, from the time it asked.
        lease_ms: u64,
    },
    /// There is no such member any more: its lease ran out, or it left.
    Gone {
        /// The former member.
        member: MemberId,
    },
    /// To the source: give the data to the destination.
    Prepare {
        /// What moves.
        moving: Move,
        /// What it has not heard yet.
        news: Vec<Change>,
    },
    /// To the destination: this is decided and written down. It answers with [`Report::Took`].
    Commit {
        /// The change.
        change: Change,
        /// What it has not heard yet.
        news: Vec<Change>,
    },
    /// Changes that are decided.
    News {
        /// In the order in which they were decided.
        news: Vec<Change>,
    },
    /// Is this the stamp of your table? Answered only if it is not.
    Ask {
        /// The stamp of the coordinator's table.
        stamp: u64,
    },
    /// Which versions do you have in these segments?
    CompareSegments {
        /// The segments.
        segments: Vec<u32>,
    },
    /// What the member lacks.
    Rows {
        /// Partitions and their rows.
        rows: Vec<(Partition, Row)>,
    },
}

impl ToMember {
    /// The partitions whose rows, or whose serving, it may change at the member that hears it.
    pub fn partitions(&self) -> impl Iterator<Item = Partition> {
        let (news, one, rows): (&[Change], Option<Partition>, &[(Partition, Row)]) = match &self.body {
            Order::Prepare { moving, news } => (news, Some(moving.partition), &[]),
            Order::Commit { change, news } => (news, Some(change.partition), &[]),
            Order::News { news } => (news, None, &[]),
            Order::Rows { rows } => (&[], None, rows),
            _ => (&[], None, &[]),
        };
        news.iter().map(|change| change.partition).chain(one).chain(rows.iter().map(|(at, _)| *at))
    }
}

/// From a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ToCoordinator {
    /// The member that says it; [`MemberId::NOBODY`] until it is welcomed.
    pub member: MemberId,
    /// The latest term that it knows.
    pub term: u64,
    /// What is said.
    pub body: Report,
}

/// What a member says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Report {
    /// It wants to be a member.
    Join {
        /// A name that no other process has. Asked again with the same name, it is the same member.
        token: u64,
        /// How much of the work it takes, in relation to others; 0 takes none.
        weight: u32,
    },
    /// It wants to go on serving.
    Renew {
        /// The time of its own clock.
        asked_ms: u64,
    },
    /// The destination has all data of the move, and if the move seals, this member does not serve the
    /// partition any more.
    Ready {
        /// Which move.
        moving: Move,
    },
    /// The data could not be given to the destination.
    Failed {
        /// Which move.
        moving: Move,
    },
    /// It has taken in a commit.
    Took {
        /// Which partition.
        partition: Partition,
        /// The version that it has.
        version: u64,
    },
    /// Changes of these partitions did not fit: something before them is missing.
    Gap {
        /// The partitions.
        partitions: Vec<Partition>,
    },
    /// Its table has another stamp; these are the stamps of its segments.
    Differs {
        /// From segment 0 on.
        stamps: Vec<u64>,
    },
    /// The versions of one segment.
    Have {
        /// Which segment.
        segment: u32,
        /// The stamp of the segment.
        stamp: u64,
        /// From its first partition on.
        versions: Vec<u64>,
    },
}

/// What a coordinator writes down.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Record {
    /// This is a member, or does other work than before.
    Member(MemberId, Enrolled),
    /// This is no member any more.
    Gone(MemberId),
    /// A row as it is now.
    Row(Partition, Row),
    /// A backend has this part of the data in relation to others; 0 for none.
    Backend(u32, u32),
}

/// A member as it is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Enrolled {
    /// What it called itself.
    pub token: u64,
    /// Its part of the work in relation to others; 0 for none.
    pub weight: u32,
    /// It leaves as soon as it holds nothing.
    pub is_leaving: bool,
}
