//! Requests on their way to nodes.

use std::task::{Context, Poll};

use bytes::Bytes;
use whimbrel_core::slot::Slot;
use whimbrel_wire::encode::Protocol;

use super::due::{At, What};
use super::request::{
    Admitted, Asking, CROSS_SLOT, EXEC_ABORT, First, Listening, Multi, QUEUED_BYTES_MAX, Step,
};
use super::state::{Conn, DUE_MAX, KEPT_BYTES_MAX, Life};
use crate::command::rule::{ClusterRule, Trait};
use crate::command::table::find_by_words;
use crate::face::NO_CLUSTER;
use crate::pipe::frame::{REFUSED_COMMAND, as_array, refusal};
use crate::pipe::io::{Ended, OUT_BYTES_MAX};
use crate::pipe::requests::Head;
use crate::upstream::admission::Admission;
use crate::upstream::cluster::destination::{Destination, destination, of_keys};
use crate::upstream::identity::INTRODUCTION_BYTES_MAX;
use crate::upstream::shared::SHARED_BYTES_MAX;

const ONE_NODE: &str = "a cluster has many nodes: connect to the one that it is meant for";
const IN_TRANSACTION: &str = "in a transaction it cannot be sent to several nodes of a cluster";
const ONE_LISTENING: &str = "one connection can listen to one node of a cluster: use another one for this";

impl<A: Admission> Conn<A> {
    /// Takes requests for as long as there is room for what they lead to.
    pub(super) fn take(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut taken = false;
        let shared = self.sharing.iter().flat_map(|sharing| &sharing.nodes);
        if self.nodes.iter().chain(shared).flatten().any(|node| node.to.len() >= OUT_BYTES_MAX) {
            return Ok(false);
        }
        let mut bytes = 0;
        while bytes < OUT_BYTES_MAX {
            let before = self.inbox.len();
            if self.take_one(cx)? == Step::Waits {
                break;
            }
            bytes += before.saturating_sub(self.inbox.len());
            taken = true;
        }
        Ok(taken)
    }

    fn may_take(&mut self) -> bool {
        if self.due.is_empty() && self.refreshing.is_none() && self.pause.is_none() {
            self.settling = false;
        }
        !self.settling
            && self.due.len() < DUE_MAX
            && self.kept_bytes < KEPT_BYTES_MAX
            && self.to_client.len() < OUT_BYTES_MAX
    }

    fn take_one(&mut self, cx: &mut Context<'_>) -> Result<Step, Ended> {
        if self.inbox.is_empty() || self.life == Life::Quit || self.passing.is_none() && !self.may_take() {
            return Ok(Step::Waits);
        }
        if let Some(Asking::Under(asking)) = &mut self.asking {
            let Poll::Ready(answer) = asking.as_mut().poll(cx) else { return Ok(Step::Waits) };
            self.asking = Some(Asking::Answered(answer));
        }
        let Some(Head { len, whole, .. }) = self.inbox.first() else { return Ok(Step::Waits) };
        if !whole && self.passing.is_none() && self.inbox.has_room() {
            return Ok(Step::Waits);
        }
        match self.passing {
            Some(to) => {
                // If it cannot be reached, its number may become another node's, which must not begin in the
                // middle of a request.
                let to = to.filter(|number| self.is_reachable(*number));
                let part = self.advance(whole, to);
                if let Some(node) = to.and_then(|to| self.node_at(At::Node(to))) {
                    node.to.extend_from_slice(&part);
                }
                Ok(Step::Taken)
            }
            None => self.decide(cx, len, whole),
        }
    }

