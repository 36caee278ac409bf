//! What pictures of benchmarks have in common.

/// As text within a picture.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
