//! What the user types.

use clap::{Parser, Subcommand};

use crate::before::BenchBeforeArgs;
use crate::copy::BenchCopyArgs;
use crate::front::BenchFrontArgs;
use crate::latency::BenchLatencyArgs;
use crate::partitions::BenchPartitionsArgs;
use crate::pattern::BenchPatternArgs;
use crate::reshard::BenchReshardArgs;
use crate::sync::BenchSyncArgs;
use crate::topology::BenchTopologyArgs;

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "whimbrel-bench",
    bin_name = "./dev bench",
    version,
    about = "Measures whimbrel beside other ways to do the same, in one run",
    max_term_width = 110,
    propagate_version = true
)]
pub struct Cli {
    /// Which measurement.
    #[command(subcommand)]
    pub bench: Bench,
}

/// The measurements.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// An older binary beside the one of now: whether anything has become slower
    Before(BenchBeforeArgs),
    /// A copy beside REPLICAOF, MIGRATE, and other tools that are on PATH
    Copy(BenchCopyArgs),
    /// Going through the front, beside a direct connection and, where it is on PATH, nutcracker
    Front(BenchFrontArgs),
    /// What clients of a source wait for while it is copied, with --max-latency and without
    Latency(BenchLatencyArgs),
    /// Moving partitions between members of a fleet, by its size, beside sending them the whole table
    Partitions(BenchPartitionsArgs),
    /// Keys that match a pattern, beside a loop and beside stages of workers
    Pattern(BenchPatternArgs),
    /// Moving slots beside the classic tools and the servers' own migration
    Reshard(BenchReshardArgs),
    /// How far a target is behind writers, beside REPLICAOF, and how long a cutover pauses their writes
    Sync(BenchSyncArgs),
    /// How clients learn who owns which slot, beside servers, and a storm of clients that ask
    Topology(BenchTopologyArgs),
}
