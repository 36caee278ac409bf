//! The side of the job.

use std::fs::Permissions;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::unistd::geteuid;
use socket2::SockRef;
use tokio::io::AsyncWrite;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result};
use whimbrel_flow::journal::remove_if_there;

use super::protocol::{
    Afterwards, Answer, MESSAGE_BYTES_MAX, Message, REQUEST_BYTES_MAX, Refusal, Request, Standing, Steered,
    Why, receive, send, stands,
};
use crate::socket::short;

/// How many may be connected at once; others are turned away.
const CALLERS_MAX: usize = 16;

/// How long a caller may take to ask.
const ASKED_WITHIN: Duration = Duration::from_secs(5);

/// How often a caller hears how the job stands while its request is carried out.
const WORKING_PERIOD: Duration = Duration::from_millis(250);

/// How long callers that wait for an answer are served after the job's end.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// How long it is waited after a failure to take a connection: no file may be left to open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The file of a socket. It goes with this.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Which file it was when it was made.
    made: Option<Stamp>,
    is_removed: AtomicBool,
}

/// Device, number and moment of a file: numbers are used again.
type Stamp = (u64, u64, i64, i64);

fn stamp(path: &Path) -> Option<Stamp> {
    let about = path.symlink_metadata().ok()?;
    Some((about.dev(), about.ino(), about.ctime(), about.ctime_nsec()))
}

