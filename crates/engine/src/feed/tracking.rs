//! Invalidations, as client-side caching sends them.
//!
//! `CLIENT TRACKING ON BCAST` pushes the name of every key that changes, and a null if a database was
//! emptied. Names come without their database.

use whimbrel_wire::value::Value;

use super::asking::ask_for_pushes;
use super::stream::starting_db;
use super::touched::TouchedSet;
use crate::deployment::Deployment;
use crate::error::Result;
use crate::link::Link;

/// What is known of the source of invalidations.
#[derive(Debug)]
pub(super) struct Tracking {
    /// The database of all keys, if there is only one.
    db: Option<u32>,
}

impl Tracking {
    /// Asks for invalidations on `link`, or says why none can be had.
    pub(super) async fn begin(deployment: &Deployment, link: &mut Link) -> Result<Result<Tracking, String>> {
        let db = starting_db(deployment, link).await?;
        let asked = ask_for_pushes(link, &[b"CLIENT", b"TRACKING", b"ON", b"BCAST"]).await?;
        Ok(asked.map(|()| Tracking { db }))
    }

    /// Records what a push reports.
    pub(super) fn record(&self, push: &[Value], set: &mut TouchedSet) {
        let [kind, keys] = push else { return };
        if kind.as_str() != Some("invalidate") {
            return;
        }
        match keys.as_items() {
            Some(keys) => keys.iter().filter_map(Value::as_bytes).for_each(|key| set.whole(self.db, key)),
            None => set.flush(),
        }
    }
}
