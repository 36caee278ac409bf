//! `whimbrel serve --fleet`: what of a fleet is told.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
#[cfg(feature = "etcd")]
use whimbrel_control::fleet::etcd::CandidateOptions;
use whimbrel_control::fleet::{Coordinator, Fleet, FleetOptions, FleetStatus, MemberStatus, Role};
use whimbrel_core::fleet::Options;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result, Side};

use crate::settings::args::{CoordinatorArgs, ServeArgs};

/// The file in the state folder.
const JOURNAL: &str = "fleet.journal";

/// Moves that a member takes part in at once.
const MOVES_PER_MEMBER: u32 = 32;

/// Opens the journal of the fleet: in the store, or in the state folder.
///
/// # Errors
/// `Options` for those that make no sense; else as [`Coordinator::alone`] and [`Coordinator::among_others`].
pub async fn open(args: &ServeArgs, folder: &Path) -> Result<(Fleet, Coordinator)> {
    let options = options(&args.coordinator)?;
    match args.coordinator.store {
        Some(_) => open_store(args, options).await,
        None => Coordinator::alone(folder, JOURNAL, options),
    }
}

/// What a coordinator is, for people and as JSON.
pub fn described(coordinator: &Coordinator, line: &mut Value) -> String {
    match coordinator {
        Coordinator::Alone(coordination) => {
            let term = coordination.term();
            line["term"] = json!(term);
            format!("a fleet in its term {term}")
        }
        #[cfg(feature = "etcd")]
        Coordinator::Candidate(candidate) => {
            let store = candidate.store().to_string();
            line["store"] = json!(store);
            format!("one of the coordinators of the fleet in {store}, stands by until it is elected")
        }
    }
}

#[cfg(feature = "etcd")]
async fn open_store(args: &ServeArgs, fleet: FleetOptions) -> Result<(Fleet, Coordinator)> {
    let unfit = |what: String| Error::options(Side::Own, "reading the options", what);
    if args.coordinator.announce.is_none() && args.listen.ip().to_canonical().is_unspecified() {
        let what =
            format!("others would be told that this coordinator is at {}, which is no address", args.listen);
        return Err(unfit(what).with_remedy("say where it is reached with --announce HOST:PORT"));
    }
    let store = args.coordinator.etcd()?.ok_or_else(|| unfit("no store is named".to_owned()))?;
    let options = CandidateOptions { store, fleet, reign_s: args.coordinator.reign };
    Coordinator::among_others(options).await
}

#[cfg(not(feature = "etcd"))]
async fn open_store(_: &ServeArgs, _: FleetOptions) -> Result<(Fleet, Coordinator)> {
    let what = "this whimbrel was built without etcd";
    Err(Error::options(Side::Own, "reading the options", what)
        .with_remedy("leave --store out, or build it with the feature etcd"))
}

/// # Errors
/// `Options` for a backend that is no address or has a password.
fn options(args: &CoordinatorArgs) -> Result<FleetOptions> {
    for (name, url) in &args.backend {
        let endpoint = Endpoint::parse(Side::Own, url).map_err(|e| {
            Error::options(Side::Own, "reading the options", format!("the address of --backend {name}: {e}"))
        })?;
        if endpoint.password.is_some() {
            let what = format!("--backend {name} has a password, and all members would be told");
            return Err(Error::options(Side::Own, "reading the options", what)
                .with_remedy("leave it out: each member gets the password from the one who starts it"));
        }
    }
    let machine = Options { lease_ms: args.lease, moves_per_member: MOVES_PER_MEMBER, ..Options::default() };
    Ok(FleetOptions { partitions: args.partitions, backends: args.backend.clone(), machine })
}

/// What has become of this process where there are several coordinators, as a line for people and as JSON.
pub fn turn(role: &Role) -> (String, Value) {
    match role {
        Role::Leads(term) => {
            (format!("leads    the fleet in its term {term}"), json!({"event": "leads", "term": term}))
        }
        Role::StandsBy { leader, why } => {
            let mut words = "stands by".to_owned();
            if let Some(leader) = leader {
                words.push_str(&format!("; {leader} leads the fleet"));
            }
            if let Some(why) = why {
                words.push_str(&format!("; {why}"));
            }
            (words, json!({"event": "stands-by", "leader": leader, "why": why}))
        }
    }
}

