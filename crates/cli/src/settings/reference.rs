//! The reference of all commands, `docs/commands.md`, written from their definition.

use super::command;

const HEAD: &str = "# Commands\n\n\
    Every command with its own options; all have `--config` and `--profile`. A test writes this page from \
    their definition.\nEach option can also be set in [a file or the environment](configuration.md).\n";

fn markdown() -> String {
    let mut whole = command().term_width(100);
    whole.build();
    HEAD.to_owned() + &whimbrel_settings::reference::markdown(&mut whole)
}

/// `WHIMBREL_WRITE_DOCS=1` writes the page instead.
#[test]
fn the_page_is_the_definition() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
    if std::env::var_os("WHIMBREL_WRITE_DOCS").is_some() {
        std::fs::write(path, markdown()).expect("the page can be written");
    }
    let page = std::fs::read_to_string(path).expect("the page is there");
    assert_eq!(page, markdown(), "write it anew with WHIMBREL_WRITE_DOCS=1");
}
