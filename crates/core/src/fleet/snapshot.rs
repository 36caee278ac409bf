//! What survives a coordinator.

use std::collections::BTreeMap;

use super::message::{Enrolled, Record};
use super::table::{MemberId, Table};

/// Everything that was written down, in its last state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// The term of the last coordinator; 0 if there was none. Each one raises it before it reads the rest.
    pub term: u64,
    /// The number of the next member: higher than all that were ever given.
    pub next_member: u32,
    /// The members.
    pub members: BTreeMap<MemberId, Enrolled>,
    /// The table.
    pub table: Table,
    /// The parts of the data that backends have in relation to each other, if they were given one.
    pub backends: BTreeMap<u32, u32>,
}

impl Snapshot {
    /// A fleet that has not begun.
    pub fn new(partitions: u32) -> Snapshot {
        let (members, backends) = (BTreeMap::new(), BTreeMap::new());
        Snapshot { term: 0, next_member: 1, members, table: Table::new(partitions), backends }
    }

    /// Takes a record in. Rows that do not belong to the table are left out.
    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::Member(member, enrolled) => {
                self.next_member = self.next_member.max(member.0.saturating_add(1));
                self.members.insert(*member, *enrolled);
            }
            Record::Gone(member) => {
                self.next_member = self.next_member.max(member.0.saturating_add(1));
                self.members.remove(member);
            }
            Record::Row(partition, row) => {
                self.table.take_row(*partition, *row);
            }
            Record::Backend(backend, weight) => {
                self.backends.insert(*backend, *weight);
            }
        }
    }
}
