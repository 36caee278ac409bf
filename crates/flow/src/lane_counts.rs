//! How many lanes a job has.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How many lanes there are, each with a connection: to the shard that it reads from, or to every node that
/// it writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LaneCounts {
    /// Those that read.
    pub read: usize,
    /// Those that write.
    pub write: usize,
}

/// Most lanes of one kind.
const LANES_MAX: usize = 64;

impl LaneCounts {
    /// As many that read as write.
    pub fn of(lanes: usize) -> LaneCounts {
        LaneCounts { read: lanes, write: lanes }
    }
}

impl FromStr for LaneCounts {
    type Err = String;

    /// Reads `N`, or `READ:WRITE`.
    fn from_str(text: &str) -> Result<LaneCounts, String> {
        let (read, write) = text.split_once(':').unwrap_or((text, text));
        let number = |text: &str| text.parse().ok().filter(|n| (1..=LANES_MAX).contains(n));
        match (number(read), number(write)) {
            (Some(read), Some(write)) => Ok(LaneCounts { read, write }),
            _ => Err(format!("write a number from 1 to {LANES_MAX}, or two as READ:WRITE")),
        }
    }
}

/// As it is parsed: `4`, or `2:8` if they differ.
impl fmt::Display for LaneCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.read, self.write) {
            (read, write) if read == write => write!(f, "{read}"),
            (read, write) => write!(f, "{read}:{write}"),
        }
    }
}

impl From<LaneCounts> for String {
    fn from(counts: LaneCounts) -> String {
        counts.to_string()
    }
}

impl TryFrom<String> for LaneCounts {
    type Error = String;

    fn try_from(text: String) -> Result<LaneCounts, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_one_number_or_two() {
        let read = |text: &str| text.parse::<LaneCounts>();
        assert_eq!(read("4"), Ok(LaneCounts::of(4)));
        assert_eq!(read("2:64"), Ok(LaneCounts { read: 2, write: 64 }));
        assert_eq!(
            ["4", "2:64", "3:3"].map(|text| read(text).map(|it| it.to_string())),
            [Ok("4".to_owned()), Ok("2:64".to_owned()), Ok("3".to_owned()),]
        );
        for wrong in ["", "0", "65", "2:", ":2", "2:0", "1:2:3", "a"] {
            assert!(read(wrong).is_err_and(|why| why.contains("READ:WRITE")), "{wrong}");
        }
    }
}
