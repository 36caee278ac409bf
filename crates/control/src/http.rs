//! How a process stands, over HTTP, for those who watch many: `/metrics` for Prometheus, `/healthz` and
//! `/readyz` for the supervisor of processes, `/status` as JSON.
//!
//! Read only, and without a login: anyone who reaches the port sees addresses and names of keys, but no
//! password and no value.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body_util::{BodyExt as _, Limited};
use hyper_util::rt::TokioIo;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::remedy::Remedy;

use crate::web::{Limits, Listener};

/// Connections at once, and those of one address. Of more the oldest ends.
pub const CONNECTIONS_MAX: usize = 64;

/// How long a request may take to arrive.
const REQUEST_TIME: Duration = Duration::from_secs(5);

/// What a listener with short answers allows. A connection that takes in nothing keeps no other away for
/// longer.
const LIMITS: Limits = Limits {
    connections: CONNECTIONS_MAX,
    of_one_address: 32,
    request_time: REQUEST_TIME,
    connection_time: Some(Duration::from_secs(30)),
};

/// The longest status that is taken in.
const STATUS_BYTES_MAX: usize = 4 << 20;

/// What Prometheus calls the format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What can be seen of a process.
pub trait MetricsSource: Send + Sync + 'static {
    /// Its numbers now.
    fn metrics(&self) -> Vec<Metric>;

    /// Whether it works at all; otherwise why not.
    ///
    /// # Errors
    /// The reason, in words.
    fn health(&self) -> std::result::Result<(), String>;

    /// Whether it does what it is for; otherwise what it still waits for.
    ///
    /// # Errors
    /// The reason, in words.
    fn readiness(&self) -> std::result::Result<(), String>;

    /// Everything, as the process's own `--json` has it.
    fn status(&self) -> serde_json::Value;
}

/// Whether a number only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// It goes up and down.
    Gauge,
    /// It only grows, from 0 when the process started. `_total` is added to its name.
    Counter,
}

/// The name and the value of a label.
pub type Label = (&'static str, String);

/// A number, once for each set of labels.
#[derive(Debug, Clone)]
pub struct Metric {
    name: &'static str,
    help: &'static str,
    kind: MetricKind,
    samples: Vec<(Vec<Label>, f64)>,
}

impl Metric {
    /// One number, without labels.
    pub fn new(kind: MetricKind, name: &'static str, help: &'static str, value: f64) -> Metric {
        Metric::by(kind, name, help, [(Vec::new(), value)])
    }

    /// One number for each set of labels.
    pub fn by(
        kind: MetricKind,
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Vec<Label>, f64)>,
    ) -> Metric {
        Metric { name, help, kind, samples: samples.into_iter().collect() }
    }
}

/// A number that only grows, without labels.
pub(crate) fn count(name: &'static str, help: &'static str, value: u64) -> Metric {
    Metric::new(MetricKind::Counter, name, help, value as f64)
}

/// A number that goes up and down, without labels.
pub(crate) fn gauge(name: &'static str, help: &'static str, value: u64) -> Metric {
    Metric::new(MetricKind::Gauge, name, help, value as f64)
}

/// A time that goes up and down, in seconds.
pub(crate) fn seconds(name: &'static str, help: &'static str, ms: u64) -> Metric {
    Metric::new(MetricKind::Gauge, name, help, ms as f64 / 1000.0)
}

