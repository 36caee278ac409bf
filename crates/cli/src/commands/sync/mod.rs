//! `whimbrel sync`.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use whimbrel_control::again;
use whimbrel_control::cutovers;
use whimbrel_control::described::times;
use whimbrel_control::fronts::LocalFronts;
use whimbrel_control::hooks::HookSettings;
use whimbrel_control::http::{bind, expose};
use whimbrel_control::naming::{JobName, job_of};
use whimbrel_control::steering::{self, Attendance, Came, LocalJob};
use whimbrel_control::store::{CUT_OVER, Kind, Store};
use whimbrel_control::syncing::{Current, Running, failed_hooks, lag_in_words, nothing_heard};
use whimbrel_core::units::{format_bytes, format_count, format_count_of, format_duration_ms};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::{Address, Endpoint};
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_engine::feed::{FeedKind, FeedOptions, TouchedLimits};
use whimbrel_engine::remedy::Remedy;
use whimbrel_flow::budget::Rates;
use whimbrel_flow::copy::{self, CopyOptions, DbPair, Plan};
use whimbrel_flow::journal::{self, Journal, disk_full_words};
use whimbrel_flow::retry::RetryPolicy;
use whimbrel_flow::sync::{
    self, Back, FenceNote, Hooks, SyncOptions, SyncPhase, SyncReport, SyncShown, SyncState, SyncStatus,
    WayBack,
};

use crate::commands::copy as copy_command;
use crate::commands::losses::{self, Overwriting};
use crate::commands::words;
use crate::exit::Exit;
use crate::settings::args::{FeedChoice, SyncArgs};
use crate::ui::display::{eta, paused, show_times};
use whimbrel_control::private::job_dir;
use whimbrel_terminal::progress::{Display, Form, Lines, Speed, SpeedNow};
use whimbrel_terminal::row::{Cell, cell};

/// How many may ask for a cutover at once; the others wait.
const ASKS_MAX: usize = 4;

/// The longest pause between two tries: what follows is behind by it when a link is there again.
const RETRY_PAUSE_MAX_MS: u64 = 250;

/// Touched elements of one key; of a key with more of them all is transferred again.
const ELEMENTS_MAX: usize = 64 << 10;

/// Runs the command.
pub async fn run(args: &SyncArgs, stop: CancellationToken) -> Exit {
    let mut again = None;
    run_inner(args, &stop, &mut again)
        .await
        .unwrap_or_else(|e| copy_command::end_of(&e, args.show.json, again.as_deref()))
}

