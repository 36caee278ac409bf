//! Dumps of values that go whole or not at all, whatever their sizes are.
//!
//! Keys are read in groups by the average size of what was read so far. A reply that announces more than a
//! group may hold is not taken in: the connection is given up, and the group is read in halves. A value that
//! is alone in the end may take the whole memory of the copy; one that is larger still is reported.

use std::collections::VecDeque;

use bytes::Bytes;
use whimbrel_core::units::format_bytes;
use whimbrel_engine::error::Result;

use super::{Out, Reader, UNMEASURED_BYTES_MAX};
use crate::keys::{Fetch, KeyState};

impl Reader {
    /// Whether values are dumped without a look at their sizes: they go in no other way, whatever these are.
    pub(super) fn dumps_unmeasured(&self) -> bool {
        let source = &self.shared.source.capabilities;
        !source.reads_pieces() && source.dump && self.shared.target.capabilities.restore
    }

    /// Reads keys and hands over their states; false if the writer is gone.
    pub(super) async fn dump_unmeasured(&mut self, keys: Vec<Bytes>, out: &Out<'_>) -> Result<bool> {
        let mut groups = VecDeque::from(if keys.is_empty() { Vec::new() } else { self.groups(keys) });
        while let Some((mut group, estimate)) = groups.pop_front() {
            if self.shared.stop.is_cancelled() {
                return Ok(true);
            }
            let permit = self.shared.limits.budget.take(estimate).await;
            match self.fetch(&mut group, Fetch::Payload, Some(UNMEASURED_BYTES_MAX)).await {
                Ok(found) => {
                    let states = self.sort_out(found, None);
                    if !self.hand_over(states, permit, out).await {
                        return Ok(false);
                    }
                }
                Err(e) if e.is_too_large() && group.len() > 1 => {
                    let half = group.split_off(group.len() / 2);
                    groups.push_front((half, estimate / 2));
                    groups.push_front((group, estimate / 2));
                }
                Err(e) if e.is_too_large() => {
                    drop(permit);
                    if !self.dump_alone(group, out).await? {
                        return Ok(false);
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Reads one key whose value may take all memory; false if the writer is gone.
    async fn dump_alone(&mut self, mut alone: Vec<Bytes>, out: &Out<'_>) -> Result<bool> {
        let bytes_max = self.shared.options.memory_bytes;
        let mut permit = self.shared.limits.budget.take(bytes_max).await;
        match self.fetch(&mut alone, Fetch::Payload, Some(bytes_max)).await {
            Ok(found) => {
                let states = self.sort_out(found, None);
                permit.shrink_to(states.iter().map(KeyState::bytes).sum());
                Ok(self.hand_over(states, permit, out).await)
            }
            Err(e) if e.is_too_large() => {
                for key in alone {
                    let why = format!(
                        "its dump is larger than the memory of this copy, {}, and this user may not read it \
                            in pieces from the source",
                        format_bytes(bytes_max)
                    );
                    self.shared.failed(self.unit.db, &key, why);
                }
                Ok(true)
            }
            Err(e) => Err(e),
        }
    }
}
