//! Asking a server for pushes, whichever they are.

use crate::error::{Result, ServerError};
use crate::link::Link;

/// Asks for pushes by this command, or says why it will not do. Signs of life are asked for first: a user
/// without that right would lose the feed again and again.
pub(super) async fn ask_for_pushes(link: &mut Link, command: &[&[u8]]) -> Result<Result<(), String>> {
    for command in [&[b"HELLO".as_slice(), b"3"][..], &[b"PING"], command] {
        if let Some(e) = ServerError::of(&link.ask(command).await?) {
            let name = String::from_utf8_lossy(&command.join(&b' ')).into_owned();
            return Ok(Err(format!("{name} is refused: {}", e.text)));
        }
    }
    Ok(Ok(()))
}
