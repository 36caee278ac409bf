//! Clients of a fleet that know what each answer has to be.

use redis::Connection;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use whimbrel_e2e::fleets::connect;
use whimbrel_judge::cluster_writers::{Load, tags_in};
use whimbrel_lab::until;

/// Clients that know no clusters append to lists through any member, and read them. Of each list an order of
/// all that was appended is known in the end, so each answer can be checked against it.
pub(super) struct Appenders {
    pub(super) stop: Arc<AtomicBool>,
    pub(super) done: Arc<AtomicU64>,
    /// Errors and lost connections.
    pub(super) troubles: Arc<AtomicU64>,
    pub(super) threads: Vec<std::thread::JoinHandle<Vec<Event>>>,
    pub(super) began: Instant,
}

/// What a client has seen of a list.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) list: usize,
    /// What was appended; none for a read.
    pub(super) token: Option<String>,
    /// How long the list was afterwards, or is; none where no answer came.
    pub(super) length: Option<usize>,
    /// The last element that a read has shown.
    pub(super) last: Option<String>,
    pub(super) sent: Duration,
    pub(super) answered: Duration,
}

pub(super) const LISTS: usize = 40;

/// Between two requests of a client. Without it they would take the processors that the fleet needs, and the
/// tests beside this one.
const PAUSE: Duration = Duration::from_millis(40);

/// What clients that know clusters do meanwhile.
pub(super) fn load() -> Load {
    Load { pause: PAUSE, ..Load::on(tags_in(0..16_384, 200)) }
}

impl Appenders {
    /// `through` are addresses, of which each client uses one after another: the next where no answer comes
    /// for so long.
    pub(super) fn start(through: Vec<String>, clients: usize, patience: Duration) -> Appenders {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let troubles = Arc::new(AtomicU64::new(0));
        let began = Instant::now();
        let threads = (0..clients).map(|client| {
            let (stop, done, through) = (stop.clone(), done.clone(), through.clone());
            let troubles = troubles.clone();
            std::thread::spawn(move || append(client, (&through, patience), began, (&stop, &done, &troubles)))
        });
        Appenders { threads: threads.collect(), stop, done, troubles, began }
    }

    /// Waits for this many more answers; says how long that took.
    #[track_caller]
    pub(super) fn wait_for(&self, more: u64) -> Duration {
        let (began, goal) = (Instant::now(), self.done.load(Ordering::Relaxed) + more);
        until("clients are answered", || (self.done.load(Ordering::Relaxed) >= goal).then_some(()));
        began.elapsed()
    }

    /// Ends them, and checks all that they have seen against what the server has.
    #[track_caller]
    pub(super) fn check(self, through: &mut Connection) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let events: Vec<Event> =
            self.threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect();
        let acknowledged =
            events.iter().filter(|event| event.token.is_some() && event.length.is_some()).count();
        for list in 0..LISTS {
            let held: Vec<String> =
                redis::cmd("LRANGE").arg(name(list)).arg(0).arg(-1).query(through).expect("a list");
            let of_list: Vec<&Event> = events.iter().filter(|event| event.list == list).collect();
            if let Err(why) = check_list(&held, &of_list) {
                panic!("{}: {why} ({:?} since the start)", name(list), self.began.elapsed());
            }
        }
        acknowledged
    }
}

pub(super) fn name(list: usize) -> String {
    format!("list:{list}")
}

