//! The nodes of a cluster as they see each other, and where their keys are.
//!
//! Everything is read from `CLUSTER NODES`: it shows nodes without slots, failing nodes, configuration epochs
//! and the marks of open slots, none of which `CLUSTER SLOTS` has, and `CLUSTER SHARDS` crashes some servers
//! whose `nodes.conf` comes from an older version.
//!
//! - [`ClusterView`]: what one node says;
//! - [`key_counts`]: how many keys one node holds in each slot, whether it owns the slot or not;
//! - [`Survey`]: what every node says, at about the same time, and the [findings](Finding) in it;
//! - [`ClusterView::table`]: the same as a slot table, to be sent to clients;
//! - [`repair`]: changing owners, one node at a time.

mod counts;
mod findings;
pub mod repair;
mod survey;
mod table;
mod view;

pub use counts::key_counts;
pub use findings::{Finding, Opinion, shortened};
pub(crate) use survey::is_called;
pub use survey::{
    CANDIDATE_CLIENT_NAME, Counted, JOB_CLIENT_NAME, NativeSeen, NoAnswer, NodeFacts, NodeName, NodeState,
    Survey, SurveyOptions, Surveyed, native_migrations,
};
pub use view::{ClusterView, Node, NodeFlags};
pub use whimbrel_core::cluster::{KeyCounts, Owners, Role};
