//! The side that asks.

use std::io;
use std::path::Path;
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result};

use super::protocol::{
    Afterwards, Answer, MESSAGE_BYTES_MAX, Message, REQUEST_BYTES_MAX, Request, Standing, receive, send,
};
use crate::socket::short;

/// How long a job may take to say hello: a running job does so at once.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// How long a job may say nothing while it carries out a request: a running job reports its state every
/// second or so.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How long it may take to find out how a job stands that is only looked at.
const STATUS_WITHIN: Duration = Duration::from_secs(2);

/// The state of a job; `None` if no process runs it, or it does not answer within 2 s.
pub async fn standing(socket: &Path) -> Option<Standing> {
    let (withdraw, within) = (CancellationToken::new(), STATUS_WITHIN);
    let call = Call { socket, request: Request::Status, within };
    timeout(within, call.make(&withdraw, |_| {})).await.ok()?.ok()?.standing
}

/// One request.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// The socket of the job.
    pub socket: &'a Path,
    /// What it is asked.
    pub request: Request,
    /// How long the answer may take.
    pub within: Duration,
}

impl Call<'_> {
    /// Asks, and waits for the answer; `heard` gets how the job stands meanwhile. When `withdraw` is
    /// cancelled the caller would rather not: the answer says whether that was in time.
    ///
    /// # Errors
    /// `Own` if no process runs the job, it belongs to another user, is stopped or hangs, ends before it
    /// answers, or does not answer in time.
    pub async fn make(
        &self,
        withdraw: &CancellationToken,
        mut heard: impl FnMut(&Standing),
    ) -> Result<Answer> {
        let until = Instant::now() + self.within;
        let hello_until = until.min(Instant::now() + HELLO_WITHIN);
        let mut stream = timeout_at(hello_until, self.connect(geteuid().as_raw()))
            .await
            .map_err(|_| self.hangs())?
            .map_err(|e| self.fail(e))?;
        match timeout_at(hello_until, receive(&mut stream, MESSAGE_BYTES_MAX)).await {
            Ok(Ok(Message::Hello)) => {}
            // It does not want to be asked, and says why.
            Ok(Ok(Message::Done(answer))) => return Ok(*answer),
            Ok(Ok(Message::Working(_))) => return Err(self.fail("it does not speak as a job does")),
            Ok(Err(e)) => return Err(self.fail(e)),
            Err(_) => return Err(self.hangs()),
        }
        send(&mut stream, &self.request, REQUEST_BYTES_MAX).await.map_err(|e| self.fail(e))?;
        let (mut reader, mut writer) = stream.split();
        let mut is_withdrawn = false;
        loop {
            let deadline = until.min(Instant::now() + SILENCE_MAX);
            let hearing = receive(&mut reader, MESSAGE_BYTES_MAX);
            tokio::pin!(hearing);
            let message = loop {
                tokio::select! {
                    message = timeout_at(deadline, &mut hearing) => break message,
                    () = withdraw.cancelled(), if !is_withdrawn => {
                        is_withdrawn = true;
                        send(&mut writer, &Afterwards::Withdraw, REQUEST_BYTES_MAX)
                            .await
                            .map_err(|e| self.fail(e))?;
                    }
                }
            };
            match message {
                Ok(Ok(Message::Done(answer))) => return Ok(*answer),
                Ok(Ok(Message::Working(standing))) => {
                    if let Some(standing) = standing {
                        heard(&standing);
                    }
                }
                Ok(Ok(Message::Hello)) => return Err(self.fail("it does not speak as a job does")),
                Ok(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(self.fail("it does not answer: its process has ended"));
                }
                Ok(Err(e)) => return Err(self.fail(e)),
                Err(_) => return Err(self.fail("it does not answer")),
            }
        }
    }

    async fn connect(&self, ours: u32) -> io::Result<UnixStream> {
        let (name, _folder) = short(self.socket)?;
        let stream = UnixStream::connect(&name).await?;
        // A process that can put a file into the folder need not be the intended one.
        match stream.peer_cred()?.uid() == ours {
            true => Ok(stream),
            false => Err(io::Error::other("it belongs to another user")),
        }
    }

    fn hangs(&self) -> Error {
        self.fail("it is stopped or hangs: it has not taken the request").with_remedy(
            "nothing was begun. See what the process does that runs the job: SIGCONT resumes one that was \
                stopped",
        )
    }

    fn fail(&self, what: impl std::fmt::Display) -> Error {
        let name = self.socket.file_stem().unwrap_or_default().to_string_lossy();
        Error::own(format!("ask {name}"), format!("{name} cannot be asked: {what}"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Longer than a busy machine needs for a greeting.
    const BRIEFLY: Duration = Duration::from_secs(5);

    /// It takes connections, as the system does for it, and nothing else.
    #[tokio::test]
    async fn a_process_that_hangs_is_an_error_in_bounded_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("a-job.socket");
        let _listener = UnixListener::bind(&socket).expect("bound");
        let call = Call { socket: &socket, request: Request::Cancel, within: BRIEFLY };
        let error = call.make(&CancellationToken::new(), |_| {}).await.expect_err("it hangs").to_string();
        assert!(error.contains("a-job") && error.contains("stopped or hangs"), "{error}");
        assert_eq!(standing(&socket).await, None);
    }

    #[tokio::test]
    async fn one_that_says_no_more_is_an_error_as_well() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("a-job.socket");
        let listener = tokio::net::UnixListener::bind(&socket).expect("bound");
        let silent = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a caller");
            send(&mut stream, &Message::Hello, MESSAGE_BYTES_MAX).await.expect("said");
            let request: Request = receive(&mut stream, REQUEST_BYTES_MAX).await.expect("a request");
            (stream, request)
        });
        let call = Call { socket: &socket, request: Request::Pause, within: BRIEFLY };
        let error = call.make(&CancellationToken::new(), |_| {}).await.expect_err("nothing more").to_string();
        assert!(error.contains("it does not answer"), "{error}");
        assert_eq!(silent.await.expect("it was asked").1, Request::Pause);
    }

    #[tokio::test]
    async fn nothing_is_said_to_a_process_of_another_user() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("a-job.socket");
        let _listener = UnixListener::bind(&socket).expect("bound");
        let call = Call { socket: &socket, request: Request::Status, within: BRIEFLY };
        call.connect(geteuid().as_raw()).await.expect("our own");
        let error = call.connect(geteuid().as_raw() + 1).await.expect_err("not ours").to_string();
        assert!(error.contains("another user"), "{error}");
    }
}
