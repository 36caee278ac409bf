//! One real server on loopback, which ends with the test.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::{SysconfVar, sysconf};
use parking_lot::{Mutex, MutexGuard};
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates,
};
use tempfile::TempDir;

use crate::binaries::Binaries;
use crate::engine::Engine;
use crate::error::LabError;
use crate::ports;
use crate::process::{self, Process};
use crate::tls::{self, Tls};

/// A large append-only file may have to be read first.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Servers give their replicas 10 s to catch up before they leave.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// The introduction of a client counts into it, so a busy server needs a while.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// So that a stopped or stuck server fails a test instead of hanging it.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(5);

/// What commands may take that no client should feel.
const SLOW_US: f64 = 50_000.0;

/// How often another port is tried when another process was quicker.
const ATTEMPTS: u32 = 8;

/// How much of its log a server that did not start is quoted with.
const LOG_TAIL_LINES: usize = 30;

/// A server process of its own, on loopback, with its own folder. Killed, and the folder removed, on drop.
pub struct Server {
    label: String,
    engine: Engine,
    binary: PathBuf,
    sentinel: bool,
    overwrites_freed: bool,
    port: u16,
    tls_port: Option<u16>,
    tls: Option<Tls>,
    unix_socket: Option<PathBuf>,
    password: Option<String>,
    /// Before the folder, so that the process ends first.
    process: Mutex<Process>,
    dir: TempDir,
}

/// How to start a [`Server`].
#[derive(Clone)]
pub struct ServerBuilder {
    engine: Engine,
    name: Option<String>,
    directives: Vec<(String, String)>,
    password: Option<String>,
    tls: Option<Tls>,
    unix_socket: bool,
    cluster: bool,
    sentinel: bool,
    modules: bool,
    nodes_conf: Option<String>,
    overwrites_freed: bool,
}

/// Why a server that was launched is not there yet, or never will be.
pub(crate) enum NotReady {
    /// Another process listens on one of its ports.
    PortTaken,
    /// It failed for another reason.
    Failed(LabError),
}

impl ServerBuilder {
    /// Memory is overwritten when it is freed, so that a server that uses it all the same crashes each time,
    /// and not by chance. (All of them use jemalloc.)
    #[must_use]
    pub fn overwrites_freed(mut self) -> Self {
        self.overwrites_freed = true;
        self
    }

    /// A directive of the configuration file, with or without leading dashes. The value is written as it
    /// stands, so it may be several words; an empty one becomes `""`.
    #[must_use]
    pub fn arg(mut self, directive: &str, value: &str) -> Self {
        self.directives.push((directive.trim_start_matches('-').to_owned(), value.to_owned()));
        self
    }

    /// The password of the default user.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// An ACL user, as in the configuration file: `user app on >secret ~* +@all`.
    #[must_use]
    pub fn user_acl(self, rule: &str) -> Self {
        let rule = rule.trim();
        let rule = rule.strip_prefix("user ").unwrap_or(rule).to_owned();
        self.arg("user", &rule)
    }

    /// Listens with TLS on a second port. The plain port stays.
    #[must_use]
    pub fn tls(mut self, tls: &Tls) -> Self {
        self.tls = Some(tls.clone());
        self
    }

    /// Also listens on a Unix socket, at [`Server::unix_socket`].
    #[must_use]
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Runs in cluster mode. With TLS, the nodes speak TLS among themselves.
    #[must_use]
    pub fn cluster(mut self) -> Self {
        self.cluster = true;
        self
    }

    /// Loads the modules that came with the engine: [`Engine::Redis72`] and [`Engine::Redis74`] have some.
    #[must_use]
    pub fn modules(mut self) -> Self {
        self.modules = true;
        self
    }

    /// Runs as a sentinel. Directives beginning with `sentinel` name what it watches.
    #[must_use]
    pub(crate) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Runs in cluster mode with this as its `nodes.conf`, as if it had met those nodes. Its own port is
    /// corrected by the server.
    #[must_use]
    pub fn nodes_conf(mut self, text: &str) -> Self {
        self.nodes_conf = Some(text.to_owned());
        self.cluster()
    }

