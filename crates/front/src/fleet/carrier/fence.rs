//! The fence of a slot at a backend: a key that says which attempt may change the slot there.

use bytes::Bytes;
use whimbrel_core::slot::{Slot, tag_for_slot};
use whimbrel_engine::error::{Code, Error, ErrorKind, Result, ServerError};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Capabilities;
use whimbrel_flow::keys::KeyState;
use whimbrel_flow::keys::fenced::{self, DataFence, Fenced};
use whimbrel_flow::large::{staging_job, staging_key};
use whimbrel_wire::value::Value;

use super::attempt::{Refusal, Token};

/// The job that fences belong to. They have the names of staging keys, so the other tools leave them out as
/// they do these: a comparison does not count them, and what brings a target into line with a source does not
/// remove them. They are in their slot, so whatever moves a slot between the nodes of a backend moves its
/// fence as well.
const JOB: &str = "fence";

/// The job of names that no key ever has.
const ABSENT_JOB: &str = "absent";

const CLAIM: &str = include_str!("claim.lua");

/// A full server has to give its keys away, and the fence is what that begins with. Servers that have
/// functions know this line.
const WITHOUT_ROOM: &str = "#!lua flags=allow-oom\n";

/// Digits of the largest `u64`.
const DIGITS: usize = 20;

/// The length of a token as text: two numbers and a dot.
const TOKEN_BYTES: usize = 2 * DIGITS + 1;

impl Token {
    /// As the first part of a fence.
    fn text(self) -> String {
        format!("{:0DIGITS$}.{:0DIGITS$}", self.version, self.term)
    }

    /// Of a fence; `None` for what no fence is.
    fn of_fence(fence: &[u8]) -> Option<Token> {
        let text = std::str::from_utf8(fence.get(..TOKEN_BYTES)?).ok()?;
        let (version, term) = text.split_once('.')?;
        let number =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
        Some(Token { version: number(version)?, term: number(term)? })
    }
}

/// The name of the fence of a slot.
pub(super) fn fence_key(slot: Slot) -> Vec<u8> {
    staging_key(JOB, tag_for_slot(slot).as_bytes())
}

/// A name in the slot that no key has. A node that gives the slot to another one, or has given it, redirects
/// clients that ask for it.
pub(super) fn absent_key(slot: Slot) -> Vec<u8> {
    staging_key(ABSENT_JOB, tag_for_slot(slot).as_bytes())
}

/// Whether clients must not see this key: it is the fence of a slot. There is one name for each slot.
pub fn is_fence(name: &[u8]) -> bool {
    staging_job(name) == Some(JOB.as_bytes()) && name == fence_key(Slot::of_key(name))
}

/// Which of the two sides of a move a fence is taken at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MoveEnd {
    /// Its keys are the slot's.
    Origin,
    /// Its keys are left of an earlier attempt, which has left its fence as well.
    Destination,
}

/// A fence that was taken: what the fence is for as long as no attempt takes it again.
///
/// An attempt that takes it, with an equal token too, makes it another one. So what an earlier call of the
/// same attempt has sent, and lies in a connection that was given up, is refused as well: it could remove
/// what the later call has written, or what clients have by then.
#[derive(Debug, Clone)]
pub(super) struct SlotClaim {
    slot: Slot,
    token: Token,
    fence: Bytes,
}

/// Queues the claim of a slot's fence. Its reply is for [`SlotClaim::of`].
pub(super) fn push_claim(
    link: &mut Link,
    slot: Slot,
    token: Token,
    place: MoveEnd,
    capabilities: &Capabilities,
) {
    let script = if capabilities.functions { format!("{WITHOUT_ROOM}{CLAIM}") } else { CLAIM.to_owned() };
    let number = match place {
        MoveEnd::Origin => String::new(),
        MoveEnd::Destination => slot.to_string(),
    };
    let (fence, absent) = (fence_key(slot), absent_key(slot));
    link.push(&[
        b"EVAL",
        script.as_bytes(),
        b"2",
        &fence,
        &absent,
        token.text().as_bytes(),
        number.as_bytes(),
    ]);
}

impl SlotClaim {
    /// What came of a claim.
    pub(super) fn of(link: &Link, slot: Slot, token: Token, reply: Value) -> Result<SlotClaim, Refusal> {
        let hold = |fence| SlotClaim { slot, token, fence };
        let reply = match ServerError::of(&reply) {
            None => reply,
            Some(e) => return Err(script_error(link, e, "take the fence of a slot").into()),
        };
        match &reply {
            Value::Bulk(fence) => Ok(hold(fence.clone())),
            Value::Array(items) => match &items[..] {
                [Value::Int(-1), Value::Bulk(held)] => Err(hold(Bytes::new()).lost(link, held)),
                [Value::Int(-2), Value::Int(keys)] => Err(Refusal::Occupied { keys: keys.unsigned_abs() }),
                _ => Err(link.unexpected("take the fence of a slot", &reply).into()),
            },
            _ => Err(link.unexpected("take the fence of a slot", &reply).into()),
        }
    }

    /// The slot.
    pub(super) fn slot(&self) -> Slot {
        self.slot
    }

    /// Whether the fence is still this one, by what `GET` says.
    pub(super) fn check(&self, link: &Link, reply: &Value) -> Result<(), Refusal> {
        match reply {
            Value::Bulk(held) if *held == self.fence => Ok(()),
            Value::Bulk(held) => Err(self.lost(link, held)),
            Value::Null => Err(self.lost(link, &[])),
            _ => Err(link.unexpected("GET", reply).into()),
        }
    }

