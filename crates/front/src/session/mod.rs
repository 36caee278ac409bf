//! One client, its own connection to the server, and what is on its way between them.
//!
//! ```text
//!          inbox           to server
//! client ────────▶ scan ─────────────▶ server
//!        ◀──────── count ◀────────────
//!         to client          from server
//! ```
//!
//! Requests are scanned for their ends and first words, replies for their ends; payloads are only copied. All
//! that has
//! arrived is passed on in one write. Each request is noted in `due`, so that a reply of our own comes in its
//! turn.
//!
//! **Bounds.** A buffer that is full is not read into, so TCP slows down the sender. A session with all
//! buffers full
//! holds `INBOX_BYTES_MAX` and `READ_BYTES` of requests, `OUT_BYTES_MAX` and that much more in each
//! direction, and notes of
//! `DUE_MAX` requests under way; with what buffers allocate ahead as they grow, and errors of our own among
//! the notes, 4 MiB. One that
//! is idle holds no buffers. The length of a value does not matter: it is passed on as it arrives.
//!
//! From the top down:
//!
//! - `serve`: the loop of a session;
//! - `forward`: requests on their way to the one server; `replies`: replies on their way back;
//! - `decide`: requests while keys move; `rest`: how a session comes to rest before that begins;
//! - `route`: over which connection a request goes, where connections are shared;
//! - `state`: what a session is; `moving`, `plain`, `sharing`: what is added to that while keys move, before,
//!   and where connections are shared;
//! - `link`: the connection to a server; `due`: what a client is owed;
//! - `elements`: iterations over one key; `call`: what calls sessions to rest; `context`: what all sessions
//!   have in common.

mod call;
pub(crate) mod context;
mod decide;
mod due;
mod elements;
mod forward;
mod link;
mod moving;
mod plain;
mod replies;
mod rest;
mod route;
pub(crate) mod serve;
mod sharing;
pub(crate) mod state;