    /// What the server is called in messages.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Starts the server and waits until it serves requests.
    ///
    /// # Errors
    /// When the engine is not on this machine, or the server does not become ready; then the error has the
    /// end of its log.
    pub fn start(&self) -> Result<Server, LabError> {
        let mut attempt = 1;
        loop {
            let server = self.launch()?;
            match server.wait_ready() {
                Ok(()) => return Ok(server),
                Err(NotReady::PortTaken) if attempt < ATTEMPTS => attempt += 1,
                Err(NotReady::PortTaken) => {
                    return Err(server.start_failed("its ports were taken again and again"));
                }
                Err(NotReady::Failed(error)) => return Err(error),
            }
        }
    }

    /// Starts the process without waiting for it.
    pub(crate) fn launch(&self) -> Result<Server, LabError> {
        let Binaries { server: binary, modules, .. } = self.engine.binaries()?;
        let modules = if self.modules { modules } else { Vec::new() };
        let dir = tempfile::Builder::new()
            .prefix("whimbrel-lab-")
            .tempdir()
            .map_err(|source| LabError::io("create a server's folder", source))?;
        let port = ports::free_port()?;
        let tls_port = self.tls.is_some().then(ports::free_port).transpose()?;
        let unix_socket = self.unix_socket.then(|| dir.path().join("server.sock"));
        let mut config = self.config(dir.path(), port, tls_port, unix_socket.as_deref());
        for module in modules {
            config.push_str(&format!("loadmodule {}\n", quoted(&module.to_string_lossy())));
        }
        tls::write(&config_file(dir.path()), &config)?;

        if let Some(text) = &self.nodes_conf {
            std::fs::write(dir.path().join("nodes.conf"), text)
                .map_err(|source| LabError::io("write nodes.conf", source))?;
        }
        let process = Mutex::new(launch(&binary, dir.path(), self.sentinel, self.overwrites_freed)?);
        let label = match &self.name {
            Some(name) => format!("{} {name} (port {port})", self.engine),
            None => format!("{} (port {port})", self.engine),
        };
        Ok(Server {
            label,
            engine: self.engine,
            binary,
            sentinel: self.sentinel,
            overwrites_freed: self.overwrites_freed,
            port,
            tls_port,
            tls: self.tls.clone(),
            unix_socket,
            password: self.password.clone(),
            process,
            dir,
        })
    }

