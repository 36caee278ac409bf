//! The journal and the election on a real etcd.

use tokio::time::sleep;
use whimbrel_core::fleet::{Enrolled, Holders, MemberId, Row};
use whimbrel_lab::Etcd;

use super::super::election::{Outcome, Terms, stand};
use super::*;

/// Longer than anything takes here on a busy machine.
const WAIT: Duration = Duration::from_secs(60);

fn options(etcd: &Etcd) -> Arc<EtcdOptions> {
    Arc::new(EtcdOptions::parse(&format!("etcd://{}/a/fleet", etcd.addrs())).expect("an address"))
}

fn terms(address: &str, reign_s: u64) -> Terms {
    Terms { address: address.to_owned(), reign_s, drift_per_mille: 20 }
}

/// Waits until it is elected.
async fn elected(options: &Arc<EtcdOptions>, address: &str, reign_s: u64) -> Office {
    let mut client = Client::new(options.clone(), PATIENCE);
    let deadline = Instant::now() + WAIT;
    loop {
        match stand(&mut client, &terms(address, reign_s)).await {
            Ok(Outcome::Elected(office)) => return office,
            _ => assert!(Instant::now() < deadline, "it is never elected"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

fn member(number: u32, token: u64) -> Record {
    Record::Member(MemberId(number), Enrolled { token, weight: 2, is_leaving: token == 8 })
}

fn row(partition: u32, version: u64, owner: u32) -> Record {
    let holders = Holders::new(&[MemberId(owner)]).expect("one");
    Record::Row(partition, Row { version, backend: 0, holders })
}

/// The snapshot after these, in this term.
fn after(mut snapshot: Snapshot, term: u64, records: &[Record]) -> Snapshot {
    snapshot.term = term;
    records.iter().for_each(|record| snapshot.apply(record));
    snapshot
}

#[tokio::test]
async fn the_next_coordinator_knows_what_was_written_down() {
    const PARTITIONS: u32 = 20_000;
    let etcd = Etcd::start(1).expect("etcd");
    let options = options(&etcd);
    let office = elected(&options, "a:1", 60).await;
    let (mut journal, found) = EtcdJournal::begin(&options, &office, PARTITIONS).await.expect("it begins");
    let mut expected = after(Snapshot::new(PARTITIONS), 1, &[]);
    assert_eq!(found, expected);
    let backend = |name: &str| (name.to_owned(), format!("redis://{name}:1"));
    let numbers = journal.name_backends(&[backend("b"), backend("a")]).await.expect("named");
    assert_eq!(numbers.iter().map(|backend| backend.number).collect::<Vec<_>>(), [0, 1]);
    let small = [
        member(1, 7),
        member(2, 8),
        row(0, 1, 1),
        row(19_999, 1, 1),
        row(19_999, 2, 2),
        Record::Gone(MemberId(2)),
        Record::Backend(0, 2),
        Record::Backend(1, 3),
        Record::Backend(1, 0),
    ];
    journal.append(&small[..3]).await.expect("written");
    journal.append(&small[3..]).await.expect("written");
    expected = after(expected, 2, &small);
    office.resign().await;

    // More than one transaction takes, and more than one piece.
    let office = elected(&options, "b:1", 60).await;
    let (mut journal, found) = EtcdJournal::begin(&options, &office, PARTITIONS).await.expect("it begins");
    assert_eq!(found, expected);
    assert_eq!(found.next_member, 3, "numbers of those who are gone are not given again");
    let all: Vec<Record> = (0..PARTITIONS).map(|partition| row(partition, 5, 1)).collect();
    journal.append(&all).await.expect("written");
    expected = after(expected, 3, &all);
    office.resign().await;

    // It had not carried that over, and this one does not before it writes something itself.
    let office = elected(&options, "c:1", 60).await;
    let (_, found) = EtcdJournal::begin(&options, &office, PARTITIONS).await.expect("it begins");
    assert_eq!(found, expected);
    let (mut journal, found) =
        EtcdJournal::begin(&options, &office, PARTITIONS).await.expect("it begins again");
    expected.term = 4;
    assert_eq!(found, expected);
    let later = [row(3, 6, 9), member(4, 1)];
    journal.append(&later).await.expect("written");
    expected = after(expected, 5, &later);
    let (mut journal, found) =
        EtcdJournal::begin(&options, &office, PARTITIONS).await.expect("it begins again");
    assert_eq!(found, expected);
    assert!(journal.redo.is_empty(), "it is carried over");
    let missing = journal.name_backends(&[backend("b")]).await.expect_err("one is missing").to_string();
    assert!(missing.contains("a is not named"), "{missing}");
    let named = journal.name_backends(&[backend("a"), backend("c"), backend("b")]).await.expect("named");
    assert_eq!(named.iter().map(|backend| backend.number).collect::<Vec<_>>(), [1, 2, 0]);
}

#[tokio::test]
async fn a_batch_counts_when_it_is_whole_and_not_before() {
    let etcd = Etcd::start(1).expect("etcd");
    let options = options(&etcd);
    let office = elected(&options, "a:1", 60).await;
    let (mut journal, _) = EtcdJournal::begin(&options, &office, 300).await.expect("it begins");
    let piece = pack(&[row(7, 1, 1)]);
    journal.advance(vec![put(&journal.key("redo/0"), &piece)]).await.expect("written");
    let (mut journal, found) = EtcdJournal::begin(&options, &office, 300).await.expect("it begins");
    assert_eq!(found, after(Snapshot::new(300), 2, &[]));
    journal.advance(vec![put(&journal.key("redo"), "1")]).await.expect("written");
    let (_, found) = EtcdJournal::begin(&options, &office, 300).await.expect("it begins");
    assert_eq!(found, after(Snapshot::new(300), 3, &[row(7, 1, 1)]));
}

#[tokio::test]
async fn a_coordinator_after_which_another_one_was_elected_writes_nothing() {
    let etcd = Etcd::start(1).expect("etcd");
    let options = options(&etcd);
    let office = elected(&options, "a:1", 60).await;
    let (mut first, _) = EtcdJournal::begin(&options, &office, 64).await.expect("it begins");
    first.append(&[row(1, 1, 1)]).await.expect("written");
    // Its lease is gone, and it does not know: nothing it has says so.
    office.resign().await;
    let office = elected(&options, "b:1", 60).await;
    let refused = first.append(&[row(1, 2, 2)]).await.expect_err("the key of the election is another one");
    assert!(refused.to_string().contains("another coordinator"), "{refused}");
    let (mut second, found) = EtcdJournal::begin(&options, &office, 64).await.expect("it begins");
    assert_eq!(found, after(Snapshot::new(64), 2, &[row(1, 1, 1)]));
    // Not even if it takes the other's election for its own: the term is another one.
    first.elected_at = office.elected_at;
    first.append(&[row(1, 2, 2)]).await.expect_err("the term is over");
    second.append(&[row(1, 3, 3)]).await.expect("written");
    let (_, found) = EtcdJournal::begin(&options, &office, 64).await.expect("it begins");
    assert_eq!(found, after(Snapshot::new(64), 3, &[row(1, 1, 1), row(1, 3, 3)]));
}

#[tokio::test]
async fn what_is_sent_twice_is_done_once_and_what_comes_late_not_at_all() {
    let etcd = Etcd::start(1).expect("etcd");
    let options = options(&etcd);
    let office = elected(&options, "a:1", 60).await;
    let (mut journal, _) = EtcdJournal::begin(&options, &office, 64).await.expect("it begins");
    let key = journal.key("x");
    journal.advance(vec![put(&key, "one")]).await.expect("written");
    // As after an answer that was lost.
    journal.number -= 1;
    journal.advance(vec![put(&key, "two")]).await.expect("it has been done");
    let value = async |journal: &mut EtcdJournal| {
        let answer = journal.client.call(RANGE, &json!({"key": base64(&key)}), Instant::now() + WAIT).await;
        entries(&answer.expect("an answer"))[0].text().to_owned()
    };
    assert_eq!(value(&mut journal).await, "one");
    journal.advance(vec![put(&key, "three")]).await.expect("written");
    journal.number -= 2;
    journal.advance(vec![put(&key, "one")]).await.expect_err("others were done after it");
    assert_eq!(value(&mut journal).await, "three");
}

#[tokio::test]
async fn who_is_elected_stays_so_while_the_lease_is_kept_alive_and_no_longer() {
    // Not so short that it ends while a busy machine lets this process or etcd wait.
    const REIGN_S: u64 = 6;
    let etcd = Etcd::start(1).expect("etcd");
    let options = options(&etcd);
    let office = elected(&options, "a:1", REIGN_S).await;
    let mut client = Client::new(options.clone(), WAIT);
    let Ok(Outcome::Other(leader)) = stand(&mut client, &terms("b:1", REIGN_S)).await else {
        panic!("two lead")
    };
    assert_eq!(leader.as_deref(), Some("a:1"));
    // It becomes longer and longer.
    let first_ms = *office.until_ms.borrow();
    let mut until = office.until_ms.clone();
    let longer = tokio::time::timeout(WAIT, until.wait_for(|until_ms| *until_ms > first_ms + 1_000)).await;
    assert!(*longer.expect("in time").expect("it is kept") <= clock::now_ms() + 1_000 * REIGN_S);
    // etcd answers nothing any more: what was promised is not made longer, and ends.
    etcd.nodes()[0].suspend().expect("suspended");
    let mut until = office.until_ms.clone();
    // The candidate that keeps it gives up when it is over.
    let over = tokio::time::timeout(WAIT, until.wait_for(|_| false)).await.expect("in time");
    assert!(over.is_err() && *office.until_ms.borrow() <= clock::now_ms());
    etcd.nodes()[0].resume().expect("resumed");
    let second = elected(&options, "b:1", REIGN_S).await;
    assert!(second.elected_at > office.elected_at);
    let (mut journal, _) = EtcdJournal::begin(&options, &second, 64).await.expect("it begins");
    journal.append(&[row(1, 1, 1)]).await.expect("written");
}

#[tokio::test]
async fn another_server_is_asked_where_one_does_not_answer() {
    let etcd = Etcd::start(3).expect("etcd");
    let options = options(&etcd);
    let office = elected(&options, "a:1", 30).await;
    let (mut journal, _) = EtcdJournal::begin(&options, &office, 64).await.expect("it begins");
    journal.append(&[row(1, 1, 1)]).await.expect("written");
    let leader = etcd.leader().expect("one leads");
    etcd.nodes()[leader].kill9().expect("killed");
    journal.append(&[row(1, 2, 2)]).await.expect("written");
    etcd.nodes()[leader].restart().expect("it is there again");
    let leader = etcd.leader().expect("one leads");
    etcd.nodes()[leader].suspend().expect("suspended");
    journal.append(&[row(1, 3, 3)]).await.expect("written");
    etcd.nodes()[leader].resume().expect("resumed");
    let (_, found) = EtcdJournal::begin(&options, &office, 64).await.expect("it begins");
    assert_eq!(found, after(Snapshot::new(64), 2, &[row(1, 3, 3)]));
}

#[tokio::test]
async fn only_who_may_and_means_this_fleet_is_let_in() {
    let etcd = Etcd::start(1).expect("etcd");
    let open = options(&etcd);
    let office = elected(&open, "a:1", 60).await;
    EtcdJournal::begin(&open, &office, 64).await.expect("it begins");
    let deadline = || Instant::now() + WAIT;
    let mut client = Client::new(open.clone(), PATIENCE);
    let wrong = check(&mut client, 65, deadline()).await.expect_err("another number").to_string();
    assert!(wrong.contains("64 partitions, not 65"), "{wrong}");
    let post = |path: &str, body: Value| {
        etcd.nodes()[0].post(&format!("/v3/auth/{path}"), &body.to_string()).expect("it answers");
    };
    let below = json!({"permType": "READWRITE", "key": base64("a/fleet/"), "range_end": base64("a/fleet0")});
    post("role/add", json!({"name": "fleet"}));
    post("role/grant", json!({"name": "fleet", "perm": below}));
    post("user/add", json!({"name": "whimbrel", "password": "hunter4"}));
    post("user/grant", json!({"user": "whimbrel", "role": "fleet"}));
    office.resign().await;
    etcd.require_login("hunter2").expect("it takes passwords");
    // What the page of the fleet says that has to be allowed is enough.
    let allowed = |prefix: &str| {
        let text = format!("etcd://whimbrel:hunter4@{}/{prefix}", etcd.addrs());
        Arc::new(EtcdOptions::parse(&text).expect("an address"))
    };
    let options = allowed("a/fleet");
    let office = elected(&options, "b:1", 60).await;
    let (mut journal, _) = EtcdJournal::begin(&options, &office, 64).await.expect("it begins");
    let all: Vec<Record> = (0..64).map(|partition| row(partition, 1, 1)).collect();
    journal.append(&all).await.expect("written");
    let mut client = Client::new(allowed("a/other"), PATIENCE);
    let refused = check(&mut client, 64, deadline()).await.expect_err("it may not").to_string();
    assert!(refused.contains("readwrite"), "{refused}");
    for (login, is_right) in
        [("", false), ("root:hunter3@", false), ("nobody:hunter2@", false), ("root:hunter2@", true)]
    {
        let options =
            EtcdOptions::parse(&format!("etcd://{login}{}/a/fleet", etcd.addrs())).expect("an address");
        let mut client = Client::new(Arc::new(options), PATIENCE);
        let outcome = check(&mut client, 64, deadline()).await;
        assert_eq!(outcome.is_ok(), is_right, "{login}: {outcome:?}");
        let text = outcome.err().map(|e| e.to_string()).unwrap_or_else(|| "login".to_owned());
        assert!(text.contains("login") && !text.contains("hunter"), "{text}");
    }
    let nowhere = Arc::new(EtcdOptions::parse("etcd://127.0.0.1:1").expect("an address"));
    let error =
        check(&mut Client::new(nowhere, PATIENCE), 64, Instant::now()).await.expect_err("nobody is there");
    assert!(error.is_link() && error.to_string().contains("127.0.0.1:1"), "{error}");
}
