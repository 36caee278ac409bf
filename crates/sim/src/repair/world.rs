//! A small cluster as its servers keep it, and what they do by themselves.

/// Most nodes, slots, and keys in a slot.
pub const NODES: usize = 4;
/// Likewise.
pub const SLOTS: usize = 2;
/// Likewise.
pub const KEYS: usize = 2;

/// In place of a node.
pub const NOBODY: u8 = u8::MAX;

/// Which cluster it is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many primaries; they come first.
    pub primaries: usize,
    /// How many replicas: one of the first primary, one of the second, and so on.
    pub replicas: usize,
    /// How many slots.
    pub slots: usize,
    /// How many keys each slot may have.
    pub keys: usize,
    /// A primary that the repair cannot reach.
    pub silent: Option<usize>,
}

impl Shape {
    /// All nodes.
    pub fn nodes(&self) -> std::ops::Range<usize> {
        0..self.primaries + self.replicas
    }

    /// Whom a node follows.
    pub fn primary_of(&self, node: usize) -> Option<usize> {
        node.checked_sub(self.primaries)
    }

    /// Whether a node can be reached.
    pub fn answers(&self, node: usize) -> bool {
        self.silent != Some(node)
    }
}

/// What a node has noted about a slot that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// Nothing.
    None,
    /// It takes the slot in from this node.
    From(u8),
    /// It gives it away to this node.
    To(u8),
}

impl Mark {
    fn without_import(self) -> Mark {
        match self {
            Mark::From(_) => Mark::None,
            other => other,
        }
    }
}

/// One slot on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Whom the node takes for the owner.
    pub owner: u8,
    /// Its mark.
    pub mark: Mark,
    /// The value of each key: the number of the node that had it first, plus one; 0 where there is none.
    pub values: [u8; KEYS],
    /// Whether it has a note that a repair moves keys to it.
    pub noted: bool,
}

impl Cell {
    /// Nothing at all.
    pub const EMPTY: Cell = Cell { owner: NOBODY, mark: Mark::None, values: [0; KEYS], noted: false };
}

/// All nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The epochs of their claims. Only the order counts.
    pub epochs: [u8; NODES],
    /// For each node, its slots.
    pub cells: [[Cell; SLOTS]; NODES],
}

impl World {
    /// The primaries that answer and say that a slot is their own.
    pub fn claimants(&self, shape: &Shape, slot: usize) -> impl Iterator<Item = usize> {
        (0..shape.primaries).filter(move |node| shape.answers(*node) && self.claims(*node, slot))
    }

    /// Whether a primary says so.
    pub fn claims(&self, node: usize, slot: usize) -> bool {
        usize::from(self.cells[node][slot].owner) == node
    }

    /// The one that says so, where there is one alone.
    pub fn sole_claimant(&self, shape: &Shape, slot: usize) -> Option<usize> {
        let mut claimants = self.claimants(shape, slot);
        claimants.next().filter(|_| claimants.next().is_none())
    }

    /// Whether any primary has a key.
    pub fn exists(&self, shape: &Shape, slot: usize, key: usize) -> bool {
        (0..shape.primaries).any(|node| self.cells[node][slot].values[key] != 0)
    }

    /// The value that clients find: the owner's, or else that of the node that the slot is being moved to.
    pub fn found_at(&self, shape: &Shape, owner: usize, slot: usize, key: usize) -> u8 {
        let cell = self.cells[owner][slot];
        match (cell.values[key], cell.mark) {
            (0, Mark::To(target)) if shape.primary_of(usize::from(target)).is_none() => {
                let target = self.cells[usize::from(target)][slot];
                if target.mark == Mark::From(owner as u8) { target.values[key] } else { 0 }
            }
            (value, _) => value,
        }
    }

    /// Writes or removes a key on a primary, and so on its replicas.
    pub fn set_value(&mut self, shape: &Shape, node: usize, slot: usize, key: usize, value: u8) {
        self.for_shard(shape, node, slot, |cell| cell.values[key] = value);
    }

    /// Sets a mark on a primary, and so on its replicas.
    pub fn set_mark(&mut self, shape: &Shape, node: usize, slot: usize, mark: Mark) {
        self.for_shard(shape, node, slot, |cell| cell.mark = mark);
    }

