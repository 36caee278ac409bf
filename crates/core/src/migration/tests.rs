mod failovers;
mod resuming;

use super::*;
use crate::node::NodeId;
use crate::slot::SlotSet;

fn node(sign: char) -> NodeId {
    sign.to_string().repeat(40).parse().unwrap()
}

fn process(name: &str) -> Process {
    Process(name.to_owned())
}

fn slots(text: &str) -> SlotSet {
    text.parse().unwrap()
}

fn job_with(rules: Rules) -> Job {
    Job::new("test-1".parse().unwrap(), node('a'), node('b'), [slots("0-9"), slots("10-14")], rules)
}

/// A job, and what it asked for last.
struct Run {
    job: Job,
    effect: Option<Effect>,
}

impl Run {
    fn new(rules: Rules) -> Run {
        let mut run = Run { job: job_with(rules), effect: None };
        run.take_in(Event::Start);
        run
    }

    /// A run that has come to the point where this action is asked for, by doing everything that is asked
    /// for.
    fn until(name: &str) -> Run {
        let mut run = Run::new(Rules::default());
        run.go_to(name);
        run
    }

    /// The same with a fence that takes over as well.
    fn until_with_one_fence(name: &str) -> Run {
        let mut run = Run::until("pause");
        run.done(Detail::Paused { takes_over: true });
        run.go_to(name);
        run
    }

    fn go_to(&mut self, name: &str) {
        for _ in 0..50 {
            if self.asked() == name {
                return;
            }
            self.do_it();
        }
        panic!("{name} is never asked for; now {:?}", self.job.phase());
    }

    /// The names of all that is asked for from now on, if everything is done.
    fn rest(&mut self) -> Vec<&'static str> {
        let mut names = Vec::new();
        while self.effect.is_some() {
            names.push(self.asked());
            self.do_it();
            assert!(names.len() < 100, "no end: {names:?}");
        }
        names
    }

    fn take_in(&mut self, event: Event) {
        let mut effects = Vec::new();
        step(&mut self.job, event, &mut effects).expect("the event fits");
        assert!(effects.len() <= 1, "one thing at a time");
        if let Some(effect) = effects.pop() {
            self.effect = Some(effect);
        } else if self.job.in_flight().is_none() {
            self.effect = None;
        }
        assert_eq!(self.effect.as_ref(), self.job.in_flight());
        let journal = serde_json::to_string(&self.job).unwrap();
        assert_eq!(serde_json::from_str::<Job>(&journal).unwrap(), self.job, "the journal keeps everything");
    }

    fn asked(&self) -> &'static str {
        self.effect.as_ref().map_or("nothing", |effect| effect.action.name())
    }

    fn end(&mut self, outcome: Outcome) {
        let effect = self.effect.take().expect("something is asked for");
        self.take_in(Event::Finished { effect, outcome });
    }

    fn done(&mut self, detail: Detail) {
        self.end(Outcome::Done(detail));
    }

    fn refused(&mut self, why: Why) {
        self.end(Outcome::Refused(Reason::new(why, why.name())));
    }

    fn unknown(&mut self) {
        self.end(Outcome::Unknown { message: "timed out".to_owned() });
    }

    /// Does what is asked for. What is observed is what it should be in a cluster in which nothing else
    /// happens.
    fn do_it(&mut self) {
        let effect = self.effect.as_ref().expect("something is asked for");
        let detail = match &effect.action {
            Action::Check => Detail::Checked { source: process("s1"), target: process("t1"), pause_ms: 5 },
            Action::Snapshot => Detail::Moved { keys: 100, bytes: 1000 },
            Action::Drain { .. } => Detail::Moved { keys: 3, bytes: 30 },
            Action::CleanUp | Action::Wipe => Detail::Moved { keys: 0, bytes: 0 },
            Action::CatchUp { .. } => {
                Detail::CaughtUp { keys: 10, bytes: 100, left: 3, drain_ms: 2, fixed_ms: 2, pause_ms: 2 }
            }
            Action::Pause { .. } => Detail::Paused { takes_over: false },
            Action::Compare { .. } => Detail::Compared { keys: 5 },
            Action::Fence => Detail::Fenced { held: true },
            Action::Release => Detail::Released { paused_ms: 7 },
            Action::LiftPause => Detail::Released { paused_ms: 0 },
            Action::Observe { .. } => Detail::Observed(Box::new(self.owned_by_source())),
            _ => Detail::Nothing,
        };
        self.done(detail);
    }

    fn seen(&self, sign: char, name: &str, claims: &SlotSet, keys: u64) -> Seen {
        Seen::Primary(Primary { node: node(sign), process: process(name), claims: claims.clone(), keys })
    }

    fn batch_slots(&self) -> SlotSet {
        self.job.batch().unwrap().slots.clone()
    }

    fn owned_by_source(&self) -> Observation {
        let (all, none) = (self.batch_slots(), SlotSet::new());
        Observation {
            source: self.seen('a', "s1", &all, 100),
            target: self.seen('b', "t1", &none, 100),
            elsewhere: SlotSet::new(),
        }
    }

    fn owned_by_nobody(&self) -> Observation {
        let none = SlotSet::new();
        Observation {
            source: self.seen('a', "s1", &none, 100),
            target: self.seen('b', "t1", &none, 100),
            elsewhere: SlotSet::new(),
        }
    }

    fn owned_by_target(&self) -> Observation {
        let (all, none) = (self.batch_slots(), SlotSet::new());
        Observation {
            source: self.seen('a', "s1", &none, 100),
            target: self.seen('b', "t1", &all, 100),
            elsewhere: SlotSet::new(),
        }
    }

    fn saw(&mut self, observation: Observation) {
        assert_eq!(self.asked(), "observe");
        self.done(Detail::Observed(Box::new(observation)));
    }

    fn failure(&self) -> Why {
        match self.job.phase() {
            Phase::Ended(End::Failed(reason)) => reason.why,
            phase => panic!("not failed: {phase:?}"),
        }
    }
}

