//! `whimbrel copy`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_control::again;
use whimbrel_control::described::times;
use whimbrel_control::http::{bind, expose};
use whimbrel_control::job_metrics::JobMetrics;
use whimbrel_control::naming::job_of;
use whimbrel_control::standing;
use whimbrel_control::steering::{self, Attendance, Came, LocalJob};
use whimbrel_control::store::{Kind, Status, Store};
use whimbrel_core::select::Selection;
use whimbrel_core::units::{format_bytes, format_count, format_count_of, format_duration_ms};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, ErrorKind, Result};
use whimbrel_engine::remedy::Remedy;
use whimbrel_flow::copy::{self, CopyOptions, CopyReport, DbPair, Existing, KeyFailure, Plan, PlannedDb};
use whimbrel_flow::journal::{self, Journal};
use whimbrel_flow::{progress::CopyProgress, retry::RetryPolicy, verify::VerifyReport};

use crate::commands::losses::{self, Overwriting};
use crate::commands::verify;
use crate::exit::Exit;
use crate::settings::args::{CopyArgs, Limits};
use crate::ui::display;
use crate::ui::errors;
use whimbrel_control::private::job_dir;

/// Size of the pieces in which large values move.
pub const CHUNK_BYTES: usize = 512 << 10;

/// What goes on with a copy, or with a sync in the direction that the command says.
pub const AGAIN: &str = "the same command with --resume";

/// Runs the command.
pub async fn run(args: &CopyArgs, stop: CancellationToken) -> Exit {
    let mut begun = false;
    run_inner(args, &stop, &mut begun)
        .await
        .unwrap_or_else(|e| end_of(&e, args.show.json, begun.then_some(AGAIN)))
}

/// Shows why a copy or a sync ended, and says what the process ends with. Once keys may have been written,
/// `again` is what goes on with it.
pub fn end_of(error: &Error, as_json: bool, again: Option<&str>) -> Exit {
    let exit = errors::exit_of(error, again.is_some());
    errors::show_error(error, as_json, exit);
    if let Some(again) = again
        && exit == Exit::Interrupted
        && !as_json
        && !matches!(error.kind, ErrorKind::Unfit(_) | ErrorKind::Options(_))
    {
        eprintln!("         {again} goes on from here");
    }
    exit
}

/// How to copy, as far as copies and syncs have options in common: everything, and over what is there.
pub fn options(selection: Selection, dbs: Vec<DbPair>, limits: &Limits, retry_for_ms: u64) -> CopyOptions {
    CopyOptions {
        selection,
        types: Vec::new(),
        dbs,
        existing: Existing::Replace,
        limit: None,
        memory_bytes: limits.memory,
        big_key_bytes: limits.big_key,
        chunk_bytes: CHUNK_BYTES,
        rates: limits.rates(),
        scan_count: limits.scan_count,
        lanes: limits.lanes,
        shards_at_once: limits.shards,
        from_replicas: false,
        retry: RetryPolicy { give_up_after_ms: retry_for_ms, ..RetryPolicy::default() },
        job: String::new(),
        mirror: false,
    }
}

