//! `whimbrel front`: serves clients in front of a server, or in front of two while keys move.

mod asking;
mod desk;
mod joining;

use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::link::LinkOptions;
use whimbrel_engine::tls::Acceptor;
use whimbrel_front::server::{Front, FrontOptions, connections_each};

use self::desk::Desk;
use crate::args::FrontArgs;
use crate::copying::state_dir;
use crate::exit::Exit;

/// File descriptors for what is not clients: the runtime, the listener, the standard streams.
const OWN_FILES: u64 = 64;

/// `whimbrel front`.
pub async fn run(args: &FrontArgs, stop: CancellationToken) -> Exit {
    if let Some(command) = &args.command {
        return asking::run(command, &stop).await;
    }
    if let (Some(_), None) = (&args.state_dir, &args.target) {
        let what =
            "--state-dir is where a front with a --target keeps how far the keys have moved; here none move";
        let error = Error::unfit(Side::Own, "", "reading the options", what)
            .with_remedy("name a --target, or leave --state-dir out");
        return crate::end_of(&error, args.show.json);
    }
    let outcome = match args.coordinators() {
        Ok(coordinators) if !coordinators.is_empty() => return joining::run(args, coordinators, stop).await,
        Ok(_) => try_run(args, stop).await,
        Err(e) => Err(e),
    };
    match outcome {
        Ok(()) => Exit::Success,
        Err(e) => crate::end_of(&e, args.show.json),
    }
}

async fn try_run(args: &FrontArgs, stop: CancellationToken) -> Result<()> {
    let (source, target) = (args.source_endpoint()?, args.target_endpoint()?);
    let link = args.link_options();
    let files_each = files_each(&source, target.as_ref(), link).await;
    let options = options(args, files_each)?;
    let (listen, clients_max) = (options.listen, options.clients_max);
    for server in [Some(&source), target.as_ref()].into_iter().flatten() {
        refuse_open(args, listen, server).await?;
    }
    let at = source.address.to_string();
    let to = target.as_ref().map(|target| target.address.to_string());
    let (front, desk) = match target {
        None => (Front::bind(options, source).await?, None),
        Some(target) => {
            let desk =
                Desk::open(&state_dir(args.state_dir.as_deref())?, listen, &at, &target.address.to_string())?;
            let wait = Duration::from_millis(args.wait);
            let (front, control) = Front::between(options, source, target, &desk.state(), wait).await?;
            (front, Some((desk, control)))
        }
    };
    let (address, version) = (front.address()?, front.source().version.clone());
    if args.show.json {
        let line = json!({
            "event": "serving", "address": address.to_string(), "source": at, "target": to, "version": version,
            "clients_max": clients_max,
        });
        say!("{line}");
    } else if !args.show.quiet {
        eprintln!("serving  {at} ({version}) on {address}, at most {clients_max} clients");
        if let Some(to) = to {
            eprintln!("target   {to}: whimbrel front start moves the keys there");
        }
        note_fewer_clients(args, clients_max);
    }
    match desk {
        None => front.serve(stop).await,
        Some((desk, control)) => {
            let attended = desk.attend(control, stop.clone());
            tokio::select! {
                () = front.serve(stop) => {}
                never = attended => match never? {},
            }
        }
    }
    Ok(())
}

/// Refuses to make a server without a password public, unless that is wanted or clients have to show certificates.
async fn refuse_open(args: &FrontArgs, listen: SocketAddr, server: &Endpoint) -> Result<()> {
    if args.open_to_all || args.tls_client_ca.is_some() {
        return Ok(());
    }
    whimbrel_front::exposure::refuse_open(listen, server, args.link_options()).await
}

/// How it behaves, where each client takes so many open files.
fn options(args: &FrontArgs, files_each: u64) -> Result<FrontOptions> {
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
        clients_max: make_room(args.max_clients, files_each)? as usize,
        link: args.link_options(),
    })
}

/// Says that fewer clients than wanted can be let in.
fn note_fewer_clients(args: &FrontArgs, clients_max: usize) {
    if clients_max < args.max_clients as usize {
        eprintln!("note     no more files may be open for --max-clients {}: see ulimit -n", args.max_clients);
    }
}

/// Open files that a client takes: its own connection, and one to each server that it may need.
async fn files_each(source: &Endpoint, target: Option<&Endpoint>, link: LinkOptions) -> u64 {
    let at_source = connections_each(source, link).await;
    match target {
        None => 1 + at_source,
        // For a moment it has an old one and a new one.
        Some(target) => 2 + at_source + connections_each(target, link).await,
    }
}

/// Raises the limit of open files for so many clients, each of which takes some connections: its own and those to
/// servers. Returns for how many it is enough, which are fewer where the system allows no more.
fn make_room(clients: u32, files_each: u64) -> Result<u32> {
    let fail = |e: nix::errno::Errno| Error::own("raise the limit of open files", e);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(fail)?;
    let needed = u64::from(clients) * files_each + OWN_FILES;
    if soft < needed {
        setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard).map_err(fail)?;
    }
    let places = needed.min(hard).saturating_sub(OWN_FILES) / files_each;
    Ok(u32::try_from(places).unwrap_or(clients).min(clients))
}