const FORWARD: [&str; 12] = [
    "check",
    "mark-importing",
    "attach",
    "snapshot",
    "catch-up",
    "pause",
    "drain",
    "compare",
    "fence",
    "take-over",
    "release",
    "confirm",
];
const BEFORE_FENCE: [&str; 7] =
    ["mark-importing", "attach", "snapshot", "catch-up", "pause", "drain", "compare"];
const UNDONE: [&str; 5] = ["observe", "lift-pause", "wipe", "clear-marks", "detach"];
const ROLLBACK: [&str; 3] = ["lift-pause", "wipe", "clear-marks"];

/// As after a crash: the job is read from the journal, and goes on.
fn crash(run: &mut Run) {
    run.effect = None;
    run.take_in(Event::Resume);
}

// ---- Forward ----

#[test]
fn two_batches_are_handed_over_one_after_another() {
    let mut run = Run::new(Rules::default());
    let mut expected: Vec<&str> = Vec::new();
    for _ in 0..2 {
        expected.extend(FORWARD);
        expected.push("clean-up");
    }
    expected.push("detach");
    assert_eq!(run.rest(), expected);
    assert_eq!(run.job.phase(), &Phase::Ended(End::Done));
    assert_eq!(run.job.slots_handed_over(), slots("0-14"));
    assert!(run.job.batches().iter().all(|batch| batch.state == BatchState::HandedOver));
    let summary = run.job.summary();
    assert_eq!((summary.work.keys, summary.work.touched, summary.work.bytes), (226, 26, 2260));
    assert_eq!((summary.work.pauses, summary.work.paused_ms, summary.work.longest_pause_ms), (2, 14, 7));
    assert_eq!(summary.to_string(), "done, 15 of 15 slots, 226 keys, 2 pauses (longest 7 ms)");
}

