//! Posts one event to an address: for a bounded time, again where that may help, and with what is answered
//! bounded too.
//!
//! ```text
//!  POST, the JSON document that commands get on their standard input
//!    2xx                      ──▶ it is delivered; the first 4 KiB of the answer are kept
//!    5xx, 408, 429, no answer ──▶ again after 0.5 s, 1 s, 2 s, 4 s, while there is time
//!    anything else            ──▶ it is not delivered: the same would be answered again
//! ```
//!
//! Each try has a connection of its own. Redirections are not followed: they could lead anywhere.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use ring::hmac;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use url::{Host, Url};
use whimbrel_engine::endpoint::{Endpoint, Secret, TlsOptions};
use whimbrel_engine::error::{ErrorKind, Side};
use whimbrel_engine::link::Io;

use super::run::{Ended, Tail};
use crate::naming::process_name;
use crate::store::HookEnd;

/// How often it is tried, at most.
const TRIES_MAX: u32 = 5;

/// How much is read of an answer, in bytes: what comes after that is not needed.
const ANSWER_BYTES_MAX: usize = 4 << 10;

/// How long the body of an answer is waited for: whether the event is delivered is known before it.
const BODY_WITHIN: Duration = Duration::from_secs(1);

/// How long tries may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// One of them.
    pub(super) try_within: Duration,
    /// The pause after the first; each later one is twice as long.
    pub(super) first_pause: Duration,
}

/// What is usual.
pub(super) const PACE: Pace =
    Pace { try_within: Duration::from_secs(10), first_pause: Duration::from_millis(500) };

/// The URL that an event is posted to. Its path may be a secret, and is shown nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook(Url);

impl Webhook {
    /// Whether a text is meant to be one.
    pub(super) fn is_meant(text: &str) -> bool {
        let begins =
            |scheme: &str| text.get(..scheme.len()).is_some_and(|it| it.eq_ignore_ascii_case(scheme));
        begins("https://") || begins("http://")
    }

    fn is_encrypted(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// `HOST:PORT`.
    fn place(&self) -> String {
        let port = self.0.port_or_known_default().unwrap_or_default();
        format!("{}:{port}", self.0.host_str().unwrap_or_default())
    }
}

/// Without what may be a secret.
impl fmt::Display for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "POST {}://{}/…", self.0.scheme(), self.place())
    }
}

impl FromStr for Webhook {
    type Err = String;

    fn from_str(text: &str) -> Result<Webhook, String> {
        let url = Url::parse(text).map_err(|e| format!("that is no address of a webhook: {e}"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("a webhook's address has no user and no password: have it signed".into());
        }
        let is_here = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(ip)) => IpAddr::V4(ip).is_loopback(),
            Some(Host::Ipv6(ip)) => IpAddr::V6(ip).is_loopback(),
            None => false,
        };
        match url.scheme() {
            "https" => Ok(Webhook(url)),
            "http" if is_here => Ok(Webhook(url)),
            _ => {
                Err("a webhook is https://, or http:// on this machine alone (127.0.0.1, ::1, localhost)"
                    .into())
            }
        }
    }
}

/// How a process reaches webhooks, and proves that it is the sender.
#[derive(Debug, Clone, Default)]
pub struct Sender {
    /// PEM file with the authorities to trust; the system's own if none is named.
    pub ca_file: Option<PathBuf>,
    /// What bodies are signed with.
    pub secret: Option<Secret>,
}

impl Sender {
    /// `sha256=` and the HMAC of the body, in hexadecimal digits; `None` without a secret.
    fn signature(&self, body: &[u8]) -> Option<String> {
        let secret = self.secret.as_ref()?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes());
        let digits: String =
            hmac::sign(&key, body).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("sha256={digits}"))
    }
}

/// Why a try has failed.
struct Failure {
    why: String,
    /// The next one would fail as well.
    is_final: bool,
    answer: String,
}

impl Failure {
    fn new(why: impl ToString, is_final: bool) -> Failure {
        Failure { why: why.to_string(), is_final, answer: String::new() }
    }
}

