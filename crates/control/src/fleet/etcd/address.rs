//! Where an etcd is.

use std::fmt;

use whimbrel_core::topology::Naming;
use whimbrel_engine::endpoint::{Address, Endpoint, Secret, SentinelLogin, TlsOptions};
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::unanswered::Unanswered;

/// The port of etcd for clients.
const PORT: u16 = 2379;

/// What stands before all names of keys if nothing else is configured.
const PREFIX: &str = "whimbrel/fleet";

/// At most this many servers; an etcd has seldom more than seven.
const ENDPOINTS_MAX: usize = 16;

/// An etcd, and the part of it that one fleet uses.
#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// Its servers; another one is asked if one does not answer.
    pub endpoints: Vec<Endpoint>,
    /// The user that logs in; `None` if etcd asks for no login.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// What all keys of the fleet begin with, without a slash at the end.
    pub prefix: String,
}

impl EtcdOptions {
    /// Reads `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/PREFIX]`, or `etcds://` for TLS.
    ///
    /// # Errors
    /// `Options` with the part that is wrong. It repeats no password.
    pub fn parse(text: &str) -> Result<EtcdOptions> {
        let fail = |what: &str| {
            Error::options(Side::Store, "reading the address of the store", what)
                .with_remedy("write etcd://USER:PASSWORD@HOST:PORT,HOST:PORT/PREFIX, or etcds:// for TLS")
        };
        let (scheme, login, rest) = split(text).ok_or_else(|| fail("this is not etcd://HOST:PORT"))?;
        let tls = match scheme {
            "etcd" => None,
            "etcds" => Some(TlsOptions::default()),
            _ => return Err(fail("the store is an etcd")),
        };
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let addresses: Option<Vec<Address>> = hosts.split(',').map(address).collect();
        let addresses = addresses.ok_or_else(|| fail("these are not HOST:PORT,HOST:PORT"))?;
        if addresses.len() > ENDPOINTS_MAX {
            return Err(fail("these are too many servers"));
        }
        let prefix = match prefix.trim_end_matches('/') {
            "" => PREFIX,
            prefix => prefix,
        };
        if prefix.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(fail("the prefix of the keys has characters that are not printed"));
        }
        let (user, password) = match login {
            None => (None, None),
            Some(login) => {
                let (user, password) =
                    login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
                let decode = |part| decoded(part).ok_or_else(|| fail("user or password is not UTF-8"));
                let user = decode(user)?;
                if user.is_empty() {
                    return Err(fail("a password without a user"));
                }
                (Some(user), password.map(decode).transpose()?.map(Secret::new))
            }
        };
        let endpoint = |address| Endpoint {
            side: Side::Store,
            address,
            user: None,
            password: None,
            db: None,
            tls: tls.clone(),
            password_command: None,
            sentinel: SentinelLogin::default(),
            psync: Vec::new(),
            naming: Naming::Ip,
            address_map: Vec::new(),
            unanswered: Unanswered::default(),
        };
        let endpoints = addresses.into_iter().map(endpoint).collect();
        Ok(EtcdOptions { endpoints, user, password, prefix: prefix.to_owned() })
    }

    /// The address as it was typed, without its password; `None` if it holds none.
    pub fn without_password(text: &str) -> Option<String> {
        let (scheme, login, rest) = split(text)?;
        let (user, _) = login?.split_once(':')?;
        Some(format!("{scheme}://{user}@{rest}"))
    }
}

impl fmt::Display for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect();
        write!(f, "etcd://{}/{}", hosts.join(","), self.prefix)
    }
}

/// Scheme, login, and what comes after it.
fn split(text: &str) -> Option<(&str, Option<&str>, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => Some((scheme, Some(&rest[..at]), &rest[at + 1..])),
        None => Some((scheme, None, rest)),
    }
}

fn address(text: &str) -> Option<Address> {
    let has_port = text.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let found = match has_port {
        true => Address::parse_tcp(text)?,
        false => Address::Tcp(text.trim_start_matches('[').trim_end_matches(']').to_owned(), PORT),
    };
    found.host().is_some_and(|host| !host.is_empty()).then_some(found)
}

/// Undoes the percent signs of a URL.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, tail) {
            (b'%', [a, b, after @ ..]) => {
                bytes.push(hex(&[*a, *b])?);
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match EtcdOptions::parse(text) {
            Ok(options) => {
                let password = options.password.as_ref().map(|password| password.expose().to_owned());
                format!("{options} {:?} {password:?}", options.user)
            }
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn addresses_have_several_servers_a_login_and_a_prefix() {
        for (text, expected) in [
            ("etcd://a", "etcd://a:2379/whimbrel/fleet None None"),
            ("etcd://a:1,[::1]:2,c/", "etcd://a:1,[::1]:2,c:2379/whimbrel/fleet None None"),
            ("etcd://root:p%40%2f@a:1,b:2/x/y/", "etcd://a:1,b:2/x/y Some(\"root\") Some(\"p@/\")"),
            ("etcd://root@a", "etcd://a:2379/whimbrel/fleet Some(\"root\") None"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        assert!(EtcdOptions::parse("etcds://a").expect("TLS").endpoints[0].tls.is_some());
    }

    #[test]
    fn what_is_no_address_is_refused_without_its_password() {
        for text in [
            "etcd://",
            "etcd://u:secret@",
            "etcd://u:secret@a:x",
            "etcd://u:secret@a,,b",
            "redis://u:secret@a",
            "etcd://:secret@a",
            "etcd://u:secret%ff@a",
            "etcd://u:secret@a/b c",
            "u:secret@a",
        ] {
            let error = EtcdOptions::parse(text).expect_err(text).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn passwords_are_taken_out() {
        let shown = EtcdOptions::without_password("etcd://u:se@cret@a:1,b/x@y");
        assert_eq!(shown.as_deref(), Some("etcd://u@a:1,b/x@y"));
        assert_eq!(EtcdOptions::without_password("etcd://u@a:1"), None);
        assert_eq!(EtcdOptions::without_password("a:1"), None);
    }
}
