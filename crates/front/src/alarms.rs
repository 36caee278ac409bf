//! What has gone wrong on a source that somebody else uses, or that forgot something: the front can notice it, not mend it.

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
    pub(crate) fn text(&self) -> Option<String> {
        let other = self.other_database.map(|db| {
            format!(
                "database {db} of the source has keys, which do not move: something else writes to the source. Take them away \
                 from there, or it is never done"
            )
        });
        let another = self.is_source_another.then(|| {
            "the source was started again, or is another server. If it lost what it had acknowledged, keys that were deleted may \
             have come back"
                .to_owned()
        });
        let returned = (self.returned > 0).then(|| {
            format!(
                "{} keys are at the source again although they had moved: something else writes to the source, or it lost what it had \
                 acknowledged. What the target has is served; delete them at the source, or it is never done",
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
        assert_eq!(Alarms::default().text(), None);
        let alarms = Alarms { other_database: Some(3), is_source_another: true, returned: 7 };
        let text = alarms.text().expect("much is wrong");
        for part in ["database 3", "started again", "7 keys are at the source again"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
