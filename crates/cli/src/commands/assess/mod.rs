//! `whimbrel assess`.

mod html;
mod text;
mod words;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use whimbrel_core::select::Selection;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_flow::assess::{self, AssessOptions, Assessment, Page, SampleOptions, Verdict};
use whimbrel_flow::copy::{DbPair, databases};

use crate::commands::copy;
use crate::exit::Exit;
use crate::settings::args::{AssessArgs, Names};
use crate::ui::errors;
use whimbrel_terminal::screen::Screen;

/// How many percent of a server's time are used if the user does not say.
const LOAD: u8 = 1;
const LOAD_FULL: u8 = 10;

/// Runs the command.
pub async fn run(args: &AssessArgs, stop: CancellationToken) -> Exit {
    let outcome = tokio::select! {
        // Nothing is written, so it may end at any point.
        () = stop.cancelled() => return Exit::Stopped,
        outcome = run_inner(args, &stop) => outcome,
    };
    outcome.unwrap_or_else(|e| errors::end_of(&e, args.json))
}

async fn run_inner(args: &AssessArgs, stop: &CancellationToken) -> Result<Exit> {
    let source = Deployment::probe(args.source_endpoint()?, args.link_options());
    let (source, target) = match args.target_endpoint()? {
        Some(target) => {
            let (source, target) = tokio::join!(source, Deployment::probe(target, args.link_options()));
            (source?, Some(Arc::new(target?)))
        }
        None => (source.await?, None),
    };
    let source = Arc::new(source);
    let dbs = dbs(args, &source, target.as_deref()).await?;
    let load = args.load.unwrap_or(if args.full { LOAD_FULL } else { LOAD });
    let options = AssessOptions {
        copy: copy::options(Selection::default(), dbs, &args.limits, 0),
        sample: SampleOptions {
            keys: (!args.full).then_some(args.sample),
            share: f64::from(load) / 100.0,
            time_max: (!args.full).then(|| Duration::from_millis(args.sample_time)),
        },
    };
    let assessment = assess::assess(&source, target.as_ref(), &options, stop).await?;
    let page = Page::of(&assessment);
    if let Some(file) = &args.html {
        std::fs::write(file, html::of(&page))
            .map_err(|e| Error::own(format!("write {}", file.display()), e))?;
    }
    if args.json {
        out!("{}", as_json(&assessment));
    } else {
        out!("{}", text::as_text(&page, Screen::of_stdout()).trim_end());
    }
    Ok(match assessment.verdict {
        Verdict::Ready | Verdict::WithCare => Exit::Success,
        Verdict::Blocked => Exit::Refused,
    })
}

/// Which databases go to which; without a target each goes to itself.
async fn dbs(args: &AssessArgs, source: &Deployment, target: Option<&Deployment>) -> Result<Vec<DbPair>> {
    let names = Names { matches: Vec::new(), exclude: Vec::new(), slots: None, dbs: args.dbs.clone() };
    if let Some(target) = target {
        return names.dbs(source, target).await;
    }
    if !args.dbs.is_empty() {
        let what = "--db says where databases go, and no target is named";
        return Err(Error::options(Side::Own, "reading the options", what)
            .with_remedy("name a target, or leave out --db"));
    }
    let named = databases(source).await?.into_iter().map(|(db, _)| db);
    let wanted = named.filter(|db| source.endpoint.db.is_none_or(|only| only == *db));
    Ok(wanted.map(|db| DbPair { source: db, target: db }).collect())
}

fn as_json(assessment: &Assessment) -> Value {
    let findings: Vec<Value> = assessment
        .findings
        .iter()
        .map(|finding| {
            let mut value = json!(finding);
            let (text, remedy) = words::of(finding);
            value["severity"] = json!(finding.severity());
            value["text"] = text.into();
            value["remedy"] = remedy.into();
            value
        })
        .collect();
    json!({
        "event": "assessment", "verdict": assessment.verdict, "findings": findings,
        "estimates": assessment.estimates, "facts": assessment.facts, "duration_ms": assessment.duration_ms,
    })
}
