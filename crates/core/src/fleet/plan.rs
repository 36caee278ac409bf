//! Who should hold what: shares by weight, and as little movement as these allow.

use std::collections::BTreeMap;

use super::table::{HOLDERS_MAX, Holders, MemberId, Row};

/// What a row should become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// The member that should serve the partition; one of `holders`.
    pub owner: MemberId,
    /// The members that should hold it, in any order.
    pub holders: Holders,
}

/// One step from a row to its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The holders become these; no data moves.
    Direct(Holders),
    /// Data moves from the owner to a member that gets it.
    Transfer {
        /// The owner.
        source: MemberId,
        /// The member that gets the data.
        destination: MemberId,
        /// Whether the destination becomes the owner.
        seals: bool,
        /// The holders when it is done.
        after: Holders,
    },
}

/// The next step of a row, if it is not as it should be. Each transfer gives the partition one more holder or
/// another owner. A holder that has to go stays until its place is needed, so that there are as many copies
/// as possible.
pub fn next_step(current: &Holders, target: &Target) -> Option<Step> {
    let Some(source) = current.owner() else {
        return Holders::new(&[target.owner]).map(Step::Direct);
    };
    let wanted = |member: MemberId| target.holders.contains(member);
    let lacking: Vec<MemberId> =
        target.holders.as_slice().iter().copied().filter(|member| !current.contains(*member)).collect();
    if source != target.owner {
        let mut after = Holders::new(&[target.owner])?;
        for member in current.as_slice()[1..].iter().chain([&source]) {
            // The place of a former owner is the last; if there is none, the last that is not wanted gives it
            // up.
            if *member != target.owner && !after.push(*member) {
                let unwanted = after.as_slice().iter().rev().copied().find(|other| !wanted(*other));
                unwanted.filter(|_| wanted(*member)).inspect(|other| after.replace(*other, *member));
            }
        }
        if lacking.iter().all(|member| *member == target.owner) {
            after = after.filtered(wanted);
        }
        return Some(Step::Transfer { source, destination: target.owner, seals: true, after });
    }
    let unwanted = current.as_slice().iter().copied().find(|member| !wanted(*member));
    let Some(destination) = lacking.first().copied() else {
        return unwanted.map(|_| Step::Direct(current.filtered(wanted)));
    };
    let mut after = *current;
    match unwanted {
        Some(unwanted) => after.replace(unwanted, destination),
        None => {
            after.push(destination);
        }
    }
    if lacking.len() == 1 {
        after = after.filtered(wanted);
    }
    Some(Step::Transfer { source, destination, seals: false, after })
}

/// How many transfers a row needs to be as it should.
pub fn transfers(current: &Holders, target: &Target) -> u64 {
    if current.is_empty() {
        return target.holders.len() as u64 - 1;
    }
    let lacking = target.holders.as_slice().iter().filter(|member| !current.contains(**member)).count();
    let promotes = current.owner() != Some(target.owner) && current.contains(target.owner);
    lacking as u64 + u64::from(promotes)
}

/// What each row should become, so that members hold and own parts by their weights. `copies` is how many
/// should hold a partition, as far as there are members. Empty if no member has a weight.
///
/// Nothing moves that does not have to: a holder stays unless it holds more than its part, an owner unless it
/// owns more.
pub fn plan(rows: &[Row], members: &BTreeMap<MemberId, u32>, copies: usize) -> Vec<Target> {
    let weights: Vec<(MemberId, u64)> = members
        .iter()
        .filter(|(_, weight)| **weight > 0)
        .map(|(id, weight)| (*id, u64::from(*weight)))
        .collect();
    if weights.is_empty() {
        return Vec::new();
    }
    let copies = copies.clamp(1, HOLDERS_MAX).min(weights.len());
    let mut shares = Shares::new(rows, &weights, copies);
    shares.drop_what_is_too_much(rows);
    shares.fill(copies);
    shares.choose_owners(rows);
    shares.targets
}

/// What a member should have and has, while a plan is made.
struct Share {
    id: MemberId,
    weight: u64,
    holds: u64,
    holds_wanted: u64,
    owns: u64,
    owns_wanted: u64,
}