    fn decide(&mut self, cx: &mut Context<'_>, len: usize, whole: bool) -> Result<Step, Ended> {
        let Some(head) = self.inbox.first() else { return Ok(Step::Waits) };
        let count = head.words + usize::try_from(head.words_left).unwrap_or(usize::MAX / 2);
        let is_unbound = self.is_unbound();
        let words: Vec<&[u8]> = self.inbox.first_words().collect();
        let row = find_by_words(&words);
        let destination = match &self.asking {
            Some(Asking::Answered(Ok(keys))) => of_keys(keys),
            Some(Asking::Answered(Err(why))) => {
                let error = format!("-{}\r\n", crate::pipe::frame::one_line(why)).into_bytes();
                return self.refuse(cx, len, whole, error);
            }
            _ => destination(self.cluster.table(), row, &words, count),
        };
        if destination == Destination::More
            || !whole
                && !matches!(destination, Destination::Slot(_) | Destination::Anyone | Destination::CrossSlot)
        {
            return self.await_more(cx, len);
        }
        let blocks =
            self.is_gated() && self.cluster.table().facts(&words).is_some_and(|facts| facts.blocking);
        let may_share =
            is_unbound && whole && len <= SHARED_BYTES_MAX && matches!(destination, Destination::Slot(_));
        let shares = self.sharing.as_mut().is_some_and(|sharing| sharing.takes(&words, row, may_share));
        let looks_back = self.sharing.is_some() && row.looks_back();
        let is_channel = row.clustered == Some(ClusterRule::PublishAtSlot);
        let needs_words = matches!(destination, Destination::Rule(_) | Destination::Asked);
        let words = if needs_words {
            words.iter().map(|word| Bytes::copy_from_slice(word)).collect()
        } else {
            Vec::new()
        };
        let first = First { len, whole, words, blocks, shares, is_channel };
        if !shares && self.has_to_settle(cx, looks_back)? {
            return Ok(Step::Waits);
        }
        if destination == Destination::Asked {
            let cluster = self.cluster.clone();
            self.asking = Some(Asking::Under(Box::pin(cluster.keys_of(first.words))));
            return Ok(Step::Taken);
        }
        if let Listening::Alone(node) = self.listening {
            return self.pass_alone(cx, first, destination, node);
        }
        match self.multi {
            Multi::No => self.dispatch(cx, first, destination),
            Multi::Open { .. } => self.in_open_transaction(cx, first, destination),
            Multi::At(node) => self.in_transaction(cx, first, destination, node),
        }
    }

    /// Outside of a transaction.
    fn dispatch(
        &mut self,
        cx: &mut Context<'_>,
        first: First,
        destination: Destination,
    ) -> Result<Step, Ended> {
        match destination {
            Destination::Slot(slot) => {
                let guard = match self.admit(cx, slot) {
                    Admitted::Open(guard) => guard,
                    Admitted::Waits => return Ok(Step::Waits),
                    Admitted::Answer(answer) => return self.refuse(cx, first.len, first.whole, answer),
                };
                let owner = match first.is_channel {
                    true => self.map.owner(slot),
                    false => self.place_of(guard.as_ref(), slot),
                };
                let Some(owner) = owner else {
                    self.refresh();
                    let error = b"-CLUSTERDOWN Hash slot not served\r\n".to_vec();
                    return self.refuse(cx, first.len, first.whole, error);
                };
                if first.shares
                    && let Some(at) = self.shared_at(cx, owner)?
                {
                    return self.pass_shared(first, at, slot);
                }
                let blocks = first.blocks;
                self.pass(cx, first, owner, Some(slot))?;
                if blocks {
                    self.hold_waiting(guard)
                } else {
                    self.keep_guard(guard)
                }
                Ok(Step::Taken)
            }
            Destination::Anyone => {
                let main = self.main()?;
                self.pass(cx, first, main, None)
            }
            Destination::CrossSlot => self.refuse(cx, first.len, first.whole, CROSS_SLOT.to_vec()),
            Destination::Rule(rule) => self.dispatch_by_rule(cx, first, rule),
            Destination::Asked | Destination::More => Ok(Step::Waits),
        }
    }

