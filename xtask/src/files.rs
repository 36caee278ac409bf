//! The files of the repository.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// The files that are tracked, or new and not ignored, as paths from the root.
pub fn list_files() -> anyhow::Result<Vec<String>> {
    let listing =
        output_of("git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"])?;
    let listing = String::from_utf8(listing).context("a file name is not UTF-8")?;
    // A file that was deleted but is still in the index cannot be checked, and a link is not text of its own.
    let is_file = |path: &&str| Path::new(path).symlink_metadata().is_ok_and(|metadata| metadata.is_file());
    Ok(listing.split_terminator('\0').filter(is_file).map(str::to_owned).collect())
}

/// What a program prints.
pub fn output_of(program: &str, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let output =
        Command::new(program).args(arguments).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {} failed: {}", arguments.join(" "), stderr.trim_end());
    }
    Ok(output.stdout)
}
