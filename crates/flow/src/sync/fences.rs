//! What undoes the fence of a cutover, kept in a file until the fence is taken down.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use whimbrel_engine::clock;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::remedy::Remedy;
use whimbrel_engine::seal::{WriterFence, WriterFenceKind};

use super::state::SyncState;
use super::syncer::Syncer;
use crate::journal::{self, DiskFull, Documents, OpenError, RedbDocuments, remove_if_there, write_durably};

/// How often it is tried to take down what is left of a fence.
const LIFT_PERIOD: Duration = Duration::from_secs(1);

/// How long writers of the source wait at most for those of the target to be kept out again.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// Takes down what is left of a fence that could not be put up as a whole, as soon as the servers let it be
/// done. Does not end if nothing is left. A pause ends by itself at `ends_ms`, by [`clock::now_ms`]: a pause
/// that is found later is not ours.
pub(super) async fn take_down(left: Option<WriterFence>, ends_ms: Option<u64>, source: Arc<Deployment>) {
    let Some(fence) = left else { return std::future::pending().await };
    loop {
        tokio::time::sleep(LIFT_PERIOD).await;
        if ends_ms.is_some_and(|ends_ms| clock::now_ms() >= ends_ms) {
            return;
        }
        match fence.lift(&source).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "a part of a fence stays"),
        }
    }
}

/// Puts up again what keeps writers away from the target, as soon as the servers let it be done. Does not end
/// if it is up. Returns what it does not keep out, as [`WriterFence::restore`].
pub(super) async fn put_up_again(taken_down: Option<WriterFence>, target: Arc<Deployment>) -> Vec<String> {
    let Some(fence) = taken_down else { return std::future::pending().await };
    loop {
        tokio::time::sleep(LIFT_PERIOD).await;
        match fence.restore(&target).await {
            Ok(gaps) => return gaps,
            Err(error) => tracing::warn!(%error, "writers are not kept away from the target"),
        }
    }
}

impl Syncer {
    /// Keeps writers away from the target again. A cutover back that failed may have let them in: what they
    /// write there is overwritten. If that does not succeed at once, it is tried again while the sync
    /// follows, and the user is notified.
    pub(super) async fn close_target(&mut self) {
        let Some(fence) = &self.state.lift else { return };
        self.state.lifted = true;
        let restored = timeout(CLOSED_WITHIN, fence.restore(&self.shared.target)).await;
        let why = match restored {
            Ok(Ok(gaps)) => return self.target_is_closed(&gaps),
            Ok(Err(error)) => error.problem(),
            Err(_) => format!("the servers did not answer within {} s", CLOSED_WITHIN.as_secs()),
        };
        self.notice(&format!(
            "a cutover back did not come about, and writers may still be let in at the target ({why}): what \
                they write there is overwritten. It is tried again each second to keep them out"
        ));
    }

    /// The fence of the target is up again. The user is notified once of those that it does not know: to try
    /// again would change nothing about them.
    pub(super) fn target_is_closed(&mut self, gaps: &[String]) {
        self.state.lifted = false;
        if !gaps.is_empty() {
            self.notice(&format!(
                "writers are kept away from the target, but for what came after its fence was planned. Not \
                    fenced off: {}. What is written there is overwritten: see that nobody writes",
                gaps.join("; ")
            ));
        }
    }
}

/// Permanently ends a sync that no process runs, as [`journal::discard`]. What a killed cutover may have left
/// at its source is noted first: the journal is all that knows of it. True if there is such a thing.
///
/// # Errors
/// As [`journal::discard`]; `Own` if the journal cannot be read, or the note cannot be written; `Options` if
/// a cutover back was interrupted: then writers may be let in on either side, and only the sync itself keeps
/// them away from one of them.
pub fn discard(folder: &Path, name: &str) -> Result<bool> {
    // Others are kept away until it is gone.
    let Some((documents, left)) = Left::in_journal(folder, name).map_err(unread(folder, name))? else {
        return journal::discard(folder, name).map(|()| false);
    };
    let Some(note) = left.note else { return Err(left.refuse("cancel the job", name)) };
    let file = FenceNote::file_of(folder, name);
    let (note, older) = note.with_older(&file);
    write_durably(&file, &note).map_err(|e| Error::own(format!("write {}", file.display()), e))?;
    FenceNote::forget_older(&older, &file)?;
    let removed = Box::new(documents).remove();
    removed.map_err(|e| Error::own(format!("remove the journal {name}"), e))?;
    Ok(true)
}

