//! The kinds and versions of servers that tests run on.

use std::fmt;

/// A kind and version of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Engine {
    /// Redis 6.0, which some services still run.
    Redis60,
    /// Redis 6.2.
    Redis62,
    /// Redis 7.0, as in Debian 12.
    Redis70,
    /// Redis 7.2, which comes with modules.
    Redis72,
    /// Redis 7.4, which comes with modules.
    Redis74,
    /// Redis 8.0.
    Redis80,
    /// Redis 8.2.
    Redis82,
    /// Redis 8.6, which hides the keys of slots that a node does not own.
    Redis86,
    /// Valkey 8.0.
    Valkey80,
    /// Valkey 8.1.
    Valkey81,
    /// Valkey 9.0.
    Valkey90,
    /// Valkey 9.1.
    Valkey91,
}

impl Engine {
    /// The engines that everything is tried on, the oldest first.
    pub const ALL: [Self; 4] = [Self::Redis70, Self::Redis80, Self::Valkey81, Self::Valkey91];

    /// The other engines, for tests of what differs there.
    pub const OTHERS: [Self; 8] = [
        Self::Redis60,
        Self::Redis62,
        Self::Redis72,
        Self::Redis74,
        Self::Redis82,
        Self::Redis86,
        Self::Valkey80,
        Self::Valkey90,
    ];

    /// The name that `./dev engines` knows it by, such as `redis-7.0`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redis60 => "redis-6.0",
            Self::Redis62 => "redis-6.2",
            Self::Redis70 => "redis-7.0",
            Self::Redis72 => "redis-7.2",
            Self::Redis74 => "redis-7.4",
            Self::Redis80 => "redis-8.0",
            Self::Redis82 => "redis-8.2",
            Self::Redis86 => "redis-8.6",
            Self::Valkey80 => "valkey-8.0",
            Self::Valkey81 => "valkey-8.1",
            Self::Valkey90 => "valkey-9.0",
            Self::Valkey91 => "valkey-9.1",
        }
    }

    /// The engine with this name, the opposite of [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain(Self::OTHERS).find(|engine| engine.name() == name)
    }

    /// Whether this is Valkey; otherwise it is Redis.
    pub const fn is_valkey(self) -> bool {
        matches!(self, Self::Valkey80 | Self::Valkey81 | Self::Valkey90 | Self::Valkey91)
    }

    /// The first number of the version.
    pub const fn major(self) -> u32 {
        self.version().0
    }

    /// The second number of the version.
    pub const fn minor(self) -> u32 {
        self.version().1
    }

    /// Major and minor version. Those of Redis and of Valkey do not compare with each other.
    pub const fn version(self) -> (u32, u32) {
        match self {
            Self::Redis60 => (6, 0),
            Self::Redis62 => (6, 2),
            Self::Redis70 => (7, 0),
            Self::Redis72 => (7, 2),
            Self::Redis74 => (7, 4),
            Self::Redis80 => (8, 0),
            Self::Redis82 => (8, 2),
            Self::Redis86 => (8, 6),
            Self::Valkey80 => (8, 0),
            Self::Valkey81 => (8, 1),
            Self::Valkey90 => (9, 0),
            Self::Valkey91 => (9, 1),
        }
    }

    /// Whether this is a server before Redis 7.0, which knows fewer commands and directives than all others.
    pub(crate) const fn is_before_7(self) -> bool {
        self.major() < 7
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_versions_agree() {
        for engine in Engine::ALL.into_iter().chain(Engine::OTHERS) {
            let family = if engine.is_valkey() { "valkey" } else { "redis" };
            assert_eq!(engine.name(), format!("{family}-{}.{}", engine.major(), engine.minor()));
            assert_eq!(Engine::from_name(engine.name()), Some(engine));
        }
        assert_eq!(Engine::from_name("redis-5.0"), None);
    }
}
