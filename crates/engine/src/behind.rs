//! Servers behind a proxy that divides keys among them.
//!
//! Such a proxy passes commands on by the keys that they name, and knows no others: no `CLIENT`, `SELECT`,
//! `INFO`, `SCAN`, `TIME` or `MULTI`. nutcracker (twemproxy) hangs up on them. But it passes on scripts, by
//! their first key. So what the proxy does not know is sent as a script that runs it, to the server that has
//! the script's key; and a command about the server itself by the [route](crate::endpoint::Behind::route)
//! that leads there. Such a script reaches one server: a command that is meant for several is refused.

use bytes::{Buf, Bytes};
use whimbrel_wire::encode::Outbox;
use whimbrel_wire::request::{Request, RequestLimits, RequestScanner};

/// Runs the command that its arguments are.
const RUN: &[u8] = b"return redis.pcall(unpack(ARGV))";

/// When a key expires, even if there is no `PEXPIRETIME`: within a script the clock stands still.
const EXPIRY: &[u8] = b"local at = redis.pcall('PEXPIRETIME', KEYS[1]) \
    if type(at) ~= 'table' then return at end \
    local left = redis.call('PTTL', KEYS[1]) \
    if left < 0 then return left end \
    local now = redis.call('TIME') \
    return now[1] * 1000 + math.floor(now[2] / 1000) + left";

/// Says that a command is not passed on, in the place of its answer.
const REFUSE: &[u8] = b"return redis.error_reply('ERR unknown command ' .. ARGV[1] .. ', behind a proxy')";

/// How a command reaches a server.
enum Way {
    /// As it is: the proxy knows it.
    AsItIs,
    /// As a script, by the key at this place.
    ByKey(usize),
    /// As a script that says when a key expires.
    Expiry,
    /// As a script, by the name that leads to the server that is meant.
    ByRoute,
    /// Not at all.
    Refused,
}

impl Way {
    fn of(command: &[Bytes]) -> Way {
        let name = command.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
        match &name[..] {
            b"PING" | b"AUTH" | b"EVAL" | b"GET" | b"MGET" | b"SET" | b"MSET" | b"STRLEN" | b"GETRANGE"
            | b"SETRANGE" | b"APPEND" | b"DEL" | b"EXISTS" | b"TYPE" | b"DUMP" | b"RESTORE" | b"PTTL"
            | b"PEXPIRE" | b"PEXPIREAT" | b"PERSIST" | b"HSET" | b"HMGET" | b"HGETALL" | b"HEXISTS"
            | b"HLEN" | b"HSCAN" | b"RPUSH" | b"LLEN" | b"LRANGE" | b"SADD" | b"SCARD" | b"SISMEMBER"
            | b"SMEMBERS" | b"SSCAN" | b"ZADD" | b"ZCARD" | b"ZRANGE" | b"ZSCAN" | b"ZSCORE" => Way::AsItIs,
            b"PEXPIRETIME" => Way::Expiry,
            // Of several keys it would reach the server of the first.
            b"UNLINK" if command.len() == 2 => Way::ByKey(1),
            b"SMISMEMBER" | b"ZMSCORE" | b"XLEN" | b"XRANGE" | b"XPENDING" | b"HPEXPIRETIME" | b"VDIM"
            | b"VCARD" | b"VRANDMEMBER" | b"VEMB" | b"VGETATTR" => Way::ByKey(1),
            b"MEMORY" | b"XINFO" | b"OBJECT" => Way::ByKey(2),
            b"INFO" | b"SCAN" | b"TIME" | b"COMMAND" | b"CONFIG" | b"DBSIZE" | b"FUNCTION" | b"MODULE"
            | b"FT._LIST" | b"FT.INFO" => Way::ByRoute,
            // Types of modules; their names have a dot.
            name if name.contains(&b'.') && !name.starts_with(b"FT.") => Way::ByKey(1),
            _ => Way::Refused,
        }
    }
}

/// What is queued, as a proxy passes it on: one command for each. `queued` is empty afterwards.
pub(crate) fn passed(queued: &mut Outbox, route: &str) -> Outbox {
    let mut rest = queued.copy_to_bytes(queued.remaining());
    let mut out = Outbox::new();
    let limits = RequestLimits { bulk_bytes_max: u64::MAX >> 1, args_max: u64::MAX >> 1 };
    let mut scanner = RequestScanner::new(limits);
    // What is queued are whole commands.
    while let Ok(Request::Array(length)) = scanner.scan(&rest) {
        let command: Vec<Bytes> = scanner.args().iter().map(|range| rest.slice(range.clone())).collect();
        pass(&mut out, &command, route);
        rest.advance(length);
        scanner.next();
    }
    out
}

fn pass(out: &mut Outbox, command: &[Bytes], route: &str) {
    let way = Way::of(command);
    let (script, key, args) = match way {
        Way::AsItIs => {
            out.command(command.len());
            command.iter().for_each(|arg| out.arg_bytes(arg));
            return;
        }
        Way::ByKey(at) => (RUN, command.get(at).map_or(route.as_bytes(), |key| key), command),
        Way::ByRoute => (RUN, route.as_bytes(), command),
        Way::Expiry => (EXPIRY, command.get(1).map_or(route.as_bytes(), |key| key), &command[..0]),
        Way::Refused => (REFUSE, route.as_bytes(), &command[..command.len().min(1)]),
    };
    out.command(4 + args.len());
    out.arg(b"EVAL");
    out.arg(script);
    out.arg(b"1");
    out.arg(key);
    args.iter().for_each(|arg| out.arg_bytes(arg));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(out: &mut Outbox) -> Vec<String> {
        let bytes = out.copy_to_bytes(out.remaining());
        bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty() && !line.starts_with(b"$"))
            .map(|line| String::from_utf8_lossy(line).trim_end().to_owned())
            .collect()
    }

    #[test]
    fn what_a_proxy_does_not_know_is_run_by_a_script_where_its_key_is() {
        let mut queued = Outbox::new();
        queued.push(&[b"GET", b"k"]);
        queued.push(&[b"MEMORY", b"USAGE", b"k"]);
        queued.push(&[b"TIME"]);
        queued.push(&[b"pexpiretime", b"k"]);
        queued.push(&[b"MULTI"]);
        queued.push(&[b"UNLINK", b"a", b"b"]);
        let mut out = passed(&mut queued, "there");
        assert!(queued.is_empty());
        assert_eq!(out.commands(), 6);
        let run = String::from_utf8_lossy(RUN).into_owned();
        let refuse = String::from_utf8_lossy(REFUSE).into_owned();
        let expiry = String::from_utf8_lossy(EXPIRY).into_owned();
        let mut expected = vec!["*2", "GET", "k"];
        expected.extend(["*7", "EVAL", &run, "1", "k", "MEMORY", "USAGE", "k"]);
        expected.extend(["*5", "EVAL", &run, "1", "there", "TIME"]);
        expected.extend(["*4", "EVAL", &expiry, "1", "k"]);
        expected.extend(["*5", "EVAL", &refuse, "1", "there", "MULTI"]);
        expected.extend(["*5", "EVAL", &refuse, "1", "there", "UNLINK"]);
        assert_eq!(words(&mut out), expected);
    }
}
