//! By what others see a job that is at work on two nodes although nothing of a handover is: one of the
//! servers' own migrations, or of the classic way.
//!
//! A named connection to each node, as those of a [`Handover`](super::Handover). It ends with the process,
//! however that ends, so a job that was killed keeps no other job out. If a job's machine is gone, its
//! connection is listed until the server finds out (`tcp-keepalive`), or an operator sends `CLIENT KILL ID`.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::options::HandoverOptions;
use super::peer::{Closing, Connector, OtherJob, list_clients};
use crate::deployment::Deployment;
use crate::endpoint::Address;
use crate::error::{Code, Result};
use crate::link::Link;

/// How often the connections are used, so that a server does not close them for being idle.
const KEEP_EVERY: Duration = Duration::from_secs(5);

/// Connections to the two nodes of a job by which others see it.
#[derive(Debug)]
pub struct Claim {
    ends: [End; 2],
    options: HandoverOptions,
}

#[derive(Debug)]
struct End {
    connector: Connector,
    address: Address,
    link: Option<Link>,
    /// The numbers of our own connections there.
    own: BTreeSet<i64>,
}

impl End {
    async fn link(&mut self) -> Result<&mut Link> {
        let link = match self.link.take() {
            Some(link) => link,
            None => {
                let (link, number) = self.connector.open(&self.address).await?;
                self.own.extend(number);
                link
            }
        };
        Ok(self.link.insert(link))
    }

    /// The jobs that we give way to. If the list is forbidden, marks of slots still show them.
    async fn others(&mut self, options: &HandoverOptions) -> Result<Vec<OtherJob>> {
        let list = match list_clients(self.link().await?).await {
            Err(e) if e.server().is_some_and(|e| e.code == Code::NoPermission) => return Ok(Vec::new()),
            Err(e) => {
                self.link = None;
                return Err(e);
            }
            Ok(list) => list,
        };
        let own = self.own.last().copied().unwrap_or(i64::MAX);
        let found = list.lines().filter_map(|line| OtherJob::of_line(line, &self.address));
        let others = found.filter(|other| !self.own.contains(&other.number));
        Ok(others.filter(|other| other.goes_before(own, options)).collect())
    }

    /// A courtesy: if it does not answer, another connection takes its place the next time.
    async fn show(&mut self, name: &Arc<str>) {
        self.connector.name = name.clone();
        let set = async {
            let link = self.link().await?;
            link.ask(&[b"CLIENT", b"SETNAME", name.as_bytes()]).await
        };
        if set.await.is_err() {
            self.link = None;
        }
    }
}

impl Claim {
    /// Connects to the two nodes, as a job that is checking whether it may begin.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub async fn open(
        deployment: &Deployment,
        nodes: [Address; 2],
        options: HandoverOptions,
    ) -> Result<Claim> {
        let options = HandoverOptions { begun: false, ..options };
        let name = options.client_name();
        let end = |address| End {
            connector: Connector {
                endpoint: deployment.endpoint.clone(),
                options: deployment.options,
                name: name.clone(),
            },
            address,
            link: None,
            own: BTreeSet::new(),
        };
        let mut ends = nodes.map(end);
        for end in &mut ends {
            end.link().await?;
        }
        Ok(Claim { ends, options })
    }

    /// As [`Handover::other_jobs`](super::Handover::other_jobs).
    ///
    /// # Errors
    /// As [`Link::call`].
    pub async fn others(&mut self) -> Result<Vec<String>> {
        let closing = Closing::begin();
        loop {
            let mut others = Vec::new();
            for end in &mut self.ends {
                others.extend(end.others(&self.options).await?);
            }
            if !closing.may_be(&others).await {
                return Ok(others.iter().map(ToString::to_string).collect());
            }
        }
    }

    /// From now on others see that the job has begun.
    pub async fn begin(&mut self) {
        self.options.begun = true;
        let name = self.options.client_name();
        for end in &mut self.ends {
            end.show(&name).await;
        }
    }

    /// Keeps the connections for as long as it is polled.
    pub async fn keep(mut self) -> Infallible {
        let name = self.options.client_name();
        loop {
            sleep(KEEP_EVERY).await;
            for end in &mut self.ends {
                end.show(&name).await;
            }
        }
    }
}
