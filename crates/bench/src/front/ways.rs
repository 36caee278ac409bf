//! The ways to a server, and a front that runs between two.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;
use whimbrel_lab::Server;
use whimbrel_loadgen::interrupt::Interrupt;
use whimbrel_loadgen::program::find_on_path;

use super::destinations::Destinations;
use crate::binaries::whimbrel_binary;
use crate::listening::{Listening, free_address};

/// How often it is looked whether all keys have moved.
const POLL: Duration = Duration::from_millis(2);

/// A way to the server.
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) address: SocketAddr,
    /// Ends when it is dropped.
    proxy: Option<Listening>,
}

impl Way {
    /// Processor time that the proxy has used so far, in seconds; `None` where there is none.
    ///
    /// # Errors
    /// When it has ended.
    pub(super) fn cpu_s(&self) -> anyhow::Result<Option<f64>> {
        self.proxy.as_ref().map(Listening::cpu_s).transpose()
    }
}

/// To the server itself.
pub(super) fn direct(server: &Server) -> anyhow::Result<Way> {
    Ok(Way { name: "direct", address: server.addr().parse()?, proxy: None })
}

/// Through the front, which shares this many connections to the server among its clients.
pub(super) fn whimbrel(name: &'static str, share: u32, server: &Server) -> anyhow::Result<Way> {
    let address = free_address()?;
    let mut command = whimbrel_binary()?;
    command.args(["front", "--quiet", "--source", &server.addr(), "--listen", &address.to_string()]);
    command.args(["--share-connections", &share.to_string()]);
    started(name, command, address, server.dir())
}

/// Through twemproxy; `None` where it is not installed.
pub(super) fn nutcracker(server: &Server) -> anyhow::Result<Option<Way>> {
    let Some(program) = find_on_path("nutcracker") else { return Ok(None) };
    let (address, statistics) = (free_address()?, free_address()?);
    let config = server.dir().join("nutcracker.yml");
    let text = format!(
        "pool:\n  listen: {address}\n  redis: true\n  hash: fnv1a_64\n  distribution: modula\n  servers:\n   \
            - {}:1\n",
        server.addr()
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new(program);
    command.arg("-c").arg(config).args(["-a", "127.0.0.1", "-s", &statistics.port().to_string()]);
    command.arg("-o").arg(server.dir().join("nutcracker.log"));
    started("nutcracker", command, address, server.dir()).map(Some)
}

fn started(name: &'static str, command: Command, address: SocketAddr, folder: &Path) -> anyhow::Result<Way> {
    let proxy = Listening::start(name, command, address, folder)?;
    Ok(Way { name, address, proxy: Some(proxy) })
}

/// A front between two servers, as a process of its own.
pub(super) struct Running {
    /// Where it listens.
    pub(super) address: SocketAddr,
    state: PathBuf,
    way: Way,
}

impl Running {
    /// Starts it; no key moves yet.
    pub(super) fn between(source: &Server, target: &Destinations) -> anyhow::Result<Running> {
        let address = free_address()?;
        let state = target.folder().join("state");
        let mut command = whimbrel_binary()?;
        command.args(["front", "--quiet", "--source", &source.addr(), "--target", &target.addr()]);
        command.args(["--listen", &address.to_string(), "--state-dir"]).arg(&state);
        let way = started("whimbrel", command, address, target.folder())?;
        Ok(Running { address, state, way })
    }

    /// Has all keys moved.
    pub(super) fn move_all(&self, limit: Duration, interrupt: &Interrupt) -> anyhow::Result<()> {
        self.run_front("start")?;
        let began = Instant::now();
        while !self.has_moved_all()? {
            interrupt.check()?;
            if began.elapsed() > limit {
                bail!("the keys have not moved in {} s", limit.as_secs());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// By the file in which the front keeps it: asking the front takes a process each time, on the cores that
    /// it moves keys with.
    fn has_moved_all(&self) -> anyhow::Result<bool> {
        for entry in std::fs::read_dir(&self.state)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "state") {
                let state: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
                return Ok(state["phase"] == "done");
            }
        }
        Ok(false)
    }

    /// Most memory that it has taken so far, in MiB.
    pub(super) fn peak_mib(&self) -> anyhow::Result<f64> {
        let Some(front) = &self.way.proxy else { bail!("the front does not run") };
        let status = std::fs::read_to_string(format!("/proc/{}/status", front.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        Ok(kib.context("read how much memory the front has taken")? / 1024.0)
    }

    /// How it stands.
    pub(super) fn status(&self) -> anyhow::Result<Value> {
        let answer: Value =
            serde_json::from_str(&self.run_front("status")?).context("read the status of the front")?;
        Ok(answer["status"].clone())
    }

    fn run_front(&self, what: &str) -> anyhow::Result<String> {
        let mut command = whimbrel_binary()?;
        command.args(["front", what]);
        if what != "status" {
            command.arg("--yes");
        }
        let output = command.args(["--json", "--state-dir"]).arg(&self.state).output()?;
        if !output.status.success() {
            bail!("front {what}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}
