//! Listens for HTTP: connections are bounded in number and time, with TLS where that is wished.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::tls::Acceptor;

use crate::lobby::{Lobby, Waiting};

/// How long to wait after a connection could not be accepted: out of file descriptors, for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a listener allows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once. Of more the oldest ends, of the address that has most.
    pub connections: usize,
    /// Those of one address. Of more its oldest ends.
    pub of_one_address: usize,
    /// How long a request may take to arrive, and a handshake of TLS.
    pub request_time: Duration,
    /// How long a connection may last; `None` if answers have no end of their own.
    pub connection_time: Option<Duration>,
}

/// What is at the other end of a connection: an extension of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// The place of a connection among those about which nothing is known: an extension of each request.
#[derive(Debug, Clone)]
pub struct InLobby(Arc<Mutex<Option<Waiting>>>);

impl InLobby {
    /// The other end has shown that it may be here: no other connection takes its place.
    pub fn leave(&self) {
        self.0.lock().take();
    }
}

/// The socket at which requests arrive.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    limits: Limits,
    tls: Option<Acceptor>,
}

impl Listener {
    /// Begins to listen. Requests are answered once [`Listener::serve`] runs.
    ///
    /// # Errors
    /// `Own` if the address cannot be listened on.
    pub async fn bind(listen: SocketAddr, limits: Limits, tls: Option<Acceptor>) -> Result<Listener> {
        let listener = TcpListener::bind(listen).await.map_err(|e| {
            Error::own(format!("listen on {listen}"), e)
                .with_remedy("see that the address is this machine's and that the port is free")
        })?;
        Ok(Listener { listener, limits, tls })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// `Own` if the system does not report it.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().map_err(|e| Error::own("read the address of a listener", e))
    }

    /// Answers by `router` until `stop`. Requests under way then are not waited for: a client asks again.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let Listener { listener, limits, tls } = self;
        let lobby = Lobby::new(limits.connections, limits.of_one_address);
        let mut connections = JoinSet::new();
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((stream, peer)) => {
                    let waiting = lobby.enter(peer.ip());
                    let ends = waiting.ends();
                    let place = InLobby(Arc::new(Mutex::new(Some(waiting))));
                    let connection = Connection { limits, peer: Peer(peer), place, ends };
                    connections.spawn(connection.run(stream, tls.clone(), router.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    }
}

/// One connection, and its place.
struct Connection {
    limits: Limits,
    peer: Peer,
    place: InLobby,
    /// Cancelled when the place is needed for another connection.
    ends: CancellationToken,
}

impl Connection {
    async fn run(self, stream: TcpStream, tls: Option<Acceptor>, router: Router) {
        let ends = self.ends.clone();
        let served = async {
            let Some(tls) = tls else { return self.answer(stream, router).await };
            match tokio::time::timeout(self.limits.request_time, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.answer(stream, router).await,
                Ok(Err(error)) => tracing::debug!(%error, "a client does not agree on TLS"),
                Err(_) => tracing::debug!("a client does not agree on TLS in time"),
            }
        };
        let bounded = async {
            match self.limits.connection_time {
                Some(time) => tokio::time::timeout(time, served).await.is_ok(),
                None => {
                    served.await;
                    true
                }
            }
        };
        if !matches!(ends.run_until_cancelled(bounded).await, Some(true)) {
            tracing::debug!("a connection was closed to make room");
        }
    }

    async fn answer(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send, router: Router) {
        let (answers, peer) = (TowerToHyperService::new(router), self.peer);
        let place = self.place.clone();
        let answers = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(place.clone());
            answers.call(request)
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.request_time)
            .serve_connection(TokioIo::new(stream), answers);
        if let Err(error) = served.await {
            tracing::debug!(%error, "a connection broke");
        }
    }
}
