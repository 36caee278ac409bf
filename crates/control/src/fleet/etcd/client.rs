//! Calls to etcd's JSON gateway: plain HTTP, so that whimbrel builds with nothing but cargo and a C compiler.
//! The client libraries that speak gRPC need the compiler of its schemas.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_engine::link::Io;
use whimbrel_engine::remedy::Remedy;

use super::address::EtcdOptions;

/// How long one server may usually take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// A page of keys takes longer.
pub(super) const PAGE_PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait when no server did what was asked.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest answer. A page of keys has much less.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How often it logs in during one call: what etcd's servers know of logins is not the same at each moment.
const LOGINS_MAX: u32 = 3;

/// What is called.
pub(super) const RANGE: &str = "/v3/kv/range";
pub(super) const TXN: &str = "/v3/kv/txn";
pub(super) const GRANT: &str = "/v3/lease/grant";
const AUTHENTICATE: &str = "/v3/auth/authenticate";

/// Codes of gRPC that say: not now, or not here.
const TRANSIENT: [i64; 2] = [4, 14];
const TOO_MUCH: i64 = 8;
const NOT_LOGGED_IN: i64 = 16;

/// A connection to one server after another.
pub(super) struct Client {
    options: Arc<EtcdOptions>,
    /// Which server is asked.
    at: usize,
    http: Option<Http>,
    token: Option<String>,
    /// How long one server may take to connect, and to answer.
    pub(super) patience: Duration,
}

/// A connection. It ends when this is dropped.
struct Http {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

/// Why a call did not bring an answer.
enum Failure {
    /// The server does not answer, or cannot do it now: another one may. Whether it was done is not known.
    Elsewhere(Error),
    /// The login is over: nothing was done.
    LoggedOut(Error),
    /// It is refused.
    Final(Error),
}

impl Client {
    pub(super) fn new(options: Arc<EtcdOptions>, patience: Duration) -> Client {
        Client { options, at: 0, http: None, token: None, patience }
    }

    pub(super) fn options(&self) -> &Arc<EtcdOptions> {
        &self.options
    }

    /// Calls one server after another until one has answered, or until `deadline`; each is asked at least
    /// once if there is time. If the answer is lost it may be called several times: the request has to allow
    /// that.
    ///
    /// # Errors
    /// The last one: [`Error::is_link`] if no server could be reached or do it now. `Auth` for the login.
    /// Else `Unfit`: etcd refuses it.
    pub(super) async fn call(
        &mut self,
        path: &'static str,
        body: &Value,
        deadline: Instant,
    ) -> Result<Value> {
        let body = Bytes::from(body.to_string());
        let mut logins = 0;
        loop {
            let error = match self.attempt(path, &body).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::LoggedOut(error)) => {
                    self.token = None;
                    logins += 1;
                    if logins >= LOGINS_MAX {
                        return Err(error);
                    }
                    continue;
                }
                Err(Failure::Elsewhere(error)) => {
                    self.http = None;
                    self.at = (self.at + 1) % self.options.endpoints.len().max(1);
                    error
                }
            };
            tracing::debug!(%error, path, "etcd does not answer");
            if Instant::now() + PAUSE >= deadline {
                return Err(error);
            }
            // The next one may work; if all have been asked there is no hurry.
            if self.at == 0 {
                sleep(PAUSE).await;
            }
        }
    }

    async fn attempt(&mut self, path: &'static str, body: &Bytes) -> Result<Value, Failure> {
        if let (Some(user), None) = (&self.options.user, &self.token) {
            let password = self.options.password.as_ref().map(|password| password.expose());
            let login = json!({"name": user, "password": password.unwrap_or_default()}).to_string();
            let answer = self.post(AUTHENTICATE, Bytes::from(login)).await?;
            self.token = answer["token"].as_str().map(str::to_owned);
        }
        self.post(path, body.clone()).await
    }

    async fn post(&mut self, path: &'static str, body: Bytes) -> Result<Value, Failure> {
        let patience = self.patience;
        let endpoint = self.options.endpoints.get(self.at);
        let at = endpoint.map(|endpoint| endpoint.address.to_string()).unwrap_or_default();
        let slow = || {
            let ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
            Failure::Elsewhere(Error::new(Side::Store, at.clone(), "ask etcd", ErrorKind::Timeout(ms)))
        };
        if self.http.as_ref().is_none_or(|http| http.sender.is_closed()) {
            let opened = timeout(patience, self.open()).await.map_err(|_| slow())?;
            self.http = Some(opened?);
        }
        let broken = |e: hyper::Error| {
            let kind = ErrorKind::Broken(std::io::Error::other(e));
            Failure::Elsewhere(Error::new(Side::Store, at.clone(), "ask etcd", kind))
        };
        // It was created just above if it was missing. It is taken out, so a call that is dropped half-way
        // leaves none.
        let Some(mut http) = self.http.take() else { return Err(slow()) };
        let mut request =
            Request::post(path).header(HOST, at.clone()).header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Full::new(body)).map_err(|e| Failure::Final(Error::own("ask etcd", e)))?;
        let answering = async {
            let answer = http.sender.send_request(request).await.map_err(broken)?;
            let status = answer.status();
            let bytes = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|e| {
                let kind = ErrorKind::Broken(std::io::Error::other(e));
                Failure::Elsewhere(Error::new(Side::Store, at.clone(), "ask etcd", kind))
            })?;
            Ok((status, bytes.to_bytes()))
        };
        let (status, bytes) = timeout(patience, answering).await.map_err(|_| slow())??;
        self.http = Some(http);
        understood(&at, status, &bytes)
    }

    async fn open(&self) -> Result<Http, Failure> {
        let Some(endpoint) = self.options.endpoints.get(self.at) else {
            return Err(Failure::Final(Error::own("ask etcd", "no server is named")));
        };
        let io = Io::open(endpoint, &endpoint.address).await.map_err(Failure::Elsewhere)?;
        let (sender, connection) = handshake(TokioIo::new(io)).await.map_err(|e| {
            let kind = ErrorKind::Broken(std::io::Error::other(e));
            Failure::Elsewhere(Error::new(Side::Store, endpoint.address.to_string(), "connect", kind))
        })?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // How it ends is seen by the task that waits for an answer.
            let _ = connection.await;
        });
        Ok(Http { sender, _driver: driver })
    }
}