/// Whether the sync of this name cannot be discarded, as [`discard`].
///
/// # Errors
/// `Options` if so; `Own` if its journal cannot be read.
pub fn refuse_to_discard(folder: &Path, name: &str) -> Result<()> {
    match Left::in_journal(folder, name).map_err(unread(folder, name))? {
        Some((_, left @ Left { note: None })) => Err(left.refuse("cancel the job", name)),
        _ => Ok(()),
    }
}

/// Why it is not known what the journal of this name has.
fn unread(folder: &Path, name: &str) -> impl FnOnce(OpenError) -> Error {
    let file = journal::file_of(folder, name);
    move |e| journal::not_opened(&file, e)
}

/// What a cutover of a sync may have left when its process was killed.
struct Left {
    /// What it may have left at its source. `None` if it was a cutover back: then writers may be let in at
    /// the target as well.
    note: Option<FenceNote>,
}

impl Left {
    /// As the journal of this name has it, which others cannot open until it is dropped.
    ///
    /// # Errors
    /// If a process runs that sync, or the journal cannot be read: it may know of a fence, and nothing else
    /// does.
    fn in_journal(
        folder: &Path,
        name: &str,
    ) -> std::result::Result<Option<(RedbDocuments, Left)>, OpenError> {
        if !journal::exists(folder, name) {
            return Ok(None);
        }
        let documents = journal::lock(folder, name)?;
        let left = Left::of(&documents).map_err(OpenError::Failed)?;
        Ok(left.map(|left| (documents, left)))
    }

    /// As a journal has it; `None` if there is nothing to be taken down or put up again. A pause ends by
    /// itself.
    fn of(documents: &dyn Documents) -> io::Result<Option<Left>> {
        let Some(text) = documents.read("state")? else {
            return match documents.read("format")? {
                // Of another version, which may have its state elsewhere.
                Some(_) => journal::check_format(documents).map(|()| None),
                // A process that was killed while it made the journal has left an empty one.
                None => Ok(None),
            };
        };
        journal::check_format(documents)?;
        let state: SyncState = serde_json::from_str(&text)?;
        if state.lift.is_some() && (state.lifted || state.cut_over.is_some()) {
            return Ok(Some(Left { note: None }));
        }
        let Some(fence) = state.cut_over else { return Ok(None) };
        let stays = matches!(fence.kind(), WriterFenceKind::Acl | WriterFenceKind::ReadonlyReplica);
        let note = FenceNote { source: state.source, fence, interrupted: true };
        Ok((stays && note.fence.is_plausible()).then_some(Left { note: Some(note) }))
    }

    fn refuse(&self, tried: &str, name: &str) -> Error {
        let what = match self.note {
            None => {
                "a cutover back was interrupted, and writers may be let in on either side: only to go on \
                    with it keeps them away from one"
                    .to_owned()
            }
            Some(_) => format!(
                "a cutover of it was interrupted, and writers may still be kept away from the source: to go \
                    on with it lets them in, and so does to give it up (whimbrel jobs cancel {name}, then \
                    whimbrel unfence)"
            ),
        };
        Error::options(Side::Own, tried, what).with_remedy(Remedy::Resume(""))
    }
}

/// What the files end with.
const ENDING: &str = "fence";

/// What a cutover did to keep writers away, for the command that takes the fence down. No password is in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FenceNote {
    /// The address of the source, as it was named.
    pub source: String,
    /// What undoes it.
    pub fence: WriterFence,
    /// Whether the cutover was interrupted: nobody knows how far it came.
    #[serde(default)]
    pub interrupted: bool,
}

