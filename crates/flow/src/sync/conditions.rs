//! What has to hold before the target takes over.

use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::remedy::Remedy;
use whimbrel_engine::seal::WriterFenceKind;

use super::asked::Beginning;
use super::options::CutoverOptions;
use super::syncer::Syncer;
use crate::journal::disk_full_words;

const WITHDRAWN: &str = "it was withdrawn before writes were paused";

impl Syncer {
    /// Whether all primaries of both sides answer: each is asked on a connection of its own, which takes the
    /// time of a connection at most.
    pub(super) async fn check_answers(&self) -> Result<()> {
        for deployment in [&self.shared.source, &self.shared.target] {
            for shard in &deployment.topology().shards {
                deployment.open(&shard.primary, 0).await?;
            }
        }
        Ok(())
    }

    pub(super) fn check(&self, options: &CutoverOptions) -> Result<()> {
        if !self.is_calm() {
            let what = format!("slots {} are on the move, or have just been", self.all_suspects());
            return Err(refused(what).with_remedy("finish the slot migrations of both sides first"));
        }
        if let Some(full_ms) = self.status.copy.disk.full_ms() {
            return Err(
                refused(disk_full_words(full_ms)).with_remedy("see that the disk has room, and ask again")
            );
        }
        if options.back && self.state.lift.is_none() {
            let what = "this sync does not lead back to where clients came from";
            return Err(refused(what).with_remedy(Remedy::LeaveOutBack));
        }
        if self.state.lift.is_some() && !options.back && options.fence != WriterFenceKind::None {
            let what = "this sync leads back to where clients came from, which stays fenced off otherwise: \
                nobody could write anywhere";
            return Err(refused(what).with_remedy(Remedy::AddBack));
        }
        if self.state.lift.as_ref().is_some_and(|lift| lift.kind() == WriterFenceKind::Front)
            && !matches!(options.fence, WriterFenceKind::Front | WriterFenceKind::None)
        {
            let what = "a front has sent its clients away from where they are to come back, and would go on";
            return Err(refused(what).with_remedy(Remedy::ChooseFence("front")));
        }
        if options.reverse
            && matches!(
                options.fence,
                WriterFenceKind::None | WriterFenceKind::ReadonlyReplica | WriterFenceKind::External { .. }
            )
        {
            let what = "the way back needs a source that whimbrel can write to and others cannot";
            return Err(refused(what).with_remedy(Remedy::FenceForReverseSync));
        }
        if options.accept_failures {
            return Ok(());
        }
        let evicted = self.shared.suspects.evicted();
        if evicted > 0 {
            let what = format!("the target has evicted {evicted} keys to stay within its maxmemory");
            return Err(
                refused(what).with_remedy(Remedy::OrAcceptFailures("give it more memory and sync anew"))
            );
        }
        if self.unmapped || self.sources.iter().any(|source| source.unmapped) {
            let what = "a database of the source was written to that is not part of this sync";
            return Err(refused(what).with_remedy(Remedy::NameDatabasesOrAcceptFailures));
        }
        let failed = self.status.copy.snapshot().failed;
        if failed > 0 {
            let what = format!("{failed} keys are not on the target");
            return Err(
                refused(what).with_remedy(Remedy::OrAcceptFailures("see them in the report of the sync"))
            );
        }
        Ok(())
    }
}

/// From here on something is changed.
pub(super) fn begin(beginning: &Beginning) -> Result<()> {
    if beginning.begin() { Ok(()) } else { Err(refused(WITHDRAWN)) }
}

pub(super) fn is_wanted(withdrawn: &CancellationToken) -> Result<()> {
    if withdrawn.is_cancelled() { Err(refused(WITHDRAWN)) } else { Ok(()) }
}

pub(super) fn refused(what: impl Into<String>) -> Error {
    Error::options(Side::Own, "cut over", what)
}
