//! Names of cluster nodes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name that a cluster node gave itself: 40 lower-case hexadecimal digits, as in `CLUSTER MYID`.
///
/// It belongs to the server process's configuration, not to its address: a node keeps its name when it
/// restarts or moves, and a failover makes another node, with another name, the primary of the shard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(String);

impl NodeId {
    /// How many digits a name has.
    pub const LENGTH: usize = 40;

    /// How many digits [`NodeId::short`] gives.
    const SHORT_LENGTH: usize = 8;

    /// The name with all its digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first eight digits: enough for people to distinguish the nodes of a cluster, not for programs.
    pub fn short(&self) -> &str {
        &self.0[..NodeId::SHORT_LENGTH]
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for NodeId {
    type Err = NodeIdError;

    /// Takes exactly what servers print. Upper-case digits are refused: servers compare names byte by byte.
    fn from_str(text: &str) -> Result<NodeId, NodeIdError> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == NodeId::LENGTH && text.bytes().all(is_digit) {
            Ok(NodeId(text.to_owned()))
        } else {
            Err(NodeIdError { text: text.to_owned() })
        }
    }
}

impl TryFrom<String> for NodeId {
    type Error = NodeIdError;

    fn try_from(text: String) -> Result<NodeId, NodeIdError> {
        text.parse()
    }
}

impl From<NodeId> for String {
    fn from(id: NodeId) -> String {
        id.0
    }
}

/// A text that is not the name of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a node id: expected 40 hexadecimal digits in lower case, as CLUSTER MYID shows")]
pub struct NodeIdError {
    /// The text.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "07c37dfeb235213a872192d90877d0cd55635b91";

    #[test]
    fn a_name_is_read_and_printed_unchanged() {
        let id: NodeId = NAME.parse().unwrap();
        assert_eq!(id.to_string(), NAME);
        assert_eq!(id.as_str(), NAME);
        assert_eq!(id.short(), "07c37dfe");
    }

    #[test]
    fn what_is_not_a_name_is_refused() {
        for text in ["", "07c37dfe", &NAME.to_uppercase(), &format!("{NAME}0"), &NAME.replace('7', "g"), " "]
        {
            let error = text.parse::<NodeId>().unwrap_err();
            assert_eq!(error, NodeIdError { text: text.to_owned() });
        }
        // 40 bytes, but not 40 digits; slicing for `short` must never see it.
        assert!("é".repeat(20).parse::<NodeId>().is_err());
    }

    #[test]
    fn a_name_survives_serialisation_and_only_a_name_does() {
        let id: NodeId = NAME.parse().unwrap();
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, format!("\"{NAME}\""));
        assert_eq!(serde_json::from_str::<NodeId>(&json).unwrap(), id);
        assert!(serde_json::from_str::<NodeId>("\"short\"").is_err());
    }
}
