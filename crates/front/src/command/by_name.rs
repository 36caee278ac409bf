//! What is looked up by the name of a command, with every request that clients send.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// Names up to this length are looked up without an allocation. No server has a longer one of its own.
const SHORT_BYTES_MAX: usize = 32;

/// By names, in whatever case they are given. It is filled with what the servers and the table know, never
/// with what clients send: so its hashes need no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ByName<T>(HashMap<Vec<u8>, T, FixedState>);

impl<T> Default for ByName<T> {
    fn default() -> Self {
        ByName(HashMap::default())
    }
}

impl<T> FromIterator<(Vec<u8>, T)> for ByName<T> {
    fn from_iter<I: IntoIterator<Item = (Vec<u8>, T)>>(entries: I) -> Self {
        ByName(entries.into_iter().map(|(name, it)| (name.to_ascii_lowercase(), it)).collect())
    }
}

impl<T> ByName<T> {
    pub(crate) fn get(&self, name: &[u8]) -> Option<&T> {
        let mut short = [0; SHORT_BYTES_MAX];
        match short.get_mut(..name.len()) {
            Some(lower) => {
                lower.copy_from_slice(name);
                lower.make_ascii_lowercase();
                self.0.get(&*lower)
            }
            None => self.0.get(&name.to_ascii_lowercase()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All, in no order; the names in lower case.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &T)> {
        self.0.iter().map(|(name, it)| (name.as_slice(), it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_of_any_length() {
        let long = "a.module.with.a.long.name.HAS.COMMANDS.as.WELL";
        let named: ByName<u8> = [(b"Get".to_vec(), 1), (long.as_bytes().to_vec(), 2)].into_iter().collect();
        for (name, expected) in [("GET", 1), ("get", 1), ("gEt", 1), (long, 2)] {
            assert_eq!(named.get(name.as_bytes()), Some(&expected), "{name}");
        }
        assert_eq!(named.get(long.to_ascii_uppercase().as_bytes()), Some(&2));
        assert_eq!(named.get(b"GETEX"), None);
        assert_eq!(named.get(b""), None);
        assert!(named.iter().any(|(name, _)| name == b"get"));
    }
}
