//! How other processes see a sync and ask it for something: by files in the state folder.
//!
//! - `NAME.journal`: held open by the process that runs the sync;
//! - `NAME.json`: how it stands, replaced about once a second;
//! - `NAME.ask`: somebody asks for a cutover; only one at a time can;
//! - `NAME.withdrawn-ID`: the process that asked has withdrawn it;
//! - `NAME.answer-ID`: what came of it.
//!
//! All are replaced as a whole. No password and no value is in any of them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_engine::seal::FenceKind;
use whimbrel_flow::documents::DiskFull;
use whimbrel_flow::journal;
use whimbrel_flow::sync::{Ask, Compare, CutoverOptions};

use super::exposed::Running;
use super::words;
use crate::exit::Exit;
use crate::safety;

/// How often the status is written.
const PUBLISH_PERIOD: Duration = Duration::from_secs(1);

/// How often somebody looks whether something was asked or answered.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// How long a question may lie there before it is taken: a process that runs takes it at once.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// How long a process that has taken it may show nothing of itself: one that runs does so every second,
/// whatever it is at.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

/// A cutover that somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutoverRequest {
    /// Tells its answer from that to another.
    pub id: String,
    /// The process that asks: when it is gone, the wish is withdrawn.
    pub pid: u32,
    /// See [`CutoverOptions`].
    pub max_pause_ms: u64,
    /// See [`CutoverOptions`].
    pub fence: FenceKind,
    /// See [`CutoverOptions`].
    pub compare: Compare,
    /// See [`CutoverOptions`].
    pub reverse: bool,
    /// See [`CutoverOptions`].
    pub back: bool,
    /// See [`CutoverOptions`].
    pub accept_failures: bool,
    /// See [`CutoverOptions`].
    pub dry_run: bool,
}

/// What came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reply {
    /// Which [`CutoverRequest`] it answers.
    pub id: String,
    /// The report, where it succeeded.
    pub report: Option<serde_json::Value>,
    /// Why it did not.
    pub error: Option<String>,
    /// What the process that asked should end with.
    pub exit: u8,
}

/// The files of one sync.
#[derive(Debug, Clone)]
pub struct ControlFile {
    folder: PathBuf,
    name: String,
}

impl CutoverRequest {
    /// The ending of the file with its answer.
    fn answer(&self) -> String {
        format!("answer-{}", self.id)
    }

    /// Whether the process that asked still runs.
    fn is_awaited(&self) -> bool {
        Path::new("/proc").join(self.pid.to_string()).exists()
    }

    /// The ending of the file that withdraws it.
    fn withdrawal(&self) -> String {
        format!("withdrawn-{}", self.id)
    }
}

impl ControlFile {
    /// Of the sync of this name.
    pub fn new(folder: &Path, name: &str) -> ControlFile {
        ControlFile { folder: folder.to_owned(), name: name.to_owned() }
    }

