//! `whimbrel verify`, and the verification at the end of `whimbrel copy --verify`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_core::units::{format_bytes, format_count, format_duration_ms};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_flow::copy::DbPair;
use whimbrel_flow::retry::RetryPolicy;
use whimbrel_flow::verify::{self, Scope, Settle, VerifyOptions, VerifyProgress, VerifyReport};

use crate::exit::Exit;
use crate::settings::args::{CopyArgs, Depth, Show, VerifyArgs};
use crate::ui::display::{Display, Form};
use crate::ui::errors;

/// Runs the command.
pub async fn run(args: &VerifyArgs, stop: CancellationToken) -> Exit {
    match run_inner(args, stop).await {
        Ok(report) => exit_of(&report),
        Err(e) => errors::end_of(&e, args.show.json),
    }
}

async fn run_inner(args: &VerifyArgs, stop: CancellationToken) -> Result<VerifyReport> {
    let endpoints = args.sides.endpoints()?;
    let selection = args.which.names.selection()?;
    let scope = args.sample.as_deref().map_or(Ok(Scope::All), scope)?;
    let (source, target) = args.sides.probe(endpoints, args.from_replicas).await?;
    let options = VerifyOptions {
        depth: match args.depth {
            Depth::Counts => verify::Depth::Counts,
            Depth::Meta => verify::Depth::Meta,
            Depth::Full => verify::Depth::Full,
        },
        scope,
        selection,
        types: args.which.types.clone(),
        dbs: pairs(&args.which.names.dbs(&source, &target).await?),
        ttl_tolerance_ms: args.ttl_tolerance,
        settle: Settle { rounds: args.settle, ..Settle::default() },
        retry: RetryPolicy { give_up_after_ms: args.sides.retry_for, ..RetryPolicy::default() },
        differences_max: args.list,
        from_replica: args.from_replicas,
        check_extra: !args.ignore_extra,
        read_rate_keys: args.rate_keys,
        ..VerifyOptions::default()
    };
    if !args.show.json && !args.show.quiet {
        eprintln!("source   {}: {}", source.endpoint.address, source.facts.version);
        eprintln!("target   {}: {}", target.endpoint.address, target.facts.version);
    }
    verify(source, target, options, &args.show, stop).await
}

fn scope(text: &str) -> Result<Scope> {
    let fail = || {
        Error::unfit(Side::Own, "", "reading the options", format!("--sample {text} is no sample"))
            .with_remedy("write a number of keys, or a percentage such as 10%")
    };
    match text.strip_suffix('%') {
        Some(percent) => match percent.parse() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Scope::SamplePercent(percent)),
            _ => Err(fail()),
        },
        None => match text.parse() {
            Ok(keys) if keys > 0 => Ok(Scope::SampleKeys(keys)),
            _ => Err(fail()),
        },
    }
}

/// A full verification of what a copy was about.
pub fn options_after_copy(args: &CopyArgs, dbs: &[DbPair], check_extra: bool) -> Result<VerifyOptions> {
    Ok(VerifyOptions {
        selection: args.which.names.selection()?,
        types: args.which.types.clone(),
        dbs: pairs(dbs),
        retry: RetryPolicy { give_up_after_ms: args.sides.retry_for, ..RetryPolicy::default() },
        from_replica: args.from_replicas,
        check_extra,
        ..VerifyOptions::default()
    })
}

fn pairs(dbs: &[DbPair]) -> Vec<(u32, u32)> {
    dbs.iter().map(|p| (p.source, p.target)).collect()
}

/// Verifies, shows the progress and the report.
pub async fn verify(
    source: Arc<Deployment>,
    target: Arc<Deployment>,
    options: VerifyOptions,
    show: &Show,
    stop: CancellationToken,
) -> Result<VerifyReport> {
    let progress = Arc::new(VerifyProgress::default());
    let display = Display::of_lines(Form::of(show), lines(progress.clone(), options.check_extra));
    let (depth, scope) = (options.depth, options.scope);
    let outcome = verify::verify(source, target, options, progress, stop).await;
    display.finish().await;
    let report = outcome?;
    show_report(show, &report, depth, scope);
    Ok(report)
}

/// What the process ends with after this verification.
pub fn exit_of(report: &VerifyReport) -> Exit {
    match (report.is_equal(), report.stopped_early) {
        (true, _) => Exit::Success,
        (false, true) => Exit::Stopped,
        (false, false) => Exit::Different,
    }
}

