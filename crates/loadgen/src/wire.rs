//! The least that a load needs to speak to a server: commands out, replies in, little processor time for
//! either.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A reply that takes longer is as good as none.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

const BUFFER_BYTES: usize = 64 * 1024;

/// A connection. After an error it must not be used any more.
#[derive(Debug)]
pub struct Wire {
    reader: BufReader<TcpStream>,
    out: Vec<u8>,
    line: Vec<u8>,
    body: Vec<u8>,
}

/// A reply, as far as a load looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Anything that is no error; of a string its length in bytes.
    Fine {
        /// 0 for what is no string.
        bytes: usize,
    },
    /// An error, with the server's words.
    Error(String),
}

impl Wire {
    /// Connects to a server without password.
    ///
    /// # Errors
    /// When there is none.
    pub fn connect(address: &str) -> io::Result<Self> {
        let address =
            address.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "not an address"))?;
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        let reader = BufReader::with_capacity(BUFFER_BYTES, stream);
        Ok(Self { reader, out: Vec::new(), line: Vec::new(), body: Vec::new() })
    }

    /// Adds a command to those that [`flush`](Self::flush) sends.
    pub fn push(&mut self, words: &[&[u8]]) {
        // Writing into memory cannot fail.
        let _ = write!(self.out, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.out, "${}\r\n", word.len());
            self.out.extend_from_slice(word);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Sends all commands that were added.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn flush(&mut self) -> io::Result<()> {
        self.reader.get_mut().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// How many bytes [`flush`](Self::flush) would send.
    pub fn pushed_bytes(&self) -> usize {
        self.out.len()
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    /// When the connection is broken, the server takes too long, or it answers what no load asks for.
    pub fn reply(&mut self) -> io::Result<Reply> {
        self.line.clear();
        self.reader.read_until(b'\n', &mut self.line)?;
        let [kind, rest @ ..] = self.line.trim_ascii_end() else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match kind {
            b'+' | b':' => Ok(Reply::Fine { bytes: 0 }),
            b'-' => Ok(Reply::Error(String::from_utf8_lossy(rest).into_owned())),
            b'$' => match std::str::from_utf8(rest).ok().and_then(|length| length.parse::<i64>().ok()) {
                Some(-1) => Ok(Reply::Fine { bytes: 0 }),
                Some(length @ 0..) => {
                    let bytes = usize::try_from(length).map_err(|_| io::ErrorKind::InvalidData)?;
                    self.body.resize(bytes + 2, 0);
                    self.reader.read_exact(&mut self.body)?;
                    Ok(Reply::Fine { bytes })
                }
                _ => Err(io::ErrorKind::InvalidData.into()),
            },
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Reply {
    /// Where the server says the key is, if the reply is a redirection: the first word and the address.
    pub fn redirection(&self) -> Option<(&str, &str)> {
        let Self::Error(words) = self else { return None };
        let mut words = words.split(' ');
        let code = words.next().filter(|code| matches!(*code, "MOVED" | "ASK"))?;
        Some((code, words.nth(1)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_are_distinguished_from_other_errors() {
        let moved = Reply::Error("MOVED 3999 127.0.0.1:6381".to_owned());
        assert_eq!(moved.redirection(), Some(("MOVED", "127.0.0.1:6381")));
        assert_eq!(Reply::Error("TRYAGAIN later".to_owned()).redirection(), None);
        assert_eq!(Reply::Fine { bytes: 3 }.redirection(), None);
    }

    #[test]
    fn a_real_server_answers() {
        let server =
            whimbrel_lab::Server::builder(whimbrel_lab::Engine::Redis70).start().expect("redis-7.0 starts");
        let mut wire = Wire::connect(&server.addr()).expect("it listens");
        wire.push(&[b"GET", b"k"]);
        wire.push(&[b"SET", b"k", &[7; 100_000]]);
        wire.push(&[b"GET", b"k"]);
        wire.push(&[b"INCR", b"k"]);
        wire.flush().expect("it takes them");
        for bytes in [0, 0, 100_000] {
            assert_eq!(wire.reply().expect("a reply"), Reply::Fine { bytes });
        }
        assert!(matches!(wire.reply().expect("a reply"), Reply::Error(words) if words.starts_with("ERR")));
    }
}
