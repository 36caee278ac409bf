//! `whimbrel front`: serves clients in front of a server.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::tls::Acceptor;
use whimbrel_front::server::{Front, FrontOptions};

use crate::args::FrontArgs;
use crate::exit::Exit;

/// File descriptors for what is not clients: the runtime, the listener, the standard streams.
const OWN_FILES: u64 = 64;

/// `whimbrel front`.
pub async fn run(args: &FrontArgs, stop: CancellationToken) -> Exit {
    match try_run(args, stop).await {
        Ok(()) => Exit::Success,
        Err(e) => crate::end_of(&e, args.show.json),
    }
}

async fn try_run(args: &FrontArgs, stop: CancellationToken) -> Result<()> {
    let source = args.source_endpoint()?;
    let clients_max = make_room(args.max_clients)?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(Acceptor::new(cert, key, args.tls_client_ca.as_deref())?),
        _ => None,
    };
    let (listen, link) = (args.listen, args.link_options());
    let options = FrontOptions { listen, tls, clients_max: clients_max as usize, link };
    let at = source.address.to_string();
    let front = Front::bind(options, source).await?;
    let (address, version) = (front.address()?, front.source().version.clone());
    if args.show.json {
        let line = json!({
            "event": "serving", "address": address.to_string(), "source": at, "version": version,
            "clients_max": clients_max,
        });
        say!("{line}");
    } else if !args.show.quiet {
        eprintln!("serving  {at} ({version}) on {address}, at most {clients_max} clients");
        if clients_max < args.max_clients {
            eprintln!(
                "note     no more files may be open for --max-clients {}: see ulimit -n",
                args.max_clients
            );
        }
    }
    front.serve(stop).await;
    Ok(())
}

/// Raises the limit of open files for so many clients, each of which takes two connections: its own and that to the
/// server. Returns for how many it is enough, which are fewer where the system allows no more.
fn make_room(clients: u32) -> Result<u32> {
    let fail = |e: nix::errno::Errno| Error::own("raise the limit of open files", e);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(fail)?;
    let needed = u64::from(clients) * 2 + OWN_FILES;
    if soft < needed {
        setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard).map_err(fail)?;
    }
    let places = needed.min(hard).saturating_sub(OWN_FILES) / 2;
    Ok(u32::try_from(places).unwrap_or(clients).min(clients))
}
