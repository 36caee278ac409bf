//! Whatever is sent, the front goes on.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use whimbrel_lab::{Engine, Server};

use crate::common::{Client, Served, command, in_own_process, resident_bytes};

/// Connections that send nonsense.
const BAD_INPUTS: u64 = 24_000;

const GROWTH_BYTES_MAX: u64 = 24 << 20;

/// Something that looks like requests, and is not quite.
fn nonsense(random: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + random.usize(..6) {
        match random.usize(..12) {
            0 => bytes.extend((0..random.usize(..200)).map(|_| random.u8(..))),
            1 => bytes.extend_from_slice(format!("*{}\r\n", random.u64(..)).as_bytes()),
            2 => bytes.extend_from_slice(format!("*3\r\n$3\r\nSET\r\n${}\r\n", random.u64(..)).as_bytes()),
            3 => bytes.extend_from_slice("*1\r\n".repeat(random.usize(..5_000)).as_bytes()),
            4 => bytes.extend_from_slice(b"*1048576\r\n$1\r\nx\r\n"),
            5 => bytes.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$536870912\r\nabc"),
            6 => bytes.extend_from_slice(b"GET \"unbalanced\r\n"),
            7 => bytes.extend(vec![b'a'; random.usize(..100_000)]),
            8 => bytes.extend_from_slice(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
            9 => bytes.extend_from_slice(b">1\r\n+OK\r\n$-1\r\n*-1\r\n%1\r\n"),
            10 => bytes.extend_from_slice(&command(&["HELLO", "3"])),
            _ => bytes.extend_from_slice(&command(&["SET", "k", &"v".repeat(random.usize(..2_000))])),
        }
    }
    for _ in 0..random.usize(..4) {
        if !bytes.is_empty() {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
    }
    bytes
}

fn misbehave(served: &Served, random: &mut Rng) {
    let bytes = nonsense(random);
    let mut client = Client::to(served.address);
    let mut rest = &bytes[..];
    let step_max = 1 + random.usize(..20_000);
    while !rest.is_empty() {
        let (now, later) = rest.split_at((1 + random.usize(..step_max)).min(rest.len()));
        // The front may have hung up by then.
        if client.0.write_all(now).is_err() {
            return;
        }
        rest = later;
    }
    match random.usize(..3) {
        0 => {}
        1 => {
            // Half closed, and then read to the end. It may be closed already.
            let _ = client.0.shutdown(Shutdown::Write);
            let _ = client.0.read_to_end(&mut Vec::new());
        }
        _ => {
            client.0.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
            let _ = client.0.read(&mut [0; 100]);
        }
    }
}

#[test]
fn nonsense_disturbs_nobody() {
    if in_own_process("garbage::nonsense_disturbs_nobody") {
        return;
    }
    let source = Server::builder(Engine::Redis70).start().expect("a server");
    let served = Served::of(&source.url());
    let (done, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut before = 0;
    std::thread::scope(|scope| {
        let polite = scope.spawn(|| {
            let mut client = served.client();
            let mut n = 0_u64;
            while !done.load(Ordering::Relaxed) {
                n += 1;
                let text = n.to_string();
                client.ask(&["ECHO", &text], &format!("${}\r\n{text}\r\n", text.len()));
                asked.store(n, Ordering::Relaxed);
            }
        });
        for round in 0..2 {
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let served = &served;
                    scope.spawn(move || {
                        let mut random = Rng::with_seed(round * 100 + thread);
                        for _ in 0..BAD_INPUTS / 8 {
                            misbehave(served, &mut random);
                        }
                    });
                }
            });
            if round == 0 {
                before = resident_bytes();
            }
        }
        done.store(true, Ordering::Relaxed);
        polite.join().expect("the polite client was served");
    });
    assert!(asked.load(Ordering::Relaxed) > 100, "the polite client was hardly served");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes more");
    assert!(source.is_running());
    // Nobody is left behind: all that remains at the source are the test's own connection and those of the
    // front.
    crate::common::wait_until("all have left", || {
        let redis::Value::BulkString(info) = source.call(&["INFO", "clients"]) else { panic!("no text") };
        let info = String::from_utf8_lossy(&info).into_owned();
        let connected = info.lines().find_map(|line| line.strip_prefix("connected_clients:"));
        connected.and_then(|n| n.trim().parse::<u32>().ok()).is_some_and(|n| n <= 2)
    });
}
