//! What a severity and a verdict are called, and what is to be done.

use whimbrel_flow::assess::{Finding, Severity, Verdict};

use crate::ui::remedies;

/// What is wrong, and what to do about it.
pub fn of(finding: &Finding) -> (String, Option<String>) {
    let (text, remedy) = finding.words();
    (text, remedy.map(|remedy| remedies::words(&remedy).into_owned()))
}

/// What a severity is called.
pub fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Blocks => "blocks",
        Severity::Warns => "care",
        Severity::Notes => "note",
    }
}

/// What it comes to.
pub fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ready => "nothing stands in the way of a migration",
        Verdict::WithCare => "a migration may begin; see to what needs care first",
        Verdict::Blocked => "a migration cannot begin before what blocks it is dealt with",
    }
}
