//! `whimbrel verify`, and the verification at the end of `whimbrel copy --verify`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_control::http::{bind, expose};
use whimbrel_control::job_metrics::JobMetrics;
use whimbrel_control::standing;
use whimbrel_control::steering::{self, Attendance, Came, LocalJob};
use whimbrel_control::store::{Kind, Store};
use whimbrel_control::verifying::VerifyRecord;
use whimbrel_core::units::{format_bytes, format_count, format_count_of, format_duration_ms};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_flow::budget::{RateChange, Rates, Times};
use whimbrel_flow::copy::DbPair;
use whimbrel_flow::journal::Journal;
use whimbrel_flow::retry::RetryPolicy;
use whimbrel_flow::verify::{self, Scope, Settle, VerifyOptions, VerifyProgress, VerifyReport, VerifyState};

use crate::exit::Exit;
use crate::settings::args::{CopyArgs, Depth, Show, VerifyArgs};
use crate::ui::display;
use crate::ui::errors;
use whimbrel_control::private::job_dir;
use whimbrel_terminal::progress::{Display, Lines};
use whimbrel_terminal::row::cell;

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
    let hooks = args.job.hooks.settings(Kind::Verify)?;
    let (source, target) = args.sides.probe(endpoints, args.from_replicas).await?;
    verify::check_comparable(&source).and(verify::check_comparable(&target))?;
    let limits = args.pace.change();
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
        differences_max: args.list.unwrap_or(VerifyOptions::default().differences_max),
        from_replica: args.from_replicas,
        check_extra: !args.ignore_extra,
        rates: Rates::of(limits),
        ..VerifyOptions::default()
    };
    let http = bind(args.exposing.http).await?;
    let record = open_record(args, &options, (&source, &target))?;
    if !args.show.json && !args.show.quiet {
        eprintln!("source   {}: {}", source.endpoint.address, source.facts.version);
        eprintln!("target   {}: {}", target.endpoint.address, target.facts.version);
        display::show_times(args.pace.between);
    }
    let progress = Arc::new(VerifyProgress::default());
    let Some(VerifyRecord { journal, folder, name, again }) = record else {
        if !args.job.hooks.on.is_empty() || args.job.name.is_some() || args.exposing.http.is_some() {
            let what =
                "a comparison of counts or of a number of keys is no job: it has no name, hooks or metrics";
            let remedy = "leave out --name, --on and --http";
            return Err(Error::options(Side::Own, "read the options", what).with_remedy(remedy));
        }
        return verify(source, target, options, (&args.show, args.list), None, progress, stop).await;
    };
    let store = Store::new(&folder);
    let begun_with =
        steering::beginning(&store, (Kind::Verify, &name), (&source, &target), again, args.resume)
            .named(args.job.name.as_ref())
            .going_on_at(&limits)
            .going_on_switched("from-replicas", args.from_replicas);
    let stop = stop.child_token();
    let hooks = hooks.begin(&store, &begun_with);
    let metrics = JobMetrics::verification(&begun_with, progress.clone(), options.rates.clone());
    let _exposing = expose(http, Arc::new(metrics), &stop, |text, json| args.show.print(text, json))?;
    let standing = standing::of_verification(begun_with, progress.clone());
    let job = LocalJob::new(stop.clone(), options.rates.clone(), standing).with_hooks(hooks);
    let work = verify(source, target, options, (&args.show, args.list), Some(journal), progress, stop);
    let came = |report: &VerifyReport| match report.stopped_early {
        true => Came::Short,
        false => Came::Through(report.verdict()),
    };
    let Attendance { outcome, is_cancelled } =
        steering::attended(&folder, job, work, came, |report| report).await?;
    let is_left = outcome.as_ref().map_or(true, |report| report.stopped_early);
    if is_left && !is_cancelled && !args.show.json && !args.show.quiet {
        eprintln!("         the same command with --resume goes on from here");
    }
    outcome
}

/// The journal, if there is one: a count, or a sample of a number of keys, is quickly repeated.
fn open_record(
    args: &VerifyArgs,
    options: &VerifyOptions,
    (source, target): (&Deployment, &Deployment),
) -> Result<Option<VerifyRecord>> {
    if options.depth == verify::Depth::Counts || matches!(options.scope, Scope::SampleKeys(_)) {
        if args.resume {
            let what = "a comparison of counts or of a number of keys cannot be resumed";
            return Err(Error::options(Side::Own, "go on", what).with_remedy("leave out --resume"));
        }
        return Ok(None);
    }
    let between = args.which.names.between(&source.endpoint, &target.endpoint);
    let description = between.verification(options, args.sample.as_deref());
    VerifyRecord::open(&job_dir(args.state_dir.as_deref())?, &description, &args.job.name, args.resume)
}

fn scope(text: &str) -> Result<Scope> {
    Scope::sample(text).ok_or_else(|| {
        Error::options(Side::Own, "reading the options", format!("--sample {text} is no sample"))
            .with_remedy("write a number of keys, or a percentage such as 10%")
    })
}

/// A full verification of what a copy was about.
pub fn options_after_copy(args: &CopyArgs, dbs: &[DbPair], check_extra: bool) -> Result<VerifyOptions> {
    let times = args.limits.pace.between.map(Times::Between);
    Ok(VerifyOptions {
        selection: args.which.names.selection()?,
        types: args.which.types.clone(),
        dbs: pairs(dbs),
        retry: RetryPolicy { give_up_after_ms: args.sides.retry_for, ..RetryPolicy::default() },
        from_replica: args.from_replicas,
        check_extra,
        rates: Rates::of(RateChange { times, ..RateChange::default() }),
        ..VerifyOptions::default()
    })
}

