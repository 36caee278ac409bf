//! `whimbrel demo`.

use std::time::Duration;

use whimbrel_demo::{KEYS_MIN, Outcome};

use crate::exit::Exit;
use crate::settings::args::{Demo, DemoArgs};

/// Shows what was asked for, a rebalance by default.
///
/// # Errors
/// When the servers are not on this machine or go away, or something of our own fails.
pub fn run(args: &DemoArgs) -> anyhow::Result<Exit> {
    let (is_copy, options, time) = match &args.demo {
        None => (false, &args.options, None),
        Some(Demo::Reshard(options)) => (false, options, None),
        Some(Demo::Copy(options)) => (true, options, None),
        Some(Demo::Console { options, time }) => (false, options, Some(Duration::from_millis(*time))),
    };
    let engine = match whimbrel_demo::engine(&options.engine) {
        Ok(engine) => engine,
        Err(known) => {
            eprintln!("error: unknown engine {:?}: there are {known}", options.engine);
            return Ok(Exit::Usage);
        }
    };
    if !is_copy && options.keys < KEYS_MIN {
        eprintln!("error: --keys must be at least {KEYS_MIN} here");
        return Ok(Exit::Usage);
    }
    Ok(exit_of(match (time, is_copy) {
        (Some(time), _) => whimbrel_demo::console(engine, options.keys, time),
        (None, true) => whimbrel_demo::copy(engine, options.keys),
        (None, false) => whimbrel_demo::reshard(engine, options.keys),
    }?))
}

/// The exit code of the command that was shown is ours as well.
fn exit_of(outcome: Outcome) -> Exit {
    match outcome {
        Outcome::Proven => Exit::Success,
        Outcome::Different => Exit::Different,
        Outcome::Stopped => Exit::Stopped,
        Outcome::Failed(code) => {
            let all = Exit::TABLE.into_iter().map(|(exit, _)| exit);
            all.into_iter().find(|exit| code == Some(i32::from(*exit as u8))).unwrap_or(Exit::Internal)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_decides_the_exit_code() {
        assert_eq!(exit_of(Outcome::Failed(Some(6))), Exit::Different);
        assert_eq!(exit_of(Outcome::Failed(Some(130))), Exit::Stopped);
        assert_eq!(exit_of(Outcome::Failed(None)), Exit::Internal, "killed by a signal");
    }
}
