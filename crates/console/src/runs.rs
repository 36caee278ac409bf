//! What is begun here: assessments, and copies, syncs and verifications as processes of their own.
//!
//! Each is this same binary, run as a user would on a terminal. So a job goes on when the console ends, and
//! is found, asked and resumed by everything else. Passwords go by the environment of that process: they are
//! written down nowhere, and in no list of processes.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_control::clock::{now_ms, now_s};
use whimbrel_control::jobs::Jobs;
use whimbrel_control::store::{BEGUN_BY, Entry, Kind, Status};

use crate::failure::{Answer, Failure};
use crate::files::private;
use crate::tokens::by_token;

/// How many assessments run at once, and how many are kept.
const ASSESSMENTS_AT_ONCE: usize = 2;
const ASSESSMENTS_KEPT: usize = 16;

/// How long one may take.
const ASSESSED_WITHIN: Duration = Duration::from_secs(15 * 60);

/// The longest output of one, in bytes.
const OUTPUT_BYTES_MAX: u64 = 8 << 20;

/// How much of what a process said is shown where it has failed, in bytes.
const SHOWN_BYTES_MAX: u64 = 8 << 10;

/// How many files with what processes have said are kept: the newest.
const OUTPUTS_KEPT: usize = 100;

/// How many jobs may be waited for at once until they are listed.
const BEGUN_AT_ONCE: usize = 16;

/// How long a job may take until it is listed: servers are asked before.
const LISTED_WITHIN: Duration = Duration::from_secs(60);

/// How an address is written.
const ADDRESS: &str = "write HOST:PORT, or redis://USER@HOST:PORT";

/// How often it is looked whether it is.
const POLL_PERIOD: Duration = Duration::from_millis(250);

/// What processes get of this one's environment.
const KEPT: [&str; 9] = [
    "PATH",
    "HOME",
    "LANG",
    "TZ",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "XDG_STATE_HOME",
    "WHIMBREL_CONFIG",
    "WHIMBREL_PROFILE",
];

/// Two servers, and how to log in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sides {
    /// The source, as on the command line.
    source: String,
    /// The target, likewise.
    target: Option<String>,
    source_password: Option<String>,
    target_password: Option<String>,
}

/// Passwords are not among what may be printed.
impl std::fmt::Debug for Sides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sides")
            .field("source", &self.source)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl Sides {
    /// Refuses what is no address, and passwords in one: every user of the machine sees arguments, and
    /// addresses are in the audit log.
    pub(crate) fn check(&self) -> Answer<()> {
        for address in [Some(&self.source), self.target.as_ref()].into_iter().flatten() {
            if address.is_empty() || address.len() > 1_024 || address.starts_with('-') {
                return Err(Failure::bad("this is no address").with_remedy(ADDRESS));
            }
            if address.chars().any(|c| c.is_control() || c.is_whitespace()) {
                return Err(Failure::bad("an address has no space").with_remedy(ADDRESS));
            }
            let login = address.rsplit_once('@').map_or("", |(login, _)| login);
            let login = login.split_once("://").map_or(login, |(_, login)| login);
            // What follows these may be a password as well, in one spelling or another.
            if login.contains([':', '%']) || address.contains(['?', '#']) {
                return Err(Failure::bad("there is a password in the address")
                    .with_remedy("give it in its own field: addresses are seen in the list of processes"));
            }
        }
        Ok(())
    }

    /// The two addresses, as they were given.
    pub fn addresses(&self) -> (&str, Option<&str>) {
        (&self.source, self.target.as_deref())
    }

    /// For the audit log and for people.
    pub fn in_words(&self) -> String {
        match &self.target {
            Some(target) => format!("{} -> {target}", self.source),
            None => self.source.clone(),
        }
    }
}