    /// The configuration file. Passwords stand here, where only this user reads them, and not among the
    /// process's arguments.
    fn config(&self, dir: &Path, port: u16, tls_port: Option<u16>, unix_socket: Option<&Path>) -> String {
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {port}"),
            format!("dir {}", quoted(&dir.to_string_lossy())),
            "save \"\"".to_owned(),
            // A replica should not wait for others that might come.
            "repl-diskless-sync-delay 0".to_owned(),
        ];
        // Before 7.0 it is always there, and there is no such directive.
        if !self.engine.is_before_7() {
            lines.push("enable-debug-command local".to_owned());
        }
        if let (Some(tls), Some(tls_port)) = (&self.tls, tls_port) {
            let path = |path: PathBuf| quoted(&path.to_string_lossy());
            lines.extend([
                format!("tls-port {tls_port}"),
                format!("tls-ca-cert-file {}", path(tls.ca())),
                format!("tls-cert-file {}", path(tls.server_cert())),
                format!("tls-key-file {}", path(tls.server_key())),
                format!(
                    "tls-auth-clients {}",
                    if tls.is_client_cert_required() { "yes" } else { "optional" }
                ),
            ]);
        }
        if let Some(socket) = unix_socket {
            lines.push(format!("unixsocket {}", quoted(&socket.to_string_lossy())));
            lines.push("unixsocketperm 700".to_owned());
        }
        if self.cluster {
            lines.push("cluster-enabled yes".to_owned());
            if self.tls.is_some() {
                lines.push("tls-cluster yes".to_owned());
                lines.push("tls-replication yes".to_owned());
            }
        }
        if let Some(password) = &self.password {
            lines.push(format!("requirepass {}", quoted(password)));
            lines.push(format!("masterauth {}", quoted(password)));
        }
        for (directive, value) in &self.directives {
            let value = if value.is_empty() { "\"\"" } else { value };
            lines.push(format!("{directive} {value}"));
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

impl Server {
    /// Describes a server to start.
    pub fn builder(engine: Engine) -> ServerBuilder {
        ServerBuilder {
            engine,
            name: None,
            directives: Vec::new(),
            password: None,
            tls: None,
            unix_socket: false,
            cluster: false,
            sentinel: false,
            modules: false,
            nodes_conf: None,
            overwrites_freed: false,
        }
    }

    /// The engine it runs.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Its address without TLS, as `127.0.0.1:PORT`.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its port without TLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its port with TLS, if it was started with certificates.
    pub fn tls_port(&self) -> Option<u16> {
        self.tls_port
    }

    /// Its Unix socket, if it was started with one.
    pub fn unix_socket(&self) -> Option<&Path> {
        self.unix_socket.as_deref()
    }

    /// Its address without TLS as a URL, with the default user's password if there is one.
    pub fn url(&self) -> String {
        self.url_of("redis", self.port)
    }

    /// Its address with TLS as a URL, with the default user's password if there is one.
    pub fn tls_url(&self) -> Option<String> {
        self.tls_port.map(|port| self.url_of("rediss", port))
    }

    /// The process id; after [`restart`](Self::restart) it is another one.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Whether the process has not ended. A suspended one has not.
    pub fn is_running(&self) -> bool {
        self.process().is_running()
    }

    /// Its folder: data files, configuration and log.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Everything it has written to its log, over all restarts.
    pub fn log(&self) -> String {
        fs::read(log_file(self.dir.path()))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// A new connection without TLS, as the default user.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn try_connection(&self) -> Result<redis::Connection, LabError> {
        let client = self.connection_info(self.port).and_then(Client::open);
        self.connect(client)
    }

    /// A new connection without TLS, as the default user.
    ///
    /// # Panics
    /// When it cannot be opened.
    pub fn connection(&self) -> redis::Connection {
        self.try_connection().unwrap_or_else(|error| panic!("{error}"))
    }

    /// A new connection with TLS and a client certificate, as the default user.
    ///
    /// # Errors
    /// When the server has no TLS, or the connection cannot be opened.
    pub fn tls_connection(&self) -> Result<redis::Connection, LabError> {
        static CRYPTO: Once = Once::new();
        CRYPTO.call_once(|| {
            // Only fails if a provider was chosen already, which is fine too.
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let (Some(tls), Some(port)) = (&self.tls, self.tls_port) else {
            return Err(LabError::io("connect with TLS", std::io::ErrorKind::Unsupported.into()));
        };
        let read = |path: PathBuf| {
            fs::read(&path).map_err(|source| LabError::io(format!("read {}", path.display()), source))
        };
        let certificates = TlsCertificates {
            client_tls: Some(redis::ClientTlsConfig {
                client_cert: read(tls.client_cert())?,
                client_key: read(tls.client_key())?,
            }),
            root_cert: Some(read(tls.ca())?),
        };
        let info = self.connection_info(port).map(|info| {
            info.set_addr(ConnectionAddr::TcpTls {
                host: "127.0.0.1".to_owned(),
                port,
                insecure: false,
                tls_params: None,
            })
        });
        self.connect(info.and_then(|info| Client::build_with_tls(info, certificates)))
    }

    /// Sends one command over a connection of its own.
    ///
    /// # Errors
    /// When the connection fails, or the server refuses the command.
    pub fn try_call(&self, command: &[&str]) -> Result<redis::Value, LabError> {
        let mut cmd = redis::Cmd::new();
        for word in command {
            cmd.arg(*word);
        }
        self.query(&mut self.try_connection()?, command.first().unwrap_or(&"nothing"), &cmd)
    }

    /// Sends one command over a connection of its own.
    ///
    /// # Panics
    /// When the connection fails, or the server refuses the command.
    pub fn call(&self, command: &[&str]) -> redis::Value {
        self.try_call(command).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Commands that took more than 50 ms on average since this was asked last, with their statistics. A
    /// command that a busy machine has interrupted does not count, if it is one of many.
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn slow_commands(&self) -> Vec<String> {
        let stats: String =
            redis::from_redis_value(self.call(&["INFO", "commandstats"])).expect("statistics are text");
        self.call(&["CONFIG", "RESETSTAT"]);
        let is_slow = |line: &&str| {
            let average_us = line.split(',').find_map(|field| field.strip_prefix("usec_per_call="));
            average_us.is_some_and(|us| us.parse::<f64>().expect("a number") > SLOW_US)
        };
        stats.lines().filter(is_slow).map(|line| format!("{}: {line}", self.addr())).collect()
    }

    /// SIGKILL, as in a crash, and waits for the end. The folder stays.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn kill9(&self) -> Result<(), LabError> {
        self.process().kill9()
    }

    /// SIGTERM, so that it leaves in order, and waits for the end. If it has not ended after 15 seconds, it
    /// is killed.
    ///
    /// # Errors
    /// When a signal cannot be sent.
    pub fn stop(&self) -> Result<(), LabError> {
        let process = self.process();
        process.signal(Signal::SIGTERM)?;
        // A suspended process would not notice.
        process.signal(Signal::SIGCONT)?;
        if process.wait(STOP_TIMEOUT) { Ok(()) } else { process.kill9() }
    }

    /// Starts it again with the same ports, folder and configuration, and waits until it serves requests. If
    /// it still runs it is stopped first.
    ///
    /// # Errors
    /// When it does not become ready, or another process took its port meanwhile.
    pub fn restart(&self) -> Result<(), LabError> {
        self.stop()?;
        *self.process() = launch(&self.binary, self.dir.path(), self.sentinel, self.overwrites_freed)?;
        self.wait_ready().map_err(|not_ready| match not_ready {
            NotReady::PortTaken => self.start_failed("somebody else took its port"),
            NotReady::Failed(error) => error,
        })
    }

    /// SIGSTOP: it keeps its connections but does nothing.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn suspend(&self) -> Result<(), LabError> {
        self.process().signal(Signal::SIGSTOP)
    }

    /// SIGCONT, after [`suspend`](Self::suspend).
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn resume(&self) -> Result<(), LabError> {
        self.process().signal(Signal::SIGCONT)
    }

    /// Processor time used by the process, and by those of its children that have ended (they write
    /// snapshots), in user and kernel mode, in seconds.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn cpu_seconds(&self) -> Result<f64, LabError> {
        Ok(processor_seconds(&self.proc_file("stat")?))
    }

    /// Resident memory of the process, in bytes.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn rss_bytes(&self) -> Result<u64, LabError> {
        let status = self.proc_file("status")?;
        let kibibytes = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok())
            .ok_or_else(|| LabError::io("read resident memory", std::io::ErrorKind::NotFound.into()))?;
        Ok(kibibytes * 1024)
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Sends a command; `what` names it in the error, as arguments may be confidential.
    pub(crate) fn query<T: redis::FromRedisValue>(
        &self,
        connection: &mut redis::Connection,
        what: &str,
        command: &redis::Cmd,
    ) -> Result<T, LabError> {
        command.query(connection).map_err(|source| self.command_failed(what, source))
    }

    pub(crate) fn command_failed(&self, what: &str, source: redis::RedisError) -> LabError {
        LabError::Command { server: self.label.clone(), what: what.to_owned(), source }
    }

    /// Waits until the server answers, and is the server that was started here.
    pub(crate) fn wait_ready(&self) -> Result<(), NotReady> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let answered = self.ping();
            // Looked at after the answer: if it has ended, another server has answered.
            if !self.is_running() {
                return Err(self.why_ended());
            }
            match answered {
                Ok(()) => return Ok(()),
                Err(seen) if Instant::now() >= deadline => {
                    return Err(NotReady::Failed(self.start_failed(&format!("not ready in time, {seen}"))));
                }
                Err(_) => thread::sleep(POLL),
            }
        }
    }

    /// Whether this process serves requests; if not, what was seen.
    fn ping(&self) -> Result<(), String> {
        let info = self.connection_info(self.port).and_then(Client::open);
        let info: redis::RedisResult<String> = info
            .and_then(|client| client.get_connection_with_timeout(CONNECT_TIMEOUT))
            .and_then(|mut connection| {
                connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
                redis::cmd("PING").exec(&mut connection)?;
                redis::cmd("INFO").arg("server").query(&mut connection)
            });
        match info {
            Ok(info) => {
                let pid = format!("process_id:{}", self.pid());
                if info.lines().any(|line| line == pid) {
                    Ok(())
                } else {
                    Err("another process answers".to_owned())
                }
            }
            // A server that turns the default user away is up.
            Err(error) if matches!(error.code(), Some("NOAUTH" | "NOPERM" | "WRONGPASS")) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn why_ended(&self) -> NotReady {
        let log = self.log();
        if tail(&log).contains("Address already in use") {
            NotReady::PortTaken
        } else {
            NotReady::Failed(self.start_failed("the process has ended"))
        }
    }

    fn start_failed(&self, reason: &str) -> LabError {
        LabError::StartFailed {
            server: self.label.clone(),
            reason: reason.to_owned(),
            log_tail: tail(&self.log()).to_owned(),
        }
    }

    fn connection_info(&self, port: u16) -> redis::RedisResult<ConnectionInfo> {
        // Without the library's own greeting, so that what tests count is what they sent.
        let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        Ok(("127.0.0.1", port).into_connection_info()?.set_redis_settings(settings))
    }

    fn connect(&self, client: redis::RedisResult<Client>) -> Result<redis::Connection, LabError> {
        client
            .and_then(|client| client.get_connection_with_timeout(CONNECT_TIMEOUT))
            .and_then(|connection| connection.set_read_timeout(Some(REPLY_TIMEOUT)).map(|()| connection))
            .map_err(|source| self.command_failed("connecting", source))
    }

    fn url_of(&self, scheme: &str, port: u16) -> String {
        let user = self.password.as_deref().map(|password| format!(":{}@", percent_encoded(password)));
        format!("{scheme}://{}127.0.0.1:{port}", user.unwrap_or_default())
    }

    fn proc_file(&self, name: &str) -> Result<String, LabError> {
        let path = format!("/proc/{}/{name}", self.pid());
        fs::read_to_string(&path).map_err(|source| LabError::io(format!("read {path}"), source))
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        // A panic elsewhere leaves the process as it was.
        self.process.lock()
    }
}

/// Without the password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.label).finish()
    }
}

