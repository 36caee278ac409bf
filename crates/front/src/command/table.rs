//! The table of commands that are not simply passed on: for each, how it is treated before keys move, while
//! they move, in front of a cluster, where the front presents itself as a cluster, and where clients share
//! connections. Nothing else in the front goes by the names of commands.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::by_name::ByName;
use super::rule::Handling::{self, Noted, Refused, Subscribe};
use super::rule::{
    ClusterRule, DATABASES, FEED, FaceRule, KeyspaceQuery, MONITOR, Merge, Note, OTHER_SERVER, Rule, SILENT,
    SharingRule, TRACKING, Trait,
};

const LOGIN: Note = Note::Trait(Trait::Login);
const HELLO: Note = Note::Trait(Trait::Hello);
const NAME: Note = Note::Trait(Trait::Name);

/// How a command is treated. `None`: as any that is not in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Its name, perhaps with a second word; `*` stands for any other.
    pub name: &'static str,
    /// Before keys move.
    pub plain: Option<Handling>,
    /// While they move.
    pub migrating: Option<Rule>,
    /// In front of a cluster.
    pub clustered: Option<ClusterRule>,
    /// If the front presents itself as a cluster.
    pub face: Option<FaceRule>,
    /// If clients share connections.
    pub sharing: Option<SharingRule>,
}

const fn row(name: &'static str) -> Row {
    Row { name, plain: None, migrating: None, clustered: None, face: None, sharing: None }
}

impl Row {
    const fn plain(self, handling: Handling) -> Row {
        Row { plain: Some(handling), ..self }
    }

    const fn migrating(self, rule: Rule) -> Row {
        Row { migrating: Some(rule), ..self }
    }

    const fn clustered(self, rule: ClusterRule) -> Row {
        Row { clustered: Some(rule), ..self }
    }

    const fn face(self, rule: FaceRule) -> Row {
        Row { face: Some(rule), ..self }
    }

    const fn sharing(self, rule: SharingRule) -> Row {
        Row { sharing: Some(rule), ..self }
    }

    /// What is said about it before keys move.
    pub(crate) fn handling(&self) -> Handling {
        self.plain.unwrap_or(Handling::Passed)
    }

    /// Whether a client that sends it has its own connection from then on: something of it is open there.
    pub(crate) fn binds(&self) -> bool {
        self.sharing == Some(SharingRule::Binds)
    }

    /// Whether it matters what the connection did last.
    pub(crate) fn looks_back(&self) -> bool {
        self.sharing == Some(SharingRule::LooksBack)
    }

    /// What is not said of it is as `other` says.
    fn or(self, other: &Row) -> Row {
        Row {
            name: self.name,
            plain: self.plain.or(other.plain),
            migrating: self.migrating.or(other.migrating),
            clustered: self.clustered.or(other.clustered),
            face: self.face.or(other.face),
            sharing: self.sharing.or(other.sharing),
        }
    }
}

