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
        let unanswered = "see whether the server runs, and whether this machine reaches it";
        let remedy = error.remedy.as_ref().map(ToString::to_string);
        let remedy = remedy.or_else(|| error.is_link().then(|| unanswered.to_owned()));
        Failure { remedy: remedy.as_deref().map(shown), ..Failure::new(status, error.problem()) }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let status = match refusal.why {
            Why::Unsupported => StatusCode::CONFLICT,
            Why::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
            Why::Refused | Why::Interrupted | Why::Internal => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let failure = Failure::new(status, refusal.text);
        match refusal.why {
            Why::Unreachable => failure.with_remedy("see whether its process still runs, and ask again"),
            // What the job says has it.
            _ => failure,
        }
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
    use whimbrel_engine::error::Side;

    use super::*;

    /// What can be done is a field of its own, and said once.
    #[test]
    fn an_error_keeps_its_remedy() {
        let error = Error::options(Side::Own, "plan", "there is no such node").with_remedy("name another");
        let failure = Failure::from(error);
        assert_eq!((failure.status, failure.remedy.as_deref()), (StatusCode::CONFLICT, Some("name another")));
        assert!(failure.error.ends_with("there is no such node"), "{failure:?}");
        let silent = Error::new(Side::Source, "a:1", "plan", ErrorKind::Closed);
        let failure = Failure::from(silent);
        assert_eq!(failure.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(failure.remedy.is_some(), "{failure:?}");
    }

    /// What a client or a server has sent is shown on terminals as well.
    #[test]
    fn control_bytes_are_escaped() {
        let failure = Failure::missing("there is no job \u{1b}[2J\u{7}x").with_remedy("see \u{1b}]0;t");
        let both = [failure.error, failure.remedy.unwrap_or_default()];
        assert!(both.iter().all(|text| !text.contains(char::is_control)), "{both:?}");
        assert!(both[0].contains("[2J") && both[0].ends_with('x'), "{both:?}");
    }
}