#[derive(Debug)]
struct Metrics(Vec<Metric>);

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in &self.0 {
            let kind = match metric.kind {
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Counter => MetricType::Counter,
            };
            let mut described = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for (labels, value) in &metric.samples {
                // Without labels it is not written with empty braces.
                match (metric.kind, labels.is_empty()) {
                    (MetricKind::Gauge, true) => described.encode_gauge(value)?,
                    (MetricKind::Gauge, false) => described.encode_family(labels)?.encode_gauge(value)?,
                    (MetricKind::Counter, true) => {
                        described.encode_counter::<NoLabelSet, _, f64>(value, None)?;
                    }
                    (MetricKind::Counter, false) => {
                        described.encode_family(labels)?.encode_counter::<NoLabelSet, _, f64>(value, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Answers over HTTP.
#[derive(Debug)]
pub struct HttpServer {
    listener: Listener,
}

impl HttpServer {
    /// Begins to listen. Requests are answered once [`HttpServer::serve`] runs.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub async fn bind(listen: SocketAddr) -> Result<HttpServer> {
        Ok(HttpServer { listener: Listener::bind(listen, LIMITS, None).await? })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// `Own` if the system does not report it.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listener.address()
    }

    /// Answers until `stop`.
    pub async fn serve(self, source: Arc<dyn MetricsSource>, stop: CancellationToken) {
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route(
                "/healthz",
                get(|State(at): State<Arc<dyn MetricsSource>>| async move { verdict(at.health()) }),
            )
            .route(
                "/readyz",
                get(|State(at): State<Arc<dyn MetricsSource>>| async move { verdict(at.readiness()) }),
            )
            .route("/status", get(status))
            .with_state(source);
        self.listener.serve(router, stop).await;
    }
}

/// Begins to listen, if that is wished. Before anything is begun that others can see: a port that is taken
/// leaves no trace then.
///
/// # Errors
/// As [`HttpServer::bind`].
pub async fn bind(listen: Option<SocketAddr>) -> Result<Option<HttpServer>> {
    match listen {
        Some(listen) => HttpServer::bind(listen).await.map(Some),
        None => Ok(None),
    }
}

/// Shows `source` there until `stop`, or until what is returned is dropped. `print` gets a line with the
/// address, and the same as JSON.
///
/// # Errors
/// As [`HttpServer::address`].
pub fn expose(
    server: Option<HttpServer>,
    source: Arc<impl MetricsSource>,
    stop: &CancellationToken,
    print: impl Fn(&str, &serde_json::Value),
) -> Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    if let Some(server) = server {
        let address = server.address()?.to_string();
        tasks.spawn(server.serve(source, stop.clone()));
        let text = format!("http     http://{address}/metrics, /healthz, /readyz, /status");
        print(&text, &serde_json::json!({"event": "http", "address": address}));
    }
    Ok(tasks)
}

/// What `/status` of the process says that listens at `at`, a HOST:PORT.
///
/// # Errors
/// `Own` if it cannot be had within 10 s, or is no JSON.
pub async fn status_at(at: &str) -> Result<serde_json::Value> {
    let asked = async {
        let stream = TcpStream::connect(at).await?;
        let reached = stream.peer_addr()?.to_string();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut driven = JoinSet::new();
        driven.spawn(connection);
        let request = Request::get("/status").header(header::HOST, reached).body(String::new())?;
        let body = Limited::new(sender.send_request(request).await?.into_body(), STATUS_BYTES_MAX);
        let bytes = body.collect().await?.to_bytes();
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(serde_json::from_slice(&bytes)?)
    };
    let fail = |e: &dyn fmt::Display| {
        Error::own(format!("ask {at} for its status"), e).with_remedy(Remedy::NameHttpAddress)
    };
    match tokio::time::timeout(REQUEST_TIME, asked).await {
        Ok(Ok(status)) => Ok(status),
        Ok(Err(e)) => Err(fail(&e)),
        Err(e) => Err(fail(&e)),
    }
}

async fn metrics(State(source): State<Arc<dyn MetricsSource>>) -> Response {
    in_numbers(source.metrics())
}

/// Numbers, as Prometheus reads them.
pub fn in_numbers(metrics: Vec<Metric>) -> Response {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics(metrics)));
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{e}\n")).into_response(),
    }
}

async fn status(State(source): State<Arc<dyn MetricsSource>>, headers: HeaderMap) -> Response {
    if !headers.get(header::HOST).and_then(|host| host.to_str().ok()).is_some_and(is_own_name) {
        let why = "ask by the address of this machine, or by its own name: a page that a browser shows could \
            have made up any other one\n";
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    ([(header::CONTENT_TYPE, "application/json")], format!("{}\n", source.status())).into_response()
}

/// Whether a `Host` header names this machine, and cannot be another site's name that leads here: then a page
/// from there could read the answer in a browser.
pub fn is_own_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    [host, bare].iter().any(|address| address.parse::<IpAddr>().is_ok())
        || name.eq_ignore_ascii_case("localhost")
        || name.eq_ignore_ascii_case(own.trim()) && !name.is_empty()
}

fn verdict(outcome: std::result::Result<(), String>) -> Response {
    match outcome {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_taken() {
        for own in ["127.0.0.1:9400", "10.0.0.1", "[::1]:9400", "::1", "localhost:9400"] {
            assert!(is_own_name(own), "{own}");
        }
        for other in ["evil.example:9400", "evil.example", "127.0.0.1.evil.example:80", "", ":9400"] {
            assert!(!is_own_name(other), "{other}");
        }
    }

    #[test]
    fn metrics_are_written_as_prometheus_reads_them() {
        let lag =
            vec![(vec![("primary", "a:1".to_owned())], 0.5), (vec![("primary", "\"b\"".to_owned())], 2.0)];
        let metrics = vec![
            Metric::new(MetricKind::Counter, "keys_written", "Keys written", 3.0),
            Metric::by(MetricKind::Gauge, "lag_seconds", "Lag", lag),
        ];
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Metrics(metrics)));
        let mut text = String::new();
        encode(&mut text, &registry).expect("encoded");
        let lines: Vec<&str> = text.lines().collect();
        for expected in [
            "# TYPE keys_written counter",
            "keys_written_total 3.0",
            "lag_seconds{primary=\"a:1\"} 0.5",
            "lag_seconds{primary=\"\\\"b\\\"\"} 2.0",
            "# EOF",
        ] {
            assert!(lines.contains(&expected), "{expected} is not in {text}");
        }
    }
}
