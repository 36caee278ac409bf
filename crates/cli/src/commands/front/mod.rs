//! `whimbrel front`: serves clients in front of a server, or in front of two while keys move.

mod asking;
mod job;
mod joining;
mod options;

use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_control::fronts::FrontFiles;
use whimbrel_control::http::bind;
use whimbrel_control::store::Kind;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_front::server::Front;

use self::job::{FrontJob, expose_front};
use self::options::{fewer_clients, files_each, options, refuse_open};
use crate::exit::Exit;
use crate::settings::args::FrontArgs;
use crate::ui::errors;
use whimbrel_control::private::job_dir;

/// `whimbrel front`.
pub async fn run(args: &FrontArgs, stop: CancellationToken) -> Exit {
    if let Some(command) = &args.command {
        return asking::run(command, &stop).await;
    }
    if let (Some(_), None) = (&args.state_dir, &args.target) {
        let what =
            "--state-dir is where a front with a --target keeps how far the keys have moved; here none move";
        let error = Error::options(Side::Own, "reading the options", what)
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
    let hooks = args.hooks.settings(Kind::Front)?;
    let link = args.link_options();
    let files_each = files_each(&source, target.as_ref(), link).await;
    let options = options(args, files_each)?;
    let (listen, clients_max) = (options.listen, options.clients_max);
    for server in [Some(&source), target.as_ref()].into_iter().flatten() {
        refuse_open(args, listen, server).await?;
    }
    let at = source.address.to_string();
    let to = target.as_ref().map(|target| target.address.to_string());
    let http = bind(args.exposing.http).await?;
    let (front, files) = match target {
        None => (Front::bind(options, source).await?, None),
        Some(target) => {
            let folder = job_dir(args.state_dir.as_deref())?;
            let to = target.address.to_string();
            let files = FrontFiles::open(&folder, listen, (&at, &to), again(args, &at, &to))?;
            let wait = Duration::from_millis(args.wait);
            let (front, control) = Front::between(options, source, target, &files.state(), wait).await?;
            let begun = (files.beginning(), files.begin_hooks(&hooks));
            let job = FrontJob::new(control, stop.clone(), begun);
            let attended = files.attend(job).await?;
            (front, Some((files, attended)))
        }
    };
    let _exposing =
        expose_front((args, http), vec![front.counts()], files.as_ref().map(|(_, it)| it.steered()), &stop)?;
    let (address, version) = (front.address()?, front.source().version.clone());
    let json = json!({
        "event": "serving", "address": address.to_string(), "source": at, "target": to,
        "version": version, "clients_max": clients_max,
    });
    let mut text = format!("serving  {at} ({version}) on {address}, at most {clients_max} clients");
    text.extend(to.map(|to| format!("\ntarget   {to}: whimbrel front start moves the keys there")));
    text.extend(fewer_clients(args, clients_max));
    args.show.print(&text, &json);
    match files {
        None => front.serve(stop).await,
        // The files are locked until it has been written down how it ended.
        Some((_files, attended)) => {
            front.serve(stop).await;
            job::leave(attended).await;
        }
    }
    Ok(())
}

/// The arguments that run the front again, except what it needs to connect. The folder of its state is added
/// by the caller that shows them.
fn again(args: &FrontArgs, source: &str, target: &str) -> Vec<String> {
    let mut words = vec!["front".to_owned()];
    words.extend(args.listen.iter().flat_map(|listen| ["--listen".to_owned(), listen.to_string()]));
    words.extend(["--source", source, "--target", target].map(str::to_owned));
    let face = args.cluster_face.iter().map(|(host, port)| match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    });
    words.extend(face.flat_map(|face| ["--cluster-face".to_owned(), face]));
    let flags = [("--open-to-all", args.open_to_all), ("--scripts-declare-keys", args.scripts_declare_keys)];
    words.extend(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag.to_owned()));
    words
}
