//! The page of the documentation about commands, written from the table.

use super::rule::{
    ClusterRule, DATABASES, FaceRule, Handling, KEYS_UNKNOWN, KeyspaceQuery, Merge, Note, PATTERNS, Rule,
    SCRIPTS, UNKNOWN,
};
use super::table::TABLE;

/// The page of the documentation about all of this.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Commands through the front\n\n\
         Written by the test `the_page_is_the_table` in `crates/front/src/command/documentation.rs`, from \
         the table that the front works by.\n\nEvery client has a connection of its own to the source. What \
         is not listed here is passed on as it is, and so is its reply: commands with keys, of modules too, \
         transactions, scripts, blocking commands, `PUBLISH`, `SCAN`, administration. The rights are those \
         of the client's own user.\n\n\
         ## Before keys move\n\n\
         | command | what the front does |\n|---|---|\n",
    );
    text.push_str(&plain());
    text.push_str(
        "\n## While keys move\n\n\
         What is refused above is refused here too. In a transaction only what has keys is taken, and what \
         has nothing to do with them; a command that is refused there makes `EXEC` fail, as any error does. \
         When all keys have moved, everything is passed on to the target as above. After a turn (`whimbrel \
         front reverse`) what is said here of the source is true of the target, and the other way round.\n\n",
    );
    text.push_str(&migrating());
    text.push_str(
        "\n## Clusters\n\n\
         Where source or target is a cluster, this is what becomes of a command that goes there. In a \
         transaction what goes to several nodes is refused, and `EXEC` fails.\n\n",
    );
    text.push_str(&clustered());
    text.push_str(
        "\n## As a cluster\n\n\
         With `--cluster-face` the front answers these in the place of a server that says that it is no \
         cluster. Whatever else the server answers is passed on.\n\n\
         | command | what the client gets |\n|---|---|\n",
    );
    text.push_str(&faced());
    text
}

fn plain() -> String {
    let mut text = String::new();
    let mut rows = TABLE.iter().filter_map(|row| Some((row.name, row.plain?))).peekable();
    while let Some((name, handling)) = rows.next() {
        text.push_str(&row(name, handling));
        let Some((first, _)) = name.split_once(' ') else { continue };
        if rows.peek().is_none_or(|(next, _)| !next.starts_with(&format!("{first} "))) {
            text.push_str(&row(&format!("{first}, anything else"), Handling::Passed));
        }
    }
    text
}

fn row(name: &str, handling: Handling) -> String {
    let what = match handling {
        Handling::Subscribe => {
            "passed on; from here on replies are passed on without being counted".to_owned()
        }
        Handling::Refused(why) => format!("refused: {why}"),
        Handling::Noted(_) => {
            "passed on; with `--target` the front remembers what it says of the client".to_owned()
        }
        Handling::Passed => "passed on".to_owned(),
    };
    format!("| `{name}` | {what} |\n")
}

fn migrating() -> String {
    let mut text = String::from("| command | while keys move |\n|---|---|\n");
    for (name, what) in TABLE.iter().filter_map(|row| Some((row.name, row.migrating?))) {
        let what = match what {
            Rule::Target => "the target answers".to_owned(),
            Rule::Noted(note) => described(note).to_owned(),
            Rule::Subscribe => {
                "the target; from here on it alone serves the client, and reads move their keys first too"
                    .to_owned()
            }
            Rule::Select => format!("database 0: the target answers; any other is refused: {DATABASES}"),
            Rule::Scan => {
                "through the source first, then through the target; a key may be given twice".to_owned()
            }
            Rule::Elements => "as any read; an iteration whose key has moved since begins anew at the \
                target, so elements may be given twice. In a transaction, and after a subscription, only one \
                that begins, or that goes on at the target"
                .to_owned(),
            Rule::Both(KeyspaceQuery::Count) => "the sum of both, while nothing moves".to_owned(),
            Rule::Both(KeyspaceQuery::Names) => "of both, while nothing moves".to_owned(),
            Rule::Both(KeyspaceQuery::Any) => {
                "one of both, by their numbers of keys, while nothing moves".to_owned()
            }
            Rule::Flush => "both are emptied while nothing moves, to clients at one moment; not in a \
                transaction, nor after a subscription"
                .to_owned(),
            Rule::Sort => {
                format!("keys move first, then the target; with `BY` or `GET` refused: {PATTERNS}")
            }
            Rule::Copy => format!("keys move first, then the target; with `DB` refused: {DATABASES}"),
            Rule::Script => {
                format!(
                    "with `--scripts-declare-keys` the declared keys move first, then the target; else \
                    refused: {SCRIPTS}"
                )
            }
            Rule::Library => format!(
                "with `--scripts-declare-keys` the target answers; else refused: \
                {SCRIPTS}"
            ),
            Rule::Refused(why) => format!("refused: {why}"),
        };
        let first = name.strip_suffix(" *").unwrap_or(name);
        let has_others = TABLE
            .iter()
            .filter(|row| row.migrating.is_some())
            .any(|row| row.name != name && row.name.starts_with(&format!("{first} ")));
        let name =
            if first != name && has_others { format!("{first}, anything else") } else { first.to_owned() };
        text.push_str(&format!("| `{name}` | {what} |\n"));
    }
    text.push_str(
        "| any other that both servers call a read, with keys | the source, where none of them has moved; \
         else keys that have not moved do so first, then the target |\n\
         | any other with keys | keys that have not moved do so first, then the target |\n",
    );
    text.push_str(&format!(
        "| any other without keys, or whose keys the servers do not show | refused: {KEYS_UNKNOWN} |\n"
    ));
    text.push_str(&format!("| what the target does not have | refused: {UNKNOWN} |\n"));
    text
}

