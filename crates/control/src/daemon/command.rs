//! What the server answers.

use bytes::Bytes;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::Slot;
use whimbrel_engine::error::Result;
use whimbrel_fleet::login::{Challenge, Verifier, is_same};
use whimbrel_wire::encode::Protocol;
use whimbrel_wire::topology::Reply;
use whimbrel_wire::value::Value;

use super::at_node::{self, AtNode};
use super::migrations::{JobView, jobs_of, parse_moves};
use super::options::DaemonOptions;
use super::reply::{error, ok, shown, text, unknown_subcommand, wrong_number};
use super::services::{Jobs, Services};
use super::{fleet, seed};

/// As many jobs as Valkey lists migrations, by default.
const LISTED_MAX: usize = 1_000;

/// This many wrong passwords end a connection.
const LOGINS_MAX: u32 = 3;

/// What a command comes to.
#[derive(Debug)]
pub(super) enum Answer {
    /// A value that is still to be encoded.
    Value(Value),
    /// A reply that lies ready.
    Built(Reply),
}

impl Answer {
    /// Whether a login was refused.
    pub(super) fn is_wrong_password(&self) -> bool {
        let error = match self {
            Answer::Value(value) => value.as_error(),
            Answer::Built(_) => None,
        };
        error.is_some_and(|text| text.starts_with(b"WRONGPASS"))
    }
}

/// What the server remembers of one connection.
#[derive(Debug)]
pub(super) struct Session {
    id: u64,
    /// The node, if the client has connected to a node's port.
    node: Option<AtNode>,
    pub(super) protocol: Protocol,
    pub(super) is_in: bool,
    /// True once the last reply has been given.
    pub(super) is_over: bool,
    name: Bytes,
    failed_logins: u32,
    /// What `FLEET LOGIN` was answered with.
    challenge: Option<Challenge>,
}

/// Whether these words may be a try to log in.
pub(super) fn is_login(words: &[Bytes]) -> bool {
    let is = |at: usize, name: &[u8]| words.get(at).is_some_and(|word| word.eq_ignore_ascii_case(name));
    is(0, b"AUTH") || is(0, b"HELLO") && words.len() > 2 || is(0, b"FLEET") && is(1, b"PROVE")
}

impl Session {
    pub(super) fn new(id: u64, node: Option<AtNode>, options: &DaemonOptions) -> Session {
        Session {
            id,
            node,
            protocol: Protocol::Resp2,
            is_in: options.password.is_none(),
            is_over: false,
            name: Bytes::new(),
            failed_logins: 0,
            challenge: None,
        }
    }

    /// Carries out one command. `words` is not empty.
    pub(super) async fn answer<J: Jobs>(
        &mut self,
        words: &[Bytes],
        options: &DaemonOptions,
        services: &Services<J>,
        verifier: Option<&Verifier>,
    ) -> Answer {
        if let Some(reply) = self.prove(words, options, verifier) {
            return Answer::Value(reply);
        }
        if let ([name, sub], Some(jobs)) = (words, &services.jobs)
            && self.is_in
            && name.eq_ignore_ascii_case(b"CLUSTER")
        {
            let (topology, sub) = (jobs.topology(), sub.to_ascii_uppercase());
            let built = match &self.node {
                Some(node) => topology.reply_at(&node.id, node.ip, &sub, self.protocol),
                None => topology.reply(&sub, self.protocol),
            };
            if let Some(built) = built {
                return Answer::Built(built);
            }
        }
        Answer::Value(self.carry_out(words, options, services).await)
    }

    async fn carry_out<J: Jobs>(
        &mut self,
        words: &[Bytes],
        options: &DaemonOptions,
        services: &Services<J>,
    ) -> Value {
        let (name, args) = (words[0].to_ascii_uppercase(), &words[1..]);
        match (&name[..], args) {
            (b"QUIT", _) => {
                self.is_over = true;
                ok()
            }
            (b"AUTH", [password]) => self.log_in(b"default", password, options),
            (b"AUTH", [user, password]) => self.log_in(user, password, options),
            (b"HELLO", _) => self.hello(args, options),
            _ if !self.is_in => Value::Error(Bytes::from_static(b"NOAUTH Authentication required.")),
            (b"PING", []) => Value::Simple(Bytes::from_static(b"PONG")),
            (b"PING" | b"ECHO", [message]) => Value::Bulk(message.clone()),
            (b"SELECT", [db]) if &db[..] == b"0" => ok(),
            (b"SELECT", [_]) => error("DB index is out of range"),
            (b"CLIENT", [sub, args @ ..]) => self.client(sub, args),
            (b"COMMAND", [sub, ..]) if sub.eq_ignore_ascii_case(b"DOCS") => Value::Map(Vec::new()),
            // All that is here may be read, and nothing is between two owners.
            (b"READONLY" | b"READWRITE" | b"ASKING", []) => ok(),
            (b"FLEET", [sub, args @ ..]) => fleet::answer(sub, args, services.fleet.as_ref()).await,
            (b"AUTH" | b"PING" | b"ECHO" | b"SELECT", _) | (b"CLIENT" | b"CLUSTER" | b"FLEET", []) => {
                wrong_number(&String::from_utf8_lossy(&name).to_ascii_lowercase())
            }
            (b"INFO", _) if self.node.is_none() => info(words, services.jobs.as_deref()).await,
            (name, args) => match services.jobs.as_deref() {
                Some(jobs) => about_slots(name, args, words, self.node.as_ref(), jobs).await,
                None => error(format!(
                    "unknown command '{}': this is the coordinator of a fleet, and was given no cluster",
                    shown(&words[0])
                )),
            },
        }
    }

