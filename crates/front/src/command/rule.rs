//! What may be done with a command: before keys move, while they do, in front of a cluster, where the front
//! presents itself as one, and where clients share connections.

/// What a command means to the front. What is not in the table is passed on as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handling {
    /// Passed on. From here on replies come without being asked for.
    Subscribe,
    /// Never answered as a client expects, through any proxy that counts replies: refused.
    Refused(&'static str),
    /// Passed on, and if keys may move later, something of it is remembered.
    Noted(Note),
    /// Passed on as it is.
    Passed,
}

/// What a front has to remember of a command, since it changes what the connection is to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// Another server has to be sent the same.
    Trait(Trait),
    /// A transaction begins.
    Multi,
    /// It is carried out and ends, with all watches.
    Exec,
    /// It ends without being carried out, with all watches.
    Discard,
    /// Keys are watched.
    Watch,
    /// None is any more.
    Unwatch,
    /// Another database.
    Select,
    /// As on a new connection.
    Reset,
}

/// What a client is to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trait {
    /// Its user.
    Login,
    /// Its protocol, and perhaps its user and its name.
    Hello,
    /// Its name.
    Name,
}

/// What is done with a command that is known by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The target answers it. It has nothing to do with keys, or its keys are in the servers' table and are
    /// moved first.
    Target,
    /// As above, and the front remembers something of it.
    Noted(Note),
    /// As above, and from then on the target alone serves the client.
    Subscribe,
    /// Only this database is served.
    Select,
    /// Goes through the source first, and then through the target.
    Scan,
    /// A read with a cursor that only one of the servers understands.
    Elements,
    /// Both servers are asked while nothing moves.
    Both(KeyspaceQuery),
    /// Both servers are emptied, to clients at one moment.
    Flush,
    /// Its words are searched for what reaches further than its keys.
    Sort,
    /// As above.
    Copy,
    /// Runs with the keys that it declares, if that is all of them; else refused.
    Script,
    /// About scripts and functions themselves: taken where they are run.
    Library,
    /// Refused.
    Refused(&'static str),
}

/// A question about the whole keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyspaceQuery {
    /// `DBSIZE`.
    Count,
    /// `KEYS`.
    Names,
    /// `RANDOMKEY`.
    Any,
}

/// What a command does that is known by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterRule {
    /// `MULTI`.
    Multi,
    /// `EXEC`.
    Exec,
    /// `DISCARD`.
    Discard,
    /// Keys are watched.
    Watch,
    /// None is any more.
    Unwatch,
    /// Each node that is needed has to be sent the same.
    Noted(Trait),
    /// As on a new connection.
    Reset,
    /// Another database: there is only the first.
    Select,
    /// Ends the connection.
    Quit,
    /// Begins or ends to listen to channels that all nodes know.
    Listen,
    /// The same, of channels that belong to slots.
    ListenAtSlot,
    /// Its second word is a channel that belongs to a slot.
    PublishAtSlot,
    /// Goes from one primary to the next.
    Scan,
    /// Sent to all primaries, whose replies become one.
    Every(Merge),
    /// Answered as by a server that is no cluster.
    NoCluster,
    /// Not answered: it would change one node of many.
    Refused,
}

/// How the replies of all primaries become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// Numbers are added; of anything else the first.
    Sum,
    /// The least number.
    Least,
    /// All elements.
    Union,
    /// A reply that is not null.
    Any,
    /// For each element the least of all.
    Each,
}

/// Something that only a cluster knows, and that a front answers which presents itself as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaceRule {
    /// `CLUSTER SLOTS`.
    Slots,
    /// `CLUSTER SHARDS`.
    Shards,
    /// `CLUSTER NODES`.
    Nodes,
    /// `CLUSTER INFO`.
    Info,
    /// `CLUSTER MYID`.
    MyId,
    /// `CLUSTER KEYSLOT` with its key.
    KeySlot,
    /// `READONLY`, `READWRITE` and `ASKING`: a client that has one node may always read and write there.
    Agreed,
}

/// What a command means for a connection that several clients share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharingRule {
    /// It leaves nothing behind on the connection but what is known anyway.
    Harmless,
    /// It leaves something behind: a client that sends it has its own connection from then on.
    Binds,
    /// What the connection did last matters for its answer.
    LooksBack,
}

pub(super) const TRACKING: &str =
    "invalidations cannot be kept exact once keys move to another server: do without CLIENT TRACKING";
pub(super) const SILENT: &str = "replies are counted: do without CLIENT REPLY OFF and CLIENT REPLY SKIP";
pub(super) const FEED: &str = "a front does not relay replication: connect to the server itself";
pub(super) const MONITOR: &str = "its output looks like replies: connect to the server itself";
pub(super) const SCRIPTS: &str = "a script may use keys that it does not declare: wait until all keys have \
    moved; where all scripts declare all of their keys, run the front with --scripts-declare-keys";
pub(super) const DATABASES: &str = "only database 0 is served while keys move";
pub(super) const OTHER_SERVER: &str = "keys are on two servers: connect to the server that it is meant for";
pub(super) const PATTERNS: &str =
    "BY and GET reach keys that are not declared: wait until all keys have moved";
pub(super) const KEYS_UNKNOWN: &str =
    "its keys are not known, so it might use one that has not moved: wait until all keys have moved";
pub(super) const UNKNOWN: &str = "the server that keys move to has no such command";
