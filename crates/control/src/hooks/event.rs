//! The events of jobs at which hooks are run.

use std::fmt;
use std::str::FromStr;

use whimbrel_flow::sync::Moment;

use crate::store::Kind;

/// Something that happens to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookEvent {
    /// A process runs the job for the first time.
    Begun,
    /// Another process goes on with it.
    Resumed,
    /// A sync has taken its snapshot, and follows: once for each process.
    Following,
    /// A front moves keys: it was started, or reversed.
    Moving,
    /// All keys of a front have moved.
    Moved,
    /// Slots of a move have their new owner: a batch, or several that came within a moment.
    HandedOver,
    /// It was paused.
    Paused,
    /// It was resumed after that.
    Unpaused,
    /// It cannot get on as it should: a server is silent, or the disk of the state folder is full.
    Trouble,
    /// That is over.
    Recovered,
    /// See [`Moment::Ready`].
    CutoverReady,
    /// See [`Moment::Switch`].
    Switch,
    /// See [`Moment::Refused`].
    CutoverRefused,
    /// It has ended with a cutover; [`HookEvent::Ended`] comes after it.
    CutOver,
    /// It was stopped, and can go on.
    Stopped,
    /// An error has stopped it. A move of slots may have ended with it, and comes to [`HookEvent::Ended`]
    /// then; else the job can go on.
    Failed,
    /// Nothing is left to be done for it.
    Ended,
}

impl HookEvent {
    /// All of them, in the order in which they come.
    pub const ALL: [HookEvent; 17] = [
        HookEvent::Begun,
        HookEvent::Resumed,
        HookEvent::Following,
        HookEvent::Moving,
        HookEvent::Moved,
        HookEvent::HandedOver,
        HookEvent::Paused,
        HookEvent::Unpaused,
        HookEvent::Trouble,
        HookEvent::Recovered,
        HookEvent::CutoverReady,
        HookEvent::Switch,
        HookEvent::CutoverRefused,
        HookEvent::CutOver,
        HookEvent::Stopped,
        HookEvent::Failed,
        HookEvent::Ended,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            HookEvent::Begun => "begun",
            HookEvent::Resumed => "resumed",
            HookEvent::Following => "following",
            HookEvent::Moving => "moving",
            HookEvent::Moved => "moved",
            HookEvent::HandedOver => "handed-over",
            HookEvent::Paused => "paused",
            HookEvent::Unpaused => "unpaused",
            HookEvent::Trouble => "trouble",
            HookEvent::Recovered => "recovered",
            HookEvent::CutoverReady => "cutover-ready",
            HookEvent::Switch => "switch",
            HookEvent::CutoverRefused => "cutover-refused",
            HookEvent::CutOver => "cut-over",
            HookEvent::Stopped => "stopped",
            HookEvent::Failed => "failed",
            HookEvent::Ended => "ended",
        }
    }

    /// Whether it can happen to a job of this kind.
    pub fn is_of(self, kind: Kind) -> bool {
        match self {
            HookEvent::Following
            | HookEvent::CutoverReady
            | HookEvent::Switch
            | HookEvent::CutoverRefused
            | HookEvent::CutOver => kind == Kind::Sync,
            HookEvent::Moving | HookEvent::Moved => kind == Kind::Front,
            HookEvent::HandedOver => kind == Kind::Move,
            HookEvent::Trouble | HookEvent::Recovered => {
                matches!(kind, Kind::Sync | Kind::Move | Kind::Front)
            }
            // A front that cannot go on is run again.
            HookEvent::Failed => kind != Kind::Front,
            HookEvent::Begun
            | HookEvent::Resumed
            | HookEvent::Paused
            | HookEvent::Unpaused
            | HookEvent::Stopped
            | HookEvent::Ended => true,
        }
    }

    /// The names of those that can happen to a job of this kind.
    pub fn names_of(kind: Kind) -> String {
        let names = HookEvent::ALL.into_iter().filter(|event| event.is_of(kind)).map(HookEvent::name);
        names.collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for HookEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for HookEvent {
    type Err = String;

    fn from_str(text: &str) -> Result<HookEvent, String> {
        let found = HookEvent::ALL.into_iter().find(|event| event.name() == text);
        found.ok_or_else(|| {
            let names = HookEvent::ALL.map(HookEvent::name).join(", ");
            format!("there is no event {text}; there are: {names}")
        })
    }
}

impl From<Moment> for HookEvent {
    fn from(moment: Moment) -> HookEvent {
        match moment {
            Moment::Ready => HookEvent::CutoverReady,
            Moment::Switch => HookEvent::Switch,
            Moment::Refused => HookEvent::CutoverRefused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for event in HookEvent::ALL {
            assert_eq!(event.name().parse(), Ok(event));
        }
        let error = "cutover".parse::<HookEvent>().expect_err("there is none");
        assert!(error.contains("begun, resumed, ") && error.ends_with(", ended"), "{error}");
        assert!(!HookEvent::names_of(Kind::Copy).contains("switch"));
        assert!(HookEvent::names_of(Kind::Move).contains("handed-over, paused, "));
        assert!(!HookEvent::names_of(Kind::Front).contains("failed"));
    }
}
