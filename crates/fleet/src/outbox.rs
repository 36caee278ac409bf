//! What waits to be sent on one connection.

use std::io;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::frame;

/// A queue of frames that is bounded in bytes. If it is full, the connection is given up: what is said in a
/// fleet may be lost, and a new connection begins with a question for what was missed.
#[derive(Debug)]
pub struct Outbox {
    queue: Mutex<Queue>,
    news: Notify,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    is_closed: bool,
}

impl Outbox {
    /// An empty queue that holds at most about this many bytes.
    pub fn new(bytes_max: usize) -> Outbox {
        Outbox { queue: Mutex::default(), news: Notify::new(), bytes_max }
    }

    /// Adds a frame. False if the connection has been given up, now or before.
    pub fn push(&self, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut queue = self.queue();
        if queue.is_closed || queue.bytes.len() >= self.bytes_max {
            queue.is_closed = true;
            queue.bytes = Vec::new();
        } else {
            frame::put(&mut queue.bytes, kind, fill);
        }
        let is_open = !queue.is_closed;
        drop(queue);
        self.news.notify_one();
        is_open
    }

    /// Gives the connection up: the sender ends at its next check.
    pub fn close(&self) {
        self.queue().is_closed = true;
        self.news.notify_one();
    }

    /// Sends what there is and what comes, until the queue is closed.
    ///
    /// # Errors
    /// When the connection breaks, or takes nothing in for `patience`.
    pub async fn send(&self, to: &mut (impl AsyncWrite + Unpin), patience: Duration) -> io::Result<()> {
        loop {
            let news = self.news.notified();
            let (bytes, is_closed) = {
                let mut queue = self.queue();
                (std::mem::take(&mut queue.bytes), queue.is_closed)
            };
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                if timeout(patience, to.write_buf(&mut rest)).await?? == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
            }
            if !bytes.is_empty() {
                timeout(patience, to.flush()).await??;
                continue;
            }
            if is_closed {
                return Ok(());
            }
            news.await;
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_pushed_before_the_end_is_sent() {
        let outbox = Outbox::new(100);
        assert!(outbox.push(1, |out| out.push(9)));
        outbox.close();
        let mut sent = Vec::new();
        outbox.send(&mut sent, Duration::from_secs(5)).await.expect("sent");
        assert_eq!(sent, [1, 0, 0, 0, 1, 9]);
        assert!(!outbox.push(1, |_| {}));
    }

    #[test]
    fn who_takes_nothing_in_is_given_up_and_costs_no_more() {
        let outbox = Outbox::new(100);
        let pushed = (0..1_000).take_while(|_| outbox.push(1, |out| out.extend_from_slice(&[0; 20]))).count();
        assert_eq!(pushed, 4, "25 bytes each");
        assert_eq!(outbox.queue().bytes.capacity(), 0);
    }
}
