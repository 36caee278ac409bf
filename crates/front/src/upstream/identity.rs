//! What a client has said about itself, to say it again on another connection.
//!
//! While keys move a client has connections to two servers, which have to know the same of it: its user, its
//! protocol, its name. Requests that a server has agreed to are kept as they came, in their order. They hold
//! passwords: nothing shows them.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use whimbrel_engine::endpoint::{Address, Endpoint};
use whimbrel_engine::error::{Error, ErrorKind, Result, ServerError};
use whimbrel_wire::encode::Protocol;
use whimbrel_wire::scan::{Progress, Scanner};
use whimbrel_wire::value::Value;

use crate::command::rule::Trait;
use crate::pipe::frame::as_array;

/// The longest request that is kept.
pub(crate) const INTRODUCTION_BYTES_MAX: usize = 16 << 10;

/// What a client has said about itself.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// `AUTH` and its words.
    login: Option<Vec<Vec<u8>>>,
    /// The number behind `HELLO`.
    protocol: Option<Vec<u8>>,
    name: Option<Vec<u8>>,
}

/// Passwords are in it.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.introductions().len())
    }
}

impl Identity {
    /// A server has agreed to this request. It takes the place of what the client said of the same before,
    /// and of nothing else: a `HELLO` may name a user, a name and a protocol, or none of them.
    pub(crate) fn note(&mut self, what: Trait, request: Box<[u8]>) {
        let Ok(Value::Array(words)) = Value::parse(&Bytes::from(request)) else { return };
        let words: Vec<Vec<u8>> =
            words.iter().map(|word| word.as_bytes().map(|word| word.to_vec()).unwrap_or_default()).collect();
        match what {
            Trait::Login => {
                let login = [b"AUTH".to_vec()].into_iter().chain(words.into_iter().skip(1));
                self.login = Some(login.collect());
            }
            // CLIENT SETNAME and the name.
            Trait::Name => self.name = words.into_iter().nth(2),
            Trait::Hello => self.greet(&words),
        }
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`.
    fn greet(&mut self, words: &[Vec<u8>]) {
        let [_, version, rest @ ..] = words else { return };
        self.protocol = Some(version.clone());
        let mut rest = rest.iter();
        while let Some(option) = rest.next() {
            if option.eq_ignore_ascii_case(b"AUTH") {
                let user_and_password = rest.by_ref().take(2).cloned();
                self.login = Some([b"AUTH".to_vec()].into_iter().chain(user_and_password).collect());
            } else if option.eq_ignore_ascii_case(b"SETNAME") {
                self.name = rest.next().cloned();
            }
        }
    }

    /// The client has said `RESET`.
    pub(crate) fn forget(&mut self) {
        *self = Identity::default();
    }

    /// The same for a connection that others use as well.
    pub(crate) fn unnamed(&self) -> Identity {
        // What a connection begins with need not be asked for.
        let protocol = self.protocol.clone().filter(|protocol| protocol != b"2");
        Identity { name: None, protocol, ..self.clone() }
    }

    /// Whether a server treats both alike.
    pub(crate) fn is_same_user(&self, other: &Identity) -> bool {
        self.login == other.login && self.protocol() == other.protocol()
    }

    /// What to say to another server: first the login, without which the rest may be refused.
    fn introductions(&self) -> Vec<Vec<u8>> {
        let hello = self.protocol.as_ref().map(|version| as_array(&[b"HELLO".to_vec(), version.clone()]));
        let name = self.name.as_ref();
        let name = name.map(|name| as_array(&[b"CLIENT".to_vec(), b"SETNAME".to_vec(), name.clone()]));
        self.login.iter().map(|login| as_array(login)).chain(hello).chain(name).collect()
    }

    /// The protocol that the client has asked for.
    pub(crate) fn protocol(&self) -> Protocol {
        if self.protocol.as_deref() == Some(b"3") { Protocol::Resp3 } else { Protocol::Resp2 }
    }

    /// How the client's protocol says that there is nothing.
    pub(crate) fn null(&self) -> &'static [u8] {
        match self.protocol() {
            Protocol::Resp3 => b"_\r\n",
            Protocol::Resp2 => b"$-1\r\n",
        }
    }

    /// Says all of it on a connection that is being opened to `address`, all within `limit`.
    ///
    /// # Errors
    /// What `opening` fails with; `Connect` if it takes too long, `Broken`, or `Server` if the server does
    /// not agree to what another one has agreed to.
    pub(crate) async fn introduce<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        opening: impl Future<Output = Result<T>>,
        endpoint: &Endpoint,
        address: &Address,
        limit: Duration,
    ) -> Result<T> {
        let announced = async { self.announce(opening.await?, endpoint, address).await };
        timeout(limit, announced).await.unwrap_or_else(|_| Err(in_vain(endpoint, address)))
    }

    async fn announce<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut io: T,
        endpoint: &Endpoint,
        address: &Address,
    ) -> Result<T> {
        let fail = |kind| Error::new(endpoint.side, address.to_string(), "connect", kind);
        let introductions = self.introductions();
        if introductions.is_empty() {
            return Ok(io);
        }
        io.write_all_buf(&mut introductions.concat().as_slice())
            .await
            .map_err(|e| fail(ErrorKind::Broken(e)))?;
        io.flush().await.map_err(|e| fail(ErrorKind::Broken(e)))?;
        let mut replies = ReplyReader::default();
        for _ in introductions {
            let reply = replies.next(&mut io).await.map_err(|e| fail(ErrorKind::Broken(e)))?;
            if let Some(refused) = ServerError::of(&reply) {
                return Err(fail(ErrorKind::Server(refused))
                    .with_remedy("all servers behind a front have to know the same users and passwords"));
            }
        }
        Ok(io)
    }
}

/// Whether a server that has refused this `HELLO` may have logged in the client all the same: some do so
/// before they refuse.
pub(crate) fn may_have_logged_in(hello: &[u8]) -> bool {
    hello.windows(4).any(|word| word.eq_ignore_ascii_case(b"AUTH"))
}

/// What it means that a connection takes too long.
pub(crate) fn in_vain(endpoint: &Endpoint, address: &Address) -> Error {
    let kind = ErrorKind::Connect(io::ErrorKind::TimedOut.into());
    Error::new(endpoint.side, address.to_string(), "connect", kind)
}

/// Reads replies that arrive on a connection.
#[derive(Default)]
pub(crate) struct ReplyReader {
    buffer: BytesMut,
    scanner: Scanner,
}

impl ReplyReader {
    /// The next one.
    ///
    /// # Errors
    /// What the connection reports; `InvalidData` for what is no RESP.
    pub(crate) async fn next<T: AsyncRead + Unpin>(&mut self, io: &mut T) -> io::Result<Value> {
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

    /// What another server would be sent, without lengths.
    fn introduced(identity: &Identity) -> Vec<String> {
        let words = |saying: &Vec<u8>| {
            let text = String::from_utf8_lossy(saying).into_owned();
            text.split("\r\n").skip(2).step_by(2).collect::<Vec<_>>().join(" ")
        };
        identity.introductions().iter().map(words).collect()
    }

    fn note_words(identity: &mut Identity, what: Trait, text: &str) {
        let words: Vec<Vec<u8>> = text.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        identity.note(what, as_array(&words).into());
    }

    #[test]
    fn what_is_said_again_takes_the_place_of_the_first_and_of_nothing_else() {
        let mut identity = Identity::default();
        note_words(&mut identity, Trait::Login, "AUTH adm one");
        note_words(&mut identity, Trait::Name, "CLIENT SETNAME n");
        note_words(&mut identity, Trait::Hello, "HELLO 3 AUTH bob two");
        assert_eq!(introduced(&identity), ["AUTH bob two", "HELLO 3", "CLIENT SETNAME n"]);
        // Neither names a user, and the last does not even name a protocol.
        note_words(&mut identity, Trait::Hello, "HELLO 2 SETNAME x");
        assert_eq!(introduced(&identity), ["AUTH bob two", "HELLO 2", "CLIENT SETNAME x"]);
        note_words(&mut identity, Trait::Hello, "hello 3");
        note_words(&mut identity, Trait::Hello, "HELLO");
        assert_eq!((introduced(&identity).len(), identity.null()), (3, b"_\r\n".as_slice()));
        note_words(&mut identity, Trait::Login, "AUTH word");
        assert_eq!(introduced(&identity)[0], "AUTH word");
        assert!(!format!("{identity:?}").contains("word"));
        identity.forget();
        assert_eq!((introduced(&identity).len(), identity.null()), (0, b"$-1\r\n".as_slice()));
    }
}
