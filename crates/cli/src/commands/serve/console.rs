//! The console of a daemon.

use std::path::Path;

use tokio_util::sync::CancellationToken;
use whimbrel_console::{Console, ConsoleOptions, Mover};
use whimbrel_control::fleet::Fleet;
use whimbrel_engine::error::Result;
use whimbrel_engine::tls::Acceptor;

use crate::settings::args::ServeArgs;

/// Opens it, if that is wanted.
///
/// # Errors
/// As [`Console::bind`] and [`Acceptor::new`].
pub async fn open(
    args: &ServeArgs,
    state_dir: &Path,
    mover: Option<Mover>,
    fleet: Option<Fleet>,
    stop: &CancellationToken,
) -> Result<Option<Console>> {
    let wanted = &args.console;
    let Some(listen) = wanted.console else { return Ok(None) };
    let tls = match (&wanted.console_cert, &wanted.console_key) {
        (Some(cert), Some(key)) => Some(Acceptor::new(cert, key, wanted.console_client_ca.as_deref())?),
        _ => None,
    };
    let options = ConsoleOptions {
        listen,
        tls,
        hosts: wanted.console_host.clone(),
        state_dir: state_dir.to_owned(),
        named_dir: args.moving.state_dir.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    Console::bind(options, mover, fleet, stop.clone()).await.map(Some)
}
