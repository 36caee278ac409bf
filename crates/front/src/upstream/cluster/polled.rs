//! What a session sees of a connection to a cluster.

use std::sync::Arc;
use std::task::Context;

use crate::pipe::io::Ended;
use crate::pipe::replies::Replies;
use crate::pipe::requests::Requests;
use crate::upstream::shared::SharedConnections;

/// A connection to a cluster. It does nothing but when it is polled, and nothing is sent for it any more once
/// it has been dropped.
pub(crate) trait ClusterConnection: Send {
    /// Takes requests, sends what can be sent, and adds the replies that are next in turn; true if anything
    /// moved.
    ///
    /// # Errors
    /// [`Ended`] if nothing more will come. What is in `from` by then is still the client's.
    fn poll(&mut self, cx: &mut Context<'_>, to: &mut Requests, from: &mut Replies) -> Result<bool, Ended>;

    /// Whether the client was let go because it does not take in its replies: for a session that takes in
    /// none either. It is woken then.
    fn is_let_go(&mut self, cx: &mut Context<'_>) -> bool;

    /// From now on reads and writes that need nothing of a connection go over these.
    fn share(&mut self, connections: Arc<SharedConnections>);

    /// The client will send no more than what is there already. What it waits for is let go of.
    fn close(&mut self);
}
