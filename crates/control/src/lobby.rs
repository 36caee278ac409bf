//! Connections of which nothing is known yet: few, and no address can keep others out.
//!
//! No connection is turned away at first. If there are too many, the connection that has waited longest ends,
//! of the address that has most: so a client that says at once what it wants is heard, however many others
//! are silent.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// This many wrong passwords of one address cost no more than [`Guesses::refused`] says.
const GUESSES_FREE: u32 = 3;

/// What each further one costs: it doubles up to the second of these.
const GUESS_PAUSE: Duration = Duration::from_millis(200);
const GUESS_PAUSE_MAX: Duration = Duration::from_secs(2);

/// An address that has not been wrong for this long is like any other.
const GUESSES_LAST: Duration = Duration::from_secs(60);

/// Addresses that are remembered. Of more the one is forgotten that was wrong longest ago.
const GUESSERS_MAX: usize = 4_096;

/// What is counted as one: an IPv4 address, or the 64 bits of an IPv6 address that belong to a network.
fn origin(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
        ip => ip,
    }
}

/// The room where connections wait.
#[derive(Debug)]
pub(crate) struct Lobby {
    places: usize,
    places_each: usize,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    next: u64,
    count: usize,
    /// For each address those that wait, the longest first.
    by_origin: HashMap<IpAddr, VecDeque<(u64, CancellationToken)>>,
}

/// A place. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    lobby: Arc<Lobby>,
    origin: IpAddr,
    number: u64,
    ends: CancellationToken,
}

impl Lobby {
    /// With this many places, one address has at most `places_each` of them.
    pub(crate) fn new(places: usize, places_each: usize) -> Arc<Lobby> {
        Arc::new(Lobby { places, places_each, inside: Mutex::default() })
    }

    /// Takes a place. Another connection may lose its own.
    pub(crate) fn enter(self: &Arc<Lobby>, ip: IpAddr) -> Waiting {
        let origin = origin(ip);
        let mut inside = self.inside();
        if inside.by_origin.get(&origin).is_some_and(|waiting| waiting.len() >= self.places_each) {
            inside.end_oldest(origin);
        } else if inside.count >= self.places
            && let Some((most, _)) = inside.by_origin.iter().max_by_key(|(_, waiting)| waiting.len())
        {
            let most = *most;
            inside.end_oldest(most);
        }
        let (number, ends) = (inside.next, CancellationToken::new());
        inside.next += 1;
        inside.count += 1;
        inside.by_origin.entry(origin).or_default().push_back((number, ends.clone()));
        drop(inside);
        Waiting { lobby: self.clone(), origin, number, ends }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock()
    }
}

impl Inside {
    fn end_oldest(&mut self, origin: IpAddr) {
        let oldest = self.by_origin.get(&origin).and_then(|waiting| waiting.front()).cloned();
        if let Some((number, ends)) = oldest {
            ends.cancel();
            self.leave(origin, number);
        }
    }

    fn leave(&mut self, origin: IpAddr, number: u64) {
        let Some(waiting) = self.by_origin.get_mut(&origin) else { return };
        let before = waiting.len();
        waiting.retain(|(other, _)| *other != number);
        self.count -= before - waiting.len();
        if waiting.is_empty() {
            self.by_origin.remove(&origin);
        }
    }
}

impl Waiting {
    /// Cancelled when the place is needed for another client: then the connection has to end. Never after
    /// this was dropped.
    pub(crate) fn ends(&self) -> CancellationToken {
        self.ends.clone()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.lobby.inside().leave(self.origin, self.number);
    }
}

/// Which addresses have said wrong passwords lately.
#[derive(Debug, Default)]
pub struct Guesses(Mutex<HashMap<IpAddr, (u32, Instant)>>);

impl Guesses {
    /// How long an address has to wait before its next password is checked.
    pub fn pause(&self, ip: IpAddr, now: Instant) -> Duration {
        let guesses = self.0.lock();
        let (count, last) = guesses.get(&origin(ip)).copied().unwrap_or((0, now));
        if count < GUESSES_FREE || now.duration_since(last) > GUESSES_LAST {
            return Duration::ZERO;
        }
        let doubled = GUESS_PAUSE.saturating_mul(1 << (count - GUESSES_FREE).min(8));
        doubled.min(GUESS_PAUSE_MAX)
    }

    /// An address has said a wrong password. Says so in the log: the first times, and then ever more rarely.
    pub fn refused(&self, ip: IpAddr, now: Instant) {
        let origin = origin(ip);
        let mut guesses = self.0.lock();
        if guesses.len() >= GUESSERS_MAX
            && !guesses.contains_key(&origin)
            && let Some(oldest) = guesses.iter().min_by_key(|(_, (_, last))| *last).map(|(ip, _)| *ip)
        {
            guesses.remove(&oldest);
        }
        let (count, last) = guesses.entry(origin).or_insert((0, now));
        if now.duration_since(*last) > GUESSES_LAST {
            *count = 0;
        }
        (*count, *last) = (count.saturating_add(1), now);
        if *count <= GUESSES_FREE || count.is_power_of_two() {
            tracing::warn!(address = %ip, times = *count, "a wrong password was given");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn who_has_most_makes_room_and_nobody_is_turned_away() {
        let lobby = Lobby::new(4, 3);
        let many: Vec<Waiting> = (0..5).map(|_| lobby.enter(ip("10.0.0.1"))).collect();
        let is_over = |waiting: &Waiting| waiting.ends.is_cancelled();
        assert_eq!(many.iter().map(is_over).collect::<Vec<_>>(), [true, true, false, false, false]);
        let others = [lobby.enter(ip("10.0.0.2")), lobby.enter(ip("::ffff:10.0.0.3"))];
        assert_eq!(many.iter().filter(|waiting| is_over(waiting)).count(), 3);
        assert!(!others.iter().any(is_over));
        drop((many, others));
        let inside = lobby.inside();
        assert_eq!((inside.count, inside.by_origin.len()), (0, 0));
    }

    #[test]
    fn a_network_of_ipv6_is_one() {
        let lobby = Lobby::new(10, 1);
        let one = lobby.enter(ip("2001:db8::1"));
        let two = lobby.enter(ip("2001:db8::2"));
        assert!(one.ends.is_cancelled() && !two.ends.is_cancelled());
    }

    #[test]
    fn guesses_cost_more_and_more_and_are_forgotten() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..9 {
            guesses.refused(ip("10.0.0.1"), now);
            pauses.push(guesses.pause(ip("10.0.0.1"), now).as_millis());
        }
        assert_eq!(pauses, [0, 0, 200, 400, 800, 1600, 2000, 2000, 2000]);
        assert_eq!(guesses.pause(ip("10.0.0.2"), now), Duration::ZERO);
        assert_eq!(guesses.pause(ip("10.0.0.1"), now + GUESSES_LAST + GUESS_PAUSE), Duration::ZERO);
    }
}
