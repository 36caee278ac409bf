//! Which feeds a server would give, found out without attaching one.

use super::connector::Connector;
use super::notifications::Notifications;
use super::stream::{Offer, backlog, offer};
use super::tracking::Tracking;
use crate::deployment::Deployment;
use crate::endpoint::Address;
use crate::error::Result;
use crate::rights::{self, Right};

/// Why feeds cannot be had; `None` for those that can.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prospect {
    /// A replication link.
    pub replication: Option<String>,
    /// Invalidations of client-side caching.
    pub tracking: Option<String>,
    /// Keyspace notifications that are known to report everything.
    pub notifications: Option<String>,
}

/// Finds out which feeds the server at `address` would give. Nothing is attached, and the server does not
/// count a replica.
///
/// # Errors
/// As [`Deployment::open`] and [`Link::ask`](crate::link::Link::ask).
pub async fn prospect(deployment: &Deployment, address: &Address) -> Result<Prospect> {
    let place = Connector::of(deployment, address);
    let replconf: &[&[u8]] = &[b"REPLCONF", b"capa", b"eof"];
    // Of a history that no server has; it is not carried out.
    let psync: &[&[u8]] = &[place.psync(), b"whimbrel", b"1"];
    let refused = rights::ask(place.open().await?, &[replconf, psync]).await?.into_iter();
    let refused = refused.filter_map(|right| match right {
        Right::Refused(answer) => Some(answer),
        Right::Given | Right::Unknown => None,
    });
    let mut found = Prospect { replication: refused.into_iter().next(), ..Prospect::default() };
    let mut link = place.open().await?;
    if found.replication.is_none() {
        found.replication = match offer(&mut link).await? {
            Offer::Filtered => None,
            Offer::Nothing(why) => Some(why),
            Offer::Plain if backlog(&mut link).await?.is_some() => None,
            Offer::Plain => Some("the server has no backlog to continue from".to_owned()),
        };
    }
    // On connections of their own, which end here.
    found.tracking = Tracking::begin(deployment, &mut place.open().await?).await?.err();
    found.notifications = Notifications::begin(&mut place.open().await?, false).await?.err();
    Ok(found)
}