#[test]
fn effects_name_the_nodes_and_the_slots_of_the_batch() {
    let mut run = Run::until("fence");
    let effect = run.effect.clone().unwrap();
    assert_eq!((effect.source, effect.target, effect.slots), (node('a'), node('b'), slots("0-9")));
    run.go_to("clean-up");
    run.do_it();
    assert_eq!(run.effect.as_ref().unwrap().slots, slots("10-14"));
    assert_eq!(run.job.phase().to_string(), "preparing");
}

#[test]
fn a_job_without_slots_is_done_at_once() {
    let job = Job::new("empty".parse().unwrap(), node('a'), node('b'), [SlotSet::new()], Rules::default());
    let mut run = Run { job, effect: None };
    run.take_in(Event::Start);
    assert_eq!(run.rest(), ["detach"]);
    assert_eq!(run.job.phase(), &Phase::Ended(End::Done));
}

#[test]
fn without_verification_nothing_is_compared() {
    let mut run = Run::new(Rules { verify: Verify::None, ..Rules::default() });
    assert!(!run.rest().contains(&"compare"));
    assert!(!run.job.summary().verified);
}

// ---- Catching up ----

fn caught_up(left: u64, drain_ms: u64) -> Detail {
    Detail::CaughtUp { keys: 0, bytes: 0, left, drain_ms, fixed_ms: 0, pause_ms: 0 }
}

fn brake(run: &Run) -> u8 {
    match run.effect.as_ref().map(|effect| &effect.action) {
        Some(Action::CatchUp { brake_percent }) => *brake_percent,
        other => panic!("not catching up: {other:?}"),
    }
}

#[test]
fn the_pause_comes_when_the_rest_fits_into_half_of_it() {
    let mut run = Run::until("catch-up");
    run.done(caught_up(1000, 51));
    assert_eq!(run.asked(), "catch-up");
    run.done(caught_up(100, 50));
    assert_eq!(run.effect.as_ref().unwrap().action, Action::Pause { pause_ms: 100 });
}

#[test]
fn a_longer_pause_that_is_allowed_meanwhile_is_gone_by() {
    let mut run = Run::until("catch-up");
    run.done(caught_up(1000, 140));
    assert_eq!(run.asked(), "catch-up");
    run.job.allow_pause(300);
    run.done(caught_up(1000, 140));
    assert_eq!(run.effect.as_ref().unwrap().action, Action::Pause { pause_ms: 300 });
}

#[test]
fn pauses_in_vain_do_not_make_round_trips_shorter() {
    let mut run = Run::until("catch-up");
    let beside_writers =
        |left, drain_ms| Detail::CaughtUp { keys: 0, bytes: 0, left, drain_ms, fixed_ms: 90, pause_ms: 60 };
    for _ in 0..3 {
        run.done(beside_writers(16, 91));
        assert_eq!(run.asked(), "pause");
        run.done(Detail::Paused { takes_over: false });
        run.refused(Why::TooSlow);
        run.done(Detail::Released { paused_ms: 100 });
    }
    // The keys get less of the pause with each.
    run.done(beside_writers(300, 94));
    assert_eq!(run.asked(), "catch-up");
}

#[test]
fn a_pause_that_is_too_short_beside_writers_is_given_up_before_it() {
    let mut run = Run::until("catch-up");
    let beside_writers =
        || Detail::CaughtUp { keys: 0, bytes: 0, left: 9, drain_ms: 121, fixed_ms: 120, pause_ms: 60 };
    for _ in 1..8 {
        run.done(beside_writers());
        assert_eq!(run.asked(), "catch-up");
        assert_eq!(brake(&run), 0);
    }
    run.done(beside_writers());
    assert_ne!(run.asked(), "catch-up");
    run.rest();
    assert_eq!(run.failure(), Why::PauseTooShort);
}

#[test]
fn writers_that_outrun_the_catch_up_are_held_back_more_and_more_but_never_all_the_time() {
    let mut run = Run::until("catch-up");
    let mut brakes = Vec::new();
    for _ in 0..7 {
        brakes.push(brake(&run));
        run.done(caught_up(1_000_000, 9000));
    }
    assert_eq!(brakes, [0, 0, 20, 40, 60, 80, 80]);
    assert_eq!(run.job.summary().brake_percent, 80);
    run.done(caught_up(10, 1));
    assert_eq!(run.asked(), "pause");
}

