//! Errors that say which side, what was tried, and what the user can do.

use std::fmt;

use whimbrel_core::slot::Slot;
use whimbrel_wire::scan::Malformed;
use whimbrel_wire::value::Value;

use crate::remedy::Remedy;
pub use crate::side::Side;

/// What went wrong, as far as it matters for what to do next.
#[derive(Debug)]
pub enum ErrorKind {
    /// No connection could be made: refused, unreachable, unknown host.
    Connect(std::io::Error),
    /// The TLS handshake failed, or a certificate or key could not be used.
    Tls(String),
    /// The other side closed the connection during the TLS handshake.
    Handshake(std::io::Error),
    /// An established connection broke.
    Broken(std::io::Error),
    /// The server closed the connection.
    Closed,
    /// Nothing was heard for this many milliseconds. Whether the command was carried out is unknown.
    Timeout(u64),
    /// What came back is not RESP.
    Malformed(Malformed),
    /// The reply is RESP, but not the kind this command answers with.
    Unexpected(String),
    /// The server answered with an error.
    Server(ServerError),
    /// The credentials were refused, or are missing.
    Auth(String),
    /// The deployment cannot do what is asked of it, or the request makes no sense there.
    Unfit(String),
    /// What the user asks for makes no sense, by itself or for what it names: a node, a job, a folder.
    /// Nothing has been changed, and no server is to blame.
    Options(String),
    /// The server refuses a command that is needed, to this user or to all users.
    Forbidden {
        /// Its name, with its subcommand.
        command: String,
        /// What the server answered.
        answer: String,
    },
    /// The server is too old for a command, or for a form of it, that is needed.
    Lacks {
        /// The command, as it is needed.
        command: String,
    },
    /// The server answers reads, and has kept writes waiting for this many milliseconds: its clients are
    /// paused.
    Paused(u64),
    /// Clients went on writing to the source although another party was to stop them.
    StillWritten(Box<StillWritten>),
    /// Something of our own: a file, the journal, the state folder.
    Own(String),
}

/// Which clients still wrote, and what, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StillWritten {
    /// For how long it was waited for them to stop, in milliseconds.
    pub waited_ms: u64,
    /// The clients that wrote last, for people.
    pub clients: Vec<String>,
    /// Some of the keys that were touched last, as they are shown to people.
    pub keys: Vec<String>,
}

impl fmt::Display for StillWritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the source was still written to after {} ms", self.waited_ms)?;
        if !self.clients.is_empty() {
            write!(f, ", by {}", self.clients.join(", "))?;
        }
        if !self.keys.is_empty() {
            write!(f, ", among others key {}", self.keys.join(", "))?;
        }
        Ok(())
    }
}

/// An error with its side, what was tried, and what the user can do.
#[derive(Debug)]
pub struct Error {
    /// Which side it happened on.
    pub side: Side,
    /// The server it concerns, as `HOST:PORT`, or empty.
    pub at: Box<str>,
    /// What was being done, for example `DUMP of a key` or `connect`. Never a password or a value.
    pub tried: Box<str>,
    /// What went wrong.
    pub kind: ErrorKind,
    /// What became of the thing that the error is about, if the user has to know; or empty.
    pub left: Box<str>,
    /// What the user can do about it.
    pub remedy: Option<Box<Remedy>>,
}

