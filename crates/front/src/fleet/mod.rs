//! A front that is a member of a fleet.
//!
//! ```text
//! cluster clients ──────────────────▶ gate ──▶ backend
//! other clients ──▶ forwarding ──┬──▶ gate ──▶ backend
//!                                └──▶ gate of another member ──▶ backend
//! ```
//!
//! Each member serves the slots that it owns, and shows cluster clients where all others are. For clients
//! that know no clusters it has another port: what comes there goes to the member that owns its slot, as in
//! front of a cluster whose primaries are the members.

pub mod carrier;
mod gate;
mod porter;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_core::fleet::MemberId;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::{Address, Endpoint};
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_engine::link::LinkOptions;
use whimbrel_engine::probe::ServerFacts;
use whimbrel_engine::remedy::Remedy;
use whimbrel_fleet::{Membership, MembershipOptions, login};

use self::gate::Gate;
use self::porter::Porter;
use crate::face::Face;
use crate::server::{Counts, Front, FrontOptions, listen};
use crate::upstream::Upstream;
use crate::upstream::cluster::Cluster;

/// How long a member that has left goes on removing what it has carried away.
const CLEAR_PATIENCE: Duration = Duration::from_secs(10);

/// Between two attempts to reach a backend.
const BACKEND_PAUSE: Duration = Duration::from_secs(1);

/// How long the coordinator may take to make this front a member when it starts.
const JOIN_PATIENCE: Duration = Duration::from_secs(60);

/// How long a coordinator may have no place for this front when it starts, and how often it is asked
/// meanwhile.
const PLACE_PATIENCE: Duration = Duration::from_secs(60);
const PLACE_PAUSE: Duration = Duration::from_millis(500);

/// The endpoint of a backend that the coordinator names, with what is needed to log in there.
pub type EndpointOf = Arc<dyn Fn(&str) -> Result<Endpoint> + Send + Sync>;

/// How a front takes part in a fleet.
#[derive(Clone)]
pub struct JoinOptions {
    /// The coordinators, of which one leads: the RESP ports of `whimbrel serve --fleet`, with their
    /// passwords. At least one.
    pub coordinators: Vec<Endpoint>,
    /// What people call this member; `None`: the address.
    pub name: Option<String>,
    /// Where clients and other members reach this front: a host or an IP address, and a port; if the port is
    /// 0, the port that it listens on. `None`: where it listens.
    pub announce: Option<(String, u16)>,
    /// Its part of the work in relation to others; 0 takes none.
    pub weight: u32,
    /// The address for clients that know no clusters. Port 0 takes a free one.
    pub forward_listen: Option<SocketAddr>,
    /// How long it may take to give all partitions to others when it is stopped.
    pub leave_patience_ms: u64,
    /// For backends beside the first.
    pub endpoint_of: EndpointOf,
}

/// A front that is a member of a fleet, and listens.
pub struct Joined {
    front: Front,
    forwarding: Option<Front>,
    /// What that is in front of.
    members: Option<Arc<Cluster<Gate>>>,
    gate: Arc<Gate>,
    membership: Membership,
    announced: Address,
    member: MemberId,
    leave_patience: Duration,
    cluster: Arc<Cluster<Gate>>,
    endpoint_of: EndpointOf,
    porter: Porter,
}

/// A server or cluster that the coordinator names.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct NamedBackend {
    /// Its number: the first has 0.
    pub number: u32,
    /// What people call it.
    pub name: String,
    /// Its URL.
    pub url: String,
}

/// The servers that the coordinator names that leads, as it says in `FLEET STATUS`.
///
/// # Errors
/// The last one's error, if no leader can be asked.
pub async fn backends(coordinators: &[Endpoint], link: LinkOptions) -> Result<Vec<NamedBackend>> {
    let mut failure = Error::own("ask the coordinator for the servers that have the data", "none is named");
    let deadline = Instant::now() + PLACE_PATIENCE;
    loop {
        for coordinator in coordinators {
            match named_by(coordinator, link).await {
                Ok(backends) => return Ok(backends),
                Err(error) => failure = error,
            }
        }
        if !has_no_place(&failure) || Instant::now() >= deadline {
            return Err(failure);
        }
        tracing::info!(%failure, "the coordinator is asked again");
        sleep(PLACE_PAUSE).await;
    }
}

/// Whether a coordinator is there, and had no place for a connection.
fn has_no_place(error: &Error) -> bool {
    match &error.kind {
        ErrorKind::Closed | ErrorKind::Broken(_) => true,
        ErrorKind::Server(e) => e.text.contains("max number of clients"),
        _ => false,
    }
}

async fn named_by(coordinator: &Endpoint, link: LinkOptions) -> Result<Vec<NamedBackend>> {
    let coordinator = Arc::new(coordinator.clone());
    #[derive(serde::Deserialize)]
    struct Status {
        backends: Vec<NamedBackend>,
    }
    let mut link = login::open(&coordinator, link).await?;
    let reply = link.call(&[b"FLEET", b"STATUS"]).await?;
    let status = reply.as_bytes().and_then(|text| serde_json::from_slice::<Status>(text).ok());
    Ok(status.ok_or_else(|| link.unexpected("FLEET STATUS", &reply))?.backends)
}

