//! The cluster and what is wrong with it, as `whimbrel status` and `whimbrel repair` tell it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use whimbrel_control::clock::now_ms;
use whimbrel_control::described;
use whimbrel_control::repair::round;
use whimbrel_control::repair::told;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::nodes::{Counted, Survey, SurveyOptions};

use crate::mover::Mover;

/// How long all nodes together may take to answer.
const LOOK_WITHIN: Duration = Duration::from_secs(15);

/// How long it may take to find out what a repair would do: keys are looked at.
const REPAIR_WITHIN: Duration = Duration::from_secs(120);

/// How often it is looked whether the nodes agree before a repair is planned.
const LOOKS: usize = 3;

/// The cluster now. Where no node answers it is as it was `before`, and says so.
pub async fn read(mover: &Mover, before: Option<&Arc<Value>>) -> Value {
    let what = SurveyOptions { counts: Counted::Nothing, activity: true };
    let failure = match timeout(LOOK_WITHIN, Survey::take_with(&mover.deployment, what)).await {
        Ok(Ok(survey)) => {
            let mut value = described::status(&mover.cluster(), &survey);
            value["read_ms"] = json!(now_ms());
            value["method"] = json!(mover.settings.method.name());
            value["why"] = json!(mover.why);
            value["error"] = Value::Null;
            return value;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("the nodes have not answered within {} s", LOOK_WITHIN.as_secs()),
    };
    let nothing = || {
        json!({
            "cluster": mover.cluster(), "healthy": false, "nodes": 0, "shards": [], "findings": [],
            "read_ms": null, "method": mover.settings.method.name(), "why": mover.why,
        })
    };
    let mut value = before.map_or_else(nothing, |before| Value::clone(before));
    value["error"] = json!(failure);
    value
}

/// What a repair would do now. Nothing is changed.
///
/// # Errors
/// Where the nodes do not answer, or not in time.
pub async fn repair(mover: &Mover) -> Result<Value> {
    let planned = async {
        let survey = round::settled_survey(&mover.deployment, LOOKS).await?;
        let plan = round::plan(&mover.deployment, &survey, None, &CancellationToken::new()).await?;
        let findings = survey.findings();
        Ok::<_, Error>(json!({
            "read_ms": now_ms(),
            "findings": findings.iter().map(described::finding).collect::<Vec<_>>(),
            "actions": plan.actions.iter().map(|a| described::action(&survey, a)).collect::<Vec<_>>(),
            "left": plan.left.iter().map(|left| told::left(&survey, left)).collect::<Vec<_>>(),
            "command": format!("whimbrel repair {}", mover.cluster()),
        }))
    };
    let late = || Error::own("plan a repair", "the nodes have not answered in time");
    timeout(REPAIR_WITHIN, planned).await.map_err(|_| late())?
}