/// The result of everything that talks to a server.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A new error without a remedy.
    pub fn new(side: Side, at: impl Into<Box<str>>, tried: impl Into<Box<str>>, kind: ErrorKind) -> Self {
        Error { side, at: at.into(), tried: tried.into(), kind, left: Box::default(), remedy: None }
    }

    /// The deployment cannot do what is asked of it.
    pub fn unfit(
        side: Side,
        at: impl Into<Box<str>>,
        tried: impl Into<Box<str>>,
        what: impl Into<String>,
    ) -> Self {
        Error::new(side, at, tried, ErrorKind::Unfit(what.into()))
    }

    /// What the user asks for makes no sense, about this side.
    pub fn options(side: Side, tried: impl Into<Box<str>>, what: impl Into<String>) -> Self {
        Error::new(side, "", tried, ErrorKind::Options(what.into()))
    }

    /// Something of our own went wrong.
    pub fn own(tried: impl Into<Box<str>>, what: impl fmt::Display) -> Self {
        Error::new(Side::Own, "", tried, ErrorKind::Own(what.to_string()))
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<Remedy>) -> Self {
        self.remedy = Some(Box::new(remedy.into()));
        self
    }

    /// Adds what became of what it was about.
    #[must_use]
    pub fn with_left(mut self, left: impl Into<Box<str>>) -> Self {
        self.left = left.into();
        self
    }

    /// What is wrong, and with what: all but what the user can do about it.
    pub fn problem(&self) -> String {
        Problem(self).to_string()
    }

    /// The server's own error, if it was one.
    pub fn server(&self) -> Option<&ServerError> {
        match &self.kind {
            ErrorKind::Server(e) => Some(e),
            _ => None,
        }
    }

    /// True if what was asked for was refused as it is: the servers, the user's rights or the moment do not
    /// fit. A server's own error is none of these.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Unfit(_)
                | ErrorKind::Options(_)
                | ErrorKind::Forbidden { .. }
                | ErrorKind::Lacks { .. }
                | ErrorKind::StillWritten(_)
        )
    }

    /// True if the server began a reply that is longer than what was to be read at once.
    pub fn is_too_large(&self) -> bool {
        matches!(&self.kind, ErrorKind::Malformed(e) if e.is_too_large())
    }

    /// True if the connection is of no further use and a new one may help: the link broke, timed out, or
    /// could not be made, or the server's clients are paused.
    pub fn is_link(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Connect(_)
                | ErrorKind::Broken(_)
                | ErrorKind::Closed
                | ErrorKind::Timeout(_)
                | ErrorKind::Paused(_)
        )
    }

    /// True if trying again later, perhaps at another node, can succeed without any change by the user.
    pub fn is_transient(&self) -> bool {
        self.is_link() || self.server().is_some_and(|e| e.code.is_transient())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem())?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

/// What is wrong, without what can be done about it.
struct Problem<'a>(&'a Error);

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem(error) = self;
        write!(f, "{}", error.side)?;
        if !error.at.is_empty() {
            write!(f, " {}", error.at)?;
        }
        f.write_str(": ")?;
        match &error.kind {
            ErrorKind::Connect(e) => write!(f, "cannot connect: {e}")?,
            ErrorKind::Tls(what) => write!(f, "TLS: {what}")?,
            ErrorKind::Handshake(e) => write!(f, "TLS: the handshake failed: {e}")?,
            ErrorKind::Broken(e) => write!(f, "the connection broke: {e}")?,
            ErrorKind::Closed => f.write_str("the server closed the connection")?,
            ErrorKind::Timeout(ms) => write!(f, "no answer for {ms} ms")?,
            ErrorKind::Malformed(e) => write!(f, "{e}")?,
            ErrorKind::Unexpected(what) => write!(f, "unexpected reply: {what}")?,
            ErrorKind::Server(e) => write!(f, "the server answered: {}", e.text)?,
            ErrorKind::Auth(what) => f.write_str(what)?,
            ErrorKind::Unfit(what) | ErrorKind::Options(what) => f.write_str(what)?,
            ErrorKind::Forbidden { command, answer } => write!(f, "{command} is refused there: {answer}")?,
            ErrorKind::Lacks { command } => write!(f, "this server has no {command}")?,
            ErrorKind::Paused(ms) => {
                write!(f, "its clients are paused: it answers reads, and a write has waited for {ms} ms")?;
            }
            ErrorKind::StillWritten(still) => write!(f, "{still}")?,
            ErrorKind::Own(what) => f.write_str(what)?,
        }
        if !error.left.is_empty() {
            write!(f, " ({})", error.left)?;
        }
        match &error.kind {
            // What makes no sense there says so by itself.
            ErrorKind::Unfit(_) | ErrorKind::Options(_) => Ok(()),
            ErrorKind::Connect(_) if &*error.tried == "connect" => Ok(()),
            _ => write!(f, " (tried: {})", error.tried),
        }
    }
}