    /// The desks of all syncs that run.
    ///
    /// # Errors
    /// `Own` where the folder cannot be read.
    fn running(folder: &Path) -> Result<Vec<ControlFile>> {
        let files = match std::fs::read_dir(folder) {
            Ok(files) => files,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::own(format!("read {}", folder.display()), e)),
        };
        let mut names: Vec<String> = files
            .filter_map(|file| {
                let name = file.ok()?.file_name();
                let name = name.to_str()?.strip_suffix(".journal")?;
                name.starts_with("sync-").then(|| name.to_owned())
            })
            .collect();
        names.sort_unstable();
        let desks = names.iter().map(|name| ControlFile::new(folder, name));
        Ok(desks.filter(ControlFile::is_attended).collect())
    }

    /// The one that runs and whose name begins with `wanted`; where that is empty, the only one.
    ///
    /// # Errors
    /// `Unfit` where there is none, or more than one; `Own` where the folder cannot be read.
    pub fn find(folder: &Path, wanted: &str) -> Result<ControlFile> {
        let running = ControlFile::running(folder)?;
        let mut found: Vec<ControlFile> =
            running.into_iter().filter(|control_file| control_file.name.starts_with(wanted)).collect();
        match (found.pop(), found.is_empty()) {
            (Some(control_file), true) => Ok(control_file),
            (None, _) => {
                let which = if wanted.is_empty() { "" } else { " by this name" };
                let what = format!("no sync runs in {}{which}", folder.display());
                Err(Error::unfit(Side::Own, "", "find the sync", what).with_remedy(
                    "start it with whimbrel sync, with --resume where it had begun before; or name its \
                            folder with \
                         --state-dir",
                ))
            }
            (Some(last), false) => {
                let names: Vec<&str> = found.iter().chain([&last]).map(ControlFile::name).collect();
                let what = format!("several run: {}", names.join(", "));
                Err(Error::unfit(Side::Own, "", "find the sync", what).with_remedy("name the one you mean"))
            }
        }
    }

    /// How the sync stood about a second ago; `None` where nothing is shown.
    pub fn card(&self) -> Option<serde_json::Value> {
        serde_json::from_str(&std::fs::read_to_string(self.path("json")).ok()?).ok()
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a process runs the sync.
    pub fn is_attended(&self) -> bool {
        journal::is_open(&self.folder, &self.name)
    }

    fn path(&self, ending: &str) -> PathBuf {
        self.folder.join(format!("{}.{ending}", self.name))
    }

    fn put(&self, ending: &str, content: &impl Serialize) -> std::io::Result<()> {
        journal::write_whole(&self.path(ending), content)
    }

    /// As [`ControlFile::put`], where nothing is there yet.
    fn put_new(&self, ending: &str, content: &CutoverRequest) -> Result<()> {
        let (path, draft) = (self.path(ending), self.path(&format!("{ending}-{}", content.id)));
        let written = serde_json::to_string(content).map_err(std::io::Error::other);
        let written = written.and_then(|text| journal::make_anew(&draft)?.write_all(text.as_bytes()));
        // A link is made only where the name is free.
        let linked = written.and_then(|()| std::fs::hard_link(&draft, &path));
        // It may not be there.
        let _ = std::fs::remove_file(&draft);
        linked.map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => Error::unfit(
                Side::Own,
                "",
                "ask for the cutover",
                "somebody else is asking for one right now",
            )
            .with_remedy("wait for that to end"),
            _ => Error::own(format!("write {}", path.display()), e),
        })
    }

    fn take<T: for<'de> Deserialize<'de>>(&self, ending: &str) -> Option<T> {
        // Under a name of our own first: a file that was put there after it was looked for must not be
        // removed unread.
        let taken = self.path(&format!("{ending}-taken"));
        std::fs::rename(self.path(ending), &taken).ok()?;
        let text = safety::read_own(&taken);
        // Taken is taken, whatever it says, and whichever process wrote it.
        std::fs::remove_file(&taken).ok()?;
        serde_json::from_str(&text?).ok()
    }

    /// Serves those who ask, and shows how the sync stands, until it is dropped.
    pub async fn attend(self, running: Running, asks: mpsc::Sender<Ask>) -> std::convert::Infallible {
        // Perhaps left over from an earlier run. A process of the same number may run by now that asked for
        // nothing: so it is not carried out, and one that was asked while this began is told to ask again.
        if let Some(wish) = self.take::<CutoverRequest>("ask") {
            self.reply(&wish, too_early(&wish)).await;
        }
        let serve = async {
            loop {
                if let Some(wish) = self.take::<CutoverRequest>("ask") {
                    let reply = self.pass_on(&wish, &asks).await;
                    let _: Option<bool> = self.take(&wish.withdrawal());
                    self.reply(&wish, reply).await;
                }
                sleep(LOOK_PERIOD).await;
            }
        };
        let publish = async {
            let disk = DiskFull::default();
            loop {
                if let Err(error) = disk.bear(self.put("json", &running.card())) {
                    tracing::warn!(%error, "the status could not be written");
                }
                sleep(PUBLISH_PERIOD).await;
            }
        };
        let (never, _): (std::convert::Infallible, std::convert::Infallible) = tokio::join!(serve, publish);
        never
    }

    /// Answers, also once a full disk has room again, where somebody waits for it still.
    async fn reply(&self, wish: &CutoverRequest, reply: Reply) {
        let answer = || if wish.is_awaited() { self.put(&wish.answer(), &reply) } else { Ok(()) };
        if let Err(error) = DiskFull::default().until_room(answer).await {
            tracing::warn!(%error, "an answer could not be given");
        }
    }

    async fn pass_on(&self, wish: &CutoverRequest, asks: &mpsc::Sender<Ask>) -> Reply {
        let options = CutoverOptions {
            max_pause_ms: wish.max_pause_ms,
            fence: wish.fence,
            compare: wish.compare,
            reverse: wish.reverse,
            back: wish.back,
            accept_failures: wish.accept_failures,
            dry_run: wish.dry_run,
        };
        let (answer, told) = oneshot::channel();
        let gone = || Error::own("cut over", "the sync has ended");
        let withdrawn = CancellationToken::new();
        let ask = Ask { options, withdrawn: withdrawn.clone(), answer };
        let watch = async {
            while wish.is_awaited() && !self.path(&wish.withdrawal()).exists() {
                sleep(LOOK_PERIOD).await;
            }
            withdrawn.cancel();
            std::future::pending::<std::convert::Infallible>().await
        };
        let outcome = match asks.send(ask).await {
            Ok(()) => tokio::select! {
                told = told => told.unwrap_or_else(|_| Err(gone())),
                never = watch => match never {},
            },
            Err(_) => Err(gone()),
        };
        match outcome {
            Ok(report) => Reply {
                id: wish.id.clone(),
                report: serde_json::to_value(&report).ok(),
                error: None,
                exit: 0,
            },
            Err(e) => {
                let e = words::remedied(e);
                let exit = match (&e.kind, e.side) {
                    // Nothing was changed, or everything was undone.
                    (
                        ErrorKind::Unfit(_)
                        | ErrorKind::Forbidden { .. }
                        | ErrorKind::Lacks { .. }
                        | ErrorKind::StillWritten(_),
                        _,
                    ) => Exit::Refused,
                    (_, Side::Own) => Exit::Internal,
                    _ => Exit::Interrupted,
                };
                Reply { id: wish.id.clone(), report: None, error: Some(e.to_string()), exit: exit as u8 }
            }
        }
    }

    /// Asks the process that runs the sync, and waits for its answer.
    ///
    /// # Errors
    /// `Own` where it does not run, ends before it answers, is stopped or hangs, or does not answer within
    /// `limit`.
    pub async fn ask(&self, wish: &CutoverRequest, limit: Duration) -> Result<Reply> {
        self.put_new("ask", wish)?;
        let asked = Instant::now();
        let mut looked = asked;
        let mut is_taken = false;
        let (mut shown, mut shown_at) = (self.shown_at(), asked);
        let mut is_attended = true;
        while is_attended && asked.elapsed() < limit && shown_at.elapsed() < SHOWN_WITHIN {
            sleep(LOOK_PERIOD).await;
            if let Some(reply) = self.take::<Reply>(&wish.answer()).filter(|reply| reply.id == wish.id) {
                return Ok(reply);
            }
            if looked.elapsed() > PUBLISH_PERIOD {
                looked = Instant::now();
                is_attended = self.is_attended();
                let now = self.shown_at();
                if now != shown {
                    (shown, shown_at) = (now, looked);
                }
            }
            is_taken = is_taken || !self.path("ask").exists();
            // Once it is gone from there nobody begins with it any more.
            if !is_taken && asked.elapsed() > TAKEN_WITHIN && std::fs::remove_file(self.path("ask")).is_ok() {
                let what = format!("{} is stopped or hangs: it has not taken the question", self.name);
                return Err(Error::own("ask for the cutover", what).with_remedy(
                    "nothing was begun. See what the process does that runs the sync (SIGCONT has one go on \
                        that was \
                     stopped), or end it and go on with --resume",
                ));
            }
        }
        let what = format!("{} does not answer", self.name);
        Err(Error::own("ask for the cutover", what).with_remedy(
            "see what the process says that runs the sync; should it have died while writes were paused, the \
                servers let them \
             go by themselves, after --max-pause at the latest",
        ))
    }

    /// When the process that runs the sync last showed how it stands.
    fn shown_at(&self) -> Option<SystemTime> {
        std::fs::metadata(self.path("json")).ok()?.modified().ok()
    }

    /// Would rather not, as long as nobody is held yet. The answer tells which it was.
    ///
    /// # Errors
    /// `Own` where the file cannot be written.
    pub fn withdraw(&self, wish: &CutoverRequest) -> Result<()> {
        let path = self.path(&wish.withdrawal());
        journal::write_whole(&path, &true).map_err(|e| Error::own(format!("write {}", path.display()), e))
    }

    /// Removes what only a running sync shows.
    pub fn clear(&self) {
        for ending in ["json", "ask"] {
            // It may not be there.
            let _ = std::fs::remove_file(self.path(ending));
        }
    }
}

