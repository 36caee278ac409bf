//! Secrets and keys that files and the environment hold.

use std::path::Path;

use whimbrel_engine::endpoint::Secret;
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_engine::remedy::Remedy;

use crate::private::warning_if_shared;

/// The first line of `file`, else the environment's `variable`. `warn` is given what its user has to be
/// warned of.
/// `option` is what the file is named with; its last word says what it holds.
///
/// # Errors
/// `Own` if the file cannot be read; `Options` if its first line is empty: an empty key signs nothing.
pub fn secret(
    side: Side,
    option: &str,
    file: Option<&Path>,
    variable: &str,
    warn: impl Fn(&str),
) -> Result<Option<Secret>> {
    let Some(path) = file else {
        let set = std::env::var(variable).ok().filter(|secret| !secret.is_empty());
        return Ok(set.map(Secret::new));
    };
    let what = option.rsplit('-').next().unwrap_or(option);
    let warning = warning_if_shared(path, &format!("the {what} file"));
    let text = std::fs::read_to_string(path).map_err(|e| {
        let tried = format!("read the {what} file {}", path.display());
        Error::new(side, "", tried, ErrorKind::Own(e.to_string()))
            .with_remedy(Remedy::NameReadableFile(format!("{option}-file")))
    })?;
    let Some(secret) = text.lines().next().filter(|line| !line.is_empty()) else {
        let what = format!("the first line of the {what} file {} is empty", path.display());
        return Err(Error::options(side, "reading the options", what)
            .with_remedy("write it there; any text will do for a user without a password"));
    };
    warning.iter().for_each(|words| warn(words));
    Ok(Some(Secret::new(secret)))
}

/// Refuses a file that TLS needs and that cannot be read: that is a mistake of the options, not of a server.
///
/// # Errors
/// `Options` for such a file.
pub fn check_file(side: Side, option: String, file: Option<&Path>) -> Result<()> {
    let Some(path) = file else { return Ok(()) };
    std::fs::File::open(path).map(drop).map_err(|e| {
        let what = format!("TLS: {} cannot be read: {e}", path.display());
        Error::options(side, "reading the options", what).with_remedy(Remedy::NameReadableFile(option))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn a_secret_is_the_first_line_of_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("word");
        std::fs::write(&file, "one two\nthree\n").expect("written");
        let warned = Mutex::new(None);
        let of = |path: &Path| {
            *warned.lock() = None;
            let warn = |words: &str| *warned.lock() = Some(words.to_owned());
            secret(Side::Source, "source-password", Some(path), "WHIMBREL_NOT_SET", warn)
        };
        for (mode, is_warned) in [(0o600, false), (0o644, true)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("changed");
            let word = of(&file).expect("read");
            let warning = warned.lock().take();
            assert_eq!(word.expect("a secret").expose(), "one two");
            assert_eq!(warning.is_some_and(|words| words.contains("the password file")), is_warned);
        }
        let error = of(&folder.path().join("none")).expect_err("not there");
        assert_eq!(error.remedy.as_deref(), Some(&Remedy::NameReadableFile("source-password-file".into())));
        let warn = |words: &str| panic!("there is nothing to warn of: {words}");
        let absent = secret(Side::Own, "listen-password", None, "WHIMBREL_NOT_SET", warn);
        assert!(absent.expect("nothing named").is_none());
    }
}
