//! What the benchmarks end with: the codes of whimbrel, as far as they apply.

/// What the process ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything was measured, and whimbrel did what it was asked for.
    Success = 0,
    /// Something of the benchmark's own failed.
    Internal = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// Whimbrel is done, and what it left differs from what it should be.
    Different = 6,
    /// Whimbrel failed or took too long.
    Interrupted = 7,
    /// Stopped by the user, cleanly.
    Stopped = 130,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}
