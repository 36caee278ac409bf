//! What is decided about clusters of three primaries and their replicas.

use super::*;
use crate::cluster::{KeyCounts, Node, Owners, Role};

const SLOT: Slot = Slot::MIN;

/// The id of a node.
fn id(node: usize) -> NodeId {
    node.to_string().repeat(40).parse().expect("an id")
}

/// The slots of a primary.
fn third(node: usize) -> SlotSet {
    ["0-5460", "5461-10922", "10923-16383"][node].parse().expect("slots")
}

/// A node, with what it says.
struct Reported {
    id: NodeId,
    primary: Option<NodeId>,
    answers: bool,
    config_epoch: u64,
    slots: SlotSet,
    importing: Vec<(Slot, NodeId)>,
    migrating: Vec<(Slot, NodeId)>,
    owners: Owners,
    failed: Vec<(NodeId, u64)>,
    counts: KeyCounts,
    hidden_keys: u64,
    keys_elsewhere: u64,
    corrects_replicas: bool,
}

impl Reported {
    fn role(&self) -> Role {
        if self.primary.is_some() { Role::Replica } else { Role::Primary }
    }

    fn node(&self) -> Node<'_> {
        let state = State {
            role: self.role(),
            primary: self.primary.as_ref(),
            config_epoch: self.config_epoch,
            slots: &self.slots,
            importing: &self.importing,
            migrating: &self.migrating,
            owners: &self.owners,
            failed: &self.failed,
            counts: Some(&self.counts),
            hidden_keys: self.hidden_keys,
            keys_elsewhere: self.keys_elsewhere,
            repl_offset: 0,
            corrects_replicas: self.corrects_replicas,
        };
        Node {
            id: &self.id,
            reported_role: self.role(),
            reported_primary: self.primary.as_ref(),
            state: self.answers.then_some(state),
        }
    }
}

/// Primaries 0 to 2, each with a third of the slots, and replicas 3 to 5 of them. They hold no keys.
struct Scene {
    nodes: Vec<Reported>,
}

impl Scene {
    fn new() -> Scene {
        let owned: Vec<(NodeId, SlotSet)> = (0..3).map(|n| (id(n), third(n))).collect();
        let reported = |node: usize| Reported {
            id: id(node),
            primary: (node >= 3).then(|| id(node - 3)),
            answers: true,
            config_epoch: (node % 3) as u64 + 1,
            slots: if node < 3 { third(node) } else { SlotSet::new() },
            importing: Vec::new(),
            migrating: Vec::new(),
            owners: Owners::new(owned.clone()),
            failed: Vec::new(),
            counts: KeyCounts::default(),
            hidden_keys: 0,
            keys_elsewhere: 0,
            corrects_replicas: true,
        };
        Scene { nodes: (0..6).map(reported).collect() }
    }

    fn plan(&self) -> Plan {
        let nodes = self.nodes.iter().map(Reported::node).collect();
        decide(&Cluster { nodes }, &SlotSet::full())
    }

    /// Why something is left alone.
    fn obstacles(&self) -> Vec<Obstacle> {
        self.plan().left.into_iter().map(|left| left.obstacle).collect()
    }

    fn keys(mut self, node: usize, keys: u32) -> Scene {
        self.nodes[node].counts.set(SLOT, keys);
        self
    }

    fn importing(mut self, node: usize, from: usize) -> Scene {
        self.nodes[node].importing.push((SLOT, id(from)));
        self
    }

    fn migrating(mut self, node: usize, to: usize) -> Scene {
        self.nodes[node].migrating.push((SLOT, id(to)));
        self
    }

    /// In the view of `node` the slot belongs to `owner`; if that is the node itself, it claims it.
    fn sees(mut self, node: usize, owner: Option<usize>) -> Scene {
        let slots = |n| {
            let mut slots = third(n);
            slots.remove(SLOT);
            slots.extend((owner == Some(n)).then_some(SLOT));
            (id(n), slots)
        };
        let state = &mut self.nodes[node];
        state.owners = Owners::new((0..3).map(slots));
        if node < 3 {
            state.slots = slots(node).1;
        }
        self
    }

    fn all_see(self, owner: Option<usize>) -> Scene {
        (0..6).fold(self, |scene, node| scene.sees(node, owner))
    }

