//! A session between two servers, while keys move from one to the other.
//!
//! A client is always at one of the two: `Session::link` is the connection to that one, and the other is
//! parked. It changes over when all replies of the one have arrived, so its commands are carried out in their
//! order.
//!
//! Requests are looked at as a whole, one after the other: each goes to one of the servers, or waits until
//! its keys have moved, and those after it with it. A long one whose keys are all at its beginning is passed
//! on while it arrives, as ever; another long one is held until it is there, up to [`REQUEST_BYTES_MAX`] and
//! within what all clients together may hold.

use std::sync::atomic::Ordering;

use bytes::{Buf, Bytes, BytesMut};
use whimbrel_wire::request::Request;

use super::due::{Change, Due, Special};
use super::elements;
use super::link::{INBOX_BYTES_MAX, Link};
use super::moving::{Extent, Moving, Settled, Step};
use super::state::{Action, First, Mode, Session, Task, WHOLE_BYTES_MAX};
use crate::command::plan::{Plan, select};
use crate::command::rule::{Handling, Note, Rule, Trait};
use crate::command::table::{find, find_by_words};
use crate::face::Question;
use crate::migrate::direction::Side;
use crate::migrate::keyspace::{ScanPhase, resume};
use crate::pipe::frame::{REFUSED_COMMAND, as_array, refusal};
use crate::pipe::io::STALLED;
use crate::pipe::memory::REQUEST_BYTES_MAX;
use crate::upstream::identity::INTRODUCTION_BYTES_MAX;

impl Session {
    /// Takes requests for as long as they can go on. Whether anything was taken, and whether a whole request
    /// is in the inbox that waits for something.
    pub(super) fn take_while_moving(&mut self) -> (bool, bool) {
        // It is put back below: nothing in between looks at the mode.
        let mode = std::mem::replace(&mut self.mode, Mode::Forwarding);
        let Mode::Moving(mut moving) = mode else {
            self.mode = mode;
            return (false, false);
        };
        let mut moved = false;
        let step = loop {
            match self.take_one(&mut moving) {
                Step::Moved => moved = true,
                step => break step,
            }
        };
        self.mode = Mode::Moving(moving);
        (moved, step == Step::HeldUp)
    }

    /// What the first request waits for has come.
    pub(super) fn settled(&mut self, settled: Settled) {
        self.first = First::Settled(settled);
    }

    /// The source has closed the connection. If the client waits for nothing there it need not notice; true
    /// if so.
    pub(super) fn switch_to_target(&mut self) -> bool {
        let is_between = self.due.is_empty() && !self.is_inside();
        let Mode::Moving(moving) = &mut self.mode else { return false };
        if moving.at == Side::Target || !is_between {
            return false;
        }
        moving.at = Side::Target;
        self.link = Link::Connecting;
        let keeps_end = moving.transaction.is_watching();
        self.actions.push_back(Action::SwitchSide { side: Side::Target, parks: false, keeps_end });
        true
    }

    /// The client has taken something in.
    pub(super) fn is_reading(&mut self) {
        if let Mode::Moving(moving) = &mut self.mode
            && let Some(stall) = &mut moving.stall
        {
            *stall = self.now + STALLED;
        }
    }

    /// Whether a key waits for this client to take in a reply, and has for too long.
    pub(super) fn is_stalled(&mut self) -> bool {
        let Mode::Moving(moving) = &mut self.mode else { return false };
        if moving.stall.is_none_or(|stall| self.now < stall) {
            return false;
        }
        let mut held = self.due.iter().filter_map(|due| match due {
            Due::Special(special) => match &**special {
                Special::Moving(held) => Some(held),
                _ => None,
            },
            Due::Reply => None,
        });
        let holds_any = held.clone().next().is_some();
        if held.any(|held| held.iter().any(|held| held.is_wanted())) {
            tracing::warn!("a client that takes in nothing keeps a key from moving: it is disconnected");
            return true;
        }
        moving.stall = holds_any.then(|| self.now + STALLED);
        false
    }

