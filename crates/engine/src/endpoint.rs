//! What the user typed to name a deployment.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use whimbrel_core::topology::Naming;

use crate::error::{Error, Result, Side};
pub use crate::login::Secret;
use crate::login::{PasswordCommand, Token};
use crate::remedy::Remedy;
use crate::unanswered::Unanswered;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A host name or IP address and a port.
    Tcp(String, u16),
    /// A Unix domain socket.
    Unix(PathBuf),
    /// The primary that sentinels have under a name. Which server that is changes with a failover.
    Sentinel(Arc<Watched>),
    /// One of the servers behind a proxy.
    Behind(Arc<Behind>),
}

/// A primary as sentinels know it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Watched {
    /// The sentinels, at least one, by host and port.
    pub sentinels: Vec<(String, u16)>,
    /// Its name.
    pub name: String,
}

impl Watched {
    /// Parses what follows `sentinel://` and the login: `HOST:PORT,HOST:PORT/NAME`.
    fn parse(text: &str) -> Option<Watched> {
        let (hosts, name) = text.split_once('/')?;
        let at = |text| match bare_address(text) {
            // Without a port it is that of sentinels.
            Some(Address::Tcp(host, DEFAULT_PORT)) if !text.ends_with(&format!(":{DEFAULT_PORT}")) => {
                Some((host, SENTINEL_PORT))
            }
            Some(Address::Tcp(host, port)) => Some((host, port)),
            _ => None,
        };
        let sentinels = hosts.split(',').map(at).collect::<Option<Vec<_>>>()?;
        let name = percent_encoding::percent_decode_str(name).decode_utf8().ok()?.into_owned();
        (!name.is_empty()).then_some(Watched { sentinels, name })
    }
}

/// A server behind a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Behind {
    /// Where the proxy listens.
    pub proxy: Address,
    /// A name that the proxy sends to this server. Nothing is ever kept under it.
    pub route: String,
    /// Which process it is: its `run_id`.
    pub server: String,
}

impl Address {
    /// Parses `HOST:PORT`, `[V6]:PORT`, or what `CLUSTER` replies and redirections say (`HOST:PORT@BUSPORT`).
    pub fn parse_tcp(text: &str) -> Option<Address> {
        let text = text.split('@').next()?.split(',').next()?;
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        Some(Address::Tcp(host.to_owned(), port.parse().ok().filter(|p| *p > 0)?))
    }

    /// What `PSYNC` is called: everywhere as `NAME`, or on one server as `HOST:PORT=NAME`.
    ///
    /// # Errors
    /// `Options` for anything else.
    pub fn parse_renamings(texts: &[String]) -> Result<Vec<(Option<Address>, String)>> {
        let parse = |text: &String| {
            Address::parse_renaming(text).ok_or_else(|| {
                let what = format!("{text} is no name of a command");
                Error::options(Side::Source, "reading the options", what).with_remedy(Remedy::NamePsync)
            })
        };
        texts.iter().map(parse).collect()
    }

    fn parse_renaming(text: &str) -> Option<(Option<Address>, String)> {
        let (at, name) = match text.rsplit_once('=') {
            Some((at, name)) => (Some(Address::parse_tcp(at)?), name),
            None => (None, text),
        };
        let is_name = !name.is_empty() && !name.contains([' ', ':']);
        is_name.then(|| (at, name.to_owned()))
    }

    /// Parses `ANNOUNCED=REACHABLE`.
    pub fn parse_mapping(text: &str) -> Option<(Address, Address)> {
        let (from, to) = text.split_once('=')?;
        Some((Address::parse_tcp(from)?, Address::parse_tcp(to)?))
    }

    /// The host, if it is TCP.
    pub fn host(&self) -> Option<&str> {
        match self {
            Address::Tcp(host, _) => Some(host),
            Address::Behind(behind) => behind.proxy.host(),
            Address::Unix(_) | Address::Sentinel(_) => None,
        }
    }