impl Joined {
    /// Looks at the server that has the data, begins to listen, and becomes a member. Clients are served once
    /// [`Joined::serve`] runs.
    ///
    /// # Errors
    /// As [`Front::bind`]; `Unfit`, about the coordinator's address, if the fleet cannot be joined, or has
    /// more partitions than there are slots.
    pub fn join(
        options: FrontOptions,
        backend: Endpoint,
        join: JoinOptions,
    ) -> BoxFuture<'static, Result<Joined>> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            let deployment = probe(backend, options.link).await?;
            let (facts, link) = (deployment.facts.clone(), options.link);
            let listener = listen(options.listen).await?;
            let own = own_address(&listener, join.announce.as_ref())?;
            let porter = Porter::default();
            let membership = Membership::start(
                MembershipOptions {
                    coordinators: join.coordinators.clone(),
                    link,
                    name: join.name.unwrap_or_else(|| own.to_string()),
                    address: own.to_string(),
                    weight: join.weight,
                },
                porter.clone(),
            );
            let member = joined(&membership, &join.coordinators).await?;
            let face = Arc::new(Face::empty(options.tls.is_some()));
            let gate = Gate::new(membership.view().clone(), own.clone(), face.clone());
            let (forwarding, members) = match join.forward_listen {
                None => (None, None),
                Some(at) => {
                    let (front, members) = forwarding(&options, at, &deployment, &own, &gate, &facts).await?;
                    (Some(front), Some(members))
                }
            };
            let endpoint = deployment.endpoint.clone();
            let cluster = Cluster::gated(deployment, gate.clone()).await?;
            porter.begin(&gate, &cluster);
            // Before anything is served of it. What is not reached now is tried again and again.
            reach_backends(&gate, &cluster, &join.endpoint_of).await;
            let upstream = Upstream::of(endpoint, link, cluster.clone());
            let front = Front::of(listener, options, upstream, facts, Some(face));
            let leave_patience = Duration::from_millis(join.leave_patience_ms);
            let endpoint_of = join.endpoint_of;
            Ok(Joined {
                front,
                forwarding,
                members,
                gate,
                membership,
                announced: own,
                member,
                leave_patience,
                cluster,
                endpoint_of,
                porter,
            })
        })
    }

    /// The address at which clients and other members reach it.
    pub fn announced(&self) -> &Address {
        &self.announced
    }

    /// The address for clients that know no clusters.
    ///
    /// # Errors
    /// `Own` if the system does not report it.
    pub fn forwarding(&self) -> Result<Option<SocketAddr>> {
        self.forwarding.as_ref().map(Front::address).transpose()
    }

    /// Its number.
    pub fn member(&self) -> MemberId {
        self.member
    }

    /// What is counted of the clients of its own port, and of the port for others.
    pub fn counts(&self) -> Vec<Arc<Counts>> {
        [Some(&self.front), self.forwarding.as_ref()].into_iter().flatten().map(Front::counts).collect()
    }

    /// What has the data.
    pub fn backend(&self) -> &ServerFacts {
        self.front.source()
    }

    /// Serves until `stop`: then all partitions are given to others first, as far as that goes in time.
    /// Serves as well until the coordinator has it leave. Clients that still ask are redirected for a while.
    /// True if it had nothing left when it ended.
    ///
    /// # Errors
    /// `Own` if it cannot be a member any more.
    pub fn serve(self, stop: CancellationToken) -> BoxFuture<'static, Result<bool>> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            let Joined {
                front,
                forwarding,
                members,
                gate,
                mut membership,
                leave_patience,
                cluster,
                endpoint_of,
                porter,
                ..
            } = self;
            let (end, end_of_own) = (CancellationToken::new(), CancellationToken::new());
            let others = async {
                match forwarding {
                    // Its clients are served by the own port too, which goes on until they have their
                    // answers.
                    Some(forwarding) => forwarding.serve(end.clone()).await,
                    None => end.cancelled().await,
                }
                end_of_own.cancel();
            };
            let ends = async {
                let outcome = tokio::select! {
                    outcome = membership.ended() => outcome.map(|()| true),
                    () = stop.cancelled() => {
                        membership.ask_to_leave();
                        timeout(leave_patience, membership.ended()).await.map_or(Ok(false),
                            |outcome| outcome.map(|()| true))
                    }
                };
                if matches!(outcome, Ok(true)) {
                    tokio::join!(gate.linger(), porter.finish(CLEAR_PATIENCE));
                }
                end.cancel();
                outcome
            };
            let serving = async { tokio::join!(front.serve(end_of_own.clone()), others, ends).2 };
            tokio::select! {
                outcome = serving => outcome,
                () = gate.follow(members.as_deref()) => Ok(false),
                () = gate.watch_lease() => Ok(false),
                () = gate.let_go_of_all(&cluster) => Ok(false),
                () = porter.sweep() => Ok(false),
                () = follow_backends(&gate, &cluster, &endpoint_of) => Ok(false),
            }
        })
    }
}

