//! One client, its own connection to the server, and what is on its way between them.
//!
//! ```text
//!          inbox           to server
//! client ────────▶ scan ─────────────▶ server
//!        ◀──────── count ◀────────────
//!         to client          from server
//! ```
//!
//! Requests are scanned for their ends and words, replies for their ends; payloads are only copied. What has
//! been found is handed on with the bytes, so nothing behind looks for it again. All that has arrived is
//! passed on in one write. Each request is noted in `due`, so that a reply of our own comes in its turn.
//!
//! **Bounds.** A buffer that is full is not read into, so TCP slows down the sender. A session with all
//! buffers full holds `INBOX_BYTES_MAX` and `READ_BYTES` of requests, `OUT_BYTES_MAX` and that much more in
//! each direction, and notes of `DUE_MAX` requests under way; with what buffers allocate ahead as they grow,
//! and errors of our own among the notes, 4 MiB. An idle session holds no buffers. The length of a value does
//! not matter: it is passed on as it arrives.
//!
//! From the top down:
//!
//! - `driver`: the sockets, timers and tasks of a session; `way`: a connection to a server; `call`: what
//!   calls sessions to rest;
//! - `state`: what a session is, a state machine that is tested without any of these;
//! - `forward`: requests on their way to the one server; `replies`: replies on their way back;
//! - `decide`: requests while keys move; `rest`: how a session comes to rest before that begins;
//! - `route`: over which connection a request goes, if connections are shared;
//! - `plain`, `sharing`, `moving`: what is known of a client before keys move, if connections are shared, and
//!   while keys move; `transaction`: what it has open;
//! - `link`: what is on its way to a server and back; `due`: what a client is owed;
//! - `elements`: iterations over one key; `context`: what all sessions have in common.

mod call;
pub(crate) mod context;
mod decide;
pub(crate) mod driver;
mod due;
mod elements;
mod forward;
mod link;
mod moving;
mod plain;
mod replies;
mod rest;
mod route;
mod sharing;
pub(crate) mod state;
#[cfg(test)]
mod tests;
mod transaction;
mod way;
