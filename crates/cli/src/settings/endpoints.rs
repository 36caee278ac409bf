//! From what the user typed to endpoints that can be connected to.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use whimbrel_control::access::Access;
#[cfg(feature = "etcd")]
use whimbrel_control::fleet::etcd::EtcdOptions;
use whimbrel_control::hooks::Sender;
use whimbrel_control::secrets::{self, check_file};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::{Address, Endpoint, Secret};
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::link::LinkOptions;
use whimbrel_settings::values::{Moved, is_typed, run_again_with};

#[cfg(feature = "etcd")]
use crate::settings::args::CoordinatorArgs;
use crate::settings::args::{
    AssessArgs, ClusterArgs, Command, Endpoints, FleetAt, FrontArgs, HookArgs, JobAccess, JobsCommand,
    JoinArgs, MovingArgs, PASSWORD_TTL_MS, Reach, ServeArgs,
};

const SOURCE_PASSWORD: &str = "WHIMBREL_SOURCE_PASSWORD";
const TARGET_PASSWORD: &str = "WHIMBREL_TARGET_PASSWORD";
const CLUSTER_PASSWORD: &str = "WHIMBREL_PASSWORD";
const SERVE_PASSWORD: &str = "WHIMBREL_SERVE_PASSWORD";

/// The variable that the password for the etcd of a fleet may come from.
const STORE_PASSWORD: &str = "WHIMBREL_STORE_PASSWORD";

impl Reach {
    fn source(&self, address: &str) -> Result<Endpoint> {
        let access = Access { password_ttl_ms: self.password_ttl, ..Access::from(&self.source_access) };
        endpoint(Side::Source, address, &access, self.insecure)
    }

    fn target(&self, address: &str) -> Result<Endpoint> {
        let access = Access { password_ttl_ms: self.password_ttl, ..Access::from(&self.target_access) };
        endpoint(Side::Target, address, &access, self.insecure)
    }
}

impl Endpoints {
    /// Both endpoints.
    ///
    /// # Errors
    /// `Options` or `Own` for what cannot be understood or read; nothing has been contacted.
    pub fn endpoints(&self) -> Result<(Endpoint, Endpoint)> {
        Ok((self.reach.source(&self.source)?, self.reach.target(&self.target)?))
    }

    /// Checks both sides. Where both are wrong, the source is always reported first.
    ///
    /// # Errors
    /// As [`Deployment::probe_readable`].
    pub async fn probe(
        &self,
        (source, target): (Endpoint, Endpoint),
        from_replicas: bool,
    ) -> Result<(Arc<Deployment>, Arc<Deployment>)> {
        let (source, target) = tokio::join!(
            Deployment::probe_readable(source, self.reach.timeouts.link_options(from_replicas)),
            Deployment::probe_readable(target, self.reach.timeouts.link_options(false)),
        );
        Ok((Arc::new(source?), Arc::new(target?)))
    }
}

/// The HOST:PORT of an address as it is typed; what is none stays as it is, and equals none.
fn bare(address: &str) -> String {
    Endpoint::parse(Side::Source, address).map_or_else(|_| address.to_owned(), |at| at.address.to_string())
}

impl FrontArgs {
    /// The endpoint of the source.
    ///
    /// # Errors
    /// As [`Endpoints::endpoints`].
    pub fn source_endpoint(&self) -> Result<Endpoint> {
        let source = self.source.as_deref().unwrap_or_default();
        endpoint(Side::Source, source, &Access::from(&self.source_access), self.insecure)
    }

