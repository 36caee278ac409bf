//! How a server is reached and who logs in there: from what the user gave to an endpoint.

use std::path::Path;
use std::sync::Arc;

use whimbrel_engine::endpoint::{Address, Endpoint, SentinelLogin, TlsOptions};
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::login::PasswordCommand;

use crate::private::warning_if_shared;
use crate::secrets::{self, check_file};

/// What the user gave for one side.
#[derive(Debug, Clone, Copy, Default)]
pub struct Access<'a> {
    /// What the names of its options begin with: `source-`, for example.
    pub prefix: &'static str,
    /// Who logs in, in place of the user in the address.
    pub user: Option<&'a String>,
    /// The first line is the password.
    pub password_file: Option<&'a Path>,
    /// A command that prints the password.
    pub password_command: Option<&'a String>,
    /// For how long such a password is valid, in milliseconds.
    pub password_ttl_ms: u64,
    /// The variable that the password may come from.
    pub password_variable: &'static str,
    /// Who logs in at sentinels.
    pub sentinel_user: Option<&'a String>,
    /// The first line is the password for sentinels.
    pub sentinel_password_file: Option<&'a Path>,
    /// The variable that it may come from.
    pub sentinel_variable: &'static str,
    /// Announced addresses with those to connect to instead, `FROM=TO` each.
    pub map: &'a [String],
    /// Use TLS, whatever the address says.
    pub tls: bool,
    /// The file with the authorities to trust.
    pub ca: Option<&'a Path>,
    /// The file with our certificate.
    pub cert: Option<&'a Path>,
    /// The file with its private key.
    pub key: Option<&'a Path>,
    /// The name to expect in the server's certificate.
    pub server_name: Option<&'a String>,
}

impl Access<'_> {
    /// The endpoint at this address. `insecure` accepts any certificate. `warn` is given what the user has to
    /// be warned of.
    ///
    /// # Errors
    /// `Options` for what cannot be understood; `Options` or `Own` for files that cannot be read. Nothing has
    /// been contacted.
    pub fn endpoint(&self, side: Side, text: &str, insecure: bool, warn: impl Fn(&str)) -> Result<Endpoint> {
        let secret = |prefix: &str, file: Option<&Path>, variable: &str| {
            secrets::secret(side, &format!("{prefix}password"), file, variable, &warn)
        };
        let mut endpoint = Endpoint::parse(side, text)?;
        if let Some(user) = self.user {
            endpoint.user = Some(user.clone());
        }
        if let Some(command) = self.password_command {
            let command = PasswordCommand::new(side, command, self.password_ttl_ms);
            endpoint.password_command = Some(Arc::new(command));
            endpoint.password = None;
        // A file wins over the address, and the address over the environment.
        } else if self.password_file.is_some() || endpoint.password.is_none() {
            endpoint.password = secret(self.prefix, self.password_file, self.password_variable)?;
        }
        if endpoint.user.is_some() && endpoint.password.is_none() && endpoint.password_command.is_none() {
            let what = "a user is named, but no password";
            return Err(Error::options(side, "reading the options", what).with_remedy(format!(
                "add it to the URL, set {}, or name a password file",
                self.password_variable
            )));
        }
        if let Address::Sentinel(_) = endpoint.address {
            let prefix = format!("{}sentinel-", self.prefix);
            endpoint.sentinel = SentinelLogin {
                user: self.sentinel_user.cloned(),
                password: secret(&prefix, self.sentinel_password_file, self.sentinel_variable)?,
            };
        }
        let wants_tls = self.tls || self.ca.is_some() || self.cert.is_some() || self.server_name.is_some();
        if wants_tls && endpoint.tls.is_none() {
            endpoint.tls = Some(TlsOptions::default());
        }
        if let Some(tls) = &mut endpoint.tls {
            tls.ca_file = self.ca.map(Path::to_owned);
            tls.cert_file = self.cert.map(Path::to_owned);
            tls.key_file = self.key.map(Path::to_owned);
            tls.server_name = self.server_name.cloned();
            tls.insecure = insecure;
            for (option, file) in [("ca", self.ca), ("cert", self.cert), ("key", self.key)] {
                check_file(side, format!("{}{option}", self.prefix), file)?;
            }
            if insecure {
                let at = &endpoint.address;
                warn(&format!(
                    "warning  any certificate is accepted from {at}: anybody on the way can read and change \
                        all"
                ));
            }
            if let Some(key) = self.key {
                warning_if_shared(key, "the private key").iter().for_each(|words| warn(words));
            }
        }
        for pair in self.map {
            let parsed = Address::parse_mapping(pair).ok_or_else(|| {
                let what = format!("{pair} is no address map entry");
                Error::options(side, "reading the options", what)
                    .with_remedy("write ANNOUNCED_HOST:PORT=REACHABLE_HOST:PORT")
            })?;
            endpoint.address_map.push(parsed);
        }
        Ok(endpoint)
    }
}