impl SocketFile {
    /// Removes it, once, unless another process has put its own there: while this one was still ending, its
    /// job may have been resumed.
    pub fn remove(&self) {
        if !self.is_removed.swap(true, Ordering::AcqRel)
            && self.made.is_some()
            && stamp(&self.path) == self.made
        {
            // It may be gone.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The socket of a job that this process runs.
#[derive(Debug)]
pub struct Socket {
    file: Arc<SocketFile>,
    listener: UnixListener,
    /// The user that may ask.
    uid: u32,
}

impl Socket {
    /// Takes the place of a socket that a killed process has left: only the process that has the job's
    /// journal open may call this.
    ///
    /// # Errors
    /// `Own` if the socket cannot be made.
    pub fn bind(path: &Path) -> Result<Socket> {
        let fail = |e: io::Error| Error::own(format!("take requests at {}", path.display()), e);
        let bind = || {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            remove_if_there(path)?;
            let (name, _folder) = short(path)?;
            let listener = UnixListener::bind(&name)?;
            std::fs::set_permissions(&name, Permissions::from_mode(0o600))?;
            let (path, made) = (path.to_owned(), stamp(path));
            let file = SocketFile { path, made, is_removed: AtomicBool::new(false) };
            Ok(Socket { file: Arc::new(file), listener, uid: geteuid().as_raw() })
        };
        bind().map_err(fail)
    }

    /// Its file.
    pub fn file(&self) -> Arc<SocketFile> {
        self.file.clone()
    }

    /// Answers until `closing` is cancelled; those that wait for an answer then still get it, within 5 s.
    /// Returns the socket: while it is there the job seems to be served.
    pub async fn serve<S: Steered>(self, steered: Arc<S>, closing: CancellationToken) -> Socket {
        let mut callers = JoinSet::new();
        loop {
            tokio::select! {
                () = closing.cancelled() => break,
                Some(_) = callers.join_next() => {}
                stream = self.listener.accept(), if callers.len() < CALLERS_MAX => match stream {
                    Ok((stream, _)) => {
                        let (steered, uid) = (steered.clone(), self.uid);
                        callers.spawn(async move {
                            if let Err(error) = attend(stream, uid, steered).await {
                                tracing::debug!(%error, "a request was not answered");
                            }
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a request could not be taken");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        let answered = async { while callers.join_next().await.is_some() {} };
        if timeout(CLOSED_WITHIN, answered).await.is_err() {
            tracing::warn!("a request was still open when the job ended");
        }
        self
    }
}

async fn attend<S: Steered>(mut stream: UnixStream, uid: u32, steered: Arc<S>) -> io::Result<()> {
    let caller = stream.peer_cred()?.uid();
    if caller != uid {
        tracing::warn!(caller, "another user wants to steer the job");
        let text = "the job belongs to another user".to_owned();
        return done(&mut stream, None, Err(Refusal { why: Why::Refused, text })).await;
    }
    send(&mut stream, &Message::Hello, MESSAGE_BYTES_MAX).await?;
    let request = match timeout(ASKED_WITHIN, receive(&mut stream, REQUEST_BYTES_MAX)).await? {
        Ok(request) => request,
        Err(e) if e.kind() == io::ErrorKind::Other => {
            let text = format!("the request cannot be understood: {e}");
            return done(&mut stream, None, Err(Refusal { why: Why::Unsupported, text })).await;
        }
        Err(e) => return Err(e),
    };
    if request == Request::Status {
        return done(&mut stream, stands(&*steered).await, Ok(serde_json::Value::Null)).await;
    }
    if has_left(&stream) {
        // It asked while this process was stopped, and waits no longer.
        return Ok(());
    }
    let (mut reader, mut writer) = stream.split();
    let withdrawn = CancellationToken::new();
    let mut doing = JoinSet::new();
    let (job, token) = (steered.clone(), withdrawn.clone());
    doing.spawn(async move { job.carry_out(request, token).await });
    let mut beats = interval(WORKING_PERIOD);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let listening = receive::<Afterwards>(&mut reader, REQUEST_BYTES_MAX);
    tokio::pin!(listening);
    let outcome = loop {
        tokio::select! {
            biased;
            outcome = doing.join_next() => break outcome,
            // It says so, has gone, or says something unknown.
            _ = &mut listening, if !withdrawn.is_cancelled() => withdrawn.cancel(),
            _ = beats.tick() => {
                let standing = stands(&*steered).await.map(Box::new);
                if send(&mut writer, &Message::Working(standing), MESSAGE_BYTES_MAX).await.is_err() {
                    withdrawn.cancel();
                }
            }
        }
    };
    let outcome = match outcome {
        Some(Ok(outcome)) => outcome,
        _ => Err(Refusal { why: Why::Internal, text: "the request was broken off".to_owned() }),
    };
    done(&mut writer, stands(&*steered).await, outcome).await
}

/// Whether the other side has closed the connection, as the system knows it by now.
fn has_left(stream: &UnixStream) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    matches!(SockRef::from(stream).peek(&mut byte), Ok(0))
}

async fn done(
    writer: &mut (impl AsyncWrite + Unpin),
    standing: Option<Standing>,
    outcome: std::result::Result<serde_json::Value, Refusal>,
) -> io::Result<()> {
    send(writer, &Message::Done(Box::new(Answer { standing, outcome })), MESSAGE_BYTES_MAX).await
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tokio::io::AsyncWriteExt;
    use tokio::sync::Notify;

    use super::super::client::Call;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_process_that_ends_leaves_the_socket_of_the_next_run_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a-job.socket");
        let ending = Socket::bind(&path).expect("bound");
        let next = Socket::bind(&path).expect("bound");
        drop(ending);
        assert!(path.exists(), "the next run cannot be reached");
        drop(next);
        assert!(!path.exists(), "it is left");
    }

    /// A job that carries out requests when it is let.
    #[derive(Default)]
    struct Job {
        begun: Mutex<Vec<Request>>,
        may_go_on: Notify,
    }

    impl Steered for Job {
        async fn standing(&self) -> Standing {
            Standing { details: json!("stands"), ..Standing::default() }
        }

        async fn carry_out(
            &self,
            request: Request,
            withdrawn: CancellationToken,
        ) -> std::result::Result<Value, Refusal> {
            self.begun.lock().push(request);
            tokio::select! {
                () = self.may_go_on.notified() => Ok(json!("done")),
                () = withdrawn.cancelled() => {
                    Err(Refusal { why: Why::Refused, text: "withdrawn".to_owned() })
                }
            }
        }
    }

    /// A job that runs, until the token is cancelled.
    struct Running {
        _folder: tempfile::TempDir,
        path: PathBuf,
        job: Arc<Job>,
        closing: CancellationToken,
        task: tokio::task::JoinHandle<Socket>,
    }

    /// A job whose callers have to be this user.
    fn run(uid: u32) -> Running {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs").join("a-job.socket");
        let socket = Socket { uid, ..Socket::bind(&path).expect("bound") };
        let (job, closing) = (Arc::<Job>::default(), CancellationToken::new());
        let task = tokio::spawn(socket.serve(job.clone(), closing.clone()));
        Running { _folder: folder, path, job, closing, task }
    }

    async fn ask(path: &Path, request: Request) -> Result<Answer> {
        let call = Call { socket: path, request, within: PATIENCE };
        call.make(&CancellationToken::new(), |_| {}).await
    }

    #[tokio::test]
    async fn it_says_how_it_stands_and_does_what_it_is_asked() {
        let running = run(geteuid().as_raw());
        assert_eq!(
            std::fs::metadata(&running.path).expect("it is there").permissions().mode() & 0o777,
            0o600
        );
        let answer = ask(&running.path, Request::Status).await.expect("it answers");
        assert_eq!(answer.standing.expect("it stands").details, json!("stands"));
        assert!(running.job.begun.lock().is_empty());
        let (path, job) = (running.path.clone(), running.job.clone());
        let call = Call { socket: &path, request: Request::Pause, within: PATIENCE };
        // It is reported before it is done.
        let answer = call.make(&CancellationToken::new(), |_| job.may_go_on.notify_one()).await;
        assert_eq!(answer.expect("it answers").outcome, Ok(json!("done")));
        assert_eq!(*running.job.begun.lock(), [Request::Pause]);
    }

    #[tokio::test]
    async fn another_user_is_refused() {
        let running = run(geteuid().as_raw() + 1);
        let refusal = ask(&running.path, Request::Cancel).await.expect("it answers").outcome;
        let refusal = refusal.expect_err("not for us");
        assert!(refusal.why == Why::Refused && refusal.text.contains("another user"), "{refusal:?}");
        assert!(running.job.begun.lock().is_empty());
    }

    #[tokio::test]
    async fn what_is_withdrawn_or_whose_caller_has_gone_is_given_up() {
        let running = run(geteuid().as_raw());
        let call = Call { socket: &running.path, request: Request::Reverse, within: PATIENCE };
        let withdraw = CancellationToken::new();
        let answer = call.make(&withdraw, |_| withdraw.cancel()).await.expect("it answers");
        assert_eq!(answer.outcome.expect_err("not done").text, "withdrawn");
        {
            let asking = ask(&running.path, Request::Reverse);
            let begun = async {
                while running.job.begun.lock().len() < 2 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                answer = asking => panic!("{answer:?}"),
                () = begun => {}
            }
        }
        // With that the caller has gone, and the job ends without waiting for its answer.
        running.closing.cancel();
        timeout(PATIENCE, running.task).await.expect("in time").expect("it ends");
    }

    #[tokio::test]
    async fn a_caller_gets_its_answer_although_the_job_ends() {
        let running = run(geteuid().as_raw());
        let call = Call { socket: &running.path, request: Request::Finish, within: PATIENCE };
        let (job, closing) = (running.job.clone(), running.closing.clone());
        let answer = call
            .make(&CancellationToken::new(), |_| {
                closing.cancel();
                job.may_go_on.notify_one();
            })
            .await;
        assert_eq!(answer.expect("it answers").outcome, Ok(json!("done")));
        running.task.await.expect("it ends");
        assert!(!running.path.exists(), "nobody can ask it any more");
    }

    #[tokio::test]
    async fn what_is_too_long_or_no_request_is_none() {
        let running = run(geteuid().as_raw());
        let mut stream = UnixStream::connect(&running.path).await.expect("connected");
        let _: Message = receive(&mut stream, MESSAGE_BYTES_MAX).await.expect("hello");
        stream.write_u32(u32::MAX).await.expect("sent");
        let answer = receive::<Message>(&mut stream, MESSAGE_BYTES_MAX).await.expect("an answer");
        let Message::Done(answer) = answer else { panic!("{answer:?}") };
        assert_eq!(answer.outcome.expect_err("refused").why, Why::Unsupported);
        let mut stream = UnixStream::connect(&running.path).await.expect("connected");
        let _: Message = receive(&mut stream, MESSAGE_BYTES_MAX).await.expect("hello");
        send(&mut stream, &json!("dance"), REQUEST_BYTES_MAX).await.expect("sent");
        let answer = receive::<Message>(&mut stream, MESSAGE_BYTES_MAX).await.expect("an answer");
        let Message::Done(answer) = answer else { panic!("{answer:?}") };
        assert_eq!(answer.outcome.expect_err("refused").why, Why::Unsupported);
        assert!(running.job.begun.lock().is_empty());
    }
}