    fn log_in(&mut self, user: &[u8], password: &[u8], options: &DaemonOptions) -> Value {
        let Some(expected) = &options.password else {
            return error(
                "AUTH <password> called without any password configured for the default user. Are you sure \
                 your configuration is correct?",
            );
        };
        if is_same(expected.expose().as_bytes(), password) && is_user(user, options) {
            self.is_in = true;
            return ok();
        }
        self.refuse()
    }

    /// `FLEET LOGIN user nonce` and `FLEET PROVE proof`: a login that does not send the password. None for
    /// other commands.
    fn prove(
        &mut self,
        words: &[Bytes],
        options: &DaemonOptions,
        verifier: Option<&Verifier>,
    ) -> Option<Value> {
        let [name, sub, args @ ..] = words else { return None };
        if !name.eq_ignore_ascii_case(b"FLEET") {
            return None;
        }
        let (challenge, sub) = (self.challenge.take(), sub.to_ascii_uppercase());
        Some(match (&sub[..], args, verifier) {
            (b"LOGIN", [_, _], None) => error("no password is configured here: log in without one"),
            (b"LOGIN", [user, nonce], Some(verifier)) => match verifier.challenge(user, nonce) {
                Ok(Some((reply, challenge))) => {
                    self.challenge = Some(challenge);
                    reply
                }
                Ok(None) => error("invalid nonce"),
                Err(e) => error(e.to_string()),
            },
            (b"PROVE", [proof], Some(verifier)) => {
                let proved = challenge.and_then(|challenge| verifier.verify(challenge, proof));
                match proved.filter(|(user, _)| is_user(user, options)) {
                    Some((_, reply)) => {
                        self.is_in = true;
                        reply
                    }
                    None => self.refuse(),
                }
            }
            (b"LOGIN" | b"PROVE", _, _) => {
                wrong_number(&format!("fleet|{}", shown(&sub).to_ascii_lowercase()))
            }
            _ => return None,
        })
    }

