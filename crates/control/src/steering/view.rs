//! Where others see how a process stands.

use std::path::Path;

use serde_json::Value;
use whimbrel_engine::error::Result;

use super::client::standing;
use crate::http;
use crate::store::Store;

/// Where it is seen how a process stands.
#[derive(Debug)]
pub enum View {
    /// By the socket of a job in a state folder.
    Here(Store, String),
    /// Over HTTP.
    At(String),
}

impl View {
    /// A sync that runs, of a state folder; the only one where none is named.
    ///
    /// # Errors
    /// As [`Store::running_sync`].
    pub fn of_sync(folder: &Path, named: &str) -> Result<View> {
        let store = Store::new(folder);
        let sync = store.running_sync(named)?;
        Ok(View::Here(store, sync.id))
    }

    /// How it stands; `None` where it does not say so in time.
    ///
    /// # Errors
    /// As [`http::status_at`].
    pub async fn card(&self) -> Result<Option<Value>> {
        match self {
            View::Here(store, id) => Ok(standing(&store.socket(id)).await.map(|standing| standing.details)),
            View::At(at) => Ok(Some(http::status_at(at).await?).filter(Value::is_object)),
        }
    }

    /// Whether the process is known to have ended.
    pub fn has_ended(&self) -> bool {
        matches!(self, View::Here(store, id) if !store.is_served(id))
    }

    /// The job's name, or the address.
    pub fn name(&self) -> &str {
        match self {
            View::Here(_, name) | View::At(name) => name,
        }
    }
}
