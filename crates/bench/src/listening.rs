//! Processes that listen, for as long as a measurement needs them.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use whimbrel_lab::processor_seconds;

/// How long one may take to let clients in.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process that listens, killed when it is dropped.
pub struct Listening(Child);

impl Listening {
    /// Starts it, and waits until it lets clients in at `address`. What it says is in a file in `folder`.
    ///
    /// # Errors
    /// When it cannot be started, ends, or lets nobody in.
    pub fn start(
        name: &str,
        mut command: Command,
        address: SocketAddr,
        folder: &Path,
    ) -> anyhow::Result<Listening> {
        let output_path = folder.join(format!("{name}-output"));
        let file = File::create(&output_path)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut process = Listening(command.spawn().with_context(|| format!("start {name}"))?);
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            if process.0.try_wait()?.is_some() || began.elapsed() > PATIENCE {
                bail!("{name} lets nobody in: {}", std::fs::read_to_string(&output_path).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(process)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Processor time that it has used so far, in seconds.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu_s(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        Ok(processor_seconds(&stat.context("read a process's processor time")?))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that was free a moment ago.
///
/// # Errors
/// When there is none.
pub fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
