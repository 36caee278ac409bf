//! Moves and compares key states.
//!
//! - [`assess`]: finds out what stands in the way of a migration, and changes nothing;
//! - [`copy`]: copies keys from one deployment to another;
//! - [`sync`]: keeps one deployment equal to another, until the other takes over;
//! - [`verify`]: proves that two deployments hold equal keys;
//! - [`large`]: transfers one key by its type's own commands, in chunks;
//! - [`functions`]: copies function libraries;
//! - [`keys`]: how the state of a key is read and written; all but `verify` ask here;
//! - `pipeline`: lanes that read states here and write them there, for `copy` and `sync`;
//! - [`slots`]: moves the keys of slots between two primaries of a cluster, while clients write;
//! - [`legacy`]: moves slots the classic way, with `MIGRATE`, to be compared with;
//! - [`losses`]: what the target loses to a copy or a sync;
//! - [`scan`]: enumerates the keys of one shard and database, across dropped links and restarts;
//! - [`journal`]: what a killed copy needs in order to go on;
//! - [`documents`]: the file of a journal, which outlives a full disk;
//! - [`latency`], [`lag`], [`load`]: slow a job down for the sake of its servers and their replicas;
//! - `lane_counts`: how many lanes a job has;
//! - [`budget`], [`retry`], [`progress`]: bounds on memory and speed, on tries, and what a display reads.

pub mod assess;
pub mod budget;
pub mod copy;
pub mod functions;
pub mod journal;
pub mod keys;
pub mod lag;
mod lane_counts;
pub mod large;
pub mod latency;
pub mod legacy;
pub mod load;
pub mod losses;
mod memory;
pub mod modules;
mod pipeline;
pub mod progress;
pub mod retry;
pub mod scan;
pub mod slots;
pub mod sync;
pub mod verify;
