//! Ctrl-C and SIGTERM: the first stops cleanly, the second at once.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::Exit;

static STOPPED_BY_USER: AtomicBool = AtomicBool::new(false);

/// Nothing is in flight that a signal could stop half-way.
static READ_ONLY: AtomicBool = AtomicBool::new(false);

/// Says that this command changes nothing: ending it is not worth a word.
pub fn note_read_only() {
    READ_ONLY.store(true, Ordering::Relaxed);
}

/// Nothing has begun yet: the user is being asked. Until it is dropped, being stopped is not worth a word.
pub struct WhileAsking {
    was_read_only: bool,
}

impl WhileAsking {
    /// From here on.
    pub fn begin() -> WhileAsking {
        WhileAsking { was_read_only: READ_ONLY.swap(true, Ordering::Relaxed) }
    }
}

impl Drop for WhileAsking {
    fn drop(&mut self) {
        READ_ONLY.store(self.was_read_only, Ordering::Relaxed);
    }
}

/// True after Ctrl-C or SIGTERM.
pub fn stopped_by_user() -> bool {
    STOPPED_BY_USER.load(Ordering::Relaxed)
}

/// The first signal stops cleanly, the second at once.
pub fn watch(stop: CancellationToken) {
    // Before anything is done: without them the system would end the process in its own way.
    let signals = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    let [Ok(mut interrupt), Ok(mut terminate)] = signals else { return };
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if STOPPED_BY_USER.swap(true, Ordering::Relaxed) {
                whimbrel_terminal::keyboard::restore();
                eprintln!(
                    "stopped at once, half-way: `whimbrel jobs list` shows what is left of moving slots, and \
                     --resume goes on with a copy or a sync"
                );
                std::process::exit(Exit::Stopped as i32);
            }
            if !READ_ONLY.load(Ordering::Relaxed) {
                eprintln!("stopping: what is in flight is finished; once more to stop at once");
            }
            stop.cancel();
        }
    });
}