    /// Removes keys of the slot, in one step. How many there were.
    pub(super) async fn unlink(&self, link: &mut Link, names: &[Bytes]) -> Result<u64, Refusal> {
        let tried = "remove keys of a slot";
        fenced::push_unlink(link.outbox(), self.fence(&fence_key(self.slot)), names);
        link.flush().await?;
        match fenced::removed(link.reply().await?) {
            Fenced::Done(removed) => Ok(removed),
            other => Err(self.failed(link, other, tried)),
        }
    }

    /// Writes payloads to the slot, in one step. If one is refused, its index, and why; those before it were
    /// written.
    pub(super) async fn restore(
        &self,
        link: &mut Link,
        states: &[KeyState],
    ) -> Result<Option<(usize, ServerError)>, Refusal> {
        fenced::push_write(link.outbox(), self.fence(&fence_key(self.slot)), states);
        link.flush().await?;
        match fenced::written(link.reply().await?, states) {
            Fenced::Done(_) => Ok(None),
            Fenced::Refused(index, e) => Ok(Some((index, e))),
            other => Err(self.failed(link, other, "write keys to a slot")),
        }
    }

    fn fence<'a>(&'a self, key: &'a [u8]) -> DataFence<'a> {
        DataFence { key, value: &self.fence }
    }

    /// Why a script did not do what it was to do.
    fn failed(&self, link: &Link, fenced: Fenced, tried: &str) -> Refusal {
        match fenced {
            Fenced::Lost(held) => self.lost(link, &held),
            Fenced::Forbidden(e) | Fenced::Refused(_, e) => script_error(link, e, tried).into(),
            Fenced::Unexpected(_) | Fenced::Done(_) => self.strange(link, tried),
        }
    }

    fn strange(&self, link: &Link, tried: &str) -> Refusal {
        let what = "a script gave an unexpected answer".to_owned();
        Error::new(link.endpoint().side, link.address().to_string(), tried, ErrorKind::Unexpected(what))
            .into()
    }

    /// What it means that the fence is this.
    fn lost(&self, link: &Link, held: &[u8]) -> Refusal {
        let (side, at) = (link.endpoint().side, link.address().to_string());
        let by = Token::of_fence(held);
        match by {
            Some(by) if by >= self.token => Refusal::Superseded { by },
            None if !held.is_empty() => {
                let name = String::from_utf8_lossy(&fence_key(self.slot)).into_owned();
                let what = format!("the key {name} is not what whimbrel has written there");
                Error::unfit(side, at, "look at the fence of a slot", what)
                    .with_remedy("see who writes to it, and remove it while nothing moves")
                    .into()
            }
            _ => {
                let what = format!("the fence of slot {} is not there any more", self.slot);
                Error::unfit(side, at, "look at the fence of a slot", what)
                    .with_remedy(
                        "it is lost with other writes in a failover, by FLUSHALL, or by eviction; \
                        the move begins again",
                    )
                    .into()
            }
        }
    }
}

/// An error for what a server said to a script. What a script may not do comes without the code that it has
/// elsewhere.
pub(super) fn script_error(link: &Link, e: ServerError, tried: &str) -> Error {
    let is_forbidden = e.code == Code::NoPermission
        || e.text.contains("ACL failure in script")
        || e.text.contains("can't run this command or subcommand");
    let error = link.server_error(e, tried.as_bytes());
    match is_forbidden {
        true => error.with_remedy(
            "allow this user EVAL, GET, SET, EXISTS, TIME, DUMP, PEXPIRETIME, MEMORY USAGE, RESTORE, UNLINK, \
             CLUSTER COUNTKEYSINSLOT and CLUSTER GETKEYSINSLOT on all keys",
        ),
        false => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_one_fence_of_its_own() {
        for slot in Slot::all().step_by(97) {
            let name = fence_key(slot);
            assert_eq!(Slot::of_key(&name), slot);
            assert_eq!(Slot::of_key(&absent_key(slot)), slot);
            assert!(is_fence(&name) && !is_fence(&absent_key(slot)));
            assert!(!is_fence(&staging_key(JOB, b"another hash")) && !is_fence(&name[1..]));
        }
        assert!(!is_fence(b"") && !is_fence(b"whimbrel:staging:") && !is_fence(&staging_key("front0", b"a")));
    }

    #[test]
    fn texts_of_tokens_have_their_order() {
        let of = |version, term| Token { version, term };
        let tokens = [
            of(0, 0),
            of(0, u64::MAX),
            of(9, 1),
            of(10, 0),
            of(1 << 53, 0),
            of((1 << 53) + 1, 0),
            of(u64::MAX, 1),
        ];
        for pair in tokens.windows(2) {
            assert!(pair[0] < pair[1] && pair[0].text() < pair[1].text(), "{pair:?}");
        }
        for token in tokens {
            assert_eq!(token.text().len(), TOKEN_BYTES);
            assert_eq!(Token::of_fence(format!("{}.0000000001", token.text()).as_bytes()), Some(token));
        }
        for other in ["", "1.2", &"x".repeat(60), &"9".repeat(60)] {
            assert_eq!(Token::of_fence(other.as_bytes()), None);
        }
    }
}