/// Reaches backends that the coordinator reports, for ever.
async fn follow_backends(gate: &Gate, cluster: &Cluster<Gate>, endpoint_of: &EndpointOf) {
    let mut seen = gate.view().watch();
    loop {
        seen.mark_unchanged();
        let is_done = reach_backends(gate, cluster, endpoint_of).await;
        sleep(BACKEND_PAUSE).await;
        if is_done && seen.changed().await.is_err() {
            // There is nothing more to hear.
            return std::future::pending().await;
        }
    }
}

/// Looks at a backend, and which keys can be carried there.
async fn probe(endpoint: Endpoint, link: LinkOptions) -> Result<Deployment> {
    let mut deployment = Deployment::probe(endpoint, link).await?;
    deployment.probe_payloads().await?;
    Ok(deployment)
}

/// Looks at those backends that are not known yet; false if one is not reached.
async fn reach_backends(gate: &Gate, cluster: &Cluster<Gate>, endpoint_of: &EndpointOf) -> bool {
    let link = cluster.deployment.options;
    let known: Vec<u32> = cluster.backends().iter().map(|(number, _)| *number).collect();
    let mut all = true;
    for backend in gate.view().backends().iter().filter(|backend| !known.contains(&backend.number)) {
        let found = async { probe(endpoint_of(&backend.url)?, link).await };
        match found.await {
            Ok(deployment) => cluster.add_backend(backend.number, deployment),
            Err(error) => {
                tracing::warn!(backend = backend.name, %error, "a backend is not reached");
                all = false;
            }
        }
    }
    all
}

/// What a front announces.
fn own_address(listener: &tokio::net::TcpListener, announce: Option<&(String, u16)>) -> Result<Address> {
    let own = listener.local_addr().map_err(|e| Error::own("read the address of a listener", e))?;
    match announce {
        Some((host, 0)) => Ok(Address::Tcp(host.clone(), own.port())),
        Some((host, port)) => Ok(Address::Tcp(host.clone(), *port)),
        None => {
            names_an_address(own)?;
            Ok(Address::Tcp(own.ip().to_string(), own.port()))
        }
    }
}

/// Checks that others can be sent to what a front listens on.
///
/// # Errors
///
/// [`Error::Unfit`], own, for every address of a machine.
pub fn names_an_address(listen: SocketAddr) -> Result<()> {
    if listen.ip().to_canonical().is_unspecified() {
        let what = format!("{listen} is every address of this machine");
        return Err(
            Error::options(Side::Own, "announce where this front is", what).with_remedy(Remedy::Announce)
        );
    }
    Ok(())
}

/// Waits until it is a member.
async fn joined(membership: &Membership, coordinators: &[Endpoint]) -> Result<MemberId> {
    let mut seen = membership.view().watch();
    let member = timeout(JOIN_PATIENCE, seen.wait_for(|seen| seen.member.is_some())).await;
    let (member, partitions, trouble) = match member {
        Ok(Ok(seen)) => (seen.member, seen.partitions, None),
        Ok(Err(_)) | Err(_) => (None, 0, membership.view().watch().borrow().trouble.clone()),
    };
    let fail = |what: String, remedy: Remedy| {
        let at = coordinators.first().map(|at| at.address.to_string()).unwrap_or_default();
        Error::unfit(Side::Source, at, "join the fleet", what).with_remedy(remedy)
    };
    let Some(member) = member else {
        let why = trouble.unwrap_or_else(|| "the coordinator does not answer in time".to_owned());
        return Err(fail(why, Remedy::SeeCoordinator));
    };
    if partitions > gate::PARTITIONS_MAX {
        let what = format!("it has {partitions} partitions");
        let remedy = "fronts serve fleets of at most 16,384 partitions: one for each slot";
        return Err(fail(what, remedy.into()));
    }
    Ok(member)
}

/// The front for clients that know no clusters.
async fn forwarding(
    options: &FrontOptions,
    at: SocketAddr,
    backend: &Deployment,
    own: &Address,
    gate: &Arc<Gate>,
    facts: &ServerFacts,
) -> Result<(Front, Arc<Cluster<Gate>>)> {
    let listener = listen(at).await?;
    // Members are logged in to as the backend is: they pass it on.
    let endpoint =
        Endpoint { address: own.clone(), tls: None, address_map: Vec::new(), ..(*backend.endpoint).clone() };
    let endpoint = Arc::new(endpoint);
    let cluster = Cluster::of_members(backend, endpoint.clone(), gate.clone()).await?;
    let upstream = Upstream::of(endpoint, options.link, cluster.clone());
    let options = FrontOptions { listen: at, tls: None, ..options.clone() };
    Ok((Front::of(listener, options, upstream, facts.clone(), None), cluster))
}
