//! How a fleet stands.

use serde::{Deserialize, Serialize};

/// A fleet at one moment, as its coordinator sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// How often a coordinator has begun.
    pub term: u64,
    /// How many partitions there are.
    pub partitions: u32,
    /// The stamp of the table, in hexadecimal digits: equal for equal tables.
    pub stamp: String,
    /// Partitions that nobody has.
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
    /// Who is a member, by number.
    pub members: Vec<MemberStatus>,
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

    /// Whether all is as it should be: nothing moves, everybody has its part, and all tables are the same.
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
    /// Where it is.
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
    /// What people call it; empty where it was not heard of since this coordinator began.
    pub name: String,
    /// Where clients reach it.
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
    /// Moves that it takes part in.
    pub moves: u32,
    /// Changes of the table that it has not received.
    pub lag: u64,
    /// How long it has not been heard of, in milliseconds; none where it was not since this coordinator
    /// began.
    pub silent_ms: Option<u64>,
    /// Requests under way there, as it last said.
    pub held: u64,
    /// Why a move that it was to make has failed lately, in words for people; empty where none has.
    pub trouble: String,
    /// Whether the table it last reported is the coordinator's; none where it has not told.
    pub equal: Option<bool>,
}