/// In the order of the documentation.
#[rustfmt::skip]
pub(super) const TABLE: &[Row] = &[
    row("MULTI").plain(Noted(Note::Multi)).migrating(Rule::Noted(Note::Multi)).clustered(ClusterRule::Multi),
    row("EXEC").plain(Noted(Note::Exec)).migrating(Rule::Noted(Note::Exec)).clustered(ClusterRule::Exec),
    row("DISCARD").plain(Noted(Note::Discard)).migrating(Rule::Noted(Note::Discard))
        .clustered(ClusterRule::Discard),
    row("WATCH").plain(Noted(Note::Watch)).migrating(Rule::Noted(Note::Watch)).clustered(ClusterRule::Watch),
    row("UNWATCH").plain(Noted(Note::Unwatch)).migrating(Rule::Noted(Note::Unwatch))
        .clustered(ClusterRule::Unwatch),
    row("AUTH").plain(Noted(LOGIN)).migrating(Rule::Noted(LOGIN)).clustered(ClusterRule::Noted(Trait::Login)),
    row("HELLO").plain(Noted(HELLO)).migrating(Rule::Noted(HELLO))
        .clustered(ClusterRule::Noted(Trait::Hello)),
    row("CLIENT SETNAME").plain(Noted(NAME)).migrating(Rule::Noted(NAME))
        .clustered(ClusterRule::Noted(Trait::Name)).sharing(SharingRule::Harmless),
    row("RESET").plain(Noted(Note::Reset)).migrating(Rule::Noted(Note::Reset)).clustered(ClusterRule::Reset),
    row("SELECT").plain(Noted(Note::Select)).migrating(Rule::Select).clustered(ClusterRule::Select),
    row("SCAN").migrating(Rule::Scan).clustered(ClusterRule::Scan),
    row("HSCAN").migrating(Rule::Elements),
    row("SSCAN").migrating(Rule::Elements),
    row("ZSCAN").migrating(Rule::Elements),
    row("DBSIZE").migrating(Rule::Both(KeyspaceQuery::Count)).clustered(ClusterRule::Every(Merge::Sum)),
    row("KEYS").migrating(Rule::Both(KeyspaceQuery::Names)).clustered(ClusterRule::Every(Merge::Union)),
    row("RANDOMKEY").migrating(Rule::Both(KeyspaceQuery::Any)).clustered(ClusterRule::Every(Merge::Any)),
    row("SUBSCRIBE").plain(Subscribe).migrating(Rule::Subscribe).clustered(ClusterRule::Listen),
    row("PSUBSCRIBE").plain(Subscribe).migrating(Rule::Subscribe).clustered(ClusterRule::Listen),
    row("SSUBSCRIBE").plain(Subscribe).migrating(Rule::Subscribe).clustered(ClusterRule::ListenAtSlot),
    row("UNSUBSCRIBE").plain(Subscribe).migrating(Rule::Subscribe).clustered(ClusterRule::Listen),
    row("PUNSUBSCRIBE").plain(Subscribe).migrating(Rule::Subscribe).clustered(ClusterRule::Listen),
    row("SUNSUBSCRIBE").plain(Subscribe).migrating(Rule::Subscribe).clustered(ClusterRule::ListenAtSlot),
    row("PUBLISH").migrating(Rule::Target),
    row("SPUBLISH").migrating(Rule::Target).clustered(ClusterRule::PublishAtSlot),
    row("SORT").migrating(Rule::Sort),
    row("SORT_RO").migrating(Rule::Sort),
    row("COPY").migrating(Rule::Copy),
    row("PING").migrating(Rule::Target),
    row("ECHO").migrating(Rule::Target),
    row("TIME").migrating(Rule::Target),
    row("LASTSAVE").migrating(Rule::Target),
    row("LOLWUT").migrating(Rule::Target),
    row("QUIT").migrating(Rule::Target).clustered(ClusterRule::Quit),
    row("WAIT").migrating(Rule::Target).clustered(ClusterRule::Every(Merge::Least))
        .sharing(SharingRule::LooksBack),
    row("WAITAOF").migrating(Rule::Target).sharing(SharingRule::LooksBack),
    row("INFO").migrating(Rule::Target),
    row("ROLE").migrating(Rule::Target),
    row("READONLY").migrating(Rule::Target).clustered(ClusterRule::NoCluster).face(FaceRule::Agreed),
    row("READWRITE").migrating(Rule::Target).clustered(ClusterRule::NoCluster).face(FaceRule::Agreed),
    row("COMMAND").migrating(Rule::Target),
    row("OBJECT HELP").migrating(Rule::Target),
    row("MEMORY DOCTOR").migrating(Rule::Target),
    row("MEMORY STATS").migrating(Rule::Target),
    row("MODULE LIST").migrating(Rule::Target),
    row("MODULE LOAD").clustered(ClusterRule::Refused),
    row("MODULE LOADEX").clustered(ClusterRule::Refused),
    row("MODULE UNLOAD").clustered(ClusterRule::Refused),
    row("CONFIG GET").migrating(Rule::Target),
    row("CONFIG SET").clustered(ClusterRule::Refused),
    row("CONFIG REWRITE").clustered(ClusterRule::Refused),
    row("CONFIG RESETSTAT").clustered(ClusterRule::Refused),
    row("CONFIG *").migrating(Rule::Refused(OTHER_SERVER)),
    row("ACL WHOAMI").migrating(Rule::Target),
    row("ACL CAT").migrating(Rule::Target),
    row("ACL GENPASS").migrating(Rule::Target),
    row("ACL DRYRUN").migrating(Rule::Target),
    row("ACL SETUSER").clustered(ClusterRule::Refused),
    row("ACL DELUSER").clustered(ClusterRule::Refused),
    row("ACL LOAD").clustered(ClusterRule::Refused),
    row("ACL SAVE").clustered(ClusterRule::Refused),
    row("ACL *").migrating(Rule::Refused(OTHER_SERVER)),
    row("CLIENT ID").migrating(Rule::Target).sharing(SharingRule::Harmless),
    row("CLIENT INFO").migrating(Rule::Target).sharing(SharingRule::Harmless),
    row("CLIENT LIST").migrating(Rule::Target).sharing(SharingRule::Harmless),
    row("CLIENT GETNAME").migrating(Rule::Target).sharing(SharingRule::Harmless),
    row("CLIENT SETINFO").migrating(Rule::Target).sharing(SharingRule::Harmless),
    row("CLIENT HELP").sharing(SharingRule::Harmless),
    row("CLIENT NO-EVICT").migrating(Rule::Target),
    row("CLIENT NO-TOUCH").migrating(Rule::Target),
    row("CLIENT UNBLOCK").migrating(Rule::Target).sharing(SharingRule::Harmless),
    row("CLIENT TRACKINGINFO").migrating(Rule::Target),
    row("CLIENT GETREDIR").migrating(Rule::Target),
    row("CLIENT TRACKING").plain(Refused(TRACKING)),
    row("CLIENT CACHING").plain(Refused(TRACKING)),
    row("CLIENT REPLY").plain(Refused(SILENT)),
    row("CLIENT KILL").clustered(ClusterRule::Every(Merge::Sum)).sharing(SharingRule::Harmless),
    row("CLIENT PAUSE").clustered(ClusterRule::Every(Merge::Sum)).sharing(SharingRule::Harmless),
    row("CLIENT UNPAUSE").clustered(ClusterRule::Every(Merge::Sum)).sharing(SharingRule::Harmless),
    row("CLIENT *").migrating(Rule::Refused(OTHER_SERVER)).sharing(SharingRule::Binds),
    row("FLUSHDB").migrating(Rule::Flush).clustered(ClusterRule::Every(Merge::Sum)),
    row("FLUSHALL").migrating(Rule::Flush).clustered(ClusterRule::Every(Merge::Sum)),
    row("MOVE").migrating(Rule::Refused(DATABASES)),
    row("SWAPDB").migrating(Rule::Refused(DATABASES)),
    row("EVAL").migrating(Rule::Script),
    row("EVALSHA").migrating(Rule::Script),
    row("EVAL_RO").migrating(Rule::Script),
    row("EVALSHA_RO").migrating(Rule::Script),
    row("FCALL").migrating(Rule::Script),
    row("FCALL_RO").migrating(Rule::Script),
    row("SCRIPT DEBUG").migrating(Rule::Refused(OTHER_SERVER)),
    row("SCRIPT LOAD").clustered(ClusterRule::Every(Merge::Sum)),
    row("SCRIPT FLUSH").clustered(ClusterRule::Every(Merge::Sum)),
    row("SCRIPT EXISTS").clustered(ClusterRule::Every(Merge::Each)),
    row("SCRIPT KILL").clustered(ClusterRule::Refused),
    row("SCRIPT *").migrating(Rule::Library),
    row("FUNCTION LOAD").clustered(ClusterRule::Every(Merge::Sum)),
    row("FUNCTION DELETE").clustered(ClusterRule::Every(Merge::Sum)),
    row("FUNCTION FLUSH").clustered(ClusterRule::Every(Merge::Sum)),
    row("FUNCTION RESTORE").clustered(ClusterRule::Every(Merge::Sum)),
    row("FUNCTION KILL").clustered(ClusterRule::Refused),
    row("FUNCTION *").migrating(Rule::Library),
    row("MIGRATE").migrating(Rule::Refused(OTHER_SERVER)),
    row("MONITOR").plain(Refused(MONITOR)),
    row("SYNC").plain(Refused(FEED)),
    row("PSYNC").plain(Refused(FEED)),
    row("REPLCONF").plain(Refused(FEED)),
    row("CLUSTER SLOTS").face(FaceRule::Slots),
    row("CLUSTER SHARDS").face(FaceRule::Shards),
    row("CLUSTER NODES").face(FaceRule::Nodes),
    row("CLUSTER INFO").face(FaceRule::Info),
    row("CLUSTER MYID").face(FaceRule::MyId),
    row("CLUSTER KEYSLOT").face(FaceRule::KeySlot),
    row("CLUSTER *").clustered(ClusterRule::NoCluster),
    row("ASKING").clustered(ClusterRule::NoCluster).face(FaceRule::Agreed),
    row("SHUTDOWN").clustered(ClusterRule::Refused),
    row("REPLICAOF").clustered(ClusterRule::Refused),
    row("SLAVEOF").clustered(ClusterRule::Refused),
    row("FAILOVER").clustered(ClusterRule::Refused),
    row("SAVE").clustered(ClusterRule::Refused),
    row("BGSAVE").clustered(ClusterRule::Refused),
    row("BGREWRITEAOF").clustered(ClusterRule::Refused),
    row("PUBSUB *").migrating(Rule::Target),
    row("LATENCY *").migrating(Rule::Target),
    row("SLOWLOG *").migrating(Rule::Target),
    row("DEBUG *").migrating(Rule::Refused(OTHER_SERVER)).clustered(ClusterRule::Refused),
];

