//! `whimbrel watch`.

use tokio_util::sync::CancellationToken;
use whimbrel_console::again;
use whimbrel_control::jobs::Jobs;
use whimbrel_control::private::state_dir;
use whimbrel_control::store::Status;
use whimbrel_engine::error::Result;
use whimbrel_watch::{Form, watch_at, watch_jobs};

use crate::exit::Exit;
use crate::settings::args::WatchArgs;
use crate::ui::errors;

/// Runs the command.
pub async fn run(args: &WatchArgs, stop: CancellationToken) -> Exit {
    crate::signals::note_read_only();
    let outcome = watch(args, &stop).await.map(|()| Exit::Success);
    outcome.unwrap_or_else(|e| errors::end_of(&e, args.json))
}

async fn watch(args: &WatchArgs, stop: &CancellationToken) -> Result<()> {
    let form = Form { once: args.once, json: args.json };
    match &args.at {
        Some(at) => watch_at(at, form, stop).await,
        None => {
            let (named, folder) = (args.state_dir.as_deref(), state_dir(args.state_dir.as_deref())?);
            let goes_on = |status: &Status| again::command(status, named);
            watch_jobs(Jobs::of(&folder), args.job.as_deref(), form, &goes_on, stop).await
        }
    }
}
