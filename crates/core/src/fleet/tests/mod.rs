//! Properties of the table, the codec, the plan, and of whole fleets on a bad network.

mod fleet;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn holders(numbers: &[u32]) -> Holders {
    let members: Vec<MemberId> = numbers.iter().copied().map(MemberId).collect();
    Holders::new(&members).expect("few, and none twice")
}

fn any_holders() -> impl Strategy<Value = Holders> {
    prop::collection::vec(1_u32..20, 0..=HOLDERS_MAX).prop_map(|numbers| {
        let mut holders = Holders::default();
        for number in numbers {
            holders.push(MemberId(number));
        }
        holders
    })
}

fn any_row() -> impl Strategy<Value = Row> {
    (0..1_000_000_u64, 0..5_u32, any_holders()).prop_map(|(version, backend, holders)| Row {
        version,
        backend,
        holders,
    })
}

fn table_of(rows: &[Row]) -> Table {
    let mut table = Table::new(rows.len() as u32);
    for (partition, row) in (0..).zip(rows) {
        table.take_row(partition, *row);
    }
    table
}

proptest! {
    #[test]
    fn a_change_makes_one_row_of_another_and_fits_no_other_version(before in any_row(), after in any_row()) {
        let change = Change::between(0, &before, &after);
        let mut table = table_of(&[before]);
        prop_assert_eq!(table.apply(&change), Applied::Changed);
        let expected = Row { version: before.version + 1, ..after };
        prop_assert_eq!(table.row(0), Some(&expected));
        prop_assert_eq!(table.stamp(), table_of(&[expected]).stamp());
        // Doubled, and too early.
        prop_assert_eq!(table.apply(&change), Applied::Known);
        let mut early = table_of(&[Row { version: before.version.saturating_sub(1), ..before }]);
        let unchanged = early.clone();
        if before.version > 0 {
            prop_assert_eq!(early.apply(&change), Applied::Gap);
            prop_assert_eq!(early, unchanged);
        }
    }

    #[test]
    fn any_order_loss_and_doubling_of_changes_ends_in_equal_tables_once_gaps_are_filled(
        makes in prop::collection::vec((0..600_u32, any_holders()), 1..60),
        delivered in prop::collection::vec(0..60_usize, 0..150),
    ) {
        let mut writer = Table::new(600);
        let changes: Vec<Change> = makes.into_iter().map(|(partition, holders)| {
            let row = *writer.row(partition).expect("it is there");
            let change = Change::between(partition, &row, &Row { holders, ..row });
            assert_eq!(writer.apply(&change), Applied::Changed);
            change
        }).collect();
        let mut reader = Table::new(600);
        for at in delivered {
            reader.apply(&changes[at % changes.len()]);
        }
        let is_equal = reader == writer;
        prop_assert_eq!(reader.stamp() == writer.stamp(), is_equal);
        // What is left is found by stamps of segments and versions, and only that is sent.
        let mut sent = 0;
        let segments: Vec<u32> = (0..).zip(reader.segments().iter().zip(writer.segments()))
            .filter(|(_, (theirs, ours))| theirs != ours).map(|(segment, _)| segment).collect();
        for (partition, row) in segments.into_iter().flat_map(|segment| writer.segment(segment)) {
            if reader.row(partition).expect("it is there").version < row.version {
                prop_assert_eq!(reader.take_row(partition, *row), Applied::Changed);
                sent += 1;
            }
        }
        prop_assert_eq!(&reader, &writer);
        prop_assert!(sent <= changes.len());
    }

    #[test]
    fn messages_are_read_as_they_were_written(
        rows in prop::collection::vec((0..PARTITIONS_MAX, any_row()), 0..20),
        before in any_row(), after in any_row(), numbers in any::<[u64; 3]>(),
    ) {
        let change = Change::between(77, &before, &after);
        let moving = Move { term: numbers[0], partition: 5, from: numbers[1], source: MemberId(1),
            destination: MemberId(u32::MAX), seals: true,
                backend: Some(u32::MAX).filter(|_| numbers[2] % 2 == 0) };
        let news = vec![change, Change::raise(3, &before)];
        for body in [
            Order::Welcome { token: numbers[0], member: MemberId(9), partitions: 271 },
            Order::Lease { member: MemberId(1), asked_ms: numbers[1], lease_ms: numbers[2] },
            Order::Gone { member: MemberId(300) },
            Order::Prepare { moving, news: news.clone() },
            Order::Commit { change, news: Vec::new() },
            Order::News { news },
            Order::Ask { stamp: numbers[2] },
            Order::CompareSegments { segments: vec![0, 4_095] },
            Order::Rows { rows: rows.clone() },
        ] {
            let message = ToMember { term: numbers[2], body };
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            prop_assert_eq!(ToMember::decode(&bytes), Ok(message));
            prop_assert!(ToMember::decode(&bytes[..bytes.len() - 1]).is_err());
            bytes.push(0);
            prop_assert!(ToMember::decode(&bytes).is_err());
        }
        for body in [
            Report::Join { token: numbers[0], weight: 7 },
            Report::Renew { asked_ms: numbers[1] },
            Report::Ready { moving },
            Report::Failed { moving },
            Report::Took { partition: 1, version: numbers[2] },
            Report::Gap { partitions: vec![1, 2, 3] },
            Report::Differs { stamps: numbers.to_vec() },
            Report::Have { segment: 4, stamp: numbers[0], versions: numbers.to_vec() },
        ] {
            let message = ToCoordinator { member: MemberId(2), term: numbers[1], body };
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            prop_assert_eq!(ToCoordinator::decode(&bytes), Ok(message));
        }
        let enrolled = Enrolled { token: numbers[1], weight: 1, is_leaving: true };
        let mut records = vec![Record::Member(MemberId(4), enrolled), Record::Gone(MemberId(4)),
            Record::Backend(3, u32::MAX)];
        records.extend(rows.into_iter().map(|(partition, row)| Record::Row(partition, row)));
        for record in records {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            prop_assert_eq!(Record::decode(&bytes), Ok(record));
        }
    }

    #[test]
    fn nonsense_is_no_message(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        // Whatever is understood is said again in the same words, apart from needlessly long numbers.
        if let Ok(message) = ToMember::decode(&bytes) {
            let mut again = Vec::new();
            message.encode(&mut again);
            prop_assert!(again.len() <= bytes.len());
        }
        let _ = (ToCoordinator::decode(&bytes), Record::decode(&bytes));
    }

    #[test]
    fn steps_lead_to_the_target_one_transfer_at_a_time(from in any_holders(), to in any_holders(),
    which in 0..7_usize) {
        prop_assume!(!to.is_empty());
        let target = Target { owner: to.as_slice()[which % to.len()], holders: to };
        let (mut now, mut made) = (from, 0);
        while let Some(step) = next_step(&now, &target) {
            now = match step {
                Step::Direct(after) => after,
                Step::Transfer { source, destination, seals, after } => {
                    prop_assert_eq!(now.owner(), Some(source));
                    prop_assert_eq!(after.owner(), Some(if seals { destination } else { source }));
                    prop_assert!(after.contains(destination));
                    made += 1;
                    after
                }
            };
            prop_assert!(made <= HOLDERS_MAX);
        }
        prop_assert_eq!(now.owner(), Some(target.owner));
        prop_assert_eq!(now.len(), to.len());
        prop_assert!(to.as_slice().iter().all(|member| now.contains(*member)));
        prop_assert_eq!(made as u64, transfers(&from, &target));
    }
}