/// What is not in the table.
static OTHER: Row = row("");

/// The rows of one first word.
#[derive(Debug)]
struct Family {
    /// If there is no second word, or another one.
    other: Row,
    /// By their second words, with what is said of all others.
    seconds: Vec<(&'static str, Row)>,
    /// The second word has to be known to say what is done before keys move.
    is_container: bool,
}

static BY_NAME: LazyLock<ByName<Family>> = LazyLock::new(|| {
    let mut families: HashMap<&'static [u8], Family> = HashMap::new();
    for row in TABLE {
        let (first, second) = row.name.split_once(' ').unwrap_or((row.name, "*"));
        let family = families.entry(first.as_bytes()).or_insert_with(|| Family {
            other: OTHER,
            seconds: Vec::new(),
            is_container: false,
        });
        if second == "*" {
            family.other = row.or(&family.other);
        } else {
            family.seconds.push((second, *row));
            family.is_container |= row.plain.is_some();
        }
    }
    for family in families.values_mut() {
        let other = family.other;
        family.seconds.iter_mut().for_each(|(_, row)| *row = row.or(&other));
    }
    families.into_iter().map(|(name, family)| (name.to_vec(), family)).collect()
});

fn family(name: &[u8]) -> Option<&'static Family> {
    BY_NAME.get(name)
}