    /// The endpoints of servers that the coordinator names. A password goes only to those that are named here
    /// as well, or over TLS: else a server in the coordinator's place could have it sent anywhere.
    pub fn source_maker(&self) -> impl Fn(&str) -> Result<Endpoint> + Send + Sync + 'static {
        let (access, insecure) = (self.source_access.clone(), self.insecure);
        let trusted: Vec<String> =
            self.joining.trust_backend.iter().chain(&self.source).map(|at| bare(at)).collect();
        move |source| {
            let found = endpoint(Side::Source, source, &Access::from(&access), insecure)?;
            let at = found.address.to_string();
            if found.password.is_none() || found.tls.is_some() || trusted.contains(&at) {
                return Ok(found);
            }
            let what = "only the coordinator names it, and the password would go there in clear";
            let remedy = format!("say --trust-backend {at}, or give the coordinator a rediss:// address");
            Err(Error::unfit(Side::Source, at, "log in", what).with_remedy(remedy))
        }
    }

    /// The coordinators of the fleet that it is to join; none where it is not.
    ///
    /// # Errors
    /// As [`Endpoints::endpoints`].
    pub fn coordinators(&self) -> Result<Vec<Endpoint>> {
        let JoinArgs { join, join_password_file, .. } = &self.joining;
        join.iter().map(|at| daemon(at, "join-", join_password_file.as_deref())).collect()
    }

    /// The endpoint of the target, where one is named.
    ///
    /// # Errors
    /// As [`Endpoints::endpoints`].
    pub fn target_endpoint(&self) -> Result<Option<Endpoint>> {
        let access = Access::from(&self.target_access);
        self.target
            .as_deref()
            .map(|target| endpoint(Side::Target, target, &access, self.insecure))
            .transpose()
    }

    /// How the front's own connections behave.
    pub fn link_options(&self) -> LinkOptions {
        let (connect_timeout_ms, reply_timeout_ms) = (self.connect_timeout, self.timeout);
        LinkOptions { db: 0, readonly: false, connect_timeout_ms, reply_timeout_ms }
    }
}

impl AssessArgs {
    /// The endpoint of the source.
    ///
    /// # Errors
    /// As [`Endpoints::endpoints`].
    pub fn source_endpoint(&self) -> Result<Endpoint> {
        let mut source = self.reach.source(&self.source)?;
        source.psync = Address::parse_renamings(&self.source_psync)?;
        Ok(source)
    }

    /// The endpoint of the target, where one is named.
    ///
    /// # Errors
    /// As [`Endpoints::endpoints`].
    pub fn target_endpoint(&self) -> Result<Option<Endpoint>> {
        self.target.as_ref().map(|target| self.reach.target(target)).transpose()
    }

    /// How connections behave.
    pub fn link_options(&self) -> LinkOptions {
        self.reach.timeouts.link_options(false)
    }
}

impl ClusterArgs {
    /// The endpoint.
    ///
    /// # Errors
    /// As [`Endpoints::endpoints`].
    pub fn endpoint(&self) -> Result<Endpoint> {
        // A cluster is both sides of what moves in it. As a source it is only read while it is looked at.
        endpoint(Side::Source, &self.cluster, &Access::from(&self.access), self.insecure)
    }

    /// How connections behave.
    pub fn link_options(&self) -> LinkOptions {
        self.timeouts.link_options(false)
    }
}

impl JobAccess {
    /// The endpoint of a job's cluster, which is `cluster`.
    ///
    /// # Errors
    /// As [`Endpoints::endpoints`].
    pub fn endpoint(&self, cluster: &str) -> Result<Endpoint> {
        endpoint(Side::Source, cluster, &Access::from(&self.access), self.insecure)
    }
}

impl MovingArgs {
    /// The daemon that the moves are handed to, where one is named.
    ///
    /// # Errors
    /// As [`Endpoints::endpoints`].
    pub fn daemon(&self) -> Result<Option<Endpoint>> {
        let file = self.server_password_file.as_deref();
        self.server.as_deref().map(|server| daemon(server, "server-", file)).transpose()
    }
}

impl FleetAt {
    /// The coordinators.
    ///
    /// # Errors
    /// As [`Endpoints::endpoints`].
    pub fn endpoints(&self) -> Result<Vec<Endpoint>> {
        let at = |server: &String| daemon(server, "server-", self.server_password_file.as_deref());
        self.server.iter().map(at).collect()
    }
}