    fn for_shard(&mut self, shape: &Shape, node: usize, slot: usize, change: impl Fn(&mut Cell)) {
        let of_shard = |other: &usize| *other == node || shape.primary_of(*other) == Some(node);
        shape.nodes().filter(of_shard).for_each(|other| change(&mut self.cells[other][slot]));
    }

    /// Gives a node an epoch above all others, where it has not the highest one already.
    pub fn bump(&mut self, shape: &Shape, node: usize) {
        let others = (0..shape.primaries).filter(|other| *other != node);
        let highest = others.map(|other| self.epochs[other]).max().unwrap_or(0);
        if self.epochs[node] <= highest {
            self.epochs[node] = highest + 1;
        }
        for replica in shape.nodes().filter(|other| shape.primary_of(*other) == Some(node)) {
            self.epochs[replica] = self.epochs[node];
        }
    }

    /// A node forgets who owns a slot, itself included, and that it imports it: `DELSLOTS`.
    pub fn forget(&mut self, node: usize, slot: usize) {
        let cell = &mut self.cells[node][slot];
        cell.owner = NOBODY;
        cell.mark = cell.mark.without_import();
    }

    /// A node claims a slot with a new epoch, and all others hear of it. It does not import it any more.
    pub fn take(&mut self, shape: &Shape, node: usize, slot: usize) {
        self.for_shard(shape, node, slot, |cell| {
            cell.mark = cell.mark.without_import();
            cell.owner = node as u8;
        });
        self.bump(shape, node);
        self.spread(shape, node);
    }

    /// All nodes that answer hear of a node's claims.
    pub fn spread(&mut self, shape: &Shape, from: usize) {
        for slot in (0..shape.slots).filter(|slot| self.claims(from, *slot)).collect::<Vec<_>>() {
            let others = shape.nodes().filter(|to| *to != from && shape.answers(*to));
            others.for_each(|to| self.hear(shape, to, from, slot));
        }
    }

    /// A node hears of a claim. It believes one that is newer than the last owner's, and any where the last
    /// owner does not claim the slot any more. A primary that imports the slot believes none: so
    /// Redis.
    fn hear(&mut self, shape: &Shape, node: usize, claimant: usize, slot: usize) {
        let cell = self.cells[node][slot];
        // Replicas have marks where they repeat those of their primary, and those servers believe claims.
        let imports = shape.primary_of(node).is_none() && matches!(cell.mark, Mark::From(_));
        if usize::from(cell.owner) == claimant || imports {
            return;
        }
        let is_newer = match cell.owner {
            NOBODY => true,
            owner => {
                let owner = usize::from(owner);
                self.epochs[owner] < self.epochs[claimant] || !self.claims(owner, slot)
            }
        };
        if !is_newer {
            return;
        }
        if shape.primary_of(node).is_none() && usize::from(cell.owner) == node {
            // Who loses a slot so deletes its keys.
            (0..shape.keys).for_each(|key| self.set_value(shape, node, slot, key, 0));
        }
        self.cells[node][slot].owner = claimant as u8;
    }

    /// The same world with the smallest epochs that are in the same order.
    pub fn ranked(mut self) -> World {
        let mut order = self.epochs;
        order.sort_unstable();
        let mut rank = [0; NODES];
        for at in 1..NODES {
            rank[at] = rank[at - 1] + u8::from(order[at] != order[at - 1]);
        }
        for epoch in &mut self.epochs {
            let at = order.iter().position(|other| other == epoch).unwrap_or(0);
            *epoch = rank[at];
        }
        self
    }

    /// Whether nothing is wrong.
    pub fn is_healthy(&self, shape: &Shape) -> bool {
        (0..shape.slots).all(|slot| {
            let Some(owner) = self.sole_claimant(shape, slot) else { return false };
            shape.nodes().all(|node| {
                let cell = self.cells[node][slot];
                let is_at_home = shape.primary_of(node).unwrap_or(node) == owner;
                usize::from(cell.owner) == owner
                    && cell.mark == Mark::None
                    && (is_at_home || cell.values == [0; KEYS])
            })
        })
    }
}
