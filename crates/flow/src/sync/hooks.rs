//! What commands of the user do at certain moments of a cutover: stop the writers, send clients to the
//! target.
//!
//! ```text
//!  rehearsed ──▶ Ready ──▶ pauses, drains, compares, fences ──▶ written down ──▶ Switch ──▶ answered
//!                  │ fails          │ fails
//!                  └──▶ Refused ◀───┘   and the sync follows on
//! ```
//!
//! **Invariant:** `Ready` is run before anything is paused or fenced off. `Switch` is run when the fence
//! stands, the pause is over and the cutover is written down. So nothing that is run makes a pause longer,
//! and if whimbrel dies in `Switch`, no later run takes the fence down behind clients that were sent to the
//! target.

use std::fmt;
use std::pin::Pin;

use tokio::time::Instant;

use super::report::{CutoverReport, HookReport};

/// When something is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nothing stands in the way of the cutover, and writers go on: they may be stopped now.
    Ready,
    /// The writers are kept away from the source, and the target has all that they wrote: they may be sent
    /// there now.
    Switch,
    /// The cutover was refused or given up, and the sync follows on: what was done at `Ready` is to be
    /// undone.
    Refused,
}

/// A moment of one cutover.
#[derive(Debug, Clone)]
pub struct Occasion {
    /// Which.
    pub moment: Moment,
    /// Why it was refused; empty otherwise.
    pub why: String,
    /// How the cutover stands, as far as it is known.
    pub cutover: Option<CutoverReport>,
    /// When it is too late for what is run: it is ended then. `None` if it has all its time.
    pub until: Option<Instant>,
}

/// What is run, and what came of it.
pub type Ran = Pin<Box<dyn Future<Output = Vec<HookReport>> + Send>>;

/// Runs what another party has to do. Each takes a bounded time.
pub trait Hooks: fmt::Debug + Send + Sync {
    /// What would be run at this moment. Runs nothing.
    fn at(&self, moment: Moment) -> Vec<HookReport>;

    /// Runs it. If that is dropped, what runs is ended.
    fn run(&self, occasion: Occasion) -> Ran;
}