    fn take_one(&mut self, moving: &mut Moving) -> Step {
        if self.inbox.is_empty() {
            return Step::Nothing;
        }
        let is_resting = self.is_called && moving.transaction.is_none();
        if matches!(self.first, First::Waiting) || !self.wants_requests() || is_resting && !self.is_inside() {
            return Step::HeldUp;
        }
        let extent = match self.requests.scan(&self.inbox) {
            Ok(Request::Array(len)) => Extent { len, whole: true },
            Ok(Request::Inline(len, words)) if !words.is_empty() => {
                // As an array, so that there is one form from here on.
                let rest = self.inbox.split_off(len);
                self.inbox = BytesMut::from(&as_array(&words)[..]);
                self.inbox.extend_from_slice(&rest);
                self.requests.next();
                return Step::Moved;
            }
            Ok(Request::Nothing(len) | Request::Inline(len, _)) => {
                self.inbox.advance(len);
                self.requests.next();
                return Step::Moved;
            }
            Ok(Request::Incomplete(_)) => {
                let len = self.requests.forgettable(&self.inbox);
                if len == 0 || !self.is_inside() && self.inbox.len() <= WHOLE_BYTES_MAX {
                    return Step::Nothing;
                }
                Extent { len, whole: false }
            }
            Err(bad) => {
                if let Some(answer) = bad.answer() {
                    self.push_reply(answer.into_bytes());
                }
                self.leave();
                self.inbox.clear();
                return Step::Moved;
            }
        };
        match std::mem::replace(&mut self.first, First::Fresh) {
            First::Passing => self.go_on(moving, extent, true),
            First::ThrowingAway => self.go_on(moving, extent, false),
            First::Settled(settled) => self.settle(moving, extent, settled),
            First::Fresh | First::Waiting => self.decide(moving, extent),
        }
    }

    fn settle(&mut self, moving: &mut Moving, extent: Extent, settled: Settled) -> Step {
        match settled {
            Settled::Send => match self.be_at(moving, Side::Target) {
                None => self.send(moving, extent, Due::Reply),
                Some(step) => {
                    self.first = First::Settled(Settled::Send);
                    step
                }
            },
            Settled::Reply(reply) => {
                self.push_reply(reply);
                self.go_on(moving, extent, false)
            }
            Settled::Refuse(error) => self.refuse(moving, extent, error),
        }
    }

    /// Looks at a request. At least its first two words are known.
    fn decide(&mut self, moving: &mut Moving, extent: Extent) -> Step {
        let migration = moving.migration.clone();
        let args = self.requests.args();
        let count = args.len() + usize::try_from(self.requests.args_left()).unwrap_or(usize::MAX / 2);
        let words: Vec<&[u8]> = args.iter().map_while(|range| self.inbox.get(range.clone())).collect();
        let (name, second) = (words.first().copied().unwrap_or_default(), words.get(1).copied());
        if words.len() < count.min(2) {
            return self.await_more(moving);
        }
        self.asking = self.face.as_ref().filter(|_| extent.whole).and_then(|_| Question::of(&words));
        let row = find(name, second);
        if let Handling::Refused(why) = row.handling() {
            let error = refusal(name, why);
            return self.refuse(moving, extent, error);
        }
        let iterates = row.migrating == Some(Rule::Elements);
        if iterates {
            if !extent.whole {
                return self.await_more(moving);
            }
            let may_be_of_another = !migration.is_done() || migration.reversals > 0;
            if (moving.transaction.is_open() || self.is_subscribed)
                && may_be_of_another
                && elements::is_unmarked(&words, migration.reversals)
            {
                let error = refusal(name, elements::NOT_BOUND);
                return self.refuse(moving, extent, error);
            }
        }
        if row.migrating == Some(Rule::Noted(Note::Watch)) {
            moving.transaction.watch();
        }
        let plan = match migration.is_done() {
            // No key is in it.
            _ if self.asking.is_some() => Plan::Target,
            true => after_all(&words),
            false => migration.servers.tables.plan(&words, count),
        };
        if let Plan::Refused(why) = plan {
            let error = refusal(name, why);
            return self.refuse(moving, extent, error);
        }
        // After a turn this is for the target alone: cursors of the source have no mark that shows their
        // turn.
        let is_iteration = migration.reversals > 0 && iterates;
        let bytes = |at: &usize| words.get(*at).map(|word| Bytes::copy_from_slice(word));
        match plan {
            Plan::Read(at) | Plan::Write(at) if !extent.whole => match at.iter().map(bytes).collect() {
                Some(keys) => self.pull(moving, keys),
                None => self.await_more(moving),
            },
            Plan::Target if migration.is_done() => self.pass(moving, extent, Due::Reply),
            _ if !extent.whole => self.await_more(moving),
            Plan::Target => self.pass(moving, extent, Due::Reply),
            Plan::Read(at) | Plan::Write(at) if migration.all_known(&keys(&words, &at)) => {
                self.pass(moving, extent, Due::Reply)
            }
            Plan::Read(at) if !(moving.transaction.is_open() || self.is_subscribed || is_iteration) => {
                let keys = keys(&words, &at);
                self.read_at_source(moving, extent, keys)
            }
            Plan::Read(at) | Plan::Write(at) => {
                let keys = keys(&words, &at);
                self.pull(moving, keys)
            }
            Plan::Asked => {
                let words: Vec<Bytes> = words.iter().map(|word| Bytes::copy_from_slice(word)).collect();
                migration.tally.pulled.fetch_add(1, Ordering::Relaxed);
                self.wait(Task::PullKeysOf(words))
            }
            Plan::ByName(what) => {
                let words: Vec<Bytes> = words.iter().map(|word| Bytes::copy_from_slice(word)).collect();
                self.by_name(moving, extent, what, words)
            }
            Plan::Refused(_) => Step::Nothing,
        }
    }

