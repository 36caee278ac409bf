//! Has keys move the other way: the source becomes the target, and the target the source.
//!
//! `docs/design/front.md` shows why this is exact. In short: a key is at one of the servers alone, or at both
//! with the same value, and only the front writes to either. Which of them is called the target matters only
//! to what is done from then on, so the direction can be turned at any moment at which nothing is under way.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use whimbrel_engine::error::Result;
use whimbrel_flow::functions;

use super::{Control, Tasks, close_others, first_database_alone, keyspace, must_be_empty, refuse, survey};
use crate::migrate::direction::{Direction, REVERSALS_MAX};
use crate::migrate::phase::{Phase, Stand};
use crate::migrate::state::{MigrationState, Ready, Servers};

/// How long moves may take to come to their end, if commands would wait longer for them.
const ENDED_WITHIN: Duration = Duration::from_secs(20);

/// How long making the filter anew may take.
const REBUILT_WITHIN: Duration = Duration::from_secs(60);

/// Between two looks at whether it is there.
const PAUSE: Duration = Duration::from_millis(20);

/// What to do about most of what is in the way.
const SEE: &str = "see whimbrel front status";

impl Control {
    /// Has keys move the other way from here on, or again, if all have moved. When it returns that is on
    /// disk, and clients are served from both servers.
    ///
    /// # Errors
    /// `Options` if no keys have moved, `Unfit` if these servers cannot be served from like this; `Own` if
    /// the state cannot be written. Then everything is as before, but clients may have been disconnected.
    pub async fn reverse(&self) -> Result<()> {
        self.reverse_direction(false).await
    }

    /// As [`Control::reverse`], and [`Control::pause`] at once: only keys that commands need move.
    ///
    /// # Errors
    /// As [`Control::reverse`].
    pub async fn reverse_paused(&self) -> Result<()> {
        self.reverse_direction(true).await
    }

    /// What keys move or have moved with, if they can move back.
    pub(super) fn must_have_moved(&self, tasks: &Tasks) -> Result<Arc<MigrationState>> {
        tasks.must_be_free("reverse")?;
        let migration = self.stages.migration().filter(|_| !tasks.is_finished);
        let migration = migration.ok_or_else(|| unable("no keys have moved that could move back", SEE))?;
        if migration.reversals >= REVERSALS_MAX {
            let what = format!("the direction has been reversed {REVERSALS_MAX} times");
            return Err(unable(&what, "wait until it is done, and begin anew after whimbrel front finish"));
        }
        if !migration.is_done() {
            unsuspicious(&migration)?;
        }
        Ok(migration)
    }

    /// What keys would be moved back with. Changes nothing.
    pub(super) async fn servers_to_reverse(&self, migration: &MigrationState) -> Result<Servers> {
        rebuilt(migration).await?;
        let (from, to) =
            Direction::after(migration.reversals + 1).ordered(self.source.clone(), self.target.clone());
        let (servers, _) = survey(&from, &to, self.link, self.scripts_declare_keys).await?;
        first_database_alone(&from, servers.other_database)?;
        if migration.is_done() {
            must_be_empty(&servers.target).await?;
        }
        Ok(servers)
    }

    async fn reverse_direction(&self, paused: bool) -> Result<()> {
        // One at a time.
        let mut tasks = self.tasks.lock().await;
        let migration = self.must_have_moved(&tasks)?;
        let servers = self.servers_to_reverse(&migration).await?;
        let (next, moves) = MigrationState::new(servers, migration.reversals + 1, self.wait, true);
        next.paused.send_replace(paused);
        // Moves that are under way end, and others do not begin. Clients go on meanwhile.
        let at_rest = timeout(self.wait.min(ENDED_WITHIN), migration.gate.write()).await;
        let at_rest = at_rest.map_err(|_| unable("a move does not come to its end", SEE))?;
        // It has said that all is done, or never will.
        tasks.sweeper.shutdown().await;
        let before = Stand {
            phase: if migration.is_done() { Phase::Done } else { Phase::Moving },
            reversals: migration.reversals,
        };
        if let Err(error) = self.write_reversal(&migration, &next, before).await {
            next.ready.send_replace(Ready::Never);
            self.stages.undo(Some(migration.clone()));
            if !migration.is_done() {
                tasks.sweep(&migration, &self.state);
            }
            return Err(error);
        }
        // Workers that move large keys have gone on, on new connections. What they have left in them must not
        // come late: a copy of a key that is deleted from here on.
        tasks.workers.shutdown().await;
        while let Err(error) = close_others(&next).await {
            tracing::warn!(%error, "connections of before the turn are closed again");
            next.set_trouble(Some(error.to_string()));
            sleep(PAUSE).await;
        }
        next.set_trouble(None);
        drop(at_rest);
        next.ready.send_replace(Ready::Yes);
        *tasks = Tasks::of(&next, moves, &self.state);
        Ok(())
    }

    /// Has clients come to rest, and writes down the turn.
    async fn write_reversal(
        &self,
        migration: &MigrationState,
        next: &Arc<MigrationState>,
        before: Stand,
    ) -> Result<()> {
        // Whether it can be written is better known before clients are stopped.
        self.state.save(before)?;
        self.stages.begin(next.clone()).await;
        close_others(next).await?;
        let (mut from, mut to) = (next.open_source().await?, next.open_target().await?);
        // Clients wrote until now, to whatever database and with whatever libraries if all keys had moved.
        for upstream in [&next.servers.source, &next.servers.target] {
            first_database_alone(upstream.endpoint(), keyspace(upstream).await?.1)?;
        }
        if migration.is_done() {
            must_be_empty(&next.servers.target).await?;
            functions::mirror(&mut from, &mut to).await?;
        } else {
            // It may be another process since nothing moves.
            migration.open_source().await?;
            unsuspicious(migration)?;
        }
        let is_paused = *next.paused.borrow();
        let saved =
            self.state.save_with(Stand { phase: Phase::Moving, reversals: next.reversals }, is_paused);
        if saved.is_err() {
            // It may have been written all the same. Either is right for the process that comes next, but
            // this is what goes on.
            let _ = self.state.save(before);
        }
        saved
    }
}

/// What the front has noticed on the source would become what clients are served.
fn unsuspicious(migration: &MigrationState) -> Result<()> {
    let text = migration.alarms().text(migration.direction());
    text.map_or(Ok(()), |text| {
        Err(unable(
            &text,
            "see that the server has what it should; where it has, end the front and run it again, which \
             takes keys away there that have moved",
        ))
    })
}

/// Waits until no key can be on both sides, except a key that is moved just then.
async fn rebuilt(migration: &MigrationState) -> Result<()> {
    let rebuilding = async {
        while migration.is_rebuilding() {
            sleep(PAUSE).await;
        }
    };
    timeout(REBUILT_WITHIN, rebuilding).await.map_err(|_| {
        unable("the filter is still being rebuilt", "wait until whimbrel front status no longer mentions it")
    })
}

fn unable(what: &str, remedy: &str) -> whimbrel_engine::error::Error {
    refuse("reverse", what, remedy)
}
