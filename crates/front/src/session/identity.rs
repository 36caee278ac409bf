//! What a client has said about itself, to say it again on another connection.
//!
//! While keys move a client has connections to two servers, which have to know the same of it: its user, its protocol, its name.
//! Requests that a server has agreed to are kept as they came, in their order. They hold passwords: nothing shows them.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, ErrorKind, Result, ServerError};
use whimbrel_engine::link::Io;
use whimbrel_wire::encode::Protocol;
use whimbrel_wire::scan::{Progress, Scanner};
use whimbrel_wire::value::Value;

use crate::commands::Trait;

/// The longest request that is kept.
pub(crate) const SAYING_BYTES_MAX: usize = 16 << 10;

/// What a client has said about itself.
#[derive(Clone, Default)]
pub(crate) struct Identity {
    sayings: Vec<(Trait, Box<[u8]>)>,
}

/// Passwords are in it.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.sayings.len())
    }
}

impl Identity {
    /// A server has agreed to this request. What it said of the same before is forgotten, so the bound is the number of traits.
    pub(crate) fn say(&mut self, what: Trait, request: Box<[u8]>) {
        let is_short = request.starts_with(b"*1\r") || request.starts_with(b"*2\r");
        // One that names a user says more than one that does not, and must not be forgotten for it.
        let what = if what == Trait::Hello && is_short { Trait::Protocol } else { what };
        self.sayings.retain(|(other, _)| *other != what);
        self.sayings.push((what, request));
    }

    /// The client has said `RESET`.
    pub(crate) fn forget(&mut self) {
        self.sayings.clear();
    }

    /// The protocol that the client has asked for.
    pub(crate) fn protocol(&self) -> Protocol {
        let hello = self.sayings.iter().rev().find(|(what, request)| {
            matches!(what, Trait::Hello | Trait::Protocol) && !request.starts_with(b"*1\r")
        });
        let is_third =
            hello.is_some_and(|(_, request)| request.windows(7).any(|part| part == b"$1\r\n3\r\n"));
        if is_third { Protocol::Resp3 } else { Protocol::Resp2 }
    }

    /// How the client's protocol says that there is nothing.
    pub(crate) fn null(&self) -> &'static [u8] {
        match self.protocol() {
            Protocol::Resp3 => b"_\r\n",
            Protocol::Resp2 => b"$-1\r\n",
        }
    }

    /// A new connection to a server which knows all of it, within `limit`.
    ///
    /// # Errors
    /// As [`Io::open`]; `Server` where the server does not agree to what another one has agreed to.
    pub(crate) async fn introduce(&self, endpoint: &Endpoint, limit: Duration) -> Result<Io> {
        let fail = |kind| Error::new(endpoint.side, endpoint.address.to_string(), "connect", kind);
        let open = async {
            let mut io = Io::open(endpoint, &endpoint.address).await?;
            let mut text = BytesMut::new();
            for (_, request) in &self.sayings {
                text.extend_from_slice(request);
            }
            if text.is_empty() {
                return Ok(io);
            }
            io.write_all_buf(&mut text).await.map_err(|e| fail(ErrorKind::Broken(e)))?;
            io.flush().await.map_err(|e| fail(ErrorKind::Broken(e)))?;
            let mut replies = Replies::default();
            for _ in &self.sayings {
                let reply = replies.next(&mut io).await.map_err(|e| fail(ErrorKind::Broken(e)))?;
                if let Some(refused) = ServerError::of(&reply) {
                    return Err(fail(ErrorKind::Server(refused)).with_remedy(
                        "while keys move, source and target have to know the same users and passwords",
                    ));
                }
            }
            Ok(io)
        };
        timeout(limit, open)
            .await
            .unwrap_or_else(|_| Err(fail(ErrorKind::Connect(io::Error::from(io::ErrorKind::TimedOut)))))
    }
}

/// The replies that arrive on a connection.
#[derive(Default)]
pub(crate) struct Replies {
    buffer: BytesMut,
    scanner: Scanner,
}

impl Replies {
    /// The next one.
    ///
    /// # Errors
    /// What the connection reports; `InvalidData` for what is no RESP.
    pub(crate) async fn next(&mut self, io: &mut Io) -> io::Result<Value> {
        let invalid = |e| io::Error::new(io::ErrorKind::InvalidData, e);
        loop {
            if let Progress::Complete(len) = self.scanner.scan(&self.buffer).map_err(invalid)? {
                let frame = self.buffer.split_to(len).freeze();
                return Value::parse(&frame).map_err(invalid);
            }
            if io.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_again_takes_the_place_of_the_first() {
        let mut identity = Identity::default();
        identity.say(Trait::Login, b"AUTH a".as_slice().into());
        identity.say(Trait::Name, b"CLIENT SETNAME n".as_slice().into());
        identity.say(Trait::Login, b"AUTH b".as_slice().into());
        let sayings: Vec<&[u8]> = identity.sayings.iter().map(|(_, text)| &text[..]).collect();
        assert_eq!(sayings, [b"CLIENT SETNAME n".as_slice(), b"AUTH b"]);
        assert!(!format!("{identity:?}").contains("AUTH"));
        assert_eq!(identity.null(), b"$-1\r\n");
        identity.say(
            Trait::Hello,
            b"*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$1\r\np\r\n".as_slice().into(),
        );
        identity.say(Trait::Hello, b"*1\r\n$5\r\nHELLO\r\n".as_slice().into());
        assert_eq!(identity.null(), b"_\r\n");
        identity.say(Trait::Hello, b"*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n".as_slice().into());
        // The user is still told.
        assert_eq!((identity.null(), identity.sayings.len()), (b"$-1\r\n".as_slice(), 4));
        identity.forget();
        assert!(identity.sayings.is_empty());
    }
}
