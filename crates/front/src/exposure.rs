//! Servers that are open to everyone, and a front that would open them to everyone.
//!
//! A server without a password protects itself: in protected mode it answers only on loopback, and so do its
//! `enable-*-command local`. To the server a front is a client on its own machine or network, so a front that
//! others reach takes that protection away. It is started only if the user says that it may be.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Code, Error, ErrorKind, Result, ServerError};
use whimbrel_engine::link::{Io, Link, LinkOptions};
use whimbrel_engine::remedy::Remedy;

/// Refuses to listen at an address that other machines reach, in front of a server that wants no password.
///
/// A server that cannot be reached is passed over: whatever needs it says so.
///
/// # Errors
/// `Unfit` if anybody who reaches `listen` could use the server.
pub async fn refuse_open(listen: SocketAddr, server: &Endpoint, link: LinkOptions) -> Result<()> {
    if listen.ip().to_canonical().is_loopback() || !serves_anybody(server, link).await {
        return Ok(());
    }
    let what = format!("it wants no password: anybody who reaches {listen} could use it");
    Err(Error::unfit(server.side, server.address.to_string(), "serve it to others", what)
        .with_remedy(Remedy::ProtectOrOpenToAll))
}

/// Whether a client that brings no password is let in.
async fn serves_anybody(server: &Endpoint, link: LinkOptions) -> bool {
    let nobody = Arc::new(Endpoint { user: None, password: None, ..server.clone() });
    let asked = async {
        let io = Io::anonymous(&nobody, &nobody.address, link).await?;
        let mut link = Link::greeted(io, &nobody, &nobody.address, link).await?;
        link.ask(&[b"PING"]).await
    };
    let limit = Duration::from_millis(link.connect_timeout_ms);
    let Ok(asked) = timeout(limit, asked).await else { return false };
    match asked {
        // A user that may not do this may do something else.
        Ok(reply) => ServerError::of(&reply).is_none_or(|e| e.code != Code::NoAuth),
        Err(Error { kind: ErrorKind::Server(e), .. }) => e.code != Code::NoAuth,
        Err(_) => false,
    }
}
