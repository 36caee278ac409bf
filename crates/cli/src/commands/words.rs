//! What a cutover that did not come about has to say to people, and what can be done.

use whimbrel_engine::error::{Error, ErrorKind};

use crate::ui::remedies::whole;

const PAUSE: &str = "give this user +client|pause and +client|unpause; if the service forbids that to \
    everybody, use --fence external: you stop the clients yourself, and whimbrel needs none of this. Nor \
    does it with --fence front, where clients go through whimbrel front";
const LACKS: &str = "use --fence external: you stop the clients yourself, and whimbrel needs no pause; or \
    --fence front, where clients go through whimbrel front";
const END: &str = "give this user +client|list and +client|kill, by which clients that wait are ended; or \
    use --fence none, or external";
const ACL: &str = "give this user +acl|whoami, +acl|users, +acl|getuser and +acl|setuser, or choose another \
    way with --fence: pause, or external if the service forbids that as well";
const REPLICA: &str = "give this user +replicaof, or choose another way with --fence: acl, pause or external";
const STILL: &str = "stop those clients, and try again; --wait-for-quiet waits longer, and with a shorter \
    --quiet-for rare writes do not count";

/// The error, with what can be done about it.
fn remedied(error: Error) -> Error {
    let remedy = match &error.kind {
        ErrorKind::Forbidden { command, .. } => match command.as_str() {
            "CLIENT PAUSE" | "CLIENT UNPAUSE" => PAUSE,
            "CLIENT LIST" | "CLIENT KILL" => END,
            "REPLICAOF" => REPLICA,
            _ => ACL,
        },
        ErrorKind::Lacks { .. } => LACKS,
        ErrorKind::StillWritten(_) => STILL,
        _ => return error,
    };
    error.with_remedy(remedy)
}

/// Why a cutover did not come about, for the process that asked for it.
pub fn refusal(error: Error) -> String {
    whole(&remedied(error))
}

/// A hook of a cutover that is done.
pub fn failed_hook(event: &str, failure: &str) -> String {
    const STANDS: &str =
        "the cutover is done, and nothing of it is undone: do by hand what is left to be done";
    format!("the hook of {event} {failure}\n         {STANDS}")
}
