//! Notes at the owner of slots that keys are being moved to it. Meanwhile the node that holds them imports
//! the slots from the owner, as one does that has copies: a repair that dies would leave what looks like
//! copies to the next one.

use whimbrel_core::slot::{Slot, SlotSet, tag_for_slot};
use whimbrel_engine::error::{Code, Result, ServerError};
use whimbrel_engine::link::Link;
use whimbrel_engine::slot_keys;
use whimbrel_flow::keys::{Body, Write};
use whimbrel_flow::large::staging_key;
use whimbrel_wire::value::Value;

/// How long a note lasts if it is not removed, in milliseconds: a day.
const LIFETIME_MS: &[u8] = b"86400000";

/// Commands sent before their replies are read.
const PIPELINED: usize = 256;

/// One in each slot.
fn name(slot: Slot) -> Vec<u8> {
    staging_key("repair", tag_for_slot(slot).as_bytes())
}

/// Sends a command about the note of each slot, and gives the replies.
async fn ask(owner: &mut Link, slots: &[Slot], command: &[u8], rest: &[&[u8]]) -> Result<Vec<Value>> {
    let mut replies = Vec::with_capacity(slots.len());
    for piece in slots.chunks(PIPELINED) {
        for slot in piece {
            let name = name(*slot);
            let mut words = vec![command, &name];
            words.extend(rest);
            owner.push(&words);
        }
        owner.flush().await?;
        replies.extend(owner.replies(piece.len()).await?);
    }
    Ok(replies)
}

/// Writes them.
///
/// # Errors
/// When the owner does not answer, or refuses.
pub async fn write(owner: &mut Link, slots: &SlotSet) -> Result<()> {
    let slots: Vec<Slot> = slots.iter().collect();
    for reply in ask(owner, &slots, b"SET", &[b"", b"PX", LIFETIME_MS]).await? {
        owner.check(reply, b"SET")?;
    }
    Ok(())
}

/// Removes them.
///
/// # Errors
/// As [`write`].
pub async fn remove(owner: &mut Link, slots: &SlotSet) -> Result<()> {
    let slots: Vec<Slot> = slots.iter().collect();
    let unlink = Write::command(&Body::Gone);
    for reply in ask(owner, &slots, unlink, &[]).await? {
        owner.check(reply, unlink)?;
    }
    Ok(())
}

/// The slots that have one.
///
/// # Errors
/// When the owner does not answer.
pub async fn find(owner: &mut Link, slots: &SlotSet) -> Result<SlotSet> {
    let slots: Vec<Slot> = slots.iter().collect();
    let replies = ask(owner, &slots, b"EXISTS", &[]).await?;
    let mut found = SlotSet::new();
    for (slot, reply) in slots.into_iter().zip(replies) {
        let is_there = match (reply.as_int(), ServerError::of(&reply).map(|refused| refused.code)) {
            (Some(number), _) => number == 1,
            // A node that does not own a slot yet refuses, and was not given keys in it either.
            (None, Some(Code::Moved(..) | Code::Ask(..))) => false,
            // Without that note keys that are nowhere else would look like copies. A node of a cluster that
            // is down refuses to look for one, and lists all.
            _ => {
                let count = slot_keys::count(owner, slot).await?;
                slot_keys::all_names(owner, &[(slot, count)])
                    .await?
                    .iter()
                    .any(|key| key[..] == name(slot)[..])
            }
        };
        if is_there {
            found.insert(slot);
        }
    }
    Ok(found)
}
