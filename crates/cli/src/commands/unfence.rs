//! `whimbrel unfence`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::json;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::seal::FenceKind;
use whimbrel_flow::sync::FenceNote;

use crate::exit::Exit;
use crate::paths::state_dir;
use crate::settings::args::UnfenceArgs;

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
    let notes = notes_about(&folder, &deployment)?;
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
            (true, _) => say!("{event}"),
            (false, true) => say!("would take down the fence of {at}: {how}"),
            (false, false) => say!("unfenced {at}: {how}"),
        }
    }
    Ok(Exit::Success)
}

/// Forgets the fences that a cutover back to `deployment` has taken down.
///
/// # Errors
/// `Own` where the folder or a file cannot be dealt with.
pub fn forget_all(folder: &Path, deployment: &Deployment) -> Result<()> {
    notes_about(folder, deployment)?.iter().try_for_each(|(file, _)| FenceNote::forget(file))
}

/// The cutovers away from `deployment` that have not been undone, and their files. It is known by its nodes,
/// and by the address that the user named.
///
/// # Errors
/// `Own` where the folder or a file cannot be read.
pub fn notes_about(folder: &Path, deployment: &Deployment) -> Result<Vec<(PathBuf, FenceNote)>> {
    let topology = deployment.topology();
    let own: BTreeSet<String> =
        topology.nodes().chain([&deployment.endpoint.address]).map(ToString::to_string).collect();
    Ok(FenceNote::all_in(folder)?.into_iter().filter(|(_, note)| note.is_about(&own)).collect())
}

fn words(kind: FenceKind) -> &'static str {
    match kind {
        FenceKind::None => "there is none",
        FenceKind::External { .. } => {
            "whimbrel keeps nobody away: let the writers in again where they were stopped"
        }
        FenceKind::Pause { .. } => "writers are not paused any more",
        FenceKind::Acl => "ACL users have the rules back that they had before the cutover",
        FenceKind::ReadonlyReplica => "it is a primary again, and takes writes",
    }
}
