//! What this user may do on a server, found out without doing it.
//!
//! A connection that has subscribed to a channel may do nothing but subscribe, and the server says so only
//! after it has looked at the user's rights: a command that is refused as *not in this context* is permitted.
//! Nothing is carried out, not even what no transaction may hold, such as `PSYNC`. If the user may not
//! subscribe, or a proxy between us and the server takes commands all the same, nothing is known.

use serde::Serialize;

use crate::error::{Code, Result, ServerError};
use crate::link::Link;

/// The channel; nothing else is published there.
const CHANNEL: &[u8] = b"whimbrel:probe";

/// What a server says of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// The user may run it.
    Given,
    /// It is refused, with this answer.
    Refused(String),
    /// It could not be found out.
    Unknown,
}

/// Asks about commands, each with as many words as it needs at least. The link is of no use afterwards.
///
/// # Errors
/// As [`Link::ask`].
pub async fn ask(mut link: Link, commands: &[&[&[u8]]]) -> Result<Vec<Right>> {
    let mut rights = Vec::new();
    let subscribed = link.ask(&[b"SUBSCRIBE", CHANNEL]).await?;
    // ECHO changes nothing, if it is carried out: then the others would be as well.
    if ServerError::of(&subscribed).is_some()
        || !is_kept_back(&ServerError::of(&link.ask(&[b"ECHO", b""]).await?))
    {
        return Ok(vec![Right::Unknown; commands.len()]);
    }
    for command in commands {
        let answer = ServerError::of(&link.ask(command).await?);
        rights.push(match answer {
            Some(e) if matches!(e.code, Code::NoPermission | Code::UnknownCommand) => Right::Refused(e.text),
            answer if is_kept_back(&answer) => Right::Given,
            _ => Right::Unknown,
        });
    }
    Ok(rights)
}

fn is_kept_back(answer: &Option<ServerError>) -> bool {
    answer.as_ref().is_some_and(|e| e.text.contains("allowed in this context"))
}
