//! What findings and ways are called, and what is to be done about them.

use whimbrel_core::units::{format_bytes, format_count, format_count_of, format_duration_ms};
use whimbrel_engine::inventory::WritesRefused;
use whimbrel_engine::remedy::Remedy;

use super::findings::Finding;
use super::ways::WayKind;

/// How many names a line lists.
const NAMED: usize = 12;

impl Finding {
    /// What is wrong, and what to do about it.
    pub fn words(&self) -> (String, Option<Remedy>) {
        let of = [of_ways, of_servers, of_replication, of_data, of_clients];
        of.iter().find_map(|of| of(self)).unwrap_or_default()
    }
}

impl WayKind {
    /// What a way is called, and what it needs.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            WayKind::Copy => ("copy", "the right to read keys, and to write them to the target"),
            WayKind::FollowReplication => ("sync: replication", "the rights on REPLCONF and PSYNC"),
            WayKind::FollowTracking => ("sync: tracking", "the right on CLIENT TRACKING"),
            WayKind::FollowNotifications => {
                ("sync: notifications", "notify-keyspace-events AE there, and the right on PSUBSCRIBE")
            }
            WayKind::CutoverAcl => {
                ("cutover: acl", "another ACL user for writers, and the rights on CLIENT and ACL")
            }
            WayKind::CutoverReadonlyReplica => {
                ("cutover: readonly-replica", "one server, and the rights on CLIENT and REPLICAOF")
            }
            WayKind::CutoverPause => ("cutover: pause", "the right on CLIENT, and clients that move in time"),
            WayKind::CutoverFront => ("cutover: front", "clients that go through whimbrel front"),
            WayKind::CutoverExternal => ("cutover: external", "somebody who stops the writers"),
        }
    }
}

fn list(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len() {
        n if n > NAMED => format!("{shown} and {} more", n - NAMED),
        _ => shown,
    }
}

/// What is wrong, and what to do about it.
type Words = (String, Option<Remedy>);

fn words(text: impl Into<String>, remedy: &str) -> Option<Words> {
    Some((text.into(), (!remedy.is_empty()).then(|| remedy.into())))
}

fn with(text: impl Into<String>, remedy: impl Into<Option<Remedy>>) -> Option<Words> {
    Some((text.into(), remedy.into()))
}

fn of_ways(finding: &Finding) -> Option<Words> {
    match finding {
        Finding::CopyRefused { problem, remedy } => {
            with(format!("a copy is refused: {problem}"), remedy.clone())
        }
        Finding::NoFeed { replication, tracking, notifications } => words(
            format!(
                "the source cannot be followed: replication: {}; tracking: {}; notifications: {}",
                replication.as_deref().unwrap_or("permitted"),
                tracking.as_deref().unwrap_or("permitted"),
                notifications.as_deref().unwrap_or("permitted")
            ),
            "give this user REPLCONF and PSYNC, or CLIENT TRACKING, or have the server publish all keyspace \
             notifications; else copy while nobody writes",
        ),
        Finding::TrackingOnly { why, streams } => {
            let streams = match streams {
                0 => String::new(),
                n => format!("; the sample has {}", format_count_of(*n, "stream")),
            };
            with(
                format!(
                    "the source can be followed by tracking only, which does not see consumer groups: \
                     {why}{streams}"
                ),
                Remedy::AllowReplicationOrNamePsync,
            )
        }
        Finding::NotificationsOnly { why, streams } => {
            let streams = match streams {
                0 => String::new(),
                n => format!("; the sample has {}", format_count_of(*n, "stream")),
            };
            with(
                format!(
                    "the source can be followed by keyspace notifications only, which do not see consumer \
                     groups and keys of some modules: {why}{streams}"
                ),
                Remedy::AllowReplicationOrNamePsync,
            )
        }
        Finding::FenceRefused { way: kind, problem } => {
            words(format!("{} is not possible: {problem}", kind.words().0), "")
        }
        Finding::NoFence => with("this user cannot block writes on the source", Remedy::StopWritersYourself),
        Finding::Outrun { writes_per_second, carried_per_second } => with(
            format!(
                "clients write {} times a second, and about {} keys a second can be carried over",
                format_count(*writes_per_second),
                format_count(*carried_per_second)
            ),
            Remedy::CarryMore,
        ),
        _ => None,
    }
}

