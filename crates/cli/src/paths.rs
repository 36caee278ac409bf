//! Where whimbrel keeps its files.

use std::path::{Path, PathBuf};

use whimbrel_engine::error::{Error, Result};

use crate::safety;

/// Where journals are: the folder that was named, or the user's own for such things.
///
/// # Errors
/// `Own` where none is named and there is no home; `Options` for one that others can write to.
pub fn state_dir(named: Option<&Path>) -> Result<PathBuf> {
    let folder = named.map_or_else(default_state_dir, |folder| Ok(folder.to_owned()))?;
    safety::check_folder(&folder, named.is_none())?;
    Ok(folder)
}

fn default_state_dir() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("XDG_STATE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .map(|base| base.join("whimbrel"))
        .ok_or_else(|| {
            Error::own("find the state folder", "neither XDG_STATE_HOME nor HOME is set")
                .with_remedy("name a folder with --state-dir")
        })
}
