//! Sends single commands and distinguishes refusals from unknown outcomes.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use redis::{Cmd, Connection, RedisError, Value};

use crate::deployment::{Deployment, Primary, slot_of};

/// After this long without a reply a write is unknown: longer than a busy machine leaves a server waiting.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
const REDIRECTIONS_MAX: usize = 5;

/// How a command ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The server has done it.
    Acknowledged(Value),
    /// Certainly not done: the server said no, or never got it.
    Refused(String),
    /// Sent, and no answer came.
    Unknown(String),
}

/// One writer's connections to a deployment.
pub(super) struct Link {
    deployment: Deployment,
    db: i64,
    connections: HashMap<String, Connection>,
    /// Slots whose owner is known better than by the topology first probed.
    moved: HashMap<u16, Primary>,
}

impl Link {
    pub(super) fn new(deployment: Deployment, db: i64) -> Self {
        Self { deployment, db, connections: HashMap::new(), moved: HashMap::new() }
    }

    /// Sends one command to the owner of `key`, follows redirections, and never sends twice what may
    /// have been done.
    pub(super) fn send(&mut self, key: &str, command: &Cmd) -> Outcome {
        let slot = slot_of(key.as_bytes());
        let owner = match (self.moved.get(&slot), self.deployment.owner_of(key.as_bytes())) {
            (Some(primary), _) => primary.clone(),
            (None, Some(index)) => self.deployment.primaries()[index].clone(),
            (None, None) => {
                self.refresh();
                return Outcome::Refused(format!("nobody owns slot {slot}"));
            }
        };
        let mut node = owner;
        let mut asking = false;
        for _ in 0..REDIRECTIONS_MAX {
            let error = match self.send_to(&node, command, asking) {
                Ok(reply) => return Outcome::Acknowledged(reply),
                Err(Failure::NotSent(words)) => {
                    self.refresh();
                    return Outcome::Refused(words);
                }
                Err(Failure::NoAnswer(words)) => {
                    self.connections.remove(node.name());
                    self.refresh();
                    return Outcome::Unknown(words);
                }
                Err(Failure::Answer(error)) => error,
            };
            let redirection = error.redirect_node().map(|(addr, _)| addr.to_owned());
            let Some(next) = redirection.and_then(|addr| node.sibling(&addr).ok()) else {
                return Outcome::Refused(error.to_string());
            };
            asking = error.code() == Some("ASK");
            if !asking {
                self.moved.insert(slot, next.clone());
            }
            node = next;
        }
        Outcome::Refused(format!("{REDIRECTIONS_MAX} redirections"))
    }

    fn send_to(&mut self, node: &Primary, command: &Cmd, asking: bool) -> Result<Value, Failure> {
        if !self.connections.contains_key(node.name()) {
            let opened = node.connect(self.db).and_then(|connection| {
                connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
                Ok(connection)
            });
            let connection = opened.map_err(|error| Failure::NotSent(format!("{error:#}")))?;
            self.connections.insert(node.name().to_owned(), connection);
        }
        let connection = self.connections.get_mut(node.name()).expect("connected above");
        if asking {
            redis::cmd("ASKING").exec(connection).map_err(Failure::of)?;
        }
        command.query(connection).map_err(Failure::of)
    }

    /// Learns the topology again; if nobody answers the old one stays.
    fn refresh(&mut self) {
        if let Ok(fresh) = self.deployment.refreshed() {
            self.deployment = fresh;
            self.moved.clear();
        }
    }
}

enum Failure {
    NotSent(String),
    NoAnswer(String),
    Answer(RedisError),
}

impl Failure {
    fn of(error: RedisError) -> Self {
        // Only what a server said has a code.
        match error.code() {
            Some(_) => Self::Answer(error),
            None => Self::NoAnswer(error.to_string()),
        }
    }
}
