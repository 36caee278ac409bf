//! Starts and stops real servers on loopback, for tests, the demo and the benchmarks.
//!
//! - [`Engine`]: the kinds and versions of servers there are, and where their binaries lie;
//! - [`Server`]: one process with its own port and its own folder;
//! - [`Cluster`]: several of them, formed into a cluster, with failovers and slot moves;
//! - [`Sentinels`]: sentinels that watch a server;
//! - [`Nutcracker`]: a proxy that divides keys among servers;
//! - [`Etcd`]: an etcd of one or several nodes;
//! - [`Tls`]: certificates for them;
//! - [`Proxy`]: a link in front of a server that can be cut;
//! - [`SmallDisk`]: a disk that can be filled;
//! - [`for_each_engine!`]: one test for each engine;
//! - [`wait_until`]: a condition, instead of a sleep.
//!
//! Every process is a child of the one that started it and is killed by its own id on drop, together with its
//! folder. If the starting process dies without dropping anything, the kernel kills the servers.
//!
//! # Example
//!
//! ```no_run
//! use whimbrel_lab::{Engine, Server};
//!
//! let server = Server::builder(Engine::Redis70).arg("--appendonly", "yes").start()?;
//! server.call(&["SET", "key", "value"]);
//! server.kill9()?;
//! server.restart()?;
//! # Ok::<(), whimbrel_lab::LabError>(())
//! ```

mod binaries;
mod cluster;
mod disk;
mod each;
mod engine;
mod error;
mod etcd;
mod made_up;
mod nutcracker;
mod ports;
mod process;
mod proxy;
mod sentinel;
mod server;
mod tls;
mod wait;

pub use binaries::{Binaries, browser_home, page_checker};
pub use cluster::{Cluster, ClusterBuilder, SLOTS};
pub use disk::SmallDisk;
pub use engine::Engine;
pub use error::LabError;
pub use etcd::{Etcd, EtcdNode};
pub use made_up::{made_up_id, made_up_nodes, made_up_port};
pub use nutcracker::Nutcracker;
pub use ports::free_port;
pub use proxy::Proxy;
pub use sentinel::Sentinels;
pub use server::{Server, ServerBuilder, processor_seconds};
pub use tls::{CLIENT_NAME, Tls};
pub use wait::{rest_after, until, wait_until, wait_until_refused};
