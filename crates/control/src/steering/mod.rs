//! The one way to talk to a job that runs: a Unix socket beside its journal, `jobs/NAME.socket` in the state
//! folder.
//!
//! A connection carries one request:
//!
//! ```text
//! caller                          job
//!    ── connects ─────────────────▶   is the caller the same user?
//!    ◀───────────────────── hello ──  it is awake; nothing has been asked yet
//!    ── request ──────────────────▶
//!    ◀──────────── working, how it stands ──  four times a second, until it is done
//!    ── withdraw, or closes ──────▶   the caller would rather not: nothing more is begun
//!    ◀────────────── done, answer ──
//! ```
//!
//! A frame is its length, as four bytes, and a JSON document. Lengths and waits are bounded on both sides. A
//! process that is stopped or hangs does not say hello, so what it was to be asked is never begun later.
//!
//! Only the user who runs the job can use the socket: it is closed to others, and both sides check which user
//! they are connected to.

mod attended;
mod client;
mod local;
mod protocol;
mod schedule;
mod server;

pub use self::attended::{Attended, How};
pub use self::client::{Call, standing};
pub use self::local::{Attendance, Came, LocalJob, Worded, attended, beginning, beginning_at};
pub(crate) use self::local::{discard, steer};
pub use self::protocol::{Answer, Refusal, Request, Scheduled, Standing, Steered, Why};
pub(crate) use self::schedule::take_back;
pub use self::server::{Socket, SocketFile};
