//! `FLEET`: what is asked of the coordinator of a fleet.

use bytes::Bytes;
use whimbrel_fleet::protocol::COMMAND;
use whimbrel_wire::value::Value;

use super::migrations::integer;
use super::reply::{error, ok, shown, unknown_subcommand, wrong_number};
use crate::fleet::{Fleet, Refused};

/// Whether these words turn the connection into that of a member.
pub(super) fn is_member(words: &[Bytes]) -> bool {
    let is = |word: &Bytes, expected: &str| word.eq_ignore_ascii_case(expected.as_bytes());
    matches!(words, [name, sub, ..] if is(name, COMMAND[0]) && is(sub, COMMAND[1]))
}

/// Whether the member speaks as this coordinator does; otherwise the reply that says so.
pub(super) fn check_version(words: &[Bytes]) -> Result<(), Value> {
    match words {
        [_, _, version] if version == COMMAND[2].as_bytes() => Ok(()),
        [_, _, version] => Err(error(format!(
            "this coordinator speaks version {} of the fleet's protocol, the member version {}: see that \
             both are of the same whimbrel",
            COMMAND[2],
            shown(version)
        ))),
        _ => Err(wrong_number("fleet|member")),
    }
}

/// The answer to a question that is refused. It names the leader in a form that programs understand.
pub(super) fn refusal(refused: &Refused) -> Value {
    match refused {
        Refused::Unfit(what) => error(what),
        Refused::NotLeader(_) => Value::Error(Bytes::from(format!("NOTLEADER {refused}"))),
    }
}

/// Answers what people ask.
pub(super) async fn answer(sub: &[u8], args: &[Bytes], fleet: Option<&Fleet>) -> Value {
    let Some(fleet) = fleet else {
        return error("no fleet is coordinated here: whimbrel serve was not asked to");
    };
    let sub_upper = sub.to_ascii_uppercase();
    let done = match (&sub_upper[..], args) {
        (b"STATUS", []) => return status(fleet).await,
        (b"LEAVE", [member]) => match number(member) {
            Some(member) => fleet.leave(member).await,
            None => return no_number(),
        },
        (b"DEAD", [member]) => match number(member) {
            Some(member) => fleet.dead(member).await,
            None => return no_number(),
        },
        (b"DRAIN", [member]) => match number(member) {
            Some(member) => fleet.drain(member).await,
            None => return no_number(),
        },
        (b"JOIN", [member, weight @ ..]) if weight.len() <= 1 => {
            let weight = weight.first().map(number);
            match (number(member), weight) {
                (None, _) | (_, Some(None)) => return no_number(),
                (Some(member), weight) => fleet.join(member, weight.flatten()).await,
            }
        }
        (b"PLACE", [backend, weight]) => match (std::str::from_utf8(backend), number(weight)) {
            (Ok(backend), Some(weight)) => fleet.place(backend, weight).await,
            _ => return no_number(),
        },
        (b"REBALANCE", []) => fleet.rebalance().await,
        (b"REHEARSE", [order, args @ ..]) if !order.eq_ignore_ascii_case(b"REHEARSE") => {
            return Box::pin(answer(order, args, Some(&fleet.rehearsing()))).await;
        }
        (b"HELP", []) => return help(),
        (b"STATUS" | b"LEAVE" | b"DEAD" | b"DRAIN" | b"JOIN" | b"PLACE", _)
        | (b"REBALANCE" | b"REHEARSE" | b"HELP", _) => {
            return wrong_number(&format!("fleet|{}", shown(sub).to_ascii_lowercase()));
        }
        _ => return unknown_subcommand("FLEET", sub),
    };
    done.map_or_else(|refused| refusal(&refused), |()| ok())
}

/// As JSON, so that it is the same for people, scripts and `whimbrel fleet`.
async fn status(fleet: &Fleet) -> Value {
    match fleet.status().await {
        Ok(status) => match serde_json::to_vec(&status) {
            Ok(json) => Value::Verbatim(Bytes::from(json)),
            Err(e) => error(e.to_string()),
        },
        Err(refused) => refusal(&refused),
    }
}

fn number(word: &Bytes) -> Option<u32> {
    integer(word).and_then(|number| u32::try_from(number).ok())
}

fn no_number() -> Value {
    error("value is not an integer or out of range")
}

fn help() -> Value {
    let lines = [
        "FLEET <subcommand> [<arg> ...]. Subcommands are:",
        "DEAD <member>",
        "    Give what a member had to others at once. Its process must be gone.",
        "DRAIN <member>",
        "    Have a member give its partitions to others, and stay without any.",
        "JOIN <member> [<weight>]",
        "    Give a member its part of the partitions again, or another part.",
        "LEAVE <member>",
        "    Have a member give its partitions to others, and be none any more.",
        "LOGIN <user> <nonce>",
        "    Begin to log in without saying the password. PROVE follows.",
        "MEMBER <version>",
        "    Be a member on this connection. It carries frames from then on.",
        "PLACE <backend> <weight>",
        "    Give a backend its part of the data, 0 for none. Members carry it there.",
        "PROVE <proof>",
        "    Show that the password is known, as SCRAM-SHA-256 does, and have it shown.",
        "REBALANCE",
        "    Plan anew who has which partitions.",
        "REHEARSE <subcommand> [<arg> ...]",
        "    Refuse what that would refuse, and do nothing.",
        "STATUS",
        "    Return members, partitions, and what moves, as JSON.",
        "HELP",
        "    Print this help.",
    ];
    Value::Array(lines.into_iter().map(|l| Value::Simple(Bytes::from_static(l.as_bytes()))).collect())
}
