//! Keys that move in chunks.

use std::fs;
use std::time::Duration;

use whimbrel_judge::compare::assert_equal;
use whimbrel_lab::{Engine, Server};

use super::{
    PATIENCE, STOPPED, SUCCESS, at, count, db_size, events, folder, invocation, report, server, start,
};

#[test]
fn stopping_in_the_middle_of_a_big_key() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis70));
    big_hash(&source, 60_000_000);
    let state = folder();
    let (from, to) = (source.addr(), target.addr());
    // So slowly that it is in the middle when it is stopped, on a busy machine too.
    let slowly = [&*from, &to, "--json", "--report", "1", "--rate-bytes", "4000000"];
    let mut running = invocation(state.path(), &slowly).spawn();
    let deadline = std::time::Instant::now() + PATIENCE;
    // Its staging key appears first.
    while db_size(&target) == 0 {
        assert!(std::time::Instant::now() < deadline && running.is_running(), "it never begins");
    }
    running.interrupt();
    let output = running.wait(PATIENCE).expect("it ends").expect_code(STOPPED);
    let stopped = report(&output);
    assert_eq!(stopped["complete"], false, "{stopped}");
    assert_eq!(events(&output, "error").len(), 0, "{}", output.stdout);
    assert_eq!(db_size(&target), 0, "half a key is left behind");
    let resumed =
        report(&invocation(state.path(), &[&from, &to, "--json", "--resume"]).run().expect_code(SUCCESS));
    assert_eq!(count(&resumed, "written"), 1, "{resumed}");
    assert_equal(&at(&from), &at(&to));
}

fn big_hash(server: &Server, bytes: usize) {
    let value = vec![b'v'; 1000];
    let mut connection = server.connection();
    for from in (0..bytes / 1000).step_by(2000) {
        let mut pipe = redis::pipe();
        for i in (from..from + 2000).step_by(100) {
            let pairs: Vec<(String, &[u8])> =
                (i..i + 100).map(|i| (format!("field:{i}"), &value[..])).collect();
            pipe.hset_multiple("big:hash", &pairs).ignore();
        }
        let () = pipe.query(&mut connection).expect("it takes the hash");
    }
}

fn big_list(server: &Server, bytes: usize) {
    let value = vec![b'v'; 1000];
    let mut connection = server.connection();
    for from in (0..bytes / 1000).step_by(2000) {
        let mut pipe = redis::pipe();
        for i in (from..from + 2000).step_by(100) {
            let elements: Vec<Vec<u8>> =
                (i..i + 100).map(|i| [i.to_string().as_bytes(), &value].concat()).collect();
            pipe.rpush("big:list", elements).ignore();
        }
        let () = pipe.query(&mut connection).expect("it takes the list");
    }
}

/// A hash and a list of 200 MB: bounded memory here, short commands there.
#[test]
fn big_keys_in_bounded_memory() {
    const BUDGET_BYTES: u64 = 16 << 20;
    const CONSTANT_BYTES: u64 = 64 << 20;
    for (from, to) in [(Engine::Redis70, Engine::Redis70), (Engine::Valkey91, Engine::Redis80)] {
        let (source, target) = (start(Server::builder(from)), start(Server::builder(to)));
        big_hash(&source, 200_000_000);
        big_list(&source, 200_000_000);
        let mut tries = 4;
        loop {
            tries -= 1;
            target.call(&["FLUSHALL", "ASYNC"]);
            for server in [&source, &target] {
                server.slow_commands();
            }
            let state = folder();
            let mut running =
                invocation(state.path(), &[&source.addr(), &target.addr(), "--memory", "16MiB", "--json"])
                    .spawn();
            let mut peak_bytes = 0;
            while running.is_running() {
                peak_bytes = peak_bytes.max(peak_rss_bytes(running.pid()));
                std::thread::sleep(Duration::from_millis(10));
            }
            let report = report(&running.wait(PATIENCE).expect("it has ended").expect_code(SUCCESS));
            assert_eq!((count(&report, "written"), count(&report, "big")), (2, 2), "{report}");
            assert!(peak_bytes > 1 << 20, "its memory was not seen");
            assert!(
                peak_bytes < BUDGET_BYTES + CONSTANT_BYTES,
                "{peak_bytes} bytes were resident at the peak"
            );
            let slow_ones: Vec<String> =
                [&source, &target].into_iter().flat_map(Server::slow_commands).collect();
            if slow_ones.is_empty() {
                break;
            }
            // A busy machine makes any command slow now and then.
            assert!(tries > 0, "commands above 50 ms in each of four copies: {slow_ones:?}");
        }
        assert_equal(&at(source.addr()), &at(target.addr()));
    }
}

/// `VmHWM`; 0 where the process has just ended.
fn peak_rss_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}