fn too_early(wish: &CutoverRequest) -> Reply {
    let error = "cut over: the sync has only just begun: ask again".to_owned();
    Reply { id: wish.id.clone(), report: None, error: Some(error), exit: Exit::Refused as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of so many fell between the look and the removal before both were one step.
    #[test]
    fn no_question_is_lost_between_a_look_and_the_next() {
        const QUESTIONS: u32 = 5_000;
        let folder = tempfile::tempdir().expect("a folder");
        let control_file = ControlFile::new(folder.path(), "sync-x");
        let asking = control_file.clone();
        let asker = std::thread::spawn(move || {
            for number in 0..QUESTIONS {
                let wish = CutoverRequest {
                    id: number.to_string(),
                    pid: std::process::id(),
                    max_pause_ms: 1,
                    fence: FenceKind::None,
                    compare: Compare::None,
                    reverse: false,
                    back: false,
                    accept_failures: false,
                    dry_run: true,
                };
                asking.put_new("ask", &wish).expect("the place is free");
                let deadline = Instant::now() + Duration::from_secs(30);
                while asking.path("ask").exists() {
                    assert!(Instant::now() < deadline, "{number} is not taken");
                    std::hint::spin_loop();
                }
            }
        });
        let mut taken = 0;
        while !asker.is_finished() {
            taken += u32::from(control_file.take::<CutoverRequest>("ask").is_some());
        }
        asker.join().expect("it asks to the end");
        assert_eq!(taken, QUESTIONS);
    }
}