pub(super) fn append(
    client: usize,
    (through, patience): (&[String], Duration),
    began: Instant,
    (stop, done, troubles): (&AtomicBool, &AtomicU64, &AtomicU64),
) -> Vec<Event> {
    let mut events = Vec::new();
    let (mut at, mut connection) = (client, None);
    for number in 0_usize.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let Some(open) = &mut connection else {
            at += 1;
            connection = connect(&through[at % through.len()]).ok();
            if let Some(open) = &connection {
                // A process that stands still lets clients connect, and never answers.
                open.set_read_timeout(Some(patience)).expect("a socket");
            } else {
                std::thread::sleep(Duration::from_millis(20));
            }
            continue;
        };
        let list = (client * 7 + number) % LISTS;
        let reads = number % 4 == 3;
        let token = (!reads).then(|| format!("{client}-{number}"));
        let sent = began.elapsed();
        let answer: redis::RedisResult<(usize, Option<String>)> = match &token {
            Some(token) => {
                redis::cmd("RPUSH").arg(name(list)).arg(token).query(open).map(|length| (length, None))
            }
            None => {
                // At one moment, or length and element would not belong together.
                let mut pipe = redis::pipe();
                pipe.atomic().cmd("LLEN").arg(name(list)).cmd("LINDEX").arg(name(list)).arg(-1);
                pipe.query(open)
            }
        };
        let answered = began.elapsed();
        let (length, last) = match answer {
            Ok((length, last)) => (Some(length), last),
            // Certainly not done.
            Err(error) if error.code().is_some() => {
                troubles.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            Err(_) => {
                troubles.fetch_add(1, Ordering::Relaxed);
                connection = None;
                (None, None)
            }
        };
        if length.is_some() {
            done.fetch_add(1, Ordering::Relaxed);
        }
        if length.is_some() || token.is_some() {
            events.push(Event { list, token, length, last, sent, answered });
        }
        std::thread::sleep(PAUSE);
    }
    events
}

/// Whether all that was seen of a list fits one order in which each request was carried out at one moment
/// between its beginning and its end. Appending shows the place, so there is one such order at most: that of
/// the list.
pub(super) fn check_list(held: &[String], events: &[&Event]) -> Result<(), String> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (at, token) in held.iter().enumerate() {
        if places.insert(token, at + 1).is_some() {
            return Err(format!("{token} is there twice"));
        }
    }
    let mut moments: Vec<(Duration, Duration, usize, bool)> = Vec::new();
    for event in events {
        let Some(length) = event.length else { continue };
        match &event.token {
            Some(token) => match places.get(token.as_str()) {
                None => return Err(format!("{token} was acknowledged and is not there")),
                Some(place) if *place != length => {
                    return Err(format!("{token} was number {length} and is number {place}"));
                }
                Some(_) => {}
            },
            None if length > held.len() || length > 0 && event.last.as_ref() != held.get(length - 1) => {
                return Err(format!("of {length} the last was {:?}", event.last));
            }
            None => {}
        }
        moments.push((event.sent, event.answered, length, event.token.is_none()));
    }
    // Who began after another had ended has seen at least as much, and an append more.
    moments.sort_by_key(|moment| moment.0);
    let mut ended: Vec<(Duration, usize)> = moments.iter().map(|moment| (moment.1, moment.2)).collect();
    ended.sort();
    let (mut next, mut least) = (0, 0);
    for (sent, _, length, is_read) in moments {
        while next < ended.len() && ended[next].0 < sent {
            least = least.max(ended[next].1);
            next += 1;
        }
        if length < least || length == least && !is_read && least > 0 {
            return Err(format!(
                "a request that began at {sent:?} was number {length} after {least} was known"
            ));
        }
    }
    Ok(())
}

/// Two clients that add to a number by looking first, as only transactions after `WATCH` can.
pub(super) struct Counter {
    pub(super) key: String,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) threads: Vec<std::thread::JoinHandle<u64>>,
}

impl Counter {
    pub(super) fn start(key: String, through: &str) -> Counter {
        let stop = Arc::new(AtomicBool::new(false));
        let add = |_| {
            let (key, stop) = (key.clone(), stop.clone());
            let mut connection = until("it is connected", || connect(through).ok());
            std::thread::spawn(move || {
                let mut added = 0;
                while !stop.load(Ordering::Relaxed) {
                    let () = redis::cmd("WATCH").arg(&key).query(&mut connection).expect("watched");
                    let before: Option<u64> =
                        redis::cmd("GET").arg(&key).query(&mut connection).expect("a number");
                    let mut pipe = redis::pipe();
                    pipe.atomic().cmd("SET").arg(&key).arg(before.unwrap_or_default() + 1);
                    let done: Option<(String,)> = pipe.query(&mut connection).expect("carried out, or not");
                    added += u64::from(done.is_some());
                    std::thread::sleep(PAUSE);
                }
                added
            })
        };
        let threads = (0..2).map(add).collect();
        Counter { key, stop, threads }
    }

    pub(super) fn stop(self) -> (String, u64) {
        self.stop.store(true, Ordering::Relaxed);
        (self.key, self.threads.into_iter().map(|thread| thread.join().expect("no error")).sum())
    }
}
