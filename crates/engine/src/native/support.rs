//! Which built-in migration a server has, and whether we may use it.

use std::fmt;

use crate::error::{Code, Result, ServerError};
use crate::link::Link;

/// Which built-in migration a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NativeKind {
    /// `CLUSTER MIGRATESLOTS`, as Valkey has it since 9.0.
    Valkey9,
    /// `CLUSTER MIGRATION IMPORT`, as Redis has it since 8.4.
    Redis84,
}

impl NativeKind {
    /// The command that starts it, for messages.
    pub const fn command(self) -> &'static str {
        match self {
            NativeKind::Valkey9 => "CLUSTER MIGRATESLOTS",
            NativeKind::Redis84 => "CLUSTER MIGRATION IMPORT",
        }
    }

    /// Whether servers that have it hide keys of slots that a node does not own. They remove them after a
    /// migration of their own; any other job has to mark the slots first.
    pub const fn hides_keys(self) -> bool {
        matches!(self, NativeKind::Redis84)
    }
}

impl fmt::Display for NativeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.command())
    }
}

/// Whether a server has a migration of its own that we may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NativeSupport {
    /// It has, and this user may start, watch and cancel it.
    Present(NativeKind),
    /// It has not, or this user may not use it.
    Absent {
        /// Why, for the plan that is shown to the user.
        reason: String,
    },
}

impl NativeSupport {
    /// Asks a server by trying its commands, in forms that change nothing.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub async fn find(link: &mut Link) -> Result<NativeSupport> {
        let mut forbidden = None;
        for (kind, list, others) in PROBES {
            let reply = link.ask(list).await?;
            match ServerError::of(&reply) {
                None if reply.as_items().is_some() => {}
                None => continue,
                Some(e) => {
                    if e.code == Code::NoPermission {
                        forbidden = Some(e.text);
                    }
                    continue;
                }
            }
            for command in others {
                if let Some(e) = link.may_run(command).await? {
                    return Ok(NativeSupport::Absent { reason: e.text });
                }
            }
            return Ok(NativeSupport::Present(kind));
        }
        let reason =
            forbidden.unwrap_or_else(|| "the server has no atomic slot migration of its own".to_owned());
        Ok(NativeSupport::Absent { reason })
    }

    /// The kind, if there is one.
    pub fn kind(&self) -> Option<NativeKind> {
        match self {
            NativeSupport::Present(kind) => Some(*kind),
            NativeSupport::Absent { .. } => None,
        }
    }
}

/// A command of short arguments.
type Command = &'static [&'static [u8]];

/// For each kind the command that lists its migrations, and the others it takes, with arguments that they
/// refuse: an ACL is asked before the command looks at them.
const PROBES: [(NativeKind, Command, &[Command]); 2] = [
    (
        NativeKind::Valkey9,
        &[b"CLUSTER", b"GETSLOTMIGRATIONS"],
        // `CANCELSLOTMIGRATIONS` takes no arguments and would cancel: one too many is refused before the ACL
        // is asked, so that command is not tried. No ACL allows the one and forbids the other.
        &[&[b"CLUSTER", b"MIGRATESLOTS", b"?", b"?"]],
    ),
    (
        NativeKind::Redis84,
        &[b"CLUSTER", b"MIGRATION", b"STATUS", b"ALL"],
        &[&[b"CLUSTER", b"MIGRATION", b"IMPORT", b"?"]],
    ),
];
