//! `whimbrel demo`.

use whimbrel_demo::{KEYS_MIN, Outcome};

use crate::exit::Exit;
use crate::settings::args::{Demo, DemoArgs};

/// Shows what was asked for, a rebalance unless told otherwise.
///
/// # Errors
/// When the servers are not on this machine or go away, or something of our own fails.
pub fn run(args: &DemoArgs) -> anyhow::Result<Exit> {
    let (is_copy, options) = match &args.demo {
        None => (false, &args.options),
        Some(Demo::Reshard(options)) => (false, options),
        Some(Demo::Copy(options)) => (true, options),
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
    let show = if is_copy { whimbrel_demo::copy } else { whimbrel_demo::reshard };
    Ok(exit_of(show(engine, options.keys)?))
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
