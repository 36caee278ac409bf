//! A client whose reads and writes go over a connection that others use as well, see
//! [`crate::upstream::shared`].
//!
//! It begins on its own connection, and keeps that. Once the server has answered it there with anything but
//! an error, it has been let in, and what needs nothing of the connection goes over a shared connection. It
//! changes over only while nothing is due to it, so its requests are carried out in their order.

use bytes::BytesMut;

use super::due::{Due, Special};
use super::link::{Kind, Link};
use super::sharing::Route;
use super::state::{Action, Mode, Session};
use crate::command::table::find;
use crate::upstream::shared::{MARK, SHARED_BYTES_MAX};

impl Session {
    /// Where the next request in the inbox goes. `len` is its length, if it has arrived as a whole.
    pub(super) fn route_of(&mut self, taken: usize, len: Option<usize>) -> Route {
        let Mode::Sharing(plain, sharing) = &mut self.mode else { return Route::Own };
        let rest = &self.inbox[taken..];
        let word = |i: usize| self.requests.args().get(i).and_then(|range| rest.get(range.clone()));
        let name = word(0).unwrap_or_default();
        let row = find(name, word(1));
        sharing.is_alone |= row.binds();
        let is_countable = !self.is_subscribed && plain.is_portable();
        let may_share = sharing.is_let_in && !sharing.is_alone && is_countable;
        match len {
            Some(len) if may_share && len <= SHARED_BYTES_MAX && sharing.connections.takes(name) => {
                Route::Shared
            }
            _ if row.looks_back() => Route::Marked,
            _ => Route::Own,
        }
    }

    /// Has the driver change over if the next request wants that. False if the request has to wait: for what
    /// is due, or for a connection.
    pub(super) fn is_where_it_goes(&mut self, route: Route) -> bool {
        let (Mode::Sharing(_, sharing), Link::Up(wire)) = (&mut self.mode, &mut self.link) else {
            return true;
        };
        let is_at_rest = self.due.is_empty() && wire.is_idle();
        match (route, wire.kind == Kind::Shared) {
            (Route::Shared, true) => true,
            (Route::Shared, false) => {
                if is_at_rest {
                    self.link = Link::Connecting;
                    self.actions.push_back(Action::Share);
                }
                !is_at_rest
            }
            (Route::Own | Route::Marked, true) => {
                if is_at_rest {
                    sharing.is_unmarked = true;
                    self.link = Link::Connecting;
                    self.actions.push_back(Action::Unshare);
                }
                false
            }
            (Route::Marked, false) if is_at_rest && sharing.is_unmarked => {
                sharing.is_unmarked = false;
                wire.to.add(MARK);
                let hidden = Special::Replaced(BytesMut::new(), Vec::new());
                self.due.push_back(Due::Special(Box::new(hidden)));
                true
            }
            (Route::Own | Route::Marked, false) => true,
        }
    }

    /// There was no shared connection for it: it keeps to its own, which is there as it was.
    pub(super) fn not_shared(&mut self) {
        if let Some(sharing) = self.mode.sharing_mut() {
            sharing.is_alone = true;
        }
        self.connected(Kind::Own);
    }
}
