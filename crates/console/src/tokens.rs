//! Who may use the console, and for what: tokens with roles, in a file of the state folder.
//!
//! A token is 256 random bits. The file has the SHA-256 of each, so it lets nobody in who reads it;
//! a token that was drawn at random needs no slower hash.

use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::fcntl::Flock;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use whimbrel_control::clock::now_s;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_flow::journal::replace;

use crate::files::lock_of;

/// The name of the file.
const FILE: &str = "console-tokens.json";

/// How many tokens there may be: all of them are looked at for each request.
const TOKENS_MAX: usize = 256;

/// The longest name of a token, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// A word in front of each token, by which people and scanners of secrets know what it is.
const PREFIX: &str = "whimbrel_";

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// See everything but the audit log.
    View,
    /// Also pause, resume, set and cancel jobs, and plan and approve moves of slots.
    Operate,
    /// Also begin jobs between servers, cut over, and see the audit log.
    Administer,
}

impl Role {
    /// All of them, from the one that may do least.
    pub const ALL: [Role; 3] = [Role::View, Role::Operate, Role::Administer];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Role::View => "view",
            Role::Operate => "operate",
            Role::Administer => "administer",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Role, String> {
        let role = Role::ALL.into_iter().find(|role| role.word() == text);
        role.ok_or_else(|| "a role is view, operate or administer".to_owned())
    }
}

/// A token, without what proves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Whose it is, for people and the audit log.
    pub name: String,
    /// What its owner may do.
    pub role: Role,
    /// SHA-256 of the token, in hexadecimal digits.
    pub sha256: String,
    /// When it was made, in seconds since the epoch.
    pub created_s: u64,
}

/// The tokens of a state folder.
#[derive(Debug, Clone)]
pub struct Tokens {
    path: PathBuf,
}

impl Tokens {
    /// Those of this folder.
    pub fn of(state_dir: &Path) -> Tokens {
        Tokens { path: state_dir.join(FILE) }
    }

    /// All of them.
    ///
    /// # Errors
    /// `Own` where the file cannot be read or understood.
    pub fn list(&self) -> Result<Vec<Token>> {
        let fail = |e: &dyn fmt::Display| Error::own(format!("read {}", self.path.display()), e);
        match fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| fail(&e)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(fail(&e)),
        }
    }

    /// Makes a token, and returns it: nothing else ever shows it again.
    ///
    /// # Errors
    /// `Options` for a name that is taken or is none, and where there are too many; `Own` where the file
    /// cannot be written.
    pub fn add(&self, name: &str, role: Role) -> Result<String> {
        let refused = |what: String| Error::options(Side::Own, "make a token", what);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
            let what = format!("a name has up to {NAME_BYTES_MAX} letters, digits, and - _ . @");
            return Err(refused(what));
        }
        let _changing = self.lock()?;
        let mut tokens = self.list()?;
        if tokens.iter().any(|token| token.name == name) {
            return Err(refused(format!("there is a token called {name}"))
                .with_remedy("remove that one first, or choose another name"));
        }
        if tokens.len() >= TOKENS_MAX {
            return Err(refused(format!("there are {TOKENS_MAX} tokens")).with_remedy("remove one first"));
        }
        let mut random = [0; 32];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| Error::own("draw a random number", "the system gives none"))?;
        let token = format!("{PREFIX}{}", hexadecimal(&random));
        tokens.push(Token { name: name.to_owned(), role, sha256: hash(&token), created_s: now_s() });
        self.write(&tokens)?;
        Ok(token)
    }

    /// Takes a token back: it is refused from the next request on.
    ///
    /// # Errors
    /// `Options` where there is none of that name; `Own` where the file cannot be written.
    pub fn remove(&self, name: &str) -> Result<()> {
        let _changing = self.lock()?;
        let mut tokens = self.list()?;
        let before = tokens.len();
        tokens.retain(|token| token.name != name);
        if tokens.len() == before {
            return Err(Error::options(Side::Own, "remove a token", format!("there is no token {name}")));
        }
        self.write(&tokens)
    }

    /// Whose token this is.
    ///
    /// # Errors
    /// As [`Tokens::list`].
    pub fn find(&self, token: &str) -> Result<Option<Token>> {
        let hashed = hash(token);
        // What differs is a hash, so how long a comparison takes reveals nothing about the token.
        Ok(self.list()?.into_iter().find(|known| known.sha256 == hashed))
    }

    /// Held while tokens are changed: of two changes at once neither undoes the other.
    fn lock(&self) -> Result<Flock<File>> {
        let fail = |e| Error::own(format!("lock {}", self.path.display()), &e);
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(fail)?;
        }
        lock_of(&self.path).map_err(fail)
    }

    /// The file is whole or as it was, whenever this process ends.
    fn write(&self, tokens: &[Token]) -> Result<()> {
        let fail = |e: &dyn fmt::Display| Error::own(format!("write {}", self.path.display()), e);
        let text = serde_json::to_string_pretty(tokens).map_err(|e| fail(&e))?;
        // A token that was removed must not be back after a power cut.
        replace(&self.path, &text, true).map_err(|e| fail(&e))
    }
}