fn described(note: Note) -> &'static str {
    match note {
        Note::Trait(_) => "the target answers; the source is sent the same",
        Note::Multi => "the target answers; the keys of what is queued move first",
        Note::Watch => "the keys move first, then the target",
        Note::Exec | Note::Discard | Note::Unwatch | Note::Select => "the target answers",
        Note::Reset => "the target answers; the connection to the source is made anew",
    }
}

fn clustered() -> String {
    let mut text = String::from("| command | in front of a cluster |\n|---|---|\n");
    for (name, rule) in TABLE.iter().filter_map(|row| Some((row.name, row.clustered?))) {
        let what = match rule {
            ClusterRule::Multi => "its node is known by the first command with keys",
            ClusterRule::Exec | ClusterRule::Discard => {
                "to the node of the transaction, all of whose keys have to be in one slot"
            }
            ClusterRule::Watch => {
                "to the owner of the slot that its keys are in; a transaction after it goes there as well"
            }
            ClusterRule::Unwatch => "to the node that watches",
            ClusterRule::Noted(_) => "each node that is needed is sent the same",
            ClusterRule::Reset => "as on a new connection",
            ClusterRule::Select => "database 0 only",
            ClusterRule::Quit => "ends the connection, when all replies have come",
            ClusterRule::Listen => "one node delivers messages, at whichever node they were published",
            ClusterRule::ListenAtSlot => {
                "the owner of the slot; channels of several nodes take several connections"
            }
            ClusterRule::PublishAtSlot => "to the owner of the slot",
            ClusterRule::Scan => "one primary after the other",
            ClusterRule::Every(Merge::Sum) => {
                "to all primaries; numbers are added, an error of one is the answer"
            }
            ClusterRule::Every(Merge::Least) => "to all primaries; the least number",
            ClusterRule::Every(Merge::Union) => "to all primaries; all that they give",
            ClusterRule::Every(Merge::Any) => "to all primaries; one that is found, by chance",
            ClusterRule::Every(Merge::Each) => "to all primaries; what all of them have",
            ClusterRule::NoCluster => {
                "answered as by a server that is no cluster; with `--cluster-face` by the front"
            }
            ClusterRule::Refused => "refused: it would change one node of many",
        };
        text.push_str(&format!("| `{}` | {what} |\n", name.strip_suffix(" *").unwrap_or(name)));
    }
    text.push_str(
        "| any other with keys | to the owner of the slot that they are in; where there are several slots \
         `CROSSSLOT` |\n\
         | any other | to one of the primaries, the same for all of them |\n",
    );
    text
}

fn faced() -> String {
    let mut text = String::new();
    for (name, rule) in TABLE.iter().filter_map(|row| Some((row.name, row.face?))) {
        let what = match rule {
            FaceRule::Slots | FaceRule::Shards | FaceRule::Nodes => {
                "one primary, the front, has all slots; in a fleet, which member has which"
            }
            FaceRule::Info => "a cluster without faults",
            FaceRule::MyId => "the name of the front",
            FaceRule::KeySlot => "the slot of the key",
            FaceRule::Agreed => "that it is agreed to",
        };
        text.push_str(&format!("| `{name}` | {what} |\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `WHIMBREL_WRITE_DOCS=1` writes the page instead.
    #[test]
    fn the_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/front-commands.md");
        if std::env::var_os("WHIMBREL_WRITE_DOCS").is_some() {
            std::fs::write(path, markdown()).expect("the page can be written");
        }
        let page = std::fs::read_to_string(path).expect("the page is there");
        assert_eq!(page, markdown(), "write it anew with WHIMBREL_WRITE_DOCS=1");
    }
}