/// What is different between two looks, as lines for people and as JSON.
pub fn news(before: &FleetStatus, now: &FleetStatus) -> Vec<(String, Value)> {
    let by_number = |status: &FleetStatus| -> BTreeMap<u32, MemberStatus> {
        status.members.iter().map(|member| (member.member, member.clone())).collect()
    };
    let (old, new) = (by_number(before), by_number(now));
    let mut news = Vec::new();
    let mut say = |event: &str, member: &MemberStatus, words: &str| {
        let MemberStatus { member: number, name, address, .. } = member;
        news.push((
            format!("member {number}  {name} at {address}: {words}"),
            json!({"event": event, "member": number, "name": name, "address": address,
                "weight": member.weight}),
        ));
    };
    for (number, member) in &new {
        match old.get(number) {
            // It was a member before this coordinator began, which does not know its name until it connects
            // again.
            None if !member.connected => {}
            None => say("joined", member, "has joined"),
            Some(was) if member.leaving && !was.leaving => say("leaving", member, "leaves"),
            Some(was) if member.connected && !was.connected => say("connected", member, "is connected again"),
            Some(was) if !member.connected && was.connected => say("lost", member, "is not connected"),
            Some(was) if member.weight != was.weight => {
                say("weighed", member, &format!("has weight {} now", member.weight));
            }
            Some(_) => {}
        }
    }
    for (_, member) in old.iter().filter(|(number, _)| !new.contains_key(number)) {
        let words = match member {
            member if member.leaving => "has left",
            // One that was drained leaves between two looks.
            member if member.owned == 0 => "is gone; it had no partitions",
            _ => "is lost; its partitions go to others",
        };
        say("gone", member, words);
    }
    if now.is_settled() && !before.is_settled() && !now.members.is_empty() {
        news.push((
            format!("settled  {} partitions at {} members", now.partitions, now.members.len()),
            json!({"event": "settled", "partitions": now.partitions, "members": now.members.len(),
                "moved": now.moved}),
        ));
    }
    news
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u32) -> MemberStatus {
        MemberStatus {
            member: number,
            weight: 1,
            connected: true,
            equal: Some(true),
            ..MemberStatus::default()
        }
    }

    fn events(before: &FleetStatus, now: &FleetStatus) -> Vec<String> {
        news(before, now)
            .iter()
            .map(|(_, json)| json["event"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    #[test]
    fn what_happens_to_members_is_told_once() {
        let with = |members: Vec<MemberStatus>| FleetStatus { members, ..FleetStatus::default() };
        let both = with(vec![member(1), member(2)]);
        assert_eq!(events(&with(vec![member(1)]), &both), ["joined"]);
        assert_eq!(events(&both, &both), [""; 0]);
        let leaving = with(vec![member(1), MemberStatus { leaving: true, ..member(2) }]);
        assert_eq!(events(&both, &leaving), ["leaving"]);
        assert_eq!(events(&leaving, &with(vec![member(1)])), ["gone"]);
        let lost = with(vec![member(1), MemberStatus { connected: false, equal: None, ..member(2) }]);
        assert_eq!(events(&both, &lost), ["lost"]);
        assert_eq!(events(&lost, &both), ["connected", "settled"]);
        // A coordinator that begins knows its members, and what they are called once they are there.
        assert_eq!(events(&with(vec![]), &lost), ["joined"]);
    }

    #[test]
    fn only_a_member_with_partitions_is_lost() {
        let ended = |member: MemberStatus| {
            let before = FleetStatus { members: vec![member], ..FleetStatus::default() };
            news(&before, &FleetStatus::default())[0].0.clone()
        };
        assert!(ended(MemberStatus { owned: 3, ..member(1) }).contains("is lost"));
        assert!(ended(MemberStatus { owned: 3, leaving: true, ..member(1) }).contains("has left"));
        let drained = ended(MemberStatus { weight: 0, ..member(1) });
        assert!(drained.contains("is gone") && !drained.contains("lost"), "{drained}");
    }
}
