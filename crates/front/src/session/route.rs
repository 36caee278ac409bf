//! A client whose reads and writes go over a connection that others use as well, see
//! [`crate::upstream::shared`].
//!
//! It begins on its own connection, and keeps that. Once the server has answered it there with anything but
//! an error, it has been let in, and what needs nothing of the connection goes over a shared connection. It
//! changes over only while nothing is due to it, so its requests are carried out in their order.

use std::task::Context;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};

use super::due::{Due, Special};
use super::link::{Link, Server, Way, connect_again};
use super::sharing::Route;
use super::state::{Session, WHOLE_BYTES_MAX};
use crate::pipe::io::Ended;

/// Has the server note how far it is, for `WAIT`, which waits for what was written before the last command of
/// its connection. Without words it changes nothing, and every user may say it.
const MARK: &[u8] = b"*1\r\n$5\r\nHELLO\r\n";

/// What `CLIENT` is followed by that leaves nothing behind on the connection but what is known anyway.
const HARMLESS: [&[u8]; 11] = [
    b"ID", b"INFO", b"LIST", b"GETNAME", b"SETNAME", b"SETINFO", b"KILL", b"PAUSE", b"UNPAUSE", b"UNBLOCK",
    b"HELP",
];

impl<C: AsyncRead + AsyncWrite + Unpin> Session<C> {
    /// Where the request goes that is next in the inbox. `len` is its length, where it has arrived as a
    /// whole.
    pub(super) fn route_of(&mut self, taken: usize, len: Option<usize>) -> Route {
        let Some(sharing) = &mut self.sharing else { return Route::Own };
        let rest = &self.inbox[taken..];
        let word = |i: usize| self.requests.args().get(i).and_then(|range| rest.get(range.clone()));
        let name = word(0).unwrap_or_default();
        if name.eq_ignore_ascii_case(b"CLIENT") {
            sharing.is_alone |=
                word(1).is_none_or(|second| !HARMLESS.iter().any(|word| second.eq_ignore_ascii_case(word)));
        }
        let is_portable = self.plain.as_ref().is_some_and(|plain| plain.is_portable());
        let may_share = sharing.is_let_in && !sharing.is_alone && self.counted && is_portable;
        match len {
            Some(len) if may_share && len <= WHOLE_BYTES_MAX && sharing.connections.takes(name) => {
                Route::Shared
            }
            _ if name.eq_ignore_ascii_case(b"WAIT") || name.eq_ignore_ascii_case(b"WAITAOF") => Route::Marked,
            _ => Route::Own,
        }
    }

    /// Changes over where the next request wants that. False where it has to wait: for what is due, or for a
    /// connection.
    pub(super) fn is_where_it_goes(&mut self, route: Route) -> bool {
        let (Some(sharing), Link::Up(server)) = (&mut self.sharing, &mut self.link) else { return true };
        let is_at_rest = self.due.is_empty() && server.is_idle();
        match (route, server.is_shared()) {
            (Route::Shared, true) => true,
            (Route::Shared, false) => {
                if is_at_rest {
                    self.share();
                }
                true
            }
            (Route::Own | Route::Marked, true) => {
                if is_at_rest {
                    sharing.is_unmarked = true;
                    let own = match sharing.parked.take() {
                        Some(own) => Link::Up(own),
                        None => Link::Connecting(connect_again(&self.shared, &self.identity)),
                    };
                    if let Link::Up(server) = std::mem::replace(&mut self.link, own)
                        && let Way::Shared(handle) = server.way
                    {
                        sharing.idle_handle = Some(handle);
                    }
                }
                is_at_rest && matches!(self.link, Link::Up(_)) && self.is_where_it_goes(route)
            }
            (Route::Marked, false) if is_at_rest && sharing.is_unmarked => {
                sharing.is_unmarked = false;
                server.to.add(MARK);
                let hidden = Special::Replaced(BytesMut::new(), Vec::new());
                self.due.push_back(Due::Special(Box::new(hidden)));
                true
            }
            (Route::Own | Route::Marked, false) => true,
        }
    }

    fn share(&mut self) {
        let Some(sharing) = &mut self.sharing else { return };
        let handle = sharing.idle_handle.take().filter(|handle| handle.is_open_for(&self.identity));
        match handle.or_else(|| sharing.connections.handle(&self.identity)) {
            None => sharing.is_alone = true,
            Some(handle) => {
                let shared = Link::Up(Box::new(Server::new(Way::Shared(handle))));
                if let Link::Up(mut own) = std::mem::replace(&mut self.link, shared) {
                    // There may be thousands.
                    own.to.release();
                    own.from.release();
                    sharing.parked = Some(own);
                }
            }
        }
    }

    /// Lets go of a parked connection that the server has closed: it is made anew when it is needed.
    pub(super) fn watch_parked(&mut self, cx: &mut Context<'_>) {
        let Some(sharing) = &mut self.sharing else { return };
        if let Some(own) = &mut sharing.parked
            && own.read(cx).is_ready()
        {
            sharing.parked = None;
        }
    }

    /// Hands requests to the shared connection, or to another one if that has ended and nothing was under way
    /// on it.
    pub(super) fn send_shared(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let (Some(sharing), Link::Up(server)) = (&self.sharing, &mut self.link) else { return Ok(false) };
        let Way::Shared(handle) = &mut server.way else { return Ok(false) };
        if server.to.is_empty() {
            return Ok(false);
        }
        if !handle.is_open_for(&self.identity) && self.due.len() == server.asked {
            *handle = sharing.connections.handle(&self.identity).ok_or(Ended)?;
        }
        let is_sent = handle.send(cx, server.to.bytes_mut(), server.asked)?;
        if is_sent {
            server.asked = 0;
        }
        Ok(is_sent)
    }
}