/// Who has a job begun with this token, for people who look at the job.
pub(crate) fn by_token(name: &str) -> String {
    format!("token {name} (console)")
}

fn hash(token: &str) -> String {
    hexadecimal(digest(&SHA256, token.as_bytes()).as_ref())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_found_until_it_is_removed_and_the_file_does_not_have_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let tokens = Tokens::of(folder.path());
        let alice = tokens.add("alice", Role::Operate).expect("made");
        let bob = tokens.add("bob", Role::View).expect("made");
        let of = |token: &str| tokens.find(token).expect("read").map(|found| (found.name, found.role));
        assert_eq!(of(&alice), Some(("alice".to_owned(), Role::Operate)));
        assert_eq!(of(&bob), Some(("bob".to_owned(), Role::View)));
        for wrong in ["", "whimbrel_", &alice[..alice.len() - 1], &alice.to_uppercase()] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        let path = folder.path().join(FILE);
        let kept = fs::read_to_string(&path).expect("read");
        assert!(!kept.contains(&alice) && !kept.contains(&alice[PREFIX.len()..]), "{kept}");
        assert_eq!(path.metadata().expect("about it").permissions().mode() & 0o777, 0o600);
        tokens.remove("alice").expect("removed");
        assert_eq!((of(&alice), of(&bob).is_some()), (None, true));
        assert!(tokens.remove("alice").is_err());
    }

    #[test]
    fn of_changes_at_once_none_undoes_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let tokens = Tokens::of(folder.path());
        tokens.add("leaver", Role::Administer).expect("made");
        std::thread::scope(|scope| {
            for number in 0..16 {
                let tokens = tokens.clone();
                scope.spawn(move || tokens.add(&format!("t{number}"), Role::View).expect("made"));
            }
            scope.spawn(|| tokens.remove("leaver").expect("removed"));
        });
        let names: Vec<String> = tokens.list().expect("read").into_iter().map(|token| token.name).collect();
        assert_eq!(names.len(), 16, "{names:?}");
        assert!(!names.contains(&"leaver".to_owned()));
    }

    #[test]
    fn names_are_plain_and_unique() {
        let folder = tempfile::tempdir().expect("a folder");
        let tokens = Tokens::of(folder.path());
        tokens.add("on-call@example", Role::View).expect("made");
        for name in ["", "on-call@example", "a b", "<b>", "a\n", &"x".repeat(65)] {
            assert!(tokens.add(name, Role::View).is_err(), "{name}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_understood_lets_nobody_in() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(FILE), "[{").expect("written");
        let tokens = Tokens::of(folder.path());
        assert!(tokens.find("whimbrel_00").is_err() && tokens.add("alice", Role::View).is_err());
    }

    #[test]
    fn roles_are_ordered_by_what_they_permit() {
        assert!(Role::View < Role::Operate && Role::Operate < Role::Administer);
        for role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
        }
        assert!("root".parse::<Role>().is_err());
    }
}
