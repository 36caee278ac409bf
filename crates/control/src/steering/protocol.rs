//! What is said on a connection, and how.

use std::io;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use whimbrel_core::schedule::When;
use whimbrel_core::units::format_duration_ms;
use whimbrel_engine::seal::WriterFenceKind;
use whimbrel_flow::budget::RateChange;
use whimbrel_flow::sync::{CutoverOptions, FrontOrder};

use crate::hooks::JobHooks;
use crate::store::Status;

/// The longest request.
pub(super) const REQUEST_BYTES_MAX: usize = 64 << 10;

/// The longest message of a job: its standing lists up to a thousand keys.
pub(super) const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// How long a frame may take to be written, or the rest of one to be read.
const FRAME_WITHIN: Duration = Duration::from_secs(5);

/// How long a job may take to say how it stands: servers may have to be asked.
const STANDING_WITHIN: Duration = Duration::from_secs(5);

/// What a job is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// How it stands.
    Status,
    /// End, and undo what can be undone.
    Cancel,
    /// Have the target take over.
    Cutover(CutoverOptions),
    /// Have it take over later, in the place of what was ordered before; `None` takes that back.
    Schedule(Option<Scheduled>),
    /// Begin to move keys.
    Start,
    /// Move no more keys in the background. Clients are served, and changes followed, as before.
    Pause,
    /// Move them again.
    Resume,
    /// Move them faster or slower.
    Set(RateChange),
    /// Move keys the other way.
    Reverse,
    /// End, with clients at the target.
    Finish,
    /// Refuse what would be refused of that, and do nothing.
    Rehearse(Box<Request>),
    /// Hold clients for a cutover, and what comes after that.
    Front(FrontOrder),
}

/// A cutover, and when it is due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduled {
    /// When.
    pub when: When,
    /// What is done then.
    pub options: CutoverOptions,
}

impl Scheduled {
    /// When, and what: in words that follow what is ordered.
    pub fn in_words(&self) -> String {
        let fence = match self.options.fence {
            WriterFenceKind::None => "none",
            WriterFenceKind::Pause { .. } => "pause",
            WriterFenceKind::Acl => "acl",
            WriterFenceKind::ReadonlyReplica => "readonly-replica",
            WriterFenceKind::External { .. } => "external",
            WriterFenceKind::Front => "front",
        };
        let longest_ms = self.options.max_pause_ms;
        let mut words = format!("{}, with the fence {fence}", self.when.in_words(longest_ms));
        if !self.when.when_ready {
            words.push_str(&format!(" and a pause of at most {}", format_duration_ms(longest_ms)));
        }
        words
    }
}

/// How a job stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// What every job shows.
    pub job: Status,
    /// What one of its kind shows besides.
    #[serde(default)]
    pub details: Value,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// How the job stands after it; `None` if that could not be found out in time.
    pub standing: Option<Standing>,
    /// What was done, or why it was not.
    pub outcome: Result<Value, Refusal>,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What it means for the process that asked.
    pub why: Why,
    /// What is wrong, and what to do about it.
    pub text: String,
}

/// What a refusal means for the process that asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// A job of this kind cannot do it.
    Unsupported,
    /// Not now, or not with these servers. Nothing was changed, or everything was undone.
    Refused,
    /// A server could not be reached.
    Unreachable,
    /// It was begun, and something stopped it.
    Interrupted,
    /// Something of the job's own process failed.
    Internal,
}

impl Refusal {
    /// A job of this kind cannot do it.
    pub fn unsupported(text: impl Into<String>) -> Refusal {
        Refusal { why: Why::Unsupported, text: text.into() }
    }
}

/// A job that can be asked.
pub trait Steered: Send + Sync + 'static {
    /// How it stands.
    fn standing(&self) -> impl Future<Output = Standing> + Send;

    /// What is run at its events.
    fn hooks(&self) -> Option<&JobHooks> {
        None
    }

    /// Does what is asked; [`Request::Status`] is answered without it. `withdrawn` is cancelled once the
    /// caller would rather not, or has gone.
    fn carry_out(
        &self,
        request: Request,
        withdrawn: CancellationToken,
    ) -> impl Future<Output = Result<Value, Refusal>> + Send;
}

/// How a job stands; `None` if it cannot say so in time.
pub(super) async fn stands(steered: &impl Steered) -> Option<Standing> {
    timeout(STANDING_WITHIN, steered.standing()).await.ok()
}

/// What a job says on a connection.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Message {
    /// Ask.
    Hello,
    /// It is being done; `None` if it cannot say how it stands.
    Working(Option<Box<Standing>>),
    /// What came of it.
    Done(Box<Answer>),
}

/// What a caller may say after its request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Afterwards {
    Withdraw,
}

/// Sends one frame, within [`FRAME_WITHIN`].
pub(super) async fn send(
    to: &mut (impl AsyncWrite + Unpin),
    content: &impl Serialize,
    max: usize,
) -> io::Result<()> {
    let text = serde_json::to_vec(content)?;
    let length = u32::try_from(text.len()).ok().filter(|_| text.len() <= max);
    let length = length.ok_or_else(|| io::Error::other("it would be longer than a frame may be"))?;
    let sending = async {
        to.write_u32(length).await?;
        to.write_all(&text).await
    };
    timeout(FRAME_WITHIN, sending).await?
}

/// Receives one frame. It may take its time to begin, but not to arrive.
pub(super) async fn receive<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
    max: usize,
) -> io::Result<T> {
    let length = from.read_u32().await? as usize;
    if length > max {
        return Err(io::Error::other("a frame is longer than it may be"));
    }
    let mut text = vec![0; length];
    timeout(FRAME_WITHIN, from.read_exact(&mut text)).await??;
    serde_json::from_slice(&text).map_err(io::Error::other)
}
