//! A connection to a cluster as a stream of bytes, for the front's own commands: what sends them speaks to
//! single servers.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use whimbrel_wire::boundary::Passed;
use whimbrel_wire::request::{Request, RequestLimits, RequestScanner};

use super::polled::ClusterConnection;
use crate::pipe::replies::Replies;
use crate::pipe::requests::Requests;

/// A connection to a cluster as a stream of bytes.
pub(crate) struct AsIo {
    cluster: Box<dyn ClusterConnection>,
    scanner: RequestScanner,
    /// What was written of a request and has not been scanned.
    inbox: BytesMut,
    to: Requests,
    from: Replies,
    /// Bytes of `from` whose ends have been looked at.
    passed: usize,
}

impl AsIo {
    pub(crate) fn new(cluster: Box<dyn ClusterConnection>) -> AsIo {
        AsIo {
            cluster,
            scanner: RequestScanner::new(RequestLimits::default()),
            inbox: BytesMut::new(),
            to: Requests::parsed(),
            from: Replies::parsed(),
            passed: 0,
        }
    }

    /// The connection, if all that was asked has been answered.
    pub(crate) fn into_inner(self) -> Box<dyn ClusterConnection> {
        self.cluster
    }

    fn drive(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let driven = self.cluster.poll(cx, &mut self.to, &mut self.from);
        driven.map(drop).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Hands on what has been written: requests, and parts of them.
    fn hand_on(&mut self) -> io::Result<()> {
        while !self.inbox.is_empty() {
            let found = self.scanner.scan(&self.inbox);
            let (len, whole) = match found.map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))? {
                Request::Array(len) => (len, true),
                Request::Incomplete(_) => (self.scanner.forgettable(&self.inbox), false),
                // Nothing here writes such requests.
                Request::Inline(..) | Request::Nothing(_) => return Err(io::ErrorKind::InvalidData.into()),
            };
            if len > 0 {
                self.to.mark(len, self.scanner.args(), self.scanner.args_left(), whole);
                self.to.add(&self.inbox[..len]);
                self.inbox.advance(len);
            }
            match whole {
                true => self.scanner.next(),
                false => {
                    self.scanner.forget(len);
                    break;
                }
            }
        }
        Ok(())
    }
}

impl AsyncRead for AsIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let has_ended = this.drive(cx).is_err();
        // What reads bytes looks for the ends of replies by itself, as with a server.
        while let Ok(Passed::Part(bytes @ 1..) | Passed::Frame { bytes, .. }) = this.from.pass(this.passed) {
            this.passed += bytes;
        }
        let bytes = this.passed.min(buf.remaining());
        if bytes == 0 && !has_ended {
            return Poll::Pending;
        }
        buf.put_slice(&this.from.as_slice()[..bytes]);
        this.from.advance(bytes);
        this.passed -= bytes;
        this.from.release();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AsIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if !this.to.has_room() {
            this.drive(cx)?;
            if !this.to.has_room() {
                return Poll::Pending;
            }
        }
        let bytes = buf.len().min(this.to.bytes_max() - this.to.len());
        this.inbox.extend_from_slice(&buf[..bytes]);
        this.hand_on()?;
        Poll::Ready(Ok(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().drive(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.cluster.close();
        // If it has ended by that, all is done.
        let _ = this.drive(cx);
        Poll::Ready(Ok(()))
    }
}
