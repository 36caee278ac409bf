//! What was measured on.

use std::fs;

use serde::Serialize;
use whimbrel_core::units::format_bytes;
use whimbrel_lab::Engine;
use whimbrel_loadgen::program::full_version;

/// The machine and the programs, as far as they matter for the numbers.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Processors that this process may use.
    pub cores: usize,
    /// What the kernel calls the processor.
    pub processor: String,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// How busy the machine was before the first turn: runnable tasks, averaged over a minute.
    pub load_before: f64,
    /// The servers, with their full version.
    pub engine: String,
    /// Version of whimbrel.
    pub whimbrel: &'static str,
    /// Whether whimbrel was compiled without optimisation; then its times mean nothing.
    pub is_debug_build: bool,
}

impl Machine {
    /// Reads what the kernel and the engine report. What they do not report is empty or zero.
    pub fn of_this(engine: Engine) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let memory_kibibytes = number_after(&read("/proc/meminfo"), "MemTotal:");
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: read("/proc/cpuinfo")
                .lines()
                .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
                .map_or_else(String::new, |(_, name)| name.trim().to_owned()),
            memory_bytes: memory_kibibytes * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: read("/proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or_default(),
            engine: full_version(engine),
            whimbrel: env!("CARGO_PKG_VERSION"),
            is_debug_build: cfg!(debug_assertions),
        }
    }

    /// All of it in a line or two.
    pub fn describe(&self) -> String {
        format!(
            "{} cores ({}), {} memory, Linux {}, load {:.2} before; all servers {}; whimbrel {}{}",
            self.cores,
            if self.processor.is_empty() { "unknown processor" } else { &self.processor },
            format_bytes(self.memory_bytes),
            self.kernel,
            self.load_before,
            self.engine,
            self.whimbrel,
            if self.is_debug_build { " (DEBUG BUILD: its times mean nothing)" } else { "" },
        )
    }
}

/// Servers by their name.
///
/// # Errors
/// When there is no such engine.
pub fn engine(name: &str) -> Result<Engine, String> {
    Engine::from_name(name).ok_or_else(|| format!("there is no engine {name}"))
}

fn number_after(text: &str, label: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(label)?.split_whitespace().next()?.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_label() {
        let text = "MemFree: 17 kB\nMemTotal:    4096 kB\n";
        assert_eq!(number_after(text, "MemTotal:"), 4096);
        assert_eq!(number_after(text, "Cached:"), 0);
    }
}
