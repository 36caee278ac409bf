//! Writes commands to a deployment: routed by slot, in pipelines.

use std::collections::HashSet;

use anyhow::{Context, Result, bail};
use redis::{Connection, Value};

use crate::deployment::Deployment;

/// Bytes gathered for a node before they are sent.
const BATCH_BYTES: usize = 256 * 1024;
/// Commands sent before replies are read. Replies of this many commands must fit into the socket
/// buffers, because nobody reads them while the batch is still being written.
const BATCH_COMMANDS: usize = 1_000;

/// A writer into one database of a deployment.
pub(crate) struct Pen<'a> {
    deployment: &'a Deployment,
    nodes: Vec<Node>,
    keys: HashSet<Vec<u8>>,
}

struct Node {
    connection: Connection,
    name: String,
    /// Words of the command under way.
    command: Vec<u8>,
    words: usize,
    /// Complete commands.
    packed: Vec<u8>,
    unanswered: usize,
}

impl<'a> Pen<'a> {
    pub(crate) fn open(deployment: &'a Deployment, db: i64) -> Result<Self> {
        let nodes = deployment
            .primaries()
            .iter()
            .map(|primary| {
                let connection = primary.connect(db)?;
                let name = primary.name().to_owned();
                Ok(Node {
                    connection,
                    name,
                    command: Vec::new(),
                    words: 0,
                    packed: Vec::new(),
                    unanswered: 0,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { deployment, nodes, keys: HashSet::new() })
    }

    /// Writes `verb key args…`; the verb may have a subcommand, as in `XGROUP CREATE`.
    pub(crate) fn put<A: AsRef<[u8]>>(
        &mut self,
        verb: &str,
        key: &[u8],
        args: impl IntoIterator<Item = A>,
    ) -> Result<()> {
        let node = self.node_for(key)?;
        for word in verb.split(' ') {
            node.word(word.as_bytes());
        }
        node.word(key);
        for arg in args {
            node.word(arg.as_ref());
        }
        node.end()
    }

    /// Writes a command whose words stand in any order, to the owner of `key`.
    pub(crate) fn put_words(&mut self, key: &[u8], words: &[&[u8]]) -> Result<()> {
        let node = self.node_for(key)?;
        for word in words {
            node.word(word);
        }
        node.end()
    }

    /// How many keys were written to.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Sends what is left and reads all replies.
    pub(crate) fn finish(mut self) -> Result<u64> {
        for node in &mut self.nodes {
            node.flush()?;
        }
        Ok(self.keys())
    }

    fn node_for(&mut self, key: &[u8]) -> Result<&mut Node> {
        let index = self
            .deployment
            .owner_of(key)
            .with_context(|| format!("nobody owns the slot of {}", key.escape_ascii()))?;
        if !self.keys.contains(key) {
            self.keys.insert(key.to_vec());
        }
        Ok(&mut self.nodes[index])
    }
}

impl Node {
    /// Adds a word to the command under way.
    fn word(&mut self, word: &[u8]) {
        self.words += 1;
        self.command.push(b'$');
        self.command.extend_from_slice(word.len().to_string().as_bytes());
        self.command.extend_from_slice(b"\r\n");
        self.command.extend_from_slice(word);
        self.command.extend_from_slice(b"\r\n");
    }

    /// Ends the command under way: only now is the number of its words known, which comes first.
    fn end(&mut self) -> Result<()> {
        self.packed.extend_from_slice(format!("*{}\r\n", self.words).as_bytes());
        self.packed.append(&mut self.command);
        self.words = 0;
        self.unanswered += 1;
        if self.packed.len() >= BATCH_BYTES || self.unanswered >= BATCH_COMMANDS {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.unanswered == 0 {
            return Ok(());
        }
        self.connection.send_packed_command(&self.packed)?;
        self.packed.clear();
        for _ in 0..std::mem::take(&mut self.unanswered) {
            let reply =
                self.connection.recv_response().with_context(|| format!("writing to {}", self.name))?;
            if let Value::ServerError(error) = reply {
                bail!("writing to {}: {error:?}", self.name);
            }
        }
        Ok(())
    }
}