fn lines(
    progress: Arc<VerifyProgress>,
    check_extra: bool,
) -> impl FnMut() -> (u64, u64, String, serde_json::Value) + Send {
    let started = Instant::now();
    move || {
        let n = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let p = &progress;
        let (compared, differing, bytes) = (n(&p.compared), n(&p.differing), n(&p.bytes));
        let (rechecking, extra, total) = (n(&p.rechecking), n(&p.extra_checked), n(&p.total_estimate));
        let seconds = started.elapsed().as_secs_f64().max(0.001);
        // Keys are looked for on both sides, one after the other.
        let all = if check_extra { 2 * total } else { total };
        let text = format!(
            "{:>7}  ETA {}  compared {} of {}  {}/s  {}  differing {}  looking again at {}{}",
            format_duration_ms(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)),
            eta((compared + extra, all), seconds),
            format_count(compared),
            format_count(total),
            format_count((compared as f64 / seconds) as u64),
            format_bytes(bytes),
            format_count(differing),
            format_count(rechecking),
            match check_extra {
                true => format!("  then only there: {} of {}", format_count(extra), format_count(total)),
                false => String::new(),
            },
        );
        let json = json!({
            "event": "verify_progress", "compared": compared, "differing": differing, "bytes_compared": bytes,
            "rechecking": rechecking, "extra_checked": extra, "keys_total": total,
        });
        (compared + extra, all, text, json)
    }
}

/// How long it takes to the end, at the pace until now.
fn eta((done, all): (u64, u64), seconds: f64) -> String {
    match done {
        0 => "–".to_owned(),
        done => format_duration_ms((all.saturating_sub(done) as f64 / done as f64 * seconds * 1000.0) as u64),
    }
}

fn show_report(show: &Show, report: &VerifyReport, depth: verify::Depth, scope: Scope) {
    if show.json {
        say!("{}", json!({"event": "verify_report", "equal": report.is_equal(), "report": report}));
        return;
    }
    for note in &report.notes {
        eprintln!("note     {note}");
    }
    for d in &report.differences {
        let key = d.key.as_deref().map_or_else(String::new, |key| format!("\"{key}\": "));
        let kind = format!("{:?}", d.kind).to_lowercase();
        say!("differs  db {} {key}{kind}: {}", d.db, d.detail);
    }
    if report.differences_cut {
        say!("         … and more; --list N lists up to N");
    }
    for key in &report.unstable_keys {
        say!("unstable {key}: it changed for as long as we looked");
    }
    let t = &report.tally;
    let head = match (report.is_equal(), report.stopped_early) {
        (true, _) => "verified",
        (false, true) => "stopped ",
        (false, false) => "DIFFERENT",
    };
    let mut rest = String::new();
    for (n, name) in [
        (t.differing, "differ"),
        (t.missing, "missing on the target"),
        (t.extra, "only on the target"),
        (t.unstable, "unstable"),
        (t.count_mismatches, "databases with other counts"),
        (t.gone, "gone meanwhile"),
        (t.opaque, "of module types compared by their dumps"),
        (report.unsettled, "still open"),
    ] {
        if n > 0 {
            rest.push_str(&format!(", {} {name}", format_count(n)));
        }
    }
    // What kind of proof it is belongs to the line that is quoted as one.
    let sample = if scope == Scope::All { "" } else { " of a sample" };
    let how = if depth == verify::Depth::Meta { " by existence, type and expiry" } else { "" };
    if depth == verify::Depth::Counts {
        say!("{head} numbers of keys only, in {}{rest}", format_duration_ms(report.duration_ms));
    } else {
        say!(
            "{head} {} keys{sample} equal{how}, {} compared, {} looked for on both sides, in {}{rest}",
            format_count(t.equal),
            format_bytes(report.bytes_compared),
            format_count(t.extra_checked),
            format_duration_ms(report.duration_ms),
        );
    }
    for db in &report.dbs {
        if let (Some(source), Some(target)) = (db.source_keys, db.target_keys) {
            say!(
                "counts   db {}: {} keys on the source, db {}: {} on the target",
                db.source_db,
                format_count(source),
                db.target_db,
                format_count(target)
            );
        }
    }
}