/// A job between two servers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobWanted {
    kind: JobKind,
    source: String,
    target: String,
    source_password: Option<String>,
    target_password: Option<String>,
    /// The target's address once more: keys are written there.
    pub confirm: Option<String>,
    /// Make the target equal, also by removing what only it has; of a sync.
    #[serde(default)]
    mirror: bool,
    /// Replace keys that the target has; of a copy.
    #[serde(default)]
    replace: bool,
    /// Go on where an earlier one stopped.
    #[serde(default)]
    resume: bool,
    /// Keys per second, at most.
    rate_keys: Option<u64>,
    /// Patterns of the keys that are meant.
    #[serde(default, rename = "match")]
    patterns: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum JobKind {
    Sync,
    Verify,
    Copy,
}

/// How to log in where a job goes on.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoOnWanted {
    source_password: Option<String>,
    target_password: Option<String>,
    /// The job's name once more.
    pub confirm: Option<String>,
}

/// Passwords are not among what may be printed.
impl std::fmt::Debug for GoOnWanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GoOnWanted").field("confirm", &self.confirm).finish_non_exhaustive()
    }
}

/// Passwords are not among what may be printed.
impl std::fmt::Debug for JobWanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("JobWanted").field(&self.in_words()).finish()
    }
}

impl JobWanted {
    fn kind(&self) -> Kind {
        match self.kind {
            JobKind::Sync => Kind::Sync,
            JobKind::Verify => Kind::Verify,
            JobKind::Copy => Kind::Copy,
        }
    }

    /// Whether it writes to the target.
    pub fn writes(&self) -> bool {
        self.kind != JobKind::Verify
    }

    /// Whether it is a sync.
    pub fn is_sync(&self) -> bool {
        self.kind == JobKind::Sync
    }

    /// Whether the target is made equal to the source.
    pub fn is_mirror(&self) -> bool {
        self.mirror
    }

    /// The source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Where it writes.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// For the audit log.
    pub fn in_words(&self) -> String {
        format!("{} {} -> {}", self.kind().word(), self.source, self.target)
    }

    /// The two servers.
    pub fn sides(&self) -> Sides {
        Sides {
            source: self.source.clone(),
            target: Some(self.target.clone()),
            source_password: self.source_password.clone(),
            target_password: self.target_password.clone(),
        }
    }

    /// As it would be typed.
    fn arguments(&self) -> Answer<Vec<String>> {
        let mut words = vec![self.kind().word().to_owned()];
        for (set, only, option) in
            [(self.mirror, JobKind::Sync, "--mirror"), (self.replace, JobKind::Copy, "--replace")]
        {
            if set && self.kind != only {
                let what = format!("a {} has no {}", self.kind().word(), &option[2..]);
                return Err(Failure::bad(what).with_remedy(format!("leave {} out", &option[2..])));
            }
            words.extend(set.then(|| option.to_owned()));
        }
        words.extend(self.resume.then(|| "--resume".to_owned()));
        if self.writes() {
            // The target's address was typed to confirm it.
            words.push("--yes".to_owned());
        }
        if let Some(rate) = self.rate_keys {
            words.extend(["--rate-keys".to_owned(), rate.to_string()]);
        }
        for pattern in &self.patterns {
            // In one word: a pattern may begin like an option.
            words.push(format!("--match={pattern}"));
        }
        words.extend(["--".to_owned(), self.source.clone(), self.target.clone()]);
        Ok(words)
    }
}

/// One assessment.
#[derive(Debug, Clone)]
struct Assessment {
    id: String,
    state: &'static str,
    report: Value,
    text: Vec<String>,
}

/// What was begun here.
#[derive(Debug)]
pub struct Runs {
    /// Where processes write what they say.
    folder: PathBuf,
    state_dir: PathBuf,
    assessments: Mutex<(u64, VecDeque<Assessment>)>,
    /// How many files have been made for what processes say. Only one at a time makes and removes them.
    files: Mutex<u64>,
    /// A permit for each job that is waited for until it is listed.
    beginning: Semaphore,
}

