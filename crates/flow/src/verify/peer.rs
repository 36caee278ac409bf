//! One side of a comparison: commands to whichever nodes own their keys, asked again until answered.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use whimbrel_core::slot::Slot;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Error, ErrorKind, Result, ServerError};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::probe::Capabilities;
use whimbrel_wire::value::Value;

use crate::retry::{Backoff, RetryPolicy};

/// A command about one key, or a command that has to reach the owner of that key.
#[derive(Debug, Clone)]
pub(super) struct Request {
    command: &'static str,
    key: Bytes,
    args: Vec<Bytes>,
}

impl Request {
    /// `command` (one word or two) with `key` as its first argument.
    pub fn on(command: &'static str, key: &Bytes) -> Request {
        let mut request = Request::near(command, key);
        request.args.push(key.clone());
        request
    }

    /// `command`, which has no key, to the node that owns `key`.
    pub fn near(command: &'static str, key: &Bytes) -> Request {
        let mut args = Vec::with_capacity(4);
        args.extend(command.split(' ').map(|word| Bytes::from_static(word.as_bytes())));
        Request { command, key: key.clone(), args }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Into<Bytes>) -> Request {
        self.args.push(arg.into());
        self
    }

    /// Adds an integer.
    pub fn int(self, n: u64) -> Request {
        self.arg(n.to_string())
    }

    /// Adds several arguments.
    pub fn args<'a>(mut self, args: impl IntoIterator<Item = &'a Bytes>) -> Request {
        self.args.extend(args.into_iter().cloned());
        self
    }

    /// The command's name, for errors.
    pub fn command(&self) -> &'static str {
        self.command
    }
}

/// The node that a redirection sent one request to.
#[derive(Debug)]
struct Detour {
    to: Address,
    asking: bool,
}

/// Redirections that one call follows without a pause.
const HOPS_MAX: u32 = 5;

/// One side, seen through one database. Connections are opened when they are first needed and kept.
#[derive(Debug)]
pub(super) struct Peer {
    deployment: Arc<Deployment>,
    db: u32,
    from_replica: bool,
    retry: RetryPolicy,
    links: HashMap<Address, Link>,
}

impl Peer {
    pub fn new(deployment: Arc<Deployment>, db: u32, from_replica: bool, retry: RetryPolicy) -> Peer {
        Peer { deployment, db, from_replica, retry, links: HashMap::new() }
    }