/// A `whimbrel serve`.
fn daemon(server: &str, prefix: &'static str, password_file: Option<&Path>) -> Result<Endpoint> {
    let access = Access {
        prefix,
        password_file,
        password_ttl_ms: PASSWORD_TTL_MS,
        password_variable: SERVE_PASSWORD,
        ..Access::default()
    };
    endpoint(Side::Source, server, &access, false)
}

#[cfg(feature = "etcd")]
impl CoordinatorArgs {
    /// The etcd that several coordinators share, where one is named.
    ///
    /// # Errors
    /// `Options` for what is no address of one, or a user without a password; `Own` where a file cannot be
    /// read.
    pub fn etcd(&self) -> Result<Option<EtcdOptions>> {
        let Some(text) = &self.store else { return Ok(None) };
        let mut store = EtcdOptions::parse(text)?;
        if self.store_password_file.is_some() || store.password.is_none() {
            store.password =
                password(Side::Store, "store-", self.store_password_file.as_deref(), STORE_PASSWORD)?;
        }
        if store.user.is_some() && store.password.is_none() {
            let what = "a user is named, but no password";
            let remedy = format!("add it to the URL, set {STORE_PASSWORD}, or name a --store-password-file");
            return Err(Error::options(Side::Store, "reading the options", what).with_remedy(remedy));
        }
        for tls in store.endpoints.iter_mut().filter_map(|endpoint| endpoint.tls.as_mut()) {
            tls.ca_file.clone_from(&self.store_ca);
        }
        Ok(Some(store))
    }
}

impl ServeArgs {
    /// The password that clients of the daemon need.
    ///
    /// # Errors
    /// `Own` where the file cannot be read; `Options` for an empty password.
    pub fn listen_password(&self) -> Result<Option<Secret>> {
        let password = password(Side::Own, "listen-", self.listen_password_file.as_deref(), SERVE_PASSWORD)?;
        if password.as_ref().is_some_and(|password| password.expose().is_empty()) {
            return Err(Error::options(Side::Own, "reading the options", "the daemon's password is empty")
                .with_remedy(format!("write one into the file, or unset {SERVE_PASSWORD}")));
        }
        Ok(password)
    }
}

/// The addresses that a command holds, each with the variable that its password may come from instead.
fn addresses(command: &Command) -> Vec<(&String, &'static str)> {
    fn both(sides: &Endpoints) -> Vec<(&String, &'static str)> {
        vec![(&sides.source, SOURCE_PASSWORD), (&sides.target, TARGET_PASSWORD)]
    }
    fn moved<'a>(at: &'a ClusterArgs, moving: &'a MovingArgs) -> Vec<(&'a String, &'static str)> {
        let daemon = moving.server.iter().map(|server| (server, SERVE_PASSWORD));
        std::iter::once((&at.cluster, CLUSTER_PASSWORD)).chain(daemon).collect()
    }
    match command {
        Command::Assess(args) => {
            let target = args.target.iter().map(|target| (target, TARGET_PASSWORD));
            std::iter::once((&args.source, SOURCE_PASSWORD)).chain(target).collect()
        }
        Command::Copy(args) => both(&args.sides),
        Command::Verify(args) => both(&args.sides),
        Command::Sync(args) => both(&args.sides),
        Command::Unfence(args) => vec![(&args.at.cluster, CLUSTER_PASSWORD)],
        Command::Status(args) => vec![(&args.at.cluster, CLUSTER_PASSWORD)],
        Command::Repair(args) => vec![(&args.at.cluster, CLUSTER_PASSWORD)],
        Command::Reshard(args) => moved(&args.at, &args.moving),
        Command::Rebalance(args) => moved(&args.at, &args.moving),
        Command::Drain(args) => moved(&args.at, &args.moving),
        Command::Serve(args) => {
            let store = args.coordinator.store.iter().map(|store| (store, STORE_PASSWORD));
            std::iter::once((&args.at.cluster, CLUSTER_PASSWORD)).chain(store).collect()
        }
        Command::Fleet(args) => args.command.at().server.iter().map(|at| (at, SERVE_PASSWORD)).collect(),
        Command::Front(args) => {
            let coordinators = args.joining.join.iter().map(|at| (at, SERVE_PASSWORD));
            let sides = [(&args.source, SOURCE_PASSWORD), (&args.target, TARGET_PASSWORD)];
            let sides = sides.into_iter().filter_map(|(at, variable)| Some((at.as_ref()?, variable)));
            sides.chain(coordinators).collect()
        }
        Command::Jobs(args) => match &args.command {
            Some(
                JobsCommand::List { access }
                | JobsCommand::Cancel { access, .. }
                | JobsCommand::Resume { access, .. },
            ) => access.cluster.iter().map(|cluster| (cluster, CLUSTER_PASSWORD)).collect(),
            // The others ask no cluster.
            None | Some(_) => Vec::new(),
        },
        Command::Cutover(_)
        | Command::Watch(_)
        | Command::Demo(_)
        | Command::Token(_)
        | Command::Config(_)
        | Command::Completions { .. }
        | Command::Man { .. } => Vec::new(),
    }
}

