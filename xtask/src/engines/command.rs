//! Programs that are run.

use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

/// Runs a command to its end and returns what it printed. A failure carries its own error lines, on one line.
pub(super) fn stdout(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&run(command)?.stdout).into_owned())
}

/// As [`stdout`], and what it said as if it were an error: some print their version there.
pub(super) fn banner(command: &mut Command) -> Result<String> {
    let output = run(command)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(text(&output.stdout) + &text(&output.stderr))
}

fn run(command: &mut Command) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let mut lines: Vec<&str> = complaint.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        // apt marks what matters; other programs do not.
        if lines.iter().any(|line| line.starts_with("E:")) {
            lines.retain(|line| line.starts_with("E:") || line.starts_with("W:"));
        }
        bail!("{program} failed ({}): {}", output.status, lines.join("; "));
    }
    Ok(output)
}
