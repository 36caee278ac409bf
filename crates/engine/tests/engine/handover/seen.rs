//! Jobs that see each other.

use whimbrel_core::slot::tag_for_slot;
use whimbrel_engine::handover::{Handover, HandoverOptions};
use whimbrel_lab::{Cluster, Engine};

use super::{Field, PAUSE_MS, slots, until};

async fn is_alone(handover: &mut Handover) -> bool {
    handover.other_jobs().await.expect("a list").is_empty()
}

pub(super) async fn two_handovers_see_each_other_and_old_ones_are_cut_off(engine: Engine) {
    let field = Field::of(engine, &Cluster::builder(engine).primaries(2)).await;
    let moving = slots("0-9");
    let mut first = field.handover(0, 1).await;
    assert!(first.other_jobs().await.expect("a list").is_empty(), "it is alone");
    let options = HandoverOptions { label: "second".to_owned(), ..HandoverOptions::default() };
    let mut second = field.handover_with(0, 1, options).await;
    let seen = first.other_jobs().await.expect("a list");
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen.iter().all(|job| job.starts_with("whimbrel:job:second from 127.0.0.1:")), "{seen:?}");
    assert!(!second.other_jobs().await.expect("a list").is_empty());

    // One that only looks whether it may begin is in nobody's way, and gives way to those that were there
    // before.
    let observing =
        |name: &str| HandoverOptions { label: name.to_owned(), begun: false, ..Default::default() };
    drop(second);
    let mut third = field.handover_with(0, 1, observing("third")).await;
    // Those that have just gone are listed for a moment.
    until("one that has not begun is no job", async || is_alone(&mut first).await).await;
    assert_eq!(third.other_jobs().await.expect("a list").len(), 2);
    drop(first);
    let mut fourth = field.handover_with(0, 1, observing("fourth")).await;
    until("the later one gives way", async || is_alone(&mut third).await).await;
    assert_eq!(fourth.other_jobs().await.expect("a list").len(), 2);
    third.begin().await.expect("it begins");
    let seen = fourth.other_jobs().await.expect("a list");
    assert!(seen.iter().all(|job| job.starts_with("whimbrel:job:third from ")), "{seen:?}");
    drop((third, fourth));

    let mut first = field.handover(0, 1).await;
    until("all others have gone", async || is_alone(&mut first).await).await;

    Handover::observe(&field.deployment, &field.id(0), &field.id(1), &moving).await.expect("seen");
    let cut = first.mark_importing(&moving).await.expect_err("its connections are closed");
    assert!(cut.is_link(), "{cut}");
}

/// A job that goes on lifts the pause that its killed process may have left, and not that of another job.
pub(super) async fn a_pause_of_another_job_is_left(engine: Engine) {
    let field = Field::of(engine, &Cluster::builder(engine).primaries(2)).await;
    let named = |name: &str| HandoverOptions { label: name.to_owned(), ..HandoverOptions::default() };
    let mut at_work = field.handover_with(0, 1, named("at-work")).await;
    at_work.pause(PAUSE_MS).await.expect("a pause");
    let mut writer = field.cluster.connection_to(0);
    let id: i64 = redis::cmd("CLIENT").arg("ID").query(&mut writer).expect("a number");
    let slot = field.own_slots(0).await.iter().next().expect("it has slots");
    let key = format!("{{{}}}", tag_for_slot(slot));
    let write = std::thread::spawn(move || redis::cmd("SET").arg(key).arg("v").exec(&mut writer));
    let mut looker = field.cluster.connection_to(0);
    let mut waits = || {
        let list = redis::cmd("CLIENT").arg("LIST").arg("ID").arg(id).query::<String>(&mut looker);
        let list = list.expect("a list");
        let flags = list.split(' ').find_map(|field| field.strip_prefix("flags="));
        flags.is_some_and(|flags| flags.contains('b'))
    };
    until("the write waits", async || waits()).await;

    let mut resumed = field.handover_with(0, 1, named("resumed")).await;
    resumed.release_what_is_left().await.expect("left");
    assert!(waits() && !write.is_finished(), "{engine}: the other job's pause was lifted");
    drop(at_work);
    until("the pause is lifted once that job has gone", async || {
        resumed.release_what_is_left().await.expect("lifted");
        write.is_finished()
    })
    .await;
    write.join().expect("no panic").expect("written");
}