fn launch(binary: &Path, dir: &Path, sentinel: bool, overwrites_freed: bool) -> Result<Process, LabError> {
    let log = log_file(dir);
    let open = || OpenOptions::new().create(true).append(true).open(&log);
    let (out, err) = open()
        .and_then(|out| open().map(|err| (out, err)))
        .map_err(|source| LabError::io(format!("open {}", log.display()), source))?;
    let mut command = process::command(binary);
    command.arg(config_file(dir)).args(sentinel.then_some("--sentinel"));
    command.stdin(std::process::Stdio::null()).stdout(out).stderr(err);
    command.envs(overwrites_freed.then_some(("MALLOC_CONF", "junk:true")));
    Process::spawn(command).map_err(|source| LabError::io(format!("start {}", binary.display()), source))
}

fn config_file(dir: &Path) -> PathBuf {
    dir.join("server.conf")
}

fn log_file(dir: &Path) -> PathBuf {
    dir.join("server.log")
}

/// The last lines of a log. If it ends with the report of a crash, the first lines of that: they say what has
/// failed, and hundreds follow.
fn tail(log: &str) -> &str {
    let lines_before =
        |end: usize, lines: usize| log[..end].rmatch_indices('\n').nth(lines).map_or(0, |(at, _)| at + 1);
    let last = &log[lines_before(log.len(), LOG_TAIL_LINES)..];
    let Some(at) = log.rfind("BUG REPORT START").filter(|_| last.contains("BUG REPORT END")) else {
        return last;
    };
    let report = &log[lines_before(at, 2)..];
    let end = report.match_indices('\n').nth(LOG_TAIL_LINES).map_or(report.len(), |(at, _)| at + 1);
    &report[..end]
}

