//! Why something that was asked over HTTP was not done.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use whimbrel_control::steering::{Refusal, Why};
use whimbrel_engine::error::{Error, ErrorKind};
use whimbrel_terminal::plain::plain;

/// A status, what is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) error: String,
    pub(crate) remedy: Option<String>,
}

/// What clients and servers have sent may be part of it, and scripts print it on terminals: no colours
/// either.
fn shown(text: &str) -> String {
    plain(&text.replace('\u{1b}', "\\u001b")).into_owned()
}

pub(crate) type Answer<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Failure {
        Failure { status, error: shown(&error.into()), remedy: None }
    }

    /// The request makes no sense.
    pub(crate) fn bad(error: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, error)
    }

    /// There is nothing of that name.
    pub(crate) fn missing(error: impl Into<String>) -> Failure {
        Failure::new(StatusCode::NOT_FOUND, error)
    }

    /// Not as things stand now.
    pub(crate) fn conflict(error: impl Into<String>) -> Failure {
        Failure::new(StatusCode::CONFLICT, error)
    }

    pub(crate) fn with_remedy(self, remedy: impl Into<String>) -> Failure {
        Failure { remedy: Some(shown(&remedy.into())), ..self }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error.kind {
            ErrorKind::Options(_) => StatusCode::CONFLICT,
            _ if error.is_link() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let status = match refusal.why {
            Why::Unsupported => StatusCode::CONFLICT,
            Why::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
            Why::Refused | Why::Interrupted | Why::Internal => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Failure::new(status, refusal.text)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = json!({"error": self.error, "remedy": self.remedy}).to_string();
        (self.status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client or a server has sent is shown on terminals as well.
    #[test]
    fn control_bytes_are_escaped() {
        let failure = Failure::missing("there is no job \u{1b}[2J\u{7}x").with_remedy("see \u{1b}]0;t");
        let both = [failure.error, failure.remedy.unwrap_or_default()];
        assert!(both.iter().all(|text| !text.contains(char::is_control)), "{both:?}");
        assert!(both[0].contains("[2J") && both[0].ends_with('x'), "{both:?}");
    }
}
