//! What coordinator and members say on their connection: the messages of `core::fleet`, and what only their
//! runtimes need.
//!
//! A member connects to the coordinator as any client does, [logs in](crate::login), and says [`COMMAND`].
//! After `+OK` both sides send frames. The member says [`Hello`] first. From then on it speaks for the member
//! that has joined by the token of its `Hello`, and for no other.

use whimbrel_core::fleet::{MESSAGE_BYTES_MAX, MemberId, ToCoordinator, ToMember};

/// The command that turns a connection into frames, and its one argument: the version of what follows.
pub const COMMAND: [&str; 3] = ["FLEET", "MEMBER", "2"];

/// No frame has more bytes than this.
pub const FRAME_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// At most this many members at once, those included that have just been lost.
pub const MEMBERS_MAX: usize = 512;

/// At most this many backends.
pub const BACKENDS_MAX: usize = 64;

/// Names, addresses and versions have at most this many bytes.
pub const TEXT_BYTES_MAX: usize = 255;

/// What a member is, besides its number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hello {
    /// By which it has joined, or is going to. Only it and the coordinators know it: it proves whose number
    /// is whose.
    pub token: u64,
    /// What people call it.
    pub name: String,
    /// Where clients reach it, as HOST:PORT.
    pub address: String,
    /// The version of whimbrel it runs.
    pub version: String,
    /// The part of the work it wants; see [`Report::Join`](whimbrel_core::fleet::Report::Join).
    pub weight: u32,
}

/// A server that has the data of partitions, as the coordinator names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// As rows of the table have it.
    pub number: u32,
    /// What people call it.
    pub name: String,
    /// Its URL. Never with a password.
    pub url: String,
}

/// The addresses of members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Directory {
    /// All members. Empty if the coordinator has not heard of this one's address: then what was said before
    /// holds.
    pub members: Vec<(MemberId, String)>,
    /// All backends.
    pub backends: Vec<Backend>,
}

/// What a member says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromMember {
    /// First of all.
    Hello(Hello),
    /// To the coordinator's machine.
    Message(ToCoordinator),
    /// How it stands, from time to time. Decides nothing.
    State {
        /// The stamp of its table.
        stamp: u64,
        /// Requests that are under way.
        held: u64,
        /// Why a move of a partition has failed here lately, in words for people; empty if none has.
        trouble: String,
    },
    /// It wants to leave.
    Leave,
}

/// What the coordinator says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromCoordinator {
    /// To the member's machine.
    Message(ToMember),
    /// The present addresses of members.
    Directory(Directory),
    /// The member is to leave: once it is none any more, it should not ask to be one again.
    Leaving,
    /// The connection is about to be closed, for this reason, in words for people.
    Refused(String),
}

/// Bytes that say nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unintelligible;

impl std::fmt::Display for Unintelligible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("something that is not of this version of the fleet's protocol")
    }
}

impl FromMember {
    /// The kind of its frame.
    pub fn kind(&self) -> u8 {
        match self {
            FromMember::Hello(_) => 0,
            FromMember::Message(_) => 1,
            FromMember::State { .. } => 2,
            FromMember::Leave => 3,
        }
    }

    /// Appends what its frame has.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            FromMember::Hello(hello) => {
                out.extend_from_slice(&hello.token.to_le_bytes());
                out.extend_from_slice(&hello.weight.to_le_bytes());
                for text in [&hello.name, &hello.address, &hello.version] {
                    put_text(out, text);
                }
            }
            FromMember::Message(message) => message.encode(out),
            FromMember::State { stamp, held, trouble } => {
                out.extend_from_slice(&stamp.to_le_bytes());
                out.extend_from_slice(&held.to_le_bytes());
                put_text(out, trouble);
            }
            FromMember::Leave => {}
        }
    }

    /// What a frame says.
    ///
    /// # Errors
    /// [`Unintelligible`] if it says nothing of this.
    pub fn decode(kind: u8, bytes: &[u8]) -> Result<FromMember, Unintelligible> {
        let mut from = Reader(bytes);
        let decoded = match kind {
            0 => {
                let token = u64::from_le_bytes(from.take()?);
                let weight = u32::from_le_bytes(from.take()?);
                let (name, address, version) = (from.text()?, from.text()?, from.text()?);
                FromMember::Hello(Hello { token, name, address, version, weight })
            }
            1 => return ToCoordinator::decode(bytes).map(FromMember::Message).map_err(|_| Unintelligible),
            2 => FromMember::State {
                stamp: u64::from_le_bytes(from.take()?),
                held: u64::from_le_bytes(from.take()?),
                trouble: from.text()?,
            },
            3 => FromMember::Leave,
            _ => return Err(Unintelligible),
        };
        from.ended(decoded)
    }
}

impl FromCoordinator {
    /// The kind of its frame.
    pub fn kind(&self) -> u8 {
        match self {
            FromCoordinator::Message(_) => 0x80,
            FromCoordinator::Directory(_) => 0x81,
            FromCoordinator::Leaving => 0x82,
            FromCoordinator::Refused(_) => 0x83,
        }
    }

