//! Which member serves a partition: what every part of a process may ask at any time.

use std::sync::Arc;

use whimbrel_core::fleet::{MemberId, Partition};

use crate::cell::Cell;
use crate::guard::Guard;
use crate::shared::Shared;

/// Which member serves a partition, as far as this member knows.
#[derive(Debug)]
pub enum Standing {
    /// This member, for as long as the guard lives and its lease lasts.
    Ours(Guard),
    /// Another member. It may have given the partition away meanwhile; then it knows better.
    Other {
        /// Its number.
        member: MemberId,
        /// Where clients reach it, as HOST:PORT.
        address: Arc<str>,
    },
    /// No known member: it is being moved away from here, this member's lease has ended, or its owner has not
    /// been said yet. That does not last: ask again after the next change, or a little later.
    Nobody,
}

impl Shared {
    pub(crate) fn standing(self: &Arc<Self>, partition: Partition) -> Standing {
        let owner = self.cell(partition).map_or(MemberId::NOBODY, Cell::owner);
        if owner == MemberId::NOBODY {
            return Standing::Nobody;
        }
        if self.member() == Some(owner) {
            return Guard::enter(self, partition, owner).map_or(Standing::Nobody, Standing::Ours);
        }
        match self.known().members.get(&owner).filter(|address| !address.is_empty()) {
            Some(address) => Standing::Other { member: owner, address: address.clone() },
            None => Standing::Nobody,
        }
    }
}