/// How a command is treated, by its first word and, if there is one, its second.
pub fn find(name: &[u8], second: Option<&[u8]>) -> &'static Row {
    let Some(family) = family(name) else { return &OTHER };
    let is_it = |word: &str| second.is_some_and(|second| second.eq_ignore_ascii_case(word.as_bytes()));
    let found = family.seconds.iter().find(|(word, _)| is_it(word));
    found.map_or(&family.other, |(_, row)| row)
}

/// The same, by all words that are known.
pub(crate) fn find_by_words(words: &[&[u8]]) -> &'static Row {
    words.first().map_or(&OTHER, |name| find(name, words.get(1).copied()))
}

/// Whether the second word of a command has to be known to say what is done with it before keys move.
pub(crate) fn is_container(name: &[u8]) -> bool {
    family(name).is_some_and(|family| family.is_container)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> &'static Row {
        find_by_words(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn names_are_found_in_any_case() {
        let handling = |line| found(line).handling();
        assert_eq!(handling("get"), Handling::Passed);
        assert_eq!(handling("multi"), Noted(Note::Multi));
        assert_eq!(handling("subScribe"), Subscribe);
        assert_eq!(handling("CLIENT ID"), Handling::Passed);
        assert_eq!(handling("CLIENT"), Handling::Passed);
        assert!(matches!(handling("client reply"), Refused(_)));
        assert!(is_container(b"client") && !is_container(b"config") && !is_container(b"multi"));
        assert_eq!(find(&[b'x'; 500], None).name, "");
        assert_eq!(find(b"", None).name, "");
    }

    #[test]
    fn names_are_found_with_their_second_word() {
        let migrating = |line| found(line).migrating;
        assert_eq!(migrating("flushdb"), Some(Rule::Flush));
        assert_eq!(migrating("Config Get x"), Some(Rule::Target));
        assert_eq!(migrating("config set x y"), Some(Rule::Refused(OTHER_SERVER)));
        assert_eq!(migrating("GET config"), None);
        assert_eq!(migrating("PING CLIENT"), Some(Rule::Target));
        assert_eq!(migrating("object encoding k"), None);
        let clustered = |line: &str| found(line).clustered;
        assert_eq!(clustered("dbsize"), Some(ClusterRule::Every(Merge::Sum)));
        assert_eq!(clustered("Script Load x"), Some(ClusterRule::Every(Merge::Sum)));
        assert_eq!(clustered("cluster anything"), Some(ClusterRule::NoCluster));
        assert_eq!(clustered("CLUSTER SLOTS"), Some(ClusterRule::NoCluster));
        assert_eq!(clustered("CLIENT SETNAME x"), Some(ClusterRule::Noted(Trait::Name)));
        assert_eq!(clustered("CLIENT ID"), None);
        assert_eq!(clustered("GET dbsize"), None);
        assert_eq!(clustered(&format!("GET {}", "x".repeat(100))), None);
    }

    #[test]
    fn what_leaves_something_behind_on_a_connection_is_known() {
        let sharing = |words: &str| {
            let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            find_by_words(&words).sharing
        };
        for harmless in
            ["client id", "CLIENT SETNAME x", "client setinfo lib-name x", "CLIENT KILL ID 3", "CLIENT HELP"]
        {
            assert_eq!(sharing(harmless), Some(SharingRule::Harmless), "{harmless}");
        }
        for binds in ["client no-touch on", "CLIENT TRACKING on", "CLIENT REPLY off", "CLIENT NEW", "CLIENT"]
        {
            assert_eq!(sharing(binds), Some(SharingRule::Binds), "{binds}");
        }
        assert_eq!(sharing("wait 1 0"), Some(SharingRule::LooksBack));
        assert_eq!(sharing("waitaof 1 0 0"), Some(SharingRule::LooksBack));
        assert_eq!(sharing("GET x"), None);
    }

    #[test]
    fn no_command_stands_twice() {
        let names: std::collections::HashSet<&str> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), TABLE.len());
    }
}