impl Runs {
    /// For the jobs of this folder.
    pub fn new(state_dir: &Path) -> Runs {
        let folder = state_dir.join("console-runs");
        let (assessments, files) = Default::default();
        let beginning = Semaphore::new(BEGUN_AT_ONCE);
        Runs { folder, state_dir: state_dir.to_owned(), assessments, files, beginning }
    }

    /// This binary with these arguments, in a group of its own: what ends the console does not end it.
    /// `who` is the token's name.
    fn command(sides: &Sides, arguments: Vec<String>, who: &str) -> Command {
        // Also after the file was replaced by that of another version.
        let mut command = Command::new("/proc/self/exe");
        command.args(arguments).stdin(Stdio::null()).process_group(0);
        // Nothing but what it needs: the console's own passwords are for its own cluster.
        command.env_clear();
        let kept = KEPT.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
        let passwords = [
            ("WHIMBREL_SOURCE_PASSWORD", &sides.source_password),
            ("WHIMBREL_TARGET_PASSWORD", &sides.target_password),
        ];
        let passwords = passwords.iter().filter_map(|(name, password)| {
            Some((*name, OsString::from(password.as_ref().filter(|password| !password.is_empty())?)))
        });
        command.envs(kept.chain(passwords)).env(BEGUN_BY, by_token(who));
        command
    }

    /// Begins to look at a source, and at a target where there is one. Returns the assessment's name. What
    /// comes of it is `noted`.
    pub(crate) fn assess(
        self: &Arc<Runs>,
        sides: Sides,
        who: String,
        stop: CancellationToken,
        noted: impl FnOnce(&Sides, Value) + Send + 'static,
    ) -> Answer<String> {
        let mut kept = self.assessments.lock();
        let (number, assessments) = &mut *kept;
        if assessments.iter().filter(|a| a.state == "running").count() >= ASSESSMENTS_AT_ONCE {
            return Err(Failure::conflict(format!("{ASSESSMENTS_AT_ONCE} assessments run already"))
                .with_remedy("wait until one has ended"));
        }
        *number += 1;
        let id = format!("a{:x}-{number}", now_ms());
        assessments.push_back(Assessment {
            id: id.clone(),
            state: "running",
            report: Value::Null,
            text: Vec::new(),
        });
        if assessments.len() > ASSESSMENTS_KEPT {
            assessments.pop_front();
        }
        drop(kept);
        let mut arguments = vec!["assess".to_owned(), "--json".to_owned(), "--".to_owned()];
        arguments.extend([Some(sides.source.clone()), sides.target.clone()].into_iter().flatten());
        let (runs, name) = (self.clone(), id.clone());
        tokio::spawn(async move {
            let (state, report, text) = assess(&sides, arguments, &who, &stop).await;
            noted(&sides, json!({"state": state, "report": report, "text": text, "who": who}));
            let mut kept = runs.assessments.lock();
            if let Some(assessment) = kept.1.iter_mut().find(|a| a.id == name) {
                (assessment.state, assessment.report, assessment.text) = (state, report, text);
            }
        });
        Ok(id)
    }

    /// How an assessment stands.
    pub(crate) fn assessment(&self, id: &str) -> Answer<Value> {
        let kept = self.assessments.lock();
        let found = kept.1.iter().find(|assessment| assessment.id == id);
        let assessment = found.ok_or_else(|| {
            Failure::missing("there is no such assessment").with_remedy(format!(
                "make another one: the last {ASSESSMENTS_KEPT} are kept, until the console ends"
            ))
        })?;
        Ok(json!({"state": assessment.state, "report": assessment.report, "text": assessment.text}))
    }

    /// Begins a job between two servers. Returns its name once it is listed.
    pub(crate) async fn begin(self: Arc<Runs>, wanted: JobWanted, who: String) -> Answer<Entry> {
        let arguments = wanted.arguments()?;
        self.run(&wanted.sides(), arguments, who).await
    }

