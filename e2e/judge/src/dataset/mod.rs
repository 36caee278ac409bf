//! A data set of every type and every awkward shape, the same for the same seed.

mod pen;
pub mod random;
mod shapes;
mod streams;

use anyhow::{Context, Result, ensure};

use crate::deployment::{Deployment, now_ms};
use pen::Pen;
use random::Random;
use shapes::Shapes;

/// How much a [`Dataset`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// About 500 keys, 13 MB: every shape once.
    Tiny,
    /// About 5,000 keys.
    Small,
    /// About 5,000 keys, and a list, set, sorted set and hash of 200,000 elements each and a stream of 40,000
    /// entries.
    Medium,
    /// About 50,000 keys, and a list, set, sorted set and hash of 1,000,000 elements each and a stream
    /// of 200,000 entries.
    Large,
}

impl Scale {
    /// Keys in the first database. The others hold a tenth of it.
    fn keys(self) -> u64 {
        match self {
            Self::Tiny => 450,
            Self::Small | Self::Medium => 4_500,
            Self::Large => 50_000,
        }
    }

    /// Elements of each very large collection; none without these.
    fn elements(self) -> Option<u64> {
        match self {
            Self::Tiny | Self::Small => None,
            Self::Medium => Some(200_000),
            Self::Large => Some(1_000_000),
        }
    }
}

/// What to write. Nothing is held in memory: [`Dataset::write_to`] generates while it writes, so that
/// the same `Dataset` can be written to several deployments.
#[derive(Clone, Debug)]
pub struct Dataset {
    seed: u64,
    scale: Scale,
    reference_ms: i64,
    databases: Vec<i64>,
    near_expiries: bool,
    functions: bool,
}

/// What [`Dataset::write_to`] wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Database and number of keys in it, those with a near expiry included.
    pub keys: Vec<(i64, u64)>,
    /// Whether hashes carry expiries of their fields: the server must know them.
    pub field_expiries: bool,
}

impl Written {
    /// Keys in all databases.
    pub fn total(&self) -> u64 {
        self.keys.iter().map(|(_, keys)| keys).sum()
    }
}

/// The function library that [`Dataset::with_functions`] loads.
pub const FUNCTION_LIBRARY: &str = "#!lua name=whimbrel_e2e\n\
    redis.register_function('e2e_echo', function(keys, args) return args[1] end)\n";

impl Dataset {
    /// A data set for `seed`, with databases 0, 1 and 9 on standalone servers, no near expiries and
    /// no functions. Expiries that are relative count from now.
    pub fn generate(seed: u64, scale: Scale) -> Self {
        Self {
            seed,
            scale,
            reference_ms: now_ms(),
            databases: vec![0, 1, 9],
            near_expiries: false,
            functions: false,
        }
    }

    /// Counts relative expiries from `reference_ms` (milliseconds since the epoch).
    pub fn at(mut self, reference_ms: i64) -> Self {
        self.reference_ms = reference_ms;
        self
    }

    /// Writes to these databases of a standalone server; the first gets the whole of it. A cluster
    /// has database 0 only.
    pub fn with_databases(mut self, databases: &[i64]) -> Self {
        self.databases = databases.to_vec();
        self
    }

    /// Lets some keys (and hash fields) expire 1 to 8 seconds after the reference time.
    pub fn with_near_expiries(mut self) -> Self {
        self.near_expiries = true;
        self
    }

    /// Loads [`FUNCTION_LIBRARY`] on every primary.
    pub fn with_functions(mut self) -> Self {
        self.functions = true;
        self
    }

    /// Writes everything. Keys that are there already are not removed.
    ///
    /// Fails on the first error reply or broken link.
    pub fn write_to(&self, deployment: &Deployment) -> Result<Written> {
        ensure!(!self.databases.is_empty(), "a data set needs a database");
        let field_expiries = knows_command(deployment, "HPEXPIREAT")?;
        let databases = if deployment.is_cluster() { &[0][..] } else { &self.databases };
        let mut keys = Vec::new();
        for (position, &db) in databases.iter().enumerate() {
            let mut shapes = Shapes {
                pen: Pen::open(deployment, db)?,
                // Another seed for each: equal names then hold different values in different databases.
                random: Random::new(self.seed.wrapping_mul(31).wrapping_add(position as u64)),
                reference_ms: self.reference_ms,
                near_expiries: self.near_expiries,
                field_expiries,
            };
            if position == 0 {
                shapes.write_all()?;
                if let Some(elements) = self.scale.elements() {
                    shapes.write_large(elements)?;
                }
                shapes.fill_up_to(self.scale.keys())?;
            } else {
                shapes.fill_up_to(self.scale.keys() / 10)?;
            }
            keys.push((db, shapes.pen.finish().with_context(|| format!("database {db}"))?));
        }
        if self.functions {
            for primary in deployment.primaries() {
                redis::cmd("FUNCTION")
                    .arg(&["LOAD", "REPLACE", FUNCTION_LIBRARY])
                    .exec(&mut primary.connect(0)?)
                    .with_context(|| format!("loading a function into {}", primary.name()))?;
            }
        }
        Ok(Written { keys, field_expiries })
    }
}

/// Whether the servers of a deployment have a command.
pub fn knows_command(deployment: &Deployment, name: &str) -> Result<bool> {
    let mut connection = deployment.primaries()[0].connect(0)?;
    let reply: Vec<redis::Value> = redis::cmd("COMMAND").arg("INFO").arg(name).query(&mut connection)?;
    Ok(reply.iter().any(|entry| !matches!(entry, redis::Value::Nil)))
}

/// Writes this many short strings, `plain:0` and so on, into database 0 of a deployment.
///
/// Fails when a primary does not answer or refuses.
pub fn write_strings(deployment: &Deployment, keys: usize) -> Result<()> {
    for (index, primary) in deployment.primaries().iter().enumerate() {
        let mut connection = primary.connect(0)?;
        let names = (0..keys).map(|n| format!("plain:{n}"));
        let own: Vec<String> =
            names.filter(|name| deployment.owner_of(name.as_bytes()) == Some(index)).collect();
        for names in own.chunks(5_000) {
            let mut pipeline = redis::pipe();
            for name in names {
                pipeline.cmd("SET").arg(name).arg(format!("value of {name}")).ignore();
            }
            pipeline.exec(&mut connection)?;
        }
    }
    Ok(())
}