    /// What the servers of this side can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.deployment.capabilities
    }

    /// The deployment.
    pub fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    /// Sends one request and returns its reply, an error reply as a value.
    ///
    /// # Errors
    /// As [`Peer::run`].
    pub async fn one(&mut self, request: Request) -> Result<Value> {
        let command = request.command;
        let reply = self.run(&[request]).await?.pop();
        reply.ok_or_else(|| Error::own(command, "no reply to a request"))
    }

    /// Sends all requests at once and returns the replies in the same order. Redirections are followed, and
    /// what fails for reasons that pass is asked again; other error replies are values.
    ///
    /// # Errors
    /// What is not transient, or lasted for longer than the retry policy allows.
    pub async fn run(&mut self, requests: &[Request]) -> Result<Vec<Value>> {
        let mut replies: Vec<Option<Value>> = vec![None; requests.len()];
        let mut pending: Vec<usize> = (0..requests.len()).collect();
        let mut detours = HashMap::new();
        let mut backoff = Backoff::new(self.retry);
        let mut hops = 0;
        while !pending.is_empty() {
            let failure = self.round(requests, &pending, &mut detours, &mut replies).await;
            pending.retain(|&i| replies[i].is_none());
            let Some(failure) = failure else { continue };
            let redirected =
                failure.server().is_some_and(|e| matches!(e.code, Code::Moved(..) | Code::Ask(..)));
            if redirected && hops < HOPS_MAX {
                hops += 1;
            } else {
                // What a redirection said may be what no longer holds.
                detours.clear();
                backoff.pause(failure).await?;
            }
            if let Err(e) = self.deployment.refresh().await {
                tracing::debug!(error = %e, "topology refresh failed");
            }
        }
        Ok(replies.into_iter().flatten().collect())
    }

    /// Asks everything that is pending once, all nodes at the same time. Returns what went wrong last; a
    /// redirection only if nothing else did.
    async fn round(
        &mut self,
        requests: &[Request],
        pending: &[usize],
        detours: &mut HashMap<usize, Detour>,
        replies: &mut [Option<Value>],
    ) -> Option<Error> {
        let mut failure = None;
        let groups = match self.group(requests, pending, detours, &mut failure) {
            groups if groups.is_empty() => return failure,
            groups => groups,
        };
        let mut sent = Vec::with_capacity(groups.len());
        for (address, members) in groups {
            match self.send(&address, requests, &members).await {
                Ok(()) => sent.push((address, members)),
                Err(e) => {
                    self.links.remove(&address);
                    failure = Some(e);
                }
            }
        }
        let mut redirection = None;
        for (address, members) in sent {
            for &(index, asking) in &members {
                let reply = match self.receive(&address, asking).await {
                    Ok(reply) => reply,
                    Err(e) => {
                        self.links.remove(&address);
                        failure = Some(e);
                        break;
                    }
                };
                detours.remove(&index);
                let Some(e) = ServerError::of(&reply).filter(|e| e.code.is_transient()) else {
                    replies[index] = Some(reply);
                    continue;
                };
                let detour = match &e.code {
                    Code::Moved(_, to) => {
                        self.deployment.reach(to, &address).map(|to| Detour { to, asking: false })
                    }
                    Code::Ask(_, to) => {
                        self.deployment.reach(to, &address).map(|to| Detour { to, asking: true })
                    }
                    _ => None,
                };
                let error = self.refusal(requests[index].command, e);
                match detour {
                    Some(detour) => {
                        detours.insert(index, detour);
                        redirection = Some(error);
                    }
                    None => failure = Some(error),
                }
            }
        }
        failure.or(redirection)
    }

    /// Which request goes to which node, and whether it needs `ASKING`.
    fn group(
        &self,
        requests: &[Request],
        pending: &[usize],
        detours: &HashMap<usize, Detour>,
        failure: &mut Option<Error>,
    ) -> Vec<(Address, Vec<(usize, bool)>)> {
        let topology = self.deployment.topology();
        let mut groups: Vec<(Address, Vec<(usize, bool)>)> = Vec::new();
        for &index in pending {
            let slot = if topology.cluster { Slot::of_key(&requests[index].key) } else { Slot::MIN };
            let (address, asking) = match (detours.get(&index), topology.shard_of(slot)) {
                (Some(detour), _) => (&detour.to, detour.asking),
                (None, Some(shard)) if self.from_replica => {
                    (shard.replicas.first().unwrap_or(&shard.primary), false)
                }
                (None, Some(shard)) => (&shard.primary, false),
                (None, None) => {
                    *failure = Some(self.deployment.unowned(slot));
                    continue;
                }
            };
            match groups.iter_mut().find(|(known, _)| known == address) {
                Some((_, members)) => members.push((index, asking)),
                None => groups.push((address.clone(), vec![(index, asking)])),
            }
        }
        groups
    }

    async fn send(
        &mut self,
        address: &Address,
        requests: &[Request],
        members: &[(usize, bool)],
    ) -> Result<()> {
        if !self.links.contains_key(address) {
            let readonly =
                self.deployment.options.readonly || (self.from_replica && self.deployment.is_cluster());
            let options = LinkOptions { db: self.db, readonly, ..self.deployment.options };
            let link = Link::open(&self.deployment.endpoint, address, options).await?;
            self.links.insert(address.clone(), link);
        }
        let link = self.linked(address)?;
        let outbox = link.outbox();
        for &(index, asking) in members {
            if asking {
                outbox.push(&[b"ASKING"]);
            }
            let args = &requests[index].args;
            outbox.command(args.len());
            for arg in args {
                outbox.arg_bytes(arg);
            }
        }
        link.flush().await
    }

    async fn receive(&mut self, address: &Address, asking: bool) -> Result<Value> {
        let link = self.linked(address)?;
        if asking {
            link.reply().await?;
        }
        link.reply().await
    }

    fn linked(&mut self, address: &Address) -> Result<&mut Link> {
        self.links.get_mut(address).ok_or_else(|| Error::own("use a connection", "it is not open"))
    }

    /// An error for a server's refusal of `command`.
    pub fn refusal(&self, command: &'static str, e: ServerError) -> Error {
        let denied = e.code == Code::NoPermission;
        let error = self.error(command, ErrorKind::Server(e));
        if denied { error.with_remedy("give this user the permission, or name another user") } else { error }
    }

    /// An error for a reply of the wrong kind.
    pub fn unexpected(&self, command: &'static str) -> Error {
        self.error(command, ErrorKind::Unexpected("another kind of value".to_owned()))
    }

    fn error(&self, command: &'static str, kind: ErrorKind) -> Error {
        Error::new(self.deployment.side(), self.deployment.endpoint.address.to_string(), command, kind)
    }
}
