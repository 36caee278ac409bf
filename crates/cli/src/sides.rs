//! From what the user typed to endpoints that can be connected to.

use std::os::unix::process::CommandExt;
use std::path::Path;

use whimbrel_engine::endpoint::{Address, Endpoint, Secret, TlsOptions};
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_engine::link::LinkOptions;

use crate::args::{Command, Sides, SourceAccess, TargetAccess};

/// The options of one side, without regard to which.
struct Access<'a> {
    user: Option<&'a String>,
    password_file: Option<&'a Path>,
    password_variable: &'static str,
    map: &'a [String],
    tls: bool,
    ca: Option<&'a Path>,
    cert: Option<&'a Path>,
    key: Option<&'a Path>,
    server_name: Option<&'a String>,
}

/// The two sides' options are types of their own, since each flag has its own name, but have the same fields.
macro_rules! access_from {
    ($options:ident, $password_variable:literal) => {
        impl<'a> From<&'a $options> for Access<'a> {
            fn from(a: &'a $options) -> Self {
                Access {
                    user: a.user.as_ref(),
                    password_file: a.password_file.as_deref(),
                    password_variable: $password_variable,
                    map: &a.map,
                    tls: a.tls,
                    ca: a.ca.as_deref(),
                    cert: a.cert.as_deref(),
                    key: a.key.as_deref(),
                    server_name: a.server_name.as_ref(),
                }
            }
        }
    };
}

access_from!(SourceAccess, "WHIMBREL_SOURCE_PASSWORD");
access_from!(TargetAccess, "WHIMBREL_TARGET_PASSWORD");

impl Sides {
    /// Both endpoints.
    ///
    /// # Errors
    /// `Unfit` or `Own` for what cannot be understood or read; nothing has been contacted.
    pub fn endpoints(&self) -> Result<(Endpoint, Endpoint)> {
        Ok((
            endpoint(Side::Source, &self.source, &Access::from(&self.source_access), self.insecure)?,
            endpoint(Side::Target, &self.target, &Access::from(&self.target_access), self.insecure)?,
        ))
    }

    /// How connections behave.
    pub fn link_options(&self, readonly: bool) -> LinkOptions {
        LinkOptions {
            db: 0,
            readonly,
            connect_timeout_ms: self.connect_timeout,
            reply_timeout_ms: self.timeout,
        }
    }
}

/// Takes passwords out of the command line, where `ps` shows them to everybody on the machine: where an address holds
/// one, the process replaces itself by one that finds it in its environment, which only its own user can read.
///
/// # Errors
/// `Own` where the process cannot be replaced. Otherwise it returns only where there was nothing to hide.
pub fn hide_passwords(command: &Command) -> Result<()> {
    let sides = match command {
        Command::Copy(args) => &args.sides,
        Command::Verify(args) => &args.sides,
        _ => return Ok(()),
    };
    let mut hidden = Vec::new();
    for (side, text, variable) in [
        (Side::Source, &sides.source, "WHIMBREL_SOURCE_PASSWORD"),
        (Side::Target, &sides.target, "WHIMBREL_TARGET_PASSWORD"),
    ] {
        // What is no address is complained about later, by whoever has to use it.
        let Ok(Endpoint { password: Some(password), .. }) = Endpoint::parse(side, text) else { continue };
        if let Some(shown) = Endpoint::without_password(text) {
            hidden.push((text.clone(), shown, variable, password));
        }
    }
    if hidden.is_empty() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|e| Error::own("hide a password", e))?;
    let mut again = std::process::Command::new(program);
    for arg in std::env::args_os().skip(1) {
        match hidden.iter().find(|(text, ..)| arg == text.as_str()) {
            Some((_, shown, ..)) => again.arg(shown),
            None => again.arg(arg),
        };
    }
    for (_, _, variable, password) in &hidden {
        again.env(variable, password.expose());
    }
    Err(Error::own("hide a password", again.exec()))
}

fn endpoint(side: Side, text: &str, access: &Access<'_>, insecure: bool) -> Result<Endpoint> {
    let mut endpoint = Endpoint::parse(side, text)?;
    if let Some(user) = access.user {
        endpoint.user = Some(user.clone());
    }
    if let Some(path) = access.password_file {
        let text = std::fs::read_to_string(path).map_err(|e| {
            let tried = format!("read the password file {}", path.display());
            Error::new(side, "", tried, ErrorKind::Own(e.to_string()))
                .with_remedy(format!("name a file that can be read with --{side}-password-file"))
        })?;
        endpoint.password = Some(Secret::new(text.lines().next().unwrap_or_default()));
    } else if endpoint.password.is_none()
        && let Ok(password) = std::env::var(access.password_variable)
    {
        endpoint.password = Some(Secret::new(password));
    }
    if endpoint.user.is_some() && endpoint.password.is_none() {
        let what = "a user is named, but no password";
        return Err(Error::unfit(side, "", "reading the options", what).with_remedy(format!(
            "add it to the URL, set {}, or name a password file",
            access.password_variable
        )));
    }
    let wants_tls =
        access.tls || access.ca.is_some() || access.cert.is_some() || access.server_name.is_some();
    if wants_tls && endpoint.tls.is_none() {
        endpoint.tls = Some(TlsOptions::default());
    }
    if let Some(tls) = &mut endpoint.tls {
        tls.ca_file = access.ca.map(Path::to_owned);
        tls.cert_file = access.cert.map(Path::to_owned);
        tls.key_file = access.key.map(Path::to_owned);
        tls.server_name = access.server_name.cloned();
        tls.insecure = insecure;
    }
    for pair in access.map {
        let parsed = pair
            .split_once('=')
            .and_then(|(from, to)| Some((Address::parse_tcp(from)?, Address::parse_tcp(to)?)));
        let Some(pair) = parsed else {
            return Err(Error::unfit(
                side,
                "",
                "reading the options",
                format!("{pair} is no address map entry"),
            )
            .with_remedy("write ANNOUNCED_HOST:PORT=REACHABLE_HOST:PORT"));
        };
        endpoint.address_map.push(pair);
    }
    Ok(endpoint)
}
