//! What a server's own limits do to a feed, in words for people.

use whimbrel_core::units::format_time;
use whimbrel_wire::value::Value;

use std::time::{SystemTime, UNIX_EPOCH};

use super::connector::Connector;
use crate::deployment::Deployment;
use crate::endpoint::Address;
use crate::error::Result;
use crate::link::Link;
use crate::probe::Info;

/// How many clients a server has closed because their output buffers had passed their limits; `None` if it
/// does not count them (before Redis 7.2) or may not be asked.
pub(super) async fn closed_clients(link: &mut Link) -> Result<Option<u64>> {
    let reply = link.ask(&[b"INFO", b"stats"]).await?;
    let info = reply.as_bytes().map(|text| Info::parse(text));
    Ok(info.and_then(|info| info.number("client_output_buffer_limit_disconnections")))
}

/// Says that the server's limit for replicas has cut a link just now; or that it may have, if the server does
/// not count the clients that it cuts off.
pub(super) async fn limit_in_words(link: &mut Link, is_certain: bool) -> Result<String> {
    let reply = setting(link, "client-output-buffer-limit").await?;
    let limit = reply.as_deref().and_then(of_replicas);
    let limit = limit.map(|limit| format!(" ({limit})")).unwrap_or_default();
    let limit = format!("its client-output-buffer-limit for replicas{limit}");
    Ok(match is_certain {
        true => format!("{limit} cut the link at {}", now()),
        false => format!("{limit} may have cut the link at {}: it does not report that", now()),
    })
}

async fn setting(link: &mut Link, name: &str) -> Result<Option<String>> {
    let reply = link.ask(&[b"CONFIG", b"GET", name.as_bytes()]).await?;
    Ok(reply.field(name).and_then(Value::as_str).map(str::to_owned))
}

/// The limit for replicas among those of all classes: `normal 0 0 0 slave 268435456 67108864 60 ...`.
fn of_replicas(limits: &str) -> Option<String> {
    let words: Vec<&str> = limits.split(' ').collect();
    let class = words.chunks(4).find(|class| matches!(class.first(), Some(&("slave" | "replica"))))?;
    let [name, hard, soft, seconds] = class else { return None };
    Some(format!("{name} {hard} {soft} {seconds}"))
}

fn now() -> String {
    format_time(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// What a server that has not let a feed attach yet is doing, in words; `None` if it does not report it.
///
/// # Errors
/// As [`Deployment::open`] and [`Link::ask`].
pub async fn holdup(deployment: &Deployment, address: &Address) -> Result<Option<String>> {
    let mut link = Connector::of(deployment, address).open().await?;
    let reply = link.ask(&[b"INFO", b"persistence"]).await?;
    let Some(info) = reply.as_bytes().map(|text| Info::parse(text)) else { return Ok(None) };
    let is_at = |name: &str| info.number(name).unwrap_or(0) > 0;
    if is_at("loading") {
        return Ok(Some("it is loading its data".to_owned()));
    }
    if is_at("rdb_bgsave_in_progress") || is_at("aof_rewrite_in_progress") {
        return Ok(Some(
            "it is making a snapshot, or rewriting its AOF, for another replica or for itself".to_owned(),
        ));
    }
    let delay = setting(&mut link, "repl-diskless-sync-delay").await?;
    let delay = delay.filter(|seconds| seconds != "0");
    Ok(delay.map(|seconds| {
        format!(
            "its repl-diskless-sync-delay has it wait {seconds} s before a snapshot, and its backlog \
             (repl-backlog-size) is too small to go on from under these writes"
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::of_replicas;

    #[test]
    fn the_limit_for_replicas_is_found_among_those_of_all_classes() {
        let limits = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
        assert_eq!(of_replicas(limits).as_deref(), Some("slave 268435456 67108864 60"));
        assert_eq!(of_replicas("normal 0 0 0"), None);
        assert_eq!(of_replicas("replica 1"), None);
    }
}
