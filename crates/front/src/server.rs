//! Listens, lets clients in, and counts them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::LinkOptions;
use whimbrel_engine::probe::ServerFacts;
use whimbrel_engine::tls::Acceptor;

use crate::command::keys::CommandTable;
use crate::face::Face;
use crate::migrate::stages::Stages;
pub use crate::session::context::Counts;
use crate::session::context::{Ending, SessionContext};
use crate::session::driver::Driver;
use crate::session::state::{ANSWERS, ARRIVAL, ARRIVALS, FAREWELL};
use crate::upstream::Upstream;
use crate::upstream::shared::SharedConnections;

/// How long to wait after a connection could not be accepted: out of file descriptors, for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A client that is silent for this long is probed, as with the servers' `tcp-keepalive`.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// How long clients whose requests are under way may keep a front that ends: for what a request waits for
/// here, for an answer, and to take it in.
const END: Duration = ARRIVALS.saturating_add(ANSWERS).saturating_add(ANSWERS).saturating_add(FAREWELL);

/// How a front behaves.
#[derive(Debug, Clone)]
pub struct FrontOptions {
    /// The address that it listens on. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// How clients are met with TLS; `None`: they come without.
    pub tls: Option<Acceptor>,
    /// It presents itself as a cluster of one node, which clients reach here: a host or an IP address, and a
    /// port; if the port is 0, the port that it listens on.
    pub cluster_face: Option<(String, u16)>,
    /// It has been promised that scripts and functions use no other keys than those they declare, so they are
    /// run while keys move.
    pub scripts_declare_keys: bool,
    /// This many connections to the server, or to each primary of a cluster, are shared by clients of the
    /// same user, for what needs none of its own; 0: none are.
    pub share_connections: usize,
    /// Clients at once; more are refused and closed, in the words of the servers.
    pub clients_max: usize,
    /// How the front's own connections to the server behave.
    pub link: LinkOptions,
}

impl FrontOptions {
    /// A front that listens here, without any option.
    pub fn new(listen: SocketAddr, clients_max: usize) -> FrontOptions {
        FrontOptions {
            listen,
            tls: None,
            cluster_face: None,
            scripts_declare_keys: false,
            share_connections: 0,
            clients_max,
            link: LinkOptions::default(),
        }
    }
}

/// How many connections a client of a front may need to a source or target: to a cluster one to each primary,
/// and one for requests that are redirected. 1 if it cannot be reached now.
pub async fn connections_each(endpoint: &Endpoint, link: LinkOptions) -> u64 {
    Upstream::find(endpoint, link).await.map_or(1, |found| found.upstream.connections_each())
}

/// A front that listens.
#[derive(Debug)]
pub struct Front {
    listener: TcpListener,
    options: FrontOptions,
    shared: Arc<SessionContext>,
    facts: ServerFacts,
}

