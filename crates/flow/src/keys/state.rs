//! What a state is.

use bytes::Bytes;

/// The state of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyState {
    /// Its name.
    pub key: Bytes,
    /// Its value.
    pub body: Body,
    /// When it expires, in milliseconds since the epoch.
    pub expires_at_ms: Option<i64>,
}

/// How a value travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// The bytes of a string.
    String(Bytes),
    /// What `DUMP` gives, of any type.
    Payload(Bytes),
    /// There is none: the key is gone, and is to be removed.
    Gone,
}

impl KeyState {
    /// A key that is to be removed.
    pub fn gone(key: Bytes) -> KeyState {
        KeyState { key, body: Body::Gone, expires_at_ms: None }
    }

    /// Whether there is no such key.
    pub fn is_gone(&self) -> bool {
        matches!(self.body, Body::Gone)
    }

    /// Bytes of name and value.
    pub fn bytes(&self) -> u64 {
        let value = match &self.body {
            Body::String(value) | Body::Payload(value) => value.len(),
            Body::Gone => 0,
        };
        (self.key.len() + value) as u64
    }
}

/// The name of a key for people: printable UTF-8 as it is, everything else escaped, long names cut.
pub fn shown(key: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 200;
    let cut = key.len().min(SHOWN_BYTES_MAX);
    let mut text = format!("\"{}", key[..cut].escape_ascii());
    text.push_str(if cut < key.len() { "…\"" } else { "\"" });
    text
}
