//! Why something that was asked over HTTP was not done.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use whimbrel_control::steering::{Refusal, Why};
use whimbrel_engine::error::{Error, ErrorKind};

/// A status, what is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) error: String,
    pub(crate) remedy: Option<String>,
}

pub(crate) type Answer<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Failure {
        Failure { status, error: error.into(), remedy: None }
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
        Failure { remedy: Some(remedy.into()), ..self }
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