fn of_servers(finding: &Finding) -> Option<Words> {
    match finding {
        Finding::Silent { side, at, primary, why } => {
            let role = if *primary { "primary" } else { "replica" };
            words(
                format!("{role} {at} of the {side} {}: {}", why.verb(), why.why),
                match why.refuses_login {
                    true => "give it the user and the password that the others have",
                    false => "see that it is up and reachable",
                },
            )
        }
        Finding::ClusterDown { side, at } => words(
            format!("node {at} of the {side} serves no requests: its cluster is down"),
            "whimbrel status shows why",
        ),
        Finding::Unowned { side, slots } => words(
            format!("without an owner: {} of the {side}", format_count_of(*slots as u64, "slot")),
            "whimbrel repair gives them one",
        ),
        Finding::OpenSlots { side, slots } => words(
            format!("on the move: {} of the {side}", format_count_of(*slots as u64, "slot")),
            "let the migration finish, or see whimbrel status and whimbrel repair",
        ),
        Finding::Disorder { side, problem } => {
            with(format!("something is wrong in the cluster of the {side}: {problem}"), Remedy::SeeRepairPlan)
        }
        Finding::Loading { side, at } => {
            words(format!("the {side} {at} is still loading its data set"), "wait until it has finished")
        }
        Finding::WritesRefused { side, at, why } => {
            let (why, remedy) = match why {
                WritesRefused::Snapshot => ("its last snapshot failed", "see its log and its disk"),
                WritesRefused::Log => ("its append-only file cannot be written", "see its log and its disk"),
                WritesRefused::Replicas => (
                    "it has fewer replicas than min-replicas-to-write",
                    "add replicas, or lower min-replicas-to-write",
                ),
            };
            words(format!("the {side} {at} refuses writes: {why}"), remedy)
        }
        Finding::ReplicaLinkDown { side, at } => words(
            format!("replica {at} of the {side} does not hear from its primary"),
            "see its log; a failover to it would lose writes",
        ),
        Finding::IsReplica { side, at } => words(format!("the {side} {at} is a replica"), "name its primary"),
        Finding::Evicts { side, at, policy, evicted } => {
            let evicted = match evicted {
                0 => "it has evicted nothing yet".to_owned(),
                n => format!("it has evicted {}", format_count_of(*n, "key")),
            };
            words(
                format!("the {side} {at} evicts keys when it is full ({policy}); {evicted}"),
                "raise its maxmemory: what is evicted during a migration is missing in the comparison",
            )
        }
        Finding::Clients { side, at, clients, most } => words(
            format!(
                "the {side} {at} has {} of {} at most; whimbrel opens some dozens more",
                format_count_of(*clients, "client"),
                format_count(*most)
            ),
            "raise its maxclients",
        ),
        Finding::Sentinels { side, sentinels } => words(
            format!("the {side} is watched by {}", format_count_of(*sentinels, "sentinel")),
            "a failover has another server take over: name the sentinels instead of the server",
        ),
        Finding::Blocked { clients } => words(
            format!(
                "in a blocking command: {} of the source; a cutover disconnects them",
                format_count_of(*clients, "client")
            ),
            "",
        ),
        Finding::Channels { channels } => words(
            format!(
                "clients of the source listen to {}; messages are not carried over",
                format_count_of(*channels, "channel")
            ),
            "move publishers and subscribers at the same time",
        ),
        Finding::NotPersistent => {
            words("the target writes nothing to disk", "switch on its append-only file or snapshots")
        }
        Finding::NoReplicas => {
            words("the source has replicas, and the target has none", "add them before the cutover")
        }
        _ => None,
    }
}

fn of_replication(finding: &Finding) -> Option<Words> {
    match finding {
        Finding::Backlog { at, bytes, lasts_ms } => words(
            format!(
                "the backlog of {at} ({}) is overwritten in {}: a link that breaks for longer means a \
                 new copy",
                format_bytes(*bytes),
                format_duration_ms(*lasts_ms)
            ),
            "raise its repl-backlog-size",
        ),
        Finding::ReplicaBuffer { at, bytes } => words(
            format!(
                "{at} drops a replica that is {} behind (client-output-buffer-limit), a feed too",
                format_bytes(*bytes)
            ),
            "raise the limit of its class replica",
        ),
        _ => None,
    }
}

