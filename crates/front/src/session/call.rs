//! What calls sessions to rest: keys are to move, or to move the other way, or clients are held.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Context;

use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::migrate::stages::Ticket;

pub(super) struct Call {
    begin: Pin<Box<WaitForCancellationFutureOwned>>,
    evict: Pin<Box<WaitForCancellationFutureOwned>>,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    called: bool,
    /// Dropped with it: then nothing is left of this session at the servers.
    ticket: Ticket,
}

impl Call {
    pub(super) fn new(ticket: Ticket) -> Call {
        Call {
            begin: Box::pin(ticket.begin.clone().cancelled_owned()),
            evict: Box::pin(ticket.evict.clone().cancelled_owned()),
            over: Box::pin(ticket.over.clone().cancelled_owned()),
            called: false,
            ticket,
        }
    }

    /// It is to come to rest.
    pub(super) fn is_called(&mut self, cx: &mut Context<'_>) -> bool {
        self.called = self.called || self.begin.as_mut().poll(cx).is_ready();
        self.called
    }

    /// It did not come to rest in time.
    pub(super) fn is_evicted(&mut self, cx: &mut Context<'_>) -> bool {
        self.called && self.evict.as_mut().poll(cx).is_ready()
    }

    /// It rests, connected to the server from there; true if it is to go on.
    pub(super) fn is_over(&mut self, cx: &mut Context<'_>, from: impl Iterator<Item = SocketAddr>) -> bool {
        let is_over = self.over.as_mut().poll(cx).is_ready();
        if !is_over {
            self.ticket.rest(from);
        }
        is_over
    }
}
