//! Valkey 8.0, where a node announces neither a raised epoch nor slots that were claimed in a transaction.

use whimbrel_engine::probe::Info;
use whimbrel_lab::Engine;

use super::retried::clean_up;
use super::{Field, PAUSE_MS, slots};

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_does_not_hold_when_something_was_written() {
    super::a_fence_does_not_hold_when_something_was_written(Engine::Valkey80).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_dropped_half_way_is_found_out_and_repaired() {
    super::what_was_dropped_half_way_is_found_out_and_repaired(Engine::Valkey80).await;
}

/// The first time that a node of Valkey 8.0 notifies others of a raised epoch is up to chance, and takes
/// seconds: no batch may depend on one of the source's.
#[tokio::test(flavor = "multi_thread")]
async fn no_batch_waits_for_an_epoch_that_nobody_announces() {
    let field = Field::new(Engine::Valkey80).await;
    let moving = slots("0-4095");
    field.fill(0, &moving, 1).await;
    let before = field.view(0).await.me().config_epoch;
    let mut handover = field.handover(0, 1).await;
    let batches = Field::batches(&handover, &moving);
    assert!(batches.len() > 2, "{}", batches.len());
    for batch in batches {
        field.hand_over(&mut handover, 0, 1, &batch).await;
        assert_eq!(field.view(0).await.me().config_epoch, before, "the source's epoch was raised");
    }
    field.all_well(&moving, 1).await;
    let keys = field.keys_in(1, &moving).await;
    field.keys_are_at(&moving, 1, 0, keys).await;
}

/// On Valkey 8.0 a claim reaches the other nodes by chance, unless a `SETSLOT` follows. Where the target's
/// replicas keep it from that, the take-over does without.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_claim_is_followed_by_one_that_all_nodes_hear() {
    let field = Field::new(Engine::Valkey80).await;
    let replica = &field.cluster.nodes()[field.replica(1)];
    let setslots = async || {
        let stats = Info::ask(&mut field.link(1).await, "commandstats").await.expect("statistics");
        stats.calls("cluster|setslot")
    };
    let mut handover = field.handover(0, 1).await;
    for (text, is_hindered) in [("0-99", false), ("100-199", true), ("200", false), ("201", true)] {
        let moving = slots(text);
        field.fill(0, &moving, 2).await;
        handover.mark_importing(&moving).await.expect("marks");
        field.stage(0, 1, &moving).await;
        handover.raise_epoch().await.expect("an epoch");
        let paused = handover.pause(PAUSE_MS).await.expect("a pause");
        assert!(handover.wait_replicas(10_000).await.expect("an answer"), "replicas lag");
        assert!(handover.fence(&moving, &paused).await.expect("a fence").held);
        let before = setslots().await;
        if is_hindered {
            replica.suspend().expect("suspended");
        }
        handover.take_over(&moving, u64::MAX).await.expect("taken over");
        let view = field.view(1).await;
        assert!(moving.difference(&view.me().slots).is_empty(), "it claims all of them");
        assert!(setslots().await >= before + 2, "nobody was notified");
        let epochs = view.nodes.iter().map(|node| node.config_epoch);
        assert_eq!(Some(view.me().config_epoch), epochs.max(), "its claim is the latest");
        if is_hindered {
            replica.resume().expect("resumed");
        }
        handover.settle(&moving, None).await.expect("settled");
        handover.confirm(&moving, &moving).await.expect("confirmed");
        clean_up(&mut handover, &moving, None).await;
        field.all_well(&moving, 1).await;
        field.keys_are_at(&moving, 1, 0, 2 * moving.len() as u64).await;
    }
}