    fn silent(mut self, node: usize) -> Scene {
        self.nodes[node].answers = false;
        self
    }

    /// The changes; each must be about the one slot.
    fn changes(&self) -> Vec<Change> {
        let actions = self.plan().actions;
        actions
            .into_iter()
            .map(|action| {
                assert_eq!(action.slots, SlotSet::from_iter([SLOT]), "{:?}", action.change);
                action.change
            })
            .collect()
    }
}

fn clear(node: usize) -> Change {
    Change::ClearMarks { node: id(node) }
}

fn claim(node: usize) -> Change {
    Change::Claim { node: id(node) }
}

fn empty(holder: usize, owner: usize, copied: bool) -> Change {
    Change::Empty { holder: id(holder), owner: id(owner), copied, fate: None }
}

#[test]
fn nothing_is_done_to_a_healthy_cluster() {
    let scene = Scene::new().keys(0, 5).keys(3, 5);
    assert_eq!(scene.plan(), Plan::default());
}

#[test]
fn open_slots_are_closed_or_finished() {
    let pair = || Scene::new().migrating(0, 1).importing(1, 0).keys(0, 5);
    assert_eq!(pair().changes(), [clear(0), clear(1)]);
    let finish = |mark_target| Change::Finish { source: id(0), target: id(1), mark_target };
    assert_eq!(pair().keys(1, 2).changes(), [finish(false)]);
    assert_eq!(pair().keys(0, 0).keys(1, 2).changes(), [finish(false)]);
    // One side only.
    let source_only = || Scene::new().migrating(0, 1).keys(0, 5);
    assert_eq!(source_only().changes(), [clear(0)]);
    assert_eq!(source_only().keys(1, 2).changes(), [finish(true)]);
    let target_only = || Scene::new().importing(1, 0).keys(0, 5);
    assert_eq!(target_only().changes(), [clear(1)]);
    assert_eq!(target_only().keys(1, 2).changes(), [empty(1, 0, true)]);
    // The marks do not meet.
    assert_eq!(Scene::new().migrating(0, 1).importing(2, 0).changes(), [clear(0), clear(2)]);
    assert_eq!(
        Scene::new().migrating(0, 1).importing(2, 0).keys(2, 1).changes(),
        [clear(0), empty(2, 0, true)]
    );
    assert_eq!(Scene::new().migrating(0, 1).importing(1, 2).keys(1, 1).changes(), [clear(1), finish(true)]);
    assert_eq!(Scene::new().importing(1, 2).changes(), [clear(1)]);
    assert_eq!(Scene::new().importing(1, 2).keys(1, 1).changes(), [clear(1), empty(1, 0, false)]);
    // A third node imports as well, from the node that is about to lose the slot: it must not take it by
    // itself.
    assert_eq!(
        pair().keys(1, 2).importing(2, 0).keys(2, 1).changes(),
        [clear(2), finish(false), empty(2, 1, false)]
    );
    // Marks that the wrong node has.
    assert_eq!(Scene::new().migrating(2, 1).changes(), [clear(2)]);
    assert_eq!(Scene::new().importing(0, 1).changes(), [clear(0)]);
    // To a replica, and to the node itself.
    assert_eq!(Scene::new().migrating(0, 4).changes(), [clear(0)]);
    assert_eq!(Scene::new().migrating(0, 0).changes(), [clear(0)]);
}

#[test]
fn keys_that_do_not_belong_are_found() {
    assert_eq!(Scene::new().keys(2, 1).changes(), [empty(2, 0, false)]);
    let replica = Change::EmptyReplica { primary: id(1), replica: id(4) };
    assert_eq!(Scene::new().keys(4, 1).changes(), [replica]);
    // What the primary has is removed there, and so from its replica.
    assert_eq!(Scene::new().keys(1, 1).keys(4, 1).changes(), [empty(1, 0, false)]);
}

