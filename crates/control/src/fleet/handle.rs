//! How members and people reach the coordinator.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use whimbrel_core::fleet::{MemberId, ToCoordinator};
use whimbrel_engine::error::{Error, Result};
use whimbrel_fleet::frame::Frames;
use whimbrel_fleet::outbox::Outbox;
use whimbrel_fleet::protocol::{FRAME_BYTES_MAX, FromMember, Hello, MEMBERS_MAX};

use super::status::FleetStatus;

/// What may wait for one member: the rows of the largest table.
const OUTBOX_BYTES_MAX: usize = 32 << 20;

/// How long a member may say nothing: it renews its lease much more often.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long a member may take to identify itself, and how long to take in what it is sent.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why something is not done, in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// It makes no sense, or the coordinator has ended.
    Unfit(String),
    /// Another process leads the fleet: the value is that process's address, if it is known.
    NotLeader(Option<String>),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::Unfit(what) => f.write_str(what),
            Refused::NotLeader(Some(leader)) => write!(f, "{leader} leads the fleet, this one stands by"),
            Refused::NotLeader(None) => {
                f.write_str("? nobody leads the fleet at the moment, and this one stands by")
            }
        }
    }
}

/// What a process is to its fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It coordinates, in this term.
    Leads(u64),
    /// It waits until it is elected.
    StandsBy {
        /// The address of the leader, if that is known.
        leader: Option<String>,
        /// Why this one does not lead any more, or what keeps it from being elected.
        why: Option<String>,
    },
}

/// A role, and the receiver of events.
#[derive(Debug, Clone)]
struct Post {
    role: Role,
    events: Option<mpsc::Sender<Event>>,
    /// Others are elected when it ends.
    is_candidate: bool,
}

impl Post {
    /// Why it does not hear anything any more. An elected coordinator may have ended, and not stand by yet.
    fn over(&self) -> Refused {
        match &self.role {
            Role::StandsBy { leader, .. } => Refused::NotLeader(leader.clone()),
            Role::Leads(_) if self.is_candidate => Refused::NotLeader(None),
            Role::Leads(_) => Refused::Unfit("the coordinator of the fleet has ended".to_owned()),
        }
    }
}

/// What people ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Question {
    Status,
    Leave(MemberId),
    Dead(MemberId),
    /// A weight for a member; if none is given, the weight that it came with.
    Weigh(MemberId, Option<u32>),
    /// A part of the data for a backend, by its name.
    Assign(String, u32),
    Rebalance,
    /// Whether that would be refused.
    Rehearse(Box<Question>),
}

/// Whether a process listens at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listens {
    Yes,
    No,
}

/// What the coordinator hears.
#[derive(Debug)]
pub(super) enum Event {
    /// A member or client has connected.
    Linked(u64, Arc<Outbox>, Hello),
    /// It says something.
    Received(u64, FromMember),
    /// Its connection has ended.
    Ended(u64),
    /// Whether a process listens at the address of this member.
    Probed(MemberId, Listens),
    Asked(Question, oneshot::Sender<std::result::Result<FleetStatus, Refused>>),
    /// Everything up to this number is on disk, or why not.
    Written(std::result::Result<u64, Error>),
    /// The latest term that the journal knows, for a member that has spoken of a later one on a connection.
    Terms(u64, ToCoordinator, Result<u64>),
}

/// A fleet that runs in this process. Clones are the same fleet.
#[derive(Debug, Clone)]
pub struct Fleet {
    post: Arc<watch::Sender<Post>>,
    next_link: Arc<AtomicU64>,
    places: Arc<Semaphore>,
    /// Nothing that is asked for is done.
    rehearses: bool,
}

impl Fleet {
    /// A coordinator that leads in this term, and always will.
    pub(super) fn new(term: u64, events: mpsc::Sender<Event>) -> Fleet {
        Fleet::with(Post { role: Role::Leads(term), events: Some(events), is_candidate: false })
    }

    fn with(post: Post) -> Fleet {
        let places = Arc::new(Semaphore::new(MEMBERS_MAX));
        let post = Arc::new(watch::Sender::new(post));
        Fleet { post, next_link: Arc::default(), places, rehearses: false }
    }

    /// The same fleet, for questions that are not carried out: what would be refused is refused.
    pub(crate) fn rehearsing(&self) -> Fleet {
        Fleet { rehearses: true, ..self.clone() }
    }

    /// A coordinator that does not lead yet.
    #[cfg(feature = "etcd")]
    pub(super) fn standing_by() -> Fleet {
        let role = Role::StandsBy { leader: None, why: None };
        Fleet::with(Post { role, events: None, is_candidate: true })
    }

    /// It leads from now on, and says so when others ask.
    #[cfg(feature = "etcd")]
    pub(super) fn lead(&self, term: u64, events: mpsc::Sender<Event>) {
        let role = Role::Leads(term);
        self.post.send_replace(Post { role, events: Some(events), is_candidate: true });
    }

    /// It does not lead from now on.
    #[cfg(feature = "etcd")]
    pub(super) fn stand_by(&self, leader: Option<String>, why: Option<String>) {
        let role = Role::StandsBy { leader, why };
        self.post.send_if_modified(|post| {
            let is_new = post.role != role;
            if is_new {
                *post = Post { role, events: None, is_candidate: true };
            }
            is_new
        });
    }