    /// Goes on with a job that was interrupted, by the command that is written down with it. Returns its name
    /// once it runs.
    pub(crate) async fn go_on(
        self: Arc<Runs>,
        status: &Status,
        wanted: GoOnWanted,
        who: String,
    ) -> Answer<Entry> {
        let sides = Sides {
            source: status.source.clone(),
            target: Some(status.target.clone()),
            source_password: wanted.source_password,
            target_password: wanted.target_password,
        };
        let mut arguments = status.again.clone();
        if status.kind != Kind::Verify {
            // The job's name was typed to confirm it.
            arguments.push("--yes".to_owned());
        }
        self.run(&sides, arguments, who).await
    }

    async fn run(self: Arc<Runs>, sides: &Sides, mut arguments: Vec<String>, who: String) -> Answer<Entry> {
        let _permit = self.beginning.try_acquire().map_err(|_| {
            Failure::conflict(format!("{BEGUN_AT_ONCE} jobs are being begun already"))
                .with_remedy("wait until they are listed")
        })?;
        let fail = |e: &dyn std::fmt::Display| {
            Failure::conflict(format!("the job cannot be begun: {e}"))
                .with_remedy("see whether the state folder can be written, and its disk has room")
        };
        let (path, output) = self.new_file().map_err(|e| fail(&e))?;
        let folder = self.state_dir.to_string_lossy().into_owned();
        arguments.splice(1..1, ["--state-dir".to_owned(), folder]);
        let both = output.try_clone().map_err(|e| fail(&e))?;
        let mut command = Runs::command(sides, arguments, &who);
        let began_s = now_s();
        let mut child = command.stdout(both).stderr(output).spawn().map_err(|e| fail(&e))?;
        let listed = self.listed(&mut child, began_s).await;
        if listed.is_err() {
            // One that is not listed is nobody's: it must not write on unseen.
            let _ = child.kill().await;
        } else {
            // Nobody waits for it: the runtime does, so that it leaves no zombie.
            tokio::spawn(async move { child.wait().await });
        }
        match listed {
            Ok(entry) => Ok(entry),
            Err(Some(failure)) => Err(failure),
            Err(None) => Err(ended_at_once(&tail(&path))),
        }
    }

    /// All jobs of the folder.
    async fn jobs(&self) -> Answer<Vec<Entry>> {
        let folder = self.state_dir.clone();
        let listing = tokio::task::spawn_blocking(move || Jobs::of(&folder).all());
        Ok(listing.await.map_err(|e| Failure::conflict(e.to_string()))??)
    }

