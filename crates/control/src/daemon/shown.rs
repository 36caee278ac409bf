//! How a daemon stands, over HTTP.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::json;

use super::migrations::JobView;
use crate::fleet::{FleetStatus, Role};
use crate::http::{Metric, MetricKind, MetricsSource};

/// The jobs and the fleet of a daemon, as they were when it was last looked.
#[derive(Debug, Default)]
pub struct Shown {
    jobs: Mutex<Vec<JobView>>,
    /// As [`Topology::unreachable`](crate::topology::Topology::unreachable).
    unreachable: Mutex<Vec<(String, bool)>>,
    fleet: Mutex<Option<FleetStatus>>,
    role: Mutex<Option<Role>>,
}

impl Shown {
    /// The jobs are these now.
    pub fn set_jobs(&self, jobs: &[JobView]) {
        jobs.clone_into(&mut self.jobs.lock());
    }

    /// These primaries cannot be reached now.
    pub(super) fn set_unreachable(&self, primaries: Vec<(String, bool)>) {
        *self.unreachable.lock() = primaries;
    }

    /// The present state of the fleet; a coordinator that stands by does not know it.
    pub fn set_fleet(&self, fleet: Option<FleetStatus>) {
        *self.fleet.lock() = fleet;
    }

    /// This is what has become of the process, if there are several coordinators.
    pub fn set_role(&self, role: Option<Role>) {
        *self.role.lock() = role;
    }
}

impl MetricsSource for Shown {
    fn metrics(&self) -> Vec<Metric> {
        let jobs = self.jobs.lock();
        let mut states: BTreeMap<&str, f64> = BTreeMap::new();
        for job in jobs.iter() {
            *states.entry(job.state.word()).or_default() += 1.0;
        }
        let is_open = |job: &&JobView| !job.state.is_final();
        let slots: usize = jobs.iter().filter(is_open).map(|job| job.slots.len()).sum();
        let bytes: u64 = jobs.iter().filter(is_open).map(|job| job.remaining_bytes).sum();
        let by_state = states.into_iter().map(|(state, number)| (vec![("state", state.to_owned())], number));
        let mut metrics = self.fleet.lock().as_ref().map(crate::fleet::metrics).unwrap_or_default();
        if let Some(role) = self.role.lock().as_ref() {
            let leads = f64::from(u8::from(matches!(role, Role::Leads(_))));
            metrics.push(Metric::new(
                MetricKind::Gauge,
                "whimbrel_fleet_leads",
                "1 for the coordinator that leads, 0 for one that stands by",
                leads,
            ));
        }
        let unreachable = self.unreachable.lock();
        let lost = unreachable.iter().map(|(primary, is_agreed)| {
            (vec![("primary", primary.clone())], if *is_agreed { 2.0 } else { 1.0 })
        });
        metrics.extend([
            Metric::by(
                MetricKind::Gauge,
                "whimbrel_cluster_primary_unreachable",
                "Primaries with slots that the node which is asked cannot reach: 1 suspected, 2 failed",
                lost,
            ),
            Metric::by(
                MetricKind::Gauge,
                "whimbrel_jobs",
                "Jobs that move slots, those that ended not long ago too",
                by_state,
            ),
            Metric::new(
                MetricKind::Gauge,
                "whimbrel_jobs_open_slots",
                "Slots of jobs that have not ended",
                slots as f64,
            ),
            Metric::new(
                MetricKind::Gauge,
                "whimbrel_jobs_remaining_bytes",
                "Bytes known to be on their way",
                bytes as f64,
            ),
        ]);
        metrics
    }

    fn health(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    fn readiness(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    fn status(&self) -> serde_json::Value {
        let view = |job: &JobView| {
            json!({
                "name": job.name, "slots": job.slots.to_string(), "source": job.source, "target": job.target,
                "state": job.state.word(), "message": job.message, "created_s": job.created_s,
                "updated_s": job.updated_s, "remaining_bytes": job.remaining_bytes,
            })
        };
        let jobs: Vec<_> = self.jobs.lock().iter().map(view).collect();
        match self.fleet.lock().as_ref() {
            Some(fleet) => json!({"jobs": jobs, "fleet": fleet}),
            None => json!({"jobs": jobs}),
        }
    }
}