async fn run_inner(args: &CopyArgs, stop: &CancellationToken, begun: &mut bool) -> Result<Exit> {
    let endpoints = args.sides.endpoints()?;
    let selection = args.which.names.selection()?;
    args.which.names.named_dbs(endpoints.1.db)?;
    let hooks = args.job.hooks.settings(Kind::Copy)?;
    let (source, target) = args.sides.probe(endpoints, args.from_replicas).await?;
    copy::check_rights(&source, args.verify, args.functions).await?;
    let dbs = args.which.names.dbs(&source, &target).await?;
    let is_unsaid = !(args.replace || args.skip || args.fail);
    let refuse_existing = is_unsaid && !args.dry_run;
    let mut options = CopyOptions {
        types: args.which.types.clone(),
        existing: existing(args),
        limit: args.limit,
        from_replicas: args.from_replicas,
        ..options(selection, dbs, &args.limits, args.sides.retry_for)
    };
    let description = args.which.names.between(&source.endpoint, &target.endpoint).copy(&options);
    options.job = job_of(&description);
    let name = format!("copy-{}", options.job);
    let folder = job_dir(args.state_dir.as_deref())?;
    let store = Store::new(&folder);
    store.refuse_taken(&args.job.name, &name)?;
    let resumes = args.going_on.resumes(&folder, &name);
    let plan = copy::plan(&source, &target, &options, !resumes, refuse_existing, args.dry_run, stop)
        .await
        .map_err(|e| remedied(e, !resumes && refuse_existing && journal::exists(&folder, &name)))?;
    if !args.show.quiet {
        show_plan(args, &plan, &options);
    }
    let overwrites = args.replace && !resumes && plan.holds_keys();
    let become_what = "replaced where the source has a key of the same name";
    let (plan, show) = (&plan, &args.show);
    let losses = Overwriting { source: &source, target: &target, plan, options: &options, become_what, show };
    if args.dry_run {
        if overwrites {
            losses.show(stop).await?;
        }
        if is_unsaid {
            plan.must_find_none(&target)?;
        }
        let exit = if plan.left_behind.has_keys() { Exit::Partial } else { Exit::Success };
        return Ok(if stop.is_cancelled() { Exit::Stopped } else { exit });
    }
    if overwrites && let Some(exit) = losses.ask(args.ask.yes, stop).await? {
        return Ok(exit);
    }
    note_first(args, &source, !resumes && journal::exists(&folder, &name));
    let http = bind(args.exposing.http).await?;
    let journal = Journal::open(&folder, &name, &description, resumes)?;
    let progress = Arc::new(CopyProgress::default());
    let total: u64 = plan.dbs.iter().filter_map(|d| d.source_keys).sum();
    progress.keys_total.store(total, Ordering::Relaxed);
    let again = again::of_description(Kind::Copy, &description);
    let begun_with = steering::beginning(&store, (Kind::Copy, &name), (&source, &target), again, resumes);
    let begun_with = going_on_alike(args, begun_with);
    // Cancelling the copy does not mean whatever comes after it.
    let stop = &stop.child_token();
    let hooks = hooks.begin(&store, &begun_with);
    let metrics = JobMetrics::copy(&begun_with, progress.clone(), options.rates.clone());
    let _exposing = expose(http, Arc::new(metrics), stop, |text, json| args.show.print(text, json))?;
    let look = standing::of_copy(begun_with, progress.clone());
    let job = LocalJob::new(stop.clone(), options.rates.clone(), look).with_hooks(hooks);
    let dbs = options.dbs.clone();
    let work = async {
        *begun = true;
        copy_functions(args, (&source, &target), plan).await?.into_iter().for_each(|it| progress.notice(it));
        // With a part of the keys, or the rest of them, their number is not known in advance.
        let whole = !resumes && plan.dbs.iter().all(|d| d.selected_keys.is_some());
        let display = display::of_copy(args.show.form(), progress.clone(), &options, whole.then_some(total));
        let (source, target) = (source.clone(), target.clone());
        let outcome =
            copy::copy(source, target, options, progress.clone(), Some(journal), stop.clone()).await;
        display.finish().await;
        outcome
    };
    let came = |report: &CopyReport| if report.complete { Came::Through("done") } else { Came::Short };
    let Attendance { outcome, is_cancelled } =
        steering::attended(&folder, job, work, came, |report| report).await?;
    let report = outcome?;
    show_report(args, &report, is_cancelled);
    if !report.complete {
        return Ok(Exit::Stopped);
    }
    let partial = report.counts.failed > 0 || report.evicted > 0 || !report.emptied.is_empty();
    let whole = Ok(if partial { Exit::Partial } else { Exit::Success });
    if !args.verify {
        return whole;
    }
    // What else is on the target is known to come from a copy only if the target was empty.
    let verify = verify::options_after_copy(args, &dbs, refuse_existing)?;
    let stop = stop.clone();
    let result =
        verify::verify(source, target, verify, (&args.show, None), None, Arc::default(), stop).await?;
    let only_the_failed = lacks_at_most(&result, report.counts.failed);
    if result.is_equal() || partial && only_the_failed { whole } else { Ok(verify::exit_of(&result)) }
}

/// Whether the target lacks at most `keys` keys, and differs in nothing else.
fn lacks_at_most(result: &VerifyReport, keys: u64) -> bool {
    let t = &result.tally;
    t.missing <= keys && t.differing + t.extra + t.unstable + result.unproven_slots == 0
}

/// How a copy stands that has begun, with the options that the command to continue it needs too.
fn going_on_alike(args: &CopyArgs, begun_with: Status) -> Status {
    begun_with
        .named(args.job.name.as_ref())
        .going_on_at(&args.limits.change())
        .going_on_switched("verify", args.verify)
        .going_on_switched("functions", args.functions)
        .going_on_switched("from-replicas", args.from_replicas)
}

/// Copies function libraries, or says that some are left behind.
async fn copy_functions(
    args: &CopyArgs,
    (source, target): (&Deployment, &Deployment),
    plan: &Plan,
) -> Result<Option<String>> {
    if !args.functions {
        return Ok(losses::functions_left(plan));
    }
    let n = whimbrel_flow::functions::copy(source, target, existing(args)).await?;
    print_note(args, &format!("{n} function libraries copied"));
    Ok(None)
}

