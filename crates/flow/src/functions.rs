//! Function libraries: they live outside the keyspace, and a copy of keys does not bring them along.

use bytes::Bytes;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Code, Error, Result, ServerError, Side};
use whimbrel_engine::link::Link;
use whimbrel_engine::remedy::Remedy;
use whimbrel_wire::value::Value;

use crate::large::Existing;

/// How many libraries a deployment has; 0 if it knows no functions, or does not let us look.
pub async fn count(deployment: &Deployment) -> usize {
    if !deployment.capabilities.functions {
        return 0;
    }
    libraries(deployment, false).await.map_or(0, |l| l.len())
}

/// Refuses a source whose libraries this user may not list.
///
/// # Errors
/// The server's refusal, with what to do.
pub async fn check_listed(source: &Deployment) -> Result<()> {
    match libraries(source, false).await {
        Err(e) if e.server().is_some_and(|e| e.code == Code::NoPermission) => {
            Err(e.with_remedy(Remedy::LeaveOutFunctions("give this user +function|list")))
        }
        _ => Ok(()),
    }
}

/// Copies all libraries to every primary of the target; returns how many.
///
/// With [`Existing::Skip`] a library that exists is left alone, with [`Existing::Fail`] it is an error.
///
/// # Errors
/// `Unfit` if the target knows no functions; whatever the servers answer.
pub async fn copy(source: &Deployment, target: &Deployment, existing: Existing) -> Result<usize> {
    let is_known = source.capabilities.functions;
    if source.is_proxied() {
        return Ok(0);
    }
    let libraries = match libraries(source, true).await {
        // A server that does not report its commands may have it.
        Err(e) if !is_known && e.server().is_some_and(|e| e.code == Code::UnknownCommand) => return Ok(0),
        libraries => libraries?,
    };
    if libraries.is_empty() {
        return Ok(0);
    }
    if !target.capabilities.functions {
        return Err(Error::unfit(
            Side::Target,
            target.endpoint.address.to_string(),
            "copy functions",
            "this server knows no functions",
        )
        .with_remedy(Remedy::LeaveOutFunctions("")));
    }
    for shard in &target.topology().shards {
        let mut link = target.open(&shard.primary, 0).await?;
        for (name, code) in &libraries {
            let mut args: Vec<&[u8]> = vec![b"FUNCTION", b"LOAD"];
            if existing == Existing::Replace {
                args.push(b"REPLACE");
            }
            args.push(code);
            let reply = link.ask(&args).await?;
            let Some(e) = ServerError::of(&reply) else { continue };
            if e.text.contains("already exists")
                && (existing == Existing::Skip
                    || existing == Existing::Fail && holds(&mut link, name, code).await?)
            {
                continue;
            }
            return Err(link
                .server_error(e, format!("FUNCTION LOAD of library {name}").as_bytes())
                .with_remedy(Remedy::LeaveOutFunctions("see the library")));
        }
    }
    Ok(libraries.len())
}

/// Whether the server has this very library.
async fn holds(link: &mut Link, name: &str, code: &[u8]) -> Result<bool> {
    let reply = link.call(&[b"FUNCTION", b"LIST", b"LIBRARYNAME", name.as_bytes(), b"WITHCODE"]).await?;
    let library = reply.as_items().and_then(|items| items.first());
    Ok(library
        .and_then(|l| l.field("library_code"))
        .and_then(Value::as_bytes)
        .is_some_and(|theirs| theirs == code))
}

/// Loads the libraries of one primary of a cluster into another that lacks them, such as a primary that has
/// just joined. Returns the names of those that both have with different code: which of them is right cannot
/// be known here.
///
/// # Errors
/// Whatever the servers answer. If `FUNCTION` does not exist, or is not allowed, there is nothing to load.
pub async fn share(source: &mut Link, target: &mut Link) -> Result<Vec<String>> {
    let mut different = Vec::new();
    if source.may_run(&[b"FUNCTION", b"LIST"]).await?.is_some() {
        return Ok(different);
    }
    for (name, code) in list(source, true).await? {
        let reply = target.ask(&[b"FUNCTION", b"LOAD", &code]).await?;
        match ServerError::of(&reply) {
            None => {}
            Some(e) if e.text.contains("already exists") => {
                let same = holds(target, &name, &code).await?;
                different.extend((!same).then_some(name));
            }
            Some(e) => {
                return Err(target.server_error(e, format!("FUNCTION LOAD of library {name}").as_bytes()));
            }
        }
    }
    Ok(different)
}

/// The names of the libraries that both have with different code, as [`share`] would find them. Changes
/// nothing.
///
/// # Errors
/// As [`share`].
pub async fn different(source: &mut Link, target: &mut Link) -> Result<Vec<String>> {
    if source.may_run(&[b"FUNCTION", b"LIST"]).await?.is_some() {
        return Ok(Vec::new());
    }
    let wanted = list(source, true).await?;
    let Some((first, _)) = wanted.first() else { return Ok(Vec::new()) };
    // No library has this code, so none is loaded.
    if let Some(refused) = target.may_run(&[b"FUNCTION", b"LOAD", b"-"]).await? {
        return Err(target.server_error(refused, format!("FUNCTION LOAD of library {first}").as_bytes()));
    }
    let found = list(target, true).await?;
    let is_other = |(name, code): &(String, Bytes)| {
        found.iter().any(|(theirs, held)| theirs == name && held != code).then(|| name.clone())
    };
    Ok(wanted.iter().filter_map(is_other).collect())
}

/// Gives the target exactly the libraries of the source. Those that differ or that the source lacks are
/// deleted first, so no client may use the target meanwhile.
///
/// # Errors
/// Whatever the servers answer. If the source has no `FUNCTION`, or does not allow it, there is nothing to
/// do.
pub async fn mirror(source: &mut Link, target: &mut Link) -> Result<()> {
    if source.may_run(&[b"FUNCTION", b"LIST"]).await?.is_some() {
        return Ok(());
    }
    let wanted = list(source, true).await?;
    if wanted.is_empty() && target.may_run(&[b"FUNCTION", b"LIST"]).await?.is_some() {
        return Ok(());
    }
    let found = list(target, true).await?;
    // All of them first: a function may have gone from one library to another.
    for (name, _) in found.iter().filter(|library| !wanted.contains(library)) {
        target.call(&[b"FUNCTION", b"DELETE", name.as_bytes()]).await?;
    }
    for (_, code) in wanted.iter().filter(|library| !found.contains(library)) {
        target.call(&[b"FUNCTION", b"LOAD", b"REPLACE", code]).await?;
    }
    Ok(())
}

async fn libraries(deployment: &Deployment, with_code: bool) -> Result<Vec<(String, Bytes)>> {
    let topology = deployment.topology();
    let Some(shard) = topology.shards.first() else { return Ok(Vec::new()) };
    let mut link = deployment.open(&shard.primary, 0).await?;
    list(&mut link, with_code).await
}

async fn list(link: &mut Link, with_code: bool) -> Result<Vec<(String, Bytes)>> {
    let mut args: Vec<&[u8]> = vec![b"FUNCTION", b"LIST"];
    if with_code {
        args.push(b"WITHCODE");
    }
    let reply = link.call(&args).await?;
    let Some(items) = reply.as_items() else {
        return Err(link.unexpected("FUNCTION LIST", &reply));
    };
    let library = |item: &Value| {
        let name = item.field("library_name")?.as_str()?.to_owned();
        let code = item.field("library_code").and_then(Value::as_bytes).cloned().unwrap_or_default();
        Some((name, code))
    };
    Ok(items.iter().filter_map(library).collect())
}
