//! `whimbrel front --join`: a front that is a member of a fleet.

use std::sync::Arc;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_control::http::bind;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_front::fleet::{JoinOptions, Joined, backends};
use whimbrel_front::server::connections_each;

use super::job::expose_front;
use super::options::{fewer_clients, options, refuse_open};
use crate::commands::fleet;
use crate::exit::Exit;
use crate::settings::args::FrontArgs;
use crate::ui::errors;

pub(super) async fn run(args: &FrontArgs, coordinators: Vec<Endpoint>, stop: CancellationToken) -> Exit {
    let at: Vec<String> = coordinators.iter().map(|coordinator| coordinator.address.to_string()).collect();
    match try_run(args, coordinators, &at, stop).await {
        Ok(()) => Exit::Success,
        Err(e) if at.iter().any(|at| *e.at == **at) => {
            let exit = Exit::of(&e, false);
            fleet::show_error(&e, args.show.json, exit);
            exit
        }
        Err(e) => errors::end_of(&e, args.show.json),
    }
}

async fn try_run(
    args: &FrontArgs,
    coordinators: Vec<Endpoint>,
    addresses: &[String],
    stop: CancellationToken,
) -> Result<()> {
    if let (Some(listen), None) = (args.listen, &args.joining.announce) {
        whimbrel_front::fleet::names_an_address(listen)?;
    }
    // Asked in any case: it says more clearly what is wrong than a member that is not let in.
    let named = backends(&coordinators, args.link_options()).await?;
    let first = named.into_iter().find(|backend| backend.number == 0);
    let source = match (&args.source, first) {
        (Some(_), _) => args.source_endpoint()?,
        (None, Some(first)) => args.source_maker()(&first.url)?,
        (None, None) => {
            let tried = "ask the coordinator for the servers that have the data";
            let at = addresses.first().map(String::as_str).unwrap_or_default();
            return Err(Error::unfit(Side::Source, at, tried, "it names none")
                .with_remedy("name one with --source here, or with --backend there"));
        }
    };
    let forwards = args.joining.forward_listen.is_some();
    let at_source = connections_each(&source, args.link_options()).await;
    // A client that knows no clusters has a connection to this member, or to others, which has one to the
    // source.
    let options = options(args, 1 + at_source + if forwards { 2 } else { 0 })?;
    refuse_open(args, options.listen, &source).await?;
    if let Some(others) = args.joining.forward_listen.filter(|_| !args.open_to_all) {
        // No certificate is asked for there.
        whimbrel_front::exposure::refuse_open(others, &source, args.link_options()).await?;
    }
    let clients_max = options.clients_max;
    let (at, to) = (source.address.to_string(), addresses.join(","));
    let join = JoinOptions {
        coordinators,
        name: args.joining.name.clone(),
        announce: args.joining.announce.clone(),
        weight: args.joining.weight,
        forward_listen: args.joining.forward_listen,
        leave_patience_ms: args.joining.leave_timeout,
        endpoint_of: Arc::new(args.source_maker()),
    };
    let http = bind(args.exposing.http).await?;
    let joined = Joined::join(options, source, join).await?;
    let _exposing = expose_front((args, http), joined.counts(), None, &stop)?;
    let (address, member, forwarding) = (joined.announced(), joined.member().0, joined.forwarding()?);
    let version = &joined.backend().version;
    let json = json!({
        "event": "serving", "address": address.to_string(), "source": at, "version": version,
        "member": member, "coordinator": to, "forwarding": forwarding.map(|at| at.to_string()),
        "clients_max": clients_max,
    });
    let mut text = format!("serving  {at} ({version}) on {address}, at most {clients_max} clients");
    text.push_str(&format!("\nmember   {member} of the fleet of {to}"));
    text.extend(forwarding.map(|at| format!("\nothers   clients that know no clusters: {at}")));
    text.extend(fewer_clients(args, clients_max));
    args.show.print(&text, &json);
    let is_empty = joined.serve(stop).await?;
    let text = match is_empty {
        true => "left     all slots are with other members",
        false => "left     slots were still here: they are given away when the lease has ended",
    };
    args.show.print(text, &json!({"event": "left", "member": member, "empty": is_empty}));
    Ok(())
}
