//! Each command line that pages for users show is one that the definition of the command line takes.

use std::fs;
use std::path::{Path, PathBuf};

use whimbrel_settings::pages::{Shown, lines};

use super::command;

/// Where users read command lines: files and folders of the repository. The page written from the definition
/// is among them, for the examples in it.
const PAGES: [&str; 5] = ["README.md", "SECURITY.md", "docs", "packaging/examples", "packaging/systemd"];

fn mistake(shown: &Shown) -> Option<String> {
    whimbrel_settings::pages::mistake(command(), shown)
}

#[test]
fn command_lines_of_pages_are_taken() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut shown = Vec::new();
    for page in PAGES.iter().flat_map(|page| files(&root.join(page))) {
        let text = fs::read_to_string(&page).expect("the page can be read");
        let name = page.strip_prefix(&root).expect("it is in the repository").display().to_string();
        shown.extend(lines(&name, &text, page.extension().is_some_and(|end| end == "md")));
    }
    // Fewer would mean that they are no longer found.
    assert!(shown.len() > 150, "only {} command lines were found", shown.len());
    let wrong: Vec<String> = shown.iter().filter_map(mistake).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn options_that_do_not_exist_are_found() {
    let page = "# Page\n\
        Say `whimbrel sync OLD NEW --mirrored`, or `whimbrel sync --mirror`.\n\
        ```sh\n\
        whimbrel copy old:1 new:2 --verifying   # a comment\n\
        sudo -u whimbrel whimbrel copy old:1 new:2 \\\n    --verify | jq --no-such-option .\n\
        whimbrel copying old:1 new:2\n\
        whimbrel copy old:1\n\
        ```\n";
    let wrong: Vec<String> = lines("page.md", page, true).iter().filter_map(mistake).collect();
    let places: Vec<&str> = wrong.iter().filter_map(|wrong| wrong.split(' ').next()).collect();
    assert_eq!(places, ["page.md:2:", "page.md:4:", "page.md:7:", "page.md:8:"], "{wrong:#?}");
}

fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).expect("the folder can be read");
    let mut found: Vec<PathBuf> =
        entries.flat_map(|entry| files(&entry.expect("the folder can be read").path())).collect();
    found.retain(|file| file.extension().is_none_or(|end| end != "svg"));
    found.sort();
    found
}
