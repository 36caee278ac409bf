//! What has gone wrong on a source that somebody else uses, or that forgot something: the front can notice it, not mend it.

use crate::direction::Direction;

/// What was noticed. It is told until it is over, as far as its end can be seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Alarms {
    /// A database of the source other than 0 has keys, which do not move.
    pub(crate) other_database: Option<u32>,
    /// The source is another process than when keys began to move. Stays.
    pub(crate) is_source_another: bool,
    /// Keys that the last pass found at the source although they had moved.
    pub(crate) returned: u64,
}

impl Alarms {
    /// For people; `None` where nothing is wrong.
    pub(crate) fn text(&self, direction: Direction) -> Option<String> {
        let (from, to) = (direction.from(), direction.to());
        let other = self.other_database.map(|db| {
            format!(
                "database {db} of the {from} has keys, which do not move: something else writes to the {from}. Take them away \
                 from there, or it is never done"
            )
        });
        let another = self.is_source_another.then(|| {
            format!(
                "the {from} was started again, or is another server. If it lost what it had acknowledged, keys that were deleted \
                 may have come back"
            )
        });
        let returned = (self.returned > 0).then(|| {
            format!(
                "{} keys are at the {from} again although they had moved: something else writes to the {from}, or it lost what it had \
                 acknowledged. What the {to} has is served; delete them at the {from}, or it is never done",
                self.returned
            )
        });
        let all: Vec<String> = [other, another, returned].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_wrong_is_told() {
        assert_eq!(Alarms::default().text(Direction::ToTarget), None);
        let alarms = Alarms { other_database: Some(3), is_source_another: true, returned: 7 };
        let text = alarms.text(Direction::ToTarget).expect("much is wrong");
        for part in ["database 3", "started again", "7 keys are at the source again"] {
            assert!(text.contains(part), "{text}");
        }
        let text = alarms.text(Direction::ToSource).expect("much is wrong");
        assert!(
            text.contains("7 keys are at the target again") && !text.contains("the source was"),
            "{text}"
        );
    }
}