#[test]
fn without_brake_a_job_that_cannot_converge_says_so_and_rolls_back() {
    let mut run = Run::new(Rules { brake: false, ..Rules::default() });
    run.go_to("catch-up");
    let mut rounds = 0;
    while run.asked() == "catch-up" {
        assert_eq!(brake(&run), 0);
        run.done(caught_up(1_000_000, 9000));
        rounds += 1;
        assert!(rounds < 50);
    }
    assert_eq!(run.rest(), ["lift-pause", "wipe", "clear-marks", "detach"]);
    assert_eq!(run.failure(), Why::NotConverging);
    assert_eq!(run.job.batches()[0].state, BatchState::RolledBack);
    let message = run.job.summary().reason.unwrap().message;
    assert!(
        message.contains("1000000 keys still wait") && message.contains("may not be slowed down"),
        "{message}"
    );
}

#[test]
fn with_brake_too_there_is_an_end_of_it() {
    let mut run = Run::new(Rules { rounds_max: 12, ..Rules::default() });
    run.go_to("catch-up");
    for _ in 0..12 {
        assert_eq!(run.asked(), "catch-up");
        run.done(caught_up(1_000_000, 9000));
    }
    assert_eq!(run.asked(), "lift-pause");
    run.rest();
    assert_eq!(run.failure(), Why::NotConverging);
}

#[test]
fn a_drain_that_takes_too_long_is_tried_again_some_times_then_rolled_back() {
    let mut run = Run::new(Rules { pauses_max: 3, ..Rules::default() });
    for in_vain in 1..=3 {
        run.go_to("drain");
        run.refused(Why::TooSlow);
        assert_eq!(run.asked(), "lift-pause");
        assert_eq!(run.job.phase().name(), "streaming");
        run.done(Detail::Released { paused_ms: 100 });
        // From the second on, writers are slowed.
        assert_eq!(brake(&run), (in_vain - 1) * 20);
    }
    // What the estimate must be below gets smaller, too.
    run.done(caught_up(10, 21));
    assert_eq!(run.asked(), "catch-up");
    run.done(caught_up(5, 20));
    assert_eq!(run.asked(), "pause");
    run.go_to("drain");
    run.refused(Why::TooSlow);
    assert_eq!(run.rest(), ["lift-pause", "wipe", "clear-marks", "detach"]);
    assert_eq!(run.failure(), Why::TooSlow);
    assert_eq!(run.job.summary().work.pauses, 3);
    assert_eq!(run.job.summary().work.longest_pause_ms, 100);
}

#[test]
fn an_expired_pause_is_given_back_and_caught_up_once_more_with_what_is_staged() {
    let mut run = Run::until("fence");
    run.done(Detail::Fenced { held: false });
    assert_eq!(run.asked(), "give-back");
    run.do_it();
    assert_eq!(run.asked(), "mark-importing");
    run.do_it();
    assert_eq!(run.asked(), "catch-up", "no snapshot again");
    run.go_to("detach");
    run.do_it();
    assert_eq!(run.job.phase(), &Phase::Ended(End::Done));
}

#[test]
fn a_pause_that_always_expires_ends_in_a_rollback() {
    let mut run = Run::new(Rules { pauses_max: 2, ..Rules::default() });
    for _ in 0..3 {
        run.go_to("fence");
        run.done(Detail::Fenced { held: false });
        assert_eq!(run.asked(), "give-back");
    }
    assert_eq!(run.rest(), ["give-back", "lift-pause", "wipe", "clear-marks", "detach"]);
    assert_eq!(run.failure(), Why::TooSlow);
}

// ---- Cancelling ----