    /// What to connect to: the proxy, for a server behind one.
    pub fn reached(&self) -> &Address {
        match self {
            Address::Behind(behind) => &behind.proxy,
            other => other,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
            Address::Sentinel(watched) => {
                let at = |(host, port): &(String, u16)| Address::Tcp(host.clone(), *port).to_string();
                let sentinels: Vec<_> = watched.sentinels.iter().map(at).collect();
                write!(f, "sentinel://{}/{}", sentinels.join(","), watched.name)
            }
            Address::Behind(behind) if behind.server.is_empty() => write!(f, "{}", behind.proxy),
            Address::Behind(behind) => {
                let server = behind.server.get(..SERVER_SHOWN).unwrap_or(&behind.server);
                write!(f, "{} (server {server})", behind.proxy)
            }
        }
    }
}

/// How to use TLS.
#[derive(Debug, Clone, Default)]
pub struct TlsOptions {
    /// PEM file with the authorities to trust; the system's own if it is not given.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the client certificate chain.
    pub cert_file: Option<PathBuf>,
    /// PEM file with the client's key.
    pub key_file: Option<PathBuf>,
    /// The name to expect in the server's certificate instead of the host.
    pub server_name: Option<String>,
    /// Accept any certificate. Only ever set because the user asked for it by name.
    pub insecure: bool,
}

/// How to log in to sentinels, which have users of their own.
#[derive(Debug, Clone, Default)]
pub struct SentinelLogin {
    /// The ACL user; the sentinel's `default` if it is not given.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
}

/// One end of a transfer as the user named it: where it is, the user, and how to connect. The deployment
/// behind it (standalone or cluster) is found by probing.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Which side of the transfer this is.
    pub side: Side,
    /// The first server to ask.
    pub address: Address,
    /// The ACL user; the server's `default` if it is not given.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// What prints the password, if it expires; then `password` is not used.
    pub password_command: Option<Arc<PasswordCommand>>,
    /// How to log in to sentinels, if the address names some.
    pub sentinel: SentinelLogin,
    /// What `PSYNC` is called there, if it is called otherwise: at one address, or at all others.
    pub psync: Vec<(Option<Address>, String)>,
    /// The database in the URL, if one was given.
    pub db: Option<u32>,
    /// TLS, if the scheme or a flag asked for it.
    pub tls: Option<TlsOptions>,
    /// How the cluster names its nodes to clients, once it was asked.
    pub naming: Naming,
    /// Addresses that the cluster announces and what to connect to instead: for NAT, tunnels, containers.
    pub address_map: Vec<(Address, Address)>,
    /// Connections to it that ended before all their commands were answered.
    pub unanswered: Unanswered,
}

impl Endpoint {
    /// How to name it again with its user, TLS and a database, and without a password. `None` if its address
    /// is enough, or no such name can be written.
    pub fn url(&self, db: Option<u32>) -> Option<String> {
        let Address::Tcp(..) = &self.address else { return None };
        let is_plain = |user: &&String| user.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        let user = self.user.as_ref().filter(is_plain);
        if user.is_none() && self.tls.is_none() && db.is_none() {
            return None;
        }
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let login = user.map(|user| format!("{user}@")).unwrap_or_default();
        let db = db.map(|db| format!("/{db}")).unwrap_or_default();
        Some(format!("{scheme}://{login}{}{db}", self.address))
    }

