//! What the console counts of itself, for those who watch many processes: `/metrics`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{Method, StatusCode};
use parking_lot::Mutex;
use whimbrel_control::http::{Metric, MetricKind};

/// What has no route, or is asked for in a way that nothing is.
const OTHER: &str = "other";

/// Numbers since the console began. There are no more of them than routes, answers and orders.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// By operation and status.
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    /// By order, and whether it was carried out.
    orders: Mutex<BTreeMap<(String, bool), u64>>,
    wrong_tokens: AtomicU64,
    streams: AtomicU64,
}

impl Counted {
    /// A request was answered; `route` is the one that it matched.
    pub(crate) fn answered(&self, method: &Method, route: Option<&str>, status: StatusCode) {
        // Whatever else a client makes up is one number.
        let is_ours = [Method::GET, Method::POST].contains(method);
        let operation = route.filter(|_| is_ours).map(|route| format!("{method} {route}"));
        let key = (operation.unwrap_or_else(|| OTHER.to_owned()), status.as_u16());
        *self.requests.lock().entry(key).or_default() += 1;
    }

    /// An order is in the audit log with its result.
    pub(crate) fn ordered(&self, order: &str, is_done: bool) {
        *self.orders.lock().entry((order.to_owned(), is_done)).or_default() += 1;
    }

    /// Somebody has shown a token that is none.
    pub(crate) fn token_refused(&self) {
        self.wrong_tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a stream for as long as it is sent.
    pub(crate) async fn streaming(&self, sent: impl Future<Output = ()>) {
        self.streams.fetch_add(1, Ordering::Relaxed);
        sent.await;
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    /// The numbers now.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let requests = self.requests.lock().clone().into_iter().map(|((operation, status), count)| {
            (vec![("operation", operation), ("status", status.to_string())], count as f64)
        });
        let orders = self.orders.lock().clone().into_iter().map(|((order, is_done), count)| {
            let result = if is_done { "done" } else { "refused" };
            (vec![("order", order), ("result", result.to_owned())], count as f64)
        });
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        vec![
            Metric::by(
                MetricKind::Counter,
                "whimbrel_console_requests",
                "Requests answered, by operation and status",
                requests,
            ),
            Metric::by(
                MetricKind::Counter,
                "whimbrel_console_orders",
                "Orders in the audit log, by result",
                orders,
            ),
            Metric::new(
                MetricKind::Counter,
                "whimbrel_console_wrong_tokens",
                "Requests with an unknown token",
                number(&self.wrong_tokens),
            ),
            Metric::new(
                MetricKind::Gauge,
                "whimbrel_console_streams",
                "Streams that are open",
                number(&self.streams),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_clients_make_up_is_one_number() {
        let counted = Counted::default();
        let route = Some("/api/v1/jobs/{name}");
        for method in ["GET", "GET", "BREW", "DELETE"] {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            counted.answered(&method, route, StatusCode::OK);
        }
        counted.answered(&Method::GET, None, StatusCode::OK);
        let requests = counted.requests.lock().clone();
        let of = |name: &str| requests.get(&(name.to_owned(), 200)).copied();
        assert_eq!((of("GET /api/v1/jobs/{name}"), of(OTHER), requests.len()), (Some(2), Some(3), 2));
        let open = || counted.streams.load(Ordering::Relaxed);
        counted.streaming(async { assert_eq!(open(), 1) }).await;
        assert_eq!(open(), 0);
    }
}