#[test]
fn cancelling_before_the_fence_rolls_back() {
    for name in BEFORE_FENCE {
        let mut run = Run::until(name);
        run.take_in(Event::Cancel);
        assert!(run.job.is_cancelling());
        assert!(run.effect.as_ref().unwrap().action.may_be_interrupted(), "{name}");
        run.refused(Why::Interrupted);
        assert_eq!(run.rest(), UNDONE, "{name}");
        assert_eq!(run.job.phase(), &Phase::Ended(End::Cancelled), "{name}");
        assert_eq!(run.job.batches()[0].state, BatchState::RolledBack);
        assert_eq!(run.job.batches()[1].state, BatchState::Waiting);

        // The same if the effect is finished first.
        let mut run = Run::until(name);
        run.take_in(Event::Cancel);
        run.do_it();
        assert_eq!(run.rest(), ["lift-pause", "wipe", "clear-marks", "detach"], "{name}");
        assert_eq!(run.job.phase(), &Phase::Ended(End::Cancelled), "{name}");
    }
}

#[test]
fn cancelling_before_anything_was_changed_touches_nothing() {
    let mut run = Run::new(Rules::default());
    run.take_in(Event::Cancel);
    run.do_it();
    assert_eq!(run.rest(), ["detach"]);
    assert_eq!(run.job.phase(), &Phase::Ended(End::Cancelled));

    let mut job = job_with(Rules::default());
    step(&mut job, Event::Cancel, &mut Vec::new()).unwrap();
    assert_eq!(job.phase(), &Phase::Ended(End::Cancelled));
}

#[test]
fn cancelling_from_the_fence_on_ends_the_job_after_the_batch() {
    for name in ["fence", "take-over", "release", "confirm", "clean-up"] {
        let mut run = Run::until(name);
        run.take_in(Event::Cancel);
        let rest = run.rest();
        assert_eq!(rest[rest.len() - 2..], ["clean-up", "detach"], "{name}");
        assert!(!rest.contains(&"check") && !rest.contains(&"wipe"), "{name}");
        assert_eq!(run.job.phase(), &Phase::Ended(End::Cancelled), "{name}");
        assert_eq!(run.job.slots_handed_over(), slots("0-9"));
    }
    // In the last batch there is nothing left to cancel.
    let mut run = Run::until("clean-up");
    run.do_it();
    run.go_to("fence");
    run.take_in(Event::Cancel);
    run.rest();
    assert_eq!(run.job.phase(), &Phase::Ended(End::Done));
}

#[test]
fn cancelling_a_batch_that_would_start_again_or_be_caught_up_ends_it() {
    let mut run = Run::until("snapshot");
    run.refused(Why::FeedLost);
    run.take_in(Event::Cancel);
    run.rest();
    assert_eq!(run.job.phase(), &Phase::Ended(End::Cancelled));

    let mut run = Run::until("fence");
    run.take_in(Event::Cancel);
    run.done(Detail::Fenced { held: false });
    assert_eq!(run.rest(), ["give-back", "lift-pause", "wipe", "clear-marks", "detach"]);
    assert_eq!(run.job.phase(), &Phase::Ended(End::Cancelled));
}

// ---- Refusals before the fence ----

#[test]
fn what_may_work_the_next_time_is_tried_again_from_the_start_some_times() {
    for why in [Why::Transient, Why::FeedLost, Why::Flushed] {
        let mut run = Run::new(Rules { attempts_max: 3, ..Rules::default() });
        for attempt in 1..=3 {
            assert_eq!(run.job.summary().attempt, attempt);
            run.go_to("catch-up");
            run.refused(why);
            run.do_it();
            for expected in ROLLBACK {
                assert_eq!(run.asked(), expected);
                run.do_it();
            }
        }
        assert_eq!(run.rest(), ["detach"]);
        assert_eq!(run.failure(), why);
    }
}

#[test]
fn what_will_not_work_the_next_time_rolls_back_at_once() {
    let hopeless = [
        Why::Permanent,
        Why::Forbidden,
        Why::Busy,
        Why::OutOfMemory,
        Why::Differs,
        Why::TooLarge,
        Why::PauseTooShort,
        Why::NotConverging,
    ];
    for why in hopeless {
        for name in BEFORE_FENCE {
            let mut run = Run::until(name);
            run.refused(why);
            assert_eq!(run.rest(), UNDONE, "{why:?} at {name}");
            assert_eq!(run.failure(), why);
        }
    }
}

