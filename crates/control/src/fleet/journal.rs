//! The journal of a fleet's coordinator, and the usual one: a redb file.
//!
//! It has what [`Snapshot`] has, one entry for each member and row, in its last state. So it does not grow
//! with the number of changes. The process that has it open keeps others from opening it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase as _, ReadableTable, TableDefinition};
use whimbrel_core::fleet::{MemberId, PARTITIONS_MAX, Record, Snapshot};
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::remedy::Remedy;
use whimbrel_fleet::protocol::{BACKENDS_MAX, Backend, TEXT_BYTES_MAX};

/// Numbers by name: format, partitions, term, the next member's number.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");

/// Records of members and of rows, as [`Record::encode`] writes them, by the number of the member or
/// partition.
const MEMBERS: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("members");
const ROWS: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("rows");

/// Records of the parts that backends have, by their numbers.
const PARTS: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("parts");

/// Numbers of backends by name, as rows have them.
const BACKENDS: TableDefinition<'_, &str, u32> = TableDefinition::new("backends");

/// A journal of another format is refused.
pub(super) const FORMAT: u64 = 1;

/// Where a coordinator writes down what it decides.
pub trait Journal: Send + 'static {
    /// Writes records down, after all earlier ones and all of them or none; they survive everything when this
    /// returns.
    ///
    /// # Errors
    /// Where that fails, or a later coordinator has begun. This one must end then: what it decided is not
    /// written down.
    fn write(&mut self, records: &[Record]) -> Result<()>;

    /// The latest term that has begun, as far as the one that keeps the journal knows: this coordinator's, or
    /// a later one's.
    ///
    /// # Errors
    /// Where that cannot be asked.
    fn latest_term(&mut self) -> Result<u64>;
}

/// The journal of one coordinator.
#[derive(Debug)]
pub struct FleetJournal {
    path: PathBuf,
    db: Database,
    next_member: u32,
}

impl FleetJournal {
    /// Opens the journal, or makes one for so many partitions, and begins a new term in it.
    ///
    /// # Errors
    /// `Own` where the file cannot be made or read, another coordinator has it open, or it is of another
    /// number of partitions.
    pub fn open(path: &Path, partitions: u32) -> Result<(FleetJournal, Snapshot)> {
        let fail = |what: &dyn std::fmt::Display| failed(path, what);
        if partitions == 0 || partitions > PARTITIONS_MAX {
            return Err(fail(&format_args!(
                "a fleet has 1 to {PARTITIONS_MAX} partitions, not {partitions}"
            )));
        }
        let db = Database::create(path).map_err(|e| match e {
            redb::DatabaseError::DatabaseAlreadyOpen => fail(&"another coordinator has it open"),
            other => fail(&other),
        })?;
        let snapshot = begin(&db, partitions).map_err(|e| fail(&e))?;
        let Some(snapshot) = snapshot else {
            return Err(fail(&"it is of another number of partitions, or of another version of whimbrel"));
        };
        let next_member = snapshot.next_member;
        Ok((FleetJournal { path: path.to_owned(), db, next_member }, snapshot))
    }

    /// Gives each backend the number that it had, or the next one, and writes that down. Each is a name and
    /// where it is.
    ///
    /// # Errors
    /// `Own` where one is missing that had a number, since partitions may lie there, where a name is there
    /// twice, or where they are too many or too long.
    pub fn name_backends(&mut self, backends: &[(String, String)]) -> Result<Vec<Backend>> {
        let path = &self.path;
        numbered(&path.display().to_string(), backends, |names| {
            number_backends(&self.db, names).map_err(|e| failed(path, &e))
        })
    }
}

/// The backends with their numbers. `number` gives all names that are known numbers and writes them down, or
/// says which one has a number and is missing. `place` is where that is written.
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

/// Gives the next numbers to names that have none, in their order; or one that has a number and is missing.
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
        let next_member = append(&self.db, self.next_member, records).map_err(|e| failed(&self.path, &e))?;
        self.next_member = next_member;
        Ok(())
    }

    fn latest_term(&mut self) -> Result<u64> {
        term(&self.db).map_err(|e| failed(&self.path, &e))
    }
}

