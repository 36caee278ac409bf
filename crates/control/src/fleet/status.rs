//! How a fleet stands.

use serde::{Deserialize, Serialize};
use whimbrel_engine::error::{Error, Result, Side};

/// A fleet at one moment, as its coordinator sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// How often a coordinator has begun.
    pub term: u64,
    /// How many partitions there are.
    pub partitions: u32,
    /// The stamp of the table, in hexadecimal digits: equal for equal tables.
    pub stamp: String,
    /// Partitions that no member has.
    pub unowned: u64,
    /// Partitions that are being changed now.
    pub moving: u64,
    /// Moves that are left of the plan.
    pub remaining: u64,
    /// Moves that this coordinator has made.
    pub moved: u64,
    /// Moves that were tried and did not come about; they are tried again.
    pub failed: u64,
    /// Servers that have the data, by number.
    pub backends: Vec<BackendStatus>,
    /// The members, by number.
    pub members: Vec<MemberStatus>,
    /// The numbers of members that were to leave lately, whether or not they are gone by now.
    #[serde(default)]
    pub left: Vec<u32>,
}

impl FleetStatus {
    /// The member with this number.
    pub fn member(&self, number: u32) -> Option<&MemberStatus> {
        self.members.iter().find(|member| member.member == number)
    }

    /// The backend with this name.
    pub fn backend(&self, name: &str) -> Option<&BackendStatus> {
        self.backends.iter().find(|backend| backend.name == name)
    }

    /// Refuses what is the name of no backend.
    ///
    /// # Errors
    /// `Options`.
    pub fn check_backend(&self, name: &str) -> Result<()> {
        if self.backend(name).is_some() {
            return Ok(());
        }
        Err(Error::options(Side::Own, "find the backend", format!("there is no backend {name}"))
            .with_remedy("name it as the coordinator does: see whimbrel fleet status"))
    }

    /// The member that is meant, by its number, name or address.
    ///
    /// # Errors
    /// `Options` if it is none, or could be several.
    pub fn find(&self, named: &str) -> Result<&MemberStatus> {
        let number = named.parse().ok().and_then(|number| self.member(number));
        let is_meant = |member: &&MemberStatus| member.name == named || member.address == named;
        let found: Vec<&MemberStatus> = match number {
            Some(member) => vec![member],
            None => self.members.iter().filter(is_meant).collect(),
        };
        match &found[..] {
            [one] => Ok(one),
            several => {
                let what = match several.len() {
                    0 => format!("there is no member {named}"),
                    n => format!("{named} could be any of {n} members"),
                };
                Err(Error::options(Side::Own, "find the member", what)
                    .with_remedy("name it by its number: see whimbrel fleet status"))
            }
        }
    }

    /// Whether all is as it should be: nothing moves, every member has its part, and all tables are the same.
    pub fn is_settled(&self) -> bool {
        let has_someone = self.members.iter().any(|member| member.weight > 0 && !member.leaving);
        self.moving == 0
            && self.remaining == 0
            && (self.unowned == 0 || !has_someone)
            && self.members.iter().all(|member| member.equal == Some(true))
    }
}

/// A server or cluster that has data, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendStatus {
    /// Its number: the order in which backends were first named.
    pub number: u32,
    /// What people call it.
    pub name: String,
    /// Its URL.
    pub url: String,
    /// Its part of the data in relation to others; 0 for none.
    pub weight: u32,
    /// Partitions whose data it has.
    pub partitions: u64,
}

/// A member at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its number. It is never given to another.
    pub member: u32,
    /// What people call it; empty if it was not heard from since this coordinator began.
    pub name: String,
    /// The address at which clients reach it.
    pub address: String,
    /// The version of whimbrel it runs.
    pub version: String,
    /// Its part of the work in relation to others; 0 for none.
    pub weight: u32,
    /// It leaves as soon as it has no partition.
    pub leaving: bool,
    /// Whether it has a connection to the coordinator.
    pub connected: bool,
    /// Partitions that it owns.
    pub owned: u64,
    /// Partitions that it owns at once if their owner is lost.
    #[serde(default)]
    pub stands_by: u64,
    /// Moves that it takes part in.
    pub moves: u32,
    /// Changes of the table that it has not received.
    pub lag: u64,
    /// How long it has not been heard from, in milliseconds; none if it was not since this coordinator began.
    pub silent_ms: Option<u64>,
    /// Requests under way there, as it last said.
    pub held: u64,
    /// Why a move that it was to make has failed lately, in words for people; empty if none has.
    pub trouble: String,
    /// Whether the table it last reported is the coordinator's; none if it has not reported one.
    pub equal: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> FleetStatus {
        let member = |number, name: &str, owned| MemberStatus {
            member: number,
            name: name.to_owned(),
            address: format!("{name}:1"),
            weight: 1,
            connected: true,
            owned,
            equal: Some(true),
            ..MemberStatus::default()
        };
        let members = vec![member(1, "a", 3), member(2, "b", 0), member(30, "b", 5)];
        FleetStatus { members, partitions: 8, ..FleetStatus::default() }
    }

    #[test]
    fn members_are_found_by_number_name_and_address() {
        let status = status();
        let number = |named| status.find(named).map(|member| member.member).map_err(|e| e.to_string());
        assert_eq!((number("30"), number("a"), number("a:1")), (Ok(30), Ok(1), Ok(1)));
        assert!(number("b").expect_err("two").contains("any of 2"));
        assert!(number("3").expect_err("none").contains("no member 3"));
    }
}
