//! Connections of a front that is a member of a fleet: which requests it may carry out, and what it does when
//! that is another's matter.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use whimbrel_core::slot::Slot;
use whimbrel_fleet::Guard;
use whimbrel_wire::value::Value;

use super::due::{At, Due, What};
use super::news::{FleetNews, next};
use super::node::State;
use super::request::{Admitted, CROSS_SLOT, First, Multi, Step, Waiting};
use super::state::{Conn, PAUSE};
use crate::command::rule::{ClusterRule, KeyspaceQuery, Rule};
use crate::command::table::find;
use crate::pipe::frame::{as_array, refusal};
use crate::pipe::io::Ended;
use crate::upstream::admission::{Admission, Verdict};
use crate::upstream::cluster::nodes::Role;

/// How long a request of a slot that no member serves waits. That is longer than it takes to give away what a
/// lost member had.
const NOBODY_WAIT: Duration = Duration::from_secs(5);

const NOBODY: &[u8] = b"-CLUSTERDOWN whimbrel front: nobody serves the slot\r\n";
const EMPTYING: &str =
    "it would empty what all members of the fleet serve: send it to the servers that have the data";

impl<A: Admission> Conn<A> {
    /// Whether a request of this slot may be carried out.
    pub(super) fn admit(&mut self, cx: &mut Context<'_>, slot: Slot) -> Admitted {
        loop {
            self.follow_members();
            let admission = match &self.cluster.role {
                Role::None => return Admitted::Open(None),
                Role::Members(_) if self.map.owner(slot).is_some() => Some(Admitted::Open(None)),
                Role::Members(_) => None,
                Role::Backend(gate) => match gate.verdict(slot) {
                    Verdict::Ours(guard) => {
                        if !self.map.has(guard.backend()) {
                            self.map = self.cluster.map();
                        }
                        // How long it takes until it is reached for the first time cannot be said.
                        self.map.has(guard.backend()).then_some(Admitted::Open(Some(guard)))
                    }
                    Verdict::At(to) => Some(Admitted::Answer(format!("-MOVED {slot} {to}\r\n").into_bytes())),
                    Verdict::Nobody => None,
                },
            };
            if let Some(admission) = admission {
                self.waiting = None;
                return admission;
            }
            let waiting = self.waiting.get_or_insert_with(|| Waiting {
                until: Instant::now() + NOBODY_WAIT,
                pause: Box::pin(sleep(PAUSE)),
            });
            if waiting.pause.as_mut().poll(cx).is_pending() {
                return Admitted::Waits;
            }
            if Instant::now() >= waiting.until {
                self.waiting = None;
                return Admitted::Answer(NOBODY.to_vec());
            }
            waiting.pause = Box::pin(sleep(PAUSE));
        }
    }

    /// Which node has a slot: of the backend that has its data for as long as the guard lives.
    pub(super) fn place_of(&self, guard: Option<&Guard>, slot: Slot) -> Option<u16> {
        match guard {
            Some(guard) => self.map.owner_at(guard.backend(), slot),
            None => self.map.owner(slot),
        }
    }

    /// Whether a command with keys in this slot may be part of the transaction, or of what is watched before
    /// it.
    pub(super) fn admit_together(&mut self, cx: &mut Context<'_>, slot: Slot) -> Admitted {
        if !self.is_gated() && !self.holds_back() {
            return Admitted::Open(None);
        }
        if self.bound_slot.is_some_and(|bound| bound != slot) {
            return Admitted::Answer(CROSS_SLOT.to_vec());
        }
        let admission = self.admit(cx, slot);
        if matches!(admission, Admitted::Open(_)) {
            self.bound_slot = Some(slot);
        }
        admission
    }

    /// `EXEC`: what has been queued is carried out now, so this checks now which member serves its slot.
    /// `None` if the step is for the caller, with the guard.
    pub(super) fn admit_exec(
        &mut self,
        cx: &mut Context<'_>,
        first: &First,
        node: u16,
    ) -> Result<Result<Option<Guard>, Step>, Ended> {
        let Some(slot) = self.bound_slot.filter(|_| first.words.len() == 1) else { return Ok(Ok(None)) };
        let admission = match self.admit(cx, slot) {
            // The data has gone to another backend: the client begins again, and is led there.
            Admitted::Open(Some(guard)) if self.place_of(Some(&guard), slot) != Some(node) => {
                Admitted::Answer(self.moved_here(slot))
            }
            admission => admission,
        };
        match admission {
            Admitted::Open(guard) => Ok(Ok(guard)),
            Admitted::Waits => Ok(Err(Step::Waits)),
            Admitted::Answer(answer) => {
                (self.multi, self.watching, self.bound_slot) = (Multi::No, None, None);
                self.advance(first.whole, None);
                let discard = Bytes::from(as_array(&[b"DISCARD".to_vec()]));
                self.send(cx, node, &discard, What::Replaced(answer), None)?;
                Ok(Err(Step::Taken))
            }
        }
    }