fn pairs(dbs: &[DbPair]) -> Vec<(u32, u32)> {
    dbs.iter().map(|p| (p.source, p.target)).collect()
}

/// Verifies, shows the progress and the report. As text it lists as many differences as are wanted, or a few.
pub async fn verify(
    source: Arc<Deployment>,
    target: Arc<Deployment>,
    options: VerifyOptions,
    (show, listed): (&Show, Option<usize>),
    journal: Option<Journal<VerifyState>>,
    progress: Arc<VerifyProgress>,
    stop: CancellationToken,
) -> Result<VerifyReport> {
    let display =
        Display::start(show.form(), lines(progress.clone(), options.rates.clone(), options.check_extra));
    let (depth, scope) = (options.depth, options.scope);
    let outcome = verify::verify_with_journal(source, target, options, progress, journal, stop).await;
    display.finish().await;
    let report = outcome?;
    show_report((show, listed.unwrap_or(display::LISTED)), &report, depth, scope);
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

fn lines(progress: Arc<VerifyProgress>, rates: Rates, check_extra: bool) -> impl FnMut() -> Lines + Send {
    let started = Instant::now();
    // What an earlier run has done says nothing about the pace of this one.
    let mut before = None;
    move || {
        let n = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let p = &progress;
        let (compared, differing, bytes) = (n(&p.compared), n(&p.differing), n(&p.bytes));
        let (rechecking, extra, total) = (n(&p.rechecking), n(&p.extra_checked), n(&p.total_estimate));
        let seconds = started.elapsed().as_secs_f64().max(0.001);
        let (done, all) = standing::keys_checked(p);
        let before = *before.get_or_insert(done);
        let left_ms = left_ms((done - before, all.saturating_sub(before)), seconds);
        let left_ms = rates.left_ms(left_ms);
        let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let some = |n: u64, name: &str| match n {
            0 => String::new(),
            n => format!("{} {name}", format_count(n)),
        };
        // Each key is checked from both sides.
        let unit = if check_extra { " checks" } else { " keys" };
        let row = vec![
            cell(6, format_duration_ms(elapsed_ms)),
            cell(0, display::eta(left_ms)),
            cell(1, format!("{} of {}{unit}", format_count(done), format_count(all))),
            cell(0, p.disk.words().unwrap_or_default()),
            cell(0, display::paused(&rates).unwrap_or_default()),
            cell(2, some(differing, "differ")),
            cell(3, format!("{}/s", format_count(((done - before) as f64 / seconds) as u64))),
            cell(4, some(rechecking, "compared again")),
            cell(5, format!("{} compared", format_count(compared))),
            cell(5, if check_extra { format!("{} looked for", format_count(extra)) } else { String::new() }),
            cell(7, format_bytes(bytes)),
        ];
        let json = json!({
            "event": "verify_progress", "compared": compared, "differing": differing, "bytes_compared": bytes,
            "rechecking": rechecking, "extra_checked": extra, "keys_total": total,
            "disk_full_ms": p.disk.full_ms(), "rates": rates.now(),
        });
        Lines { done: Some((done, all)), rows: vec![row], json, notes: Vec::new(), plain: None }
    }
}

/// How long it takes to the end, at the pace until now.
fn left_ms((done, all): (u64, u64), seconds: f64) -> Option<u64> {
    let left = all.saturating_sub(done) as f64;
    (done > 0).then(|| (left / done as f64 * seconds * 1000.0) as u64)
}

fn show_report((show, listed): (&Show, usize), report: &VerifyReport, depth: verify::Depth, scope: Scope) {
    if show.json {
        out!("{}", json!({"event": "verify_report", "equal": report.is_equal(), "report": report}));
        return;
    }
    for note in &report.notes {
        eprintln!("note     {note}");
    }
    for d in report.differences.iter().take(listed) {
        let key = d.key.as_deref().map_or_else(String::new, |key| format!("\"{key}\": "));
        let kind = format!("{:?}", d.kind).to_lowercase();
        out!("differs  db {} {key}{kind}: {}", d.db, d.detail);
    }
    if report.differences_cut || report.differences.len() > listed {
        out!("         … and more; --list N lists up to N");
    }
    for key in report.unstable_keys.iter().take(listed) {
        out!("unstable {key}: it changed for as long as we looked");
    }
    let t = &report.tally;
    let head = match (report.is_equal(), report.stopped_early) {
        (true, _) => "verified",
        (false, true) => "stopped ",
        (false, false) if report.is_unproven() => "unproven",
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
        (report.unproven_slots, "slots that kept moving"),
    ] {
        if n > 0 {
            rest.push_str(&format!(", {} {name}", format_count(n)));
        }
    }
    // What kind of proof it is belongs to the line that is quoted as one.
    let sample = if scope == Scope::All { "" } else { " of a sample" };
    let how = if depth == verify::Depth::Meta { " by existence, type and expiry" } else { "" };
    if depth == verify::Depth::Counts {
        out!("{head} numbers of keys only, in {}{rest}", format_duration_ms(report.duration_ms));
    } else {
        out!(
            "{head} {}{sample} equal{how}, {} compared, {} looked for on both sides, in {}{rest}",
            format_count_of(t.equal, "key"),
            format_bytes(report.bytes_compared),
            format_count(t.extra_checked),
            format_duration_ms(report.duration_ms),
        );
    }
    for db in &report.dbs {
        if let (Some(source), Some(target)) = (db.source_keys, db.target_keys) {
            out!(
                "counts   db {}: {} on the source, db {}: {} on the target",
                db.source_db,
                format_count_of(source, "key"),
                db.target_db,
                format_count(target)
            );
        }
    }
}