impl FenceNote {
    /// The path at which a sync of this name leaves its note.
    pub fn file_of(folder: &Path, name: &str) -> PathBuf {
        folder.join(format!("{name}.{ENDING}"))
    }

    /// All that are in a folder.
    ///
    /// # Errors
    /// `Own` if one cannot be read.
    pub fn all_in(folder: &Path) -> Result<Vec<(PathBuf, FenceNote)>> {
        let fail = |path: &Path, e: &dyn std::fmt::Display| Error::own(format!("read {}", path.display()), e);
        let files = match std::fs::read_dir(folder) {
            Ok(files) => files,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(fail(folder, &e)),
        };
        let mut notes = Vec::new();
        for file in files {
            let path = file.map_err(|e| fail(folder, &e))?.path();
            if path.extension().is_some_and(|ending| ending == ENDING) {
                let text = match std::fs::read_to_string(&path) {
                    // Another process has just forgotten it.
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                    text => text.map_err(|e| fail(&path, &e))?,
                };
                let note: FenceNote = serde_json::from_str(&text).map_err(|e| fail(&path, &e))?;
                if !note.fence.is_plausible() {
                    let what = "no cutover has written that: it would give users other rights than those on \
                        commands";
                    return Err(fail(&path, &what).with_remedy("see who wrote it, and remove it"));
                }
                notes.push((path, note));
            }
        }
        Ok(notes)
    }

    /// Forgets the fences that a cutover back to `deployment` has taken down.
    ///
    /// # Errors
    /// `Own` if the folder or a file cannot be dealt with.
    pub fn forget_all(folder: &Path, deployment: &Deployment) -> Result<()> {
        FenceNote::about(folder, deployment)?.iter().try_for_each(|(file, _)| FenceNote::forget(file))
    }

    /// The cutovers away from `deployment` that have not been undone, and their files. It is known by its
    /// nodes, and by the address that the user named.
    ///
    /// # Errors
    /// `Own` if the folder or a file cannot be read.
    pub fn about(folder: &Path, deployment: &Deployment) -> Result<Vec<(PathBuf, FenceNote)>> {
        let topology = deployment.topology();
        let own: BTreeSet<String> =
            topology.nodes().chain([&deployment.endpoint.address]).map(ToString::to_string).collect();
        Ok(FenceNote::all_in(folder)?.into_iter().filter(|(_, note)| note.is_about(&own)).collect())
    }

    /// Whether the source is one of these addresses, or has one of them.
    pub fn is_about(&self, addresses: &BTreeSet<String>) -> bool {
        addresses.contains(&self.source) || self.fence.nodes().any(|at| addresses.contains(at))
    }

    /// The file is of no use any more. A missing file is no error.
    ///
    /// # Errors
    /// `Own` if it cannot be removed.
    pub fn forget(file: &Path) -> Result<()> {
        remove_if_there(file).map_err(|e| Error::own(format!("remove {}", file.display()), e))
    }

    /// To begin the sync of this name anew would remove the only record of what a killed cutover did to its
    /// source.
    ///
    /// # Errors
    /// `Options` if there is such a thing, unless the sync is `resumed`; `Own` if its journal cannot be read.
    pub fn refuse_to_forget(folder: &Path, name: &str, resumed: bool) -> Result<()> {
        if resumed {
            return Ok(());
        }
        match Left::in_journal(folder, name) {
            Ok(Some((_, left))) => Err(left.refuse("begin the sync anew", name)),
            // One that is in use cannot be begun anew either.
            Ok(None) | Err(OpenError::InUse) => Ok(()),
            Err(e) => Err(unread(folder, name)(e)),
        }
    }

