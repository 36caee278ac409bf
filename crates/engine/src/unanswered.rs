//! Connections to a target that ended before all their commands were answered.
//!
//! A server that hung, or a proxy on the way, may still have such a command. It could carry it out after what
//! was repeated on another connection, and put an older value in the place of a newer one. So the next
//! [`link`](crate::link) to the server has it close those before anything is written.

use std::sync::Arc;

use parking_lot::Mutex;

/// How many are remembered. There are more only if servers are never reached again.
const REMEMBERED_MAX: usize = 1024;

/// Those of an endpoint that their servers may still have.
#[derive(Debug, Clone, Default)]
pub struct Unanswered(Arc<Mutex<Vec<Ended>>>);

/// A connection, as its server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The server's process: another one counts connections anew, also at the same address.
    pub(crate) run_id: String,
    /// The connection's number there.
    pub(crate) id: i64,
}

impl Unanswered {
    pub(crate) fn add(&self, ended: Ended) {
        let mut all = self.0.lock();
        if all.len() == REMEMBERED_MAX {
            all.remove(0);
        }
        all.push(ended);
    }

    /// Those of this process of a server.
    pub(crate) fn of(&self, run_id: &str) -> Vec<Ended> {
        self.0.lock().iter().filter(|ended| ended.run_id == run_id).cloned().collect()
    }

    /// They are closed.
    pub(crate) fn remove(&self, closed: &[Ended]) {
        self.0.lock().retain(|known| !closed.contains(known));
    }
}