#[test]
fn a_raised_version_refuses_what_was_begun_before() {
    let row = Row { version: 4, backend: 0, holders: holders(&[1]) };
    let mut table = table_of(&[row]);
    let late = Change::between(0, &row, &Row { holders: holders(&[2]), ..row });
    assert_eq!(table.apply(&Change::raise(0, &row)), Applied::Changed);
    assert_eq!(table.apply(&late), Applied::Known);
    assert_eq!(table.row(0), Some(&Row { version: 5, ..row }));
}

#[test]
fn owners_that_differ_at_equal_versions_show() {
    let row = Row { version: 4, backend: 0, holders: holders(&[1, 2]) };
    let other = Row { holders: holders(&[2, 1]), ..row };
    let mut table = table_of(&[row]);
    assert_ne!(table.stamp(), table_of(&[other]).stamp());
    assert_eq!(table.take_row(0, other), Applied::Changed, "of the same version it is a repair");
    assert_eq!(table.stamp(), table_of(&[other]).stamp());
}

fn planned(rows: &[Row], weights: &[(u32, u32)], copies: usize) -> Vec<Target> {
    let members: BTreeMap<MemberId, u32> =
        weights.iter().map(|(id, weight)| (MemberId(*id), *weight)).collect();
    plan(rows, &members, copies)
}

fn carried_out(rows: &[Row], targets: &[Target]) -> Vec<Row> {
    let becomes = |(row, target): (&Row, &Target)| {
        let mut holders = Holders::new(&[target.owner]).expect("one");
        target.holders.as_slice().iter().for_each(|member| {
            holders.push(*member);
        });
        Row { holders, ..*row }
    };
    rows.iter().zip(targets).map(becomes).collect()
}

fn moves(rows: &[Row], targets: &[Target]) -> u64 {
    rows.iter().zip(targets).map(|(row, target)| transfers(&row.holders, target)).sum()
}

fn counts(rows: &[Row], member: u32) -> (usize, usize) {
    let owned = rows.iter().filter(|row| row.holders.owner() == Some(MemberId(member))).count();
    (owned, rows.iter().filter(|row| row.holders.contains(MemberId(member))).count())
}

fn equal_weights(members: u32) -> Vec<(u32, u32)> {
    (1..=members).map(|id| (id, 1)).collect()
}

