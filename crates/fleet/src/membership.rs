//! A member of a fleet.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_core::fleet::{Member, MemberId, Partition};
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Result;
use whimbrel_engine::link::LinkOptions;

use crate::cell::Cell;
use crate::data::Data;
use crate::login;
use crate::protocol::{Backend, COMMAND, Hello};
use crate::session::Runner;
use crate::shared::{Seen, Shared};
use crate::standing::Standing;

/// What is not answered is said again after this many milliseconds.
const RETRY_MS: u64 = 500;

/// How a member takes part.
#[derive(Debug, Clone)]
pub struct MembershipOptions {
    /// The RESP ports of `whimbrel serve --fleet`, with their passwords. If there are several, one of them
    /// leads; all are tried, and this member stays with the one that takes it.
    pub coordinators: Vec<Endpoint>,
    /// How it is connected to.
    pub link: LinkOptions,
    /// What people call this member.
    pub name: String,
    /// Where clients reach it, as HOST:PORT, as other members and clients see it.
    pub address: String,
    /// Its part of the work in relation to others; 0 takes none.
    pub weight: u32,
}

/// What a member knows, at any time. It goes on to be answered when the member has ended: then nothing is
/// this member's.
#[derive(Debug, Clone)]
pub struct View(Arc<Shared>);

impl View {
    /// Which member serves a partition now. To be asked right before a request is carried out, and the guard
    /// kept until it has been.
    pub fn standing(&self, partition: Partition) -> Standing {
        self.0.standing(partition)
    }

    /// The owner of each partition as it is known here, from partition 0 on; empty until this was a member.
    pub fn owners(&self) -> Vec<Option<MemberId>> {
        self.0.owners()
    }

    /// The owner of one partition as it is known here.
    pub fn owner(&self, partition: Partition) -> Option<MemberId> {
        self.0.owner(partition)
    }

    /// The number of the backend that has the data of a partition, as it is known here.
    pub fn backend(&self, partition: Partition) -> u32 {
        self.0.cell(partition).map_or(0, Cell::backend)
    }

    /// The version of a partition's row, and the backend that it names: both of one row. None if that is
    /// being changed right now.
    pub fn place(&self, partition: Partition) -> Option<(u64, u32)> {
        self.0.cell(partition).and_then(Cell::place)
    }

    /// Notifies when a partition was sealed that has requests under way: those that may wait for something to
    /// happen have to be ended.
    pub fn seals(&self) -> watch::Receiver<u64> {
        self.0.seals.subscribe()
    }

    /// How many partitions there are; 0 until this was a member.
    pub fn partitions(&self) -> u32 {
        self.0.partitions()
    }

    /// The number of this member, while it is one.
    pub fn member(&self) -> Option<MemberId> {
        self.0.member()
    }

    /// How much is left of the lease: nothing if this is no member.
    pub fn lease_left(&self) -> Duration {
        self.0.lease_left()
    }

    /// All members with the addresses where clients reach them; an empty one if it is not known.
    pub fn addresses(&self) -> Vec<(MemberId, Arc<str>)> {
        self.0.addresses()
    }

    /// The servers that the coordinator names.
    pub fn backends(&self) -> Vec<Backend> {
        self.0.backends()
    }

    /// Notifies of every change of the table, of addresses, and of the connection.
    pub fn watch(&self) -> watch::Receiver<Seen> {
        self.0.seen.subscribe()
    }
}

/// One member: it reaches the coordinator, again and again if that is lost, keeps the lease, and gives
/// partitions away when asked to. It ends when it is dropped, without leaving: then its partitions are given
/// away when its lease has run out.
#[derive(Debug)]
pub struct Membership {
    view: View,
    leaves: watch::Sender<bool>,
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl Membership {
    /// Begins to reach the coordinator, in a task of its own on the present runtime of tokio.
    pub fn start(options: MembershipOptions, data: impl Data) -> Membership {
        let shared = Arc::new(Shared::new());
        let (stop, leaves) = (CancellationToken::new(), watch::Sender::new(false));
        let (runs_for, runs_until, wants) = (shared.clone(), stop.clone(), leaves.subscribe());
        let task = tokio::spawn(async move {
            // No other process may know it: whatever sends it speaks for this member.
            let token = u64::from_le_bytes(login::random()?);
            let hello = Hello {
                token,
                name: options.name,
                address: options.address,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                weight: options.weight,
            };
            let machine = Member::new(token, options.weight, RETRY_MS);
            let coordinators = options.coordinators.into_iter().map(Arc::new).collect();
            let runner = Runner::new(machine, runs_for, data, coordinators, options.link, hello, wants);
            runner.run(runs_until).await
        });
        Membership { view: View(shared), leaves, stop, task }
    }

    /// What this member knows, for all parts of its process.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Waits until it ends by itself: it has left, or it cannot go on.
    ///
    /// # Errors
    /// `Own` if the coordinator is one of another fleet, or speaks another language than [`COMMAND`] says, or
    /// the system has no randomness.
    pub async fn ended(&mut self) -> Result<()> {
        match (&mut self.task).await {
            Ok(outcome) => outcome,
            Err(e) => Err(whimbrel_engine::error::Error::own(COMMAND.join(" "), e)),
        }
    }

    /// Asks to leave: all partitions are given to others, then it [ends](Membership::ended). Requests are
    /// served and passed on as before until that is done.
    pub fn ask_to_leave(&self) {
        self.leaves.send_replace(true);
    }

    /// Has all partitions given to others, and leaves then: false if that took longer than `patience`.
    pub async fn leave(mut self, patience: Duration) -> bool {
        self.ask_to_leave();
        tokio::time::timeout(patience, &mut self.task).await.is_ok()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
