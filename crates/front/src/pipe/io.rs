//! Reads and writes without waiting.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is read at once.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// If a side has this much not taken in, it is sent no more, and the other side is not read.
pub(crate) const OUT_BYTES_MAX: usize = 256 << 10;

/// A client that has not taken in a reply for this long is disconnected if it keeps something else from
/// moving.
pub(crate) const STALLED: Duration = Duration::from_secs(10);

thread_local! {
    /// What is read lands here first, so that a connection holds no more than what it has been sent.
    /// Thousands of buffers that are mostly empty would cost far more than the copy.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// The end of a connection: a side closed, or broke.
#[derive(Debug)]
pub(crate) struct Ended;

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Ended
    }
}

/// Reads what has arrived, 0 bytes at the end of it.
pub(crate) fn read<R: AsyncRead + Unpin>(
    io: &mut R,
    cx: &mut Context<'_>,
    buffer: &mut BytesMut,
) -> Poll<io::Result<usize>> {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut scratch = ReadBuf::new(scratch);
        ready!(Pin::new(io).poll_read(cx, &mut scratch))?;
        buffer.extend_from_slice(scratch.filled());
        Poll::Ready(Ok(scratch.filled().len()))
    })
}

/// Writes what the other side takes; true if it took anything.
pub(crate) fn write<W: AsyncWrite + Unpin>(
    io: &mut W,
    cx: &mut Context<'_>,
    buffer: &mut BytesMut,
) -> Result<bool, Ended> {
    let mut written = false;
    while !buffer.is_empty() {
        // As one slice: `poll_write_buf` prepares 64 of them each time, and there is never more than one.
        match Pin::new(&mut *io).poll_write(cx, buffer) {
            Poll::Pending => return Ok(written),
            Poll::Ready(Ok(0) | Err(_)) => return Err(Ended),
            Poll::Ready(Ok(taken)) => {
                buffer.advance(taken);
                written = true;
            }
        }
    }
    // With TLS, records may wait in between.
    match Pin::new(io).poll_flush(cx) {
        Poll::Ready(Err(_)) => Err(Ended),
        Poll::Ready(Ok(())) | Poll::Pending => Ok(written),
    }
}
