//! `whimbrel front`: serves clients in front of a server, or in front of two while keys move.

mod asking;
mod control_socket;
mod joining;
mod options;

use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_front::server::Front;

use self::control_socket::ControlSocket;
use self::options::{files_each, note_fewer_clients, options, refuse_open};
use crate::exit::Exit;
use crate::paths::state_dir;
use crate::settings::args::FrontArgs;
use crate::ui::errors;

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
        return crate::ui::errors::end_of(&error, args.show.json);
    }
    let outcome = match args.coordinators() {
        Ok(coordinators) if !coordinators.is_empty() => return joining::run(args, coordinators, stop).await,
        Ok(_) => try_run(args, stop).await,
        Err(e) => Err(e),
    };
    match outcome {
        Ok(()) => Exit::Success,
        Err(e) => errors::end_of(&e, args.show.json),
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
    let (front, control_socket) = match target {
        None => (Front::bind(options, source).await?, None),
        Some(target) => {
            let control_socket = ControlSocket::open(
                &state_dir(args.state_dir.as_deref())?,
                listen,
                &at,
                &target.address.to_string(),
            )?;
            let wait = Duration::from_millis(args.wait);
            let (front, control) =
                Front::between(options, source, target, &control_socket.state(), wait).await?;
            (front, Some((control_socket, control)))
        }
    };
    let (address, version) = (front.address()?, front.source().version.clone());
    if args.show.json {
        let line = json!({
            "event": "serving", "address": address.to_string(), "source": at, "target": to,
            "version": version,
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
    match control_socket {
        None => front.serve(stop).await,
        Some((control_socket, control)) => {
            let attended = control_socket.attend(control, stop.clone());
            tokio::select! {
                () = front.serve(stop) => {}
                never = attended => match never? {},
            }
        }
    }
    Ok(())
}
