//! Plain HTTP, as a script would speak it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The number in the first line.
    pub status: u16,
    /// The first line and the headers.
    pub head: String,
    /// All that follows.
    pub body: String,
}

impl Answer {
    /// The body as JSON; null where it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }
}

/// One request on a connection of its own.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// Where: `HOST:PORT`.
    pub at: &'a str,
    /// The method and the path, as in the first line.
    pub what: &'a str,
    /// Headers besides `Host`, which is `at` where none is among them.
    pub headers: Vec<(&'a str, String)>,
    /// The body.
    pub body: String,
}

impl<'a> Ask<'a> {
    /// A request without body and headers of its own.
    pub fn new(at: &'a str, what: &'a str) -> Ask<'a> {
        Ask { at, what, headers: Vec::new(), body: String::new() }
    }

    /// With a header.
    pub fn with(mut self, name: &'a str, value: impl Into<String>) -> Ask<'a> {
        self.headers.push((name, value.into()));
        self
    }

    /// With a body of JSON.
    pub fn json(mut self, body: &Value) -> Ask<'a> {
        self.body = body.to_string();
        self.with("Content-Type", "application/json")
    }

    /// Asks, and waits for the answer.
    ///
    /// Panics where there is none.
    #[track_caller]
    pub fn answer(&self) -> Answer {
        let mut stream = TcpStream::connect(self.at).expect("somebody listens");
        stream.set_read_timeout(Some(ANSWER_WITHIN)).expect("a timeout can be set");
        let mut head = format!("{} HTTP/1.1\r\nConnection: close\r\n", self.what);
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("Host: {}\r\n", self.at));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.body.is_empty() || self.what.starts_with("POST") {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        write!(stream, "{head}\r\n{}", self.body).expect("asked");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }
}
