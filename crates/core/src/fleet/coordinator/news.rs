//! Who hears of changes when, and how those who missed some get what they lack.

use super::{Coordinator, Output};
use crate::fleet::message::{ITEMS_MAX, Order};
use crate::fleet::table::Partition;
use crate::fleet::table::{Change, MemberId, Row};

/// Changes that are kept for members that have not heard of them. A member that is further behind is asked
/// for its versions.
const LOG_MAX: usize = 16_384;

/// The most changes in one message.
const NEWS_MAX: usize = 1_024;

impl Coordinator {
    /// All members may know a change from now on; `known_by` has heard of it already.
    pub(super) fn enter(&mut self, change: Change, known_by: MemberId) {
        self.log.push_back((change, known_by));
        self.since_batch = self.since_batch.saturating_add(1);
        if self.log.len() > LOG_MAX {
            self.log.pop_front();
            self.log_start += 1;
        }
    }

    /// The next changes that a member has not heard of.
    pub(super) fn news_for(&mut self, member: MemberId) -> Vec<Change> {
        let end = self.log_start + self.log.len() as u64;
        let Some(peer) = self.peers.get_mut(&member) else { return Vec::new() };
        if peer.sent < self.log_start {
            peer.sent = end;
            self.to_ask.insert(member);
            return Vec::new();
        }
        // Not more than the log has, which fits.
        let from = (peer.sent - self.log_start) as usize;
        let upto = self.log.len().min(from + NEWS_MAX);
        peer.sent = self.log_start + upto as u64;
        let news = self.log.range(from..upto).filter(|(_, known_by)| *known_by != member);
        news.map(|(change, _)| *change).collect()
    }

    fn is_behind(&self, member: MemberId) -> bool {
        let end = self.log_start + self.log.len() as u64;
        self.peers.get(&member).is_some_and(|peer| peer.sent < end)
    }

    fn send_news(&mut self, member: MemberId, to_bystander: bool, out: &mut Vec<Output>) {
        while self.is_behind(member) {
            let news = self.news_for(member);
            if !news.is_empty() {
                self.send(member, Order::News { news }, to_bystander, out);
            }
        }
    }

    /// Notifies waiting members at once, a bystander when there is a batch, and all when nothing moves any
    /// more.
    pub(super) fn spread(&mut self, out: &mut Vec<Output>) {
        while let Some(member) = self.urgent.pop_first() {
            self.send_news(member, false, out);
        }
        if self.since_batch >= self.options.batch {
            // The member that is furthest behind. One for each batch: so their number does not grow with the
            // fleet's.
            let last = self.peers.iter().min_by_key(|(_, peer)| peer.sent).map(|(id, _)| *id);
            if let Some(member) = last.filter(|member| self.is_behind(*member)) {
                let news = self.news_for(member);
                self.send(member, Order::News { news }, true, out);
            }
            self.since_batch = 0;
        }
        if self.is_idle() {
            let members: Vec<MemberId> = self.peers.keys().copied().collect();
            members.into_iter().for_each(|member| self.send_news(member, true, out));
        }
        while let Some(member) = self.to_ask.pop_first() {
            if self.peers.contains_key(&member) {
                self.send(member, Order::Ask { stamp: self.table.stamp() }, true, out);
            }
        }
    }

    /// A member has these stamps of segments: asks for the versions of those that differ.
    pub(super) fn narrow(&mut self, member: MemberId, stamps: &[u64], out: &mut Vec<Output>) {
        let pairs = (0_u32..).zip(stamps.iter().zip(self.table.segments()));
        let segments: Vec<u32> =
            pairs.filter(|(_, (theirs, ours))| theirs != ours).map(|(segment, _)| segment).collect();
        if !segments.is_empty() {
            self.send(member, Order::CompareSegments { segments }, false, out);
        }
    }

    /// A member has these versions of a segment: sends the rows that are later.
    pub(super) fn complete(
        &mut self,
        member: MemberId,
        segment: u32,
        stamp: u64,
        versions: &[u64],
        out: &mut Vec<Output>,
    ) {
        let is_later = |((_, row), version): &((Partition, &Row), &u64)| row.version > **version;
        let pairs = || self.table.segment(segment).zip(versions);
        let mut lacking: Vec<Partition> = pairs().filter(is_later).map(|((at, _), _)| at).collect();
        if lacking.is_empty() && self.table.segments().get(segment as usize) != Some(&stamp) {
            // Equal versions with other owners cannot be; if they are, they do not stay.
            lacking = pairs().map(|((at, _), _)| at).collect();
        }
        self.send_rows(member, lacking, out);
    }

    /// Sends those rows that the member may hear of.
    pub(super) fn send_rows(&self, member: MemberId, partitions: Vec<Partition>, out: &mut Vec<Output>) {
        let may_hear = |partition: &Partition| self.may_hear(member, *partition);
        let rows = partitions.into_iter().filter(may_hear).filter_map(|at| Some((at, *self.table.row(at)?)));
        let rows: Vec<(Partition, Row)> = rows.take(ITEMS_MAX).collect();
        if !rows.is_empty() {
            self.send(member, Order::Rows { rows }, false, out);
        }
    }
}