    /// Refuses to sync from a source at which nothing but interrupted cutovers have left these notes.
    ///
    /// # Errors
    /// `Unfit` if that is so.
    pub fn refuse_interrupted(notes: &[(PathBuf, FenceNote)], source: &str) -> Result<()> {
        if !notes.iter().all(|(_, note)| note.interrupted) {
            return Ok(());
        }
        let what = "a cutover was interrupted, and its fence may keep writers away from it";
        Err(Error::unfit(Side::Source, source.to_owned(), "sync from it once more", what)
            .with_remedy("take the fence down: whimbrel unfence"))
    }

    /// This one and the fences that still stood at the same source before, whose files are returned: what
    /// users had before the first of them is what they get back.
    fn with_older(mut self, file: &Path) -> (FenceNote, Vec<PathBuf>) {
        let mut own: BTreeSet<String> = self.fence.nodes().map(str::to_owned).collect();
        own.insert(self.source.clone());
        // This one is what keeps a later run from undoing the cutover: it is written whatever others hold.
        let older = FenceNote::all_in(file.parent().unwrap_or(Path::new(""))).unwrap_or_else(|error| {
            tracing::warn!(%error, "what earlier cutovers have left cannot be read");
            Vec::new()
        });
        let mut files = Vec::new();
        for (path, note) in older.into_iter().filter(|(_, note)| note.is_about(&own)) {
            self.fence = self.fence.keeping(&note.fence);
            self.interrupted &= note.interrupted;
            files.push(path);
        }
        (self, files)
    }

    /// Forgets what the note in `file` holds now.
    fn forget_older(older: &[PathBuf], file: &Path) -> Result<()> {
        older.iter().filter(|path| *path != file).try_for_each(|path| FenceNote::forget(path))
    }

    /// Leaves it in a file, once the disk has room; it is on disk when this returns. A fence that still stood
    /// there before is part of it from now on.
    pub(super) async fn leave(self, file: &Path, disk: &DiskFull) -> Result<()> {
        let (note, older) = self.with_older(file);
        let written = disk.until_room(|| write_durably(file, &note)).await;
        written.map_err(|e| Error::own(format!("write {}", file.display()), e))?;
        FenceNote::forget_older(&older, file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::FORMAT;

    const NAME: &str = "sync-a";

    /// Only the journal knows whether a fence is up: one that is damaged, or of another version, is not
    /// removed by us.
    #[test]
    fn a_journal_that_cannot_be_read_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let file = journal::file_of(folder, NAME);
        let write = |documents: &[(&str, &str)]| {
            let made = RedbDocuments::create(&file).expect("it is made");
            made.write(documents).expect("it is written");
        };
        let is_kept = |what: &str| {
            let refused = [
                discard(folder, NAME).err(),
                refuse_to_discard(folder, NAME).err(),
                FenceNote::refuse_to_forget(folder, NAME, false).err(),
            ];
            for error in refused {
                let error = error.unwrap_or_else(|| panic!("{what} would be forgotten"));
                assert!(error.problem().contains("cannot be used"), "{what}: {error}");
                let remedy = error.remedy.as_deref().map(ToString::to_string).unwrap_or_default();
                assert!(remedy.contains("clients may write where they should"), "{what}: {remedy}");
            }
            assert!(file.exists(), "{what} is gone");
        };
        let state = serde_json::to_string(&SyncState::default()).expect("a state");
        let format = &*FORMAT.to_string();
        write(&[("format", format), ("state", &state[1..])]);
        is_kept("a state that is damaged");
        write(&[("format", "999"), ("state", &state)]);
        is_kept("a state of another version");
        std::fs::remove_file(&file).expect("it is removed");
        write(&[("format", "999"), ("states", "{}")]);
        is_kept("a journal of another version");
        std::fs::write(&file, "no journal").expect("it is written");
        is_kept("a file that is damaged");
        std::fs::remove_file(&file).expect("it is removed");
        write(&[("format", format), ("state", &state)]);
        assert!(!discard(folder, NAME).expect("it can be read"), "there is no fence");
        assert!(!file.exists(), "it has ended");
    }
}