#[test]
fn a_check_that_finds_somebody_else_touches_nothing() {
    for why in [Why::Busy, Why::OwnerChanged, Why::Forbidden, Why::Permanent] {
        let mut run = Run::new(Rules::default());
        run.refused(why);
        assert_eq!(run.rest(), ["detach"], "{why:?}");
        assert_eq!(run.failure(), why);
    }
}

#[test]
fn batches_that_were_handed_over_stay_so_when_a_later_one_fails() {
    let mut run = Run::until("clean-up");
    run.do_it();
    run.go_to("snapshot");
    run.refused(Why::OutOfMemory);
    run.rest();
    assert_eq!(run.failure(), Why::OutOfMemory);
    assert_eq!(run.job.slots_handed_over(), slots("0-9"));
    assert_eq!(run.job.batches()[1].state, BatchState::RolledBack);
    let summary = run.job.summary().to_string();
    assert!(summary.starts_with("failed, batch 2 of 2, 10 of 15 slots"), "{summary}");
}

#[test]
fn a_rollback_that_does_not_work_is_looked_into_and_in_the_end_left_to_a_person() {
    let mut run = Run::new(Rules { troubles_max: 3, ..Rules::default() });
    run.go_to("snapshot");
    run.refused(Why::OutOfMemory);
    for _ in 0..2 {
        run.go_to("wipe");
        run.refused(Why::Transient);
        assert_eq!(run.asked(), "observe");
    }
    run.go_to("wipe");
    run.unknown();
    assert_eq!(run.job.phase().name(), "suspended");
    // The process that resumes it gets what was intended.
    run.take_in(Event::Resume);
    run.rest();
    assert_eq!(run.failure(), Why::OutOfMemory);
}

#[test]
fn a_pause_whose_lifting_is_in_doubt_is_cleared_up_before_the_next_one() {
    // A late CLIENT UNPAUSE would end the pause that a later fence relies on.
    for why in [Why::Unknown, Why::Transient] {
        let mut run = Run::until("drain");
        run.refused(Why::TooSlow);
        assert_eq!(run.asked(), "lift-pause");
        run.refused(why);
        assert_eq!(run.asked(), "observe");
        run.do_it();
        assert_eq!(run.asked(), "lift-pause");
        run.refused(why);
        assert_eq!(run.asked(), "observe");
    }
    // A feed that was refused permanently will not come.
    let mut run = Run::until("drain");
    run.refused(Why::TooSlow);
    run.refused(Why::SourceChanged);
    assert_eq!(run.asked(), "catch-up");
}

// ---- What does not fit ----

#[test]
fn events_that_do_not_fit_are_rejected_and_change_nothing() {
    let mut effects = Vec::new();
    let mut run = Run::until("snapshot");
    let before = run.job.clone();
    let stale = Effect { action: Action::Attach, ..run.effect.clone().unwrap() };
    let cases = [
        (Event::Start, Reject::OutOfPhase { phase: "snapshotting", event: "started" }),
        (
            Event::Finished { effect: stale, outcome: Outcome::Done(Detail::Nothing) },
            Reject::NotInFlight { finished: "attach", in_flight: "snapshot" },
        ),
        (
            Event::Finished { effect: run.effect.clone().unwrap(), outcome: Outcome::Done(Detail::Nothing) },
            Reject::WrongDetail { finished: "snapshot" },
        ),
    ];
    for (event, expected) in cases {
        assert_eq!(step(&mut run.job, event, &mut effects).unwrap_err(), expected);
        assert_eq!(run.job, before);
    }
    run.rest();
    for (event, name) in [(Event::Resume, "resumed"), (Event::Cancel, "cancelled"), (Event::Start, "started")]
    {
        let error = step(&mut run.job, event, &mut effects).unwrap_err();
        assert_eq!(error, Reject::OutOfPhase { phase: "done", event: name });
    }
    let effect = before.in_flight().unwrap().clone();
    let late = Event::Finished { effect, outcome: Outcome::Done(Detail::Moved { keys: 0, bytes: 0 }) };
    let error = step(&mut run.job, late, &mut effects).unwrap_err();
    assert_eq!(error, Reject::NotInFlight { finished: "snapshot", in_flight: "nothing" });
    assert_eq!(effects, []);
}

