//! Those that are asked over sockets: real servers with made-up clusters, and our own server in a process of
//! its own.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;

use anyhow::{Context, bail};
use redis::{Connection, cmd};
use tokio_util::sync::CancellationToken;
use whimbrel_control::daemon::migrations::JobView;
use whimbrel_control::daemon::{Daemon, DaemonOptions, Jobs};
use whimbrel_control::topology::Topology;
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::Move;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::nodes::ClusterView;
use whimbrel_lab::{Engine, Server, made_up_id, made_up_nodes};
use whimbrel_loadgen::child::own_cpu;
use whimbrel_wire::value::Value;

use super::layout::{Layout, SlotMove, node_id};
use crate::binaries::this_binary;

/// One that is asked.
pub enum Stand {
    /// A real server.
    Server(Box<Server>, Box<Connection>),
    /// Ours.
    Ours(Ours),
}

/// A child that serves. It ends with this process's end of its input.
pub struct Ours {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    port: u16,
}

impl Stand {
    /// Starts a real server that believes in the cluster.
    ///
    /// # Errors
    /// When it does not start.
    pub fn server(engine: Engine, layout: Layout) -> anyhow::Result<Stand> {
        let conf = made_up_nodes(engine, layout.primaries, |slot| Some(layout.owner(slot)));
        let builder = Server::builder(engine).nodes_conf(&conf).arg("cluster-node-timeout", "3600000");
        let server = builder.start()?;
        let connection = server.try_connection()?;
        Ok(Stand::Server(Box::new(server), Box::new(connection)))
    }

    /// Starts ours.
    ///
    /// # Errors
    /// When it does not start.
    pub fn ours(layout: Layout) -> anyhow::Result<Stand> {
        let mut command = this_binary()?;
        command.args(["topology", "--serve", &layout.word()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start ours")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("ours cannot be talked to");
        };
        let mut ours = Ours { child, input, output: BufReader::new(output), port: 0 };
        ours.port = ours.line()?.parse().context("ours does not report its port")?;
        Ok(Stand::Ours(ours))
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        match self {
            Stand::Server(server, _) => server.port(),
            Stand::Ours(ours) => ours.port,
        }
    }

    /// Gives a slot another owner.
    ///
    /// # Errors
    /// When it is not taken in.
    pub fn take_in(&mut self, moved: SlotMove) -> anyhow::Result<()> {
        match self {
            Stand::Server(_, connection) => {
                let owner = made_up_id(moved.to);
                Ok(cmd("CLUSTER").arg("SETSLOT").arg(moved.slot).arg("NODE").arg(owner).exec(connection)?)
            }
            Stand::Ours(ours) => match ours.ask(&format!("{} {}", moved.slot, moved.to))?.as_str() {
                "ok" => Ok(()),
                other => bail!("ours does not take in a move: {other}"),
            },
        }
    }

    /// Processor time of its process so far, in microseconds.
    ///
    /// # Errors
    /// When it does not report it.
    pub fn cpu_us(&mut self) -> anyhow::Result<f64> {
        match self {
            Stand::Server(_, connection) => {
                let info: String = cmd("INFO").arg("cpu").query(connection)?;
                let of = |name: &str| {
                    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                    line.and_then(|value| value.trim().parse::<f64>().ok()).context("no CPU time is reported")
                };
                Ok((of("used_cpu_user")? + of("used_cpu_sys")?) * 1e6)
            }
            Stand::Ours(ours) => ours.ask("cpu")?.parse().context("ours does not report its CPU time"),
        }
    }
}

/// What a server itself says of the mean time of `CLUSTER SLOTS` since `CONFIG RESETSTAT`, in microseconds.
///
/// # Errors
/// When it does not say.
pub fn command_us(connection: &mut Connection) -> anyhow::Result<f64> {
    let stats: String = cmd("INFO").arg("commandstats").query(connection)?;
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_cluster|slots:"));
    let mean = line.and_then(|line| line.split(',').find_map(|field| field.strip_prefix("usec_per_call=")));
    mean.and_then(|mean| mean.parse().ok()).context("no time of CLUSTER SLOTS is reported")
}

impl Ours {
    fn ask(&mut self, question: &str) -> anyhow::Result<String> {
        writeln!(self.input, "{question}").context("talk to ours")?;
        self.line()
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("listen to ours")?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the child does: serves the table with the daemon's own server, takes in moves and reports its CPU
/// time, until its input ends.
///
/// # Errors
/// When it cannot serve.
pub fn serve(layout: Layout) -> anyhow::Result<()> {
    let topology = Arc::new(Fixed(Topology::new(layout.table()?)));
    // As many threads as `whimbrel serve` has.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let options = DaemonOptions::new(([127, 0, 0, 1], 0).into());
    let daemon = runtime.block_on(Daemon::bind(options, topology.clone()))?;
    writeln!(std::io::stdout(), "{}", daemon.address()?.port())?;
    let stop = CancellationToken::new();
    runtime.spawn(daemon.serve(stop.clone()));
    for line in std::io::stdin().lines() {
        let line = line?;
        if line == "cpu" {
            writeln!(std::io::stdout(), "{}", own_cpu()?.as_micros())?;
            continue;
        }
        let (slot, to) = line.split_once(' ').context("expected a slot and a node")?;
        let slot = Slot::new(slot.parse()?).context("no such slot")?;
        topology.0.hand_over(&SlotSet::from_iter([slot]), &node_id(to.parse()?)?);
        writeln!(std::io::stdout(), "ok")?;
    }
    stop.cancel();
    Ok(())
}

/// A daemon's work without jobs: a table.
struct Fixed(Topology);

impl Jobs for Fixed {
    fn topology(&self) -> &Topology {
        &self.0
    }

    async fn ask(&self, _: Option<&NodeId>, _: &[&[u8]]) -> Result<Value> {
        Err(no_cluster())
    }

    async fn view(&self) -> Result<ClusterView> {
        Err(no_cluster())
    }

    async fn submit(&self, _: Vec<Move>) -> Result<Vec<String>> {
        Err(no_cluster())
    }

    async fn list(&self) -> Result<Vec<JobView>> {
        Ok(Vec::new())
    }

    async fn others(&self) -> Result<Vec<JobView>> {
        Ok(Vec::new())
    }

    async fn cancel(&self, _: &str) -> Result<()> {
        Err(no_cluster())
    }
}

fn no_cluster() -> Error {
    Error::own("ask the cluster", "this server only has a table to be measured with")
}