/// `again` is what goes on with the sync, once keys may have been written.
async fn run_inner(args: &SyncArgs, stop: &CancellationToken, again: &mut Option<String>) -> Result<Exit> {
    let endpoints = endpoints(args)?;
    let selection = args.names.selection()?;
    args.names.named_dbs(endpoints.1.db)?;
    // Once: what they need may be gone when a cutover has led back.
    let hooks = args.job.hooks.settings(Kind::Sync)?;
    let (source, target) = args.sides.probe(endpoints, false).await?;
    let (dbs, all_dbs) = databases(args, &source, &target).await?;
    let folder = job_dir(args.state_dir.as_deref())?;
    let WayBack { name, description, .. } =
        Direction::Forth.place(args, &folder, [&source.endpoint, &target.endpoint]);
    let base = copy_command::options(selection, dbs, &args.limits, args.sides.retry_for);
    let options = CopyOptions {
        job: job_of(&description),
        mirror: true,
        retry: RetryPolicy { pause_max_ms: RETRY_PAUSE_MAX_MS, ..base.retry },
        ..base
    };
    refuse_second(&folder, &name)?;
    Store::new(&folder).refuse_taken(&args.job.name, &name)?;
    refuse_after_cutover(args, &folder, &source)?;
    let refuse_existing = !args.mirror;
    let resumes = args.going_on.resumes(&folder, &name);
    FenceNote::refuse_to_forget(&folder, &name, resumes)?;
    let plan = copy::plan(&source, &target, &options, !resumes, refuse_existing, false, stop)
        .await
        .map_err(|e| remedied(e, !resumes && journal::exists(&folder, &name)))?;
    if !args.show.quiet {
        show_plan(args, &name, &plan);
    }
    let loses = args.mirror && !resumes && plan.holds_keys();
    let become_what = "made equal to the source's, or removed where the source has no such key";
    let (plan, show) = (&plan, &args.show);
    let losses = Overwriting { source: &source, target: &target, plan, options: &options, become_what, show };
    if args.dry_run {
        if loses {
            losses.show(stop).await?;
        }
        return rehearse(args, &source, stop).await;
    }
    if args.feed == FeedChoice::Replication && !resumes {
        sync::rehearse_feeds(&source, feed_options(args), true).await?;
    }
    if loses && let Some(exit) = losses.ask(args.ask.yes, stop).await? {
        return Ok(exit);
    }
    let current = Arc::new(Current::default());
    // Its tasks end with this function.
    let _exposing = expose(bind(args.exposing.http).await?, current.clone(), stop, |text, json| {
        args.show.print(text, json)
    })?;
    let journal = Journal::open(&folder, &name, &description, resumes)?;
    let status = Arc::new(SyncStatus::default());
    if let Some(words) = losses::functions_left(plan).filter(|_| !args.functions) {
        status.copy.notice(words);
    }
    let options = SyncOptions {
        copy: options,
        feed: feed_options(args),
        replication_only: args.feed == FeedChoice::Replication,
        // Those that an earlier run has left count as well.
        sweep_first: resumes || plan.dbs.iter().any(|db| db.target_keys > 0),
        functions: args.functions,
        once: args.once,
        all_dbs,
        fence_file: FenceNote::file_of(&folder, &name),
        way_back: Some(Direction::Back.place(args, &folder, [&target.endpoint, &source.endpoint])),
        fronts: Arc::new(LocalFronts),
        hooks: None,
    };
    *again = Some(copy_command::AGAIN.to_owned());
    let place = SyncRecord {
        folder: &folder,
        name: &name,
        given: args.job.name.as_ref(),
        again: (copy_command::AGAIN, again::of_description(Kind::Sync, &description)),
        is_resumed: resumes,
        current: &current,
        hooks: &hooks,
    };
    let sides = (source, target);
    let done = attended(args, place, sides, options.clone(), status, journal, stop).await?;
    let report = there_and_back(args, done, options, (&*folder, &*current, &hooks), again, stop).await?;
    let is_partial = report.counts.failed > 0 || report.evicted > 0 || failed_hooks(&report).next().is_some();
    Ok(match report.cutover.is_some() || report.caught_up {
        true if is_partial => Exit::Partial,
        true => Exit::Success,
        false => Exit::Stopped,
    })
}

/// Follows the way back for as long as each cutover asks for one, and returns how the last of them ended.
async fn there_and_back(
    args: &SyncArgs,
    (mut report, mut back): (SyncReport, Option<Back>),
    mut options: SyncOptions,
    (folder, current, hooks): (&Path, &Current, &HookSettings),
    again: &mut Option<String>,
    stop: &CancellationToken,
) -> Result<SyncReport> {
    let (store, mut direction) = (Store::new(folder), Direction::Forth);
    while let Some(mut from) = back.take() {
        direction = direction.reversed();
        let (source, target) = direction.probe(args, stop).await?;
        let sides = [&*source.endpoint, &*target.endpoint];
        let place = direction.place(args, folder, sides);
        options.way_back = Some(direction.reversed().place(args, folder, [sides[1], sides[0]]));
        for pair in &mut options.copy.dbs {
            *pair = DbPair { source: pair.target, target: pair.source };
        }
        options.copy.job = job_of(&place.description);
        (options.sweep_first, options.once) = (false, false);
        options.fence_file = FenceNote::file_of(folder, &place.name);
        let command = direction.again(&source, &target);
        *again = Some(command.clone());
        if !args.show.quiet {
            print_back(args, &place.name, (&source, &target), &command);
        }
        let status = Arc::new(SyncStatus::default());
        // The cutover is done: a full disk must not cost the way back.
        let journal = from.journal(&place, &status.copy.disk).await?;
        let record = SyncRecord {
            folder,
            name: &place.name,
            // The cutover is done: another job that took the name meanwhile must not cost the way back.
            given: args.job.name.as_ref().filter(|it| store.refuse_taken([it], &place.name).is_ok()),
            again: (&command, again::of_description(Kind::Sync, &place.description)),
            is_resumed: false,
            current,
            hooks,
        };
        let sides = (source, target);
        let done = attended(args, record, sides, options.clone(), status, journal, stop).await?;
        drop(from);
        (report, back) = done;
    }
    Ok(report)
}

