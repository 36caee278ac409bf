//! What the options of a front come to.

use std::net::SocketAddr;

use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::LinkOptions;
use whimbrel_engine::tls::Acceptor;
use whimbrel_front::server::{FrontOptions, connections_each};

use crate::settings::args::FrontArgs;
use whimbrel_control::open_files::make_room;

/// Refuses to make a server without a password public, unless that is wanted or clients have to show
/// certificates.
pub async fn refuse_open(args: &FrontArgs, listen: SocketAddr, server: &Endpoint) -> Result<()> {
    if args.open_to_all || args.tls_client_ca.is_some() {
        return Ok(());
    }
    whimbrel_front::exposure::refuse_open(listen, server, args.link_options()).await
}

/// How it behaves, if each client takes this many open files.
pub fn options(args: &FrontArgs, files_each: u64) -> Result<FrontOptions> {
    let Some(listen) = args.listen else { return Err(Error::own("listen", "no address is given")) };
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(Acceptor::new(cert, key, args.tls_client_ca.as_deref())?),
        _ => None,
    };
    Ok(FrontOptions {
        listen,
        tls,
        cluster_face: args.cluster_face.clone(),
        scripts_declare_keys: args.scripts_declare_keys,
        share_connections: args.share_connections as usize,
        clients_max: make_room(args.max_clients, files_each, 0)? as usize,
        link: args.link_options(),
    })
}

/// A line that says that fewer clients than wanted can be let in, if so.
pub fn fewer_clients(args: &FrontArgs, clients_max: usize) -> Option<String> {
    let wanted = args.max_clients;
    let words = || format!("\nnote     too few open files for --max-clients {wanted}; raise ulimit -n");
    (clients_max < wanted as usize).then(words)
}

/// Open files that a client takes: its own connection, and one to each server that it may need.
pub async fn files_each(source: &Endpoint, target: Option<&Endpoint>, link: LinkOptions) -> u64 {
    let at_source = connections_each(source, link).await;
    match target {
        None => 1 + at_source,
        // For a moment it has an old one and a new one.
        Some(target) => 2 + at_source + connections_each(target, link).await,
    }
}