    fn dispatch_by_rule(
        &mut self,
        cx: &mut Context<'_>,
        first: First,
        rule: ClusterRule,
    ) -> Result<Step, Ended> {
        let name = first.words[0].clone();
        let is_alone = first.words.len() == 1;
        self.follow_members();
        match self.as_member(cx, &first, rule) {
            None => {}
            Some(Ok(answer)) => return self.answer(first, answer),
            Some(Err(step)) => return Ok(step),
        }
        match rule {
            ClusterRule::Multi if is_alone => match self.watching {
                Some(node) if !self.holds_back() => {
                    self.multi = Multi::At(node);
                    self.pass_bound(cx, first, node)
                }
                _ => {
                    self.multi = Multi::Open { queued: Vec::new(), bytes: 0, failed: false };
                    self.answer(first, b"+OK\r\n".to_vec())
                }
            },
            ClusterRule::Watch if !is_alone => self.watch(cx, first),
            ClusterRule::Unwatch => {
                (self.bound_slot, self.watch_lost) = (None, false);
                let node = self.watching.take().map_or_else(|| self.main(), Ok)?;
                self.pass_bound(cx, first, node)
            }
            ClusterRule::Multi | ClusterRule::Exec | ClusterRule::Discard | ClusterRule::Watch => {
                let main = self.main()?;
                self.pass(cx, first, main, None)
            }
            ClusterRule::Select if first.words.len() == 2 && first.words[1] != b"0"[..] => {
                self.answer(first, b"-ERR SELECT is not allowed in cluster mode\r\n".to_vec())
            }
            ClusterRule::Select | ClusterRule::PublishAtSlot => {
                let main = self.main()?;
                self.pass(cx, first, main, None)
            }
            ClusterRule::Quit => {
                let step = self.answer(first, b"+OK\r\n".to_vec());
                self.life = Life::Quit;
                self.inbox.clear();
                step
            }
            ClusterRule::NoCluster => self.answer(first, [NO_CLUSTER, b"\r\n"].concat()),
            ClusterRule::Refused => self.answer(first, refusal(&name, ONE_NODE)),
            // From here on nothing else may be under way.
            _ if !self.due.is_empty() => {
                self.settling = true;
                Ok(Step::Waits)
            }
            ClusterRule::Noted(_) if first.len > INTRODUCTION_BYTES_MAX => {
                self.answer(first, refusal(&name, "it is too long"))
            }
            ClusterRule::Noted(what) => self.introduce(cx, first, what),
            ClusterRule::Reset => {
                (self.multi, self.watching, self.bound_slot) = (Multi::No, None, None);
                self.listening = Listening::No;
                self.watch_lost = false;
                let main = self.main()?;
                let request = self.advance(first.whole, None);
                self.settling = true;
                self.send(cx, main, &request, What::Reset, None)?;
                Ok(Step::Taken)
            }
            ClusterRule::Scan => {
                self.advance(first.whole, None);
                self.scan(cx, &first.words)?;
                Ok(Step::Taken)
            }
            ClusterRule::Every(merge) => {
                let request = self.advance(first.whole, None);
                self.send_to_every(cx, merge, &request)?;
                Ok(Step::Taken)
            }
            ClusterRule::Listen | ClusterRule::ListenAtSlot => self.listen_to(cx, first, rule),
        }
    }

    /// Watches keys of one slot. The transaction that follows goes to the node that has it, so more keys can
    /// be watched only there.
    fn watch(&mut self, cx: &mut Context<'_>, first: First) -> Result<Step, Ended> {
        let Destination::Slot(slot) = of_keys(&first.words[1..]) else {
            return self.answer(first, CROSS_SLOT.to_vec());
        };
        let guard = match self.admit_together(cx, slot) {
            Admitted::Open(guard) => guard,
            Admitted::Waits => return Ok(Step::Waits),
            Admitted::Answer(answer) => return self.answer(first, answer),
        };
        let owner = self.place_of(guard.as_ref(), slot);
        let Some(owner) = owner.filter(|owner| self.watching.is_none_or(|node| node == *owner)) else {
            return self.answer(first, CROSS_SLOT.to_vec());
        };
        self.watching = Some(owner);
        self.pass_bound(cx, first, owner)?;
        if self.holds_back()
            && let Some(due) = self.due.back_mut()
        {
            due.what = What::Watched;
        }
        self.keep_guard(guard);
        Ok(Step::Taken)
    }

    /// What a client says about itself: to one node, and to the nodes where something of it is open. The
    /// others learn it when they are needed.
    fn introduce(&mut self, cx: &mut Context<'_>, first: First, what: Trait) -> Result<Step, Ended> {
        let request = self.advance(first.whole, None);
        let main = self.main()?;
        self.send(cx, main, &request, What::Noted(what, request.clone()), None)?;
        let listening = self.listening.node().filter(|listening| self.watching != Some(*listening));
        for node in [self.watching, listening].into_iter().flatten() {
            if node != main {
                self.send(cx, node, &request, What::Swallowed, None)?;
            }
        }
        self.settling = true;
        Ok(Step::Taken)
    }

    /// Begins to listen, or to listen no longer.
    fn listen_to(&mut self, cx: &mut Context<'_>, first: First, rule: ClusterRule) -> Result<Step, Ended> {
        let at_slot = match of_keys(&first.words[1..]) {
            Destination::Slot(slot) if rule == ClusterRule::ListenAtSlot => self.map.owner(slot),
            Destination::CrossSlot if rule == ClusterRule::ListenAtSlot => {
                return self.answer(first, CROSS_SLOT.to_vec());
            }
            _ => None,
        };
        let node = match (self.listening.node(), at_slot) {
            (Some(listening), Some(owner)) if listening != owner => {
                let error = refusal(&first.words[0], ONE_LISTENING);
                return self.answer(first, error);
            }
            (Some(listening), _) => listening,
            (None, Some(owner)) => owner,
            (None, None) => self.main()?,
        };
        self.listening = Listening::At(node);
        let request = self.advance(first.whole, None);
        self.node(cx, node)?.to.extend_from_slice(&request);
        if self.identity.protocol() == Protocol::Resp2 {
            self.listening = Listening::Alone(node);
            return Ok(Step::Taken);
        }
        // What it answers is distinguished from replies by its kind, except errors: the reply to this shows
        // that none will come any more.
        let fence = Bytes::from(as_array(&[b"PING".to_vec()]));
        self.send(cx, node, &fence, What::Marker, None)?;
        self.settling = true;
        Ok(Step::Taken)
    }