#[test]
fn as_many_moves_as_hazelcast_counted() {
    for (members, partitions, expected) in [(5, 1_999, 7_996), (5, 10_000, 40_000), (10, 10_000, 63_000)] {
        let rows = vec![Row { holders: holders(&[1]), ..Row::default() }; partitions];
        let targets = planned(&rows, &equal_weights(members), HOLDERS_MAX);
        assert_eq!(moves(&rows, &targets), expected);
        let after = carried_out(&rows, &targets);
        for member in 1..=members {
            let (owned, held) = counts(&after, member);
            assert!(
                owned.abs_diff(partitions / members as usize) <= 1,
                "{member} owns {owned} of {partitions}"
            );
            let share = partitions * (members as usize).min(7) / members as usize;
            assert!(held.abs_diff(share) <= 1, "{member} holds {held} of {partitions}");
        }
    }
}

#[test]
fn who_joins_takes_its_part_and_nothing_else_moves() {
    let empty = vec![Row::default(); 1_000];
    let rows = carried_out(&empty, &planned(&empty, &equal_weights(4), 1));
    let targets = planned(&rows, &equal_weights(5), 1);
    assert_eq!(moves(&rows, &targets), 200);
    let after = carried_out(&rows, &targets);
    assert_eq!(counts(&after, 5), (200, 200));
    assert_eq!(moves(&after, &planned(&after, &equal_weights(5), 1)), 0, "nothing is left to be done");
    // A drain moves what the member has, and nothing else.
    let mut weights = equal_weights(5);
    weights[2].1 = 0;
    let targets = planned(&after, &weights, 1);
    assert_eq!(moves(&after, &targets), 200);
    assert_eq!(counts(&carried_out(&after, &targets), 3), (0, 0));
}

#[test]
fn members_have_few_ranges() {
    let mut rows = vec![Row::default(); 16_384];
    let ranges = |rows: &[Row]| {
        1 + rows.windows(2).filter(|two| two[0].holders.owner() != two[1].holders.owner()).count()
    };
    // One joins after another, then they leave, and all come back at once.
    for members in 1..=10 {
        rows = carried_out(&rows, &planned(&rows, &equal_weights(members), 1));
    }
    assert!(ranges(&rows) <= 55, "{} ranges", ranges(&rows));
    for members in (3..10).rev() {
        rows = carried_out(&rows, &planned(&rows, &equal_weights(members), 1));
    }
    assert!(ranges(&rows) <= 90, "{} ranges", ranges(&rows));
    rows = carried_out(&rows, &planned(&rows, &equal_weights(10), 1));
    assert!(ranges(&rows) <= 120, "{} ranges", ranges(&rows));
}

fn at_backends(backends: &[u32]) -> Vec<Row> {
    backends.iter().map(|backend| Row { backend: *backend, ..Row::default() }).collect()
}

proptest! {
    #[test]
    fn backends_get_their_parts_and_nothing_else_moves(
        at in prop::collection::vec(0..4_u32, 1..400), weights in prop::collection::vec(0..5_u32, 4),
    ) {
        let rows = at_backends(&at);
        let named: BTreeMap<u32, u32> = (0..).zip(weights.iter().copied()).collect();
        let targets = plan_backends(&rows, &named);
        let sum: u32 = weights.iter().sum();
        if sum == 0 {
            prop_assert!(targets.is_empty());
            return Ok(());
        }
        prop_assert_eq!(targets.len(), rows.len());
        let count = |of: &[u32], backend: u32| of.iter().filter(|other| **other == backend).count();
        for (backend, weight) in &named {
            let (got, had) = (count(&targets, *backend), count(&at, *backend));
            let share = rows.len() * *weight as usize;
            prop_assert!(got * sum as usize >= share.saturating_sub(sum as usize), "{backend} got {got}");
            prop_assert!(got * (sum as usize) <= share + sum as usize, "{backend} got {got}");
            let stayed = at.iter().zip(&targets).filter(|(from,
                to)| from == to && **from == *backend).count();
            prop_assert_eq!(stayed, got.min(had), "a node with too little gives nothing, and one with too \
                much gets nothing");
        }
        prop_assert_eq!(plan_backends(&at_backends(&targets), &named), targets, "then nothing is left to be \
            done");
    }
}

#[test]
fn parts_follow_weights() {
    let rows = vec![Row::default(); 1_000];
    let after = carried_out(&rows, &planned(&rows, &[(1, 1), (2, 3), (3, 0), (4, 6)], 1));
    assert_eq!([1, 2, 3, 4].map(|member| counts(&after, member).0), [100, 300, 0, 600]);
    // No member can hold a partition twice, whatever its weight.
    let after = carried_out(&rows, &planned(&rows, &[(1, 1), (2, 1), (3, 98)], 2));
    assert_eq!([1, 2, 3].map(|member| counts(&after, member).1), [500, 500, 1_000]);
    assert!(planned(&rows, &[(1, 0)], 3).is_empty());
}