impl Front {
    /// Looks at the source, and begins to listen. Clients are served once [`Front::serve`] runs.
    ///
    /// # Errors
    /// If the source cannot be reached or cannot be served; `Own` if the address cannot be listened on.
    pub fn bind(options: FrontOptions, source: Endpoint) -> BoxFuture<'static, Result<Front>> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            let found = Upstream::find(&source, options.link).await?;
            Front::open(options, found.upstream, found.facts, None).await
        })
    }

    /// As [`Front::bind`], but keys may move between two servers.
    pub(crate) async fn open(
        options: FrontOptions,
        source: Upstream,
        facts: ServerFacts,
        stages: Option<Arc<Stages>>,
    ) -> Result<Front> {
        let listener = listen(options.listen).await?;
        let face = match &options.cluster_face {
            Some((host, port)) => {
                let own =
                    listener.local_addr().map_err(|e| Error::own("read the address of a listener", e))?;
                let port = if *port == 0 { own.port() } else { *port };
                // As good a name as any: 40 digits that no other server has.
                let id = facts.run_id.parse().map_err(|e| Error::own("take the name of the source", e))?;
                Some(Arc::new(Face::new(id, host, port, options.tls.is_some())))
            }
            None => None,
        };
        let connections = match options.share_connections {
            0 => None,
            each => {
                let table = CommandTable::ask(&mut source.link().await?).await?;
                Some(SharedConnections::new(source.endpoint().clone(), options.link, &table, each))
            }
        };
        // Without stages a session would not know what its client has open at the server. Connections to a
        // cluster know that.
        let needs_stages = connections.is_some() && !source.is_cluster();
        let stages = stages.or_else(|| needs_stages.then(Stages::forwarding));
        let mut front = Front::of(listener, options, source, facts, face);
        if let Some(shared) = Arc::get_mut(&mut front.shared) {
            (shared.stages, shared.connections) = (stages, connections);
        }
        Ok(front)
    }

    /// A front that only passes on what clients say.
    pub(crate) fn of(
        listener: TcpListener,
        options: FrontOptions,
        source: Upstream,
        facts: ServerFacts,
        face: Option<Arc<Face>>,
    ) -> Front {
        let connect_timeout_ms = options.link.connect_timeout_ms;
        let shared = Arc::new(SessionContext {
            source,
            connect_timeout_ms,
            stages: None,
            connections: None,
            face,
            counts: Arc::default(),
            ending: Ending::default(),
        });
        Front { listener, options, shared, facts }
    }

    pub(crate) fn shared(&self) -> &Arc<SessionContext> {
        &self.shared
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// `Own` if the system does not report it.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().map_err(|e| Error::own("read the address of a listener", e))
    }

    /// What is counted of its clients.
    pub fn counts(&self) -> Arc<Counts> {
        self.shared.counts.clone()
    }

    /// What the source is.
    pub fn source(&self) -> &ServerFacts {
        &self.facts
    }

    /// Serves until `stop`. Then no client is let in any more, requests that have arrived are answered, and
    /// each client is disconnected when nothing of it is under way: after [`END`] in any case.
    pub fn serve(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            let shared = self.shared.clone();
            let mut sessions = self.let_in(stop).await;
            shared.ending.begin();
            let _ = timeout(END, async { while sessions.join_next().await.is_some() {} }).await;
            sessions.shutdown().await;
        })
    }

    /// Lets clients in until `stop`, and then stops listening. Returns those that are there.
    async fn let_in(self, stop: CancellationToken) -> JoinSet<()> {
        let permits = Arc::new(Semaphore::new(self.options.clients_max));
        let mut sessions = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return sessions,
                accepted = self.listener.accept() => accepted,
                Some(_) = sessions.join_next() => continue,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a client could not be let in");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let counts = &self.shared.counts;
            let Ok(permit) = permits.clone().try_acquire_owned() else {
                counts.turned_away.fetch_add(1, Ordering::Relaxed);
                reject(&stream);
                continue;
            };
            if set_options(&stream).is_err() {
                // It has left again.
                continue;
            }
            counts.accepted.fetch_add(1, Ordering::Relaxed);
            counts.clients.fetch_add(1, Ordering::Relaxed);
            let shared = self.shared.clone();
            let tls = self.options.tls.clone();
            sessions.spawn(async move {
                meet(shared.clone(), stream, tls).await;
                shared.counts.clients.fetch_sub(1, Ordering::Relaxed);
                drop(permit);
            });
        }
    }
}

/// Listens.
///
/// # Errors
/// `Own` if the address cannot be listened on.
pub(crate) async fn listen(at: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(at).await.map_err(|e| {
        Error::own(format!("listen on {at}"), e)
            .with_remedy("see that the address is this machine's and that the port is free")
    })
}

/// Serves one client. A client that does not complete TLS in the time that a connection may take is let go.
async fn meet(shared: Arc<SessionContext>, stream: TcpStream, tls: Option<Acceptor>) {
    let Some(tls) = tls else { return Driver::new(shared, stream).run().await };
    let limit = Duration::from_millis(shared.connect_timeout_ms);
    let accepted = tokio::select! {
        accepted = timeout(limit, tls.accept(stream)) => accepted,
        // Nothing of it is under way, except what may be on its way to us.
        () = async { shared.ending.wakes().await; sleep(ARRIVAL).await } => return,
    };
    match accepted {
        Ok(Ok(stream)) => Driver::new(shared, stream).run().await,
        Ok(Err(error)) => {
            shared.counts.no_tls.fetch_add(1, Ordering::Relaxed);
            tracing::info!(%error, "a client did not come to terms about TLS");
        }
        Err(_) => {
            shared.counts.no_tls.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// No delay, and the probes that notice a client that vanished silently: the server cannot see it.
fn set_options(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let probes = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// Says why, as far as that goes without waiting.
fn reject(stream: &TcpStream) {
    // It is closed in any case.
    let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
}
