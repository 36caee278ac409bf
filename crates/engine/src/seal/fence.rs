//! Keeps writers away for longer, in one of several ways.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use whimbrel_wire::value::Value;

use crate::deployment::Deployment;
use crate::endpoint::Address;
use crate::error::{Error, ErrorKind, Result};
use crate::link::Link;
use crate::remedy::Remedy;

use super::pause::release_all;
use super::waiting;
use super::writing::clients_of;

/// The address that `readonly-replica` names as the primary: the port is reserved, and nothing listens there.
const NOWHERE: (&[u8], &[u8]) = (b"127.0.0.1", b"1");

/// How writers are kept away from the side that no longer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriterFenceKind {
    /// Not at all: writes resume, and another party makes sure that they come to the other side.
    None,
    /// They stay paused for this many milliseconds, and find the other side meanwhile.
    Pause {
        /// For how long.
        limit_ms: u64,
    },
    /// Every ACL user but our own loses the right to write, on all nodes.
    Acl,
    /// The server becomes a replica of an address where nothing listens: it serves reads and refuses writes.
    /// Not for clusters.
    ReadonlyReplica,
    /// Not by us: another party stops the writers, before the target takes over, and keeps them away
    /// afterwards.
    External {
        /// How long no client may have written, in milliseconds.
        quiet_ms: u64,
        /// How long is waited for that at most, in milliseconds.
        wait_ms: u64,
    },
    /// By a front that clients go through: it holds them, and sends them to the other side.
    Front,
}

/// What was done to keep writers out, and what undoes it. No password is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriterFence {
    kind: WriterFenceKind,
    users: Vec<FencedUser>,
}

/// A user that lost the right to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FencedUser {
    at: String,
    name: String,
    /// The rules about commands that it had, as `ACL GETUSER` reports them.
    commands: String,
}

impl FencedUser {
    /// Whether it holds what a server reports of a user's commands, and nothing else that `ACL SETUSER` would
    /// take for a rule.
    fn is_plausible(&self) -> bool {
        let is_command = |rule: &str| {
            let name = rule.strip_prefix(['+', '-']).map(|name| name.strip_prefix('@').unwrap_or(name));
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '|' | '-' | '_' | '.' | ':');
            name.is_some_and(|name| !name.is_empty() && name.chars().all(is_plain))
        };
        let rules = self.rules();
        matches!(rules.first(), Some(&("+@all" | "-@all"))) && rules.into_iter().all(is_command)
    }

    /// What it was allowed, rule by rule. They begin with what resets them: `+@all` or `-@all`.
    fn rules(&self) -> Vec<&str> {
        self.commands.split(' ').filter(|rule| !rule.is_empty()).collect()
    }
}

impl WriterFence {
    /// Finds out whether a fence of this kind can be put up, and what would undo it. Changes nothing.
    ///
    /// # Errors
    /// `Unfit` if it cannot; as [`Deployment::open`] and [`Link::call`].
    pub async fn plan(deployment: &Deployment, kind: WriterFenceKind) -> Result<WriterFence> {
        let mut users = Vec::new();
        match kind {
            WriterFenceKind::None
            | WriterFenceKind::Pause { .. }
            | WriterFenceKind::External { .. }
            | WriterFenceKind::Front => {}
            WriterFenceKind::ReadonlyReplica if deployment.is_cluster() => {
                let at = deployment.endpoint.address.to_string();
                let what = "the primaries of a cluster cannot be made replicas of nobody";
                return Err(Error::unfit(deployment.side(), at, "fence the writers off", what)
                    .with_remedy(Remedy::ChooseFence("acl, pause or none")));
            }
            WriterFenceKind::ReadonlyReplica if deployment.is_watched() => {
                let at = deployment.endpoint.address.to_string();
                let what = "the sentinels would make the server a primary again, or another one";
                return Err(Error::unfit(deployment.side(), at, "fence the writers off", what)
                    .with_remedy(Remedy::ChooseFence("acl, pause or none")));
            }
            WriterFenceKind::ReadonlyReplica => {
                let mut link = deployment.open(&deployment.server(), 0).await?;
                // The older name is known to all servers.
                let reply = link.call(&[b"CONFIG", b"GET", b"slave-read-only"]).await?;
                if reply.field("slave-read-only").and_then(Value::as_str) != Some("yes") {
                    let at = deployment.endpoint.address.to_string();
                    let what = "replicas take writes there (replica-read-only)";
                    return Err(Error::unfit(deployment.side(), at, "fence the writers off", what)
                        .with_remedy(Remedy::ChooseFenceOr("CONFIG SET replica-read-only yes")));
                }
            }
            WriterFenceKind::Acl => {
                // Replicas too: a replica that is promoted has rules of its own.
                for address in deployment.topology().nodes() {
                    let mut link = deployment.open(address, 0).await?;
                    refuse_own_user(&mut link, address).await?;
                    users.extend(writers(&mut link, address, &BTreeSet::new()).await?);
                }
                if users.is_empty() {
                    let at = deployment.endpoint.address.to_string();
                    let what = "an ACL fence would stop nobody: no user may write but whimbrel's own";
                    return Err(Error::unfit(deployment.side(), at, "fence the writers off", what)
                        .with_remedy(Remedy::OwnUserOrChooseFence));
                }
            }
        }
        Ok(WriterFence { kind, users })
    }

