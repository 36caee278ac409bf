//! In which form a state goes to a server, if it can go there in one command at all.

use bytes::{Bytes, BytesMut};
use whimbrel_engine::probe::Capabilities;
use whimbrel_wire::payload::{self, Dialect, Footer, Verdict};

use super::state::{Body, KeyState};

/// What a server takes of what another one has.
#[derive(Debug, Clone, Copy)]
pub struct Fit {
    /// The families of the source and the target.
    pub dialects: (Dialect, Dialect),
    /// The highest version of payloads that the target accepts; `None` if it accepts none.
    pub payload_version_max: Option<u16>,
    /// The target sets a string and its expiry with one command.
    pub set_pxat: bool,
    /// The longest command that the target takes in, in bytes.
    pub query_bytes_max: Option<u64>,
}

impl Fit {
    /// By what the target can do.
    pub fn of(dialects: (Dialect, Dialect), target: &Capabilities) -> Fit {
        Fit {
            dialects,
            payload_version_max: target.payload_version_max,
            set_pxat: target.set_pxat,
            query_bytes_max: target.query_bytes_max,
        }
    }

    /// The state as the target takes it. Otherwise the key, which moves [in chunks](crate::large).
    ///
    /// # Errors
    /// The key, if its state does not go there in one command.
    pub fn state(&self, state: KeyState) -> Result<KeyState, Bytes> {
        let KeyState { key, body, expires_at_ms } = state;
        let body = match body {
            // A value is never there without its expiry.
            Body::String(value) if expires_at_ms.is_some() && !self.set_pxat => self
                .payload_version_max
                .map(|version| Body::Payload(payload::of_string(&value, version).into())),
            Body::Payload(payload) => self.payload(payload).map(Body::Payload),
            body => Some(body),
        };
        let Some(body) = body else { return Err(key) };
        let state = KeyState { key, body, expires_at_ms };
        if self.is_too_long(state.bytes()) { Err(state.key) } else { Ok(state) }
    }

    /// The payload as the target takes it; `None` if it takes none of this kind.
    pub fn payload(&self, payload: Bytes) -> Option<Bytes> {
        let found = payload::peek(&payload).ok()?;
        let (from, to) = self.dialects;
        let version_max = self.payload_version_max?;
        match payload::verdict(found.object_type, found.rdb_version, from, to, version_max) {
            Verdict::AsIs => Some(payload),
            Verdict::RewriteFooter(version) => {
                let footer = payload::new_footer(&payload, version).ok()?;
                Some(with_footer(payload, footer))
            }
            _ => None,
        }
    }

    /// Whether the target closes the connection on a command of this many bytes.
    pub fn is_too_long(&self, bytes: u64) -> bool {
        self.query_bytes_max.is_some_and(|max| bytes > max / 2)
    }
}

/// The payload with another footer, without copying it if nothing else holds it.
fn with_footer(payload: Bytes, footer: Footer) -> Bytes {
    let body = payload.len() - Footer::LEN;
    let mut bytes = match payload.try_into_mut() {
        Ok(bytes) => bytes,
        Err(shared) => BytesMut::from(&shared[..]),
    };
    bytes[body..].copy_from_slice(&footer.to_bytes());
    bytes.freeze()
}