/// Both sides, as they were named.
fn endpoints(args: &SyncArgs) -> Result<(Endpoint, Endpoint)> {
    let (source, target) = args.sides.endpoints()?;
    let psync = Address::parse_renamings(&args.source_psync)?;
    Ok((Endpoint { psync, ..source }, target))
}

/// Only one process can run a sync.
fn refuse_second(folder: &Path, name: &str) -> Result<()> {
    if !journal::is_open(folder, name) {
        return Ok(());
    }
    let what = format!("{name} is running already");
    Err(Error::options(Side::Own, "sync", what).with_remedy("whimbrel watch shows it"))
}

/// Clients have been sent away from a source that was cut over: what they wrote to the target since would be
/// replaced.
fn refuse_after_cutover(args: &SyncArgs, folder: &Path, source: &Deployment) -> Result<()> {
    let noted = FenceNote::about(folder, source)?;
    if args.again || noted.is_empty() {
        return Ok(());
    }
    let at = source.endpoint.address.to_string();
    FenceNote::refuse_interrupted(&noted, &at)?;
    let what = "a cutover has sent its clients to another server: what they wrote there since would be \
        replaced by what is here";
    Err(Error::unfit(Side::Source, at, "sync from it once more", what).with_remedy(
        "go on with the way back, if one was begun (--reverse-sync): the two sides reversed, with \
         --resume. If clients are to come back to this source without what they wrote since: whimbrel \
         unfence. If they stay there and this is meant all the same: --again",
    ))
}

fn feed_options(args: &SyncArgs) -> FeedOptions {
    FeedOptions {
        limits: TouchedLimits { bytes_max: args.feed_memory, elements_max: ELEMENTS_MAX },
        kind: match args.feed {
            FeedChoice::Auto | FeedChoice::Replication => None,
            FeedChoice::Tracking => Some(FeedKind::Tracking),
            FeedChoice::Notifications => Some(FeedKind::Notifications),
        },
        notifications: true,
        ..FeedOptions::default()
    }
}

/// What a dry run tries of what only the real one does: the feeds are attached, and let go again.
async fn rehearse(args: &SyncArgs, source: &Deployment, stop: &CancellationToken) -> Result<Exit> {
    let feeds = sync::rehearse_feeds(source, feed_options(args), args.feed == FeedChoice::Replication);
    let Some(feeds) = stop.run_until_cancelled(feeds).await else { return Ok(Exit::Stopped) };
    for (address, kind, not_seen) in feeds? {
        let (primary, feed) = (address.to_string(), kind.to_string());
        let mut text = format!("feed     {primary}: {feed}");
        text.extend(not_seen.iter().map(|words| format!("\nnote     {words}")));
        let json = json!({"event": "feed", "primary": primary, "feed": feed, "not_seen": not_seen});
        args.show.print(&text, &json);
    }
    if !args.show.json && !args.show.quiet {
        eprintln!("dry run: nothing was written");
    }
    Ok(Exit::Success)
}

/// What a sync is called, and where it is written down.
struct SyncRecord<'a> {
    folder: &'a Path,
    name: &'a str,
    /// What its user calls it.
    given: Option<&'a JobName>,
    /// What goes on with it: for people, and as arguments.
    again: (&'a str, Option<Vec<String>>),
    is_resumed: bool,
    current: &'a Current,
    hooks: &'a HookSettings,
}

