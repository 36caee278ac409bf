//! Finds the servers behind a proxy, and for each a name that leads there: see [`behind`](crate::behind).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::endpoint::{Address, Behind, Endpoint};
use crate::error::{Code, Error, ErrorKind, Result, Side};
use crate::link::{Link, LinkOptions};
use crate::probe::Info;

/// Which process answers.
const WHO: &[u8] = b"return redis.call('INFO', 'server')";

/// Names are tried until this many have led to no further server, for each that is known.
const ROUTES_OF_EACH: usize = 200;

/// And no more than this many altogether.
const ROUTES_MAX: usize = 20_000;

/// An odd number whose multiples spread over all numbers: 2 to the power of 64, divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Names that are tried in one round trip.
const ROUTES_AT_ONCE: usize = 200;

/// Whether what has gone wrong while a server was greeted may be a proxy's doing.
pub(crate) fn may_be_proxy(e: &Error) -> bool {
    match &e.kind {
        ErrorKind::Closed | ErrorKind::Broken(_) => true,
        ErrorKind::Server(e) => e.code == Code::UnknownCommand,
        _ => false,
    }
}

/// The servers behind the proxy at `proxy`, by what scripts find that are sent to names of all kinds.
///
/// # Errors
/// `greeted` if no proxy answers there; `Unfit` if it runs no scripts.
pub(crate) async fn servers(
    endpoint: &Arc<Endpoint>,
    proxy: &Address,
    options: LinkOptions,
    greeted: Error,
) -> Result<Vec<Behind>> {
    // What differs comes first, and much: hashes that proxies use hardly distinguish names by their ends.
    let route = |number: usize| format!("{:016x}:whimbrel:route", SPREAD.wrapping_mul(number as u64 + 1));
    let behind =
        |number: usize, server: String| Behind { proxy: proxy.clone(), route: route(number), server };
    let anywhere = Address::Behind(Arc::new(behind(0, String::new())));
    let mut link = match Link::open(endpoint, &anywhere, options).await {
        Ok(link) => link,
        Err(e) if e.is_link() => return Err(greeted),
        // It wants a password, or another one.
        Err(e) => return Err(e),
    };
    let mut found: BTreeMap<String, Behind> = BTreeMap::new();
    let mut tried = 0;
    while tried < ROUTES_MAX.min(ROUTES_OF_EACH * (found.len() + 1)) {
        for number in tried..tried + ROUTES_AT_ONCE {
            link.push(&[b"EVAL", WHO, b"1", route(number).as_bytes()]);
        }
        let replies = match link.flush().await {
            Ok(()) => link.replies(ROUTES_AT_ONCE).await,
            Err(e) => Err(e),
        };
        for (number, reply) in (tried..).zip(replies.map_err(|e| no_scripts(e, proxy))?) {
            // A server that answers, and whose own INFO has another name, is no proxy.
            let reply = match (link.check(reply, b"EVAL"), &greeted.kind) {
                (Ok(reply), _) => reply,
                (Err(e), ErrorKind::Server(_)) if !is_forbidden(&e) => return Err(greeted),
                (Err(e), _) if is_forbidden(&e) => return Err(no_scripts(e, proxy)),
                (Err(e), _) => return Err(e),
            };
            let info = reply.as_bytes().map(|text| Info::parse(text)).unwrap_or_default();
            let server = info.field("run_id").unwrap_or_default().to_owned();
            found.entry(server.clone()).or_insert_with(|| behind(number, server));
        }
        tried += ROUTES_AT_ONCE;
    }
    Ok(found.into_values().collect())
}

fn is_forbidden(e: &Error) -> bool {
    e.server().is_some_and(|e| matches!(e.code, Code::NoPermission | Code::UnknownCommand))
}

fn no_scripts(e: Error, proxy: &Address) -> Error {
    let what = format!("a proxy answers there that lists no keys, and scripts are refused: {}", e.problem());
    Error::unfit(e.side, proxy.to_string(), "look behind the proxy", what).with_remedy(match e.side {
        Side::Source => "allow EVAL to this user, or copy from the servers behind it, one after another",
        _ => "allow EVAL to this user",
    })
}
