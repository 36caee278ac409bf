//! Connections to nodes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Error, ErrorKind, Result};
use whimbrel_engine::link::Io;
use whimbrel_wire::value::Value;

use super::due::At;
use super::node::{Connecting, Node, State};
use super::request::Multi;
use super::state::{Conn, Life};
use crate::pipe::frame::as_array;
use crate::pipe::io::{Ended, read, write};
use crate::upstream::admission::Admission;
use crate::upstream::identity::ReplyReader;

/// Connections that have to be ended for certain: this many for one to the cluster. It is replaced then.
const IDS_MAX: usize = 1 << 10;

impl<A: Admission> Conn<A> {
    /// A connection to a node, as a future, that knows all of the client.
    pub(super) fn connect(&self, address: &Address) -> Connecting {
        let (cluster, identity, ids) = (self.cluster.clone(), self.identity.clone(), self.ids.clone());
        let (address, is_for_client) = (address.clone(), self.is_for_client);
        // Before there is a second backend nothing has to be let go of, and users who may not ask for it need
        // not.
        let asks_id = self.gate().is_some_and(|gate| gate.waits().are_pinned());
        Box::pin(async move {
            let deployment = cluster.deployment_at(&address);
            let endpoint = &deployment.endpoint;
            let opening = async {
                match is_for_client {
                    true => Io::anonymous(endpoint, &address, deployment.options).await,
                    false => Io::open(endpoint, &address).await,
                }
            };
            let mut io = identity.introduce(opening, endpoint, &address, cluster.limit()).await?;
            if let Some(ids) = ids {
                if ids.lock().len() >= IDS_MAX {
                    return Err(Error::own(
                        "connect to a node",
                        "the connections of before have to be ended first",
                    ));
                }
                let id = client_id(&mut io).await.map_err(|e| {
                    Error::new(endpoint.side, address.to_string(), "CLIENT ID", ErrorKind::Broken(e))
                })?;
                ids.lock().push((address, id));
                return Ok((io, Some(id)));
            }
            let id = if asks_id { id_if_permitted(&mut io, cluster.limit()).await? } else { None };
            Ok((io, id))
        })
    }

    pub(super) fn new_node(&self, address: Address) -> Box<Node> {
        let connecting = self.connect(&address);
        Box::new(Node::new(address, State::Connecting(connecting)))
    }

    /// Whether what is for this node can still be sent there.
    pub(super) fn is_reachable(&mut self, number: u16) -> bool {
        self.node_at(At::Node(number)).is_some_and(|node| !matches!(node.state, State::Failed { .. }))
    }

    pub(super) fn is_bound_to(&self, number: u16) -> bool {
        let open_at = [self.watching, self.listening.node()];
        open_at.contains(&Some(number)) || self.multi == Multi::At(number)
    }

    /// The node of a number, with a connection that is alive as far as can be seen.
    pub(super) fn node(&mut self, cx: &mut Context<'_>, number: u16) -> Result<&mut Node, Ended> {
        let at = usize::from(number);
        if self.nodes.len() <= at {
            self.nodes.resize_with(at + 1, || None);
        }
        let address = self.map.address(number);
        let is_usable = match &mut self.nodes[at] {
            None => false,
            Some(node) if node.due > 0 => true,
            // Its number has been given to another one.
            Some(node) if node.address != *address => false,
            Some(node) => match &mut node.state {
                State::Up(io) => read(io, cx, &mut node.from).is_pending() || !node.from.is_empty(),
                State::Connecting(_) => true,
                State::Shared(_) | State::Failed { .. } => false,
            },
        };
        if !is_usable {
            if self.nodes[at].is_some() && self.is_bound_to(number) {
                return Err(Ended);
            }
            self.nodes[at] = Some(self.new_node(self.map.address(number).clone()));
        }
        self.nodes[at].as_deref_mut().ok_or(Ended)
    }

    pub(super) fn node_at(&mut self, at: At) -> Option<&mut Node> {
        match at {
            At::Here => None,
            At::Node(number) => self.nodes.get_mut(usize::from(number))?.as_deref_mut(),
            At::Shared(number) => self.sharing.as_mut()?.nodes.get_mut(usize::from(number))?.as_deref_mut(),
            At::Detour => self.detour.as_deref_mut(),
        }
    }

    /// Connects, and sends what can be sent.
    pub(super) fn drive_nodes(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = false;
        let closes = self.life != Life::Open && self.inbox.is_empty();
        for node in self.nodes.iter_mut().flatten().chain(&mut self.detour) {
            if let State::Connecting(connecting) = &mut node.state
                && let Poll::Ready(connected) = connecting.as_mut().poll(cx)
            {
                moved = true;
                node.state = match connected {
                    Ok((io, id)) => {
                        node.id = id;
                        State::Up(Box::new(io))
                    }
                    Err(error) => {
                        let is_refused = matches!(&error.kind, ErrorKind::Server(refused)
                            if matches!(refused.code, Code::NoAuth | Code::WrongPassword));
                        State::Failed { why: error.to_string(), is_refused }
                    }
                };
            }
            if matches!(node.state, State::Failed { .. }) {
                // Nothing of it is sent: what may be sent again goes to another node, from the kept copy.
                node.to.clear();
            }
            if let State::Up(io) = &mut node.state {
                moved |= write(&mut **io, cx, &mut node.to)?;
                if closes && node.to.is_empty() && node.due > 0 {
                    // As a server would learn it: a client that waits for something to happen is released.
                    let _ = Pin::new(&mut **io).poll_shutdown(cx);
                }
            }
        }
        Ok(self.drive_shared(cx)? || moved)
    }
}

/// The same, if its user may ask for it.
///
/// # Errors
/// If the connection is lost.
async fn id_if_permitted(io: &mut Io, limit: Duration) -> Result<Option<i64>> {
    let lost = |e: io::Error| Error::own("ask for the id of a connection", e);
    let asked = async {
        io.write_all(&as_array(&[b"CLIENT".to_vec(), b"ID".to_vec()])).await.map_err(lost)?;
        io.flush().await.map_err(lost)?;
        ReplyReader::default().next(io).await.map_err(lost)
    };
    let reply = timeout(limit, asked).await.map_err(|_| lost(io::ErrorKind::TimedOut.into()))?;
    Ok(reply?.as_int())
}

/// The id that a server has given a connection.
async fn client_id(io: &mut Io) -> io::Result<i64> {
    io.write_all(&as_array(&[b"CLIENT".to_vec(), b"ID".to_vec()])).await?;
    io.flush().await?;
    match ReplyReader::default().next(io).await? {
        Value::Int(id) => Ok(id),
        _ => Err(io::Error::other("the server does not report the id of a connection")),
    }
}