/// Syncs, shows its state, serves requests, and reports the outcome.
async fn attended(
    args: &SyncArgs,
    place: SyncRecord<'_>,
    (source, target): (Arc<Deployment>, Arc<Deployment>),
    options: SyncOptions,
    status: Arc<SyncStatus>,
    journal: Journal<SyncState>,
    stop: &CancellationToken,
) -> Result<(SyncReport, Option<Back>)> {
    let SyncRecord { folder, name, given, again: (again, arguments), is_resumed, current, hooks } = place;
    let (asks, asked) = mpsc::channel(ASKS_MAX);
    let running = Running {
        name: name.to_owned(),
        source: source.endpoint.address.to_string(),
        target: target.endpoint.address.to_string(),
        status: status.clone(),
        rates: options.copy.rates.clone(),
    };
    current.set(running.clone());
    let store = Store::new(folder);
    let begun_with =
        steering::beginning(&store, (Kind::Sync, name), (&source, &target), arguments, is_resumed)
            .named(given)
            .going_on_at(&args.limits.change())
            .going_on_switched("again", args.again)
            .going_on_switched("functions", args.functions);
    let stop = stop.child_token();
    let rates = options.copy.rates.clone();
    let hooks = hooks.begin(&store, &begun_with);
    let at_cutovers = hooks.clone().map(|hooks| hooks as Arc<dyn Hooks>);
    let options = SyncOptions { hooks: at_cutovers, ..options };
    let noted = status.clone();
    let job = LocalJob::new(stop.clone(), rates.clone(), move || running.standing(&begun_with))
        .with_cutovers(asks, status.clone(), words::refusal)
        .with_schedule(&store, name, is_resumed, |when| {
            noted.copy.notice(format!("a cutover of this sync is scheduled: {when}"));
        })
        .with_hooks(hooks);
    let work = async {
        let display = display(args.show.form(), status.clone(), rates);
        let outcome = sync::sync(source, target.clone(), options, status, journal, asked, stop).await;
        display.finish().await;
        outcome
    };
    let came = |(report, _): &(SyncReport, Option<Back>)| match &report.cutover {
        Some(_) => Came::Through(CUT_OVER),
        // A sync that ended when all was equal can go on, too.
        None => Came::Short,
    };
    // The process that asked for a cutover hears of it before this one ends.
    let Attendance { outcome, is_cancelled } =
        steering::attended(folder, job, work, came, |(report, _)| report).await?;
    let (report, back) = outcome?;
    let again = Some(again).filter(|_| !is_cancelled);
    show_report(args, &report, again);
    Ok((report, back))
}

/// Which of the two that were named is the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forth,
    Back,
}

impl Direction {
    fn reversed(self) -> Direction {
        match self {
            Direction::Forth => Direction::Back,
            Direction::Back => Direction::Forth,
        }
    }

    /// Source and target, asked again: what a target is asked for is not what a source is.
    async fn probe(
        self,
        args: &SyncArgs,
        stop: &CancellationToken,
    ) -> Result<(Arc<Deployment>, Arc<Deployment>)> {
        loop {
            let (mut source, mut target) = endpoints(args)?;
            if self == Direction::Back {
                (source, target) =
                    (Endpoint { side: Side::Source, ..target }, Endpoint { side: Side::Target, ..source });
            }
            match args.sides.probe((source, target), false).await {
                // A fence of our own: nothing is written there before it ends, which it does by itself.
                Err(e) if matches!(e.kind, ErrorKind::Paused(_)) && !stop.is_cancelled() => {}
                probed => return probed,
            }
        }
    }

    /// What goes on with a sync that leads back, for people.
    fn again(self, source: &Deployment, target: &Deployment) -> String {
        match self {
            Direction::Forth => copy_command::AGAIN.to_owned(),
            Direction::Back => format!(
                "whimbrel sync {} {} --resume, with the users, passwords and other options of the two sides \
                 reversed as well,",
                source.endpoint.address, target.endpoint.address
            ),
        }
    }

    /// Where it is written down, as the user who resumes it would type it.
    fn place(self, args: &SyncArgs, folder: &Path, [source, target]: [&Endpoint; 2]) -> WayBack {
        let reversed = |text: &String| match (self, text.split_once(':')) {
            (Direction::Back, Some((from, to))) => format!("{to}:{from}"),
            _ => text.clone(),
        };
        let dbs: Vec<String> = args.names.dbs.iter().map(reversed).collect();
        args.names.between(source, target).place(folder, &dbs)
    }
}

