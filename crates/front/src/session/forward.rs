//! Requests on their way to the server, where there is one alone.

use bytes::Buf;
use whimbrel_wire::request::Request;

use super::sharing::Route;
use super::state::{First, Mode, Session, WHOLE_BYTES_MAX};
use crate::command::rule::Handling;
use crate::command::table::{find, is_container};
use crate::face::Question;
use crate::pipe::frame::{as_array, refusal};

impl Session {
    /// Takes requests out of the inbox for as long as there is room for what they lead to.
    pub(super) fn take_requests(&mut self) -> bool {
        let mut taken = 0;
        // The start of the requests that are to be passed on as they are.
        let mut plain_from = 0;
        while self.wants_requests() && taken < self.inbox.len() {
            let rest = &self.inbox[taken..];
            let (len, whole) = match self.requests.scan(rest) {
                Ok(Request::Array(len)) => (len, true),
                Ok(Request::Inline(len, words)) if !words.is_empty() => {
                    if !self.is_where_it_goes(Route::Own) {
                        break;
                    }
                    // It goes on as an array, so that there is one form from here on.
                    self.pass_on(plain_from, taken);
                    taken += len;
                    plain_from = taken;
                    self.requests.next();
                    self.take_words(&words);
                    continue;
                }
                Ok(Request::Nothing(len) | Request::Inline(len, _)) => {
                    self.pass_on(plain_from, taken);
                    taken += len;
                    plain_from = taken;
                    self.requests.next();
                    continue;
                }
                Ok(Request::Incomplete(_)) => match self.passable(rest) {
                    Some(len) => (len, false),
                    None => break,
                },
                Err(bad) => {
                    self.pass_on(plain_from, taken);
                    if let Some(answer) = bad.answer() {
                        self.push_reply(answer.into_bytes());
                    }
                    self.leave();
                    self.inbox.clear();
                    return true;
                }
            };
            if matches!(self.mode, Mode::Sharing(..)) && !self.is_inside() {
                let route = self.route_of(taken, whole.then_some(len));
                if !self.is_where_it_goes(route) {
                    break;
                }
            }
            let is_passed = match self.first {
                First::Passing => true,
                First::ThrowingAway => false,
                First::Fresh | First::Waiting | First::Settled(_) => {
                    self.begin_request(taken, whole.then_some(len), &mut plain_from)
                }
            };
            if is_passed {
                self.mark(len, whole);
            } else {
                self.pass_on(plain_from, taken);
                plain_from = taken + len;
            }
            taken += len;
            if whole {
                self.first = First::Fresh;
                self.requests.next();
            } else {
                self.first = if is_passed { First::Passing } else { First::ThrowingAway };
                self.requests.forget(len);
            }
        }
        self.pass_on(plain_from, taken);
        self.inbox.advance(taken);
        taken > 0
    }

    /// What becomes of the request that begins at `at` in the inbox: whether it is passed on. `whole` is its
    /// length if all of it is there; from `plain_from` on requests wait to be passed on as they are.
    fn begin_request(&mut self, at: usize, whole: Option<usize>, plain_from: &mut usize) -> bool {
        let rest = &self.inbox[at..];
        let args = self.requests.args();
        let word = |i: usize| args.get(i).and_then(|range| rest.get(range.clone()));
        let name = word(0).unwrap_or_default();
        let row = find(name, word(1));
        self.asking = None;
        if row.face.is_some() && self.face.is_some() {
            let words: Vec<&[u8]> = args.iter().map_while(|range| rest.get(range.clone())).collect();
            self.asking = Question::of(&words).filter(|_| whole.is_some() && self.requests.args_left() == 0);
        }
        match row.handling() {
            Handling::Refused(why) => {
                let error = refusal(name, why);
                self.pass_on(*plain_from, at);
                *plain_from = at;
                self.push_error(error);
                false
            }
            Handling::Subscribe => {
                self.is_subscribed = true;
                true
            }
            Handling::Noted(note) if self.notes() => {
                let request = whole.map(|len| rest[..len].into());
                let is_first = word(1).is_some_and(|database| database == b"0");
                self.note(note, request, is_first);
                true
            }
            Handling::Passed | Handling::Noted(_) => {
                self.owe_reply();
                true
            }
        }
    }

    /// Whether it has to be known what a client has said of itself.
    fn notes(&self) -> bool {
        self.mode.plain().is_some() || self.face.is_some()
    }

    /// How much of an unfinished request can be passed on already: if it is long, and what to do with it is
    /// known.
    pub(super) fn passable(&self, rest: &[u8]) -> Option<usize> {
        let bytes = self.requests.forgettable(rest);
        if self.is_inside() {
            return (bytes > 0).then_some(bytes);
        }
        let args = self.requests.args();
        let name = args.first().and_then(|range| rest.get(range.clone()))?;
        let is_known = !is_container(name) || args.get(1).is_some_and(|range| range.end <= rest.len());
        (rest.len() > WHOLE_BYTES_MAX && is_known).then_some(bytes)
    }

    pub(super) fn take_words(&mut self, words: &[Vec<u8>]) {
        let name = words.first().map(Vec::as_slice).unwrap_or_default();
        if self.face.is_some() {
            self.asking = Question::of(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        let second = words.get(1).map(Vec::as_slice);
        match find(name, second).handling() {
            Handling::Refused(why) => return self.push_error(refusal(name, why)),
            Handling::Subscribe => self.is_subscribed = true,
            Handling::Noted(note) if self.notes() => {
                self.note(note, Some(as_array(words).into()), second == Some(b"0"));
            }
            Handling::Passed | Handling::Noted(_) => self.owe_reply(),
        }
        self.send_words(words);
    }
}