    /// For a client of the older protocol that listens: only the node knows what comes when.
    fn pass_alone(
        &mut self,
        cx: &mut Context<'_>,
        first: First,
        destination: Destination,
        listening: u16,
    ) -> Result<Step, Ended> {
        let mut may_pass = true;
        if let Destination::Slot(slot) = destination
            && !first.is_channel
            && self.is_gated()
        {
            match self.admit(cx, slot) {
                Admitted::Open(_guard) => may_pass = self.hold_alone(),
                Admitted::Waits => return Ok(Step::Waits),
                // What it is sent here comes as another kind of error, which no client follows: it finds out
                // which member serves the slot when it connects again.
                Admitted::Answer(_) => return Err(Ended),
            }
        }
        let is_its_own = match &destination {
            Destination::Slot(slot) => self.map.owner(*slot) == Some(listening) && may_pass,
            Destination::Rule(ClusterRule::ListenAtSlot) => match of_keys(&first.words[1..]) {
                Destination::Slot(slot) => self.map.owner(slot) == Some(listening),
                destination => destination == Destination::Anyone,
            },
            Destination::Anyone
            | Destination::Rule(
                ClusterRule::Listen | ClusterRule::Reset | ClusterRule::Quit | ClusterRule::Noted(_),
            ) => true,
            _ => false,
        };
        let rest_to = is_its_own.then_some(listening);
        let mut request = self.advance(first.whole, rest_to);
        if !is_its_own {
            // It comes back as an error, when it is its turn.
            let why = b"whimbrel front: after a subscription this needs another connection".to_vec();
            request = as_array(&[REFUSED_COMMAND.to_vec(), why]).into();
        }
        self.node(cx, listening)?.to.extend_from_slice(&request);
        Ok(Step::Taken)
    }

    // ---- Transactions ----

    fn in_open_transaction(
        &mut self,
        cx: &mut Context<'_>,
        first: First,
        destination: Destination,
    ) -> Result<Step, Ended> {
        if let Some(step) = self.hold_back(cx, &first, &destination)? {
            return Ok(step);
        }
        let mut owner = None;
        if let Destination::Slot(slot) = destination {
            match self.admit_together(cx, slot) {
                // What is queued is carried out by `EXEC`.
                Admitted::Open(guard) => owner = self.place_of(guard.as_ref(), slot),
                Admitted::Waits => return Ok(Step::Waits),
                Admitted::Answer(answer) => return self.refuse(cx, first.len, first.whole, answer),
            }
        }
        let Multi::Open { queued, bytes, failed } = &mut self.multi else { return Err(Ended) };
        match destination {
            Destination::Slot(_) => {
                let Some(owner) = owner else { return self.dispatch(cx, first, destination) };
                self.begin_at(cx, owner)?;
                self.pass_bound(cx, first, owner)
            }
            Destination::Anyone if !first.whole => self.await_more(cx, first.len),
            Destination::Anyone if *bytes + first.len <= QUEUED_BYTES_MAX => {
                *bytes += first.len;
                let request = Bytes::copy_from_slice(self.inbox.first_bytes());
                queued.push(request);
                self.answer(first, b"+QUEUED\r\n".to_vec())
            }
            Destination::Rule(ClusterRule::Exec) if *failed => {
                (self.multi, self.bound_slot) = (Multi::No, None);
                self.answer(first, EXEC_ABORT.to_vec())
            }
            Destination::Rule(ClusterRule::Exec) => {
                let main = self.main()?;
                self.begin_at(cx, main)?;
                self.in_transaction(cx, first, destination, main)
            }
            Destination::Rule(ClusterRule::Discard) => {
                (self.multi, self.bound_slot) = (Multi::No, None);
                self.answer(first, b"+OK\r\n".to_vec())
            }
            Destination::Rule(ClusterRule::Reset | ClusterRule::Quit) => {
                self.dispatch(cx, first, destination)
            }
            Destination::Rule(ClusterRule::Multi) => {
                self.answer(first, b"-ERR MULTI calls can not be nested\r\n".to_vec())
            }
            Destination::Rule(ClusterRule::Watch) => {
                self.answer(first, b"-ERR WATCH inside MULTI is not allowed\r\n".to_vec())
            }
            Destination::CrossSlot => {
                *failed = true;
                self.refuse(cx, first.len, first.whole, CROSS_SLOT.to_vec())
            }
            Destination::Rule(_) | Destination::Anyone => {
                *failed = true;
                let error = refusal(first.words.first().map_or(b"", |word| word), IN_TRANSACTION);
                self.answer(first, error)
            }
            Destination::Asked | Destination::More => Ok(Step::Waits),
        }
    }