/// Posts `body`, for `limit` at most.
pub(super) async fn post(
    webhook: &Webhook,
    sender: &Sender,
    event: &str,
    body: &[u8],
    limit: Duration,
    pace: Pace,
) -> Ended {
    static POSTED: AtomicU64 = AtomicU64::new(0);
    // The same for all tries, so a receiver that has got the first recognizes the second.
    let delivery = format!("{}-{}", process_name(), POSTED.fetch_add(1, Ordering::Relaxed));
    let deadline = Instant::now() + limit;
    let mut pause = pace.first_pause;
    let mut tries = 0;
    loop {
        tries += 1;
        let left = deadline.saturating_duration_since(Instant::now()).min(pace.try_within);
        let tried = timeout(left, attempt(webhook, sender, (event, &delivery), body)).await;
        let failure = match tried {
            Ok(Ok(answer)) => match answer.judge(&webhook.place()).await {
                Ok(output) => return Ended { end: HookEnd::Succeeded, output },
                Err(failure) => failure,
            },
            Ok(Err(failure)) => failure,
            Err(_) => Failure::new(format!("{} does not answer in time", webhook.place()), false),
        };
        if failure.is_final || tries == TRIES_MAX || Instant::now() + pause >= deadline {
            let end = HookEnd::NotDelivered { tries, why: failure.why };
            return Ended { end, output: failure.answer };
        }
        sleep(pause).await;
        pause *= 2;
    }
}

async fn attempt(
    webhook: &Webhook,
    sender: &Sender,
    (event, delivery): (&str, &str),
    body: &[u8],
) -> Result<Answer, Failure> {
    let place = webhook.place();
    let endpoint = Endpoint::parse(Side::Own, &place).map_err(|e| Failure::new(e.problem(), true))?;
    let tls = TlsOptions { ca_file: sender.ca_file.clone(), ..TlsOptions::default() };
    let endpoint = Endpoint { tls: webhook.is_encrypted().then_some(tls), ..endpoint };
    let io = Io::open(&endpoint, &endpoint.address).await.map_err(|error| {
        let why = match &error.kind {
            ErrorKind::Connect(e) => e.to_string(),
            ErrorKind::Tls(why) => why.clone(),
            ErrorKind::Handshake(e) => format!("the TLS handshake failed: {e}"),
            _ => error.problem(),
        };
        Failure::new(format!("{place}: {why}"), matches!(error.kind, ErrorKind::Tls(_)))
    })?;
    let broken = |e: hyper::Error| Failure::new(format!("{place}: {e}"), false);
    let (mut connection, driver) = handshake(TokioIo::new(io)).await.map_err(broken)?;
    let mut driven = JoinSet::new();
    driven.spawn(async move {
        // How it ends is seen below.
        let _ = driver.await;
    });
    let path = webhook
        .0
        .query()
        .map_or_else(|| webhook.0.path().to_owned(), |query| format!("{}?{query}", webhook.0.path()));
    let mut request = Request::post(path)
        .header(HOST, webhook.0.port().map_or_else(|| webhook.0.host_str().unwrap_or_default(), |_| &place))
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, concat!("whimbrel/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, "close")
        .header("X-Whimbrel-Event", event)
        .header("X-Whimbrel-Delivery", delivery);
    if let Some(signature) = sender.signature(body) {
        request = request.header("X-Whimbrel-Signature", signature);
    }
    let request = request.body(Full::new(Bytes::copy_from_slice(body)));
    let request = request.map_err(|e| Failure::new(e, true))?;
    let answer = connection.send_request(request).await.map_err(broken)?;
    Ok(Answer { status: answer.status(), body: answer.into_body(), _driven: driven })
}

/// What was answered, as far as it has come.
struct Answer {
    status: StatusCode,
    body: Incoming,
    /// The connection, for what is still to come.
    _driven: JoinSet<()>,
}

impl Answer {
    /// What the answer begins with, if it means that the event is delivered. Only that it was given counts:
    /// the body may come late, or never.
    async fn judge(self, place: &str) -> Result<String, Failure> {
        let status = self.status;
        let answer = beginning_of(self.body, Instant::now() + BODY_WITHIN).await;
        if status.is_success() {
            return Ok(answer);
        }
        let is_final = !(status.is_server_error()
            || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status));
        Err(Failure { why: format!("{place} answers {status}"), is_final, answer })
    }
}

