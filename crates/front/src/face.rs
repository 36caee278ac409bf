//! The face of a cluster: clients that only know clusters see one with a single primary, which is the
//! front.
//!
//! A question like `CLUSTER SLOTS` is passed on as everything is, so that the server says whether its user
//! may ask it, and in its turn. A server that is no cluster answers that it is none; in the place of that
//! answer the client gets the answer that has been ready since the front began, or since the last change of
//! its fleet (`whimbrel_wire::topology`). Whatever else the server answers is passed on.

use bytes::Bytes;
use parking_lot::RwLock;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::Slot;
use whimbrel_core::topology::{Group, Health, Member, Naming, Table};
use whimbrel_wire::encode::Protocol;
use whimbrel_wire::topology::Replies;

use crate::command::rule::FaceRule;
use crate::command::table::find_by_words;

/// How the answer of a server begins that is no cluster: all of Redis since 3.0 and Valkey.
pub(crate) const NO_CLUSTER: &[u8] = b"-ERR This instance has cluster support disabled";

/// What is said while nothing is known.
const NOTHING_KNOWN: &[u8] = b"-CLUSTERDOWN whimbrel front: nothing is known of the fleet yet\r\n";

/// Words of a question that have to be known.
pub(crate) const WORDS: usize = 3;

/// What clients get to know of the front, if it presents itself as a cluster.
#[derive(Debug)]
pub struct Face {
    /// `None` until something is known.
    known: RwLock<Option<(Table, Replies)>>,
    is_tls: bool,
}

/// Something that only a cluster knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    Slots,
    Shards,
    Nodes,
    Info,
    MyId,
    KeySlot(Slot),
    /// `READONLY`, `READWRITE` and `ASKING`: a client that has one node may always read and write there.
    Agreed,
}

impl Question {
    /// What a command asks by these words, if it is one of these.
    pub(crate) fn of(words: &[&[u8]]) -> Option<Question> {
        let question = match (find_by_words(words).face?, words) {
            (FaceRule::Agreed, [_]) => Question::Agreed,
            (FaceRule::Slots, [_, _]) => Question::Slots,
            (FaceRule::Shards, [_, _]) => Question::Shards,
            (FaceRule::Nodes, [_, _]) => Question::Nodes,
            (FaceRule::Info, [_, _]) => Question::Info,
            (FaceRule::MyId, [_, _]) => Question::MyId,
            (FaceRule::KeySlot, [_, _, key]) => Question::KeySlot(Slot::of_key(key)),
            _ => return None,
        };
        Some(question)
    }
}

impl Face {
    /// A cluster whose only node is reached at `host` and `port`, with TLS or without. `id` is its name.
    pub fn new(id: NodeId, host: &str, port: u16, tls: bool) -> Face {
        let primary = Member {
            id: id.clone(),
            ip: host.to_owned(),
            hostname: None,
            naming: Naming::Ip,
            port: (!tls).then_some(port),
            tls_port: tls.then_some(port),
            bus_port: None,
            config_epoch: 1,
            health: Health::Online,
            is_connected: true,
        };
        let table = Table::new(id, vec![Group { primary, replicas: Vec::new() }], |_| Some(0));
        let face = Face::empty(tls);
        face.publish(table);
        face
    }

    /// A face that shows nothing yet. With `is_tls` it names nodes that are reached with TLS.
    pub(crate) fn empty(is_tls: bool) -> Face {
        Face { known: RwLock::default(), is_tls }
    }

    /// Whether nodes are reached with TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// From here on clients get this.
    pub(crate) fn publish(&self, next: Table) {
        let mut known = self.known.write();
        match &mut *known {
            Some((table, replies)) => {
                let change = table.adopt(next);
                replies.update(table, &change);
            }
            none => {
                let replies = Replies::new(&next);
                *none = Some((next, replies));
            }
        }
    }

    /// What the client gets in the place of the server's answer; `None`: that answer.
    pub(crate) fn answer(&self, question: Question, answered: &[u8], protocol: Protocol) -> Option<Bytes> {
        if !answered.starts_with(NO_CLUSTER) {
            return None;
        }
        let reply = match question {
            Question::KeySlot(slot) => return Some(format!(":{slot}\r\n").into()),
            Question::Agreed => return Some(Bytes::from_static(b"+OK\r\n")),
            Question::Slots | Question::Shards | Question::Nodes | Question::Info | Question::MyId => {
                let known = self.known.read();
                let Some((_, replies)) = &*known else { return Some(NOTHING_KNOWN.into()) };
                match question {
                    Question::Slots => replies.slots(protocol),
                    Question::Shards => replies.shards(protocol),
                    Question::Nodes => replies.nodes(protocol),
                    Question::Info => replies.info(protocol),
                    _ => replies.my_id(),
                }
            }
        };
        // Copied without the lock.
        Some(reply.to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Option<Question> {
        Question::of(&text.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn questions_are_known_in_any_case_and_by_all_of_their_words() {
        assert_eq!(asked("cluster SLOTS"), Some(Question::Slots));
        assert_eq!(asked("CLUSTER keyslot {a}b"), Some(Question::KeySlot(Slot::of_key(b"a"))));
        assert_eq!(asked("readonly"), Some(Question::Agreed));
        for other in ["CLUSTER", "CLUSTER SLOTS x", "CLUSTER KEYSLOT", "CLUSTER RESET", "READONLY x", "GET k"]
        {
            assert_eq!(asked(other), None, "{other}");
        }
    }

    #[test]
    fn only_the_answer_of_a_server_that_is_no_cluster_is_replaced() {
        let id = "a".repeat(NodeId::LENGTH).parse().expect("an id");
        let face = Face::new(id, "10.0.0.1", 6380, false);
        let none = b"-ERR This instance has cluster support disabled\r\n";
        let answer = face.answer(Question::Slots, none, Protocol::Resp2).expect("an answer");
        assert!(answer.starts_with(b"*1\r\n*3\r\n:0\r\n:16383\r\n*"), "{answer:?}");
        assert!(answer.windows(8).any(|part| part == b"10.0.0.1"), "{answer:?}");
        let shards = face.answer(Question::Shards, none, Protocol::Resp3).expect("an answer");
        assert!(shards.windows(2).any(|part| part == b"%2"), "{shards:?}");
        assert_eq!(face.answer(Question::Slots, b"-NOPERM no\r\n", Protocol::Resp2), None);
        assert_eq!(face.answer(Question::Slots, b"+QUEUED\r\n", Protocol::Resp2), None);
    }
}
