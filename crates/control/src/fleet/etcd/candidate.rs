//! One of several coordinators.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};

use super::address::EtcdOptions;
use super::client::{Client, PATIENCE};
use super::election::{Office, Outcome, Terms, stand};
use super::journal::{EtcdJournal, check};
use crate::fleet::coordination::{Coordination, FleetOptions};
use crate::fleet::handle::Fleet;

/// How long etcd may take to be reached at first.
const OPEN_PATIENCE: Duration = Duration::from_secs(10);

/// How often to check whether a coordinator leads.
const POLL_PERIOD: Duration = Duration::from_millis(250);

/// How a process is one of several coordinators.
#[derive(Debug, Clone)]
pub struct CandidateOptions {
    /// What they share.
    pub store: EtcdOptions,
    /// How the fleet is coordinated: the same for all of them.
    pub fleet: FleetOptions,
    /// How long a coordinator that says nothing goes on leading, in seconds.
    pub reign_s: u64,
}

/// A coordinator that is elected now and then, and stands by otherwise.
pub struct Candidate {
    options: CandidateOptions,
    store: Arc<EtcdOptions>,
    fleet: Fleet,
}

impl std::fmt::Debug for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Candidate({})", self.store)
    }
}

/// How a reign ended.
enum End {
    /// Its owner wants it to stop.
    Stopped,
    /// Another one may be elected now, or this one again.
    Over(Error),
    /// It would be the same the next time.
    Broken(Error),
}

impl Candidate {
    /// Checks whether the store is reached and has this fleet or none. No member is served before
    /// [`Candidate::run`]; until then, and while it stands by, [`Fleet`] says which coordinator leads.
    ///
    /// # Errors
    /// If etcd is not reached within 10 s, or refuses the login; `Own` if it has a fleet of another number of
    /// partitions.
    pub async fn open(options: CandidateOptions) -> Result<(Fleet, Candidate)> {
        let store = Arc::new(options.store.clone());
        let mut client = Client::new(store.clone(), PATIENCE);
        check(&mut client, options.fleet.partitions, Instant::now() + OPEN_PATIENCE).await.map_err(
            |error| match error.is_link() {
                true => {
                    error.with_remedy("see that etcd runs, has a leader of its own, and is reached from here")
                }
                false => error,
            },
        )?;
        let fleet = Fleet::standing_by();
        Ok((fleet.clone(), Candidate { options, store, fleet }))
    }

    /// What it shares with others.
    pub fn store(&self) -> &EtcdOptions {
        &self.store
    }

    /// Stands for election, coordinates, and stands again, until `stop`. Others reach this one at `address`.
    ///
    /// # Errors
    /// If what is in the store, or what etcd allows, has to be put right first.
    pub async fn run(self, address: String, stop: CancellationToken) -> Result<()> {
        let terms = Terms {
            address,
            reign_s: self.options.reign_s,
            drift_per_mille: self.options.fleet.machine.drift_per_mille,
        };
        let mut client = Client::new(self.store.clone(), PATIENCE);
        loop {
            let Some(elected) = stop.run_until_cancelled(self.wait(&mut client, &terms)).await else {
                return Ok(());
            };
            match self.reign(elected?, &stop).await {
                End::Stopped => return Ok(()),
                End::Broken(error) => return Err(error),
                End::Over(error) => {
                    tracing::warn!(%error, "this coordinator stands by");
                    self.fleet.stand_by(None, Some(error.to_string()));
                }
            }
        }
    }

    /// Stands by until it is elected.
    async fn wait(&self, client: &mut Client, terms: &Terms) -> Result<Office> {
        loop {
            match stand(client, terms).await {
                Ok(Outcome::Elected(office)) => return Ok(office),
                // What it has made itself, and could not take back, runs out.
                Ok(Outcome::Other(leader)) => {
                    self.fleet.stand_by(leader.filter(|leader| *leader != terms.address), None);
                }
                // What was allowed before is refused now: an operator has to fix that.
                Err(error) if matches!(error.kind, ErrorKind::Auth(_) | ErrorKind::Unfit(_)) => {
                    return Err(error);
                }
                Err(error) => self.fleet.stand_by(None, Some(error.to_string())),
            }
            sleep(POLL_PERIOD).await;
        }
    }

    /// Begins a term and coordinates until it is over.
    async fn reign(&self, office: Office, stop: &CancellationToken) -> End {
        let FleetOptions { partitions, backends, machine, trusts_refusals } = &self.options.fleet;
        let begins = async {
            let (mut journal, snapshot) = EtcdJournal::begin(&self.store, &office, *partitions).await?;
            let backends = journal.name_backends(backends).await?;
            Ok::<_, Error>((journal, snapshot, backends))
        };
        let Some(begun) = stop.run_until_cancelled(begins).await else {
            office.resign().await;
            return End::Stopped;
        };
        let end = match begun {
            Ok((journal, snapshot, backends)) => {
                let until_ms = office.until_ms.clone();
                let place = self.store.to_string();
                let (events, mut coordination) =
                    Coordination::elected(place, journal, snapshot, backends, machine.clone(), until_ms);
                coordination.trust_refusals(*trusts_refusals);
                self.fleet.lead(coordination.term(), events);
                match coordination.run(stop.clone()).await {
                    Ok(()) => End::Stopped,
                    Err(error) => End::Over(error),
                }
            }
            // Another one has been elected, or etcd is not reached: that may be otherwise the next time.
            Err(error) if error.is_link() || (error.side == Side::Store && is_own(&error)) => {
                End::Over(error)
            }
            Err(error) => End::Broken(error),
        };
        self.fleet.stand_by(None, None);
        office.resign().await;
        end
    }
}

fn is_own(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Own(_))
}
