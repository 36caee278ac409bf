//! What goes over the connections between the processes of the measurement: the fleet's own frames, read and
//! written by threads.

use std::io::{Read, Write};

use anyhow::{Context, bail};
use whimbrel_fleet::frame::{self, HEAD_BYTES};

/// No frame is longer, in bytes. The data of one partition goes in one frame: all entries, where there is one
/// partition.
const FRAME_MAX: usize = 64 << 20;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A message of the fleet.
    Message,
    /// Of a new member: its token and the port where it takes data. Of the coordinator: who takes data where.
    Addresses,
    /// A move, and the entries of its partition.
    Data,
    /// The same move, taken.
    Taken,
    /// The same move, not taken.
    Refused,
    /// What do you have? And the answer.
    Holdings,
}

const KINDS: [Kind; 6] =
    [Kind::Message, Kind::Addresses, Kind::Data, Kind::Taken, Kind::Refused, Kind::Holdings];

/// Appends a frame whose bytes `fill` appends.
pub fn frame(out: &mut Vec<u8>, kind: Kind, fill: impl FnOnce(&mut Vec<u8>)) {
    frame::put(out, kind as u8, fill);
}

/// Frames from a connection.
pub struct Frames<R> {
    from: R,
    buffer: Vec<u8>,
    start: usize,
}

impl<R: Read> Frames<R> {
    /// From its beginning.
    pub fn new(from: R) -> Frames<R> {
        Frames { from, buffer: Vec::new(), start: 0 }
    }

    /// Waits for the next frame; none at the end of the connection.
    ///
    /// # Errors
    /// When the connection breaks, or what comes is no frame.
    pub fn next(&mut self) -> anyhow::Result<Option<(Kind, Vec<u8>)>> {
        loop {
            let ready = &self.buffer[self.start..];
            match frame::head(ready, FRAME_MAX) {
                Ok(Some((kind, length))) => {
                    let Some(kind) = KINDS.get(usize::from(kind)) else { bail!("an unknown frame") };
                    if let Some(bytes) = ready.get(HEAD_BYTES..HEAD_BYTES + length) {
                        let bytes = bytes.to_vec();
                        self.start += HEAD_BYTES + length;
                        return Ok(Some((*kind, bytes)));
                    }
                }
                Ok(None) => {}
                Err(e) => bail!("{e}"),
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            let mut chunk = [0; 64 * 1_024];
            match self.from.read(&mut chunk).context("read from a process of the measurement")? {
                0 => return Ok(None),
                count => self.buffer.extend_from_slice(&chunk[..count]),
            }
        }
    }
}

/// Sends what has gathered.
///
/// # Errors
/// When the connection is broken.
pub fn flush(to: &mut impl Write, gathered: &mut Vec<u8>) -> anyhow::Result<()> {
    if !gathered.is_empty() {
        to.write_all(gathered).context("write to a process of the measurement")?;
        gathered.clear();
    }
    Ok(())
}

/// Numbers as bytes, and back.
pub fn put(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

/// What [`put`] made of numbers.
pub fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|chunk| u64::from_le_bytes(*chunk))
}

/// The time of day in UTC, as logs have it.
pub fn wall_clock() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (seconds, ms) = (since.as_secs() % 86_400, since.subsec_millis());
    format!("{:02}:{:02}:{:02},{ms:03}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        frame(&mut bytes, Kind::Data, |out| put(out, &[7; 20_000]));
        frame(&mut bytes, Kind::Taken, |_| {});
        bytes.push(1);
        let mut frames = Frames::new(bytes.as_slice());
        let (kind, data) = frames.next().expect("read").expect("a frame");
        assert_eq!((kind, numbers(&data).filter(|number| *number == 7).count()), (Kind::Data, 20_000));
        assert_eq!(frames.next().expect("read"), Some((Kind::Taken, Vec::new())));
        assert_eq!(frames.next().expect("read"), None, "the rest is no whole frame");
        let nonsense = [0, 0, 0, 0, 99];
        assert!(Frames::new(nonsense.as_slice()).next().is_err());
        let endless = [255, 255, 255, 255, 0];
        assert!(Frames::new(endless.as_slice()).next().is_err());
    }
}