    /// Parses `HOST:PORT`, `HOST`, `redis://`, `rediss://`, `valkey://`, `valkeys://`, `unix://`,
    /// `sentinel://` or `sentinels://` with user, password and database:
    /// `rediss://USER:PASSWORD@HOST:PORT/DB`,
    /// `unix://USER:PASSWORD@/path/to.sock?db=2`, `sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/NAME?db=2`.
    ///
    /// # Errors
    /// A message that names the part that is wrong; it never repeats a password.
    pub fn parse(side: Side, text: &str) -> Result<Endpoint> {
        let fail = |what: &str| {
            Error::options(side, "reading the address", what).with_remedy(
                "write HOST:PORT, redis://USER:PASSWORD@HOST:PORT/DB, rediss://… (TLS), valkey://…, \
                 valkeys://… (TLS), unix:///PATH or sentinel://HOST:PORT,HOST:PORT/NAME",
            )
        };
        let mut endpoint = Endpoint {
            side,
            address: Address::Tcp(String::new(), DEFAULT_PORT),
            user: None,
            password: None,
            password_command: None,
            sentinel: SentinelLogin::default(),
            psync: Vec::new(),
            naming: Naming::Ip,
            db: None,
            tls: None,
            address_map: Vec::new(),
            unanswered: Unanswered::default(),
        };
        let Some((scheme, _)) = text.split_once("://") else {
            endpoint.address = bare_address(text).ok_or_else(|| fail("this is not HOST:PORT"))?;
            return Ok(endpoint);
        };
        let tls = match scheme {
            "redis" | "valkey" | "unix" | "sentinel" => false,
            "rediss" | "valkeys" | "sentinels" => true,
            _ => return Err(fail("unknown scheme")),
        };
        if tls {
            endpoint.tls = Some(TlsOptions::default());
        }
        if scheme.starts_with("sentinel") {
            return endpoint
                .of_sentinels(text)
                .ok_or_else(|| fail("this is not sentinel://HOST:PORT,HOST:PORT/NAME"));
        }
        // `Url` wants a host for its own schemes only; ours are opaque to it, which keeps empty hosts legal.
        // After a user it wants one all the same, and a socket has none: what is before its path is taken off
        // first.
        let (login, rest) = match split_login(text) {
            Some((login, rest)) => (Some(login), rest),
            None => (None, text.to_owned()),
        };
        let url = url::Url::parse(&rest).map_err(|e| fail(&format!("not a URL: {e}")))?;
        let decode = |part: &str| {
            percent_encoding::percent_decode_str(part)
                .decode_utf8()
                .map(|s| s.into_owned())
                .map_err(|_| fail("user or password is not UTF-8"))
        };
        let (user, password) = login.unwrap_or((url.username(), url.password()));
        if !user.is_empty() {
            endpoint.user = Some(decode(user)?);
        }
        if let Some(password) = password {
            endpoint.password = Some(Secret::new(decode(password)?));
        }
        let db = if scheme == "unix" {
            let path = decode(url.path())?;
            if path.len() < 2 {
                return Err(fail("a unix:// address needs the path of the socket"));
            }
            endpoint.address = Address::Unix(PathBuf::from(path));
            url.query_pairs().find(|(k, _)| k == "db").map(|(_, v)| v.into_owned())
        } else {
            let host = url.host_str().filter(|h| !h.is_empty()).unwrap_or("127.0.0.1");
            let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
            endpoint.address = Address::Tcp(decode(host)?, url.port().unwrap_or(DEFAULT_PORT));
            match url.path() {
                "" | "/" => url.query_pairs().find(|(k, _)| k == "db").map(|(_, v)| v.into_owned()),
                path => Some(path.trim_start_matches('/').to_owned()),
            }
        };
        if let Some(db) = db {
            endpoint.db = Some(db.parse().map_err(|_| fail("the database is not a number"))?);
        }
        Ok(endpoint)
    }

    /// With the rest of a `sentinel://` address.
    fn of_sentinels(mut self, text: &str) -> Option<Endpoint> {
        let decode =
            |part: &str| Some(percent_encoding::percent_decode_str(part).decode_utf8().ok()?.into_owned());
        let (user, password, rest) = split_sentinel_login(text)?;
        self.user = user.filter(|user| !user.is_empty()).map(decode).map_or(Some(None), |u| u.map(Some))?;
        self.password = password.map(decode).map_or(Some(None), |p| p.map(Some))?.map(Secret::new);
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        if let Some(query) = query {
            self.db = Some(query.strip_prefix("db=")?.parse().ok()?);
        }
        self.address = Address::Sentinel(Arc::new(Watched::parse(rest)?));
        Some(self)
    }

    /// The password to log in with now; `None` if none is needed.
    ///
    /// # Errors
    /// As [`PasswordCommand::token`].
    pub async fn token(&self) -> Result<Option<Token>> {
        match &self.password_command {
            Some(command) => command.token().await.map(Some),
            None => Ok(self.password.clone().map(|secret| Token { secret, renew_at: None })),
        }
    }