/// Takes passwords out of the command line, where `ps` shows them to everybody on the machine: where an
/// address holds one, the process replaces itself by one that finds it in its environment, which only its own
/// user can read.
///
/// # Errors
/// `Own` where the process cannot be replaced. Otherwise it returns only where there was nothing to hide.
pub fn hide_passwords(command: &Command) -> Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut hidden = Vec::new();
    for (text, variable) in addresses(command) {
        // What comes from a file or the environment is hidden already, and would come from there again.
        if let Some((shown, password)) = without_password(text).filter(|_| is_typed(&arguments, text)) {
            hidden.push(Moved { value: text, shown, variable, secret: password.expose().to_owned() });
        }
    }
    run_again_with(&arguments, &hidden).map_err(|e| Error::own("hide a password", e))
}

/// An address without its password, and the password; `None` where it has none. What is no address is
/// complained about later, by the caller that has to use it.
fn without_password(text: &str) -> Option<(String, Secret)> {
    #[cfg(feature = "etcd")]
    if let Ok(store) = EtcdOptions::parse(text) {
        return Some((EtcdOptions::without_password(text)?, store.password?));
    }
    let password = Endpoint::parse(Side::Own, text).ok()?.password?;
    Some((Endpoint::without_password(text)?, password))
}

impl HookArgs {
    /// How webhooks are reached.
    ///
    /// # Errors
    /// `Options` or `Own` for files that cannot be read.
    pub fn sender(&self) -> Result<Sender> {
        check_file(Side::Own, "hook-ca".to_owned(), self.hook_ca.as_deref())?;
        let file = self.hook_secret_file.as_deref();
        let variable = "WHIMBREL_HOOK_SECRET";
        // An empty key signs nothing, and who sets it thinks otherwise.
        if file.is_none() && std::env::var_os(variable).is_some_and(|secret| secret.is_empty()) {
            let what = format!("{variable} is empty");
            return Err(Error::options(Side::Own, "reading the options", what).with_remedy("set or unset it"));
        }
        let secret = secret(Side::Own, "hook-secret", file, variable)?;
        Ok(Sender { ca_file: self.hook_ca.clone(), secret })
    }
}

/// A password from a file, else from the environment.
fn password(side: Side, prefix: &str, file: Option<&Path>, variable: &str) -> Result<Option<Secret>> {
    secret(side, &format!("{prefix}password"), file, variable)
}

fn secret(side: Side, option: &str, file: Option<&Path>, variable: &str) -> Result<Option<Secret>> {
    secrets::secret(side, option, file, variable, |words| eprintln!("{words}"))
}

fn endpoint(side: Side, text: &str, access: &Access<'_>, insecure: bool) -> Result<Endpoint> {
    access.endpoint(side, text, insecure, |warning| eprintln!("{warning}"))
}