    /// Makes a file for what a process says, and removes the oldest ones.
    fn new_file(&self) -> std::io::Result<(PathBuf, File)> {
        let mut files = self.files.lock();
        fs::create_dir_all(&self.folder)?;
        // Their names sort by their age.
        let mut names: Vec<PathBuf> =
            fs::read_dir(&self.folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
        names.sort();
        let old = names.len().saturating_sub(OUTPUTS_KEPT);
        // One that another console has removed is gone, and one that stays is removed the next time.
        names.iter().take(old).for_each(|old| drop(fs::remove_file(old)));
        *files += 1;
        let path = self.folder.join(format!("{:x}-{}.log", now_ms(), *files));
        Ok((path.clone(), private().append(true).create_new(true).open(&path)?))
    }

    /// Waits until the job that this process runs since `began_s` is listed. `Err(None)` where the process
    /// has ended before.
    async fn listed(&self, child: &mut Child, began_s: u64) -> Result<Entry, Option<Failure>> {
        let until = Instant::now() + LISTED_WITHIN;
        let pid = child.id();
        loop {
            let has_ended = child.try_wait().is_ok_and(|status| status.is_some());
            let found = self.jobs().await.map_err(Some)?.into_iter().find(|entry| {
                let Entry { status, running } = entry;
                // A short one has ended by now, and is listed so. Processes of before had the same number.
                let has_ended = status.ended && status.updated_s >= began_s;
                status.pid == pid && (*running || has_ended)
            });
            match (found, has_ended) {
                (Some(entry), _) => return Ok(entry),
                (None, true) => return Err(None),
                (None, false) if Instant::now() >= until => {
                    let what = format!("the job is not listed after {} s", LISTED_WITHIN.as_secs());
                    let remedy = "see whether both servers answer, and begin it again: it was ended";
                    return Err(Some(Failure::conflict(what).with_remedy(remedy)));
                }
                (None, false) => tokio::time::sleep(POLL_PERIOD).await,
            }
        }
    }
}

/// Whether a job's address is the one that was given: without scheme, user and database.
pub(crate) fn is_side(address: &str, given: &str) -> bool {
    let bare = given.split_once("://").map_or(given, |(_, rest)| rest);
    let bare = bare.rsplit_once('@').map_or(bare, |(_, rest)| rest);
    let bare = bare.split(['/', '?']).next().unwrap_or(bare);
    !has_address(given) || address == bare || address == given || address.strip_suffix(":6379") == Some(bare)
}

/// Whether there is an address in what was given. Where there is none, any may be meant: of a Sentinel's
/// primary, or a socket's.
pub(crate) fn has_address(given: &str) -> bool {
    matches!(given.split_once("://"), None | Some(("redis" | "rediss" | "valkey" | "valkeys", _)))
}

/// The last that a process said.
fn tail(path: &Path) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(SHOWN_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    match read() {
        Ok(output) if !output.is_empty() => output,
        Ok(_) => "the process has ended without a word".to_owned(),
        Err(e) => format!("the process has ended, and what it said cannot be read: {e}"),
    }
}

/// A job was not begun: what is wrong, and below that what to do about it, as its process said them.
fn ended_at_once(output: &str) -> Failure {
    const ERROR: &str = "error: ";
    let lines: Vec<&str> = output.lines().map(str::trim).collect();
    let is_error = |line: &&str| line.starts_with(ERROR);
    let (what, remedy) = lines.split_at(lines.iter().position(is_error).map_or(lines.len(), |at| at + 1));
    let what: Vec<&str> = what.iter().map(|line| line.trim_start_matches(ERROR)).collect();
    let failure = Failure::new(axum::http::StatusCode::UNPROCESSABLE_ENTITY, what.join("; "));
    if remedy.is_empty() { failure } else { failure.with_remedy(remedy.join("; ")) }
}

/// Runs an assessment: how it ended, its report, and what was said besides.
async fn assess(
    sides: &Sides,
    arguments: Vec<String>,
    who: &str,
    stop: &CancellationToken,
) -> (&'static str, Value, Vec<String>) {
    let failed = |what: String| ("failed", Value::Null, vec![what]);
    let mut command = Runs::command(sides, arguments, who);
    let mut child = match command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn() {
        Ok(child) => child,
        Err(e) => return failed(format!("it cannot be begun: {e}")),
    };
    let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return failed("it has no output".to_owned());
    };
    let (mut report, mut output) = (Vec::new(), Vec::new());
    let (mut out, mut err) = (out.take(OUTPUT_BYTES_MAX), err.take(SHOWN_BYTES_MAX));
    let read = async {
        let read = tokio::join!(out.read_to_end(&mut report), err.read_to_end(&mut output));
        let _ = child.wait().await;
        read
    };
    match stop.run_until_cancelled(timeout(ASSESSED_WITHIN, read)).await {
        Some(Ok(_)) => {}
        Some(Err(_)) => return failed(format!("it took longer than {} s", ASSESSED_WITHIN.as_secs())),
        None => return failed("the console was stopped".to_owned()),
    }
    let output = String::from_utf8_lossy(&output);
    let lines: Vec<String> = output.lines().map(str::to_owned).collect();
    // It ends with another code where something blocks a migration: the report says what.
    let last = report.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty());
    match last.and_then(|line| serde_json::from_slice::<Value>(line).ok()) {
        Some(report) if !report["verdict"].is_null() => ("done", report, lines),
        // It could not be made, and says why.
        Some(report) => {
            let why = report["text"].as_str().map(|text| text.lines().map(str::to_owned).collect());
            ("failed", Value::Null, why.unwrap_or(lines))
        }
        None => ("failed", Value::Null, lines),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> JobWanted {
        serde_json::from_str(text).expect("a job")
    }

    #[test]
    fn arguments_are_what_a_user_would_type_and_no_address_is_an_option() {
        let job =
            wanted(r#"{"kind": "sync", "source": "a:1", "target": "b:2", "mirror": true, "match": ["-x*"]}"#);
        let typed = job.arguments().expect("possible");
        assert_eq!(typed, ["sync", "--mirror", "--yes", "--match=-x*", "--", "a:1", "b:2"]);
        let verify = wanted(r#"{"kind": "verify", "source": "a:1", "target": "b:2"}"#);
        assert_eq!(verify.arguments().expect("possible"), ["verify", "--", "a:1", "b:2"]);
        let refused = wanted(r#"{"kind": "copy", "source": "a:1", "target": "b:2", "mirror": true}"#);
        assert!(refused.arguments().is_err());
        for wrong in [
            "--config=x",
            "",
            "a b",
            "a\n",
            "redis://u:secret@h:1",
            "u:secret@h:1",
            "redis://u%3Asecret@h:1",
            "redis://h:1?password=secret",
            "h:1#secret",
        ] {
            let job = wanted(&json!({"kind": "copy", "source": wrong, "target": "b:2"}).to_string());
            assert!(job.sides().check().is_err(), "{wrong}");
        }
        for right in ["h:1", "redis://h:1/3", "redis://user@h:1", "sentinel://a:1,b:2,c:3/main", "[::1]:6379"]
        {
            let job = wanted(&json!({"kind": "copy", "source": right, "target": "b:2"}).to_string());
            assert_eq!(job.sides().check(), Ok(()), "{right}");
        }
    }

    /// A process finds the options that this one was given by a file, knows on whose behalf it runs, and has
    /// none of the console's own passwords.
    #[test]
    fn a_process_knows_where_options_are_and_who_wants_it() {
        let job = wanted(r#"{"kind": "sync", "source": "a", "target": "b", "source_password": "hunter2"}"#);
        let command = Runs::command(&job.sides(), Vec::new(), "alice");
        let given: Vec<(&str, &str)> = command
            .as_std()
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?)))
            .collect();
        assert!(given.contains(&("WHIMBREL_BEGUN_BY", "token alice (console)")), "{given:?}");
        assert!(given.contains(&("WHIMBREL_SOURCE_PASSWORD", "hunter2")));
        let options = ["WHIMBREL_CONFIG", "WHIMBREL_PROFILE"];
        assert!(
            options.iter().all(|name| KEPT.contains(name)) && !KEPT.iter().any(|n| n.contains("PASSWORD"))
        );
    }

    #[test]
    fn what_a_process_said_is_what_is_wrong_and_what_to_do() {
        let failure = ended_at_once("note     x\nerror: the target is full\n       empty it");
        assert_eq!(failure.error, "note     x; the target is full");
        assert_eq!(failure.remedy.as_deref(), Some("empty it"));
        assert_eq!(ended_at_once("killed").remedy, None);
    }

    #[test]
    fn passwords_are_not_printed() {
        let job = wanted(r#"{"kind": "sync", "source": "a", "target": "b", "source_password": "hunter2"}"#);
        assert!(!format!("{:?}", job.sides()).contains("hunter2"));
        assert!(!job.in_words().contains("hunter2"));
    }

    #[test]
    fn the_job_of_a_process_is_known_by_its_addresses() {
        for given in ["h:1", "redis://h:1", "redis://user@h:1/3", "rediss://h:1"] {
            assert!(is_side("h:1", given), "{given}");
        }
        assert!(is_side("h:6379", "h") && !is_side("h:1", "h:2"));
        assert!(is_side("10.0.0.7:6379", "sentinel://a:26379,b:26379/main"));
    }
}