impl std::error::Error for Error {}

/// An error reply, classified by its code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// What it means for us.
    pub code: Code,
    /// The text, without the arguments that servers quote after a command they do not know: they may be user
    /// data, or a password. Shortened if it is long.
    pub text: String,
}

/// The codes of error replies that lead to different actions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Code {
    /// The slot belongs to another node: ask there, and refresh the topology. The address is `HOST:PORT`; the
    /// host is empty if the server does not know its own name, and then means the host that answered.
    Moved(Slot, String),
    /// This key is already at the node that imports the slot: ask there, once, after `ASKING`.
    Ask(Slot, String),
    /// Several keys of a slot that is on the move.
    TryAgain,
    /// The cluster serves no queries, or not for this slot.
    ClusterDown,
    /// The server loads its data set.
    Loading,
    /// A replica refuses writes.
    ReadOnly,
    /// A replica has lost its primary and refuses stale reads.
    MasterDown,
    /// Too few replicas, a failed snapshot, or a full disk stop writes.
    WritesStopped,
    /// `maxmemory` is reached.
    Oom,
    /// A script is running.
    Busy,
    /// `RESTORE` without `REPLACE` found the key.
    BusyKey,
    /// The user may not run this command or touch this key.
    NoPermission,
    /// Authentication is required.
    NoAuth,
    /// Wrong user or password.
    WrongPassword,
    /// The key holds another type.
    WrongType,
    /// The payload's version or checksum is not accepted.
    PayloadVersion,
    /// The payload's content is not understood: an unknown type, a module that is missing.
    PayloadFormat,
    /// The command does not exist there.
    UnknownCommand,
    /// A transaction was aborted because a command in it was refused.
    ExecAbort,
    /// The node knows no other node by that name.
    UnknownNode,
    /// Anything else.
    Other,
}

impl Code {
    /// True for codes that go away by themselves.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Code::Moved(..)
                | Code::Ask(..)
                | Code::TryAgain
                | Code::ClusterDown
                | Code::Loading
                | Code::ReadOnly
                | Code::MasterDown
                | Code::WritesStopped
                | Code::Oom
                | Code::Busy
        )
    }
}

/// Servers quote arguments in some errors; that much of them is shown at most.
const TEXT_BYTES_MAX: usize = 300;

/// What comes before the arguments of a command that the server does not know.
const QUOTED_ARGUMENTS: &str = ", with args beginning with";

impl ServerError {
    /// Classifies the text of an error reply.
    pub fn classify(text: &[u8]) -> ServerError {
        let text = String::from_utf8_lossy(text);
        let mut words = text.split(' ');
        let code = match words.next().unwrap_or_default() {
            word @ ("MOVED" | "ASK") => {
                let slot = words.next().and_then(|s| s.parse().ok()).and_then(Slot::new);
                match (slot, words.next()) {
                    (Some(slot), Some(addr)) if word == "MOVED" => Code::Moved(slot, addr.to_owned()),
                    (Some(slot), Some(addr)) => Code::Ask(slot, addr.to_owned()),
                    _ => Code::Other,
                }
            }
            "TRYAGAIN" => Code::TryAgain,
            "CLUSTERDOWN" => Code::ClusterDown,
            "LOADING" => Code::Loading,
            "READONLY" => Code::ReadOnly,
            "MASTERDOWN" => Code::MasterDown,
            "NOREPLICAS" | "MISCONF" => Code::WritesStopped,
            "OOM" => Code::Oom,
            "BUSY" => Code::Busy,
            "BUSYKEY" => Code::BusyKey,
            "NOPERM" => Code::NoPermission,
            "NOAUTH" => Code::NoAuth,
            "WRONGPASS" => Code::WrongPassword,
            "WRONGTYPE" => Code::WrongType,
            // Said of EXEC itself: this user may not run it, or the server takes no writes at the moment.
            "EXECABORT" => match text.split_once("because of: ") {
                // Scripts of clients make up errors: this one must not nest.
                Some((_, why)) if !why.starts_with("EXECABORT") => ServerError::classify(why.as_bytes()).code,
                _ => Code::ExecAbort,
            },
            _ if text.contains("DUMP payload version or checksum") => Code::PayloadVersion,
            _ if text.contains("Bad data format") => Code::PayloadFormat,
            _ if text.starts_with("ERR unknown command") || text.starts_with("ERR unknown subcommand") => {
                Code::UnknownCommand
            }
            _ if text.starts_with("ERR invalid password")
                || text.contains("without any password configured") =>
            {
                Code::WrongPassword
            }
            _ if text.starts_with("ERR Unknown node") || text.contains("I don't know about node") => {
                Code::UnknownNode
            }
            _ => Code::Other,
        };
        let mut text = text.into_owned();
        if let Some(at) = text.find(QUOTED_ARGUMENTS) {
            text.truncate(at);
        }
        if text.len() > TEXT_BYTES_MAX {
            let cut = (0..=TEXT_BYTES_MAX).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
            text.truncate(cut);
            text.push('…');
        }
        ServerError { code, text }
    }