    /// Puts it up. Writes should be paused meanwhile. With [`WriterFenceKind::None`] and
    /// [`WriterFenceKind::Pause`] there is nothing to do here but to release, or to pause for longer; with
    /// [`WriterFenceKind::External`] and [`WriterFenceKind::Front`] nothing at all.
    ///
    /// # Errors
    /// `Unfit` if there are users that the plan does not know; as [`Deployment::open`] and [`Link::call`].
    /// Part of it may be up then, and [`WriterFence::lift`] takes that down.
    pub async fn raise(&self, deployment: &Deployment) -> Result<()> {
        if self.kind == WriterFenceKind::ReadonlyReplica {
            let mut link = deployment.open(&deployment.server(), 0).await?;
            link.call(&[b"REPLICAOF", NOWHERE.0, NOWHERE.1]).await?;
        }
        self.keep_out(deployment).await?;
        if self.kind == WriterFenceKind::Acl {
            for address in deployment.topology().nodes() {
                let mut link = deployment.open(address, 0).await?;
                self.refuse_newcomers(&mut link, address).await?;
            }
        }
        // Last, since what is named now is to be fenced in any case.
        self.refuse_absent(deployment)
    }

    /// Puts it up again if it was taken down too early, on each node that lets it be done, and ends the
    /// clients that have come meanwhile and wait. A pause is not begun again: it would keep out whimbrel as
    /// well, which writes behind a fence that is to be taken down once.
    ///
    /// Returns, for people, what it does not keep out: users that were made and nodes that were replaced
    /// since the plan. That may be long ago, and it is up all the same; to try again changes nothing about
    /// them.
    ///
    /// # Errors
    /// As [`Deployment::open`] and [`Link::call`]: it may be up in part then.
    pub async fn restore(&self, deployment: &Deployment) -> Result<Vec<String>> {
        if self.kind != WriterFenceKind::Acl {
            return Ok(Vec::new());
        }
        let kept_out = self.keep_out(deployment).await;
        // In any case: if it is up, clients that wait could still take something.
        let ended = self.end_waiting(deployment).await;
        kept_out?;
        ended?;
        self.gaps(deployment).await
    }

    /// Takes the right to write from its users, on each node that lets it be done.
    async fn keep_out(&self, deployment: &Deployment) -> Result<()> {
        let mut failure = None;
        for address in self.nodes_with_users(deployment) {
            // A node that is gone does not let clients of the others write.
            failure = failure.or(self.rule(deployment, &address, |_| vec!["-@write"]).await.err());
        }
        failure.map_or(Ok(()), Err)
    }

    /// The users and the nodes that it does not know, or does not reach any more.
    async fn gaps(&self, deployment: &Deployment) -> Result<Vec<String>> {
        let mut gaps = Vec::new();
        for address in deployment.topology().nodes() {
            let mut link = deployment.open(address, 0).await?;
            match self.newcomers(&mut link, address).await {
                Ok(users) => {
                    gaps.extend(users.iter().map(|user| format!("ACL user {} at {address}", user.name)));
                }
                // It names a user that cannot be fenced off: one with selectors, for example.
                Err(e) if matches!(e.kind, ErrorKind::Unfit(_)) => gaps.push(e.problem()),
                Err(e) => return Err(e),
            }
        }
        let absent = self.absent(deployment);
        gaps.extend(absent.into_iter().map(|at| format!("node {at}, which is not there any more")));
        Ok(gaps)
    }

