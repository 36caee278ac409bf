//! The journal of a fleet's coordinator, and the usual one: documents in a redb file.
//!
//! It has what [`Snapshot`] has, one document for each member, row and part, in its last state. So it does
//! not grow with the number of changes. The process that has it open keeps others from opening it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use whimbrel_core::fleet::{MemberId, PARTITIONS_MAX, Record, Snapshot};
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::remedy::Remedy;
use whimbrel_fleet::protocol::{BACKENDS_MAX, Backend, TEXT_BYTES_MAX};
use whimbrel_flow::journal::{Documents as _, OpenError, RedbDocuments};

/// Names of documents that hold a number each.
const FORMATTED: &str = "format";
const PARTITIONS: &str = "partitions";
const TERM: &str = "term";
const NEXT_MEMBER: &str = "next member";

/// What precedes the number of a member, partition or backend. Such a document is a [`Record`], as
/// [`Record::encode`] writes it, in base64.
const RECORDS: [&str; 3] = ["member ", "row ", "part "];

/// What precedes the name of a backend. Such a document is the number that rows have for it.
const BACKEND: &str = "backend ";

/// A journal of another format is refused.
pub(super) const FORMAT: u64 = 1;

/// Where a coordinator writes down what it decides.
pub trait Journal: Send + 'static {
    /// Writes records down, after all earlier ones and all of them or none; they survive everything when this
    /// returns.
    ///
    /// # Errors
    /// If that fails, or a later coordinator has begun. This one must end then: what it decided is not
    /// written down.
    fn write(&mut self, records: &[Record]) -> Result<()>;

    /// The latest term that has begun, as far as the keeper of the journal knows: this coordinator's, or a
    /// later one's.
    ///
    /// # Errors
    /// If that cannot be asked.
    fn latest_term(&mut self) -> Result<u64>;
}

/// The journal of one coordinator.
#[derive(Debug)]
pub struct FleetJournal {
    path: PathBuf,
    documents: RedbDocuments,
    /// Numbers of backends by name, as they are written down.
    backends: BTreeMap<String, u32>,
    next_member: u32,
}

impl FleetJournal {
    /// Opens the journal, or makes one for this many partitions, and begins a new term in it.
    ///
    /// # Errors
    /// `Own` if the file cannot be made or read, another coordinator has it open, or it is of another number
    /// of partitions.
    pub fn open(path: &Path, partitions: u32) -> Result<(FleetJournal, Snapshot)> {
        let fail = |what: &dyn std::fmt::Display| failed(path, what);
        if partitions == 0 || partitions > PARTITIONS_MAX {
            return Err(fail(&format_args!(
                "a fleet has 1 to {PARTITIONS_MAX} partitions, not {partitions}"
            )));
        }
        let documents = RedbDocuments::create(path).map_err(|e| match e {
            OpenError::InUse => fail(&"another coordinator has it open"),
            OpenError::Failed(e) => fail(&e),
        })?;
        // Nothing writes between the two: this process alone has it open.
        let all = documents.all().map_err(|e| fail(&e))?;
        let Some(snapshot) = snapshot_of(&all, partitions) else {
            return Err(fail(&"it is of another number of partitions, or of another version of whimbrel"));
        };
        let numbers = [(FORMATTED, FORMAT), (PARTITIONS, partitions.into()), (TERM, snapshot.term)];
        let numbers = numbers.map(|(name, number)| (name, number.to_string()));
        let changes = numbers.iter().map(|(name, number)| (*name, Some(number.as_str())));
        documents.change(changes).map_err(|e| fail(&e))?;
        let of_backend = |(name, number): (String, String)| {
            Some((name.strip_prefix(BACKEND)?.to_owned(), number.parse().ok()?))
        };
        let backends = all.into_iter().filter_map(of_backend).collect();
        let next_member = snapshot.next_member;
        Ok((FleetJournal { path: path.to_owned(), documents, backends, next_member }, snapshot))
    }

    /// Gives each backend the number that it had, or the next one, and writes that down. Each is a name and
    /// an address.
    ///
    /// # Errors
    /// `Own` if a backend is missing that had a number, since partitions may lie there, if a name is there
    /// twice, or if they are too many or too long.
    pub fn name_backends(&mut self, backends: &[(String, String)]) -> Result<Vec<Backend>> {
        let place = self.path.display().to_string();
        numbered(&place, backends, |names| match self.number(names) {
            Ok(numbers) => Ok(numbers),
            Err(e) => Err(failed(&self.path, &e)),
        })
    }