fn print_back(args: &SyncArgs, name: &str, (source, target): (&Deployment, &Deployment), again: &str) {
    let (from, to) = (&source.endpoint.address, &target.endpoint.address);
    if args.show.json {
        out!(
            "{}",
            json!({"event": "back", "name": name, "source": from.to_string(), "target": to.to_string()})
        );
    } else {
        eprintln!("back     {from} is followed into {to}");
        eprintln!("sync     {name}; interrupted, {again} goes on with it");
    }
}

/// The databases: what `--db` or the source's URL says, else all there are, empty ones included: they may not
/// stay so. And whether it is all.
async fn databases(args: &SyncArgs, source: &Deployment, target: &Deployment) -> Result<(Vec<DbPair>, bool)> {
    let named = args.names.dbs(source, target).await?;
    let all = args.names.dbs.is_empty() && source.endpoint.db.is_none();
    match all {
        true => Ok((copy::with_empty_databases(source, target, named).await?, true)),
        false => Ok((named, false)),
    }
}

fn remedied(e: Error, is_unfinished: bool) -> Error {
    let is_about_keys = e.remedy.as_deref() == Some(&Remedy::SayWhatHappensToExistingKeys);
    match (is_about_keys && e.side == Side::Target, is_unfinished) {
        (false, _) => e,
        (true, true) => e.with_remedy(
            "an earlier sync like this one did not finish: go on with --resume, or add --mirror to begin \
                anew",
        ),
        (true, false) => {
            e.with_remedy("empty it; or add --mirror, which replaces or removes the keys that it holds")
        }
    }
}

fn show_plan(args: &SyncArgs, name: &str, plan: &Plan) {
    if args.show.json {
        out!(
            "{}",
            json!({"event": "plan", "name": name, "dry_run": args.dry_run, "mirror": args.mirror,
                "plan": plan, "times": times(args.limits.pace.between)})
        );
        return;
    }
    copy_command::show_sides(plan, |db| db.source_keys.unwrap_or_default() + db.target_keys > 0);
    if args.mirror && plan.dbs.iter().any(|db| db.target_keys > 0) {
        eprintln!("mirror   keys that only the target has are removed, those that differ are replaced");
    }
    show_times(args.limits.pace.between);
    eprintln!("sync     {name}");
}

fn display(form: Form, status: Arc<SyncStatus>, rates: Rates) -> Display {
    let started = std::time::Instant::now();
    let mut noted = 0;
    let mut speed = Speed::begin();
    Display::start(form, move || {
        let notes = status.copy.notices().split_off(noted);
        noted += notes.len();
        let shown = status.shown();
        let counts = &shown.counts;
        let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let done = match shown.phase {
            SyncPhase::Attaching | SyncPhase::Snapshotting if counts.keys_total > 0 => {
                Some((counts.scanned.min(counts.read), counts.keys_total))
            }
            _ => None,
        };
        let speed = speed.of(counts.written, counts.bytes_written);
        let left = rates.left_ms(speed.left_ms(counts.keys_total.saturating_sub(counts.written)));
        let mut row = row(&shown, &speed, left);
        row.extend(paused(&rates).map(|words| cell(0, words)));
        let rows = vec![row];
        let json =
            json!({"event": "progress", "elapsed_ms": elapsed_ms, "status": shown, "rates": rates.now()});
        Lines { done, rows, plain: None, json, notes }
    })
}