    /// Ends the clients that could still take or leave something behind it: those that wait in a command, are
    /// in a transaction, or watch keys for one. To be called when it is up, and before writes resume.
    /// Returns how many.
    ///
    /// # Errors
    /// As [`Deployment::open`] and [`Link::call`].
    pub async fn end_waiting(&self, deployment: &Deployment) -> Result<u64> {
        match self.kind {
            WriterFenceKind::None | WriterFenceKind::External { .. } | WriterFenceKind::Front => Ok(0),
            WriterFenceKind::Pause { .. } | WriterFenceKind::Acl | WriterFenceKind::ReadonlyReplica => {
                waiting::end(deployment).await
            }
        }
    }

    /// The nodes of the plan that no node names just now.
    fn absent(&self, deployment: &Deployment) -> BTreeSet<String> {
        let present: BTreeSet<String> = deployment.topology().nodes().map(ToString::to_string).collect();
        self.nodes().filter(|at| !present.contains(*at)).map(str::to_owned).collect()
    }

    /// A node that no node names just now may be a primary soon, on which users may write.
    fn refuse_absent(&self, deployment: &Deployment) -> Result<()> {
        let Some(absent) = self.absent(deployment).pop_first() else { return Ok(()) };
        let what = "the node was there when the fence was planned, and is not now";
        Err(Error::unfit(deployment.side(), absent, "fence the writers off", what)
            .with_remedy("try the cutover again"))
    }

    /// Users that were made since the plan are not kept out, and what undoes the fence would not know them.
    async fn refuse_newcomers(&self, link: &mut Link, address: &Address) -> Result<()> {
        if let Some(user) = self.newcomers(link, address).await?.first() {
            let what = format!("ACL user {} was made, or got rights, since the fence was planned", user.name);
            return Err(Error::unfit(
                link.endpoint().side,
                address.to_string(),
                "fence the writers off",
                what,
            )
            .with_remedy("try the cutover again"));
        }
        Ok(())
    }

    /// The users of a node that may write, and that the plan does not know.
    async fn newcomers(&self, link: &mut Link, address: &Address) -> Result<Vec<FencedUser>> {
        let at = address.to_string();
        let known = self.users.iter().filter(|user| user.at == at).map(|user| user.name.clone()).collect();
        writers(link, address, &known).await
    }

    /// Takes it down, on each node that lets it be done. A pause ends as well, whichever client began it.
    ///
    /// # Errors
    /// As [`Deployment::open`] and [`Link::call`]: the first. A part of it may stand still then.
    pub async fn lift(&self, deployment: &Deployment) -> Result<()> {
        if self.kind == WriterFenceKind::ReadonlyReplica {
            let mut link = deployment.open(&deployment.server(), 0).await?;
            link.call(&[b"REPLICAOF", b"NO", b"ONE"]).await?;
        }
        if matches!(self.kind, WriterFenceKind::Pause { .. }) {
            release_all(deployment).await?;
        }
        let mut failure = None;
        // Also the nodes that no other names just now: the fence is still up there when they come back.
        for at in self.nodes().collect::<BTreeSet<_>>() {
            let known = deployment.topology().nodes().find(|node| node.to_string() == at).cloned();
            let Some(address) = known.or_else(|| Address::parse_tcp(at)) else { continue };
            // A node that is gone does not keep clients of the others from writing.
            failure = failure.or(self.rule(deployment, &address, FencedUser::rules).await.err());
        }
        failure.map_or(Ok(()), Err)
    }

    /// The nodes on which rights of users are changed.
    fn nodes_with_users(&self, deployment: &Deployment) -> Vec<Address> {
        let topology = deployment.topology();
        topology.nodes().filter(|_| !self.users.is_empty()).cloned().collect()
    }

    /// Gives each user of a node the rules that `rules` has for it. A user that was deleted since is not
    /// created again.
    async fn rule(
        &self,
        deployment: &Deployment,
        address: &Address,
        rules: fn(&FencedUser) -> Vec<&str>,
    ) -> Result<()> {
        let mut link = deployment.open(address, 0).await?;
        let at = address.to_string();
        let names = names_of_users(&mut link).await?;
        let is_there = |user: &&FencedUser| names.iter().flatten().any(|name| *name == user.name);
        for user in self.users.iter().filter(|user| user.at == at).filter(is_there) {
            let mut command: Vec<&[u8]> = vec![b"ACL", b"SETUSER", user.name.as_bytes()];
            command.extend(rules(user).into_iter().map(str::as_bytes));
            link.call(&command).await?;
        }
        Ok(())
    }