#[test]
fn a_slot_without_owner_goes_where_the_rules_say() {
    let unowned = || Scene::new().all_see(None);
    // All lie the same: the first with the fewest slots. Node 0 and 2 have 5460 and 5461 then.
    assert_eq!(unowned().changes(), [claim(0)]);
    assert_eq!(unowned().keys(2, 3).changes(), [claim(2)]);
    let last_was_0 = || Scene::new().sees(0, None);
    assert_eq!(last_was_0().changes(), [claim(0)]);
    assert_eq!(last_was_0().keys(0, 1).keys(1, 9).changes(), [claim(0), empty(1, 0, false)]);
    assert_eq!(last_was_0().keys(1, 1).keys(2, 9).changes(), [claim(2), empty(1, 2, false)]);
    assert_eq!(
        unowned().keys(1, 9).keys(2, 1).importing(2, 0).changes(),
        [clear(2), claim(2), empty(1, 2, false)]
    );
    assert_eq!(unowned().importing(1, 0).changes(), [clear(1), claim(0)]);
}

#[test]
fn a_broken_handover_goes_back_to_the_source() {
    // The source names the target, which has not taken over; all others still name the source.
    let broken = Scene::new().sees(0, Some(1)).importing(1, 0).keys(0, 9).keys(1, 9);
    assert_eq!(broken.changes(), [clear(1), claim(0), empty(1, 0, true)]);
    // In a cluster of two there are as many votes for either.
    let mut tied = Scene::new().sees(0, Some(1)).importing(1, 0).keys(0, 9).keys(1, 9);
    tied.nodes.truncate(2);
    assert!(tied.changes_of_slot().contains(&claim(0)));
}

impl Scene {
    /// The changes about the slot, whatever else there is.
    fn changes_of_slot(&self) -> Vec<Change> {
        self.plan().actions.into_iter().filter(|a| a.slots.contains(SLOT)).map(|a| a.change).collect()
    }
}

#[test]
fn views_that_differ_are_corrected() {
    let announce = || Change::Announce { owner: id(0) };
    assert_eq!(Scene::new().sees(2, Some(1)).changes(), [announce()]);
    assert_eq!(Scene::new().sees(5, Some(1)).changes(), [announce()]);
    // Two nodes that take each other for it: the node with the keys gets it.
    let mutual = || Scene::new().sees(0, Some(1));
    assert_eq!(mutual().keys(1, 3).changes(), [claim(1)]);
    assert_eq!(mutual().keys(0, 3).changes(), [claim(0)]);
    // Two that claim it: the newer claim stands, and the keys of the other go there.
    let both = Scene::new().sees(1, Some(1)).keys(0, 4).keys(1, 1);
    let (stop, announce) = (Change::Yield { node: id(0), owner: id(1) }, Change::Announce { owner: id(1) });
    assert_eq!(both.changes(), [stop, announce, empty(0, 1, false)]);
}

#[test]
fn what_belongs_to_a_silent_node_is_left_alone() {
    let scene = Scene::new().silent(0).importing(1, 0).keys(1, 3).keys(2, 3);
    assert_eq!(scene.changes(), []);
    assert_eq!(scene.obstacles(), [Obstacle::SilentOwner(id(0)), Obstacle::Silent(id(0))]);
    assert_eq!(scene.plan().left[0].slots, SlotSet::from_iter([SLOT]));
    let scene = Scene::new().silent(1).migrating(0, 1);
    assert_eq!(scene.changes(), []);
    assert_eq!(scene.obstacles(), [Obstacle::SilentTarget(id(1)), Obstacle::Silent(id(1))]);
    // The node that took over from it has a newer claim that all others see.
    let scene = (1..6).fold(Scene::new().silent(0).keys(1, 3), |scene, node| scene.sees(node, Some(1)));
    assert_eq!(scene.changes_of_slot(), []);
}

/// Primary 0 has failed with its last claim at this epoch, in the view of each other one.
fn failed(epochs: [u64; 2]) -> Scene {
    let mut scene = Scene::new().silent(0);
    for (node, epoch) in [1, 2].into_iter().zip(epochs) {
        scene.nodes[node].failed.push((id(0), epoch));
    }
    scene
}