/// What an answer begins with, as far as it comes `until` then. It may break off.
async fn beginning_of(mut body: Incoming, until: Instant) -> String {
    let (mut text, mut left) = (Tail::default(), ANSWER_BYTES_MAX);
    while left > 0
        && let Ok(Some(Ok(frame))) = timeout_at(until, body.frame()).await
    {
        let Some(data) = frame.data_ref() else { break };
        let taken = &data[..data.len().min(left)];
        left -= taken.len();
        text.push(taken);
    }
    text.text()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinHandle;
    use whimbrel_engine::tls::Acceptor;
    use whimbrel_lab::Tls;

    use super::*;

    /// Far more than any of these takes on a busy machine.
    const LIMIT: Duration = Duration::from_secs(60);

    /// Quick enough for a test; a try may take long, unless it hangs.
    const QUICK: Pace = Pace { try_within: LIMIT, first_pause: Duration::from_millis(5) };

    /// What the server does with a connection.
    #[derive(Debug, Clone, Copy)]
    enum Does {
        Answer(&'static str),
        Hang,
        /// Answers so far, and no further.
        Begin(&'static str),
        Close,
        /// Reads, and closes without an answer.
        Leave,
    }

    /// A server that does one after the other with its connections, and how it has come to its requests.
    struct Server {
        port: u16,
        asked: JoinHandle<Vec<String>>,
    }

    impl Server {
        async fn begin(does: Vec<Does>, tls: Option<Acceptor>) -> Server {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let port = listener.local_addr().expect("an address").port();
            let asked = tokio::spawn(async move {
                let (mut asked, mut held) = (Vec::new(), Vec::new());
                for what in does {
                    let stream = accept(&listener, tls.is_some()).await;
                    match (&tls, what) {
                        (_, Does::Close) => {}
                        (Some(tls), what) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                asked.extend(serve(stream, what).await.0);
                            }
                        }
                        (None, what) => {
                            let (request, stream) = serve(stream, what).await;
                            asked.extend(request);
                            held.push(stream);
                        }
                    }
                }
                asked
            });
            Server { port, asked }
        }

        fn webhook(&self, scheme: &str) -> Webhook {
            format!("{scheme}://127.0.0.1:{}/a/b?c=d", self.port).parse().expect("an address")
        }

        async fn asked(self) -> Vec<String> {
            self.asked.await.expect("it ends")
        }
    }

    /// A connection that begins as those of the sender do. The port may have been that of a server of another
    /// test whose peers still try to reach it.
    async fn accept(listener: &TcpListener, is_tls: bool) -> TcpStream {
        // A handshake's first byte, or the request's.
        let first = if is_tls { 0x16 } else { b'P' };
        loop {
            let (stream, _) = listener.accept().await.expect("a client");
            let mut byte = [0];
            if matches!(stream.peek(&mut byte).await, Ok(1)) && byte[0] == first {
                return stream;
            }
        }
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, what: Does) -> (Option<String>, S) {
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        while !is_whole(&request) {
            match stream.read(&mut buffer).await {
                Ok(n) if n > 0 => request.extend_from_slice(&buffer[..n]),
                _ => return (None, stream),
            }
        }
        if let Does::Answer(answer) | Does::Begin(answer) = what {
            stream.write_all(answer.as_bytes()).await.expect("it is read");
        }
        if !matches!(what, Does::Hang | Does::Begin(_)) {
            stream.shutdown().await.ok();
        }
        (Some(String::from_utf8(request).expect("text")), stream)
    }

    fn is_whole(request: &[u8]) -> bool {
        let text = String::from_utf8_lossy(request).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        length.is_some_and(|length| length.parse() == Ok(body.len()))
    }

    const FINE: Does = Does::Answer("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nthanks");
    const LATER: Does = Does::Answer("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy");

    async fn post_to(webhook: &Webhook, sender: &Sender, pace: Pace) -> (HookEnd, String) {
        let Ended { end, output } = post(webhook, sender, "switch", b"{\"a\":1}\n", LIMIT, pace).await;
        (end, output)
    }

    /// Whether it is delivered is known before the body comes, which may never be.
    #[tokio::test]
    async fn an_answer_whose_body_stalls_is_one() {
        let begins = Does::Begin("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ntha");
        let server = Server::begin(vec![begins], None).await;
        let posted = post_to(&server.webhook("http"), &Sender::default(), QUICK).await;
        assert_eq!(posted, (HookEnd::Succeeded, "tha".to_owned()));
        assert_eq!(server.asked().await.len(), 1);
    }

    fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
        let is_it = |line: &&str| line.to_lowercase().starts_with(&format!("{}: ", name.to_lowercase()));
        Some(request.lines().find(is_it)?.split_once(": ")?.1)
    }

    #[tokio::test]
    async fn it_is_posted_again_until_it_is_taken() {
        let does = vec![LATER, Does::Close, Does::Leave, FINE];
        let server = Server::begin(does, None).await;
        let sender = Sender { secret: Some(Secret::new("k")), ..Sender::default() };
        let posted = post_to(&server.webhook("http"), &sender, QUICK).await;
        assert_eq!(posted, (HookEnd::Succeeded, "thanks".to_owned()));
        let asked = server.asked().await;
        assert_eq!(asked.len(), 3, "{asked:#?}");
        assert!(asked.iter().all(|request| request.starts_with("POST /a/b?c=d HTTP/1.1\r\n")), "{asked:#?}");
        assert!(asked.iter().all(|request| request.ends_with("\r\n\r\n{\"a\":1}\n")), "{asked:#?}");
        let of = |name: &str| asked.iter().map(|request| header(request, name)).collect::<Vec<_>>();
        let deliveries = of("x-whimbrel-delivery");
        assert!(deliveries[0].is_some() && deliveries.iter().all(|id| *id == deliveries[0]), "{asked:#?}");
        assert_eq!(of("x-whimbrel-event"), [Some("switch"); 3]);
        // As `printf '{"a":1}\n' | openssl dgst -sha256 -hmac k` has it.
        let signature = "sha256=9cf88e5e19526d50943a51ab78c408ef2f5eb6c76d70ab16ae517a941f2d79e0";
        assert_eq!(of("x-whimbrel-signature"), [Some(signature); 3]);
    }

    #[tokio::test]
    async fn what_would_be_answered_again_is_not_asked_again() {
        for answer in [
            "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 2\r\n\r\nno",
        ] {
            let server = Server::begin(vec![Does::Answer(answer)], None).await;
            let (end, output) = post_to(&server.webhook("http"), &Sender::default(), QUICK).await;
            let HookEnd::NotDelivered { tries: 1, why } = end else { panic!("{end:?}") };
            assert!(why.contains("127.0.0.1") && why.contains(" answers "), "{why}");
            assert_eq!(output, "no");
            assert_eq!(header(&server.asked().await[0], "x-whimbrel-signature"), None);
        }
        let server = Server::begin(vec![LATER; TRIES_MAX as usize], None).await;
        let (end, output) = post_to(&server.webhook("http"), &Sender::default(), QUICK).await;
        assert!(matches!(end, HookEnd::NotDelivered { tries: TRIES_MAX, .. }), "{end:?}");
        assert_eq!(output, "busy");
    }

    #[tokio::test]
    async fn one_that_hangs_is_left_in_time_and_megabytes_are_not_read() {
        let server = Server::begin(vec![Does::Hang, FINE], None).await;
        let pace = Pace { try_within: Duration::from_secs(5), ..QUICK };
        assert_eq!(post_to(&server.webhook("http"), &Sender::default(), pace).await.0, HookEnd::Succeeded);
        assert_eq!(server.asked().await.len(), 2);
        // It waits for a second client, and holds the first meanwhile.
        let server = Server::begin(vec![Does::Hang; 2], None).await;
        let (webhook, limit) = (server.webhook("http"), Duration::from_secs(4));
        let ended = post(&webhook, &Sender::default(), "switch", b"{}", limit, QUICK).await;
        let HookEnd::NotDelivered { tries: 1, why } = ended.end else { panic!("{:?}", ended.end) };
        assert!(why.contains("does not answer in time"), "{why}");
        let much = "HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n".to_owned() + &"x".repeat(100_000);
        let server = Server::begin(vec![Does::Answer(much.leak())], None).await;
        let (end, output) = post_to(&server.webhook("http"), &Sender::default(), QUICK).await;
        assert_eq!((end, output.len()), (HookEnd::Succeeded, ANSWER_BYTES_MAX));
    }

    #[tokio::test]
    async fn certificates_are_checked() {
        let (own, other) = (Tls::new().expect("certificates"), Tls::new().expect("certificates"));
        let acceptor = || Acceptor::new(&own.server_cert(), &own.server_key(), None).expect("TLS");
        let trusting = |ca: &Path| Sender { ca_file: Some(ca.to_owned()), secret: None };
        // A handshake that is cut off is no answer.
        let server = Server::begin(vec![Does::Close, FINE], Some(acceptor())).await;
        let posted = post_to(&server.webhook("https"), &trusting(&own.ca()), QUICK).await;
        assert_eq!(posted, (HookEnd::Succeeded, "thanks".to_owned()));
        assert_eq!(server.asked().await.len(), 1);
        let server = Server::begin(vec![FINE], Some(acceptor())).await;
        let (end, _) = post_to(&server.webhook("https"), &trusting(&other.ca()), QUICK).await;
        let HookEnd::NotDelivered { tries: 1, why } = end else { panic!("{end:?}") };
        assert!(why.contains("certificate"), "{why}");
        assert!(server.asked().await.is_empty(), "it was posted all the same");
    }

    #[test]
    fn nothing_goes_over_the_net_in_clear_and_paths_are_shown_nowhere() {
        for good in ["https://hooks.example/services/T0/B1/token", "http://localhost:1/x", "http://[::1]:1/"]
        {
            let webhook: Webhook = good.parse().expect(good);
            assert!(!webhook.to_string().contains("token"), "{webhook}");
        }
        let webhook: Webhook = "https://hooks.example/x".parse().expect("an address");
        assert_eq!(webhook.to_string(), "POST https://hooks.example:443/…");
        for bad in ["http://10.0.0.1/", "http://localhost.example/", "https://a:b@c/", "https://", "ftp://a/"]
        {
            assert!(bad.parse::<Webhook>().is_err(), "{bad}");
        }
    }
}
