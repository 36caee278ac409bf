//! The journal of a fleet in etcd.
//!
//! Each transaction moves `head` from one number of this coordinator's term to the next, on the condition
//! that it is still at the first one, and that the key by which this coordinator was elected is still the
//! same. So a transaction is done once however often it is sent; a transaction that was lost on its way and
//! arrives late is refused; and so is everything from a coordinator once another one has begun after it.
//!
//! What does not fit into one transaction is first written beside the rest, in pieces. It counts from the
//! moment at which `redo` says how many there are. What it changes is carried over before anything else is
//! written.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use whimbrel_core::fleet::{Record, Snapshot};
use whimbrel_engine::clock;
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_fleet::protocol::Backend;

use super::address::EtcdOptions;
use super::client::{Client, PAGE_PATIENCE, PATIENCE, RANGE, TXN, int};
use super::election::Office;
use super::encoding::{
    Entry, base64, chunk, chunk_of, created, delete, delete_below, entries, entries_of, equals, modified,
    pack, put, range, unpack,
};
use crate::fleet::journal::{FORMAT, Journal, number_of, numbered};

/// Operations of one transaction: etcd takes 128, and some are ours.
const OPERATIONS_MAX: usize = 100;

/// Records of one piece of a batch: at most about 600 KiB, while etcd takes 1.5 MiB.
const RECORDS_OF_PIECE: usize = 10_000;

/// Keys that are read at once.
const PAGE: usize = 1_000;

/// The journal of one reign.
pub(super) struct EtcdJournal {
    client: Client,
    runtime: Handle,
    /// Made in this revision, the key of the election is this coordinator's.
    elected_at: i64,
    until_ms: watch::Receiver<u64>,
    term: u64,
    /// How many transactions this term has done.
    number: u64,
    /// What is written down.
    written: Snapshot,
    /// What is written down as a batch beside the rest: it has to be carried over.
    redo: Vec<Value>,
    backends: BTreeMap<String, u32>,
}

/// Refuses the fleet if it is not the wanted one; true if there is none yet.
pub(super) async fn check(client: &mut Client, partitions: u32, deadline: Instant) -> Result<bool> {
    let key = |name: &str| format!("{}/{name}", client.options().prefix);
    let body = json!({"success": [range(&key("format")), range(&key("partitions"))]});
    let answer = client.call(TXN, &body, deadline).await?;
    let number = |at| entries_of(&answer, at).first().map(|entry: &Entry| entry.text().to_owned());
    let found = (number(0), number(1));
    let wrong = |what: String| {
        // No server is at fault: it is the options, or what else is there.
        Err(Error::own(format!("the journal of the fleet in {}", client.options()), what))
    };
    match found {
        (None, None) => Ok(true),
        (Some(format), Some(count)) if format == FORMAT.to_string() && count == partitions.to_string() => {
            Ok(false)
        }
        (Some(format), Some(count)) if format == FORMAT.to_string() => {
            wrong(format!("it is of {count} partitions, not {partitions}; give the same number as before"))
        }
        _ => wrong(
            "it is of another version of whimbrel, or of something else; name another prefix".to_owned(),
        ),
    }
}

