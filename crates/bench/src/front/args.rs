//! What is measured, and how much of it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use whimbrel_lab::Engine;

use crate::machine::engine;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Going through the front to one server, beside a direct connection and nutcracker
    Through,
    /// Queries while keys arrive: without a filter, as the paper has it, and through the front
    Moving,
    /// Moving keys that nobody asks for, beside a copy and the paper's mover
    Alone,
}

/// One server, or a cluster, which has three primaries at least.
fn one_or_cluster(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(count @ (1 | 3..=16)) => Ok(count),
        _ => Err("write 1, or a number from 3 to 16".to_owned()),
    }
}

/// `./dev bench front`.
#[derive(Debug, Args)]
pub struct BenchFrontArgs {
    /// The server to measure with: redis-7.0, redis-8.0, valkey-8.1 or valkey-9.1
    #[arg(long, default_value = "redis-7.0", value_parser = engine)]
    pub engine: Engine,

    /// Which parts
    #[arg(long, value_delimiter = ',', default_value = "through,moving,alone")]
    pub part: Vec<Part>,

    /// Connections at once
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub clients: u32,

    /// Connections to the server that the front shares among its clients; 0 leaves that front out
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub share_connections: u32,

    /// Go through the front to a cluster of this many primaries instead of one server, without the direct
    /// connection
    #[arg(long, value_name = "PRIMARIES", value_parser = clap::value_parser!(u8).range(3..=16))]
    pub cluster: Option<u8>,

    /// Requests that a connection sends before it waits for their replies
    #[arg(long, value_delimiter = ',', default_value = "1,16",
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub pipeline: Vec<u32>,

    /// How long each contender is loaded each time
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,

    /// Rounds, in which the contenders take turns; not while keys move under queries
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,

    /// Keys that move
    #[arg(long, default_value_t = 100_000,
        value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub keys: u64,

    /// Servers that the keys move to, in a cluster where there are several
    #[arg(long, default_value_t = 1, value_parser = one_or_cluster)]
    pub destinations: u8,

    /// Bytes of each value that moves
    #[arg(long, default_value_t = 2_000)]
    pub value_bytes: usize,

    /// Queries of each run while keys move and after that, all clients together [default: twice the keys]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub queries: Option<u64>,

    /// How skewed the keys are that are asked for; all with the most writes
    #[arg(long, value_delimiter = ',', default_value = "0.9,0.95,0.99")]
    pub zipf: Vec<f64>,

    /// Share of writes among the queries; all with the least skew
    #[arg(long, value_delimiter = ',', default_value = "0.01,0.02,0.03,0.04,0.05")]
    pub writes: Vec<f64>,

    /// Write a picture of what was answered wrongly while keys moved
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}