    /// All names with their numbers, those included that have just got one; or a name that has a number and
    /// is missing.
    fn number(&mut self, names: &[&str]) -> io::Result<std::result::Result<BTreeMap<String, u32>, String>> {
        let mut known = self.backends.clone();
        if let Err(missing) = number_of(&mut known, names) {
            return Ok(Err(missing));
        }
        let changes: Vec<(String, String)> =
            known.iter().map(|(name, number)| (format!("{BACKEND}{name}"), number.to_string())).collect();
        self.documents.change(changes.iter().map(|(name, number)| (name.as_str(), Some(number.as_str()))))?;
        self.backends.clone_from(&known);
        Ok(Ok(known))
    }
}

/// The backends with their numbers. `number` gives all names that are known numbers and writes them down, or
/// says which name has a number and is missing. `place` names the place where that is written.
pub(super) fn numbered(
    place: &str,
    backends: &[(String, String)],
    number: impl FnOnce(&[&str]) -> Result<std::result::Result<BTreeMap<String, u32>, String>>,
) -> Result<Vec<Backend>> {
    let fail = |what: &dyn std::fmt::Display| Error::own("name the backends of the fleet", what);
    let is_long = |(name, url): &(String, String)| name.len().max(url.len()) > TEXT_BYTES_MAX;
    if backends.len() > BACKENDS_MAX || backends.iter().any(is_long) {
        let what =
            format!("at most {BACKENDS_MAX}, with names and addresses of at most {TEXT_BYTES_MAX} bytes");
        return Err(fail(&what));
    }
    let names: Vec<&str> = backends.iter().map(|(name, _)| name.as_str()).collect();
    if names.iter().collect::<BTreeSet<_>>().len() < backends.len() {
        return Err(fail(&"two have the same name"));
    }
    let known = number(&names)?.map_err(|name| {
        let what = format!("{name} is not named, but partitions may lie there, says {place}");
        fail(&what).with_remedy(Remedy::AddBackend(name.into()))
    })?;
    let numbered = backends.iter().filter_map(|(name, url)| {
        Some(Backend { number: *known.get(name)?, name: name.clone(), url: url.clone() })
    });
    Ok(numbered.collect())
}

/// Gives the next numbers to names that have none, in their order; or a name that has a number and is
/// missing.
pub(super) fn number_of(
    known: &mut BTreeMap<String, u32>,
    names: &[&str],
) -> std::result::Result<(), String> {
    if let Some(name) = known.keys().find(|name| !names.contains(&name.as_str())) {
        return Err(name.clone());
    }
    for name in names {
        // No more than are allowed.
        let next = known.len() as u32;
        known.entry((*name).to_owned()).or_insert(next);
    }
    Ok(())
}

impl Journal for FleetJournal {
    /// In one transaction.
    fn write(&mut self, records: &[Record]) -> Result<()> {
        let mut next_member = self.next_member;
        let mut changes = Vec::with_capacity(records.len() + 1);
        for record in records {
            if let Record::Member(MemberId(number), _) | Record::Gone(MemberId(number)) = record {
                next_member = next_member.max(number.saturating_add(1));
            }
            changes.push(change_of(record));
        }
        changes.push((NEXT_MEMBER.to_owned(), Some(next_member.to_string())));
        let changes = changes.iter().map(|(name, text)| (name.as_str(), text.as_deref()));
        self.documents.change(changes).map_err(|e| failed(&self.path, &e))?;
        self.next_member = next_member;
        Ok(())
    }

    fn latest_term(&mut self) -> Result<u64> {
        let term = self.documents.read(TERM).map_err(|e| failed(&self.path, &e))?;
        Ok(term.and_then(|term| term.parse().ok()).unwrap_or(0))
    }
}

/// The document that a record changes, and what becomes of it.
fn change_of(record: &Record) -> (String, Option<String>) {
    let [member, row, part] = RECORDS;
    let (name, stays) = match record {
        Record::Member(MemberId(number), _) => (format!("{member}{number}"), true),
        Record::Gone(MemberId(number)) => (format!("{member}{number}"), false),
        Record::Row(partition, _) => (format!("{row}{partition}"), true),
        Record::Backend(backend, _) => (format!("{part}{backend}"), true),
    };
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    (name, stays.then(|| STANDARD.encode(&bytes)))
}