    /// What is different if each member serves a part of what one server has. `None`: nothing is.
    pub(super) fn as_member(
        &mut self,
        cx: &mut Context<'_>,
        first: &First,
        rule: ClusterRule,
    ) -> Option<Result<Vec<u8>, Step>> {
        self.gate()?;
        let ClusterRule::Every(_) = rule else { return None };
        let name = first.words.first()?;
        match find(name, None).migrating {
            Some(Rule::Flush) => return Some(Ok(refusal(name, EMPTYING))),
            Some(Rule::Both(KeyspaceQuery::Count)) => {}
            _ => return None,
        }
        // All members see all keys: so that the sum is right, one of them reports it.
        match self.admit(cx, Slot::all().next()?) {
            Admitted::Open(_) => None,
            Admitted::Answer(answer) if answer.starts_with(b"-MOVED") => Some(Ok(b":0\r\n".to_vec())),
            Admitted::Answer(answer) => Some(Ok(answer)),
            Admitted::Waits => Some(Err(Step::Waits)),
        }
    }

    /// Sends the client here again.
    pub(super) fn moved_here(&self, slot: Slot) -> Vec<u8> {
        let own = self.gate().map(|gate| gate.own().to_string()).unwrap_or_default();
        format!("-MOVED {slot} {own}\r\n").into_bytes()
    }

    /// Of the keys in the reply of a node to `KEYS`, or with `is_scan` to `SCAN`, those of slots that this
    /// front owns and whose data is there. What is no such reply is as it was.
    pub(super) fn own_keys(&self, reply: Vec<u8>, is_scan: bool, at: At) -> Vec<u8> {
        let Some(gate) = self.gate() else { return reply };
        let Ok(Value::Array(mut parts)) = Value::parse(&Bytes::copy_from_slice(&reply)) else { return reply };
        let cursor = if is_scan && parts.len() == 2 { Some(parts.remove(0)) } else { None };
        let keys = match (is_scan, parts.pop()) {
            (true, Some(Value::Array(keys))) => keys,
            (true, _) => return reply,
            (false, last) => {
                parts.extend(last);
                parts
            }
        };
        // Elsewhere there may be what is on its way, or what was left behind.
        let is_there = |slot: Slot| {
            !self.map.has_several()
                || self.map.owner_at(gate.backend_of(slot), slot).map(At::Node) == Some(at)
        };
        let is_own = |key: &&Bytes| {
            let slot = Slot::of_key(key);
            gate.owns(slot) && is_there(slot) && !gate.is_hidden(key)
        };
        let own = keys.iter().filter_map(Value::as_bytes).filter(is_own);
        let own = as_array(&own.map(|key| key.to_vec()).collect::<Vec<_>>());
        let Some(cursor) = cursor.as_ref().and_then(Value::as_bytes) else { return own };
        let mut text = format!("*2\r\n${}\r\n", cursor.len()).into_bytes();
        text.extend_from_slice(cursor);
        text.extend_from_slice(b"\r\n");
        text.extend_from_slice(&own);
        text
    }

    /// Hears of the end of the lease, and of members that have come or gone; true if there was something.
    pub(super) fn hear_fleet_news(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        match &mut self.fleet_news {
            FleetNews::Nothing => Ok(false),
            FleetNews::Lapse(lapse) => {
                if lapse.as_mut().poll(cx).is_pending() {
                    return Ok(false);
                }
                // What is under way is another member's from now on.
                let is_under_way = |due: &Due| due.guard.is_some() || due.wait.is_some();
                if self.alone_wait.is_some() || self.due.iter().any(is_under_way) {
                    return Err(Ended);
                }
                self.fleet_news = FleetNews::of(&self.cluster);
                Ok(true)
            }
            FleetNews::Members(news) => {
                let Poll::Ready(changed) = news.as_mut().poll(cx) else { return Ok(false) };
                self.fleet_news = FleetNews::Members(next(changed));
                self.leave_the_lost()?;
                Ok(true)
            }
        }
    }

    /// A former member may never answer: what was sent there is lost, and what was not is sent to another
    /// member.
    fn leave_the_lost(&mut self) -> Result<(), Ended> {
        let Role::Members(gate) = &self.cluster.role else { return Ok(()) };
        for node in self.nodes.iter_mut().flatten().chain(&mut self.detour) {
            if gate.knows(&node.address) {
                continue;
            }
            match node.state {
                State::Connecting(_) => {
                    node.to.clear();
                    node.state = State::Failed {
                        why: "it is no member of the fleet any more".to_owned(),
                        is_refused: false,
                    };
                }
                State::Up(_) if node.due > 0 => return Err(Ended),
                // Members' connections are not shared.
                State::Up(_) | State::Shared(_) | State::Failed { .. } => {}
            }
        }
        let bound = [self.listening.node(), self.watching].into_iter().flatten();
        let mut lost = bound.filter_map(|number| self.nodes.get(usize::from(number))?.as_deref());
        if lost.any(|node| !gate.knows(&node.address)) { Err(Ended) } else { Ok(()) }
    }
}