struct Shares {
    members: Vec<Share>,
    places: BTreeMap<MemberId, usize>,
    targets: Vec<Target>,
}

impl Shares {
    /// All members hold what they hold; a member without weight holds nothing.
    fn new(rows: &[Row], weights: &[(MemberId, u64)], copies: usize) -> Shares {
        let places: BTreeMap<MemberId, usize> =
            weights.iter().enumerate().map(|(place, (id, _))| (*id, place)).collect();
        let mut holds = vec![0_u64; weights.len()];
        let mut owns = vec![0_u64; weights.len()];
        let mut targets = Vec::with_capacity(rows.len());
        for row in rows {
            let holders = row.holders.filtered(|member| places.contains_key(&member));
            holders.as_slice().iter().for_each(|member| holds[places[member]] += 1);
            row.holders
                .owner()
                .and_then(|owner| places.get(&owner))
                .into_iter()
                .for_each(|at| owns[*at] += 1);
            targets.push(Target { owner: MemberId::NOBODY, holders });
        }
        let count = rows.len() as u64;
        let holds_wanted = quotas(count * copies as u64, count, weights, &holds);
        let owns_wanted = quotas(count, count, weights, &owns);
        let members = weights.iter().enumerate().map(|(at, (id, weight))| Share {
            id: *id,
            weight: *weight,
            holds: holds[at],
            holds_wanted: holds_wanted[at],
            owns: 0,
            owns_wanted: owns_wanted[at],
        });
        Shares { members: members.collect(), places, targets }
    }

    /// A member that holds more than its part gives up the rest, first what it does not own.
    fn drop_what_is_too_much(&mut self, rows: &[Row]) {
        for owned in [false, true] {
            for (row, target) in rows.iter().zip(&mut self.targets) {
                let mut dropped = Holders::default();
                for member in target.holders.as_slice() {
                    let share = &mut self.members[self.places[member]];
                    if share.holds > share.holds_wanted && (row.holders.owner() == Some(*member)) == owned {
                        share.holds -= 1;
                        dropped.push(*member);
                    }
                }
                target.holders = target.holders.filtered(|member| !dropped.contains(member));
            }
        }
    }

    /// Gives each partition as many holders as it should have. The member that lacks most comes first: then
    /// the last partitions find enough different members. If each has one holder, a member that has got one
    /// continues with those that follow, so that members have few ranges: these are what clients see.
    fn fill(&mut self, copies: usize) {
        let mut last: Option<usize> = None;
        for target in &mut self.targets {
            let goes_on = last.filter(|_| copies == 1 && target.holders.is_empty());
            if let Some(share) = goes_on.map(|at| &mut self.members[at]).filter(|share| share.lack().0 > 0) {
                share.holds += 1;
                target.holders.push(share.id);
            }
            while target.holders.len() < copies {
                let free = self.members.iter_mut().filter(|share| !target.holders.contains(share.id));
                let Some(share) = free.max_by_key(|share| share.lack()) else { break };
                share.holds += 1;
                target.holders.push(share.id);
            }
            last = target.holders.owner().and_then(|holder| self.places.get(&holder).copied());
        }
    }

    /// A member that owns and holds a partition keeps it up to its part; the rest goes to holders that lack
    /// most.
    fn choose_owners(&mut self, rows: &[Row]) {
        for (row, target) in rows.iter().zip(&mut self.targets) {
            let owner = row.holders.owner().filter(|owner| target.holders.contains(*owner));
            let Some(owner) = owner else { continue };
            let share = &mut self.members[self.places[&owner]];
            if share.owns < share.owns_wanted {
                share.owns += 1;
                target.owner = owner;
            }
        }
        // Twice: a second look evens out what the last partitions of the first found taken.
        for _ in 0..2 {
            for target in &mut self.targets {
                if let Some(place) = self.places.get(&target.owner) {
                    if self.members[*place].owns <= self.members[*place].owns_wanted {
                        continue;
                    }
                    self.members[*place].owns -= 1;
                }
                let places = target.holders.as_slice().iter().map(|member| self.places[member]);
                let Some(place) = places.max_by_key(|place| self.members[*place].owning_lack()) else {
                    continue;
                };
                self.members[place].owns += 1;
                target.owner = self.members[place].id;
            }
        }
    }
}

