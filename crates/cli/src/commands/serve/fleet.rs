//! `whimbrel serve --fleet`: the options of a coordinator.

use std::path::Path;

use serde_json::{Value, json};
#[cfg(feature = "etcd")]
use whimbrel_control::fleet::etcd::CandidateOptions;
use whimbrel_control::fleet::{Coordinator, Fleet, FleetOptions};
use whimbrel_core::fleet::Options;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result, Side};

use crate::settings::args::{CoordinatorArgs, ServeArgs};

/// The file in the state folder.
const JOURNAL: &str = "fleet.journal";

/// Moves that a member takes part in at once.
const MOVES_PER_MEMBER: u32 = 32;

/// Opens the journal of the fleet: in the store, or in the state folder.
///
/// # Errors
/// `Options` for those that make no sense; else as [`Coordinator::alone`] and [`Coordinator::among_others`].
pub async fn open(args: &ServeArgs, folder: &Path) -> Result<(Fleet, Coordinator)> {
    let options = options(&args.coordinator)?;
    match args.coordinator.store {
        Some(_) => open_store(args, options).await,
        None => Coordinator::alone(folder, JOURNAL, options),
    }
}

/// What a coordinator is, for people and as JSON.
pub fn described(coordinator: &Coordinator, line: &mut Value) -> String {
    match coordinator {
        Coordinator::Alone(coordination) => {
            let term = coordination.term();
            line["term"] = json!(term);
            format!("a fleet in its term {term}")
        }
        #[cfg(feature = "etcd")]
        Coordinator::Candidate(candidate) => {
            let store = candidate.store().to_string();
            line["store"] = json!(store);
            format!("one of the coordinators of the fleet in {store}, stands by until it is elected")
        }
    }
}

#[cfg(feature = "etcd")]
async fn open_store(args: &ServeArgs, fleet: FleetOptions) -> Result<(Fleet, Coordinator)> {
    let unfit = |what: String| Error::options(Side::Own, "reading the options", what);
    if args.coordinator.announce.is_none() && args.listen.ip().to_canonical().is_unspecified() {
        let what =
            format!("others would learn that this coordinator is at {}, which is no address", args.listen);
        return Err(unfit(what).with_remedy("say where it is reached with --announce HOST:PORT"));
    }
    let store = args.coordinator.etcd()?.ok_or_else(|| unfit("no store is named".to_owned()))?;
    let options = CandidateOptions { store, fleet, reign_s: args.coordinator.reign };
    Coordinator::among_others(options).await
}

#[cfg(not(feature = "etcd"))]
async fn open_store(_: &ServeArgs, _: FleetOptions) -> Result<(Fleet, Coordinator)> {
    let what = "this whimbrel was built without etcd";
    Err(Error::options(Side::Own, "reading the options", what)
        .with_remedy("leave --store out, or build it with the feature etcd"))
}

/// # Errors
/// `Options` for a backend that is no address or has a password.
fn options(args: &CoordinatorArgs) -> Result<FleetOptions> {
    for (name, url) in &args.backend {
        let endpoint = Endpoint::parse(Side::Own, url).map_err(|e| {
            Error::options(Side::Own, "reading the options", format!("the address of --backend {name}: {e}"))
        })?;
        if endpoint.password.is_some() {
            let what = format!("--backend {name} has a password, and all members would learn it");
            return Err(Error::options(Side::Own, "reading the options", what)
                .with_remedy("leave it out: each member gets the password from the one who starts it"));
        }
    }
    let machine = Options {
        copies: args.copies.into(),
        lease_ms: args.lease,
        moves_per_member: MOVES_PER_MEMBER,
        ..Options::default()
    };
    let (partitions, trusts_refusals) = (args.partitions, args.dead_when_refused);
    Ok(FleetOptions { partitions, backends: args.backend.clone(), machine, trusts_refusals })
}
