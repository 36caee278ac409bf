//! Keys and values of one length, by their number.

/// How keys are called, and so in which slots they are.
#[derive(Debug, Clone)]
pub enum Names {
    /// All over the cluster.
    Everywhere,
    /// In these slots only, in turn: the hash tag of each.
    In(Vec<String>),
}

impl Names {
    /// The name of a key by its number.
    pub fn of(&self, number: u64) -> String {
        match self {
            Self::Everywhere => format!("key:{number:09}"),
            Self::In(tags) => {
                let tag = &tags[usize::try_from(number % tags.len() as u64).unwrap_or_default()];
                format!("{{{tag}}}:{number:09}")
            }
        }
    }
}

/// What the cluster is filled with.
#[derive(Debug, Clone)]
pub struct Content {
    /// How the keys are called.
    pub names: Names,
    /// How many there are.
    pub keys: u64,
    /// Length of each value.
    pub value_bytes: usize,
}

/// Bytes without any pattern, the same for the same seed.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Makes a value of [`noise`] differ from all others.
pub fn stamp(value: &mut [u8], number: u64) {
    let number = number.to_le_bytes();
    let length = value.len().min(number.len());
    value[..length].copy_from_slice(&number[..length]);
}
