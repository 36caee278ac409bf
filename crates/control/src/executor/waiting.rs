//! Which node a job waits for, and since when: one that is silent, or a source that lets no feed attach yet.

use std::convert::Infallible;
use std::time::Duration;

use whimbrel_core::migration::{Observation, Reason, Seen, Why};
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::format_time;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Error};
use whimbrel_engine::feed::{self, Feed, FeedOptions};
use whimbrel_engine::nodes::{ClusterView, Node};

use super::silence::Silence;
use super::{Executor, Trouble, because, reason_of};
use crate::clock::now_s;
use crate::progress::JobProgress;

/// How long until the reason is given why a feed is not attached yet, and how often that is checked again.
const HOLDUP_EVERY: Duration = Duration::from_millis(700);

/// How long a node may take to say which nodes it has lost: nothing is undone meanwhile.
const LOST_WITHIN: Duration = Duration::from_millis(500);

impl Executor {
    /// Takes note of a node that does not answer and of what was in the way, or of that they do.
    pub(super) async fn note_silence(&mut self, observation: &Observation, cause: Option<String>) {
        let Some((source, target)) = &self.between else { return };
        let silent = match (&observation.source, &observation.target) {
            (Seen::Unreachable, _) => Some(source),
            (_, Seen::Unreachable) => Some(target),
            _ => None,
        };
        let silent = match silent {
            None => None,
            Some(id) => {
                let view = crate::view_of(&self.deployment).await.ok();
                let address = view.as_ref().and_then(|view| view.node(id)).map(|node| &node.address);
                let node = match address {
                    Some(address) => format!("{} ({address})", id.short()),
                    None => id.short().to_owned(),
                };
                let before = self.silent.take().filter(|silence| silence.node == node);
                let since_s = before.map_or_else(now_s, |silence| silence.since_s);
                Some(Silence { node, since_s, cause })
            }
        };
        self.progress.waits(silent.as_ref().map(ToString::to_string).as_deref());
        self.silent = silent;
    }

    /// What an error means for the batch. If a node says that its cluster is down, the nodes that it has lost
    /// are named: their links may not have failed us yet.
    pub(super) async fn reason_of(&self, e: &Error) -> Reason {
        let mut reason = reason_of(e, self.stop.is_cancelled());
        if e.server().is_some_and(|e| e.code == Code::ClusterDown)
            && let Ok(Ok(lost)) = tokio::time::timeout(LOST_WITHIN, lost_nodes(&self.deployment, e)).await
            && !lost.is_empty()
        {
            let nodes = if lost.len() == 1 { "this primary" } else { "these primaries" };
            reason.message =
                format!("{}; {nodes} cannot be reached there: {}", reason.message, lost.join(", "));
        }
        reason
    }

    /// Attaches a feed, and says what it waits for if that takes long.
    pub(super) async fn attach_feed(
        &self,
        address: &Address,
        slots: &SlotSet,
        options: FeedOptions,
    ) -> Result<Feed, Trouble> {
        let attaching = Feed::attach(&self.deployment, address, slots.clone(), options);
        let reporting = report_holdup(&self.deployment, address, &self.progress);
        let attached = async {
            tokio::select! {
                feed = attaching => feed,
                never = reporting => match never {},
            }
        };
        let attached = self.stop.run_until_cancelled(attached).await;
        let waited_for = self.progress.waits_for();
        self.progress.waits(None);
        match attached {
            None => Err(because(Why::Interrupted, "cancelled")),
            Some(Err(e)) if !waited_for.is_empty() && e.is_link() => {
                Err(because(Why::Transient, format!("{e}; {waited_for}")))
            }
            Some(feed) => Ok(feed?),
        }
    }
}

/// The primaries with slots that a node cannot reach which answered with an error.
async fn lost_nodes(deployment: &Deployment, answered: &Error) -> Result<Vec<String>, Error> {
    let Some(address) = Address::parse_tcp(&answered.at) else { return Ok(Vec::new()) };
    let view = ClusterView::ask(&mut deployment.open(&address, 0).await?).await?;
    let is_lost = |node: &&Node| node.is_primary() && !node.slots.is_empty() && !node.is_usable();
    let shown = |node: &Node| format!("{} ({})", node.address, node.id.short());
    Ok(view.nodes.iter().filter(|node| !node.flags.myself).filter(is_lost).map(shown).collect())
}

async fn report_holdup(deployment: &Deployment, address: &Address, progress: &JobProgress) -> Infallible {
    let since = format_time(now_s());
    loop {
        tokio::time::sleep(HOLDUP_EVERY).await;
        // A courtesy.
        if let Ok(Some(what)) = feed::holdup(deployment, address).await {
            progress.waits(Some(&format!("{address} was asked for its changes at {since}: {what}")));
        }
    }
}