/// A word of the configuration file.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// Processor time of a process, and of those of its children that have ended, in seconds: from its `stat` in
/// `/proc` (see proc_pid_stat(5)).
pub fn processor_seconds(stat: &str) -> f64 {
    let ticks_per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    // The second field is a name in brackets that may hold spaces; utime is the 14th, cstime the 17th.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / ticks_per_second as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines() {
        let log: String = (0..50).map(|n| format!("line {n}\n")).collect();
        assert!(tail(&log).starts_with("line 20\n") && tail(&log).ends_with("line 49\n"));
        let crash =
            format!("{log}=== BUG REPORT START ===\nASSERTION FAILED\n{log}{log}=== BUG REPORT END ===\n");
        assert!(tail(&crash).starts_with("line 48\n") && tail(&crash).contains("ASSERTION FAILED\n"));
        assert_eq!(tail(&crash).lines().count(), 31);
        let later = crash + &log;
        assert!(tail(&later).starts_with("line 20\n"), "it has been started again since");
        assert_eq!(tail("short\n"), "short\n");
    }

    #[test]
    fn passwords_survive_urls_and_configuration() {
        assert_eq!(percent_encoded("a b/@é"), "a%20b%2F%40%C3%A9");
        assert_eq!(quoted(r#"a "b" \c"#), r#""a \"b\" \\c""#);
    }
}
