//! A job as the page gets it: as the command line shows it, with what may be done with it now, and how fast
//! it goes.

use serde_json::{Value, json};
use whimbrel_control::jobs::{Ask, Seen};
use whimbrel_control::pace::left_ms;
use whimbrel_control::store::{Entry, Kind};
use whimbrel_flow::budget::RatesNow;

use crate::tokens::Role;

/// The role that it needs.
pub fn needed(ask: Ask) -> Role {
    match ask {
        Ask::Cutover | Ask::GoOn => Role::Administer,
        Ask::Pause | Ask::Resume | Ask::Set | Ask::Cancel => Role::Operate,
    }
}

/// A job, for all who watch.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    object: Value,
    asks: Vec<Ask>,
}

impl Shown {
    /// As it was seen. `goes_on` is the command for an interrupted one, `pace` how many keys it moves in a
    /// second.
    pub fn new(seen: &Seen, goes_on: Option<String>, pace: Option<f64>) -> Shown {
        let mut object = seen.as_object(goes_on);
        // A name that its user gave can be that of several that have ended: it is shown beside.
        object["given_name"] = object["name"].take();
        object["name"] = json!(seen.entry.status.id);
        let Entry { status, running } = &seen.entry;
        let pace = pace.filter(|_| *running);
        object["keys_per_s"] = json!(pace.map(f64::round));
        // Outside of its window, or paused, it moves nothing: how fast it was says nothing.
        let moving = pace.filter(|_| !status.rates.is_paused());
        object["eta_ms"] = json!(moving.and_then(|pace| left_ms(status, pace)));
        object["run_of"] = json!(status.run_of());
        object["state_in_words"] = json!(seen.state_in_words());
        object["whole"] = json!(status.kind == Kind::Verify && is_of_everything(&status.again));
        object["limits"] = json!((status.rates != RatesNow::default()).then(|| status.rates.to_string()));
        Shown { object, asks: seen.asks() }
    }

    /// What somebody of this role gets.
    pub fn for_role(&self, role: Role) -> Value {
        let mut object = self.object.clone();
        let may = self.asks.iter().filter(|ask| needed(**ask) <= role).map(|ask| ask.word());
        object["can"] = may.collect();
        object
    }
}

/// Options with which a comparison leaves keys out, or most of each.
const LEAVES_OUT: [&str; 7] =
    ["--sample", "--match", "--exclude", "--type", "--slots", "--db", "--ignore-extra"];

/// Whether the comparison that this command makes is one of all keys, in full.
fn is_of_everything(command: &[String]) -> bool {
    let leaves_out = |word: &String| LEAVES_OUT.contains(&word.as_str());
    let is_shallow = |words: &[String]| words[0] == "--depth" && words[1] != "full";
    !command.is_empty() && !command.iter().any(leaves_out) && !command.windows(2).any(is_shallow)
}

#[cfg(test)]
mod tests {
    use whimbrel_control::store::Status;

    use super::*;

    fn seen(kind: Kind, phase: &str, running: bool) -> Seen {
        let status = Status { id: "j".to_owned(), kind, phase: phase.to_owned(), ..Status::default() };
        Seen { entry: Entry { status, running }, answers: true, is_elsewhere: false }
    }

    fn can(seen: &Seen, role: Role) -> Vec<String> {
        let shown = Shown::new(seen, None, None).for_role(role);
        serde_json::from_value(shown["can"].clone()).expect("words")
    }

    #[test]
    fn what_is_paused_has_no_time_left() {
        let mut job = seen(Kind::Copy, "copying", true);
        (job.entry.status.keys, job.entry.status.keys_moved) = (1_000, 500);
        let eta = |job: &Seen| Shown::new(job, None, Some(10.0)).for_role(Role::View)["eta_ms"].clone();
        assert_eq!(eta(&job), 50_000);
        job.entry.status.rates.paused_until_s = Some(3_600);
        assert_eq!(eta(&job), Value::Null);
    }

    #[test]
    fn a_comparison_of_a_part_is_distinguished_from_one_of_everything() {
        let is_whole = |command: &str| {
            let mut verify = seen(Kind::Verify, "equal", false);
            verify.entry.status.again = command.split(' ').map(str::to_owned).collect();
            Shown::new(&verify, None, None).for_role(Role::View)["whole"] == true
        };
        assert!(is_whole("verify a:1 b:1") && is_whole("verify a:1 b:1 --depth full --lanes 4"));
        for less in ["--sample 1%", "--match u:*", "--depth meta", "--ignore-extra", "--db 1"] {
            assert!(!is_whole(&format!("verify a:1 b:1 {less}")), "{less}");
        }
        assert_eq!(Shown::new(&seen(Kind::Verify, "equal", false), None, None).object["whole"], false);
    }

    #[test]
    fn a_role_is_offered_what_it_may_do_and_what_is_possible() {
        let sync = seen(Kind::Sync, "following", true);
        assert_eq!(can(&sync, Role::View), [""; 0]);
        assert_eq!(can(&sync, Role::Operate), ["pause", "set", "cancel"]);
        assert_eq!(can(&sync, Role::Administer), ["pause", "set", "cancel", "cutover"]);
        assert_eq!(
            can(&seen(Kind::Sync, "snapshotting", true), Role::Administer),
            ["pause", "set", "cancel"]
        );
        assert_eq!(can(&seen(Kind::Copy, "", false), Role::Operate), ["cancel"]);
        assert_eq!(can(&seen(Kind::Copy, "", false), Role::Administer), ["cancel"]);
        let mut copy = seen(Kind::Copy, "", false);
        copy.entry.status.again = ["copy", "a:1", "b:1", "--resume"].map(str::to_owned).to_vec();
        assert_eq!(can(&copy, Role::Operate), ["cancel"]);
        assert_eq!(can(&copy, Role::Administer), ["cancel", "go-on"]);
        assert_eq!(can(&seen(Kind::Front, "", true), Role::Operate), ["pause"]);
        let mut native = seen(Kind::Move, "streaming", true);
        native.entry.status.method = "native".to_owned();
        assert_eq!(can(&native, Role::Operate), ["cancel"]);
        native.entry.status.ended = true;
        assert_eq!(can(&native, Role::Administer), [""; 0]);
        let silent = Seen { answers: false, ..seen(Kind::Copy, "", true) };
        assert_eq!(can(&silent, Role::Administer), [""; 0]);
        let others = Seen { is_elsewhere: true, ..seen(Kind::Move, "streaming", true) };
        assert_eq!(can(&others, Role::Administer), [""; 0]);
    }
}
