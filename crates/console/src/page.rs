//! The files of the page. They are in the binary, and load nothing from anywhere else.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// A file: its path, what it is, and its text.
#[derive(Debug, Clone, Copy)]
pub struct File {
    /// Its path on the server, without the slash in front.
    pub path: &'static str,
    /// Its content type.
    pub kind: &'static str,
    /// All of it.
    pub text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

macro_rules! files {
    ($($path:literal $kind:ident),* $(,)?) => {
        &[$(File { path: $path, kind: $kind, text: include_str!(concat!("../page/", $path)) }),*]
    };
}

/// All of them.
pub const FILES: &[File] = files! {
    "api.js" SCRIPT,
    "audit.js" SCRIPT,
    "charts.js" SCRIPT,
    "cluster.js" SCRIPT,
    "console.css" STYLE,
    "cutover.js" SCRIPT,
    "dialogs.js" SCRIPT,
    "dom.js" SCRIPT,
    "fleet.js" SCRIPT,
    "index.html" HTML,
    "job.js" SCRIPT,
    "jobs.js" SCRIPT,
    "main.js" SCRIPT,
    "migration.js" SCRIPT,
    "migrations.js" SCRIPT,
    "plan.js" SCRIPT,
    "sides.js" SCRIPT,
    "slots.js" SCRIPT,
    "store.js" SCRIPT,
    "stream.js" SCRIPT,
    "theme.js" SCRIPT,
    "units.js" SCRIPT,
};

/// The file at this path; the page itself where that is empty.
pub fn find(path: &str) -> Option<&'static File> {
    let path = if path.is_empty() { "index.html" } else { path };
    FILES.iter().find(|file| file.path == path)
}

impl IntoResponse for &'static File {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, self.kind)], self.text).into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The page and its parts may take this many bytes altogether.
    const BYTES_MAX: usize = 300 << 10;

    #[test]
    fn every_file_of_the_folder_is_served_and_all_are_small() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        let names = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file"));
        let there: BTreeSet<String> =
            names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let served: BTreeSet<String> = FILES.iter().map(|file| file.path.to_owned()).collect();
        assert_eq!(there, served);
        let bytes: usize = FILES.iter().map(|file| file.text.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    }

    /// What would make a value of a server's part of the page, or run where the policy forbids it.
    #[test]
    fn no_file_makes_markup_of_text() {
        for file in FILES {
            for dangerous in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
            {
                assert!(!file.text.contains(dangerous), "{} has {dangerous}", file.path);
            }
            if file.kind == HTML {
                for inline in ["style=", "onclick=", "onload=", "javascript:", "http://", "https://"] {
                    assert!(!file.text.contains(inline), "{} has {inline}", file.path);
                }
            }
        }
    }
}
