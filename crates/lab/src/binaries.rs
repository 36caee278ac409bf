//! Where the programs of engines are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::engine::Engine;
use crate::error::LabError;

/// Modules for documents, filters, time series and searches, by the names of their files.
const MODULES: [&str; 4] = ["rejson.so", "redisbloom.so", "redistimeseries.so", "redisearch.so"];

/// Where an engine's programs are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// The server.
    pub server: PathBuf,
    /// The command-line client. Not there for servers that come from packages without one.
    pub cli: PathBuf,
    /// The modules that came with the server.
    pub modules: Vec<PathBuf>,
}

impl Engine {
    /// The engine's programs: from the folder that `./dev engines` fills, or, for Redis 7.0, a server of that
    /// version on `PATH`.
    ///
    /// # Errors
    /// [`LabError::EngineMissing`] if there are none.
    pub fn binaries(self) -> Result<Binaries, LabError> {
        let family = if self.is_valkey() { "valkey" } else { "redis" };
        let (server, cli) = (format!("{family}-server"), format!("{family}-cli"));
        let cached = cache_dir().map(|dir| dir.join(self.name()).join("bin"));
        let on_path = std::env::var_os("PATH").unwrap_or_default();
        let system = std::env::split_paths(&on_path).filter(|_| self == Self::Redis70);
        cached
            .into_iter()
            .chain(system.filter(|dir| is_redis_7_0(&dir.join("redis-server"))))
            .map(|dir| Binaries {
                server: dir.join(&server),
                cli: dir.join(&cli),
                modules: modules_beside(&dir),
            })
            .find(|binaries| binaries.server.is_file())
            .ok_or(LabError::EngineMissing { engine: self })
    }
}

/// The folder that `./dev engines` fills: `xtask` has the same rule.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    let set =
        |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    set("WHIMBREL_ENGINES_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("whimbrel/engines")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/whimbrel/engines")))
}

/// The place of the browser that `./dev engines chromium` brings: a folder with `bin` and `fonts`.
pub fn browser_home() -> Option<PathBuf> {
    let home = cache_dir()?.join("chromium");
    home.join("bin/chromium-headless-shell").is_file().then_some(home)
}

/// The script that `./dev engines axe` brings: run in a page, it finds what hinders people who do not see it,
/// or use no mouse.
pub fn page_checker() -> Option<PathBuf> {
    let script = cache_dir()?.join("axe/bin/axe.min.js");
    script.is_file().then_some(script)
}

/// Those of [`MODULES`] that are in `lib`, beside a folder of programs.
fn modules_beside(bin: &Path) -> Vec<PathBuf> {
    let lib = bin.with_file_name("lib");
    MODULES.iter().map(|name| lib.join(name)).filter(|path| path.is_file()).collect()
}

fn is_redis_7_0(server: &Path) -> bool {
    server.is_file()
        && Command::new(server)
            .arg("--version")
            .output()
            .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(" v=7.0."))
}
