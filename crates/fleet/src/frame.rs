//! Frames: the length of what they have as four bytes, lowest first, then a byte for their kind, and then
//! that.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// What a frame begins with, in bytes.
pub const HEAD_BYTES: usize = 5;

/// Space asked for before each read.
const READ_BYTES: usize = 16 << 10;

/// Bytes that are no frame, or a longer one than may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong {
    /// How long it says it is.
    pub bytes: usize,
}

impl std::fmt::Display for TooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a frame of {} bytes, which is more than any has", self.bytes)
    }
}

/// Appends a frame whose bytes `fill` appends: fewer than 4 GiB.
pub fn put(out: &mut Vec<u8>, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    fill(out);
    let length = u32::try_from(out.len() - start - HEAD_BYTES).expect("frames are far below 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4] = kind;
}

/// The kind of the frame that `bytes` begin with and how long its content is; none if its head has not
/// arrived.
///
/// # Errors
/// [`TooLong`] if it announces more than `bytes_max`.
pub fn head(bytes: &[u8], bytes_max: usize) -> Result<Option<(u8, usize)>, TooLong> {
    let Some((head, _)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    if length > bytes_max { Err(TooLong { bytes: length }) } else { Ok(Some((head[4], length))) }
}

/// Frames from a connection.
#[derive(Debug)]
pub struct Frames<R> {
    from: R,
    buffer: BytesMut,
    bytes_max: usize,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    /// What comes after `begun`, which has arrived already. No frame has more than `bytes_max`.
    pub fn new(from: R, begun: BytesMut, bytes_max: usize) -> Frames<R> {
        Frames { from, buffer: begun, bytes_max }
    }

    /// Waits for the next frame: its kind, and what it has; none at the end of the connection. Dropping the
    /// future loses nothing. Memory follows what has arrived, not what is announced.
    ///
    /// # Errors
    /// When the connection breaks, ends in the middle of a frame, or what comes is no frame.
    pub async fn next(&mut self) -> io::Result<Option<(u8, Bytes)>> {
        loop {
            let head = head(&self.buffer, self.bytes_max);
            let head = head.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
            if let Some((kind, length)) = head.filter(|(_, length)| self.buffer.len() >= HEAD_BYTES + length)
            {
                let mut frame = self.buffer.split_to(HEAD_BYTES + length);
                return Ok(Some((kind, frame.split_off(HEAD_BYTES).freeze())));
            }
            self.buffer.reserve(READ_BYTES);
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                let is_whole = self.buffer.is_empty();
                return if is_whole { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8], bytes_max: usize) -> Vec<Result<Option<(u8, usize)>, io::ErrorKind>> {
        let mut frames = Frames::new(bytes, BytesMut::new(), bytes_max);
        let mut found = Vec::new();
        loop {
            let next = frames.next().await.map(|next| next.map(|(kind, bytes)| (kind, bytes.len())));
            let is_last = !matches!(next, Ok(Some(_)));
            found.push(next.map_err(|e| e.kind()));
            if is_last {
                return found;
            }
        }
    }

    #[tokio::test]
    async fn frames_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        put(&mut bytes, 7, |out| out.extend_from_slice(&[1; 40_000]));
        put(&mut bytes, 0, |_| {});
        assert_eq!(read(&bytes, 40_000).await, [Ok(Some((7, 40_000))), Ok(Some((0, 0))), Ok(None)]);
        bytes.push(1);
        let end = read(&bytes, 40_000).await.pop();
        assert_eq!(end, Some(Err(io::ErrorKind::UnexpectedEof)), "the rest is no whole frame");
        assert_eq!(read(&bytes, 39_999).await, [Err(io::ErrorKind::InvalidData)]);
        assert_eq!(read(&[255, 255, 255, 255, 0], 1 << 20).await, [Err(io::ErrorKind::InvalidData)]);
    }
}