    /// A transaction goes to this node.
    fn begin_at(&mut self, cx: &mut Context<'_>, node: u16) -> Result<(), Ended> {
        let before = std::mem::replace(&mut self.multi, Multi::At(node));
        let Multi::Open { queued, failed, .. } = before else { return Ok(()) };
        let multi = Bytes::from(as_array(&[b"MULTI".to_vec()]));
        let refused = failed.then(|| Bytes::from(as_array(&[REFUSED_COMMAND.to_vec()])));
        for request in [multi].into_iter().chain(queued).chain(refused) {
            self.send(cx, node, &request, What::Swallowed, None)?;
        }
        Ok(())
    }

    fn in_transaction(
        &mut self,
        cx: &mut Context<'_>,
        first: First,
        destination: Destination,
        node: u16,
    ) -> Result<Step, Ended> {
        let error = match destination {
            Destination::Rule(ClusterRule::Exec | ClusterRule::Discard) => {
                // With more words the node refuses it, and nothing ends; but any EXEC ends a transaction.
                let guard = match destination {
                    Destination::Rule(ClusterRule::Exec) => match self.admit_exec(cx, &first, node)? {
                        Ok(guard) => guard,
                        Err(step) => return Ok(step),
                    },
                    _ => None,
                };
                if destination == Destination::Rule(ClusterRule::Exec) || first.words.len() == 1 {
                    (self.multi, self.watching, self.bound_slot) = (Multi::No, None, None);
                }
                self.pass_bound(cx, first, node)?;
                self.keep_guard(guard);
                return Ok(Step::Taken);
            }
            Destination::Rule(ClusterRule::Reset | ClusterRule::Quit) => {
                return self.dispatch(cx, first, destination);
            }
            Destination::Anyone
            | Destination::Rule(ClusterRule::Multi | ClusterRule::Watch | ClusterRule::Unwatch) => {
                return self.pass_bound(cx, first, node);
            }
            Destination::Slot(slot) => match self.admit_together(cx, slot) {
                // If its data has moved meanwhile, `EXEC` finds that out.
                Admitted::Open(guard) if guard.is_some() || self.map.owner(slot) == Some(node) => {
                    return self.pass_bound(cx, first, node);
                }
                Admitted::Open(_) => CROSS_SLOT.to_vec(),
                Admitted::Waits => return Ok(Step::Waits),
                Admitted::Answer(answer) => answer,
            },
            Destination::CrossSlot => CROSS_SLOT.to_vec(),
            Destination::Rule(_) => refusal(&first.words[0], IN_TRANSACTION),
            Destination::Asked | Destination::More => return Ok(Step::Waits),
        };
        self.advance(first.whole, None);
        // It makes the transaction fail.
        let refused = Bytes::from(as_array(&[REFUSED_COMMAND.to_vec()]));
        self.send(cx, node, &refused, What::Replaced(error), None)?;
        Ok(Step::Taken)
    }

    // ---- What comes of a request ----

    /// To a node; it may be sent again to another.
    fn pass(
        &mut self,
        cx: &mut Context<'_>,
        first: First,
        node: u16,
        slot: Option<Slot>,
    ) -> Result<Step, Ended> {
        let request = self.advance(first.whole, Some(node));
        self.send(cx, node, &request, What::Reply, slot)?;
        if first.whole
            && let Some(due) = self.due.back_mut()
        {
            self.kept_bytes += request.len();
            due.request = Some(request);
        }
        Ok(Step::Taken)
    }

    /// To a node, and to no other one.
    fn pass_bound(&mut self, cx: &mut Context<'_>, first: First, node: u16) -> Result<Step, Ended> {
        let request = self.advance(first.whole, Some(node));
        self.send(cx, node, &request, What::Reply, None)?;
        Ok(Step::Taken)
    }
}
