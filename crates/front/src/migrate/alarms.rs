//! What has gone wrong on a source that other clients use, or that forgot something: the front can notice it,
//! not repair it.

use bytes::Bytes;

use crate::migrate::direction::Direction;

/// This much of a key is shown.
const KEY_BYTES_SHOWN: usize = 128;

/// What was noticed. It is reported until it is over, as far as its end can be seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Alarms {
    /// A database of the source other than 0 has keys, which do not move.
    pub(crate) other_database: Option<u32>,
    /// The source is another process than when keys began to move. Stays.
    pub(crate) is_source_another: bool,
    /// Keys that the last pass found at the source although they had moved.
    pub(crate) returned: u64,
    /// A key that was at the target before it was moved.
    pub(crate) taken: Option<Bytes>,
}

impl Alarms {
    /// This key is at one place.
    pub(crate) fn not_taken(&mut self, key: &[u8]) {
        if self.taken.as_deref() == Some(key) {
            self.taken = None;
        }
    }

    /// For people; `None` if nothing is wrong.
    pub(crate) fn text(&self, direction: Direction) -> Option<String> {
        let (from, to) = (direction.from(), direction.to());
        let other = self.other_database.map(|db| {
            format!(
                "database {db} of the {from} has keys, which do not move: something else writes to the \
                 {from}. Take them away from there, or the move never ends"
            )
        });
        let another = self.is_source_another.then(|| {
            format!(
                "the {from} was started again, or is another server. If it lost what it had acknowledged, \
                 keys that were deleted may have come back"
            )
        });
        let returned = (self.returned > 0).then(|| {
            format!(
                "{} keys are at the {from} again although they had moved: something else writes to the \
                 {from}, or it lost what it had acknowledged. What the {to} has is served; delete them at \
                 the {from}, or the move never ends",
                self.returned
            )
        });
        let taken = self.taken.as_ref().map(|key| {
            format!(
                "key {} is at the target although it has not moved: a script used a key that it does not \
                 declare, or something else writes to the target. Both are as they are; delete one of them, \
                 at its server, or the move never ends",
                shown(key)
            )
        });
        let all: Vec<String> = [other, another, returned, taken].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// The start of a key, as text.
fn shown(key: &[u8]) -> String {
    let start = key.get(..KEY_BYTES_SHOWN).unwrap_or(key);
    start.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_wrong_is_reported() {
        assert_eq!(Alarms::default().text(Direction::ToTarget), None);
        let taken = Some(Bytes::from_static(b"k\n1"));
        let mut alarms = Alarms { other_database: Some(3), is_source_another: true, returned: 7, taken };
        let text = alarms.text(Direction::ToTarget).expect("much is wrong");
        for part in
            ["database 3", "started again", "7 keys are at the source again", "key k\\n1 is at the target"]
        {
            assert!(text.contains(part), "{text}");
        }
        let text = alarms.text(Direction::ToSource).expect("much is wrong");
        assert!(
            text.contains("7 keys are at the target again") && !text.contains("the source was"),
            "{text}"
        );
        alarms.not_taken(b"k");
        assert!(alarms.taken.is_some());
        alarms.not_taken(b"k\n1");
        assert!(alarms.taken.is_none());
    }
}