/// What the gateway's answer says.
fn understood(at: &str, status: StatusCode, bytes: &[u8]) -> Result<Value, Failure> {
    let fail = |kind| Error::new(Side::Store, at, "ask etcd", kind);
    let answer: Value = match serde_json::from_slice(bytes) {
        Ok(answer) => answer,
        Err(_) => {
            let what = format!("HTTP {status}, and no JSON: this is no etcd of 3.4 or later");
            return Err(Failure::Final(fail(ErrorKind::Unexpected(what))));
        }
    };
    if status == StatusCode::OK && answer["error"].is_null() {
        return Ok(answer);
    }
    let text = answer["message"].as_str().or(answer["error"].as_str()).unwrap_or("no reason");
    let code = int(&answer["code"]).unwrap_or(0);
    let refused = |remedy: &str| {
        let error = fail(ErrorKind::Unfit(format!("etcd refuses: {text}")));
        Failure::Final(if remedy.is_empty() { error } else { error.with_remedy(remedy) })
    };
    if text.contains("authentication failed") || text.contains("user name is empty") {
        let error = fail(ErrorKind::Auth(format!("etcd refuses the login: {text}")));
        return Err(Failure::Final(error.with_remedy(Remedy::NameStoreUser)));
    }
    Err(match code {
        NOT_LOGGED_IN => Failure::LoggedOut(fail(ErrorKind::Auth(text.to_owned()))),
        _ if text.contains("revision of auth store is old") => {
            Failure::LoggedOut(fail(ErrorKind::Auth(text.to_owned())))
        }
        TOO_MUCH if text.contains("space exceeded") => {
            refused("compact and defragment etcd, disarm its alarm, and see that it compacts by itself")
        }
        code if TRANSIENT.contains(&code) || code == TOO_MUCH => {
            Failure::Elsewhere(fail(ErrorKind::Broken(std::io::Error::other(text.to_owned()))))
        }
        _ if text.contains("permission denied") => {
            refused("grant the user's role readwrite on the prefix of the keys")
        }
        _ => refused(""),
    })
}

/// A number of etcd's: longer ones come as strings.
pub(super) fn int(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(status: u16, body: &str) -> String {
        match understood("a:1", StatusCode::from_u16(status).expect("a status"), body.as_bytes()) {
            Ok(value) => value.to_string(),
            Err(Failure::Elsewhere(e)) => format!("elsewhere {e}"),
            Err(Failure::LoggedOut(e)) => format!("logged out {e}"),
            Err(Failure::Final(e)) => format!("final {e}"),
        }
    }

    #[test]
    fn what_the_gateway_answers_is_understood() {
        assert_eq!(outcome(200, r#"{"a":1}"#), r#"{"a":1}"#);
        for (status, body, kind, expected) in [
            (404, "Not Found", "final", "no etcd"),
            (503, r#"{"error":"etcdserver: no leader","code":14}"#, "elsewhere", "no leader"),
            (401, r#"{"error":"etcdserver: invalid auth token","code":16}"#, "logged out", "token"),
            (400, r#"{"error":"etcdserver: user name is empty","code":3}"#, "final", "refuses the login"),
            (
                400,
                r#"{"error":"etcdserver: authentication failed, x","code":3}"#,
                "final",
                "refuses the login",
            ),
            (429, r#"{"error":"etcdserver: mvcc: database space exceeded","code":8}"#, "final", "compact"),
            (429, r#"{"error":"etcdserver: too many requests","code":8}"#, "elsewhere", "too many"),
            (403, r#"{"error":"etcdserver: permission denied","code":7}"#, "final", "readwrite"),
        ] {
            let outcome = outcome(status, body);
            assert!(outcome.starts_with(kind) && outcome.contains(expected), "{body}: {outcome}");
        }
    }

    #[test]
    fn numbers_come_in_two_ways() {
        assert_eq!((int(&json!("7")), int(&json!(7)), int(&json!("x"))), (Some(7), Some(7), None));
    }
}