    /// Takes note of a login that failed.
    fn refuse(&mut self) -> Value {
        self.is_in = false;
        self.failed_logins += 1;
        self.is_over = self.failed_logins >= LOGINS_MAX;
        Value::Error(Bytes::from_static(b"WRONGPASS invalid username-password pair or user is disabled."))
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`
    fn hello(&mut self, args: &[Bytes], options: &DaemonOptions) -> Value {
        let mut protocol = self.protocol;
        let mut rest = args;
        if let [version, others @ ..] = args {
            protocol = match &version[..] {
                b"2" => Protocol::Resp2,
                b"3" => Protocol::Resp3,
                _ => return Value::Error(Bytes::from_static(b"NOPROTO unsupported protocol version")),
            };
            rest = others;
        }
        let mut name = None;
        while let [option, others @ ..] = rest {
            rest = match (&option.to_ascii_uppercase()[..], others) {
                (b"AUTH", [user, password, others @ ..]) => {
                    let answer = self.log_in(user, password, options);
                    if !answer.is_ok() {
                        return answer;
                    }
                    others
                }
                (b"SETNAME", [given, others @ ..]) => {
                    name = Some(given.clone());
                    others
                }
                _ => return error(format!("syntax error in HELLO option '{}'", shown(option))),
            };
        }
        if !self.is_in {
            return Value::Error(Bytes::from_static(
                b"NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
                    <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
                    RESP protocol version at the same time",
            ));
        }
        self.protocol = protocol;
        if let Some(name) = name {
            self.name = name;
        }
        let version = if protocol == Protocol::Resp3 { 3 } else { 2 };
        let id = i64::try_from(self.id).unwrap_or(i64::MAX);
        Value::Map(vec![
            (text("server"), text("whimbrel")),
            (text("version"), text(env!("CARGO_PKG_VERSION"))),
            (text("proto"), Value::Int(version)),
            (text("id"), Value::Int(id)),
            (text("mode"), text("cluster")),
            (text("role"), text("master")),
            (text("modules"), Value::Array(Vec::new())),
        ])
    }

    fn client(&mut self, sub: &[u8], args: &[Bytes]) -> Value {
        match (&sub.to_ascii_uppercase()[..], args) {
            (b"SETNAME", [name]) => {
                self.name = name.clone();
                ok()
            }
            (b"GETNAME", []) if self.name.is_empty() => Value::Null,
            (b"GETNAME", []) => Value::Bulk(self.name.clone()),
            (b"SETINFO", [_, _]) => ok(),
            (b"ID", []) => Value::Int(i64::try_from(self.id).unwrap_or(i64::MAX)),
            (b"SETNAME" | b"GETNAME" | b"SETINFO" | b"ID", _) => {
                wrong_number(&format!("client|{}", shown(sub).to_ascii_lowercase()))
            }
            _ => unknown_subcommand("CLIENT", sub),
        }
    }
}

fn is_user(user: &[u8], options: &DaemonOptions) -> bool {
    user == b"default" || options.user.as_deref().is_some_and(|u| u.as_bytes() == user)
}

/// What needs a cluster.
async fn about_slots<J: Jobs>(
    name: &[u8],
    args: &[Bytes],
    words: &[Bytes],
    node: Option<&AtNode>,
    jobs: &J,
) -> Value {
    if let Some(node) = node
        && let Some(answer) = at_node::answer(node, words, jobs).await
    {
        return answer;
    }
    match (name, args) {
        (b"COMMAND", _) => seed::pass_on(None, words, jobs).await,
        (b"CLUSTER", [sub, args @ ..]) => cluster(sub, args, node.map(|node| &node.id), jobs).await,
        _ => seed::redirect(words, jobs).await,
    }
}

async fn cluster<J: Jobs>(sub: &[u8], args: &[Bytes], node: Option<&NodeId>, jobs: &J) -> Value {
    match (&sub.to_ascii_uppercase()[..], args) {
        (b"MIGRATESLOTS", [_, _, ..]) => migrate(args, node, jobs).await,
        (b"GETSLOTMIGRATIONS", []) => match (all_jobs(jobs).await, node) {
            (Ok(all), Some(node)) => Value::Array(jobs_of(node, all).take(LISTED_MAX).collect()),
            (Ok(all), None) => Value::Array(all.iter().take(LISTED_MAX).map(JobView::reply).collect()),
            (Err(e), _) => error(e.to_string()),
        },
        (b"CANCELSLOTMIGRATIONS", []) => cancel(None, node, jobs).await,
        (b"CANCELSLOTMIGRATIONS", [word]) if word.eq_ignore_ascii_case(b"ALL") => {
            cancel(None, node, jobs).await
        }
        (b"CANCELSLOTMIGRATIONS", [name]) => cancel(Some(name), node, jobs).await,
        (b"HELP", []) => help(),
        (b"MIGRATESLOTS" | b"GETSLOTMIGRATIONS" | b"CANCELSLOTMIGRATIONS", _) => {
            wrong_number(&format!("cluster|{}", shown(sub).to_ascii_lowercase()))
        }
        (b"KEYSLOT", [key]) => Value::Int(Slot::of_key(key).number().into()),
        (b"COUNTKEYSINSLOT", [slot]) => seed::count_keys(slot, jobs).await,
        (b"SLOTS" | b"SHARDS" | b"NODES" | b"INFO" | b"MYID" | b"KEYSLOT" | b"COUNTKEYSINSLOT", _) => {
            wrong_number(&format!("cluster|{}", shown(sub).to_ascii_lowercase()))
        }
        _ => unknown_subcommand("CLUSTER", sub),
    }
}

/// Our jobs, the newest first, and after them those of others in the cluster. The latter are a courtesy: if
/// the cluster cannot be asked, ours are listed without them.
async fn all_jobs<J: Jobs>(jobs: &J) -> Result<Vec<JobView>> {
    let (ours, others) = tokio::join!(jobs.list(), jobs.others());
    let mut all = ours?;
    match others {
        Ok(others) => all.extend(others),
        Err(error) => tracing::info!(%error, "what others do in the cluster cannot be listed"),
    }
    Ok(all)
}

async fn migrate<J: Jobs>(args: &[Bytes], node: Option<&NodeId>, jobs: &J) -> Value {
    let known = match jobs.list().await {
        Ok(known) => known,
        Err(e) => return error(e.to_string()),
    };
    let view = match jobs.view().await {
        Ok(view) => view,
        Err(e) => return error(e.to_string()),
    };
    let moves = match parse_moves(args, &view, &known, node) {
        Ok(moves) => moves,
        Err(what) => return error(what),
    };
    match jobs.submit(moves).await {
        Ok(_) => ok(),
        Err(e) => error(e.to_string()),
    }
}

/// Cancels one job, or all that have not ended; at the port of a node of those that move slots away from it.
async fn cancel<J: Jobs>(name: Option<&[u8]>, node: Option<&NodeId>, jobs: &J) -> Value {
    let mut all = match jobs.list().await {
        Ok(all) => all,
        Err(e) => return error(e.to_string()),
    };
    all.retain(|job| node.is_none_or(|node| job.source == node.as_str()));
    let is_meant = |job: &&JobView| name.is_none_or(|name| job.name.as_bytes() == name);
    if let Some(name) = name
        && !all.iter().any(|job| is_meant(&job))
    {
        let others = jobs.others().await.unwrap_or_default();
        let other = others.into_iter().find(|job| job.name.as_bytes() == name);
        let Some(other) = other else { return error("No such slot migration job") };
        return error(format!("this is not a job of this daemon: {}", other.message));
    }
    let active: Vec<&JobView> = all.iter().filter(is_meant).filter(|job| !job.state.is_final()).collect();
    if active.is_empty() {
        return error("No migrations ongoing");
    }
    for job in active {
        if let Err(e) = jobs.cancel(&job.name).await {
            return error(e.to_string());
        }
    }
    ok()
}

/// Our own state, followed by what a node of the cluster says about itself: clients find there which server
/// and version they talk to. If no node answers, there is only ours.
async fn info<J: Jobs>(words: &[Bytes], jobs: Option<&J>) -> Value {
    let of_node = match jobs {
        Some(jobs) => seed::pass_on(None, words, jobs).await,
        None => Value::Null,
    };
    let ours = |section: &Bytes| {
        let sections: [&[u8]; 6] = [b"whimbrel", b"jobs", b"cluster", b"default", b"all", b"everything"];
        sections.iter().any(|ours| section.eq_ignore_ascii_case(ours))
    };
    match of_node.as_bytes() {
        Some(theirs) if words.len() > 1 && !words[1..].iter().any(ours) => {
            Value::Verbatim(Bytes::copy_from_slice(theirs))
        }
        theirs => our_info(theirs.map_or(&[], |text| &text[..]), jobs).await,
    }
}

async fn our_info<J: Jobs>(of_node: &[u8], jobs: Option<&J>) -> Value {
    let listed = match jobs {
        Some(jobs) => jobs.list().await,
        None => Ok(Vec::new()),
    };
    let all = match listed {
        Ok(all) => all,
        Err(e) => return error(e.to_string()),
    };
    let active = all.iter().filter(|job| !job.state.is_final()).count();
    let is_shown = of_node.windows(CLUSTER_ENABLED.len()).any(|part| part == CLUSTER_ENABLED);
    let lines = [
        "# Whimbrel".to_owned(),
        format!("whimbrel_version:{}", env!("CARGO_PKG_VERSION")),
        format!("whimbrel_process_id:{}", std::process::id()),
        String::new(),
        "# Jobs".to_owned(),
        format!("jobs_active:{active}"),
        format!("jobs_listed:{}\r\n", all.len()),
    ];
    let mut text = lines.join("\r\n").into_bytes();
    if !is_shown {
        // Clients look for it before they ask for slots.
        let enabled = u8::from(jobs.is_some());
        text.extend(format!("# Cluster\r\ncluster_enabled:{enabled}\r\n").bytes());
    }
    text.extend(if of_node.is_empty() { &b""[..] } else { b"\r\n" });
    text.extend(of_node);
    Value::Verbatim(Bytes::from(text))
}

/// The line in which a server says whether it is part of a cluster.
const CLUSTER_ENABLED: &[u8] = b"cluster_enabled:";

fn help() -> Value {
    let lines = [
        "CLUSTER <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CANCELSLOTMIGRATIONS [ALL | <name>]",
        "    Cancel all jobs, or one.",
        "COUNTKEYSINSLOT <slot>",
        "    Return the number of keys in a slot, as its owner counts them.",
        "GETSLOTMIGRATIONS",
        "    Get information about ongoing and recently finished jobs.",
        "INFO",
        "    Return information about the cluster.",
        "KEYSLOT <key>",
        "    Return the hash slot of a key.",
        "MIGRATESLOTS SLOTSRANGE start-slot end-slot [start-slot end-slot ...] NODE node-id [SLOTSRANGE ...]",
        "    Move the slots from the node that owns them to the specified node.",
        "MYID",
        "    Return the id of the node in whose eyes the cluster is shown.",
        "NODES",
        "    Return the nodes of the cluster, one in each line.",
        "SHARDS",
        "    Return the shards, with their slots and nodes.",
        "SLOTS",
        "    Return the ranges of slots, with their nodes.",
        "HELP",
        "    Print this help.",
    ];
    Value::Array(lines.into_iter().map(|l| Value::Simple(Bytes::from_static(l.as_bytes()))).collect())
}
