//! How a process stands, over HTTP, where that is wished.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_control::http::{HttpServer, MetricsSource};
use whimbrel_engine::error::Result;

/// Shows `source` there until `stop`, or until what is returned is dropped, and tells where.
///
/// # Errors
/// As [`HttpServer::bind`].
pub async fn expose(
    listen: Option<SocketAddr>,
    source: Arc<impl MetricsSource>,
    stop: &CancellationToken,
    tell: impl Fn(&str, &Value),
) -> Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    if let Some(listen) = listen {
        let server = HttpServer::bind(listen).await?;
        let address = server.address()?.to_string();
        tasks.spawn(server.serve(source, stop.clone()));
        tell(
            &format!("http     http://{address}/metrics, /healthz, /readyz, /status"),
            &json!({"event": "http", "address": address}),
        );
    }
    Ok(tasks)
}
