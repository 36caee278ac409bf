//! What is asked of a sync by a user who wants the target to take over, and why it may not come to that.

use std::sync::{Arc, OnceLock};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::Error;

use super::options::CutoverOptions;
use super::report::CutoverReport;

/// What became of a cutover that nothing was done for.
pub(super) const NOTHING_CHANGED: &str = "nothing was changed";

/// What becomes of one whose server was lost under the pause.
const RESUMED: &str = "writes go on by themselves when the pause is over";

/// An order for the target to take over.
#[derive(Debug)]
pub struct Ask {
    /// How.
    pub options: CutoverOptions,
    /// Cancelled when nothing waits for the answer any more: then nothing is begun.
    pub withdrawn: CancellationToken,
    /// Whether it has begun.
    pub beginning: Beginning,
    /// The receiver of the outcome.
    pub answer: oneshot::Sender<Result<CutoverReport, NotTakenOver>>,
}

/// Whether anything has been changed for a cutover. The first word stands: what was given up before it began
/// never begins.
#[derive(Debug, Clone, Default)]
pub struct Beginning(Arc<OnceLock<bool>>);

impl Beginning {
    /// From now on something is changed. False if it was given up.
    pub(super) fn begin(&self) -> bool {
        *self.0.get_or_init(|| true)
    }

    /// Nothing is to be changed any more. False if something may have been.
    pub fn give_up(&self) -> bool {
        !*self.0.get_or_init(|| false)
    }

    fn has_begun(&self) -> bool {
        self.0.get() == Some(&true)
    }
}

/// Why the target has not taken over.
#[derive(Debug)]
pub struct NotTakenOver {
    /// What was in the way.
    pub error: Error,
    /// Whether anything had been changed for it. What was is undone, as far as the servers could be reached.
    pub begun: bool,
}

impl NotTakenOver {
    /// What came of a cutover that began or did not. If a server was lost, what was changed is said.
    pub fn new(error: Error, beginning: &Beginning) -> NotTakenOver {
        let begun = beginning.has_begun();
        let left = if begun { RESUMED } else { NOTHING_CHANGED };
        let error = if error.is_link() && error.left.is_empty() { error.with_left(left) } else { error };
        NotTakenOver { error, begun }
    }
}