fn of_data(finding: &Finding) -> Option<Words> {
    match finding {
        Finding::TargetTooSmall { needed_bytes, free_bytes } => words(
            format!(
                "the target has {} left, and about {} are needed",
                format_bytes(*free_bytes),
                format_bytes(*needed_bytes)
            ),
            "raise its maxmemory",
        ),
        Finding::TargetHasKeys { keys } => with(
            format!("the target holds {} already", format_count_of(*keys, "key")),
            Remedy::EmptyOrSayWhatHappensToKeys,
        ),
        Finding::Databases { dbs, target_has } => with(
            format!(
                "the target has {}, and keys would go to database {}",
                format_count_of(*target_has, "database"),
                list(&dbs.iter().map(u32::to_string).collect::<Vec<_>>())
            ),
            Remedy::SayWhereDatabasesGo,
        ),
        Finding::Types { types, keys } => words(
            format!(
                "the target cannot hold {} of the sample, of type {}",
                format_count_of(*keys, "key"),
                list(types)
            ),
            "load the modules there, or leave these keys out",
        ),
        Finding::Modules { modules } => {
            words(format!("the target lacks module {}", list(modules)), "load it there, or do without it")
        }
        Finding::FieldExpiries { hashes } => words(
            format!(
                "hashes with fields that expire: {}; the target does not know that",
                format_count(*hashes)
            ),
            "choose a target that has HPEXPIRE",
        ),
        Finding::TooLong { bytes, most_bytes } => words(
            format!(
                "the target takes values of {} (proto-max-bulk-len), and there is one of {}",
                format_bytes(*most_bytes),
                format_bytes(*bytes)
            ),
            "raise its proto-max-bulk-len",
        ),
        Finding::LargeKeys { keys, largest, bytes } => words(
            format!(
                "large, so moved in chunks: {} of the sample; the largest, {largest}, takes {}",
                format_count_of(*keys, "key"),
                format_bytes(*bytes)
            ),
            "",
        ),
        Finding::HotSlot { slot, percent } => words(
            format!("slot {slot} has {percent} % of the sample"),
            "keys that share a hash tag cannot be spread over primaries",
        ),
        Finding::Setting { name, source, target } => words(
            format!("{name} is {} on the source and {} on the target", or_empty(source), or_empty(target)),
            "",
        ),
        _ => None,
    }
}

/// What clients will find different.
fn of_clients(finding: &Finding) -> Option<Words> {
    match finding {
        Finding::CommandsLacking { commands } => words(
            format!("clients use commands that the target lacks: {}", list(commands)),
            "change the clients first, or choose another target",
        ),
        Finding::CrossSlot { commands } => words(
            format!(
                "clients use commands that may name several keys, which have to be in one slot of the \
                 target: {}",
                list(commands)
            ),
            "see that such keys share a hash tag",
        ),
        Finding::WholeServer { commands } => words(
            format!(
                "these commands, which clients use, concern one primary alone in a cluster, or do not \
                    exist there: {}",
                list(commands)
            ),
            "change the clients first",
        ),
        Finding::Functions { libraries, supported } => {
            let libraries = match libraries {
                1 => "1 library".to_owned(),
                n => format!("{} libraries", format_count(*n as u64)),
            };
            match supported {
                true => with(format!("the source has {libraries} of functions"), Remedy::CopyFunctions),
                false => words(
                    format!("the source has {libraries} of functions, and the target knows no functions"),
                    "change the clients first, or choose another target",
                ),
            }
        }
        Finding::Scripts { scripts } => words(
            format!(
                "the source keeps {} for EVALSHA, which stay behind",
                format_count_of(*scripts, "script")
            ),
            "see that clients load theirs again when the reply is NOSCRIPT",
        ),
        Finding::Users { users } => words(
            format!("the target lacks ACL users of the source: {}", list(users)),
            "create them before the cutover",
        ),
        Finding::Clocks { apart_ms } => words(
            format!(
                "the clock of the target is {} {} that of the source; keys expire as much {}",
                format_duration_ms(apart_ms.unsigned_abs()),
                if *apart_ms > 0 { "ahead of" } else { "behind" },
                if *apart_ms > 0 { "earlier" } else { "later" }
            ),
            "set the clocks",
        ),
        _ => None,
    }
}

fn or_empty(value: &str) -> &str {
    if value.is_empty() { "\"\"" } else { value }
}

#[cfg(test)]
mod tests {
    use whimbrel_engine::error::Side;

    use super::*;

    #[test]
    fn a_finding_says_what_is_wrong_and_what_to_do() {
        let (text, remedy) = Finding::Unowned { side: Side::Target, slots: 1 }.words();
        assert_eq!(text, "without an owner: 1 slot of the target");
        assert_eq!(remedy, Some("whimbrel repair gives them one".into()));
        let (_, remedy) = Finding::Blocked { clients: 2 }.words();
        assert_eq!(remedy, None);
        let many: Vec<String> = (0..20).map(|n| format!("c{n}")).collect();
        assert!(Finding::CommandsLacking { commands: many }.words().0.ends_with("c11 and 8 more"));
    }
}
