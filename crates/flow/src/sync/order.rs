//! The orders that a cutover gives to the front that clients go through.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use whimbrel_engine::error::Result;

/// An order to a front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrontOrder {
    /// Hold all clients, until one of the other two or for as long as was said. The answer comes when nothing
    /// of any client is under way.
    Hold(HoldOrder),
    /// Send those that are held by the hold of this number to the other side. Refused if that hold is over.
    Switch(u64),
    /// Hold no client any more: clients go on where they are. The answer says where that is, whatever became
    /// of earlier orders.
    Release,
}

impl FrontOrder {
    /// The name of the order, which failpoints have as well.
    pub fn name(&self) -> &'static str {
        match self {
            FrontOrder::Hold(order) if order.rehearse => "rehearse",
            FrontOrder::Hold(_) => "hold",
            FrontOrder::Switch(_) => "switch",
            FrontOrder::Release => "release",
        }
    }
}

/// Whose clients are to be held, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldOrder {
    /// The processes of the side that clients are at, see [`whimbrel_engine::probe::process_behind`].
    pub from: Vec<String>,
    /// Those of the side that they are to go to.
    pub to: Vec<String>,
    /// For how long at most, in milliseconds. Then the front lets them go on where they are.
    pub limit_ms: u64,
    /// Only find out whether it could be done.
    pub rehearse: bool,
}

/// How a front stands after an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontStand {
    /// The server that clients are sent to.
    pub at: FrontSide,
    /// The number of the hold; 0 if clients are not held.
    pub hold: u64,
    /// For how long clients have been held, in milliseconds; after a switch, for how long they were.
    pub held_ms: u64,
    /// Clients that are connected.
    pub clients: u64,
    /// Clients that were disconnected as they did not come to rest: they waited in a command, were in a
    /// transaction, or had a subscription.
    pub ended: u64,
    /// The addresses from which the clients that are held are connected to the server, as far as that is
    /// known.
    pub resting: Vec<String>,
}

/// One of the two servers of a front, by the name that it has there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrontSide {
    /// Its source.
    Source,
    /// Its target.
    Target,
}

/// What comes of an order, later.
pub type OrderAnswer<'a> = Pin<Box<dyn Future<Output = Result<FrontStand>> + Send + 'a>>;

/// Sends orders to fronts.
pub trait Fronts: fmt::Debug + Send + Sync {
    /// Gives an order to the front that takes requests at this socket.
    ///
    /// # Errors
    /// A refusal if it was not carried out and never will be; any other error if that is not known.
    fn send<'a>(&'a self, socket: &'a Path, order: FrontOrder) -> OrderAnswer<'a>;
}
