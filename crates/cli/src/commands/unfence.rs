//! `whimbrel unfence`.

use serde_json::json;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::seal::WriterFenceKind;
use whimbrel_flow::sync::FenceNote;

use crate::exit::Exit;
use crate::settings::args::UnfenceArgs;
use whimbrel_control::private::state_dir;

/// Runs the command.
pub async fn run(args: &UnfenceArgs) -> Exit {
    match try_run(args).await {
        Ok(exit) => exit,
        Err(e) => crate::commands::cluster::end_of(&e, args.json),
    }
}

async fn try_run(args: &UnfenceArgs) -> Result<Exit> {
    let folder = state_dir(args.state_dir.as_deref())?;
    let endpoint = args.at.endpoint()?;
    let deployment = Deployment::probe(endpoint, args.at.link_options()).await?;
    let notes = FenceNote::about(&folder, &deployment)?;
    let at = deployment.endpoint.address.to_string();
    if notes.is_empty() {
        let what = format!("no cutover that is noted in {} has put up a fence here", folder.display());
        return Err(Error::options(Side::Own, "take the fence down", what).with_remedy(
            "name the folder of the sync with --state-dir, and the server as the sync did; or take it down \
             by hand, on each node: ACL SETUSER NAME +@write for its users, CLIENT UNPAUSE, or REPLICAOF NO \
             ONE",
        ));
    }
    for (file, note) in notes {
        let how = words(note.fence.kind());
        let event =
            json!({"event": "unfence", "server": at, "fence": note.fence.kind(), "dry_run": args.dry_run});
        if !args.dry_run {
            note.fence.lift(&deployment).await?;
            FenceNote::forget(&file)?;
        }
        match (args.json, args.dry_run) {
            (true, _) => out!("{event}"),
            (false, true) => out!("would take down the fence of {at}: {how}"),
            (false, false) => out!("unfenced {at}: {how}"),
        }
    }
    Ok(Exit::Success)
}

fn words(kind: WriterFenceKind) -> &'static str {
    match kind {
        WriterFenceKind::None => "there is none",
        WriterFenceKind::External { .. } => {
            "whimbrel keeps nobody away: let the writers in again where they were stopped"
        }
        WriterFenceKind::Front => {
            "whimbrel keeps nobody away; clients of the front stay where it sends them: whimbrel front status"
        }
        WriterFenceKind::Pause { .. } => "writers are not paused any more",
        WriterFenceKind::Acl => "ACL users have the rules back that they had before the cutover",
        WriterFenceKind::ReadonlyReplica => "it is a primary again, and takes writes",
    }
}
