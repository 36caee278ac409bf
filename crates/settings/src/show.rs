//! What `whimbrel config show` shows. No password leaves this module.

use std::ffi::{OsStr, OsString};

use clap::error::Error;
use clap::{Arg, Command};

use crate::setting::{Setting, Surroundings};
use crate::{environment, shape, sources};

/// What stands in the place of a secret.
const HIDDEN: &str = "***";

/// One option and where its value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Its name, as in a file.
    pub option: String,
    /// Its values; of a flag, whether it is on.
    pub value: String,
    /// Where the value stands, or `default`.
    pub origin: String,
    /// The stronger source that puts this one out of force, where there is one.
    pub overruled_by: Option<String>,
}

/// What is in force for a command line.
#[derive(Debug)]
pub struct Effective {
    /// The command.
    pub command: String,
    /// Its options: those in force, defaults included, then those that are overruled.
    pub options: Vec<Shown>,
}

/// What is in force for a command line; `None` where it is none.
///
/// # Errors
/// Those of the file and the environment.
pub fn of_command(
    command: &Command,
    arguments: &[OsString],
    around: Surroundings<'_>,
) -> Result<Option<Effective>, Error> {
    let Some(merged) = sources::merged(command, arguments, around)? else { return Ok(None) };
    let mut built = command.clone();
    built.build();
    let mut options = Vec::new();
    let at = shape::at(&built, merged.path()).unwrap_or(&built);
    for arg in shape::options(at) {
        let set = merged.in_force.iter().find(|setting| setting.arg.get_id() == arg.get_id());
        options.extend(set.map(|setting| shown(setting, None)).or_else(|| default(arg)));
    }
    options.extend(merged.overruled.iter().map(|(setting, by)| shown(setting, Some(by.clone()))));
    Ok(Some(Effective { command: merged.path().join(" "), options }))
}

/// What the environment and a file say, whatever the command; with the commands that it is for.
///
/// # Errors
/// As [`of_command`].
pub fn of_sources(
    command: &Command,
    config: Option<&OsStr>,
    profile: Option<&OsStr>,
    around: Surroundings<'_>,
) -> Result<Vec<(Shown, Vec<String>)>, Error> {
    let mut built = command.clone();
    built.build();
    let owned = |text: Option<&OsStr>| text.map(OsStr::to_owned);
    let file = sources::chosen_file(&built, owned(config).as_ref(), owned(profile).as_ref(), around)?;
    let mut all: Vec<(Shown, Vec<String>)> = Vec::new();
    for (path, _) in shape::with_paths(&built) {
        let mut settings = environment::settings(&built, &path, around)?;
        if let Some((file, profile)) = &file {
            settings.extend(file.settings(&built, &path, profile.as_deref())?);
        }
        for setting in settings {
            let one = shown(&setting, None);
            match all.iter_mut().find(|(known, _)| *known == one) {
                Some((_, commands)) => commands.push(path.join(" ")),
                None => all.push((one, vec![path.join(" ")])),
            }
        }
    }
    Ok(all)
}

fn shown(setting: &Setting, overruled_by: Option<String>) -> Shown {
    let value = if shape::is_flag(&setting.arg) {
        (!setting.values.is_empty()).to_string()
    } else {
        let values = setting.values.iter().map(|value| value_without_secret(&setting.arg, value));
        values.collect::<Vec<_>>().join(", ")
    };
    Shown { option: shape::name(&setting.arg), value, origin: setting.origin.to_string(), overruled_by }
}

fn default(arg: &Arg) -> Option<Shown> {
    let values = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    let value = values.collect::<Vec<_>>().join(", ");
    let is_shown = !value.is_empty() && !shape::is_flag(arg);
    is_shown.then(|| Shown {
        option: shape::name(arg),
        value,
        origin: "default".to_owned(),
        overruled_by: None,
    })
}

/// A value without the password of an address, and without a command that prints one.
fn value_without_secret(arg: &Arg, value: &OsStr) -> String {
    let name = shape::name(arg);
    let value = value.to_string_lossy();
    let is_harmless = ["-file", "-ttl"].iter().any(|end| name.ends_with(end));
    if name.contains("password") && !is_harmless {
        return HIDDEN.to_owned();
    }
    // The path of a webhook is often all that is needed to post there.
    if name == "on" && value.contains("=http") {
        let end = value.find("://").map_or(0, |at| at + 3);
        let host = value[end..].find(['/', '?', '#']).map_or(value.len(), |at| end + at);
        return format!("{}/…", &value[..host]);
    }
    // Up to the last @, since a password may have one as well.
    let Some((scheme, rest)) = value.split_once("://") else { return value.into_owned() };
    match rest.rsplit_once('@') {
        Some((login, at)) => match login.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:{HIDDEN}@{at}"),
            None => value.into_owned(),
        },
        None => value.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::value_without_secret;

    #[test]
    fn secrets_are_not_shown() {
        let shown = |option: &'static str, value: &str| {
            value_without_secret(&Arg::new(option).long(option), value.as_ref())
        };
        for (value, expected) in [
            ("redis://app:s3cr:et@old:6379/2", "redis://app:***@old:6379/2"),
            ("redis://:s3c@ret@old", "redis://:***@old"),
            ("a=rediss://u:pw@h,b=rediss://u:pw2@i:1", "a=rediss://u:***@i:1"),
            ("redis://app@old:6379", "redis://app@old:6379"),
            ("old:6379", "old:6379"),
        ] {
            assert_eq!(shown("source", value), expected);
        }
        assert_eq!(
            shown("on", "ended=https://hooks.example:8443/s3c/ret?a"),
            "ended=https://hooks.example:8443/…"
        );
        assert_eq!(shown("on", "ended=notify-send /a"), "ended=notify-send /a");
        assert_eq!(shown("source-password-command", "echo s3cret"), "***");
        assert_eq!(shown("source-password-file", "/run/pw"), "/run/pw");
    }
}
