//! Who asks, and whether a browser was led here by a page of somebody else's.
//!
//! There are no cookies: a page from elsewhere has no token to send. `Host` and `Origin` are checked all the
//! same, so that a name which somebody has point here (DNS rebinding) reaches nothing at all.

use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tokio::time::Instant;
use whimbrel_control::http::is_own_name;
use whimbrel_control::web::{InLobby, Peer};

use crate::failure::Failure;
use crate::inner::Inner;
use crate::tokens::Role;

/// What a page of ours may load and do: what it brings, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The longest token that is looked at, in bytes.
const TOKEN_BYTES_MAX: usize = 256;

/// Somebody who has shown a token.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// From which address.
    pub(crate) from: String,
    /// Of the token, to see whether it still holds.
    pub(crate) sha256: String,
}

impl Caller {
    /// Refuses those who may do less than `least`.
    pub(crate) fn must_be(&self, least: Role) -> Result<(), Failure> {
        if self.role >= least {
            return Ok(());
        }
        let what = format!("this needs the role {least}; yours is {}", self.role);
        Err(Failure::new(StatusCode::FORBIDDEN, what)
            .with_remedy("ask somebody who has it, or use a token of that role"))
    }
}

impl FromRequestParts<Arc<Inner>> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, inner: &Arc<Inner>) -> Result<Caller, Failure> {
        let Some(Peer(peer)) = parts.extensions.get::<Peer>().copied() else {
            return Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the client's address is not known")
                .with_remedy("ask again; this is a mistake of whimbrel's, please report it"));
        };
        let unauthorized = |what: &str| {
            Failure::new(StatusCode::UNAUTHORIZED, what)
                .with_remedy("log in with a token: whimbrel token add makes one")
        };
        let given = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = given.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
        let Some(token) = token.filter(|token| !token.is_empty() && token.len() <= TOKEN_BYTES_MAX) else {
            return Err(unauthorized("there is no token"));
        };
        let found = inner.tokens.find(token).map_err(|error| {
            tracing::error!(%error, "tokens cannot be read");
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the tokens of this console cannot be read")
                .with_remedy("see whether the state folder of the console can be read; its log says why not")
        })?;
        match found {
            Some(found) => {
                if let Some(place) = parts.extensions.get::<InLobby>() {
                    place.leave();
                }
                let (name, role, sha256) = (found.name, found.role, found.sha256);
                Ok(Caller { name, role, from: peer.to_string(), sha256 })
            }
            // Only wrong ones wait: nobody guesses 256 bits, and others share the address.
            None => {
                tokio::time::sleep(inner.guesses.pause(peer.ip(), Instant::now())).await;
                inner.guesses.refused(peer.ip(), Instant::now());
                inner.counted.token_refused();
                Err(unauthorized("this is no token of this console"))
            }
        }
    }
}

/// Refuses what a page from elsewhere may have sent, and says with each answer what may be done with it.
pub(crate) async fn guard(State(inner): State<Arc<Inner>>, request: Request, next: Next) -> Response {
    let (method, route) = (request.method().clone(), request.extensions().get::<MatchedPath>().cloned());
    let mut response = match check(&inner, request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    };
    inner.counted.answered(&method, route.as_ref().map(MatchedPath::as_str), response.status());
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn check(inner: &Inner, method: &Method, headers: &HeaderMap) -> Result<(), Failure> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let is_named = inner.options.hosts.iter().any(|name| {
        let bare = host.rsplit_once(':').map_or(host, |(bare, _)| bare);
        name.eq_ignore_ascii_case(host) || name.eq_ignore_ascii_case(bare)
    });
    let is_one = headers.get_all(header::HOST).iter().count() == 1;
    if !is_one || !is_named && !is_own_name(host) {
        let what = "the console is not known by this host name: use this machine's address or name";
        return Err(Failure::new(StatusCode::MISDIRECTED_REQUEST, what)
            .with_remedy("whimbrel serve --console-host NAME adds a name"));
    }
    let scheme = if inner.options.tls.is_some() { "https" } else { "http" };
    if let Some(origin) = headers.get(header::ORIGIN)
        && !origin.as_bytes().eq_ignore_ascii_case(format!("{scheme}://{host}").as_bytes())
    {
        return Err(Failure::new(StatusCode::FORBIDDEN, "a page from elsewhere may not ask here")
            .with_remedy("open the console's own page; scripts send no Origin"));
    }
    if method == Method::POST {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_json = kind.split(';').next().is_some_and(|kind| kind.trim() == "application/json");
        if !is_json {
            let what = "what is sent must be application/json";
            return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what)
                .with_remedy("send the header Content-Type: application/json"));
        }
    }
    Ok(())
}