    /// What is known by its name, and whole.
    fn by_name(&mut self, moving: &mut Moving, extent: Extent, what: Rule, words: Vec<Bytes>) -> Step {
        let name = words.first().cloned().unwrap_or_default();
        let is_bound = moving.transaction.is_open() || self.is_subscribed;
        match what {
            Rule::Noted(note) => {
                if let Some(step) = self.be_at(moving, Side::Target) {
                    return step;
                }
                let due = match note {
                    Note::Trait(what) if !is_bound && extent.len <= INTRODUCTION_BYTES_MAX => {
                        Due::Special(Box::new(Special::Noted(what, self.inbox[..extent.len].into())))
                    }
                    // Its protocol has to be known if it is told about a cluster.
                    Note::Trait(what)
                        if moving.migration.is_done() && (what != Trait::Hello || self.face.is_none()) =>
                    {
                        moving.is_unknown = true;
                        Due::Reply
                    }
                    Note::Trait(_) if !self.is_subscribed => {
                        let error =
                            refusal(&name, "not in a transaction while keys move, nor of such a length");
                        return self.refuse(moving, extent, error);
                    }
                    Note::Reset => Due::Special(Box::new(Special::Reset)),
                    // For a client that the target alone serves, the source will not be sent anything any
                    // more.
                    _ => Due::Reply,
                };
                // With more words the server refuses it, and nothing ends; but any EXEC ends a transaction.
                let is_alone = words.len() == 1;
                match note {
                    Note::Multi => moving.transaction.begin(),
                    Note::Exec => moving.transaction.end(),
                    Note::Discard if is_alone => moving.transaction.end(),
                    Note::Reset if is_alone => moving.transaction.reset(),
                    Note::Unwatch if is_alone => moving.transaction.unwatch(),
                    _ => {}
                }
                self.send(moving, extent, due)
            }
            Rule::Subscribe => {
                if let Some(step) = self.be_at(moving, Side::Target) {
                    return step;
                }
                self.is_subscribed = true;
                self.send(moving, extent, Due::Reply)
            }
            Rule::Select if moving.migration.is_done() => self.select_any(moving, extent, &words),
            Rule::Select => match select(words.get(1).map(|word| &word[..])) {
                Ok(()) => self.pass(moving, extent, Due::Reply),
                Err(why) => self.refuse(moving, extent, refusal(&name, why)),
            },
            // Once the direction has been turned, a cursor without a mark could be that of either server.
            Rule::Scan if is_bound && moving.migration.is_done() && moving.migration.reversals == 0 => {
                self.pass(moving, extent, Due::Reply)
            }
            Rule::Scan | Rule::Both(_) | Rule::Flush if is_bound => {
                let why = "not in a transaction, nor after a subscription, while keys move";
                self.refuse(moving, extent, refusal(&name, why))
            }
            Rule::Scan => self.scan_phase(moving, extent, words),
            // What the client did before has to be counted.
            Rule::Both(_) | Rule::Flush if !self.due.is_empty() => Step::HeldUp,
            Rule::Both(query) => self.wait(Task::AskBoth(query, words)),
            Rule::Flush => self.wait(Task::Flush(words)),
            Rule::Target
            | Rule::Elements
            | Rule::Script
            | Rule::Library
            | Rule::Sort
            | Rule::Copy
            | Rule::Refused(_) => self.pass(moving, extent, Due::Reply),
        }
    }

