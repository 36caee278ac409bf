//! Exit codes. They are part of the interface: scripts rely on them, so none changes its meaning.

use whimbrel_control::steering::{Refusal, Why};
use whimbrel_engine::error::{Error, ErrorKind, Side};

/// What the process ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything that was asked for has been done; `verify` found no difference.
    Success = 0,
    /// Something of our own failed: a file, the journal, a defect.
    Internal = 1,
    /// The command line makes no sense, or not for the cluster that it names. Nothing was changed.
    Usage = 2,
    /// A server could not be reached, or refused us, before anything was written.
    Unreachable = 3,
    /// The servers were reached, but what was asked for is refused, and nothing was written.
    Refused = 4,
    /// Done, except for keys that could not be copied, or for a hook of a cutover; the report lists them.
    Partial = 5,
    /// `verify` found differences, or could not compare keys of slots that kept moving.
    Different = 6,
    /// It began, and something that trying again did not help stopped it. `--resume` goes on.
    Interrupted = 7,
    /// `status` found a problem in the cluster; `repair` was not asked to repair it, or could not repair all
    /// of it.
    Problem = 8,
    /// Stopped by the user, cleanly. `--resume` goes on.
    Stopped = 130,
}

impl Exit {
    /// Each code with its meaning, for the help text and the manual.
    pub const TABLE: [(Exit, &'static str); 10] = [
        (Exit::Success, "done; verify found no difference"),
        (Exit::Internal, "something of whimbrel's own failed: a file, the journal, a defect"),
        (Exit::Usage, "the command line is invalid, or invalid for this cluster; nothing was changed"),
        (Exit::Unreachable, "a server could not be reached or refused the login; nothing was written"),
        (
            Exit::Refused,
            "refused before writing: the target is not empty, full, a replica, …; assess: something blocks a \
             migration",
        ),
        (
            Exit::Partial,
            "done, except for keys that could not be copied (listed), that the target evicted (counted), or \
             of a database that was emptied meanwhile; a cutover: except for a hook that failed",
        ),
        (
            Exit::Different,
            "verify found differences, or could not compare keys of slots that kept moving; jobs report \
             --check: the file was changed",
        ),
        (
            Exit::Interrupted,
            "stopped half-way by an error that retries did not solve; continue with --resume, or jobs resume",
        ),
        (
            Exit::Problem,
            "the cluster has a problem: status found it, or repair left it; fleet status: a partition has no \
             owner, or a member is not connected",
        ),
        (
            Exit::Stopped,
            "stopped by Ctrl-C or SIGTERM; continue with --resume; for slots, run the same command again",
        ),
    ];

    /// The code for an error. `begun` is true once keys may have been written.
    pub fn of(error: &Error, begun: bool) -> Exit {
        match (&error.kind, error.side) {
            (ErrorKind::Options(_), _) if !begun => Exit::Usage,
            (ErrorKind::Own(_), _) | (_, Side::Own) => Exit::Internal,
            _ if begun => Exit::Interrupted,
            (ErrorKind::Server(_), _) => Exit::Refused,
            _ if error.is_refusal() => Exit::Refused,
            _ => Exit::Unreachable,
        }
    }
}

impl From<&Refusal> for Exit {
    /// What a process ends with that asked for something that was refused.
    fn from(refusal: &Refusal) -> Exit {
        match refusal.why {
            Why::Unsupported => Exit::Usage,
            Why::Refused => Exit::Refused,
            Why::Unreachable => Exit::Unreachable,
            Why::Interrupted => Exit::Interrupted,
            Why::Internal => Exit::Internal,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}