/// What is worth knowing before it begins; `is_left` if an earlier one has left its journal.
fn note_first(args: &CopyArgs, source: &Deployment, is_left: bool) {
    if is_left && !args.show.quiet {
        let words = "an earlier copy like this one did not finish; --resume would go on with it, this one \
            starts anew";
        print_note(args, words);
    }
    if args.from_replicas && source.topology().shards.iter().all(|shard| shard.replicas.is_empty()) {
        print_note(args, "the source names no replicas: its primaries are read");
    }
}

fn existing(args: &CopyArgs) -> Existing {
    match (args.skip, args.fail) {
        (true, _) => Existing::Skip,
        (_, true) => Existing::Fail,
        _ => Existing::Replace,
    }
}

fn remedied(e: Error, is_unfinished: bool) -> Error {
    match e.remedy.as_deref() {
        Some(Remedy::SayWhatHappensToExistingKeys) if is_unfinished => e.with_remedy(
            "an earlier copy like this one did not finish: go on with --resume, or say what to do with \
                keys that exist: --replace, --skip or --fail",
        ),
        _ => e,
    }
}

fn print_note(args: &CopyArgs, text: &str) {
    args.show.print(&format!("note     {text}"), &json!({"event": "notice", "text": text}));
}

/// What happens to keys that exist, in words.
fn policy(args: &CopyArgs, plan: &Plan, options: &CopyOptions) -> &'static str {
    if args.replace || args.skip || args.fail || args.going_on.resume {
        options.existing.described()
    } else if plan.dbs.iter().all(|d| d.target_keys == 0) {
        "none given, none needed: the target is empty"
    } else if args.going_on.resume_or_begin {
        // A copy that begins with keys in the target was refused.
        options.existing.described()
    } else {
        "none given: the copy would be refused; add --replace, --skip or --fail"
    }
}

/// Shows both sides of a copy or a sync, those of the databases that are worth a line, and what stays behind.
pub fn show_sides(plan: &Plan, is_shown: impl Fn(&PlannedDb) -> bool) {
    for line in plan.lines(is_shown) {
        eprintln!("{line}");
    }
}

/// Shows the first keys that failed.
pub fn show_failures(failures: &[KeyFailure]) {
    for failure in failures.iter().take(display::LISTED) {
        eprintln!("failed   db {} key {}: {}", failure.db, failure.key, failure.reason);
    }
}

fn show_plan(args: &CopyArgs, plan: &Plan, options: &CopyOptions) {
    if args.show.json {
        let plan = json!({"event": "plan", "dry_run": args.dry_run, "policy": policy(args, plan, options),
            "plan": plan, "times": times(args.limits.pace.between)});
        out!("{plan}");
        return;
    }
    show_sides(plan, |_| true);
    eprintln!("policy   {}", policy(args, plan, options));
    display::show_times(args.limits.pace.between);
    if args.dry_run {
        eprintln!("dry run: nothing was written");
    }
}

fn show_report(args: &CopyArgs, report: &CopyReport, is_cancelled: bool) {
    if args.show.json {
        out!("{}", json!({"event": "report", "report": report}));
        return;
    }
    let c = &report.counts;
    let seconds = (report.duration_ms as f64 / 1000.0).max(0.001);
    for notice in &report.notices {
        eprintln!("note     {notice}");
    }
    show_failures(&report.failures);
    if c.failed > display::LISTED as u64 {
        let more = format_count(c.failed - display::LISTED as u64);
        eprintln!("         … and {more} more; --json lists up to 1,000");
    }
    let mut rest = String::new();
    for (n, name) in
        [(c.skipped, "skipped"), (c.gone, "gone meanwhile"), (c.failed, "failed"), (c.big, "in chunks")]
    {
        if n > 0 {
            rest.push_str(&format!(", {} {name}", format_count(n)));
        }
    }
    if report.evicted > 0 {
        rest.push_str(&format!(", {} EVICTED by the target", format_count(report.evicted)));
    }
    if c.selected == 0 && (c.scanned > 0 || c.keys_total > 0 && report.complete && !report.resumed) {
        eprintln!("note     no key is selected: see --match, --exclude, --type, --slots and --db");
    }
    let head = match (report.complete, report.resumed) {
        (true, false) => "copied  ",
        (true, true) => "resumed ",
        (false, _) => "stopped ",
    };
    out!(
        "{head} {}, {} in {}: {} keys/s, {}/s{rest}{}",
        format_count_of(c.written, "key"),
        format_bytes(c.bytes_written),
        format_duration_ms(report.duration_ms),
        format_count((c.written as f64 / seconds) as u64),
        format_bytes((c.bytes_written as f64 / seconds) as u64),
        if report.passes > 1 { format!("; {} passes", report.passes) } else { String::new() },
    );
    if !report.complete && !is_cancelled {
        out!("         {AGAIN} goes on from here");
    }
}