#[test]
fn names_of_jobs_fit_where_servers_show_them() {
    assert_eq!("reshard-0a1b".parse::<JobId>().unwrap().as_str(), "reshard-0a1b");
    for text in ["", "Reshard", "a b", "é", &"a".repeat(41)] {
        assert_eq!(text.parse::<JobId>().unwrap_err(), JobIdError { text: text.to_owned() });
    }
    assert!(serde_json::from_str::<JobId>("\"A\"").is_err());
}

// ---- All slots at once ----

fn atomic() -> Run {
    Run::new(Rules { atomic: true, ..Rules::default() })
}

/// An atomic job: the target took a part of it, while the source claims the rest again.
fn divided() -> Run {
    let mut run = atomic();
    run.go_to("take-over");
    run.unknown();
    let (taken, rest) = (slots("0-4"), slots("5-14"));
    let target = run.seen('b', "t1", &taken, 100);
    let observation =
        Observation { source: run.seen('a', "s2", &rest, 100), target, ..run.owned_by_nobody() };
    run.saw(observation);
    assert_eq!(run.asked(), "release");
    assert!(run.job.is_divided());
    run
}

#[test]
fn an_atomic_job_has_one_handover_for_all_slots() {
    let mut run = atomic();
    assert_eq!(run.effect.as_ref().unwrap().slots, slots("0-14"));
    let all = run.rest();
    assert_eq!(all.iter().filter(|name| **name == "fence").count(), 1, "{all:?}");
    assert_eq!(run.job.slots_handed_over(), slots("0-14"));
}

#[test]
fn an_atomic_job_that_is_divided_goes_forward_although_it_is_cancelled() {
    let mut run = divided();
    run.take_in(Event::Cancel);
    run.rest();
    assert_eq!(run.job.phase(), &Phase::Ended(End::Done));
    assert_eq!(run.job.slots_handed_over(), slots("0-14"));
}

#[test]
fn an_atomic_job_that_is_divided_waits_where_it_would_fail() {
    let mut run = divided();
    run.go_to("snapshot");
    run.refused(Why::OutOfMemory);
    run.rest();
    let Phase::Suspended { reason, .. } = run.job.phase() else { panic!("{:?}", run.job.phase()) };
    assert_eq!(reason.why, Why::OutOfMemory);
    run.take_in(Event::Resume);
    run.rest();
    assert_eq!(run.job.phase(), &Phase::Ended(End::Done));

    // A person who has seen how it stands may end it.
    let mut run = divided();
    run.go_to("snapshot");
    run.refused(Why::OutOfMemory);
    run.rest();
    run.take_in(Event::Cancel);
    run.rest();
    assert_eq!(run.job.phase(), &Phase::Ended(End::Cancelled));
    assert_eq!(run.job.slots_handed_over(), slots("0-4"));
}

#[test]
fn a_pause_that_cannot_suffice_is_found_before_anything_is_staged() {
    let mut run = atomic();
    run.done(Detail::Checked { source: process("s1"), target: process("t1"), pause_ms: 101 });
    assert_eq!(run.rest(), ["detach"]);
    assert_eq!(run.failure(), Why::PauseTooShort);

    // Or when it turns out, without slowing any client down.
    let mut run = Run::until("catch-up");
    run.done(Detail::CaughtUp { keys: 0, bytes: 0, left: 0, drain_ms: 101, fixed_ms: 101, pause_ms: 101 });
    assert_eq!(run.rest(), UNDONE[1..]);
    assert_eq!(run.failure(), Why::PauseTooShort);
}
