//! Which side of a job an error or an endpoint is on.

use std::fmt;

use serde::Serialize;

/// Which side of a transfer something concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Where keys come from.
    Source,
    /// Where keys go to.
    Target,
    /// Where several processes of whimbrel write what they share.
    Store,
    /// Whimbrel itself and the machine it runs on.
    Own,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Source => "source",
            Side::Target => "target",
            Side::Store => "store",
            Side::Own => "whimbrel",
        })
    }
}