    /// Whether this user may not run the command, or there is none of that name.
    pub fn forbids_command(&self) -> bool {
        // "no permissions to run the 'get' command", as against "to access one of the keys".
        let is_of_command = || self.text.contains("to run the");
        self.code == Code::UnknownCommand || self.code == Code::NoPermission && is_of_command()
    }

    /// The error in a reply, if it is one.
    pub fn of(reply: &Value) -> Option<ServerError> {
        reply.as_error().map(|text| ServerError::classify(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_comes_first() {
        let e = Error::unfit(Side::Target, "a:1", "look at the target", "database 0 holds 5 keys already");
        assert_eq!(e.to_string(), "target a:1: database 0 holds 5 keys already");
        let e = Error::new(Side::Source, "a:1", "DUMP of a key", ErrorKind::Closed).with_remedy("try again");
        assert_eq!(e.problem(), "source a:1: the server closed the connection (tried: DUMP of a key)");
        assert_eq!(e.to_string(), format!("{}; try again", e.problem()));
        let e = Error::unfit(Side::Target, "a:1", "MIGRATE", "no").with_left("it was left at the source");
        assert_eq!(e.to_string(), "target a:1: no (it was left at the source)");
        let e = Error::own("MIGRATE", "no").with_left("it was left").with_remedy(Remedy::AllowLongerPause);
        assert_eq!(
            e.to_string(),
            "whimbrel: no (it was left) (tried: MIGRATE); allow a longer pause, or compare less"
        );
    }

    #[test]
    fn a_transaction_that_may_not_be_run_is_forbidden() {
        let of = |text: &str| ServerError::classify(text.as_bytes());
        let exec =
            of("EXECABORT Transaction discarded because of: NOPERM this user has no permissions to run \
                       the 'exec' command");
        assert!(exec.code == Code::NoPermission && exec.forbids_command(), "{exec:?}");
        let full = "EXECABORT Transaction discarded because of: OOM command not allowed when used memory.";
        assert_eq!((of(full).code, &of(full).text[..]), (Code::Oom, full));
        assert_eq!(of(&"EXECABORT because of: ".repeat(100_000)).code, Code::ExecAbort);
        assert_eq!(of("EXECABORT Transaction discarded because of previous errors.").code, Code::ExecAbort);
    }

    #[test]
    fn arguments_are_not_repeated() {
        for text in [
            "ERR unknown command 'AUTH', with args beginning with: 'bob' 'hunter2' ",
            "ERR unknown command `AUTH`, with args beginning with: `hunter2`, ",
        ] {
            let e = ServerError::classify(text.as_bytes());
            assert_eq!(e.code, Code::UnknownCommand);
            assert!(e.text.starts_with("ERR unknown command") && e.text.ends_with(['\'', '`']), "{}", e.text);
            assert!(e.text.contains("AUTH") && !e.text.contains("hunter2"), "{}", e.text);
        }
        assert_eq!(ServerError::classify(b"ERR no such key").text, "ERR no such key");
    }
}