    /// What `PSYNC` is called at `address`.
    pub fn psync_at(&self, address: &Address) -> &str {
        let of = |wanted: Option<&Address>| self.psync.iter().find(|(at, _)| at.as_ref() == wanted);
        of(Some(address)).or_else(|| of(None)).map_or("PSYNC", |(_, name)| name)
    }

    /// The address as it was typed, without its password; `None` if it holds none.
    pub fn without_password(text: &str) -> Option<String> {
        if let Some(((user, password), rest)) = split_login(text) {
            password?;
            let (scheme, path) = rest.split_once("://")?;
            return Some(match user {
                "" => rest,
                user => format!("{scheme}://{user}@{path}"),
            });
        }
        if text.starts_with("sentinel") {
            let (user, password, rest) = split_sentinel_login(text)?;
            password?;
            let user = user.filter(|user| !user.is_empty()).map(|user| format!("{user}@"));
            let (scheme, _) = text.split_once("://")?;
            return Some(format!("{scheme}://{}{rest}", user.unwrap_or_default()));
        }
        let mut url = url::Url::parse(text).ok()?;
        url.password()?;
        url.set_password(None).ok()?;
        Some(url.to_string())
    }

    /// What to connect to for an address that a server announced: the address map applied, and an empty or
    /// unknown host replaced by the host of the server `asked`.
    pub fn reach(&self, announced: &Address, asked: &Address) -> Address {
        let full = match announced {
            Address::Tcp(host, port) if host.is_empty() || host == "?" => match asked.host() {
                Some(host) => Address::Tcp(host.to_owned(), *port),
                None => Address::Tcp("127.0.0.1".to_owned(), *port),
            },
            other => other.clone(),
        };
        self.address_map.iter().find(|(from, _)| *from == full).map_or(full, |(_, to)| to.clone())
    }

    /// What to connect to for a node of a cluster that has this IP address and port, and announces this host
    /// name or none. The address map goes by either.
    ///
    /// A client that asks a node by a host name reaches the others by theirs, even if the cluster prefers IP
    /// addresses: with TLS, their certificates may not name these.
    pub fn reach_node(
        &self,
        naming: Naming,
        announced: &Address,
        hostname: Option<&str>,
        asked: &Address,
    ) -> Address {
        let by_ip = self.reach(announced, asked);
        let Address::Tcp(_, port) = announced else { return by_ip };
        let named = hostname.map(|name| Address::Tcp(name.to_owned(), *port));
        let is_mapped = |address: &Address| self.address_map.iter().any(|(from, _)| from == address);
        let asked_by_name = asked.host().is_some_and(|host| host.parse::<IpAddr>().is_err());
        match named {
            Some(named) if is_mapped(&named) => self.reach(&named, asked),
            _ if is_mapped(announced) => by_ip,
            _ if naming == Naming::Unknown => self.reach(&Address::Tcp(String::new(), *port), asked),
            Some(named) if naming == Naming::Hostname || asked_by_name => named,
            _ => by_ip,
        }
    }
}

const DEFAULT_PORT: u16 = 6379;

/// So much of the `run_id` of a server behind a proxy is shown.
const SERVER_SHOWN: usize = 8;

/// The port of sentinels.
const SENTINEL_PORT: u16 = 26379;

/// What is written as a user and, after a colon, a password.
type Login<'a> = (&'a str, Option<&'a str>);

/// Splits `SCHEME://USER:PASSWORD@/PATH`, which has no host, into its login and the address without it.
/// `None` for anything else.
fn split_login(text: &str) -> Option<(Login<'_>, String)> {
    let (scheme, rest) = text.split_once("://")?;
    let path = rest.find('/').map_or("", |at| &rest[at..]);
    let login = rest[..rest.len() - path.len()].strip_suffix('@')?;
    let login = match login.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (login, None),
    };
    Some((login, format!("{scheme}://{path}")))
}

/// Splits `sentinel://USER:PASSWORD@REST`; its hosts are too many for a URL.
fn split_sentinel_login(text: &str) -> Option<(Option<&str>, Option<&str>, &str)> {
    let (_, rest) = text.split_once("://")?;
    let end = rest.find('/')?;
    let Some(at) = rest[..end].rfind('@') else { return Some((None, None, rest)) };
    let (login, rest) = (&rest[..at], &rest[at + 1..]);
    Some(match login.split_once(':') {
        Some((user, password)) => (Some(user), Some(password), rest),
        None => (Some(login), None, rest),
    })
}

