//! What `--version` says: what a report of a problem has to name.

/// The version, then the commit, the features, the target and the libraries, a line each.
pub fn long() -> String {
    let features = if cfg!(feature = "etcd") { "etcd" } else { "none" };
    format!(
        "{}\ncommit    {}\nfeatures  {features}\ntarget    {}\nlibraries {}",
        env!("CARGO_PKG_VERSION"),
        env!("WHIMBREL_BUILD_COMMIT"),
        env!("WHIMBREL_BUILD_TARGET"),
        env!("WHIMBREL_BUILD_LIBRARIES"),
    )
}