    /// All keys have moved, so any database is served. A client that is in another one than the first cannot
    /// go over when keys move again.
    fn select_any(&mut self, moving: &mut Moving, extent: Extent, words: &[Bytes]) -> Step {
        if let Some(step) = self.be_at(moving, Side::Target) {
            return step;
        }
        let is_first = words.get(1).is_some_and(|database| &database[..] == b"0");
        // In a transaction the reply says that it is queued, and nothing of whether it is carried out.
        moving.is_unknown |= moving.transaction.is_open();
        let due = match moving.transaction.is_open() {
            true => Due::Reply,
            false => Due::Special(Box::new(Special::Changed(Change::Select(is_first)))),
        };
        self.send(moving, extent, due)
    }

    /// Sends a read to the source, holding its keys until the reply has arrived, or has them moved first.
    fn read_at_source(&mut self, moving: &mut Moving, extent: Extent, keys: Vec<Bytes>) -> Step {
        let migration = moving.migration.clone();
        if !migration.may_forward(&keys) || !migration.servers.source.takes_together(&keys) {
            return self.pull(moving, keys);
        }
        // Nothing is held while the other server still answers.
        if let Some(step) = self.be_at(moving, Side::Source) {
            return step;
        }
        let Some(held) = migration.lock_for_read(&keys) else { return self.pull(moving, keys) };
        migration.tally.forwarded.fetch_add(1, Ordering::Relaxed);
        migration.tally.filter_no.fetch_add(held.len() as u64, Ordering::Relaxed);
        if moving.stall.is_none() {
            moving.stall = Some(self.now + STALLED);
        }
        self.send(moving, extent, Due::Special(Box::new(Special::Moving(held))))
    }

    fn scan_phase(&mut self, moving: &mut Moving, extent: Extent, words: Vec<Bytes>) -> Step {
        let (reversals, is_done) = (moving.migration.reversals, moving.migration.is_done());
        let Some((phase, cursor)) = words.get(1).and_then(|cursor| resume(cursor, reversals, is_done)) else {
            return self.pass(moving, extent, Due::Reply);
        };
        if let Some(step) = self.be_at(moving, phase.side) {
            return step;
        }
        let visit = match phase.side {
            Side::Target => None,
            Side::Source => match moving.migration.locks.visit() {
                Some(visit) => Some(visit),
                None => {
                    let error = b"-TRYAGAIN whimbrel front: all keys are being removed\r\n".to_vec();
                    return self.refuse(moving, extent, error);
                }
            },
        };
        let mut words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        words[1] = cursor.to_string().into_bytes();
        self.send_words(&words);
        self.owe(Due::Special(Box::new(Special::Scanned(BytesMut::new(), phase, visit))));
        self.go_on(moving, extent, false)
    }

    fn wait(&mut self, task: Task) -> Step {
        self.first = First::Waiting;
        self.actions.push_back(Action::Wait(task));
        Step::Moved
    }

    fn pull(&mut self, moving: &Moving, keys: Vec<Bytes>) -> Step {
        moving.migration.tally.pulled.fetch_add(1, Ordering::Relaxed);
        self.wait(Task::Pull(keys))
    }

    /// Sends a request to the target as it is.
    fn pass(&mut self, moving: &mut Moving, extent: Extent, due: Due) -> Step {
        if let Some(step) = self.be_at(moving, Side::Target) {
            return step;
        }
        moving.migration.tally.direct.fetch_add(1, Ordering::Relaxed);
        self.send(moving, extent, due)
    }

    /// Sends a request to the server where the session is.
    fn send(&mut self, moving: &mut Moving, extent: Extent, due: Due) -> Step {
        let is_bound = moving.transaction.is_open() || self.is_subscribed;
        if moving.at == Side::Target
            && extent.whole
            && let Some(request) = self.iteration_at_target(moving.migration.reversals, is_bound)
        {
            self.send_words(&request);
            // In a transaction the reply is another one.
            let phase = ScanPhase { side: Side::Target, reversals: moving.migration.reversals };
            let scanned = || Due::Special(Box::new(Special::Iterated(BytesMut::new(), phase)));
            self.owe(if is_bound { due } else { scanned() });
            return self.go_on(moving, extent, false);
        }
        self.owe(due);
        self.go_on(moving, extent, true)
    }