    /// What this process is to the fleet now.
    pub fn role(&self) -> Role {
        self.post.borrow().role.clone()
    }

    /// Whether members and questions are heard here.
    ///
    /// # Errors
    /// [`Refused::NotLeader`] if another process leads.
    pub fn is_heard(&self) -> Result<(), Refused> {
        self.events().map(drop)
    }

    fn events(&self) -> Result<mpsc::Sender<Event>, Refused> {
        let post = self.post.borrow();
        post.events.clone().filter(|events| !events.is_closed()).ok_or_else(|| post.over())
    }

    /// How it stands.
    ///
    /// # Errors
    /// [`Refused`] if the coordinator has ended.
    pub async fn status(&self) -> Result<FleetStatus, Refused> {
        self.ask(Question::Status).await
    }

    /// Has a member give its partitions to others, and be none any more then. Returns when that is written
    /// down; the partitions move after it.
    ///
    /// # Errors
    /// [`Refused`] if there is no such member, or no other member that takes partitions.
    pub async fn leave(&self, member: u32) -> Result<(), Refused> {
        self.ask(Question::Leave(MemberId(member))).await.map(drop)
    }

    /// Takes a member for dead: what it owns goes to others at once, and not when its lease has ended. Its
    /// process must be gone; while it serves, two members would serve the same partitions.
    ///
    /// # Errors
    /// [`Refused`] if there is no such member, or it was just heard from.
    pub async fn dead(&self, member: u32) -> Result<(), Refused> {
        self.ask(Question::Dead(MemberId(member))).await.map(drop)
    }

    /// Has a member give its partitions to others, and stay a member without any.
    ///
    /// # Errors
    /// As [`Fleet::leave`].
    pub async fn drain(&self, member: u32) -> Result<(), Refused> {
        self.ask(Question::Weigh(MemberId(member), Some(0))).await.map(drop)
    }

    /// Gives a member its part of the partitions: by `weight`, or by the one it came with.
    ///
    /// # Errors
    /// [`Refused`] if there is no such member, or if it leaves.
    pub async fn join(&self, member: u32, weight: Option<u32>) -> Result<(), Refused> {
        self.ask(Question::Weigh(MemberId(member), weight)).await.map(drop)
    }

    /// Gives a backend its part of the data, in relation to others; 0 for none. Members carry it there.
    ///
    /// # Errors
    /// [`Refused`] if there is no such backend, or no other one that takes data.
    pub async fn place(&self, backend: &str, weight: u32) -> Result<(), Refused> {
        self.ask(Question::Assign(backend.to_owned(), weight)).await.map(drop)
    }

    /// Plans anew which member should have what, and tries again at once what failed.
    ///
    /// # Errors
    /// [`Refused`] if the coordinator has ended.
    pub async fn rebalance(&self) -> Result<(), Refused> {
        self.ask(Question::Rebalance).await.map(drop)
    }

    async fn ask(&self, question: Question) -> Result<FleetStatus, Refused> {
        let over = || self.post.borrow().over();
        let question = match self.rehearses {
            true => Question::Rehearse(Box::new(question)),
            false => question,
        };
        let (answer, answered) = oneshot::channel();
        self.events()?.send(Event::Asked(question, answer)).await.map_err(|_| over())?;
        answered.await.map_err(|_| over())?
    }

    /// Serves the connection of a member until it ends or `stop`; `begun` is what has arrived of it already.
    ///
    /// # Errors
    /// Why it ended, if the member did not just go.
    pub async fn serve<S>(&self, stream: S, begun: BytesMut, stop: &CancellationToken) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite,
    {
        let fail = |what: &str| Err(io::Error::other(what.to_owned()));
        let Ok(_place) = self.places.try_acquire() else { return fail("there are too many members") };
        let (reader, writer) = tokio::io::split(stream);
        tokio::pin!(reader, writer);
        let mut frames = Frames::new(reader, begun, FRAME_BYTES_MAX);
        let FromMember::Hello(hello) = next_frame(&mut frames, PATIENCE).await? else {
            return fail("it does not say who it is");
        };
        let events = self.events().map_err(|refused| io::Error::other(refused.to_string()))?;
        let link = self.next_link.fetch_add(1, Ordering::Relaxed);
        let outbox = Arc::new(Outbox::new(OUTBOX_BYTES_MAX));
        let over = |_| io::Error::other("the coordinator has ended");
        events.send(Event::Linked(link, outbox.clone(), hello)).await.map_err(over)?;
        let hears = async {
            loop {
                let frame = next_frame(&mut frames, SILENCE_MAX).await?;
                events.send(Event::Received(link, frame)).await.map_err(over)?;
            }
        };
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            heard = hears => heard,
            sent = outbox.send(&mut writer, PATIENCE) => sent,
        };
        outbox.close();
        events.send(Event::Ended(link)).await.map_err(over)?;
        outcome
    }
}

/// What a member says next.
async fn next_frame(
    frames: &mut Frames<impl AsyncRead + Unpin>,
    patience: Duration,
) -> io::Result<FromMember> {
    match timeout(patience, frames.next()).await?? {
        Some((kind, bytes)) => FromMember::decode(kind, &bytes)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string())),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
