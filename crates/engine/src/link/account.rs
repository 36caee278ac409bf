//! How many commands of a link are not answered, and that it is remembered if it ends so.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::unanswered::{Ended, Unanswered};

/// What a link has sent and what was answered.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) sent: u64,
    pub(super) answered: u64,
    /// How it is remembered, and where.
    ended: Option<(Unanswered, Ended)>,
    is_noted: AtomicBool,
}

impl Account {
    /// From now on it is remembered if it ends too early.
    pub(super) fn is_kept_by(&mut self, unanswered: Unanswered, ended: Ended) {
        self.ended = Some((unanswered, ended));
    }

    /// Nothing more is read from it.
    pub(super) fn note_end(&self) {
        if let Some((unanswered, ended)) = &self.ended
            && self.sent > self.answered
            && !self.is_noted.swap(true, Ordering::Relaxed)
        {
            unanswered.add(ended.clone());
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.note_end();
    }
}
