//! How other processes talk to a front: by a socket in the state folder.
//!
//! - `front-NAME.lock`: held by the process that runs the front;
//! - `front-NAME.state`: how far it is, see `whimbrel_front::migrate::phase`;
//! - `front-NAME.socket`: takes one question on a connection, a line, and answers with a line of JSON.
//!
//! `NAME` is what it was given with `--listen`. Only the user who runs the front can use them.

use std::convert::Infallible;
use std::fs::{File, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_front::control::{Control, Status};

use crate::exit::Exit;
use crate::safety;

/// The longest question.
const QUESTION_BYTES_MAX: u64 = 256;

/// How long one may take to ask, and to take in the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an answer may take: clients come to rest, and servers are looked at.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Question {
    /// Begin to move keys.
    Start,
    /// How it stands.
    Status,
    /// Move no keys in the background.
    Pause,
    /// Move them again.
    Resume,
    /// Move keys the other way.
    Reverse,
    /// End.
    Finish,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// How it stands after it.
    pub status: Option<serde_json::Value>,
    /// Why it was not done.
    pub error: Option<String>,
    /// What the process that asked should end with.
    pub exit: u8,
}

/// The files of a front that this process runs.
#[derive(Debug)]
pub struct ControlSocket {
    socket: PathBuf,
    state: PathBuf,
    listener: UnixListener,
    /// Given up when the process ends, however it does.
    _lock: Flock<File>,
}

impl ControlSocket {
    /// Makes sure that nobody else runs a front between these two servers, and takes questions. How far the
    /// keys have moved is kept by the servers, whatever it listens on; questions find it by that.
    ///
    /// # Errors
    /// `Unfit` where somebody does; `Own` where the folder cannot be written.
    pub fn open(folder: &Path, listen: SocketAddr, source: &str, target: &str) -> Result<ControlSocket> {
        let fail = |e: &dyn std::fmt::Display| {
            Error::own(format!("take questions in {}", folder.display()), e)
                .with_remedy("name another folder with --state-dir; a long name cannot be that of a socket")
        };
        std::fs::create_dir_all(folder).map_err(|e| fail(&e))?;
        let pair = folder.join(format!("between-{}-and-{}", plain(source), plain(target)));
        let lock = safety::open_lock(&pair.with_extension("lock")).map_err(|e| fail(&e))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|_| {
            let what = format!("another whimbrel front runs between {source} and {target}");
            Error::unfit(Side::Own, "", "run the front", what).with_remedy("end that one")
        })?;
        let socket = socket_of(folder, listen);
        if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
            let what = format!("another whimbrel front runs with --listen {listen} and this state folder");
            return Err(Error::unfit(Side::Own, "", "run the front", what)
                .with_remedy("end that one, or name another folder with --state-dir"));
        }
        // Left by one that was killed: nobody answers.
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(|e| fail(&e))?;
        std::fs::set_permissions(&socket, Permissions::from_mode(0o600)).map_err(|e| fail(&e))?;
        Ok(ControlSocket { socket, state: pair.with_extension("state"), listener, _lock: lock })
    }

    /// Where it is kept how far the front is.
    pub fn state(&self) -> PathBuf {
        self.state.clone()
    }

    /// Answers, until it is dropped. `finished` is cancelled when the front has nothing left to do.
    ///
    /// # Errors
    /// `Own` where the socket fails.
    pub async fn attend(&self, control: Arc<Control>, finished: CancellationToken) -> Result<Infallible> {
        loop {
            let (stream, _) = self.listener.accept().await.map_err(|e| Error::own("take a question", e))?;
            let (control, finished) = (control.clone(), finished.clone());
            tokio::spawn(async move {
                if let Err(error) = serve(stream, &control, &finished).await {
                    tracing::debug!(%error, "a question was not answered");
                }
            });
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // It may be gone.
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn serve(stream: UnixStream, control: &Control, finished: &CancellationToken) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    timeout(PATIENCE, (&mut stream).take(QUESTION_BYTES_MAX).read_line(&mut line)).await??;
    let question: Question = serde_json::from_str(&line)?;
    let done = match question {
        Question::Start => control.start().await,
        Question::Status => Ok(()),
        Question::Pause => control.pause(true),
        Question::Resume => control.pause(false),
        Question::Reverse => control.reverse().await,
        Question::Finish => control.finish(),
    };
    let status: Status = control.status().await;
    let answer = Answer {
        status: Some(serde_json::to_value(&status)?),
        exit: done.as_ref().err().map_or(Exit::Success, exit_of) as u8,
        error: done.as_ref().err().map(ToString::to_string),
    };
    let text = serde_json::to_string(&answer)? + "\n";
    let told = timeout(PATIENCE, stream.get_mut().write_all(text.as_bytes())).await;
    // Also where the process that asked has gone.
    if question == Question::Finish && done.is_ok() {
        finished.cancel();
    }
    told?
}

fn exit_of(error: &Error) -> Exit {
    match error.kind {
        // The command line is right; it is the servers or the moment that do not fit.
        ErrorKind::Unfit(_) => Exit::Refused,
        _ => Exit::of(error, false),
    }
}

/// Asks a front that runs: the one with this address, or the only one.
///
/// # Errors
/// `Unfit` where there is none, or more than one; `Own` where it does not answer.
pub async fn ask(folder: &Path, listen: Option<SocketAddr>, question: Question) -> Result<Answer> {
    let stream = match listen {
        Some(listen) => UnixStream::connect(socket_of(folder, listen)).await.ok(),
        None => only_one(folder).await?,
    };
    let Some(mut stream) = stream else {
        let what = format!("no front with a target runs in {}", folder.display());
        return Err(Error::unfit(Side::Own, "", "find the front", what)
            .with_remedy("run one with whimbrel front --target, or name its folder with --state-dir"));
    };
    let asking = async {
        let line = serde_json::to_string(&question)? + "\n";
        stream.write_all(line.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(serde_json::from_str(&text)?)
    };
    let fail = |e: &dyn std::fmt::Display| {
        Error::own("ask the front", e).with_remedy("see what the process says that runs it")
    };
    timeout(ANSWER_WITHIN, asking).await.map_err(|e| fail(&e))?.map_err(|e| fail(&e))
}

async fn only_one(folder: &Path) -> Result<Option<UnixStream>> {
    let mut found: Vec<(String, UnixStream)> = Vec::new();
    // A folder that is not there has no front.
    for file in std::fs::read_dir(folder).into_iter().flatten().filter_map(std::result::Result::ok) {
        let name = file.file_name().to_string_lossy().into_owned();
        if name.starts_with("front-")
            && name.ends_with(".socket")
            && let Ok(stream) = UnixStream::connect(file.path()).await
        {
            found.push((name, stream));
        }
    }
    if found.len() > 1 {
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        let what = format!("several run: {}", names.join(", "));
        return Err(Error::unfit(Side::Own, "", "find the front", what)
            .with_remedy("name the address of the one you mean, as given with --listen"));
    }
    Ok(found.pop().map(|(_, stream)| stream))
}

fn socket_of(folder: &Path, listen: SocketAddr) -> PathBuf {
    folder.join(format!("front-{}.socket", plain(&listen.to_string())))
}

/// As a part of the name of a file.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}