fn bare_address(text: &str) -> Option<Address> {
    if text.is_empty() || text.contains(['/', '@', ' ']) {
        return None;
    }
    if text.starts_with('[') || text.matches(':').count() == 1 {
        return Address::parse_tcp(text).filter(|a| a.host().is_some_and(|h| !h.is_empty()));
    }
    // A bare IPv6 address or a bare host name: the default port.
    Some(Address::Tcp(text.to_owned(), DEFAULT_PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(e: &Endpoint) -> (Option<&str>, Option<&str>) {
        (e.user.as_deref(), e.password.as_ref().map(Secret::expose))
    }

    #[test]
    fn sockets_may_come_with_a_login() {
        let at = Address::Unix(PathBuf::from("/run/a b.sock"));
        for (text, expected, db, shown) in [
            ("unix:///run/a%20b.sock", (None, None), None, None),
            (
                "unix://bob:p%40ss@/run/a%20b.sock?db=2",
                (Some("bob"), Some("p@ss")),
                Some(2),
                Some("unix://bob@/run/a%20b.sock?db=2"),
            ),
            ("unix://:p:s@/run/a%20b.sock", (None, Some("p:s")), None, Some("unix:///run/a%20b.sock")),
            ("unix://bob@/run/a%20b.sock", (Some("bob"), None), None, None),
        ] {
            let parsed = Endpoint::parse(Side::Source, text).expect(text);
            assert_eq!((&parsed.address, login(&parsed), parsed.db), (&at, expected, db), "{text}");
            assert_eq!(Endpoint::without_password(text).as_deref(), shown, "{text}");
        }
    }

    #[test]
    fn sentinels_may_come_with_a_login_for_the_server() {
        let text = "sentinel://bob:p%40ss@a:1,[::1]:2,c/my%20name?db=3";
        let parsed = Endpoint::parse(Side::Source, text).expect(text);
        let shown = "sentinel://a:1,[::1]:2,c:26379/my name";
        assert_eq!(
            (parsed.address.to_string().as_str(), login(&parsed)),
            (shown, (Some("bob"), Some("p@ss")))
        );
        assert_eq!((parsed.db, parsed.tls.is_none()), (Some(3), true));
        let bare = "sentinel://bob@a:1,[::1]:2,c/my%20name?db=3";
        assert_eq!(Endpoint::without_password(text).as_deref(), Some(bare));
        assert_eq!(Endpoint::without_password(bare), None);
        let parsed = Endpoint::parse(Side::Source, "sentinels://a:6379/x").expect("with TLS");
        assert_eq!(
            (parsed.address.to_string().as_str(), parsed.tls.is_some()),
            ("sentinel://a:6379/x", true)
        );
        for wrong in
            ["sentinel://a:1", "sentinel://a:1/", "sentinel:///x", "sentinel://a:x/y", "sentinel://a:1,/y"]
        {
            let error = Endpoint::parse(Side::Source, wrong).expect_err(wrong).to_string();
            assert!(error.contains("NAME"), "{error}");
        }
    }

    #[test]
    fn hosts_may_come_with_a_login() {
        let text = "rediss://bob:pw@there:7000/3";
        let parsed = Endpoint::parse(Side::Target, text).expect(text);
        assert_eq!(parsed.address, Address::Tcp("there".to_owned(), 7000));
        assert_eq!((login(&parsed), parsed.db), ((Some("bob"), Some("pw")), Some(3)));
        assert_eq!(Endpoint::without_password(text).as_deref(), Some("rediss://bob@there:7000/3"));
        let parsed = Endpoint::parse(Side::Target, "redis://:pw@/3").expect("the host may be left out");
        assert_eq!(parsed.address, Address::Tcp("127.0.0.1".to_owned(), DEFAULT_PORT));
        assert_eq!((login(&parsed), parsed.db), ((None, Some("pw")), Some(3)));
    }
}
