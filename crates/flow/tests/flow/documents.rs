//! Documents on a disk that is full for a while.

use std::fs::{read, write};

use whimbrel_flow::journal::{Documents, OpenError, RedbDocuments, is_full};
use whimbrel_lab::SmallDisk;

/// After a write for which there was no room, what was there before is there still, nobody else can have the
/// file, and the next write succeeds once there is room.
#[test]
fn what_was_written_outlives_a_full_disk() {
    let disk = match SmallDisk::start(8 << 20) {
        Ok(disk) => disk,
        Err(e) => return eprintln!("SKIPPED: no small disk can be had here: {e}"),
    };
    let path = disk.path().join("documents");
    let documents = RedbDocuments::create(&path).expect("made");
    documents.write(&[("job", "first")]).expect("written");
    disk.fill().expect("it is filled");
    let large = "x".repeat(2 << 20);
    for _ in 0..3 {
        let refused = documents.write(&[("job", &large)]).expect_err("there is no room");
        assert!(is_full(&refused), "{refused}");
        let taken = RedbDocuments::open(&path).expect_err("it is still open");
        assert!(matches!(taken, OpenError::InUse), "{taken:?}");
    }
    disk.make_room().expect("there is room");
    assert_eq!(documents.read("job").expect("read").as_deref(), Some("first"));
    documents.write(&[("job", &large)]).expect("written");
    drop(documents);
    let documents = RedbDocuments::open(&path).expect("nobody has it open");
    assert_eq!(documents.read("job").expect("read"), Some(large));
}

/// A process that is killed while it makes the file, or finds the disk full, leaves zeros behind: they keep
/// nobody from the job of that name for good.
#[test]
fn a_file_in_which_nothing_was_written_down_is_begun_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    for (number, len) in [1, 9, 4_096, 1 << 20].into_iter().enumerate() {
        let path = folder.path().join(format!("zeros-{number}"));
        write(&path, vec![0; len]).expect("written");
        let documents = RedbDocuments::create(&path).expect("made");
        documents.write(&[("job", "first")]).expect("written");
        drop(documents);
        let documents = RedbDocuments::open(&path).expect("it is there");
        assert_eq!(documents.read("job").expect("read").as_deref(), Some("first"));
        assert!(matches!(RedbDocuments::open(&path), Err(OpenError::InUse)), "it is locked as ever");
    }
    let path = folder.path().join("other");
    let mut damaged = vec![0; 8_192];
    damaged[5_000] = 7;
    let others = [&b"a file of somebody else"[..], b"redb", &[0, 0, 0, 0, 0, 0, 0, 0, 7, 0], &damaged];
    for (number, other) in others.into_iter().enumerate() {
        write(&path, other).expect("written");
        assert!(matches!(RedbDocuments::create(&path), Err(OpenError::Failed(_))), "{number}");
        assert!(read(&path).expect("it is there") == other, "{number} was changed");
    }
}