fn term(db: &Database) -> std::result::Result<u64, redb::Error> {
    let numbers = db.begin_read()?.open_table(NUMBERS)?;
    Ok(numbers.get("term")?.map_or(0, |term| term.value()))
}

/// All names with their numbers, those included that have just got one; or one that has a number and is
/// missing.
fn number_backends(
    db: &Database,
    names: &[&str],
) -> std::result::Result<std::result::Result<BTreeMap<String, u32>, String>, redb::Error> {
    let tx = db.begin_write()?;
    let mut known = BTreeMap::new();
    {
        let mut table = tx.open_table(BACKENDS)?;
        for entry in table.iter()? {
            let (name, number) = entry?;
            known.insert(name.value().to_owned(), number.value());
        }
        if let Err(missing) = number_of(&mut known, names) {
            return Ok(Err(missing));
        }
        for (name, number) in &known {
            table.insert(name.as_str(), number)?;
        }
    }
    tx.commit()?;
    Ok(Ok(known))
}

fn failed(path: &Path, what: &dyn std::fmt::Display) -> Error {
    Error::own(format!("the journal of the fleet in {}", path.display()), what)
        .with_remedy("see that the disk has room and no other coordinator runs, or choose another file")
}

/// Raises the term and reads the rest, in one transaction: nothing is written between the two. None where the
/// file is of something else.
fn begin(db: &Database, partitions: u32) -> std::result::Result<Option<Snapshot>, redb::Error> {
    let tx = db.begin_write()?;
    let mut snapshot = Snapshot::new(partitions);
    {
        let mut numbers = tx.open_table(NUMBERS)?;
        let number = |name: &str| -> std::result::Result<Option<u64>, redb::Error> {
            Ok(numbers.get(name)?.map(|value| value.value()))
        };
        let known = (number("format")?, number("partitions")?);
        if ![(None, None), (Some(FORMAT), Some(partitions.into()))].contains(&known) {
            return Ok(None);
        }
        snapshot.term = number("term")?.unwrap_or(0) + 1;
        let next_member = number("next member")?.and_then(|next| u32::try_from(next).ok());
        snapshot.next_member = next_member.unwrap_or(snapshot.next_member);
        numbers.insert("format", FORMAT)?;
        numbers.insert("partitions", u64::from(partitions))?;
        numbers.insert("term", snapshot.term)?;
        for table in [tx.open_table(MEMBERS)?, tx.open_table(ROWS)?, tx.open_table(PARTS)?] {
            for entry in table.iter()? {
                let (_, bytes) = entry?;
                let Ok(record) = Record::decode(bytes.value()) else { return Ok(None) };
                snapshot.apply(&record);
            }
        }
    }
    tx.commit()?;
    Ok(Some(snapshot))
}

fn append<'a>(
    db: &Database,
    mut next_member: u32,
    records: impl IntoIterator<Item = &'a Record>,
) -> std::result::Result<u32, redb::Error> {
    let tx = db.begin_write()?;
    {
        let (mut members, mut rows) = (tx.open_table(MEMBERS)?, tx.open_table(ROWS)?);
        let mut parts = tx.open_table(PARTS)?;
        let mut bytes = Vec::new();
        let mut enlist = |MemberId(number): &MemberId| {
            next_member = next_member.max(number.saturating_add(1));
            *number
        };
        for record in records {
            bytes.clear();
            record.encode(&mut bytes);
            match record {
                Record::Member(member, _) => {
                    members.insert(enlist(member), bytes.as_slice())?;
                }
                Record::Gone(member) => {
                    members.remove(enlist(member))?;
                }
                Record::Row(partition, _) => {
                    rows.insert(*partition, bytes.as_slice())?;
                }
                Record::Backend(backend, _) => {
                    parts.insert(*backend, bytes.as_slice())?;
                }
            }
        }
        tx.open_table(NUMBERS)?.insert("next member", u64::from(next_member))?;
    }
    tx.commit()?;
    Ok(next_member)
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
