//! Tables that fit the terminal: where it is narrow, columns are left out, and one gives way.

use textwrap::core::display_width;

use crate::row::{shorten, truncate};
use crate::screen::Screen;

/// Least width of the column that gives way.
const FLEXIBLE_MIN: usize = 12;

/// How a column is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A column.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its head.
    pub name: &'static str,
    /// How its cells are aligned.
    pub align: Align,
    /// Columns with the highest rank are left out first where there is no room; those of rank 0 stay.
    pub rank: u8,
}

/// A column with text.
pub const fn text(name: &'static str, rank: u8) -> Column {
    Column { name, align: Align::Left, rank }
}

/// A column with numbers.
pub const fn number(name: &'static str, rank: u8) -> Column {
    Column { name, align: Align::Right, rank }
}

/// A table.
#[derive(Debug)]
pub struct Table {
    head: Vec<Column>,
    flexible: usize,
    /// Whether the flexible column is never cut in its row.
    is_below: bool,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty one. `flexible` is the column that is cut where the rows would be too long, before any is
    /// left out.
    pub fn new(head: &[Column], flexible: usize) -> Table {
        Table { head: head.to_vec(), flexible, is_below: false, rows: Vec::new() }
    }

    /// The same, whose flexible column is neither cut nor left out: where its row has no room for it, it has
    /// a line of its own below that. Then the last column that always stays is cut, where there is no other
    /// way.
    #[must_use]
    pub fn with_line_below(self) -> Table {
        Table { is_below: true, ..self }
    }

    /// Adds a row of as many cells as there are columns.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.head.len());
        self.rows.push(cells);
    }

    /// The lines, without line ends, the head first; each no wider than `screen`, unless that is too narrow
    /// even for the columns that always stay.
    pub fn lines(&self, screen: Screen) -> Vec<String> {
        let widths = self.widths(screen.width);
        let head: Vec<&str> = self.head.iter().map(|column| column.name).collect();
        let mut lines = vec![screen.faint(&self.line(&head, &widths))];
        lines.extend(self.below(&head, &widths, screen));
        for row in &self.rows {
            let row: Vec<&str> = row.iter().map(String::as_str).collect();
            lines.push(self.line(&row, &widths));
            lines.extend(self.below(&row, &widths, screen));
        }
        lines
    }

    /// What has a line of its own below a row.
    fn below(&self, cells: &[&str], widths: &[Option<usize>], screen: Screen) -> Option<String> {
        let cell = cells[self.flexible];
        let is_there = self.is_below && widths[self.flexible].is_none() && !cell.is_empty();
        is_there.then(|| screen.faint(&format!("  {}", shorten(cell, screen.width.saturating_sub(2)))))
    }

    /// How wide each column is; `None` where it is left out.
    fn widths(&self, room: usize) -> Vec<Option<usize>> {
        let widths = self.widths_of(room, |_| true);
        let is_cut = widths[self.flexible] < self.natural(self.flexible);
        if self.is_below && is_cut { self.widths_of(room, |column| column != self.flexible) } else { widths }
    }

    /// As wide as the widest cell of a column.
    fn natural(&self, column: usize) -> Option<usize> {
        let cells = self.rows.iter().map(|row| display_width(&row[column]));
        cells.chain([display_width(self.head[column].name)]).max()
    }

    /// The same of the columns that are `wanted`.
    fn widths_of(&self, room: usize, wanted: impl Fn(usize) -> bool) -> Vec<Option<usize>> {
        let columns = 0..self.head.len();
        let mut widths: Vec<Option<usize>> =
            columns.map(|column| self.natural(column).filter(|_| wanted(column))).collect();
        loop {
            let shown: Vec<usize> = widths.iter().copied().flatten().collect();
            let excess =
                (shown.iter().sum::<usize>() + 2 * shown.len().saturating_sub(1)).saturating_sub(room);
            if excess == 0 {
                return widths;
            }
            let give = |width: &mut Option<usize>| match width {
                Some(width) if *width > FLEXIBLE_MIN => {
                    *width = width.saturating_sub(excess).max(FLEXIBLE_MIN);
                    true
                }
                _ => false,
            };
            if !self.is_below && give(&mut widths[self.flexible]) {
                continue;
            }
            let can_go = (0..widths.len()).filter(|&i| widths[i].is_some() && self.head[i].rank > 0);
            match can_go.max_by_key(|&i| (self.head[i].rank, i)) {
                Some(least) => widths[least] = None,
                None => {
                    let last = self.head.iter().rposition(|column| column.rank == 0);
                    let last = last.filter(|_| self.is_below);
                    if !last.is_some_and(|last| give(&mut widths[last])) {
                        return widths;
                    }
                }
            }
        }
    }

    fn line(&self, cells: &[&str], widths: &[Option<usize>]) -> String {
        let shown = cells.iter().zip(&self.head).zip(widths).filter_map(|((cell, column), width)| {
            let width = (*width)?;
            let cell = truncate(cell, width);
            let pad = " ".repeat(width - display_width(&cell));
            Some(match column.align {
                Align::Left => cell + &pad,
                Align::Right => pad + &cell,
            })
        });
        shown.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Screen = Screen { width: 30, colour: false };

    fn table() -> Table {
        let mut table = Table::new(&[text("ID", 0), text("SLOTS", 1), number("KEYS", 2)], 1);
        table.row(vec!["07c37dfe".into(), "0-100,200-300,400-500,600".into(), "1".into()]);
        table.row(vec!["a".into(), "7".into(), "12,345".into()]);
        table
    }

    #[test]
    fn a_table_fits_the_screen() {
        assert_eq!(
            table().lines(PLAIN),
            [
                "ID        SLOTS           KEYS",
                "07c37dfe  0-100,200-3…       1",
                "a         7             12,345"
            ]
        );
        let wide = table().lines(Screen { width: 100, ..PLAIN });
        assert!(wide[1].contains("0-100,200-300,400-500,600"), "{}", wide[1]);
    }

    #[test]
    fn a_column_that_has_no_room_is_a_line_below() {
        let mut table = Table::new(&[text("JOB", 0), text("FROM", 2), text("STATE", 0), text("MORE", 3)], 1)
            .with_line_below();
        let row = ["copy-1234567890", "one.example:7000 -> two.example:7000", "running: copying", "more"];
        table.row(row.map(str::to_owned).to_vec());
        let at = |width| table.lines(Screen { width, ..PLAIN });
        assert_eq!(at(200).len(), 2);
        assert_eq!(at(74).len(), 2, "what matters less is left out first: {:?}", at(74));
        assert_eq!(
            at(50),
            [
                "JOB              STATE             MORE",
                "  FROM",
                "copy-1234567890  running: copying  more",
                "  one.example:7000 -> two.example:7000",
            ]
        );
        assert_eq!(at(30)[2..], ["copy-1234567890  running: cop…", "  one.ex…:7000 -> two.ex…:7000"]);
    }

    #[test]
    fn columns_are_left_out_by_rank() {
        let narrow = |width| table().lines(Screen { width, ..PLAIN });
        assert_eq!(
            narrow(25),
            ["ID        SLOTS", "07c37dfe  0-100,200-3…", "a         7"].map(str::to_owned)
        );
        assert_eq!(narrow(10), ["ID", "07c37dfe", "a"].map(str::to_owned));
        for width in [50, 80, 120, 200] {
            assert!(narrow(width).iter().all(|line| display_width(line) <= width), "{:?}", narrow(width));
        }
    }
}