fn row(shown: &SyncShown, speed: &SpeedNow, left_ms: Option<u64>) -> Vec<Cell> {
    let c = &shown.counts;
    let sum = |of: fn(&sync::SourceShown) -> u64| shown.sources.iter().map(of).sum::<u64>();
    let mut row = vec![cell(8, format_duration_ms(speed.elapsed_ms))];
    for source in &shown.sources {
        if let Some(trouble) = &source.trouble {
            row.push(cell(1, format!("NO LINK to {}: {trouble}", source.address)));
        }
    }
    row.extend(shown.silences().map(|silence| cell(1, nothing_heard(silence))));
    row.extend(shown.disk_full_ms.map(|full_ms| cell(1, disk_full_words(full_ms))));
    if let Some(trouble) = &shown.trouble {
        row.push(cell(1, format!("tries again: {trouble}")));
    }
    let rate = || cell(3, format!("{} keys/s", format_count(speed.keys as u64)));
    match shown.phase {
        SyncPhase::Attaching => row.push(cell(0, "attaching feeds")),
        SyncPhase::Snapshotting => row.extend([
            cell(0, "snapshot"),
            cell(2, eta(left_ms)),
            rate(),
            cell(4, format!("{} of {} keys", format_count(c.written), format_count(c.keys_total))),
            cell(5, format_bytes(c.bytes_written)),
        ]),
        SyncPhase::Following => row.extend([
            cell(0, "following"),
            cell(2, format!("lag {}", lag_in_words(shown))),
            rate(),
            cell(4, format!("{} written", format_count_of(c.written, "key"))),
            cell(5, format_bytes(c.bytes_written)),
        ]),
        SyncPhase::Reconciling => row.extend([
            cell(0, "going through slots again whose changes may have been missed"),
            cell(4, format!("{} compared", format_count_of(c.compared, "key"))),
        ]),
        SyncPhase::Rehearsing => row.push(cell(0, "rehearsing a cutover")),
        SyncPhase::CuttingOver => {
            row.push(cell(0, "cutting over"));
            if let Some(external) = &shown.external {
                row.push(cell(0, cutovers::waiting(external)));
            }
        }
        SyncPhase::CutOver => row.push(cell(0, "cut over")),
        SyncPhase::Stopped => row.push(cell(0, "stopped")),
    }
    for (rank, n, name) in [
        (6, sum(|source| source.touched), "touched keys wait"),
        (6, c.gone, "removed"),
        (1, c.failed, "FAILED"),
        (7, c.big_in_flight, "in chunks now"),
        (3, shown.suspect_slots as u64, "slots in doubt"),
        (7, sum(|source| source.resumed), "links resumed"),
        (7, c.retries, "retries"),
    ] {
        if n > 0 {
            row.push(cell(rank, format!("{} {name}", format_count(n))));
        }
    }
    row
}

fn show_report(args: &SyncArgs, report: &SyncReport, again: Option<&str>) {
    if args.show.json {
        out!("{}", json!({"event": "report", "report": report}));
        return;
    }
    let c = &report.counts;
    if args.show.quiet {
        // Otherwise each was printed when it came up.
        report.notices.iter().for_each(|notice| eprintln!("note     {notice}"));
    }
    copy_command::show_failures(&report.failures);
    out!(
        "{} {} written, {} in {}, {} removed{}{}",
        match (report.cutover.is_some(), report.caught_up) {
            (true, _) => "cut over",
            (false, true) => "equal   ",
            (false, false) => "stopped ",
        },
        format_count_of(c.written, "key"),
        format_bytes(c.bytes_written),
        format_duration_ms(report.duration_ms),
        format_count(c.gone),
        if c.failed > 0 { format!(", {} FAILED", format_count(c.failed)) } else { String::new() },
        match report.reconciled_slots {
            0 => String::new(),
            slots => format!(", {} gone through again", format_count_of(slots, "slot")),
        },
    );
    match &report.cutover {
        Some(cutover) if cutover.external.is_some() => out!(
            "writers  quiet for {} when the target took over; {} keys transferred meanwhile, {} compared in \
                full",
            format_duration_ms(cutover.pause_ms),
            format_count(cutover.drained),
            format_count(cutover.compared)
        ),
        Some(cutover) if cutover.front.is_some() => out!(
            "clients  held for {} ms by the front; {} transferred meanwhile, {} compared in full",
            cutover.pause_ms,
            format_count_of(cutover.drained, "key"),
            format_count(cutover.compared)
        ),
        Some(cutover) => out!(
            "writes   paused for {} ms; {} transferred meanwhile, {} compared in full",
            cutover.pause_ms,
            format_count_of(cutover.drained, "key"),
            format_count(cutover.compared)
        ),
        None => {
            let what = match report.snapshot_done {
                true => "what was touched before has been transferred",
                false => "the snapshot is not complete",
            };
            out!("         {what}{}", again.map(|a| format!("; {a} goes on from here")).unwrap_or_default());
        }
    }
    for (event, failure) in failed_hooks(report) {
        out!("HOOK     {}", words::failed_hook(event, failure));
    }
}