#[test]
fn a_replica_that_nobody_votes_for_learns_what_its_primary_claimed() {
    let remind = || Change::Remind { primary: id(0), epoch: 9, replicas: vec![id(3)] };
    let changes = |scene: &Scene| -> Vec<Change> {
        scene.plan().actions.into_iter().map(|action| action.change).collect()
    };
    assert_eq!(changes(&failed([9, 9])), [remind()]);
    assert_eq!(failed([9, 9]).plan().actions[0].slots, third(0));
    // Of three votes it needs two.
    assert_eq!(changes(&failed([1, 9])), [remind()]);
    assert_eq!(changes(&failed([1, 1])), [], "it is elected");
    let mut scene = failed([9, 9]);
    for node in [1, 2] {
        scene.nodes[node].corrects_replicas = false;
    }
    assert_eq!(changes(&scene), [], "they would not notify it");
    let obstacle = Obstacle::NoElection { primary: id(0), best: id(3) };
    assert!(scene.obstacles().contains(&obstacle), "{:?}", scene.obstacles());
    let mut scene = failed([9, 9]);
    scene.nodes[3].config_epoch = 9;
    assert_eq!(changes(&scene), [], "it is elected");
    let mut scene = failed([9, 9]);
    scene.nodes[2].failed.clear();
    assert_eq!(changes(&scene), [], "a majority does not find it failed");
    assert_eq!(changes(&failed([9, 9]).silent(3)), [], "there is no replica");
    assert_eq!(changes(&failed([9, 9]).silent(2)), [], "there is no majority");
}

#[test]
fn keys_in_other_databases_stop_it() {
    let mut scene = Scene::new().keys(1, 3);
    scene.nodes[1].keys_elsewhere = 1;
    assert_eq!(scene.changes(), []);
    assert_eq!(scene.obstacles(), [Obstacle::OtherDatabases(id(1))]);
}

#[test]
fn what_a_repair_was_moving_are_no_copies() {
    let scene = || Scene::new().importing(1, 0).keys(1, 2);
    let divided = |moving: &str| {
        let action = scene().plan().actions.remove(0);
        divide(action, &moving.parse().expect("slots"), |slots| 2 * slots.len() as u64)
    };
    assert_eq!(divided("7"), scene().plan().actions);
    let all = divided("0-7");
    assert_eq!((all.len(), all[0].keys, &all[0].change), (1, 2, &empty(1, 0, false)));
}

#[test]
fn only_what_was_copied_is_discarded() {
    let evidence = |both, only| Evidence { both, only };
    assert_eq!(fate(true, evidence(9, 1)), Fate::Discard);
    assert_eq!(fate(true, evidence(0, 1)), Fate::Move);
    assert_eq!(fate(true, evidence(3, 4)), Fate::Move);
    assert_eq!(fate(false, evidence(9, 0)), Fate::Move);
}

#[test]
fn hidden_keys_are_looked_for_in_all_slots_of_others() {
    let mut scene = Scene::new();
    scene.nodes[2].hidden_keys = 3;
    let plan = scene.plan();
    let empty = |owner: usize| Action {
        change: Change::Empty { holder: id(2), owner: id(owner), copied: false, fate: None },
        slots: third(owner),
        keys: 0,
        why: Why::HiddenKeys { keys: 3 },
        evidence: None,
    };
    assert_eq!(plan.actions, [empty(0), empty(1)]);
}

#[test]
fn copies_that_show_do_not_win_over_keys_that_may_be_hidden() {
    let mut scene = Scene::new();
    // Node 0 has given the slot up to node 1, which has copies, and marks them as that.
    scene.nodes[0].slots = third(0).difference(&[SLOT].into_iter().collect());
    scene.nodes[1].importing.push((SLOT, id(0)));
    scene.nodes[1].counts.set(SLOT, 5);
    let claim = |scene: &Scene| {
        scene.plan().actions.into_iter().find_map(|action| match action.change {
            Change::Claim { node } => Some((node, action.why)),
            _ => None,
        })
    };
    assert_eq!(claim(&scene), Some((id(1), Why::OnlyHolder)));
    scene.nodes[0].hidden_keys = 1;
    assert_eq!(claim(&scene), Some((id(0), Why::SeenAsOwner)));
}

#[test]
fn a_target_that_may_hide_what_has_arrived_is_not_taken_for_an_empty_one() {
    let mut scene = Scene::new();
    scene.nodes[0].migrating.push((SLOT, id(1)));
    assert!(matches!(scene.plan().actions[..], [Action { change: Change::ClearMarks { .. }, .. }]));
    scene.nodes[1].hidden_keys = 1;
    let finish = Change::Finish { source: id(0), target: id(1), mark_target: true };
    assert_eq!(scene.plan().actions[0].change, finish);
}