fn failed(path: &Path, what: &dyn std::fmt::Display) -> Error {
    Error::own(format!("the journal of the fleet in {}", path.display()), what)
        .with_remedy("see that the disk has room and no other coordinator runs, or choose another file")
}

/// What is written down, in the next term. `None` if it is of something else.
fn snapshot_of(all: &BTreeMap<String, String>, partitions: u32) -> Option<Snapshot> {
    let number = |name: &str| all.get(name).and_then(|number| number.parse::<u64>().ok());
    let known = (number(FORMATTED), number(PARTITIONS));
    if ![(None, None), (Some(FORMAT), Some(partitions.into()))].contains(&known) {
        return None;
    }
    let mut snapshot = Snapshot::new(partitions);
    snapshot.term = number(TERM).unwrap_or(0) + 1;
    let next_member = number(NEXT_MEMBER).and_then(|next| u32::try_from(next).ok());
    snapshot.next_member = next_member.unwrap_or(snapshot.next_member);
    for (_, text) in all.iter().filter(|(name, _)| RECORDS.iter().any(|kind| name.starts_with(kind))) {
        snapshot.apply(&Record::decode(&STANDARD.decode(text).ok()?).ok()?);
    }
    Some(snapshot)
}

#[cfg(test)]
mod tests {
    use whimbrel_core::fleet::{Enrolled, Holders, Row};

    use super::*;

    #[test]
    fn the_next_coordinator_knows_what_was_written_down() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fleet");
        let (mut journal, mut expected) = FleetJournal::open(&path, 300).expect("made");
        assert_eq!(expected, Snapshot { term: 1, ..Snapshot::new(300) });
        assert!(
            FleetJournal::open(&path, 300).expect_err("locked").to_string().contains("another coordinator")
        );
        let enrolled = |token| Enrolled { token, weight: 3, is_leaving: token == 8 };
        let row = |version| Row { version, backend: 2, holders: Holders::new(&[MemberId(1)]).expect("one") };
        let records = [
            Record::Member(MemberId(1), enrolled(7)),
            Record::Member(MemberId(2), enrolled(8)),
            Record::Row(299, row(1)),
            Record::Row(299, row(2)),
            Record::Gone(MemberId(2)),
            Record::Backend(1, 3),
            Record::Backend(1, 4),
        ];
        journal.write(&records[..3]).expect("written");
        journal.write(&records[3..]).expect("written");
        drop(journal);
        records.iter().for_each(|record| expected.apply(record));
        expected.term = 2;
        let (journal, found) = FleetJournal::open(&path, 300).expect("opened");
        assert_eq!(found, expected);
        assert_eq!(found.next_member, 3, "numbers of those who are gone are not given again");
        drop(journal);
        assert!(FleetJournal::open(&path, 301).is_err(), "another number of partitions");
    }

    #[test]
    fn backends_keep_their_numbers() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut journal, _) = FleetJournal::open(&folder.path().join("fleet"), 4).expect("made");
        let backend = |name: &str| (name.to_owned(), format!("redis://{name}:1"));
        let mut numbers = |names: &[&str]| {
            let named: Vec<_> = names.iter().map(|name| backend(name)).collect();
            let numbered = journal.name_backends(&named).map_err(|e| e.to_string())?;
            Ok::<_, String>(numbered.iter().map(|backend| backend.number).collect::<Vec<_>>())
        };
        assert_eq!(numbers(&["b"]), Ok(vec![0]));
        assert_eq!(numbers(&["a", "b"]), Ok(vec![1, 0]));
        assert_eq!(
            numbers(&["z", "b", "a", "y"]),
            Ok(vec![2, 0, 1, 3]),
            "in the order in which they are named"
        );
        assert!(numbers(&["b", "c", "y", "z"]).expect_err("refused").contains("a is not named"));
        assert_eq!(numbers(&["a", "b", "y", "z"]), Ok(vec![1, 0, 3, 2]), "nothing was written down of c");
        assert!(numbers(&["a", "b", "y", "z", "a"]).expect_err("refused").contains("the same name"));
    }
}
