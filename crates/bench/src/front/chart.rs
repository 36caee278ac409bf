//! What was answered wrongly while keys arrived, as a picture: a bar for each scheme, side by side for each
//! setting.

use super::moving::Seen;
use crate::bars::{Bars, Panel};

/// The share of wrong answers, and the writes that were lost in the end.
pub(super) fn svg(title: &str, seen: &[Seen]) -> String {
    let mut settings: Vec<(f64, f64)> = Vec::new();
    let mut schemes: Vec<&str> = Vec::new();
    for one in seen {
        if !settings.contains(&(one.zipf, one.writes)) {
            settings.push((one.zipf, one.writes));
        }
        if !schemes.contains(&one.scheme) {
            schemes.push(one.scheme);
        }
    }
    let values = |what: fn(&Seen) -> f64| {
        let of = |setting: &(f64, f64), scheme: &str| {
            seen.iter().find(|one| (one.zipf, one.writes) == *setting && one.scheme == scheme).map(what)
        };
        settings.iter().map(|setting| schemes.iter().map(|scheme| of(setting, scheme)).collect()).collect()
    };
    let wrong = values(|one| one.wrong_share * 100.0);
    let lost = values(|one| one.writes_lost as f64);
    let named =
        |(zipf, writes): &(f64, f64)| [format!("zipf {zipf}"), format!("{:.0} % writes", writes * 100.0)];
    let panels = vec![
        Panel { name: "wrong answers, % of queries", scale: (-4, 2), values: wrong },
        Panel { name: "keys whose last write was lost", scale: (-1, 2), values: lost },
    ];
    Bars { title, settings: settings.iter().map(named).collect(), contenders: schemes, panels }.svg()
}
