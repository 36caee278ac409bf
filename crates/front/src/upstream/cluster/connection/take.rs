//! Requests on their way to nodes.

use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use whimbrel_core::slot::Slot;
use whimbrel_wire::encode::Protocol;
use whimbrel_wire::request::Request;

use crate::command::Trait;
use crate::face::NO_CLUSTER;
use crate::pipe::frame::{REFUSED_COMMAND, as_array, refusal};
use crate::pipe::io::{Ended, OUT_BYTES_MAX};
use crate::upstream::admission::Admission;
use crate::upstream::cluster::connection::due::At;
use crate::upstream::cluster::connection::due::What;
use crate::upstream::cluster::connection::request::Admitted;
use crate::upstream::cluster::connection::request::Asking;
use crate::upstream::cluster::connection::request::CROSS_SLOT;
use crate::upstream::cluster::connection::request::EXEC_ABORT;
use crate::upstream::cluster::connection::request::First;
use crate::upstream::cluster::connection::request::Multi;
use crate::upstream::cluster::connection::request::QUEUED_BYTES_MAX;
use crate::upstream::cluster::connection::request::Step;
use crate::upstream::cluster::connection::state::Conn;
use crate::upstream::cluster::connection::state::DUE_MAX;
use crate::upstream::cluster::connection::state::KEPT_BYTES_MAX;
use crate::upstream::cluster::route::Aim;
use crate::upstream::cluster::route::Named;
use crate::upstream::cluster::route::aim;
use crate::upstream::cluster::route::of_keys;
use crate::upstream::identity::SAYING_BYTES_MAX;

const ONE_NODE: &str = "a cluster has many nodes: connect to the one that it is meant for";
const IN_TRANSACTION: &str = "in a transaction it cannot be sent to several nodes of a cluster";
const ONE_EAR: &str = "one connection can listen to one node of a cluster: use another one for this";

