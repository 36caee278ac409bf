//! The bytes of a connection: plain, TLS, or a socket in the file system.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::endpoint::{Address, Endpoint};
use crate::error::{Error, ErrorKind, Result};
use crate::remedy::Remedy;
use crate::tls;

/// How long the system of a server may acknowledge nothing, or take nothing in, on connections for clients.
const UNHEARD_MAX: Duration = Duration::from_secs(30);

/// A stream of bytes to a server: plain, TLS, a socket in the file system, or something in this process that
/// stands for one.
pub struct Io(Kind);

enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// In a mutex, which is never locked, as the whole is shared among threads that only look at it.
    Within(Mutex<Box<dyn Within>>),
}

/// Something in this process that stands for a server.
trait Within: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Within for T {}

fn within(stream: &mut Mutex<Box<dyn Within>>) -> &mut Box<dyn Within> {
    stream.get_mut()
}

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.0 {
            Kind::Tcp(_) => "Tcp",
            Kind::Unix(_) => "Unix",
            Kind::Tls(_) => "Tls",
            Kind::Within(_) => "Within",
        };
        write!(f, "Io({kind})")
    }
}

impl Io {
    /// The address that it is connected from; `None` if that is no address, or is not known.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Tcp(stream) => stream.local_addr().ok(),
            Kind::Tls(stream) => stream.get_ref().0.local_addr().ok(),
            Kind::Unix(_) | Kind::Within(_) => None,
        }
    }

    /// Has the system send nothing more once this is closed, even if the process is killed: by default it
    /// goes on for minutes to send what a server out of reach has not acknowledged, which could then arrive
    /// after what another connection writes in its place.
    pub(super) fn reset_at_end(&self) {
        let stream = match &self.0 {
            Kind::Tcp(stream) => stream,
            Kind::Tls(stream) => stream.get_ref().0,
            Kind::Unix(_) | Kind::Within(_) => return,
        };
        // A system that cannot do so has its default.
        let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
    }

    /// Has the system notice that the other side is out of reach: a client may wait for an answer as long as
    /// it likes, so nothing else here would.
    pub(super) fn bound_silence(&self) -> io::Result<()> {
        let stream = match &self.0 {
            Kind::Tcp(stream) => stream,
            Kind::Tls(stream) => stream.get_ref().0,
            Kind::Unix(_) | Kind::Within(_) => return Ok(()),
        };
        let (socket, probe) = (SockRef::from(stream), UNHEARD_MAX / 4);
        socket
            .set_tcp_keepalive(&TcpKeepalive::new().with_time(probe).with_interval(probe).with_retries(3))?;
        socket.set_tcp_user_timeout(Some(UNHEARD_MAX))
    }

    /// Something in this process that answers as a server would.
    pub fn within(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Io {
        Io(Kind::Within(Mutex::new(Box::new(stream))))
    }

    /// Connects, with the TLS of `endpoint`, and says nothing: for a caller that speaks for a client, which
    /// logs in itself.
    ///
    /// # Errors
    /// `Connect` or `Tls`.
    pub async fn open(endpoint: &Endpoint, address: &Address) -> Result<Io> {
        let fail = |kind| {
            let unreachable = matches!(kind, ErrorKind::Connect(_));
            let error = Error::new(endpoint.side, address.to_string(), "connect", kind);
            match unreachable {
                true => error
                    .with_remedy("see that the server is up and reachable, and that the address is right"),
                false => error,
            }
        };
        let (host, port) = match address.reached() {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|e| fail(ErrorKind::Connect(e)))?;
                return Ok(Io(Kind::Unix(stream)));
            }
            Address::Tcp(host, port) => (host.as_str(), *port),
            Address::Sentinel(_) | Address::Behind(_) => {
                let what = "sentinels are not asked for the server here".to_owned();
                return Err(fail(ErrorKind::Unfit(what)).with_remedy("name the server itself"));
            }
        };
        let stream = TcpStream::connect((host, port)).await.map_err(|e| fail(ErrorKind::Connect(e)))?;
        stream.set_nodelay(true).map_err(|e| fail(ErrorKind::Connect(e)))?;
        let Some(options) = &endpoint.tls else {
            return Ok(Io(Kind::Tcp(stream)));
        };
        let config = tls::client_config(options)
            .map_err(|e| fail(ErrorKind::Tls(e)).with_remedy(Remedy::CheckTlsFiles(endpoint.side)))?;
        let name = options.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| fail(ErrorKind::Tls(format!("{name} is not a name that a certificate can hold"))))?;
        let stream = TlsConnector::from(config).connect(name, stream).await.map_err(|e| {
            let plain = e
                .get_ref()
                .and_then(|e| e.downcast_ref::<rustls::Error>())
                .is_some_and(|e| matches!(e, rustls::Error::InvalidMessage(_)));
            let closed =
                e.kind() == io::ErrorKind::UnexpectedEof || e.kind() == io::ErrorKind::ConnectionReset;
            let cause = format!("the handshake failed: {}", tls::handshake_failure(&e));
            let error = fail(if closed { ErrorKind::Handshake(e) } else { ErrorKind::Tls(cause) });
            if plain || closed {
                error.with_remedy("if this port does not use TLS, write redis:// or valkey://")
            } else {
                error.with_remedy("check the CA, the certificate and the server name")
            }
        })?;
        Ok(Io(Kind::Tls(Box::new(stream))))
    }
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Kind::Unix(s) => Pin::new(s).poll_read(cx, buf),
            Kind::Tls(s) => Pin::new(s).poll_read(cx, buf),
            Kind::Within(s) => Pin::new(within(s)).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            Kind::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Kind::Unix(s) => Pin::new(s).poll_write(cx, buf),
            Kind::Tls(s) => Pin::new(s).poll_write(cx, buf),
            Kind::Within(s) => Pin::new(within(s)).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            Kind::Tcp(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Kind::Unix(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Kind::Tls(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Kind::Within(s) => Pin::new(within(s)).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Tcp(s) => Pin::new(s).poll_flush(cx),
            Kind::Unix(s) => Pin::new(s).poll_flush(cx),
            Kind::Tls(s) => Pin::new(s).poll_flush(cx),
            Kind::Within(s) => Pin::new(within(s)).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Kind::Unix(s) => Pin::new(s).poll_shutdown(cx),
            Kind::Tls(s) => Pin::new(s).poll_shutdown(cx),
            Kind::Within(s) => Pin::new(within(s)).poll_shutdown(cx),
        }
    }
}
