//! What to do about an error, by the options of the commands.

use std::borrow::Cow;

use whimbrel_engine::error::Error;
use whimbrel_engine::remedy::Remedy;

/// An error with what can be done about it, in one line.
pub fn whole(error: &Error) -> String {
    with(&error.problem(), error.remedy.as_deref())
}

/// A text with what can be done about it, if anything.
pub fn with(text: &str, remedy: Option<&Remedy>) -> String {
    match remedy {
        Some(remedy) => format!("{text}; {}", words(remedy)),
        None => text.to_owned(),
    }
}

/// What a user is advised to do.
pub fn words(remedy: &Remedy) -> Cow<'_, str> {
    let or = |first: &str, then: &str| match first.is_empty() {
        true => Cow::from(then.to_owned()),
        false => Cow::from(format!("{first}, or {then}")),
    };
    Cow::from(match remedy {
        Remedy::Words(words) => &**words,
        Remedy::UseNativeMethod => "use the servers' own migration: --method native",
        Remedy::UpgradeOrUseLegacyMethod => "upgrade the servers to 6.2 or later, or use --method legacy",
        Remedy::LeaveOutPsyncName => "leave out --source-psync: changes are then followed by tracking",
        Remedy::NamePsync => "write --source-psync NAME, or HOST:PORT=NAME for one primary",
        Remedy::NameReadableFile(option) => return format!("name a readable file with --{option}").into(),
        Remedy::CheckTlsFiles(side) => {
            return format!("check --{side}-ca, --{side}-cert, --{side}-key").into();
        }
        Remedy::NameClientCertificate(side) => {
            return format!("if it wants a client certificate, add --{side}-cert and --{side}-key").into();
        }
        Remedy::NamePasswordTtl => "set --password-ttl to how long a password is valid",
        Remedy::NamePassword => "name it in the URL, a file, or the environment variable that --help names",
        Remedy::NameStoreUser => "name USER:PASSWORD in --store, or set WHIMBREL_STORE_PASSWORD",
        Remedy::ChooseFence(ways) => return format!("choose another way with --fence: {ways}").into(),
        Remedy::ChooseFenceOr(first) => return or(first, "choose another way with --fence"),
        Remedy::OwnUserOrChooseFence => "give whimbrel a user of its own, or choose --fence pause or none",
        Remedy::FenceForReverseSync => "use --fence acl, front or pause with --reverse-sync",
        Remedy::AllowLongerPause => "allow more with --max-pause, or compare less",
        Remedy::AllowPauseMs(ms) => return format!("allow more with --max-pause {ms}ms").into(),
        Remedy::StopWritersOrAllowLongerPause => {
            "stop its writers for a while, or allow a longer pause with --max-pause"
        }
        Remedy::CompareSampleOrSmallerBatches => {
            "compare a sample with --verify sample, or move fewer keys at once with --batch-keys"
        }
        Remedy::BeginAnewWithOtherPolicy => {
            "start again, without --resume, with --replace to overwrite such keys or --skip to leave them"
        }
        Remedy::AllowReplicationOrNoReverseSync => {
            "allow PSYNC and REPLCONF there, or leave out --reverse-sync"
        }
        Remedy::AllowReplicationOrAnyFeed => "allow PSYNC and REPLCONF, or leave out --feed replication",
        Remedy::AllowAnyFeed => {
            "give this user the permission for PSYNC and REPLCONF, or for CLIENT TRACKING; or set \
                notify-keyspace-events to AE there, and if that cannot be checked, add --feed notifications"
        }
        Remedy::LeaveOutBack => "leave out --back",
        Remedy::AddBack => "add --back",
        Remedy::OrAcceptFailures(first) => return format!("{first}; or --accept-failures").into(),
        Remedy::NameDatabasesOrAcceptFailures => "name the databases with --db; or --accept-failures",
        Remedy::VerifyOrMirror => {
            "see what differs with whimbrel verify; keys that only the target has are removed by a sync that \
                is begun anew with --mirror"
        }
        Remedy::LeaveOutFunctions(first) => return or(first, "leave out --functions"),
        Remedy::ChooseStateDir(first) => return or(first, "choose another folder with --state-dir"),
        Remedy::RepeatOptionsOrBeginAnew { existing: false } => {
            "repeat the options of the interrupted run to continue it, or leave out --resume to start over"
        }
        Remedy::RepeatOptionsOrBeginAnew { existing: true } => {
            "repeat the options of the interrupted run to continue it, --replace, --skip or --fail included; \
                or leave out --resume to start over"
        }
        Remedy::Resume("") => "go on with --resume",
        Remedy::Resume(first) => return format!("{first}, then go on with --resume").into(),
        Remedy::BeginAnew => "leave out --resume to start over",
        Remedy::SayWhatHappensToExistingKeys => "say what to do with them: --replace, --skip or --fail",
        Remedy::MapDatabase(first) => return or(first, "map databases with --db SOURCE:TARGET"),
        Remedy::ProtectOrOpenToAll => {
            "set a password for the user default or turn that user off (ACL SETUSER default off), listen on \
                127.0.0.1, require client certificates with --tls-client-ca, or add --open-to-all"
        }
        Remedy::Announce => "say with --announce by which address clients and other members reach it",
        Remedy::SeeCoordinator => {
            "see that whimbrel serve --fleet runs there, and that the password is right"
        }
        Remedy::AddBackend(name) => return format!("add --backend {name}=URL").into(),
        Remedy::NameHttpAddress => "name the HOST:PORT that the other process was given with --http",
        Remedy::AllowReplicationOrNamePsync => {
            "give this user REPLCONF and PSYNC, or name with --source-psync what PSYNC is called there"
        }
        Remedy::StopWritersYourself => "cut over with --fence external: you stop the writers yourself",
        Remedy::CarryMore => "run whimbrel nearer to the servers, with more --lanes, or at a quieter time",
        Remedy::EmptyOrSayWhatHappensToKeys => {
            "empty it, or say what to do with them: --replace, --skip or --fail, and sync --mirror"
        }
        Remedy::SayWhereDatabasesGo => "say where they go with --db SOURCE:TARGET",
        Remedy::CopyFunctions => "copy --functions brings them along; a cutover carries them over by itself",
        Remedy::SeeRepairPlan => "whimbrel status shows more, and whimbrel repair --dry-run what can be done",
        Remedy::RunSync => {
            "start it with whimbrel sync, with --resume if it was interrupted; or name its folder with \
                --state-dir"
        }
        Remedy::RehearseCutover => "cutover --dry-run measures it",
        Remedy::OneFront => "have all clients go through one, which --front names, or use --fence external",
        Remedy::NameFront => "name it by the IP:PORT that it was given with --listen",
        Remedy::RunFront => "run one with whimbrel front --target, or name its folder with --state-dir",
        Remedy::ListJobs => "see `whimbrel jobs list`; if it lacks the job, add its --state-dir",
        Remedy::WaitOrCancelJob => "wait for it, or cancel it with `whimbrel jobs cancel`",
    })
}
