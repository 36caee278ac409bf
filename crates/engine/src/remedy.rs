//! What a user can do about an error.

use std::fmt;

use crate::side::Side;

/// What can be done about an error. Variants are for what is done with an option of a command: how that is
/// spelled is known to the program that has the options, and to no library. In a log, or to a client of
/// another protocol, they are shown without them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// Something that is done elsewhere than on whimbrel's command line, in words.
    Words(Box<str>),
    /// Have the servers' own migration move the slots.
    UseNativeMethod,
    /// Newer servers, or the legacy method.
    UpgradeOrUseLegacyMethod,
    /// Do not name the source's command for replication.
    LeaveOutPsyncName,
    /// Name one command, or one for each primary.
    NamePsync,
    /// Name a file that can be read with this option.
    NameReadableFile(String),
    /// Check the files of certificates and keys that are named for this side.
    CheckTlsFiles(Side),
    /// Name a client certificate and its key for this side, if its servers want one.
    NameClientCertificate(Side),
    /// Say for how long passwords are valid.
    NamePasswordTtl,
    /// Give the password.
    NamePassword,
    /// Name the user and the password of the store.
    NameStoreUser,
    /// Keep writers away in another way; the ways that there are.
    ChooseFence(&'static str),
    /// The first is done at the server; otherwise keep writers away in another way.
    ChooseFenceOr(&'static str),
    /// Give whimbrel a user of its own, or keep writers away in another way.
    OwnUserOrChooseFence,
    /// Have the way back with a fence that allows it.
    FenceForReverseSync,
    /// Allow a longer pause, or compare less.
    AllowLongerPause,
    /// Allow a pause of this many milliseconds.
    AllowPauseMs(u64),
    /// Have the key's writers stop for a while, or allow a longer pause.
    StopWritersOrAllowLongerPause,
    /// Compare a sample only, or move fewer keys at once.
    CompareSampleOrSmallerBatches,
    /// Begin anew, and say that existing keys are replaced or left.
    BeginAnewWithOtherPolicy,
    /// Let the target send its changes, or do without the way back.
    AllowReplicationOrNoReverseSync,
    /// Let the source send its changes, or do without asking for replication.
    AllowReplicationOrAnyFeed,
    /// Let the source send its changes in one way or another, or say that its notifications will do.
    AllowAnyFeed,
    /// It is no way back.
    LeaveOutBack,
    /// It is the way back.
    AddBack,
    /// The first; or go on although keys are missing.
    OrAcceptFailures(&'static str),
    /// Name the databases, or go on although keys are missing.
    NameDatabasesOrAcceptFailures,
    /// Look at the differences, and begin the sync anew.
    VerifyOrMirror,
    /// Do not copy function libraries; the first is another way, or nothing.
    LeaveOutFunctions(&'static str),
    /// Keep files in another folder; the first is another way, or nothing.
    ChooseStateDir(&'static str),
    /// The options of the job that was interrupted, or begin anew.
    RepeatOptionsOrBeginAnew {
        /// Whether what happens to existing keys is one of them.
        existing: bool,
    },
    /// Go on with what was interrupted; the first is to be done before, or nothing.
    Resume(&'static str),
    /// Begin anew instead of going on.
    BeginAnew,
    /// Say what happens to keys that the target has.
    SayWhatHappensToExistingKeys,
    /// Name another target, or another database of it.
    MapDatabase(&'static str),
    /// Listen for others only with a password or certificates, or say that anybody may.
    ProtectOrOpenToAll,
    /// Name the address by which others reach this process.
    Announce,
    /// See that the coordinator runs, and the password.
    SeeCoordinator,
    /// Name the backend of this name.
    AddBackend(Box<str>),
    /// Name the address that the other process serves HTTP on.
    NameHttpAddress,
    /// Let the source send its changes, or say what it calls the command for that.
    AllowReplicationOrNamePsync,
    /// Have the writers stopped by other means.
    StopWritersYourself,
    /// Transfer more at once, or at another time.
    CarryMore,
    /// Empty the target, or say what happens to its keys.
    EmptyOrSayWhatHappensToKeys,
    /// Say which database goes to which.
    SayWhereDatabasesGo,
    /// Copy function libraries too.
    CopyFunctions,
    /// See what a repair would do.
    SeeRepairPlan,
    /// Start the sync, or go on with it, or name its folder.
    RunSync,
    /// Rehearse the cutover.
    RehearseCutover,
    /// Name the front that is meant, by the address that it listens on.
    NameFront,
    /// Have all clients go through one front, or stop writers elsewhere.
    OneFront,
    /// Run a front that can move keys, or name its folder.
    RunFront,
    /// See which jobs there are.
    ListJobs,
    /// Wait for the job, or cancel it.
    WaitOrCancelJob,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |f: &mut fmt::Formatter<'_>, first: &str, then: &str| match first.is_empty() {
            true => f.write_str(then),
            false => write!(f, "{first}, or {then}"),
        };
        f.write_str(match self {
            Remedy::Words(words) => words,
            Remedy::UseNativeMethod => "use the servers' own migration",
            Remedy::UpgradeOrUseLegacyMethod => {
                "upgrade the servers to 6.2 or later, or use the legacy method"
            }
            Remedy::LeaveOutPsyncName => {
                "do not name the source's PSYNC: changes are then followed by tracking"
            }
            Remedy::NamePsync => "write a name, or HOST:PORT=NAME for one primary",
            Remedy::NameReadableFile(_) => "name a file that can be read",
            Remedy::CheckTlsFiles(side) => {
                return write!(f, "check the files of certificates for the {side}");
            }
            Remedy::NameClientCertificate(side) => {
                return write!(f, "if the {side} wants a client certificate, name one");
            }
            Remedy::NamePasswordTtl => "say for how long a password is valid",
            Remedy::NamePassword => "name the password",
            Remedy::NameStoreUser => "name the user and password of the store",
            Remedy::ChooseFence(ways) => return write!(f, "choose another fence: {ways}"),
            Remedy::ChooseFenceOr(first) => return with(f, first, "choose another fence"),
            Remedy::OwnUserOrChooseFence => {
                "give whimbrel a user of its own, or choose another fence: pause or none"
            }
            Remedy::FenceForReverseSync => "choose the fence acl, front or pause for a sync that leads back",
            Remedy::AllowLongerPause => "allow a longer pause, or compare less",
            Remedy::AllowPauseMs(ms) => return write!(f, "allow a pause of {ms} ms"),
            Remedy::StopWritersOrAllowLongerPause => "stop its writers for a while, or allow a longer pause",
            Remedy::CompareSampleOrSmallerBatches => "compare a sample, or move fewer keys at once",
            Remedy::BeginAnewWithOtherPolicy => "begin anew, and have such keys replaced or left as they are",
            Remedy::AllowReplicationOrNoReverseSync => {
                "allow PSYNC and REPLCONF there, or do without the way back"
            }
            Remedy::AllowReplicationOrAnyFeed => "allow PSYNC and REPLCONF, or do not ask for replication",
            Remedy::AllowAnyFeed => {
                "give this user the permission for PSYNC and REPLCONF, or for CLIENT TRACKING; or have the \
                    server publish all keyspace notifications, and ask for them where that cannot be checked"
            }
            Remedy::LeaveOutBack => "do not ask to come back",
            Remedy::AddBack => "ask to come back",
            Remedy::OrAcceptFailures(first) => return write!(f, "{first}, or accept failures"),
            Remedy::NameDatabasesOrAcceptFailures => "name the databases, or accept failures",
            Remedy::VerifyOrMirror => {
                "see what differs with a verification; keys that only the target has are removed by a sync \
                    that is begun anew as a mirror"
            }
            Remedy::LeaveOutFunctions(first) => return with(f, first, "do not copy functions"),
            Remedy::ChooseStateDir(first) => return with(f, first, "choose another state folder"),
            Remedy::RepeatOptionsOrBeginAnew { .. } => {
                "begin anew, or repeat the options of the one that was interrupted"
            }
            Remedy::Resume("") => "resume it",
            Remedy::Resume(first) => return write!(f, "{first}, then resume it"),
            Remedy::BeginAnew => "begin anew",
            Remedy::SayWhatHappensToExistingKeys => "say what happens to keys that exist",
            Remedy::MapDatabase(first) => return with(f, first, "name another database"),
            Remedy::ProtectOrOpenToAll => {
                "have the user default want a password or turn it off (ACL SETUSER default off), listen on \
                    127.0.0.1, have clients show certificates, or say that it is open to all"
            }
            Remedy::Announce => "announce the address by which clients and other members reach it",
            Remedy::SeeCoordinator => "see that a coordinator runs there, and that the password is right",
            Remedy::AddBackend(name) => return write!(f, "name the backend {name}"),
            Remedy::NameHttpAddress => "name the address that the other process serves HTTP on",
            Remedy::AllowReplicationOrNamePsync => {
                "give this user REPLCONF and PSYNC, or name what PSYNC is called there"
            }
            Remedy::StopWritersYourself => "cut over while somebody else stops the writers",
            Remedy::CarryMore => "run whimbrel nearer to the servers, with more lanes, or at a quieter time",
            Remedy::EmptyOrSayWhatHappensToKeys => "empty it, or say what happens to its keys",
            Remedy::SayWhereDatabasesGo => "say which database goes where",
            Remedy::CopyFunctions => "copy functions too; a cutover carries them over by itself",
            Remedy::SeeRepairPlan => "whimbrel status shows more, and whimbrel repair what can be done",
            Remedy::RunSync => "start the sync, or go on with it; or name its state folder",
            Remedy::RehearseCutover => "a rehearsed cutover measures it",
            Remedy::NameFront => "name the address of the one you mean",
            Remedy::OneFront => "have all clients go through one, or stop the writers yourself",
            Remedy::RunFront => "run one with a target, or name its state folder",
            Remedy::ListJobs => "see which jobs there are, perhaps in another state folder",
            Remedy::WaitOrCancelJob => "wait for it, or cancel it",
        })
    }
}

impl From<&str> for Remedy {
    fn from(words: &str) -> Remedy {
        Remedy::Words(words.into())
    }
}

impl From<String> for Remedy {
    fn from(words: String) -> Remedy {
        Remedy::Words(words.into())
    }
}
