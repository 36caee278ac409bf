//! Values on a command line, found and replaced without regard to what they are.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Whether a value was typed: as an argument of its own, or behind the name of its option as in
/// `--cluster=ADDRESS`; some options take several with commas.
pub fn is_typed(arguments: &[OsString], value: &str) -> bool {
    let is_in = |typed: &str| typed == value || typed.split(',').any(|one| one == value);
    arguments
        .iter()
        .filter_map(|argument| argument.to_str())
        .any(|typed| is_in(typed) || typed.split_once('=').is_some_and(|(_, typed)| is_in(typed)))
}

/// A value whose secret part goes from the command line into the environment.
pub struct Moved<'a> {
    /// As it was typed.
    pub value: &'a str,
    /// What stands in its place.
    pub shown: String,
    /// The variable that the secret goes into.
    pub variable: &'static str,
    /// The secret.
    pub secret: String,
}

/// Replaces this process by one with such arguments and variables; does nothing where nothing is moved.
///
/// # Errors
/// Where it cannot be replaced.
pub fn run_again_with(arguments: &[OsString], moved: &[Moved<'_>]) -> io::Result<()> {
    if moved.is_empty() {
        return Ok(());
    }
    let replaced: Vec<(&str, &str)> = moved.iter().map(|it| (it.value, it.shown.as_str())).collect();
    let mut again = Command::new(std::env::current_exe()?);
    again.args(arguments.iter().map(|argument| with_values_replaced(argument, &replaced)));
    again.envs(moved.iter().map(|it| (it.variable, &it.secret)));
    Err(again.exec())
}

/// An argument with other values in the places of these.
fn with_values_replaced(argument: &OsStr, replaced: &[(&str, &str)]) -> OsString {
    let Some(text) = argument.to_str() else { return argument.to_owned() };
    let (option, value) = match text.split_once('=') {
        Some((option, value)) if option.starts_with("--") => (format!("{option}="), value),
        _ => (String::new(), text),
    };
    let other = |value: &str| replaced.iter().find(|(old, _)| *old == value).map(|(_, new)| *new);
    let whole = other(value).map(str::to_owned);
    let each = || value.split(',').map(|one| other(one).unwrap_or(one)).collect::<Vec<_>>().join(",");
    (option + &whole.unwrap_or_else(each)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_replaced_wherever_they_stand() {
        let replaced = [("redis://u:p@a", "redis://u@a"), ("redis://u:q,r@b", "redis://u@b")];
        for (argument, expected) in [
            ("redis://u:p@a", "redis://u@a"),
            ("--server=redis://u:p@a,c:1", "--server=redis://u@a,c:1"),
            ("--cluster=redis://u:q,r@b", "--cluster=redis://u@b"),
            ("--match=a,b=c", "--match=a,b=c"),
        ] {
            assert_eq!(with_values_replaced(argument.as_ref(), &replaced), expected);
            assert_eq!(is_typed(&[argument.into()], replaced[0].0), argument.contains(replaced[0].0));
        }
    }
}