impl<A: Admission> Conn<A> {
    /// Takes requests for as long as there is room for what comes of them.
    pub(super) fn take(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut taken = false;
        if self.nodes.iter().flatten().any(|node| node.to.len() >= OUT_BYTES_MAX) {
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
        if self.inbox.is_empty() || self.passing.is_none() && !self.may_take() {
            return Ok(Step::Waits);
        }
        if let Some(Asking::Under(asking)) = &mut self.asking {
            let Poll::Ready(told) = asking.as_mut().poll(cx) else { return Ok(Step::Waits) };
            self.asking = Some(Asking::Told(told));
        }
        let (len, whole) = match self.requests.scan(&self.inbox) {
            Ok(Request::Array(len)) => (len, true),
            Ok(Request::Nothing(len) | Request::Inline(len, _)) => {
                // Whoever has a connection to a cluster sends arrays.
                self.inbox.advance(len);
                self.requests.next();
                return Ok(Step::Taken);
            }
            Ok(Request::Incomplete(_)) => match self.requests.forgettable(&self.inbox) {
                0 => return Ok(Step::Waits),
                len if self.passing.is_some() || self.inbox.len() >= self.inbox_bytes_max => (len, false),
                _ => return Ok(Step::Waits),
            },
            Err(bad) => {
                tracing::debug!(%bad, "what came for a cluster is no RESP");
                return Err(Ended);
            }
        };
        match self.passing {
            Some(to) => {
                let part = self.advance(len, whole, to);
                if let Some(node) = to.and_then(|to| self.node_at(At::Node(to))) {
                    node.to.extend_from_slice(&part);
                }
                Ok(Step::Taken)
            }
            None => self.decide(cx, len, whole),
        }
    }

    fn decide(&mut self, cx: &mut Context<'_>, len: usize, whole: bool) -> Result<Step, Ended> {
        let args = self.requests.args();
        let count = args.len() + usize::try_from(self.requests.args_left()).unwrap_or(usize::MAX / 2);
        let words: Vec<&[u8]> = args.iter().map_while(|range| self.inbox.get(range.clone())).collect();
        let aim = match &self.asking {
            Some(Asking::Told(Ok(keys))) => of_keys(keys),
            Some(Asking::Told(Err(why))) => {
                let error = format!("-{}\r\n", crate::pipe::frame::one_line(why)).into_bytes();
                return self.refuse(cx, len, whole, error);
            }
            _ => aim(self.cluster.table(), &words, count),
        };
        if aim == Aim::More || !whole && !matches!(aim, Aim::Slot(_) | Aim::Anyone | Aim::CrossSlot) {
            return self.await_more(cx, len);
        }
        let blocks =
            self.is_gated() && self.cluster.table().facts(&words).is_some_and(|facts| facts.blocking);
        let is_channel = words.first().is_some_and(|name| name.eq_ignore_ascii_case(b"SPUBLISH"));
        let needs_words = matches!(aim, Aim::Named(_) | Aim::Asked);
        let words = if needs_words {
            words.iter().map(|word| Bytes::copy_from_slice(word)).collect()
        } else {
            Vec::new()
        };
        let first = First { len, whole, words, blocks, is_channel };
        if aim == Aim::Asked {
            let cluster = self.cluster.clone();
            self.asking = Some(Asking::Under(Box::pin(cluster.keys_of(first.words))));
            return Ok(Step::Taken);
        }
        if self.alone {
            return self.pass_alone(cx, first, aim);
        }
        match self.multi {
            Multi::No => self.dispatch(cx, first, aim),
            Multi::Open { .. } => self.in_open_transaction(cx, first, aim),
            Multi::At(node) => self.in_transaction(cx, first, aim, node),
        }
    }

    /// Outside of a transaction.
    fn dispatch(&mut self, cx: &mut Context<'_>, first: First, aim: Aim) -> Result<Step, Ended> {
        match aim {
            Aim::Slot(slot) => {
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
                let blocks = first.blocks;
                self.pass(cx, first, owner, Some(slot))?;
                if blocks {
                    self.hold_waiting(guard)
                } else {
                    self.hold(guard)
                }
                Ok(Step::Taken)
            }
            Aim::Anyone => {
                let main = self.main()?;
                self.pass(cx, first, main, None)
            }
            Aim::CrossSlot => self.refuse(cx, first.len, first.whole, CROSS_SLOT.to_vec()),
            Aim::Named(named) => self.dispatch_named(cx, first, named),
            Aim::Asked | Aim::More => Ok(Step::Waits),
        }
    }

    fn dispatch_named(&mut self, cx: &mut Context<'_>, first: First, named: Named) -> Result<Step, Ended> {
        let name = first.words[0].clone();
        let is_alone = first.words.len() == 1;
        self.follow_members();
        match self.as_member(cx, &first, named) {
            None => {}
            Some(Ok(answer)) => return self.answer(first, answer),
            Some(Err(step)) => return Ok(step),
        }
        match named {
            Named::Multi if is_alone => match self.watching {
                Some(node) if !self.holds_back() => {
                    self.multi = Multi::At(node);
                    self.pass_bound(cx, first, node)
                }
                _ => {
                    self.multi = Multi::Open { queued: Vec::new(), bytes: 0, failed: false };
                    self.answer(first, b"+OK\r\n".to_vec())
                }
            },
            Named::Watch if !is_alone => match of_keys(&first.words[1..]) {
                Aim::Slot(slot) => match self.admit_together(cx, slot) {
                    Admitted::Waits => Ok(Step::Waits),
                    Admitted::Answer(answer) => self.answer(first, answer),
                    Admitted::Open(guard) => {
                        let owner = self.place_of(guard.as_ref(), slot);
                        let Some(owner) =
                            owner.filter(|owner| self.watching.is_none_or(|node| node == *owner))
                        else {
                            return self.answer(first, CROSS_SLOT.to_vec());
                        };
                        self.watching = Some(owner);
                        self.pass_bound(cx, first, owner)?;
                        if self.holds_back()
                            && let Some(due) = self.due.back_mut()
                        {
                            due.what = What::Watched;
                        }
                        self.hold(guard);
                        Ok(Step::Taken)
                    }
                },
                _ => self.answer(first, CROSS_SLOT.to_vec()),
            },
            Named::Unwatch => {
                (self.bound_slot, self.watch_lost) = (None, false);
                let node = self.watching.take().map_or_else(|| self.main(), Ok)?;
                self.pass_bound(cx, first, node)
            }
            Named::Multi | Named::Exec | Named::Discard | Named::Watch => {
                let main = self.main()?;
                self.pass(cx, first, main, None)
            }
            Named::Select if first.words.len() == 2 && first.words[1] != b"0"[..] => {
                self.answer(first, b"-ERR SELECT is not allowed in cluster mode\r\n".to_vec())
            }
            Named::Select | Named::PublishAtSlot => {
                let main = self.main()?;
                self.pass(cx, first, main, None)
            }
            Named::Quit => {
                let step = self.answer(first, b"+OK\r\n".to_vec());
                // Nothing that follows is heard.
                self.client_closed = true;
                self.inbox.clear();
                step
            }
            Named::NoCluster => self.answer(first, [NO_CLUSTER, b"\r\n"].concat()),
            Named::Refused => self.answer(first, refusal(&name, ONE_NODE)),
            // From here on nothing else may be under way.
            _ if !self.due.is_empty() => {
                self.settling = true;
                Ok(Step::Waits)
            }
            Named::Noted(_) if first.len > SAYING_BYTES_MAX => {
                self.answer(first, refusal(&name, "it is too long"))
            }
            Named::Noted(what) => self.tell(cx, first, what),
            Named::Reset => {
                (self.multi, self.watching, self.ear, self.bound_slot) = (Multi::No, None, None, None);
                self.watch_lost = false;
                let main = self.main()?;
                let request = self.advance(first.len, first.whole, None);
                self.settling = true;
                self.send(cx, main, &request, What::Reset, None)?;
                Ok(Step::Taken)
            }
            Named::Scan => {
                self.advance(first.len, first.whole, None);
                self.scan(cx, &first.words)?;
                Ok(Step::Taken)
            }
            Named::Every(merge) => {
                let request = self.advance(first.len, first.whole, None);
                self.send_to_every(cx, merge, &request)?;
                Ok(Step::Taken)
            }
            Named::Listen | Named::ListenAtSlot => self.listen_to(cx, first, named),
        }
    }

    /// What a client says of itself: to one node, and to those where something of it is open. The others learn it when they are needed.
    fn tell(&mut self, cx: &mut Context<'_>, first: First, what: Trait) -> Result<Step, Ended> {
        let request = self.advance(first.len, first.whole, None);
        let main = self.main()?;
        self.send(cx, main, &request, What::Noted(what, request.clone()), None)?;
        for node in [self.watching, self.ear.filter(|ear| self.watching != Some(*ear))].into_iter().flatten()
        {
            if node != main {
                self.send(cx, node, &request, What::Swallowed, None)?;
            }
        }
        self.settling = true;
        Ok(Step::Taken)
    }

    /// Begins to listen, or to listen no longer.
    fn listen_to(&mut self, cx: &mut Context<'_>, first: First, named: Named) -> Result<Step, Ended> {
        let at_slot = match of_keys(&first.words[1..]) {
            Aim::Slot(slot) if named == Named::ListenAtSlot => self.map.owner(slot),
            Aim::CrossSlot if named == Named::ListenAtSlot => {
                return self.answer(first, CROSS_SLOT.to_vec());
            }
            _ => None,
        };
        let node = match (self.ear, at_slot) {
            (Some(ear), Some(owner)) if ear != owner => {
                let error = refusal(&first.words[0], ONE_EAR);
                return self.answer(first, error);
            }
            (Some(ear), _) => ear,
            (None, Some(owner)) => owner,
            (None, None) => self.main()?,
        };
        self.ear = Some(node);
        let request = self.advance(first.len, first.whole, None);
        self.node(cx, node)?.to.extend_from_slice(&request);
        if self.identity.protocol() == Protocol::Resp2 {
            self.alone = true;
            return Ok(Step::Taken);
        }
        // What it answers is told apart from replies by its kind, but for errors: the reply to this tells that none will come any more.
        let fence = Bytes::from(as_array(&[b"PING".to_vec()]));
        self.send(cx, node, &fence, What::Fence, None)?;
        self.settling = true;
        Ok(Step::Taken)
    }

    /// For a client of the older protocol that listens: only the node knows what comes when.
    fn pass_alone(&mut self, cx: &mut Context<'_>, first: First, aim: Aim) -> Result<Step, Ended> {
        let Some(ear) = self.ear else { return Err(Ended) };
        // Nobody knows here when the reply has come, so the slot could not be kept until then: where data moves between backends it has to be.
        let may_move = self.gate().is_some_and(|gate| gate.waits().are_pinned());
        let is_its_own = match &aim {
            Aim::Slot(slot) => self.map.owner(*slot) == Some(ear) && (!may_move || first.is_channel),
            Aim::Named(Named::ListenAtSlot) => match of_keys(&first.words[1..]) {
                Aim::Slot(slot) => self.map.owner(slot) == Some(ear),
                aim => aim == Aim::Anyone,
            },
            Aim::Anyone | Aim::Named(Named::Listen | Named::Reset | Named::Quit | Named::Noted(_)) => true,
            _ => false,
        };
        let rest_to = is_its_own.then_some(ear);
        let mut request = self.advance(first.len, first.whole, rest_to);
        if !is_its_own {
            // It comes back as an error, when it is its turn.
            let why = b"whimbrel front: after a subscription this needs another connection".to_vec();
            request = as_array(&[REFUSED_COMMAND.to_vec(), why]).into();
        }
        self.node(cx, ear)?.to.extend_from_slice(&request);
        Ok(Step::Taken)
    }

    // ---- Transactions ----

    fn in_open_transaction(&mut self, cx: &mut Context<'_>, first: First, aim: Aim) -> Result<Step, Ended> {
        if let Some(step) = self.hold_back(cx, &first, &aim)? {
            return Ok(step);
        }
        let mut place = None;
        if let Aim::Slot(slot) = aim {
            match self.admit_together(cx, slot) {
                // What is queued is carried out by `EXEC`.
                Admitted::Open(guard) => place = self.place_of(guard.as_ref(), slot),
                Admitted::Waits => return Ok(Step::Waits),
                Admitted::Answer(answer) => return self.refuse(cx, first.len, first.whole, answer),
            }
        }
        let Multi::Open { queued, bytes, failed } = &mut self.multi else { return Err(Ended) };
        match aim {
            Aim::Slot(_) => {
                let Some(owner) = place else { return self.dispatch(cx, first, aim) };
                self.begin_at(cx, owner)?;
                self.pass_bound(cx, first, owner)
            }
            Aim::Anyone if !first.whole => self.await_more(cx, first.len),
            Aim::Anyone if *bytes + first.len <= QUEUED_BYTES_MAX => {
                *bytes += first.len;
                let request = self.inbox[..first.len].to_vec().into();
                queued.push(request);
                self.answer(first, b"+QUEUED\r\n".to_vec())
            }
            Aim::Named(Named::Exec) if *failed => {
                (self.multi, self.bound_slot) = (Multi::No, None);
                self.answer(first, EXEC_ABORT.to_vec())
            }
            Aim::Named(Named::Exec) => {
                let main = self.main()?;
                self.begin_at(cx, main)?;
                self.in_transaction(cx, first, aim, main)
            }
            Aim::Named(Named::Discard) => {
                (self.multi, self.bound_slot) = (Multi::No, None);
                self.answer(first, b"+OK\r\n".to_vec())
            }
            Aim::Named(Named::Reset | Named::Quit) => self.dispatch(cx, first, aim),
            Aim::Named(Named::Multi) => {
                self.answer(first, b"-ERR MULTI calls can not be nested\r\n".to_vec())
            }
            Aim::Named(Named::Watch) => {
                self.answer(first, b"-ERR WATCH inside MULTI is not allowed\r\n".to_vec())
            }
            Aim::CrossSlot => {
                *failed = true;
                self.refuse(cx, first.len, first.whole, CROSS_SLOT.to_vec())
            }
            Aim::Named(_) | Aim::Anyone => {
                *failed = true;
                let error = refusal(first.words.first().map_or(b"", |word| word), IN_TRANSACTION);
                self.answer(first, error)
            }
            Aim::Asked | Aim::More => Ok(Step::Waits),
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
        aim: Aim,
        node: u16,
    ) -> Result<Step, Ended> {
        let error = match aim {
            Aim::Named(Named::Exec | Named::Discard) => {
                // With more words the node refuses it, and nothing ends; but any EXEC ends a transaction.
                let guard = match aim {
                    Aim::Named(Named::Exec) => match self.admit_exec(cx, &first, node)? {
                        Ok(guard) => guard,
                        Err(step) => return Ok(step),
                    },
                    _ => None,
                };
                if aim == Aim::Named(Named::Exec) || first.words.len() == 1 {
                    (self.multi, self.watching, self.bound_slot) = (Multi::No, None, None);
                }
                self.pass_bound(cx, first, node)?;
                self.hold(guard);
                return Ok(Step::Taken);
            }
            Aim::Named(Named::Reset | Named::Quit) => return self.dispatch(cx, first, aim),
            Aim::Anyone | Aim::Named(Named::Multi | Named::Watch | Named::Unwatch) => {
                return self.pass_bound(cx, first, node);
            }
            Aim::Slot(slot) => match self.admit_together(cx, slot) {
                // Where its data has moved meanwhile, `EXEC` finds that out.
                Admitted::Open(guard) if guard.is_some() || self.map.owner(slot) == Some(node) => {
                    return self.pass_bound(cx, first, node);
                }
                Admitted::Open(_) => CROSS_SLOT.to_vec(),
                Admitted::Waits => return Ok(Step::Waits),
                Admitted::Answer(answer) => answer,
            },
            Aim::CrossSlot => CROSS_SLOT.to_vec(),
            Aim::Named(_) => refusal(&first.words[0], IN_TRANSACTION),
            Aim::Asked | Aim::More => return Ok(Step::Waits),
        };
        self.advance(first.len, first.whole, None);
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
        let request = self.advance(first.len, first.whole, Some(node));
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
        let request = self.advance(first.len, first.whole, Some(node));
        self.send(cx, node, &request, What::Reply, None)?;
        Ok(Step::Taken)
    }
}
