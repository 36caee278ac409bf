//! Valkey 8.1 and later, where a fence is a longer pause, and holds for as long as that is on.

use whimbrel_core::slot::SlotSet;
use whimbrel_engine::handover::{HandoverOptions, SlotFenceKind};
use whimbrel_lab::Engine;

use super::{Field, PAUSE_MS, set, slots};

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_is_refused_when_something_was_written_behind_the_fence() {
    for engine in [Engine::Valkey81, Engine::Valkey91] {
        let field = Field::new(engine).await;
        let moving = slots("0-99");
        let written = moving.iter().next().expect("a slot");
        field.fill(0, &moving, 2).await;
        let options = HandoverOptions { fence: Some(SlotFenceKind::Gossip), ..HandoverOptions::default() };
        let mut handover = field.handover_with(0, 1, options).await;
        handover.mark_importing(&moving).await.expect("marks");
        field.stage(0, 1, &moving).await;
        handover.raise_epoch().await.expect("an epoch");
        let paused = handover.pause(PAUSE_MS).await.expect("a pause");
        assert!(handover.wait_replicas(10_000).await.expect("an answer"), "replicas lag");
        assert!(handover.fence(&moving, &paused).await.expect("a fence").held);
        // The pause ends, as it does while the machine that relies on it is suspended, and a client is quick.
        field.link(0).await.call(&[b"CLIENT", b"UNPAUSE"]).await.expect("unpaused");
        assert!(set(&field, 0, written).await.as_error().is_none());

        let refused = handover.take_over(&moving, u64::MAX).await.expect_err("something was written");
        assert!(refused.server().is_some(), "nothing was changed for certain: {refused}");
        assert!(refused.to_string().contains("behind the fence"), "{refused}");
        let seen = handover.inspect(&moving).await.expect("seen");
        assert_eq!((seen.source.claims, seen.target.claims), (moving.clone(), SlotSet::new()));
        // It can be done once more, with what was written.
        field.hand_over(&mut handover, 0, 1, &moving).await;
        field.all_well(&moving, 1).await;
        field.keys_are_at(&moving, 1, 0, 201).await;
    }
}
