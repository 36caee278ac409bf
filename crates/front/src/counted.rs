//! What a front counts, for those who watch many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::control::{Control, MovingStatus};
use crate::migrate::phase::Phase;
use crate::session::context::Counts;

/// A number, as Prometheus takes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Number {
    /// Its name; `_total` is added to that of a counter.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// It only grows, from 0 when the process started.
    pub is_counter: bool,
    /// How much it is now.
    pub value: f64,
}

fn count(name: &'static str, help: &'static str, value: u64) -> Number {
    Number { name, help, is_counter: true, value: value as f64 }
}

fn gauge(name: &'static str, help: &'static str, value: f64) -> Number {
    Number { name, help, is_counter: false, value }
}

/// Clients that are connected to these ports of one front.
pub fn clients(ports: &[Arc<Counts>]) -> u64 {
    ports.iter().map(|port| port.clients.load(Ordering::Relaxed)).sum()
}

/// What is counted at these ports of one front, and, once keys have begun to move, of them: from 0 again each
/// time that they are reversed. No server is asked.
pub fn numbers(ports: &[Arc<Counts>], control: Option<&Control>) -> Vec<Number> {
    let sum = |of: fn(&Counts) -> &AtomicU64| -> u64 {
        ports.iter().map(|port| of(port).load(Ordering::Relaxed)).sum()
    };
    let status = control.map(Control::seen);
    let held_ms = status.as_ref().and_then(|status| status.held_ms).unwrap_or(0);
    let mut numbers = vec![
        gauge("whimbrel_front_clients", "Clients that are connected", clients(ports) as f64),
        count("whimbrel_front_clients_accepted", "Clients that were let in", sum(|c| &c.accepted)),
        count("whimbrel_front_clients_turned_away", "Clients that were too many", sum(|c| &c.turned_away)),
        count("whimbrel_front_clients_no_tls", "Clients that did not agree on TLS", sum(|c| &c.no_tls)),
        count(
            "whimbrel_front_clients_unreachable",
            "Clients for which the server could not be reached",
            sum(|c| &c.unreachable),
        ),
        gauge(
            "whimbrel_front_held_seconds",
            "For how long clients have been held for a cutover; 0 while they are not",
            held_ms as f64 / 1000.0,
        ),
    ];
    if let Some((phase, moving)) = status.and_then(|status| Some((status.phase, status.moving?))) {
        numbers.extend(of_moving(phase, &moving));
    }
    numbers
}

fn of_moving(phase: Phase, m: &MovingStatus) -> [Number; 11] {
    let one = |is: bool| f64::from(u8::from(is));
    let is_done = matches!(phase, Phase::Done | Phase::Finished);
    [
        gauge("whimbrel_front_done", "1 once all keys have moved", one(is_done)),
        gauge("whimbrel_front_paused", "1 while only keys that commands need move", one(m.paused)),
        gauge(
            "whimbrel_front_trouble",
            "1 while something is wrong that whimbrel front status names",
            one(m.trouble.is_some()),
        ),
        count("whimbrel_front_keys_moved", "Keys that have moved since they began to, this way", m.moved),
        gauge("whimbrel_front_keys_staying", "Keys that the last pass could not move", m.staying as f64),
        count("whimbrel_front_commands_forwarded", "Commands sent to where keys move from", m.forwarded),
        count("whimbrel_front_commands_pulled", "Commands that waited for their keys", m.pulled),
        count("whimbrel_front_commands_direct", "Commands sent to where keys move to at once", m.direct),
        gauge("whimbrel_front_commands_waiting", "Commands that wait for their keys now", m.waiting as f64),
        count(
            "whimbrel_front_commands_given_up",
            "Commands that got an error, since their keys could not be moved in time",
            m.given_up,
        ),
        count("whimbrel_front_retries", "Moves that had to be begun again", m.retries),
    ]
}