impl Share {
    /// How much it still should get; among those that have their part, the one with least for its weight
    /// comes first.
    fn lack(&self) -> (u64, std::cmp::Reverse<u64>, std::cmp::Reverse<MemberId>) {
        let lack = self.holds_wanted.saturating_sub(self.holds);
        (lack, std::cmp::Reverse(self.holds / self.weight), std::cmp::Reverse(self.id))
    }

    fn owning_lack(&self) -> (u64, std::cmp::Reverse<u64>, std::cmp::Reverse<MemberId>) {
        let lack = self.owns_wanted.saturating_sub(self.owns);
        (lack, std::cmp::Reverse(self.owns / self.weight), std::cmp::Reverse(self.id))
    }
}

/// Which backend should have the data of each partition, by weights. Empty if none has a weight: then all
/// stay where they are.
///
/// Nothing moves that does not have to, and what moves comes in ranges as long as these allow.
pub fn plan_backends(rows: &[Row], backends: &BTreeMap<u32, u32>) -> Vec<u32> {
    let weights: Vec<(u32, u64)> = backends
        .iter()
        .filter(|(_, weight)| **weight > 0)
        .map(|(number, weight)| (*number, u64::from(*weight)))
        .collect();
    let places: BTreeMap<u32, usize> =
        weights.iter().enumerate().map(|(place, (number, _))| (*number, place)).collect();
    let mut have = vec![0_u64; weights.len()];
    for place in rows.iter().filter_map(|row| places.get(&row.backend)) {
        have[*place] += 1;
    }
    let count = rows.len() as u64;
    let mut room = quotas(count, count, &weights, &have);
    let mut kept = Vec::with_capacity(rows.len());
    for row in rows {
        let stays = places.get(&row.backend).copied().filter(|place| room[*place] > 0);
        stays.into_iter().for_each(|place| room[place] -= 1);
        kept.push(stays);
    }
    let mut last = None;
    let target = |place: Option<usize>| -> Option<u32> {
        let place = place.or_else(|| {
            let goes_on = last.filter(|place: &usize| room[*place] > 0);
            let place = goes_on.or_else(|| (0..room.len()).find(|place| room[*place] > 0))?;
            room[place] -= 1;
            last = Some(place);
            Some(place)
        })?;
        Some(weights[place].0)
    };
    // Each or none: the parts add up to all partitions if any has a weight.
    kept.into_iter().map(target).collect::<Option<Vec<u32>>>().unwrap_or_default()
}

/// Divides `total` by weights, none gets more than `most`. The remainder goes to those that `have` most.
fn quotas<K: Ord + Copy>(total: u64, most: u64, weights: &[(K, u64)], have: &[u64]) -> Vec<u64> {
    let mut parts = vec![0_u64; weights.len()];
    let mut open: Vec<usize> = (0..weights.len()).collect();
    let mut left = total;
    // A member that would get too much gets the most there is, and the others divide the rest: one fewer in
    // each round.
    loop {
        let sum: u64 = open.iter().map(|at| weights[*at].1).sum();
        let share = |at: usize| u128::from(left) * u128::from(weights[at].1) / u128::from(sum.max(1));
        let full = open.iter().position(|at| share(*at) >= u128::from(most));
        let Some(full) = full.filter(|_| left > 0) else {
            open.iter().for_each(|at| parts[*at] = u64::try_from(share(*at)).unwrap_or(most));
            break;
        };
        let at = open.swap_remove(full);
        parts[at] = most.min(left);
        left -= parts[at];
    }
    let mut rest = total.saturating_sub(parts.iter().sum());
    // First to those that have more than their part already: so a plan that has been carried out stays as it
    // is.
    open.sort_by_key(|at| (have[*at] <= parts[*at], std::cmp::Reverse(have[*at]), weights[*at].0));
    for at in open.iter().cycle().take(open.len() * 2) {
        if rest > 0 && parts[*at] < most {
            parts[*at] += 1;
            rest -= 1;
        }
    }
    parts
}
