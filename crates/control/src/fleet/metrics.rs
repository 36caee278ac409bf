//! A fleet in numbers.

use super::status::{FleetStatus, MemberStatus};
use crate::http::{Metric, MetricKind};

/// The fleet's numbers.
pub fn metrics(status: &FleetStatus) -> Vec<Metric> {
    let gauge = |name, help, value: f64| Metric::new(MetricKind::Gauge, name, help, value);
    let counter = |name, help, value: u64| Metric::new(MetricKind::Counter, name, help, value as f64);
    let by_member = |name, help, value: fn(&MemberStatus) -> f64| {
        let samples = status.members.iter().map(|member| {
            let labels = vec![("member", member.member.to_string()), ("name", member.name.clone())];
            (labels, value(member))
        });
        Metric::by(MetricKind::Gauge, name, help, samples)
    };
    let by_backend = status
        .backends
        .iter()
        .map(|backend| (vec![("backend", backend.name.clone())], backend.partitions as f64));
    vec![
        gauge("whimbrel_fleet_members", "Members of the fleet", status.members.len() as f64),
        gauge("whimbrel_fleet_term", "How often a coordinator has begun", status.term as f64),
        gauge("whimbrel_fleet_partitions", "Partitions of the fleet", f64::from(status.partitions)),
        gauge("whimbrel_fleet_partitions_unowned", "Partitions that nobody has", status.unowned as f64),
        gauge("whimbrel_fleet_partitions_moving", "Partitions that are being changed", status.moving as f64),
        gauge("whimbrel_fleet_moves_remaining", "Moves that are left of the plan", status.remaining as f64),
        counter("whimbrel_fleet_moves", "Moves made since the start", status.moved),
        counter("whimbrel_fleet_moves_failed", "Moves given up since the start", status.failed),
        by_member("whimbrel_fleet_member_partitions", "Partitions that a member owns", |m| m.owned as f64),
        by_member("whimbrel_fleet_member_weight", "The part of the work a member takes", |m| {
            f64::from(m.weight)
        }),
        by_member("whimbrel_fleet_member_connected", "1 for a member with a connection", |m| {
            f64::from(u8::from(m.connected))
        }),
        by_member(
            "whimbrel_fleet_member_lag_changes",
            "Changes that have not been reported to a member",
            |m| m.lag as f64,
        ),
        by_member("whimbrel_fleet_member_silent_seconds", "How long a member was not heard from", |m| {
            m.silent_ms.map_or(f64::NAN, |ms| ms as f64 / 1_000.0)
        }),
        by_member(
            "whimbrel_fleet_member_table_equal",
            "1 where a member's table is the coordinator's",
            |m| f64::from(u8::from(m.equal == Some(true))),
        ),
        by_member("whimbrel_fleet_member_requests", "Requests under way at a member", |m| m.held as f64),
        Metric::by(
            MetricKind::Gauge,
            "whimbrel_fleet_backend_partitions",
            "Partitions whose data a backend has",
            by_backend,
        ),
    ]
}
