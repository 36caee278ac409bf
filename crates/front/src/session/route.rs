//! A client whose reads and writes go over a connection that others use as well, see [`crate::upstream::shared`].
//!
//! It begins on its own connection, and keeps that. Once the server has answered it there with anything but an error, it has been let in, and what
//! needs nothing of the connection goes over a trunk. It changes over only while nothing is due to it, so its requests are carried out in
//! their order.

use std::task::Context;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::pipe::io::Ended;
use crate::session::due::Due;
use crate::session::due::Special;
use crate::session::link::Link;
use crate::session::link::Server;
use crate::session::link::Way;
use crate::session::link::connect_again;
use crate::session::sharing::Wish;
use crate::session::state::Session;
use crate::session::state::WHOLE_BYTES_MAX;

/// Has the server note how far it is, for `WAIT`, which waits for what was written before the last command of its connection. Without words
/// it changes nothing, and every user may say it.
const MARK: &[u8] = b"*1\r\n$5\r\nHELLO\r\n";

/// What `CLIENT` is followed by that leaves nothing behind on the connection but what is known anyway.
const HARMLESS: [&[u8]; 11] = [
    b"ID", b"INFO", b"LIST", b"GETNAME", b"SETNAME", b"SETINFO", b"KILL", b"PAUSE", b"UNPAUSE", b"UNBLOCK",
    b"HELP",
];

impl<C: AsyncRead + AsyncWrite + Unpin> Session<C> {
    /// Where the request goes that is next in the inbox. `len` is its length, where it has arrived as a whole.
    pub(super) fn wish(&mut self, taken: usize, len: Option<usize>) -> Wish {
        let Some(sharing) = &mut self.sharing else { return Wish::Own };
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
            Some(len) if may_share && len <= WHOLE_BYTES_MAX && sharing.trunks.takes(name) => Wish::Shared,
            _ if name.eq_ignore_ascii_case(b"WAIT") || name.eq_ignore_ascii_case(b"WAITAOF") => Wish::Marked,
            _ => Wish::Own,
        }
    }

    /// Changes over where the next request wants that. False where it has to wait: for what is due, or for a connection.
    pub(super) fn is_where_it_goes(&mut self, wish: Wish) -> bool {
        let (Some(sharing), Link::Up(server)) = (&mut self.sharing, &mut self.link) else { return true };
        let is_at_rest = self.due.is_empty() && server.is_idle();
        match (wish, server.is_shared()) {
            (Wish::Shared, true) => true,
            (Wish::Shared, false) => {
                if is_at_rest {
                    self.share();
                }
                true
            }
            (Wish::Own | Wish::Marked, true) => {
                if is_at_rest {
                    sharing.is_unmarked = true;
                    let own = match sharing.parked.take() {
                        Some(own) => Link::Up(own),
                        None => Link::Connecting(connect_again(&self.shared, &self.identity)),
                    };
                    if let Link::Up(server) = std::mem::replace(&mut self.link, own)
                        && let Way::Shared(line) = server.way
                    {
                        sharing.idle_line = Some(line);
                    }
                }
                is_at_rest && matches!(self.link, Link::Up(_)) && self.is_where_it_goes(wish)
            }
            (Wish::Marked, false) if is_at_rest && sharing.is_unmarked => {
                sharing.is_unmarked = false;
                server.to.extend_from_slice(MARK);
                let hidden = Special::Replaced(BytesMut::new(), Vec::new());
                self.due.push_back(Due::Special(Box::new(hidden)));
                true
            }
            (Wish::Own | Wish::Marked, false) => true,
        }
    }

    fn share(&mut self) {
        let Some(sharing) = &mut self.sharing else { return };
        let line = sharing.idle_line.take().filter(|line| line.is_open_for(&self.identity));
        match line.or_else(|| sharing.trunks.line(&self.identity)) {
            None => sharing.is_alone = true,
            Some(line) => {
                let shared = Link::Up(Box::new(Server::new(Way::Shared(line))));
                if let Link::Up(mut own) = std::mem::replace(&mut self.link, shared) {
                    // There may be thousands.
                    (own.to, own.from) = (BytesMut::new(), BytesMut::new());
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

    /// Hands requests to the trunk, or to another one if that has ended and nothing was under way on it.
    pub(super) fn send_shared(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let (Some(sharing), Link::Up(server)) = (&self.sharing, &mut self.link) else { return Ok(false) };
        let Way::Shared(line) = &mut server.way else { return Ok(false) };
        if server.to.is_empty() {
            return Ok(false);
        }
        if !line.is_open_for(&self.identity) && self.due.len() == server.asked {
            *line = sharing.trunks.line(&self.identity).ok_or(Ended)?;
        }
        let is_sent = line.send(cx, &mut server.to, server.asked)?;
        if is_sent {
            server.asked = 0;
        }
        Ok(is_sent)
    }
}
