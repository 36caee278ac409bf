//! Skewed choices: a few keys are asked for often, most of them seldom.

use fastrand::Rng;

/// Picks ranks from 0 on; rank r, counted from 1, has weight 1 / r^skew.
#[derive(Debug, Clone)]
pub struct Zipf {
    /// Cumulative shares of the ranks.
    shares: Vec<f64>,
}

impl Zipf {
    /// Of this many ranks, which must not be 0. Takes 8 bytes of memory for each.
    pub fn new(ranks: u64, skew: f64) -> Zipf {
        let mut sum = 0.0;
        let mut shares: Vec<f64> = (1..=ranks)
            .map(|rank| {
                sum += (rank as f64).powf(-skew);
                sum
            })
            .collect();
        shares.iter_mut().for_each(|share| *share /= sum);
        Zipf { shares }
    }

    /// The next rank.
    pub fn pick(&self, random: &mut Rng) -> u64 {
        let share = random.f64();
        let rank = self.shares.partition_point(|&sum| sum < share);
        rank.min(self.shares.len() - 1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_the_first_ranks_have_the_most() {
        let shares = Zipf::new(1_000, 0.99).shares;
        assert!((shares[999] - 1.0).abs() < 1e-9);
        assert!(shares[0] > 0.1 && shares[1] - shares[0] < shares[0]);
    }

    #[test]
    fn every_rank_can_be_picked_and_no_other() {
        let (zipf, mut random) = (Zipf::new(3, 0.9), Rng::with_seed(1));
        let picked: std::collections::BTreeSet<u64> = (0..1_000).map(|_| zipf.pick(&mut random)).collect();
        assert_eq!(picked.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    }
}