impl EtcdJournal {
    /// Begins a new term, in which the journal takes nothing of earlier ones any more, and reads what there
    /// is from that moment.
    ///
    /// # Errors
    /// `Own` if what is there is not of this fleet, or another coordinator has been elected meanwhile; else
    /// as [`Client::call`].
    pub(super) async fn begin(
        options: &Arc<EtcdOptions>,
        office: &Office,
        partitions: u32,
    ) -> Result<(EtcdJournal, Snapshot)> {
        let mut journal = EtcdJournal {
            client: Client::new(options.clone(), PATIENCE),
            runtime: Handle::current(),
            elected_at: office.elected_at,
            until_ms: office.until_ms.clone(),
            term: 0,
            number: 0,
            written: Snapshot::new(partitions),
            redo: Vec::new(),
            backends: BTreeMap::new(),
        };
        let revision = journal.raise_term(partitions).await?;
        journal.written.term = journal.term;
        journal.client.patience = PAGE_PATIENCE;
        journal.read(revision).await?;
        journal.client.patience = PATIENCE;
        let snapshot = journal.written.clone();
        Ok((journal, snapshot))
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.client.options().prefix)
    }

    fn head(&self, number: u64) -> String {
        format!("{}.{number}", self.term)
    }

    /// The latest term that began.
    async fn begun_last(&mut self) -> Result<u64> {
        let deadline = self.deadline().min(Instant::now() + PATIENCE);
        let head = self.key("head");
        let answer = self.client.call(RANGE, &json!({"key": base64(&head)}), deadline).await?;
        let term = entries(&answer).first().and_then(term_of);
        term.ok_or_else(|| self.unreadable("head"))
    }

    /// The revision in which the term has begun.
    async fn raise_term(&mut self, partitions: u32) -> Result<i64> {
        let deadline = self.deadline();
        let is_new = check(&mut self.client, partitions, deadline).await?;
        let (leader, head) = (self.key("leader"), self.key("head"));
        let answer = self.client.call(RANGE, &json!({"key": base64(&head)}), deadline).await?;
        let found = entries(&answer).into_iter().next();
        let term = found.as_ref().map(term_of);
        let term: u64 = match term {
            None if is_new => 0,
            Some(Some(term)) => term,
            _ => return Err(self.unreadable("head")),
        };
        self.term = term + 1;
        let before = found.map_or(0, |entry| entry.mod_revision);
        let now = self.head(0);
        let body = json!({
            "compare": [created(&leader, self.elected_at), modified(&head, before)],
            "success": [
                put(&head, &now),
                put(&self.key("format"), FORMAT.to_string()),
                put(&self.key("partitions"), partitions.to_string()),
            ],
            "failure": [range(&leader), range(&head)],
        });
        let answer = self.client.call(TXN, &body, deadline).await?;
        if answer["succeeded"] == true {
            return int(&answer["header"]["revision"])
                .ok_or_else(|| self.unreadable("the answer to a transaction"));
        }
        // Only the elected coordinator writes this, so an earlier attempt has done it and its answer was
        // lost.
        let is_elected =
            entries_of(&answer, 0).first().is_some_and(|entry| entry.create_revision == self.elected_at);
        match entries_of(&answer, 1).first().filter(|entry| is_elected && entry.text() == now) {
            Some(entry) => Ok(entry.mod_revision),
            None => Err(self.superseded()),
        }
    }

    /// Reads everything as it was in one revision.
    async fn read(&mut self, revision: i64) -> Result<()> {
        let prefix = format!("{}/", self.client.options().prefix);
        let end = format!("{}0", self.client.options().prefix);
        let (mut from, mut pieces, mut count) = (prefix.clone(), BTreeMap::new(), None);
        loop {
            let body = json!({
                "key": base64(&from), "range_end": base64(&end), "limit": PAGE.to_string(),
                "revision": revision.to_string(),
            });
            let deadline = self.deadline();
            let answer = self.client.call(RANGE, &body, deadline).await?;
            let page = entries(&answer);
            for entry in &page {
                let name = entry.key.strip_prefix(&prefix).unwrap_or_default();
                if name == "redo" {
                    count = Some(entry.text().parse::<u32>().map_err(|_| self.unreadable(name))?);
                } else if let Some(piece) = name.strip_prefix("redo/") {
                    let piece: u32 = piece.parse().map_err(|_| self.unreadable(name))?;
                    pieces.insert(piece, entry.value.clone());
                } else {
                    self.take_in(name, entry)?;
                }
            }
            match page.last() {
                Some(last) if answer["more"] == true => from = format!("{}\0", last.key),
                _ => break,
            }
        }
        let Some(count) = count else { return Ok(()) };
        let mut records = Vec::new();
        for piece in 0..count {
            let found = pieces.get(&piece).and_then(|piece| unpack(piece));
            records.extend(found.ok_or_else(|| self.unreadable("redo"))?);
        }
        self.redo = self.changes(&records);
        Ok(())
    }

    fn take_in(&mut self, name: &str, entry: &Entry) -> Result<()> {
        if let Some(backend) = name.strip_prefix("backends/") {
            let number = entry.text().parse().map_err(|_| self.unreadable(name))?;
            self.backends.insert(backend.to_owned(), number);
        } else if name == "next-member" {
            let next: u32 = entry.text().parse().map_err(|_| self.unreadable(name))?;
            self.written.next_member = self.written.next_member.max(next);
        } else if ["members/", "rows/", "parts/"].iter().any(|kind| name.starts_with(kind)) {
            let records = unpack(&entry.value).ok_or_else(|| self.unreadable(name))?;
            records.iter().for_each(|record| self.written.apply(record));
        }
        Ok(())
    }

    /// Gives each backend the number that it had, or the next one, and writes that down. Each is a name and
    /// an address.
    ///
    /// # Errors
    /// As [`FleetJournal::name_backends`](crate::fleet::FleetJournal::name_backends).
    pub(super) async fn name_backends(&mut self, backends: &[(String, String)]) -> Result<Vec<Backend>> {
        let before = self.backends.clone();
        let place = self.client.options().to_string();
        let mut known = before.clone();
        let named =
            numbered(&place, backends, |names| Ok(number_of(&mut known, names).map(|()| known.clone())))?;
        self.backends = known;
        let fresh = self.backends.iter().filter(|(name, _)| !before.contains_key(*name));
        let puts: Vec<Value> = fresh
            .map(|(name, number)| put(&self.key(&format!("backends/{name}")), number.to_string()))
            .collect();
        if !puts.is_empty() {
            self.advance(puts).await?;
        }
        Ok(named)
    }

    /// Takes records in, and says how the keys become that they concern: each once.
    fn changes(&mut self, records: &[Record]) -> Vec<Value> {
        let (mut chunks, mut members, mut parts) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for record in records {
            self.written.apply(record);
            match record {
                Record::Member(member, _) | Record::Gone(member) => drop(members.insert(*member)),
                Record::Row(partition, _) => drop(chunks.insert(chunk_of(*partition))),
                Record::Backend(backend, _) => drop(parts.insert(*backend)),
            }
        }
        let mut changes = Vec::with_capacity(chunks.len() + members.len() + parts.len() + 1);
        if !members.is_empty() {
            changes.push(put(&self.key("next-member"), self.written.next_member.to_string()));
        }
        changes.extend(members.into_iter().map(|member| {
            let key = self.key(&format!("members/{member}"));
            match self.written.members.get(&member) {
                Some(enrolled) => put(&key, pack([&Record::Member(member, *enrolled)])),
                None => delete(&key),
            }
        }));
        let written = &self.written.backends;
        changes.extend(parts.into_iter().filter_map(|backend| {
            let record = Record::Backend(backend, *written.get(&backend)?);
            Some(put(&self.key(&format!("parts/{backend}")), pack([&record])))
        }));
        changes.extend(
            chunks
                .into_iter()
                .map(|at| put(&self.key(&format!("rows/{at}")), chunk(&self.written.table, at))),
        );
        changes
    }

    async fn append(&mut self, records: &[Record]) -> Result<()> {
        self.carry_over().await?;
        let changes = self.changes(records);
        if changes.len() <= OPERATIONS_MAX {
            return self.advance(changes).await;
        }
        let pieces: Vec<Vec<u8>> = records.chunks(RECORDS_OF_PIECE).map(pack).collect();
        for (at, piece) in pieces.iter().enumerate() {
            self.advance(vec![put(&self.key(&format!("redo/{at}")), piece)]).await?;
        }
        self.advance(vec![put(&self.key("redo"), pieces.len().to_string())]).await?;
        self.redo = changes;
        Ok(())
    }

    /// Carries a batch over that is written down beside the rest.
    async fn carry_over(&mut self) -> Result<()> {
        let changes = std::mem::take(&mut self.redo);
        if changes.is_empty() {
            return Ok(());
        }
        for changes in changes.chunks(OPERATIONS_MAX) {
            self.advance(changes.to_vec()).await?;
        }
        let redo = self.key("redo");
        self.advance(vec![delete(&redo), delete_below(&redo)]).await
    }

    /// Does one transaction, once.
    async fn advance(&mut self, mut changes: Vec<Value>) -> Result<()> {
        let (leader, head) = (self.key("leader"), self.key("head"));
        let (before, after) = (self.head(self.number), self.head(self.number + 1));
        changes.push(put(&head, &after));
        let body = json!({
            "compare": [created(&leader, self.elected_at), equals(&head, &before)],
            "success": changes,
            "failure": [range(&head)],
        });
        let answer = loop {
            let deadline = self.deadline();
            match self.client.call(TXN, &body, deadline).await {
                // The reign may have become longer meanwhile.
                Err(error) if error.is_link() && self.left() > Duration::ZERO => {
                    tracing::warn!(%error, "the journal is not written yet");
                }
                outcome => break outcome?,
            }
        };
        let has_been_done = || entries_of(&answer, 0).first().is_some_and(|entry| entry.text() == after);
        if answer["succeeded"] == true || has_been_done() {
            self.number += 1;
            return Ok(());
        }
        Err(self.superseded())
    }

    /// What is left of the reign.
    fn left(&self) -> Duration {
        Duration::from_millis(self.until_ms.borrow().saturating_sub(clock::now_ms()))
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.left()
    }

    fn superseded(&self) -> Error {
        let what =
            "another coordinator has been elected, and what this one decides does not count".to_owned();
        Error::new(Side::Store, self.client.options().to_string(), "write the journal", ErrorKind::Own(what))
    }

    fn unreadable(&self, name: &str) -> Error {
        let what = format!("{name} is not as whimbrel writes it; name another prefix for another fleet");
        Error::own(format!("read the journal of the fleet in {}", self.client.options()), what)
    }
}

/// The term that a `head` names.
fn term_of(head: &Entry) -> Option<u64> {
    head.text().split_once('.').and_then(|(term, _)| term.parse().ok())
}

impl Journal for EtcdJournal {
    /// In one transaction, or in several: the last one makes the others count.
    fn write(&mut self, records: &[Record]) -> Result<()> {
        let runtime = self.runtime.clone();
        runtime.block_on(self.append(records))
    }

    fn latest_term(&mut self) -> Result<u64> {
        let runtime = self.runtime.clone();
        runtime.block_on(self.begun_last())
    }
}
