//! How everything stood when it was read last, for all who watch.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{Notify, watch};

use crate::shown::Shown;

/// How everything stood.
#[derive(Debug, Default, Clone)]
pub struct Snapshot {
    /// When jobs were read, in milliseconds since the epoch; 0 before the first time.
    pub read_ms: u64,
    /// Jobs by name.
    pub jobs: BTreeMap<String, Arc<Shown>>,
    /// The cluster, where there is one.
    pub cluster: Option<Arc<Value>>,
    /// The fleet, where there is one.
    pub fleet: Option<Arc<Value>>,
    /// What a client of our own met in the last second.
    pub canary: Option<Arc<Value>>,
    /// Why jobs cannot be read now.
    pub trouble: Option<Arc<str>>,
}

/// What those who watch get, and whether there are any.
#[derive(Debug)]
pub struct Watched {
    snapshot: watch::Sender<Arc<Snapshot>>,
    wanted: Notify,
}

impl Default for Watched {
    fn default() -> Watched {
        Watched { snapshot: watch::Sender::new(Arc::default()), wanted: Notify::new() }
    }
}

impl Watched {
    /// How everything stands from now on. It is read for as long as this is there.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        let receiver = self.snapshot.subscribe();
        self.wanted.notify_waiters();
        receiver
    }

    /// Waits until somebody watches. What was read before is forgotten.
    pub(crate) async fn until_wanted(&self) {
        loop {
            // Listened to before it is looked: who comes in between is not missed.
            let wanted = self.wanted.notified();
            if self.snapshot.receiver_count() > 0 {
                return;
            }
            self.snapshot.send_replace(Arc::default());
            wanted.await;
        }
    }

    /// Waits until nobody watches.
    pub(crate) async fn until_unwanted(&self) {
        self.snapshot.closed().await;
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Snapshot)) {
        self.snapshot.send_modify(|snapshot| change(Arc::make_mut(snapshot)));
    }

    pub(crate) fn latest(&self) -> Arc<Snapshot> {
        self.snapshot.borrow().clone()
    }
}
