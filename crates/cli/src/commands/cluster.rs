//! What commands about one cluster have in common.

use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};

use crate::exit::Exit;
use crate::settings::args::ClusterArgs;
use crate::ui::errors;

/// Connects to the cluster that the arguments name.
///
/// # Errors
/// As [`Deployment::probe`]; `Unfit` for a server that is not part of a cluster.
pub async fn connect(args: &ClusterArgs) -> Result<Deployment> {
    let deployment = Deployment::probe(args.endpoint()?, args.link_options()).await?;
    if deployment.is_cluster() {
        return Ok(deployment);
    }
    let at = deployment.endpoint.address.to_string();
    let what = "this server is not part of a cluster";
    Err(Error::unfit(deployment.side(), at, "look at the cluster", what)
        .with_remedy("name any node of a cluster"))
}

/// As [`errors::end_of`], for a command about one cluster.
pub fn end_of(error: &Error, as_json: bool) -> Exit {
    let exit = Exit::of(error, false);
    show_error(error, as_json, exit);
    exit
}

/// Prints the error of a command about one cluster, which knows neither source nor target.
pub fn show_error(error: &Error, as_json: bool, exit: Exit) {
    if matches!(error.side, Side::Own | Side::Store) {
        return errors::show_error(error, as_json, exit);
    }
    // Its flags are those of the sides, without the side.
    let renamed = |text: &str| text.replace(&format!("--{}-", error.side), "--");
    crate::ui::errors::show_error_of("cluster", error, renamed, as_json, exit);
}
