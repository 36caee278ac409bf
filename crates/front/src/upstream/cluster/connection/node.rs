//! A node, and what is on its way there and back.

use std::pin::Pin;

use bytes::BytesMut;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Io;
use whimbrel_wire::boundary::Boundary;

use crate::upstream::shared::Handle;

/// A connection, and the id that the server gave it if that was asked for and answered.
pub(super) type Connecting = Pin<Box<dyn Future<Output = Result<(Io, Option<i64>)>> + Send>>;

/// A node, and what is on its way there and back.
pub(super) struct Node {
    pub(super) address: Address,
    pub(super) state: State,
    pub(super) to: BytesMut,
    pub(super) from: BytesMut,
    pub(super) boundary: Boundary,
    /// Replies that are to come from it.
    pub(super) due: usize,
    /// Requests in `to`, if they are counted: on a shared connection.
    pub(super) asked: usize,
    /// It has answered the client with something but an error.
    pub(super) is_let_in: bool,
    /// With this a request that waits for something to happen is ended, if this front serves slots of a
    /// fleet.
    pub(super) id: Option<i64>,
}

impl Node {
    /// A node to which nothing has been sent.
    pub(super) fn new(address: Address, state: State) -> Node {
        Node {
            address,
            state,
            to: BytesMut::new(),
            from: BytesMut::new(),
            boundary: Boundary::default(),
            due: 0,
            asked: 0,
            is_let_in: false,
            id: None,
        }
    }
}

pub(super) enum State {
    Connecting(Connecting),
    Up(Box<Io>),
    /// By a connection that other clients use as well.
    Shared(Handle),
    /// It could not be reached, and nothing was sent to it.
    Failed {
        why: String,
        /// It refuses the client's login.
        is_refused: bool,
    },
}
