//! What the target loses to a copy or a sync: keys that are replaced or removed.

use std::sync::Arc;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_core::units::format_count_of;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;
use whimbrel_flow::copy::{CopyOptions, Plan};
use whimbrel_flow::losses::{self, Losses};
use whimbrel_terminal::question::Question;

use crate::exit::Exit;
use crate::settings::args::Show;
use crate::ui::confirm::confirm;

/// A copy or a sync that may replace keys of the target, or remove them.
pub struct Overwriting<'a> {
    /// Where the keys come from.
    pub source: &'a Arc<Deployment>,
    /// Where they go.
    pub target: &'a Arc<Deployment>,
    /// What is planned.
    pub plan: &'a Plan,
    /// By which options.
    pub options: &'a CopyOptions,
    /// What becomes of keys of the target, in words.
    pub become_what: &'a str,
    /// What is shown of it.
    pub show: &'a Show,
}

impl Overwriting<'_> {
    /// Shows what the target would lose.
    ///
    /// # Errors
    /// If a side does not answer.
    pub async fn show(&self, stop: &CancellationToken) -> Result<()> {
        let count = losses::count(self.source, self.target, (self.options, self.options.mirror), stop);
        count.await?.into_iter().for_each(|losses| show(losses, self.show));
        Ok(())
    }

    /// Asks whether the target may lose them; an exit code if it may not.
    ///
    /// # Errors
    /// As [`confirm`].
    pub async fn ask(&self, yes: bool, stop: &CancellationToken) -> Result<Option<Exit>> {
        let at = self.target.endpoint.address.to_string();
        let keys = format_count_of(self.plan.dbs.iter().map(|db| db.target_keys).sum(), "key");
        let become_what = self.become_what;
        let question =
            Question::typed(format!("The target, {at}, holds {keys}: they are {become_what}. Do it?"), at);
        let decision = confirm(&question, yes, false, self.show.json, stop).await?;
        Ok(decision.end(Exit::Success))
    }
}

/// What is left behind of the source's functions, in words.
pub fn functions_left(plan: &Plan) -> Option<String> {
    let n = plan.functions_left;
    let words =
        || format!("the source has {n} function libraries that are not copied; --functions copies them");
    (n > 0).then(words)
}

/// Says what the target would lose.
fn show(losses: Losses, show: &Show) {
    let Losses { replaced, removed, is_partial } = losses;
    let words = removed.map_or(String::new(), |n| {
        format!("; {} that only the target has would be removed", format_count_of(n, "key"))
    });
    let stopped = if is_partial { "; stopped before all keys were counted" } else { "" };
    let both = format_count_of(replaced, "key");
    let text = format!(
        "target   holds {both} that the source has too: up to {both} would be replaced (values were not \
            compared){words}{stopped}"
    );
    let removed = removed.unwrap_or(0);
    let json = json!({"event": "losses", "replaced": replaced, "removed": removed, "partial": is_partial});
    show.print(&text, &json);
}
