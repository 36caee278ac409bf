//! What a move costs by the size of the fleet, as a picture: a bar for each way to publish it, side by
//! side for each size.

use whimbrel_core::units::format_count;

use super::outcome::Outcome;
use super::size::{Mode, name};
use crate::bars::{Bars, Panel};

/// The time that a move takes, and how it is described.
pub(super) fn svg(title: &str, rows: &[Outcome]) -> String {
    let mut sizes: Vec<(u32, u32)> = Vec::new();
    let mut modes: Vec<Mode> = Vec::new();
    for row in rows {
        let size = (row.size.members, row.size.partitions);
        if !sizes.contains(&size) {
            sizes.push(size);
        }
        if !modes.contains(&row.mode) {
            modes.push(row.mode);
        }
    }
    let values = |what: fn(&Outcome) -> f64| {
        let of = |size: &(u32, u32), mode: Mode| {
            let is_it = |row: &&Outcome| (row.size.members, row.size.partitions) == *size && row.mode == mode;
            rows.iter().find(is_it).map(what)
        };
        sizes.iter().map(|size| modes.iter().map(|mode| of(size, *mode)).collect()).collect()
    };
    let per_move = values(|row| row.seconds * 1e6 / row.moved.max(1) as f64);
    let published = values(|row| row.published_bytes_per_move);
    let named = |(members, partitions): &(u32, u32)| {
        [format!("{members} members"), format!("{} partitions", format_count((*partitions).into()))]
    };
    let panels = vec![
        Panel { name: "time for each move, µs", scale: (1, 6), values: per_move },
        Panel { name: "bytes published for each move", scale: (1, 8), values: published },
    ];
    let (settings, contenders) = (sizes.iter().map(named).collect(), modes.into_iter().map(name).collect());
    Bars { title, settings, contenders, panels }.svg()
}