    /// This fence, put up while `older` was standing: what undoes both.
    #[must_use]
    pub fn keeping(mut self, older: &WriterFence) -> WriterFence {
        let is_older = |user: &FencedUser| older.users.iter().any(|o| o.at == user.at && o.name == user.name);
        self.users.retain(|user| !is_older(user));
        self.users.extend(older.users.iter().cloned());
        if matches!(self.kind, WriterFenceKind::External { .. } | WriterFenceKind::Front)
            && !self.users.is_empty()
        {
            // What has to be undone is the older one.
            self.kind = WriterFenceKind::Acl;
        }
        self
    }

    /// Whether putting up a fence can have come to this. A plan that something else wrote must not give
    /// rights to users.
    pub fn is_plausible(&self) -> bool {
        (self.kind == WriterFenceKind::Acl || self.users.is_empty())
            && self.users.iter().all(FencedUser::is_plausible)
    }

    /// The nodes whose users lost rights.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.users.iter().map(|user| user.at.as_str())
    }

    /// Which way.
    pub fn kind(&self) -> WriterFenceKind {
        self.kind
    }
}

async fn own_user(link: &mut Link) -> Result<String> {
    let own = link.call(&[b"ACL", b"WHOAMI"]).await?;
    Ok(own.as_str().unwrap_or_default().to_owned())
}

/// Refuses if clients are logged in as our own user: they would go on writing.
async fn refuse_own_user(link: &mut Link, address: &Address) -> Result<()> {
    let own = own_user(link).await?;
    let clients = clients_of(link, &own).await?;
    let Some(first) = clients.first() else { return Ok(()) };
    let what = format!(
        "{} logged in there as whimbrel's own user, {own}, the first of them from {first}: an ACL fence \
            would not stop them",
        match clients.len() {
            1 => "a client is".to_owned(),
            number => format!("{number} clients are"),
        }
    );
    Err(Error::unfit(link.endpoint().side, address.to_string(), "fence the writers off", what)
        .with_remedy(Remedy::OwnUserOrChooseFence))
}

/// The users of one node that may write, except our own and those who are known.
async fn writers(link: &mut Link, address: &Address, known: &BTreeSet<String>) -> Result<Vec<FencedUser>> {
    let own = own_user(link).await?;
    let mut users = Vec::new();
    let names: Option<BTreeSet<String>> = names_of_users(link).await?.into_iter().collect();
    let Some(names) = names else {
        let what = "an ACL user has a name that is not valid text, and could not be given its rights back";
        return Err(Error::unfit(link.endpoint().side, address.to_string(), "fence the writers off", what)
            .with_remedy(Remedy::ChooseFenceOr("rename that user")));
    };
    for name in names.into_iter().filter(|name| *name != own && !known.contains(name)) {
        let user = link.call(&[b"ACL", b"GETUSER", name.as_bytes()]).await?;
        let commands = user.field("commands").and_then(Value::as_str).unwrap_or_default().to_owned();
        if user.field("selectors").and_then(Value::as_items).is_some_and(|selectors| !selectors.is_empty()) {
            let what = format!("ACL user {name} has selectors, which may let it write all the same");
            return Err(Error::unfit(
                link.endpoint().side,
                address.to_string(),
                "fence the writers off",
                what,
            )
            .with_remedy(Remedy::ChooseFenceOr("take the selectors away")));
        }
        // Also a user that is off: its earlier connections go on.
        if commands != "-@all" {
            users.push(FencedUser { at: address.to_string(), name, commands });
        }
    }
    Ok(users)
}

/// `None` for a name that is no text.
async fn names_of_users(link: &mut Link) -> Result<Vec<Option<String>>> {
    let names = link.call(&[b"ACL", b"USERS"]).await?;
    let Some(items) = names.as_items() else { return Err(link.unexpected("ACL USERS", &names)) };
    Ok(items.iter().map(|name| name.as_str().map(str::to_owned)).collect())
}
