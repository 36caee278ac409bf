//! nutcracker (twemproxy) in front of servers.

use std::fs::{self, OpenOptions};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use tempfile::TempDir;

use crate::binaries;
use crate::error::LabError;
use crate::ports;
use crate::process::{self, Process};
use crate::server::Server;

const READY_TIMEOUT: Duration = Duration::from_secs(60);

const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(10);

/// How often other ports are tried when another process was quicker.
const ATTEMPTS: u32 = 4;

/// nutcracker (twemproxy) on loopback, in front of servers among which it divides the keys. It closes the
/// connection on whatever it does not know: `CLIENT`, `SELECT`, `INFO`, `SCAN`, `MULTI`, streams. Killed, and
/// its folder removed, on drop.
pub struct Nutcracker {
    port: u16,
    password: Option<String>,
    /// Before the folder, so that the process ends first.
    process: Process,
    dir: TempDir,
}

impl Nutcracker {
    /// Starts it in front of `servers`, with the password that the first of them has, and waits until it
    /// answers.
    ///
    /// # Errors
    /// When nutcracker is not on this machine, or does not become ready; then the error has its log.
    pub fn start(servers: &[Server]) -> Result<Nutcracker, LabError> {
        let mut attempt = 1;
        loop {
            match Nutcracker::launch(servers).and_then(Nutcracker::ready) {
                Err(LabError::StartFailed { log_tail, .. })
                    if attempt < ATTEMPTS && log_tail.contains("in use") =>
                {
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn launch(servers: &[Server]) -> Result<Nutcracker, LabError> {
        let cached = binaries::cache_dir().map(|dir| dir.join("nutcracker/bin/nutcracker"));
        let binary = cached.filter(|path| path.is_file()).ok_or(LabError::NutcrackerMissing)?;
        let failed = |source| LabError::io("prepare a folder for nutcracker", source);
        let dir = tempfile::Builder::new().prefix("whimbrel-lab-nutcracker-").tempdir().map_err(failed)?;
        let (port, stats) = (ports::free_port()?, ports::free_port()?);
        let password = servers.first().and_then(Server::password).map(str::to_owned);
        let login = password.as_ref().map_or(String::new(), |password| format!("  redis_auth: {password}\n"));
        let servers: String = servers.iter().map(|server| format!("   - {}:1\n", server.addr())).collect();
        let config = format!(
            "pool:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  distribution: ketama\n  redis: true\n  \
                timeout: 20000\n{login}  servers:\n{servers}"
        );
        fs::write(dir.path().join("nutcracker.yml"), config).map_err(failed)?;
        let log = OpenOptions::new().create(true).append(true).open(dir.path().join("log"));
        let log = log.map_err(failed)?;
        let mut command = process::command(&binary);
        command.arg("-c").arg(dir.path().join("nutcracker.yml"));
        command.arg("-o").arg(dir.path().join("log"));
        command.args(["-a", "127.0.0.1", "-s", &stats.to_string()]);
        command.stdin(std::process::Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        let process = Process::spawn(command).map_err(|source| LabError::io("start nutcracker", source))?;
        Ok(Nutcracker { port, password, process, dir })
    }

    fn ready(self) -> Result<Nutcracker, LabError> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let seen = match self.try_connection().and_then(|mut connection| {
                redis::cmd("PING").exec(&mut connection).map_err(|source| self.failed("PING", source))
            }) {
                Ok(()) if self.process.is_running() => return Ok(self),
                Ok(()) => "another process answers".to_owned(),
                Err(error) => error.to_string(),
            };
            if !self.process.is_running() || Instant::now() >= deadline {
                let log_tail = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                let server = format!("nutcracker (port {})", self.port);
                return Err(LabError::StartFailed { server, reason: seen, log_tail });
            }
            thread::sleep(POLL);
        }
    }

    /// Where clients reach it, as `127.0.0.1:PORT`.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A new connection through it.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn try_connection(&self) -> Result<redis::Connection, LabError> {
        let open = || {
            // Without the library's own greeting, which would be the end of the connection.
            let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
            if let Some(password) = &self.password {
                settings = settings.set_password(password);
            }
            let address = ConnectionAddr::Tcp("127.0.0.1".to_owned(), self.port);
            let client = Client::open(address.into_connection_info()?.set_redis_settings(settings))?;
            let connection = client.get_connection_with_timeout(REPLY_TIMEOUT)?;
            connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
            Ok(connection)
        };
        open().map_err(|source| self.failed("connecting", source))
    }

    fn failed(&self, what: &str, source: redis::RedisError) -> LabError {
        LabError::Command {
            server: format!("nutcracker (port {})", self.port),
            what: what.to_owned(),
            source,
        }
    }
}