    /// Appends what its frame has.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            FromCoordinator::Message(message) => message.encode(out),
            FromCoordinator::Directory(directory) => {
                put_count(out, directory.members.len());
                for (member, address) in &directory.members {
                    out.extend_from_slice(&member.0.to_le_bytes());
                    put_text(out, address);
                }
                put_count(out, directory.backends.len());
                for backend in &directory.backends {
                    out.extend_from_slice(&backend.number.to_le_bytes());
                    put_text(out, &backend.name);
                    put_text(out, &backend.url);
                }
            }
            FromCoordinator::Leaving => {}
            FromCoordinator::Refused(why) => put_text(out, why),
        }
    }

    /// What a frame says.
    ///
    /// # Errors
    /// [`Unintelligible`] if it says nothing of this.
    pub fn decode(kind: u8, bytes: &[u8]) -> Result<FromCoordinator, Unintelligible> {
        let mut from = Reader(bytes);
        let decoded = match kind {
            0x80 => return ToMember::decode(bytes).map(FromCoordinator::Message).map_err(|_| Unintelligible),
            0x81 => {
                let members = from.list(MEMBERS_MAX, |from| {
                    Ok((MemberId(u32::from_le_bytes(from.take()?)), from.text()?))
                })?;
                let backends = from.list(BACKENDS_MAX, |from| {
                    let number = u32::from_le_bytes(from.take()?);
                    Ok(Backend { number, name: from.text()?, url: from.text()? })
                })?;
                FromCoordinator::Directory(Directory { members, backends })
            }
            0x82 => FromCoordinator::Leaving,
            0x83 => FromCoordinator::Refused(from.text()?),
            _ => return Err(Unintelligible),
        };
        from.ended(decoded)
    }
}

/// At most as many as two bytes count.
fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
}

/// What is longer than a text may be loses its end.
fn put_text(out: &mut Vec<u8>, text: &str) {
    let fits = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
    let kept = fits.unwrap_or(0);
    out.push(u8::try_from(kept).unwrap_or(u8::MAX));
    out.extend_from_slice(&text.as_bytes()[..kept]);
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Unintelligible> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Unintelligible)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn text(&mut self) -> Result<String, Unintelligible> {
        let [length] = self.take()?;
        let (text, rest) = self.0.split_at_checked(usize::from(length)).ok_or(Unintelligible)?;
        self.0 = rest;
        // It is shown to people: nothing in it may move their cursor.
        let text = std::str::from_utf8(text).map_err(|_| Unintelligible)?;
        if text.chars().any(char::is_control) { Err(Unintelligible) } else { Ok(text.to_owned()) }
    }

    fn list<T>(
        &mut self,
        most: usize,
        mut each: impl FnMut(&mut Self) -> Result<T, Unintelligible>,
    ) -> Result<Vec<T>, Unintelligible> {
        let count = usize::from(u16::from_le_bytes(self.take()?));
        if count > most { Err(Unintelligible) } else { (0..count).map(|_| each(self)).collect() }
    }

    fn ended<T>(self, decoded: T) -> Result<T, Unintelligible> {
        if self.0.is_empty() { Ok(decoded) } else { Err(Unintelligible) }
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_core::fleet::{Order, Report};

    use super::*;

    fn hello(name: &str) -> FromMember {
        let hello = Hello {
            token: 5,
            name: name.to_owned(),
            address: "a:1".to_owned(),
            version: "1".to_owned(),
            weight: 3,
        };
        FromMember::Hello(hello)
    }

    #[test]
    fn what_members_say_is_understood() {
        let message = ToCoordinator { member: MemberId(4), term: 2, body: Report::Renew { asked_ms: 7 } };
        let frames = [
            hello("ä"),
            FromMember::Message(message),
            FromMember::State { stamp: 9, held: 1, trouble: "no room".to_owned() },
            FromMember::Leave,
        ];
        for frame in frames {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            assert_eq!(FromMember::decode(frame.kind(), &bytes), Ok(frame.clone()));
            bytes.push(0);
            assert_eq!(FromMember::decode(frame.kind(), &bytes), Err(Unintelligible), "something follows");
        }
        assert_eq!(FromMember::decode(99, &[]), Err(Unintelligible));
    }

    #[test]
    fn what_the_coordinator_says_is_understood() {
        let backend = Backend { number: 1, name: "b".to_owned(), url: "redis://b:1".to_owned() };
        let members = vec![(MemberId(1), "a:1".to_owned()), (MemberId(2), String::new())];
        let message = ToMember { term: 2, body: Order::Ask { stamp: 7 } };
        let directory = Directory { members, backends: vec![backend] };
        for frame in [
            FromCoordinator::Message(message),
            FromCoordinator::Directory(directory),
            FromCoordinator::Leaving,
        ] {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            assert_eq!(FromCoordinator::decode(frame.kind(), &bytes), Ok(frame.clone()));
            (0..bytes.len()).for_each(|end| {
                assert_eq!(FromCoordinator::decode(frame.kind(), &bytes[..end]), Err(Unintelligible));
            });
        }
    }

    #[test]
    fn texts_are_bounded_and_harmless() {
        let mut bytes = Vec::new();
        hello(&"ä".repeat(400)).encode(&mut bytes);
        let Ok(FromMember::Hello(read)) = FromMember::decode(0, &bytes) else { panic!("not understood") };
        assert_eq!(read.name, "ä".repeat(127));
        bytes.clear();
        hello("a\x1b[2J").encode(&mut bytes);
        assert_eq!(FromMember::decode(0, &bytes), Err(Unintelligible));
    }

    #[test]
    fn the_largest_directory_fits_into_a_frame() {
        let text = "x".repeat(TEXT_BYTES_MAX);
        let backend = |number| Backend { number, name: text.clone(), url: text.clone() };
        let members = (0..MEMBERS_MAX as u32).map(|number| (MemberId(number), text.clone())).collect();
        let backends = (0..BACKENDS_MAX as u32).map(backend).collect();
        let mut bytes = Vec::new();
        FromCoordinator::Directory(Directory { members, backends }).encode(&mut bytes);
        assert!(bytes.len() <= FRAME_BYTES_MAX, "{}", bytes.len());
    }
}
