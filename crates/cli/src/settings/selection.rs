//! From what the user typed to a selection of keys.

use whimbrel_control::naming::Between;
use whimbrel_core::glob::{Pattern, leaves_class_open};
use whimbrel_core::select::Selection;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_flow::copy::{DbPair, databases};

use crate::settings::args::Names;

impl Names {
    /// The keys, by name and slot.
    ///
    /// # Errors
    /// `Options` for a pattern that can match nothing a user means.
    pub fn selection(&self) -> Result<Selection> {
        let patterns = |texts: &[String]| -> Result<Vec<Pattern>> {
            texts
                .iter()
                .map(|text| {
                    if text.is_empty() {
                        let what = "the pattern is empty: it would match the key with the empty name only";
                        return Err(Error::options(Side::Own, "reading the options", what)
                            .with_remedy("write '*' for all keys"));
                    }
                    if leaves_class_open(text.as_bytes()) {
                        let what = format!("the pattern {text} opens a [ that is never closed");
                        return Err(Error::options(Side::Own, "reading the options", what)
                            .with_remedy(r"close it with ], or write \[ for the character itself"));
                    }
                    Ok(Pattern::new(text.as_bytes()))
                })
                .collect()
        };
        Ok(Selection {
            include: patterns(&self.matches)?,
            exclude: patterns(&self.exclude)?,
            slots: self.slots.clone(),
        })
    }

    /// What a job between these two is about.
    pub fn between<'a>(&'a self, source: &'a Endpoint, target: &'a Endpoint) -> Between<'a> {
        let Names { matches, exclude, slots, .. } = self;
        Between { source, target, matches, exclude, slots: slots.as_ref() }
    }

    /// What `--db` says, before any server is asked.
    ///
    /// # Errors
    /// `Options` for what is no database, and for two that would be mixed in one.
    pub fn named_dbs(&self, target_db: Option<u32>) -> Result<NamedDbs> {
        let fail = |text: &str| {
            Error::options(Side::Own, "reading the options", format!("--db {text} is no database"))
                .with_remedy("write a number, SOURCE:TARGET, or all")
        };
        let number = |text: &str, whole: &str| text.parse::<u32>().map_err(|_| fail(whole));
        let mut named = NamedDbs { pairs: Vec::new(), all: false };
        for text in &self.dbs {
            if text == "all" {
                named.all = true;
                continue;
            }
            let (source, target) = match text.split_once(':') {
                Some((source, target)) => (number(source, text)?, number(target, text)?),
                None => {
                    let db = number(text, text)?;
                    (db, target_db.unwrap_or(db))
                }
            };
            let pair = DbPair { source, target };
            if !named.pairs.contains(&pair) {
                named.pairs.push(pair);
            }
        }
        match mixed(&named.pairs) {
            Some(what) => {
                Err(Error::options(Side::Own, "reading the options", what).with_remedy(MIXED_REMEDY))
            }
            None => Ok(named),
        }
    }

    /// The databases: what `--db` says, else what the source's URL names, else all that hold keys.
    ///
    /// # Errors
    /// As [`Names::named_dbs`]; whatever the source answers.
    pub async fn dbs(&self, source: &Deployment, target: &Deployment) -> Result<Vec<DbPair>> {
        let NamedDbs { mut pairs, all } = self.named_dbs(target.endpoint.db)?;
        let to = |db: u32| target.endpoint.db.unwrap_or(db);
        if let (true, Some(db)) = (self.dbs.is_empty(), source.endpoint.db) {
            pairs.push(DbPair { source: db, target: to(db) });
        } else if all || self.dbs.is_empty() && source.facts.are_known {
            for (db, _) in databases(source).await? {
                if !pairs.iter().any(|p| p.source == db) {
                    pairs.push(DbPair { source: db, target: to(db) });
                }
            }
        }
        if pairs.is_empty() {
            // Nothing there: the copy of an empty source is an empty target.
            pairs.push(DbPair { source: 0, target: to(0) });
        }
        match mixed(&pairs) {
            Some(what) => {
                let at = target.endpoint.address.to_string();
                Err(Error::unfit(Side::Target, at, "look at the databases", what).with_remedy(MIXED_REMEDY))
            }
            None => Ok(pairs),
        }
    }
}

/// The databases that `--db` names.
#[derive(Debug)]
pub struct NamedDbs {
    /// Those named by number.
    pairs: Vec<DbPair>,
    /// `all` is among them.
    all: bool,
}

const MIXED_REMEDY: &str = "give each its own with --db SOURCE:TARGET, or copy one of them";

/// What is wrong where two databases of the source go to one of the target.
fn mixed(pairs: &[DbPair]) -> Option<String> {
    let mut targets: Vec<u32> = pairs.iter().map(|p| p.target).collect();
    targets.sort_unstable();
    let twice = targets.windows(2).find(|w| w[0] == w[1])?;
    Some(format!("two databases of the source would be mixed in database {} of the target", twice[0]))
}
