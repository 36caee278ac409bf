//! Lines of progress: cells of which the less important ones give way where a terminal is narrow.

use textwrap::core::display_width;

/// What stands between two cells.
const GAP: &str = "  ";

/// A part of a line of progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// What it says; empty where there is nothing to say now.
    pub text: String,
    /// The cells with the highest rank give way first.
    pub rank: u8,
}

/// A cell of this rank.
pub fn cell(rank: u8, text: impl Into<String>) -> Cell {
    Cell { text: text.into(), rank }
}

/// All of a line, for what is no terminal.
pub fn whole(row: &[Cell]) -> String {
    let filled = row.iter().filter(|cell| !cell.text.is_empty());
    filled.map(|cell| cell.text.as_str()).collect::<Vec<_>>().join(GAP)
}

/// A line for each row, none wider than `width`. Cells at the same place of different rows stand below one
/// another, and give way together; a row of one cell stands for itself.
pub fn fitted(rows: &[Vec<Cell>], width: usize) -> Vec<String> {
    let places = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells_at =
        |place: usize| rows.iter().filter(|row| row.len() > 1).filter_map(move |row| row.get(place));
    let mut widths: Vec<usize> = (0..places)
        .map(|place| cells_at(place).map(|cell| display_width(&cell.text)).max().unwrap_or(0))
        .collect();
    let rank_at = |place: usize| cells_at(place).map(|cell| cell.rank).min().unwrap_or(0);
    loop {
        let shown = || (0..places).filter(|&place| widths[place] > 0);
        let needed = shown().map(|place| widths[place] + GAP.len()).sum::<usize>().saturating_sub(GAP.len());
        let least = shown().max_by_key(|&place| (rank_at(place), place));
        match least {
            Some(least) if needed > width && shown().count() > 1 => widths[least] = 0,
            _ => break,
        }
    }
    rows.iter().map(|row| truncate(line(row, &widths).trim_end(), width)).collect()
}

fn line(row: &[Cell], widths: &[usize]) -> String {
    if let [only] = row {
        return only.text.clone();
    }
    let shown = row.iter().zip(widths).filter(|(_, width)| **width > 0);
    let padded = shown.map(|(cell, width)| {
        let pad = width.saturating_sub(display_width(&cell.text));
        format!("{}{}", cell.text, " ".repeat(pad))
    });
    padded.collect::<Vec<_>>().join(GAP)
}

/// A text of at most `width` columns; where it is longer, an ellipsis says so.
pub fn truncate(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        if display_width(&short) + display_width(c.encode_utf8(&mut [0; 4])) >= width {
            break;
        }
        short.push(c);
    }
    short.push('…');
    short
}

/// A text of at most `width` columns, cut in the middle where it is longer: of names the ends say most. Of
/// two that an arrow joins, each is cut by itself.
pub fn shorten(text: &str, width: usize) -> String {
    const ARROW: &str = " -> ";
    if display_width(text) <= width {
        return text.to_owned();
    }
    let Some((from, to)) = text.split_once(ARROW).filter(|_| width > 2 * ARROW.len()) else {
        return cut_inside(text, width);
    };
    let room = width - ARROW.len();
    // What one does not need, the other gets.
    let left = display_width(from).min((room / 2).max(room.saturating_sub(display_width(to))));
    format!("{}{ARROW}{}", cut_inside(from, left), cut_inside(to, room - left))
}

fn cut_inside(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let tail = width.saturating_sub(1) / 2;
    let mut end = String::new();
    for c in text.chars().rev() {
        if display_width(&end) + display_width(c.encode_utf8(&mut [0; 4])) > tail {
            break;
        }
        end.insert(0, c);
    }
    truncate(text, width - display_width(&end)) + &end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_in_the_middle_and_both_ends_of_an_arrow_stay() {
        let text = "source-primary.eu-west-1.example.net:6379 -> b:7000";
        assert_eq!(shorten(text, 60), text);
        assert_eq!(shorten(text, 30), "source-pri….net:6379 -> b:7000");
        let both = "source-primary.example.net:6379 -> target-primary.example.net:7000";
        assert_eq!(shorten(both, 34), "source-…et:6379 -> target-…et:7000");
        for width in 1..70 {
            assert!(display_width(&shorten(both, width)) <= width, "{width}: {}", shorten(both, width));
        }
    }

    #[test]
    fn less_important_cells_give_way_in_all_rows() {
        let row = |keys: &str| vec![cell(1, "a -> b"), cell(0, "7 %"), cell(3, keys), cell(2, "ETA 3 s")];
        let rows = [row("1,234 keys"), row("5 keys")];
        assert_eq!(
            fitted(&rows, 80),
            ["a -> b  7 %  1,234 keys  ETA 3 s", "a -> b  7 %  5 keys      ETA 3 s"]
        );
        assert_eq!(fitted(&rows, 25), ["a -> b  7 %  ETA 3 s"; 2]);
        assert_eq!(fitted(&rows, 12), ["a -> b  7 %"; 2]);
        assert_eq!(fitted(&rows, 4), ["7 %"; 2]);
        assert_eq!(fitted(&rows, 2), ["7…"; 2]);
        let with_sum = [rows[0].clone(), vec![cell(0, "3 jobs waiting")]];
        assert_eq!(fitted(&with_sum, 25), ["a -> b  7 %  ETA 3 s", "3 jobs waiting"]);
        assert_eq!(whole(&rows[1]), "a -> b  7 %  5 keys  ETA 3 s");
    }

    #[test]
    fn what_says_nothing_takes_no_room() {
        let row = vec![cell(0, "7 %"), cell(1, ""), cell(2, "x")];
        assert_eq!(
            (fitted(std::slice::from_ref(&row), 80), whole(&row)),
            (vec!["7 %  x".to_owned()], "7 %  x".to_owned())
        );
    }
}
