//! The coordinator of a fleet as people see it, and what they wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_fleet::login;

use super::status::FleetStatus;

/// How often the coordinator is asked again.
const POLL: Duration = Duration::from_millis(200);

/// How long a coordinator that is being restarted is waited for.
const RECONNECT_MAX: Duration = Duration::from_secs(60);

/// How long coordinators may take to elect one of them.
const ELECTION_MAX: Duration = Duration::from_secs(10);

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Goal {
    /// The member is none any more.
    Gone(u32),
    /// The member has nothing any more.
    Empty(u32),
    /// The backend has no data any more.
    Bare(String),
    /// Every member has its part.
    Settled,
}

impl Goal {
    /// Whether it is so.
    pub fn is_reached(&self, status: &FleetStatus) -> bool {
        match self {
            Goal::Gone(member) => status.member(*member).is_none(),
            Goal::Empty(member) => status.member(*member).is_none_or(|member| member.owned == 0),
            Goal::Bare(backend) => status.backend(backend).is_none_or(|backend| backend.partitions == 0),
            Goal::Settled => status.is_settled(),
        }
    }

    /// How many partitions it still takes.
    pub fn left(&self, status: &FleetStatus) -> u64 {
        match self {
            Goal::Gone(member) | Goal::Empty(member) => {
                status.member(*member).map_or(0, |member| member.owned)
            }
            Goal::Bare(backend) => status.backend(backend).map_or(0, |backend| backend.partitions),
            Goal::Settled => status.remaining + status.unowned,
        }
    }
}

/// The coordinator that leads, which is searched again when it is not reached or does not lead any more.
#[derive(Debug)]
pub struct CoordinatorClient {
    endpoints: Vec<Arc<Endpoint>>,
    /// Which of them is asked.
    at: usize,
    link: Option<Link>,
}

impl CoordinatorClient {
    /// Nothing is connected yet.
    pub fn new(endpoints: Vec<Endpoint>) -> CoordinatorClient {
        CoordinatorClient { endpoints: endpoints.into_iter().map(Arc::new).collect(), at: 0, link: None }
    }

    async fn link(&mut self) -> Result<&mut Link> {
        let link = match (self.link.take(), self.endpoints.get(self.at)) {
            (Some(link), _) => link,
            (None, Some(endpoint)) => {
                let options = LinkOptions { reply_timeout_ms: 10_000, ..LinkOptions::default() };
                login::open(endpoint, options).await?
            }
            (None, None) => return Err(Error::own("reach the coordinator", "none is named")),
        };
        Ok(self.link.insert(link))
    }

    /// Has something done, once: if the answer is lost, it is not known whether it is done.
    ///
    /// # Errors
    /// What the coordinator answers; if it is not reached.
    pub async fn order(&mut self, words: &[String]) -> Result<()> {
        let words: Vec<&[u8]> =
            std::iter::once("FLEET").chain(words.iter().map(String::as_str)).map(str::as_bytes).collect();
        self.link().await?.call(&words).await.map(drop)
    }

    /// How the fleet stands, as the one says that leads.
    ///
    /// # Errors
    /// If none is reached, or none leads.
    pub async fn status(&mut self) -> Result<FleetStatus> {
        let mut failure = None;
        for _ in 0..self.endpoints.len() {
            match self.ask().await {
                Err(e) if e.is_link() || stands_by(&e) => {
                    self.link = None;
                    self.at = (self.at + 1) % self.endpoints.len();
                    // That a coordinator is not reached says less than that none leads.
                    failure = failure.filter(stands_by).or(Some(e));
                }
                outcome => return outcome,
            }
        }
        Err(failure.unwrap_or_else(|| Error::own("reach the coordinator", "none is named")))
    }

    /// As [`CoordinatorClient::status`], while coordinators elect one of them.
    ///
    /// # Errors
    /// Likewise.
    pub async fn first_status(&mut self) -> Result<FleetStatus> {
        let began = Instant::now();
        loop {
            match self.status().await {
                Err(e) if self.endpoints.len() > 1 && stands_by(&e) && began.elapsed() < ELECTION_MAX => {
                    tokio::time::sleep(POLL).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn ask(&mut self) -> Result<FleetStatus> {
        let outcome = async {
            let link = self.link().await?;
            let reply = link.call(&[b"FLEET", b"STATUS"]).await?;
            let json = reply.as_bytes().ok_or_else(|| link.unexpected("FLEET STATUS", &reply))?;
            serde_json::from_slice(json).map_err(|_| {
                let kind =
                    ErrorKind::Unexpected("another status than this version of whimbrel knows".to_owned());
                Error::new(Side::Source, link.address().to_string(), "FLEET STATUS", kind)
                    .with_remedy("use the whimbrel that the coordinator runs")
            })
        };
        let outcome = outcome.await;
        if outcome.as_ref().is_err_and(Error::is_link) {
            self.link = None;
        }
        outcome
    }

    /// As [`CoordinatorClient::status`], while the coordinator may be starting again.
    ///
    /// # Errors
    /// Likewise.
    pub async fn status_patiently(&mut self) -> Result<FleetStatus> {
        let began = Instant::now();
        loop {
            match self.status().await {
                Err(e) if (e.is_link() || stands_by(&e)) && began.elapsed() < RECONNECT_MAX => {
                    tokio::time::sleep(POLL).await
                }
                outcome => return outcome,
            }
        }
    }
}

/// Whether it says that another coordinator leads, or none.
fn stands_by(error: &Error) -> bool {
    error.server().is_some_and(|e| e.text.starts_with("NOTLEADER "))
}
