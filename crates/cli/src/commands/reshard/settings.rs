//! How slots move, by the options of the command.

use whimbrel_control::options::TransferOptions;
use whimbrel_control::service::{Method, NATIVE_STALL_MS, Settings};
use whimbrel_core::migration::{Rules, Verify};

use crate::settings::args::{MethodChoice, MovingArgs, VerifyChoice};

/// Lanes for each job: more do not help, since a server has one thread for its keys.
const LANES: usize = 4;

/// Size of the pieces in which large values move.
const CHUNK_BYTES: usize = 512 << 10;

/// How jobs are made by this method.
pub fn settings(moving: &MovingArgs, method: Method) -> Settings {
    Settings {
        method,
        rules: Rules {
            verify: match moving.verify() {
                VerifyChoice::None => Verify::None,
                VerifyChoice::Counts => Verify::Counts,
                VerifyChoice::Sample => Verify::Sample,
                VerifyChoice::Full => Verify::Full,
            },
            brake: !moving.no_brake,
            atomic: moving.atomic,
            ..Rules::default()
        },
        max_pause_ms: moving.max_pause,
        transfer: TransferOptions {
            lanes: LANES,
            big_key_bytes: moving.big_key,
            chunk_bytes: CHUNK_BYTES,
            memory_bytes: moving.memory,
            rate_keys: moving.rate_keys,
            rate_bytes: moving.rate_bytes,
            max_latency_ms: moving.max_latency,
            max_lag: moving.max_lag,
            max_load: moving.max_load,
            between: moving.between,
            stall_ms: moving.stall,
            ..TransferOptions::default()
        },
        name: moving.job.name.clone(),
        batch_keys: moving.batch_keys,
        native_stall_ms: match moving.method {
            MethodChoice::Auto => moving.native_stall.or(Some(NATIVE_STALL_MS)),
            _ => moving.native_stall,
        },
    }
}
