//! Where a feed connects to.

use std::sync::Arc;

use crate::deployment::Deployment;
use crate::endpoint::{Address, Endpoint};
use crate::error::Result;
use crate::link::{Link, LinkOptions};

/// The name that feeds show in `CLIENT LIST`.
pub const FEED_CLIENT_NAME: &str = "whimbrel:feed";

/// If a feed connects to, and how.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) address: Address,
    pub(super) options: LinkOptions,
}

impl Connector {
    pub(super) fn of(deployment: &Deployment, address: &Address) -> Connector {
        Connector {
            endpoint: deployment.endpoint.clone(),
            address: address.clone(),
            options: LinkOptions { db: 0, readonly: false, ..deployment.options },
        }
    }

    /// What `PSYNC` is called there.
    pub(super) fn psync(&self) -> &[u8] {
        self.endpoint.psync_at(&self.address).as_bytes()
    }

    pub(super) async fn open(&self) -> Result<Link> {
        let mut link = Link::open(&self.endpoint, &self.address, self.options).await?;
        // What arrives on it is not only answers. The feeds themselves keep the login, as far as they can.
        link.keeps_login(false);
        // A courtesy, which an ACL may forbid.
        link.ask(&[b"CLIENT", b"SETNAME", FEED_CLIENT_NAME.as_bytes()]).await?;
        Ok(link)
    }
}
