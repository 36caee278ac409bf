//! What happens in a fleet, as lines for people and as JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::handle::Role;
use super::status::{FleetStatus, MemberStatus};

/// What has become of this process if there are several coordinators, as a line for people and as JSON.
pub fn describe(role: &Role) -> (String, Value) {
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
            // It may have begun to leave after the last look.
            member if member.leaving || now.left.contains(&member.member) => "has left",
            // A member that was drained leaves between two looks.
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
    fn what_happens_to_members_is_reported_once() {
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
        let before =
            FleetStatus { members: vec![MemberStatus { owned: 3, ..member(1) }], ..Default::default() };
        let quick = news(&before, &FleetStatus { left: vec![1], ..Default::default() })[0].0.clone();
        assert!(quick.contains("has left"), "{quick}");
        let drained = ended(MemberStatus { weight: 0, ..member(1) });
        assert!(drained.contains("is gone") && !drained.contains("lost"), "{drained}");
    }
}
