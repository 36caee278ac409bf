//! Which member is reached by which connection.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use whimbrel_core::fleet::{MemberId, Recipient};
use whimbrel_fleet::outbox::Outbox;
use whimbrel_fleet::protocol::{FromCoordinator, Hello};

/// A connection.
#[derive(Debug)]
struct Link {
    outbox: Arc<Outbox>,
    hello: Hello,
    member: Option<MemberId>,
    /// By which it has joined, or asks to.
    token: u64,
    knows_it_leaves: bool,
}

/// What is known of a member besides what the machine knows.
#[derive(Debug, Clone, Default)]
pub(super) struct Acquaintance {
    pub(super) hello: Hello,
    pub(super) heard_ms: u64,
    pub(super) stamp: Option<u64>,
    pub(super) held: u64,
    /// Why a move failed there lately.
    pub(super) trouble: String,
    /// Its address was reached from here while it was connected.
    pub(super) reached: bool,
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Links {
    links: HashMap<u64, Link>,
    of: HashMap<MemberId, u64>,
    pub(super) known: BTreeMap<MemberId, Acquaintance>,
}

impl Links {
    pub(super) fn open(&mut self, link: u64, outbox: Arc<Outbox>, hello: Hello) {
        let token = hello.token;
        self.links.insert(link, Link { outbox, hello, member: None, token, knows_it_leaves: false });
    }

    pub(super) fn close(&mut self, link: u64) {
        if let Some(Link { member: Some(member), .. }) = self.links.remove(&link)
            && self.of.get(&member) == Some(&link)
        {
            self.of.remove(&member);
        }
    }

    /// Gives all connections up.
    pub(super) fn close_all(&self) {
        self.links.values().for_each(|link| link.outbox.close());
    }

    /// A process asks to join on a connection.
    pub(super) fn asks(&mut self, link: u64, token: u64) {
        if let Some(link) = self.links.get_mut(&link) {
            link.token = token;
        }
    }

    /// A member speaks on a connection: true if it is another one than before.
    pub(super) fn bind(&mut self, link: u64, member: MemberId, now_ms: u64) -> bool {
        let Some(it) = self.links.get_mut(&link) else { return false };
        let is_new = it.member != Some(member);
        if is_new {
            let former = it.member.replace(member);
            it.knows_it_leaves = false;
            let hello = it.hello.clone();
            if let Some(former) = former.filter(|former| self.of.get(former) == Some(&link)) {
                self.of.remove(&former);
            }
            if let Some(other) = self.of.insert(member, link).and_then(|other| self.links.get(&other)) {
                // The same process, which has given that connection up.
                other.outbox.close();
            }
            let known = self.known.entry(member).or_default();
            (known.hello, known.reached) = (hello, false);
        }
        self.known.entry(member).or_default().heard_ms = now_ms;
        is_new
    }

    /// By what the process at the other end has joined, or asks to.
    pub(super) fn token_of(&self, link: u64) -> Option<u64> {
        self.links.get(&link).map(|link| link.token)
    }

    /// Says something on one connection, whichever member it belongs to.
    pub(super) fn send_on(&self, link: u64, frame: &FromCoordinator) {
        if let Some(link) = self.links.get(&link) {
            link.outbox.push(frame.kind(), |out| frame.encode(out));
        }
    }

    /// Ends a connection, and says why.
    pub(super) fn refuse(&mut self, link: u64, why: String) {
        self.send_on(link, &FromCoordinator::Refused(why));
        if let Some(link) = self.links.get(&link) {
            link.outbox.close();
        }
        // What it has said besides is not heard.
        self.close(link);
    }

    /// The latest connection of the process that asked to join by this token.
    pub(super) fn joiner(&self, token: u64) -> Option<u64> {
        self.links.iter().filter(|(_, link)| link.token == token).map(|(number, _)| *number).max()
    }

    pub(super) fn member_of(&self, link: u64) -> Option<MemberId> {
        self.links.get(&link).and_then(|link| link.member)
    }

    pub(super) fn is_linked(&self, member: MemberId) -> bool {
        self.of.contains_key(&member)
    }

    /// Forgets what is no member any more. A process that has just become one may not be listed yet.
    pub(super) fn forget_all_but(&mut self, members: &[MemberId]) {
        let of = &self.of;
        self.known.retain(|id, _| members.contains(id) || of.contains_key(id));
    }

    /// Says it, if there is a connection: what is lost is asked for again.
    pub(super) fn send_to(&self, to: Recipient, frame: &FromCoordinator) {
        let link = match to {
            Recipient::Joiner(token) => self.joiner(token),
            Recipient::Member(member) => self.of.get(&member).copied(),
        };
        if let Some(link) = link {
            self.send_on(link, frame);
        }
    }

    /// Says it to all members.
    pub(super) fn send_to_all(&self, frame: &FromCoordinator) {
        self.of.keys().for_each(|member| self.send_to(Recipient::Member(*member), frame));
    }

    /// Notifies a member that it leaves, once on each connection.
    pub(super) fn notify_leaving(&mut self, member: MemberId) {
        let link = self.of.get(&member).and_then(|link| self.links.get_mut(link));
        if let Some(link) = link.filter(|link| !link.knows_it_leaves) {
            link.knows_it_leaves = true;
            self.send_to(Recipient::Member(member), &FromCoordinator::Leaving);
        }
    }
}
