//! `whimbrel unfence`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::json;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::seal::FenceKind;
use whimbrel_flow::sync::FenceNote;

use crate::args::UnfenceArgs;
use crate::copying::state_dir;
use crate::exit::Exit;

/// Runs the command.
pub async fn run(args: &UnfenceArgs) -> Exit {
    match try_run(args).await {
        Ok(exit) => exit,
        Err(e) => crate::cluster::end_of(&e, args.json),
    }
}

async fn try_run(args: &UnfenceArgs) -> Result<Exit> {
    let folder = state_dir(args.state_dir.as_deref())?;
    let endpoint = args.at.endpoint()?;
    let deployment = Deployment::probe(endpoint, args.at.link_options()).await?;
    let own = addresses(&deployment);
    let notes: Vec<(PathBuf, FenceNote)> =
        FenceNote::all_in(&folder)?.into_iter().filter(|(_, note)| note.is_about(&own)).collect();
    let at = deployment.endpoint.address.to_string();
    if notes.is_empty() {
        let what = format!("no cutover that is noted in {} has put up a fence here", folder.display());
        return Err(Error::unfit(Side::Own, "", "take the fence down", what).with_remedy(
            "name the folder of the sync with --state-dir, and the server as the sync did; or take it down by hand, as \
             docs/operating/sync.md says",
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
            (true, _) => println!("{event}"),
            (false, true) => println!("would take down the fence of {at}: {how}"),
            (false, false) => println!("unfenced {at}: {how}"),
        }
    }
    Ok(Exit::Success)
}

/// Forgets the fences that a cutover back to `deployment` has taken down.
///
/// # Errors
/// `Own` where the folder or a file cannot be dealt with.
pub fn forget_all(folder: &Path, deployment: &Deployment) -> Result<()> {
    let own = addresses(deployment);
    FenceNote::all_in(folder)?
        .iter()
        .filter(|(_, note)| note.is_about(&own))
        .try_for_each(|(file, _)| FenceNote::forget(file))
}

/// All nodes, and the address by which the user named it.
fn addresses(deployment: &Deployment) -> BTreeSet<String> {
    let topology = deployment.topology();
    topology.nodes().chain([&deployment.endpoint.address]).map(ToString::to_string).collect()
}

fn words(kind: FenceKind) -> &'static str {
    match kind {
        FenceKind::None => "there is none",
        FenceKind::Pause { .. } => "writers are not paused any more",
        FenceKind::Acl => "ACL users have the rules back that they had before the cutover",
        FenceKind::ReadonlyReplica => "it is a primary again, and takes writes",
    }
}