    /// The first request in the inbox as the target has to get it, if it is such an iteration and whole.
    fn iteration_at_target(&self, reversals: u32, keeps_unmarked: bool) -> Option<Vec<Vec<u8>>> {
        let args = self.requests.args();
        let name = args.first().and_then(|range| self.inbox.get(range.clone()))?;
        if !elements::iterates(name) {
            return None;
        }
        let words: Vec<&[u8]> = args.iter().map_while(|range| self.inbox.get(range.clone())).collect();
        elements::at_target(&words, reversals, keeps_unmarked)
    }

    /// Takes what is there of a request out of the inbox; it is passed on to the server where the session is,
    /// or thrown away.
    fn go_on(&mut self, moving: &mut Moving, extent: Extent, is_passed: bool) -> Step {
        if is_passed {
            self.mark(extent.len, extent.whole);
            self.pass_on(0, extent.len);
        }
        self.inbox.advance(extent.len);
        if extent.whole {
            self.first = First::Fresh;
            self.requests.next();
        } else {
            self.first = if is_passed { First::Passing } else { First::ThrowingAway };
            self.requests.forget(extent.len);
        }
        moving.inbox_bytes_max = INBOX_BYTES_MAX;
        moving.memory.clear();
        Step::Moved
    }

    /// Answers a request with an error, and has a transaction fail that it belongs to.
    fn refuse(&mut self, moving: &mut Moving, extent: Extent, error: Vec<u8>) -> Step {
        if self.is_subscribed {
            self.push_error(error);
        } else if moving.transaction.is_open() {
            if let Some(step) = self.be_at(moving, Side::Target) {
                self.first = First::Settled(Settled::Refuse(error));
                return step;
            }
            // It makes the transaction fail.
            self.send_words(&[REFUSED_COMMAND]);
            self.owe(Due::Special(Box::new(Special::Replaced(BytesMut::new(), error))));
        } else {
            self.push_reply(error);
        }
        self.go_on(moving, extent, false)
    }

    /// More of a long request has to arrive before anything can be done with it, as far as there is room.
    fn await_more(&mut self, moving: &mut Moving) -> Step {
        let max = moving.inbox_bytes_max;
        if self.inbox.len() < max {
            return Step::Nothing;
        }
        let permit = (max < REQUEST_BYTES_MAX).then(|| moving.migration.long.take(max as u64)).flatten();
        if let Some(permit) = permit {
            moving.memory.push(permit);
            moving.inbox_bytes_max = max * 2;
            // It is read from again.
            return Step::Moved;
        }
        let extent = Extent { len: self.requests.forgettable(&self.inbox), whole: false };
        let error = b"-ERR whimbrel front: while keys move, a command so long has to have its keys at its \
            beginning\r\n";
        self.refuse(moving, extent, error.to_vec())
    }

    /// Goes to a server. `None` if the session is there; else what comes first.
    fn be_at(&mut self, moving: &mut Moving, side: Side) -> Option<Step> {
        if moving.at == side {
            return None;
        }
        let is_idle = matches!(&self.link, Link::Up(wire) if wire.to.is_empty() && wire.from.is_empty());
        if !self.due.is_empty() || !is_idle {
            return Some(Step::HeldUp);
        }
        moving.at = side;
        self.link = Link::Connecting;
        // With a connection to the target its watches are gone, so that is the client's end as well.
        let keeps_end = side == Side::Target && moving.transaction.is_watching();
        self.actions.push_back(Action::SwitchSide { side, parks: true, keeps_end });
        Some(Step::Moved)
    }
}

/// When all keys have moved, hardly anything is special any more. But the state of a session at the target
/// has to be known: it changes to other connections if the direction is turned.
fn after_all(words: &[&[u8]]) -> Plan {
    match find_by_words(words).migrating {
        // All that matters of it has been noted.
        Some(Rule::Noted(Note::Watch)) => Plan::Target,
        Some(what @ (Rule::Scan | Rule::Subscribe | Rule::Select | Rule::Noted(_))) => Plan::ByName(what),
        _ => Plan::Target,
    }
}

fn keys(words: &[&[u8]], at: &[usize]) -> Vec<Bytes> {
    at.iter().filter_map(|at| words.get(*at)).map(|word| Bytes::copy_from_slice(word)).collect()
}
